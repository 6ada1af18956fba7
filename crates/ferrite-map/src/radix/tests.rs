//! Tests specific to radix trees: heights, nodes that come and go, the cursor, damage to links.

use crate::testing::{log_of, page_of, word_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, fence};

use super::*;
use crate::testing::{self, Bed, Rng, Subject, TestTx, for_seeds};
use crate::{Mapping, PageId, StoredWord};

impl Subject for Radix {
    const MAPPING: Mapping = Mapping::Radix;

    fn mount(region: Arc<Region>, geometry: Geometry) -> Self {
        Radix::new(region, geometry)
    }
}

testing::mapping_tests!(Radix);

/// The first page that needs each height, and the last that it covers.
const ENDS: [(u32, u32); 4] = [
    (0, (1 << 9) - 1),
    (1 << 9, (1 << 18) - 1),
    (1 << 18, (1 << 27) - 1),
    (1 << 27, u32::MAX),
];

fn height(bed: &Bed<Radix>, ino: u32) -> u32 {
    bed.map.root(Inum::new(ino)).map_or(0, |root| root.height)
}

/// The faults that a check reports.
fn broken(map: &Radix) -> Vec<Broken> {
    let mut found = Vec::new();
    map.check(&mut |_| {}, &mut |_| {}, &mut |broken| found.push(broken));
    found
}

/// Where the link to the node that is `height` high on the way to page `lblk` is stored, and the link.
fn link_to(bed: &Bed<Radix>, ino: u32, lblk: u32, height: u32) -> (u64, Link) {
    let path = bed
        .map
        .path(&bed.tx(), Inum::new(ino), Lblk::new(lblk))
        .expect("sound")
        .expect("mapped");
    let mut steps = path.steps.iter().flatten();
    let step = steps.find(|step| step.link.height == height).expect("as high as that");
    (step.at, step.link)
}

/// A file is as high as its last page needs, whichever pages come or go first, and has no unnecessary node.
#[test]
fn heights_and_nodes_follow_the_pages() {
    let bed = Bed::<Radix>::new(100, 3);
    let mut nodes = 0;
    for (index, (first, last)) in ENDS.into_iter().enumerate() {
        let wanted = index as u32 + 1;
        bed.insert(1, first).expect("space");
        // A root above the old one, and the path down to a separate leaf.
        nodes += if index == 0 { 1 } else { 1 + u64::from(wanted) - 1 };
        assert_eq!((height(&bed, 1), bed.nodes().len() as u64), (wanted, nodes));
        bed.insert(1, last).expect("space");
        nodes += if index == 0 { 0 } else { u64::from(wanted) - 1 };
        assert_eq!((height(&bed, 1), bed.nodes().len() as u64), (wanted, nodes));
        assert_eq!(bed.map.lines_touched(PageId::from_raw(1, last)), 1 + u64::from(wanted));
    }
    assert_eq!(
        bed.map.lines_touched(PageId::from_raw(1, (1 << 27) + (1 << 20))),
        3,
        "it ends where nothing is"
    );
    for (index, (first, last)) in ENDS.into_iter().enumerate().rev() {
        assert_eq!(height(&bed, 1), index as u32 + 1);
        bed.remove(1, last, true);
        assert_eq!(height(&bed, 1), index as u32 + 1);
        bed.remove(1, first, true);
        assert_eq!(broken(&bed.map), []);
    }
    assert_eq!((height(&bed, 1), bed.blocks.count_used()), (0, 0));
    // In the reverse order, and from one to four levels and back in one step.
    for lblk in [u32::MAX, 0] {
        bed.insert(1, lblk).expect("space");
        assert_eq!(height(&bed, 1), 4);
    }
    assert_eq!(bed.nodes().len(), 7);
    bed.remove(1, u32::MAX, true);
    assert_eq!((height(&bed, 1), bed.nodes().len()), (1, 1));
    bed.insert(1, 1 << 31).expect("space");
    bed.remove(1, 0, true);
    assert_eq!((height(&bed, 1), bed.nodes().len()), (4, 4));
    bed.remove(1, 1 << 31, true);
    assert_eq!((height(&bed, 1), bed.blocks.count_used()), (0, 0));
}

