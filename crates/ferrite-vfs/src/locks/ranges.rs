//! The record locks of one file: which owner holds which bytes, and how.
//!
//! Invariants: the ranges of one owner do not overlap, and those that touch differ in kind or process (neighbours that
//! can be merged are). No range is empty. Each lock is in `held` and, by its place, among those of its kind. Only
//! [`super::LockTable`] calls this; it checks for conflicts before it sets a lock.
//!
//! A search for conflicts visits the locks that overlap, of the kinds that conflict; a change visits those of its owner
//! that overlap.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::intervals::Intervals;
use super::{LockKind, LockOwner, RecordLock};
use crate::{BadArgument, ClientId, FsError, Result};

/// An owner among all clients.
pub(super) type Holder = (ClientId, LockOwner);

/// A range of bytes, never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    pub(super) start: u64,
    /// One past the last byte; `u64::MAX` is past the last byte of any file.
    pub(super) end: u64,
}

impl ByteRange {
    /// The whole of any file.
    pub const ALL: ByteRange = ByteRange {
        start: 0,
        end: u64::MAX,
    };

    /// `len_bytes` bytes from `start`; with 0, all from `start` on, however far the file grows (as `l_len` of
    /// `fcntl(2)`).
    ///
    /// # Errors
    /// `Invalid` when the range passes the largest offset, 2^63 - 1.
    pub fn new(start: u64, len_bytes: u64) -> Result<ByteRange> {
        const OFFSETS: u64 = 1 << 63;
        let end = match len_bytes {
            0 => Some(u64::MAX),
            len_bytes => start.checked_add(len_bytes).filter(|&end| end <= OFFSETS),
        };
        match end {
            Some(end) if start < OFFSETS => Ok(ByteRange { start, end }),
            _ => Err(FsError::Invalid(BadArgument::LockRange)),
        }
    }

