//! The redo journal: rings of records, commit, apply and retirement (docs/design.md, "Crash atomicity").
//!
//! Contents: [`Journal`] ([`Journal::commit`], [`Journal::advance`]). The record format is
//! [`crate::format::record`]; recovery from the journal is [`replay`]. Only [`crate::pool::tx::Tx`] commits; only the
//! engine advances.
//!
//! Invariants, each argued in `docs/crash-consistency.md`:
//! * A shared word on the medium changes only by applying a record whose commit fence has returned.
//! * Two records that set the same word carry sequence numbers in the order of their commits: the committing thread
//!   holds the locks of the inodes it changes, and passes as `min_seq` the newest number of any earlier record under
//!   them; the new record gets a higher one.
//! * Records up to the checkpoint are never replayed, so all their words are durable before the checkpoint moves, and
//!   it never passes a record that is committed but not yet applied.
//! * Blocks and mapping slots that a record frees are reused only after the checkpoint has passed that record.
//! * A ring's records are committed one at a time, and each names the previous one ([`Link`]), so that recovery can
//!   tell if a durable record is missing.
//! * No record in flight is [`IN_FLIGHT_REACH`] or more ahead of the newest durable one, so that recovery can get past
//!   those that a crash tore.
//! * With deferred write-back ([`ferrite_pm::Durability::OnSync`]) nothing is durable before a sync. Then all records
//!   go to one ring, so that recovery can truncate the remains of a crash to a prefix, and words reach the file only
//!   after a sync of the records that set them.
//! * Once [`Journal::close`] has returned, or the medium has failed, no record is committed and no merge installed; the
//!   same holds between [`Journal::freeze`] and [`Journal::thaw`].

pub(crate) mod replay;

use crate::thread::thread_number;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use ferrite_checks::condvar::Condvar;
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::{Mutex, MutexGuard};
use ferrite_map::{BlockNo, Resource};
use ferrite_pm::{DirtyLines, PmError, Region};
use rustc_hash::FxHashSet;

use crate::format::checksum::Check;
use crate::format::layout::{BLOCK_BYTES, CONTROL_CHECKPOINT, LINE_BYTES, SEQ_MAX, Superblock, encode_checkpoint};
use crate::format::record::{DURABLE_WORDS, Item, Link, Record, WORDS_MAX};
use crate::lock_order;

/// Why a commit did not happen. Nothing was changed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// The ring has no space, or its last record is too far back to be named: advance the checkpoint and retry.
    RingFull,
    /// The record is longer than any record may be; retrying later does not help.
    TooLong,
    /// All sequence numbers are used up, permanently.
    NumbersUsedUp,
    /// The pool is being unmounted, or its medium has failed.
    Closed,
    /// The pool is frozen: wait for [`Journal::wait_for_thaw`] and retry.
    Frozen,
    /// The medium failed; whether the record survives a crash is unknown, so the pool must stop.
    Medium(PmError),
}

/// A commit that went through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    /// Sequence number of the record.
    pub(crate) seq: u64,
    /// The ring is half full, or many freed resources wait: advancing the checkpoint is worth it.
    pub(crate) crowded: bool,
}

/// Counts of freed resources that wait for the checkpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pending {
    pub(crate) blocks: u64,
    pub(crate) map_slots: u64,
    /// Pages whose blocks other pages still have.
    pub(crate) shared_pages: u64,
}

/// A record's number is less than this above the checkpoint, or above a record that was durable before it was streamed.
/// Merges use up numbers, and leave none of them on the medium.
pub(crate) const IN_FLIGHT_REACH: u64 = Link::REACH;

/// The ring that all records go to if write-back is deferred.
pub(crate) const DEFERRED_RING: u32 = 0;
/// Pages of the view that differ from the file take this much memory before some are released.
const DEFERRED_BYTES_MAX: u64 = 16 << 20;
const LINE_WORDS: usize = (LINE_BYTES / 8) as usize;

/// Freed resources in a ring from which on advancing is worth it.
const FREED_MAX: usize = 8192;

struct Live {
    seq: u64,
    len_bytes: u64,
}

