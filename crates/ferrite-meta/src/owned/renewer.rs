//! The thread that prolongs a lease.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use super::Shared;
use crate::error::{Error, Result};
use crate::lock_order;
use crate::remote::Remote;

#[derive(Default)]
struct Stop {
    is_wanted: Mutex<lock_order::Renewer, bool>,
    changed: Condvar,
}

/// A thread that renews until it is dropped, or the tenure is lost.
pub(super) struct Renewer {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Renewer {
    pub(super) fn start<R: Remote + 'static>(shared: Arc<Shared<R>>, every: Duration) -> Result<Renewer> {
        let stop = Arc::new(Stop::default());
        let seen = Arc::clone(&stop);
        let run = move || {
            let mut is_wanted = seen.is_wanted.lock();
            while !*is_wanted {
                if seen.changed.wait_for(&mut is_wanted, every).timed_out() {
                    drop(is_wanted);
                    if shared.renew().is_err_and(|error| error.is_fatal()) {
                        return;
                    }
                    is_wanted = seen.is_wanted.lock();
                }
            }
        };
        let thread = std::thread::Builder::new().name("ferrite-lease".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Io(format!("no thread can be started to renew leases: {error}")))?;
        Ok(Renewer {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Renewer {
    /// Waits for a renewal under way, which is bounded.
    fn drop(&mut self) {
        *self.stop.is_wanted.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to renew.
            let _ = thread.join();
        }
    }
}
