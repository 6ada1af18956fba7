//! A transaction: gathers the changes of one operation, then commits them as one journal record.
//!
//! Contents: [`Tx`]. Every mutating function of the engine builds one under the locks of the inodes it changes.
//! Dropping it without a commit releases its claims; none of its changes was visible.
//!
//! Crash argument, once for all operations: until the commit fence returns, the operation has written only to blocks
//! that were free (claimed in DRAM alone) and to the journal. After the fence, replay sets the same words that
//! `commit` is about to set. So a crash at any point leaves the state before or the state after.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::move_lock::{Moving, SharedMoveLock};
use ferrite_map::{BlockNo, Inum, MapError, MapTx, Mapping, PageId, PageRange, PageWord, Resource};
use ferrite_pm::line_trace;
use ferrite_pm::profile::{self, ProfileSpan as Spent};
use ferrite_vfs::{DedupToken, FsError, Outcome, Result, SpaceOf, Unsupported};

use crate::cache::inodes::InodeMem;
use crate::format::checksum::crc32c;
use crate::format::data_sum;
use crate::format::inode::{INODE_WORDS, Inode};
use crate::format::layout::{BLOCK_BYTES, LINE_BYTES};
use crate::format::log_entry::NEXT_BYTES;
use crate::format::outcome;
use crate::format::unit::Unit;
use crate::journal::{CommitError, Committed, Entered};
use crate::pool::buffers::{Buffers, FilePages, Lease};
use crate::pool::core::{Core, map_error};
use crate::space::blocks::{Class, Token};
use crate::space::names::NameTx;
use crate::thread::thread_number;

const NUMBERS_USED_UP: &str =
    "the journal has used up its sequence numbers: the pool can be read, copy what it holds to a new one";

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

/// One operation before its commit.
pub(crate) struct Tx<'e> {
    core: &'e Core,
    buffers: Lease,
    min_seq: u64,
    class: Class,
    /// Number of blocks taken from the reserve.
    from_reserve: usize,
    stage: Stage<'e>,
    /// It has streamed data whose checksum the record does not carry, so a fence is needed before the record.
    needs_fence: bool,
    /// No caller waits until it is durable.
    is_optional: bool,
    /// On a frozen pool it fails.
    fails_if_frozen: bool,
    /// It does not count as a change of its inodes.
    is_no_change: bool,
    /// It changes a bound file: pages are copied whole.
    is_bound: bool,
    /// The last line of the log units that it streams.
    last_unit: u64,
    /// The next operation will most likely read that line.
    is_repeated: bool,
    /// Adapters may later change its data in place, so its record must not carry a checksum of that.
    is_uncovered: bool,
    /// From the first read of the mapping until the words are set, for mappings whose entries may move.
    _shared: Option<SharedMoveLock<'e>>,
}

impl<'e> Tx<'e> {
    /// An empty transaction whose allocations are [`Class::Ordinary`]. Waits for a move of the mapping's entries. Must
    /// not be created while this thread has another transaction.
    pub(crate) fn new(core: &'e Core) -> Self {
        let shared = profile::within(Spent::Lock, || {
            core.map.move_lock().map(|move_lock| move_lock.lock_shared())
        });
        Self::with_move_lock(core, shared)
    }

    fn with_move_lock(core: &'e Core, shared: Option<SharedMoveLock<'e>>) -> Self {
        Tx {
            core,
            buffers: Lease::take(),
            min_seq: 0,
            class: Class::Ordinary,
            from_reserve: 0,
            stage: Stage::Gathering,
            needs_fence: false,
            is_optional: false,
            fails_if_frozen: false,
            is_no_change: false,
            is_bound: false,
            last_unit: 0,
            is_repeated: false,
            is_uncovered: false,
            _shared: shared,
        }
    }

