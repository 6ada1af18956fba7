//! A transaction: gathers the changes of one operation, then commits them as one journal record.
//!
//! Contents: [`Tx`], which gathers; `commit`, the steps of its commit; and [`Purpose`], which says what the operation
//! is for. Every mutating function of the engine builds one under the locks of the inodes it changes. Dropping it
//! without a commit releases its claims; none of its changes was visible.
//!
//! Crash argument, once for all operations: until the commit fence returns, the operation has written only to blocks
//! that were free (claimed in DRAM alone) and to the journal. After the fence, replay sets the same words that
//! `commit` is about to set. So a crash at any point leaves the state before or the state after.

mod commit;
mod purpose;

use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::move_lock::{Moving, SharedMoveLock};
use ferrite_map::{BlockNo, Inum, MapError, MapTx, Mapping, PageId, PageRange, PageWord, Resource};
use ferrite_pm::line_trace;
use ferrite_pm::profile::{self, ProfileSpan as Spent};
use ferrite_vfs::{DedupToken, FsError, Outcome, Result, SpaceOf};

use crate::format::checksum::crc32c;
use crate::format::data_sum;
use crate::format::inode::{INODE_WORDS, Inode};
use crate::format::layout::{BLOCK_BYTES, LINE_BYTES};
use crate::format::log_entry::NEXT_BYTES;
use crate::format::outcome;
use crate::journal::Entered;
use crate::pool::buffers::{FilePages, Lease};
use crate::pool::core::{Core, map_error};
use crate::space::blocks::{Class, Token};
use crate::space::names::NameTx;
use crate::space::quotas::{self, Change};
use crate::space::shares::Marks;
use crate::thread::thread_number;

pub(crate) use self::purpose::{Purpose, WhenFrozen};

/// How far an operation has come on its way to the record. It only ever moves to a later stage: once the ring is
/// locked, it may wait for nothing but memory.
enum Stage<'e> {
    /// The commit locks the ring. Blocks are made durable before the record, with a separate fence.
    Gathering,
    /// The ring is locked for an operation on one page: log units are on the way to the medium, and the record carries
    /// their checksum. If the operation takes a block after all, that is the last step before the record.
    OnePage(Entered<'e>),
    /// The ring is locked, and the record carries the checksums of the blocks as well, even if the medium is memory.
    FewBlocks(Entered<'e>),
}

/// How the content of the file that an operation changes may be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Only the engine changes it: pages may have logs, and the record may carry checksums of the data.
    Private,
    /// It belongs to a bound file: pages are copied whole.
    Bound,
    /// Adapters may also change it in place, so the record must not carry a checksum of it.
    Shared,
}

/// The facts about streamed data that the commit needs.
#[derive(Default)]
struct Streamed {
    /// The record does not carry the checksum of some of it, so a fence is needed before the record.
    is_uncovered: bool,
    /// The last line of the log units.
    last_unit: Option<u64>,
    /// The line that the next operation will most likely read.
    next_read: Option<u64>,
}

/// One operation before its commit.
pub(crate) struct Tx<'e> {
    core: &'e Core,
    buffers: Lease,
    min_seq: u64,
    class: Class,
    /// Number of blocks taken from the reserve.
    from_reserve: usize,
    stage: Stage<'e>,
    purpose: Purpose,
    /// It would change an inode of a snapshot, and its purpose does not allow that.
    changes_snapshot: bool,
    /// The inodes that quotas count.
    counted: Vec<Change>,
    content: Content,
    streamed: Streamed,
    /// From the first read of the mapping until the words are set, for mappings whose entries may move.
    _shared: Option<SharedMoveLock<'e>>,
}

impl<'e> Tx<'e> {
    /// An empty transaction whose allocations are [`Class::Ordinary`]. Waits for a move of the mapping's entries. Must
    /// not be created while this thread has another transaction.
    pub(crate) fn new(core: &'e Core, purpose: Purpose) -> Self {
        let shared = profile::within(Spent::Lock, || {
            core.map.move_lock().map(|move_lock| move_lock.lock_shared())
        });
        Self::with_move_lock(core, purpose, shared)
    }

    fn with_move_lock(core: &'e Core, purpose: Purpose, shared: Option<SharedMoveLock<'e>>) -> Self {
        Tx {
            core,
            buffers: Lease::take(),
            min_seq: 0,
            class: Class::Ordinary,
            from_reserve: 0,
            stage: Stage::Gathering,
            purpose,
            changes_snapshot: false,
            counted: Vec::new(),
            content: Content::Private,
            streamed: Streamed::default(),
            _shared: shared,
        }
    }

