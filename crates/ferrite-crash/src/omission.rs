//! Fences and write-backs that the engine could forget, left out of recordings of it.
//!
//! Contents: [`Omission`]. A recording with one of them is that of an engine with this mistake, and the explorer must
//! find it. The regions that a thread writes before and after a fence say which of the engine's fences it is.

use std::ops::Range;

use ferrite_fs::{Mapping, Superblock, layout};
use ferrite_pm::{Event, Log, Step};

/// A fence or write-back that is missing everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omission {
    /// A record is applied before the fence that makes it durable.
    RecordFence,
    /// The checkpoint moves past records whose words are not written back.
    WordsWriteBack,
    /// Space is reused before the checkpoint that frees it is durable.
    CheckpointFence,
    /// Pages, or new nodes of a tree, are not fenced before the record that names them.
    BlockFence,
    /// Bytes appended to a bound file are not fenced before the record that moves its end.
    AppendFence,
    /// A merged page is not fenced before the word that names it.
    MergeFence,
    /// A merge's word is not written back before the checkpoint passes it.
    MergeWriteBack,
    /// With deferred write-back, words reach the file before the records that set them are durable.
    RecordSync,
    /// The content of a block is not written back when its checksum is recorded.
    ContentWriteBack,
}

impl Omission {
    /// Those that the explorer's workloads show. They bind no files, so others are left to the tests of bound files.
    pub const EXPLORED: [Omission; 7] = [
        Omission::RecordFence,
        Omission::WordsWriteBack,
        Omission::CheckpointFence,
        Omission::BlockFence,
        Omission::MergeFence,
        Omission::MergeWriteBack,
        Omission::RecordSync,
    ];

    /// Whether it concerns deferred write-back.
    pub fn is_deferred(self) -> bool {
        self == Omission::RecordSync
    }

    /// The mappings on which it must be found: a mistake with blocks is another one where blocks are nodes.
    pub fn mappings(self) -> &'static [Mapping] {
        match self {
            Omission::BlockFence => &[Mapping::Hashfs, Mapping::Radix, Mapping::Extent],
            _ => &[Mapping::Hashfs],
        }
    }

    /// A recording of a pool with this superblock, without the fences or write-backs.
    pub fn leave_out(self, log: &Log, superblock: &Superblock) -> Log {
        let rings = superblock.journal_offset..superblock.inode_offset;
        log.without(|step| match self {
            Omission::RecordFence => step.is_fence() && completes_record(step, &rings),
            Omission::WordsWriteBack => step.written_back().is_some() && is_before_checkpoint(step),
            Omission::CheckpointFence => {
                step.is_fence() && step.since_fence().any(|step| step.stores_to(&checkpoint()))
            }
            Omission::BlockFence => completes_blocks(step, &rings) && is_stream(step.after().next()),
            Omission::AppendFence => {
                completes_blocks(step, &rings)
                    && is_stream(step.after().next())
                    && !step.since_fence().any(|step| is_whole_block(&step))
            }
            Omission::MergeFence => is_of_merge(step, &rings),
            Omission::MergeWriteBack => step
                .written_back()
                .is_some_and(|line| is_of_merge_alone(step, &line, &rings)),
            Omission::RecordSync => is_before_words(step),
            Omission::ContentWriteBack => is_of_whole_block(step),
        })
    }
}

/// The checkpoint of the journal.
fn checkpoint() -> Range<u64> {
    layout::CONTROL_CHECKPOINT..layout::CONTROL_CHECKPOINT + 8
}

fn is_stream(step: Option<Step<'_>>) -> bool {
    step.is_some_and(|step| matches!(step.event(), Event::Stream { .. }))
}

/// The content of a page or a node. Appends to the middle of a page are shorter.
fn is_whole_block(step: &Step<'_>) -> bool {
    match step.event() {
        Event::Stream { offset, words } => {
            offset.is_multiple_of(layout::BLOCK_BYTES) && words.len() as u64 * 8 == layout::BLOCK_BYTES
        }
        _ => false,
    }
}

/// A fence of a record, and of whatever was streamed with it.
fn completes_record(fence: &Step<'_>, rings: &Range<u64>) -> bool {
    fence.since_fence().any(|step| step.streams_to(rings))
}

/// A fence of blocks alone.
fn completes_blocks(fence: &Step<'_>, rings: &Range<u64>) -> bool {
    fence.is_fence() && fence.since_fence().any(|step| is_stream(Some(step))) && !completes_record(fence, rings)
}

/// The fence of a merge. After it the thread sets words; a transaction would stream a record.
fn is_of_merge(fence: &Step<'_>, rings: &Range<u64>) -> bool {
    let is_word = |step: Step<'_>| matches!(step.event(), Event::Store { .. }) && !step.stores_to(&checkpoint());
    completes_blocks(fence, rings) && fence.after().next().is_some_and(is_word)
}

/// Nothing is in the line but a word that a merge has set. If a record has set another one since the line was last
/// written back, the write-back is the record's.
fn is_of_merge_alone(write_back: &Step<'_>, line: &Range<u64>, rings: &Range<u64>) -> bool {
    let is_written = |step: &Step<'_>| step.written_back().as_ref() == Some(line);
    let mut stores = write_back
        .before_at(line.start)
        .take_while(|step| !is_written(step))
        .peekable();
    let of_merge = |store: Step<'_>| {
        let fence = store.before().find(|step| !matches!(step.event(), Event::Store { .. }));
        fence.is_some_and(|fence| is_of_merge(&fence, rings))
    };
    stores.peek().is_some() && stores.all(of_merge)
}

/// Whether the next thing that the thread does after its next fence is to move the checkpoint.
fn is_before_checkpoint(write_back: &Step<'_>) -> bool {
    let mut after = write_back.after().skip_while(|step| !step.is_fence());
    after.next();
    after.next().is_some_and(|step| step.stores_to(&checkpoint()))
}

/// The first of the syncs by which the checkpoint moves: words go to the file after it, then there is another sync,
/// then the checkpoint.
fn is_before_words(sync: &Step<'_>) -> bool {
    let is_checkpoint = |step: Step<'_>| step.stores_to(&checkpoint()) || step.streams_to(&checkpoint());
    let mut after = sync
        .after()
        .skip_while(|step| is_stream(Some(*step)) && !is_checkpoint(*step));
    let has_words = is_stream(sync.after().next());
    sync.is_fence()
        && has_words
        && after.next().is_some_and(|step| step.is_fence())
        && after.next().is_some_and(is_checkpoint)
}

/// One of the write-backs of all lines of a block.
fn is_of_whole_block(write_back: &Step<'_>) -> bool {
    let Some(line) = write_back.written_back() else {
        return false;
    };
    let block = line.start / layout::BLOCK_BYTES;
    let is_of_block = |step: &Step<'_>| {
        let line = step.written_back();
        line.is_some_and(|line| line.start / layout::BLOCK_BYTES == block)
    };
    let count =
        write_back.before().take_while(is_of_block).count() + write_back.after().take_while(is_of_block).count();
    count as u64 + 1 >= layout::BLOCK_BYTES / ferrite_pm::LINE_BYTES
}
