//! Mistakes planted on purpose, to show that the crash explorer finds such mistakes.
//!
//! Contents: [`Flaw`], and the switch that turns one on. Each is one `if` at the place where the real mistake
//! would be made, or, for mistakes that a mapping makes through its transaction, in the transaction. Without the
//! feature `planted`, the switch is a constant `false` and all of them compile to nothing.

use ferrite_map::Mapping;

/// A mistake that a programmer could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "planted"),
    allow(dead_code, reason = "only named where they would be made")
)]
pub enum Flaw {
    /// A record is applied before the fence that makes it durable.
    CommitWithoutFence = 1,
    /// Words are set and written back before their record exists.
    WordsBeforeRecord,
    /// The mark moves past records whose words are not durable.
    MarkBeforeWords,
    /// Recovery replays records below the mark.
    StaleReplay,
    /// Recovery applies records in the order of the rings instead of by sequence number.
    ReplayOutOfOrder,
    /// Recovery accepts records whose checksum is wrong.
    TornRecord,
    /// A record lacks the checksum of the log entry that it makes reachable.
    TornLogEntry,
    /// A record lacks the checksum of the page that shares its fence.
    TornPage,
    /// Pages are not fenced before the record that names them.
    PagesWithoutFence,
    /// Freed blocks and segments are reused before the mark has passed their record.
    EarlyReuse,
    /// A merged page is not fenced before the word that names it.
    FoldWithoutFence,
    /// Space that a fold freed is reused at once.
    FoldSpaceAtOnce,
    /// A fold's word is not written back before the mark passes it.
    FoldWordForgotten,
    /// Mount does not free inodes that have no name.
    OrphansForgotten,
    /// An inode's checksum is recorded, but its other words are only stored.
    InodeWithoutRecord,
    /// The checksum of a merged page is stored only after the word that names it is set.
    FoldSumLate,
    /// The record of a split lacks the second copy of the number of active lines.
    SplitForgetsCopy,
    /// The record of a move lacks its first word, a key.
    MoveForgetsWord,
    /// A new node of a tree is not fenced before the record that links it.
    NodeWithoutFence,
    /// A name slot is reused by a record whose number may be below that of the record which cleared it.
    NameSlotUnordered,
    /// An inode number is reused by a record whose number may be below that of the record which freed it.
    InodeUnordered,
    /// Recovery leaves the mark below a record whose data was lost.
    DeadRecordAbove,
    /// Recovery leaves the mark below a record of which only some words survived.
    TornRecordAbove,
    /// A fold sets a word without changing the version of the inode.
    FoldUnannounced,
    /// A sweep of the inode cache forgets the numbers of the newest records of the dropped inodes.
    SweepForgetsFloor,
    /// With deferred write-back, words reach the file before the records that set them are durable.
    WordsBeforeSync,
    /// With deferred write-back, folds have no record.
    FoldWithoutRecord,
    /// With deferred write-back, recovery replays records after a missing one.
    GapInPrefix,
    /// With deferred write-back, new nodes of a tree are streamed and not in the record that links them.
    NodeWithoutWords,
    /// Records that come after a move of entries may have lower numbers.
    MoveForgetsFloor,
    /// Space is reused before the mark that frees it is durable.
    MarkWithoutFence,
    /// Recovery verifies only the first data item of a record.
    FirstDataOnly,
    /// The outcome of a change with a token gets a record of its own.
    OutcomeOutsideRecord,
    /// Mount keeps bytes that an interrupted append has put beyond the end of a bound file.
    TailKept,
    /// A record carries a checksum of data of a bound file.
    BoundVouched,
    /// A file is bound before the mark has passed the records with checksums of its data.
    BoundBeforeMark,
    /// Appended bytes beyond the end are not fenced before the record that moves the end.
    AppendWithoutFence,
    /// Checksums are sealed without making the data they cover durable.
    SealWithoutContent,
    /// A change of a bound file moves and frees its pages before the adapter has returned them.
    FreedBeforeDrain,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 39] = [
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
        Flaw::TornRecordAbove,
        Flaw::FoldUnannounced,
        Flaw::SweepForgetsFloor,
        Flaw::WordsBeforeSync,
        Flaw::FoldWithoutRecord,
        Flaw::GapInPrefix,
        Flaw::NodeWithoutWords,
        Flaw::MoveForgetsFloor,
        Flaw::MarkWithoutFence,
        Flaw::FirstDataOnly,
        Flaw::OutcomeOutsideRecord,
        Flaw::TailKept,
        Flaw::BoundVouched,
        Flaw::BoundBeforeMark,
        Flaw::AppendWithoutFence,
        Flaw::SealWithoutContent,
        Flaw::FreedBeforeDrain,
    ];

    /// The name of the test that finds the mistake, if the explorer is not expected to; else `None`.
    ///
    /// A fold without a new version harms only concurrent readers, and leaves no image that could show it. The mark
    /// advances right after a move of entries, so a forgotten floor does harm only if a second thread commits at that
    /// moment. Its workloads bind no files. A torn record comes back only if another one, at the same place of its
    /// ring, has the same words where it was torn: the explorer met that once in a million images.
    pub fn own_test(self) -> Option<&'static str> {
        match self {
            Flaw::FoldUnannounced => Some("a_fold_is_news_to_readers"),
            Flaw::TornRecordAbove => Some("a_torn_record_stays_dead"),
            Flaw::MoveForgetsFloor => Some("records_after_a_move_have_higher_numbers"),
            Flaw::TailKept
            | Flaw::BoundVouched
            | Flaw::BoundBeforeMark
            | Flaw::AppendWithoutFence
            | Flaw::SealWithoutContent => Some("mistakes_with_bound_files_are_found"),
            Flaw::FreedBeforeDrain => Some("mistakes_behind_packets_are_found"),
            _ => None,
        }
    }

    /// Whether it concerns deferred write-back.
    pub fn is_held(self) -> bool {
        matches!(
            self,
            Flaw::WordsBeforeSync | Flaw::FoldWithoutRecord | Flaw::GapInPrefix | Flaw::NodeWithoutWords
        )
    }

    /// Whether the mistake can be made, and does harm, on pools with this mapping.
    pub fn concerns(self, mapping: Mapping) -> bool {
        match self {
            Flaw::MoveForgetsWord => mapping == Mapping::Cuckoo,
            Flaw::SplitForgetsCopy => mapping == Mapping::Leaf,
            Flaw::NodeWithoutFence | Flaw::NodeWithoutWords => matches!(mapping, Mapping::Radix | Mapping::Extent),
            _ => true,
        }
    }
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Makes the engine make this mistake from now on, in the whole process; `None` for no mistake.
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