    /// The same for a change of the content of a file.
    pub(crate) fn on(core: &'e Core, inode: &Inode) -> Self {
        let mut tx = Self::new(core);
        tx.is_bound = inode.is_bound();
        // Elsewhere only the engine changes a bound file, and a fence may not be enough.
        tx.is_uncovered = tx.is_bound && core.may_change_in_place() && !is_seeded(Bug::BoundCovered);
        tx
    }

    /// Whether it changes a bound file.
    pub(crate) fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// The same for a move of the mapping's entries, by the thread that has the move lock exclusively.
    pub(crate) fn moving(core: &'e Core, _moving: &Moving<'_>) -> Self {
        Self::with_move_lock(core, None)
    }

    /// Declares that no caller waits for this, as for an access time: it need not be durable soon, on a frozen pool it
    /// fails instead of waiting, and it does not count as a change of the inode.
    pub(crate) fn is_optional(&mut self) {
        self.is_optional = true;
        self.fails_if_frozen = true;
        self.is_no_change = true;
    }

    /// Whether streamed data waits for a fence, so that the ring should not be locked before.
    pub(crate) fn awaits_fence(&self) -> bool {
        self.needs_fence
    }

    /// Whether it has streamed a part of a log.
    pub(crate) fn streams_log_units(&self) -> bool {
        self.last_unit != 0
    }

    /// Declares that it fails on a frozen pool instead of waiting.
    pub(crate) fn does_not_wait(&mut self) {
        self.fails_if_frozen = true;
    }

    /// Declares that it does not count as a change of its inodes, for attributes that a service keeps with them.
    pub(crate) fn changes_nothing(&mut self) {
        self.is_no_change = true;
    }

    /// Sets the class of the following allocations.
    pub(crate) fn set_class(&mut self, class: Class) {
        self.class = class;
    }

    fn note_claim(&mut self, block: BlockNo, token: Token) {
        self.from_reserve += usize::from(token == Token::Reserve);
        self.buffers.claimed.push(Resource::Block(block));
    }

    /// Counts the log segments that it frees as waiting.
    fn note_waiting_segments(&self) {
        let unit = |resource: &Resource| match *resource {
            Resource::LogSegment(unit) => Some(Unit::of_segment(unit)),
            _ => None,
        };
        let mut units = self.buffers.freed.iter().filter_map(unit).peekable();
        if units.peek().is_some() {
            self.core.log_space.set_waiting(units, true);
        }
    }

