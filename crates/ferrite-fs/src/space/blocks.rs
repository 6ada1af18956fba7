//! Free blocks: the DRAM bitmap, and the count of blocks that may be allocated.
//!
//! Contents: [`BlockAlloc`]. Claims are volatile (docs/design.md, "Crash atomicity"): a claimed block becomes part of a
//! file only by a committed record, so an operation that fails leaves nothing allocated.
//!
//! Invariants: free blocks = tokens in `global` + tokens in all `local` purses + `reserve_left`. A token is taken
//! before a bit is claimed, so the holder of a token always finds a free bit.
//!
//! Each thread works on its own purse and its own region of the bitmap, so that two threads write no common line while
//! space is plenty. Without care, two next-fit cursors meet: the one that follows finds little left, catches up, and
//! from then on both compete for one line. So a cursor that enters a region where another one is leaves it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use ferrite_map::BlockNo;
use ferrite_map::bitmap::AtomicBitmap;
use ferrite_pm::line_trace;

use crate::format::layout::Superblock;
use crate::thread::thread_number;

const PURSES: usize = 64;
/// Tokens moved between a purse and the global count at a time.
const BATCH: i64 = 64;
/// Bits of a region that one cursor works in at a time: eight lines.
const REGION_BITS: u64 = 8 * 512;
/// Blocks of a stretch. A run begins in a stretch that is all free, if one is found.
const STRETCH_BITS: u64 = 64;
/// Stretches examined before any free block will do.
const STRETCHES: u64 = 1024;
/// Bits of a word of the bitmap.
const WORD_BITS: u64 = 64;
/// How many blocks ahead are prefetched when many are released.
const LOOK_AHEAD: usize = 12;
/// A cursor that has not been used yet.
const NOWHERE: u64 = u64::MAX;

/// The right of an allocation to take blocks from the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Takes space permanently: refused while only the reserve is left.
    Ordinary,
    /// Frees as much as it takes (overwrite), or is needed to free space (truncate, unlink). Blocks that it took from
    /// the reserve and did not return are a debt, see [`BlockAlloc::may_owe`].
    Replacing,
}

/// The source of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// Space that any operation may use.
    Ordinary,
    /// The reserve.
    Reserve,
}

/// The free map of a pool's data blocks.
pub(crate) struct BlockAlloc {
    bitmap: AtomicBitmap,
    first_block: u64,
    reserve_blocks: i64,
    reserve_left: CachePadded<AtomicI64>,
    global: CachePadded<AtomicI64>,
    local: Box<[CachePadded<AtomicI64>]>,
    cursors: Box<[CachePadded<AtomicU64>]>,
}

impl BlockAlloc {
    /// All blocks start free. Mark those in use with [`Self::set_used`], then call [`Self::open`].
    pub(crate) fn new(superblock: &Superblock) -> Self {
        let blocks = superblock.blocks;
        BlockAlloc {
            bitmap: AtomicBitmap::new(blocks),
            first_block: superblock.first_block,
            reserve_blocks: superblock.reserve_blocks as i64,
            reserve_left: CachePadded::new(AtomicI64::new(0)),
            global: CachePadded::new(AtomicI64::new(0)),
            local: (0..PURSES).map(|_| CachePadded::new(AtomicI64::new(0))).collect(),
            cursors: (0..PURSES).map(|_| CachePadded::new(AtomicU64::new(NOWHERE))).collect(),
        }
    }

    /// Notes a block found in use while the pool is being loaded; false if it was already noted.
    pub(crate) fn set_used(&self, block: BlockNo) -> bool {
        self.bitmap.claim(u64::from(block) - self.first_block)
    }

    /// Counts the free blocks; fills the reserve first.
    pub(crate) fn open(&self) {
        let free = (self.bitmap.len() - self.bitmap.count_used()) as i64;
        let reserve = free.min(self.reserve_blocks);
        self.reserve_left.store(reserve, Ordering::Relaxed);
        self.global.store(free - reserve, Ordering::Relaxed);
    }

    fn purse(&self) -> &AtomicI64 {
        let purse = &self.local[thread_number() as usize % PURSES];
        line_trace::line("purses", purse);
        purse
    }