/// Holes cost nothing: a file with pages at both ends is listed in order and at once, and takes the nodes of two pages.
#[test]
fn sparse_files_are_listed_by_what_is_mapped() {
    let bed = Bed::<Radix>::new(100, 3);
    // 16 TiB, the largest file possible.
    let pages = [0, 77, 511, 1 << 20, u32::MAX - 40, u32::MAX];
    for lblk in pages {
        bed.insert(1, lblk).expect("space");
        bed.insert(2, lblk / 2).expect("space");
    }
    let mut entered = 0;
    let mut found = Vec::new();
    bed.map.walk(
        Inum::new(1),
        PageRange::ALL,
        &mut |_, link| {
            entered += 1;
            link.is_some()
        },
        &mut |entry| {
            found.push(entry.lblk.get());
            true
        },
    );
    assert_eq!(found, pages);
    // Three leaves, a node above each, one more above pages 0 and 2^20, one above the last, and the root.
    assert_eq!(entered, 9);
    let started = std::time::Instant::now();
    for _ in 0..1000 {
        bed.map.for_range(Inum::new(1), Lblk::new(512), 1 << 20, &mut |entry| {
            panic!("{entry:?} in a hole")
        });
    }
    assert!(
        started.elapsed().as_secs() < 5,
        "{:?} for a thousand holes",
        started.elapsed()
    );
    let mut words = [PageWord(1); 1000];
    bed.map
        .get_many(PageId::from_raw(1, u32::MAX - 999), &mut words, &TransCache::default());
    let mapped: Vec<usize> = (0..words.len()).filter(|&index| !words[index].is_hole()).collect();
    assert_eq!(mapped, [959, 999]);
}

/// The engine relies on it: a record that unmaps many pages sets few more words than there are pages, and releases each
/// node once, after the release of its map slot.
#[test]
fn records_stay_small_and_free_each_node_once() {
    for stride in [1, 40, 512, 1 << 12, 1 << 22] {
        let bed = Bed::<Radix>::new(4000, 3);
        let pages: Vec<u32> = (0..512).map(|n: u32| n * stride % (1 << 31) + 5).collect();
        for &lblk in &pages {
            if bed.map.get(PageId::from_raw(1, lblk)).is_hole() {
                bed.insert(1, lblk).expect("space");
            }
        }
        let nodes = bed.nodes();
        let mut tx = bed.tx();
        for &lblk in &pages {
            let word = bed.map.remove(&mut tx, PageId::from_raw(1, lblk)).expect("sound");
            if !word.is_hole() {
                tx.freed(Resource::Block(page_of(word)));
            }
        }
        let offsets: BTreeSet<u64> = tx.words.iter().map(|word| word.offset).collect();
        assert!(
            offsets.len() <= 3 * 512,
            "{} words for 512 pages {stride} apart",
            offsets.len()
        );
        // As the engine sorts them.
        tx.freed.sort_unstable();
        let told = tx
            .freed
            .iter()
            .filter(|&&freed| freed == Resource::MapSlot(SlotNo::new(1)))
            .count();
        assert_eq!(told, nodes.len());
        assert!(
            tx.freed[..told]
                .iter()
                .all(|&freed| freed == Resource::MapSlot(SlotNo::new(1))),
            "blocks go first"
        );
        tx.commit(&bed.region);
        assert_eq!(bed.blocks.count_used(), 0);
    }
}

