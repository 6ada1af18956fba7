//! The check of the radix trees: their [`FileMap::check`](crate::FileMap::check).
//!
//! Contents: [`Check`]. It reads every word of every node, whatever the links claim about them.
//!
//! Invariants: a node is entered once, so the check ends. No two repairs of one check set the same word, and the
//! repairs of one check make everything sound: a link is compared with the words that will be left in its node.

use super::{LBLK_END, Link, NODE_WORDS, Radix, group_bit, slot_of};
use crate::bitmap::AtomicBitmap;
use crate::{Affected, BlockNo, Broken, Inum, Lblk, MapEntry, PageWord, SlotNo, StoredWord};

/// State of a check, and where it reports.
pub(super) struct Check<'c> {
    map: &'c Radix,
    ino: Inum,
    nodes: AtomicBitmap,
    visit: &'c mut dyn FnMut(MapEntry),
    node: &'c mut dyn FnMut(BlockNo),
    broken: &'c mut dyn FnMut(Broken),
}

impl<'c> Check<'c> {
    pub(super) fn new(
        map: &'c Radix,
        visit: &'c mut dyn FnMut(MapEntry),
        node: &'c mut dyn FnMut(BlockNo),
        broken: &'c mut dyn FnMut(Broken),
    ) -> Self {
        Check {
            map,
            ino: Inum::NONE,
            nodes: AtomicBitmap::new(u64::from(map.geometry.blocks)),
            visit,
            node,
            broken,
        }
    }

    /// Checks all trees.
    pub(super) fn all(mut self) {
        for ino in self.map.geometry.written_inums(&self.map.region) {
            let Some(at) = self.map.root_at(ino) else { continue };
            let word = self.map.region.load(at);
            self.ino = ino;
            if word != 0 {
                self.link(at, word, None, 0);
            }
        }
    }

    fn repair(&mut self, what: String, at: u64, word: u64) {
        (self.broken)(Broken {
            affected: Affected::Inode(self.ino),
            what: format!("inode {}: {what}", self.ino),
            repair: vec![StoredWord::new(at, word)],
        });
    }

    /// Checks the subtree of the link in `word`, stored at `at`. Returns whether the link remains when all is repaired.
    fn link(&mut self, at: u64, word: u64, height: Option<u32>, base: u64) -> bool {
        let link = self.map.link(word).filter(|link| {
            let is_as_high = height.is_none_or(|height| link.height == height);
            is_as_high && self.ino != Inum::NONE && base < LBLK_END
        });
        let Some(link) = link else {
            self.repair(format!("{word:#018x} at offset {at} is no link"), at, 0);
            return false;
        };
        if !self.map.claim_node(&self.nodes, link) {
            let block = link.block;
            self.repair(format!("block {block}, linked at offset {at}, is another node"), at, 0);
            return false;
        }
        (self.node)(link.block);
        let groups = self.words(link, base);
        if groups != link.groups {
            let (block, said) = (link.block, link.groups);
            let what = format!("node in block {block} has words in {groups:#06x}, its link says {said:#06x}");
            let sound = Link { groups, ..link };
            self.repair(what, at, if groups == 0 { 0 } else { sound.word() });
        }
        groups != 0
    }

    /// Checks the words of a node. Returns the sixteenths that have words when all is repaired.
    fn words(&mut self, link: Link, base: u64) -> u16 {
        let mut groups = 0;
        for index in 0..NODE_WORDS {
            let at = link.word_offset(index);
            let word = self.map.region.load(at);
            let lblk = base + index as u64 * link.span();
            let is_sound = match word {
                0 => false,
                _ if link.height > 1 => self.link(at, word, Some(link.height - 1), lblk),
                _ => self.page(at, PageWord(word), lblk, slot_of(link, index)),
            };
            if is_sound {
                groups |= group_bit(index);
            }
        }
        groups
    }

    fn page(&mut self, at: u64, word: PageWord, lblk: u64, slot: SlotNo) -> bool {
        let page = self.map.geometry.page(word);
        let is_sound = self.map.geometry.is_data_block(page);
        if is_sound {
            (self.visit)(MapEntry {
                ino: self.ino,
                lblk: Lblk::new(lblk as u32),
                word,
                slot,
            });
        } else {
            let what = format!("page {lblk} is mapped to block {page}, which holds no data");
            self.repair(what, at, 0);
        }
        is_sound
    }
}
