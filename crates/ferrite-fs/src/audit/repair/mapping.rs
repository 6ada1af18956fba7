//! The mapping: broken parts are cut off, pages without an owner are dropped, and misplaced pages return to their
//! place.
//!
//! Repairs that only hash tables allow are in `hashed_keys.rs`.

use std::sync::Arc;

use ferrite_map::{Broken, Inum, MapEntry, PageId};

use super::{CURES_MAX, Repair, State};
use crate::audit::rules::{inodes, pages};
use crate::audit::wrong::{PageWrong, Wrong};
use crate::format::layout::BLOCK_BYTES;

impl Repair {
    /// Makes the mapping sound, and drops pages without an owner.
    pub(super) fn mapping(&mut self) {
        if self.map.hashed_keys().is_some() {
            // First, since checksums are better evidence than the places of keys.
            self.reload_map();
            self.put_back_misplaced();
            self.hashfs();
        } else {
            self.repair_mapping();
            self.drop_pages_of_nobody();
            self.put_back_misplaced();
        }
        self.put_back_dir_blocks();
        self.keep_pages_behind_ends();
        self.count_pages();
    }

    /// Has the structure report its own damage, and claims the blocks it lies in.
    fn repair_mapping(&mut self) {
        for _ in 0..CURES_MAX {
            let (mut found, mut nodes) = (Vec::new(), Vec::new());
            self.map
                .check(&mut |_| {}, &mut |node| nodes.push(node), &mut |broken| {
                    found.push(broken)
                });
            if found.is_empty() {
                for node in nodes {
                    // It reports a node once, and only data blocks.
                    let _ = self.own(node);
                }
                break;
            }
            for Broken { what, repair, .. } in found {
                repair.into_iter().for_each(|word| self.set(word.offset, word.value));
                // The inodes' counts show whether anything is lost.
                self.mended("mapping", what, "cut off", true);
            }
        }
        self.reload_map();
    }

    fn drop_pages_of_nobody(&mut self) {
        let mut strange = Vec::new();
        let map = Arc::clone(&self.map);
        map.for_each(&mut |at| {
            let MapEntry { ino, lblk, .. } = at;
            if self.has(ino) {
                self.pages[ino.index()] += 1;
                self.end[ino.index()] = self.end[ino.index()].max(u64::from(lblk) + 1);
            } else {
                strange.push(at);
            }
            true
        });
        // In order, so that no structure needs more space in between.
        strange.sort_unstable_by_key(|at| (at.ino, at.lblk));
        strange.dedup_by_key(|at| (at.ino, at.lblk));
        for at in strange {
            let _ = self.set_page(at.ino, at.lblk, None);
            let what = PageWrong::Nobody;
            self.mended("mapping", Wrong::Page { at, what }, "dropped", true);
        }
        self.reload_map();
    }

    /// Pages whose checksums identify them as other pages of their file, which lacks those.
    fn put_back_misplaced(&mut self) {
        let mut misplaced = Vec::new();
        self.map.for_each(&mut |at| {
            if self.is_ino(at.ino)
                && self.state[at.ino.index()] == State::Sound
                && pages::written_as(self.view(), &at).is_some()
            {
                misplaced.push(at);
            }
            true
        });
        for at in misplaced {
            // The previous page may have filled the hole.
            let Some(other) = pages::written_as(self.view(), &at) else {
                continue;
            };
            let MapEntry { ino, lblk, word, slot } = at;
            let is_done = if pages::is_out_of_reach(self.view(), &MapEntry { lblk: other, ..at }) {
                // More than its key was damaged: it gets a place like a new page.
                self.set_slot(slot, None);
                self.reload_map();
                self.set_page(ino, other, Some(word)).is_ok()
            } else if self.map.hashed_keys().is_some() {
                // There may be two keys of this page: this one is wrong.
                self.set_slot(slot, Some((PageId::new(ino, other), word)));
                true
            } else {
                // In this order the block always has an owner, and does not become a node.
                self.set_page(ino, other, Some(word)).is_ok() && self.set_page(ino, lblk, None).is_ok()
            };
            if is_done {
                self.end[ino.index()] = self.end[ino.index()].max(u64::from(other) + 1);
                let what = PageWrong::WrittenAs { other };
                self.mended("mapping", Wrong::Page { at, what }, "put back", false);
            }
        }
        self.reload_map();
    }

    /// Pages left past the end of a file may be any part of it: the file is extended over them, and quarantined. A link
    /// has one page.
    fn keep_pages_behind_ends(&mut self) {
        for at in self.pages_behind_ends() {
            let MapEntry { ino, lblk, .. } = at;
            let what = PageWrong::BehindEnd;
            let what = Wrong::Page { at, what };
            let mut inode = self.load(ino);
            // The checksum of an inode covers its content: that of another file has lost its way.
            if !inode.is_file() || inode.is_inline() {
                let _ = self.set_page(ino, lblk, None);
                self.pages[ino.index()] -= 1;
                self.mended("mapping", what, "dropped", true);
                continue;
            }
            inode.set_size(inode.size().max((u64::from(lblk) + 1) * BLOCK_BYTES));
            self.put(ino, &mut inode);
            self.spoiled.insert(ino);
            self.mended("mapping", what, "the end was set behind it", true);
        }
    }

    /// Written pages of sound files past their ends. They are as many as the files count, else [`Self::drop_excess`]
    /// has already taken them.
    pub(super) fn pages_behind_ends(&self) -> Vec<MapEntry> {
        let mut behind = Vec::new();
        self.map.for_each(&mut |at| {
            if self.state[at.ino.index()] == State::Sound {
                let inode = self.load(at.ino);
                // In a directory, they are searched like the rest of it.
                if !inode.is_dir() && pages::end(&at, &inode).is_some() {
                    behind.push(at);
                }
            }
            true
        });
        behind
    }

    /// Files that map more or fewer pages than they count.
    fn count_pages(&mut self) {
        for ino in self.superblock.all_inums() {
            let (pages, inode) = (self.pages[ino.index()], self.load(ino));
            if self.state[ino.index()] != State::Sound {
                continue;
            }
            if let Some(wrong) = inodes::bound(ino, &inode) {
                let mut inode = inode;
                inode.set_bound(false);
                self.put(ino, &mut inode);
                self.mended("mapping", wrong, "set right", false);
            }
            if let Some(wrong) = inodes::kind_of_content(self.view(), ino, &inode, pages) {
                self.settle_content(ino, &wrong);
            }
            if self.state[ino.index()] == State::Sound
                && let Some(wrong) = inodes::count(ino, self.load(ino).blocks(), self.pages[ino.index()])
            {
                self.spoiled.insert(ino);
                self.mended("mapping", wrong, "counted anew", true);
            }
        }
    }

    /// An inode contradicts itself about its content. A file with content in its inode keeps that; other inodes keep
    /// nothing.
    fn settle_content(&mut self, ino: Inum, wrong: &Wrong) {
        let inode = self.load(ino);
        match *wrong {
            Wrong::Inline { pages, .. } if inode.is_file() && pages > 0 => {
                self.unmap_all(ino);
                self.mended("mapping", wrong, "dropped: they are another file's", true);
            }
            Wrong::SpecialPages { .. } => {
                self.unmap_all(ino);
                let mut inode = inode;
                inode.set_blocks(0);
                self.put(ino, &mut inode);
                self.mended("mapping", wrong, "dropped", true);
            }
            // A link without its target has nothing left; other files are rebuilt from what fits.
            _ => self.state[ino.index()] = State::Damaged,
        }
    }
}
