//! How long a call may wait for something unreachable, for example a server.
//!
//! Contents: [`Waits`], a part of [`crate::Ctx`]. An engine that never waits for anything but its own device
//! ignores it.

use std::time::Duration;

/// For whom a call waits, and how long.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// After this time the call fails with [`crate::FsError::TimedOut`]; a change may have been made. `None`: the
    /// engine's own limit holds, if it has one.
    pub within: Option<Duration>,
    /// The caller may give up; then the call fails with [`crate::FsError::Interrupted`], and a change may have been
    /// made. No change is made twice.
    pub caller: Option<WaitingCaller>,
}

impl Waits {
    /// Until the reply arrives.
    pub const FOREVER: Waits = Waits {
        within: None,
        caller: None,
    };

    /// At most this long, for any caller.
    pub const fn within(most: Duration) -> Waits {
        Waits {
            within: Some(most),
            caller: None,
        }
    }
}

/// A caller that can be polled whether it still wants the reply.
#[derive(Debug, Clone, Copy)]
pub struct WaitingCaller {
    /// Its number, as `gives_up` knows it.
    pub id: u32,
    /// Whether it wants the call to end. Called a few times a second while the call waits, and never before that.
    pub gives_up: fn(id: u32) -> bool,
}
