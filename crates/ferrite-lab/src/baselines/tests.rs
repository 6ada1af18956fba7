//! Every structure of the lab, including the product's, behaves on the lab's pool like a map of pages.

use std::collections::BTreeMap;

use ferrite_map::{MapTx, PageId, PageWord, Resource, TransCache};

use crate::pool::{Pool, PoolPlan, page_of};
use crate::structure::Structure;
use ferrite_measure::Rng;

type Model = BTreeMap<(u32, u32), PageWord>;

fn pool(structure: Structure, score: f64, seed: u64) -> Pool {
    let plan = PoolPlan {
        blocks: 4000,
        score,
        lanes: 2,
        seed,
    };
    Pool::new(structure, plan).expect("memory")
}

fn agree(pool: &Pool, model: &Model) {
    let mut found = Model::new();
    pool.map.for_each(&mut |entry| {
        assert_eq!(
            found.insert((entry.ino.get(), entry.lblk.get()), entry.word),
            None,
            "{entry:?} twice"
        );
        true
    });
    assert_eq!(&found, model, "{}", pool.structure.name());
    let cache = TransCache::default();
    for ino in 1..4 {
        let mut words = [PageWord::HOLE; 64];
        for first in (0..1024).step_by(64) {
            pool.map.get_many(PageId::from_raw(ino, first), &mut words, &cache);
            for (lblk, word) in (first..).zip(words) {
                let wanted = model.get(&(ino, lblk)).copied().unwrap_or_default();
                assert_eq!(word, wanted, "{}: {ino} {lblk}", pool.structure.name());
                assert_eq!(pool.map.get(PageId::from_raw(ino, lblk)), wanted);
            }
        }
    }
}

/// One transaction of a few changes; returns the model after it.
fn changed(pool: &Pool, rng: &mut Rng, model: &Model, abort: bool) -> Option<Model> {
    let (ino, first, count) = (
        1 + rng.below(3) as u32,
        rng.below(1000) as u32,
        1 + rng.below(24) as u32,
    );
    let kind = rng.below(3);
    let result = pool.change(0, |tx| {
        let mut after = model.clone();
        for lblk in first..first + count {
            let old = after.get(&(ino, lblk)).copied();
            match (kind, old) {
                (0, _) => {
                    assert_eq!(
                        pool.map.remove(tx, PageId::from_raw(ino, lblk))?,
                        old.unwrap_or_default()
                    );
                    after.remove(&(ino, lblk));
                }
                (_, Some(_)) if kind == 1 => {
                    let word = PageWord::of_block(pool.map.alloc_page(tx, PageId::from_raw(ino, lblk))?);
                    pool.map.replace(tx, PageId::from_raw(ino, lblk), word)?;
                    after.insert((ino, lblk), word);
                }
                (_, Some(_)) => continue,
                (_, None) => {
                    let word = PageWord::of_block(pool.map.alloc_page(tx, PageId::from_raw(ino, lblk))?);
                    pool.map.insert(tx, PageId::from_raw(ino, lblk), word)?;
                    after.insert((ino, lblk), word);
                }
            }
            if let Some(old) = old {
                tx.freed(Resource::Block(page_of(old)));
            }
        }
        if abort {
            return Err(ferrite_map::MapError::NoBlock);
        }
        Ok(after)
    });
    assert!(abort || result.is_ok(), "{:?}", result.err());
    result.ok()
}

#[test]
fn structures_agree_with_a_map_also_after_aborts() {
    for structure in Structure::all() {
        for seed in 0..3 {
            let pool = pool(structure, 0.7, seed);
            let mut rng = Rng::new(seed);
            let mut model = Model::new();
            for round in 0..400 {
                let abort = rng.below(5) == 0;
                if let Some(after) = changed(&pool, &mut rng, &model, abort) {
                    model = after;
                }
                if round % 40 == 0 {
                    agree(&pool, &model);
                }
            }
            agree(&pool, &model);
            for &(ino, lblk) in model.keys() {
                pool.remove(0, ino, lblk, 1).expect("a page can go");
            }
            agree(&pool, &Model::new());
        }
    }
}

/// Trees split, level hashing resizes, and nothing is lost.
#[test]
fn structures_grow_to_a_full_pool() {
    for structure in Structure::all() {
        let pool = pool(structure, 0.0, 1);
        pool.fill(1, 0, 3600, |_| true).expect("space");
        assert!(pool.evict(), "x86-64 can evict");
        for lblk in 0..3600 {
            assert!(
                pool.geometry
                    .is_data_block(page_of(pool.map.get(PageId::from_raw(1, lblk)))),
                "{}: {lblk}",
                structure.name()
            );
            assert!(pool.map.lines_touched(PageId::from_raw(1, lblk)) > 0);
        }
        assert!(pool.map.get(PageId::from_raw(1, 3600)).is_hole());
    }
}

/// Two threads on separate files lose nothing.
#[test]
fn structures_take_changes_of_two_threads() {
    for structure in Structure::all() {
        let pool = &pool(structure, 0.85, 5);
        std::thread::scope(|scope| {
            for thread in 0..2u32 {
                scope.spawn(move || {
                    for round in 0..300 {
                        pool.insert(thread as usize, 1 + thread, round, 1).expect("space");
                        if round % 3 == 0 {
                            pool.remove(thread as usize, 1 + thread, round, 1).expect("it is there");
                        }
                    }
                });
            }
        });
        for ino in 1..3 {
            for lblk in 0..300 {
                let is_there = !pool.map.get(PageId::from_raw(ino, lblk)).is_hole();
                assert_eq!(is_there, lblk % 3 != 0, "{}: {ino} {lblk}", structure.name());
            }
        }
    }
}
