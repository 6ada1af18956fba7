//! A store's parts, and how a blob's metadata is loaded and stored.
//!
//! Invariants: a blob's metadata is one page, or one page and the overflow pages it names. It is written beside its
//! predecessor and durable before that is free again, so a crash finds one of the two, whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::{ArcRwLock, Mutex, RwLock};

use crate::device::{Device, Op};
use crate::digest;
use crate::format::{
    Areas, BlobId, Extent, HEAD_EXTENTS, Head, Layout, OVERFLOW_EXTENTS, OVERFLOW_MAX, Overflow, Superblock,
    decode_overflow, encode_overflow,
};
use crate::lock_order;
use crate::page::Pages;
use crate::ranges::Ranges;
use crate::ring::Ring;
use crate::shared_units::{SharedUnits, within};
use crate::space::Bitmap;
use crate::sums::Summed;
use crate::units::Units;
use crate::{Error, PAGE_BYTES, Result};

/// In place of a slot's number: damage that does not concern a slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// Slots are taken into use in lots, so that the superblock is written seldom.
const SLOTS_A_LOT: u32 = 4096;

/// The free space.
pub(crate) struct Free {
    pub(crate) units: Units,
    pub(crate) slots: Bitmap,
    pub(crate) overflow: Bitmap,
    /// Of the units that several blobs name: how many do.
    pub(crate) shared: SharedUnits,
    /// Of each slot that was ever used: the last incarnation that was allocated.
    pub(crate) incarnations: Vec<u32>,
    /// Slots that hold a blob.
    pub(crate) live: Bitmap,
    /// Slots whose blob has an older state only.
    pub(crate) older: BTreeSet<u32>,
    /// See `proof`.
    pub(crate) digest: u32,
    /// Units that blobs name although another blob owns them, by the slots of those blobs.
    pub(crate) tangled: BTreeMap<u32, BTreeSet<u32>>,
}

/// A store.
pub(crate) struct Core {
    pub(crate) device: Box<dyn Device>,
    /// A layer of the device, if data has checksums.
    pub(crate) sums: Option<Arc<Summed>>,
    pub(crate) layout: Layout,
    pub(crate) superblock: Mutex<lock_order::Superblock, Superblock>,
    /// The slots in clusters, as the superblock records them.
    pub(crate) areas: RwLock<lock_order::Areas, Areas>,
    /// Held to add slots.
    pub(crate) growing: Mutex<lock_order::Growing, ()>,
    pub(crate) free: Mutex<lock_order::Free, Free>,
    /// How many of `free.tangled` there are, for readers that do not take its lock.
    pub(crate) tangles: AtomicUsize,
    /// Blobs in use, by slot.
    pub(crate) loaded: Mutex<lock_order::Loaded, HashMap<u32, Weak<Inner>>>,
    pub(crate) ring: Ring,
    /// Why changes have stopped.
    pub(crate) stopped: Mutex<lock_order::Stopped, Option<String>>,
    /// The damage that was found at opening, and has not been mended.
    pub(crate) damage: Mutex<lock_order::Damaged, Vec<Damage>>,
}

/// Damage of a slot.
pub(crate) struct Damage {
    pub(crate) slot: u32,
    pub(crate) what: String,
    /// Rewriting the slot mends it.
    pub(crate) is_mendable: bool,
    /// It names what another blob owns.
    pub(crate) is_tangle: bool,
}

/// A blob.
pub(crate) struct Inner {
    pub(crate) id: BlobId,
    /// Shared by transfers of existing bytes, also after their call has returned.
    pub(crate) state: ArcRwLock<lock_order::Blob, State>,
    pub(crate) ranges: Ranges,
}

/// A blob's metadata, as its lock guards it.
pub(crate) struct State {
    pub(crate) generation: u64,
    pub(crate) is_live: bool,
    pub(crate) valid_len: u64,
    /// Other blobs of this group may name some of its units, too; 0: none does.
    pub(crate) group: u32,
    pub(crate) metadata: Vec<u8>,
    /// Pieces by their first unit in the blob: where they are, how many.
    pub(crate) pieces: BTreeMap<u32, (u32, u32)>,
    pub(crate) overflow: Vec<Overflow>,
}

/// A blob's metadata as it was, in case a change of it cannot be stored.
pub(crate) struct Before {
    pieces: BTreeMap<u32, (u32, u32)>,
    valid_len: u64,
    metadata: Vec<u8>,
}

