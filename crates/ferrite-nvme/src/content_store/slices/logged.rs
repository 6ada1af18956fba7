//! Changes in a write-ahead log, which makes them durable before they are in the bucket.
//!
//! A change is appended to the log as it is made. [`SharedBlob::sync_in_log`] makes the log durable, and then a mark
//! in the rows (`mark`), unless there is one already: so an `fsync` costs one write to the log's device. A publication
//! removes the mark in its last transaction; the space of its records is free after it.
//!
//! Invariants:
//! * The log has the changes of a blob from the last publication on, in order and without a gap, or the blob counts as
//!   *unlogged*: its changes are durable by publications alone, until one has them all. A change that the log does not
//!   take, for want of space or because its device failed, makes its blob unlogged.
//! * The head of the log is not behind the first record of any blob that is not published.
//!
//! # Crashes
//!
//! A new owner with the log makes its changes again ([`replay`]), of blobs with a mark, from the mark's position on.
//! They may be in the rows already, in part or whole; `change` says why that does no harm. No publication is made
//! meanwhile: it would remove a mark whose changes are not all made. Records without a mark are of changes that nobody
//! was promised, or of blobs that are published or gone.
//!
//! Without the log, or with another one, the bytes that marks name are not to be had: reads of them, and changes of
//! their blobs, are errors. The marks stay until the log comes back, or somebody gives its changes up.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_slices::CHUNK_BYTES;
use ferrite_wal::{Error as LogError, Position};

use super::blob::{LONG_BYTES, SharedBlob};
use super::change::{Change, InCall};
use super::handles;
use super::log_state::{ChangeLog, Logged};
use super::mark::{Chunks, Mark, chunks_of, few};
use super::state::State;
use super::store::{Store, id_of};
use crate::content_store::{Error, Place, Result, UniqueId};

/// The bytes of a record besides those of a write, with those of a tail.
const RECORD_BYTES_MORE: usize = 512;
/// The part of the log that writes leave to changes that do not wait for space.
const FREE_PART: u64 = 16;
/// The records of one call. Longer ones are not in a log.
const CALL_BYTES_MAX: u64 = LONG_BYTES + (1 << 20);

/// The chunks that a change touches in a blob whose bytes end at `end`. With bytes behind the end, the last one before
/// it is not the last any more, and those between have become zeros.
fn touched(change: &Change<'_>, end: u64) -> Chunks {
    let mut bytes = change.bytes(end);
    if bytes.end > end {
        bytes.start = bytes.start.min(end.saturating_sub(1));
    }
    match bytes.is_empty() {
        true => Chunks::new(),
        false => std::iter::once(chunks_of(&bytes)).collect(),
    }
}

