//! Shared test of replay: records restore words that were swung in place since, and later records must be consistent
//! with that.
//!
//! Contents: one test for every mapping, as `mapping_tests!` lists it. It treats a mapping as the engine does between
//! two moves of its journal's checkpoint: records and swings in any order, while no freed resource is reused. Then a
//! crash keeps any of the lines stored since the checkpoint, and all records are replayed.

use crate::testing::{page_of, word_of};
use std::collections::BTreeMap;
use std::sync::Arc;

use ferrite_pm::Region;

use super::{Bed, Rng, Subject, TestTx, for_seeds};
use crate::{BLOCK_BYTES, BlockNo, MapError, MapTx, PageId, PageWord, Resource, StoredWord};

const BLOCKS: u32 = 300;
const PAGES: u64 = 40;
pub(super) const LINE_WORDS: usize = 8;

/// The words that a page may have after replay.
#[derive(Debug, Clone, Copy)]
struct Words {
    now: PageWord,
    /// The word in the newest record that names the page.
    recorded: PageWord,
}

/// The changes since the checkpoint.
pub(super) struct SinceCheckpoint {
    /// The medium at the checkpoint, with later words that became durable without a record.
    pub(super) base: Vec<u64>,
    pub(super) records: Vec<Vec<StoredWord>>,
    freed: Vec<Resource>,
}