impl Inner {
    /// The stored state of a deleted blob.
    pub(crate) fn empty(id: BlobId, generation: u64) -> Inner {
        Inner {
            id,
            ranges: Ranges::default(),
            state: ArcRwLock::new(State {
                generation,
                is_live: false,
                valid_len: 0,
                group: 0,
                metadata: Vec::new(),
                pieces: BTreeMap::new(),
                overflow: Vec::new(),
            }),
        }
    }
}

impl Free {
    /// One blob fewer names these units.
    fn give(&mut self, first: u32, count: u32) {
        if is_seeded(Bug::BlobShareUncounted) {
            return self.units.give(first, count);
        }
        for part in self.shared.drop_name(first..first.saturating_add(count)) {
            self.units.give(part.start, part.end - part.start);
        }
    }

    /// The newest generation of a slot has changed.
    pub(crate) fn moved(&mut self, slot: u32, from: u64, to: u64) {
        let less = self.digest.wrapping_sub(digest::of(slot, from));
        self.digest = less.wrapping_add(digest::of(slot, to));
    }
}

impl State {
    pub(crate) fn before(&self) -> Before {
        Before {
            pieces: self.pieces.clone(),
            valid_len: self.valid_len,
            metadata: self.metadata.clone(),
        }
    }

    pub(crate) fn restore(&mut self, before: Before) {
        (self.pieces, self.valid_len, self.metadata) = (before.pieces, before.valid_len, before.metadata);
    }

    /// The piece with this unit: its place, and how many units follow it in the piece, itself included.
    pub(crate) fn piece(&self, unit: u32) -> Option<(u32, u32)> {
        let (&first, &(physical, count)) = self.pieces.range(..=unit).next_back()?;
        let into = unit - first;
        (into < count).then(|| (physical + into, count - into))
    }

    /// Adds units, which join their neighbours if they can.
    pub(crate) fn add(&mut self, logical: u32, physical: u32, count: u32) {
        let before = self
            .pieces
            .range(..logical)
            .next_back()
            .map(|(&first, &piece)| (first, piece));
        let (mut first, mut start, mut total) = (logical, physical, count);
        if let Some((at, (place, len))) = before
            && at + len == logical
            && place + len == physical
        {
            (first, start, total) = (at, place, len + count);
        }
        let after = self.pieces.get(&(logical + count)).copied();
        if let Some((place, len)) = after
            && place == physical + count
        {
            self.pieces.remove(&(logical + count));
            total += len;
        }
        self.pieces.insert(first, (start, total));
    }

    /// Removes all units from `from` up to `to`, and returns where they are.
    pub(crate) fn remove(&mut self, from: u32, to: u32) -> Vec<(u32, u32)> {
        let touched: Vec<(u32, (u32, u32))> = self
            .pieces
            .range(..to)
            .rev()
            .take_while(|(first, (_, count))| **first + count > from)
            .map(|(first, piece)| (*first, *piece))
            .collect();
        let mut freed = Vec::new();
        for (first, (physical, count)) in touched {
            self.pieces.remove(&first);
            let (from_within, to_within) = (from.max(first), to.min(first + count));
            if first < from_within {
                self.pieces.insert(first, (physical, from_within - first));
            }
            if to_within < first + count {
                self.pieces
                    .insert(to_within, (physical + (to_within - first), first + count - to_within));
            }
            freed.push((physical + (from_within - first), to_within - from_within));
        }
        freed
    }

    /// The pieces of a part of the blob, as far as they lie in it.
    pub(crate) fn pieces_in(&self, units: &Range<u32>) -> Vec<Range<u32>> {
        let first = self.pieces.range(..=units.start).next_back();
        let first = first.map_or(units.start, |(&first, _)| first);
        let pieces = self.pieces.range(first..units.end.max(first));
        let parts = pieces.map(|(&at, &(_, count))| within(&(at..at.saturating_add(count)), units));
        parts.filter(|part| !part.is_empty()).collect()
    }

    pub(crate) fn units(&self) -> u64 {
        self.pieces.values().map(|(_, count)| u64::from(*count)).sum()
    }

    fn extents(&self) -> Vec<Extent> {
        self.pieces
            .iter()
            .map(|(&logical, &(physical, count))| Extent {
                logical,
                physical,
                count,
            })
            .collect()
    }
}

