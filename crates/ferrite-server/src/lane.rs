//! Marks of inodes on which a request is at work aside, and the state that such a request holds until it is done.
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
        }
    }
}

/// A request that goes aside. Dropping it removes its mark.
pub(super) struct Lane {
    of: Arc<Busy>,
    marked: Option<Place>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let Some(place) = self.marked else { return };
        let mut inodes = self.of.inodes.lock();
        if let Some(marks) = inodes.get_mut(&place) {
            *marks -= 1;
            if *marks == 0 {
                inodes.remove(&place);
            }
        }
        self.of.count.fetch_sub(1, Ordering::Release);
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
