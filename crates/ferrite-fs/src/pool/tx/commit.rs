//! The commit of a transaction: one step after the other.
//!
//! Contents: [`Tx::commit`], which names the steps in their order, and [`Tx::commit_move`]. Only these two call the
//! steps. Until `write_record`, an error leaves nothing behind. They decide by the [`super::Purpose`], which is chosen
//! when the transaction is created, and by the data that the operation has streamed.

use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::Resource;
use ferrite_pm::profile::{self, ProfileSpan as Spent};
use ferrite_vfs::{FsError, Result, SpaceOf, Unsupported};

use super::Tx;
use crate::cache::inodes::InodeMem;
use crate::format::layout::LINE_BYTES;
use crate::format::unit::Unit;
use crate::journal::{CommitError, Committed};
use crate::pool::buffers::{Buffers, FilePages};
use crate::space::quotas::Charged;

const NUMBERS_USED_UP: &str =
    "the journal has used up its sequence numbers: the pool can be read, copy what it holds to a new one";

impl<'e> Tx<'e> {
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
    /// exclusively, or no other thread can know them yet. On return the operation is durable, unless its purpose is
    /// [`super::Purpose::Background`].
    pub(crate) fn commit(mut self, inodes: &[&Arc<InodeMem>]) -> Result<()> {
        let _span = profile::enter(Spent::Record);
        self.complete_record();
        if self.buffers.record.is_empty() && !self.changes_snapshot {
            return Ok(());
        }
        self.check_allowed()?;
        let charged = self.charge()?;
        self.widen_mapped_ranges(inodes);
        self.persist_uncovered()?;
        self.note_waiting_segments();
        let committed = self.write_record(inodes)?;
        if let Some(charged) = charged {
            charged.keep(&self.counted);
        }
        self.sync_record()?;
        self.publish(inodes, &committed);
        self.narrow_mapped_ranges(inodes);
        self.release_freed(&committed);
        self.prepare_next(&committed)
    }

    /// The words of the mapping, which transactions keep apart, join the record.
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

    #[inline]
    fn check_allowed(&self) -> Result<()> {
        if self.changes_snapshot {
            return Err(FsError::ReadOnly);
        }
        if self.from_reserve > 0 {
            self.check_reserve()?;
        }
        self.core.check_writable()
    }

    /// Reserves what quotas count.
    #[inline]
    fn charge(&self) -> Result<Option<Charged<'e>>> {
        match self.counted.is_empty() {
            true => Ok(None),
            false => self
                .core
                .quotas
                .charge(&self.counted, self.purpose.is_limited())
                .map(Some),
        }
    }

    /// Refuses to leave the reserve with less than before, beyond the debt that is allowed. The kind of operation does
    /// not matter: tree nodes, for example, may make an overwrite take more than it frees.
    #[cold]
    fn check_reserve(&self) -> Result<()> {
        // A block that other pages name does not come back.
        let is_block =
            |resource: &&Resource| matches!(resource, Resource::Block(block) if !self.core.shares.is_shared(*block));
        let freed = self.buffers.freed.iter().chain(&self.buffers.freed_at_once);
        let freed = freed.filter(is_block).count();
        match self.from_reserve <= freed || self.core.alloc.may_owe() {
            true => Ok(()),
            false => Err(FsError::NoSpace(SpaceOf::Blocks)),
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

    /// Stores the data that the record will name without covering it by its checksum, and fences it, so that it is
    /// durable before the record can be.
    #[inline]
    fn persist_uncovered(&mut self) -> Result<()> {
        let has_nodes = self.buffers.fresh.stream(&self.core.region);
        if has_nodes || self.streamed.is_uncovered {
            self.core.region.fence().map_err(|error| self.core.fail(&error))?;
        }
        if self.core.region.defers_write_back() {
            // Nothing names these blocks before the record; and no ring is locked meanwhile, if it need not be.
            self.buffers.staged.stream(&self.core.region);
            self.buffers.staged.clear();
        }
        Ok(())
    }

    /// Counts the log segments that it frees as waiting.
    fn note_waiting_segments(&self) {
        let size = self.core.superblock.unit_size;
        let unit = |resource: &Resource| match *resource {
            Resource::LogSegment(block, index) => Some(Unit::first_of(block, size).plus(u32::from(index))),
            _ => None,
        };
        let mut units = self.buffers.freed.iter().filter_map(unit).peekable();
        if units.peek().is_some() {
            self.core.log_space.set_waiting(units, true);
        }
    }

    /// The record goes to a ring, is fenced, and its words are set. Makes space in the ring, or waits for a thaw, and
    /// tries again, as often as needed.
    #[inline]
    fn write_record(&mut self, inodes: &[&Arc<InodeMem>]) -> Result<Committed> {
        let min_seq = inodes.iter().map(|inode| inode.last_seq()).fold(self.min_seq, u64::max);
        let mut was_full = false;
        loop {
            match self.try_write_record(inodes, min_seq) {
                Ok(committed) => return Ok(committed),
                // Mostly another thread is about to empty the ring: its progress by then is enough.
                Err(CommitError::RingFull) if !std::mem::replace(&mut was_full, true) => self.core.relieve()?,
                Err(CommitError::RingFull) => self.core.reclaim()?,
                Err(CommitError::Frozen) if self.purpose.waits_for_thaw() => self.core.journal.wait_for_thaw(),
                Err(CommitError::Frozen) => return Err(FsError::ReadOnly),
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

    #[inline]
    fn try_write_record(
        &mut self,
        inodes: &[&Arc<InodeMem>],
        min_seq: u64,
    ) -> std::result::Result<Committed, CommitError> {
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

    /// Waits for the sync that makes the record durable, if its fence has not.
    #[inline]
    fn sync_record(&mut self) -> Result<()> {
        if self.core.syncs_commits && self.purpose.waits_for_sync() {
            // Without the ring, so that others commit meanwhile and share the sync; with the inodes, so that no reader
            // sees changes that are not durable yet.
            self.core.journal.sync().map_err(|error| {
                self.buffers.claimed.clear();
                self.core.fail(&error)
            })?;
        }
        Ok(())
    }

    /// Shows the change to other threads.
    #[inline]
    fn publish(&mut self, inodes: &[&Arc<InodeMem>], committed: &Committed) {
        for inode in inodes {
            match self.purpose.counts_as_change() {
                true => inode.set_changed(committed.seq),
                false => inode.set_last_seq(committed.seq),
            }
        }
        self.buffers.claimed.clear();
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

    #[inline]
    fn release_freed(&mut self, committed: &Committed) {
        for resource in self.buffers.freed_at_once.drain(..) {
            if let Resource::NameSlot(slot) = resource {
                self.core.names.note_freed(slot, committed.seq);
            }
            self.core.release(resource);
        }
    }

    /// Does what later operations would have to wait for.
    #[inline]
    fn prepare_next(&self, committed: &Committed) -> Result<()> {
        if let Some(line) = self.streamed.next_read {
            self.core.region.prefetch(line);
        }
        match committed.crowded {
            true => self.core.make_space(),
            false => Ok(()),
        }
    }
}
