//! Inodes, mapping, logs and blocks: who is there, and who owns what.

use crate::format::log_entry::has_log;
use crate::page::scan;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ferrite_map::{Broken, MapEntry, PageId, PageWord};
use ferrite_vfs::{FileKind, ROOT_INO};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{CURES_MAX, Repair, State};
use crate::format::data_sum;
use crate::format::inode::INLINE_BYTES;
use crate::format::layout::lblks;
use crate::format::layout::{BLOCK_BYTES, MAX_FILE_BYTES};
use crate::format::xattr;

/// A lost page is looked for this close to its home.
const STRAY_DISTANCE: u64 = 8;
/// Pages of a file that are looked for among strays.
const STRAY_PAGES: u64 = 1 << 20;
/// Comparisons of pages with strays, in all: with more, chance would find pages where there are none, and time would
/// pass.
const STRAY_COMPARISONS: u64 = 1 << 26;

impl Repair {
    /// Which inodes are there, and which of them can be believed.
    pub(super) fn inodes(&mut self) {
        for ino in 1..self.superblock.inodes as u32 {
            let inode = self.load(ino);
            let makes_sense = !inode.in_use() || (inode.kind().is_some() && inode.size() <= MAX_FILE_BYTES);
            self.state[ino as usize] = match (inode.is_sound(ino) && makes_sense, inode.in_use()) {
                (true, true) => State::Sound,
                // There always is a root, so one that looks free was wiped.
                (true, false) if u64::from(ino) == ROOT_INO => State::Damaged,
                (true, false) => State::Free,
                (false, _) => State::Damaged,
            };
        }
    }

    /// Makes the mapping sound, and drops what it maps for nobody.
    pub(super) fn mapping(&mut self) {
        if self.map.hashed_keys().is_some() {
            // First, since the checksums know more than the places of keys do.
            self.reload_map();
            self.put_back_misplaced();
            self.hashfs();
        } else {
            self.cure_mapping();
            self.drop_pages_of_nobody();
            self.put_back_misplaced();
        }
        self.put_back_dir_blocks();
        self.keep_pages_behind_ends();
        self.count_pages();
    }

    /// Lets the structure say what is broken in it, and claims the blocks it lies in.
    fn cure_mapping(&mut self) {
        for _ in 0..CURES_MAX {
            let (mut found, mut nodes) = (Vec::new(), Vec::new());
            self.map
                .check(&mut |_| {}, &mut |node| nodes.push(node), &mut |broken| {
                    found.push(broken)
                });
            if found.is_empty() {
                for node in nodes {
                    // It reports a node once, and only data blocks.
                    self.own(node);
                }
                break;
            }
            for Broken { what, cure, .. } in found {
                cure.into_iter().for_each(|(offset, value)| self.set(offset, value));
                // Whether anything is lost, the inodes' counts tell.
                self.mended("mapping", what, "cut off", true);
            }
        }
        self.reload_map();
    }

    fn drop_pages_of_nobody(&mut self) {
        let mut strange: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let map = Arc::clone(&self.map);
        map.for_each(&mut |entry| {
            let MapEntry { ino, lblk, .. } = entry;
            if !self.is_ino(ino) || self.state[ino as usize] == State::Free {
                strange.entry(ino).or_default().insert(lblk);
            } else {
                self.pages[ino as usize] += 1;
                self.end[ino as usize] = self.end[ino as usize].max(u64::from(lblk) + 1);
            }
            true
        });
        for (ino, pages) in strange {
            for lblk in pages {
                let _ = self.set_page(ino, lblk, None);
                let what = format!("page {lblk} of inode {ino}: the inode is free");
                self.mended("mapping", what, "dropped", true);
            }
        }
        self.reload_map();
    }

