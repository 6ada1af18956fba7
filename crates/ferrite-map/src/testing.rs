//! Tests that every mapping must pass, and their tools: a pool, a transaction, a model.
//!
//! Contents: [`Subject`] (what a mapping declares about itself), [`Bed`] (a mapping on a separate pool),
//! [`TestTx`] (applies words at commit, releases claims when dropped), and the shared tests. A mapping joins by
//! implementing [`Subject`] and one line, `mapping_tests!(ItsType);`, in its test module.
//!
//! Invariant: a `TestTx` keeps the order of the engine: nothing is visible before the commit, claims of an aborted
//! transaction are free again after it, and resources that a commit frees are free only after its words are set.
//!
//! Random tests print their seed, and run only that seed if `FERRITE_SEED` is set.

pub(crate) mod churn;
pub(crate) mod harm;
pub(crate) mod moves;
pub(crate) mod replay;
mod tx;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) use ferrite_measure::Rng;
use ferrite_pm::Region;

pub(crate) use tx::TestTx;

use crate::bitmap::AtomicBitmap;
use crate::{
    BLOCK_BYTES, BlockNo, FileMap, Geometry, Inum, Lblk, MapEntry, MapError, MapTx, Mapping, PageId, PageWord,
    Resource, SlotNo, Slots, TransCache, WordLayout,
};

/// Where the beds put the mapping's own area: not at 0, so that a forgotten offset shows.
pub(crate) const AREA_OFFSET: u64 = 3 * BLOCK_BYTES;

/// The entries that a mount found, by inode and page.
pub(crate) type Found = BTreeMap<PageId, MapEntry>;

/// Inodes of the beds' pools.
pub(crate) const INODES: u32 = 4096;

/// The words of the beds' pools are divided where those of a pool of 2 TiB are: a mapping that took the halves of a
/// word for its parts would fail.
pub(crate) const WORDS: WordLayout = WordLayout::new(29).unwrap();
/// The first unit that a log can have there.
const FIRST_UNIT: u64 = 64;

/// The block of a page.
pub(crate) fn page_of(word: PageWord) -> BlockNo {
    WORDS.page(word)
}

/// The word of a page in `block` with log number `log`, counted from 1; 0 means none.
pub(crate) fn word_of(block: BlockNo, log: u32) -> PageWord {
    match log {
        0 => PageWord::of_block(block),
        log => WORDS.logged(block, FIRST_UNIT - 1 + u64::from(log)),
    }
}

/// The number of a page's log.
pub(crate) fn log_of(word: PageWord) -> u32 {
    match word.has_log() {
        true => (WORDS.log(word) - FIRST_UNIT + 1) as u32,
        false => 0,
    }
}

/// A mapping that the shared tests can make.
pub(crate) trait Subject: FileMap + Sized {
    /// Its entry in the list of mappings.
    const MAPPING: Mapping;
    /// The mapping of that geometry; `load` has not been called.
    fn mount(region: Arc<Region>, geometry: Geometry) -> Self;
}

/// Runs `test` for `rounds` fresh seeds, or for the one in `FERRITE_SEED`.
pub(crate) fn for_seeds(rounds: u64, test: impl Fn(u64)) {
    let given = std::env::var("FERRITE_SEED")
        .ok()
        .map(|text| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).expect("FERRITE_SEED: hexadecimal digits after 0x"),
            None => text
                .parse()
                .expect("FERRITE_SEED: a decimal number, or 0x and hexadecimal digits"),
        });
    if let Some(seed) = given {
        return test(seed);
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("a clock after 1970");
    let mut seeds = Rng::new(now.as_nanos() as u64);
    for _ in 0..rounds {
        let seed = seeds.next_u64();
        println!("replay with FERRITE_SEED={seed:#x}");
        test(seed);
    }
}

/// A mapping on a separate pool, with a free map of the pool's blocks.
pub(crate) struct Bed<M> {
    pub(crate) region: Arc<Region>,
    pub(crate) map: M,
    pub(crate) blocks: AtomicBitmap,
    pub(crate) geometry: Geometry,
}

