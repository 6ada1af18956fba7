//! The thread that syncs where write-back is deferred ([`ferrite_pm::Durability::OnSync`]): every few seconds, so that
//! operations become durable without a request, and when a ring is half full, so that no operation has to wait for a
//! sync.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::background::{Background, Woken};
use crate::pool::core::Core;

/// From one sync to the next. An operation that returned right after one began is durable when the next is over: well
/// within the five seconds that the manual promises.
const EVERY: Duration = Duration::from_secs(2);

/// Starts the thread, which [`Core::make_space`] wakes from then on.
pub(crate) fn start(core: Arc<Core>) -> std::io::Result<Background> {
    let waker = Arc::clone(&core);
    let flusher = Background::start("ferrite-flusher", move |stop| {
        let mut next = Instant::now() + EVERY;
        loop {
            let done = match stop.wait_for_work_until(next) {
                Woken::ToEnd => {
                    // No sync follows if the pool is only dropped. An unmount syncs, and reports a failure.
                    let _ = core.journal.sync();
                    return;
                }
                Woken::ForWork => core.relieve(),
                Woken::ByTime => {
                    next = Instant::now() + EVERY;
                    core.journal.sync().map_err(|error| core.fail(&error))
                }
            };
            // The next operation fails as well, and reports it.
            if let Err(error) = done {
                tracing::error!(%error, "operations could not be made durable");
                return;
            }
        }
    })?;
    waker.has_flusher(flusher.waker());
    Ok(flusher)
}
