//! The ring: pages that must not tear, on devices that tear them.
//!
//! A page is written to the ring first, durably, and then in place. If power is lost between the two, or in the middle
//! of the second, the next opening writes it in place again from the ring.
//!
//! Invariants, which make it harmless to write an entry in place again:
//! - An entry's number grows, and its place is its number modulo the ring's length. It records which entries before it
//!   have all been written in place (`low`), and entries below the largest `low` are ignored.
//!
//!   A place is reused only when a durable entry says so of its old one: several are written at once, in any order,
//!   each maybe torn. So if an entry counts, every later one of the same page does, too; and the entry that says so
//!   stays until a later one says more.
//! - A blob's metadata changes only while none of its pages is being written in place, and an entry names the
//!   generation that makes it valid: the present one, or the one that the same write is about to store. So no entry
//!   reaches a cluster that was given to another blob, or truncated and grown again, in between.
//! - Two writes of the same page wait for each other (`ranges`).
//! - A page with an entry that may still count is written through the ring again, also on a device that tears nothing
//!   and needs the ring only for writes of two pages.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::Mutex;

use crate::device::{Device, Op};
use crate::format::{BlobId, Layout, RING_ENTRIES, RingEntry, hash_of};
use crate::lock_order;
use crate::page::Pages;
use crate::{Error, PAGE_BYTES, Result};

#[derive(Debug)]
struct State {
    /// The next entry's.
    number: u64,
    /// Entries that have not been written in place.
    under_way: BTreeSet<u64>,
    /// The last entry of each page, of those that may still count.
    last: HashMap<u64, u64>,
    /// Entries below it never count again: one that says so is durable, and that one is not below it.
    durable_low: u64,
    /// One could not be written in place, or the store has stopped. It stays in the ring, for the next opening.
    has_failed: bool,
}

impl State {
    /// All entries below it have been written in place.
    fn low(&self) -> u64 {
        self.under_way.first().copied().unwrap_or(self.number)
    }

    /// Whether the next entry has to wait. One entry fewer than there are places is under way, so that the last of them
    /// says enough for the next one.
    fn is_full(&self) -> bool {
        self.number - self.low() >= RING_ENTRIES - 1 || self.number - self.durable_low >= RING_ENTRIES
    }
}

/// See the module's head.
pub(crate) struct Ring {
    state: Mutex<lock_order::Ring, State>,
    advanced: Condvar,
}

/// One or two pages that lie side by side in a blob, with their places on the device.
pub(crate) struct Torn<'w> {
    pub(crate) id: BlobId,
    pub(crate) generation: u64,
    /// One or two.
    pub(crate) targets: &'w [u64],
    /// Their content.
    pub(crate) data: &'w [u8],
}

impl Ring {
    /// A ring whose next entry has this number, and whose last one, if any, says that it is the lowest.
    pub(crate) fn new(number: u64) -> Ring {
        Ring {
            state: Mutex::new(State {
                number,
                under_way: BTreeSet::new(),
                last: HashMap::new(),
                durable_low: number.saturating_sub(1),
                has_failed: false,
            }),
            advanced: Condvar::new(),
        }
    }

    /// Ends all waiting: the store has stopped, and entries may stay that will not be written in place.
    pub(crate) fn end(&self) {
        self.state.lock().has_failed = true;
        self.advanced.notify_all();
    }

    /// One of its entries could not be written in place.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().has_failed
    }

    /// Whether a page must be written through the ring, because the ring may hold an older content of it. No other
    /// thread writes it meanwhile.
    pub(crate) fn holds(&self, target: u64) -> bool {
        self.holds_any(target..target + 1)
    }

    /// The same of several.
    pub(crate) fn holds_any(&self, mut targets: Range<u64>) -> bool {
        let state = self.state.lock();
        !is_seeded(Bug::BlobRingPassedBy)
            && !state.last.is_empty()
            && targets.any(|target| state.last.contains_key(&target))
    }

    /// Writes pages in place so that they are old or new, both together. No other thread writes them meanwhile. Durable
    /// when it returns.
    pub(crate) fn write(&self, device: &dyn Device, layout: &Layout, torn: &Torn<'_>) -> Result<()> {
        let entry = self.prepare(device, layout, torn)?;
        self.apply(device, entry)
    }

    /// Writes an entry to the ring, durably. If its blob has its generation when power is lost, its pages are new,
    /// otherwise old. No other thread writes them before [`Self::apply`], which has to follow.
    pub(crate) fn prepare(&self, device: &dyn Device, layout: &Layout, torn: &Torn<'_>) -> Result<Prepared> {
        let (number, low) = {
            let mut state = self.state.lock();
            while state.is_full() && !state.has_failed {
                self.advanced.wait(&mut state);
            }
            if state.has_failed {
                return Err(Error::Stopped("a page could not be written in place".into()));
            }
            let number = state.number;
            state.number += 1;
            state.under_way.insert(number);
            state.last.extend(torn.targets.iter().map(|target| (*target, number)));
            (number, state.low())
        };
        let (mut crcs, mut hashes) = ([0; 2], [0; 2]);
        let mut targets = [0; 2];
        for (index, (target, data)) in torn.targets.iter().zip(torn.data.chunks(PAGE_BYTES)).enumerate() {
            targets[index] = *target;
            crcs[index] = crc32c::crc32c(data);
            hashes[index] = hash_of(data);
        }
        let entry = RingEntry {
            number,
            low,
            id: torn.id,
            generation: torn.generation,
            targets,
            crcs,
            hashes,
        };
        let mut pages = Pages::zeroed(1 + torn.targets.len());
        entry.encode(&mut pages.bytes_mut()[..PAGE_BYTES]);
        pages.bytes_mut()[PAGE_BYTES..].copy_from_slice(torn.data);
        let written = device.run(&mut [Op::Write {
            offset: layout.ring(number % RING_ENTRIES) * PAGE_BYTES as u64,
            from: pages.bytes(),
            durable: true,
        }]);
        let mut state = self.state.lock();
        match written {
            Ok(()) if low > state.durable_low => {
                state.durable_low = low;
                state.last.retain(|_, last| *last >= low);
            }
            Ok(()) => {}
            // The content of the entry's place is unknown now.
            Err(_) => state.has_failed = true,
        }
        drop(state);
        self.advanced.notify_all();
        written.map(|()| Prepared {
            number,
            targets: torn.targets.to_vec(),
            pages,
        })
    }

    /// Writes the pages of an entry in place. Durable when it returns. If this is not called, the ring ends: the entry
    /// stays for the next opening.
    pub(crate) fn apply(&self, device: &dyn Device, entry: Prepared) -> Result<()> {
        let mut ops: Vec<Op<'_>> = entry
            .targets
            .iter()
            .zip(entry.pages.bytes()[PAGE_BYTES..].chunks(PAGE_BYTES))
            .map(|(target, data)| Op::Write {
                offset: target * PAGE_BYTES as u64,
                from: data,
                durable: true,
            })
            .collect();
        let written = device.run(&mut ops);
        let mut state = self.state.lock();
        match written {
            Ok(()) => drop(state.under_way.remove(&entry.number)),
            Err(_) => state.has_failed = true,
        }
        self.advanced.notify_all();
        written
    }
}