impl SharedBlob {
    /// Appends changes to the log, a part of a call or all of it, as `place` says. The caller has `changing`, has
    /// noted that the blob has changes, and has yet to make them in the state. Waits for the log's device only where a
    /// group is full. Returns the position of the last one, if the log has them.
    pub(super) fn log(&self, state: &mut State, changes: &[Change<'_>], place: InCall) -> Option<Position> {
        let log = self.store.log.as_deref()?;
        let mut last = None;
        let done = match state.log.is_unlogged() || !log.is_used() {
            true => Err(LogError::Full),
            false => changes.iter().enumerate().try_for_each(|(index, change)| {
                let place = InCall {
                    is_first: place.is_first && index == 0,
                    is_last: place.is_last && index + 1 == changes.len(),
                };
                let (header, data) = change.encode(self.id, place);
                let position = log.wal.append(&[&header, data])?;
                state.log.add(position, touched(change, state.row.valid_len), false);
                last = Some(position);
                Ok(())
            }),
        };
        state.log.note_change(done.is_ok());
        last.filter(|_| done.is_ok())
    }

    /// Waits until the log has space for a write of so many bytes, and for small changes besides; what it has goes to
    /// the bucket meanwhile. The caller has no lock. `false`: the write has to pass the log, since a blob that cannot
    /// be published keeps it full.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the bucket takes nothing; that the owner's time is over.
    pub(super) fn wait_for_log(&self, bytes: u64) -> Result<bool> {
        let Some(log) = self.store.log.as_deref().filter(|log| log.is_used()) else {
            return Ok(true);
        };
        let is_full = || {
            let usage = log.wal.usage();
            let most = usage.bytes - usage.bytes / FREE_PART;
            usage.used_bytes > 0 && usage.used_bytes + bytes.min(most / 2) > most && log.wal.failure().is_none()
        };
        if !is_full() || self.state.lock().log.is_unlogged() {
            return Ok(true);
        }
        let waited = self.store.wait_while(0, || is_full() && !is_stuck(&self.store));
        if is_stuck(&self.store) {
            return Ok(!is_full());
        }
        waited.map(|()| true).or_else(|error| {
            self.store.check_changes()?;
            tracing::warn!(%error, log = log.name, "the log is full");
            Err(Error::NoSpace)
        })
    }

    /// Makes room in the log for a record of a write, so that [`Self::log`] does not wait for its device under the
    /// blob's state. The caller has `changing`.
    pub(super) fn make_room(&self, bytes: usize) {
        if let Some(log) = self.store.log.as_deref().filter(|log| log.is_used()) {
            log.wal.make_room(bytes + RECORD_BYTES_MORE);
        }
    }

    /// The next change is not in the log. The caller has `changing`.
    pub(super) fn pass_log(&self, state: &mut State) {
        state.log.note_change(false);
    }

    /// Makes all earlier changes durable in the log. `false`: it has not all of them, so a publication must.
    ///
    /// # Errors
    /// Errors of the rows: the changes are not durable.
    pub(super) fn sync_in_log(&self) -> Result<bool> {
        // With one of its devices alone, what it has is not promised.
        let Some(log) = self.store.log.as_deref().filter(|log| log.is_used()) else {
            return Ok(false);
        };
        let _marking = self.marking.lock();
        let (needed, mark) = {
            let state = self.state.lock();
            if state.is_gone() {
                return Err(Error::NotFound);
            }
            if state.log.is_unlogged() {
                return Ok(false);
            }
            (state.log.needed(), state.log.mark().cloned())
        };
        let Some(needed) = needed else {
            return Ok(self.state.lock().is_published());
        };
        if let Err(error) = log.wal.sync() {
            log.note_failure(&error);
            return Ok(false);
        }
        let head = log.wal.head().record;
        let covers = |mark: &Mark| {
            (mark.log == log.wal.id() && mark.from >= head) && mark.covers(needed.from.record, &needed.chunks)
        };
        let mark = match mark.filter(covers) {
            Some(mark) => mark,
            None => self.put_mark(log, &needed)?,
        };
        self.state
            .lock()
            .log
            .note_mark(mark, |position| log.wal.is_durable(position));
        // An owner whose time is over promises nothing.
        self.store.rows.check_owner()?;
        Ok(true)
    }

    /// Stores the mark of changes that are durable in the log.
    fn put_mark(&self, log: &ChangeLog, needed: &Logged) -> Result<Mark> {
        let mark = Mark {
            log: log.wal.id(),
            name: log.name.clone(),
            from: needed.from.record,
            chunks: few(&needed.chunks),
        };
        if !is_seeded(Bug::LoggedUnmarked) {
            let put = self.store.rows.put_mark(self.place, &mark);
            put.inspect_err(|_| self.state.lock().log.doubt_mark())?;
        }
        Ok(mark)
    }

    /// Whether all earlier changes are durable in the log. Does not wait.
    pub(super) fn is_synced_in_log(&self, state: &State) -> bool {
        let Some(log) = self.store.log.as_deref().filter(|log| log.is_used()) else {
            return false;
        };
        let is_covered = |needed: &Logged| {
            let mark = state.log.mark().filter(|mark| mark.log == log.wal.id());
            mark.is_some_and(|mark| mark.covers(needed.from.record, &needed.chunks)) && needed.is_marked
        };
        // A publication under way may remove the mark.
        let is_all = !state.log.is_unlogged() && !state.log.is_publishing() && log.wal.usage().is_durable;
        is_all && state.log.needed().is_some_and(|needed| is_covered(&needed))
    }

    /// Makes a change of the log again. The caller has `changing`.
    fn redo(self: &Arc<Self>, position: Position, change: &Change<'_>) -> Result<()> {
        if let Change::Write { offset, data } = *change {
            let end = self.state.lock().row.valid_len;
            self.write_logged(data, offset, (Some(position), true))?;
            self.state.lock().log.add(position, touched(change, end), true);
            return Ok(());
        }
        let mut state = self.state.lock();
        let touched = touched(change, state.row.valid_len);
        let lost = state.apply(change);
        state.unpublished.row = true;
        state.log.add(position, touched, true);
        self.store.note_changes(self.id, self);
        drop(state);
        self.store.count_buffered(0, lost);
        Ok(())
    }
}

/// Changes of a call that was read in part, and their bytes.
#[derive(Default)]
struct Parts {
    changes: Vec<(Position, Vec<u8>)>,
    bytes: u64,
}

/// Begins to use the log, unless an owner since has appended to another copy of it.
///
/// The log says so before the rows do: a crash in between leaves a log that is newer than they know. An owner that does
/// not append says nothing: an older copy lacks nothing of it.
///
/// # Errors
/// It is an older copy; errors of the rows and of the log's device.
pub(super) fn begin(store: &Store, epoch: u64) -> Result<()> {
    let Some(log) = store.log.as_deref() else { return Ok(()) };
    let id = log.wal.id();
    let is_stale = log.wal.term() < store.rows.log_term(id)? && !is_seeded(Bug::StaleCopyUsed);
    // Without a mark, nobody was promised any change that it lacks.
    if is_stale && store.rows.marks()?.iter().any(|(_, mark)| mark.log == id) {
        return Err(Error::Failed(format!(
            "{}: it is an older copy of the log, which lacks later changes; name the newer copy in `[tier]`, or \
             another device, and give what is staged up by `ferrite fsck --forget-staged`",
            log.name
        )));
    }
    if !log.is_used() {
        return Ok(());
    }
    match (log.wal.begin(epoch), &log.far) {
        (Ok(()), _) => store.rows.put_log_term(id, log.wal.term()),
        // One device is enough to read it.
        (Err(error), Some(far)) => {
            log.note_failure(&error);
            far.lose();
            Ok(())
        }
        (Err(error), None) => Err(Error::Failed(error.to_string())),
    }
}

/// Makes the changes again that a log has and the rows may lack, and finds out whether other logs have some. Its
/// changes are published later.
///
/// # Errors
/// Damage of the log; errors of the rows; the bucket is not to be had, and the log has more than there is memory for.
pub(super) fn replay(store: &Arc<Store>) -> Result<()> {
    let known = store.log.as_deref().map(|log| log.wal.id());
    let is_elsewhere = !staged_elsewhere(store, known)?.is_empty();
    store.has_lost.store(is_elsewhere, Ordering::Relaxed);
    let Some(log) = store.log.as_deref() else { return Ok(()) };
    let mut blobs = marked(store, log)?;
    let (mut parts, mut redone, mut failure) = (HashMap::new(), 0, None);
    let read = log.wal.replay(|position, record| {
        let done = read_again(log, &mut blobs, &mut parts, position, record);
        done.map(|count| redone += count).map_err(|error| {
            let text = error.to_string();
            failure = Some(error);
            text
        })
    });
    if let Some(error) = failure {
        return Err(error);
    }
    read.map_err(|error| match error {
        LogError::Damaged(what) => Error::Damaged(what),
        other => Error::Failed(other.to_string()),
    })?;
    blobs
        .into_values()
        .try_for_each(|marked| settle_mark(store, log, marked))?;
    if redone > 0 {
        tracing::info!(
            changes = redone,
            log = log.name,
            "changes are published that were staged"
        );
    }
    Ok(())
}

/// A record of the log. Returns how many changes were made again.
fn read_again(
    log: &ChangeLog,
    blobs: &mut HashMap<UniqueId, Marked>,
    parts: &mut HashMap<UniqueId, Parts>,
    position: Position,
    record: &[u8],
) -> Result<u64> {
    let damaged = || Error::Damaged(format!("{}: it has a record that cannot be read", log.name));
    let (of, place, change) = Change::decode(record).ok_or_else(damaged)?;
    let Some((blob, mark, is_found)) = blobs.get_mut(&of) else {
        return Ok(0);
    };
    if matches!(change, Change::Copy(_)) {
        return Ok(0);
    }
    // Metadata that was restored from a backup has marks of records that were freed since.
    *is_found |= position.record >= mark.from && mark.from >= log.wal.head().record;
    if !*is_found || position.record < mark.from {
        return Ok(0);
    }
    let waiting = parts.entry(of).or_default();
    if place.is_first {
        // A crash has cut the call before it off.
        *waiting = Parts::default();
    }
    waiting.bytes += record.len() as u64;
    if waiting.bytes > CALL_BYTES_MAX {
        return Err(damaged());
    }
    waiting.changes.push((position, record.to_vec()));
    if !place.is_last {
        return Ok(0);
    }
    let whole = std::mem::take(waiting).changes;
    let _changing = blob.changing.lock();
    for (position, record) in &whole {
        let (_, _, change) = Change::decode(record).ok_or_else(damaged)?;
        blob.redo(*position, &change)?;
    }
    Ok(whole.len() as u64)
}

/// Has a mark say that no log has its changes.
fn lose(store: &Store, place: Place, mark: Mark) -> Result<Mark> {
    let lost = Mark { log: [0; 16], ..mark };
    store.has_lost.store(true, Ordering::Relaxed);
    store.rows.put_mark(place, &lost)?;
    Ok(lost)
}

/// Has a mark say exactly what was made again: nothing, if a crash has cut its only call off.
fn settle_mark(store: &Store, log: &ChangeLog, (blob, mark, is_found): Marked) -> Result<()> {
    if !is_found {
        tracing::error!(place = %blob.place, log = mark.name, "changes that were staged are gone");
        let mark = lose(store, blob.place, mark)?;
        blob.state.lock().log.lose(mark);
        return Ok(());
    }
    let needed = blob.state.lock().log.needed();
    match needed {
        None => {
            store.rows.remove_mark(blob.place)?;
            blob.state.lock().log.forget_mark();
        }
        Some(needed) if needed.from.record > mark.from => {
            let mark = blob.put_mark(log, &needed)?;
            blob.state.lock().log.note_mark(mark, |_| true);
        }
        Some(_) => {}
    }
    Ok(())
}

/// A blob with a mark of this log, the mark, and whether the log has a record of it.
type Marked = (Arc<SharedBlob>, Mark, bool);

/// The blobs that have marks of this log. They stay in memory from now on.
fn marked(store: &Arc<Store>, log: &ChangeLog) -> Result<HashMap<UniqueId, Marked>> {
    let mut blobs = HashMap::new();
    for (place, mark) in store.rows.marks()? {
        if mark.log != log.wal.id() {
            continue;
        }
        match handles::open(store, place) {
            Ok(blob) => {
                blobs.insert(id_of(place)?, (blob, mark, false));
            }
            Err(Error::NotFound) => store.rows.remove_mark(place)?,
            // Its rows are damaged: no change of it matters before they are mended.
            Err(Error::Damaged(what)) => {
                tracing::error!(%place, what, "changes that were staged cannot be made again");
                lose(store, place, mark)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(blobs)
}

/// Frees the space of records that are published.
pub(super) fn trim(store: &Store) {
    let Some(log) = store.log.as_deref() else { return };
    if store.is_replaying.load(Ordering::Acquire) || log.wal.failure().is_some() {
        return;
    }
    // First: a change that is appended later has this position, or one behind it.
    let mut to = log.wal.end();
    for blob in handles::unpublished(store, Duration::ZERO) {
        let kept = blob.state.lock().kept_from();
        if !is_seeded(Bug::LogTrimmedEarly) {
            to = to.min(kept.unwrap_or(to));
        }
    }
    // A store that is abandoned forgets its blobs, and says so before.
    if store.is_over() {
        return;
    }
    match log.wal.trim(to) {
        Ok(()) => store.note_log_space(),
        Err(error) => log.note_failure(&error),
    }
}

/// Whether the blob that the log is kept for has only slices that cannot be read any more, whatever the bucket does.
fn is_stuck(store: &Store) -> bool {
    let blobs = handles::unpublished(store, Duration::ZERO);
    let kept = blobs.iter().filter_map(|blob| {
        let state = blob.state.lock();
        state.kept_from().map(|from| (from, state.is_stuck()))
    });
    kept.min_by_key(|&(from, _)| from).is_some_and(|(_, is_stuck)| is_stuck)
}

/// Whether the log should be emptied, for want of space or because it is of no use any more.
pub(super) fn is_short(store: &Store) -> bool {
    store.log.as_deref().is_some_and(|log| {
        let usage = log.wal.usage();
        match log.is_used() && log.wal.failure().is_none() {
            true => usage.used_bytes > usage.bytes / 2,
            false => has_any(store),
        }
    })
}

/// Whether the log has changes of any blob that are not published.
fn has_any(store: &Store) -> bool {
    let blobs = handles::unpublished(store, Duration::ZERO);
    blobs.iter().any(|blob| blob.state.lock().log.kept_from().is_some())
}

/// A blob with changes in a log that is not here.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StagedElsewhere {
    /// The blob.
    pub place: Place,
    /// The log's device and machine.
    pub log: String,
    /// The bytes that cannot be read.
    pub bytes: Vec<Range<u64>>,
}

/// The blobs with changes in logs other than this one.
pub(super) fn staged_elsewhere(store: &Store, known: Option<[u8; 16]>) -> Result<Vec<StagedElsewhere>> {
    let marks = store.rows.marks()?.into_iter();
    let elsewhere = marks.filter(|(_, mark)| Some(mark.log) != known);
    let bytes = |chunks: &Chunks| {
        let range =
            |chunks: &Range<u64>| chunks.start.saturating_mul(CHUNK_BYTES)..chunks.end.saturating_mul(CHUNK_BYTES);
        chunks.iter().map(range).collect()
    };
    Ok(elsewhere
        .map(|(place, mark)| StagedElsewhere {
            place,
            bytes: bytes(&mark.chunks),
            log: mark.name,
        })
        .collect())
}

/// Gives up changes that are not to be had: the blob is as it was published. Its mark goes with its next publication.
pub(super) fn give_up(store: &Arc<Store>, place: Place) -> Result<Arc<SharedBlob>> {
    store.check_changes()?;
    let blob = handles::open(store, place)?;
    blob.state.lock().log.give_up();
    Ok(blob)
}

/// Removes the marks of other logs that blobs still have.
pub(super) fn forget_marks(store: &Store) -> Result<()> {
    store.check_changes()?;
    let own = store.log.as_deref().map(|log| log.wal.id());
    let left = staged_elsewhere(store, own)?;
    left.iter().try_for_each(|one| store.rows.remove_mark(one.place))
}
