//! Tests specific to extent trees: extents that join and split, trees that grow and shrink, cursors, damage.

use crate::testing::{page_of, word_of};
use std::sync::atomic::{AtomicU64, Ordering};

use std::collections::BTreeMap;

use super::*;
use crate::testing::{self, AREA_OFFSET, Bed, Rng, Subject, for_seeds};
use crate::{BLOCK_BYTES, Mapping, PageId, Resource, StoredWord};

impl Subject for ExtentTree {
    const MAPPING: Mapping = Mapping::Extent;

    fn mount(region: Arc<Region>, geometry: Geometry) -> Self {
        ExtentTree::new(region, geometry)
    }
}

testing::mapping_tests!(ExtentTree);

const INO: u32 = 5;

type Model = BTreeMap<u32, PageWord>;

/// A word that stays separate: it has a log.
fn logged(bed: &Bed<ExtentTree>, lblk: u32) -> PageWord {
    word_of(bed.geometry.first_block, lblk | 1)
}

/// A word that continues its neighbours' words.
fn plain(bed: &Bed<ExtentTree>, lblk: u32) -> PageWord {
    PageWord::of_block(bed.geometry.first_block.plus(lblk % bed.geometry.blocks))
}

fn replace(bed: &Bed<ExtentTree>, lblk: u32, word: PageWord) -> usize {
    let mut tx = bed.tx();
    bed.map
        .replace(&mut tx, PageId::from_raw(INO, lblk), word)
        .expect("a mapped page");
    let words = tx.words.len();
    tx.commit(&bed.region);
    words
}

/// The leaf of a page, as a search without a cursor finds it.
fn leaf(bed: &Bed<ExtentTree>, lblk: u32) -> Node {
    let found = bed.map.search(&*bed.region, Inum::new(INO), u64::from(lblk));
    found.expect("a leaf").0
}

fn height(bed: &Bed<ExtentTree>) -> u32 {
    let root = bed.region.load(AREA_OFFSET + u64::from(INO) * 8);
    ExtentTree::root_of(root).map_or(0, |(_, height)| height)
}

/// The extents of the file: first page and length.
fn extents(bed: &Bed<ExtentTree>) -> Vec<(u64, u32)> {
    let words = &*bed.region;
    let mut extents = Vec::new();
    bed.map.for_each_node(&mut |block, ino| {
        let leaf = Node::open(words, &bed.geometry, NodeId::leaf(ino, block));
        if let Some(leaf) = leaf.filter(|_| ino == Inum::new(INO)) {
            let keys = leaf.lows(words).flat_map(|at| leaf.keys_of(words, at.group));
            extents.extend(keys.map(|key| (key.start(), key.low_half())));
        }
    });
    extents.sort_unstable();
    extents
}

fn broken(bed: &Bed<ExtentTree>) -> Vec<Broken> {
    let mut all = Vec::new();
    bed.map.check(&mut |_| {}, &mut |_| {}, &mut |broken| all.push(broken));
    all
}

/// The structure is sound, and lookups, walks and a mount agree with `model`.
fn assert_holds(bed: &Bed<ExtentTree>, model: &Model) {
    let (mut pages, mut nodes) = (Model::new(), 0);
    bed.map.check(
        &mut |entry| assert_eq!(pages.insert(entry.lblk.get(), entry.word), None, "{entry:?} again"),
        &mut |_| nodes += 1,
        &mut |broken| panic!("{broken:?} in a sound tree"),
    );
    assert_eq!(&pages, model);
    assert_eq!(nodes, bed.nodes().len());
    let mut walked = Vec::new();
    bed.map.for_range(Inum::new(INO), Lblk::FIRST, 1 << 32, &mut |entry| {
        walked.push((entry.lblk.get(), entry.word));
        true
    });
    let expected: Vec<_> = model.iter().map(|(&lblk, &word)| (lblk, word)).collect();
    assert_eq!(walked, expected, "pages come in order");
}

