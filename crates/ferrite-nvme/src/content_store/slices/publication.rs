//! Publications: by one transaction each, the changes of a blob become durable.
//!
//! A publication is of one moment, at which no change is under way. It names the slices of this moment, so it waits for
//! their objects first; changes go on meanwhile, and are of the next one. If it fails, it gives back all that it took
//! from `unpublished`: the next one has it again. One that is too large for a transaction is several, chunk by chunk,
//! the tail with the last.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_slices::{BLOCK_BYTES, CHUNK_BYTES, Error as BucketError, SliceId};

use super::blob::SharedBlob;
use super::log_state::LogMoment;
use super::rows::Publication;
use super::state::{State, Unpublished};
use crate::content_store::{Error, Result};

/// Blocks of more slices than this, or with so many extents more than they need, are written anew.
const SLICES_MAX: usize = 32;
/// Rows and bytes of a transaction, below what a database takes (4,096 and 4 MiB).
pub(super) const STEP_ROWS_MAX: usize = 3000;
pub(super) const STEP_BYTES_MAX: usize = 2 << 20;
/// Bytes of dead slices that a block may have besides a fifth of its live ones.
const DEAD_BYTES_MAX: u64 = 256 << 10;

/// How long the keeper waits for the objects of a blob: others need it, too.
const TURN_MAX: Duration = Duration::from_secs(5);
/// How long a thread waits at a time for an object.
const WAIT: Duration = Duration::from_millis(100);
/// How often it looks at all of them.
const LOOK: Duration = Duration::from_millis(10);

/// A moment of a blob.
struct Moment {
    taken: Unpublished,
    steps: Vec<Publication>,
    /// Slices whose objects have yet to arrive.
    awaited: Vec<SliceId>,
    bytes: u64,
    log: LogMoment,
}

/// How long a publication waits for whoever changes the blob, or publishes it.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// As long as it takes.
    Any,
    /// At most so long.
    Within(Duration),
}

impl SharedBlob {
    /// Sends the objects of all that was written.
    pub(super) fn send(self: &Arc<Self>) -> Result<()> {
        let _changing = self.changing.lock();
        self.seal_all()
    }

    /// The same, unless a change is under way for longer than this: it may wait for memory that others have.
    pub(super) fn send_within(self: &Arc<Self>, time: Duration) -> Result<bool> {
        let Some(_changing) = self.changing.try_lock_for(time) else {
            return Ok(false);
        };
        self.seal_all().map(|()| true)
    }

    /// Makes all earlier changes durable.
    ///
    /// # Errors
    /// Objects that could not be stored; errors of the rows. The changes stay, and the next publication has them.
    pub(super) fn publish(self: &Arc<Self>) -> Result<()> {
        self.publish_until(Instant::now() + self.store.options.publish_timeout)
    }

    /// The same, with a deadline for objects.
    pub(super) fn publish_until(self: &Arc<Self>, until: Instant) -> Result<()> {
        self.publish_in(Turn::Any, until)
    }

    /// The same, unless others change or publish the blob for longer than this.
    pub(super) fn publish_within(self: &Arc<Self>, time: Duration) -> Result<()> {
        let until = Instant::now() + self.store.options.publish_timeout.min(TURN_MAX);
        self.publish_in(Turn::Within(time), until)
    }

    fn publish_in(self: &Arc<Self>, turn: Turn, until: Instant) -> Result<()> {
        let publishing = match turn {
            Turn::Any => Some(self.publishing.lock()),
            Turn::Within(time) => self.publishing.try_lock_for(time),
        };
        let Some(_publishing) = publishing else { return Ok(()) };
        let Some(mut moment) = self.moment(turn)? else {
            return Ok(());
        };
        let mut steps = std::mem::take(&mut moment.steps);
        let awaited = match is_seeded(Bug::PublishBeforeUpload) {
            true => Ok(()),
            false => self.wait_for_objects(&moment.awaited, turn, until),
        };
        // Later changes that the log has get their mark before this, or after it.
        let _marking = self.marking.lock();
        let mark = self.state.lock().log.next_mark();
        if let Some(last) = steps.last_mut() {
            last.mark.clone_from(&mark);
        }
        let done = awaited.and_then(|()| self.store.check_changes()).and_then(|()| {
            let mut steps = steps.into_iter();
            let done = steps.try_for_each(|step| self.store.rows.publish(self.place, step));
            done.inspect_err(|_| self.state.lock().log.doubt_mark())
        });
        let mut state = self.state.lock();
        state.is_publishing = false;
        state.log.end_moment(&moment.log, done.is_ok().then_some(mark));
        if let Err(error) = done {
            state.unpublished.take_back(moment.taken);
            return Err(error);
        }
        self.store.count_live(state.published_bytes, moment.bytes);
        state.published_bytes = moment.bytes;
        let crowded = moment
            .taken
            .blocks
            .into_iter()
            .filter(|&block| is_crowded(&state, block))
            .collect();
        let is_clean = state.unpublished.is_empty() && state.buffers.is_empty();
        let gone = match is_clean {
            true => self.store.note_published(self.id),
            false => {
                self.store.note_left(self.id);
                None
            }
        };
        drop(state);
        // The last handle takes locks as it goes.
        drop(gone);
        self.store.keeper.rewrite(self, crowded);
        Ok(())
    }

