//! Checksums of data: a layer over a device that has a checksum of every page of the clusters.
//!
//! A page has two checksums in an area of their own, a new one and the one before; either is right. Before a page is
//! written, both are durable, so a crash at any moment leaves a page that one of them fits. When the write is durable,
//! the older one no longer counts: at once in memory, and on the device with the next write of the same sums, at the
//! latest when the store is closed.
//!
//! So a write that the device has lost or put elsewhere is found when the page is read; only if power is lost soon
//! after it, the older content may pass.
//!
//! Invariants:
//! - Sums change by writes of one page of them, a *leaf*, and one at a time. An entry lies within a sector, so a torn
//!   write leaves each entry as some earlier write had it, and all of those that were durable before stay right.
//! - If it is unknown which of two contents a page has, it is read before it gets a third; after a flush, so that the
//!   device cannot lose the content that was read.
//! - A write is settled, which means that the older content no longer counts, by the thread that made it, before it
//!   lets others write these pages: contents may recur, and a checksum does not say which time.
//! - No thread reads or writes a page that another thread writes ([`crate::ranges`], and the ring for its pages).
//!
//! Used by `store`, which puts it between the device and everything else.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;

use ferrite_checks::ranked::{Mutex, MutexGuard};

use crate::device::{Device, Op};
use crate::format::{Layout, SUMS_PER_PAGE, Sum};
use crate::lock_order;
use crate::page::Pages;
use crate::{CLUSTER_PAGES, Error, PAGE_BYTES, Result};

const PAGE: u64 = PAGE_BYTES as u64;
/// Leaves in memory: the sums of 8 GiB, in 16 MiB.
const LEAVES_MAX: usize = 4096;

/// The sums of 2 MiB.
struct Leaf {
    bytes: Pages,
    /// It knows more than the device: which of two contents a page has.
    is_ahead: bool,
}

impl Leaf {
    fn sum(&self, page: u64) -> Sum {
        Sum::of(self.bytes.bytes(), (page % SUMS_PER_PAGE) as usize)
    }

    fn set(&mut self, page: u64, sum: Sum) {
        sum.put(self.bytes.bytes_mut(), (page % SUMS_PER_PAGE) as usize);
    }
}

/// A leaf, or nothing until it has been read.
type Slot = Arc<Mutex<lock_order::Leaf, Option<Leaf>>>;

#[derive(Default)]
struct Leaves {
    slots: HashMap<u64, Slot>,
    /// In order of arrival.
    order: VecDeque<u64>,
}

/// A leaf that is locked, and its pages that are about to be written.
struct Held<'l> {
    number: u64,
    leaf: MutexGuard<'l, Option<Leaf>>,
    part: &'l [Change],
    is_changed: bool,
}

/// A page about to be written, counted from the first of the clusters, and its new checksum.
type Change = (u64, u32);

/// See the module's head.
pub(crate) struct Summed {
    below: Box<dyn Device>,
    /// Pages of the clusters.
    covered: Range<u64>,
    /// The first leaf.
    at: u64,
    /// Pages on the device that are not verified.
    mended: HashSet<u64>,
    leaves: Mutex<lock_order::Leaves, Leaves>,
    /// The latest writes of each thread that it will flush.
    unflushed: Mutex<lock_order::Unflushed, HashMap<ThreadId, Vec<Change>>>,
    leaves_max: usize,
}

/// The checksum of a page. Never 0, which stands for none.
fn crc_of(page: &[u8]) -> u32 {
    crc32c::crc32c(page).max(1)
}

impl Summed {
    /// A layer over a device with this layout, which has sums. It has none for `mended` pages: they come from the ring,
    /// which has its own.
    pub(crate) fn new(below: Box<dyn Device>, layout: &Layout, mended: HashSet<u64>) -> Summed {
        let first = layout.cluster(0);
        Summed {
            below,
            covered: first..first + u64::from(layout.clusters) * CLUSTER_PAGES,
            at: layout.sums(),
            mended,
            leaves: Mutex::default(),
            unflushed: Mutex::default(),
            leaves_max: LEAVES_MAX,
        }
    }

