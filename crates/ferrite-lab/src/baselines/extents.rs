//! An extent tree for each file, changed in place or through a page cache with one lock (Strata's default; HashFS
//! §4.7).
//!
//! A B-tree of 4 KiB nodes. The area holds each inode's root block. A node begins with {entries, level} and a
//! generation that every change counts up; its entries are {first page, length; word} in a leaf and {first page; child}
//! above, sorted. An extent longer than one page has consecutive blocks and no logs. The first entry of an inner node
//! stands for everything below the second.
//!
//! Nodes are split on the way down when they might overflow, so that a change never goes back up. They are freed when
//! they are empty, and never merged.
//!
//! Invariants: blocks that a lookup follows are data blocks, and levels decrease on the way down; so lookups end,
//! whatever they read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use ferrite_map::{
    BlockNo, Broken, FileMap, Geometry, Inum, Lblk, MapEntry, MapError, MapTx, Measured, PageId, PageWord, SlotNo,
    Slots, TransCache,
};
use ferrite_pm::Region;

use super::page_cache::{GENERATION, NODE_WORDS, PageCache};
use crate::alloc::BLOCK_BYTES;

/// Entries of a node.
const ENTRIES: u64 = (NODE_WORDS - 2) / 2;
/// A change adds at most two; a node without space for them is split first.
const SPLIT_ENTRIES: u64 = ENTRIES - 2;
/// Levels that no file can reach.
const LEVELS_MAX: u64 = 6;

/// See the module's head.
pub(crate) struct ExtentTree {
    region: Arc<Region>,
    geometry: Geometry,
    cache: Option<PageCache>,
}

/// Nodes from the root to a leaf, and which entry of each was followed.
type Way = Vec<(BlockNo, u64)>;

/// The result of a search in one node.
#[derive(Debug, Clone, Copy)]
struct Hit {
    level: u64,
    count: u64,
    /// The last entry that begins at or before the page.
    entry: Option<(u64, Entry)>,
}

/// An entry of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    first: u32,
    len: u32,
    word: u64,
}

impl Entry {
    fn key(self) -> u64 {
        u64::from(self.first) | u64::from(self.len) << 32
    }

    /// Word of a page, if the extent holds it.
    fn at(self, lblk: Lblk) -> Option<PageWord> {
        let index = lblk.get().checked_sub(self.first).filter(|&index| index < self.len)?;
        Some(PageWord(self.word.wrapping_add(u64::from(index))))
    }
}

