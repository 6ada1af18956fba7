//! The extent tree: one B+-tree of extents per file, updated in place (HashFS §3.1.1).
//!
//! Contents: [`ExtentTree`], its lookups and walks. Its nodes are in [`node`], its changes in [`change`], its
//! cursors in [`cursor`], and the check, which trusts nothing, in [`check`].
//!
//! The mapping's own area has a word for each inode: the block of its root and the height of its tree, 0 for an empty
//! tree. Nodes are data blocks. An extent maps consecutive pages to consecutive blocks. A page whose word has a log
//! half is a separate extent, so that its whole word is one word of the medium. Inserts and replacements join extents
//! within a leaf, and split them where they must.
//!
//! *Why groups.* Each word that moves is a word of the record. A sorted array, which shifts half of its words for each
//! insert, is too expensive; an unsorted one with valid bits needs no shift, but a lookup reads all 31 lines of its
//! keys. So a node is unsorted groups of a line or two, and an index of their lows (see [`node`]).
//!
//! Words set per operation: a sequential append 1, another insert or a split of an extent 2 or 3, a removal 1 or 2. A
//! full group costs 13 more and leaves four free places. A full leaf costs about 20, besides the new node, and leaves
//! fifteen free groups. Ascending inserts move nothing: they open a new group or node. Nodes are freed when they are
//! empty, up to the root, and never merged.
//!
//! *Bounds of nodes are implied.* A node has all pages that searches lead to it: those from its key in the parent to
//! the next key; the lowest node also has what is below its key.
//!
//! So when a neighbour is removed, its pages belong to another node without a word being set. Before anything is put
//! below a key or low, that key or low is lowered. Invariant: a key is not above any low or key under it.
//!
//! *Why cursors are right.* A cursor leads to a block that a search reached from the root. A lookup follows it only if
//! 1. the map's epoch is the same as before that search began, both before and after the leaf is read. The epoch moves
//!    before a block that was a node returns to the free blocks. That is after the commit that removed it from the
//!    tree, and no search that begins after the commit reaches it. So the block is unchanged: a node of that tree, or
//!    one removed from it;
//! 2. its header marks a leaf, and names this inode. The record that removes a node from a tree clears the header;
//! 3. its range word holds the page. A record that gives part of a leaf's pages to another leaf sets the range, too.
//!    Searches may lead more pages to a leaf than its range has; that does no harm.
//!
//! Records of other inodes set no word of this one's nodes, so a lookup that sees one version of its inode sees one
//! tree. A lookup that does not may see anything, but it ends: levels count down, and every run of pages ends past
//! where it began.

mod change;
mod check;
mod cursor;
mod node;

use std::ops::ControlFlow;
use std::sync::Arc;

use ferrite_pm::Region;

use crate::bitmap::AtomicBitmap;
use crate::load::{self, Table};
use crate::simd::Level;
use crate::{
    BlockNo, Broken, FileMap, Geometry, Inum, Lblk, MapEntry, MapError, MapTx, Measured, PageId, PageWord, SlotNo,
    Slots, TransCache,
};
use cursor::{Cursors, Seen};
use node::{GroupLow, HEIGHT_MAX, Key, KeyPlace, Medium, Node, NodeId, PAGES_END, Words, range_of, word_behind};

/// Inodes that a thread takes at a time when loading.
const LOAD_CHUNK: u64 = 4096;
/// Lines of a node that a lookup reads besides keys: those of header and index.
const INDEX_LINES: u64 = 4;
/// Lines of a node that a lookup of a remembered extent reads: header, index word, key, page word.
const REMEMBERED_LINES: u64 = 4;
/// A cursor remembers only extents of at least this many pages: a shorter one is seldom hit again, and files share
/// cursors.
const REMEMBERED_PAGES: u32 = 8;

/// The extent trees of a mounted pool.
pub struct ExtentTree {
    region: Arc<Region>,
    geometry: Geometry,
    cursors: Cursors,
    level: Level,
}

/// Consecutive pages of one kind: an extent from the given page on, or a hole.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Word of its first page.
    word: PageWord,
    /// The first page after it.
    end: u64,
    /// The extent, and the leaf that holds it.
    found: Option<(Node, Key)>,
}

impl Run {
    fn hole(end: u64) -> Run {
        Run {
            word: PageWord::HOLE,
            end,
            found: None,
        }
    }

    /// Where its extent is.
    fn place(self) -> KeyPlace {
        self.found
            .map_or(KeyPlace { group: 0, slot: 0 }, |(_, key)| key.place())
    }

    fn word_behind(self, distance: u64) -> PageWord {
        if self.found.is_some() {
            word_behind(self.word, distance)
        } else {
            PageWord::HOLE
        }
    }
}