#[derive(Default)]
struct RingState {
    /// Where the next record goes.
    tail: u64,
    /// Bytes from the oldest live record to `tail`, including the skipped bytes at the end of the ring.
    used_bytes: u64,
    /// Number of the last record, which the next one will name.
    last_record: u64,
    live: VecDeque<Live>,
    dirty: DirtyLines,
    freed: VecDeque<(u64, Resource)>,
}

struct Ring {
    offset: u64,
    number: u32,
    /// Newest sequence number of this ring; read by `advance` without the lock.
    last_seq: AtomicU64,
    state: Mutex<lock_order::Ring, RingState>,
}

/// Frees the ring space of the records up to `checkpoint`, and collects the resources they freed.
fn retire(state: &mut RingState, checkpoint: u64, reusable: &mut Vec<Resource>) {
    while state.live.front().is_some_and(|live| live.seq <= checkpoint) {
        let live = state.live.pop_front().expect("front exists");
        state.used_bytes -= live.len_bytes;
    }
    while state.freed.front().is_some_and(|&(seq, _)| seq <= checkpoint) {
        reusable.extend(state.freed.pop_front().map(|(_, resource)| resource));
    }
}

/// The mistake [`Bug::WordsBeforeRecord`].
fn set_early(region: &Region, record: &Record) {
    for item in record.items() {
        if let Item::Words { offset, values } = item {
            region.store_words(offset, values);
            region.write_back(offset, values.len() as u64 * 8);
        }
    }
}

/// This thread's ring, locked.
pub(crate) struct Entered<'j> {
    ring: &'j Ring,
    state: MutexGuard<'j, RingState>,
}

/// The state that each commit reads besides its ring: one line, which changes when the checkpoint moves and when the
/// state changes.
struct Common {
    /// New records get sequence numbers above it; raised before the rings are visited by `advance`.
    floor: AtomicU64,
    /// One of [`OPEN`], [`FROZEN`] and [`CLOSED`]. Read under a ring's lock; `close` and `freeze` set it before they
    /// visit the rings.
    state: AtomicU8,
}

/// Records are committed.
const OPEN: u8 = 0;
/// No record is committed until the journal is open again.
const FROZEN: u8 = 1;
/// No record is committed any more.
const CLOSED: u8 = 2;

/// The journal of a mounted pool.
pub(crate) struct Journal {
    region: Arc<Region>,
    ring_bytes: u64,
    check: Check,
    check_seed: u64,
    /// Each record names the previous one. Not in pools to which older programs may write.
    has_links: bool,
    rings: Box<[CachePadded<Ring>]>,
    common: CachePadded<Common>,
    /// The checkpoint in the control block.
    checkpoint: AtomicU64,
    /// The newest record that is known to be durable, or the checkpoint: only used if write-back is deferred.
    synced: AtomicU64,
    advancing: Mutex<lock_order::Advance, ()>,
    /// Held while freed resources are on their way to the free maps, and neither here nor there.
    releasing: Mutex<lock_order::Release, ()>,
    /// For threads that wait for a thaw.
    frozen: Mutex<lock_order::Frozen, ()>,
    thawed: Condvar,
}

impl Journal {
    /// For a pool that was replayed up to `checkpoint`.
    pub(crate) fn new(region: Arc<Region>, superblock: &Superblock, checkpoint: u64) -> Self {
        let ring = |number| {
            CachePadded::new(Ring {
                offset: superblock.ring_offset(number),
                number,
                last_seq: AtomicU64::new(checkpoint),
                state: Mutex::new(RingState {
                    last_record: checkpoint,
                    ..RingState::default()
                }),
            })
        };
        Journal {
            region,
            ring_bytes: superblock.ring_bytes,
            check: superblock.record_check(),
            check_seed: superblock.seed,
            has_links: superblock.has_linked_records(),
            rings: (0..superblock.rings).map(ring).collect(),
            common: CachePadded::new(Common {
                floor: AtomicU64::new(checkpoint),
                state: AtomicU8::new(OPEN),
            }),
            checkpoint: AtomicU64::new(checkpoint),
            synced: AtomicU64::new(checkpoint),
            advancing: Mutex::new(()),
            releasing: Mutex::new(()),
            frozen: Mutex::new(()),
            thawed: Condvar::new(),
        }
    }

    /// Longest record that an operation may gather, in words.
    pub(crate) fn max_record_words(&self) -> usize {
        self.max_words() - DURABLE_WORDS
    }

