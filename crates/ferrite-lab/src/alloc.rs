//! Free blocks, with two allocators, and the layout score that fragments both.
//!
//! Contents: [`Papers`], the allocator of the papers' test bed (red-black tree of free runs, which a B-tree
//! stands for here; a bitmap on the medium, written back and fenced for each change; a mutex), and [`FreeMap`],
//! Ferrite's atomic bitmap.
//!
//! A layout score below 1 cuts the space into chunks of `1 / (1 - score)` blocks on average, with a taken block between
//! any two, and hands them out in random order: the score is then the share of a file's pages that directly follow
//! their predecessor. [`even_chunks`] are all of one length.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_pm::Region;
use parking_lot::Mutex;

use ferrite_measure::Rng;

/// Bytes of a data block.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Groups of 64 blocks searched for a free one.
const STRETCHES: u64 = 64;

/// The source of blocks; indices count from 0.
pub(crate) trait Blocks: Send + Sync {
    /// Takes block `index` if it is free.
    fn claim(&self, index: u64) -> bool;
    /// Takes a free block, the one after the last one taken if that is free.
    fn take(&self) -> Option<u64>;
    /// Takes a free block followed by many free ones, if it knows of one.
    fn take_run(&self) -> Option<u64> {
        self.take()
    }
    /// Releases a block.
    fn free(&self, index: u64);
    /// Blocks in use, including those that separate chunks.
    fn used(&self) -> u64;
    /// Its data on the medium.
    fn area(&self) -> Option<Area>;
}

/// Blocks that must exist so that `wanted` can be used at this score.
pub(crate) fn blocks_for(wanted: u32, score: f64) -> u32 {
    if score >= 1.0 {
        return wanted;
    }
    // A twentieth more, because chunk lengths are random.
    (f64::from(wanted) * (2.0 - score) * 1.05) as u32 + 64
}

/// Part of the medium.
pub(crate) struct Area {
    /// Pool offset.
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

/// Free blocks in a row.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    /// The first of them.
    start: u64,
    /// Their number.
    len: u64,
}

/// Chunks of `blocks` blocks at this score.
fn chunks(blocks: u64, score: f64, rng: &mut Rng) -> Vec<Chunk> {
    if score >= 1.0 {
        return vec![Chunk { start: 0, len: blocks }];
    }
    let mut chunks = Vec::new();
    let mut at = 0;
    while at < blocks {
        let mut len = 1;
        while rng.unit() < score {
            len += 1;
        }
        let len = len.min(blocks - at);
        chunks.push(Chunk { start: at, len });
        at += len + 1;
    }
    rng.shuffle(&mut chunks);
    chunks
}

/// Chunks of `len` blocks each, with a block between any two, in random order; one chunk if the space holds no more.
pub(crate) fn even_chunks(blocks: u64, len: u64, seed: u64) -> Vec<Chunk> {
    let stride = len.saturating_add(1).min(blocks.max(1));
    let mut chunks: Vec<Chunk> = (0..blocks)
        .step_by(stride as usize)
        .map(|start| Chunk {
            start,
            len: len.min(blocks - start),
        })
        .collect();
    Rng::new(seed).shuffle(&mut chunks);
    chunks
}

/// Ferrite's free map.
pub(crate) struct FreeMap {
    map: AtomicBitmap,
    last: AtomicU64,
    starts: Vec<u64>,
    next_start: AtomicUsize,
}

impl FreeMap {
    pub(crate) fn new(blocks: u64, score: f64, seed: u64) -> FreeMap {
        FreeMap::of_chunks(blocks, chunks(blocks, score, &mut Rng::new(seed)))
    }

    /// With these free chunks, handed out in this order; the block after each is taken.
    pub(crate) fn of_chunks(blocks: u64, chunks: Vec<Chunk>) -> FreeMap {
        let map = AtomicBitmap::new(blocks);
        chunks
            .iter()
            .map(|chunk| chunk.start + chunk.len)
            .filter(|&separator| separator < blocks)
            .for_each(|separator| map.set(separator));
        FreeMap {
            map,
            last: AtomicU64::new(0),
            starts: chunks.into_iter().map(|chunk| chunk.start).collect(),
            next_start: AtomicUsize::new(0),
        }
    }
}