    /// The device without checksums.
    pub(crate) fn below(&self) -> &dyn Device {
        &*self.below
    }

    /// The part of a range of bytes that lies in the clusters, in pages from the first of them on; and how many of the
    /// range's pages come before that.
    fn covered(&self, bytes: Range<u64>) -> (Range<u64>, usize) {
        let (from, to) = (bytes.start / PAGE, bytes.end / PAGE);
        let start = from.clamp(self.covered.start, self.covered.end);
        let end = to.clamp(start, self.covered.end.max(start));
        let base = self.covered.start;
        (start - base..end - base, start.saturating_sub(from) as usize)
    }

    fn slot(&self, leaf: u64) -> Slot {
        let mut leaves = self.leaves.lock();
        if let Some(slot) = leaves.slots.get(&leaf) {
            return Arc::clone(slot);
        }
        let slot = Slot::default();
        leaves.slots.insert(leaf, Arc::clone(&slot));
        leaves.order.push_back(leaf);
        // One more than was added, since some cannot go now.
        let count = (leaves.slots.len().saturating_sub(self.leaves_max)).min(2);
        let count = count.min(leaves.order.len());
        let oldest: Vec<u64> = leaves.order.drain(..count).collect();
        drop(leaves);
        oldest.into_iter().for_each(|leaf| self.evict(leaf));
        slot
    }

    /// Evicts a leaf from memory, unless it is in use. The caller has no leaf locked.
    fn evict(&self, leaf: u64) {
        let Some(slot) = self.leaves.lock().slots.get(&leaf).cloned() else {
            return;
        };
        // A leaf that cannot be written stays, and so does what it knows.
        let is_stored = slot
            .lock_ordered(leaf)
            .as_mut()
            .is_none_or(|one| self.put(leaf, one).is_ok());
        let mut leaves = self.leaves.lock();
        // The list's and this one: no thread has it, and none gets it without the list. A thread may have had it.
        let is_behind = |leaf: &Option<Leaf>| leaf.as_ref().is_none_or(|leaf| !leaf.is_ahead);
        if is_stored && Arc::strong_count(&slot) == 2 && slot.try_lock().is_some_and(|leaf| is_behind(&leaf)) {
            leaves.slots.remove(&leaf);
        } else {
            leaves.order.push_back(leaf);
        }
    }

    /// Writes what a leaf knows. Need not be durable: its earlier state is right as well.
    fn put(&self, number: u64, leaf: &mut Leaf) -> Result<()> {
        if !leaf.is_ahead {
            return Ok(());
        }
        self.below.run(&mut [Op::Write {
            offset: (self.at + number) * PAGE,
            from: leaf.bytes.bytes(),
            durable: false,
        }])?;
        leaf.is_ahead = false;
        Ok(())
    }