impl ExtentTree {
    /// Entries of the area: one per inode.
    pub fn slots_for(inodes: u32) -> u64 {
        u64::from(inodes)
    }

    /// Bytes of an area of `slots` entries.
    pub fn area_bytes(slots: u64) -> u64 {
        slots * 8
    }

    /// For the trees at `geometry`; [`FileMap::load`] must follow before changes.
    pub fn new(region: Arc<Region>, geometry: Geometry) -> Self {
        ExtentTree {
            region,
            geometry,
            cursors: Cursors::new(),
            level: Level::detect(),
        }
    }

    /// The medium as lookups read it.
    #[inline]
    fn medium(&self) -> Medium<'_> {
        Medium {
            region: &self.region,
            level: self.level,
        }
    }

    /// Pool offset of the root word of `ino`.
    fn root_offset(&self, ino: Inum) -> Option<u64> {
        (u64::from(ino) < self.geometry.slots).then(|| self.geometry.area_offset + u64::from(ino) * 8)
    }

    /// Block and height of a root word, if it is plausible.
    fn root_of(word: u64) -> Option<(BlockNo, u32)> {
        let (block, height) = (BlockNo::new(word as u32), (word >> 32) as u32);
        (1..=HEIGHT_MAX).contains(&height).then_some((block, height))
    }

    /// A root word.
    fn root_word(block: BlockNo, height: u32) -> u64 {
        u64::from(height) << 32 | u64::from(block)
    }

    /// The leaf that `seen` leads to, if that has page `lblk`, and the end of the pages it surely has. Words read from
    /// it count only if the epoch is the same afterwards.
    #[inline]
    fn hinted<W: Words + ?Sized>(&self, words: &W, ino: Inum, lblk: u64, seen: Seen) -> Option<(Node, u64)> {
        let holds = |range: u64| range_of(range).contains(lblk);
        if !holds(seen.range) {
            return None;
        }
        let leaf = Node::open(words, &self.geometry, NodeId::leaf(ino, seen.block))?;
        let range = words.at(leaf.range_offset());
        holds(range).then(|| (leaf, range_of(range).end))
    }

    /// The leaf that page `lblk` belongs to, and the end of the pages that belong to it. If the page is not mapped, the
    /// end of the pages that are surely not mapped either.
    fn search<W: Words + ?Sized>(&self, words: &W, ino: Inum, lblk: u64) -> Result<(Node, u64), u64> {
        let mut end = PAGES_END;
        let root = self.root_offset(ino).map_or(0, |offset| words.at(offset));
        let Some((mut block, height)) = Self::root_of(root) else {
            return Err(end);
        };
        for level in (0..height).rev() {
            let node = Node::open(words, &self.geometry, NodeId { ino, block, level }).ok_or(end)?;
            if level == 0 {
                return Ok((node, end));
            }
            let group = node.group_of(words, lblk, end).ok_or(end)?;
            let (key, behind) = node.child_of(words, group, lblk).ok_or(group.end)?;
            // In a node that is damaged or changing, keys may lie anywhere.
            end = behind.clamp(lblk + 1, end);
            block = key.child();
        }
        Err(end)
    }

    /// The extent of `key`, from its page `lblk` on.
    #[inline]
    fn run_of<W: Words + ?Sized>(words: &W, leaf: Node, key: Key, lblk: u64) -> Run {
        Run {
            word: word_behind(leaf.word_of(words, key), lblk - key.start()),
            end: key.end().min(PAGES_END),
            found: Some((leaf, key)),
        }
    }

    /// The run at page `lblk` of `leaf`, whose pages lie before `end`.
    #[inline]
    fn run_in<W: Words + ?Sized>(words: &W, leaf: Node, lblk: u64, end: u64) -> Run {
        let Some(group) = leaf.group_of(words, lblk, end) else {
            return Run::hole(end);
        };
        if let Some(key) = leaf.extent_of(words, group.number, lblk) {
            return Self::run_of(words, leaf, key, lblk);
        }
        let above = leaf.around(words, group.number, lblk).above;
        let end = above.map_or(group.end, Key::start).min(end);
        Run::hole(end.max(lblk + 1))
    }

    /// The run at page `lblk`, as the medium has it.
    #[inline]
    fn run(&self, ino: Inum, lblk: u64) -> Run {
        let epoch = self.cursors.epoch();
        let words = &self.medium();
        if let Some(seen) = self.cursors.get(ino, epoch)
            && let Some((leaf, end)) = self.hinted(words, ino, lblk, seen)
        {
            let again = leaf
                .extent_at(words, seen.extent)
                .filter(|key| (key.start()..key.end()).contains(&lblk));
            let run = match again {
                Some(key) => Self::run_of(words, leaf, key, lblk),
                None => Self::run_in(words, leaf, lblk, end),
            };
            if self.cursors.is_still(epoch) {
                if again.is_none() {
                    self.remember(ino, epoch, run);
                }
                return run;
            }
        }
        match self.search(words, ino, lblk) {
            Ok((leaf, end)) => {
                let run = Self::run_in(words, leaf, lblk, end);
                let seen = Seen {
                    block: leaf.block,
                    range: words.at(leaf.range_offset()),
                    extent: run.place(),
                };
                self.cursors.put(ino, epoch, seen);
                run
            }
            Err(end) => Run::hole(end.max(lblk + 1)),
        }
    }

    /// Points the cursor at an extent that is long enough to be hit again.
    fn remember(&self, ino: Inum, epoch: u64, run: Run) {
        if let Some((leaf, key)) = run.found
            && key.low_half() >= REMEMBERED_PAGES
        {
            let seen = Seen {
                block: leaf.block,
                range: self.medium().at(leaf.range_offset()),
                extent: run.place(),
            };
            self.cursors.put(ino, epoch, seen);
        }
    }

    fn walk_range(&self, ino: Inum, at: u64, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) -> ControlFlow<()> {
        self.walk_runs(ino, at, end, &mut |first, pages| {
            (0..pages).all(|distance| {
                let lblk = u64::from(first.lblk) + distance;
                let entry = self.entry(ino, lblk, word_behind(first.word, distance));
                entry.word.is_hole() || visit(entry)
            })
        })
    }

    /// The same by extents: the first page in the range, and the number of pages.
    fn walk_runs(
        &self,
        ino: Inum,
        mut at: u64,
        end: u64,
        visit: &mut dyn FnMut(MapEntry, u64) -> bool,
    ) -> ControlFlow<()> {
        while at < end {
            let run = self.run(ino, at);
            let run_end = run.end.min(end);
            if run.found.is_some() {
                // A damaged length may claim billions of pages; no sound one claims more than there are blocks.
                let pages = (run_end - at).min(u64::from(self.geometry.blocks));
                if !visit(self.entry(ino, at, run.word), pages) {
                    return ControlFlow::Break(());
                }
            }
            at = run_end;
        }
        ControlFlow::Continue(())
    }

    /// Visits the nodes from this one down.
    fn walk_nodes(&self, id: NodeId, visit: &mut dyn FnMut(BlockNo, Inum)) {
        let words = &self.medium();
        let Some(node) = Node::open(words, &self.geometry, id) else {
            return;
        };
        visit(id.block, id.ino);
        if id.level > 0 {
            for GroupLow { group, .. } in node.lows(words) {
                for key in node.keys_of(words, group) {
                    self.walk_nodes(id.child(key.child()), visit);
                }
            }
        }
    }

    fn root_word_offset(&self, ino: Inum) -> u64 {
        self.geometry.area_offset + u64::from(ino) * 8
    }

    /// A page as iteration shows it. Pages have no slots here, so the number for diagnosis is the page's block.
    fn entry(&self, ino: Inum, lblk: u64, word: PageWord) -> MapEntry {
        MapEntry {
            ino,
            lblk: Lblk::new(lblk as u32),
            word,
            slot: SlotNo::new(self.geometry.page(word).get()),
        }
    }
}

