//! Reading a logged page: from the newest entry backwards, no byte copied twice, the block last (HDPM §2.3).
//!
//! Readers hold no lock: the bytes they read may be freed and overwritten meanwhile. So each reference is checked to
//! stay in the pool, walks are bounded, and the caller validates the inode's version before it trusts a result or an
//! error.

use crate::pool::tx::Tx;
use ferrite_map::{MapTx, PageId, PageWord};
use ferrite_pm::Region;
use ferrite_pm::profile::{self, ProfileSpan};
use ferrite_vfs::Result;

use crate::format::data_sum;
use crate::format::layout::Superblock;
use crate::format::log_entry::{Entry, Span};
use crate::format::page_buffer::PageBuffer;
use crate::format::unit::{BLOCK_UNITS_MAX, Segment, Unit};
use crate::page::block;
use crate::pool::core::Core;

/// More entries than a log can have: each has a unit at least, and a log that has a block's worth of units grows no
/// more, except by one segment.
const ENTRIES_MAX: usize = 3 * BLOCK_UNITS_MAX as usize;

/// A read of less gets few lines of the block, if any.
const PREFETCH_BYTES_MIN: usize = 2048;

/// The entry of a page that `unit` names.
#[inline]
fn entry_at((region, superblock): (&Region, &Superblock), page: PageId, unit: Unit) -> Result<Entry> {
    if !superblock.is_data_block(unit.block()) {
        let what = format!("its log leads to unit {unit}, which holds no data");
        return Err(data_sum::damaged(page, what));
    }
    Entry::load(region, page, unit)
}

/// Starts loading the newest entry of a logged page.
#[inline]
pub(crate) fn prefetch_newest(core: &Core, word: PageWord) {
    let unit = core.superblock.newest_unit(word);
    // A damaged word may name anything.
    if core.superblock.is_data_block(unit.block()) {
        core.region.prefetch(unit.offset());
    }
}

/// The newest entry of a logged page.
#[inline]
pub(crate) fn newest(core: &Core, page: PageId, word: PageWord) -> Result<Entry> {
    entry_at(core.media(), page, core.superblock.newest_unit(word))
}

/// Calls `visit` for the entries of a page, newest first, until it returns false.
pub(crate) fn entries(
    (region, superblock): (&Region, &Superblock),
    page: PageId,
    word: PageWord,
    visit: &mut dyn FnMut(&Entry) -> Result<bool>,
) -> Result<()> {
    let mut at = Some(superblock.newest_unit(word));
    // Segment of the newer entry just visited, if the next one must be in it too.
    let mut within = None;
    for _ in 0..ENTRIES_MAX {
        let Some(unit) = at else { return Ok(()) };
        let entry = entry_at((region, superblock), page, unit)?;
        let segment = entry.segment();
        // Data is verified only where it is read; but appending and freeing rely on these numbers.
        if within.is_some_and(|expected| expected != segment) {
            let what = format!("log entry at unit {unit} claims a different segment than the entry after it");
            return Err(data_sum::damaged(page, what));
        }
        within = (!entry.is_first()).then_some(segment);
        if !visit(&entry)? {
            return Ok(());
        }
        at = entry.previous(region)?;
    }
    Err(data_sum::damaged(page, "its log contains a cycle"))
}

/// Calls `visit` with each segment of a page, newest first.
pub(crate) fn segments(core: &Core, page: PageId, word: PageWord, visit: &mut dyn FnMut(Segment)) -> Result<()> {
    let mut last = None;
    entries(core.media(), page, word, &mut |entry| {
        let segment = entry.segment();
        if last.replace(segment) != Some(segment) {
            visit(segment);
        }
        Ok(true)
    })
}

/// Parts of a range that no entry has covered yet: ascending, disjoint, at most one more than there are entries.
struct Gaps {
    list: [Span; ENTRIES_MAX + 1],
    len: usize,
}

