//! Changes of a file's tree: they set words of a transaction, and read the words it has set before.
//!
//! Contents: inserting, replacing and removing a page, and the consequences: extents that join or split, groups and
//! nodes that fill or empty. Called by the tree's [`crate::FileMap`] methods, whose callers hold the inode's lock
//! exclusively.
//!
//! Invariants: the tree's (see the head of `extent`). A call that fails may have set words that are useless alone: the
//! transaction must then be dropped, as an engine that runs out of blocks does. A node freed here keeps its words
//! except for the header, and is not read again: nothing leads to it.

use super::node::{
    GROUPS, Group, GroupLow, HEIGHT_MAX, Key, KeyPlace, Node, NodeId, PAGES_END, header, header_offset, key_word,
    range_of, range_word, word_behind,
};
use super::{ExtentTree, Run};
use crate::{BlockNo, Inum, Lblk, MapError, MapTx, PageWord, Resource, SlotNo};

/// Nodes from the root to a leaf, by level.
#[derive(Debug, Clone, Copy)]
struct Path {
    blocks: [BlockNo; HEIGHT_MAX as usize],
    /// The key that leads to each node: nothing in the node is below it.
    floors: [u64; HEIGHT_MAX as usize],
    /// End of the pages that belong to it.
    ends: [u64; HEIGHT_MAX as usize],
    height: u32,
}

impl Path {
    /// The node of inode `ino` that it has on `level`.
    fn id(&self, ino: Inum, level: u32) -> NodeId {
        NodeId {
            ino,
            block: self.blocks[level as usize],
            level,
        }
    }
}

/// An item of a node: a key, and in a leaf also its page word.
#[derive(Debug, Clone, Copy)]
struct Item {
    key: u64,
    word: PageWord,
}

impl Item {
    fn extent(start: u64, len: u64, word: PageWord) -> Item {
        Item {
            key: key_word(start, len),
            word,
        }
    }

    /// The item that leads to the node in `block`, for pages from `start` on.
    fn child(start: u64, block: BlockNo) -> Item {
        Item {
            key: key_word(start, u64::from(block)),
            word: PageWord::HOLE,
        }
    }

    fn start(self) -> u64 {
        self.key >> 32
    }
}

fn damaged(ino: Inum, lblk: u64, what: &str) -> MapError {
    MapError::Damaged(format!("extent tree of inode {ino}, on the way to page {lblk}: {what}"))
}

fn set_key(tx: &mut dyn MapTx, node: Node, key: Key, word: u64) {
    tx.set_word(node.key_offset(key.group, key.slot), word);
}

fn set_low(tx: &mut dyn MapTx, node: Node, group: u64, low: u64) {
    tx.set_word(node.index_offset(group), low + 1);
}

fn free_group(tx: &mut dyn MapTx, node: Node, group: u64) {
    tx.set_word(node.index_offset(group), 0);
}

fn is_empty_group(tx: &dyn MapTx, node: Node, group: u64) -> bool {
    node.keys_of(tx, group).next().is_none()
}

/// Puts `item` into a free slot.
fn put(tx: &mut dyn MapTx, node: Node, KeyPlace { group, slot }: KeyPlace, item: Item) {
    let word = item.key;
    let key = Key { group, slot, word };
    // The word before its key, as in the paper, so that no lookup finds the key without its word.
    if node.level == 0 {
        tx.set_word(node.word_offset(key), item.word.0);
    }
    set_key(tx, node, key, word);
}

/// Takes a free group of `node`, and clears the remains of an earlier use.
fn take_group(tx: &mut dyn MapTx, ino: Inum, node: &mut Node) -> Option<u64> {
    let freed = (0..node.groups).find(|&group| tx.word(node.index_offset(group)) == 0);
    let group = match freed {
        Some(group) => group,
        None if node.groups < GROUPS => {
            node.groups += 1;
            tx.set_word(header_offset(node.block), header(ino, node.level, node.groups));
            node.groups - 1
        }
        None => return None,
    };
    for slot in 0..node.keys() {
        let offset = node.key_offset(group, slot);
        if tx.word(offset) != 0 {
            tx.set_word(offset, 0);
        }
    }
    Some(group)
}

