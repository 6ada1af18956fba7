//! Deliberate mistakes (cargo feature `planted`): each breaks one rule of the order of writes, and the crash tests must
//! find it. Without the feature none of them can be switched on, and the compiler removes them.

#[cfg(feature = "planted")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// Data is not durable before the metadata that makes it reachable.
    NoFlush = 1,
    /// Metadata is written before the data.
    MetadataFirst,
    /// Clusters are reused before the metadata that released them is durable.
    EarlyReuse,
    /// A blob's metadata is written over its only copy.
    InPlace,
    /// An entry of the ring is not durable before the page is written in place.
    RingLate,
    /// A page is written past the ring although the ring has an older content of it.
    RingPassedBy,
    /// The old content of a cluster is not zeroed.
    StaleBytes,
    /// A deleted blob's page is not written.
    DeleteForgotten,
    /// Checksums of a page are not durable before the page.
    SumsLate,
    /// Clusters are named as slots before they are blank.
    SlotsLate,
}

/// All of them.
pub const ALL: &[Planted] = &[
    Planted::NoFlush,
    Planted::MetadataFirst,
    Planted::EarlyReuse,
    Planted::InPlace,
    Planted::RingLate,
    Planted::RingPassedBy,
    Planted::StaleBytes,
    Planted::DeleteForgotten,
    Planted::SumsLate,
    Planted::SlotsLate,
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