    /// Locks a leaf that has been read.
    fn locked<'s>(&self, number: u64, slot: &'s Slot) -> Result<MutexGuard<'s, Option<Leaf>>> {
        let mut leaf = slot.lock_ordered(number);
        if leaf.is_none() {
            let mut bytes = Pages::zeroed(1);
            self.below.run(&mut [Op::Read {
                offset: (self.at + number) * PAGE,
                into: bytes.bytes_mut(),
            }])?;
            *leaf = Some(Leaf { bytes, is_ahead: false });
        }
        Ok(leaf)
    }

    /// Calls `work` with each leaf of these pages, locked, and its pages.
    fn on_leaves(&self, changes: &[Change], mut work: impl FnMut(&mut Leaf, &[Change])) -> Result<()> {
        for part in changes.chunk_by(|one, other| one.0 / SUMS_PER_PAGE == other.0 / SUMS_PER_PAGE) {
            let number = part[0].0 / SUMS_PER_PAGE;
            let slot = self.slot(number);
            if let Some(leaf) = &mut *self.locked(number, &slot)? {
                work(leaf, part);
            }
        }
        Ok(())
    }

    /// Makes the sums of these pages durable, beside their present ones. In the order of their places.
    fn announce(&self, changes: &[Change]) -> Result<()> {
        let mut parts = Vec::new();
        for part in changes.chunk_by(|one, other| one.0 / SUMS_PER_PAGE == other.0 / SUMS_PER_PAGE) {
            let number = part[0].0 / SUMS_PER_PAGE;
            parts.push((number, self.slot(number), part));
        }
        let mut leaves = Vec::new();
        for (number, slot, part) in &parts {
            leaves.push(Held {
                number: *number,
                leaf: self.locked(*number, slot)?,
                part,
                is_changed: false,
            });
        }
        self.find_out(&mut leaves)?;
        let mut before = Vec::new();
        for (index, held) in leaves.iter_mut().enumerate() {
            let Some(leaf) = &mut *held.leaf else { continue };
            for &(page, crc) in held.part {
                let sum = leaf.sum(page);
                if sum.is_only(crc) {
                    continue;
                }
                before.push((index, page, sum));
                leaf.set(page, sum.or(crc));
                held.is_changed = true;
            }
        }
        let mut batch: Vec<Op<'_>> = leaves
            .iter()
            .filter(|held| held.is_changed)
            .filter_map(|held| Some((held.number, held.leaf.as_ref()?)))
            .map(|(number, leaf)| Op::Write {
                offset: (self.at + number) * PAGE,
                from: leaf.bytes.bytes(),
                durable: true,
            })
            .collect();
        let written = match batch.is_empty() {
            true => Ok(()),
            false => self.below.run(&mut batch),
        };
        drop(batch);
        match &written {
            Ok(()) => {
                for Held { leaf, is_changed, .. } in &mut leaves {
                    if let (true, Some(leaf)) = (*is_changed, &mut **leaf) {
                        leaf.is_ahead = false;
                    }
                }
            }
            // No page is written that the new ones would fit. The earlier sums are right, whatever the device has.
            Err(_) => {
                for (index, page, sum) in before {
                    if let Some(leaf) = &mut *leaves[index].leaf {
                        leaf.set(page, sum);
                        leaf.is_ahead = true;
                    }
                }
            }
        }
        written
    }

    /// Reads those pages for which it is unknown which of two contents they have.
    fn find_out(&self, leaves: &mut [Held<'_>]) -> Result<()> {
        for Held { leaf, part, .. } in leaves {
            let Some(leaf) = &mut **leaf else { continue };
            let open: Vec<u64> = part
                .iter()
                .map(|(page, _)| *page)
                .filter(|page| !leaf.sum(*page).is_known())
                .collect();
            if open.is_empty() {
                continue;
            }
            self.below.run(&mut [Op::Flush])?;
            let mut content = Pages::zeroed(1);
            for page in open {
                let read = self.below.run(&mut [Op::Read {
                    offset: (self.covered.start + page) * PAGE,
                    into: content.bytes_mut(),
                }]);
                // An unreadable page has neither content, and may be written.
                let found = read.is_ok().then(|| crc_of(content.bytes()));
                leaf.set(page, leaf.sum(page).known(found));
                leaf.is_ahead = true;
            }
        }
        Ok(())
    }

    /// Pages were written, and are durable.
    fn settle(&self, changes: &[Change]) -> Result<()> {
        self.on_leaves(changes, |leaf, part| {
            for &(page, crc) in part {
                // Another thread may be writing it again.
                if leaf.sum(page).is_latest(crc) && !leaf.sum(page).is_known() {
                    leaf.set(page, Sum::only(crc));
                    leaf.is_ahead = true;
                }
            }
        })
    }

    /// Whether pages that were read are as they were written.
    fn verify(&self, batch: &[Op<'_>]) -> Result<()> {
        for op in batch {
            let (Op::Read { into, .. }, Some(range)) = (op, op.range()) else {
                continue;
            };
            let (pages, skipped) = self.covered(range);
            let found: Vec<Change> = pages
                .zip(into.chunks(PAGE_BYTES).skip(skipped))
                .map(|(page, content)| (page, crc_of(content)))
                .collect();
            let mut wrong = None;
            self.on_leaves(&found, |leaf, part| {
                let is_mended = |page| self.mended.contains(&(self.covered.start + page));
                let mut misfits = part
                    .iter()
                    .filter(|(page, crc)| !leaf.sum(*page).fits(*crc) && !is_mended(*page));
                wrong = wrong.or(misfits.next().map(|(page, _)| *page));
            })?;
            if let Some(page) = wrong {
                let (name, page) = (self.below.name(), self.covered.start + page);
                return Err(Error::Damaged(format!("{name}: page {page} has the wrong checksum")));
            }
        }
        Ok(())
    }

    /// Accepts a page's content, whatever it is. Durable when it returns. No other thread uses the page.
    pub(crate) fn accept(&self, page: u64) -> Result<()> {
        let (pages, _) = self.covered(page * PAGE..(page + 1) * PAGE);
        for page in pages {
            let mut content = Pages::zeroed(1);
            self.below.run(&mut [Op::Read {
                offset: (self.covered.start + page) * PAGE,
                into: content.bytes_mut(),
            }])?;
            let number = page / SUMS_PER_PAGE;
            let slot = self.slot(number);
            if let Some(leaf) = &mut *self.locked(number, &slot)? {
                leaf.set(page, Sum::only(crc_of(content.bytes())));
                leaf.is_ahead = true;
                self.put(number, leaf)?;
            }
        }
        self.below.run(&mut [Op::Flush])
    }

    /// Writes everything known. Durable when it returns.
    pub(crate) fn store_all(&self) -> Result<()> {
        let mut all: Vec<(u64, Slot)> = self
            .leaves
            .lock()
            .slots
            .iter()
            .map(|(number, slot)| (*number, Arc::clone(slot)))
            .collect();
        all.sort_by_key(|(number, _)| *number);
        for (number, slot) in all {
            if let Some(leaf) = &mut *slot.lock() {
                self.put(number, leaf)?;
            }
        }
        self.below.run(&mut [Op::Flush])
    }
}

impl Device for Summed {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn len_bytes(&self) -> u64 {
        self.below.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        self.below.writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> Result<()> {
        let (mut durable, mut others, mut flushes) = (Vec::new(), Vec::new(), false);
        for op in &*batch {
            flushes |= matches!(op, Op::Flush);
            let (
                Op::Write {
                    from,
                    durable: is_durable,
                    ..
                },
                Some(range),
            ) = (op, op.range())
            else {
                continue;
            };
            let (pages, skipped) = self.covered(range);
            let changes = pages
                .zip(from.chunks(PAGE_BYTES).skip(skipped))
                .map(|(page, content)| (page, crc_of(content)));
            match is_durable {
                true => durable.extend(changes),
                false => others.extend(changes),
            }
        }
        durable.sort_unstable();
        others.sort_unstable();
        if !durable.is_empty() || !others.is_empty() {
            let mut all = [&durable[..], &others[..]].concat();
            all.sort_unstable();
            self.announce(&all)?;
        }
        let this = std::thread::current().id();
        let before = match flushes || !others.is_empty() {
            true => self.unflushed.lock().remove(&this),
            false => None,
        };
        self.below.run(batch)?;
        // Writes of a batch beside a flush are not covered by that flush.
        if let Some(flushed) = before.filter(|_| flushes) {
            durable.extend(flushed);
            durable.sort_unstable();
        }
        self.settle(&durable)?;
        if !others.is_empty() {
            self.unflushed.lock().insert(this, others);
        }
        self.verify(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::device::Memory;

    const PAGES: u64 = 64 << 8;

    /// A device with more leaves than stay in memory.
    fn summed(memory: &Arc<Memory>) -> Summed {
        let layout = Layout::of(PAGES, true, true).unwrap();
        let mut summed = Summed::new(Box::new(Arc::clone(memory)), &layout, HashSet::new());
        summed.leaves_max = 3;
        summed
    }

    fn page_of(version: u64) -> Pages {
        let mut page = Pages::zeroed(1);
        page.bytes_mut()[..8].copy_from_slice(&version.to_le_bytes());
        page
    }

    /// Pages of all leaves, written durably and not, by several threads, have the latest content, and are known as
    /// such; so they are after the next opening.
    #[test]
    fn leaves_come_and_go_and_nothing_is_forgotten() {
        let memory = Arc::new(Memory::new(PAGES * PAGE));
        let layout = Layout::of(PAGES, true, true).unwrap();
        let places: Vec<u64> = (0..200).map(|at| layout.cluster(0) + at * 73).collect();
        let versions: Vec<AtomicU64> = places.iter().map(|_| AtomicU64::new(0)).collect();
        for round in 1..4 {
            let device = summed(&memory);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (device, places, versions) = (&device, &places, &versions);
                    scope.spawn(move || {
                        let mut state: u64 = round * 1000 + thread;
                        for _ in 0..600 {
                            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                            // Each thread has its own pages, in every thread's leaves.
                            let at = (state >> 33) as usize % 50 * 4 + thread as usize;
                            let page = page_of(state);
                            let durable = state >> 50 & 1 == 0;
                            let write = Op::Write {
                                offset: places[at] * PAGE,
                                from: page.bytes(),
                                durable,
                            };
                            device.run(&mut [write]).unwrap();
                            if !durable {
                                device.run(&mut [Op::Flush]).unwrap();
                            }
                            versions[at].store(state, Ordering::Relaxed);
                            let mut found = page_of(0);
                            let read = Op::Read {
                                offset: places[at] * PAGE,
                                into: found.bytes_mut(),
                            };
                            device.run(&mut [read]).unwrap();
                            assert_eq!(found.bytes()[..8], state.to_le_bytes());
                        }
                    });
                }
            });
            // Each thread may have kept one from being evicted.
            assert!(device.leaves.lock().slots.len() <= 3 + 2 * 4);
            device.store_all().unwrap();
            // Any content but the last one is damage, whichever the page had before.
            let device = summed(&memory);
            for (place, version) in places.iter().zip(&versions) {
                let version = version.load(Ordering::Relaxed);
                let mut found = page_of(0);
                let read = |found: &mut Pages| {
                    device.run(&mut [Op::Read {
                        offset: place * PAGE,
                        into: found.bytes_mut(),
                    }])
                };
                if version == 0 {
                    assert!(read(&mut found).is_err(), "it was never written");
                    continue;
                }
                read(&mut found).unwrap();
                let (number, slot) = ((place - device.covered.start) / SUMS_PER_PAGE, Slot::default());
                let leaf = device.locked(number, &slot).unwrap();
                let sum = leaf.as_ref().unwrap().sum(place - device.covered.start);
                assert!(sum.is_only(crc_of(found.bytes())), "round {round}: {sum:?}");
            }
        }
    }

    #[test]
    fn only_pages_of_clusters_count() {
        let memory = Arc::new(Memory::new(PAGES * PAGE));
        let device = summed(&memory);
        let first = device.covered.start;
        assert_eq!(device.covered(0..first * PAGE).0, 0..0);
        assert_eq!(device.covered((first - 2) * PAGE..(first + 3) * PAGE), (0..3, 2));
        let end = device.covered.end;
        let len = end - first;
        assert_eq!(device.covered((end - 1) * PAGE..(end + 5) * PAGE).0, len - 1..len);
        let page = page_of(9);
        let outside = Op::Write {
            offset: 5 * PAGE,
            from: page.bytes(),
            durable: true,
        };
        device.run(&mut [outside]).unwrap();
        assert!(device.leaves.lock().slots.is_empty());
    }
}