/// A node that was emptied and is needed again in the same transaction gets a different block, and nothing is lost if
/// the transaction aborts.
#[test]
fn a_node_freed_in_a_transaction_is_not_used_again_in_it() {
    let bed = Bed::<Radix>::new(100, 3);
    bed.insert(1, 1000).expect("space");
    let kept = bed.insert(1, 3).expect("space");
    let before = bed.nodes();
    for commits in [false, true] {
        let mut tx = bed.tx();
        let old = bed.map.remove(&mut tx, PageId::from_raw(1, 1000)).expect("sound");
        let block = bed.map.alloc_page(&mut tx, PageId::from_raw(1, 1001)).expect("space");
        bed.map
            .insert(&mut tx, PageId::from_raw(1, 1001), word_of(block, 9))
            .expect("space");
        assert_eq!(bed.map.remove(&mut tx, PageId::from_raw(1, 1000)), Ok(PageWord::HOLE));
        bed.map
            .replace(&mut tx, PageId::from_raw(1, 1001), word_of(block, 10))
            .expect("inserted above");
        tx.freed(Resource::Block(page_of(old)));
        if commits {
            tx.commit(&bed.region);
        }
        assert_eq!(broken(&bed.map), []);
    }
    assert_eq!(log_of(bed.map.get(PageId::from_raw(1, 1001))), 10);
    assert_eq!(bed.map.get(PageId::from_raw(1, 3)), kept);
    assert!(bed.map.get(PageId::from_raw(1, 1000)).is_hole());
    // The file shrank to its first leaf, and grew again.
    let both: Vec<BlockNo> = before.intersection(&bed.nodes()).copied().collect();
    assert_eq!(both, [link_to(&bed, 1, 3, 1).1.block]);
    assert_eq!(bed.blocks.count_used(), 2 + 3);
}

/// New pages follow the one before them.
#[test]
fn pages_in_order_lie_in_order() {
    let bed = Bed::<Radix>::new(2000, 3);
    let words: Vec<PageWord> = (0..1200).map(|lblk| bed.insert(1, lblk).expect("space")).collect();
    let follows = |pair: &&[PageWord]| page_of(pair[1]) == page_of(pair[0]).plus(1);
    // One block in 512 pages is a leaf, and one is the node above them.
    assert!(words.windows(2).filter(follows).count() >= 1200 - 6);
}

/// Reads twice, so that the cursor knows the leaf.
fn read_twice(bed: &Bed<Radix>, cache: &TransCache, ino: u32, lblk: u32) -> PageWord {
    let mut word = [PageWord(1)];
    bed.map.get_many(PageId::from_raw(ino, lblk), &mut word, cache);
    bed.map.get_many(PageId::from_raw(ino, lblk), &mut word, cache);
    word[0]
}

fn knows(bed: &Bed<Radix>, cache: &TransCache, ino: u32, lblk: u32) -> bool {
    let epoch = bed.map.epoch(Inum::new(ino)).load(Ordering::Relaxed);
    cache.leaf(Inum::new(ino), Lblk::new(lblk), epoch).is_some()
}

/// Sets the words of a transaction whose resources are never released: a reader's view before the release.
fn set_words(bed: &Bed<Radix>, tx: TestTx<'_>) {
    for &StoredWord { offset, value } in &tx.words {
        bed.region.store(offset, value);
    }
    // Nor those it claimed.
    std::mem::forget(tx);
}

/// Pages 0 and 513 of inode 1, and a cursor to the leaf of the second.
fn two_leaves(bed: &Bed<Radix>) -> TransCache {
    bed.insert(1, 0).expect("space");
    bed.insert(1, 513).expect("space");
    let cache = TransCache::default();
    assert_eq!(read_twice(bed, &cache, 1, 513), bed.map.get(PageId::from_raw(1, 513)));
    assert!(knows(bed, &cache, 1, 513), "the cursor was not left");
    cache
}

/// A leaf whose block was reused: a reader does not trust the cursor that leads there, whatever is in the block.
#[test]
fn a_cursor_does_not_outlive_its_node() {
    let bed = Bed::<Radix>::new(100, 3);
    let cache = two_leaves(&bed);
    let leaf = link_to(&bed, 1, 513, 1).1;
    bed.remove(1, 513, true);
    // The block holds data that look like pages.
    let trap = word_of(bed.geometry.first_block.plus(7), 7);
    bed.region
        .stream(leaf.word_offset(0), &trap.0.to_le_bytes().repeat(NODE_WORDS));
    assert!(read_twice(&bed, &cache, 1, 513).is_hole());
    let word = bed.insert(1, 514).expect("space");
    assert_eq!(read_twice(&bed, &cache, 1, 514), word);
    assert!(read_twice(&bed, &cache, 1, 513).is_hole());
}