impl Gaps {
    fn new(from: u16, to: u16) -> Gaps {
        let mut list = [Span { from: 0, to: 0 }; ENTRIES_MAX + 1];
        list[0] = Span { from, to };
        Gaps { list, len: 1 }
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn touches(&self, span: Span) -> bool {
        self.list[..self.len]
            .iter()
            .any(|gap| gap.from < span.to && span.from < gap.to)
    }

    /// Takes `span` out; calls `taken` for each part that was there.
    fn take(&mut self, span: Span, mut taken: impl FnMut(Span)) {
        let mut index = 0;
        while index < self.len {
            let gap = self.list[index];
            let cut = Span {
                from: gap.from.max(span.from),
                to: gap.to.min(span.to),
            };
            if cut.from >= cut.to {
                index += 1;
                continue;
            }
            taken(cut);
            let before = Span { to: cut.from, ..gap };
            let behind = Span { from: cut.to, ..gap };
            match (gap.from < cut.from, cut.to < gap.to) {
                (true, true) => {
                    self.list.copy_within(index + 1..self.len, index + 2);
                    self.list[index] = before;
                    self.list[index + 1] = behind;
                    self.len += 1;
                    index += 2;
                }
                (true, false) => {
                    self.list[index] = before;
                    index += 1;
                }
                (false, true) => {
                    self.list[index] = behind;
                    index += 1;
                }
                (false, false) => {
                    self.list.copy_within(index + 1..self.len, index);
                    self.len -= 1;
                }
            }
        }
    }
}

/// Copies the bytes from `from` on of a written page to `part`. Returns how many log entries were walked. If data
/// carries checksums, everything that was walked is verified, and the block too if any of it is used.
pub(crate) fn read(core: &Core, page: PageId, word: PageWord, from: usize, part: &mut [u8]) -> Result<usize> {
    if !word.has_log() {
        block::read_block(core, page, word, from, part)?;
        return Ok(0);
    }
    if core.options.forward_scan {
        return read_forward(core, page, word, from, part);
    }
    // The log is walked from miss to miss, and most of a long part is then copied from the block.
    prefetch_newest(core, word);
    if part.len() >= PREFETCH_BYTES_MIN {
        block::prefetch_all(core, word);
    }
    let mut gaps = Gaps::new(from as u16, (from + part.len()) as u16);
    let mut buffer = PageBuffer::take();
    let mut walked = 0;
    let verify_all = core.superblock.has_data_checksums();
    let mut visit = |entry: &Entry| {
        walked += 1;
        // A damaged trailer may claim the wrong range, and so cause entries that count to be skipped.
        if verify_all || gaps.touches(entry.span()) {
            let data = entry.read(&core.region, &mut buffer)?;
            let start = usize::from(entry.trailer.offset);
            gaps.take(entry.span(), |taken| {
                let (a, b) = (usize::from(taken.from), usize::from(taken.to));
                let to = &mut part[a - from..b - from];
                if entry.trailer.zero {
                    to.fill(0);
                } else {
                    to.copy_from_slice(&data[a - start..b - start]);
                }
            });
        }
        Ok(!gaps.is_empty())
    };
    profile::within(ProfileSpan::Lookup, || entries(core.media(), page, word, &mut visit))?;
    if verify_all && !gaps.is_empty() {
        block::read_block(core, page, word, 0, &mut buffer[..])?;
    }
    for gap in &gaps.list[..gaps.len] {
        let (a, b) = (usize::from(gap.from), usize::from(gap.to));
        let to = &mut part[a - from..b - from];
        if verify_all {
            to.copy_from_slice(&buffer[a..b]);
        } else {
            block::read_block(core, page, word, a, to)?;
        }
    }
    Ok(walked)
}

/// The same from the oldest entry forwards, as in the paper's comparison (`HDPM w/o opt`): bytes that were written
/// repeatedly are copied repeatedly.
fn read_forward(core: &Core, page: PageId, word: PageWord, from: usize, part: &mut [u8]) -> Result<usize> {
    let mut list = Vec::new();
    entries(core.media(), page, word, &mut |entry| {
        list.push(*entry);
        Ok(true)
    })?;
    block::read_block(core, page, word, from, part)?;
    let mut buffer = PageBuffer::take();
    let end = from + part.len();
    for entry in list.iter().rev() {
        let span = entry.span();
        let (a, b) = (usize::from(span.from).max(from), usize::from(span.to).min(end));
        if a < b || core.superblock.has_data_checksums() {
            entry.read(&core.region, &mut buffer)?;
        }
        if a < b {
            let data = &buffer[..entry.trailer.data_len()];
            let start = usize::from(entry.trailer.offset);
            let to = &mut part[a - from..b - from];
            if entry.trailer.zero {
                to.fill(0);
            } else {
                to.copy_from_slice(&data[a - start..b - start]);
            }
        }
    }
    Ok(list.len())
}

/// Whether a page has a log, or may be getting one: a writer lists it before its record is stored.
pub(crate) fn may_have_log(core: &Core, page: PageId) -> bool {
    let has_log = || core.map.get(page).has_log();
    has_log() || core.inodes.is_changing(page.ino) || has_log()
}

/// Frees the log of a page whose word `tx` replaces or removes.
pub(crate) fn free(core: &Core, tx: &mut Tx<'_>, page: PageId, word: PageWord) -> Result<()> {
    if word.has_log() {
        segments(core, page, word, &mut |segment| {
            tx.freed(segment.header.segment());
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_shrink_split_and_vanish() {
        let mut gaps = Gaps::new(10, 100);
        let mut taken = Vec::new();
        let span = |from, to| Span { from, to };
        gaps.take(span(40, 50), |part| taken.push(part));
        gaps.take(span(0, 20), |part| taken.push(part));
        gaps.take(span(45, 60), |part| taken.push(part));
        assert_eq!(taken, [span(40, 50), span(10, 20), span(50, 60)]);
        assert_eq!(gaps.list[..gaps.len], [span(20, 40), span(60, 100)]);
        assert!(!gaps.touches(span(40, 60)) && gaps.touches(span(39, 41)));
        gaps.take(span(0, 4096), |_| {});
        assert!(gaps.is_empty());
    }
}