    /// The same for a change of the content of a file.
    pub(crate) fn on(core: &'e Core, purpose: Purpose, inode: &Inode) -> Self {
        let mut tx = Self::new(core, purpose);
        if inode.is_bound() {
            // Elsewhere only the engine changes a bound file, and a fence may not be enough.
            tx.content = match core.may_change_in_place() && !is_seeded(Bug::BoundCovered) {
                true => Content::Shared,
                false => Content::Bound,
            };
        }
        tx
    }

    /// The same for a move of the mapping's entries, by the thread that has the move lock exclusively.
    pub(crate) fn moving(core: &'e Core, _moving: &Moving<'_>) -> Self {
        Self::with_move_lock(core, Purpose::Change, None)
    }

    /// Whether it changes a bound file.
    pub(crate) fn is_bound(&self) -> bool {
        self.content != Content::Private
    }

    /// Whether its record may carry checksums of the data that it streams.
    fn may_cover(&self) -> bool {
        self.content != Content::Shared
    }

    /// Whether streamed data waits for a fence, so that the ring should not be locked before.
    pub(crate) fn awaits_fence(&self) -> bool {
        self.streamed.is_uncovered
    }

    /// Whether it has streamed a part of a log.
    pub(crate) fn streams_log_units(&self) -> bool {
        self.streamed.last_unit.is_some()
    }

    /// Sets the class of the following allocations.
    pub(crate) fn set_class(&mut self, class: Class) {
        self.class = class;
    }

    fn note_claim(&mut self, block: BlockNo, token: Token) {
        self.from_reserve += usize::from(token == Token::Reserve);
        self.buffers.claimed.push(Resource::Block(block));
    }

    /// Whether `words` more words fit into its record.
    pub(crate) fn has_space(&self, words: usize) -> bool {
        let of_nodes = match self.core.region.defers_write_back() {
            true => self.buffers.fresh.words(),
            false => 0,
        };
        let so_far = self.buffers.record.len_words() + 2 * self.buffers.map_words.len() + of_nodes;
        so_far + words <= self.core.journal.max_record_words()
    }

    /// Sets the outcome of a change with a token. The caller holds the slot's lock, and the last change with the slot
    /// has committed: the record comes after all that have.
    #[cold]
    pub(crate) fn set_outcome(&mut self, token: DedupToken, outcome: &Outcome) {
        let Some(words) = outcome::encode(token, outcome) else {
            return;
        };
        self.min_seq = self.min_seq.max(self.core.journal.newest_seq());
        let offset = self.core.superblock.dedup_slot_offset(token.slot);
        for (index, word) in words.into_iter().enumerate() {
            self.buffers.record.set_word(offset + index as u64 * 8, word);
        }
    }

    /// Has the commit refuse what would change an inode of a snapshot: every change of a file or directory puts its
    /// inode, so this one place keeps all of a snapshot as it is. `stored` gives the words of the stored inode.
    #[inline]
    fn guard_snapshot(&mut self, stored: impl Fn(usize) -> u64) {
        self.changes_snapshot |= Inode::is_kept_as_is(stored) && !self.purpose.may_change_snapshots();
    }

    /// Whether quotas may count the inode, whose stored words `stored` gives.
    #[inline]
    fn concerns_quotas(&self, stored: impl Fn(usize) -> u64, new: &Inode) -> bool {
        let quotas = &self.core.quotas;
        quotas.counts_user(Inode::owner(&stored))
            || quotas.counts_user(new.uid())
            || !Inode::is_not_counted(stored, new)
    }

    /// Has the commit reserve what quotas count of the inode.
    fn count(&mut self, ino: Inum, old: &Inode, new: &Inode) {
        let new = quotas::change_of(ino, old, new);
        match self.counted.iter_mut().find(|change| change.ino == new.ino) {
            // The same record changes it once more.
            Some(change) => change.after = new.after,
            None if new.before == new.after => {}
            None => self.counted.push(new),
        }
    }

