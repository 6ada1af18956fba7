//! The check of the table: every entry alone, against its homes, and every run page by page.
//!
//! Contents: [`check`], for [`crate::FileMap::check`], and [`fault_of_range`], for its load. They trust nothing
//! and change nothing.

use super::Cuckoo;
use super::runs::{MAX_RUN, Range, View};
use crate::{Affected, Broken, MapEntry, PageId, StoredWord};

/// See [`crate::FileMap::check`].
pub(super) fn check(map: &Cuckoo, visit: &mut dyn FnMut(MapEntry), broken: &mut dyn FnMut(Broken)) {
    for slot in map.written_buckets().flat_map(Cuckoo::slots_of) {
        let Some(entry) = map.entry(slot) else { continue };
        if let Some(what) = map.fault_of(&entry).or_else(|| fault_of_twin(map, &entry)) {
            broken(Broken {
                affected: Affected::Nothing,
                what,
                repair: vec![
                    StoredWord::new(map.key_offset(slot), 0),
                    StoredWord::new(map.word_offset(slot), 0),
                    StoredWord::new(map.range_offset(slot), 0),
                ],
            });
            continue;
        }
        visit(entry);
        if let Some(what) = fault_of_range(map, &entry) {
            broken(Broken {
                affected: Affected::Pages(entry.ino, entry.lblk, 1 + followers(map, &entry)),
                what,
                repair: vec![StoredWord::new(map.range_offset(slot), Range::LONE.0)],
            });
        }
    }
}

/// Whether a sound entry before this one maps the same page.
fn fault_of_twin(map: &Cuckoo, entry: &MapEntry) -> Option<String> {
    let MapEntry { ino, lblk, slot, .. } = *entry;
    let twin = map
        .homes(PageId::new(ino, lblk).key())
        .into_iter()
        .flat_map(Cuckoo::slots_of)
        .filter(|&other| other < u64::from(slot))
        .filter_map(|other| map.entry(other))
        .find(|other| (other.ino, other.lblk) == (ino, lblk) && map.fault_of(other).is_none())?;
    Some(format!(
        "slot {slot} has page {lblk} of inode {ino}, as slot {} does",
        twin.slot
    ))
}

/// Number of pages that, according to an entry, follow it in its run; at most as many as a run may have.
fn followers(map: &Cuckoo, entry: &MapEntry) -> u32 {
    let range = View::stored(map).range(u64::from(entry.slot));
    (range.0 as u32).min(MAX_RUN).min(u32::MAX - entry.lblk.get())
}

/// The defect of the range of an entry that is otherwise sound, including its run if it leads one.
pub(super) fn fault_of_range(map: &Cuckoo, entry: &MapEntry) -> Option<String> {
    let MapEntry { ino, lblk, word, slot } = *entry;
    let view = View::stored(map);
    let range = view.range(u64::from(slot));
    let (back, followers) = (range.back(), range.0 as u32);
    let lies = |what: &str| Some(format!("slot {slot}, page {lblk} of inode {ino}: {what}"));
    if back > 0 {
        // Only the head shows whether it still exists at that place and has this page.
        let is_possible = followers == 0 && back < MAX_RUN && back <= lblk.get();
        return if is_possible {
            None
        } else {
            lies("its back index cannot be")
        };
    }
    if followers == 0 {
        return None;
    }
    if view.run_from(u64::from(slot), lblk).is_none() {
        return lies("the run it leads cannot be");
    }
    (1..=followers)
        .find(|&at| {
            let follower = view.find(PageId::new(ino, lblk.plus(at)).key());
            let is_right =
                |slot| view.word(slot) == word.plus(u64::from(at)) && view.range(slot) == Range::follower(at);
            !follower.is_some_and(is_right)
        })
        .and_then(|at| lies(&format!("leads a run to which page {} does not belong", lblk.plus(at))))
}
