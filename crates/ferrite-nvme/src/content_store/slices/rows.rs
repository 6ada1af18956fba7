//! The rows of slices in the metadata store.
//!
//! | key | value |
//! | --- | --- |
//! | `L` place | a blob: version, valid length, reserved ranges with their count first, tail |
//! | `L` place, chunk | which bytes of the chunk lie in which slices (`ferrite_slices::SliceMap`) |
//! | `Z` `C` epoch, number | how many chunks name a slice besides the first (`names`) |
//! | `Z` `G` log | the last term in which a log got changes: epoch and number of restarts |
//! | `Z` `L` place | the mark of a blob with changes that are durable in a log alone (`mark`) |
//! | `Z` `S` epoch, number | a slice whose object may be there or come, and that no chunk names |
//! | `Z` `D` time, epoch, number | a slice that no chunk names any more; its object goes after this time (seconds) |
//! | `Y` | the bytes that chunks name, as of an orderly end |
//!
//! Invariants: a slice is staged before its object is sent. One transaction publishes it: it makes chunks name the
//! slice and removes `Z S`. One transaction makes it dead: it removes the last name and adds `Z D`. An object goes
//! before its row `Z D`. So every object that exists is named by a chunk or has a row.
//!
//! A blob whose slices others may name says so in its row, from the transaction on that makes the first of them do so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_meta::{MetaStore, Transaction};
use ferrite_slices::{SliceId, SliceMap};
use ferrite_wal::Term;

use super::blob_row::BlobRow;
use super::mark::Mark;
use super::names::{self, ChunkRow};
use crate::content_store::{Error, Place, Result};
use crate::format::key;

/// Rows that one transaction changes, where it is up to this module.
pub(super) const MANY: usize = 512;

/// A step of a blob: what becomes durable together.
#[derive(Debug, Default)]
pub(super) struct Publication {
    /// Chunks as they are now; `None`: without any extent.
    pub(super) chunks: Vec<ChunkRow>,
    /// The blob's own row, if it changes.
    pub(super) row: Option<BlobRow>,
    /// Slices that were staged, and are no longer: they are named, or among the unnamed.
    pub(super) fresh: Vec<SliceId>,
    /// Slices that the blob does not name any more, each with the time at which its object may go if no other does.
    pub(super) dead: Vec<(SliceId, u64)>,
    /// If other blobs may name them: when the objects may go of slices that only the stored rows still name.
    pub(super) shares: Option<u64>,
    /// The mark, if it changes.
    pub(super) mark: Option<Option<Mark>>,
}

/// The rows of a pool.
pub(super) struct Rows {
    meta: Arc<dyn MetaStore>,
    /// The epoch of the owner that has taken over, once the store said so.
    newer: AtomicU64,
    /// The pool is being opened: what that needs may take space that is kept for removals. A step that removes
    /// something may.
    is_opening: AtomicBool,
}

impl Rows {
    pub(super) fn new(meta: Arc<dyn MetaStore>) -> Rows {
        Rows {
            meta,
            newer: AtomicU64::new(0),
            is_opening: AtomicBool::new(false),
        }
    }

    /// The pool is being opened, or has been.
    pub(super) fn note_opening(&self, is_opening: bool) {
        self.is_opening.store(is_opening, Ordering::Release);
    }

    /// Puts a row, also if only space is left that is kept for removals.
    fn put_for_opening(&self, txn: &mut dyn Transaction, key: &[u8], value: &[u8]) -> ferrite_meta::Result<()> {
        if self.is_opening.load(Ordering::Acquire) {
            txn.delete(key)?;
        }
        txn.put(key, value)
    }

    pub(super) fn health(&self) -> Result<()> {
        match self.newer.load(Ordering::Acquire) {
            0 => Ok(()),
            epoch => Err(Error::Fenced { epoch }),
        }
    }

    fn failed(&self, error: ferrite_meta::Error) -> Error {
        match error {
            ferrite_meta::Error::NoSpace(_) => Error::NoSpace,
            ferrite_meta::Error::Corruption(what) => Error::Damaged(what),
            ferrite_meta::Error::Unknown(what) => Error::Unknown(what),
            ferrite_meta::Error::Lost { epoch } => {
                self.newer.store(epoch, Ordering::Release);
                Error::Fenced { epoch }
            }
            other => Error::Failed(other.to_string()),
        }
    }

    /// Changes rows in one transaction, durable when it returns. Keys are locked in the order of their bytes.
    fn change(&self, change: impl FnOnce(&mut dyn Transaction) -> ferrite_meta::Result<()>) -> Result<()> {
        let mut txn = self.meta.begin();
        let done = change(&mut *txn).and_then(|()| txn.commit());
        let done = done.and_then(|()| self.meta.sync());
        done.map_err(|error| self.failed(error))
    }