    /// Completes `new` with its checksum, and records the words in which it differs from the stored inode. The caller
    /// holds the inode's lock.
    pub(crate) fn put_inode(&mut self, ino: Inum, new: &mut Inode) {
        let _span = profile::enter(Spent::Record);
        let offset = self.core.superblock.inode_offset(ino);
        let stored = self.core.region.words(offset, INODE_WORDS);
        let word = |index: usize| stored[index].load(Ordering::Relaxed);
        self.guard_snapshot(word);
        if self.concerns_quotas(word, new) {
            self.count(ino, &Inode::load(&self.core.region, offset), new);
        }
        let differs = |index: usize, new: &Inode| stored[index].load(Ordering::Relaxed) != new.words[index];
        new.set_crc(profile::within(Spent::Checksum, || new.checksum(ino)));
        for index in 0..INODE_WORDS {
            if differs(index, new) && index > 0 && is_seeded(Bug::InodeWithoutRecord) {
                self.core.region.store(offset + index as u64 * 8, new.words[index]);
            } else if differs(index, new) {
                self.buffers
                    .record
                    .set_word(offset + index as u64 * 8, new.words[index]);
            }
        }
    }

    /// The same if the caller already has the stored inode: `old` was loaded under the inode's lock.
    pub(crate) fn put_changed_inode(&mut self, ino: Inum, old: &Inode, new: &mut Inode) {
        if is_seeded(Bug::InodeWithoutRecord) {
            return self.put_inode(ino, new);
        }
        self.guard_snapshot(|index| old.words[index]);
        if self.concerns_quotas(|index| old.words[index], new) {
            self.count(ino, old, new);
        }
        // Most overwrites within a tick of the clock change nothing, and the checksum is most of the cost here.
        if old.words == new.words {
            return;
        }
        let _span = profile::enter(Spent::Record);
        let offset = self.core.superblock.inode_offset(ino);
        new.set_crc(profile::within(Spent::Checksum, || new.checksum(ino)));
        let mut changed = 0u32;
        for index in 0..INODE_WORDS {
            changed |= u32::from(old.words[index] != new.words[index]) << index;
        }
        while changed != 0 {
            let index = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            self.buffers
                .record
                .set_word(offset + index as u64 * 8, new.words[index]);
        }
    }

    /// Declares that few blocks will be streamed, and that the operation waits for nothing from here to the commit:
    /// their checksums then cost less than a separate fence.
    pub(crate) fn expect_few_blocks(&mut self) {
        if self.may_cover() {
            self.stage = Stage::FewBlocks(self.enter());
        }
    }