impl<M: Subject> Bed<M> {
    /// A fresh pool, whose blocks hold remains of other data.
    pub(crate) fn new(blocks: u32, seed: u64) -> Self {
        let slots = M::MAPPING.slots_for(blocks, INODES);
        let first_block = ((AREA_OFFSET + M::MAPPING.area_bytes(slots)).div_ceil(BLOCK_BYTES)) as u32;
        let region = Region::anonymous((u64::from(first_block) + u64::from(blocks)) * BLOCK_BYTES);
        let region = Arc::new(region.expect("anonymous memory"));
        for block in first_block..first_block + blocks {
            region.stream(u64::from(block) * BLOCK_BYTES, &[0xa5; BLOCK_BYTES as usize]);
        }
        let geometry = Geometry {
            area_offset: AREA_OFFSET,
            slots,
            first_block: BlockNo::new(first_block),
            blocks,
            inodes: INODES,
            seed: M::MAPPING.seed_for(seed),
            keys_in_reach: true,
            words: WORDS,
        };
        let map = M::mount(Arc::clone(&region), geometry);
        map.load(1, &|entry| panic!("{entry:?} in an empty pool"))
            .expect("an empty pool is sound");
        Bed {
            region,
            map,
            blocks: AtomicBitmap::new(u64::from(blocks)),
            geometry,
        }
    }

    /// The mapping as the next mount would see it, and the entries it found.
    pub(crate) fn remounted(&self) -> (M, Result<Found, MapError>) {
        self.mounted_from(&self.region)
    }

    fn mounted_from(&self, region: &Arc<Region>) -> (M, Result<Found, MapError>) {
        let map = M::mount(Arc::clone(region), self.geometry);
        let found = Mutex::new(BTreeMap::new());
        let result = map.load(3, &|entry| {
            let before = found.lock().unwrap().insert(entry.page(), entry);
            assert!(before.is_none(), "{entry:?} was visited twice");
        });
        (map, result.map(|()| found.into_inner().unwrap()))
    }

    /// Continues with the mapping as the next mount would see it.
    pub(crate) fn remount(&mut self) -> Found {
        let (map, found) = self.remounted();
        self.map = map;
        found.expect("the mapping is sound")
    }