/// A file written in order is one extent, and each page costs one word; so a large write has a small record.
#[test]
fn pages_in_a_row_are_one_extent_and_cost_a_word_each() {
    let bed = Bed::<ExtentTree>::new(2000, 1);
    for round in 0..3 {
        let mut tx = bed.tx();
        for lblk in round * 512..(round + 1) * 512 {
            bed.map
                .insert(&mut tx, PageId::from_raw(INO, lblk), plain(&bed, lblk))
                .expect("space");
        }
        let most = if round == 0 { 519 } else { 512 };
        assert!(tx.words.len() <= most, "{} words", tx.words.len());
        tx.commit(&bed.region);
        assert_eq!(extents(&bed), [(0, (round + 1) * 512)]);
    }
    assert_eq!((bed.nodes().len(), height(&bed)), (1, 1));
    let mut words = [PageWord::HOLE; 600];
    bed.map
        .get_many(PageId::from_raw(INO, 1000), &mut words, &TransCache::default());
    for (lblk, word) in (1000..).zip(words) {
        assert_eq!(word, if lblk < 1536 { plain(&bed, lblk) } else { PageWord::HOLE });
    }
}

/// Each page gets the block after the previous page's; only the root may come between the first one and the rest.
#[test]
fn blocks_follow_the_page_before() {
    let bed = Bed::<ExtentTree>::new(2000, 1);
    for lblk in 0..1000 {
        bed.insert(INO, lblk).expect("space");
    }
    assert_eq!(extents(&bed), [(0, 1), (1, 999)]);
    // Another file in between takes nothing from it.
    let word = bed.insert(INO + 1, 0).expect("space");
    bed.remove(INO + 1, 0, true);
    assert_eq!(page_of(bed.insert(INO, 1000).expect("space")), page_of(word));
    assert_eq!(extents(&bed), [(0, 1), (1, 1000)]);
}

/// Pages mapped in any order end as one extent if their blocks are consecutive, also across groups.
#[test]
fn pages_in_any_order_join() {
    for_seeds(40, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<ExtentTree>::new(1000, rng.next_u64());
        let mut pages: Vec<u32> = (10..310).collect();
        let mut model = Model::new();
        while !pages.is_empty() {
            let lblk = pages.swap_remove(rng.below(pages.len() as u64) as usize);
            bed.insert_word(INO, lblk, plain(&bed, lblk)).expect("space");
            model.insert(lblk, plain(&bed, lblk));
        }
        assert_holds(&bed, &model);
        assert_eq!(extents(&bed), [(10, 300)]);
    });
}

/// Replacing or removing a page in the middle splits its extent; the old word joins the parts again.
#[test]
fn extents_split_and_join_again() {
    let bed = Bed::<ExtentTree>::new(1000, 1);
    for lblk in 0..100 {
        bed.insert_word(INO, lblk, plain(&bed, lblk)).expect("space");
    }
    let words = replace(&bed, 50, PageWord::of_block(bed.geometry.first_block.plus(900)));
    assert_eq!(extents(&bed), [(0, 50), (50, 1), (51, 49)]);
    assert!(words <= 5, "{words} words");
    assert_eq!(bed.map.get(PageId::from_raw(INO, 51)), plain(&bed, 51));
    assert_eq!(
        page_of(bed.map.get(PageId::from_raw(INO, 50))),
        bed.geometry.first_block.plus(900)
    );
    replace(&bed, 50, logged(&bed, 50));
    assert_eq!(bed.map.get(PageId::from_raw(INO, 50)), logged(&bed, 50));
    assert_eq!(extents(&bed).len(), 3);
    replace(&bed, 50, plain(&bed, 50));
    assert_eq!(extents(&bed), [(0, 100)]);
    assert_eq!(bed.remove(INO, 30, false), plain(&bed, 30));
    assert_eq!(extents(&bed), [(0, 30), (31, 69)]);
    assert_eq!(bed.remove(INO, 31, false), plain(&bed, 31));
    assert_eq!(bed.remove(INO, 99, false), plain(&bed, 99));
    assert_eq!(bed.remove(INO, 99, false), PageWord::HOLE);
    assert_eq!(extents(&bed), [(0, 30), (32, 67)]);
    // The same word again is no change.
    assert_eq!(replace(&bed, 40, plain(&bed, 40)), 0);
}