impl SinceCheckpoint {
    pub(super) fn new<M: Subject>(bed: &Bed<M>) -> Self {
        SinceCheckpoint {
            base: words_of(bed),
            records: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Commits `tx`; the resources it frees wait for the checkpoint.
    pub(super) fn commit<M: Subject>(&mut self, bed: &Bed<M>, mut tx: TestTx<'_>) {
        // Only nodes are words of the medium; zeroing a page's block here has no effect.
        for resource in &tx.claimed {
            if let Resource::Block(block) = *resource {
                let first = (u64::from(block) * BLOCK_BYTES / 8) as usize;
                self.base[first..first + BLOCK_BYTES as usize / 8].fill(0);
            }
        }
        self.records.push(tx.words.clone());
        self.freed.append(&mut tx.freed);
        tx.commit(&bed.region);
    }

    /// Frees the resources that waited for the checkpoint.
    pub(super) fn advance_checkpoint<M: Subject>(self, bed: &Bed<M>) -> Self {
        let mut freed = self.freed;
        freed.sort_unstable();
        let tx = bed.tx();
        freed.into_iter().for_each(|resource| tx.release(resource));
        SinceCheckpoint::new(bed)
    }
}

pub(super) fn words_of<M: Subject>(bed: &Bed<M>) -> Vec<u64> {
    (0..bed.region.len()).step_by(8).map(|at| bed.region.load(at)).collect()
}

/// Maps a page, with or without a log, again or for the first time, or unmaps it.
fn change<M: Subject>(
    bed: &Bed<M>,
    tx: &mut TestTx<'_>,
    rng: &mut Rng,
    model: &mut BTreeMap<PageId, Words>,
    key @ PageId { ino, lblk }: PageId,
) -> Result<(), MapError> {
    let old = model.get(&key).copied();
    if let Some(old) = old
        && rng.below(5) == 0
    {
        assert_eq!(bed.map.remove(tx, PageId::new(ino, lblk))?, old.now);
        tx.freed(Resource::Block(page_of(old.now)));
        model.remove(&key);
        return Ok(());
    }
    let word = match old {
        // A log is added to the existing block, as small writes do.
        Some(old) if rng.below(2) == 0 => word_of(page_of(old.now), 1 + rng.below(1000) as u32),
        _ => PageWord::of_block(bed.map.alloc_page(tx, PageId::new(ino, lblk))?),
    };
    match old {
        Some(old) => {
            bed.map.replace(tx, PageId::new(ino, lblk), word)?;
            if page_of(old.now) != page_of(word) {
                tx.freed(Resource::Block(page_of(old.now)));
            }
        }
        None => bed.map.insert(tx, PageId::new(ino, lblk), word)?,
    }
    let recorded = word;
    model.insert(key, Words { now: word, recorded });
    Ok(())
}

/// Merges a page: its word is swung to a block that holds the same content without a log, most often the one that makes
/// a run.
fn merge<M: Subject>(
    bed: &Bed<M>,
    rng: &mut Rng,
    model: &mut BTreeMap<PageId, Words>,
    PageId { ino, lblk }: PageId,
    freed: &mut Vec<Resource>,
) {
    let Some(&words) = model.get(&PageId::new(ino, lblk)).filter(|words| !words.now.is_plain()) else {
        return;
    };
    let neighbour = |lblk: Option<u32>| {
        lblk.and_then(|lblk| model.get(&PageId::from_raw(ino.get(), lblk)))
            .map(|words| page_of(words.now))
    };
    let wanted = match rng.below(3) {
        0 => neighbour(lblk.get().checked_sub(1)).and_then(BlockNo::checked_next),
        1 => neighbour(lblk.get().checked_add(1)).and_then(BlockNo::checked_previous),
        _ => None,
    };
    let mut tx = bed.tx();
    let block = match wanted.filter(|&block| bed.geometry.is_data_block(block) && tx.claim_block(block)) {
        Some(block) => Ok(block),
        None => tx.alloc_block(),
    };
    let Ok(block) = block else { return };
    let new = PageWord::of_block(block);
    // A mapping may refuse; the merge is dropped then, and its block with the transaction.
    if bed.map.swing(PageId::new(ino, lblk), words.now, new).is_some() {
        tx.claimed.clear();
        freed.push(Resource::Block(page_of(words.now)));
        model.insert(PageId::new(ino, lblk), Words { now: new, ..words });
    }
}

/// A crash that keeps any of the lines stored since the checkpoint, then replay: the mapping is sound, and each page
/// has its last word, or its word before a merge that was undone.
pub(crate) fn merges_undone_by_replay_leave_the_mapping_sound<M: Subject>() {
    for_seeds(12, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<M>::new(BLOCKS, rng.next_u64());
        let mut model = BTreeMap::new();
        let mut since = SinceCheckpoint::new(&bed);
        for step in 0..400 {
            if rng.below(60) == 0 {
                // The checkpoint makes all words in place durable, swung ones included.
                since = since.advance_checkpoint(&bed);
                for words in model.values_mut() {
                    let Words { now, recorded } = words;
                    *recorded = *now;
                }
            }
            let (ino, first) = (1 + rng.below(2) as u32, rng.below(PAGES) as u32);
            if rng.below(3) == 0 {
                merge(
                    &bed,
                    &mut rng,
                    &mut model,
                    PageId::from_raw(ino, first),
                    &mut since.freed,
                );
            } else {
                let mut after = model.clone();
                let mut tx = bed.tx();
                let changed = (first..=first + rng.below(6) as u32)
                    .try_for_each(|lblk| change(&bed, &mut tx, &mut rng, &mut after, PageId::from_raw(ino, lblk)));
                match changed {
                    Ok(()) => {
                        since.commit(&bed, tx);
                        model = after;
                    }
                    Err(_) => {
                        drop(tx);
                        make_space(&bed, &mut since);
                    }
                }
                if bed.map.wants_space() {
                    make_space(&bed, &mut since);
                }
            }
            if step % 9 == 0 {
                check_crash(&bed, &mut rng, &since, &model);
            }
        }
    });
}

fn make_space<M: Subject>(bed: &Bed<M>, since: &mut SinceCheckpoint) {
    let _moving = bed.map.move_lock().map(|move_lock| move_lock.lock_exclusive());
    let mut tx = bed.tx_without_move_lock();
    if bed.map.make_space(&mut tx).unwrap_or(false) {
        since.commit(bed, tx);
    }
}

fn check_crash<M: Subject>(bed: &Bed<M>, rng: &mut Rng, since: &SinceCheckpoint, model: &BTreeMap<PageId, Words>) {
    let now = words_of(bed);
    let crashed = Region::anonymous(bed.region.len()).expect("anonymous memory");
    // All lines, none, or any.
    let kept_of_four = [0, 4, rng.below(5)][rng.below(3) as usize];
    for (line, (now, base)) in now.chunks(LINE_WORDS).zip(since.base.chunks(LINE_WORDS)).enumerate() {
        let kept = if rng.below(4) < kept_of_four { now } else { base };
        crashed.store_words((line * LINE_WORDS * 8) as u64, kept);
    }
    for &StoredWord { offset, value } in since.records.iter().flatten() {
        crashed.store(offset, value);
    }
    let map = M::mount(Arc::new(crashed), bed.geometry);
    let mut found = BTreeMap::new();
    map.check(
        &mut |entry| {
            found.insert(entry.page(), entry.word);
        },
        &mut |_| {},
        &mut |broken| panic!("after replay: {}", broken.what),
    );
    assert!(found.keys().eq(model.keys()), "pages came or went");
    for (key, words) in model {
        let word = found[key];
        assert!(
            word == words.now || word == words.recorded,
            "page {key:?} is {word:?} after replay, not one of {words:?}"
        );
    }
}
