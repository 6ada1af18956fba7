//! Holding back requests that may change something, without blocking the threads that serve the others.
//!
//! Contents: [`FreezeBarrier`]. `serve` asks it before each change; the code that copies the pool closes it.
//!
//! Invariants:
//! * Once [`FreezeBarrier::close`] has returned, no change is in progress, and none begins before
//!   [`FreezeBarrier::open`].
//! * A deferred request occupies no thread: all of a mount's threads may be needed for reads. The call to
//!   [`FreezeBarrier::open`] carries it out and replies to it, in order of arrival.

use std::sync::Arc;

use ferrite_checks::ranked::{Mutex, RwLock, RwLockReadGuard};

use crate::lock_order;

type Change = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Shared {
    /// True while closed. Locked shared while a change is carried out.
    closed: RwLock<lock_order::Frozen, bool>,
    waiting: Mutex<lock_order::Deferred, Vec<Change>>,
}

/// Holds back the changes of one mount. Cheap to clone; all clones share state.
#[derive(Clone, Default)]
pub struct FreezeBarrier {
    shared: Arc<Shared>,
}

/// Keeps the freeze barrier open while it lives.
pub(crate) struct Passage<'f> {
    _open: RwLockReadGuard<'f, bool>,
}

impl FreezeBarrier {
    /// Holds changes back from now on. Blocks until those in progress are done.
    pub fn close(&self) {
        *self.shared.closed.write() = true;
    }

    /// Carries out deferred changes, and lets changes proceed. Blocks until that is done.
    pub fn open(&self) {
        *self.shared.closed.write() = false;
        loop {
            let waiting = std::mem::take(&mut *self.shared.waiting.lock());
            if waiting.is_empty() {
                return;
            }
            for change in waiting {
                match self.pass() {
                    Some(_passage) => change(),
                    // Closed again meanwhile: it waits for the next time.
                    None => self.shared.waiting.lock().push(change),
                }
            }
            if *self.shared.closed.read() {
                return;
            }
        }
    }

    /// Whether a change may begin; it is in progress until the passage is dropped.
    pub(crate) fn pass(&self) -> Option<Passage<'_>> {
        let open = self.shared.closed.read();
        (!*open).then_some(Passage { _open: open })
    }

    /// Carries `change` out when the freeze barrier is opened; at once if that has happened.
    pub(crate) fn hold_back(&self, change: impl FnOnce() + Send + 'static) {
        let closed = self.shared.closed.read();
        match *closed {
            // Under the lock, so that the call to `open` finds it.
            true => self.shared.waiting.lock().push(Box::new(change)),
            false => change(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn what_is_held_back_is_done_in_order_and_once() {
        let freeze_barrier = FreezeBarrier::default();
        assert!(freeze_barrier.pass().is_some());
        freeze_barrier.close();
        assert!(freeze_barrier.pass().is_none());
        let done = Arc::new(parking_lot::Mutex::new(Vec::new()));
        for n in 0..3 {
            let done = Arc::clone(&done);
            freeze_barrier.hold_back(move || done.lock().push(n));
        }
        assert!(done.lock().is_empty());
        freeze_barrier.open();
        freeze_barrier.open();
        assert_eq!(*done.lock(), [0, 1, 2]);
        let late = Arc::clone(&done);
        freeze_barrier.hold_back(move || late.lock().push(3));
        assert_eq!(*done.lock(), [0, 1, 2, 3]);
    }

    /// Changes arrive while it is closed and opened again and again: each is done, and none while it is closed.
    #[test]
    fn no_change_is_lost_and_none_happens_while_closed() {
        const CHANGES: usize = 20_000;
        fn count(done: &AtomicUsize) {
            done.fetch_add(1, Ordering::SeqCst);
        }
        let freeze_barrier = FreezeBarrier::default();
        let done = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..CHANGES {
                        match freeze_barrier.pass() {
                            Some(_passage) => count(&done),
                            None => {
                                let done = Arc::clone(&done);
                                freeze_barrier.hold_back(move || count(&done));
                            }
                        }
                    }
                });
            }
            for _ in 0..200 {
                freeze_barrier.close();
                let before = done.load(Ordering::SeqCst);
                std::thread::yield_now();
                assert_eq!(done.load(Ordering::SeqCst), before);
                freeze_barrier.open();
            }
        });
        freeze_barrier.open();
        assert_eq!(done.load(Ordering::SeqCst), 2 * CHANGES);
    }
}
