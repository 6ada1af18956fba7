//! The guarantee of mapped ranges: they may cover too much, never too little.

use std::collections::BTreeSet;

use crate::engine::{finish_interrupted, mount};
use crate::format::layout::lblks;
use ferrite_map::{BlockNo, FileMap, Inum, MapEntry, MapError, MapTx, PageId, PageWord, SlotNo, Slots, TransCache};
use ferrite_pm::Region;
use ferrite_vfs::{
    FallocateMode, FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::file::truncate;
use crate::format::layout::BLOCK_BYTES;
use crate::pool::core::Core;
use crate::{Engine, Mapping, MkfsOptions, MountOptions, mkfs};

fn covers(mapped_ranges: &MappedRanges, page: u64) -> bool {
    mapped_ranges.next_run(page, page + 1) == Some(PageRange::new(page, page + 1))
}

/// Random changes compared with a plain set of pages: each of its pages is covered, and apart from them only short
/// gaps are, as long as there is memory for all runs.
#[test]
fn mapped_ranges_cover_all_pages_and_little_else() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let budget = Budget::with_bytes(if seed % 2 == 0 { 1 << 20 } else { 2000 });
        let span = [2_000, 1 << 20, LBLK_END][random.random_range(0..3)];
        let mapped_ranges = MappedRanges::nowhere();
        let mut pages = BTreeSet::new();
        for _ in 0..400 {
            let first = random.random_range(0..span);
            let end = (first + random.random_range(1..50)).min(span);
            let far = (first + random.random_range(1..span)).min(LBLK_END);
            match random.random_range(0..8) {
                0..5 => {
                    mapped_ranges.widen(first, end, &budget);
                    pages.extend(first..end);
                }
                5 => {
                    mapped_ranges.clear(first, far, &budget);
                    pages.retain(|page| !(first..far).contains(page));
                }
                6 => {
                    mapped_ranges.clear(first, LBLK_END, &budget);
                    pages.retain(|&page| page < first);
                }
                _ => {
                    let known: Vec<Lblk> = pages.range(first..far).map(|&page| Lblk::at(page)).collect();
                    mapped_ranges.learn(PageRange::new(first, far), &known, &budget);
                }
            }
            assert!(pages.iter().all(|&page| covers(&mapped_ranges, page)));
            assert!(budget.dram_bytes() <= budget.most_bytes);
        }
        let all: Vec<Lblk> = pages.iter().map(|&page| Lblk::at(page)).collect();
        mapped_ranges.learn(PageRange::ALL, &all, &budget);
        if seed % 2 == 0 {
            let most = (all.len() as u64 + 1) * (GAP + 1);
            assert!(mapped_ranges.covered(0, LBLK_END, u64::MAX - LBLK_END) <= most);
        }
        drop(mapped_ranges);
        assert_eq!(budget.dram_bytes(), 0);
    }
}

#[test]
fn runs_keep_apart_and_within_their_number() {
    let mut runs = Runs::default();
    for n in 0..3 * RUNS_MAX as u64 {
        runs.add(n * n, n * n + 1);
        assert!(runs.0.len() <= RUNS_MAX);
    }
    let mut before = None;
    for (&first, &end) in &runs.0 {
        assert!(first < end && before.is_none_or(|before| before + GAP < first));
        before = Some(end);
    }
    assert!((0..3 * RUNS_MAX as u64).all(|n| {
        let around = runs.0.range(..=n * n).next_back();
        around.is_some_and(|(_, &end)| end > n * n)
    }));
}

