//! The part of a blob's changes that a write-ahead log has, as `logged` keeps it.

use std::ops::Range;
use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_vfs::SyncMode;
use ferrite_wal::{Mirror, Position, Wal};

use super::far::{Far, Reopen};
use super::mark::{Chunks, Mark};
use crate::content_store::{Error, Result};

/// A log, and its place for messages.
pub struct ChangeLog {
    /// The log, which is this pool's.
    pub(super) wal: Box<Wal>,
    /// Its devices and machine.
    pub(super) name: String,
    /// Changes are to be appended. Otherwise those that it has are published, and no more come.
    is_wanted: bool,
    /// The device that it has besides its first one.
    pub(super) far: Option<Far>,
}

impl ChangeLog {
    /// A log on one device. Without `is_wanted` it is emptied, and gets no more changes.
    pub fn new(wal: Box<Wal>, name: String, is_wanted: bool) -> ChangeLog {
        ChangeLog {
            wal,
            name,
            is_wanted,
            far: None,
        }
    }

    /// The places that a sync waits for.
    pub(super) fn sync_mode(&self) -> SyncMode {
        match (self.is_wanted, &self.far) {
            (false, _) => SyncMode::Through,
            (true, None) => SyncMode::Back,
            (true, Some(_)) => SyncMode::Mirror,
        }
    }

    /// On two devices, both of which it has if `is_complete`. Else it gets changes once `reopen` gives the other one;
    /// it is called on a thread of its own, and may block.
    #[must_use]
    pub fn on_two(self, mirror: Arc<Mirror>, is_complete: bool, reopen: Arc<Reopen>) -> ChangeLog {
        ChangeLog {
            far: Some(Far::new(mirror, is_complete, reopen)),
            ..self
        }
    }

    /// Whether changes are appended.
    pub(super) fn is_used(&self) -> bool {
        self.is_wanted && self.far.as_ref().is_none_or(Far::is_there)
    }

    /// Whether changes should be appended, and are not, for want of its second device.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_wanted && (!self.is_used() || self.wal.failure().is_some())
    }

    /// Its device has failed.
    pub(super) fn note_failure(&self, error: &ferrite_wal::Error) {
        tracing::warn!(%error, log = self.name, "fsync waits for the bucket from now on");
    }
}

/// Changes of a blob that the log has.
#[derive(Debug, Clone)]
pub(super) struct Logged {
    /// The position of the first.
    pub(super) from: Position,
    pub(super) chunks: Chunks,
    /// The mark of the blob has some of them.
    pub(super) is_marked: bool,
}

/// The changes of a blob that the log has.
#[derive(Debug, Default)]
pub(super) struct LogState {
    /// Changes that were made, those that the log lacks up to the last of them, and those that are published.
    changes: u64,
    unlogged: u64,
    published: u64,
    /// Those since the moment of the last publication.
    since: Option<Logged>,
    /// Those that a publication under way has.
    publishing: Option<Logged>,
    /// The mark as the rows have it.
    mark: Option<Mark>,
    /// The mark is of a log that is not here.
    is_lost: bool,
    /// A change of the mark failed: the rows may have another one.
    is_mark_unsure: bool,
}

/// The part of the log that a publication makes durable.
pub(super) struct LogMoment(u64);

impl Logged {
    fn merge(&mut self, later: Logged) {
        self.from = self.from.min(later.from);
        self.chunks.extend(later.chunks);
        self.is_marked |= later.is_marked;
    }
}

impl LogState {
    /// Of a blob with this mark.
    pub(super) fn loaded(mark: Option<Mark>, log: Option<&ChangeLog>) -> LogState {
        let is_here = |mark: &Mark| log.is_some_and(|log| log.wal.id() == mark.log);
        LogState {
            is_lost: mark.as_ref().is_some_and(|mark| !is_here(mark)),
            mark,
            ..LogState::default()
        }
    }

    /// Refuses a read of bytes that are not to be had.
    pub(super) fn check_read(&self, bytes: &Range<u64>) -> Result<()> {
        match &self.mark {
            Some(mark) if self.is_lost && mark.touches(bytes) && !is_seeded(Bug::LostChangesIgnored) => Err(lost(mark)),
            _ => Ok(()),
        }
    }

    /// Refuses a search behind an offset, where bytes are not to be had.
    pub(super) fn check_from(&self, offset: u64) -> Result<()> {
        self.check_read(&(offset..(i64::MAX as u64).max(offset)))
    }

