//! A mapping on its own pool, in anonymous memory.
//!
//! Contents: [`Pool`] and the operations of experiments on it. The pool is laid out as {rings, bitmap of the
//! papers' allocator, the mapping's area, data blocks}.
//!
//! Invariant: `filling` pools do not pay for durability; no experiment measures one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrite_map::{BlockNo, Geometry, MapError, PageId, PageWord, Resource, TransCache, WordLayout};
use ferrite_pm::Region;
use parking_lot::Mutex;

use crate::alloc::{self, BLOCK_BYTES, Blocks, FreeMap, Papers, even_chunks};
use crate::error::LabError;
use crate::structure::{Placement, Structure};
use crate::tx::{Durable, LabTx, Lane, Parts};

pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of a lane's ring.
const RING_BYTES: u64 = 256 << 10;
/// Inodes of the pools.
pub(crate) const INODES: u32 = 1 << 14;
/// Pages of one transaction while a file is filled.
const FILL_PAGES: u32 = 64;
/// Attempts to make space in a full mapping for one change.
const SPACE_TRIES: u32 = 1000;

/// Where the pools divide page words.
const WORDS: WordLayout = WordLayout::HALVES;

/// The block of a page.
pub(crate) fn page_of(word: PageWord) -> BlockNo {
    WORDS.page(word)
}

/// The parameters of a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolPlan {
    /// Blocks that can be used.
    pub(crate) blocks: u32,
    /// See [`crate::alloc`].
    pub(crate) score: f64,
    /// Threads that change it at the same time.
    pub(crate) lanes: usize,
    pub(crate) seed: u64,
}

/// Deviations of a pool from a structure's defaults.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Special {
    /// Entries of the area, instead of the default for the blocks.
    pub(crate) slots: Option<u64>,
    /// Ferrite's free map for any structure, its free blocks in chunks of this many; [`PoolPlan::score`] does not
    /// apply, and the blocks between chunks are taken from the plan's.
    pub(crate) chunk_blocks: Option<u64>,
    /// Memory is allocated for the structure's area only. For structures that put nothing into data blocks.
    pub(crate) no_data: bool,
    /// A change is durable with its record, as in Ferrite's journal: one fence, and its lines are written back later,
    /// each once for many changes. Otherwise it pays for two fences, as in the papers' test bed.
    pub(crate) one_fence: bool,
}

/// Stores to each page of new memory, so that no operation pays for the kernel's page faults.
pub(crate) fn touch(region: &Region) {
    touch_first(region, region.len());
}

/// The same for the first `len_bytes` only.
fn touch_first(region: &Region, len_bytes: u64) {
    for offset in (0..len_bytes).step_by(BLOCK_BYTES as usize) {
        region.store(offset, 0);
    }
}

/// See the module's head.
pub(crate) struct Pool {
    parts: Parts,
    pub(crate) structure: Structure,
    area_bytes: u64,
    /// Requested blocks, and those in use from the start.
    usable: u64,
    separators: u64,
    lanes: Vec<Mutex<Lane>>,
    one_fence: bool,
    filling: AtomicBool,
}

impl std::ops::Deref for Pool {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Pool {
    /// An empty pool.
    pub(crate) fn new(structure: Structure, plan: PoolPlan) -> Result<Pool, LabError> {
        Pool::special(structure, plan, Special::default())
    }

