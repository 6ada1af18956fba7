//! Shared test of all mappings: a few pages that come and go thousands of times while their old entries wait for the
//! journal's checkpoint.
//!
//! Contents: one test, which `mapping_tests!` puts into the mappings' test modules. Every limit that a check
//! assumes, such as how far from its home an entry lies, must hold whatever waits: an insert that would exceed it is
//! refused, and succeeds once the checkpoint has moved.

use std::collections::{BTreeMap, BTreeSet};

use super::{Bed, Rng, Subject, for_seeds};
use crate::{MapError, PageId, PageWord, Resource, SlotNo};

const BLOCKS: u32 = 3000;
const ROUNDS: usize = 6000;
/// Rounds between two checks of the whole mapping.
const LOOK_EVERY: usize = 500;
/// Few, so that each meets its own old entries; in one chunk, next to each other, and at the ends of the range.
const PAGES: [PageId; 8] = [
    PageId::from_raw(5, 0),
    PageId::from_raw(5, 1),
    PageId::from_raw(5, 6),
    PageId::from_raw(5, 7),
    PageId::from_raw(5, 1 << 20),
    PageId::from_raw(5, u32::MAX),
    PageId::from_raw(6, 0),
    PageId::from_raw(6, 511),
];

pub(crate) fn pages_that_come_and_go_leave_the_mapping_sound<M: Subject>() {
    for_seeds(2, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<M>::new(BLOCKS, rng.next_u64());
        let mut waiting = Vec::new();
        let mut mapped: BTreeMap<PageId, PageWord> = BTreeMap::new();
        let (mut moved, mut longest) = (0, 0);
        for round in 0..ROUNDS {
            // Mostly one page, like a file that is rewritten repeatedly.
            let page = match rng.below(4) {
                0 => PAGES[rng.below(PAGES.len() as u64) as usize],
                _ => PAGES[0],
            };
            let word = PageWord::of_block(bed.geometry.first_block.plus(round as u32 % BLOCKS));
            if mapped.remove(&page).is_some() {
                let mut tx = bed.tx();
                bed.map.remove(&mut tx, page).expect("removing needs no space");
                waiting.append(&mut tx.freed);
                tx.commit(&bed.region);
            } else {
                insert(&bed, page, word, &mut waiting, &mut moved);
                mapped.insert(page, word);
            }
            longest = longest.max(waiting.len());
            // At first the request is ignored, so that the greatest distance is reached; then handled as in the engine.
            if bed.map.wants_reclaim() && round > ROUNDS / 2 {
                checkpoint_advances(&bed, &mut waiting);
            }
            if round % LOOK_EVERY == LOOK_EVERY - 1 {
                look(&bed, &mapped);
            }
        }
        println!("{longest} things waited at most, {moved} inserts waited for them");
        assert!(longest > 200 || moved > 100, "nothing ever stood in the way");
    });
}

/// Inserts as the engine does: entries move, then the checkpoint moves, then an entry must be free.
fn insert<M: Subject>(bed: &Bed<M>, page: PageId, word: PageWord, waiting: &mut Vec<Resource>, moved: &mut usize) {
    for attempt in 0..3 {
        let mut tx = bed.tx();
        match bed.map.insert(&mut tx, page, word) {
            Ok(()) => {
                waiting.append(&mut tx.freed);
                tx.commit(&bed.region);
                return;
            }
            Err(MapError::TableFull) if attempt == 0 => {
                drop(tx);
                bed.make_space();
            }
            Err(MapError::TableFull | MapError::NoBlock) => {
                drop(tx);
                *moved += 1;
                checkpoint_advances(bed, waiting);
            }
            Err(error) => panic!("page {page:?}: {error}"),
        }
    }
    panic!("no space for page {page:?} although nothing waits");
}

fn checkpoint_advances<M: Subject>(bed: &Bed<M>, waiting: &mut Vec<Resource>) {
    waiting.sort_unstable();
    let tx = bed.tx();
    waiting.drain(..).for_each(|resource| tx.release(resource));
}

/// Nothing is broken, and a mount and lookups find all mapped pages.
fn look<M: Subject>(bed: &Bed<M>, mapped: &BTreeMap<PageId, PageWord>) {
    let (mut found, mut nodes) = (BTreeMap::new(), BTreeSet::new());
    bed.map.check(
        &mut |entry| {
            found.insert(entry.page(), entry.word);
        },
        &mut |node| assert!(nodes.insert(node), "node {node} twice"),
        &mut |broken| panic!("{broken:?}"),
    );
    assert_eq!(&found, mapped, "what a check finds");
    let (map, loaded) = bed.remounted();
    let loaded = loaded.expect("the mapping is sound");
    assert!(loaded.keys().eq(mapped.keys()), "what a mount finds");
    for entry in loaded.values() {
        if let Some(hashfs) = map.hashed_keys() {
            assert!(!hashfs.is_out_of_reach(entry.page(), SlotNo::new(u64::from(entry.slot) as u32)));
        }
    }
    for (&PageId { ino, lblk }, &word) in mapped {
        assert_eq!(bed.map.get(PageId::new(ino, lblk)), word);
        assert_eq!(map.get(PageId::new(ino, lblk)), word);
    }
}