    /// HashFS: drops keys that map nothing, keeps the first of two for the same page, and puts back keys that were
    /// damaged where their place in the table tells what they were.
    fn hashfs(&mut self) {
        let mut strays: Vec<(u64, PageWord)> = Vec::new();
        for slot in 0..self.superblock.map_slots {
            let Some((key_offset, word_offset)) = self.map.hashed_keys().map(|map| map.offsets(slot)) else {
                return;
            };
            let (key, word) = (self.region.load(key_offset), PageWord(self.region.load(word_offset)));
            if key == 0 {
                if word.0 != 0 && self.superblock.is_data_block(word.page()) {
                    strays.push((slot, word));
                }
                continue;
            }
            let (ino, lblk) = ((key >> 32) as u32, key as u32);
            let at = format!("mapping slot {slot} (inode {ino}, page {lblk})");
            let far = self.is_out_of_reach(PageId::new(ino, lblk), slot);
            if !self.is_ino(ino) || self.state[ino as usize] == State::Free || far {
                self.set_slot(slot, None);
                self.mended("mapping", format!("{at}: no such page can be there"), "dropped", true);
                if self.superblock.is_data_block(word.page()) {
                    strays.push((slot, word));
                }
            } else if !self.superblock.is_data_block(word.page()) {
                // If it was the file's, its count will tell.
                self.set_slot(slot, None);
                let what = format!("{at}: names block {}, which is no data block", word.page());
                self.mended("mapping", what, "dropped", true);
            } else {
                self.pages[ino as usize] += 1;
                self.end[ino as usize] = self.end[ino as usize].max(u64::from(lblk) + 1);
            }
        }
        self.reload_map();
        let mut twice = Vec::new();
        self.map.for_each(&mut |entry| {
            if self.slot_of(PageId::new(entry.ino, entry.lblk)) != Some(u64::from(entry.slot)) {
                twice.push(entry);
            }
            true
        });
        for MapEntry { ino, lblk, word, slot } in twice {
            self.set_slot(u64::from(slot), None);
            self.pages[ino as usize] -= 1;
            strays.push((u64::from(slot), word));
            let what = format!("mapping slot {slot}: page {lblk} of inode {ino} is mapped twice");
            self.mended("mapping", what, "dropped", true);
        }
        self.drop_excess(&mut strays);
        let behind = self.pages_behind_ends();
        for &MapEntry { ino, word, slot, .. } in &behind {
            self.set_slot(u64::from(slot), None);
            self.pages[ino as usize] -= 1;
            strays.push((u64::from(slot), word));
        }
        self.reload_map();
        self.restore_strays(&strays);
        for MapEntry { ino, lblk, word, slot } in behind {
            let key = self.map.hashed_keys().map(|map| map.offsets(u64::from(slot)).0);
            if key.is_some_and(|offset| self.region.load(offset) == 0) {
                self.set_slot(u64::from(slot), Some((PageId::new(ino, lblk), word)));
                self.pages[ino as usize] += 1;
            }
        }
        self.reload_map();
    }

    /// Written pages of sound files behind their ends. They are as many as the files count, else [`Self::drop_excess`]
    /// has had them.
    fn pages_behind_ends(&self) -> Vec<MapEntry> {
        let mut behind = Vec::new();
        self.map.for_each(&mut |entry| {
            if self.state[entry.ino as usize] == State::Sound && !entry.word.is_unwritten() {
                let inode = self.load(entry.ino);
                if !inode.is_dir() && u64::from(entry.lblk) >= inode.written_end() {
                    behind.push(entry);
                }
            }
            true
        });
        behind
    }

