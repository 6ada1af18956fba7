//! Shared tests of harm to a mapping: crashes in the middle of a record, readers that race writers, damage.

use crate::testing::page_of;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrite_pm::Region;

use super::{AREA_OFFSET, Bed, Found, INODES, Model, Rng, Subject, TestTx, for_seeds};
use crate::{BLOCK_BYTES, Inum, Lblk, MapError, MapTx, PageId, PageWord, Resource, StoredWord, TransCache};

/// A crash while a record's words are being set leaves any of them out; replay sets them all, in order.
pub(crate) fn a_record_applied_in_part_is_whole_after_replay<M: Subject>() {
    for_seeds(20, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<M>::new(300, rng.next_u64());
        let mut model = Model::new();
        for _ in 0..150 {
            let mut after = model.clone();
            let mut tx = bed.tx();
            if change_a_run(&bed, &mut tx, &mut rng, &mut after).is_err() {
                drop(tx);
                bed.make_space();
                continue;
            }
            // The content of fresh blocks was durable before the record.
            let before = (rng.below(4) == 0).then(|| (words_of(&bed.region), tx.words.clone()));
            tx.commit(&bed.region);
            model = after;
            let Some((before, record)) = before else { continue };
            let crashed = Region::anonymous(bed.region.len()).expect("anonymous memory");
            for (at, &word) in before.iter().enumerate() {
                crashed.store(at as u64 * 8, word);
            }
            for &StoredWord { offset, value } in &record {
                if rng.below(2) == 0 {
                    crashed.store(offset, value);
                }
            }
            for &StoredWord { offset, value } in &record {
                crashed.store(offset, value);
            }
            let (_, found) = bed.mounted_from(&Arc::new(crashed));
            assert_eq!(words_of_pages(&found.expect("sound")), model);
        }
    });
}

/// Maps, remaps or unmaps a few consecutive pages; returns the error of the first that fails.
fn change_a_run<M: Subject>(
    bed: &Bed<M>,
    tx: &mut TestTx<'_>,
    rng: &mut Rng,
    model: &mut Model,
) -> Result<(), MapError> {
    let (ino, first) = (1 + rng.below(3) as u32, rng.below(600) as u32);
    let is_removal = rng.below(3) == 0;
    for lblk in first..=first + rng.below(20) as u32 {
        let old = model.get(&PageId::from_raw(ino, lblk)).copied();
        if is_removal {
            assert_eq!(
                bed.map.remove(tx, PageId::from_raw(ino, lblk))?,
                old.unwrap_or(PageWord::HOLE)
            );
            model.remove(&PageId::from_raw(ino, lblk));
        } else {
            let word = PageWord::of_block(bed.map.alloc_page(tx, PageId::from_raw(ino, lblk))?);
            match old {
                Some(_) => bed.map.replace(tx, PageId::from_raw(ino, lblk), word)?,
                None => bed.map.insert(tx, PageId::from_raw(ino, lblk), word)?,
            }
            model.insert(PageId::from_raw(ino, lblk), word);
        }
        if let Some(old) = old {
            tx.freed(Resource::Block(page_of(old)));
        }
    }
    Ok(())
}

fn words_of(region: &Region) -> Vec<u64> {
    (0..region.len()).step_by(8).map(|offset| region.load(offset)).collect()
}

fn words_of_pages(found: &Found) -> Model {
    found.iter().map(|(&key, entry)| (key, entry.word)).collect()
}

