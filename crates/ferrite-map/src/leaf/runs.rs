//! A walk of a file's chunks by runs: lines at home have arrived when the walk reads them.
//!
//! Contents: [`FileMap::for_runs`](crate::FileMap::for_runs) for [`Leaf`], the only user. Nothing here writes.

use std::sync::atomic::Ordering;

use ferrite_pm::LINE_BYTES;

use super::{CHUNK, Leaf};
use crate::gather::{Gather, Visit};
use crate::{FileMap, Inum, Lblk, PageRange, SlotNo};

/// Pages looked up by runs in the time of one separate lookup, whose line has to arrive.
const STEPS_SAVED: u64 = 4;
/// Chunks whose lines are being prefetched at a time.
const BATCH: usize = 24;
/// Words of a line.
const LINE_WORDS: usize = LINE_BYTES as usize / 8;

/// Chunks in a row, with their homes.
struct Batch {
    first: u64,
    homes: [u64; BATCH],
    count: usize,
}

fn key_of(ino: Inum, chunk: u64) -> u64 {
    u64::from(ino) << 32 | chunk
}

impl Batch {
    /// The chunks from `first` up to `end`, as many as fit. Starts loading their homes.
    fn begin(map: &Leaf, ino: Inum, first: u64, end: u64) -> Batch {
        let mut batch = Batch {
            first,
            homes: [0; BATCH],
            count: end.saturating_sub(first).min(BATCH as u64) as usize,
        };
        for (chunk, home) in (first..).zip(&mut batch.homes[..batch.count]) {
            *home = map.home(key_of(ino, chunk));
            map.region.prefetch(map.header_offset(*home));
        }
        batch
    }

    fn each(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (self.first..).zip(self.homes[..self.count].iter().copied())
    }
}

/// Visits the pages of a range: in order, by looking up all its chunks, unless a walk of the table is shorter.
pub(super) fn walk(map: &Leaf, ino: Inum, range: PageRange, visit: Visit<'_>) {
    if range.pages() > map.pages_worth_a_walk() * STEPS_SAVED {
        return map.for_range(ino, Lblk::at(range.first), range.end, &mut |entry| visit(entry, 1));
    }
    if range.is_empty() {
        return;
    }
    let chunk_pages = u64::from(CHUNK);
    let end = range.end.div_ceil(chunk_pages);
    let mut gather = Gather::new(ino, map.geometry.words, visit);
    let mut batch = Batch::begin(map, ino, range.first / chunk_pages, end);
    while batch.count > 0 {
        let next = Batch::begin(map, ino, batch.first + batch.count as u64, end);
        let is_home = |chunk, home| map.region.load(map.header_offset(home)) == key_of(ino, chunk);
        // Most of the others are in the next line.
        for (_, home) in batch.each().filter(|&(chunk, home)| !is_home(chunk, home)) {
            map.region.prefetch(map.header_offset(map.wrap(home + 1)));
        }
        for (chunk, home) in batch.each() {
            let Some((line, words)) = read(map, key_of(ino, chunk), home) else {
                continue;
            };
            let base = chunk * chunk_pages;
            let slot = (line * LINE_WORDS as u64) as u32;
            let goes_on = if range.first <= base && base + chunk_pages <= range.end {
                gather.take(base, &words, SlotNo::new(slot))
            } else {
                let from = range.first.saturating_sub(base) as usize;
                let to = (range.end - base).min(chunk_pages) as usize;
                gather.take(
                    base + from as u64,
                    &words[from..to],
                    SlotNo::new(slot.wrapping_add(from as u32)),
                )
            };
            if !goes_on {
                return;
            }
        }
        batch = next;
    }
    gather.end();
}

/// The line of a chunk, and its words. A chunk may have moved since its home was found.
#[inline]
fn read(map: &Leaf, key: u64, home: u64) -> Option<(u64, [u64; CHUNK as usize])> {
    map.move_lock.steady(|| {
        let at_home = map.region.words(map.header_offset(home), LINE_WORDS);
        let (line, stored) = match at_home[0].load(Ordering::Acquire) == key {
            true => (home, at_home),
            false => {
                let line = map.find(key)?;
                (line, map.region.words(map.header_offset(line), LINE_WORDS))
            }
        };
        let mut words = [0; CHUNK as usize];
        for (word, stored) in words.iter_mut().zip(&stored[1..]) {
            *word = stored.load(Ordering::Acquire);
        }
        // A lookup without the lock may see a line change hands. The inode's version shows that to the caller, but
        // not here.
        (stored[0].load(Ordering::Acquire) == key).then_some((line, words))
    })
}