/// A file overwritten in order goes from one extent to another, a few words at a time.
#[test]
fn overwriting_in_order_moves_the_border_of_two_extents() {
    let bed = Bed::<ExtentTree>::new(1000, 1);
    for lblk in 0..300 {
        bed.insert_word(INO, lblk, plain(&bed, lblk)).expect("space");
    }
    for lblk in 0..300 {
        let words = replace(&bed, lblk, plain(&bed, lblk + 500));
        assert!(words <= 7, "{words} words for page {lblk}");
        assert!(extents(&bed).len() <= 2);
    }
    assert_eq!(extents(&bed), [(0, 300)]);
    // And backwards.
    for lblk in (0..300).rev() {
        replace(&bed, lblk, plain(&bed, lblk));
        assert!(extents(&bed).len() <= 2);
    }
    assert_eq!(extents(&bed), [(0, 300)]);
}

/// Only an extent of one page has its word on the medium. It changes in place, and only if it is what the caller
/// expects.
#[test]
fn a_word_with_a_log_swings_in_place() {
    let bed = Bed::<ExtentTree>::new(300, 1);
    for lblk in 0..9 {
        let word = if lblk == 4 { logged(&bed, 4) } else { plain(&bed, lblk) };
        bed.insert_word(INO, lblk, word).expect("space");
    }
    assert_eq!(extents(&bed), [(0, 4), (4, 1), (5, 4)]);
    let (old, new) = (logged(&bed, 4), plain(&bed, 4));
    assert_eq!(bed.map.swing(PageId::from_raw(INO, 2), plain(&bed, 2), new), None);
    assert_eq!(bed.map.swing(PageId::from_raw(INO, 4), new, old), None);
    assert_eq!(bed.map.swing(PageId::from_raw(INO, 99), PageWord::HOLE, new), None);
    let before: Vec<u64> = (0..bed.region.len()).step_by(8).map(|at| bed.region.load(at)).collect();
    let offset = bed.map.swing(PageId::from_raw(INO, 4), old, new).expect("its word");
    let after: Vec<u64> = (0..bed.region.len()).step_by(8).map(|at| bed.region.load(at)).collect();
    let differs: Vec<usize> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
    assert_eq!(differs, [offset as usize / 8], "one word");
    assert_eq!(bed.map.get(PageId::from_raw(INO, 4)), new);
    let model: Model = (0..9).map(|lblk| (lblk, plain(&bed, lblk))).collect();
    assert_holds(&bed, &model);
    // A word that became plain joins when it is next touched.
    bed.remove(INO, 4, false);
    bed.insert_word(INO, 4, new).expect("space");
    assert_eq!(extents(&bed), [(0, 9)]);
}