/// Puts `item` into the group it belongs to, splitting that if necessary; false if the node has no free group for the
/// split.
fn add_in_node(tx: &mut dyn MapTx, ino: Inum, mut node: Node, floor: u64, item: Item) -> bool {
    let start = item.start();
    let Some(group) = node.group_of(&*tx, start, PAGES_END) else {
        let Some(group) = take_group(tx, ino, &mut node) else {
            return false;
        };
        set_low(tx, node, group, floor);
        put(tx, node, KeyPlace { group, slot: 0 }, item);
        return true;
    };
    let around = node.around(&*tx, group.number, start);
    if let Some(slot) = node.free_slot(&*tx, group.number) {
        if start < group.low {
            set_low(tx, node, group.number, floor);
        }
        let group = group.number;
        put(tx, node, KeyPlace { group, slot }, item);
        return true;
    }
    let Some(fresh) = take_group(tx, ino, &mut node) else {
        return false;
    };
    if start < group.low {
        set_low(tx, node, group.number, floor);
    }
    // Ascending inserts leave full groups behind them. Elsewhere than at the end that would leave many groups with a
    // single key, because later inserts go between it and the full one.
    if group.is_last && around.above.is_none() {
        put(tx, node, KeyPlace { group: fresh, slot: 0 }, item);
        set_low(tx, node, fresh, start);
        return true;
    }
    let low = move_half(tx, node, group, fresh);
    let target = if start < low { group.number } else { fresh };
    if let Some(slot) = node.free_slot(&*tx, target) {
        put(tx, node, KeyPlace { group: target, slot }, item);
    }
    true
}

/// Moves the upper half of a full group to `fresh`; returns the low of `fresh`.
fn move_half(tx: &mut dyn MapTx, node: Node, group: Group, fresh: u64) -> u64 {
    let mut keys: Vec<Key> = node.keys_of(&*tx, group.number).collect();
    keys.sort_unstable_by_key(|key| key.word);
    let moved = &keys[keys.len() / 2..];
    for (slot, &key) in (0..).zip(moved) {
        let item = Item {
            key: key.word,
            word: item_word(tx, node, key),
        };
        put(tx, node, KeyPlace { group: fresh, slot }, item);
    }
    for &key in moved {
        set_key(tx, node, key, 0);
    }
    let low = moved.first().map_or(group.end, |key| key.start());
    set_low(tx, node, fresh, low);
    low
}

fn item_word(tx: &dyn MapTx, node: Node, key: Key) -> PageWord {
    if node.level == 0 {
        node.word_of(tx, key)
    } else {
        PageWord::HOLE
    }
}

/// Moves the groups in `moved`, which have the greatest lows of `from`, to the empty node `to`.
fn move_groups(tx: &mut dyn MapTx, from: Node, to: Node, moved: &[GroupLow]) {
    for (target, &GroupLow { group, low }) in (0..).zip(moved) {
        let keys: Vec<Key> = from.keys_of(&*tx, group).collect();
        for (slot, key) in (0..).zip(keys) {
            let item = Item {
                key: key.word,
                word: item_word(tx, from, key),
            };
            put(tx, to, KeyPlace { group: target, slot }, item);
        }
        set_low(tx, to, target, low);
        free_group(tx, from, group);
    }
}

impl ExtentTree {
    fn node_in(&self, tx: &dyn MapTx, id: NodeId) -> Result<Node, MapError> {
        Node::open(tx, &self.geometry, id).ok_or_else(|| {
            let NodeId { ino, block, level } = id;
            MapError::Damaged(format!("block {block} is no node of inode {ino} on level {level}"))
        })
    }

    fn root_in(&self, ino: Inum, lblk: u64) -> Result<u64, MapError> {
        self.root_offset(ino).ok_or_else(|| damaged(ino, lblk, "no such inode"))
    }

    /// The word of a page as the transaction leaves it.
    pub(super) fn word_in(&self, tx: &dyn MapTx, ino: Inum, lblk: Lblk) -> PageWord {
        let lblk = u64::from(lblk);
        match self.leaf_in(tx, ino, lblk) {
            Some((leaf, end)) => Self::run_in(tx, leaf, lblk, end).word,
            None => PageWord::HOLE,
        }
    }