/// A lookup whose version is checked afterwards may meet half-done changes of its own inode, and blocks that were nodes
/// and now hold data. It must end, without a panic.
pub(crate) fn lookups_survive_changes_of_their_own_inode<M: Subject>() {
    for_seeds(4, |seed| {
        let bed = &Bed::<M>::new(500, seed);
        let done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for reader in 0..2 {
                scope.spawn(move || {
                    let cache = TransCache::default();
                    let mut rng = Rng::new(seed ^ reader);
                    while !done.load(Ordering::Relaxed) {
                        let mut words = [PageWord::HOLE; 20];
                        let lblk = rng.below(620) as u32;
                        bed.map.get_many(PageId::from_raw(1, lblk), &mut words, &cache);
                        bed.map.prefetch(PageId::from_raw(1, lblk), true);
                        bed.map.get(PageId::from_raw(1, lblk));
                        bed.map
                            .for_range(Inum::new(1), Lblk::new(lblk), u64::from(lblk) + 9, &mut |_| true);
                    }
                });
            }
            let mut rng = Rng::new(!seed);
            let mut model = Model::new();
            for round in 0..3000u32 {
                let mut tx = bed.tx();
                let mut after = model.clone();
                if change_a_run(bed, &mut tx, &mut rng, &mut after).is_ok() {
                    tx.commit(&bed.region);
                    model = after;
                } else {
                    drop(tx);
                    bed.make_space();
                }
                // Data in a free block, which may have been a node a moment ago.
                let mut tx = bed.tx();
                if let Ok(block) = tx.alloc_block() {
                    let noise: Vec<u8> = (0..BLOCK_BYTES / 8)
                        .flat_map(|_| {
                            [rng.next_u64(), rng.below(800), u64::from(round)][rng.below(3) as usize].to_le_bytes()
                        })
                        .collect();
                    bed.region.stream(u64::from(block) * BLOCK_BYTES, &noise);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

/// Whatever words of the structure are hit: a check ends, names the faults, and once they are repaired the structure
/// loads and is whole again, without the pages that were lost.
pub(crate) fn damage_is_found_and_repaired<M: Subject>() {
    for_seeds(60, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<M>::new(300, rng.next_u64());
        let mut model = Model::new();
        for _ in 0..60 {
            let mut tx = bed.tx();
            let mut after = model.clone();
            if change_a_run(&bed, &mut tx, &mut rng, &mut after).is_ok() {
                tx.commit(&bed.region);
                model = after;
            } else {
                drop(tx);
                bed.make_space();
            }
        }
        let mut places = vec![(AREA_OFFSET, M::MAPPING.area_bytes(bed.geometry.slots))];
        places.extend(
            bed.nodes()
                .into_iter()
                .map(|node| (u64::from(node) * BLOCK_BYTES, BLOCK_BYTES)),
        );
        for _ in 0..=rng.below(8) {
            let (start, len) = places[rng.below(places.len() as u64) as usize];
            let at = start + rng.below(len / 8) * 8;
            let value = match rng.below(4) {
                0 => bed.region.load(at) ^ 1 << rng.below(64),
                1 => rng.next_u64(),
                2 => bed.region.load(start + rng.below(len / 8) * 8),
                _ => rng.below(700),
            };
            bed.region.store(at, value);
        }
        // One repair may uncover more faults: those that a broken pointer hid.
        for _ in 0..20 {
            let mut repairs = Vec::new();
            bed.map
                .check(&mut |_| {}, &mut |_| {}, &mut |broken| repairs.extend(broken.repair));
            if repairs.is_empty() {
                break;
            }
            repairs
                .iter()
                .for_each(|&StoredWord { offset, value }| bed.region.store(offset, value));
        }
        let mut pages: BTreeMap<PageId, Vec<PageWord>> = BTreeMap::new();
        bed.map.check(
            &mut |entry| {
                assert!(entry.ino != Inum::NONE && entry.ino < Inum::new(INODES), "{entry:?}");
                assert!(bed.geometry.is_data_block(page_of(entry.word)), "{entry:?}");
                pages.entry(entry.page()).or_default().push(entry.word);
            },
            &mut |_| {},
            &mut |broken| panic!("{broken:?} is not repaired"),
        );
        let map = M::mount(Arc::clone(&bed.region), bed.geometry);
        map.load(1, &|_| {}).expect("repaired");
        for (&PageId { ino, lblk }, words) in &pages {
            let word = map.get(PageId::new(ino, lblk));
            assert!(
                words.contains(&word),
                "page {lblk} of inode {ino}: {word:?}, not one of {words:?}"
            );
        }
    });
}