impl Blocks for FreeMap {
    fn claim(&self, index: u64) -> bool {
        let claimed = index < self.map.len() && self.map.claim(index);
        if claimed {
            self.last.store(index, Ordering::Relaxed);
        }
        claimed
    }

    fn take(&self) -> Option<u64> {
        let behind = self.last.load(Ordering::Relaxed) + 1;
        if self.claim(behind) {
            return Some(behind);
        }
        while let Some(&start) = self.starts.get(self.next_start.load(Ordering::Relaxed)) {
            self.next_start.fetch_add(1, Ordering::Relaxed);
            if self.claim(start) {
                return Some(start);
            }
        }
        // Every chunk was started once: take blocks freed since then.
        self.map.claim_from(behind)
    }

    fn take_run(&self) -> Option<u64> {
        // Like the engine's: an unused group, else any free block.
        let start = self.map.find_stretch(self.last.load(Ordering::Relaxed), STRETCHES);
        start.filter(|&start| self.claim(start)).or_else(|| self.take())
    }

    fn free(&self, index: u64) {
        self.map.release(index);
    }

    fn used(&self) -> u64 {
        self.map.count_used()
    }

    fn area(&self) -> Option<Area> {
        None
    }
}

/// The papers' allocator.
pub(crate) struct Papers {
    region: Arc<Region>,
    /// Pool offset of the bitmap.
    bitmap: u64,
    blocks: u64,
    runs: Mutex<Runs>,
}

struct Runs {
    /// Free runs: first block and length. No two touch.
    free: BTreeMap<u64, u64>,
    free_blocks: u64,
    /// Where the current chunk continues.
    next: u64,
    score: f64,
    rng: Rng,
}

impl Runs {
    /// Takes block `index` out of the run that holds it.
    fn claim(&mut self, index: u64) -> bool {
        let Some((&start, &len)) = self
            .free
            .range(..=index)
            .next_back()
            .filter(|(start, len)| *start + *len > index)
        else {
            return false;
        };
        self.free.remove(&start);
        if index > start {
            self.free.insert(start, index - start);
        }
        if start + len > index + 1 {
            self.free.insert(index + 1, start + len - index - 1);
        }
        self.free_blocks -= 1;
        self.next = index + 1;
        true
    }

    fn free(&mut self, index: u64) {
        let (mut start, mut len) = (index, 1);
        if let Some((&before, &before_len)) = self.free.range(..index).next_back()
            && before + before_len == index
        {
            self.free.remove(&before);
            (start, len) = (before, before_len + 1);
        }
        if let Some(behind) = self.free.remove(&(index + 1)) {
            len += behind;
        }
        self.free.insert(start, len);
        self.free_blocks += 1;
    }
}

impl Papers {
    /// Bytes of the bitmap.
    pub(crate) fn bitmap_bytes(blocks: u64) -> u64 {
        blocks.div_ceil(64) * 8
    }

    /// With its bitmap, all zeros, at `bitmap`.
    pub(crate) fn new(region: Arc<Region>, bitmap: u64, blocks: u64, score: f64, seed: u64) -> Papers {
        let mut rng = Rng::new(seed);
        let chunks = chunks(blocks, score, &mut rng);
        let free: BTreeMap<u64, u64> = chunks.iter().map(|chunk| (chunk.start, chunk.len)).collect();
        let free_blocks: u64 = free.values().sum();
        let papers = Papers {
            region,
            bitmap,
            blocks,
            runs: Mutex::new(Runs {
                free: BTreeMap::new(),
                free_blocks,
                next: 0,
                score,
                rng,
            }),
        };
        for separator in free.iter().map(|(start, len)| start + len).filter(|&at| at < blocks) {
            let offset = bitmap + separator / 64 * 8;
            let word = papers.region.load(offset) | 1 << (separator % 64);
            papers.region.store(offset, word);
        }
        papers.runs.lock().free = free;
        papers
    }