    /// Pages whose checksums say that they are others of their file, which lacks those.
    fn put_back_misplaced(&mut self) {
        let mut misplaced = Vec::new();
        self.map.for_each(&mut |entry| {
            let is_sound = self.is_ino(entry.ino) && self.state[entry.ino as usize] == State::Sound;
            if is_sound
                && !self.load(entry.ino).is_dir()
                && let Some(other) = data_sum::misplaced(&self.region, &self.superblock, &entry)
            {
                misplaced.push((entry, other));
            }
            true
        });
        for (entry, other) in misplaced {
            let MapEntry { ino, lblk, word, slot } = entry;
            if !self.map.get(PageId::new(ino, other)).is_hole() {
                continue;
            }
            let is_done = if self.is_out_of_reach(PageId::new(ino, other), u64::from(slot)) {
                // More than its key was hit: it gets a place like a new page.
                self.set_slot(slot.into(), None);
                self.reload_map();
                self.set_page(ino, other, Some(word)).is_ok()
            } else if self.map.hashed_keys().is_some() {
                // There may be two keys of this page: this one is wrong.
                self.set_slot(u64::from(slot), Some((PageId::new(ino, other), word)));
                true
            } else {
                // In this order the block always has an owner, and does not become a node.
                self.set_page(ino, other, Some(word)).is_ok() && self.set_page(ino, lblk, None).is_ok()
            };
            if is_done {
                self.end[ino as usize] = self.end[ino as usize].max(u64::from(other) + 1);
                let what = format!("page {lblk} of inode {ino}: its checksum says that it is page {other}");
                self.mended("mapping", what, "put back", false);
            }
        }
        self.reload_map();
    }

    /// What is left behind the end of a file may be anything of it: the file grows over it, and is put aside. A link
    /// has one page.
    fn keep_pages_behind_ends(&mut self) {
        for MapEntry { ino, lblk, .. } in self.pages_behind_ends() {
            let what = format!("inode {ino}: page {lblk} lies behind its end");
            let mut inode = self.load(ino);
            if !inode.is_file() {
                let _ = self.set_page(ino, lblk, None);
                self.pages[ino as usize] -= 1;
                self.mended("mapping", what, "dropped", true);
                continue;
            }
            inode.set_size(inode.size().max((u64::from(lblk) + 1) * BLOCK_BYTES));
            self.put(ino, &mut inode);
            self.spoiled.insert(ino);
            self.mended("mapping", what, "the end was set behind it", true);
        }
    }

    fn slot_of(&self, PageId { ino, lblk }: PageId) -> Option<u64> {
        self.map
            .hashed_keys()
            .and_then(|map| map.slot_of(PageId::new(ino, lblk)))
    }

    fn is_out_of_reach(&self, PageId { ino, lblk }: PageId, slot: u64) -> bool {
        self.map
            .hashed_keys()
            .is_some_and(|map| map.is_out_of_reach(PageId::new(ino, lblk), slot))
    }

    /// Buckets behind its home that a page would lie in this slot of HashFS.
    fn distance(&self, PageId { ino, lblk }: PageId, slot: u64) -> u64 {
        self.map
            .hashed_keys()
            .map_or(0, |map| map.distance(PageId::new(ino, lblk), slot))
    }

    /// Files that map more pages than they count have got keys that were hit: those behind the end of the file or far
    /// from home, if they are just as many.
    fn drop_excess(&mut self, strays: &mut Vec<(u64, PageWord)>) {
        let mut odd: FxHashMap<u32, Vec<MapEntry>> = FxHashMap::default();
        self.map.for_each(&mut |entry| {
            let inode = self.load(entry.ino);
            let ino = entry.ino as usize;
            if self.state[ino] == State::Sound && self.pages[ino] > inode.blocks() {
                let far = self.distance(PageId::new(entry.ino, entry.lblk), u64::from(entry.slot)) >= STRAY_DISTANCE;
                if far || inode.blocks() == 0 || u64::from(entry.lblk) >= lblks(inode.size()) {
                    odd.entry(entry.ino).or_default().push(entry);
                }
            }
            true
        });
        for (ino, entries) in odd {
            let excess = self.pages[ino as usize] - self.load(ino).blocks();
            if entries.len() as u32 != excess {
                continue;
            }
            self.pages[ino as usize] -= excess;
            for MapEntry { lblk, slot, word, .. } in entries {
                self.set_slot(u64::from(slot), None);
                strays.push((u64::from(slot), word));
                let what = format!("mapping slot {slot}: page {lblk} of inode {ino}, which has no such page");
                self.mended("mapping", what, "dropped", true);
            }
        }
    }