#[test]
fn a_dense_file_has_no_list() {
    let budget = Budget::with_bytes(1 << 20);
    let mapped_ranges = MappedRanges::nowhere();
    for page in 0..10_000 {
        mapped_ranges.widen(page, page + 1, &budget);
    }
    mapped_ranges.clear(5_000, LBLK_END, &budget);
    assert_eq!(mapped_ranges.next_run(0, LBLK_END), Some(PageRange::new(0, 5_000)));
    mapped_ranges.widen(1 << 20, (1 << 20) + 1, &budget);
    assert_ne!(budget.dram_bytes(), 0);
    let far = PageRange::new(1 << 20, (1 << 20) + 1);
    assert_eq!(mapped_ranges.next_run(5_000, LBLK_END), Some(far));
    mapped_ranges.clear(1 << 19, LBLK_END, &budget);
    assert_eq!(budget.dram_bytes(), 0, "it is dense again");
}

const NODE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

fn blank(mapping: Mapping, size_bytes: u64) -> Vec<u8> {
    let region = Region::anonymous(size_bytes).unwrap();
    let options = MkfsOptions::default().mapping(mapping).inodes(255).seed(42);
    mkfs(&region, &options).unwrap();
    image_of(&region)
}

fn image_of(region: &Region) -> Vec<u8> {
    let mut image = vec![0; region.len() as usize];
    region.read(0, &mut image);
    image
}

fn opened(image: &[u8], change: impl FnOnce(&mut Core)) -> Engine {
    let mut core = mount(Region::from_image(image).unwrap(), &quiet()).unwrap();
    finish_interrupted(&mut core).unwrap();
    change(&mut core);
    Engine::over(core)
}

fn set_size(engine: &Engine, ino: Ino, size: u64) -> ferrite_vfs::Result<()> {
    let size = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, ino, &size).map(drop)
}

/// The pages of a file that a walk of the whole mapping finds.
fn walked(core: &Core, ino: u32) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    core.map.for_each(&mut |entry| {
        if entry.ino == Inum::new(ino) {
            pages.insert(u64::from(entry.lblk));
        }
        true
    });
    pages
}

/// No page is missing in the mapped ranges of any inode.
fn check_coverage(core: &Core, what: &str) {
    core.map.for_each(&mut |entry| {
        let mem = core.inodes.get(entry.ino);
        let (ino, lblk) = (entry.ino, entry.lblk);
        assert!(
            !core.keeps_mapped_ranges || covers(&mem.mapped_ranges, u64::from(lblk)),
            "{what}: page {lblk} of inode {ino}"
        );
        true
    });
}

/// Listings and searches of one file find the same as a walk of everything.
fn check_listing(engine: &Engine, ino: u32, random: &mut StdRng, what: &str) {
    let core = engine.core();
    let mem = core.inodes.get(Inum::new(ino));
    let file = engine.open(SYSTEM, u64::from(ino), OpenMode::read_only()).unwrap();
    let pages = walked(core, ino);
    let _lock = mem.read();
    let inode = core.load(Inum::new(ino));
    for first in [0, random.random_range(0..20_000), random.random_range(0..LBLK_END)] {
        let listed = truncate::mapped_pages(core, &mem, &inode, first);
        let expected: Vec<Lblk> = pages.range(first..).map(|&page| Lblk::at(page)).collect();
        assert_eq!(listed, expected, "{what}: inode {ino} from {first}");
    }
    drop(_lock);
    let size = inode.size();
    let offset = random.random_range(0..size.max(1) * 9 / 8 + 1);
    let holds_data = |&page: &u64| {
        let word = core.map.get(PageId::from_raw(ino, page as u32));
        !word.is_hole() && !word.is_unwritten()
    };
    let (from, end) = (offset / BLOCK_BYTES, lblks(size));
    let data = if offset >= size {
        None
    } else if inode.is_inline() {
        Some(offset)
    } else {
        let found = pages.range(from..end).find(|page| holds_data(page));
        found.map(|&page| offset.max(page * BLOCK_BYTES))
    };
    assert_eq!(
        file.seek_data(SYSTEM, offset).ok(),
        data,
        "{what}: data of {ino} from {offset}"
    );
    let hole = if offset >= size {
        None
    } else if inode.is_inline() {
        Some(size)
    } else {
        let found = (from..end).find(|page| !pages.contains(page) || !holds_data(page));
        Some(found.map_or(size, |page| offset.max(page * BLOCK_BYTES)))
    };
    assert_eq!(
        file.seek_hole(SYSTEM, offset).ok(),
        hole,
        "{what}: hole of {ino} from {offset}"
    );
}