    /// An empty pool that deviates from the defaults.
    pub(crate) fn special(structure: Structure, plan: PoolPlan, special: Special) -> Result<Pool, LabError> {
        let placement = structure.placement();
        let score = if placement == Placement::ByHash || special.chunk_blocks.is_some() {
            1.0
        } else {
            plan.score
        };
        let blocks = alloc::blocks_for(plan.blocks, score);
        let rings = plan.lanes as u64 * RING_BYTES;
        let bitmap = BLOCK_BYTES + rings;
        let area_offset = (bitmap + Papers::bitmap_bytes(u64::from(blocks))).next_multiple_of(BLOCK_BYTES);
        // Separators hold no page: the table is sized by the usable blocks, so that its load is the same as without
        // separators.
        let slots = special
            .slots
            .unwrap_or_else(|| structure.slots_for(plan.blocks, INODES));
        let area_bytes = structure.area_bytes(slots);
        let first_block = ((area_offset + area_bytes).div_ceil(BLOCK_BYTES)) as u32;
        let region = Region::anonymous((u64::from(first_block) + u64::from(blocks)) * BLOCK_BYTES)?;
        if special.no_data {
            touch_first(&region, u64::from(first_block) * BLOCK_BYTES);
        } else {
            touch(&region);
        }
        let region = Arc::new(region);
        let geometry = Geometry {
            area_offset,
            slots,
            first_block: BlockNo::new(first_block),
            blocks,
            inodes: INODES,
            seed: plan.seed,
            // The papers' tables are filled to 95 %, where keys lie anywhere.
            keys_in_reach: false,
            words: WORDS,
        };
        let map = structure.open(Arc::clone(&region), geometry);
        map.load(1, &|_| {}).map_err(|source| LabError::Map {
            structure: structure.name(),
            source,
        })?;
        let count = u64::from(blocks);
        let blocks: Box<dyn Blocks> = match (special.chunk_blocks, placement) {
            (Some(len), _) => Box::new(FreeMap::of_chunks(count, even_chunks(count, len, plan.seed))),
            (None, Placement::Papers) => Box::new(Papers::new(Arc::clone(&region), bitmap, count, score, plan.seed)),
            _ => Box::new(FreeMap::new(count, score, plan.seed)),
        };
        let separators = blocks.used();
        let lanes =
            (0..plan.lanes as u64).map(|lane| Mutex::new(Lane::new(BLOCK_BYTES + lane * RING_BYTES, RING_BYTES)));
        Ok(Pool {
            lanes: lanes.collect(),
            parts: Parts {
                region,
                map,
                blocks,
                geometry,
            },
            structure,
            area_bytes,
            usable: u64::from(plan.blocks),
            separators,
            one_fence: special.one_fence,
            filling: AtomicBool::new(false),
        })
    }

    /// A transaction in `lane`.
    pub(crate) fn tx(&self, lane: usize) -> LabTx<'_> {
        // Passed first: the data that the transaction reads must stay in place.
        let shared = self.map.move_lock().map(|move_lock| move_lock.lock_shared());
        LabTx::new(&self.parts, self.lanes[lane].lock(), shared)
    }

    fn durable(&self) -> Durable {
        match (self.filling.load(Ordering::Relaxed), self.one_fence) {
            (true, _) => Durable::Not,
            (false, true) => Durable::WithRecord,
            (false, false) => Durable::InPlace,
        }
    }

    /// Moves entries until the mapping wants no more moves; false if nothing moved.
    fn make_space(&self, lane: usize) -> Result<bool, MapError> {
        let mut moved = false;
        for _ in 0..SPACE_TRIES {
            let _moving = self.map.move_lock().map(|move_lock| move_lock.lock_exclusive());
            let mut tx = LabTx::new(&self.parts, self.lanes[lane].lock(), None);
            if !self.map.make_space(&mut tx)? {
                break;
            }
            tx.commit(self.durable())?;
            moved = true;
            if !self.map.wants_space() {
                break;
            }
        }
        Ok(moved)
    }

    /// Commits the changes of `change`; a full mapping may move entries first, as in the engine.
    pub(crate) fn change<T>(
        &self,
        lane: usize,
        mut change: impl FnMut(&mut LabTx<'_>) -> Result<T, MapError>,
    ) -> Result<T, LabError> {
        let mut result = Err(MapError::TableFull);
        for _ in 0..SPACE_TRIES {
            let mut tx = self.tx(lane);
            result = change(&mut tx).and_then(|done| tx.commit(self.durable()).map(|()| done));
            match &result {
                Ok(_) if self.map.wants_space() => {
                    self.make_space(lane).map_err(|source| self.error(source))?;
                    break;
                }
                Err(MapError::TableFull) => match self.make_space(lane) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(source) => return Err(self.error(source)),
                },
                _ => break,
            }
        }
        result.map_err(|source| self.error(source))
    }

    pub(crate) fn error(&self, source: MapError) -> LabError {
        LabError::Map {
            structure: self.structure.name(),
            source,
        }
    }