    fn take_token(&self, class: Class) -> Option<Token> {
        let purse = self.purse();
        if purse.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Some(Token::Ordinary);
        }
        purse.fetch_add(1, Ordering::Relaxed);
        if self.refill(purse) {
            return Some(Token::Ordinary);
        }
        (class == Class::Replacing && take(&self.reserve_left, 1) == 1).then_some(Token::Reserve)
    }

    /// Whether a transaction may keep more of the reserve than it returns. It may do so only from the upper half. So at
    /// least half of the reserve always comes back with the checkpoint, and operations that free as much as they take
    /// never run out.
    pub(crate) fn may_owe(&self) -> bool {
        self.reserve_left.load(Ordering::Relaxed) >= self.reserve_blocks / 2
    }

    /// Gets a batch from the global count, or else the content of other purses. Keeps all but the one token that the
    /// caller needs.
    fn refill(&self, purse: &AtomicI64) -> bool {
        line_trace::line("tokens of all", &self.global);
        let mut got = take(&self.global, BATCH);
        if got == 0 {
            for other in &self.local {
                got += take(other, BATCH - got);
                if got == BATCH {
                    break;
                }
            }
        }
        if got > 1 {
            purse.fetch_add(got - 1, Ordering::Relaxed);
        }
        got > 0
    }

    fn return_token(&self) {
        self.return_tokens(1);
    }

    fn return_tokens(&self, mut count: i64) {
        let missing = self.reserve_blocks - self.reserve_left.load(Ordering::Relaxed);
        if missing > 0 {
            // A small overshoot by racing threads only makes the reserve slightly larger.
            line_trace::line("tokens of all", &self.reserve_left);
            let to_reserve = missing.min(count);
            self.reserve_left.fetch_add(to_reserve, Ordering::Relaxed);
            count -= to_reserve;
            if count == 0 {
                return;
            }
        }
        let purse = self.purse();
        if purse.fetch_add(count, Ordering::Relaxed) >= 2 * BATCH {
            let got = take(purse, count.max(BATCH));
            if got > 0 {
                line_trace::line("tokens of all", &self.global);
                self.global.fetch_add(got, Ordering::Relaxed);
            }
        }
    }

    /// Claims `block` if it is a free data block.
    pub(crate) fn claim(&self, block: BlockNo, class: Class) -> Option<Token> {
        let index = self.index_of(block).filter(|&index| !self.bitmap.is_set(index))?;
        let token = self.take_token(class)?;
        if self.bitmap.claim(index) {
            return Some(token);
        }
        self.return_token();
        None
    }

    /// Claims any free block.
    pub(crate) fn claim_any(&self, class: Class) -> Option<(BlockNo, Token)> {
        let token = self.take_token(class)?;
        let number = thread_number() as usize % PURSES;
        let cursor = &self.cursors[number];
        let start = match cursor.load(Ordering::Relaxed) {
            // Bit-reversed starts keep the regions of the first few threads far apart.
            NOWHERE => self.bitmap.len() * ((number as u64).reverse_bits() >> 58) / PURSES as u64,
            start => start,
        };
        let Some(index) = self.bitmap.claim_from(start) else {
            // Another thread, between its claim and the return of its own token, holds the bit that our token stands
            // for.
            self.return_token();
            return None;
        };
        let next = match index / REGION_BITS == start / REGION_BITS {
            true => index + 1,
            false => self.leave_if_crowded(number, index + 1),
        };
        line_trace::line("cursors", cursor);
        cursor.store(next, Ordering::Relaxed);
        if next < self.bitmap.len() {
            // Another thread may be returning blocks to the same line; the next claim should not wait for it.
            self.bitmap.prefetch(next);
        }
        Some((BlockNo::new((self.first_block + index) as u32), token))
    }

    /// Claims a block for the first page of a run: one followed by many free blocks, if there is one not too far away.
    pub(crate) fn claim_run(&self, class: Class) -> Option<(BlockNo, Token)> {
        let number = thread_number() as usize % PURSES;
        let cursor = &self.cursors[number];
        let start = cursor.load(Ordering::Relaxed);
        if start != NOWHERE
            && !start.is_multiple_of(STRETCH_BITS)
            && !self.is_clear_to_end(start)
            && let Some(stretch) = self.bitmap.find_stretch(start, STRETCHES)
        {
            cursor.store(stretch, Ordering::Relaxed);
        }
        self.claim_any(class)
    }

    /// Whether all blocks from `start` to the end of its stretch are free, which is as good as a new stretch.
    fn is_clear_to_end(&self, start: u64) -> bool {
        (start..start.next_multiple_of(STRETCH_BITS).min(self.bitmap.len())).all(|index| !self.bitmap.is_set(index))
    }

    /// Where cursor `number`, which reaches a new region at `next`, continues: far away if another cursor is there.
    fn leave_if_crowded(&self, number: usize, next: u64) -> u64 {
        let taken = |place: u64| {
            let others = self.cursors.iter().enumerate().filter(|&(other, _)| other != number);
            others
                .map(|(_, cursor)| cursor.load(Ordering::Relaxed))
                .any(|other| other != NOWHERE && other / REGION_BITS == place / REGION_BITS)
        };
        if !taken(next) {
            return next;
        }
        // Steps of the golden ratio visit every part of the map before they come near an earlier one.
        let step = (self.bitmap.len() as f64 * 0.618) as u64;
        let far = (next + step) % self.bitmap.len();
        if taken(far) {
            (far + step) % self.bitmap.len()
        } else {
            far
        }
    }

    /// Starts loading the words that [`Self::release`] of `block` will change.
    pub(crate) fn prefetch(&self, block: BlockNo) {
        if let Some(index) = self.index_of(block) {
            self.bitmap.prefetch(index);
        }
    }

    fn index_of(&self, block: BlockNo) -> Option<u64> {
        let index = u64::from(block).checked_sub(self.first_block);
        index.filter(|&index| index < self.bitmap.len())
    }

    /// Whether `blocks` more blocks would let an operation succeed that is refused now. The reserve is filled first,
    /// but refilling a reserve that is far too low is worth it as well.
    pub(crate) fn is_helped_by(&self, blocks: u64) -> bool {
        let missing = self.reserve_blocks - self.reserve_left.load(Ordering::Relaxed);
        blocks as i64 > missing || !self.may_owe()
    }

    /// Returns a block; false if it was not in use.
    pub(crate) fn release(&self, block: BlockNo) -> bool {
        let was_used = self.index_of(block).is_some_and(|index| self.bitmap.release(index));
        if was_used {
            self.return_token();
        }
        was_used
    }

    /// Returns blocks given in ascending order; calls `wrong` for each that was not in use. One atomic operation for
    /// all blocks of a word, and one for their tokens.
    pub(crate) fn release_sorted(&self, blocks: &[BlockNo], wrong: &mut dyn FnMut(BlockNo)) {
        let word_of = |block: &BlockNo| self.index_of(*block).map(|index| index / WORD_BITS);
        let (mut rest, mut tokens) = (blocks, 0);
        while let Some(first) = rest.first() {
            if let Some(ahead) = rest.get(LOOK_AHEAD) {
                self.prefetch(*ahead);
            }
            let Some(word) = word_of(first) else {
                wrong(*first);
                rest = &rest[1..];
                continue;
            };
            let len = rest.iter().take_while(|block| word_of(block) == Some(word)).count();
            let (group, behind) = rest.split_at(len);
            rest = behind;
            let mut bits = 0;
            for block in group {
                let bit = 1 << (self.index_of(*block).unwrap_or(0) % WORD_BITS);
                if bits & bit != 0 {
                    wrong(*block);
                }
                bits |= bit;
            }
            let were_set = self.bitmap.release_of_word(word * WORD_BITS, bits);
            let is_clear = |block: &&BlockNo| {
                let index = self.index_of(**block).unwrap_or(0);
                were_set >> (index % WORD_BITS) & 1 == 0
            };
            if were_set != bits {
                group.iter().filter(is_clear).for_each(|block| wrong(*block));
            }
            // After the bits: the holder of a token finds a free bit. Not at the end: others may be waiting for space.
            tokens += i64::from(were_set.count_ones());
            if tokens >= BATCH {
                self.return_tokens(std::mem::take(&mut tokens));
            }
        }
        if tokens > 0 {
            self.return_tokens(tokens);
        }
    }

    /// Free blocks, including the reserve. Exact only while nothing is being allocated.
    pub(crate) fn free(&self) -> u64 {
        let purses: i64 = self.local.iter().map(|purse| purse.load(Ordering::Relaxed)).sum();
        let free = purses + self.global.load(Ordering::Relaxed) + self.reserve_left.load(Ordering::Relaxed);
        free.max(0) as u64
    }

    /// Free blocks that any operation may use.
    pub(crate) fn available(&self) -> u64 {
        let reserve = self.reserve_left.load(Ordering::Relaxed).max(0) as u64;
        self.free().saturating_sub(reserve)
    }

    /// DRAM used, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        self.bitmap.dram_bytes() + (PURSES * 2 * size_of::<CachePadded<AtomicU64>>()) as u64
    }
}