/// Trees of three levels, made in order or not, find everything; removing everything, in order or not, frees every
/// node.
#[test]
fn big_trees_grow_and_go() {
    const PAGES: u32 = 140_000;
    for (ordered_in, ordered_out) in [(true, false), (false, true)] {
        let mut rng = Rng::new(9);
        let mut bed = Bed::<ExtentTree>::new(3000, 1);
        let mut shuffled = |is_ordered: bool| {
            let mut pages: Vec<u32> = (0..PAGES).collect();
            for at in (1..pages.len()).filter(|_| !is_ordered) {
                pages.swap(at, rng.below(at as u64 + 1) as usize);
            }
            pages
        };
        let mut most = 0;
        for lblk in shuffled(ordered_in) {
            let mut tx = bed.tx();
            bed.map
                .insert(&mut tx, PageId::from_raw(INO, lblk), logged(&bed, lblk))
                .expect("space");
            most = most.max(tx.words.len());
            tx.commit(&bed.region);
        }
        let nodes = bed.nodes().len();
        println!("{nodes} nodes, at most {most} words a record");
        assert_eq!(height(&bed), 3);
        assert!(most < 600, "{most} words in a record");
        if ordered_in {
            assert!(nodes <= PAGES as usize / 240 + 5, "{nodes} nodes for ascending pages");
        }
        let model: Model = (0..PAGES).map(|lblk| (lblk, logged(&bed, lblk))).collect();
        assert_holds(&bed, &model);
        assert_eq!(bed.remount().len(), PAGES as usize);
        for lblk in 0..PAGES {
            assert_eq!(bed.map.get(PageId::from_raw(INO, lblk)), logged(&bed, lblk));
        }
        assert!(bed.map.get(PageId::from_raw(INO, PAGES)).is_hole());
        for (count, lblk) in shuffled(ordered_out).into_iter().enumerate() {
            assert_eq!(bed.remove(INO, lblk, false), logged(&bed, lblk));
            if count % 40_000 == 0 {
                assert_eq!(broken(&bed), []);
            }
        }
        assert_eq!((bed.nodes().len(), height(&bed)), (0, 0));
        assert_eq!(bed.blocks.count_used(), 0);
    }
}

/// A tree that lost all its pages below some page, and a root with them, takes such pages again, in descending or
/// random order.
#[test]
fn what_a_tree_lost_in_front_can_come_back() {
    const LOST: u32 = 480 * 240;
    for is_descending in [false, true] {
        let bed = Bed::<ExtentTree>::new(1500, 1);
        for lblk in 0..LOST + 5000 {
            bed.insert_word(INO, lblk, logged(&bed, lblk)).expect("space");
        }
        assert_eq!(height(&bed), 3);
        (0..LOST).for_each(|lblk| assert!(!bed.remove(INO, lblk, false).is_hole()));
        assert_eq!(height(&bed), 2);
        let mut model: Model = (LOST..LOST + 5000).map(|lblk| (lblk, logged(&bed, lblk))).collect();
        for at in 0..6000 {
            let lblk = LOST - 1 - if is_descending { at } else { at * 7919 % 6007 };
            bed.insert_word(INO, lblk, logged(&bed, lblk)).expect("space");
            model.insert(lblk, logged(&bed, lblk));
            if at % 400 == 0 {
                assert_holds(&bed, &model);
            }
        }
        assert_holds(&bed, &model);
        for (&lblk, &word) in &model {
            assert_eq!(bed.map.get(PageId::from_raw(INO, lblk)), word);
        }
    }
}

/// Trees of several leaves whose nodes come and go at both ends and in the middle match a sorted map.
#[test]
fn trees_of_many_leaves_match_a_model() {
    for_seeds(6, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<ExtentTree>::new(6000, rng.next_u64());
        let mut model = Model::new();
        let mut most = 0;
        let spread = [1, 1, 3, 700_000][rng.below(4) as usize];
        for round in 0..300 {
            let first = rng.below(4000) as u32;
            let count = rng.below(400) as u32;
            let action = rng.below(5);
            let is_logged = rng.below(3) > 0;
            let step = 1 + rng.below(3) as u32;
            let shift = rng.below(3) as u32 * 700;
            for at in (0..count).step_by(step as usize) {
                let at = if round % 2 == 0 { at } else { count - 1 - at };
                let lblk = (first + at) * spread;
                let mut tx = bed.tx();
                let old = model.get(&lblk).copied();
                // Holes are made as often as they are filled; otherwise the lower half would never be empty.
                if action < 2 || (action == 2 && first < 2000) {
                    let removed = bed.map.remove(&mut tx, PageId::from_raw(INO, lblk)).expect("space");
                    assert_eq!(removed, old.unwrap_or(PageWord::HOLE));
                    model.remove(&lblk);
                } else {
                    let word = if is_logged {
                        logged(&bed, rng.next_u64() as u32)
                    } else {
                        plain(&bed, (lblk / spread).wrapping_add(shift))
                    };
                    match old {
                        Some(_) => bed
                            .map
                            .replace(&mut tx, PageId::from_raw(INO, lblk), word)
                            .expect("space"),
                        None => bed
                            .map
                            .insert(&mut tx, PageId::from_raw(INO, lblk), word)
                            .expect("space"),
                    }
                    model.insert(lblk, word);
                }
                most = most.max(tx.words.len());
                tx.commit(&bed.region);
                let near = lblk.saturating_sub(2);
                for lblk in near..near + 5 {
                    let expected = model.get(&lblk).copied().unwrap_or(PageWord::HOLE);
                    assert_eq!(bed.map.get(PageId::from_raw(INO, lblk)), expected, "page {lblk}");
                }
            }
            assert_holds(&bed, &model);
        }
        println!("{} nodes, at most {most} words a record", bed.nodes().len());
        let pages: Vec<u32> = model.keys().copied().collect();
        pages
            .into_iter()
            .for_each(|lblk| assert!(!bed.remove(INO, lblk, false).is_hole()));
        assert_eq!(bed.blocks.count_used(), 0);
    });
}

