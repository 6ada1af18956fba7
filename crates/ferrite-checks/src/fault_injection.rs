//! Seeded bugs: mistakes in the product that a test switches on, one at a time, to show that it finds them.
//!
//! Contents: [`Bug`], and the switch, `seed` and [`is_seeded`]. Each bug is an `if` at the place where a programmer
//! could make the mistake. Without the feature `seeded-bugs` the switch is a constant `false`, and the compiler removes
//! them all. A missing fence or write-back is not in the list: tests leave those out of a recording.
//!
//! The switch is the whole process's, so a build with the feature runs no other tests of crashes.

/// Whether this build has the bugs. They need space to do harm: caches are smaller with them.
pub const IS_COMPILED: bool = cfg!(feature = "seeded-bugs");

macro_rules! bugs {
    ($($krate:literal: $($(#[$doc:meta])* $name:ident,)*)*) => {
        /// A mistake that a programmer could make.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $($($(#[$doc])* $name,)*)*
        }

        impl Bug {
            const ALL: &[(&str, Bug)] = &[$($(($krate, Bug::$name),)*)*];
        }
    };
}

bugs! {
    "ferrite-fs":
    /// Words are set and written back before their record exists.
    WordsBeforeRecord,
    /// Recovery replays records below the checkpoint.
    StaleReplay,
    /// Recovery applies records in the order of the rings instead of by sequence number.
    ReplayOutOfOrder,
    /// Recovery accepts records whose checksum is wrong.
    TornRecord,
    /// A record lacks the checksum of the log entry that it makes reachable.
    TornLogEntry,
    /// A record lacks the checksum of the page that shares its fence.
    TornPage,
    /// Freed blocks and segments are reused before the checkpoint has passed their record.
    EarlyReuse,
    /// A clone's record does not mark the blocks that it shares.
    ShareUnmarked,
    /// A clone does not count the blocks that it shares.
    ShareUncounted,
    /// A page of a shared block is counted less before the checkpoint has passed the record that took it.
    ShareDroppedEarly,
    /// A range with shared blocks is zeroed by declaring the blocks unwritten, and written again in place.
    SharedInPlace,
    /// Space that a merge freed is reused at once.
    MergedSpaceAtOnce,
    /// Mount does not free inodes that have no name.
    OrphansForgotten,
    /// An inode's checksum is recorded, but its other words are only stored.
    InodeWithoutRecord,
    /// The checksum of a merged page is stored only after the word that names it is set.
    MergedSumLate,
    /// The record of a split lacks the second copy of the number of active lines.
    SplitForgetsCopy,
    /// The record of a move lacks its first word, a key.
    MoveForgetsWord,
    /// A name slot is reused by a record whose number may be below that of the record which cleared it.
    NameSlotUnordered,
    /// An inode number is reused by a record whose number may be below that of the record which freed it.
    InodeUnordered,
    /// Recovery leaves the checkpoint below a record whose data was lost.
    DeadRecordAbove,
    /// Recovery leaves the checkpoint below a record of which only some words survived.
    TornRecordAbove,
    /// A merge sets a word without changing the version of the inode.
    MergeUnannounced,
    /// A sweep of the inode cache forgets the numbers of the newest records of the dropped inodes.
    SweepForgetsFloor,
    /// With deferred write-back, merges have no record.
    MergeWithoutRecord,
    /// With deferred write-back, recovery replays records after a missing one.
    GapInPrefix,
    /// With deferred write-back, new nodes of a tree are streamed and not in the record that links them.
    NodeWithoutWords,
    /// Records that come after a move of entries may have lower numbers.
    MoveForgetsFloor,
    /// Recovery verifies only the first data item of a record.
    FirstDataOnly,
    /// The outcome of a change with a token gets a record of its own.
    OutcomeOutsideRecord,
    /// Mount keeps bytes that an interrupted append has put beyond the end of a bound file.
    TailKept,
    /// A record carries a checksum of data of a bound file.
    BoundCovered,
    /// A file is bound before the checkpoint has passed the records with checksums of its data.
    BoundBeforeCheckpoint,
    /// A change of a bound file moves and frees its pages before the adapter has returned them.
    FreedBeforeDrain,

    "ferrite-mr":
    /// A translation that threads remember does not become void when the page moves, or disappears in a truncation.
    StaleTranslation,

    "ferrite-blob":
    /// Metadata is written before the data.
    BlobMetadataFirst,
    /// A blob's metadata is written over its only copy.
    BlobInPlace,
    /// A page is written past the ring although the ring has an older content of it.
    BlobRingPassedBy,
    /// The old content of a cluster is not zeroed.
    BlobStaleBytes,
    /// A deleted blob's page is not written.
    BlobDeleteForgotten,
    /// Clusters are named as slots before they are blank.
    BlobSlotsLate,
    /// A blob does not say that others share its units before one does.
    BlobShareUnsaid,
    /// Units that several blobs name are written in place.
    BlobSharedInPlace,
    /// Units are free when the first of the blobs that name them goes.
    BlobShareUncounted,

    "ferrite-meta":
    /// An owner answers although its lease has ended.
    ReadAfterLease,
    /// A database applies a batch whatever its number.
    BatchWithoutNumber,
    /// A database applies a batch whatever its epoch.
    BatchWithoutEpoch,
    /// A page of the database goes into the cache without the batches since it was asked for.
    PageWithoutLaterBatches,

    "ferrite-nvme":
    /// A blob that loses its file gets no record.
    NoDetachedRecord,
    /// A blob that is made in advance gets no record.
    NoRecordOfNewBlobs,
    /// No record says that a blob may be ahead of its node.
    NoAheadRecord,
    /// No record says that an inode has no name.
    NoOrphanRecord,
    /// A blob is deleted before the step that removes its name.
    DeletedFirst,
    /// A new size is stored before the data behind the old one.
    SizeFirst,
    /// A clone does not count that one more node names a blob that was shared before.
    CloneUncounted,
    /// A blob that several nodes name is written in place.
    SharedBlobInPlace,
    /// The record of a blob stays when a node names it.
    RecordStays,
    /// Content beside a node is stored before the step that makes the node record it.
    ContentFirst,
    /// Content beside a node stays when the node goes, or has other content.
    ContentStays,
    /// A write in place clears setuid and setgid after it, not before.
    RightsLast,

    "ferrite-nvme, fences":
    /// Content accepts changes of an earlier owner.
    ContentOfOldEpoch,
    /// The recovery looks at content before it has fenced the earlier owner.
    RecoveryBeforeFence,

    "ferrite-nvme, slices":
    /// Rows name a slice whose object is not there yet.
    PublishBeforeUpload,
    /// A slice that nothing names any more gets no record, so its object stays for ever.
    DeadSliceForgotten,
    /// The objects of dead slices go at once, though a file as it was published last may name them.
    CollectBeforeTime,
    /// A slice is read without its checksum.
    SliceUnverified,
    /// The log's head is moved over changes that are not published.
    LogTrimmedEarly,
    /// No mark says that a log has changes of a blob.
    LoggedUnmarked,
    /// Bytes with changes in a log that is not here are read as they were published.
    LostChangesIgnored,
    /// A slice leaves memory although the log does not have all of its bytes.
    SpilledUnlogged,
    /// A slice is read from the log without its checksum.
    SpilledUnverified,
    /// A copy of a log is used though another one has later changes.
    StaleCopyUsed,
    /// A slice that two blobs name goes with the first of them.
    SharedSliceUncounted,

    "ferrite-wal":
    /// A group is written over one that is kept.
    LogRingOverrun,
    /// Space is used again although no superblock is durable whose head is behind it.
    LogHeadVolatile,
    /// A torn group counts.
    LogGroupUnverified,
    /// A group counts though the far device of a mirror may lose it.
    MirrorVolatile,
}

impl Bug {
    /// The bugs of a crate, by its name.
    pub fn of(krate: &str) -> impl Iterator<Item = Bug> {
        let bugs = Bug::ALL.iter().filter(move |(of, _)| *of == krate);
        bugs.map(|&(_, bug)| bug)
    }
}

#[cfg(feature = "seeded-bugs")]
mod switch {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Bug;

    const NONE: u8 = u8::MAX;
    static SEEDED: AtomicU8 = AtomicU8::new(NONE);

    /// Switches this bug on from now on, in the whole process, and all others off; `None`: all off.
    pub fn seed(bug: Option<Bug>) {
        SEEDED.store(bug.map_or(NONE, |bug| bug as u8), Ordering::SeqCst);
    }

    /// Whether to make this mistake.
    #[inline]
    pub fn is_seeded(bug: Bug) -> bool {
        SEEDED.load(Ordering::Relaxed) == bug as u8
    }
}

#[cfg(feature = "seeded-bugs")]
pub use switch::{is_seeded, seed};

/// Whether to make this mistake: never.
#[cfg(not(feature = "seeded-bugs"))]
#[inline]
pub const fn is_seeded(_: Bug) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_belongs_to_a_crate() {
        let crates = [
            "ferrite-fs",
            "ferrite-mr",
            "ferrite-blob",
            "ferrite-meta",
            "ferrite-nvme",
            "ferrite-nvme, fences",
            "ferrite-nvme, slices",
            "ferrite-wal",
        ];
        let listed: usize = crates.iter().map(|krate| Bug::of(krate).count()).sum();
        assert_eq!(listed, Bug::ALL.len());
        assert!(crates.iter().all(|krate| Bug::of(krate).next().is_some()));
    }

    #[test]
    #[cfg(feature = "seeded-bugs")]
    fn one_bug_at_a_time() {
        let seeded = || Bug::ALL.iter().filter(|&&(_, bug)| is_seeded(bug)).count();
        assert_eq!(seeded(), 0);
        seed(Some(Bug::WordsBeforeRecord));
        assert!(is_seeded(Bug::WordsBeforeRecord));
        assert_eq!(seeded(), 1);
        seed(None);
        assert_eq!(seeded(), 0);
    }

    #[test]
    #[cfg(not(feature = "seeded-bugs"))]
    fn other_builds_have_none() {
        assert!(!IS_COMPILED && Bug::ALL.iter().all(|&(_, bug)| !is_seeded(bug)));
    }
}
