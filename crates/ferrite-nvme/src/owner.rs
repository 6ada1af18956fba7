//! The owner of an open engine, which ends its threads.
//!
//! Threads of the engine hold its [`Core`] while they work. If one of them were the last to hold it, stores would be
//! closed on a thread that no one waits for, maybe while the process exits and takes away what they need. So all
//! handles of the engine share one [`Owner`]; when the last one is dropped, it waits for the threads, closed or not.
//!
//! Invariant: no thread of the engine has an `Owner`. Open files hold the `Core` alone, and when only they are left no
//! thread works for it any more.

use std::ops::Deref;
use std::sync::Arc;

use crate::core::Core;

#[derive(Debug)]
pub(crate) struct Owner(Arc<Core>);

impl Owner {
    pub(crate) fn of(core: Arc<Core>) -> Arc<Owner> {
        Arc::new(Owner(core))
    }

    /// For open files.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }
}

impl Deref for Owner {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.housekeeper.end();
        self.0.workers.wait();
        self.0.finishers.wait();
    }
}