    /// Longest record that a ring takes, in words.
    fn max_words(&self) -> usize {
        // Two must fit, so that one can be committed while the other waits for the checkpoint.
        ((self.ring_bytes / 2 / 8) as usize).min(WORDS_MAX)
    }

    /// Locks this thread's ring. While holding it, a thread must not advance the checkpoint, or wait for anything.
    ///
    /// It pays to do this before data is streamed: taking a lock waits until all streams so far have drained, and the
    /// record's fence would then wait for a drain again.
    pub(crate) fn enter(&self) -> Entered<'_> {
        let ring = match self.region.defers_write_back() {
            true => &self.rings[DEFERRED_RING as usize],
            false => &self.rings[(thread_number() % self.rings.len() as u64) as usize],
        };
        Entered {
            ring,
            state: ring.state.lock(),
        }
    }

    /// Commits `record` and applies it: when this returns `Ok`, the operation is durable and its words are set.
    /// `freed` becomes reusable once the checkpoint has passed the record. `min_seq` is the newest sequence number of
    /// everything that the record changes. `before_record` streams the data whose checksums the record carries;
    /// `before_apply` runs between the fence and the words.
    ///
    /// Crash points: before the fence returns, the record may or may not survive, and none of its words is set;
    /// afterwards replay sets them all.
    pub(crate) fn commit(
        &self,
        entered: Entered<'_>,
        record: &mut Record,
        freed: &[Resource],
        min_seq: u64,
        before_record: impl FnOnce(),
        before_apply: impl FnOnce(),
    ) -> Result<Committed, CommitError> {
        let Entered { ring, mut state } = entered;
        match self.common.state.load(Ordering::Relaxed) {
            OPEN => {}
            FROZEN => return Err(CommitError::Frozen),
            _ => return Err(CommitError::Closed),
        }
        if self.region.defers_write_back() && self.check == Check::Apart {
            // Where a crash may leave any of the records since a sync, this distinguishes a lost record from a damaged
            // one.
            record.set_durable(self.synced.load(Ordering::Acquire));
        }
        // A longer one may find no space in an empty ring, depending on its tail, and wait forever.
        if record.len_words() > self.max_words() {
            return Err(CommitError::TooLong);
        }
        let seq = self.next_seq(ring, min_seq).ok_or(CommitError::NumbersUsedUp)?;
        let link = self.link(&state, seq).ok_or(CommitError::RingFull)?;
        let len_bytes = record.len_bytes();
        let position = self.reserve(&mut state, len_bytes).ok_or(CommitError::RingFull)?;
        before_record();
        if is_seeded(Bug::WordsBeforeRecord) {
            set_early(&self.region, record);
        }
        let bytes = record.finish(seq, link, ring.number, self.check, self.check_seed ^ position);
        self.region.stream(ring.offset + position, bytes);
        if !self.region.defers_write_back() {
            state.dirty.write_some(&self.region);
        }
        self.region.fence().map_err(|error| {
            // While the ring is locked: a later record in this ring would claim that this one was durable.
            self.common.state.store(CLOSED, Ordering::Relaxed);
            CommitError::Medium(error)
        })?;

        before_apply();
        for item in record.items() {
            if let Item::Words { offset, values } = item
                && !record.is_streamed(offset)
            {
                self.region.store_words(offset, values);
                state.dirty.add(offset, values.len() as u64 * 8);
            }
        }
        state.last_record = seq;
        state.live.push_back(Live { seq, len_bytes });
        state.freed.extend(freed.iter().map(|&resource| (seq, resource)));
        ring.last_seq.store(seq, Ordering::Release);
        let crowded = self.is_crowded(&state);
        Ok(Committed { seq, crowded })
    }

    /// Performs a change that needs no record: `store` makes it and returns the offset, or returns `None` to refuse.
    /// The change gets a sequence number like any other, so `freed` waits until no earlier record can be replayed and
    /// the stored word is durable. Also refused while commits are.
    pub(crate) fn install(
        &self,
        min_seq: u64,
        freed: impl Iterator<Item = Resource>,
        store: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        let Entered { ring, mut state } = self.enter();
        if self.common.state.load(Ordering::Relaxed) != OPEN {
            return None;
        }
        let seq = self.next_seq(ring, min_seq)?;
        let offset = store()?;
        state.dirty.add(offset, 8);
        state.freed.extend(freed.map(|resource| (seq, resource)));
        ring.last_seq.store(seq, Ordering::Release);
        Some(seq)
    }

    /// The next number of `ring`, whose lock the caller holds; `None` once all are used up.
    fn next_seq(&self, ring: &Ring, min_seq: u64) -> Option<u64> {
        // Relaxed is enough for the floor: `advance` visits this ring's lock after raising it. So either it sees this
        // record applied, or this load comes after that visit and is ordered by the lock.
        let before = min_seq
            .max(ring.last_seq.load(Ordering::Relaxed))
            .max(self.common.floor.load(Ordering::Relaxed));
        // The checkpoint cannot hold a larger number, and each committed record must be retired eventually.
        (before < SEQ_MAX).then_some(before + 1)
    }

    /// The link of record `seq` to the previous one; `None` if that is too far back to be named and may still be
    /// replayed, or if the record would be too far ahead of the newest durable one.
    fn link(&self, state: &RingState, seq: u64) -> Option<Link> {
        if self.region.defers_write_back() && seq - self.synced.load(Ordering::Acquire) >= IN_FLIGHT_REACH {
            return None;
        }
        let reaches = seq - state.last_record < IN_FLIGHT_REACH;
        let link = match (self.has_links, reaches) {
            (true, true) => return Some(Link::Before(state.last_record)),
            (true, false) => Link::Retired,
            (false, _) => Link::Unknown,
        };
        // Rare: this ring's last commit was very many sequence numbers ago.
        let checkpoint = self.checkpoint.load(Ordering::Acquire);
        (reaches || state.last_record <= checkpoint && seq - checkpoint < IN_FLIGHT_REACH).then_some(link)
    }

    /// Ends all commits. Earlier commits are applied when this returns; nothing is committed afterwards.
    pub(crate) fn close(&self) {
        self.common.state.store(CLOSED, Ordering::SeqCst);
        self.visit_rings();
        self.wake();
    }

    /// Blocks all commits until [`Self::thaw`]. Earlier commits are applied when this returns. False if the journal is
    /// already frozen, or closed.
    pub(crate) fn freeze(&self) -> bool {
        let state = &self.common.state;
        let froze = state.compare_exchange(OPEN, FROZEN, Ordering::SeqCst, Ordering::SeqCst);
        if froze.is_ok() {
            self.visit_rings();
        }
        froze.is_ok()
    }

    /// Lets commits continue, if they were blocked.
    pub(crate) fn thaw(&self) {
        let state = &self.common.state;
        let _ = state.compare_exchange(FROZEN, OPEN, Ordering::SeqCst, Ordering::SeqCst);
        self.wake();
    }

    /// Whether commits are blocked.
    pub(crate) fn is_frozen(&self) -> bool {
        self.common.state.load(Ordering::Relaxed) == FROZEN
    }

    /// Waits until commits are no longer blocked; the caller must not hold a ring.
    pub(crate) fn wait_for_thaw(&self) {
        let mut frozen = self.frozen.lock();
        while self.common.state.load(Ordering::SeqCst) == FROZEN {
            self.thawed.wait(&mut frozen);
        }
    }

    fn wake(&self) {
        // A thread that has seen the old state is either waiting by now, or will read it again.
        drop(self.frozen.lock());
        self.thawed.notify_all();
    }

    /// A thread that holds a ring now has committed when this returns; later holders see the new state of the journal.
    fn visit_rings(&self) {
        self.rings.iter().for_each(|ring| drop(ring.state.lock()));
    }

    /// Reserves `len_bytes` at the tail, or at the start if the end of the ring is too short for it.
    fn reserve(&self, state: &mut RingState, len_bytes: u64) -> Option<u64> {
        let to_end = self.ring_bytes - state.tail;
        let skipped = if to_end < len_bytes { to_end } else { 0 };
        if state.used_bytes + skipped + len_bytes > self.ring_bytes {
            return None;
        }
        if skipped > 0 {
            // The skipped end retires together with the record before it.
            match state.live.back_mut() {
                Some(last) => last.len_bytes += skipped,
                None => state.used_bytes = 0,
            }
            if !state.live.is_empty() {
                state.used_bytes += skipped;
            }
            state.tail = 0;
        }
        let position = state.tail;
        state.tail = (state.tail + len_bytes) % self.ring_bytes;
        state.used_bytes += len_bytes;
        Some(position)
    }

    /// Retires every record that is applied by now: makes their words durable, moves the checkpoint past them, frees
    /// their ring space and passes the resources they freed to `release`. Blocks commits of one ring at a time,
    /// briefly.
    pub(crate) fn advance(&self, release: &mut dyn FnMut(Vec<Resource>)) -> Result<(), PmError> {
        // Held until everything is released: a thread that needs space waits here instead of finding none.
        let _one_at_a_time = self.advancing.lock();
        let checkpoint = self.advance_checkpoint()?;
        let _on_its_way = self.releasing.lock();
        let mut reusable = Vec::new();
        for ring in &self.rings {
            retire(&mut ring.state.lock(), checkpoint, &mut reusable);
        }
        release(reusable);
        Ok(())
    }

    /// The same for this thread's ring alone. The checkpoint is moved only if the progress made by other threads is not
    /// enough. So each thread's bookkeeping stays in its core's cache.
    pub(crate) fn relieve(&self, release: &mut dyn FnMut(Vec<Resource>)) -> Result<(), PmError> {
        let _one_at_a_time = self.advancing.lock();
        let mut retire_up_to = |checkpoint| {
            let _on_its_way = self.releasing.lock();
            let mut reusable = Vec::new();
            let crowded = {
                let mut state = self.enter().state;
                retire(&mut state, checkpoint, &mut reusable);
                self.is_crowded(&state)
            };
            release(reusable);
            crowded
        };
        if retire_up_to(self.checkpoint.load(Ordering::Acquire)) {
            retire_up_to(self.advance_checkpoint()?);
        }
        Ok(())
    }

    /// Makes the words of all records that are applied by now durable, then moves the checkpoint past these records and
    /// returns it. The caller holds `advancing`.
    ///
    /// Crash points: the checkpoint is stored only after the fence that made all words of the records up to it durable.
    /// The checkpoint is one aligned word, so a crash leaves either the old or the new one.
    fn advance_checkpoint(&self) -> Result<u64, PmError> {
        let target = self.newest_seq();
        let checkpoint = self.checkpoint.load(Ordering::Relaxed);
        if target <= checkpoint {
            return Ok(checkpoint);
        }
        self.common.floor.fetch_max(target, Ordering::SeqCst);
        if self.region.defers_write_back() {
            return self.let_out(target);
        }
        let mut lines = Vec::new();
        for ring in &self.rings {
            // While we have the lock, no record of this ring is between commit and apply. Later ones see the floor and
            // get numbers above the target. If they set one of these lines again, they note it again.
            ring.state.lock().dirty.take_into(&mut lines);
            lines
                .drain(..)
                .for_each(|line| self.region.write_back(line * LINE_BYTES, LINE_BYTES));
        }
        self.region.fence()?;
        self.region.store(CONTROL_CHECKPOINT, encode_checkpoint(target));
        self.region.write_back(CONTROL_CHECKPOINT, 8);
        self.region.fence()?;
        self.checkpoint.store(target, Ordering::Release);
        Ok(target)
    }

    /// The same if write-back is deferred.
    ///
    /// Crash points: until the first sync returns, the file has no word of these records. Then all of them are durable,
    /// with the values of all their words, so any of the words may be on the disk: replay sets them all.
    ///
    /// The checkpoint moves when the second sync has made all of them durable, and the third comes before anything that
    /// the checkpoint allows. Words are copied while their ring is locked: words set later belong to records that the
    /// first sync may have missed.
    fn let_out(&self, target: u64) -> Result<u64, PmError> {
        let mut held = Vec::new();
        let mut lines = Vec::new();
        for ring in &self.rings {
            let mut state = ring.state.lock();
            state.dirty.take_into(&mut lines);
            held.extend(lines.drain(..).map(|line| (line, self.line(line))));
        }
        self.region.sync()?;
        held.sort_unstable_by_key(|&(line, _)| line);
        for run in held.chunk_by(|(before, _), (line, _)| before + 1 == *line) {
            let words: Vec<u64> = run.iter().flat_map(|(_, words)| *words).collect();
            self.region.let_out(run[0].0 * LINE_BYTES, &words);
        }
        self.region.sync()?;
        self.region.store(CONTROL_CHECKPOINT, encode_checkpoint(target));
        self.region.write_back(CONTROL_CHECKPOINT, 8);
        self.region.sync()?;
        self.synced.fetch_max(target, Ordering::SeqCst);
        self.checkpoint.store(target, Ordering::Release);
        if self.region.deferred_bytes() > DEFERRED_BYTES_MAX {
            self.drop_copies();
        }
        Ok(target)
    }

    /// Releases the memory of pages whose words have all been written to the file. Words are stored while the ring is
    /// locked, and noted as dirty; except those of the control block, which are written to the file at once.
    fn drop_copies(&self) {
        let state = self.rings[DEFERRED_RING as usize].state.lock();
        let page = |offset: u64| offset / BLOCK_BYTES;
        let mut kept: FxHashSet<u64> = state.dirty.lines().map(|line| page(line * LINE_BYTES)).collect();
        kept.insert(page(CONTROL_CHECKPOINT));
        self.region.drop_copies(&|page| kept.contains(&page));
    }

    fn line(&self, line: u64) -> [u64; LINE_WORDS] {
        let words = self.region.words(line * LINE_BYTES, LINE_WORDS);
        std::array::from_fn(|index| words[index].load(Ordering::Acquire))
    }

    /// Makes every record that was committed before the call durable, if write-back is deferred; otherwise they are
    /// already. Blocks for a sync, which it shares with other threads.
    pub(crate) fn sync(&self) -> Result<(), PmError> {
        if !self.region.defers_write_back() {
            return Ok(());
        }
        // Not a merge's number: that is not on the medium.
        let newest = self.rings[DEFERRED_RING as usize].state.lock().last_record;
        if newest > self.synced.load(Ordering::Acquire) {
            self.region.sync()?;
            self.synced.fetch_max(newest, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Largest number given so far. Exact while no thread commits.
    pub(crate) fn newest_seq(&self) -> u64 {
        let newest = |ring: &CachePadded<Ring>| ring.last_seq.load(Ordering::Acquire);
        self.rings.iter().map(newest).max().unwrap_or(0)
    }

    /// Makes all later records get larger numbers than any so far. The caller ensures that no thread commits meanwhile,
    /// and that threads waiting to commit see the new floor.
    pub(crate) fn raise_floor(&self) {
        self.common.floor.fetch_max(self.newest_seq(), Ordering::SeqCst);
    }

    /// Whether a ring is so full that advancing the checkpoint is worth it.
    fn is_crowded(&self, state: &RingState) -> bool {
        state.used_bytes > self.ring_bytes / 2 || state.freed.len() > FREED_MAX
    }

    /// Runs `count` while no resource is on its way from the journal to the free maps, where neither would count it.
    /// Does not wait for a move of the checkpoint.
    pub(crate) fn while_settled<T>(&self, count: impl FnOnce() -> T) -> T {
        let _nothing_is_on_its_way = self.releasing.lock();
        count()
    }

    /// Resources that were freed but are not reusable yet, without those on their way to the free maps, see
    /// [`Self::while_settled`]. `is_last` says whether a block becomes free with
    /// this page.
    pub(crate) fn pending(&self, is_last: &mut dyn FnMut(BlockNo) -> bool) -> Pending {
        let mut pending = Pending::default();
        for ring in &self.rings {
            for (_, resource) in &ring.state.lock().freed {
                match resource {
                    Resource::Block(block) => pending.blocks += u64::from(is_last(*block)),
                    Resource::MapSlot(_) => pending.map_slots += 1,
                    // Never wait, see `Tx::freed`.
                    Resource::Inode(_) | Resource::NameSlot(_) | Resource::LogSegment(..) => {}
                }
            }
        }
        pending
    }

    /// DRAM used for bookkeeping, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let ring = |ring: &CachePadded<Ring>| {
            let state = ring.state.lock();
            let queues =
                state.live.capacity() * size_of::<Live>() + state.freed.capacity() * size_of::<(u64, Resource)>();
            (size_of::<CachePadded<Ring>>() + queues + state.dirty.dram_bytes()) as u64
        };
        self.rings.iter().map(ring).sum()
    }
}

const _: () = assert!(LINE_BYTES == 64, "records are padded to cache lines");

#[cfg(test)]
mod tests;