    /// The leaf of a page as the transaction leaves it, and the end of the pages that surely belong to it.
    fn leaf_in(&self, tx: &dyn MapTx, ino: Inum, lblk: u64) -> Option<(Node, u64)> {
        let epoch = self.cursors.epoch();
        // The inode is locked, so the tree stays the same until the transaction changes it.
        self.cursors
            .get(ino, epoch)
            .and_then(|seen| self.hinted(tx, ino, lblk, seen))
            .filter(|_| self.cursors.is_still(epoch))
            .or_else(|| self.search(tx, ino, lblk).ok())
    }

    /// The path to the leaf of a page. With `lower` it is prepared for a key there: keys above it are lowered.
    fn path(&self, tx: &mut dyn MapTx, ino: Inum, lblk: u64, lower: bool) -> Result<Path, MapError> {
        let root = tx.word(self.root_in(ino, lblk)?);
        let (mut block, height) = Self::root_of(root).ok_or_else(|| damaged(ino, lblk, "no root"))?;
        let mut path = Path {
            blocks: [BlockNo::NONE; HEIGHT_MAX as usize],
            floors: [0; HEIGHT_MAX as usize],
            ends: [0; HEIGHT_MAX as usize],
            height,
        };
        let (mut floor, mut end) = (0, PAGES_END);
        for level in (0..height).rev() {
            let node = self.node_in(tx, NodeId { ino, block, level })?;
            path.blocks[level as usize] = block;
            path.floors[level as usize] = floor;
            path.ends[level as usize] = end;
            if level == 0 {
                break;
            }
            let mut group = node
                .group_of(&*tx, lblk, end)
                .ok_or_else(|| damaged(ino, lblk, "a node without groups"))?;
            let (key, behind) = node
                .child_of(&*tx, group, lblk)
                .ok_or_else(|| damaged(ino, lblk, "a group without keys"))?;
            block = key.child();
            if lower && lblk < group.low {
                set_low(tx, node, group.number, floor);
                group.low = floor;
            }
            if lower && lblk < key.start() {
                set_key(tx, node, key, key_word(group.low, u64::from(block)));
                floor = group.low;
            } else {
                floor = key.start();
            }
            end = behind;
        }
        Ok(path)
    }

    pub(super) fn insert_page(&self, tx: &mut dyn MapTx, ino: Inum, lblk: u64, word: PageWord) -> Result<(), MapError> {
        let root = self.root_in(ino, lblk)?;
        if tx.word(root) == 0 {
            let leaf = self.new_leaf(tx, ino)?;
            add_in_node(tx, ino, leaf, 0, Item::extent(lblk, 1, word));
            tx.set_word(root, Self::root_word(leaf.block, 1));
            return Ok(());
        }
        let leaf = self.ready_leaf(tx, ino, lblk)?;
        if self.join(tx, leaf, lblk, word) {
            return Ok(());
        }
        self.add_extent(tx, ino, leaf, Item::extent(lblk, 1, word))
    }

    /// The leaf for page `lblk`, with a range that includes it.
    fn ready_leaf(&self, tx: &mut dyn MapTx, ino: Inum, lblk: u64) -> Result<Node, MapError> {
        if let Some((leaf, _)) = self.leaf_in(tx, ino, lblk) {
            let range = range_of(tx.word(leaf.range_offset()));
            // No page in a leaf's range is below the leaf's key, so nothing must be lowered.
            if range.contains(lblk) {
                return Ok(leaf);
            }
        }
        let path = self.path(tx, ino, lblk, true)?;
        let leaf = self.node_in(tx, NodeId::leaf(ino, path.blocks[0]))?;
        tx.set_word(leaf.range_offset(), range_word(path.floors[0], path.ends[0]));
        Ok(leaf)
    }

    fn new_leaf(&self, tx: &mut dyn MapTx, ino: Inum) -> Result<Node, MapError> {
        let block = tx.fresh_block()?;
        let leaf = Node {
            block,
            level: 0,
            groups: 0,
        };
        tx.set_word(header_offset(block), header(ino, 0, 0));
        tx.set_word(leaf.range_offset(), range_word(0, PAGES_END));
        Ok(leaf)
    }