/// Searches the node with the words that `word` returns.
#[inline]
fn search(lblk: Lblk, word: impl Fn(u64) -> u64) -> Hit {
    let head = word(0);
    let (count, level) = ((head & 0xffff_ffff).min(ENTRIES), head >> 32);
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        if word(2 + middle * 2) as u32 <= lblk.get() {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    // The first entry of an inner node also covers all pages below it.
    let at = if low == 0 && level > 0 && count > 0 {
        Some(0)
    } else {
        low.checked_sub(1)
    };
    let entry = at.map(|at| (at, entry_of(word(2 + at * 2), word(3 + at * 2))));
    Hit { level, count, entry }
}

fn entry_of(key: u64, word: u64) -> Entry {
    Entry {
        first: key as u32,
        len: (key >> 32) as u32,
        word,
    }
}

fn offset(node: BlockNo, word: u64) -> u64 {
    u64::from(node) * BLOCK_BYTES + word * 8
}

/// The header of a node.
struct Head {
    /// Number of its entries.
    count: u64,
    /// Its height above the leaves.
    level: u64,
}

fn head(tx: &dyn MapTx, node: BlockNo) -> Head {
    let head = tx.word(offset(node, 0));
    Head {
        count: (head & 0xffff_ffff).min(ENTRIES),
        level: head >> 32,
    }
}

fn set_head(tx: &mut dyn MapTx, node: BlockNo, count: u64, level: u64) {
    tx.set_word(offset(node, 0), count | level << 32);
    let generation = tx.word(offset(node, GENERATION)).wrapping_add(1);
    tx.set_word(offset(node, GENERATION), generation);
}

fn read_entry(tx: &dyn MapTx, node: BlockNo, at: u64) -> Entry {
    entry_of(tx.word(offset(node, 2 + at * 2)), tx.word(offset(node, 3 + at * 2)))
}

fn write_entry(tx: &mut dyn MapTx, node: BlockNo, at: u64, entry: Entry) {
    tx.set_word(offset(node, 2 + at * 2), entry.key());
    tx.set_word(offset(node, 3 + at * 2), entry.word);
}

/// Replaces `gone` entries from `at` on by `new`. Returns the number of entries afterwards.
fn splice(tx: &mut dyn MapTx, node: BlockNo, at: u64, gone: u64, new: &[Entry]) -> u64 {
    let Head { count, level } = head(tx, node);
    let rest: Vec<Entry> = if new.len() as u64 == gone {
        Vec::new()
    } else {
        (at + gone..count).map(|at| read_entry(tx, node, at)).collect()
    };
    for (index, &entry) in new.iter().chain(&rest).enumerate() {
        write_entry(tx, node, at + index as u64, entry);
    }
    let count = count - gone + new.len() as u64;
    set_head(tx, node, count, level);
    count
}

impl ExtentTree {
    pub(crate) fn new(region: Arc<Region>, geometry: Geometry, cached: bool) -> Self {
        ExtentTree {
            region,
            geometry,
            cache: cached.then(PageCache::new),
        }
    }

    fn root_offset(&self, ino: Inum) -> u64 {
        self.geometry.area_offset + u64::from(ino) * 8
    }

    fn node(&self, word: u64) -> Option<BlockNo> {
        u32::try_from(word)
            .ok()
            .map(BlockNo::new)
            .filter(|&block| self.geometry.is_data_block(block))
    }

    fn root(&self, ino: Inum, word: impl Fn(u64) -> u64) -> Option<BlockNo> {
        (ino.get() < self.geometry.inodes)
            .then(|| word(self.root_offset(ino)))
            .and_then(|word| self.node(word))
    }

    /// Searches a node as lookups do.
    #[inline]
    fn look(&self, node: BlockNo, lblk: Lblk) -> Hit {
        match &self.cache {
            None => search(lblk, |word| self.region.load(offset(node, word))),
            Some(cache) => cache.with(&self.region, node, |page| search(lblk, |word| page[word as usize])),
        }
    }

    /// The leaf's entry for a page, found by `look`.
    fn find(&self, ino: Inum, mut look: impl FnMut(BlockNo) -> Hit) -> Option<Entry> {
        let mut node = self.root(ino, |at| self.region.load(at))?;
        let mut above = LEVELS_MAX;
        loop {
            let hit = look(node);
            let (_, entry) = hit.entry?;
            if hit.level == 0 {
                return Some(entry);
            }
            if hit.level >= above {
                return None;
            }
            above = hit.level;
            node = self.node(entry.word)?;
        }
    }

    /// The way to the leaf for a change of this page. Nodes on it have space.
    fn descend(&self, tx: &mut dyn MapTx, ino: Inum, lblk: Lblk) -> Result<Option<Way>, MapError> {
        let damaged = || MapError::Damaged(format!("extent tree of inode {ino}"));
        let Some(mut node) = self.root(ino, |at| tx.word(at)) else {
            return Ok(None);
        };
        let Head { count, level } = head(tx, node);
        if count >= SPLIT_ENTRIES {
            let root = self.fresh_node(tx)?;
            let child = Entry {
                first: 0,
                len: 0,
                word: u64::from(node),
            };
            write_entry(tx, root, 0, child);
            set_head(tx, root, 1, level + 1);
            tx.set_word(self.root_offset(ino), u64::from(root));
            self.split(tx, root, 0, node)?;
            node = root;
        }
        let mut path = Vec::new();
        loop {
            // Strata's cost for a node that it changes: finding its page.
            if let Some(cache) = &self.cache {
                cache.with(&self.region, node, |_| ());
            }
            let hit = search(lblk, |word| tx.word(offset(node, word)));
            if hit.level == 0 {
                path.push((node, hit.entry.map_or(u64::MAX, |(at, _)| at)));
                return Ok(Some(path));
            }
            let (at, entry) = hit.entry.ok_or_else(damaged)?;
            let child = self.node(entry.word).ok_or_else(damaged)?;
            let Head { count, level } = head(tx, child);
            if level >= hit.level || hit.count > ENTRIES {
                return Err(damaged());
            }
            if count >= SPLIT_ENTRIES {
                // Then again in this node: the page may lie in the new one.
                self.split(tx, node, at, child)?;
                continue;
            }
            path.push((node, at));
            node = child;
        }
    }

    /// A block for a node. Its generation continues from the block's old content, so that no copy of an earlier node
    /// there passes for the new one.
    fn fresh_node(&self, tx: &mut dyn MapTx) -> Result<BlockNo, MapError> {
        let block = tx.fresh_block()?;
        let generation = offset(block, GENERATION);
        tx.set_word(generation, self.region.load(generation));
        Ok(block)
    }

    /// Moves the upper half of `child`, which entry `at` of `parent` leads to, to a new node.
    fn split(&self, tx: &mut dyn MapTx, parent: BlockNo, at: u64, child: BlockNo) -> Result<(), MapError> {
        let Head { count, level } = head(tx, child);
        let sibling = self.fresh_node(tx)?;
        let kept = count / 2;
        for from in kept..count {
            let entry = read_entry(tx, child, from);
            write_entry(tx, sibling, from - kept, entry);
        }
        set_head(tx, sibling, count - kept, level);
        set_head(tx, child, kept, level);
        let entry = Entry {
            first: read_entry(tx, sibling, 0).first,
            len: 0,
            word: u64::from(sibling),
        };
        splice(tx, parent, at + 1, 0, &[entry]);
        Ok(())
    }

    /// Leaf, place and entry that hold a page.
    fn holding(&self, tx: &mut dyn MapTx, ino: Inum, lblk: Lblk) -> Result<Option<(Way, u64, Entry)>, MapError> {
        let Some(path) = self.descend(tx, ino, lblk)? else {
            return Ok(None);
        };
        let Some(&(leaf, at)) = path.last().filter(|(_, at)| *at != u64::MAX) else {
            return Ok(None);
        };
        let entry = read_entry(tx, leaf, at);
        Ok(entry.at(lblk).is_some().then_some((path, at, entry)))
    }

    /// The parts of `entry` before and after page `lblk`.
    fn around(entry: Entry, lblk: Lblk) -> (Option<Entry>, Option<Entry>) {
        let before = lblk.get() - entry.first;
        let left = Entry { len: before, ..entry };
        let right = Entry {
            first: lblk.get().wrapping_add(1),
            len: entry.len - before - 1,
            word: entry.word.wrapping_add(u64::from(before) + 1),
        };
        ((left.len > 0).then_some(left), (right.len > 0).then_some(right))
    }

    /// Visits all entries of leaves and all nodes below `node`, by decreasing levels.
    fn walk(
        &self,
        node: BlockNo,
        above: u64,
        leaf: &mut dyn FnMut(Entry) -> bool,
        inner: &mut dyn FnMut(BlockNo),
    ) -> bool {
        let head = self.region.load(offset(node, 0));
        let (count, level) = ((head & 0xffff_ffff).min(ENTRIES), head >> 32);
        if level >= above {
            return true;
        }
        inner(node);
        (0..count).all(|at| {
            let word = |index| self.region.load(offset(node, index));
            let entry = entry_of(word(2 + at * 2), word(3 + at * 2));
            match self.node(entry.word) {
                _ if level == 0 => leaf(entry),
                Some(child) => self.walk(child, level, leaf, inner),
                None => true,
            }
        })
    }

    fn walk_inode(&self, ino: Inum, leaf: &mut dyn FnMut(Entry) -> bool, inner: &mut dyn FnMut(BlockNo)) -> bool {
        let root = self.root(ino, |at| self.region.load(at));
        root.is_none_or(|root| self.walk(root, LEVELS_MAX, leaf, inner))
    }

    fn pages(&self, ino: Inum, visit: &mut dyn FnMut(MapEntry) -> bool) -> bool {
        let mut leaf = |entry: Entry| {
            (0..entry.len).all(|index| {
                visit(MapEntry {
                    ino,
                    lblk: Lblk::new(entry.first.wrapping_add(index)),
                    word: PageWord(entry.word.wrapping_add(u64::from(index))),
                    slot: SlotNo::new(0),
                })
            })
        };
        self.walk_inode(ino, &mut leaf, &mut |_| {})
    }
}

impl FileMap for ExtentTree {
    fn name(&self) -> &'static str {
        if self.cache.is_some() {
            "extent-page-cached"
        } else {
            "extent-in-place"
        }
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        let entry = self.find(ino, |node| self.look(node, lblk));
        entry.and_then(|entry| entry.at(lblk)).unwrap_or(PageWord::HOLE)
    }

    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], _cache: &TransCache) {
        let mut extent = None;
        for (lblk, word) in lblk.onwards().zip(out) {
            let known = extent.and_then(|extent: Entry| extent.at(lblk));
            *word = known.unwrap_or_else(|| {
                extent = self.find(ino, |node| self.look(node, lblk));
                extent.and_then(|extent| extent.at(lblk)).unwrap_or(PageWord::HOLE)
            });
        }
    }

    fn prefetch(&self, PageId { ino, .. }: PageId, _to_store: bool) {
        if ino.get() < self.geometry.inodes {
            self.region.prefetch(self.root_offset(ino));
        }
    }

    fn alloc_page(&self, tx: &mut dyn MapTx, _page: PageId) -> Result<BlockNo, MapError> {
        tx.alloc_block()
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let new = Entry {
            first: lblk.get(),
            len: 1,
            word: word.0,
        };
        let Some(path) = self.descend(tx, ino, lblk)? else {
            let leaf = self.fresh_node(tx)?;
            tx.set_word(self.root_offset(ino), u64::from(leaf));
            splice(tx, leaf, 0, 0, &[new]);
            return Ok(());
        };
        let Some(&(leaf, at)) = path.last() else {
            return Err(MapError::Damaged(format!("extent tree of inode {ino}")));
        };
        let place = at.wrapping_add(1);
        let joins = |entry: Entry| word.is_plain() && entry.word >> 32 == 0 && entry.len < u32::MAX;
        if at != u64::MAX {
            let before = read_entry(tx, leaf, at);
            let follows = before.first.checked_add(before.len) == Some(lblk.get());
            if follows && joins(before) && before.word + u64::from(before.len) == word.0 {
                let longer = Entry {
                    len: before.len + 1,
                    ..before
                };
                splice(tx, leaf, at, 1, &[longer]);
                return Ok(());
            }
        }
        if place < head(tx, leaf).count {
            let behind = read_entry(tx, leaf, place);
            if lblk.get().checked_add(1) == Some(behind.first) && joins(behind) && word.0 + 1 == behind.word {
                let longer = Entry {
                    len: behind.len + 1,
                    ..new
                };
                splice(tx, leaf, place, 1, &[longer]);
                return Ok(());
            }
        }
        splice(tx, leaf, place, 0, &[new]);
        Ok(())
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let vanished = || MapError::Damaged(format!("page {lblk} of inode {ino} vanished"));
        let (path, at, entry) = self.holding(tx, ino, lblk)?.ok_or_else(vanished)?;
        let (leaf, _) = path.last().copied().ok_or_else(vanished)?;
        let middle = Entry {
            first: lblk.get(),
            len: 1,
            word: word.0,
        };
        let (left, right) = Self::around(entry, lblk);
        let new: Vec<Entry> = left.into_iter().chain([middle]).chain(right).collect();
        splice(tx, leaf, at, 1, &new);
        Ok(())
    }

    fn swing(&self, _page: PageId, _old: PageWord, _new: PageWord) -> Option<u64> {
        // The lab never merges logs.
        None
    }

    fn remove(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<PageWord, MapError> {
        let Some((mut path, at, entry)) = self.holding(tx, ino, lblk)? else {
            return Ok(PageWord::HOLE);
        };
        let (left, right) = Self::around(entry, lblk);
        let new: Vec<Entry> = left.into_iter().chain(right).collect();
        let (mut new, mut at) = (&new[..], at);
        while let Some((node, _)) = path.pop() {
            if splice(tx, node, at, 1, new) > 0 {
                break;
            }
            tx.freed(ferrite_map::Resource::Block(node));
            match path.last() {
                Some(&(_, above)) => (new, at) = (&[], above),
                None => tx.set_word(self.root_offset(ino), 0),
            }
        }
        Ok(entry.at(lblk).unwrap_or(PageWord::HOLE))
    }

    fn release(&self, _slot: SlotNo) -> bool {
        true
    }

    fn load(&self, _threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        self.for_each(&mut |entry| {
            visit(entry);
            true
        });
        Ok(())
    }

    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let _ = (1..self.geometry.inodes).all(|ino| self.pages(Inum::new(ino), visit));
    }

    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) {
        self.pages(ino, &mut |entry| {
            let wanted = entry.lblk >= first && u64::from(entry.lblk) < end;
            !wanted || visit(entry)
        });
    }

    fn slots(&self) -> Slots {
        Slots::UNLIMITED
    }

    fn check(&self, visit: &mut dyn FnMut(MapEntry), node: &mut dyn FnMut(BlockNo), _broken: &mut dyn FnMut(Broken)) {
        self.for_each_node(&mut |block, _| node(block));
        self.for_each(&mut |entry| {
            visit(entry);
            true
        });
    }

    fn for_each_node(&self, visit: &mut dyn FnMut(BlockNo, Inum)) {
        for ino in 1..self.geometry.inodes {
            self.walk_inode(Inum::new(ino), &mut |_| true, &mut |block| visit(block, Inum::new(ino)));
        }
    }

    fn dram_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, PageCache::dram_bytes)
    }
}

impl Measured for ExtentTree {
    fn lines_touched(&self, PageId { ino, lblk }: PageId) -> u64 {
        let lines = RefCell::new(BTreeSet::from([self.root_offset(ino) / 64]));
        self.find(ino, |node| {
            search(lblk, |word| {
                let at = offset(node, word);
                lines.borrow_mut().insert(at / 64);
                self.region.load(at)
            })
        });
        lines.into_inner().len() as u64
    }
}