    pub(crate) fn tx(&self) -> TestTx<'_> {
        // The lock comes first: entries that the transaction reads must stay in place.
        let shared = self.map.move_lock().map(|move_lock| move_lock.lock_shared());
        let mut tx = self.tx_without_move_lock();
        tx.shared = shared;
        tx
    }

    /// The engine's reaction when an insert found no entry, or the mapping requests it: moves, until nothing is left to
    /// move.
    pub(crate) fn make_space(&self) -> bool {
        let mut moved = false;
        for _ in 0..1_000_000 {
            let _moving = self.map.move_lock().map(|move_lock| move_lock.lock_exclusive());
            let mut tx = self.tx_without_move_lock();
            if !self.map.make_space(&mut tx).unwrap_or(false) {
                return moved;
            }
            tx.commit(&self.region);
            moved = true;
            if !self.map.wants_space() {
                return moved;
            }
        }
        panic!("making space never ends");
    }

    fn tx_without_move_lock(&self) -> TestTx<'_> {
        TestTx {
            map: &self.map,
            blocks: &self.blocks,
            region: &self.region,
            first_block: self.geometry.first_block,
            words: Vec::new(),
            stored: BTreeMap::new(),
            claimed: Vec::new(),
            freed: Vec::new(),
            shared: None,
        }
    }

    /// Blocks in which the mapping itself lies.
    pub(crate) fn nodes(&self) -> BTreeSet<BlockNo> {
        let mut nodes = BTreeSet::new();
        self.map.for_each_node(&mut |block, _| {
            assert!(nodes.insert(block), "node {block} came twice");
        });
        nodes
    }

    /// Maps a page to a block that the mapping chooses.
    pub(crate) fn insert(&self, ino: u32, lblk: u32) -> Result<PageWord, MapError> {
        self.with_map_space(|tx| {
            let word = PageWord::of_block(self.map.alloc_page(tx, PageId::from_raw(ino, lblk))?);
            self.map.insert(tx, PageId::from_raw(ino, lblk), word)?;
            Ok(word)
        })
    }

    /// Commits `change`; a full mapping gets a chance to move entries first, as in the engine.
    fn with_map_space<T>(&self, change: impl Fn(&mut TestTx<'_>) -> Result<T, MapError>) -> Result<T, MapError> {
        for _ in 0..1000 {
            let mut tx = self.tx();
            match change(&mut tx) {
                Ok(done) => {
                    tx.commit(&self.region);
                    if self.map.wants_space() {
                        self.make_space();
                    }
                    return Ok(done);
                }
                Err(MapError::TableFull) => {
                    drop(tx);
                    if !self.make_space() {
                        return Err(MapError::TableFull);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(MapError::TableFull)
    }

    /// Maps a page to a block that the caller names; the free map is left alone.
    pub(crate) fn insert_word(&self, ino: u32, lblk: u32, word: PageWord) -> Result<(), MapError> {
        self.with_map_space(|tx| self.map.insert(tx, PageId::from_raw(ino, lblk), word))
    }

    /// Unmaps a page; its block is freed by the commit if `free_block`.
    pub(crate) fn remove(&self, ino: u32, lblk: u32, free_block: bool) -> PageWord {
        let mut tx = self.tx();
        let word = self
            .map
            .remove(&mut tx, PageId::from_raw(ino, lblk))
            .expect("removing a page needs no space");
        if free_block && !word.is_hole() {
            tx.freed(Resource::Block(page_of(word)));
        }
        tx.commit(&self.region);
        word
    }
}

/// Puts the shared tests into the test module of mapping `$subject`.
macro_rules! mapping_tests {
    ($subject:ty) => {
        #[test]
        fn random_operations_match_a_model() {
            crate::testing::random_operations_match_a_model::<$subject>();
        }

        #[test]
        fn threads_on_their_own_files_lose_nothing() {
            crate::testing::threads_on_their_own_files_lose_nothing::<$subject>();
        }

        #[test]
        fn a_full_mapping_says_so_and_still_finds_everything() {
            crate::testing::a_full_mapping_says_so_and_still_finds_everything::<$subject>();
        }

        #[test]
        fn ranges_are_walked_completely_and_stop_when_told() {
            crate::testing::ranges_are_walked_completely_and_stop_when_told::<$subject>();
        }

        #[test]
        fn pages_that_come_and_go_leave_the_mapping_sound() {
            crate::testing::churn::pages_that_come_and_go_leave_the_mapping_sound::<$subject>();
        }

        #[test]
        fn a_record_applied_in_part_is_whole_after_replay() {
            crate::testing::harm::a_record_applied_in_part_is_whole_after_replay::<$subject>();
        }

        #[test]
        fn merges_undone_by_replay_leave_the_mapping_sound() {
            crate::testing::replay::merges_undone_by_replay_leave_the_mapping_sound::<$subject>();
        }

        #[test]
        fn lookups_survive_changes_of_their_own_inode() {
            crate::testing::harm::lookups_survive_changes_of_their_own_inode::<$subject>();
        }

        #[test]
        fn damage_is_found_and_repaired() {
            crate::testing::harm::damage_is_found_and_repaired::<$subject>();
        }
    };
}
pub(crate) use mapping_tests;

type Model = BTreeMap<PageId, PageWord>;

/// Few enough inodes and pages to collide, with both ends of the number range.
fn random_key(rng: &mut Rng) -> PageId {
    let ino = [1, 2, 7, INODES - 1][rng.below(4) as usize];
    let lblk = rng.below(48) as u32;
    PageId::from_raw(ino, if rng.below(8) == 0 { u32::MAX - lblk } else { lblk })
}

/// Whatever is inserted, replaced, removed, aborted and remounted: every lookup gives the same as a sorted map, through
/// one translation cache per inode that outlives all changes, as long as it is mounted; and no block is lost or used
/// twice.
pub(crate) fn random_operations_match_a_model<M: Subject>() {
    for_seeds(40, |seed| {
        let mut rng = Rng::new(seed);
        let mut bed = Bed::<M>::new(1 + rng.below(200) as u32, rng.next_u64());
        let mut model = Model::new();
        let fresh = || [1, 2, 7, INODES - 1].map(|ino| (ino, TransCache::default()));
        let mut caches = BTreeMap::from(fresh());
        for _ in 0..400 {
            if rng.below(50) == 0 {
                let found = bed.remount();
                // They belong to open files, of which none outlives a mount.
                caches = BTreeMap::from(fresh());
                let words: Model = found.iter().map(|(&key, entry)| (key, entry.word)).collect();
                assert_eq!(words, model, "what a mount finds");
            }
            random_transaction(&bed, &mut rng, &mut model);
            check_lookups(&bed, &mut rng, &model, &caches);
            if rng.below(20) == 0 {
                check_agrees(&bed, &model);
            }
        }
        let pages: BTreeSet<BlockNo> = model.values().map(|word| page_of(*word)).collect();
        assert_eq!(pages.len(), model.len(), "a block belongs to two pages");
        for &PageId { ino, lblk } in model.keys() {
            assert!(!bed.remove(ino.get(), lblk.get(), true).is_hole());
        }
        assert_eq!(bed.blocks.count_used(), 0, "blocks were lost");
        let Slots { total, free } = bed.map.slots();
        assert_eq!(free, total, "entries were lost");
    });
}

/// A few changes of different pages in one transaction, committed four times of five.
fn random_transaction<M: Subject>(bed: &Bed<M>, rng: &mut Rng, model: &mut Model) {
    let mut tx = bed.tx();
    let mut after = model.clone();
    let mut touched = BTreeSet::new();
    for _ in 0..=rng.below(6) {
        let PageId { ino, lblk } = random_key(rng);
        if !touched.insert(PageId::new(ino, lblk)) {
            continue;
        }
        let old = after.get(&PageId::new(ino, lblk)).copied();
        if rng.below(3) == 0 {
            match bed.map.remove(&mut tx, PageId::new(ino, lblk)) {
                // Taking a page out of a run needs one more node.
                Err(MapError::NoBlock) => return,
                removed => assert_eq!(removed, Ok(old.unwrap_or(PageWord::HOLE))),
            }
            after.remove(&PageId::new(ino, lblk));
        } else {
            let is_reserved = rng.below(4) == 0;
            let block = match bed.map.alloc_page(&mut tx, PageId::new(ino, lblk)) {
                Ok(block) => block,
                Err(MapError::NoBlock) => {
                    assert_eq!(
                        bed.blocks.count_used(),
                        bed.blocks.len(),
                        "refused with free blocks left"
                    );
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let word = match is_reserved {
                true => WORDS.unwritten(block),
                false => PageWord::of_block(block),
            };
            let done = match old {
                Some(_) => bed.map.replace(&mut tx, PageId::new(ino, lblk), word),
                None => bed.map.insert(&mut tx, PageId::new(ino, lblk), word),
            };
            // Dropping the transaction releases the claims of alloc_page, as in the engine.
            match done {
                Err(MapError::TableFull) => {
                    drop(tx);
                    bed.make_space();
                    return;
                }
                Err(MapError::NoBlock) => {
                    assert_eq!(
                        bed.blocks.count_used(),
                        bed.blocks.len(),
                        "refused with free blocks left"
                    );
                    return;
                }
                done => assert_eq!(done, Ok(())),
            }
            after.insert(PageId::new(ino, lblk), word);
        }
        if let Some(old) = old {
            tx.freed(Resource::Block(page_of(old)));
        }
    }
    if rng.below(5) != 0 {
        tx.commit(&bed.region);
        *model = after;
    }
}

fn check_lookups<M: Subject>(bed: &Bed<M>, rng: &mut Rng, model: &Model, caches: &BTreeMap<u32, TransCache>) {
    let expected = |ino, lblk| {
        model
            .get(&PageId::from_raw(ino, lblk))
            .copied()
            .unwrap_or(PageWord::HOLE)
    };
    let PageId { ino, lblk } = random_key(rng);
    bed.map.prefetch(PageId::new(ino, lblk), lblk.get() % 2 == 0);
    assert_eq!(
        bed.map.get(PageId::new(ino, lblk)),
        expected(ino.get(), lblk.get()),
        "page {lblk} of inode {ino}"
    );
    // In order, in pieces of equal length, as a program reads a file.
    let len = [1, 1, 2, 3, 7, 8, 9, 16, 21][rng.below(9) as usize];
    let mut at = u64::from(lblk);
    for _ in 0..1 + rng.below(12) {
        let count = len.min((1u64 << 32) - at) as usize;
        let mut words = vec![PageWord(u64::MAX); count];
        bed.map
            .get_many(PageId::from_raw(ino.get(), at as u32), &mut words, &caches[&ino.get()]);
        for (index, word) in words.into_iter().enumerate() {
            let lblk = at as u32 + index as u32;
            assert_eq!(
                word,
                expected(ino.get(), lblk),
                "page {lblk} of inode {ino}, {count} from {at} on"
            );
        }
        at += count as u64;
        if at == 1 << 32 {
            break;
        }
    }
}

/// Threads that concurrently insert and remove pages of different inodes keep all their pages and get different blocks,
/// while another thread always finds the pages that none of them touches.
pub(crate) fn threads_on_their_own_files_lose_nothing<M: Subject>() {
    const THREADS: u32 = 4;
    const RESTING: u32 = 1000;
    for_seeds(4, |seed| {
        let bed = &Bed::<M>::new(1500, seed);
        let resting: Vec<PageWord> = (0..300).map(|lblk| bed.insert(RESTING, lblk).expect("space")).collect();
        let done = &AtomicBool::new(false);
        let mut expected: BTreeMap<PageId, PageWord> = resting
            .iter()
            .enumerate()
            .map(|(lblk, &word)| (PageId::from_raw(RESTING, lblk as u32), word))
            .collect();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let cache = TransCache::default();
                while !done.load(Ordering::Relaxed) {
                    let mut words = [PageWord::HOLE; 20];
                    for (index, expected) in resting.chunks(20).enumerate() {
                        bed.map
                            .get_many(PageId::from_raw(RESTING, index as u32 * 20), &mut words, &cache);
                        assert_eq!(words, expected);
                    }
                }
            });
            let writer = |ino: u32| {
                let mut rng = Rng::new(seed ^ u64::from(ino));
                let mut mine = BTreeMap::new();
                for _ in 0..4000 {
                    let lblk = rng.below(290) as u32;
                    let known = mine.get(&PageId::from_raw(ino, lblk)).copied();
                    assert_eq!(
                        bed.map.get(PageId::from_raw(ino, lblk)),
                        known.unwrap_or(PageWord::HOLE)
                    );
                    if known.is_some() {
                        assert_eq!(
                            Some(bed.remove(ino, lblk, true)),
                            mine.remove(&PageId::from_raw(ino, lblk))
                        );
                    } else {
                        mine.insert(
                            PageId::from_raw(ino, lblk),
                            bed.insert(ino, lblk).expect("a block is free"),
                        );
                    }
                }
                mine
            };
            let writers: Vec<_> = (1..=THREADS).map(|ino| scope.spawn(move || writer(ino))).collect();
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            // Before any result is checked: a failure must not leave the reader running.
            done.store(true, Ordering::Relaxed);
            for mine in results {
                expected.extend(mine.expect("the writer's checks hold"));
            }
            reader.join().expect("resting pages are always found");
        });
        let blocks: BTreeSet<BlockNo> = expected.values().map(|word| page_of(*word)).collect();
        assert_eq!(blocks.len(), expected.len(), "a block belongs to two pages");
        let (_, found) = bed.remounted();
        let found = found.expect("the mapping is sound");
        let slots: BTreeSet<SlotNo> = found.values().map(|entry| entry.slot).collect();
        assert_eq!(slots.len(), found.len(), "a slot holds two pages");
        let words: BTreeMap<_, _> = found.iter().map(|(&key, entry)| (key, entry.word)).collect();
        assert_eq!(words, expected);
    });
}

/// A mapping filled to the last entry refuses, instead of searching forever or dropping a page. It finds every page,
/// misses end, and one removal frees the entry for one page.
pub(crate) fn a_full_mapping_says_so_and_still_finds_everything<M: Subject>() {
    for_seeds(4, |seed| {
        let bed = Bed::<M>::new(700, seed);
        let full = |error: &MapError| matches!(error, MapError::TableFull | MapError::NoBlock);
        let mut pages = 0;
        // Blocks run out first where entries are plentiful, so all pages share one block here.
        let word = |lblk: u32| word_of(bed.geometry.first_block, lblk + 1);
        let error = loop {
            match bed.insert_word(9, pages, word(pages)) {
                Ok(()) => pages += 1,
                Err(error) => break error,
            }
            assert!(pages < 10_000_000, "never full");
        };
        assert!(full(&error), "{error}");
        let (map, found) = bed.remounted();
        assert_eq!(found.expect("the mapping is sound").len(), pages as usize);
        for map in [&bed.map, &map] {
            for lblk in 0..pages {
                assert_eq!(map.get(PageId::from_raw(9, lblk)), word(lblk));
            }
            assert!(map.get(PageId::from_raw(9, pages)).is_hole());
            assert!(map.get(PageId::from_raw(8, 0)).is_hole());
        }
        assert_eq!(bed.remove(9, pages / 2, false), word(pages / 2));
        assert!(bed.map.get(PageId::from_raw(9, pages / 2)).is_hole());
        bed.insert_word(9, pages / 2, word(1)).expect("its entry is free");
        assert_eq!(bed.map.get(PageId::from_raw(9, pages / 2)), word(1));
        if bed.map.hashed_keys().is_some() {
            assert!(bed.insert_word(9, pages, word(pages)).is_err());
        }
    });
}

/// `for_range` shows each page of the range once, by the range and by the table, and `false` stops it at once.
pub(crate) fn ranges_are_walked_completely_and_stop_when_told<M: Subject>() {
    let bed = Bed::<M>::new(400, 5);
    let mapped: BTreeSet<u32> = [0, 1, 2, 50, 51, 1 << 20, u32::MAX - 1, u32::MAX].into();
    for &lblk in &mapped {
        bed.insert(3, lblk).expect("space");
        // Pages of a neighbour, which must not be shown.
        bed.insert(4, lblk).expect("space");
    }
    let whole = 1u64 << 32;
    for (first, end) in [
        (0, whole),
        (0, 3),
        (1, 51),
        (2, 2),
        (5, 1),
        (u32::MAX - 1, whole),
        (u32::MAX, u64::MAX),
        (u32::MAX - 1, whole + 5),
    ] {
        let mut seen = BTreeSet::new();
        bed.map.for_range(Inum::new(3), Lblk::new(first), end, &mut |entry| {
            assert_eq!(entry.ino, Inum::new(3));
            assert_eq!(entry.word, bed.map.get(entry.page()));
            assert!(seen.insert(entry.lblk), "page {} came twice", entry.lblk);
            true
        });
        let expected: BTreeSet<Lblk> = mapped
            .iter()
            .copied()
            .filter(|&lblk| lblk >= first && u64::from(lblk) < end)
            .map(Lblk::new)
            .collect();
        assert_eq!(seen, expected, "{first}..{end}");
        let mut visits = 0;
        bed.map.for_range(Inum::new(3), Lblk::new(first), end, &mut |_| {
            visits += 1;
            false
        });
        assert_eq!(visits, expected.len().min(1), "{first}..{end}");
        let by_runs = pages_by_runs(&bed, 3, first, end);
        assert!(by_runs.keys().map(|page| page.lblk).eq(expected), "{first}..{end}");
        visits = 0;
        bed.map.for_runs(Inum::new(3), Lblk::new(first), end, &mut |_, _| {
            visits += 1;
            false
        });
        assert_eq!(visits, by_runs.len().min(1), "{first}..{end}");
    }
    let mut visits = 0;
    bed.map.for_each(&mut |_| {
        visits += 1;
        visits < 5
    });
    assert_eq!(visits, 5);
}

/// The pages that a walk by runs shows, one by one.
fn pages_by_runs<M: Subject>(bed: &Bed<M>, ino: u32, first: u32, end: u64) -> Model {
    let mut pages = Model::new();
    let wanted = u64::from(first)..end;
    bed.map
        .for_runs(Inum::new(ino), Lblk::new(first), end, &mut |entry, count| {
            assert!(entry.ino.get() == ino && count > 0);
            for distance in 0..count as u32 {
                let page = entry.page().lblk.plus(distance);
                let word = entry.word.plus(u64::from(distance));
                assert!(
                    wanted.contains(&u64::from(page)),
                    "page {page} is in none of {wanted:?}"
                );
                assert_eq!(
                    pages.insert(PageId::new(entry.ino, page), word),
                    None,
                    "page {page} came twice"
                );
            }
            true
        });
    pages
}

/// A check without the structure's DRAM state matches the model, and every block in use has one owner.
fn check_agrees<M: Subject>(bed: &Bed<M>, model: &Model) {
    let (mut words, mut nodes) = (Model::new(), BTreeSet::new());
    bed.map.check(
        &mut |entry| assert_eq!(words.insert(entry.page(), entry.word), None, "{entry:?} again"),
        &mut |node| assert!(nodes.insert(node), "node {node} again"),
        &mut |broken| panic!("{broken:?} in a sound structure"),
    );
    assert_eq!(&words, model, "what a check finds");
    for (ino, first, end) in [(1, 0, 1 << 32), (2, 3, 30), (7, 0, 1 << 32), (INODES - 1, 20, 1 << 20)] {
        let within = |page: &PageId| page.ino.get() == ino && (u64::from(first)..end).contains(&page.lblk.into());
        let expected: Model = model
            .iter()
            .filter(|(page, _)| within(page))
            .map(|(&page, &word)| (page, word))
            .collect();
        assert_eq!(
            pages_by_runs(bed, ino, first, end),
            expected,
            "what a walk by runs finds"
        );
    }
    assert_eq!(nodes, bed.nodes());
    let mut owned = nodes;
    for word in model.values() {
        assert!(owned.insert(page_of(*word)), "block {} has two owners", page_of(*word));
    }
    assert_eq!(
        owned.len() as u64,
        bed.blocks.count_used(),
        "blocks in use, and blocks that somebody owns"
    );
}