    /// Makes page `lblk`, which is not mapped, part of an extent in `leaf` that it continues, and joins the extents
    /// around it. Only plain words continue each other.
    fn join(&self, tx: &mut dyn MapTx, leaf: Node, lblk: u64, word: PageWord) -> bool {
        if !word.is_plain() {
            return false;
        }
        let Some((before, behind)) = self.joinable(tx, leaf, lblk, word) else {
            return false;
        };
        match (before, behind) {
            (Some(key), behind) => {
                let len = u64::from(key.low_half()) + 1 + behind.map_or(0, |key| u64::from(key.low_half()));
                if let Some(behind) = behind {
                    set_key(tx, leaf, behind, 0);
                }
                if key.low_half() == 1 {
                    // It may have been swung there, which no record contains: a replay that restores the old word must
                    // not give it to all these pages.
                    let first = leaf.word_of(&*tx, key);
                    tx.set_word(leaf.word_offset(key), first.0);
                }
                set_key(tx, leaf, key, key_word(key.start(), len));
                self.clear_way(tx, leaf, key, key.start() + len);
            }
            (None, Some(key)) => {
                tx.set_word(leaf.word_offset(key), word.0);
                set_key(tx, leaf, key, key_word(lblk, u64::from(key.low_half()) + 1));
                if leaf.low(&*tx, key.group).is_some_and(|low| lblk < low) {
                    set_low(tx, leaf, key.group, lblk);
                }
            }
            (None, None) => return false,
        }
        true
    }

    /// The extents of `leaf` that page `lblk`, with this plain word, continues or precedes. `None` if neither exists.
    fn joinable(&self, tx: &dyn MapTx, leaf: Node, lblk: u64, word: PageWord) -> Option<(Option<Key>, Option<Key>)> {
        let group = leaf.group_of(tx, lblk, PAGES_END)?;
        let around = leaf.around(tx, group.number, lblk);
        // The neighbour in the next group counts as well; otherwise a file filled in random order would keep at least
        // one extent per group.
        let before = match around.at {
            // The page itself, which is about to be replaced.
            Some(key) if key.start() == lblk && lblk > 0 => leaf.around(tx, group.number, lblk - 1).at,
            at => at,
        };
        let before = match before {
            Some(key) => Some(key),
            None => leaf
                .group_before(tx, group.low)
                .and_then(|group| leaf.around(tx, group, lblk).at),
        };
        let above = match around.above {
            Some(key) => Some(key),
            None => leaf
                .group_after(tx, group.low)
                .and_then(|next| leaf.around(tx, next.group, lblk).above),
        };
        let page_of = |word: PageWord| u64::from(self.geometry.page(word));
        let page = page_of(word);
        let before = before.filter(|&key| {
            let first = leaf.word_of(tx, key);
            let next = page_of(first) + u64::from(key.low_half());
            key.end() == lblk && first.is_plain() && next == page
        });
        let above = above.filter(|&key| {
            let first = leaf.word_of(tx, key);
            key.start() == lblk + 1 && first.is_plain() && page_of(first) == page + 1
        });
        (before.is_some() || above.is_some()).then_some((before, above))
    }

    /// After the extent of `key` grew to before `end`: the next group begins there, or is freed if all its extents were
    /// joined.
    fn clear_way(&self, tx: &mut dyn MapTx, leaf: Node, key: Key, end: u64) {
        let next = leaf.low(&*tx, key.group).and_then(|low| leaf.group_after(&*tx, low));
        if let Some(GroupLow { group, low }) = next
            && low < end
        {
            if is_empty_group(tx, leaf, group) {
                free_group(tx, leaf, group);
            } else {
                set_low(tx, leaf, group, end);
            }
        }
    }

    /// Adds an extent of pages that are not mapped, and that belong to `leaf` and one of its groups.
    fn add_extent(&self, tx: &mut dyn MapTx, ino: Inum, leaf: Node, item: Item) -> Result<(), MapError> {
        let range = range_of(tx.word(leaf.range_offset()));
        if range.contains(item.start()) && add_in_node(tx, ino, leaf, range.first, item) {
            return Ok(());
        }
        let path = self.path(tx, ino, item.start(), true)?;
        self.add(tx, ino, &path, 0, item)
    }