impl Core {
    pub(crate) fn check_running(&self) -> Result<()> {
        match &*self.stopped.lock() {
            Some(why) => Err(Error::Stopped(why.clone())),
            None => Ok(()),
        }
    }

    /// Ends changes: the content of the device is no longer known.
    pub(crate) fn stop(&self, error: Error) -> Error {
        tracing::error!(%error, "a data store stops");
        self.stopped.lock().get_or_insert_with(|| error.to_string());
        self.ring.end();
        error
    }

    /// Pages of metadata.
    pub(crate) fn read_pages(&self, page: u64, count: usize) -> Result<Pages> {
        let mut pages = Pages::zeroed(count);
        self.metadata().run(&mut [Op::Read {
            offset: page * PAGE_BYTES as u64,
            into: pages.bytes_mut(),
        }])?;
        Ok(pages)
    }

    pub(crate) fn write_page(&self, page: u64, data: &Pages) -> Result<()> {
        self.metadata().run(&mut [Op::Write {
            offset: page * PAGE_BYTES as u64,
            from: data.bytes(),
            durable: true,
        }])
    }

    /// The newer of a slot's two pages.
    pub(crate) fn read_head(&self, slot: u32) -> Result<Option<Head>> {
        let pages = self.read_pages(self.slot_page(slot, 0), 2)?;
        Ok(newer(pages.bytes(), slot))
    }

    /// All pieces of a blob.
    pub(crate) fn read_extents(&self, head: &Head) -> Result<Vec<Extent>> {
        let mut extents = head.extents.clone();
        let mut left = head.extent_count as usize - extents.len();
        for overflow in &head.overflow {
            let page = self.read_pages(self.layout.overflow(overflow.page), 1)?;
            let more = decode_overflow(page.bytes(), overflow.crc, left.min(OVERFLOW_EXTENTS));
            let more = more.ok_or_else(|| Error::Damaged(format!("an overflow page of blob {:x}", head.id.raw())))?;
            left -= more.len();
            extents.extend(more);
        }
        Ok(extents)
    }

    /// An existing blob.
    pub(crate) fn load(&self, id: BlobId) -> Result<Arc<Inner>> {
        if !self.free.lock().live.is_used(id.slot()) {
            return Err(Error::NotFound);
        }
        let mut loaded = self.loaded.lock();
        if let Some(inner) = loaded.get(&id.slot()).and_then(Weak::upgrade) {
            return match inner.id == id {
                true => Ok(inner),
                false => Err(Error::NotFound),
            };
        }
        let damaged = || Error::Damaged(format!("the metadata of blob {:x}", id.raw()));
        let head = self.read_head(id.slot())?.ok_or_else(damaged)?;
        if head.id != id || !head.is_live {
            return Err(Error::NotFound);
        }
        self.refuse_older(id)?;
        let extents = self.read_extents(&head)?;
        let inner = Arc::new(Inner {
            id,
            ranges: Ranges::default(),
            state: ArcRwLock::new(State {
                generation: head.generation,
                is_live: true,
                valid_len: head.valid_len,
                group: head.group,
                metadata: head.metadata,
                pieces: extents.iter().filter_map(|extent| self.existing(extent)).collect(),
                overflow: head.overflow,
            }),
        });
        self.keep(&mut loaded, &inner);
        Ok(inner)
    }

    /// The existing part of a piece, as the device names it: more is damage, which the scan has noted, and would lead
    /// beyond the device.
    fn existing(&self, extent: &Extent) -> Option<(u32, (u32, u32))> {
        let units = u64::from(self.layout.clusters) * u64::from(self.layout.units_per_cluster());
        let there = units
            .saturating_sub(extent.physical.into())
            .min(u64::from(u32::MAX - extent.logical));
        let count = u64::from(extent.count).min(there) as u32;
        (count > 0).then_some((extent.logical, (extent.physical, count)))
    }

    pub(crate) fn keep(&self, loaded: &mut HashMap<u32, Weak<Inner>>, inner: &Arc<Inner>) {
        // Unused entries go when the list would grow.
        if loaded.len() == loaded.capacity() {
            loaded.retain(|_, blob| blob.strong_count() > 0);
        }
        loaded.insert(inner.id.slot(), Arc::downgrade(inner));
    }

