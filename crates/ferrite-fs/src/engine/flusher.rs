//! The thread that makes operations durable if nobody asks for it, where they are not when they return
//! ([`ferrite_pm::Durability::OnSync`]).

use std::sync::Arc;
use std::time::Duration;

use crate::background::Background;
use crate::pool::core::Core;

/// From one sync to the next. An operation that returned right after one began is durable when the next is over: well
/// within the five seconds that are promised.
const EVERY: Duration = Duration::from_secs(2);

/// Starts the thread.
pub(crate) fn start(core: Arc<Core>) -> std::io::Result<Background> {
    Background::start("ferrite-flusher", move |stop| {
        while !stop.wait(EVERY) {
            // The next operation fails as well, and reports it.
            if let Err(error) = core.journal.sync() {
                tracing::error!(%error, "operations could not be made durable");
                core.fail(&error);
                return;
            }
        }
    })
}