/// Two leaves of pages with logs; the second one starts at page 240.
fn two_leaves() -> Bed<ExtentTree> {
    let bed = Bed::<ExtentTree>::new(1000, 1);
    for lblk in 0..400 {
        bed.insert_word(INO, lblk, logged(&bed, lblk)).expect("space");
    }
    assert_eq!((height(&bed), bed.nodes().len()), (2, 3));
    assert_ne!(leaf(&bed, 239).block, leaf(&bed, 240).block);
    bed
}

/// A cursor to a removed leaf leads nowhere, even if data in its block looks just like the leaf.
#[test]
fn a_block_that_looks_like_the_leaf_it_was_is_not_believed() {
    for look_between in [false, true] {
        let bed = two_leaves();
        let block = leaf(&bed, 300).block;
        let mut image = vec![0; BLOCK_BYTES as usize];
        bed.region.read(u64::from(block) * BLOCK_BYTES, &mut image);
        assert_eq!(bed.map.get(PageId::from_raw(INO, 300)), logged(&bed, 300));
        let mut tx = bed.tx();
        for lblk in 240..400 {
            bed.map
                .remove(&mut tx, PageId::from_raw(INO, lblk))
                .expect("no space needed");
            if look_between {
                // Uncommitted changes have not happened.
                assert_eq!(bed.map.get(PageId::from_raw(INO, lblk)), logged(&bed, lblk));
            }
        }
        assert!(tx.freed.contains(&Resource::Block(block)));
        let at = |resource| tx.freed.iter().position(|&freed| freed == resource);
        assert!(at(Resource::MapSlot(SlotNo::new(block.get()))) < at(Resource::Block(block)));
        tx.commit(&bed.region);
        let mut tx = bed.tx();
        assert!(tx.claim_block(block));
        bed.region.stream(u64::from(block) * BLOCK_BYTES, &image);
        assert!(bed.map.get(PageId::from_raw(INO, 300)).is_hole());
        bed.map
            .insert(&mut tx, PageId::from_raw(INO, 300), logged(&bed, 7))
            .expect("the other leaf takes it");
        tx.commit(&bed.region);
        assert_eq!(bed.map.get(PageId::from_raw(INO, 300)), logged(&bed, 7));
        let mut words = [PageWord::HOLE; 3];
        bed.map
            .get_many(PageId::from_raw(INO, 299), &mut words, &TransCache::default());
        assert_eq!(words, [PageWord::HOLE, logged(&bed, 7), PageWord::HOLE]);
    }
}