    /// Stores a blob's metadata, durably; `is_moved` says that its pieces differ from what is stored. The caller holds
    /// the state exclusively, and has made everything durable that the metadata makes reachable. After a crash the
    /// stored metadata is old or new; after an error, too, and it is unknown which, so the store stops.
    pub(crate) fn store(&self, id: BlobId, state: &mut State, is_moved: bool) -> Result<()> {
        self.check_running()?;
        let overflow = match is_moved {
            true => Some(self.store_pieces(state)?),
            false => None,
        };
        self.store_head(id, state, overflow)
    }

    /// The first half of [`Self::store`], which is still invisible: the pieces that do not fit the blob's own page. If
    /// it fails, nothing has changed.
    pub(crate) fn store_pieces(&self, state: &State) -> Result<Vec<Overflow>> {
        self.write_overflow(state.extents().get(HEAD_EXTENTS..).unwrap_or(&[]))
    }

    /// The second half: the blob's own page, with other overflow pages or the present ones. If it fails, the store
    /// stops.
    pub(crate) fn store_head(&self, id: BlobId, state: &mut State, overflow: Option<Vec<Overflow>>) -> Result<()> {
        let extents = state.extents();
        let group = match overflow {
            Some(_) => self.group_of(state),
            None => state.group,
        };
        let old_overflow = match overflow {
            Some(pages) => std::mem::replace(&mut state.overflow, pages),
            None => Vec::new(),
        };
        let head = Head {
            id,
            generation: state.generation + 1,
            is_live: state.is_live,
            is_older: false,
            valid_len: state.valid_len,
            group,
            metadata: state.metadata.clone(),
            extent_count: extents.len() as u32,
            overflow: state.overflow.clone(),
            extents: extents.into_iter().take(HEAD_EXTENTS).collect(),
        };
        if !is_seeded(Bug::BlobDeleteForgotten) || head.is_live {
            self.put_head(&head)?;
        }
        state.group = group;
        let before = std::mem::replace(&mut state.generation, head.generation);
        let mut free = self.free.lock();
        free.moved(id.slot(), before, head.generation);
        for overflow in old_overflow {
            free.overflow.clear(overflow.page);
        }
        Ok(())
    }

    /// Writes a blob's own page, to that one of its slot's two pages that the generation selects. If it fails, the
    /// store stops.
    pub(crate) fn put_head(&self, head: &Head) -> Result<()> {
        let side = match is_seeded(Bug::BlobInPlace) {
            true => 0,
            false => head.generation & 1,
        };
        let page = self.slot_page(head.id.slot(), side);
        self.write_page(page, &head.encode()).map_err(|error| self.stop(error))
    }

    /// Writes the pieces that do not fit the blob's own page to pages that nothing names.
    fn write_overflow(&self, extents: &[Extent]) -> Result<Vec<Overflow>> {
        if extents.len() > OVERFLOW_MAX * OVERFLOW_EXTENTS {
            return Err(Error::TooManyPieces);
        }
        let mut written = Vec::new();
        for chunk in extents.chunks(OVERFLOW_EXTENTS) {
            let taken = self.free.lock().overflow.take_lowest();
            let (page, crc) = encode_overflow(chunk);
            let done = match taken {
                Some(number) => {
                    written.push(Overflow { page: number, crc });
                    self.write_page(self.layout.overflow(number), &page)
                }
                None => Err(Error::TooManyPieces),
            };
            if let Err(error) = done {
                self.give_overflow(&written);
                return Err(error);
            }
        }
        Ok(written)
    }

    /// Gives overflow pages back that nothing names.
    pub(crate) fn give_overflow(&self, pages: &[Overflow]) {
        let mut free = self.free.lock();
        for overflow in pages {
            free.overflow.clear(overflow.page);
        }
    }

    /// Takes units for parts of a blob: each where its predecessor ends, or the first behind `goal`, if that is free.
    pub(crate) fn take_units(&self, mut goal: Option<u32>, counts: &[u32]) -> Result<Vec<Vec<(u32, u32)>>> {
        let mut free = self.free.lock();
        if free.units.free() < counts.iter().copied().map(u64::from).sum() {
            return Err(Error::NoSpace);
        }
        let mut take = |&count: &u32| {
            let pieces = free.units.take(goal, count);
            goal = pieces.last().map(|(first, count)| first + count);
            pieces
        };
        Ok(counts.iter().map(&mut take).collect())
    }