/// Between the unlinking of a leaf and its reuse the epoch does not advance yet: a reader does not trust its zeros
/// either.
#[test]
fn a_cursor_to_an_unlinked_leaf_hides_no_new_page() {
    let bed = Bed::<Radix>::new(100, 3);
    let cache = two_leaves(&bed);
    let mut tx = bed.tx();
    bed.map.remove(&mut tx, PageId::from_raw(1, 513)).expect("sound");
    // A reader sees the transaction half done; its version check shows that later.
    assert!(!read_twice(&bed, &cache, 1, 513).is_hole());
    set_words(&bed, tx);
    assert!(knows(&bed, &cache, 1, 513));
    assert!(read_twice(&bed, &cache, 1, 513).is_hole());
    let word = bed.insert(1, 514).expect("space");
    assert_eq!(read_twice(&bed, &cache, 1, 514), word);
    assert!(read_twice(&bed, &cache, 1, 513).is_hole());
}

/// The same if the transaction that unlinks the leaf also links the next one.
#[test]
fn a_cursor_left_in_a_transactions_midst_hides_no_new_page() {
    let bed = Bed::<Radix>::new(100, 3);
    bed.insert(1, 5).expect("space");
    bed.insert(1, 513).expect("space");
    let cache = TransCache::default();
    let mut tx = bed.tx();
    bed.map.remove(&mut tx, PageId::from_raw(1, 513)).expect("sound");
    let word = PageWord::of_block(bed.map.alloc_page(&mut tx, PageId::from_raw(1, 514)).expect("space"));
    bed.map.insert(&mut tx, PageId::from_raw(1, 514), word).expect("space");
    assert!(!read_twice(&bed, &cache, 1, 513).is_hole());
    set_words(&bed, tx);
    assert!(knows(&bed, &cache, 1, 513));
    assert_eq!(read_twice(&bed, &cache, 1, 514), word);
    assert!(read_twice(&bed, &cache, 1, 513).is_hole());
}

/// One cache serves several files and several mounts, and leads none of them astray.
#[test]
fn a_cursor_is_one_files() {
    let mut bed = Bed::<Radix>::new(100, 3);
    let cache = two_leaves(&bed);
    let other = bed.insert(2, 513).expect("space");
    assert_eq!(read_twice(&bed, &cache, 2, 513), other);
    assert!(read_twice(&bed, &cache, 3, 513).is_hole());
    assert!(read_twice(&bed, &cache, 1, 1025).is_hole());
    bed.remount();
    assert_eq!(read_twice(&bed, &cache, 2, 513), other);
}

