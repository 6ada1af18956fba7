//! Deliberate mistakes (cargo feature `planted`): each breaks one rule of the order of steps, and the crash tests must
//! find it. Without the feature none of them can be switched on, and the compiler removes them.

#[cfg(feature = "planted")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// A blob that loses its file gets no record.
    NoDetachedRecord = 1,
    /// A blob that is made in advance gets no record.
    NoRecordOfNewBlobs,
    /// No record says that a blob may be ahead of its node.
    NoAheadRecord,
    /// No record says that an inode has no name.
    NoOrphanRecord,
    /// A blob is deleted before the step that removes its name.
    BlobFirst,
    /// A new size is stored before the data behind the old one.
    SizeFirst,
    /// The record of a blob stays when a node names it.
    RecordStays,
    /// Content beside a node is stored before the step that makes the node record it.
    ContentFirst,
    /// Content beside a node stays when the node goes, or has other content.
    ContentStays,
    /// A write in place clears setuid and setgid after it, not before.
    RightsLast,
}

/// All of them.
pub const ALL: &[Planted] = &[
    Planted::NoDetachedRecord,
    Planted::NoRecordOfNewBlobs,
    Planted::NoAheadRecord,
    Planted::NoOrphanRecord,
    Planted::BlobFirst,
    Planted::SizeFirst,
    Planted::RecordStays,
    Planted::ContentFirst,
    Planted::ContentStays,
    Planted::RightsLast,
];

#[cfg(feature = "planted")]
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// Makes this mistake from now on, in the whole process; `None` for none.
#[cfg(feature = "planted")]
pub fn choose(planted: Option<Planted>) {
    CHOSEN.store(planted.map_or(0, |planted| planted as u8), Ordering::SeqCst);
}

#[cfg(feature = "planted")]
pub(crate) fn is_planted(planted: Planted) -> bool {
    CHOSEN.load(Ordering::Relaxed) == planted as u8
}

#[cfg(not(feature = "planted"))]
pub(crate) const fn is_planted(_: Planted) -> bool {
    false
}
