//! A store in memory, for tests and for engines that need no persistence.
//!
//! Invariants: the committed state is one ordered map behind an [`Arc`]; a scan keeps its own reference, and a commit
//! changes the map in place if no scan has one, or else a copy. So scans see one moment, at the cost of a copy for a
//! commit during a scan. The map's mutex is never held while a caller's code runs.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::locks::{Id, Locks};
use crate::store::{Lock, MetaStore, Statistics, Transaction, Visit};

/// Longer than any transaction of a program that is not stuck.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

type Pairs = BTreeMap<Vec<u8>, Arc<[u8]>>;
/// A transaction's changes: a value, or `None` for a deleted key.
type Changes = BTreeMap<Vec<u8>, Option<Arc<[u8]>>>;

/// A store in memory. It has the locks, the snapshots and the errors of a real one; nothing in it is durable.
pub struct MemoryStore {
    committed: Mutex<Arc<Pairs>>,
    locks: Locks,
    next: AtomicU64,
    lock_timeout: Duration,
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore {
            committed: Mutex::default(),
            locks: Locks::default(),
            next: AtomicU64::new(1),
            lock_timeout: LOCK_TIMEOUT,
        }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long a transaction waits for a lock. 5 seconds by default.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// A store with the committed state of this one, now.
    pub fn copy(&self) -> Self {
        MemoryStore {
            committed: Mutex::new(self.snapshot()),
            ..Self::default()
        }
    }

    /// Keys that transactions have locked now. Without a transaction, this is 0.
    pub fn locked_keys(&self) -> usize {
        self.locks.len()
    }

    fn snapshot(&self) -> Arc<Pairs> {
        Arc::clone(&self.committed.lock())
    }
}

/// The pairs of `from..to`; empty if the order is wrong.
fn between<'m, V>(map: &'m BTreeMap<Vec<u8>, V>, from: &[u8], to: &[u8]) -> impl Iterator<Item = (&'m Vec<u8>, &'m V)> {
    let bounds = (Bound::Included(from), Bound::Excluded(to));
    (from < to).then(|| map.range::<[u8], _>(bounds)).into_iter().flatten()
}

impl MetaStore for MemoryStore {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        Box::new(Txn {
            store: self,
            id: self.next.fetch_add(1, Ordering::Relaxed),
            changes: Changes::new(),
            locked: Vec::new(),
            savepoints: Vec::new(),
        })
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.committed.lock().get(key).map(|value| value.to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let snapshot = self.snapshot();
        for (key, value) in between(&snapshot, from, to) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        let snapshot = self.snapshot();
        let bytes = snapshot.iter().map(|(key, value)| key.len() + value.len());
        Statistics {
            keys_estimated: snapshot.len() as u64,
            memory_bytes: bytes.sum::<usize>() as u64,
            ..Statistics::default()
        }
    }
}

struct Txn<'s> {
    store: &'s MemoryStore,
    id: Id,
    changes: Changes,
    /// In the order in which they were locked.
    locked: Vec<Vec<u8>>,
    /// The changes at each, and how many keys were locked.
    savepoints: Vec<(Changes, usize)>,
}

impl Txn<'_> {
    fn lock(&mut self, key: &[u8], lock: Lock) -> Result<()> {
        if self.store.locks.lock(self.id, key, lock, self.store.lock_timeout)? {
            self.locked.push(key.to_vec());
        }
        Ok(())
    }
}

impl Transaction for Txn<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.changes.get(key) {
            Some(own) => Ok(own.as_ref().map(|value| value.to_vec())),
            None => self.store.get(key),
        }
    }

    fn get_for_update(&mut self, key: &[u8], lock: Lock) -> Result<Option<Vec<u8>>> {
        self.lock(key, lock)?;
        self.get(key)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.lock(key, Lock::Exclusive)?;
        self.changes.insert(key.to_vec(), Some(value.into()));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.lock(key, Lock::Exclusive)?;
        self.changes.insert(key.to_vec(), None);
        Ok(())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let snapshot = self.store.snapshot();
        let mut committed = between(&snapshot, from, to).peekable();
        let mut own = between(&self.changes, from, to).peekable();
        loop {
            let next = match (committed.peek(), own.peek()) {
                (None, None) => return Ok(()),
                (Some((key, _)), Some((mine, _))) if key < mine => {
                    committed.next().map(|(key, value)| (key, Some(value)))
                }
                (Some(_), None) => committed.next().map(|(key, value)| (key, Some(value))),
                (there, Some((mine, _))) => {
                    // The transaction's change hides the committed pair.
                    if there.is_some_and(|(key, _)| key == mine) {
                        committed.next();
                    }
                    own.next().map(|(key, value)| (key, value.as_ref()))
                }
            };
            if let Some((key, Some(value))) = next
                && visit(key, value) == ControlFlow::Break(())
            {
                return Ok(());
            }
        }
    }

    fn savepoint(&mut self) {
        self.savepoints.push((self.changes.clone(), self.locked.len()));
    }

    fn rollback_to_savepoint(&mut self) -> Result<()> {
        let (changes, locked) = self
            .savepoints
            .pop()
            .ok_or_else(|| Error::Invalid("a rollback, but there is no savepoint".into()))?;
        self.changes = changes;
        let since = self.locked.split_off(locked);
        self.store.locks.unlock(self.id, &since);
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<()> {
        let changes = std::mem::take(&mut self.changes);
        if !changes.is_empty() {
            let mut committed = self.store.committed.lock();
            let pairs = Arc::make_mut(&mut committed);
            for (key, value) in changes {
                match value {
                    Some(value) => drop(pairs.insert(key, value)),
                    None => drop(pairs.remove(&key)),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        self.store.locks.unlock(self.id, &self.locked);
    }
}