    /// The state to publish, if there is any. Its objects are on their way.
    fn moment(self: &Arc<Self>, turn: Turn) -> Result<Option<Moment>> {
        let changing = match turn {
            Turn::Any => Some(self.changing.lock()),
            Turn::Within(time) => self.changing.try_lock_for(time),
        };
        let Some(_changing) = changing else { return Ok(None) };
        if self.state.lock().is_gone() {
            return Err(Error::NotFound);
        }
        self.seal_all()?;
        let mut state = self.state.lock();
        if state.unpublished.is_empty() {
            let gone = self.store.note_published(self.id);
            drop(state);
            drop(gone);
            return Ok(None);
        }
        let taken = std::mem::take(&mut state.unpublished);
        let log = state.log.take_moment();
        state.is_publishing = true;
        let mut all = ByChunk::default();
        self.add(&mut all, &taken);
        for &chunk in &taken.chunks {
            all.chunk(chunk).0 = Some(state.map.encode_chunk(chunk));
        }
        let mut steps = all.steps();
        let shares = state.row.shares.then(|| self.store.time_of_death(false));
        steps.iter_mut().for_each(|step| step.shares = shares);
        // Last: the tail never comes before its data.
        let row = Some(state.row.clone());
        match steps.last_mut() {
            Some(last) => last.row = row,
            None => steps.push(Publication {
                row,
                ..Publication::default()
            }),
        }
        let awaited = state
            .uploads
            .keys()
            .copied()
            .filter(|&id| state.map.names(id))
            .collect();
        Ok(Some(Moment {
            bytes: state.map.bytes(),
            log,
            taken,
            steps,
            awaited,
        }))
    }

    /// Adds the states of slices that have changed.
    fn add(&self, to: &mut ByChunk, of: &Unpublished) {
        let fresh: HashSet<SliceId> = of.fresh.iter().map(|&(id, _)| id).collect();
        for &(id, chunk) in &of.fresh {
            to.chunk(chunk).1.push(id);
        }
        for &(id, chunk) in &of.unnamed {
            let time = self.store.time_of_death(fresh.contains(&id));
            to.chunk(chunk).2.push((id, time));
        }
    }

    /// Waits until these objects have arrived: until this moment, and longer as long as any objects arrive; or, for the
    /// keeper, which others need as well, any of this blob.
    fn wait_for_objects(&self, awaited: &[SliceId], turn: Turn, mut until: Instant) -> Result<()> {
        let longer = until.saturating_duration_since(Instant::now());
        let progress = |state: &State| match turn {
            Turn::Any => self.store.stored(),
            Turn::Within(_) => state.arrived,
        };
        let mut state = self.state.lock();
        let mut stored = progress(&state);
        let before: u32 = failures(&state, awaited);
        let (mut left, mut looked) = (awaited, None::<Instant>);
        loop {
            while let Some((last, others)) = left.split_last()
                && !state.uploads.contains_key(last)
            {
                left = others;
            }
            if left.is_empty() {
                return Ok(());
            }
            if state.is_unwanted {
                return Err(Error::Failed("the file is being removed".into()));
            }
            let now = Instant::now();
            if progress(&state) != stored {
                (stored, until) = (progress(&state), now + longer);
            }
            let is_late = now >= until || self.store.is_over();
            // Every object that arrives is heard of, and there may be thousands.
            if is_late || looked.is_none_or(|at| now.duration_since(at) >= LOOK) {
                looked = Some(now);
                let errors = left.iter().filter_map(|id| state.uploads.get(id)?.error.as_ref());
                let failed = errors.max_by_key(|error| error.is_refusal());
                let is_refused = failed.is_some_and(BucketError::is_refusal) && failures(&state, awaited) > before;
                if is_refused || is_late {
                    return Err(self.store.not_stored(failed));
                }
            }
            self.heard.wait_for(&mut state, WAIT);
        }
    }