    /// Locks a ring, or keeps the one already locked.
    fn enter(&mut self) -> Entered<'e> {
        match std::mem::replace(&mut self.stage, Stage::Gathering) {
            Stage::OnePage(entered) | Stage::FewBlocks(entered) => entered,
            Stage::Gathering => self.lock_ring(),
        }
    }

    fn lock_ring(&self) -> Entered<'e> {
        line_trace::number("rings", thread_number() % u64::from(self.core.superblock.rings));
        profile::within(Spent::Lock, || self.core.journal.enter())
    }

    /// Declares that the operation changes one page, in whichever way, that its log units or its block are the last
    /// thing streamed, and that it waits for nothing but memory from here to the commit. The ring is locked while those
    /// are on their way.
    pub(crate) fn set_single_page(&mut self) {
        if self.may_cover() {
            self.stage = Stage::OnePage(self.enter());
        }
    }

    /// Fills a claimed block with a page of a file, as the last step before the record of an operation on one page.
    pub(crate) fn stream_last_page(&mut self, page: PageId, block: BlockNo, data: &[u8]) {
        if matches!(self.stage, Stage::OnePage(_)) {
            self.expect_few_blocks();
        }
        self.stream_page(page, block, data);
    }

    /// Fills a claimed block with page (inode, logical block) of a file, or with a link's target, and records its
    /// checksum if data carries checksums. Durable with the commit.
    pub(crate) fn stream_page(&mut self, page: PageId, block: BlockNo, data: &[u8]) {
        let Some(offset) = self.core.superblock.sum_word_offset(block) else {
            return self.stream_block(block, data);
        };
        self.fill(block, data);
        let sum = profile::within(Spent::Checksum, || {
            data_sum::word(self.core.superblock.seed, page, crc32c(data))
        });
        self.buffers.record.set_word(offset, sum);
    }

    /// Makes the record follow all others that mark shared blocks, and mark these. The caller keeps the right until the
    /// record has committed.
    pub(crate) fn mark_shared(&mut self, marks: &Marks<'_>, blocks: &[BlockNo]) {
        self.min_seq = self.min_seq.max(marks.last_seq());
        for word in marks.words(blocks) {
            self.buffers.record.set_word(word.offset, word.value);
        }
    }

    /// Makes the checksum of the block of a page fit any page that names the block, if data carries checksums.
    ///
    /// # Errors
    /// Damage of the checksum.
    pub(crate) fn share_sum(&mut self, page: PageId, block: BlockNo) -> Result<()> {
        let Some(offset) = self.core.superblock.sum_word_offset(block) else {
            return Ok(());
        };
        let stored = self.core.region.load(offset);
        let shared = data_sum::shared(self.core.superblock.seed, page, stored);
        let shared = shared.map_err(|difference| data_sum::mismatch(page, block, difference))?;
        if shared != stored {
            self.buffers.record.set_word(offset, shared);
        }
        Ok(())
    }

    /// Records the checksum of the current content of a page's block, if data carries checksums.
    pub(crate) fn set_sum(&mut self, page: PageId, block: BlockNo, crc: u32) {
        if let Some(offset) = self.core.superblock.sum_word_offset(block) {
            let sum = data_sum::word(self.core.superblock.seed, page, crc);
            self.buffers.record.set_word(offset, sum);
        }
    }

    /// Fills bytes of a block beyond the end of a bound file, where no reader looks. Durable before the record.
    pub(crate) fn stream_behind_end(&mut self, offset: u64, data: &[u8]) {
        self.core.region.stream(offset, data);
        self.streamed.is_uncovered = true;
    }

    /// Fills a claimed block whose content has its own checksum. Durable with the commit.
    pub(crate) fn stream_block(&mut self, block: BlockNo, data: &[u8]) {
        self.fill(block, data);
    }

    fn fill(&mut self, block: BlockNo, data: &[u8]) {
        let offset = self.core.superblock.block_offset(block);
        debug_assert_eq!(data.len() as u64, BLOCK_BYTES);
        match self.core.region.defers_write_back() {
            // Each stream is a system call, so pages that follow each other become one.
            true => self.buffers.staged.push(offset, data),
            false => self.core.region.stream(offset, data),
        }
        let few = matches!(self.stage, Stage::FewBlocks(_));
        let covered = (self.core.data_in_checksum || few) && self.may_cover();
        if few && is_seeded(Bug::TornPage) {
        } else if covered {
            let check = profile::within(Spent::Checksum, || self.core.superblock.record_check().data(data));
            self.buffers.record.add_data(offset, data.len() as u32, check);
        } else {
            self.streamed.is_uncovered = true;
        }
    }

    /// Writes log units at `offset`. The record carries their checksum, so they share its fence. Taking a lock waits
    /// until all streams have drained. So if the record follows at once, the ring is locked before; otherwise the
    /// units are streamed with the record.
    pub(crate) fn stream_log(&mut self, offset: u64, bytes: &[u8]) {
        self.stream_units(offset, bytes, 0);
    }

    /// The same for a new segment, whose first word, the link to a later segment, is 0. Later records change that
    /// word, so the checksum in this record must not cover it. The record sets the word instead; otherwise the old
    /// value would remain if the first line of the stream were lost.
    pub(crate) fn stream_segment(&mut self, offset: u64, bytes: &[u8]) {
        self.stream_units(offset, bytes, NEXT_BYTES as usize);
        self.buffers.record.set_streamed_word(offset, 0);
    }

    /// Declares that an operation like this one will follow: loads the lines that this one has streamed past the cache
    /// once they are durable, so that the next one does not wait for it.
    pub(crate) fn expect_another(&mut self) {
        self.streamed.next_read = self.streamed.last_unit;
    }

    fn stream_units(&mut self, offset: u64, bytes: &[u8], skip: usize) {
        self.streamed.last_unit = Some(offset + bytes.len() as u64 - LINE_BYTES);
        match self.stage {
            Stage::Gathering => self.buffers.staged.push(offset, bytes),
            Stage::OnePage(_) | Stage::FewBlocks(_) => self.core.region.stream(offset, bytes),
        }
        if is_seeded(Bug::TornLogEntry) {
            return;
        }
        let covered = &bytes[skip..];
        let check = profile::within(Spent::Checksum, || self.core.superblock.record_check().data(covered));
        self.buffers
            .record
            .add_data(offset + skip as u64, covered.len() as u32, check);
    }

    /// Maps a page that is not mapped. Operations must map pages only through this function: the commit widens the
    /// inode's [`crate::cache::mapped_ranges::MappedRanges`].
    #[inline]
    pub(crate) fn insert_page(&mut self, PageId { ino, lblk }: PageId, word: PageWord) -> Result<()> {
        let _span = profile::enter(Spent::Lookup);
        self.core
            .map
            .insert(self, PageId::new(ino, lblk), word)
            .map_err(map_error)?;
        if self.core.keeps_mapped_ranges {
            let page = u64::from(lblk);
            match self.buffers.mapped.last_mut() {
                Some(last) if last.ino == ino && last.pages.end == page => last.pages.end += 1,
                _ => self.buffers.mapped.push(FilePages {
                    ino,
                    pages: PageRange::new(page, page + 1),
                }),
            }
        }
        Ok(())
    }

    /// Declares that the record leaves nothing mapped in these pages of `ino`.
    pub(crate) fn clears(&mut self, ino: Inum, pages: PageRange) {
        if self.core.keeps_mapped_ranges {
            self.buffers.cleared.push(FilePages { ino, pages });
        }
    }

    /// Claims a free inode number.
    pub(crate) fn alloc_inode(&mut self) -> Result<Inum> {
        let _span = profile::enter(Spent::Claim);
        let ino = self.core.claim_inode().ok_or(FsError::NoSpace(SpaceOf::Inodes))?;
        self.buffers.claimed.push(Resource::Inode(ino));
        Ok(ino)
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        for resource in self.buffers.claimed.drain(..) {
            self.core.release(resource);
        }
    }
}

