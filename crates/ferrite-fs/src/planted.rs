//! Mistakes planted on purpose, to show that the crash explorer finds such mistakes.
//!
//! What lives here: [`Flaw`], and the switch that turns one on. Each is one `if` at the place where the real mistake
//! would be made, or, for what a mapping does by way of its transaction, in that. Without the feature `planted` the
//! switch is a constant `false` and all of them compile to nothing.

use ferrite_map::Mapping;

/// A mistake that somebody could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "planted"),
    allow(dead_code, reason = "only named where they would be made")
)]
pub enum Flaw {
    /// A record is applied before the fence that makes it durable has run.
    CommitWithoutFence = 1,
    /// Words are set, and written back, before their record exists.
    WordsBeforeRecord,
    /// The mark moves past records whose words are not durable.
    MarkBeforeWords,
    /// Recovery replays records below the mark.
    StaleReplay,
    /// Recovery applies records in the order of the rings instead of that of their numbers.
    ReplayOutOfOrder,
    /// Recovery takes records whose checksum is wrong.
    TornRecord,
    /// A record does not vouch for the log entry that it makes reachable.
    TornLogEntry,
    /// A record does not vouch for the page that shares its fence.
    TornPage,
    /// Pages are not fenced before the record that names them.
    PagesWithoutFence,
    /// Freed blocks and segments are used again before the mark has passed their record.
    EarlyReuse,
    /// A merged page is not fenced before the word that names it.
    FoldWithoutFence,
    /// What a fold gave back is used again at once.
    FoldSpaceAtOnce,
    /// A fold's word is not written back before the mark passes it.
    FoldWordForgotten,
    /// Mount does not free inodes that have no name.
    OrphansForgotten,
    /// An inode's checksum is recorded, its other words are only stored.
    InodeWithoutRecord,
    /// The checksum of a merged page is stored when the word that names it is set already.
    FoldSumLate,
    /// The record of a split lacks the second copy of the number of active lines.
    SplitForgetsCopy,
    /// The record of a move lacks its first word, a key.
    MoveForgetsWord,
    /// What became a node of a tree is not fenced before the record that links it.
    NodeWithoutFence,
    /// A name slot is used again by a record whose number may be below that of the one which cleared it.
    NameSlotUnordered,
    /// An inode number is used again by a record whose number may be below that of the one which freed it.
    InodeUnordered,
    /// Recovery leaves the mark below a record whose data was lost.
    DeadRecordAbove,
    /// A fold sets a word without a new version of the inode.
    FoldUnannounced,
    /// A sweep of the inode cache drops the numbers of the newest records of what it drops.
    SweepForgetsFloor,
    /// Records that come after a move of entries need not have higher numbers.
    MoveForgetsFloor,
    /// Space is used again before the mark that frees it is durable.
    MarkWithoutFence,
    /// Recovery looks only at the first bytes that a record vouches for.
    FirstDataOnly,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 27] = [
        Flaw::CommitWithoutFence,
        Flaw::WordsBeforeRecord,
        Flaw::MarkBeforeWords,
        Flaw::StaleReplay,
        Flaw::ReplayOutOfOrder,
        Flaw::TornRecord,
        Flaw::TornLogEntry,
        Flaw::TornPage,
        Flaw::PagesWithoutFence,
        Flaw::EarlyReuse,
        Flaw::FoldWithoutFence,
        Flaw::FoldSpaceAtOnce,
        Flaw::FoldWordForgotten,
        Flaw::OrphansForgotten,
        Flaw::InodeWithoutRecord,
        Flaw::FoldSumLate,
        Flaw::SplitForgetsCopy,
        Flaw::MoveForgetsWord,
        Flaw::NodeWithoutFence,
        Flaw::NameSlotUnordered,
        Flaw::InodeUnordered,
        Flaw::DeadRecordAbove,
        Flaw::FoldUnannounced,
        Flaw::SweepForgetsFloor,
        Flaw::MoveForgetsFloor,
        Flaw::MarkWithoutFence,
        Flaw::FirstDataOnly,
    ];

    /// Whether it is left to a test of its own, which the explorer is not asked to match: `None` if it is not, else
    /// which one.
    ///
    /// A fold without a version harms readers in the same moment, and leaves no image that could show it. The mark
    /// moves right after a move of entries, so what a forgotten floor does takes two threads and a moment.
    pub fn own_test(self) -> Option<&'static str> {
        match self {
            Flaw::FoldUnannounced => Some("a_fold_is_news_to_readers"),
            Flaw::MoveForgetsFloor => Some("records_after_a_move_have_higher_numbers"),
            _ => None,
        }
    }

    /// Whether it can be made on pools with this mapping, and do harm.
    pub fn concerns(self, mapping: Mapping) -> bool {
        match self {
            Flaw::MoveForgetsWord => mapping == Mapping::Cuckoo,
            Flaw::SplitForgetsCopy => mapping == Mapping::Leaf,
            Flaw::NodeWithoutFence => matches!(mapping, Mapping::Radix | Mapping::Extent),
            _ => true,
        }
    }
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Makes the engine make this mistake from now on, in the whole process; `None`: no mistake.
#[cfg(feature = "planted")]
pub fn plant(flaw: Option<Flaw>) {
    PLANTED.store(flaw.map_or(0, |flaw| flaw as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether to make this mistake.
#[cfg(feature = "planted")]
pub(crate) fn planted(flaw: Flaw) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == flaw as u8
}

/// Whether to make this mistake: never.
#[cfg(not(feature = "planted"))]
pub(crate) const fn planted(_: Flaw) -> bool {
    false
}
