//! Radix: one tree per file, with nodes of 512 words, as high as the file needs (HashFS §3.1.2).
//!
//! Contents: [`Radix`], its check and its cursor; only [`crate::Mapping`] makes one. The structure's own area is
//! a table of root words, one per inode. Nodes are data blocks. The words of a leaf, which has height 1, are page
//! words, 0 for a hole. All other words, those of the table included, are links:
//!
//! | bits | what |
//! | --- | --- |
//! | 0..32 | block of the node |
//! | 32..35 | its height: 1 for a leaf, one less than its parent's |
//! | 35..48 | check bits over the others |
//! | 48..64 | which sixteenths of the node have words in use: bit *g* for words 32*g* to 32*g* + 31 |
//!
//! A link of 0 leads nowhere. The height in it is not needed to find a page; it makes it unlikely that a word of a
//! block that is not a node passes for a link.
//!
//! **When is a node empty?** The sixteenths show it. A scan at each removal would read 64 lines for each one-page file
//! that is unlinked; a count would put a second word into the record of every page that is mapped. Sixteenths change
//! once in 32 pages that are mapped in order, and cost a removal at most four lines. Listing a sparse file also skips a
//! node's empty lines. [`FileMap::check`] compares them with the words they stand for.
//!
//! **The cursor** is a leaf that two consecutive calls walked to, kept in the open file's [`TransCache`]. It is used
//! only where it saves something, for trees of two levels and more. A lookup trusts it on two conditions:
//! * *The word it leads to is not a hole.* Removing a page clears its word, so a leaf that was unlinked holds nothing
//!   but zeros. As long as a leaf is linked it stands for the same pages, because trees grow and shrink at the top.
//! * *No node of the file was released since before the walk that found the leaf*, nor while the word was read. Each
//!   freed node is accompanied by a [`Resource::MapSlot`] of its inode. Releasing that advances the inode's epoch, and
//!   it is sorted before the release of any block. So a node becomes something else only after its epoch has passed.
//!
//!   A walk that met such a block, or came to a leaf whose unlinking was not committed yet, left a cursor of an older
//!   epoch, or one that leads to zeros.
//!
//! Transactions never use the cursor: it does not know their own changes.
//!
//! Invariants: a linked node has a word in use, and its link's sixteenths are exact. The root is no higher than the
//! last page needs. A transaction that freed a node does not touch it again; its words stay unchanged, except for a
//! leaf's. So one unmapped page sets one word in the leaf and at most two above it, however many nodes are freed. After
//! an error a transaction must be abandoned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use ferrite_pm::Region;

use crate::bitmap::AtomicBitmap;
use crate::load::{self, Table};
use crate::{
    BLOCK_BYTES, BlockNo, Broken, FileMap, Geometry, Inum, Lblk, MapEntry, MapError, MapTx, Measured, PageId,
    PageRange, PageWord, Resource, SlotNo, Slots, TransCache,
};

mod check;
mod cursor;
mod runs;

use check::Check;

const NODE_WORDS: usize = 512;
/// Bits of a logical block number that one level resolves.
const LEVEL_BITS: u32 = 9;
/// Levels that 32 bits need.
const HEIGHT_MAX: u32 = 4;
/// Words that one bit of a link stands for.
const GROUP_WORDS: usize = 32;
const GROUPS: u32 = 16;
/// End of the range of all logical blocks.
const LBLK_END: u64 = 1 << 32;
/// Inodes that a thread takes at a time when loading.
const LOAD_CHUNK: u64 = 4096;
/// Number of epochs; inodes share them by their numbers' remainder.
const EPOCHS: usize = 64;

/// The trees of a mounted pool.
pub struct Radix {
    region: Arc<Region>,
    geometry: Geometry,
    /// Advanced by each release of an inode's nodes, before the nodes can be used again.
    epochs: Box<[CachePadded<AtomicU64>]>,
}

/// A link that may be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    block: BlockNo,
    height: u32,
    groups: u16,
}

impl Link {
    fn word(self) -> u64 {
        let fields = u64::from(self.block) | u64::from(self.height) << 32 | u64::from(self.groups) << 48;
        fields | check_bits(fields)
    }

    fn word_offset(self, index: usize) -> u64 {
        u64::from(self.block) * BLOCK_BYTES + index as u64 * 8
    }

