//! Where the bytes of buffers and slices are in the log.

use std::ops::Range;

use ferrite_wal::Position;

/// The part of the bytes that a list of their places may take in memory: that of writes of 4 KiB takes less.
const WORTH: usize = 100;

/// The record of a write, and where its bytes begin in their block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) record: Position,
    pub(super) begins: usize,
}

/// Where the bytes of a slice are in the log: in order, how many of them come from which record, and from where in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InLog {
    parts: Vec<(usize, Position, usize)>,
    /// The smallest of their positions, which whoever frees space of the log asks all slices for.
    first: Option<Position>,
}

impl InLog {
    /// The position of its first record.
    pub(super) fn first(&self) -> Option<Position> {
        self.first
    }

    /// Adds the bytes of a block's range, which this record has.
    pub(super) fn add(&mut self, bytes: &Range<usize>, origin: Origin) {
        self.parts
            .push((bytes.len(), origin.record, bytes.start - origin.begins));
        self.first = Some(self.first.map_or(origin.record, |first| first.min(origin.record)));
    }

    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|(len, ..)| len).sum()
    }

    /// Whether it takes so little memory that bytes of this length are better there.
    pub(super) fn is_short_for(&self, len: usize) -> bool {
        self.parts.len() * size_of::<(usize, Position, usize)>() <= len / WORTH
    }

    /// Its parts.
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, Position, usize)> {
        self.parts.iter().copied()
    }
}