/// Readers that check a version, as the engine's do, never get a wrong word through a cache that all of them share,
/// while leaves come and go and their blocks fill with data that look like pages.
#[test]
fn validated_reads_are_right_while_leaves_come_and_go() {
    const PAGES: u32 = 24;
    // Two in each leaf, the last two far away so that the tree shrinks and grows.
    let lblk_of = |page: u32| match page {
        22.. => (1 << 19) + page,
        _ => page / 2 * 512 + 100 + page % 2,
    };
    for_seeds(3, |seed| {
        let bed = &Bed::<Radix>::new(80, seed);
        let word_at = |page: u32| word_of(bed.geometry.first_block.plus(page), page + 1);
        let trap = word_of(bed.geometry.first_block, 12_345);
        let mapped: &[AtomicBool] = &[const { AtomicBool::new(false) }; PAGES as usize];
        let (version, done, cache) = (&AtomicU64::new(0), &AtomicBool::new(false), &TransCache::default());
        std::thread::scope(|scope| {
            let reader = |number: u64| {
                let mut rng = Rng::new(seed ^ number);
                let mut validated = 0u64;
                while !done.load(Ordering::Relaxed) {
                    let page = rng.below(u64::from(PAGES)) as u32;
                    for _ in 0..4 {
                        let before = version.load(Ordering::Acquire);
                        let mut words = [PageWord(1)];
                        bed.map.get_many(PageId::from_raw(1, lblk_of(page)), &mut words, cache);
                        let is_mapped = mapped[page as usize].load(Ordering::Acquire);
                        fence(Ordering::Acquire);
                        if before % 2 == 0 && version.load(Ordering::Relaxed) == before {
                            let expected = if is_mapped { word_at(page) } else { PageWord::HOLE };
                            assert_eq!(words[0], expected, "page {page}");
                            validated += 1;
                        }
                    }
                }
                validated
            };
            let readers: Vec<_> = (0..2).map(|number| scope.spawn(move || reader(number))).collect();
            let mut rng = Rng::new(!seed);
            for round in 0..30_000 {
                // On a busy machine the readers would otherwise get their turn only between two of the writer's.
                if round % 100 == 0 {
                    std::thread::yield_now();
                }
                let mut tx = bed.tx();
                let mut changed = BTreeSet::new();
                for _ in 0..=rng.below(3) {
                    let page = rng.below(u64::from(PAGES)) as u32;
                    if !changed.insert(page) {
                        continue;
                    }
                    if mapped[page as usize].load(Ordering::Relaxed) {
                        assert_eq!(
                            bed.map.remove(&mut tx, PageId::from_raw(1, lblk_of(page))),
                            Ok(word_at(page))
                        );
                    } else {
                        bed.map
                            .insert(&mut tx, PageId::from_raw(1, lblk_of(page)), word_at(page))
                            .expect("space");
                    }
                }
                if rng.below(5) == 0 {
                    continue;
                }
                version.fetch_add(1, Ordering::AcqRel);
                for StoredWord { offset, value } in std::mem::take(&mut tx.words) {
                    bed.region.store(offset, value);
                }
                for page in changed {
                    mapped[page as usize].fetch_xor(true, Ordering::AcqRel);
                }
                version.fetch_add(1, Ordering::AcqRel);
                // Its freed resources are released some time later.
                tx.commit(&bed.region);
                let mut tx = bed.tx();
                for _ in 0..rng.below(4) {
                    let block = tx.alloc_block().expect("space");
                    let link = Link {
                        block: bed.geometry.first_block.plus(rng.below(80) as u32),
                        height: 1 + rng.below(3) as u32,
                        groups: u16::MAX,
                    };
                    let word = [trap.0, link.word()][rng.below(2) as usize];
                    bed.region
                        .stream(u64::from(block) * BLOCK_BYTES, &word.to_le_bytes().repeat(NODE_WORDS));
                }
            }
            done.store(true, Ordering::Relaxed);
            for reader in readers {
                assert!(
                    reader.join().expect("what it checked holds") > 0,
                    "no read was ever validated"
                );
            }
        });
        assert_eq!(broken(&bed.map), []);
    });
}

/// The mapping after a crash that let some of the words of `tx` through, and a replay.
fn crashed_and_replayed(bed: &Bed<Radix>, tx: &TestTx<'_>, rng: &mut Rng) -> Radix {
    let crashed = Region::anonymous(bed.region.len()).expect("anonymous memory");
    for offset in (0..bed.region.len()).step_by(8) {
        crashed.store(offset, bed.region.load(offset));
    }
    let let_through: Vec<StoredWord> = tx.words.iter().copied().filter(|_| rng.below(2) == 0).collect();
    for StoredWord { offset, value } in let_through.into_iter().chain(tx.words.iter().copied()) {
        crashed.store(offset, value);
    }
    Radix::mount(Arc::new(crashed), bed.geometry)
}

