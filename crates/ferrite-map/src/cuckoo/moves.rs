//! Moves: how a new page gets a slot when both of its buckets are full.
//!
//! Contents: the wishes of inserts that failed ([`Moves`]), and [`make_space`], which the engine calls with the
//! move lock held exclusively, in a separate transaction. It searches breadth-first for the shortest chain of entries,
//! each of which can go to the other bucket of its key, so that the first one leaves a free slot in the wanted bucket.
//!
//! Invariants: all of a chain moves in one record. While the move lock is held exclusively no transaction is in
//! progress, so a slot that is claimed and has no key is one that was freed; it becomes free once the journal no longer
//! needs it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{BUCKET_SLOTS, Cuckoo, Homes, NUMBERS};
use crate::{MapTx, Resource, SlotNo};

/// Wishes that are remembered. An insert whose wish is lost may fail once more and leave another.
const MAX_WISHES: usize = 64;
/// Buckets that a search examines before it reports the table full.
const MAX_SEARCHED: usize = 2000;
/// Number of pages before and after a wish that get slots with it, and the most chains moved for them. At a load of 0.8
/// one insert of eleven finds its homes full, and a write that fails for one page restarts from its first page.
const FORESIGHT: u64 = 512;
const MAX_CHAINS: usize = 32;

/// A key that found no slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) key: u64,
    /// The first key that the same transaction had inserted, if others follow each other from there to `key`.
    pub(super) first: u64,
}

/// Keys that found no slot, and how many chains were moved.
#[derive(Debug, Default)]
pub(super) struct Moves {
    wishes: Mutex<Vec<Wish>>,
    count: AtomicU64,
}

impl Moves {
    pub(super) fn wishes(&self) -> MutexGuard<'_, Vec<Wish>> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a key whose homes are full.
    pub(super) fn wish(&self, wish: Wish) {
        let mut wishes = self.wishes();
        if wishes.len() < MAX_WISHES {
            wishes.push(wish);
        }
    }

    /// Number of chains moved. Grows while the move lock is held exclusively, before anything has moved.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        (self.wishes().capacity() * size_of::<Wish>()) as u64
    }
}

/// A bucket that the search reached.
struct Reached {
    bucket: u64,
    /// Where it was reached from; `None` at the start.
    from: Option<Origin>,
}

/// Where an entry can come from.
#[derive(Clone, Copy)]
struct Origin {
    /// Its bucket, by its place in the list of those reached.
    parent: usize,
    slot: u64,
}

/// Moves that free a slot, as the search found them.
struct Chain {
    reached: Vec<Reached>,
    /// Where the last move starts; `None` if no move is needed.
    last: Option<Origin>,
    /// The free slot that it goes to, which is claimed.
    to: u64,
}

/// The wish of a transaction that finds no slot for `key`.
#[cold]
pub(super) fn wish_for(map: &Cuckoo, tx: &dyn MapTx, key: u64) -> Wish {
    let begin = (key & !u64::from(u32::MAX)).max(key.saturating_sub(FORESIGHT));
    let mut first = key;
    for before in (begin..key).rev() {
        match map.find_in(tx, before) {
            // It is stored when the transaction commits.
            Some(slot) if map.key(slot) != before => first = before,
            Some(_) => {}
            None => break,
        }
    }
    Wish { key, first }
}

/// Fulfils one wish. Each insert that failed leaves one wish and asks for one to be fulfilled, so no insert takes a
/// slot that another waits for. False if no wish is left, or none can be fulfilled.
pub(super) fn make_space(map: &Cuckoo, tx: &mut dyn MapTx) -> bool {
    loop {
        let mut wishes = map.moves.wishes();
        if wishes.is_empty() {
            return false;
        }
        let wish = wishes.remove(0);
        drop(wishes);
        if fulfil(map, tx, wish) {
            return true;
        }
    }
}