    /// Adds `item` to the node of `path` on `level`, which is split if it is full.
    fn add(&self, tx: &mut dyn MapTx, ino: Inum, path: &Path, level: u32, item: Item) -> Result<(), MapError> {
        let (floor, end) = (path.floors[level as usize], path.ends[level as usize]);
        let node = self.node_in(tx, path.id(ino, level))?;
        if add_in_node(tx, ino, node, floor, item) {
            return Ok(());
        }
        // All blocks are claimed before the first word is set.
        let block = tx.fresh_block()?;
        let mut groups: Vec<GroupLow> = node.lows(&*tx).collect();
        groups.sort_unstable_by_key(|group| group.low);
        let at_end = end == PAGES_END && self.is_above_all(tx, node, item.start());
        let moved = if at_end { groups.len() } else { groups.len() / 2 };
        let moved = &groups[moved..];
        let border = moved.first().map_or(item.start(), |group| group.low);
        self.add_child(tx, ino, path, level, Item::child(border, block))?;
        let fresh = Node {
            block,
            level,
            groups: moved.len() as u64,
        };
        tx.set_word(header_offset(block), header(ino, level, fresh.groups));
        if level == 0 {
            tx.set_word(fresh.range_offset(), range_word(border, end));
            tx.set_word(node.range_offset(), range_word(floor, border));
        }
        move_groups(tx, node, fresh, moved);
        let (target, floor) = if item.start() < border {
            (node, floor)
        } else {
            (fresh, border)
        };
        if add_in_node(tx, ino, target, floor, item) {
            Ok(())
        } else {
            Err(damaged(ino, item.start(), "no space in a node that was split"))
        }
    }

    fn is_above_all(&self, tx: &dyn MapTx, node: Node, start: u64) -> bool {
        node.group_of(tx, start, PAGES_END)
            .is_some_and(|group| group.is_last && node.around(tx, group.number, start).above.is_none())
    }

    /// Makes the node of `fresh` the one for pages from its key on, which belonged to the node of `path` on `level`.
    fn add_child(&self, tx: &mut dyn MapTx, ino: Inum, path: &Path, level: u32, fresh: Item) -> Result<(), MapError> {
        if level + 1 < path.height {
            return self.add(tx, ino, path, level + 1, fresh);
        }
        let border = fresh.start();
        if path.height == HEIGHT_MAX {
            return Err(damaged(ino, border, "the tree is as high as can be"));
        }
        let root = Node {
            block: tx.fresh_block()?,
            level: level + 1,
            groups: 0,
        };
        tx.set_word(header_offset(root.block), header(ino, root.level, 0));
        let old = path.blocks[level as usize];
        add_in_node(tx, ino, root, 0, Item::child(0, old));
        let id = NodeId {
            ino,
            block: root.block,
            level: root.level,
        };
        let root = self.node_in(tx, id)?;
        add_in_node(tx, ino, root, 0, fresh);
        tx.set_word(self.root_in(ino, border)?, Self::root_word(root.block, path.height + 1));
        Ok(())
    }

    pub(super) fn replace_page(
        &self,
        tx: &mut dyn MapTx,
        ino: Inum,
        lblk: u64,
        word: PageWord,
    ) -> Result<(), MapError> {
        let (leaf, key, old) = self
            .extent_in(tx, ino, lblk)
            .ok_or_else(|| damaged(ino, lblk, "the page vanished"))?;
        if old == word {
            return Ok(());
        }
        let joins = word.is_plain() && self.joinable(tx, leaf, lblk, word).is_some();
        if key.low_half() == 1 && !joins {
            tx.set_word(leaf.word_offset(key), word.0);
            return Ok(());
        }
        self.punch(tx, ino, leaf, key, lblk)?;
        // The rest of its extent may have gone to a separate leaf.
        self.insert_page(tx, ino, lblk, word)
    }

    pub(super) fn remove_page(&self, tx: &mut dyn MapTx, ino: Inum, lblk: u64) -> Result<PageWord, MapError> {
        let Some((leaf, key, word)) = self.extent_in(tx, ino, lblk) else {
            return Ok(PageWord::HOLE);
        };
        self.punch(tx, ino, leaf, key, lblk)?;
        if leaf.is_empty(&*tx) {
            let path = self.path(tx, ino, lblk, false)?;
            self.drop_node(tx, ino, &path, 0, lblk)?;
        }
        Ok(word)
    }