    /// Maps `count` pages to blocks that the mapping chooses, in one transaction.
    pub(crate) fn insert(&self, lane: usize, ino: u32, lblk: u32, count: u32) -> Result<(), LabError> {
        self.change(lane, |tx| {
            for lblk in lblk..lblk + count {
                let block = self.map.alloc_page(tx, PageId::from_raw(ino, lblk))?;
                self.map
                    .insert(tx, PageId::from_raw(ino, lblk), PageWord::of_block(block))?;
            }
            Ok(())
        })
    }

    /// Unmaps pages and frees their blocks, in one transaction.
    pub(crate) fn remove(&self, lane: usize, ino: u32, lblk: u32, count: u32) -> Result<u32, LabError> {
        self.change(lane, |tx| {
            let mut removed = 0;
            for lblk in lblk..lblk + count {
                let word = self.map.remove(tx, PageId::from_raw(ino, lblk))?;
                if !word.is_hole() {
                    ferrite_map::MapTx::freed(tx, Resource::Block(page_of(word)));
                    removed += 1;
                }
            }
            Ok(removed)
        })
    }

    /// Changes made by `work` do not pay for durability.
    pub(crate) fn unpaid<T>(&self, work: impl FnOnce() -> T) -> T {
        self.filling.store(true, Ordering::Relaxed);
        let done = work();
        self.filling.store(false, Ordering::Relaxed);
        done
    }

    /// Maps the pages of `first..end` for which `wanted` is true, without paying for durability.
    pub(crate) fn fill(&self, ino: u32, first: u32, end: u32, wanted: impl Fn(u32) -> bool) -> Result<(), LabError> {
        self.unpaid(|| {
            (first..end).step_by(FILL_PAGES as usize).try_for_each(|at| {
                self.change(0, |tx| {
                    for lblk in (at..end.min(at + FILL_PAGES)).filter(|&lblk| wanted(lblk)) {
                        let block = self.map.alloc_page(tx, PageId::from_raw(ino, lblk))?;
                        self.map
                            .insert(tx, PageId::from_raw(ino, lblk), PageWord::of_block(block))?;
                    }
                    Ok(())
                })
            })
        })
    }

    /// Share of the usable blocks that hold pages or nodes, in percent.
    pub(crate) fn full_percent(&self) -> f64 {
        (self.blocks.used() - self.separators) as f64 * 100.0 / self.usable as f64
    }

    /// The word of one page, looked up as the engine does.
    pub(crate) fn look(&self, page: PageId, cache: &TransCache) -> PageWord {
        let mut word = [PageWord::HOLE];
        self.map.get_many(page, &mut word, cache);
        word[0]
    }

    /// Drops the structure, wherever it lies on the medium, and the allocator's bitmap from the caches. False if this
    /// CPU cannot.
    pub(crate) fn evict(&self) -> bool {
        let mut evicted = self.region.evict(self.geometry.area_offset, self.area_bytes);
        let region = &self.region;
        self.map.for_each_node(&mut |block, _| {
            evicted &= region.evict(u64::from(block) * BLOCK_BYTES, BLOCK_BYTES);
        });
        if let Some(area) = self.blocks.area() {
            evicted &= region.evict(area.offset, area.len_bytes);
        }
        evicted
    }

    /// Caches the translations of the area's huge pages again, without any of its lines: flushing a large table takes
    /// so long that another process often gets the core in between.
    pub(crate) fn recall_translations(&self) {
        let (first, end) = (self.geometry.area_offset, self.geometry.area_offset + self.area_bytes);
        // The area may end in a page that no step touches.
        for offset in (first..end).step_by(HUGE_PAGE_BYTES).chain([end - 8]) {
            std::hint::black_box(self.region.load(offset));
            self.region.evict(offset, 8);
        }
    }

    /// Share of the pages `first + 1 .. end` that directly follow their predecessor.
    pub(crate) fn layout_score(&self, ino: u32, end: u32) -> f64 {
        let blocks: Vec<BlockNo> = (0..end)
            .map(|lblk| page_of(self.map.get(PageId::from_raw(ino, lblk))))
            .collect();
        let behind = blocks
            .windows(2)
            .filter(|pair| Some(pair[1]) == pair[0].checked_next())
            .count();
        behind as f64 / f64::from(end.max(2) - 1)
    }
}
