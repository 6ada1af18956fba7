//! A transaction that keeps its changes in memory until its commit.
//!
//! Contents: [`Overlay`], over a [`Base`], which says what is committed and how changes become so. Used by `memory` and
//! `owned`.
//!
//! Invariant: whatever way a transaction ends, it releases its locks, and not before its changes are visible.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::locks::{Id, Locks};
use crate::store::{Lock, Transaction, Visit};

/// A transaction's changes: a value, or `None` for a deleted key.
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Arc<[u8]>>>;

/// The store below a transaction.
pub(crate) trait Base: Sync {
    fn locks(&self) -> &Locks;
    /// The committed value of a key.
    fn committed(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Passes on the committed pairs of `from..to`; holds no lock meanwhile.
    fn scan_committed(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()>;
    /// Makes changes visible, all at once, and durable if the store is. Their keys are locked until it returns.
    fn commit(&self, changes: Changes) -> Result<()>;
}

/// The pairs of `from..to`; empty if the order is wrong.
pub(crate) fn between<'m, V>(
    map: &'m BTreeMap<Vec<u8>, V>,
    from: &[u8],
    to: &[u8],
) -> impl Iterator<Item = (&'m Vec<u8>, &'m V)> {
    let bounds = (Bound::Included(from), Bound::Excluded(to));
    (from < to).then(|| map.range::<[u8], _>(bounds)).into_iter().flatten()
}

/// See the head of this module.
pub(crate) struct Overlay<'s, B: Base> {
    base: &'s B,
    id: Id,
    changes: Changes,
    /// In the order in which they were locked.
    locked: Vec<Vec<u8>>,
    /// The changes at each, and how many keys were locked.
    savepoints: Vec<(Changes, usize)>,
}

impl<'s, B: Base> Overlay<'s, B> {
    pub(crate) fn new(base: &'s B) -> Self {
        Overlay {
            base,
            id: base.locks().new_id(),
            changes: Changes::new(),
            locked: Vec::new(),
            savepoints: Vec::new(),
        }
    }

    fn lock(&mut self, key: &[u8], lock: Lock) -> Result<()> {
        if self.base.locks().lock(self.id, key, lock)? {
            self.locked.push(key.to_vec());
        }
        Ok(())
    }
}

impl<B: Base> Transaction for Overlay<'_, B> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.changes.get(key) {
            Some(own) => Ok(own.as_ref().map(|value| value.to_vec())),
            None => self.base.committed(key),
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
        let mut own = between(&self.changes, from, to).peekable();
        let mut flow = ControlFlow::Continue(());
        self.base.scan_committed(from, to, &mut |key, value| {
            while let Some((mine, change)) = own.next_if(|(mine, _)| mine.as_slice() < key) {
                if let Some(value) = change {
                    flow = visit(mine, value);
                }
                if flow.is_break() {
                    return flow;
                }
            }
            // The transaction's change hides the committed pair.
            flow = match own.next_if(|(mine, _)| mine.as_slice() == key) {
                Some((mine, Some(value))) => visit(mine, value),
                Some((_, None)) => ControlFlow::Continue(()),
                None => visit(key, value),
            };
            flow
        })?;
        if flow.is_continue() {
            for (mine, change) in own {
                if let Some(value) = change
                    && visit(mine, value).is_break()
                {
                    break;
                }
            }
        }
        Ok(())
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
        self.base.locks().unlock(self.id, &since);
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<()> {
        let changes = std::mem::take(&mut self.changes);
        match changes.is_empty() {
            true => Ok(()),
            false => self.base.commit(changes),
        }
    }
}

impl<B: Base> Drop for Overlay<'_, B> {
    fn drop(&mut self) {
        self.base.locks().unlock(self.id, &self.locked);
    }
}
