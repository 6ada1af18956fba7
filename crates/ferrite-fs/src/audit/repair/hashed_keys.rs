//! Keys of HashFS: a damaged key can often be restored, since its place limits its possible values.

use ferrite_map::{Inum, Lblk, MapEntry, PageId, PageWord, SlotNo};
use rustc_hash::FxHashMap;

use super::{Repair, State};
use crate::audit::rules::pages;
use crate::audit::wrong::{BlockWrong, PageWrong, Wrong};
use crate::format::layout::lblks;

/// Distance from its home within which a lost page is searched for.
const STRAY_DISTANCE: u64 = 8;
/// Pages of a file that are searched for among strays.
const STRAY_PAGES: u64 = 1 << 20;
/// Comparisons of pages with strays, in all: more would find pages by chance where there are none, and take too long.
const STRAY_COMPARISONS: u64 = 1 << 26;

impl Repair {
    /// HashFS: drops keys that map nothing, keeps the first of two for the same page, and restores damaged keys where
    /// their place in the table shows their old value.
    pub(super) fn hashfs(&mut self) {
        let mut strays: Vec<(SlotNo, PageWord)> = Vec::new();
        for slot in (0..self.superblock.map_slots).map(SlotNo::at) {
            let Some(offsets) = self.map.hashed_keys().map(|map| map.offsets(slot)) else {
                return;
            };
            let (key, word) = (self.region.load(offsets.key), PageWord(self.region.load(offsets.word)));
            if key == 0 {
                if word.0 != 0 && self.superblock.is_data_block(self.superblock.page(word)) {
                    strays.push((slot, word));
                }
                continue;
            }
            let (ino, lblk) = (Inum::new((key >> 32) as u32), Lblk::new(key as u32));
            let at = MapEntry { ino, lblk, word, slot };
            let stray = match pages::is_out_of_reach(self.view(), &at) {
                true => Some(PageWrong::OutOfReach),
                false => (!self.has(ino)).then_some(PageWrong::Nobody),
            };
            if let Some(what) = stray {
                self.set_slot(slot, None);
                self.mended("mapping", Wrong::Page { at, what }, "dropped", true);
                if self.superblock.is_data_block(self.superblock.page(word)) {
                    strays.push((slot, word));
                }
            } else if !self.superblock.is_data_block(self.superblock.page(word)) {
                // If it was the file's, its count will show it.
                self.set_slot(slot, None);
                let what = PageWrong::Block(self.superblock.page(word), BlockWrong::NoData);
                self.mended("mapping", Wrong::Page { at, what }, "dropped", true);
            } else {
                self.pages[ino.index()] += 1;
                self.end[ino.index()] = self.end[ino.index()].max(u64::from(lblk) + 1);
            }
        }
        self.reload_map();
        let mut twice = Vec::new();
        self.map.for_each(&mut |entry| {
            if pages::is_second(self.view(), &entry) {
                twice.push(entry);
            }
            true
        });
        for at in twice {
            let MapEntry { ino, word, slot, .. } = at;
            self.set_slot(slot, None);
            self.pages[ino.index()] -= 1;
            strays.push((slot, word));
            let what = PageWrong::Twice;
            self.mended("mapping", Wrong::Page { at, what }, "dropped", true);
        }
        self.drop_excess(&mut strays);
        let behind = self.pages_behind_ends();
        for &MapEntry { ino, word, slot, .. } in &behind {
            self.set_slot(slot, None);
            self.pages[ino.index()] -= 1;
            strays.push((slot, word));
        }
        self.reload_map();
        self.restore_strays(&strays);
        for MapEntry { ino, lblk, word, slot } in behind {
            let key = self.map.hashed_keys().map(|map| map.offsets(slot).key);
            if key.is_some_and(|offset| self.region.load(offset) == 0) {
                self.set_slot(slot, Some((PageId::new(ino, lblk), word)));
                self.pages[ino.index()] += 1;
            }
        }
        self.reload_map();
    }

    /// How many buckets past its home a page in this slot of HashFS would lie.
    fn distance(&self, page: PageId, slot: SlotNo) -> u64 {
        self.map.hashed_keys().map_or(0, |map| map.distance(page, slot))
    }

    /// Files that map more pages than they count have received damaged keys: those past the end of the file or far from
    /// home, if there are exactly as many.
    fn drop_excess(&mut self, strays: &mut Vec<(SlotNo, PageWord)>) {
        let mut odd: FxHashMap<Inum, Vec<MapEntry>> = FxHashMap::default();
        self.map.for_each(&mut |entry| {
            let inode = self.load(entry.ino);
            let ino = entry.ino.index();
            if self.state[ino] == State::Sound && self.pages[ino] > inode.blocks() {
                let far = self.distance(entry.page(), entry.slot) >= STRAY_DISTANCE;
                if far || inode.blocks() == 0 || u64::from(entry.lblk) >= lblks(inode.size()) {
                    odd.entry(entry.ino).or_default().push(entry);
                }
            }
            true
        });
        for (ino, entries) in odd {
            let excess = self.pages[ino.index()] - self.load(ino).blocks();
            if entries.len() as u32 != excess {
                continue;
            }
            self.pages[ino.index()] -= excess;
            for MapEntry { lblk, slot, word, .. } in entries {
                self.set_slot(slot, None);
                strays.push((slot, word));
                let what = format!("mapping slot {slot}: page {lblk} of inode {ino}, which has no such page");
                self.mended("mapping", what, "dropped", true);
            }
        }
    }

    /// A slot's place comes from the hash of its key. If exactly one of the files' missing pages belongs near it, it is
    /// that page.
    fn restore_strays(&mut self, strays: &[(SlotNo, PageWord)]) {
        if strays.is_empty() {
            return;
        }
        let mut candidates: FxHashMap<SlotNo, Vec<PageId>> = FxHashMap::default();
        let mut left = STRAY_COMPARISONS;
        for ino in self.superblock.all_inums() {
            let inode = self.load(ino);
            let misses = self.state[ino.index()] == State::Sound && self.pages[ino.index()] < inode.blocks();
            if !misses {
                continue;
            }
            for lblk in 0..lblks(inode.size()).min(STRAY_PAGES) as u32 {
                let page = PageId::new(ino, Lblk::new(lblk));
                let Some(rest) = left.checked_sub(strays.len() as u64) else {
                    return;
                };
                left = rest;
                if !self.map.get(page).is_hole() {
                    continue;
                }
                for &(slot, _) in strays {
                    if self.distance(page, slot) < STRAY_DISTANCE {
                        candidates.entry(slot).or_default().push(page);
                    }
                }
            }
        }
        let mut given: FxHashMap<PageId, u32> = FxHashMap::default();
        for pages in candidates.values() {
            pages.iter().for_each(|&page| *given.entry(page).or_default() += 1);
        }
        for &(slot, word) in strays {
            let Some(&[page]) = candidates.get(&slot).map(Vec::as_slice) else {
                continue;
            };
            if given[&page] != 1 {
                continue;
            }
            let PageId { ino, lblk } = page;
            self.set_slot(slot, Some((page, word)));
            self.pages[ino.index()] += 1;
            self.end[ino.index()] = self.end[ino.index()].max(u64::from(lblk) + 1);
            let what = format!("mapping slot {slot}: can only have been page {lblk} of inode {ino}");
            self.mended("mapping", what, "put back", false);
        }
    }
}
