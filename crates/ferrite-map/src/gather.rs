//! Pages in the order of a file, reported as runs.
//!
//! Contents: [`Gather`], for structures that find words in lines, one page each, and implement
//! [`crate::FileMap::for_runs`] themselves. A line that continues the run before it costs a comparison of its words.

use crate::{Inum, Lblk, MapEntry, PageWord, SlotNo, WordLayout};

/// The visitor of a walk by runs.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(MapEntry, u64) -> bool;

/// A run that may continue.
#[derive(Clone, Copy)]
struct Open {
    entry: MapEntry,
    pages: u64,
    /// Most pages that can be reported as one run: then its block numbers end.
    pages_max: u64,
}

impl Open {
    fn new(entry: MapEntry, layout: WordLayout) -> Open {
        Open {
            entry,
            pages: 1,
            pages_max: (1u64 << layout.page_bits()).saturating_sub(u64::from(layout.page(entry.word))),
        }
    }

    /// Whether pages with these words, from page `at` on, continue it.
    #[inline]
    fn goes_on(&self, at: u64, words: &[u64]) -> bool {
        // Where this wraps, the pages have ended before.
        let next = self.entry.word.0.wrapping_add(self.pages);
        let differing = (0..)
            .zip(words)
            .fold(0, |found, (index, word)| found | (next.wrapping_add(index) ^ word));
        let follows = u64::from(self.entry.lblk) + self.pages == at;
        follows && self.pages + words.len() as u64 <= self.pages_max && differing == 0
    }
}

/// Gathers pages of one inode, in ascending order.
pub(crate) struct Gather<'v> {
    ino: Inum,
    layout: WordLayout,
    open: Option<Open>,
    visit: Visit<'v>,
}

impl<'v> Gather<'v> {
    pub(crate) fn new(ino: Inum, layout: WordLayout, visit: Visit<'v>) -> Self {
        Gather {
            ino,
            layout,
            open: None,
            visit,
        }
    }

    /// Takes the pages from `at` on, which lie in slots from `slot` on; skips holes among them. False if the visitor
    /// wants no more.
    #[inline]
    pub(crate) fn take(&mut self, at: u64, words: &[u64], slot: SlotNo) -> bool {
        match &mut self.open {
            Some(open) if open.goes_on(at, words) => {
                open.pages += words.len() as u64;
                true
            }
            _ => self.take_each(at, words, slot),
        }
    }

    fn take_each(&mut self, at: u64, words: &[u64], slot: SlotNo) -> bool {
        for (index, word) in (0..).zip(words).filter(|(_, word)| **word != 0) {
            let lblk = at + u64::from(index);
            match &mut self.open {
                Some(open) if open.goes_on(lblk, &[*word]) => open.pages += 1,
                open => {
                    let entry = MapEntry {
                        ino: self.ino,
                        lblk: Lblk::at(lblk),
                        word: PageWord(*word),
                        slot: SlotNo::new(slot.get().wrapping_add(index)),
                    };
                    let ended = open.replace(Open::new(entry, self.layout));
                    if ended.is_some_and(|ended| !(self.visit)(ended.entry, ended.pages)) {
                        self.open = None;
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Reports the last run, unless the visitor has wanted no more.
    pub(crate) fn end(self) {
        if let Some(Open { entry, pages, .. }) = self.open {
            (self.visit)(entry, pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockNo;

    fn runs(lines: &[(u64, &[PageWord])], most: usize) -> Vec<(u32, PageWord, u64)> {
        runs_in(WordLayout::HALVES, lines, most)
    }

    fn runs_in(layout: WordLayout, lines: &[(u64, &[PageWord])], most: usize) -> Vec<(u32, PageWord, u64)> {
        let mut seen = Vec::new();
        let visit: Visit<'_> = &mut |entry, pages| {
            seen.push((entry.lblk.get(), entry.word, pages));
            seen.len() < most
        };
        let mut gather = Gather::new(Inum::new(3), layout, visit);
        let goes_on = lines.iter().all(|(at, words)| {
            let words: Vec<u64> = words.iter().map(|word| word.0).collect();
            gather.take(*at, &words, SlotNo::new(0))
        });
        if goes_on {
            gather.end();
        }
        seen
    }

    fn word(block: u32, log: u64) -> PageWord {
        match log {
            0 => PageWord::of_block(BlockNo::new(block)),
            log => WordLayout::HALVES.logged(BlockNo::new(block), log),
        }
    }

    #[test]
    fn runs_end_where_pages_blocks_or_logs_do() {
        let plain: Vec<PageWord> = (100..108).map(|block| word(block, 0)).collect();
        let whole = |at| (at, &plain[..]);
        assert_eq!(runs(&[whole(8)], 9), [(8, plain[0], 8)]);
        assert_eq!(runs(&[(8, &plain[..3]), (11, &plain[3..])], 9), [(8, plain[0], 8)]);
        assert_eq!(
            runs(&[(8, &plain[..3]), (12, &plain[3..])], 9),
            [(8, plain[0], 3), (12, plain[3], 5)]
        );
        assert_eq!(runs(&[whole(8), whole(16)], 9), [(8, plain[0], 8), (16, plain[0], 8)]);
        let mixed = [word(7, 0), word(8, 5), word(9, 5), PageWord::HOLE, word(11, 5)];
        assert_eq!(
            runs(&[(0, &mixed)], 9),
            [(0, mixed[0], 1), (1, mixed[1], 2), (4, mixed[4], 1)]
        );
    }

    /// The log does not continue the last block.
    #[test]
    fn block_numbers_end() {
        let last = [word(u32::MAX - 1, 1), word(u32::MAX, 1)];
        let behind = [word(0, 2), word(1, 2)];
        assert_eq!(behind[0].0, last[1].0 + 1);
        assert_eq!(
            runs(&[(0, &last), (2, &behind)], 9),
            [(0, last[0], 2), (2, behind[0], 2)]
        );
    }

    #[test]
    fn block_numbers_end_where_the_word_is_divided() {
        let layout = WordLayout::new(29).unwrap();
        let last = layout.logged(BlockNo::new((1 << 29) - 1), 9);
        let behind = layout.logged(BlockNo::new(0), 10);
        assert_eq!(behind.0, last.0 + 1);
        assert_eq!(
            runs_in(layout, &[(0, &[last]), (1, &[behind])], 9),
            [(0, last, 1), (1, behind, 1)]
        );
    }

    #[test]
    fn nothing_is_told_to_who_wants_no_more() {
        let apart: Vec<PageWord> = (0..8).map(|page| word(100 - page, 0)).collect();
        assert_eq!(runs(&[(0, &apart)], 2).len(), 2);
        assert_eq!(runs(&[(0, &apart), (8, &apart)], 8).len(), 8);
    }
}
