//! A store in memory, for tests and for engines that need no persistence.
//!
//! Invariants: the committed state is one ordered map behind an [`Arc`]; a scan keeps its own reference, and a commit
//! changes the map in place if no scan has one, or else a copy. So scans see one moment, at the cost of a copy for a
//! commit during a scan. The map's mutex is never held while a caller's code runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferrite_checks::ranked::Mutex;

use crate::error::Result;
use crate::lock_order;
use crate::locks::Locks;
use crate::overlay::{Base, Changes, Overlay, between};
use crate::store::{MetaStore, Statistics, Transaction, Visit};

type Pairs = BTreeMap<Vec<u8>, Arc<[u8]>>;

/// A store in memory. It has the locks, the snapshots and the errors of a real one; nothing in it is durable.
#[derive(Default)]
pub struct MemoryStore {
    committed: Mutex<lock_order::Committed, Arc<Pairs>>,
    locks: Locks,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long a transaction waits for a lock. 5 seconds by default.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.locks = Locks::new(timeout);
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

impl Base for MemoryStore {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn committed(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.committed.lock().get(key).map(|value| value.to_vec()))
    }

    fn scan_committed(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let snapshot = self.snapshot();
        for (key, value) in between(&snapshot, from, to) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, changes: Changes) -> Result<()> {
        let mut committed = self.committed.lock();
        let pairs = Arc::make_mut(&mut committed);
        for (key, value) in changes {
            match value {
                Some(value) => drop(pairs.insert(key, value)),
                None => drop(pairs.remove(&key)),
            }
        }
        Ok(())
    }
}

impl MetaStore for MemoryStore {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        Box::new(Overlay::new(self))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.committed(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        self.scan_committed(from, to, visit)
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