    /// Logical blocks that one word of the node stands for.
    fn span(self) -> u64 {
        1 << (LEVEL_BITS * (self.height - 1))
    }

    fn index_of(self, lblk: Lblk) -> usize {
        (u64::from(lblk) / self.span()) as usize % NODE_WORDS
    }
}

/// Bits 35 to 48 of a link with these fields. Nodes have no headers, so a damaged link must show itself: it may lead to
/// another file's data, which a repair of its "words" would destroy.
fn check_bits(fields: u64) -> u64 {
    let mixed = (fields ^ fields >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed >> 51 << 35
}

/// The bit of a link that stands for word `index`.
fn group_bit(index: usize) -> u16 {
    1 << (index / GROUP_WORDS)
}

/// Whether a tree of this height covers page `lblk`.
fn covers(height: u32, lblk: Lblk) -> bool {
    u64::from(lblk) >> (LEVEL_BITS * height) == 0
}

fn height_for(lblk: Lblk) -> u32 {
    (1..HEIGHT_MAX)
        .find(|&height| covers(height, lblk))
        .unwrap_or(HEIGHT_MAX)
}

/// Low half of the number of a page's word in the pool; for diagnosis.
fn slot_of(leaf: Link, index: usize) -> SlotNo {
    SlotNo::new(
        leaf.block
            .get()
            .wrapping_mul(NODE_WORDS as u32)
            .wrapping_add(index as u32),
    )
}

/// A link and the index of the next step in its node.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Where the link is stored.
    at: u64,
    link: Link,
    index: usize,
}

/// The path to a page's word, root first.
struct Path {
    steps: [Option<Step>; HEIGHT_MAX as usize],
    word_at: u64,
}

/// A place where a link is stored.
#[derive(Clone, Copy)]
struct LinkAt {
    /// Its pool offset.
    at: u64,
    /// The link, if it is plausible.
    link: Option<Link>,
}

/// The action of a walk at a link. It gets the link's place and, if it is plausible, the link; true means to descend
/// into the node.
type Enter<'w> = &'w mut dyn FnMut(u64, Option<Link>) -> bool;

impl Radix {
    /// Root words for the given number of inodes: one each.
    pub fn slots_for(inodes: u32) -> u64 {
        u64::from(inodes)
    }

    /// Bytes of a table of `slots` root words.
    pub fn area_bytes(slots: u64) -> u64 {
        slots * 8
    }

    /// For the trees at `geometry`.
    pub fn new(region: Arc<Region>, geometry: Geometry) -> Self {
        Radix {
            region,
            geometry,
            epochs: (0..EPOCHS).map(|_| CachePadded::default()).collect(),
        }
    }

    fn epoch(&self, ino: Inum) -> &AtomicU64 {
        &self.epochs[ino.index() % EPOCHS]
    }

    /// Pool offset of the root word of `ino`.
    #[inline]
    fn root_at(&self, ino: Inum) -> Option<u64> {
        (u64::from(ino) < self.geometry.slots).then(|| self.geometry.area_offset + u64::from(ino) * 8)
    }

    /// The link in `word`, if it is plausible.
    #[inline]
    fn link(&self, word: u64) -> Option<Link> {
        let link = Link {
            block: BlockNo::new(word as u32),
            height: (word >> 32) as u32 & 7,
            groups: (word >> 48) as u16,
        };
        let is_possible = (1..=HEIGHT_MAX).contains(&link.height) && self.geometry.is_data_block(link.block);
        let is_sound = is_possible && link.word() == word;
        is_sound.then_some(link)
    }

    /// The link to a node `height` high in `word`.
    #[inline]
    fn child(&self, word: u64, height: u32) -> Option<Link> {
        self.link(word).filter(|link| link.height == height)
    }

    #[inline]
    fn root(&self, ino: Inum) -> Option<Link> {
        self.root_at(ino).and_then(|at| self.link(self.region.load(at)))
    }

    /// The leaf that has page `lblk`, found from `root`, and the nodes read on the way to it.
    #[inline]
    fn leaf_below(&self, root: Link, lblk: Lblk) -> (Option<Link>, u64) {
        if !covers(root.height, lblk) {
            return (None, 0);
        }
        let (mut link, mut read) = (root, 0);
        while link.height > 1 {
            read += 1;
            let word = self.region.load(link.word_offset(link.index_of(lblk)));
            match self.child(word, link.height - 1) {
                Some(child) => link = child,
                None => return (None, read),
            }
        }
        (Some(link), read)
    }

