//! Reading trees without trusting any word: the basis of mounting, `check` and repair.
//!
//! Contents: a walk over whole trees. It shows the sound parts and, for each impossible one, the words that remove it.
//! Called by [`ExtentTree`]'s `load` and `check`.
//!
//! A walk sees the tree as repaired: it leaves out the broken parts, and the rest decides which pages belong to which
//! node. A repair clears one key, one index word or one root, or restores the range of a leaf. That gives pages to
//! neighbours and never takes any away, so no repair breaks a sound part. A walk shows exactly what lookups find once
//! all repairs are stored.
//!
//! Invariant: a block is claimed in `seen` by the first pointer with the right inode and level, so no node is shown
//! twice. Levels count down, so the walk ends.

use super::ExtentTree;
use super::node::{
    GROUPS, GroupLow, Key, Node, NodeId, PAGES_END, header, header_offset, range_of, range_word, word_behind,
};
use crate::bitmap::AtomicBitmap;
use crate::{Affected, BlockNo, Broken, Inum, MapEntry, PageRange, StoredWord};

/// A node to examine, and the path to it.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The word that is cleared if the node is broken.
    pointer: u64,
    node: Node,
    /// The key that led here: nothing in the node is below it.
    floor: u64,
    /// End of the pages that searches lead here for.
    end: u64,
}

struct Walk<'w> {
    tree: &'w ExtentTree,
    ino: Inum,
    seen: &'w AtomicBitmap,
    visit: &'w mut dyn FnMut(MapEntry),
    show_node: &'w mut dyn FnMut(BlockNo),
    broken: &'w mut dyn FnMut(Broken),
}

impl ExtentTree {
    /// Walks the trees of these inodes.
    pub(super) fn check_inodes(
        &self,
        inums: impl Iterator<Item = Inum>,
        seen: &AtomicBitmap,
        visit: &mut dyn FnMut(MapEntry),
        show_node: &mut dyn FnMut(BlockNo),
        broken: &mut dyn FnMut(Broken),
    ) {
        for ino in inums {
            let pointer = self.root_word_offset(ino);
            let root = self.region.load(pointer);
            if root == 0 {
                continue;
            }
            let mut walk = Walk {
                tree: self,
                ino,
                seen,
                visit: &mut *visit,
                show_node: &mut *show_node,
                broken: &mut *broken,
            };
            let node = Self::root_of(root)
                .filter(|_| ino != Inum::NONE)
                .and_then(|(block, height)| walk.open(block, height - 1));
            match node {
                Some(node) => {
                    walk.node(Place {
                        pointer,
                        node,
                        floor: 0,
                        end: PAGES_END,
                    });
                }
                None => walk.report(format!("{root:#x} is no root"), StoredWord::new(pointer, 0)),
            }
        }
    }
}

