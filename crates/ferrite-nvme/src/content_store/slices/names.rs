//! Slices that several chunks name: the chunks of clones, until these change.
//!
//! A row `Z C` has the number of chunks that name a slice besides the first; a slice without one has one name, or none.
//! The transaction that makes a chunk name a slice, or not name it any more, changes the number. A transaction locks
//! these rows in the order of their slices.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_meta::{Lock, MetaStore, Result, Transaction};
use ferrite_slices::{SliceId, SliceMap};

use super::blob_row::BlobRow;
use crate::content_store::Place;
use crate::format::key;

/// A number that cannot be read is as large as any: an object that nothing names does less harm than a name without
/// its object.
const UNREADABLE: u64 = u64::MAX;

fn decode(row: Option<&[u8]>) -> u64 {
    let Some(row) = row else { return 0 };
    row.try_into().map_or(UNREADABLE, u64::from_le_bytes)
}

fn put(txn: &mut dyn Transaction, id: SliceId, more: u64) -> Result<()> {
    match more {
        0 => txn.delete(&key::more_names(id)),
        UNREADABLE => Ok(()),
        _ => txn.put(&key::more_names(id), &more.to_le_bytes()),
    }
}

/// One more chunk names each of these.
pub(super) fn add(txn: &mut dyn Transaction, slices: &[SliceId]) -> Result<()> {
    if is_seeded(Bug::SharedSliceUncounted) {
        return Ok(());
    }
    let mut slices = slices.to_vec();
    slices.sort_unstable();
    for id in slices {
        let more = txn.get_for_update(&key::more_names(id), Lock::Exclusive)?;
        put(txn, id, decode(more.as_deref()).saturating_add(1))?;
    }
    Ok(())
}

/// A chunk, and its row, if it has any extent.
pub(super) type ChunkRow = (u64, Option<Vec<u8>>);

/// The slices of a chunk's row. A row that cannot be read has none.
fn slices_of(chunk: u64, row: Option<&[u8]>) -> HashSet<SliceId> {
    let mut map = SliceMap::default();
    let _ = row.map(|row| map.add_chunk(chunk, row));
    map.slices().map(|(id, _)| id).collect()
}

/// Chunks of a blob are about to get these rows. Takes its names from the slices that the stored rows name and these do
/// not, and returns those that no other chunk names, each with its time; with those of `dead` that were never named.
/// The stored rows decide, not the caller: so a step that is made again changes no number a second time.
pub(super) fn leave(
    txn: &mut dyn Transaction,
    place: Place,
    (chunks, dead): (&[ChunkRow], &[(SliceId, u64)]),
    late: u64,
) -> Result<Vec<(SliceId, u64)>> {
    let times: HashMap<SliceId, u64> = dead.iter().copied().collect();
    let mut left = Vec::new();
    for (chunk, row) in chunks {
        let stored = txn.get(&key::chunk(place, *chunk))?;
        let (stored, next) = (slices_of(*chunk, stored.as_deref()), slices_of(*chunk, row.as_deref()));
        let gone = stored.difference(&next);
        left.extend(gone.map(|id| (*id, times.get(id).copied().unwrap_or(late))));
    }
    let named: HashSet<SliceId> = left.iter().map(|&(id, _)| id).collect();
    let mut unnamed = remove(txn, left)?;
    for &(id, time) in dead.iter().filter(|(id, _)| !named.contains(id)) {
        if txn.get(&key::staged(id))?.is_some() {
            unnamed.push((id, time));
        }
    }
    unnamed.sort_unstable_by_key(|&(id, time)| (time, id));
    Ok(unnamed)
}

/// A chunk does not name these any more. Returns those that no other chunk names.
fn remove(txn: &mut dyn Transaction, mut slices: Vec<(SliceId, u64)>) -> Result<Vec<(SliceId, u64)>> {
    let mut unnamed = Vec::new();
    slices.sort_unstable();
    for (id, time) in slices {
        let more = txn.get_for_update(&key::more_names(id), Lock::Exclusive)?;
        match decode(more.as_deref()) {
            0 => unnamed.push((id, time)),
            UNREADABLE => {}
            more => put(txn, id, more - 1)?,
        }
    }
    Ok(unnamed)
}