    /// Pool offset of the word of page `lblk`, if a leaf has it.
    #[inline]
    fn word_at(&self, ino: Inum, lblk: Lblk) -> Option<u64> {
        let leaf = self.leaf_below(self.root(ino)?, lblk).0?;
        Some(leaf.word_offset(leaf.index_of(lblk)))
    }

    /// Reads words of one leaf from `lblk` on.
    fn read_leaf(&self, leaf: BlockNo, lblk: Lblk, out: &mut [PageWord]) {
        let offset = u64::from(leaf) * BLOCK_BYTES + u64::from(lblk) % NODE_WORDS as u64 * 8;
        let words = self.region.words(offset, out.len());
        for (out, word) in out.iter_mut().zip(words) {
            *out = PageWord(word.load(Ordering::Acquire));
        }
    }

    /// The words of pages that share a leaf.
    fn get_in_leaf(&self, ino: Inum, lblk: Lblk, out: &mut [PageWord], cache: &TransCache) {
        let epoch = self.epoch(ino);
        // Before anything is read: from now on every release of a node shows.
        let before = epoch.load(Ordering::Acquire);
        let known = cache.leaf(ino, lblk, before);
        if let Some(leaf) = known.filter(|&leaf| self.geometry.is_data_block(leaf)) {
            self.read_leaf(leaf, lblk, out);
            if epoch.load(Ordering::Relaxed) == before && !out.contains(&PageWord::HOLE) {
                return;
            }
        }
        let root = self.root(ino);
        let Some(leaf) = root.and_then(|root| self.leaf_below(root, lblk).0) else {
            return out.fill(PageWord::HOLE);
        };
        self.read_leaf(leaf.block, lblk, out);
        let saves_a_walk = root.is_some_and(|root| root.height > 1);
        if saves_a_walk && known != Some(leaf.block) && cache.walks_again(ino, lblk) {
            cache.put_leaf(ino, lblk, leaf.block, before);
        }
    }

    /// The link at `at` as `tx` leaves it, to a node `height` high if that is given.
    fn tx_link(&self, tx: &dyn MapTx, at: u64, height: Option<u32>) -> Result<Option<Link>, MapError> {
        let word = tx.word(at);
        if word == 0 {
            return Ok(None);
        }
        let link = self
            .link(word)
            .filter(|link| height.is_none_or(|height| link.height == height));
        match link {
            Some(link) => Ok(Some(link)),
            None => Err(MapError::Damaged(format!("{word:#018x} at offset {at} is no link"))),
        }
    }

    fn tx_root_at(&self, ino: Inum) -> Result<u64, MapError> {
        self.root_at(ino)
            .ok_or_else(|| MapError::Damaged(format!("inode {ino} has no root word")))
    }

    /// The path to page `lblk` as `tx` leaves it, if all its nodes exist.
    fn path(&self, tx: &dyn MapTx, ino: Inum, lblk: Lblk) -> Result<Option<Path>, MapError> {
        let mut at = self.tx_root_at(ino)?;
        let root = self.tx_link(tx, at, None)?;
        let Some(mut link) = root.filter(|root| covers(root.height, lblk)) else {
            return Ok(None);
        };
        let mut steps = [None; HEIGHT_MAX as usize];
        for step in &mut steps {
            let index = link.index_of(lblk);
            *step = Some(Step { at, link, index });
            at = link.word_offset(index);
            if link.height == 1 {
                break;
            }
            match self.tx_link(tx, at, Some(link.height - 1))? {
                Some(child) => link = child,
                None => return Ok(None),
            }
        }
        Ok(Some(Path { steps, word_at: at }))
    }

    /// The word of page `lblk` as `tx` leaves it, and where it is; nothing for a hole.
    fn tx_page(&self, tx: &dyn MapTx, ino: Inum, lblk: Lblk) -> Result<Option<(u64, PageWord)>, MapError> {
        let path = self.path(tx, ino, lblk)?;
        Ok(path
            .map(|path| (path.word_at, PageWord(tx.word(path.word_at))))
            .filter(|(_, word)| !word.is_hole()))
    }