/// Takes up to `want` from `count`, never below 0; returns what it got.
fn take(count: &AtomicI64, want: i64) -> i64 {
    let mut got = 0;
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |have| {
        got = have.clamp(0, want);
        (got > 0).then_some(have - got)
    });
    got
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MkfsOptions;

    /// Blocks of one word, of many, twice in a list, free ones and others' come back right, and so do their tokens.
    #[test]
    fn many_blocks_come_back_at_once() {
        let superblock = Superblock::plan(64 << 20, &MkfsOptions::default(), 1, 0).unwrap();
        let alloc = BlockAlloc::new(&superblock);
        alloc.open();
        let free = alloc.free();
        let mut claimed: Vec<BlockNo> = std::iter::from_fn(|| alloc.claim_any(Class::Ordinary))
            .map(|(block, _)| block)
            .take(700)
            .collect();
        claimed.sort_unstable();
        let mut wrong = Vec::new();
        alloc.release_sorted(&claimed[..699], &mut |block| wrong.push(block));
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(alloc.free(), free - 1);
        // Below all, the last that is in use, the same again, and one that is free.
        let (below, used, is_free) = (BlockNo::new(1), claimed[699], claimed[0]);
        let mut list = vec![below, is_free, used, used];
        list.sort_unstable();
        alloc.release_sorted(&list, &mut |block| wrong.push(block));
        wrong.sort_unstable();
        let mut expected = vec![below, is_free, used];
        expected.sort_unstable();
        assert_eq!(wrong, expected);
        assert_eq!(alloc.free(), free);
        let again: usize = std::iter::from_fn(|| alloc.claim_any(Class::Replacing)).count();
        assert_eq!(again as u64, free, "as many tokens as bits");
    }
}