    /// A slot's place is the hash of its key. If just one of the pages that files miss belongs near it, it is that one.
    fn restore_strays(&mut self, strays: &[(u64, PageWord)]) {
        if strays.is_empty() {
            return;
        }
        let mut candidates: FxHashMap<u64, Vec<PageId>> = FxHashMap::default();
        let mut left = STRAY_COMPARISONS;
        for ino in 1..self.superblock.inodes as u32 {
            let inode = self.load(ino);
            let misses = self.state[ino as usize] == State::Sound && self.pages[ino as usize] < inode.blocks();
            if !misses {
                continue;
            }
            for lblk in 0..lblks(inode.size()).min(STRAY_PAGES) as u32 {
                let Some(rest) = left.checked_sub(strays.len() as u64) else {
                    return;
                };
                left = rest;
                if !self.map.get(PageId::new(ino, lblk)).is_hole() {
                    continue;
                }
                for &(slot, _) in strays {
                    if self.distance(PageId::new(ino, lblk), slot) < STRAY_DISTANCE {
                        candidates.entry(slot).or_default().push(PageId::new(ino, lblk));
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
            self.pages[ino as usize] += 1;
            self.end[ino as usize] = self.end[ino as usize].max(u64::from(lblk) + 1);
            let what = format!("mapping slot {slot}: can only have been page {lblk} of inode {ino}");
            self.mended("mapping", what, "put back", false);
        }
    }

    /// Files that map more or fewer pages than they say.
    fn count_pages(&mut self) {
        for ino in 1..self.superblock.inodes as u32 {
            let (pages, inode) = (self.pages[ino as usize], self.load(ino));
            if self.state[ino as usize] != State::Sound {
                continue;
            }
            let is_link = inode.kind() == Some(FileKind::Symlink);
            if is_link && inode.nlink() > 0 && !inode.is_inline() && self.map.get(PageId::new(ino, 0)).is_hole() {
                // Without its target nothing of it is left.
                self.state[ino as usize] = State::Damaged;
                continue;
            }
            if pages == inode.blocks() {
                continue;
            }
            self.spoiled.insert(ino);
            let what = format!("inode {ino}: counts {} pages, {pages} are mapped", inode.blocks());
            self.mended("mapping", what, "counted anew", true);
        }
    }

    /// Walks every log; drops those that are broken, and mends links to later segments.
    pub(super) fn logs(&mut self) {
        let mut logged = Vec::new();
        self.map.for_each(&mut |entry| {
            if has_log(entry.word) {
                logged.push(entry);
            }
            true
        });
        let mut slabs: FxHashMap<u32, (u32, u64)> = FxHashMap::default();
        for entry in logged {
            let page = PageId::new(entry.ino, entry.lblk);
            match self.walk(page, entry.word, &mut slabs) {
                Ok(links) => {
                    for (offset, value, stored) in links {
                        let what = format!(
                            "log of page {} of inode {}: a segment names {stored} as the next, it is {value}",
                            entry.lblk, entry.ino
                        );
                        self.set(offset, value);
                        self.mended("logs", what, "set right", false);
                    }
                }
                Err(wrong) => {
                    let word = PageWord::new(entry.word.page(), 0);
                    let _ = self.set_page(entry.ino, entry.lblk, Some(word));
                    self.spoiled.insert(entry.ino);
                    let what = format!("log of page {} of inode {}: {wrong}", entry.lblk, entry.ino);
                    self.mended("logs", what, "dropped", true);
                }
            }
        }
    }

    /// Checks a log and claims its segments; returns links to mend: where, to what, and what is there.
    fn walk(
        &self,
        page: PageId,
        word: PageWord,
        slabs: &mut FxHashMap<u32, (u32, u64)>,
    ) -> Result<Vec<(u64, u64, u64)>, String> {
        let (mut links, mut segments) = (Vec::new(), Vec::new());
        let mut newer = 0;
        let mut buffer = [0; BLOCK_BYTES as usize];
        scan::entries((&self.region, &self.superblock), page, word, &mut |found| {
            found.read(&self.region, &mut buffer)?;
            if found.trailer.is_first() {
                let segment = found.segment();
                let at = segment.header.offset();
                let next = self.region.load(at);
                if next != newer {
                    links.push((at, newer, next));
                }
                newer = u64::from(segment.header.0);
                segments.push(segment);
                // The header is read by the step to the entry before.
            }
            Ok(true)
        })
        .map_err(|error| error.to_string())?;
        // All or nothing, so that a log that is dropped claims nothing.
        for segment in &segments {
            let block = segment.header.block();
            let taken = match slabs.get(&block) {
                Some(&(size, used)) => size != segment.units || used & segment.bits() != 0,
                None => !self.superblock.is_data_block(block) || self.is_owned(block),
            };
            if taken || !segment.is_aligned() {
                let unit = segment.header;
                return Err(format!("segment {unit} belongs to something else as well"));
            }
        }
        for segment in segments {
            let slab = slabs.entry(segment.header.block()).or_insert((segment.units, 0));
            slab.1 |= segment.bits();
            self.own(segment.header.block());
        }
        Ok(links)
    }

    /// Blocks that logs lie in, and attributes, whether they are found sound later or not.
    pub(super) fn blocks_beside_pages(&self) -> FxHashSet<u32> {
        let inodes = 1..self.superblock.inodes as u32;
        let mut found: FxHashSet<u32> = inodes.map(|ino| self.load(ino).xattr_block()).collect();
        self.map.for_each(&mut |entry| {
            if has_log(entry.word) {
                let page = PageId::new(entry.ino, entry.lblk);
                // Of a broken log only what can be reached matters: it is dropped.
                let _ = scan::entries((&self.region, &self.superblock), page, entry.word, &mut |seen| {
                    found.insert(seen.segment().header.block());
                    Ok(true)
                });
            }
            true
        });
        found
    }

    pub(super) fn is_owned(&self, block: u32) -> bool {
        self.owned.is_set(u64::from(block) - self.superblock.first_block)
    }

    /// Extended attributes: the blocks say whose they are.
    pub(super) fn attributes(&mut self) {
        for ino in 1..self.superblock.inodes as u32 {
            let mut inode = self.load(ino);
            let block = inode.xattr_block();
            if self.state[ino as usize] != State::Sound || block == 0 {
                continue;
            }
            let sound = self.superblock.is_data_block(block)
                && !self.is_owned(block)
                && xattr::is_sound(&self.region, &self.superblock, ino, block);
            if sound {
                self.own(block);
                continue;
            }
            inode.set_xattr_block(0);
            self.put(ino, &mut inode);
            let what = format!("inode {ino}: damaged extended attributes in block {block}");
            self.mended("attributes", what, "dropped", true);
        }
    }

    /// Every page gets a block of its own.
    pub(super) fn blocks(&mut self) {
        let mut conflicts = Vec::new();
        self.map.for_each(&mut |entry| {
            if !self.own(entry.word.page()) {
                conflicts.push(entry);
            }
            true
        });
        for MapEntry { ino, lblk, word, .. } in conflicts {
            let what = format!(
                "page {lblk} of inode {ino}: its block {} belongs to another as well",
                word.page()
            );
            let Some(block) = self.take_block() else {
                let _ = self.set_page(ino, lblk, None);
                self.pages[ino as usize] -= 1;
                self.spoiled.insert(ino);
                self.mended("blocks", what, "dropped: there is no block for a copy", true);
                continue;
            };
            let (from, to) = (
                self.superblock.block_offset(word.page()),
                self.superblock.block_offset(block),
            );
            for at in (0..BLOCK_BYTES).step_by(8) {
                let value = self.region.load(from + at);
                self.set(to + at, value);
            }
            let sums = [word.page(), block].map(|block| self.superblock.sum_word_offset(block));
            if let [Some(from), Some(to)] = sums {
                // It says whose page it is, so it fits the one that has a right to it.
                let sum = self.region.load(from);
                self.set(to, sum);
            }
            let _ = self.set_page(ino, lblk, Some(PageWord::new(block, word.log())));
            self.mended(
                "blocks",
                what,
                "copied: one of the two has a page that is not its own",
                true,
            );
        }
        self.reload_map();
    }

    /// Pages that do not have the checksums they should cannot be read, whichever of both was hit. They get the ones
    /// that fit, and their files are put aside, so that whoever knows what they held can tell.
    pub(super) fn data(&mut self) {
        if !self.reads_data {
            return;
        }
        let mut wrong: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        self.map.for_each(&mut |entry| {
            let is_data = self.state[entry.ino as usize] == State::Sound && !self.load(entry.ino).is_dir();
            if is_data && let Some((_, right)) = data_sum::wrong_word(&self.region, &self.superblock, &entry) {
                wrong.entry(entry.ino).or_default().push(right);
            }
            true
        });
        for (ino, words) in wrong {
            let what = format!("inode {ino}: {} pages have the wrong checksum", words.len());
            words.into_iter().for_each(|(offset, word)| self.set(offset, word));
            self.spoiled.insert(ino);
            self.mended("data", what, "checksums made to fit what is there", true);
        }
    }

    /// Gives damaged inodes back what can be known of them: what they are from their names and pages, how long they are
    /// from their pages. Directories stay where they are, their entries vouch for themselves; files are quarantined.
    pub(super) fn rebuild(&mut self) {
        let dirs: FxHashSet<u32> = self.dir_blocks.iter().map(|found| found.dir).collect();
        let kinds: FxHashMap<u32, FileKind> = self.entries.iter().map(|entry| (entry.ino, entry.kind)).collect();
        for ino in 1..self.superblock.inodes as u32 {
            if self.state[ino as usize] != State::Damaged {
                continue;
            }
            let stored = self.load(ino);
            let is_dir = u64::from(ino) == ROOT_INO || dirs.contains(&ino);
            let named = kinds.get(&ino).copied();
            let pages = self.pages[ino as usize];
            let kind = match (is_dir, named) {
                (true, _) => Some(FileKind::Directory),
                (false, Some(kind)) => Some(kind),
                (false, None) => (pages > 0).then_some(FileKind::File),
            };
            let what = format!("inode {ino}: damaged");
            let mut inode = stored.reborn();
            inode.set_btime(stored.ctime());
            inode.set_ctime(stored.ctime());
            inode.set_mtime(stored.mtime());
            match kind {
                Some(kind @ FileKind::Directory) => {
                    inode.set_mode_bits(kind.mode_bits() | 0o700);
                    inode.set_nlink(2);
                    // The rest is counted later.
                    self.put(ino, &mut inode);
                    self.mended("inodes", what, "made again as a directory of user 0, mode 700", true);
                }
                Some(kind @ FileKind::File) => {
                    inode.set_mode_bits(kind.mode_bits() | 0o400);
                    inode.set_nlink(1);
                    inode.set_blocks(pages);
                    let end = self.end[ino as usize] * BLOCK_BYTES;
                    inode.set_inline(pages == 0);
                    if pages == 0 {
                        inode.set_size(stored.size().min(INLINE_BYTES as u64));
                        inode.write_inline(0, &stored.inline_bytes()[..inode.size() as usize]);
                    } else if stored.size() > end - BLOCK_BYTES && stored.size() <= end {
                        inode.set_size(stored.size());
                    } else {
                        inode.set_size(end);
                    }
                    self.put(ino, &mut inode);
                    self.spoiled.insert(ino);
                    self.mended("inodes", what, "made again as a file of user 0, mode 400", true);
                }
                _ => {
                    if pages > 0 {
                        self.unmap_all(ino);
                    }
                    self.clear_inode(ino);
                    if stored.in_use() || kind.is_some() {
                        self.mended("inodes", what, "freed: nothing of it can be known", true);
                    } else {
                        self.mended("inodes", what, "freed: nothing names it", false);
                    }
                    continue;
                }
            }
            self.state[ino as usize] = State::Sound;
        }
    }
}