/// An entry that is in the ring.
pub(crate) struct Prepared {
    number: u64,
    targets: Vec<u64>,
    /// Its own page, then the data pages.
    pages: Pages,
}

/// Pages to be written in place: where, and their content.
pub(crate) type Pending = Vec<(u64, Box<[u8]>)>;

/// The pages that are possibly not in place yet, the oldest first, and the number of the next entry; `is_right` returns
/// whether an entry's blob has its generation, and may be written. Writes nothing.
pub(crate) fn pending(
    device: &dyn Device,
    layout: &Layout,
    is_right: &mut dyn FnMut(&RingEntry) -> bool,
) -> Result<(Pending, u64)> {
    let entry_pages = crate::format::RING_PAGES as usize;
    let mut pages = Pages::zeroed(entry_pages * RING_ENTRIES as usize);
    device.run(&mut [Op::Read {
        offset: layout.ring(0) * PAGE_BYTES as u64,
        into: pages.bytes_mut(),
    }])?;
    let chunks = pages.bytes().chunks(entry_pages * PAGE_BYTES);
    let mut entries: Vec<(RingEntry, &[u8])> = chunks
        .filter_map(|chunk| Some((RingEntry::decode(&chunk[..PAGE_BYTES])?, &chunk[PAGE_BYTES..])))
        .collect();
    entries.sort_by_key(|(entry, _)| entry.number);
    let low = entries.iter().map(|(entry, _)| entry.low).max().unwrap_or(0);
    let next = entries.last().map_or(0, |(entry, _)| entry.number + 1);
    let mut pending = Pending::new();
    for (entry, data) in entries.iter().filter(|(entry, _)| entry.number >= low) {
        if !is_right(entry) {
            continue;
        }
        let pages: Vec<(u64, &[u8])> = entry
            .targets
            .iter()
            .zip(data.chunks(PAGE_BYTES))
            .enumerate()
            .filter(|(_, (target, _))| **target != 0)
            .map(|(index, (target, page))| (*target, if entry.is_whole(index, page) { page } else { &[][..] }))
            .collect();
        // It was not written completely, so none of it was written in place.
        if pages
            .iter()
            .any(|(target, page)| page.is_empty() || *target >= layout.pages)
        {
            continue;
        }
        pending.extend(pages.into_iter().map(|(target, page)| (target, page.into())));
    }
    Ok((pending, next))
}

/// Writes these pages in place. Then writes an empty entry, so that none of these counts again: later writes may be
/// newer than they are. Returns the next number.
pub(crate) fn replay(
    device: &dyn Device,
    layout: &Layout,
    is_right: &mut dyn FnMut(&RingEntry) -> bool,
) -> Result<u64> {
    let (pending, next) = pending(device, layout, is_right)?;
    let mut page = Pages::zeroed(1);
    for (target, data) in pending {
        page.bytes_mut().copy_from_slice(&data);
        device.run(&mut [Op::Write {
            offset: target * PAGE_BYTES as u64,
            from: page.bytes(),
            durable: true,
        }])?;
    }
    let end = RingEntry {
        number: next,
        low: next,
        id: BlobId::from_raw(0),
        generation: 0,
        targets: [0; 2],
        crcs: [0; 2],
        hashes: [0; 2],
    };
    let mut page = Pages::zeroed(1);
    end.encode(page.bytes_mut());
    device.run(&mut [Op::Write {
        offset: layout.ring(next % RING_ENTRIES) * PAGE_BYTES as u64,
        from: page.bytes(),
        durable: true,
    }])?;
    Ok(next + 1)
}

#[cfg(test)]
mod tests;