    /// Whether a word in the same sixteenth as `index`, other than that one, is in use. Checks its neighbours first.
    fn has_company(tx: &dyn MapTx, link: Link, index: usize) -> bool {
        (1..GROUP_WORDS).any(|distance| tx.word(link.word_offset(index ^ distance)) != 0)
    }

    fn free_node(tx: &mut dyn MapTx, ino: Inum, link: Link) {
        // The slot first, so that even a transaction which frees in our order advances the epoch in time.
        tx.freed(Resource::MapSlot(SlotNo::new(ino.get())));
        tx.freed(Resource::Block(link.block));
    }

    /// A root high enough for page `lblk`, above the one stored at `at`.
    fn grow(&self, tx: &mut dyn MapTx, at: u64, mut root: Link, lblk: Lblk) -> Result<Link, MapError> {
        while !covers(root.height, lblk) {
            let above = Link {
                block: tx.fresh_block()?,
                height: root.height + 1,
                groups: group_bit(0),
            };
            tx.set_word(above.word_offset(0), root.word());
            tx.set_word(at, above.word());
            root = above;
        }
        Ok(root)
    }

    /// Frees the root stored at `at`, and the nodes after it, as long as only the first child is in use.
    fn shrink(&self, tx: &mut dyn MapTx, ino: Inum, at: u64, mut root: Link) {
        while root.height > 1 && root.groups == group_bit(0) && !Self::has_company(tx, root, 0) {
            // An invalid word stays in place, for a check to find.
            let Ok(Some(child)) = self.tx_link(tx, root.word_offset(0), Some(root.height - 1)) else {
                return;
            };
            Self::free_node(tx, ino, root);
            tx.set_word(at, child.word());
            root = child;
        }
    }

    /// Frees the nodes that are empty once the last word of `path` is clear, and updates the links above.
    fn prune(&self, tx: &mut dyn MapTx, ino: Inum, path: &Path) {
        let is_root = |at| Some(at) == self.root_at(ino);
        for &Step { at, mut link, index } in path.steps.iter().rev().flatten() {
            if !Self::has_company(tx, link, index) {
                link.groups &= !group_bit(index);
                if link.groups == 0 {
                    Self::free_node(tx, ino, link);
                    if is_root(at) {
                        tx.set_word(at, 0);
                    }
                    continue;
                }
                tx.set_word(at, link.word());
            }
            if link.height > 1 {
                tx.set_word(link.word_offset(index), 0);
                if is_root(at) {
                    self.shrink(tx, ino, at, link);
                }
            }
            return;
        }
    }

    /// Walks the pages of `ino` in `range` in order; false if `visit` returned false.
    fn walk(&self, ino: Inum, range: PageRange, enter: Enter<'_>, visit: &mut dyn FnMut(MapEntry) -> bool) -> bool {
        let Some(at) = self.root_at(ino) else { return true };
        match self.region.load(at) {
            0 => true,
            word => {
                let link = self.link(word);
                self.walk_link(ino, LinkAt { at, link }, 0, range, enter, visit)
            }
        }
    }

    /// The same below a link, whose node's first page is `base`. Ends, because heights go down.
    fn walk_link(
        &self,
        ino: Inum,
        LinkAt { at, link }: LinkAt,
        base: u64,
        range: PageRange,
        enter: Enter<'_>,
        visit: &mut dyn FnMut(MapEntry) -> bool,
    ) -> bool {
        let entered = enter(at, link);
        let Some(link) = link.filter(|_| entered) else {
            return true;
        };
        let span = link.span();
        let from = (range.first.saturating_sub(base) / span) as usize;
        let to = (range.end.saturating_sub(base).div_ceil(span) as usize).min(NODE_WORDS);
        let words = self.region.words(link.word_offset(0), NODE_WORDS);
        for group in (0..GROUPS as usize).filter(|group| link.groups & 1 << group != 0) {
            let (start, stop) = (from.max(group * GROUP_WORDS), to.min((group + 1) * GROUP_WORDS));
            for (index, word) in words.iter().enumerate().take(stop).skip(start) {
                let word = word.load(Ordering::Acquire);
                let lblk = base + index as u64 * span;
                if word == 0 || lblk >= LBLK_END {
                    continue;
                }
                let goes_on = if link.height == 1 {
                    visit(MapEntry {
                        ino,
                        lblk: Lblk::new(lblk as u32),
                        word: PageWord(word),
                        slot: slot_of(link, index),
                    })
                } else {
                    let below = LinkAt {
                        at: link.word_offset(index),
                        link: self.child(word, link.height - 1),
                    };
                    self.walk_link(ino, below, lblk, range, enter, visit)
                };
                if !goes_on {
                    return false;
                }
            }
        }
        true
    }