impl NameTx for Tx<'_> {
    fn comes_after(&mut self, seq: u64) {
        self.min_seq = self.min_seq.max(seq);
    }
}

impl MapTx for Tx<'_> {
    fn set_word(&mut self, offset: u64, value: u64) {
        // The words that HashFS sets do not depend on other words set by the same transaction.
        if self.core.superblock.mapping == Mapping::Hashfs {
            self.buffers.record.set_word(offset, value);
        } else if !self.buffers.fresh.set_word(offset, value) {
            self.buffers.map_words.insert(offset, value);
            self.buffers.set_lines.note(offset);
        }
    }

    fn word(&self, offset: u64) -> u64 {
        let set = self.buffers.map_words.get(&offset).copied();
        set.or_else(|| self.buffers.fresh.word(offset))
            .unwrap_or_else(|| self.core.region.load(offset))
    }

    fn stored(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        let unset =
            !self.buffers.set_lines.may_have(offset, count as u64 * 8) && self.buffers.fresh.word(offset).is_none();
        unset.then(|| self.core.region.words(offset, count))
    }

    /// The record carries no checksum of the block's content, which later records change; the block is fenced
    /// separately.
    fn fresh_block(&mut self) -> std::result::Result<BlockNo, MapError> {
        let block = self.alloc_block()?;
        let offset = self.core.superblock.block_offset(block);
        self.buffers.fresh.add(offset);
        Ok(block)
    }

    fn claim_block(&mut self, block: BlockNo) -> bool {
        let _span = profile::enter(Spent::Claim);
        let token = self.core.alloc.claim(block, self.class);
        if let Some(token) = token {
            self.note_claim(block, token);
        }
        token.is_some()
    }

    fn alloc_block(&mut self) -> std::result::Result<BlockNo, MapError> {
        let _span = profile::enter(Spent::Claim);
        let (block, token) = self.core.alloc.claim_any(self.class).ok_or(MapError::NoBlock)?;
        self.note_claim(block, token);
        Ok(block)
    }

    fn alloc_run(&mut self) -> std::result::Result<BlockNo, MapError> {
        let _span = profile::enter(Spent::Claim);
        let (block, token) = self.core.alloc.claim_run(self.class).ok_or(MapError::NoBlock)?;
        self.note_claim(block, token);
        Ok(block)
    }

    fn claimed(&mut self, resource: Resource) {
        self.buffers.claimed.push(resource);
    }

    /// Blocks, log segments and mapping slots wait until no crash can replay the record that frees them, because old
    /// records carry checksums of the blocks' content.
    ///
    /// Inode numbers and name slots need not wait: they are words that records set, and the next record to use them
    /// gets a later sequence number (from the inode's entry, or the name table), so replay ends with the newer words.
    fn freed(&mut self, resource: Resource) {
        match resource {
            Resource::Block(_) | Resource::LogSegment(..) if is_seeded(Bug::EarlyReuse) => {
                self.buffers.freed_at_once.push(resource);
            }
            Resource::Block(block) if self.core.shares.is_shared(block) && is_seeded(Bug::ShareDroppedEarly) => {
                self.buffers.freed_at_once.push(resource);
            }
            Resource::Block(_) | Resource::MapSlot(_) | Resource::LogSegment(..) => self.buffers.freed.push(resource),
            Resource::Inode(_) | Resource::NameSlot(_) => self.buffers.freed_at_once.push(resource),
        }
    }
}