/// A removed leaf, long before its block is reused, does not hide the pages that its neighbour has now.
#[test]
fn a_leaf_that_is_gone_hides_nothing() {
    let bed = two_leaves();
    assert_eq!(bed.map.get(PageId::from_raw(INO, 300)), logged(&bed, 300));
    let mut tx = bed.tx();
    for lblk in 240..400 {
        bed.map
            .remove(&mut tx, PageId::from_raw(INO, lblk))
            .expect("no space needed");
    }
    // A cursor of an epoch that lasts: nothing is released yet.
    assert_eq!(bed.map.get(PageId::from_raw(INO, 399)), logged(&bed, 399));
    tx.freed.clear();
    tx.commit(&bed.region);
    bed.insert_word(INO, 300, logged(&bed, 9)).expect("space");
    assert_eq!(bed.map.get(PageId::from_raw(INO, 300)), logged(&bed, 9));
    let mut model: Model = (0..240).map(|lblk| (lblk, logged(&bed, lblk))).collect();
    model.insert(300, logged(&bed, 9));
    assert_holds(&bed, &model);
}

/// Cursors stay right when a removal is abandoned, and when a leaf gives half of its pages away.
#[test]
fn cursors_follow_aborts_and_splits() {
    let bed = two_leaves();
    assert_eq!(bed.map.get(PageId::from_raw(INO, 300)), logged(&bed, 300));
    let mut tx = bed.tx();
    for lblk in 240..400 {
        bed.map
            .remove(&mut tx, PageId::from_raw(INO, lblk))
            .expect("no space needed");
    }
    drop(tx);
    for lblk in 240..400 {
        assert_eq!(bed.map.get(PageId::from_raw(INO, lblk)), logged(&bed, lblk));
    }
    let bed = Bed::<ExtentTree>::new(1000, 1);
    for lblk in (0..2000).step_by(2) {
        bed.insert_word(INO, lblk, logged(&bed, lblk)).expect("space");
        assert_eq!(
            bed.map.get(PageId::from_raw(INO, 100)),
            if lblk < 100 { PageWord::HOLE } else { logged(&bed, 100) }
        );
    }
    for lblk in (1..2000).step_by(2) {
        // The cursor is on the leaf that is about to split.
        assert!(bed.map.get(PageId::from_raw(INO, lblk)).is_hole());
        bed.insert_word(INO, lblk, logged(&bed, lblk)).expect("space");
        assert_eq!(bed.map.get(PageId::from_raw(INO, lblk)), logged(&bed, lblk));
        assert_eq!(bed.map.get(PageId::from_raw(INO, lblk - 1)), logged(&bed, lblk - 1));
    }
    let model: Model = (0..2000).map(|lblk| (lblk, logged(&bed, lblk))).collect();
    assert_holds(&bed, &model);
}

/// Lookups that saw one version of the file are right, while leaves come and go, and their blocks come back, some time
/// later, with data that looks just like the leaf except for its words.
#[test]
fn lookups_of_one_version_are_right() {
    const FIRST: u32 = 240;
    const END: u32 = 400;
    let poison = word_of(BlockNo::new(7), 7);
    let bed = &two_leaves();
    let version = &AtomicU64::new(0);
    let is_mapped = &AtomicU64::new(1);
    let (done, counted) = (&AtomicU64::new(0), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            scope.spawn(move || {
                let mut rng = Rng::new(reader);
                while done.load(Ordering::Relaxed) == 0 {
                    let lblk = FIRST + rng.below(u64::from(END - FIRST)) as u32;
                    let before = version.load(Ordering::Acquire);
                    let mapped = is_mapped.load(Ordering::Acquire) == 1;
                    let word = bed.map.get(PageId::from_raw(INO, lblk));
                    std::sync::atomic::fence(Ordering::Acquire);
                    if before.is_multiple_of(2) && version.load(Ordering::Relaxed) == before {
                        counted.fetch_add(1, Ordering::Relaxed);
                        let expected = if mapped { logged(bed, lblk) } else { PageWord::HOLE };
                        assert_eq!(word, expected, "page {lblk}");
                    }
                }
            });
        }
        let work = || {
            for _ in 0..1500 {
                let block = leaf(bed, 300).block;
                let mut image = vec![0; BLOCK_BYTES as usize];
                bed.region.read(u64::from(block) * BLOCK_BYTES, &mut image);
                let mut tx = bed.tx();
                for lblk in FIRST..END {
                    bed.map
                        .remove(&mut tx, PageId::from_raw(INO, lblk))
                        .expect("no space needed");
                }
                let freed = std::mem::take(&mut tx.freed);
                assert!(freed.contains(&Resource::Block(block)));
                version.fetch_add(1, Ordering::AcqRel);
                is_mapped.store(0, Ordering::Release);
                tx.commit(&bed.region);
                version.fetch_add(1, Ordering::AcqRel);
                for &resource in &freed {
                    match resource {
                        Resource::MapSlot(slot) => assert!(bed.map.release(slot)),
                        Resource::Block(block) => {
                            bed.blocks
                                .release(u64::from(block.get() - bed.geometry.first_block.get()));
                        }
                        _ => {}
                    }
                }
                for group in image[256..].chunks_mut(128) {
                    group[64..]
                        .chunks_mut(8)
                        .for_each(|word| word.copy_from_slice(&poison.0.to_le_bytes()));
                }
                let mut data = bed.tx();
                assert!(data.claim_block(block));
                bed.region.stream(u64::from(block) * BLOCK_BYTES, &image);
                let mut tx = bed.tx();
                for lblk in FIRST..END {
                    bed.map
                        .insert(&mut tx, PageId::from_raw(INO, lblk), logged(bed, lblk))
                        .expect("space");
                }
                version.fetch_add(1, Ordering::AcqRel);
                is_mapped.store(1, Ordering::Release);
                tx.commit(&bed.region);
                version.fetch_add(1, Ordering::AcqRel);
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // In any case the readers must end.
        done.store(1, Ordering::Relaxed);
        result.expect("changes succeed");
    });
    println!("{counted:?} lookups saw one version");
}