/// Frees slots for a wish, and for the pages around it: those before it, which the transaction that failed had inserted
/// and will insert again, and those after it, which the same writer is likely to map next.
///
/// It visits them in the order in which they will be inserted, each taking its slot, so a free slot counts once; and no
/// move takes a slot that counts, or the moves for one page would undo those for another. False if the wish cannot be
/// fulfilled.
fn fulfil(map: &Cuckoo, tx: &mut dyn MapTx, Wish { key, first }: Wish) -> bool {
    // The keys of a file end where those of the next file begin.
    let end = (key | u64::from(u32::MAX)).min(key.saturating_add(FORESIGHT));
    let mut planned = Planned::default();
    let mut chains = 0;
    for next in first..=end {
        let homes = map.homes(next);
        if is_mapped(map, tx, next, homes) || planned.take(map, tx, homes) {
            continue;
        }
        if chains == MAX_CHAINS {
            // The next attempt may get farther.
            return true;
        }
        if shift(map, tx, homes, &planned) {
            chains += 1;
            planned.take(map, tx, homes);
        } else if next == key {
            return chains > 0;
        } else if next > key {
            return true;
        }
    }
    true
}

/// Whether a page is mapped after the moves of `tx`, which put keys into other keys' slots.
fn is_mapped(map: &Cuckoo, tx: &dyn MapTx, key: u64, homes: Homes) -> bool {
    let mut slots = homes.into_iter().flat_map(Cuckoo::slots_of);
    slots.any(|slot| tx.word(map.key_offset(slot)) == key)
}

/// Slots that pages are expected to take, by bucket.
#[derive(Default)]
struct Planned(HashMap<u64, usize>);

impl Planned {
    /// Slots of a bucket that are left.
    fn space(&self, map: &Cuckoo, tx: &dyn MapTx, bucket: u64) -> usize {
        let planned = self.0.get(&bucket).copied().unwrap_or(0);
        free_slots(map, tx, bucket).saturating_sub(planned)
    }

    /// Takes a slot as an insert does, in the emptier home. False if both are full.
    fn take(&mut self, map: &Cuckoo, tx: &dyn MapTx, homes: Homes) -> bool {
        let space = homes.map(|bucket| self.space(map, tx, bucket));
        let emptier = usize::from(space[1] > space[0]);
        if space[emptier] > 0 {
            *self.0.entry(homes[emptier]).or_default() += 1;
        }
        space[emptier] > 0
    }
}

/// Slots of a bucket that are free, or will be once the journal no longer needs them.
fn free_slots(map: &Cuckoo, tx: &dyn MapTx, bucket: u64) -> usize {
    Cuckoo::slots_of(bucket)
        .filter(|&slot| tx.word(map.key_offset(slot)) == 0)
        .count()
}

/// Moves entries so that one of these buckets loses one.
fn shift(map: &Cuckoo, tx: &mut dyn MapTx, homes: Homes, planned: &Planned) -> bool {
    let Some(chain) = search(map, tx, homes, planned) else {
        return false;
    };
    let mut to = chain.to;
    map.moves.count.fetch_add(1, Ordering::AcqRel);
    tx.claimed(Resource::MapSlot(SlotNo::at(to)));
    let mut at = chain.last;
    while let Some(Origin { parent, slot }) = at {
        for offset_of in [Cuckoo::word_offset, Cuckoo::range_offset, Cuckoo::key_offset] {
            let value = tx.word(offset_of(map, slot));
            tx.set_word(offset_of(map, to), value);
        }
        to = slot;
        at = chain.reached[parent].from;
    }
    for offset_of in [Cuckoo::key_offset, Cuckoo::word_offset, Cuckoo::range_offset] {
        tx.set_word(offset_of(map, to), 0);
    }
    tx.freed(Resource::MapSlot(SlotNo::at(to)));
    true
}

/// The shortest chain of moves, with the slot that it ends in claimed.
fn search(map: &Cuckoo, tx: &dyn MapTx, homes: Homes, planned: &Planned) -> Option<Chain> {
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
            let from = Some(Origin { parent: next, slot });
            let free = u64::from(map.used.octet(other).trailing_ones());
            let to = other * NUMBERS + free;
            if free < BUCKET_SLOTS && planned.space(map, tx, other) > 0 && map.used.claim(to) {
                return Some(Chain {
                    reached,
                    last: from,
                    to,
                });
            }
            reached.push(Reached { bucket: other, from });
        }
        next += 1;
    }
    None
}

/// The other bucket in which the entry of `key` in `bucket` may lie. `None` for a key that does not belong in `bucket`.
fn other_home(map: &Cuckoo, key: u64, bucket: u64) -> Option<u64> {
    match map.homes(key) {
        _ if key == 0 => None,
        [first, second] if first == bucket && second != bucket => Some(second),
        [first, second] if second == bucket && first != bucket => Some(first),
        _ => None,
    }
}