/// One random change; it does not matter whether it finds space.
fn change(engine: &Engine, random: &mut StdRng, span: u64) -> ferrite_vfs::Result<()> {
    let name = [b'a' + random.random_range(0..4)];
    let other = [b'a' + random.random_range(0..4)];
    let ino = match engine.lookup(SYSTEM, ROOT_INO, &name) {
        Ok(attr) => attr.ino,
        Err(FsError::NotFound) => engine.mknod(SYSTEM, ROOT_INO, &name, &NODE)?.ino,
        Err(error) => return Err(error),
    };
    let near = random.random_range(0..3) == 0;
    let offset = random.random_range(0..if near { 64 * BLOCK_BYTES } else { span });
    let longest = [200, 20_000, 400_000, span][random.random_range(0..4)];
    let len = random.random_range(1..longest);
    let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
    let keep_size = random.random_range(0..2) == 0;
    match random.random_range(0..20) {
        0..8 => file
            .write_at(SYSTEM, offset, &vec![7; len.min(300_000) as usize])
            .map(drop),
        8..12 => set_size(engine, ino, offset),
        12 => set_size(engine, ino, 0),
        13..15 => file.fallocate(SYSTEM, FallocateMode::PunchHole, offset, len),
        15 => file.fallocate(
            SYSTEM,
            FallocateMode::ZeroRange { keep_size },
            offset,
            len.min(2_500_000),
        ),
        // Often more than there is space for.
        16 => {
            let len = random.random_range(1..14 << 20);
            file.fallocate(SYSTEM, FallocateMode::Allocate { keep_size }, offset, len)
        }
        17 => engine.rename(SYSTEM, ROOT_INO, &name, ROOT_INO, &other, RenameMode::Replace),
        18 => engine.unlink(SYSTEM, ROOT_INO, &name),
        _ => file.append(SYSTEM, &vec![9; len.min(50_000) as usize]).map(drop),
    }
}

/// The mapped ranges agree with the mapping after random writes, truncations, punches, reservations, operations without
/// space, renames over files, and remounts; with enough memory for them, with little, and with none.
#[test]
fn listings_find_what_walks_find() {
    let seeds = if std::env::var_os("FERRITE_SOAK").is_some() {
        60
    } else {
        4
    };
    for &mapping in Mapping::ALL {
        let empty = blank(mapping, 20 << 20);
        for seed in 0..seeds {
            println!("{mapping}, seed {seed}");
            let mut random = StdRng::seed_from_u64(seed);
            let budget = [1 << 20, 3_000, 0][seed as usize % 3];
            let span = [64 << 20, 1 << 40][seed as usize % 2];
            let tight = |core: &mut Core| core.mapped_ranges_budget = Budget::with_bytes(budget);
            let mut engine = opened(&empty, tight);
            let mut failed = 0;
            for turn in 0..250 {
                let what = format!("{mapping}, seed {seed}, turn {turn}");
                failed += u32::from(change(&engine, &mut random, span).is_err());
                let core = engine.core();
                check_coverage(core, &what);
                if turn % 5 == 0 {
                    for ino in 2..8 {
                        if core.inode_map.is_set(u64::from(ino)) {
                            check_listing(&engine, ino, &mut random, &what);
                        }
                    }
                    assert!(core.mapped_ranges_budget.dram_bytes() <= budget);
                }
                if random.random_range(0..60) == 0 {
                    let image = image_of(&core.region);
                    engine = opened(&image, tight);
                }
            }
            assert!(!engine.is_read_only());
            println!("{failed} of 250 failed");
            let report = crate::fsck(
                Region::from_image(&image_of(&engine.core().region)).unwrap(),
                &mut |_, _, _| {},
            );
            assert!(report.unwrap().findings.is_empty());
        }
    }
}