/// Sets a word, and returns the faults; restores the word afterwards.
fn broken_by(bed: &Bed<ExtentTree>, offset: u64, value: u64) -> Vec<Broken> {
    let before = bed.region.load(offset);
    bed.region.store(offset, value);
    let broken = broken(bed);
    assert!(bed.remounted().1.is_err(), "a mount notices it, too");
    bed.region.store(offset, before);
    assert_eq!(self::broken(bed), []);
    broken
}

/// Parts that no lookup could follow, or find, are broken; their repair touches nothing else.
#[test]
fn impossible_trees_are_broken() {
    let bed = two_leaves();
    let root_word = bed.region.load(AREA_OFFSET + u64::from(INO) * 8);
    let (block, height) = ExtentTree::root_of(root_word).expect("a root");
    let words = &*bed.region;
    let (ino, level) = (Inum::new(INO), height - 1);
    let root = Node::open(words, &bed.geometry, NodeId { ino, block, level }).expect("the root");
    let children: Vec<Key> = root.keys_of(words, 0).collect();
    let child_offset = |at: usize| root.key_offset(0, children[at].slot);
    let only = |broken: Vec<Broken>, offset: u64| {
        assert!(
            broken.iter().any(|one| one.repair == [StoredWord::new(offset, 0)]),
            "{broken:?} does not clear {offset}"
        );
    };
    // A pointer back to the root, or to a leaf that another key leads to, or to no data block.
    for target in [
        block,
        BlockNo::new(children[0].low_half()),
        BlockNo::new(1),
        BlockNo::new(u32::MAX),
    ] {
        let value = node::key_word(children[1].start(), u64::from(target));
        only(broken_by(&bed, child_offset(1), value), child_offset(1));
    }
    // The root of another inode, or a tree that is too high.
    let other = AREA_OFFSET + u64::from(INO + 1) * 8;
    only(broken_by(&bed, other, root_word), other);
    let high = ExtentTree::root_word(block, 13);
    let mine = AREA_OFFSET + u64::from(INO) * 8;
    only(broken_by(&bed, mine, high), mine);
    // Keys that lead elsewhere than to the pages of their leaf.
    let value = node::key_word(250, u64::from(children[1].low_half()));
    let found = broken_by(&bed, child_offset(1), value);
    assert!(!found.is_empty(), "pages 240..250 are not found any more");
    let first = leaf(&bed, 0);
    let key = first.around(words, 0, 3).at.expect("page 3");
    let offset = first.key_offset(key.group, key.slot);
    // In turn: overlaps the next one, lies after the leaf, is too long, lies in the place of page 0.
    for (start, len) in [(3, 2), (300, 1), (3, 100_000), (0, 1)] {
        let found = broken_by(&bed, offset, node::key_word(start, len));
        assert!(!found.is_empty(), "{start}, {len}");
    }
    // The repair drops the later one, whichever is wrong.
    let found = broken_by(&bed, offset, node::key_word(2, 1));
    only(found, offset);
    // Words that name no data block, and pages with one log.
    let found = broken_by(&bed, first.word_offset(key), word_of(BlockNo::NONE, 5).0);
    only(found, offset);
    // An index that hides a group, misplaces it or lists it twice.
    for low in [1, 5000, u64::MAX, 1 << 32] {
        assert!(!broken_by(&bed, first.index_offset(3), low).is_empty(), "{low}");
    }
    let few = node::header(Inum::new(INO), 0, 3);
    let found = broken_by(&bed, node::header_offset(first.block), few);
    let right = node::header(Inum::new(INO), 0, node::GROUPS);
    let right = [StoredWord::new(node::header_offset(first.block), right)];
    assert!(found.iter().all(|broken| broken.repair == right));
    // A leaf that claims pages of its neighbour: cursors would trust it.
    let found = broken_by(&bed, first.range_offset(), node::range_word(0, 1000));
    assert_eq!(found.len(), 1);
    let right = StoredWord::new(first.range_offset(), node::range_word(0, 240));
    assert_eq!(found[0].repair, [right]);
}

