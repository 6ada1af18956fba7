//! The record locks of one file: which owner holds which bytes, and how.
//!
//! Invariants: the ranges of one owner do not overlap, and those that touch differ in kind or process (neighbours that
//! can be merged are). No range is empty. Only [`super::LockTable`] calls this; it checks for conflicts before it sets.

use std::collections::BTreeMap;

use super::{LockKind, LockOwner, RecordLock};
use crate::{BadArgument, FsError, Result};

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
    held: BTreeMap<(LockOwner, u64), Held>,
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = RecordLock> + '_ {
        self.held
            .iter()
            .map(|(&(owner, start), &Held { end, kind, pid })| RecordLock {
                owner,
                pid,
                kind,
                range: ByteRange { start, end },
            })
    }

    fn against<'a>(&'a self, lock: &'a RecordLock) -> impl Iterator<Item = RecordLock> + 'a {
        self.iter().filter(|held| {
            held.owner != lock.owner && held.kind.conflicts(lock.kind) && held.range.overlaps(&lock.range)
        })
    }

    /// The lock that conflicts with `lock` and starts first.
    pub(super) fn conflict(&self, lock: &RecordLock) -> Option<RecordLock> {
        self.against(lock).min_by_key(|held| held.range.start)
    }

    /// The owners whose locks conflict with `lock`.
    pub(super) fn blockers(&self, lock: &RecordLock) -> Vec<LockOwner> {
        let mut owners: Vec<LockOwner> = self.against(lock).map(|held| held.owner).collect();
        // Ordered by owner already.
        owners.dedup();
        owners
    }

    /// Removes `range` from what `owner` holds. True if it held anything there.
    pub(super) fn clear(&mut self, owner: LockOwner, range: ByteRange) -> bool {
        !self.carve(owner, range).is_empty()
    }

    /// Sets `lock` for its owner, replacing what that owner holds in the range. True if part of that was stronger.
    pub(super) fn set(&mut self, lock: &RecordLock) -> bool {
        let ByteRange { mut start, mut end } = lock.range;
        let (owner, kind, pid) = (lock.owner, lock.kind, lock.pid);
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
    fn carve(&mut self, owner: LockOwner, range: ByteRange) -> Vec<LockKind> {
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
