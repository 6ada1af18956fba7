//! Moves: how a new page gets a slot when both of its buckets are full.
//!
//! What lives here: the wishes of inserts that failed ([`Moves`]), and [`make_room`], which the engine calls with the
//! gate closed, in a separate transaction. It searches breadth-first for the shortest chain of entries, each of which
//! can go to the other bucket of its key, so that the first one leaves a free slot in the wanted bucket.
//!
//! Invariants: all of a chain moves in one record. While the gate is closed no transaction is in progress, so a slot
//! that is claimed and has no key is one that was freed; it becomes free once the journal no longer needs it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{BUCKET_SLOTS, Cuckoo, Homes, NUMBERS};
use crate::{MapTx, Resource};

/// Wishes that are remembered. An insert whose wish is lost may fail once more and leave another.
const MAX_WISHES: usize = 64;
/// Buckets that a search looks at before it reports the table full.
const MAX_SEARCHED: usize = 2000;
/// Number of pages after a wish that get room with it, and the most chains moved for them. At a load of 0.8 one insert
/// of eleven finds its homes full, and a write that fails for one page restarts from its first page.
const FORESIGHT: u64 = 256;
const MAX_CHAINS: usize = 32;

/// Keys that found no slot, and how many chains were moved.
#[derive(Debug, Default)]
pub(super) struct Moves {
    wishes: Mutex<Vec<u64>>,
    count: AtomicU64,
}

impl Moves {
    pub(super) fn wishes(&self) -> MutexGuard<'_, Vec<u64>> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a key whose homes are full.
    pub(super) fn wish(&self, key: u64) {
        let mut wishes = self.wishes();
        if wishes.len() < MAX_WISHES {
            wishes.push(key);
        }
    }

    /// Number of chains moved. Grows while the gate is closed, before anything has moved.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        self.wishes().capacity() as u64 * 8
    }
}

/// A bucket that the search reached.
struct Reached {
    bucket: u64,
    /// The bucket it was reached from, by its place in the list, and the slot there whose entry can come here. None at
    /// the start.
    from: Option<(usize, u64)>,
}

/// Fulfils one wish. Each insert that failed leaves one wish and asks for one to be fulfilled, so no insert takes what
/// another waits for. False if none is left, or none can be fulfilled.
pub(super) fn make_room(map: &Cuckoo, tx: &mut dyn MapTx) -> bool {
    loop {
        let mut wishes = map.moves.wishes();
        if wishes.is_empty() {
            return false;
        }
        let key = wishes.remove(0);
        drop(wishes);
        let homes = map.homes(key);
        if fulfil(map, tx, homes) {
            look_ahead(map, tx, key);
            return true;
        }
    }
}

/// Makes sure that one of these buckets has one more free slot, or gets one back.
fn fulfil(map: &Cuckoo, tx: &mut dyn MapTx, homes: Homes) -> bool {
    if homes.into_iter().any(|bucket| map.used.octet(bucket) != u8::MAX) {
        // The transaction that failed may have claimed the slots that are free now, for earlier pages, and will do so
        // again: one more is needed. If another transaction gave one back, the move was unnecessary.
        shift(map, tx, homes);
        return true;
    }
    comes_free(map, tx, homes) || shift(map, tx, homes)
}

/// Makes room for the pages after that of `key`, which the same writer is likely to map next.
fn look_ahead(map: &Cuckoo, tx: &mut dyn MapTx, key: u64) {
    let mut chains = 0;
    // The keys of a file end where those of the next file begin.
    let end = (key | u64::from(u32::MAX)).min(key.saturating_add(FORESIGHT));
    for next in key + 1..=end {
        let homes = map.homes(next);
        if comes_free(map, tx, homes) || map.find_in(tx, next).is_some() {
            continue;
        }
        if chains == MAX_CHAINS || !shift(map, tx, homes) {
            return;
        }
        chains += 1;
    }
}

/// Whether one of these buckets has a free slot, or is about to get one back.
fn comes_free(map: &Cuckoo, tx: &dyn MapTx, homes: Homes) -> bool {
    homes
        .into_iter()
        .flat_map(Cuckoo::slots_of)
        .any(|slot| tx.word(map.key_offset(slot)) == 0)
}

/// Moves entries so that one of these buckets loses one.
fn shift(map: &Cuckoo, tx: &mut dyn MapTx, homes: Homes) -> bool {
    let Some((reached, last, mut to)) = search(map, tx, homes) else {
        return false;
    };
    map.moves.count.fetch_add(1, Ordering::AcqRel);
    tx.claimed(Resource::MapSlot(to as u32));
    let mut at = last;
    while let Some((parent, slot)) = at {
        for offset_of in [Cuckoo::word_offset, Cuckoo::range_offset, Cuckoo::key_offset] {
            let value = tx.word(offset_of(map, slot));
            tx.set_word(offset_of(map, to), value);
        }
        to = slot;
        at = reached[parent].from;
    }
    for offset_of in [Cuckoo::key_offset, Cuckoo::word_offset, Cuckoo::range_offset] {
        tx.set_word(offset_of(map, to), 0);
    }
    tx.freed(Resource::MapSlot(to as u32));
    true
}

/// The buckets reached, the last move (where it starts), and the free slot that it goes to, which is claimed.
#[allow(clippy::type_complexity, reason = "its only caller takes it apart at once")]
fn search(map: &Cuckoo, tx: &dyn MapTx, homes: Homes) -> Option<(Vec<Reached>, Option<(usize, u64)>, u64)> {
    let mut known: HashSet<u64> = homes.into();
    // In the order of the homes, not of the set, so that a given seed always moves the same entries.
    let mut reached: Vec<Reached> = homes.map(|bucket| Reached { bucket, from: None }).into();
    let mut next = 0;
    while next < reached.len().min(MAX_SEARCHED) {
        let bucket = reached[next].bucket;
        for slot in Cuckoo::slots_of(bucket) {
            let Some(other) = other_home(map, tx.word(map.key_offset(slot)), bucket) else {
                continue;
            };
            if !known.insert(other) {
                continue;
            }
            let from = Some((next, slot));
            let free = u64::from(map.used.octet(other).trailing_ones());
            let to = other * NUMBERS + free;
            if free < BUCKET_SLOTS && map.used.claim(to) {
                return Some((reached, from, to));
            }
            reached.push(Reached { bucket: other, from });
        }
        next += 1;
    }
    None
}

/// The other bucket in which the entry of `key` in `bucket` may lie. None for a key that does not belong in `bucket`.
fn other_home(map: &Cuckoo, key: u64, bucket: u64) -> Option<u64> {
    match map.homes(key) {
        _ if key == 0 => None,
        [first, second] if first == bucket && second != bucket => Some(second),
        [first, second] if second == bucket && first != bucket => Some(first),
        _ => None,
    }
}
