//! Marks of inodes on which a request is at work aside, and of stores in which one clones a tree; and the state that
//! such a request holds until it is done.
//!
//! [`Busy`] has the marks of all stores. [`super::aside`] makes them, on receiving threads; [`super::deferred_reply`]
//! holds them while a worker has the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::Ino;
use rustc_hash::FxHashMap;

use super::leases::Passing;
use crate::lock_order;

/// An inode of a store.
type Place = (usize, Ino);

/// See the head of this module.
#[derive(Default)]
pub(super) struct Busy {
    count: AtomicUsize,
    inodes: Mutex<lock_order::Lane, FxHashMap<Place, usize>>,
    /// How many trees are being cloned, and in which stores.
    clones: AtomicUsize,
    cloning: Mutex<lock_order::Lane, FxHashMap<usize, usize>>,
}

impl Busy {
    /// Whether any mark exists.
    pub(super) fn has_some(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.inodes.lock().contains_key(&place)
    }

    /// Marks an inode, if the request is at work on a certain one.
    pub(super) fn mark(this: &Arc<Busy>, marked: Option<Place>) -> Lane {
        if let Some(place) = marked {
            *this.inodes.lock().entry(place).or_default() += 1;
            this.count.fetch_add(1, Ordering::Release);
        }
        Lane {
            of: Arc::clone(this),
            marked,
            clone_in: None,
        }
    }

    /// Whether a tree of a store is being cloned.
    pub(super) fn is_cloning(&self, store: usize) -> bool {
        self.clones.load(Ordering::Acquire) > 0 && self.cloning.lock().contains_key(&store)
    }

    /// Marks a store, in which the request clones a tree.
    pub(super) fn mark_clone(this: &Arc<Busy>, store: usize) -> Lane {
        *this.cloning.lock().entry(store).or_default() += 1;
        this.clones.fetch_add(1, Ordering::Release);
        Lane {
            of: Arc::clone(this),
            marked: None,
            clone_in: Some(store),
        }
    }
}

/// Takes one from a count; none are left if that was the last.
fn unmark<K: std::hash::Hash + Eq>(counts: &mut FxHashMap<K, usize>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

/// A request that goes aside. Dropping it removes its mark.
pub(super) struct Lane {
    of: Arc<Busy>,
    marked: Option<Place>,
    /// The store in which the request clones a tree.
    clone_in: Option<usize>,
}

impl Lane {
    /// Whether the request clones a tree.
    pub(super) fn is_of_clone(&self) -> bool {
        self.clone_in.is_some()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(place) = self.marked {
            unmark(&mut self.of.inodes.lock(), &place);
            self.of.count.fetch_sub(1, Ordering::Release);
        }
        if let Some(store) = self.clone_in {
            unmark(&mut self.of.cloning.lock(), &store);
            self.of.clones.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Held by a request that a worker has, until it is done.
pub(super) struct Holds {
    _passing: Option<Passing>,
    _lane: Option<Lane>,
}

impl Holds {
    pub(super) fn new(passing: Option<Passing>, lane: Option<Lane>) -> Holds {
        Holds {
            _passing: passing,
            _lane: lane,
        }
    }
}
