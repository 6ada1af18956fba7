//! Blocks: each gets its one rightful owner, and its content is compared with its checksum.

use std::collections::BTreeMap;

use ferrite_map::{BlockNo, Inum, MapEntry, PageId, StoredWord};
use rustc_hash::FxHashSet;

use super::{Repair, State};
use crate::audit::rules::{inodes as rules, pages};
use crate::audit::wrong::{BlockWrong, PageWrong, Wrong};
use crate::format::layout::BLOCK_BYTES;
use crate::format::xattr;
use crate::page::scan;

impl Repair {
    /// Every page gets its own block, or one that it may share.
    pub(super) fn blocks(&mut self) {
        let mut conflicts = Vec::new();
        // Blocks that pages of files have, and may share.
        let mut shared = FxHashSet::default();
        self.map.for_each(&mut |entry| {
            let block = self.superblock.page(entry.word);
            let may_share = pages::may_share(self.view(), &entry) && self.may_be_file(entry.ino);
            match self.own(block) {
                Ok(()) if may_share => drop(shared.insert(block)),
                Ok(()) => {}
                Err(BlockWrong::Taken) if may_share && shared.contains(&block) => {}
                Err(what) => conflicts.push((entry, what)),
            }
            true
        });
        for (at, what) in conflicts {
            let MapEntry { ino, lblk, word, .. } = at;
            let what = PageWrong::Block(self.superblock.page(word), what);
            let what = Wrong::Page { at, what };
            let Some(block) = self.take_block() else {
                let _ = self.set_page(ino, lblk, None);
                self.pages[ino.index()] -= 1;
                self.spoiled.insert(ino);
                self.mended("blocks", what, "dropped: there is no block for a copy", true);
                continue;
            };
            let (from, to) = (
                self.superblock.block_offset(self.superblock.page(word)),
                self.superblock.block_offset(block),
            );
            for at in (0..BLOCK_BYTES).step_by(8) {
                let value = self.region.load(from + at);
                self.set(to + at, value);
            }
            let sums = [self.superblock.page(word), block].map(|block| self.superblock.sum_word_offset(block));
            if let [Some(from), Some(to)] = sums {
                // It identifies the page, so it fits the rightful owner.
                let sum = self.region.load(from);
                self.set(to, sum);
            }
            let _ = self.set_page(ino, lblk, Some(self.superblock.moved(word, block)));
            self.mended(
                "blocks",
                what,
                "copied: one of the two has a page that is not its own",
                true,
            );
        }
        self.reload_map();
    }

    /// Whether an inode belongs to a file, or may have until it was damaged.
    fn may_be_file(&self, ino: Inum) -> bool {
        self.state[ino.index()] == State::Damaged || self.load(ino).is_file()
    }

    /// Blocks that hold logs or attributes, whether they prove sound later or not.
    pub(super) fn blocks_beside_pages(&self) -> FxHashSet<BlockNo> {
        let mut found = FxHashSet::default();
        for ino in self.superblock.all_inums() {
            let block = self.load(ino).xattr_block();
            if self.superblock.is_data_block(block) {
                found.extend(xattr::further_blocks(&self.region, &self.superblock, ino, block));
            }
            found.insert(block);
        }
        self.map.for_each(&mut |entry| {
            if entry.word.has_log() {
                let page = PageId::new(entry.ino, entry.lblk);
                // Of a broken log only the reachable part matters: it is dropped.
                let _ = scan::entries((&self.region, &self.superblock), page, entry.word, &mut |seen| {
                    found.insert(seen.segment().header.block());
                    Ok(true)
                });
            }
            true
        });
        found
    }

    pub(super) fn is_owned(&self, block: BlockNo) -> bool {
        self.owned.is_set(u64::from(block) - self.superblock.first_block)
    }

    /// Extended attributes: each block names its inode.
    pub(super) fn attributes(&mut self) {
        for ino in self.superblock.all_inums() {
            let mut inode = self.load(ino);
            let block = inode.xattr_block();
            if self.state[ino.index()] != State::Sound || block == BlockNo::NONE {
                continue;
            }
            // Claimed only by the inode whose attributes they hold.
            let mut seen = Vec::new();
            let is_free = |block| {
                let is_new = !self.is_owned(block) && !seen.contains(&block);
                seen.push(block);
                is_new
            };
            let own = rules::attribute_blocks(self.view(), ino, block, is_free);
            let Err(wrong) = own.and_then(|()| rules::attributes(self.view(), ino, block)) else {
                for block in seen {
                    self.claim(block);
                }
                continue;
            };
            inode.set_xattr_block(BlockNo::NONE);
            self.put(ino, &mut inode);
            self.mended("attributes", wrong, "dropped", true);
        }
    }

    /// Pages that differ from their checksums cannot be read, whether the page or the checksum was damaged. They get
    /// matching checksums, and their files are quarantined, so that a user who knows the content can judge it.
    pub(super) fn data(&mut self) {
        if !self.reads_data {
            return;
        }
        let mut wrong: BTreeMap<Inum, Vec<StoredWord>> = BTreeMap::new();
        self.map.for_each(&mut |entry| {
            if self.state[entry.ino.index()] == State::Sound
                && let Some((_, right)) = pages::data(self.view(), &entry)
            {
                wrong.entry(entry.ino).or_default().push(right);
            }
            true
        });
        for (ino, words) in wrong {
            let what = format!("inode {ino}: {} pages have the wrong checksum", words.len());
            words.into_iter().for_each(|word| self.set(word.offset, word.value));
            self.spoiled.insert(ino);
            self.mended("data", what, "checksums made to fit what is there", true);
        }
    }
}