impl Walk<'_> {
    fn report(&mut self, what: String, repair: StoredWord) {
        let what = format!("extent tree of inode {}: {what}", self.ino);
        (self.broken)(Broken {
            affected: Affected::Inode(self.ino),
            what,
            repair: vec![repair],
        });
    }

    /// The node in `block`, if it is one and was not seen before.
    fn open(&self, block: BlockNo, level: u32) -> Option<Node> {
        let id = NodeId {
            ino: self.ino,
            block,
            level,
        };
        let node = Node::open(&*self.tree.region, &self.tree.geometry, id)?;
        // Claimed last: a stray pointer must not take a node from its tree.
        self.seen.claim(self.tree.geometry.index_of(block)).then_some(node)
    }

    /// Walks a node; false if nothing in it is sound.
    fn node(&mut self, place: Place) -> bool {
        let node = place.node;
        let groups = self.sound_groups(place);
        let mut any = false;
        for (at, &GroupLow { group, low }) in groups.iter().enumerate() {
            let end = groups.get(at + 1).map_or(place.end, |next| next.low);
            let pages = PageRange::new(low, end);
            let is_sound = if node.level == 0 {
                self.extents(node, group, pages)
            } else {
                self.children(node, group, pages)
            };
            if !is_sound {
                let what = format!("group {group} of node {} has nothing", node.block);
                self.report(what, StoredWord::new(node.index_offset(group), 0));
            }
            any |= is_sound;
        }
        if !any {
            self.report(
                format!("node {} has nothing", node.block),
                StoredWord::new(place.pointer, 0),
            );
            return false;
        }
        if node.level == 0 {
            let range = self.tree.region.load(node.range_offset());
            let PageRange { first, end } = range_of(range);
            if first < place.floor || end > place.end {
                let right = range_word(place.floor, place.end);
                let what = format!("leaf {} says {first}..{end}, beyond what leads to it", node.block);
                self.report(what, StoredWord::new(node.range_offset(), right));
            }
        }
        (self.show_node)(node.block);
        true
    }

    /// The plausible groups of a node, with their lows, in order.
    fn sound_groups(&mut self, place: Place) -> Vec<GroupLow> {
        let node = place.node;
        let mut groups: Vec<GroupLow> = Vec::new();
        for group in 0..GROUPS {
            let offset = node.index_offset(group);
            let word = self.tree.region.load(offset);
            if word == 0 {
                continue;
            }
            let what = format!("group {group} of node {} begins at {word} - 1", node.block);
            if group >= node.groups {
                // The group may be sound; then a header with too small a count excludes it.
                let full = header(self.ino, node.level, GROUPS);
                self.report(
                    format!("{what}, and is after the last"),
                    StoredWord::new(header_offset(node.block), full),
                );
                continue;
            }
            let low = word - 1;
            let is_twice = groups.iter().any(|other| other.low == low);
            if low < place.floor || low >= place.end || is_twice {
                self.report(what, StoredWord::new(offset, 0));
                continue;
            }
            groups.push(GroupLow { group, low });
        }
        groups.sort_unstable_by_key(|group| group.low);
        groups
    }

    fn keys(&self, node: Node, group: u64) -> Vec<Key> {
        let mut keys: Vec<Key> = node.keys_of(&*self.tree.region, group).collect();
        keys.sort_unstable_by_key(|key| (key.word, key.slot));
        keys
    }

    fn report_key(&mut self, node: Node, key: Key, what: &str) {
        let (block, start, half) = (node.block, key.start(), key.low_half());
        self.report(
            format!("node {block}, level {}, key {start}, {half}: {what}", node.level),
            StoredWord::new(node.key_offset(key.group, key.slot), 0),
        );
    }

    /// Shows the pages of a leaf's group; false if it has none.
    fn extents(&mut self, leaf: Node, group: u64, pages: PageRange) -> bool {
        let mut at = pages.first;
        let mut any = false;
        for key in self.keys(leaf, group) {
            let word = leaf.word_of(&*self.tree.region, key);
            let first = u64::from(self.tree.geometry.page(word));
            let last = first + u64::from(key.low_half()) - 1;
            let is_data = |block: u64| {
                u32::try_from(block).is_ok_and(|block| self.tree.geometry.is_data_block(BlockNo::new(block)))
            };
            let what = if key.start() < at {
                "overlaps another one, or begins where searches go elsewhere"
            } else if key.end() > pages.end {
                "ends where searches go elsewhere"
            } else if key.low_half() > 1 && !word.is_plain() {
                "several pages with one log"
            } else if !is_data(first) || !is_data(last) {
                "its blocks hold no data"
            } else {
                for lblk in key.start()..key.end() {
                    (self.visit)(self.tree.entry(self.ino, lblk, word_behind(word, lblk - key.start())));
                }
                at = key.end();
                any = true;
                continue;
            };
            self.report_key(leaf, key, what);
        }
        any
    }

    /// Walks the children of an inner node's group; false if none is sound.
    fn children(&mut self, node: Node, group: u64, pages: PageRange) -> bool {
        let mut children: Vec<(Key, Node)> = Vec::new();
        for key in self.keys(node, group) {
            let is_twice = children.last().is_some_and(|(other, _)| other.start() == key.start());
            if !pages.contains(key.start()) || is_twice {
                self.report_key(node, key, "begins where searches go elsewhere");
            } else if let Some(child) = self.open(key.child(), node.level - 1) {
                children.push((key, child));
            } else {
                self.report_key(node, key, "leads to no node, or to one that was reached before");
            }
        }
        let mut any = false;
        for (at, &(key, child)) in children.iter().enumerate() {
            any |= self.node(Place {
                pointer: node.key_offset(key.group, key.slot),
                node: child,
                floor: key.start(),
                end: children.get(at + 1).map_or(pages.end, |(next, _)| next.start()),
            });
        }
        any
    }
}