    /// The extent of a page as the transaction leaves it, its leaf, and the page's word.
    fn extent_in(&self, tx: &dyn MapTx, ino: Inum, lblk: u64) -> Option<(Node, Key, PageWord)> {
        let (leaf, end) = self.leaf_in(tx, ino, lblk)?;
        let Run { word, found, .. } = Self::run_in(tx, leaf, lblk, end);
        found.map(|(leaf, key)| (leaf, key, word))
    }

    /// Takes page `lblk` out of the extent of `key`. The leaf may be left empty.
    fn punch(&self, tx: &mut dyn MapTx, ino: Inum, leaf: Node, key: Key, lblk: u64) -> Result<(), MapError> {
        let (before, behind) = (lblk - key.start(), key.end() - lblk - 1);
        let word = leaf.word_of(&*tx, key);
        match (before, behind) {
            (0, 0) => {
                set_key(tx, leaf, key, 0);
                if is_empty_group(tx, leaf, key.group) {
                    free_group(tx, leaf, key.group);
                }
            }
            (0, _) => {
                tx.set_word(leaf.word_offset(key), word_behind(word, 1).0);
                set_key(tx, leaf, key, key_word(lblk + 1, behind));
            }
            (_, 0) => set_key(tx, leaf, key, key_word(key.start(), before)),
            _ => {
                set_key(tx, leaf, key, key_word(key.start(), before));
                let rest = Item::extent(lblk + 1, behind, word_behind(word, before + 1));
                self.add_extent(tx, ino, leaf, rest)?;
            }
        }
        Ok(())
    }

    /// Takes the node of `path` on `level`, which is empty, from the tree, with those above it that become empty.
    fn drop_node(&self, tx: &mut dyn MapTx, ino: Inum, path: &Path, level: u32, lblk: u64) -> Result<(), MapError> {
        let block = path.blocks[level as usize];
        let root = self.root_in(ino, lblk)?;
        if level + 1 == path.height {
            tx.set_word(root, 0);
            give_back(tx, block);
            return Ok(());
        }
        let parent = self.node_in(tx, path.id(ino, level + 1))?;
        let child = parent
            .group_of(&*tx, lblk, PAGES_END)
            .and_then(|group| parent.child_of(&*tx, group, lblk));
        let Some((key, _)) = child.filter(|(key, _)| key.child() == block) else {
            return Err(damaged(ino, lblk, "a leaf that its parent does not name"));
        };
        set_key(tx, parent, key, 0);
        give_back(tx, block);
        if is_empty_group(tx, parent, key.group) {
            free_group(tx, parent, key.group);
        }
        if parent.is_empty(&*tx) {
            return self.drop_node(tx, ino, path, level + 1, lblk);
        }
        if level + 2 == path.height {
            self.lower_root(tx, ino, lblk)?;
        }
        Ok(())
    }

    /// Drops roots that have a single child.
    fn lower_root(&self, tx: &mut dyn MapTx, ino: Inum, lblk: u64) -> Result<(), MapError> {
        let offset = self.root_in(ino, lblk)?;
        while let Some((block, height)) = Self::root_of(tx.word(offset)).filter(|&(_, height)| height > 1) {
            let level = height - 1;
            let root = self.node_in(tx, NodeId { ino, block, level })?;
            let mut children = root.lows(&*tx).flat_map(|at| root.keys_of(&*tx, at.group));
            let (Some(only), None) = (children.next(), children.next()) else {
                break;
            };
            drop(children);
            tx.set_word(offset, Self::root_word(only.child(), height - 1));
            give_back(tx, block);
        }
        Ok(())
    }
}

/// Frees a node. The same record clears its header, for cursors. The node is also freed as an entry, and that comes
/// first; see [`ExtentTree::release`].
fn give_back(tx: &mut dyn MapTx, block: BlockNo) {
    tx.set_word(header_offset(block), 0);
    tx.freed(Resource::MapSlot(SlotNo::new(block.get())));
    tx.freed(Resource::Block(block));
}