/// Searches of a file of which nothing is known learn its pages while a writer changes it: no page is lost.
#[test]
fn searches_learn_beside_writers() {
    for mapping in [Mapping::Hashfs, Mapping::Cuckoo, Mapping::Leaf] {
        let engine = opened(&blank(mapping, 96 << 20), |_| {});
        let ino = engine.mknod(SYSTEM, ROOT_INO, b"a", &NODE).unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        let core = engine.core();
        let mem = core.inodes.get(Inum::new(ino as u32));
        for seed in 0..12 {
            println!("{mapping}, seed {seed}");
            set_size(&engine, ino, 1 << 40).unwrap();
            let all = |runs: &mut Runs| runs.add(0, LBLK_END);
            mem.mapped_ranges.change(&core.mapped_ranges_budget, all);
            let searched = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut random = StdRng::seed_from_u64(seed);
                    for turn in 0..1000 {
                        let offset = random.random_range(0..1 << 40);
                        match random.random_range(0..10) {
                            0 => set_size(&engine, ino, offset).unwrap(),
                            1 => set_size(&engine, ino, 1 << 40).unwrap(),
                            _ => assert_eq!(file.write_at(SYSTEM, offset, &[7]).unwrap(), 1),
                        }
                        if turn > 20 && searched.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
                let _ = file.seek_data(SYSTEM, 0);
                let _ = file.seek_data(SYSTEM, 1 << 39);
                searched.store(true, Ordering::Relaxed);
            });
            check_coverage(core, &format!("{mapping}, seed {seed}"));
        }
    }
}

/// A mapping that counts lookups of its entries.
struct Counting {
    inner: Box<dyn FileMap>,
    looks: Arc<AtomicU64>,
}

impl Counting {
    fn count(&self, looks: u64) {
        self.looks.fetch_add(looks, Ordering::Relaxed);
    }
}

impl FileMap for Counting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        self.count(1);
        self.inner.get(PageId::new(ino, lblk))
    }

    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], cache: &TransCache) {
        self.count(out.len() as u64);
        self.inner.get_many(PageId::new(ino, lblk), out, cache);
    }

    fn prefetch(&self, PageId { ino, lblk }: PageId, to_store: bool) {
        self.inner.prefetch(PageId::new(ino, lblk), to_store);
    }

    fn alloc_page(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<BlockNo, MapError> {
        self.count(1);
        self.inner.alloc_page(tx, PageId::new(ino, lblk))
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        self.count(1);
        self.inner.insert(tx, PageId::new(ino, lblk), word)
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        self.count(1);
        self.inner.replace(tx, PageId::new(ino, lblk), word)
    }

    fn swing(&self, PageId { ino, lblk }: PageId, old: PageWord, new: PageWord) -> Option<u64> {
        self.inner.swing(PageId::new(ino, lblk), old, new)
    }

    fn remove(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<PageWord, MapError> {
        self.count(1);
        self.inner.remove(tx, PageId::new(ino, lblk))
    }

    fn release(&self, slot: SlotNo) -> bool {
        self.inner.release(slot)
    }

    fn load(&self, threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        self.inner.load(threads, visit)
    }

    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool) {
        self.inner.for_each(visit);
    }

    /// The shorter of range and table; for a tree, the entries it visits.
    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let slots = self.inner.slots();
        self.count((end - u64::from(first)).min(slots.total));
        self.inner.for_range(ino, first, end, &mut |entry| {
            self.count(1);
            visit(entry)
        });
    }

    fn walk_worth(&self) -> Option<u64> {
        self.inner.walk_worth()
    }

    fn slots(&self) -> Slots {
        self.inner.slots()
    }

    fn check(
        &self,
        visit: &mut dyn FnMut(MapEntry),
        node: &mut dyn FnMut(BlockNo),
        broken: &mut dyn FnMut(ferrite_map::Broken),
    ) {
        self.inner.check(visit, node, broken);
    }

    fn move_lock(&self) -> Option<&ferrite_map::move_lock::MoveLock> {
        self.inner.move_lock()
    }

    fn wants_space(&self) -> bool {
        self.inner.wants_space()
    }

    fn make_space(&self, tx: &mut dyn MapTx) -> Result<bool, MapError> {
        self.inner.make_space(tx)
    }

    fn dram_bytes(&self) -> u64 {
        self.inner.dram_bytes()
    }
}

