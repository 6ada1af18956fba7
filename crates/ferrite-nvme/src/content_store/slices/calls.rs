//! Requests to the keeper, which anybody may make; `keeper` carries them out.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use super::lock_order;

/// A blob in use, whose type `handles` and `keeper` know.
pub(super) type AnyBlob = dyn Any + Send + Sync;

/// Blocks that wait to be written anew, at most: others come when they are changed the next time.
const BLOCKS_MAX: usize = 4096;

/// Requests to the keeper.
#[derive(Clone, Default)]
pub(super) struct Calls(pub(super) Arc<Shared>);

#[derive(Default)]
pub(super) struct Shared {
    pub(super) queue: Mutex<lock_order::Keeper, Queue>,
    pub(super) called: Condvar,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) is_called: bool,
    pub(super) is_over: bool,
    pub(super) blocks: VecDeque<(Weak<AnyBlob>, u64)>,
}

impl Calls {
    /// Memory is short.
    pub(super) fn call(&self) {
        self.0.queue.lock().is_called = true;
        self.0.called.notify_all();
    }

    /// These blocks should be written anew.
    pub(super) fn rewrite(&self, blob: &Arc<impl Any + Send + Sync>, blocks: Vec<u64>) {
        let any: Arc<AnyBlob> = Arc::clone(blob) as _;
        let mut queue = self.0.queue.lock();
        for block in blocks {
            let is_known = |(of, known): &(Weak<AnyBlob>, u64)| {
                *known == block && std::ptr::addr_eq(of.as_ptr(), &raw const **blob)
            };
            if queue.blocks.len() < BLOCKS_MAX && !queue.blocks.iter().any(is_known) {
                queue.blocks.push_back((Arc::downgrade(&any), block));
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.queue.lock().is_over
    }
}
