//! Locks of keys for transactions in memory.
//!
//! Invariants: a key has one exclusive holder, or shared ones, or is not in the table; a transaction waits for one key
//! at most; a wait that would close a cycle does not begin. The table's mutex is never held during a wait. Used by
//! `overlay` only.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use crate::error::{Error, Result};
use crate::lock_order;
use crate::store::Lock;

/// Longer than any transaction of a program that is not stuck.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The number of a transaction.
pub(crate) type Id = u64;

pub(crate) struct Locks {
    table: Mutex<lock_order::KeyLocks, Table>,
    freed: Condvar,
    next: AtomicU64,
    timeout: Duration,
}

impl Default for Locks {
    fn default() -> Self {
        Locks::new(TIMEOUT)
    }
}

#[derive(Default)]
struct Table {
    held: HashMap<Vec<u8>, Holders>,
    waiting: HashMap<Id, Vec<u8>>,
}

#[derive(Debug)]
struct Holders {
    lock: Lock,
    /// One, if the lock is exclusive.
    ids: Vec<Id>,
}

impl Table {
    /// Locks a key if no other transaction is in the way. Returns whether it was not locked by this transaction before.
    fn take(&mut self, id: Id, key: &[u8], lock: Lock) -> Option<bool> {
        let Some(holders) = self.held.get_mut(key) else {
            self.held.insert(key.to_vec(), Holders { lock, ids: vec![id] });
            return Some(true);
        };
        let has = holders.ids.contains(&id);
        if has && (holders.lock == Lock::Exclusive || lock == Lock::Shared) {
            return Some(false);
        }
        if has && holders.ids.len() == 1 {
            holders.lock = Lock::Exclusive;
            return Some(false);
        }
        if !has && lock == Lock::Shared && holders.lock == Lock::Shared {
            holders.ids.push(id);
            return Some(true);
        }
        None
    }

    /// Whether a transaction that waits for `key` would wait for itself, through others.
    fn closes_circle(&self, id: Id, key: &[u8]) -> bool {
        let mut seen = HashSet::from([id]);
        let holders = |key: &[u8]| self.held.get(key).map_or(&[][..], |holders| &holders.ids);
        let mut waits_for: Vec<Id> = holders(key).to_vec();
        while let Some(other) = waits_for.pop() {
            if !seen.insert(other) {
                continue;
            }
            let next = self.waiting.get(&other).map_or(&[][..], |key| holders(key));
            if next.contains(&id) {
                return true;
            }
            waits_for.extend(next);
        }
        false
    }
}

impl Locks {
    /// No lock yet. A transaction waits for one at most as long as the timeout.
    pub(crate) fn new(timeout: Duration) -> Locks {
        Locks {
            table: Mutex::default(),
            freed: Condvar::new(),
            next: AtomicU64::new(1),
            timeout,
        }
    }

    /// A number for a transaction.
    pub(crate) fn new_id(&self) -> Id {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Locks a key, or waits for it. Returns whether the transaction had no lock on it before.
    pub(crate) fn lock(&self, id: Id, key: &[u8], lock: Lock) -> Result<bool> {
        let until = Instant::now() + self.timeout;
        let mut table = self.table.lock();
        loop {
            if let Some(is_new) = table.take(id, key, lock) {
                return Ok(is_new);
            }
            if table.closes_circle(id, key) {
                return Err(Error::Deadlock);
            }
            table.waiting.insert(id, key.to_vec());
            let late = self.freed.wait_until(&mut table, until).timed_out();
            table.waiting.remove(&id);
            if late {
                return table.take(id, key, lock).ok_or(Error::Busy);
            }
        }
    }

    /// Releases keys that the transaction has locked.
    pub(crate) fn unlock<'k>(&self, id: Id, keys: impl IntoIterator<Item = &'k Vec<u8>>) {
        let mut table = self.table.lock();
        for key in keys {
            if let Some(holders) = table.held.get_mut(key) {
                holders.ids.retain(|&holder| holder != id);
                if holders.ids.is_empty() {
                    table.held.remove(key);
                }
            }
        }
        drop(table);
        self.freed.notify_all();
    }

    /// Keys that are locked now.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().held.len()
    }
}