    fn scan(&self, from: &[u8], to: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let done = self.meta.scan(from, to, &mut |key, value| match visit(key, value) {
            true => std::ops::ControlFlow::Continue(()),
            false => std::ops::ControlFlow::Break(()),
        });
        done.map_err(|error| self.failed(error))
    }

    /// Makes the row of an empty blob.
    pub(super) fn create(&self, place: Place) -> Result<()> {
        let key = key::blob(place);
        let mut txn = self.meta.begin();
        let found = txn.get_for_update(&key, ferrite_meta::Lock::Exclusive);
        if found.map_err(|error| self.failed(error))?.is_some() {
            return Err(Error::Exists);
        }
        let done = txn
            .put(&key, &BlobRow::default().encode())
            .and_then(|()| txn.commit())
            .and_then(|()| self.meta.sync());
        done.map_err(|error| self.failed(error))
    }

    /// A blob and its map.
    pub(super) fn load(&self, place: Place) -> Result<(BlobRow, SliceMap)> {
        let (from, to) = key::rows_of_blob(place);
        let (mut row, mut map, mut wrong) = (None, SliceMap::default(), None);
        self.scan(&from, &to, |key, value| {
            match key.strip_prefix(&*from).map(<[u8; 8]>::try_from) {
                Some(Err(_)) if key.len() == from.len() => row = Some(BlobRow::decode(value)),
                Some(Ok(chunk)) if map.add_chunk(u64::from_be_bytes(chunk), value).is_some() => {}
                _ => wrong = Some(key.to_vec()),
            }
            true
        })?;
        let damaged = || Error::Damaged(format!("a row of {place} in the metadata cannot be read"));
        match (row, wrong) {
            (None, None) => Err(Error::NotFound),
            (Some(Some(row)), None) => Ok((row, map)),
            _ => Err(damaged()),
        }
    }

    /// Makes a step of a blob durable.
    pub(super) fn publish(&self, place: Place, mut of: Publication) -> Result<()> {
        of.fresh.sort_unstable();
        of.dead.sort_unstable_by_key(|&(id, time)| (time, id));
        self.change(|txn| {
            if let Some(row) = &of.row {
                txn.put(&key::blob(place), &row.encode())?;
            }
            if let Some(time) = of.shares {
                of.dead = names::leave(txn, place, (&of.chunks, &of.dead), time)?;
            }
            put_chunks(txn, place, &of.chunks)?;
            put_states(txn, &of)?;
            match &of.mark {
                Some(Some(mark)) => txn.put(&key::mark(place), &mark.encode()),
                Some(None) => txn.delete(&key::mark(place)),
                None => Ok(()),
            }
        })
    }

    /// Makes chunks of `to` name slices that `from` names. Both rows are to say that they share some.
    pub(super) fn share(
        &self,
        (from, to): (Place, Place),
        rows: (&BlobRow, &BlobRow),
        chunks: &[ChunkRow],
        slices: &[SliceId],
    ) -> Result<()> {
        debug_assert!(rows.0.shares && rows.1.shares);
        self.change(|txn| {
            txn.put(&key::blob(from), &rows.0.encode())?;
            txn.put(&key::blob(to), &rows.1.encode())?;
            names::add(txn, slices)?;
            put_chunks(txn, to, chunks)
        })
    }

    /// The rows on names of slices that are wrong. The pool may be in use: what is wrong stays so.
    pub(super) fn wrong_names(&self) -> Result<names::Wrong> {
        let count = || names::count(&*self.meta).map_err(|error| self.failed(error));
        let mut wrong = count()?;
        if !wrong.is_empty() {
            wrong.retain(&count()?);
        }
        Ok(wrong)
    }

    /// Mends them. Nobody changes them meanwhile, and blobs in use know that they share slices.
    pub(super) fn mend_names(&self, wrong: &names::Wrong) -> Result<()> {
        for some in wrong.changes.chunks(MANY) {
            self.change(|txn| {
                some.iter().try_for_each(|(key, value)| match value {
                    Some(value) => txn.put(key, value),
                    None => txn.delete(key),
                })
            })?;
        }
        for some in wrong.unflagged.chunks(MANY) {
            self.change(|txn| some.iter().try_for_each(|&place| names::flag(txn, place)))?;
        }
        Ok(())
    }

    /// Stores the mark of a blob.
    pub(super) fn put_mark(&self, place: Place, mark: &Mark) -> Result<()> {
        self.change(|txn| self.put_for_opening(txn, &key::mark(place), &mark.encode()))
    }