/// Trees that grow and shrink by several levels at once are whole after a replay, whatever part of the record a crash
/// let through.
#[test]
fn growth_and_shrinking_are_one_step_for_a_crash() {
    for_seeds(20, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<Radix>::new(150, rng.next_u64());
        let places: Vec<u32> = ENDS
            .iter()
            .flat_map(|&(first, last)| [first, first + 33, last / 2, last])
            .collect();
        let mut model = BTreeMap::new();
        for _ in 0..80 {
            let mut tx = bed.tx();
            let mut after = model.clone();
            for _ in 0..=rng.below(8) {
                let lblk = places[rng.below(places.len() as u64) as usize];
                // Words of unowned blocks: only the nodes matter here.
                let word = word_of(bed.geometry.first_block, 1 + rng.below(1000) as u32);
                match after.remove(&lblk) {
                    None => {
                        bed.map.insert(&mut tx, PageId::from_raw(1, lblk), word).expect("space");
                        after.insert(lblk, word);
                    }
                    Some(_) if rng.below(4) == 0 => {
                        bed.map
                            .replace(&mut tx, PageId::from_raw(1, lblk), word)
                            .expect("mapped");
                        after.insert(lblk, word);
                    }
                    Some(old) => assert_eq!(bed.map.remove(&mut tx, PageId::from_raw(1, lblk)), Ok(old)),
                }
            }
            let crash = (rng.below(4) == 0).then(|| crashed_and_replayed(&bed, &tx, &mut rng));
            tx.commit(&bed.region);
            model = after;
            if let Some(map) = crash {
                assert_eq!(broken(&map), []);
                let mut found = BTreeMap::new();
                map.for_range(Inum::new(1), Lblk::FIRST, LBLK_END, &mut |entry| {
                    found.insert(entry.lblk.get(), entry.word).is_none()
                });
                assert_eq!(found, model);
            }
            let last = model.keys().next_back().copied();
            assert_eq!(
                height(&bed, 1),
                last.map_or(0, |last| height_for(Lblk::new(last))),
                "no higher than it needs to be"
            );
        }
        for lblk in model.into_keys() {
            bed.remove(1, lblk, false);
        }
        assert_eq!(bed.blocks.count_used(), 0);
    });
}