impl FileMap for ExtentTree {
    fn name(&self) -> &'static str {
        "extent"
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        self.run(ino, u64::from(lblk)).word
    }

    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], _cache: &TransCache) {
        let mut at = u64::from(lblk);
        let mut rest = out;
        while !rest.is_empty() {
            let run = self.run(ino, at);
            let count = (run.end.saturating_sub(at)).clamp(1, rest.len() as u64);
            let (filled, behind) = rest.split_at_mut(count as usize);
            for (distance, word) in (0..).zip(filled) {
                *word = run.word_behind(distance);
            }
            rest = behind;
            at += count;
        }
    }

    fn prefetch(&self, PageId { ino, .. }: PageId, to_store: bool) {
        // The cursor is in the CPU's cache if the file is in use. Without it the root must be known before anything can
        // be prefetched.
        if let Some(seen) = self.cursors.get(ino, self.cursors.epoch())
            && self.geometry.is_data_block(seen.block)
        {
            let offset = node::header_offset(seen.block);
            if to_store {
                self.region.prefetch_to_store(offset);
            } else {
                self.region.prefetch(offset);
            }
        } else if let Some(offset) = self.root_offset(ino) {
            self.region.prefetch(offset);
        }
    }

    fn alloc_page(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<BlockNo, MapError> {
        // The block that would make the page part of the extent before it.
        let before = lblk.checked_previous().map(|before| self.word_in(tx, ino, before));
        if let Some(word) = before
            && self.geometry.page(word) != BlockNo::NONE
            && let Some(next) = self.geometry.page(word).checked_next()
            && tx.claim_block(next)
        {
            return Ok(next);
        }
        tx.alloc_block()
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        self.insert_page(tx, ino, u64::from(lblk), word)
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        self.replace_page(tx, ino, u64::from(lblk), word)
    }

    fn swing(&self, PageId { ino, lblk }: PageId, old: PageWord, new: PageWord) -> Option<u64> {
        let run = self.run(ino, u64::from(lblk));
        let (leaf, key) = run.found?;
        // Words of longer extents are computed from the first; there is no word to store.
        if key.low_half() != 1 || run.word != old || new.is_hole() {
            return None;
        }
        let offset = leaf.word_offset(key);
        self.region.store(offset, new.0);
        Some(offset)
    }

    fn remove(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<PageWord, MapError> {
        self.remove_page(tx, ino, u64::from(lblk))
    }

    /// Nodes are released as entries too, before their blocks are: from then on no cursor may lead to them.
    fn release(&self, _slot: SlotNo) -> bool {
        self.cursors.end_epoch();
        true
    }

    fn load(&self, threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        // Repair may have cut off nodes without clearing their headers.
        self.cursors.end_epoch();
        let seen = AtomicBitmap::new(u64::from(self.geometry.blocks));
        let table = Table::of(&self.region, self.geometry.area_offset, 8);
        load::each_written(threads, table, self.geometry.slots, LOAD_CHUNK, |ino| {
            let mut damage = Ok(());
            self.check_inodes(
                std::iter::once(Inum::new(ino as u32)),
                &seen,
                &mut |entry| visit(entry),
                &mut |_| {},
                &mut |broken| {
                    damage = Err(MapError::Damaged(broken.what));
                },
            );
            damage
        })
    }

    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let _ = self
            .geometry
            .written_inums(&self.region)
            .filter(|&ino| self.region.load(self.root_word_offset(ino)) != 0)
            .try_for_each(|ino| self.walk_range(ino, 0, PAGES_END, visit));
    }

    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let _ = self.walk_range(ino, u64::from(first), end.min(PAGES_END), visit);
    }

    fn for_runs(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry, u64) -> bool) {
        let _ = self.walk_runs(ino, u64::from(first), end.min(PAGES_END), visit);
    }

    fn slots(&self) -> Slots {
        Slots::UNLIMITED
    }

    fn check(&self, visit: &mut dyn FnMut(MapEntry), node: &mut dyn FnMut(BlockNo), broken: &mut dyn FnMut(Broken)) {
        let seen = AtomicBitmap::new(u64::from(self.geometry.blocks));
        let inums = self.geometry.written_inums(&self.region);
        self.check_inodes(inums, &seen, visit, node, broken);
    }

    fn for_each_node(&self, visit: &mut dyn FnMut(BlockNo, Inum)) {
        for ino in self.geometry.written_inums(&self.region) {
            let root = self.region.load(self.root_word_offset(ino));
            if let Some((block, height)) = Self::root_of(root) {
                let root = NodeId {
                    ino,
                    block,
                    level: height - 1,
                };
                self.walk_nodes(root, visit);
            }
        }
    }

    fn dram_bytes(&self) -> u64 {
        self.cursors.dram_bytes()
    }
}

impl Measured for ExtentTree {
    fn lines_touched(&self, PageId { ino, lblk }: PageId) -> u64 {
        // A cursor is two lines, the epoch's included; an inner node's group is two lines, a leaf's is keys and a word.
        let node_lines = INDEX_LINES + 2;
        let words = &self.medium();
        let hinted = self.cursors.get(ino, self.cursors.epoch()).and_then(|seen| {
            let (leaf, _) = self.hinted(words, ino, u64::from(lblk), seen)?;
            Some(leaf.extent_at(words, seen.extent))
        });
        match hinted {
            Some(Some(key)) if (key.start()..key.end()).contains(&u64::from(lblk)) => return 2 + REMEMBERED_LINES,
            Some(_) => return 2 + node_lines,
            None => {}
        }
        let root = self.root_offset(ino).map_or(0, |offset| self.region.load(offset));
        let height = Self::root_of(root).map_or(0, |(_, height)| u64::from(height));
        3 + height * node_lines
    }
}

#[cfg(test)]
mod tests;