    /// A blob no longer names these units, durably: those that no other blob names are free.
    pub(crate) fn give_units(&self, pieces: &[(u32, u32)]) {
        let mut free = self.free.lock();
        if free.tangled.is_empty() {
            pieces.iter().for_each(|&(first, count)| free.give(first, count));
            return;
        }
        let units = free.units.count();
        for &(first, count) in pieces {
            for unit in (first..first.saturating_add(count)).take_while(|&unit| unit < units) {
                if !free.tangled.values().any(|claimed| claimed.contains(&unit)) {
                    free.give(unit, 1);
                }
            }
        }
    }

    /// Takes slots for new blobs, and numbers that were never allocated: `count`, or fewer, but `least`, so as not to
    /// add slots.
    pub(crate) fn take_ids(&self, least: usize, count: usize) -> Result<Vec<BlobId>> {
        loop {
            self.check_running()?;
            let slots = {
                let mut free = self.free.lock();
                let there = free.slots.free() as usize;
                if there >= least {
                    return self.take_free_ids(&mut free, count.min(there));
                }
                free.slots.len()
            };
            if !self.add_slots(slots)? {
                return Err(Error::NoSpace);
            }
        }
    }

    /// The same if enough slots are free.
    fn take_free_ids(&self, free: &mut Free, count: usize) -> Result<Vec<BlobId>> {
        let mut ids = Vec::new();
        for slot in (0..count).map_while(|_| free.slots.take_lowest()) {
            if free.incarnations.len() <= slot as usize {
                free.incarnations.resize(slot as usize + 1, 0);
            }
            free.incarnations[slot as usize] += 1;
            ids.push(BlobId::of(slot, free.incarnations[slot as usize]));
        }
        let highest = ids.iter().map(|id| id.slot() + 1).max().unwrap_or(0);
        let mut superblock = self.superblock.lock();
        if highest > superblock.slots_used {
            let more = Superblock {
                slots_used: highest.next_multiple_of(SLOTS_A_LOT).min(self.slot_count()),
                generation: superblock.generation + 1,
                ..superblock.clone()
            };
            // The next start reads only as far as this says. One of the two may be torn now, so the other is left
            // alone.
            self.put_superblock(&more).map_err(|error| self.stop(error))?;
            *superblock = more;
        }
        Ok(ids)
    }

    /// The place of a page of a blob on the device, and how many pages lie in a row from there.
    pub(crate) fn page_at(&self, state: &State, page: u64) -> Option<(u64, u64)> {
        let unit_pages = u64::from(self.layout.unit_pages);
        let unit = u32::try_from(page / unit_pages).ok()?;
        let (physical, count) = state.piece(unit)?;
        let into = page % unit_pages;
        Some((self.layout.unit(physical) + into, u64::from(count) * unit_pages - into))
    }

    /// Where a hole of a blob ends that this byte lies in.
    pub(crate) fn hole_end(&self, state: &State, byte: u64) -> u64 {
        let unit_bytes = self.layout.unit_bytes();
        let unit = u32::try_from(byte / unit_bytes);
        let next = unit.ok().and_then(|unit| state.pieces.range(unit..).next());
        next.map_or(u64::MAX, |(&first, _)| u64::from(first) * unit_bytes)
    }

    /// Where the unit of a byte of a blob ends.
    pub(crate) fn unit_end(&self, byte: u64) -> u64 {
        let unit_bytes = self.layout.unit_bytes();
        (byte / unit_bytes).saturating_add(1).saturating_mul(unit_bytes)
    }

    /// Whether the blob has all units of a range.
    pub(crate) fn has_all(&self, state: &State, offset: u64, end: u64) -> bool {
        let unit_bytes = self.layout.unit_bytes();
        let mut at = offset / unit_bytes;
        while at * unit_bytes < end {
            match u32::try_from(at).ok().and_then(|at| state.piece(at)) {
                Some((_, count)) => at += u64::from(count),
                None => return false,
            }
        }
        true
    }
}

/// The newer of a slot's two pages that can be read and are its own.
pub(crate) fn newer(pages: &[u8], slot: u32) -> Option<Head> {
    let heads = pages.chunks(PAGE_BYTES).filter_map(Head::decode);
    heads
        .filter(|head| head.id.slot() == slot)
        .max_by_key(|head| head.generation)
}