    /// For walks that do not notice when they meet a node again. It descends into no more nodes than there can be, so
    /// that neither damage nor concurrent changes can make a walk endless.
    fn bounded(&self) -> impl FnMut(u64, Option<Link>) -> bool {
        let mut left = self.geometry.blocks;
        move |_, link| {
            let enters = link.is_some() && left > 0;
            left -= u32::from(enters);
            enters
        }
    }

    /// Visits the pages of one inode. `nodes` are those met so far, by all threads.
    fn load_inode(&self, ino: Inum, nodes: &AtomicBitmap, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        let (mut bad_link, mut bad_page) = (None, None);
        let mut enter = |at: u64, link: Option<Link>| {
            let is_new = link.is_some_and(|link| ino != Inum::NONE && link.groups != 0 && self.claim_node(nodes, link));
            if !is_new {
                bad_link = Some(at);
            }
            is_new
        };
        self.walk(ino, PageRange::ALL, &mut enter, &mut |entry| {
            if self.geometry.is_data_block(self.geometry.page(entry.word)) {
                visit(entry);
            } else {
                bad_page = Some(entry);
            }
            true
        });
        if let Some(at) = bad_link {
            let what = format!("inode {ino} has a link at offset {at} that leads to no node that could be its own");
            return Err(MapError::Damaged(what));
        }
        if let Some(MapEntry { lblk, word, .. }) = bad_page {
            let page = self.geometry.page(word);
            let what = format!("page {lblk} of inode {ino} is mapped to block {page}, which holds no data");
            return Err(MapError::Damaged(what));
        }
        Ok(())
    }

    fn claim_node(&self, nodes: &AtomicBitmap, link: Link) -> bool {
        nodes.claim(self.geometry.index_of(link.block))
    }
}