/// Links that form a cycle, that two words share, or that lead where no node can be: lookups and listings end, a mount
/// reports it, a check names them, and a repair removes only pages to which only these links led.
#[test]
fn broken_links_are_found_and_repaired() {
    const FAR: u32 = 1 << 18;
    type Damage = fn(&Bed<Radix>);
    let damages: [(&str, Damage, &[u32]); 9] = [
        // A node two levels high, linked in place of its own child.
        (
            "its own child",
            |bed| {
                let (_, node) = link_to(bed, 1, FAR, 2);
                let (at, leaf) = link_to(bed, 1, FAR, 1);
                bed.region.store(
                    at,
                    Link {
                        block: node.block,
                        ..leaf
                    }
                    .word(),
                );
            },
            &[FAR],
        ),
        (
            "a cycle",
            |bed| {
                let (_, root) = link_to(bed, 1, 0, 3);
                let (at, leaf) = link_to(bed, 1, 0, 1);
                bed.region.store(
                    at,
                    Link {
                        block: root.block,
                        ..leaf
                    }
                    .word(),
                );
            },
            &[0],
        ),
        (
            "two parents",
            |bed| {
                let (_, leaf) = link_to(bed, 1, 0, 1);
                let (at, _) = link_to(bed, 1, FAR + 600, 1);
                bed.region.store(at, leaf.word());
            },
            &[FAR + 600],
        ),
        (
            "two files",
            |bed| {
                let (_, root) = link_to(bed, 1, 0, 3);
                bed.region.store(link_to(bed, 2, 0, 1).0, root.word());
            },
            &[],
        ),
        (
            "too high",
            |bed| {
                let (at, root) = link_to(bed, 2, 0, 1);
                bed.region.store(at, Link { height: 5, ..root }.word());
            },
            &[],
        ),
        (
            "outside",
            |bed| {
                let (at, root) = link_to(bed, 2, 0, 1);
                bed.region.store(
                    at,
                    Link {
                        block: BlockNo::new(u32::MAX),
                        ..root
                    }
                    .word(),
                );
            },
            &[],
        ),
        (
            "inode 0",
            |bed| {
                let (_, root) = link_to(bed, 2, 0, 1);
                bed.region.store(link_to(bed, 2, 0, 1).0, 0);
                bed.region.store(bed.geometry.area_offset, root.word());
            },
            &[],
        ),
        (
            "no data",
            |bed| {
                let (_, leaf) = link_to(bed, 1, FAR + 600, 1);
                bed.region.store(
                    leaf.word_offset(leaf.index_of(Lblk::new(FAR + 600))),
                    PageWord::of_block(BlockNo::new(1)).0,
                );
            },
            &[FAR + 600],
        ),
        (
            "no sixteenths",
            |bed| {
                let (at, node) = link_to(bed, 1, FAR, 2);
                bed.region.store(at, Link { groups: 0, ..node }.word());
            },
            &[],
        ),
    ];
    for (name, damage, lost) in damages {
        let bed = Bed::<Radix>::new(100, 3);
        let mut words = BTreeMap::new();
        for lblk in [0, FAR, FAR + 600] {
            words.insert(lblk, bed.insert(1, lblk).expect("space"));
        }
        bed.insert(2, 0).expect("space");
        damage(&bed);
        for lblk in [0, FAR, FAR + 600, u32::MAX] {
            bed.map.get(PageId::from_raw(1, lblk));
            read_twice(&bed, &TransCache::default(), 1, lblk);
        }
        bed.map.for_range(Inum::new(1), Lblk::FIRST, LBLK_END, &mut |_| true);
        bed.map.for_each(&mut |_| true);
        bed.map.for_each_node(&mut |_, _| {});
        let (_, found) = bed.remounted();
        assert!(matches!(found, Err(MapError::Damaged(_))), "{name}: {found:?}");
        let found = broken(&bed.map);
        assert!(!found.is_empty(), "{name} is not found");
        for StoredWord { offset, value } in found.into_iter().flat_map(|broken| broken.repair) {
            bed.region.store(offset, value);
        }
        assert_eq!(broken(&bed.map), [], "{name} is not repaired by one check");
        for lblk in lost {
            words.remove(lblk);
        }
        let mut left = BTreeMap::new();
        bed.map.for_range(Inum::new(1), Lblk::FIRST, LBLK_END, &mut |entry| {
            left.insert(entry.lblk.get(), entry.word).is_none()
        });
        assert_eq!(left, words, "{name}");
        let (map, found) = bed.remounted();
        assert!(found.is_ok(), "{name}: {found:?}");
        assert!(
            words
                .iter()
                .all(|(&lblk, &word)| map.get(PageId::from_raw(1, lblk)) == word),
            "{name}"
        );
    }
}

/// Wrong sixteenths are corrected, and no page is lost.
#[test]
fn wrong_sixteenths_cost_no_page() {
    for_seeds(10, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<Radix>::new(1000, rng.next_u64());
        for _ in 0..60 {
            let lblk = rng.below(1500) as u32;
            if bed.map.get(PageId::from_raw(1, lblk)).is_hole() {
                bed.insert(1, lblk).expect("space");
            }
        }
        let sound = bed.remounted().1.expect("sound");
        for height in [1, 2] {
            let (at, link) = link_to(&bed, 1, sound.keys().next().expect("some").lblk.get(), height);
            let groups = link.groups ^ (1 + rng.below(u64::from(u16::MAX)) as u16);
            bed.region.store(at, Link { groups, ..link }.word());
        }
        let found = broken(&bed.map);
        assert_eq!(found.len(), 2, "{found:?}");
        for StoredWord { offset, value } in found.into_iter().flat_map(|broken| broken.repair) {
            bed.region.store(offset, value);
        }
        assert_eq!(broken(&bed.map), []);
        assert_eq!(bed.remounted().1.expect("repaired"), sound);
    });
}