    /// Records on the medium that a block was taken or freed; the caller has the lock.
    fn note(&self, index: u64, used: bool) {
        let offset = self.bitmap + index / 64 * 8;
        let bit = 1 << (index % 64);
        let word = self.region.load(offset);
        self.region.store(offset, if used { word | bit } else { word & !bit });
        self.region.write_back(offset, 8);
        // Anonymous memory has no sync that could fail.
        let _ = self.region.fence();
    }
}

impl Blocks for Papers {
    fn claim(&self, index: u64) -> bool {
        let mut runs = self.runs.lock();
        let claimed = index < self.blocks && runs.claim(index);
        if claimed {
            self.note(index, true);
        }
        claimed
    }

    fn take(&self) -> Option<u64> {
        let mut runs = self.runs.lock();
        let next = runs.next;
        if !runs.claim(next) {
            let from = if runs.score < 1.0 {
                runs.rng.below(self.blocks)
            } else {
                next
            };
            let at = runs.free.range(from..).next().or_else(|| runs.free.iter().next());
            let at = at.map(|(&start, _)| start)?;
            runs.claim(at);
        }
        let index = runs.next - 1;
        self.note(index, true);
        Some(index)
    }

    fn free(&self, index: u64) {
        let mut runs = self.runs.lock();
        runs.free(index);
        self.note(index, false);
    }

    fn used(&self) -> u64 {
        self.blocks - self.runs.lock().free_blocks
    }

    fn area(&self) -> Option<Area> {
        Some(Area {
            offset: self.bitmap,
            len_bytes: Self::bitmap_bytes(self.blocks),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn papers(blocks: u64, score: f64) -> Papers {
        let region = Region::anonymous(1 << 20).unwrap();
        Papers::new(Arc::new(region), 4096, blocks, score, 7)
    }

    fn score_of(taken: &[u64]) -> f64 {
        let behind = taken.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        behind as f64 / (taken.len() - 1) as f64
    }

    /// Files get the requested score, from both allocators.
    #[test]
    fn what_is_dealt_out_has_the_score() {
        for score in [0.0, 0.5, 0.7, 0.85, 1.0] {
            let blocks = u64::from(blocks_for(20_000, score));
            let both: [Box<dyn Blocks>; 2] = [
                Box::new(papers(blocks, score)),
                Box::new(FreeMap::new(blocks, score, 3)),
            ];
            for allocator in both {
                let taken: Vec<u64> = (0..20_000).map(|_| allocator.take().expect("space")).collect();
                let seen = score_of(&taken);
                assert!((seen - score).abs() < 0.03, "{score}: {seen}");
                assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len());
            }
        }
    }

    /// Runs have the requested length, whether the last chunk is whole or not.
    #[test]
    fn even_chunks_make_even_runs() {
        for (len, score) in [(1, 0.0), (8, 0.875), (u64::MAX, 1.0)] {
            let free = FreeMap::of_chunks(20_001, even_chunks(20_001, len, 3));
            let taken: Vec<u64> = (0..9_000).map(|_| free.take().expect("space")).collect();
            let seen = score_of(&taken);
            assert!((seen - score).abs() < 0.001, "{len}: {seen}");
            assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len());
        }
    }

    /// In any sequence of claims, takes and frees, no block has two owners, and the bitmap on the medium shows the
    /// blocks in use.
    #[test]
    fn the_papers_allocator_agrees_with_a_set() {
        let papers = papers(500, 0.7);
        let separators = papers.used();
        let mut mine = BTreeSet::new();
        let mut rng = Rng::new(9);
        for _ in 0..20_000 {
            let at = rng.below(500);
            match rng.below(3) {
                0 => {
                    let claimed = papers.claim(at);
                    assert!(!claimed || mine.insert(at), "{at} twice");
                }
                1 => {
                    if let Some(taken) = papers.take() {
                        assert!(mine.insert(taken), "{taken} twice");
                    }
                }
                _ => {
                    if mine.remove(&at) {
                        papers.free(at);
                    }
                }
            }
            assert_eq!(papers.used(), separators + mine.len() as u64);
        }
        let on_medium: u64 = (0..8)
            .map(|word| u64::from(papers.region.load(4096 + word * 8).count_ones()))
            .sum();
        assert_eq!(on_medium, papers.used());
    }
}