impl FileMap for Radix {
    fn name(&self) -> &'static str {
        "radix"
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        self.word_at(ino, lblk)
            .map_or(PageWord::HOLE, |at| PageWord(self.region.load(at)))
    }

    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], cache: &TransCache) {
        debug_assert!(
            u64::from(lblk) + out.len() as u64 <= LBLK_END,
            "{} pages from {lblk} on",
            out.len()
        );
        let (mut lblk, mut rest) = (lblk, out);
        while !rest.is_empty() {
            let in_leaf = rest.len().min(NODE_WORDS - lblk.index() % NODE_WORDS);
            let (chunk, behind) = rest.split_at_mut(in_leaf);
            self.get_in_leaf(ino, lblk, chunk, cache);
            lblk = Lblk::new(lblk.get().wrapping_add(in_leaf as u32));
            rest = behind;
        }
    }

    /// The root word only: the rest of the path is unknown until that has arrived.
    fn prefetch(&self, PageId { ino, .. }: PageId, _to_store: bool) {
        if let Some(at) = self.root_at(ino) {
            self.region.prefetch(at);
        }
    }

    /// The block after that of the previous page, if it is free.
    fn alloc_page(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<BlockNo, MapError> {
        let before = match lblk.checked_previous() {
            Some(before) => self.tx_page(tx, ino, before)?,
            None => None,
        };
        let wanted = before
            .and_then(|(_, word)| self.geometry.page(word).checked_next())
            .filter(|&block| self.geometry.is_data_block(block));
        match wanted {
            Some(block) if tx.claim_block(block) => Ok(block),
            _ => tx.alloc_block(),
        }
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        debug_assert!(!word.is_hole(), "page {lblk} of inode {ino} is mapped to nothing");
        let mut at = self.tx_root_at(ino)?;
        let mut link = match self.tx_link(tx, at, None)? {
            Some(root) => self.grow(tx, at, root, lblk)?,
            None => Link {
                block: tx.fresh_block()?,
                height: height_for(lblk),
                groups: 0,
            },
        };
        loop {
            let index = link.index_of(lblk);
            // A fresh node has none, so its link is stored here too.
            if link.groups & group_bit(index) == 0 {
                link.groups |= group_bit(index);
                tx.set_word(at, link.word());
            }
            at = link.word_offset(index);
            if link.height == 1 {
                tx.set_word(at, word.0);
                return Ok(());
            }
            let height = link.height - 1;
            link = match self.tx_link(tx, at, Some(height))? {
                Some(child) => child,
                None => Link {
                    block: tx.fresh_block()?,
                    height,
                    groups: 0,
                },
            };
        }
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        debug_assert!(!word.is_hole(), "page {lblk} of inode {ino} is mapped to nothing");
        let (at, _) = self
            .tx_page(tx, ino, lblk)?
            .ok_or_else(|| MapError::Damaged(format!("page {lblk} of inode {ino} vanished from its tree")))?;
        tx.set_word(at, word.0);
        Ok(())
    }

    fn swing(&self, PageId { ino, lblk }: PageId, old: PageWord, new: PageWord) -> Option<u64> {
        let at = self.word_at(ino, lblk).filter(|&at| self.region.load(at) == old.0)?;
        self.region.store(at, new.0);
        Some(at)
    }

    fn remove(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<PageWord, MapError> {
        let Some(path) = self.path(tx, ino, lblk)? else {
            return Ok(PageWord::HOLE);
        };
        let word = PageWord(tx.word(path.word_at));
        if !word.is_hole() {
            // Even in a leaf that is removed: its remains must not pass for pages, see the cursor.
            tx.set_word(path.word_at, 0);
            self.prune(tx, ino, &path);
        }
        Ok(word)
    }

    /// `slot` is an inode whose freed nodes are about to be reused.
    fn release(&self, slot: SlotNo) -> bool {
        self.epoch(Inum::new(slot.get())).fetch_add(1, Ordering::AcqRel);
        true
    }

    fn load(&self, threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        let inodes = self.geometry.slots;
        let nodes = AtomicBitmap::new(u64::from(self.geometry.blocks));
        let table = Table::of(&self.region, self.geometry.area_offset, 8);
        load::each_written(threads, table, inodes, LOAD_CHUNK, |ino| {
            self.load_inode(Inum::new(ino as u32), &nodes, visit)
        })
    }

    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let mut enter = self.bounded();
        let mut inums = self.geometry.written_inums(&self.region);
        let _ = inums.all(|ino| self.walk(ino, PageRange::ALL, &mut enter, visit));
    }

    /// In order, and without visiting the pages of holes.
    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let range = PageRange::new(u64::from(first), end.min(LBLK_END));
        if !range.is_empty() {
            self.walk(ino, range, &mut self.bounded(), visit);
        }
    }

    fn for_runs(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry, u64) -> bool) {
        let range = PageRange::new(u64::from(first), end.min(LBLK_END));
        if !range.is_empty() {
            runs::walk(self, ino, range, visit);
        }
    }

    fn slots(&self) -> Slots {
        Slots::UNLIMITED
    }

    fn check(&self, visit: &mut dyn FnMut(MapEntry), node: &mut dyn FnMut(BlockNo), broken: &mut dyn FnMut(Broken)) {
        Check::new(self, visit, node, broken).all();
    }

    fn for_each_node(&self, visit: &mut dyn FnMut(BlockNo, Inum)) {
        let mut bounded = self.bounded();
        for ino in self.geometry.written_inums(&self.region) {
            let mut enter = |at, link: Option<Link>| {
                let enters = bounded(at, link);
                if let Some(link) = link.filter(|_| enters) {
                    visit(link.block, ino);
                }
                // Nothing below a leaf is a node.
                enters && link.is_some_and(|link| link.height > 1)
            };
            self.walk(ino, PageRange::ALL, &mut enter, &mut |_| true);
        }
    }

    fn dram_bytes(&self) -> u64 {
        size_of_val(&*self.epochs) as u64
    }
}

impl Measured for Radix {
    /// The root word's line, and one per node on the way.
    fn lines_touched(&self, PageId { ino, lblk }: PageId) -> u64 {
        let Some(root) = self.root(ino) else { return 1 };
        let (leaf, read) = self.leaf_below(root, lblk);
        1 + read + u64::from(leaf.is_some())
    }
}

#[cfg(test)]
mod tests;