/// Has the row of a blob say that others may name its slices.
pub(crate) fn flag(txn: &mut dyn Transaction, place: Place) -> Result<()> {
    let own = key::blob(place);
    let row = txn.get_for_update(&own, Lock::Exclusive)?;
    match row.as_deref().and_then(BlobRow::shared) {
        Some(row) => txn.put(&own, &row),
        None => Ok(()),
    }
}

/// The key of a row, and its value, if it is to have one.
pub(crate) type RowChange = (Vec<u8>, Option<Vec<u8>>);

/// Rows that are wrong.
#[derive(Default)]
pub(crate) struct Wrong {
    /// Rows of slices, and how they should be: numbers, and dead slices that a chunk names.
    pub(crate) changes: Vec<RowChange>,
    /// Blobs that share slices and do not say so.
    pub(crate) unflagged: Vec<Place>,
}

impl Wrong {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.unflagged.is_empty()
    }

    /// How much is wrong.
    pub(super) fn count(&self) -> u64 {
        (self.changes.len() + self.unflagged.len()) as u64
    }

    /// Leaves what is wrong in the same way in another count.
    pub(super) fn retain(&mut self, other: &Wrong) {
        let changes: HashSet<_> = other.changes.iter().collect();
        self.changes.retain(|change| changes.contains(change));
        let unflagged: HashSet<_> = other.unflagged.iter().collect();
        self.unflagged.retain(|place| unflagged.contains(place));
    }
}

fn scan(meta: &dyn MetaStore, (from, to): (&[u8], &[u8]), visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
    meta.scan(from, to, &mut |key, value| {
        visit(key, value);
        ControlFlow::Continue(())
    })
}

/// Passes on every chunk. Returns whether all of them can be read.
fn each_chunk(meta: &dyn MetaStore, visit: &mut dyn FnMut(Place, &SliceMap)) -> Result<bool> {
    let ((from, to), mut is_all) = (key::all_of(b'L'), true);
    scan(meta, (&from, &to), &mut |key, value| {
        let mut map = SliceMap::default();
        match key::blob_row(key) {
            Some((place, Some(chunk))) if map.add_chunk(chunk, value).is_some() => visit(place, &map),
            Some((_, None)) => {}
            _ => is_all = false,
        }
    })?;
    Ok(is_all)
}

/// Counts the names of all slices, and compares the rows with that. While a chunk cannot be read no number is too high.
pub(crate) fn count(meta: &dyn MetaStore) -> Result<Wrong> {
    let mut names: HashMap<SliceId, u64> = HashMap::new();
    let is_all = each_chunk(meta, &mut |_, map| {
        map.slices().for_each(|(id, _)| *names.entry(id).or_default() += 1);
    })?;
    let more_of = |id: SliceId| names.get(&id).map_or(0, |count| count - 1);
    let mut wrong = Wrong::default();
    let ((from, to), mut counted) = (key::all_more_names(), HashSet::new());
    scan(meta, (&from, &to), &mut |key, value| {
        let Some(id) = key::named_more(key) else { return };
        counted.insert(id);
        let (stored, more) = (decode(Some(value)), more_of(id));
        if stored != more && (is_all || stored < more) {
            let right = (more > 0).then(|| more.to_le_bytes().to_vec());
            wrong.changes.push((key.to_vec(), right));
        }
    })?;
    let uncounted = names.iter().filter(|&(id, &count)| count > 1 && !counted.contains(id));
    wrong.changes.extend(uncounted.map(|(&id, count)| {
        let more = (count - 1).to_le_bytes().to_vec();
        (key::more_names(id).to_vec(), Some(more))
    }));
    let (from, to) = key::all_dead();
    scan(meta, (&from, &to), &mut |key, _| {
        if key::dead_slice(key).is_some_and(|(id, _)| names.contains_key(&id)) {
            wrong.changes.push((key.to_vec(), None));
        }
    })?;
    wrong.changes.sort_unstable();
    let mut sharing = HashSet::new();
    if names.values().any(|&count| count > 1) {
        each_chunk(meta, &mut |place, map| {
            if map.slices().any(|(id, _)| more_of(id) > 0) {
                sharing.insert(place);
            }
        })?;
    }
    for place in sharing {
        let row = meta.get(&key::blob(place))?;
        let is_silent = row.as_deref().is_some_and(|row| BlobRow::shared(row).is_some());
        wrong.unflagged.extend(is_silent.then_some(place));
    }
    Ok(wrong)
}
