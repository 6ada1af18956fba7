//! Lines that a journal's records cover, until they are written back.
//!
//! Contents: [`DirtyLines`], one for each ring. Used by the journal, and by code whose costs should match the
//! journal's.
//!
//! Lines are not written back operation by operation: replay can set them again until the journal's checkpoint
//! advances, an inode that changes a hundred times in between costs one line instead of a hundred, and a write-back can
//! evict the line that the next operation needs.
//!
//! Nor are they written back all at once, which would make one operation in a few hundred slow: above a limit each
//! commit writes back a few of the oldest lines, and its fence covers them.
//!
//! Invariant: a line that was added is written back by [`DirtyLines::write_some`] or handed out by
//! [`DirtyLines::take_into`] after that.

use std::collections::VecDeque;

use crate::{LINE_BYTES, Region};

const FILTER_LINES: u64 = 1024;
/// Most dirty lines kept.
const DIRTY_LINES: usize = 512;
/// Lines that a commit writes back when there are more: enough for their drains to overlap, too few to make it slow.
const LINES_PER_COMMIT: usize = 64;

/// Lines that were set and are not known to be durable: each once, as far as a small filter can detect.
#[derive(Debug, Default)]
pub struct DirtyLines {
    lines: VecDeque<u64>,
    /// Line + 1 by line modulo size.
    filter: Vec<u64>,
}

impl DirtyLines {
    /// Records the lines of `len` bytes at a pool offset, after these were stored.
    pub fn add(&mut self, offset: u64, len: u64) {
        if self.filter.is_empty() {
            self.filter.resize(FILTER_LINES as usize, 0);
        }
        for line in offset / LINE_BYTES..(offset + len).div_ceil(LINE_BYTES) {
            let seen = &mut self.filter[(line % FILTER_LINES) as usize];
            if *seen != line + 1 {
                *seen = line + 1;
                self.lines.push_back(line);
            }
        }
    }

    /// Writes a few lines back, if there are many. They are durable once the caller has fenced, which it does before
    /// others can take lines.
    pub fn write_some(&mut self, region: &Region) {
        if self.lines.len() <= DIRTY_LINES {
            return;
        }
        for line in self.lines.drain(..LINES_PER_COMMIT) {
            // Set again, it is dirty again.
            let seen = &mut self.filter[(line % FILTER_LINES) as usize];
            if *seen == line + 1 {
                *seen = 0;
            }
            region.write_back(line * LINE_BYTES, LINE_BYTES);
        }
    }

    /// Takes all lines, by number, so that they can be written back without a lock.
    pub fn take_into(&mut self, emptied: &mut Vec<u64>) {
        emptied.extend(self.lines.drain(..));
        self.filter.fill(0);
    }

    /// The lines, by number; one may come more than once.
    pub fn lines(&self) -> impl Iterator<Item = u64> {
        self.lines.iter().copied()
    }

    /// DRAM it uses, in bytes.
    pub fn dram_bytes(&self) -> usize {
        (self.lines.capacity() + self.filter.capacity()) * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counters;

    fn taken(dirty: &mut DirtyLines) -> Vec<u64> {
        let mut lines = Vec::new();
        dirty.take_into(&mut lines);
        lines
    }

    #[test]
    fn a_line_is_noted_once_until_it_is_taken() {
        let mut dirty = DirtyLines::default();
        dirty.add(130, 8);
        dirty.add(128, 64);
        dirty.add(120, 16);
        assert_eq!(taken(&mut dirty), [2, 1]);
        dirty.add(128, 1);
        assert_eq!(taken(&mut dirty), [2]);
    }

    /// Two lines that collide in the filter may be recorded repeatedly, but neither is forgotten.
    #[test]
    fn lines_that_share_a_place_in_the_filter_are_both_kept() {
        let mut dirty = DirtyLines::default();
        let (one, other) = (7, 7 + FILTER_LINES);
        for line in [one, other, one, other] {
            dirty.add(line * LINE_BYTES, 8);
        }
        let lines = taken(&mut dirty);
        assert!(lines.contains(&one) && lines.contains(&other), "{lines:?}");
    }

    /// A line that a commit writes back is recorded again if it is set again, and no more lines are written than
    /// reported.
    #[test]
    fn beyond_a_number_the_oldest_go_few_at_a_time() {
        let region = Region::anonymous(1 << 20).expect("memory");
        let mut dirty = DirtyLines::default();
        let written = |dirty: &mut DirtyLines| {
            let before: Counters = region.counters();
            dirty.write_some(&region);
            (region.counters() - before).lines_written_back
        };
        (0..DIRTY_LINES as u64).for_each(|line| dirty.add(line * LINE_BYTES, 8));
        assert_eq!(written(&mut dirty), 0);
        dirty.add(DIRTY_LINES as u64 * LINE_BYTES, 8);
        assert_eq!(written(&mut dirty), LINES_PER_COMMIT as u64);
        dirty.add(0, 8);
        let lines = taken(&mut dirty);
        assert_eq!(lines.first(), Some(&(LINES_PER_COMMIT as u64)));
        assert_eq!(lines.last(), Some(&0));
        assert_eq!(lines.len(), DIRTY_LINES + 2 - LINES_PER_COMMIT);
    }
}
