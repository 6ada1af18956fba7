//! Exactly once: tokens of changes, and what an engine keeps of a change that carried one.
//!
//! A client that lost an answer sends its request again. With a token, the change happens once all the same: the engine
//! stores token and [`Outcome`] with the change, in one atomic step, and answers a repetition from there, after a crash
//! too. A cache of answers in DRAM could not do that.
//!
//! Contract: a client numbers the changes of one slot in ascending order and has one of them under way at a time, as
//! in a session of NFSv4.1. So an engine keeps one outcome for each slot. Calls that change nothing need no token, and
//! ignore it.

use crate::{Attr, FsError};

/// A token: names one change of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Once {
    /// Which of the engine's slots: 0 to [`crate::Limits::once_slots`] - 1. Whoever hands out slots to clients makes
    /// sure that no two use the same.
    pub slot: u32,
    /// Larger than that of every earlier change with this slot. Never 0.
    pub seq: u64,
}

/// What a change returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing, successfully.
    Done,
    /// Attributes. [`Attr::change`] is not kept: it is 0 in a repeated answer.
    Attr(Attr),
    /// An open file: a repetition opens the same file.
    Opened {
        /// Its attributes then.
        attr: Attr,
        /// The change created it.
        created: bool,
    },
    /// Where data went.
    Wrote {
        /// Its offset.
        offset: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// It was refused.
    Failed(FsError),
}

/// Whether an error is kept. One that says that the medium or the engine failed is not: what was asked for may be
/// possible later.
pub fn keeps(error: &FsError) -> bool {
    !matches!(error, FsError::Stale | FsError::Loop | FsError::ReadOnly) && error.code().is_some()
}