    /// The first byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Number of bytes, or 0 for all from the start on, as [`Self::new`] takes it.
    pub fn len_bytes(&self) -> u64 {
        if self.end == u64::MAX { 0 } else { self.end - self.start }
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &ByteRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    end: u64,
    kind: LockKind,
    pid: u32,
}

/// All record locks of a file.
#[derive(Debug, Default)]
pub(super) struct RangeSet {
    /// By owner and start.
    held: BTreeMap<(Holder, u64), Held>,
    shared: Intervals<Holder>,
    exclusive: Intervals<Holder>,
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Holder, RecordLock)> + '_ {
        self.held
            .iter()
            .map(|(&(holder, start), held)| (holder, held.lock(holder, start)))
    }

    /// Whether an owner of `client` has a lock.
    pub(super) fn has_client(&self, client: ClientId) -> bool {
        self.held.range(all_of(client)).next().is_some()
    }

    fn of_kind(&mut self, kind: LockKind) -> &mut Intervals<Holder> {
        match kind {
            LockKind::Shared => &mut self.shared,
            LockKind::Exclusive => &mut self.exclusive,
        }
    }

    fn insert(&mut self, holder: Holder, start: u64, held: Held) {
        let range = ByteRange { start, end: held.end };
        self.of_kind(held.kind).insert(range, holder);
        self.held.insert((holder, start), held);
    }

    fn remove(&mut self, holder: Holder, start: u64) -> Option<Held> {
        let held = self.held.remove(&(holder, start))?;
        self.of_kind(held.kind).remove(start, holder);
        Some(held)
    }

    /// Visits the locks that conflict with `lock` of `holder`, shared and exclusive ones each by start, until `each`
    /// breaks. Takes one from `work` for each lock on the way, the holder's own too.
    fn against<B>(
        &self,
        holder: Holder,
        lock: &RecordLock,
        work: &mut usize,
        mut each: impl FnMut(Holder) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut foreign = |_: ByteRange, other: Holder| {
            *work = work.saturating_sub(1);
            match other == holder {
                true => ControlFlow::Continue(()),
                false => each(other),
            }
        };
        self.exclusive.visit(&lock.range, &mut foreign)?;
        match lock.kind {
            LockKind::Exclusive => self.shared.visit(&lock.range, &mut foreign),
            LockKind::Shared => ControlFlow::Continue(()),
        }
    }

    /// Whether a lock conflicts with `lock` of `holder`. Charges the cost to `work`.
    pub(super) fn conflicts(&self, holder: Holder, lock: &RecordLock, work: &mut usize) -> bool {
        self.against(holder, lock, work, |_| ControlFlow::Break(())).is_break()
    }

    /// The lock that conflicts with `lock` of `holder` and starts first.
    pub(super) fn conflict(&self, holder: Holder, lock: &RecordLock) -> Option<RecordLock> {
        let first = |of: &Intervals<Holder>| {
            let found = of.visit(&lock.range, |range, other| match other == holder {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break((range.start, other)),
            });
            found.break_value()
        };
        let shared = (lock.kind == LockKind::Exclusive)
            .then(|| first(&self.shared))
            .flatten();
        let (start, other) = [first(&self.exclusive), shared].into_iter().flatten().min()?;
        let held = self.held.get(&(other, start))?;
        Some(held.lock(other, start))
    }

    /// Adds the owners whose locks conflict with `lock` of `holder` to `found`, as far as `work` lasts.
    pub(super) fn blockers(&self, holder: Holder, lock: &RecordLock, work: &mut usize, found: &mut Vec<Holder>) {
        let most = found.len() + *work;
        let _ = self.against(holder, lock, work, |other| {
            if found.len() >= most {
                return ControlFlow::Break(());
            }
            if found.last() != Some(&other) {
                found.push(other);
            }
            ControlFlow::Continue(())
        });
    }

    /// Whether [`Self::clear`] would leave two parts of one lock.
    pub(super) fn splits(&self, holder: Holder, range: ByteRange) -> bool {
        let around = self.held.range(..(holder, range.start)).next_back();
        around.is_some_and(|(key, held)| key.0 == holder && held.end > range.end)
    }

    /// Removes `range` from the locks of `holder`. False if it had nothing there.
    pub(super) fn clear(&mut self, holder: Holder, range: ByteRange) -> bool {
        !self.carve(holder, range).is_empty()
    }

    /// Removes all locks of a client's owners; returns their ranges.
    pub(super) fn clear_client(&mut self, client: ClientId) -> Vec<ByteRange> {
        let keys: Vec<(Holder, u64)> = self.held.range(all_of(client)).map(|(&key, _)| key).collect();
        let removed = |(holder, start)| Some((start, self.remove(holder, start)?.end));
        let ranges = keys.into_iter().filter_map(removed);
        ranges.map(|(start, end)| ByteRange { start, end }).collect()
    }

    /// Sets `lock` for `owner`, replacing its locks in the range. True if part of those was stronger.
    pub(super) fn set(&mut self, owner: Holder, lock: &RecordLock) -> bool {
        let ByteRange { mut start, mut end } = lock.range;
        let (kind, pid) = (lock.kind, lock.pid);
        let replaced = self.carve(owner, lock.range);
        let alike = |held: &Held| held.kind == kind && held.pid == pid;
        if let Some((&(holder, from), before)) = self.held.range(..(owner, start)).next_back()
            && holder == owner
            && before.end == start
            && alike(before)
        {
            self.remove(owner, from);
            start = from;
        }
        if let Some(after) = self.held.get(&(owner, end)).copied()
            && alike(&after)
        {
            self.remove(owner, end);
            end = after.end;
        }
        self.insert(owner, start, Held { end, kind, pid });
        replaced
            .iter()
            .any(|old| *old == LockKind::Exclusive && kind == LockKind::Shared)
    }

    /// Removes the part in `range` of every lock of `owner`; returns their kinds.
    fn carve(&mut self, owner: Holder, range: ByteRange) -> Vec<LockKind> {
        let ByteRange { start, end } = range;
        let before = self.held.range(..(owner, start)).next_back();
        let reaching = before.filter(|(key, held)| key.0 == owner && held.end > start);
        let hit: Vec<(u64, Held)> = reaching
            .into_iter()
            .chain(self.held.range((owner, start)..(owner, end)))
            .map(|(&(_, from), &held)| (from, held))
            .collect();
        for &(from, held) in &hit {
            self.remove(owner, from);
            if from < start {
                self.insert(owner, from, Held { end: start, ..held });
            }
            if held.end > end {
                self.insert(owner, end, held);
            }
        }
        hit.iter().map(|(_, held)| held.kind).collect()
    }
}

impl Held {
    fn lock(&self, holder: Holder, start: u64) -> RecordLock {
        RecordLock {
            owner: holder.1,
            pid: self.pid,
            kind: self.kind,
            range: ByteRange { start, end: self.end },
        }
    }
}

/// The keys of all locks of a client.
fn all_of(client: ClientId) -> std::ops::RangeInclusive<(Holder, u64)> {
    ((client, LockOwner(0)), 0)..=((client, LockOwner(u64::MAX)), u64::MAX)
}
