//! Helpers for implementers of [`crate::MapTx`]: nodes that a transaction creates, and the lines in which it has set
//! words.
//!
//! Contents: [`FreshNodes`], blocks that are filled in DRAM and streamed to the medium once, and [`SetLines`]. A
//! node that was split has hundreds of words. As words of a record each would be written twice, and the lines of a
//! block that was just streamed would be fetched again.
//!
//! Invariants: no word names these blocks before the record that links them is durable, so they may be written before
//! it; they must be durable first ([`FreshNodes::stream`], then a fence). Their words are in no record: replay finds
//! them as they were streamed, or as later records left them. Where no fence makes anything durable, the record has
//! them instead ([`FreshNodes::take_words`]). A freed block is not reused while a record of its earlier use may be
//! replayed ([`crate::MapTx::freed`]).

use ferrite_pm::{LINE_BYTES, Region};

const BLOCK_BYTES: usize = 4096;
/// Images whose memory is kept for the next transaction.
const SPARE_IMAGES: usize = 4;

type Image = [u8; BLOCK_BYTES];

/// See the module's head.
#[derive(Debug, Default)]
pub struct FreshNodes {
    /// Pool offsets of blocks, and their content.
    images: Vec<(u64, Box<Image>)>,
    spare: Vec<Box<Image>>,
}

impl FreshNodes {
    /// Adds the block at pool offset `offset`, all zeros.
    pub fn add(&mut self, offset: u64) {
        let mut image = self.spare.pop().unwrap_or_else(|| Box::new([0; BLOCK_BYTES]));
        image.fill(0);
        self.images.push((offset, image));
    }

    /// Sets the word at a pool offset if it lies in one of the blocks; false if not.
    #[inline]
    pub fn set_word(&mut self, offset: u64, value: u64) -> bool {
        if self.images.is_empty() {
            return false;
        }
        let word = self.images.iter_mut().find_map(|(base, image)| {
            let at = offset.checked_sub(*base)? as usize;
            image.get_mut(at..)?.first_chunk_mut()
        });
        word.map(|word| *word = value.to_ne_bytes()).is_some()
    }

    /// The word at a pool offset, if it lies in one of the blocks.
    #[inline]
    pub fn word(&self, offset: u64) -> Option<u64> {
        self.images.iter().find_map(|(base, image)| {
            let at = offset.checked_sub(*base)? as usize;
            image.get(at..)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
        })
    }

    /// Streams the blocks, which are durable once this thread has fenced; false without blocks.
    pub fn stream(&self, region: &Region) -> bool {
        for (offset, image) in &self.images {
            region.stream(*offset, &image[..]);
        }
        !self.images.is_empty()
    }

    /// How many words the blocks have.
    pub fn words(&self) -> usize {
        self.images.len() * BLOCK_BYTES / 8
    }

    /// Passes on all words of the blocks, in the order of each block, instead of streaming them, and forgets the
    /// blocks.
    pub fn take_words(&mut self, mut take: impl FnMut(u64, u64)) {
        for (offset, image) in &self.images {
            for (at, word) in (*offset..).step_by(8).zip(image.as_chunks().0) {
                take(at, u64::from_ne_bytes(*word));
            }
        }
        self.clear();
    }

    /// Forgets all blocks.
    #[inline]
    pub fn clear(&mut self) {
        // The usual case after a transaction.
        if self.images.is_empty() {
            return;
        }
        self.spare.extend(self.images.drain(..).map(|(_, image)| image));
        self.spare.truncate(SPARE_IMAGES);
    }
}

/// The lines in which a transaction has set words, approximately: it may report lines that were not set, but never
/// misses one that was. Lines that are not reported can be read from the medium whole.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetLines(u64);

impl SetLines {
    fn bit(line: u64) -> u64 {
        1 << (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
    }

    /// Notes the line of the word at a pool offset.
    #[inline]
    pub fn note(&mut self, offset: u64) {
        self.0 |= Self::bit(offset / LINE_BYTES);
    }

    /// Whether any of the lines in `len_bytes` from pool offset `offset` may have been set.
    #[inline]
    pub fn may_have(self, offset: u64, len_bytes: u64) -> bool {
        let lines = offset / LINE_BYTES..(offset + len_bytes).div_ceil(LINE_BYTES);
        self.0 != 0 && lines.into_iter().any(|line| self.0 & Self::bit(line) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_to_the_block_they_lie_in_and_nowhere_else() {
        let mut fresh = FreshNodes::default();
        assert_eq!((fresh.set_word(8192, 1), fresh.word(8192)), (false, None));
        fresh.add(8192);
        fresh.add(20480);
        for (offset, is_inside) in [
            (8184, false),
            (8192, true),
            (12280, true),
            (12288, false),
            (24568, true),
            (24576, false),
        ] {
            assert_eq!(fresh.word(offset), is_inside.then_some(0), "{offset}");
            assert_eq!(fresh.set_word(offset, offset + 1), is_inside, "{offset}");
            assert_eq!(fresh.word(offset), is_inside.then_some(offset + 1), "{offset}");
        }
        let region = Region::anonymous(32768).expect("memory");
        assert!(fresh.stream(&region));
        assert_eq!(
            [8192, 12280, 24568, 8200].map(|at| region.load(at)),
            [8193, 12281, 24569, 0]
        );
        let mut words = Vec::new();
        fresh.take_words(|offset, value| words.push((offset, value)));
        assert_eq!(words.len(), 1024);
        assert!(words.contains(&(12280, 12281)) && words.contains(&(8200, 0)) && words.is_sorted_by_key(|word| word.0));
        assert!(!fresh.stream(&region));
        // Its memory serves the next block, in which nothing of it may remain.
        fresh.add(16384);
        assert_eq!(fresh.word(16384), Some(0));
        assert_eq!(fresh.word(16384 + 4088), Some(0));
    }

    #[test]
    fn a_line_that_was_set_is_never_taken_for_another() {
        let mut set = SetLines::default();
        assert!(!set.may_have(0, 1 << 20));
        let offsets = (1..40u64).map(|n| n * 4096 + n % 8 * 8);
        for offset in offsets.clone() {
            set.note(offset);
        }
        for offset in offsets {
            assert!(set.may_have(offset & !63, 64) && set.may_have(offset, 8) && set.may_have(offset - 200, 256));
        }
        // A few lines leave most others clear.
        let mut set = SetLines::default();
        set.note(4096);
        let free = (0..64u64).filter(|line| !set.may_have(line * 64, 64)).count();
        assert!(free > 50, "{free}");
    }
}