    /// Refuses a change of a blob that has changes which are not to be had.
    pub(super) fn check_change(&self) -> Result<()> {
        match &self.mark {
            Some(mark) if self.is_lost => Err(lost(mark)),
            _ => Ok(()),
        }
    }

    /// It has changes in a log that is not here.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    pub(super) fn is_unlogged(&self) -> bool {
        self.unlogged > self.published
    }

    /// A change was made.
    pub(super) fn note_change(&mut self, is_logged: bool) {
        self.changes += 1;
        if !is_logged {
            self.unlogged = self.changes;
        }
    }

    /// The mark, if the rows surely have it.
    pub(super) fn mark(&self) -> Option<&Mark> {
        self.mark.as_ref().filter(|_| !self.is_mark_unsure)
    }

    /// The mark and its changes are gone from the rows.
    pub(super) fn forget_mark(&mut self) {
        (self.mark, self.is_mark_unsure) = (None, false);
    }

    /// The bytes that are not to be had, up to the last of them.
    pub(super) fn lost_until(&self) -> u64 {
        let mark = self.mark.as_ref().filter(|_| self.is_lost);
        mark.map_or(0, Mark::end)
    }

    /// A publication is under way that has changes of the log.
    pub(super) fn is_publishing(&self) -> bool {
        self.publishing.is_some()
    }

    /// The rows have a mark of changes that are durable in the log: of all that `is_durable` says it of, as far as it
    /// names them.
    pub(super) fn note_mark(&mut self, mark: Mark, is_durable: impl Fn(Position) -> bool) {
        for logged in [&mut self.since, &mut self.publishing].into_iter().flatten() {
            logged.is_marked |= logged.from.record >= mark.from && is_durable(logged.from);
        }
        (self.mark, self.is_mark_unsure) = (Some(mark), false);
    }

    /// The log does not have the changes that this mark names.
    pub(super) fn lose(&mut self, mark: Mark) {
        (self.mark, self.is_lost) = (Some(mark), true);
    }

    /// The changes that are not to be had do not count any more.
    pub(super) fn give_up(&mut self) {
        self.is_lost = false;
    }

    /// The log has a change.
    pub(super) fn add(&mut self, from: Position, chunks: Chunks, is_marked: bool) {
        let later = Logged {
            from,
            chunks,
            is_marked,
        };
        match &mut self.since {
            Some(since) => since.merge(later),
            None => self.since = Some(later),
        }
    }

    /// All changes that the log has and rows may lack.
    pub(super) fn needed(&self) -> Option<Logged> {
        let mut all = self.publishing.clone().or_else(|| self.since.clone())?;
        if let (Some(since), true) = (&self.since, self.publishing.is_some()) {
            all.merge(since.clone());
        }
        Some(all)
    }

    /// The position from which on the log has to be kept.
    pub(super) fn kept_from(&self) -> Option<Position> {
        self.needed().map(|needed| needed.from)
    }

    /// Takes what the log has at the moment of a publication.
    pub(super) fn take_moment(&mut self) -> LogMoment {
        self.publishing = self.since.take();
        LogMoment(self.changes)
    }

    /// The mark to store with a publication, if one is stored: that of later changes, or none.
    pub(super) fn next_mark(&self) -> Option<Option<Mark>> {
        let Some(mark) = &self.mark else {
            return self.is_mark_unsure.then_some(None);
        };
        let later = self.since.as_ref().filter(|since| since.is_marked);
        Some(later.map(|later| Mark {
            from: later.from.record,
            chunks: later.chunks.clone(),
            ..mark.clone()
        }))
    }

    /// A change of the mark failed, and may have been made.
    pub(super) fn doubt_mark(&mut self) {
        self.is_mark_unsure = true;
    }

    /// A publication has ended, with this mark if it succeeded.
    pub(super) fn end_moment(&mut self, of: &LogMoment, succeeded_with: Option<Option<Option<Mark>>>) {
        let taken = self.publishing.take();
        match succeeded_with {
            Some(mark) => {
                self.published = self.published.max(of.0);
                if let Some(mark) = mark {
                    (self.mark, self.is_mark_unsure) = (mark, false);
                }
            }
            None => {
                let later = std::mem::replace(&mut self.since, taken);
                if let Some(later) = later {
                    self.add(later.from, later.chunks, later.is_marked);
                }
            }
        }
    }
}

fn lost(mark: &Mark) -> Error {
    Error::Failed(format!(
        "it has changes that are staged on {}, which is lost or away; open the pool with it, or give them up by \
         `ferrite fsck --forget-staged`",
        mark.name
    ))
}
