//! Shared test of mappings that move entries: a crash at each word of a move, with records of both places older than
//! the move.
//!
//! Contents: one test, for the mappings that have a move lock; `moving_tests!` puts it into their test modules. It acts
//! as the engine between two moves of its journal's checkpoint (docs/crash-consistency.md, "entries that move"):
//! records, then a move that is a separate record, and no freed entry is reused before the checkpoint has passed.
//!
//! A crash then keeps any of the lines stored since the checkpoint and any of the move's words, and all records are
//! replayed in order.
//!
//! The test checks itself, too: replayed in another order, older records must do harm; otherwise nothing was tried.

use crate::testing::{page_of, word_of};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ferrite_pm::Region;

use super::replay::{LINE_WORDS, SinceCheckpoint, words_of};
use super::{AREA_OFFSET, Bed, Model, Rng, Subject, for_seeds};
use crate::{BlockNo, MapError, PageId, PageWord, StoredWord};

const BLOCKS: u32 = 150;
/// Files, and how many pages each can have. Pages lie apart, so that `leaf` needs a line for most, and next to each
/// other, so that cuckoo makes runs.
const FILES: u64 = 3;
const CLUSTERS: u64 = 200;
const CLUSTER_STRIDE: u32 = 7;
const CLUSTER_PAGES: u64 = 3;
const STEPS: usize = 500;
/// Moves after which a table has been tested enough.
const MOVES: usize = 40;
/// Images with a random part of the move's words.
const TORN: usize = 8;

/// Puts this test into the test module of mapping `$subject`, which moves entries.
macro_rules! moving_tests {
    ($subject:ty) => {
        #[test]
        fn a_crash_at_each_word_of_a_move_loses_nothing() {
            crate::testing::moves::a_crash_at_each_word_of_a_move_loses_nothing::<$subject>();
        }
    };
}
pub(crate) use moving_tests;

type Words = Vec<StoredWord>;

/// Counts of moves, over all seeds.
#[derive(Debug, Default)]
struct Seen {
    moves: usize,
    images: usize,
    /// Moves that older records undo if they are replayed after them.
    harmed: usize,
}

/// Media that crashes leave, one after another in the same memory.
struct Crashed<'b, M> {
    bed: &'b Bed<M>,
    region: Arc<Region>,
    area: std::ops::Range<usize>,
}

impl<'b, M: Subject> Crashed<'b, M> {
    fn new(bed: &'b Bed<M>) -> Self {
        let first = AREA_OFFSET as usize / 8;
        let len_words = M::MAPPING.area_bytes(bed.geometry.slots) as usize / 8;
        Crashed {
            bed,
            region: Arc::new(Region::anonymous(bed.region.len()).expect("anonymous memory")),
            area: first..first + len_words,
        }
    }

    /// Any lines of `now`, the others as of the checkpoint, and then `stored`.
    fn keep(&self, rng: &mut Rng, base: &[u64], now: &[u64], stored: impl Iterator<Item = StoredWord>) {
        let kept_of_four = [0, 4, rng.below(5)][rng.below(3) as usize];
        for first in self.area.clone().step_by(LINE_WORDS) {
            let line = first..(first + LINE_WORDS).min(self.area.end);
            let kept = if rng.below(4) < kept_of_four { now } else { base };
            self.region.store_words(first as u64 * 8, &kept[line]);
        }
        for StoredWord { offset, value } in stored {
            self.region.store(offset, value);
        }
    }

    fn replay<'r>(&self, records: impl IntoIterator<Item = &'r Words>) {
        for &StoredWord { offset, value } in records.into_iter().flatten() {
            self.region.store(offset, value);
        }
    }

    /// Every page is where the model has it, once, and found by a lookup; nothing else is there, nothing is broken.
    fn check(&self, model: &Model) -> Result<(), String> {
        let map = M::mount(Arc::clone(&self.region), self.bed.geometry);
        let (mut found, mut fault) = (Model::new(), None);
        let mut twice = None;
        map.check(
            &mut |entry| {
                if found.insert(entry.page(), entry.word).is_some() {
                    twice = Some(format!("{entry:?} came twice"));
                }
            },
            &mut |_| {},
            &mut |broken| fault = Some(broken.what),
        );
        if let Some(what) = fault.or(twice) {
            return Err(what);
        }
        if &found != model {
            let differs = |key: &&PageId| found.get(*key) != model.get(*key);
            let key = found.keys().chain(model.keys()).find(differs);
            return Err(format!("page {key:?} is not as it was"));
        }
        map.load(1, &|_| {}).map_err(|error| error.to_string())?;
        match model.iter().find(|&(&page, &word)| map.get(page) != word) {
            Some((key, _)) => Err(format!("page {key:?} is there, and a lookup does not find it")),
            None => Ok(()),
        }
    }
}