    pub(super) fn remove_mark(&self, place: Place) -> Result<()> {
        self.change(|txn| txn.delete(&key::mark(place)))
    }

    /// The mark of a blob.
    pub(super) fn mark(&self, place: Place) -> Result<Option<Mark>> {
        let mark = self.meta.get(&key::mark(place)).map_err(|error| self.failed(error))?;
        Ok(mark.map(|mark| Mark::decode(&mark).unwrap_or_else(Mark::unreadable)))
    }

    /// The last term in which a log got changes.
    pub(super) fn log_term(&self, log: [u8; 16]) -> Result<Term> {
        let found = self.meta.get(&key::log_term(log)).map_err(|error| self.failed(error))?;
        let Some(row) = found else { return Ok(Term::default()) };
        match row.as_chunks() {
            (&[epoch, restarts], []) => Ok(Term {
                epoch: u64::from_le_bytes(epoch),
                restarts: u64::from_le_bytes(restarts),
            }),
            _ => Err(Error::Damaged("the row of a log in the metadata cannot be read".into())),
        }
    }

    pub(super) fn put_log_term(&self, log: [u8; 16], term: Term) -> Result<()> {
        let row = [term.epoch.to_le_bytes(), term.restarts.to_le_bytes()].concat();
        self.change(|txn| self.put_for_opening(txn, &key::log_term(log), &row))
    }

    /// All marks.
    pub(super) fn marks(&self) -> Result<Vec<(Place, Mark)>> {
        let (from, to) = key::all_marks();
        let mut marks = Vec::new();
        self.scan(&from, &to, |key, value| {
            // A key that names no blob concerns none.
            let place = key::marked(key);
            marks.extend(place.map(|place| (place, Mark::decode(value).unwrap_or_else(Mark::unreadable))));
            true
        })?;
        Ok(marks)
    }

    /// Refuses an owner whose time is over.
    pub(super) fn check_owner(&self) -> Result<()> {
        self.health()?;
        let may_promise = self.meta.may_answer().and_then(|()| self.meta.health());
        may_promise.map_err(|error| self.failed(error))
    }

    /// Removes a blob's own row, the last one.
    pub(super) fn remove(&self, place: Place) -> Result<()> {
        self.change(|txn| {
            txn.delete(&key::blob(place))?;
            txn.delete(&key::mark(place))
        })
    }

    /// Removes all rows of a blob, some of which cannot be read: a comparison finds its objects.
    pub(super) fn remove_unreadable(&self, place: Place) -> Result<()> {
        let (from, to) = key::rows_of_blob(place);
        let mut keys = Vec::new();
        self.scan(&from, &to, |key, _| {
            keys.push(key.to_vec());
            true
        })?;
        // Its own row, which is the first key, goes last.
        keys.reverse();
        self.remove_mark(place)?;
        for some in keys.chunks(MANY) {
            self.change(|txn| some.iter().rev().try_for_each(|key| txn.delete(key)))?;
        }
        Ok(())
    }

    /// Removes rows of chunks that cannot be read, whose bytes are holes then, and rows of nothing. Returns how many.
    pub(super) fn remove_unreadable_chunks(&self) -> Result<usize> {
        let mut keys = Vec::new();
        let (from, to) = key::all_of(b'L');
        self.scan(&from, &to, |key, value| {
            let is_readable = match key::blob_row(key) {
                Some((_, Some(chunk))) => SliceMap::default().add_chunk(chunk, value).is_some(),
                Some((_, None)) => true,
                None => false,
            };
            if !is_readable {
                keys.push(key.to_vec());
            }
            true
        })?;
        for some in keys.chunks(MANY) {
            self.change(|txn| some.iter().try_for_each(|key| txn.delete(key)))?;
        }
        Ok(keys.len())
    }

    /// Makes slices dead whose objects nothing knows.
    pub(super) fn bury(&self, slices: &[SliceId], time: u64) -> Result<()> {
        for some in slices.chunks(MANY) {
            self.change(|txn| some.iter().try_for_each(|&id| txn.put(&key::dead(time, id), b"")))?;
        }
        Ok(())
    }

    /// Stages slices, before their objects are sent.
    pub(super) fn stage(&self, slices: impl Iterator<Item = SliceId>) -> Result<()> {
        self.change(|txn| {
            for id in slices {
                self.put_for_opening(txn, &key::staged(id), b"")?;
            }
            Ok(())
        })
    }

    /// Removes rows of slices that were staged, and whose objects were never sent.
    pub(super) fn unstage(&self, slices: impl Iterator<Item = SliceId>) -> Result<()> {
        self.change(|txn| {
            for id in slices {
                txn.delete(&key::staged(id))?;
            }
            Ok(())
        })
    }