/// An engine, and the number of examined entries.
fn counted(image: &[u8]) -> (Engine, Arc<AtomicU64>) {
    let looks = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&looks);
    let engine = opened(image, |core| {
        let inner = std::mem::replace(
            &mut core.map,
            Mapping::Hashfs.open(Arc::clone(&core.region), core.superblock.map_geometry()),
        );
        core.map = Box::new(Counting { inner, looks: counter });
    });
    (engine, looks)
}

/// Truncating, punching, searching and removing a sparse file costs its mapped pages, whatever the size of the file and
/// of the table.
#[test]
fn a_sparse_file_costs_what_is_mapped() {
    const SPAN: u64 = 256 << 20;
    const TURNS: u64 = 300;
    for &mapping in Mapping::ALL {
        let (engine, looks) = counted(&blank(mapping, 128 << 20));
        let ino = engine.mknod(SYSTEM, ROOT_INO, b"a", &NODE).unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        let mut random = StdRng::seed_from_u64(7);
        let cost = |what: &str, turns: u64, most: u64, work: &mut dyn FnMut()| {
            let before = looks.load(Ordering::Relaxed);
            (0..turns).for_each(|_| work());
            let each = (looks.load(Ordering::Relaxed) - before) / turns;
            println!("{mapping}: {what} looks at {each} entries");
            assert!(each <= most, "{mapping}: {what} looks at {each} entries");
        };
        // Few pages are left at any time, each of which may have a gap next to it.
        cost("ftruncate and a write", TURNS, 400, &mut || {
            set_size(&engine, ino, random.random_range(0..SPAN)).unwrap();
            file.write_at(SYSTEM, random.random_range(0..SPAN), &[7; 100]).unwrap();
        });
        cost("a punch and a write", TURNS, 400, &mut || {
            let offset = random.random_range(0..SPAN);
            file.fallocate(SYSTEM, FallocateMode::PunchHole, offset, SPAN).unwrap();
            file.write_at(SYSTEM, random.random_range(0..SPAN), &[7; 100]).unwrap();
        });
        set_size(&engine, ino, 1 << 40).unwrap();
        cost("SEEK_DATA", TURNS, 100, &mut || {
            let _ = file.seek_data(SYSTEM, random.random_range(0..1 << 40));
        });
        cost("SEEK_HOLE", TURNS, 100, &mut || {
            file.seek_hole(SYSTEM, random.random_range(0..1 << 40)).unwrap();
        });
        drop(file);
        cost("unlink", 1, 1000, &mut || {
            engine.unlink(SYSTEM, ROOT_INO, b"a").unwrap()
        });
        // A file of which nothing is known yet: one walk, whichever operation comes first.
        let ino = engine.mknod(SYSTEM, ROOT_INO, b"a", &NODE).unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        for n in 1..50 {
            file.write_at(SYSTEM, n << 32, &[7; 100]).unwrap();
        }
        drop(file);
        let (engine, looks) = counted(&image_of(&engine.core().region));
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        let slots = engine.core().map.slots().total;
        for n in (1..50).rev() {
            assert_eq!(file.seek_data(SYSTEM, (n << 32) - 1).unwrap(), n << 32);
            set_size(&engine, ino, n << 32).unwrap();
        }
        let all = looks.load(Ordering::Relaxed);
        println!("{mapping}: fifty truncations of an unknown file look at {all} entries");
        assert!(all <= 2 * slots + 50 * 2000, "{mapping}: {all} entries");
    }
}