/// A move, and a crash at each of its words. False if nothing moved.
fn move_and_crash<M: Subject>(
    crashed: &Crashed<'_, M>,
    rng: &mut Rng,
    since: &mut SinceCheckpoint,
    model: &Model,
    seen: &mut Seen,
) -> bool {
    let bed = crashed.bed;
    let before = words_of(bed);
    let older = since.records.len();
    let moving = bed.map.move_lock().map(|move_lock| move_lock.lock_exclusive());
    let mut tx = bed.tx_without_move_lock();
    if !bed.map.make_space(&mut tx).expect("a table that is sound") {
        return false;
    }
    let words = tx.words.clone();
    since.commit(bed, tx);
    drop(moving);
    if words.is_empty() {
        // Freed entries are about to be reusable; that is space enough.
        return true;
    }
    seen.moves += 1;
    let mut holds = |records: &[Words], stored: &mut dyn Iterator<Item = StoredWord>, when: String| {
        crashed.keep(rng, &since.base, &before, stored);
        crashed.replay(records);
        seen.images += 1;
        if let Err(what) = crashed.check(model) {
            panic!("a crash {when} of a move of {} words: {what}", words.len());
        }
    };
    holds(
        &since.records[..older],
        &mut std::iter::empty(),
        "before the record".into(),
    );
    for stored in 0..=words.len() {
        holds(
            &since.records,
            &mut words[..stored].iter().copied(),
            format!("after word {stored}"),
        );
    }
    for seed in 0..TORN as u64 {
        let mut torn = Rng::new(seed ^ words.len() as u64);
        let mut any = words.iter().copied().filter(|_| torn.below(2) == 0);
        holds(&since.records, &mut any, "that keeps any words".into());
    }
    // A journal that did not order the move after them would lose something.
    crashed.keep(rng, &since.base, &before, std::iter::empty());
    crashed.replay(&since.records[older..]);
    crashed.replay(&since.records[..older]);
    seen.harmed += usize::from(crashed.check(model).is_err());
    true
}

/// Maps a page that is not mapped, or gives up if no entry is free.
fn map_page<M: Subject>(
    bed: &Bed<M>,
    since: &mut SinceCheckpoint,
    key: PageId,
    word: PageWord,
) -> Result<(), MapError> {
    let mut tx = bed.tx();
    bed.map.insert(&mut tx, key, word)?;
    since.commit(bed, tx);
    Ok(())
}

fn unmap_page<M: Subject>(bed: &Bed<M>, since: &mut SinceCheckpoint, PageId { ino, lblk }: PageId, word: PageWord) {
    let mut tx = bed.tx();
    assert_eq!(bed.map.remove(&mut tx, PageId::new(ino, lblk)), Ok(word));
    since.commit(bed, tx);
}

/// A page, and a block for it: often the one that extends the run of the page before.
fn pick<M: Subject>(bed: &Bed<M>, rng: &mut Rng, model: &Model) -> (PageId, PageWord) {
    let ino = 1 + rng.below(FILES) as u32;
    let lblk = rng.below(CLUSTERS) as u32 * CLUSTER_STRIDE + rng.below(CLUSTER_PAGES) as u32;
    let before = lblk
        .checked_sub(1)
        .and_then(|before| model.get(&PageId::from_raw(ino, before)));
    let block = match before {
        Some(&word) if rng.below(2) == 0 && bed.geometry.is_data_block(page_of(word).plus(1)) => {
            page_of(word).get() + 1
        }
        _ => bed.geometry.first_block.get() + rng.below(u64::from(BLOCKS)) as u32,
    };
    let log = if rng.below(4) == 0 {
        1 + rng.below(1000) as u32
    } else {
        0
    };
    (PageId::from_raw(ino, lblk), word_of(BlockNo::new(block), log))
}

/// Fills a table until it moves entries, and further. Each move is crashed at each of its words, with earlier records
/// of both places replayed first: every page is at its place, and nowhere else.
pub(crate) fn a_crash_at_each_word_of_a_move_loses_nothing<M: Subject>() {
    let seen = Mutex::new(Seen::default());
    for_seeds(4, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<M>::new(BLOCKS, rng.next_u64());
        let crashed = Crashed::new(&bed);
        let mut model = BTreeMap::new();
        let mut since = SinceCheckpoint::new(&bed);
        let mut seen = seen.lock().unwrap();
        let before = seen.moves;
        for _ in 0..STEPS {
            if seen.moves - before >= MOVES {
                break;
            }
            let (key, word) = pick(&bed, &mut rng, &model);
            match model.get(&key).copied() {
                Some(old) if rng.below(3) == 0 => {
                    unmap_page(&bed, &mut since, key, old);
                    model.remove(&key);
                }
                Some(_) => {
                    let mut tx = bed.tx();
                    assert_eq!(bed.map.replace(&mut tx, key, word), Ok(()));
                    since.commit(&bed, tx);
                    model.insert(key, word);
                }
                None => match map_page(&bed, &mut since, key, word) {
                    Ok(()) => {
                        model.insert(key, word);
                    }
                    Err(error) => {
                        assert_eq!(error, MapError::TableFull);
                        let moved = move_and_crash(&crashed, &mut rng, &mut since, &model, &mut seen);
                        // If the checkpoint stays, more records of places that later moves use are replayed before
                        // them.
                        if rng.below(2) == 0 {
                            since = since.advance_checkpoint(&bed);
                        }
                        if moved && map_page(&bed, &mut since, key, word).is_ok() {
                            model.insert(key, word);
                        } else if let Some((&victim, &old)) = model.iter().nth(rng.below(model.len() as u64) as usize) {
                            unmap_page(&bed, &mut since, victim, old);
                            model.remove(&victim);
                        }
                    }
                },
            }
            if bed.map.wants_space() {
                move_and_crash(&crashed, &mut rng, &mut since, &model, &mut seen);
            }
            if rng.below(80) == 0 {
                since = since.advance_checkpoint(&bed);
            }
        }
    });
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    assert!(seen.moves >= 10, "hardly anything moved: {seen:?}");
    assert!(seen.harmed > 0, "no record named a place that a move left: {seen:?}");
}