/// Damage in trees of several levels is repaired in few rounds, and files then work: pages can be mapped and removed.
#[test]
fn repaired_trees_work() {
    for_seeds(30, |seed| {
        let mut rng = Rng::new(seed);
        let mut bed = Bed::<ExtentTree>::new(1000, rng.next_u64());
        for lblk in 0..2000 {
            let lblk = lblk * 7919 % 2003;
            bed.insert_word(INO, lblk, logged(&bed, lblk)).expect("space");
        }
        let nodes: Vec<BlockNo> = bed.nodes().into_iter().collect();
        for _ in 0..=rng.below(20) {
            let node = nodes[rng.below(nodes.len() as u64) as usize];
            // Headers and indexes more often than other words.
            let bound = [2, 32, 512][rng.below(3) as usize];
            let word = rng.below(bound);
            let offset = u64::from(node) * BLOCK_BYTES + word * 8;
            let value = match rng.below(4) {
                0 => bed.region.load(offset) ^ 1 << rng.below(64),
                1 => rng.below(2100),
                2 => bed.region.load(offset + 8),
                _ => 0,
            };
            bed.region.store(offset, value);
        }
        let mut rounds = 0;
        loop {
            let repairs: Vec<StoredWord> = broken(&bed).into_iter().flat_map(|broken| broken.repair).collect();
            if repairs.is_empty() {
                break;
            }
            for StoredWord { offset, value } in repairs {
                bed.region.store(offset, value);
            }
            rounds += 1;
            assert!(rounds <= 4, "still broken after {rounds} rounds");
        }
        let mut model: Model = bed
            .remount()
            .into_iter()
            .map(|(page, entry)| (page.lblk.get(), entry.word))
            .collect();
        for lblk in 0..2003 {
            let expected = model.get(&lblk).copied().unwrap_or(PageWord::HOLE);
            assert_eq!(bed.map.get(PageId::from_raw(INO, lblk)), expected);
            if expected.is_hole() {
                bed.insert_word(INO, lblk, logged(&bed, lblk)).expect("space");
                model.insert(lblk, logged(&bed, lblk));
            }
        }
        assert_holds(&bed, &model);
        for lblk in 0..2003 {
            assert_eq!(Some(bed.remove(INO, lblk, false)), model.remove(&lblk));
        }
        assert_eq!(height(&bed), 0);
    });
}