    /// Removes the rows of a blob that is deleted. The caller has `publishing` and `changing`.
    pub(super) fn remove_rows(&self) -> Result<()> {
        self.reload()?;
        let steps = {
            let state = self.state.lock();
            let fresh: HashSet<SliceId> = state.unpublished.fresh.iter().map(|&(id, _)| id).collect();
            let mut all = ByChunk::default();
            self.add(&mut all, &state.unpublished);
            for &chunk in &state.unpublished.chunks {
                all.chunk(chunk).0 = Some(None);
            }
            let mut seen = HashSet::new();
            for (start, extent) in state.map.pieces(0..u64::MAX) {
                let of_chunk = all.chunk(start / CHUNK_BYTES);
                of_chunk.0 = Some(None);
                if seen.insert(extent.slice) {
                    let time = self.store.time_of_death(fresh.contains(&extent.slice));
                    of_chunk.2.push((extent.slice, time));
                }
            }
            let mut steps = all.steps();
            let shares = state.row.shares.then(|| self.store.time_of_death(false));
            steps.iter_mut().for_each(|step| step.shares = shares);
            steps
        };
        for step in steps {
            self.store.rows.publish(self.place, step)?;
        }
        self.store.rows.remove(self.place)
    }
}

/// The changes of one chunk: its row, if that does; slices that are staged no longer; slices that are dead.
type OfChunk = (Option<Option<Vec<u8>>>, Vec<SliceId>, Vec<(SliceId, u64)>);

/// Changes of rows, by chunk.
#[derive(Default)]
struct ByChunk(BTreeMap<u64, OfChunk>);

impl ByChunk {
    fn chunk(&mut self, chunk: u64) -> &mut OfChunk {
        self.0.entry(chunk).or_default()
    }

    /// As transactions, each within the bounds of a database: what changes in a chunk is in one of them.
    fn steps(self) -> Vec<Publication> {
        let mut steps = Vec::new();
        let (mut step, mut rows, mut bytes) = (Publication::default(), 0, 0);
        for (chunk, (row, fresh, dead)) in self.0 {
            let more = (
                1 + fresh.len() + dead.len(),
                row.iter().flatten().map(Vec::len).sum::<usize>(),
            );
            if rows > 0 && (rows + more.0 > STEP_ROWS_MAX || bytes + more.1 > STEP_BYTES_MAX) {
                steps.push(std::mem::take(&mut step));
                (rows, bytes) = (0, 0);
            }
            (rows, bytes) = (rows + more.0, bytes + more.1);
            step.chunks.extend(row.map(|row| (chunk, row)));
            step.fresh.extend(fresh);
            step.dead.extend(dead);
        }
        if rows > 0 {
            steps.push(step);
        }
        steps
    }
}

impl Unpublished {
    /// Has again what a publication took that failed.
    fn take_back(&mut self, taken: Unpublished) {
        self.chunks.extend(taken.chunks);
        self.blocks.extend(taken.blocks);
        self.fresh.extend(taken.fresh);
        self.unnamed.extend(taken.unnamed);
        self.row |= taken.row;
    }
}

fn failures(state: &State, awaited: &[SliceId]) -> u32 {
    let uploads = awaited.iter().filter_map(|id| state.uploads.get(id));
    uploads.map(|upload| upload.failures).sum()
}

/// Whether a block should be written anew.
fn is_crowded(state: &State, block: u64) -> bool {
    let of_block = state.map.block_use(block);
    let dead_bytes = of_block.stored_bytes.saturating_sub(of_block.live_bytes);
    debug_assert!(of_block.live_bytes <= BLOCK_BYTES);
    let is_scattered = of_block.slices > SLICES_MAX || of_block.extents > of_block.runs + SLICES_MAX;
    is_scattered || dead_bytes > of_block.live_bytes / 5 + DEAD_BYTES_MAX
}
