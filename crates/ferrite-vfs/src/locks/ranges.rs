//! The record locks of one file: which owner holds which bytes, and how.
//!
//! Invariants: the ranges of one owner do not overlap, and those that touch differ in kind or process (neighbours that
//! can be merged are). No range is empty. Only [`super::LockTable`] calls this; it checks for conflicts before it sets.

use std::collections::BTreeMap;

use super::{LockKind, LockOwner, RecordLock};
use crate::{BadArgument, ClientId, FsError, Result};

/// An owner among all clients.
pub(super) type Holder = (ClientId, LockOwner);

/// A range of bytes, never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    start: u64,
    /// One past the last byte; `u64::MAX` is past the last byte of any file.
    end: u64,
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

    /// Number of bytes, or 0 for all from the start on: what [`Self::new`] takes.
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
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Holder, RecordLock)> + '_ {
        self.held.iter().map(|(&(holder, start), &Held { end, kind, pid })| {
            let lock = RecordLock {
                owner: holder.1,
                pid,
                kind,
                range: ByteRange { start, end },
            };
            (holder, lock)
        })
    }

    fn against<'a>(&'a self, holder: Holder, lock: &'a RecordLock) -> impl Iterator<Item = (Holder, RecordLock)> + 'a {
        self.iter().filter(move |(other, held)| {
            *other != holder && held.kind.conflicts(lock.kind) && held.range.overlaps(&lock.range)
        })
    }

    /// The lock that conflicts with `lock` of `holder` and starts first.
    pub(super) fn conflict(&self, holder: Holder, lock: &RecordLock) -> Option<RecordLock> {
        let against = self.against(holder, lock).map(|(_, held)| held);
        against.min_by_key(|held| held.range.start)
    }

    /// Those whose locks conflict with `lock` of `holder`.
    pub(super) fn blockers(&self, holder: Holder, lock: &RecordLock) -> Vec<Holder> {
        let mut holders: Vec<Holder> = self.against(holder, lock).map(|(other, _)| other).collect();
        // Ordered by holder already.
        holders.dedup();
        holders
    }

    /// Removes `range` from what `holder` has.
    pub(super) fn clear(&mut self, holder: Holder, range: ByteRange) {
        self.carve(holder, range);
    }

    /// Removes all that the owners of a client have.
    pub(super) fn clear_client(&mut self, client: ClientId) {
        self.held.retain(|&((holder, _), _), _| holder != client);
    }

    /// Sets `lock` for `owner`, replacing what that one holds in the range. True if part of that was stronger.
    pub(super) fn set(&mut self, owner: Holder, lock: &RecordLock) -> bool {
        let ByteRange { mut start, mut end } = lock.range;
        let (kind, pid) = (lock.kind, lock.pid);
        let replaced = self.carve(owner, lock.range);
        let alike = |held: &Held| held.kind == kind && held.pid == pid;
        if let Some((&key, before)) = self.held.range(..(owner, start)).next_back()
            && key.0 == owner
            && before.end == start
            && alike(before)
        {
            start = key.1;
        }
        if let Some(after) = self.held.get(&(owner, end))
            && alike(after)
        {
            let key = (owner, end);
            end = after.end;
            self.held.remove(&key);
        }
        self.held.insert((owner, start), Held { end, kind, pid });
        replaced
            .iter()
            .any(|old| *old == LockKind::Exclusive && kind == LockKind::Shared)
    }

    /// Removes the part in `range` of every lock of `owner`; returns their kinds.
    fn carve(&mut self, owner: Holder, range: ByteRange) -> Vec<LockKind> {
        let ByteRange { start, end } = range;
        let hit: Vec<(u64, Held)> = self
            .held
            .range((owner, 0)..(owner, end))
            .filter(|(_, held)| held.end > start)
            .map(|(&(_, from), &held)| (from, held))
            .collect();
        for &(from, held) in &hit {
            self.held.remove(&(owner, from));
            if from < start {
                self.held.insert((owner, from), Held { end: start, ..held });
            }
            if held.end > end {
                self.held.insert((owner, end), held);
            }
        }
        hit.iter().map(|(_, held)| held.kind).collect()
    }
}