    /// Makes slices that earlier owners have staged dead. Their objects may still be on the way.
    pub(super) fn bury_staged(&self, before_epoch: u64, time: u64) -> Result<u64> {
        let (from, to) = key::all_staged();
        let mut staged = Vec::new();
        self.scan(&from, &to, |key, _| {
            staged.extend(key::staged_slice(key).filter(|id| id.epoch < before_epoch));
            true
        })?;
        for some in staged.chunks(MANY) {
            self.change(|txn| {
                for &id in some {
                    txn.put(&key::dead(time, id), b"")?;
                }
                for &id in some {
                    txn.delete(&key::staged(id))?;
                }
                Ok(())
            })?;
        }
        Ok(staged.len() as u64)
    }

    /// Up to `count` dead slices whose time has come, the first ones first, each with its time.
    pub(super) fn due(&self, now: u64, count: usize) -> Result<Vec<(SliceId, u64)>> {
        let (from, to) = key::all_dead();
        let mut due = Vec::new();
        self.scan(&from, &to, |key, _| {
            let found = key::dead_slice(key).filter(|&(_, time)| time <= now);
            due.extend(found);
            found.is_some() && due.len() < count
        })?;
        Ok(due)
    }

    /// Forgets dead slices whose objects are gone.
    pub(super) fn forget_dead(&self, slices: &[(SliceId, u64)]) -> Result<()> {
        self.change(|txn| {
            for &(id, time) in slices {
                txn.delete(&key::dead(time, id))?;
            }
            Ok(())
        })
    }

    /// Every row of a slice that no chunk names: staged ones with `None`, dead ones with their time.
    pub(super) fn each_state(&self, mut visit: impl FnMut(SliceId, Option<u64>)) -> Result<()> {
        let (from, to) = key::all_states();
        self.scan(&from, &to, |key, _| {
            if let Some((id, time)) = key::dead_slice(key) {
                visit(id, Some(time));
            } else if let Some(id) = key::staged_slice(key) {
                visit(id, None);
            }
            true
        })
    }

    /// Every row of a blob: its place, and the chunk and value unless it is the blob's own. `None`: no place.
    pub(super) fn each_blob_row(&self, mut visit: impl FnMut(Option<(Place, Option<u64>)>, &[u8])) -> Result<()> {
        let (from, to) = key::all_of(b'L');
        self.scan(&from, &to, |key, value| {
            visit(key::blob_row(key), value);
            true
        })
    }

    /// The bytes that chunks name: as of an orderly end if there was one, and then the record of it is gone; else
    /// counted.
    pub(super) fn take_usage(&self) -> Result<u64> {
        let kept = self.meta.get(key::USAGE).map_err(|error| self.failed(error))?;
        if let Some(kept) = kept.and_then(|value| value.try_into().ok()) {
            self.change(|txn| txn.delete(key::USAGE))?;
            return Ok(u64::from_le_bytes(kept));
        }
        self.count_usage()
    }

    /// The same, without a change.
    pub(super) fn usage(&self) -> Result<u64> {
        let kept = self.meta.get(key::USAGE).map_err(|error| self.failed(error))?;
        match kept.and_then(|value| value.try_into().ok()) {
            Some(kept) => Ok(u64::from_le_bytes(kept)),
            None => self.count_usage(),
        }
    }

    fn count_usage(&self) -> Result<u64> {
        let mut bytes = 0;
        self.each_blob_row(|at, value| {
            if let Some((_, Some(chunk))) = at {
                let mut map = SliceMap::default();
                let _ = map.add_chunk(chunk, value);
                bytes += map.bytes();
            }
        })?;
        Ok(bytes)
    }

    pub(super) fn keep_usage(&self, bytes: u64) -> Result<()> {
        self.change(|txn| txn.put(key::USAGE, &bytes.to_le_bytes()))
    }
}

fn put_chunks(txn: &mut dyn Transaction, place: Place, chunks: &[ChunkRow]) -> ferrite_meta::Result<()> {
    for (chunk, value) in chunks {
        match value {
            Some(value) => txn.put(&key::chunk(place, *chunk), value)?,
            None => txn.delete(&key::chunk(place, *chunk))?,
        }
    }
    Ok(())
}

fn put_states(txn: &mut dyn Transaction, of: &Publication) -> ferrite_meta::Result<()> {
    if !is_seeded(Bug::DeadSliceForgotten) {
        for &(id, time) in &of.dead {
            txn.put(&key::dead(time, id), b"")?;
        }
    }
    for &id in &of.fresh {
        txn.delete(&key::staged(id))?;
    }
    Ok(())
}