    /// Refuses to leave the reserve with less than before, beyond the debt that is allowed. The kind of operation does
    /// not matter: tree nodes, for example, may make an overwrite take more than it frees.
    #[cold]
    fn check_reserve(&self) -> Result<()> {
        let is_block = |resource: &&Resource| matches!(resource, Resource::Block(_));
        let freed = self.buffers.freed.iter().chain(&self.buffers.freed_at_once);
        let freed = freed.filter(is_block).count();
        match self.from_reserve <= freed || self.core.alloc.may_owe() {
            true => Ok(()),
            false => Err(FsError::NoSpace(SpaceOf::Blocks)),
        }
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

    /// Completes `new` with its checksum, and records the words in which it differs from the stored inode. The caller
    /// holds the inode's lock.
    pub(crate) fn put_inode(&mut self, ino: Inum, new: &mut Inode) {
        let _span = profile::enter(Spent::Record);
        let offset = self.core.superblock.inode_offset(ino);
        let stored = self.core.region.words(offset, INODE_WORDS);
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
        if !self.is_uncovered {
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
        if !self.is_uncovered {
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
        self.needs_fence = true;
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
        let covered = (self.core.data_in_checksum || few) && !self.is_uncovered;
        if few && is_seeded(Bug::TornPage) {
        } else if covered {
            let check = profile::within(Spent::Checksum, || self.core.superblock.record_check().data(data));
            self.buffers.record.add_data(offset, data.len() as u32, check);
        } else {
            self.needs_fence = true;
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
        self.is_repeated = true;
    }

    fn stream_units(&mut self, offset: u64, bytes: &[u8], skip: usize) {
        self.last_unit = offset + bytes.len() as u64 - LINE_BYTES;
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

    /// Makes the inodes' mapped ranges cover the pages that the record maps, before any reader can find it.
    fn widen_mapped_ranges(&self, inodes: &[&Arc<InodeMem>]) {
        for &FilePages { ino, pages } in &self.buffers.mapped {
            let inode = inodes.iter().find(|inode| inode.ino == ino);
            let inode = inode.expect("who maps a page counts it in its inode");
            inode
                .mapped_ranges
                .widen(pages.first, pages.end, &self.core.mapped_ranges_budget);
        }
    }

    /// Makes the mapped ranges leave out the pages that the record has unmapped. The caller still has the locks.
    fn narrow_mapped_ranges(&self, inodes: &[&Arc<InodeMem>]) {
        for &FilePages { ino, pages } in &self.buffers.cleared {
            if let Some(inode) = inodes.iter().find(|inode| inode.ino == ino) {
                inode
                    .mapped_ranges
                    .clear(pages.first, pages.end, &self.core.mapped_ranges_budget);
            }
        }
    }

    /// Claims a free inode number.
    pub(crate) fn alloc_inode(&mut self) -> Result<Inum> {
        let _span = profile::enter(Spent::Claim);
        let ino = self.core.claim_inode().ok_or(FsError::NoSpace(SpaceOf::Inodes))?;
        self.buffers.claimed.push(Resource::Inode(ino));
        Ok(ino)
    }

    /// Commits a move of the mapping's entries. All earlier records name the old places and all later ones the new
    /// places, so its number is between theirs.
    pub(crate) fn commit_move(mut self) -> Result<()> {
        let journal = &self.core.journal;
        self.min_seq = journal.newest_seq();
        if is_seeded(Bug::SplitForgetsCopy) {
            self.buffers
                .map_words
                .remove(&(self.core.superblock.map_offset + LINE_BYTES));
        }
        if is_seeded(Bug::MoveForgetsWord) {
            let first = self.buffers.map_words.keys().min().copied();
            first.map(|offset| self.buffers.map_words.remove(&offset));
        }
        self.commit(&[])?;
        if !is_seeded(Bug::MoveForgetsFloor) {
            journal.raise_floor();
        }
        Ok(())
    }

    /// Commits and applies. `inodes` are all inodes whose words or entries change; the caller holds their locks
    /// exclusively, or no other thread can know them yet. On return the operation is durable.
    pub(crate) fn commit(mut self, inodes: &[&Arc<InodeMem>]) -> Result<()> {
        let _span = profile::enter(Spent::Record);
        self.complete_record();
        if self.buffers.record.is_empty() {
            return Ok(());
        }
        if self.from_reserve > 0 {
            self.check_reserve()?;
        }
        self.core.check_writable()?;
        self.widen_mapped_ranges(inodes);
        self.persist_uncovered()?;
        self.note_waiting_segments();
        let min_seq = inodes.iter().map(|inode| inode.last_seq()).fold(self.min_seq, u64::max);
        let mut was_full = false;
        loop {
            match self.write_record(inodes, min_seq) {
                Ok(committed) => return self.publish(inodes, committed),
                // Mostly another thread is about to empty the ring: its progress by then is enough.
                Err(CommitError::RingFull) if !std::mem::replace(&mut was_full, true) => self.core.relieve()?,
                Err(CommitError::RingFull) => self.core.reclaim()?,
                Err(CommitError::Frozen) if self.fails_if_frozen => return Err(FsError::ReadOnly),
                Err(CommitError::Frozen) => self.core.journal.wait_for_thaw(),
                Err(CommitError::TooLong) => return Err(FsError::NotSupported(Unsupported::StepSize)),
                Err(CommitError::NumbersUsedUp) => return Err(self.core.stop_changes(NUMBERS_USED_UP.into())),
                Err(CommitError::Closed) => {
                    // Unmounted since the last check, or another record has just failed.
                    self.core.check_writable()?;
                    return Err(FsError::ReadOnly);
                }
                Err(CommitError::Medium(error)) => {
                    // The record may have survived: the space it names must not be reused before the next mount.
                    self.buffers.claimed.clear();
                    return Err(self.core.fail(&error));
                }
            }
        }
    }

    /// First step of a commit: the words of the mapping, which transactions keep apart, join the record.
    #[inline]
    fn complete_record(&mut self) {
        if self.core.region.defers_write_back() && !is_seeded(Bug::NodeWithoutWords) {
            // No fence comes between nodes and the record that links them, so it has their words.
            self.buffers.record_fresh_nodes();
        }
        if !self.buffers.map_words.is_empty() {
            self.buffers.record_map_words();
        }
    }

    /// Second step: stores the data that the record will name without covering it by its checksum, and fences it, so
    /// that it is durable before the record can be.
    #[inline]
    fn persist_uncovered(&mut self) -> Result<()> {
        self.needs_fence |= self.buffers.fresh.stream(&self.core.region);
        if self.needs_fence {
            self.core.region.fence().map_err(|error| self.core.fail(&error))?;
        }
        if self.core.region.defers_write_back() {
            // Nothing names these blocks before the record; and no ring is locked meanwhile, if it need not be.
            self.buffers.staged.stream(&self.core.region);
            self.buffers.staged.clear();
        }
        Ok(())
    }

    /// Third step: the record goes to a ring, is fenced, and its words are set.
    #[inline]
    fn write_record(&mut self, inodes: &[&Arc<InodeMem>], min_seq: u64) -> std::result::Result<Committed, CommitError> {
        let entered = self.enter();
        let Buffers {
            record, freed, staged, ..
        } = &mut *self.buffers;
        let stream = || profile::within(Spent::Stream, || staged.stream(&self.core.region));
        let announce = || {
            profile::turn_to(Spent::Books);
            inodes.iter().for_each(|inode| inode.begin_change());
        };
        let journal = &self.core.journal;
        journal.commit(entered, record, freed, min_seq, stream, announce)
    }

    /// Last step: waits for the sync that makes the record durable, if it is not yet, and shows the change to others.
    #[inline]
    fn publish(&mut self, inodes: &[&Arc<InodeMem>], committed: Committed) -> Result<()> {
        if self.core.syncs_commits && !self.is_optional {
            // Without the ring, so that others commit meanwhile and share the sync; with the inodes, so that no reader
            // sees changes that are not durable yet.
            self.core.journal.sync().map_err(|error| {
                self.buffers.claimed.clear();
                self.core.fail(&error)
            })?;
        }
        for inode in inodes {
            match self.is_no_change {
                true => inode.set_last_seq(committed.seq),
                false => inode.set_changed(committed.seq),
            }
        }
        self.buffers.claimed.clear();
        self.narrow_mapped_ranges(inodes);
        for resource in self.buffers.freed_at_once.drain(..) {
            if let Resource::NameSlot(slot) = resource {
                self.core.names.note_freed(slot, committed.seq);
            }
            self.core.release(resource);
        }
        if self.is_repeated {
            self.core.region.prefetch(self.last_unit);
        }
        if committed.crowded {
            self.core.make_space()?;
        }
        Ok(())
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
            Resource::Block(_) | Resource::LogSegment(_) if is_seeded(Bug::EarlyReuse) => {
                self.buffers.freed_at_once.push(resource);
            }
            Resource::Block(_) | Resource::MapSlot(_) | Resource::LogSegment(_) => self.buffers.freed.push(resource),
            Resource::Inode(_) | Resource::NameSlot(_) => self.buffers.freed_at_once.push(resource),
        }
    }
}
