//! One node of an extent tree: where its words lie, and how they are searched.
//!
//! Contents: [`Node`] and its [`Group`]s, read through [`Words`], which is either the medium or a transaction.
//! Nothing here writes. Used by the tree's lookups, changes and checks only.
//!
//! ```text
//! word 0        magic | groups ever used | level | inode
//! word 1        leaves: first page | last page of a range inside the one that lookups are led here for
//! words 2..32   index: for each group the lowest page it may hold, plus 1; 0: the group is free
//! line 4..      30 groups of two lines each
//! ```
//!
//! A group of a leaf is a line of eight keys `first page | length` and the line of their page words; a group of an
//! inner node is sixteen keys `lowest page | child`. A key whose low half is 0 is free, whatever its high half is; that
//! is the valid bit.
//!
//! Groups lie in any order, and so do the keys of a group: nothing is ever shifted to make space. A page belongs to the
//! group with the greatest low that is not above it, or to the lowest group; the same holds for the keys of an inner
//! node's group.
//!
//! Invariants: lows differ. A key is not below its group's low, and an extent ends before the next group's. The keys of
//! a free group mean nothing; they are cleared when it is taken.

use ferrite_pm::{LINE_BYTES, Region};

use crate::simd::{self, Lane, Level, Nearest, Shape};
use crate::{BlockNo, Geometry, Inum, MapTx, PageRange, PageWord};

/// Bytes of a node, which is a data block.
const NODE_BYTES: u64 = 4096;
const MAGIC: u64 = 0xe7e7;
const COUNT_SHIFT: u32 = 40;
const COUNT_MASK: u64 = 0xff << COUNT_SHIFT;
const INDEX_OFFSET: u64 = 16;
const GROUPS_OFFSET: u64 = 256;
const GROUP_BYTES: u64 = 128;
/// Words before the index, in its first line.
const INDEX_WORD: u32 = 2;
/// Groups of a node.
pub(super) const GROUPS: u64 = 30;
/// Extents in a group of a leaf.
pub(super) const LEAF_KEYS: u64 = 8;
/// Children in a group of an inner node.
pub(super) const INNER_KEYS: u64 = 16;
/// End of the pages a file can have.
pub(super) const PAGES_END: u64 = 1 << 32;
/// Levels a tree can have. Nodes other than the rightmost are split when 30 groups are full or in use, so each level
/// multiplies the pages under a node by at least 15, and 2^32 pages need fewer levels than this.
pub(super) const HEIGHT_MAX: u32 = 12;

/// The source of words.
pub(super) trait Words {
    /// The word at a pool offset.
    fn at(&self, offset: u64) -> u64;

    /// The neighbours of a bound among the words of `LINES` lines.
    #[inline]
    fn nearest<S: Shape, const LINES: usize>(&self, offset: u64, lanes: u32, bound: u64) -> Nearest {
        let words = (0..8 * LINES as u64).map(|index| self.at(offset + index * 8));
        Nearest::among::<S>(words, lanes, bound)
    }

    /// Which of the eight keys of a leaf's group holds page `lblk`.
    #[inline]
    fn covering(&self, offset: u64, lblk: u64) -> Option<u32> {
        simd::first_covering((0..LEAF_KEYS).map(|slot| self.at(offset + slot * 8)), lblk)
    }
}

/// The lows of groups: an index word is a low plus one, or 0.
struct Lows;

impl Shape for Lows {
    const PRESENT: u64 = u64::MAX;
    const GREATEST: u64 = PAGES_END;
    const SHIFT: u32 = 0;
}

/// The first pages of keys.
struct Starts;

impl Shape for Starts {
    const PRESENT: u64 = 0xffff_ffff;
    const GREATEST: u64 = u64::MAX;
    const SHIFT: u32 = 32;
}

/// The medium, read by vectors where the CPU has them.
#[derive(Clone, Copy)]
pub(super) struct Medium<'r> {
    /// The pool.
    pub(super) region: &'r Region,
    /// The detected instruction set.
    pub(super) level: Level,
}

impl Words for Medium<'_> {
    #[inline]
    fn at(&self, offset: u64) -> u64 {
        self.region.load(offset)
    }

    #[inline]
    fn nearest<S: Shape, const LINES: usize>(&self, offset: u64, lanes: u32, bound: u64) -> Nearest {
        simd::nearest::<S, LINES>(self.level, self.region.words(offset, 8 * LINES), lanes, bound)
    }

    #[inline]
    fn covering(&self, offset: u64, lblk: u64) -> Option<u32> {
        simd::covering(self.level, self.region.words(offset, LEAF_KEYS as usize), lblk)
    }
}

impl Words for Region {
    #[inline]
    fn at(&self, offset: u64) -> u64 {
        self.load(offset)
    }
}

impl Words for dyn MapTx + '_ {
    #[inline]
    fn at(&self, offset: u64) -> u64 {
        self.word(offset)
    }

    fn nearest<S: Shape, const LINES: usize>(&self, offset: u64, lanes: u32, bound: u64) -> Nearest {
        match self.stored(offset, 8 * LINES) {
            Some(words) => simd::nearest::<S, LINES>(Level::detect(), words, lanes, bound),
            None => Nearest::among::<S>(
                (0..8 * LINES as u64).map(|index| self.at(offset + index * 8)),
                lanes,
                bound,
            ),
        }
    }

    fn covering(&self, offset: u64, lblk: u64) -> Option<u32> {
        match self.stored(offset, LEAF_KEYS as usize) {
            Some(words) => simd::covering(Level::detect(), words, lblk),
            None => simd::first_covering((0..LEAF_KEYS).map(|slot| self.at(offset + slot * 8)), lblk),
        }
    }
}

/// A node whose header was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    /// Its block.
    pub(super) block: BlockNo,
    /// 0 for a leaf.
    pub(super) level: u32,
    /// Groups ever used; the index after them is clear.
    pub(super) groups: u64,
}

/// A group that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    /// Its number in the node.
    pub(super) number: u64,
    /// Its low.
    pub(super) low: u64,
    /// The low of the next group, or the end passed to the search.
    pub(super) end: u64,
    /// Whether no group follows it.
    pub(super) is_last: bool,
}

/// Which node a block should hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeId {
    /// The inode whose tree it belongs to.
    pub(super) ino: Inum,
    pub(super) block: BlockNo,
    /// Its height above the leaves.
    pub(super) level: u32,
}

impl NodeId {
    /// A leaf.
    #[inline]
    pub(super) fn leaf(ino: Inum, block: BlockNo) -> NodeId {
        NodeId { ino, block, level: 0 }
    }

    /// The child in `block` of this inner node.
    pub(super) fn child(self, block: BlockNo) -> NodeId {
        NodeId {
            block,
            level: self.level - 1,
            ..self
        }
    }
}

/// A group in use and its low.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupLow {
    /// Number of the group.
    pub(super) group: u64,
    /// The page where it begins.
    pub(super) low: u64,
}

/// Where in a node a key is.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyPlace {
    /// Number of its group.
    pub(super) group: u64,
    /// Its place in the group.
    pub(super) slot: u64,
}

/// A key and where it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    /// Number of its group.
    pub(super) group: u64,
    /// Its place in the group.
    pub(super) slot: u64,
    /// The key itself.
    pub(super) word: u64,
}

impl Key {
    /// Where it is.
    #[inline]
    pub(super) fn place(self) -> KeyPlace {
        KeyPlace {
            group: self.group,
            slot: self.slot,
        }
    }

    /// First page.
    #[inline]
    pub(super) fn start(self) -> u64 {
        self.word >> 32
    }

    /// Pages of an extent, or the block of a child.
    #[inline]
    pub(super) fn low_half(self) -> u32 {
        self.word as u32
    }

    /// The block of the child that an inner node's key leads to.
    pub(super) fn child(self) -> BlockNo {
        BlockNo::new(self.low_half())
    }

    /// End of the pages of an extent.
    #[inline]
    pub(super) fn end(self) -> u64 {
        self.start() + u64::from(self.low_half())
    }
}

/// The keys of a group around a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Around {
    /// The greatest key not above the page.
    pub(super) at: Option<Key>,
    /// The least key above it.
    pub(super) above: Option<Key>,
}

/// A key for `start`, with a length or a child.
pub(super) fn key_word(start: u64, low_half: u64) -> u64 {
    start << 32 | low_half
}

/// Word 0 of a node.
pub(super) fn header(ino: Inum, level: u32, groups: u64) -> u64 {
    MAGIC << 48 | groups << COUNT_SHIFT | u64::from(level) << 32 | u64::from(ino)
}

/// Word 1 of a leaf for pages from `first` to before `end`.
pub(super) fn range_word(first: u64, end: u64) -> u64 {
    first << 32 | (end - 1) & 0xffff_ffff
}

/// The pages of a range word.
pub(super) fn range_of(word: u64) -> PageRange {
    PageRange::new(word >> 32, (word & 0xffff_ffff) + 1)
}

/// The word of the page `distance` after the first of an extent.
#[inline]
pub(super) fn word_behind(word: PageWord, distance: u64) -> PageWord {
    // Lookups may see any word; one that is not an extent must not cause a panic.
    word.plus(distance)
}

/// Pool offset of a block.
fn base(block: BlockNo) -> u64 {
    u64::from(block) * NODE_BYTES
}

/// Pool offset of word 0 of the node in `block`.
pub(super) fn header_offset(block: BlockNo) -> u64 {
    base(block)
}

impl Node {
    /// The node in `block`, if its header marks it as this one.
    #[inline]
    pub(super) fn open<W: Words + ?Sized>(
        words: &W,
        geometry: &Geometry,
        NodeId { ino, block, level }: NodeId,
    ) -> Option<Node> {
        if !geometry.is_data_block(block) {
            return None;
        }
        let word = words.at(header_offset(block));
        let groups = (word & COUNT_MASK) >> COUNT_SHIFT;
        let is_node = word & !COUNT_MASK == header(ino, level, 0) && groups <= GROUPS;
        is_node.then_some(Node { block, level, groups })
    }

    /// Keys of a group.
    #[inline]
    pub(super) fn keys(self) -> u64 {
        if self.level == 0 { LEAF_KEYS } else { INNER_KEYS }
    }

    /// Pool offset of the range word.
    pub(super) fn range_offset(self) -> u64 {
        base(self.block) + 8
    }

    /// Pool offset of a group's index word.
    #[inline]
    pub(super) fn index_offset(self, group: u64) -> u64 {
        base(self.block) + INDEX_OFFSET + group * 8
    }

    /// Pool offset of a key.
    #[inline]
    pub(super) fn key_offset(self, group: u64, slot: u64) -> u64 {
        base(self.block) + GROUPS_OFFSET + group * GROUP_BYTES + slot * 8
    }

    /// Pool offset of the page word that belongs to a key of a leaf.
    #[inline]
    pub(super) fn word_offset(self, key: Key) -> u64 {
        self.key_offset(key.group, key.slot) + LINE_BYTES
    }

    /// The low of a group in use.
    #[inline]
    pub(super) fn low<W: Words + ?Sized>(self, words: &W, group: u64) -> Option<u64> {
        let word = words.at(self.index_offset(group));
        (word != 0 && word <= PAGES_END).then(|| word - 1)
    }

    /// The groups in use, with their lows, in no order.
    #[inline]
    pub(super) fn lows<W: Words + ?Sized>(self, words: &W) -> impl Iterator<Item = GroupLow> {
        (0..self.groups).filter_map(move |group| self.low(words, group).map(|low| GroupLow { group, low }))
    }

    /// The group that page `lblk` belongs to, in a node whose pages lie before `end`.
    #[inline]
    pub(super) fn group_of<W: Words + ?Sized>(self, words: &W, lblk: u64, end: u64) -> Option<Group> {
        // A file in few pieces: only one group is in use.
        if self.groups == 1 {
            let low = self.low(words, 0)?;
            return Some(Group {
                number: 0,
                low,
                end,
                is_last: true,
            });
        }
        let lanes = (((1u64 << self.groups) - 1) << INDEX_WORD) as u32;
        let found = words.nearest::<Lows, 4>(base(self.block), lanes, lblk + 1);
        let group = |lane: Lane| GroupLow {
            group: u64::from(lane.index - INDEX_WORD),
            low: lane.value - 1,
        };
        let (below, above) = (found.below().map(group), found.above().map(group));
        let (at, after) = match below {
            Some(below) => (below, above),
            // The page is below all lows, so it belongs to the lowest group.
            None => {
                let lowest = above?;
                (lowest, self.group_after(words, lowest.low))
            }
        };
        let next = after.map_or(u64::MAX, |after| after.low);
        Some(Group {
            number: at.group,
            low: at.low,
            end: next.min(end),
            is_last: next == u64::MAX,
        })
    }

    /// The group with the greatest low below `low`.
    pub(super) fn group_before<W: Words + ?Sized>(self, words: &W, low: u64) -> Option<u64> {
        let before = self.lows(words).filter(|other| other.low < low);
        before.max_by_key(|other| other.low).map(|other| other.group)
    }

    /// The group with the least low above `low`.
    pub(super) fn group_after<W: Words + ?Sized>(self, words: &W, low: u64) -> Option<GroupLow> {
        self.lows(words)
            .filter(|other| other.low > low)
            .min_by_key(|other| other.low)
    }

    /// The keys of a group, in no order.
    #[inline]
    pub(super) fn keys_of<W: Words + ?Sized>(self, words: &W, group: u64) -> impl Iterator<Item = Key> {
        (0..self.keys())
            .map(move |slot| Key {
                group,
                slot,
                word: words.at(self.key_offset(group, slot)),
            })
            .filter(|key| key.low_half() != 0)
    }

    /// The keys of a group around page `lblk`.
    #[inline]
    pub(super) fn around<W: Words + ?Sized>(self, words: &W, group: u64, lblk: u64) -> Around {
        let offset = self.key_offset(group, 0);
        let found = if self.level == 0 {
            words.nearest::<Starts, 1>(offset, 0xff, lblk)
        } else {
            words.nearest::<Starts, 2>(offset, 0xffff, lblk)
        };
        // The start is the one that was compared, whatever has been stored since.
        let key = |lane: Lane| Key {
            group,
            slot: u64::from(lane.index),
            word: key_word(lane.value, words.at(offset + u64::from(lane.index) * 8) & 0xffff_ffff),
        };
        Around {
            at: found.below().map(key),
            above: found.above().map(key),
        }
    }

    /// A free slot of a group.
    pub(super) fn free_slot<W: Words + ?Sized>(self, words: &W, group: u64) -> Option<u64> {
        (0..self.keys()).find(|&slot| words.at(self.key_offset(group, slot)) & 0xffff_ffff == 0)
    }

    /// The extent of a leaf's group that has page `lblk`.
    #[inline]
    pub(super) fn extent_of<W: Words + ?Sized>(self, words: &W, group: u64, lblk: u64) -> Option<Key> {
        let slot = u64::from(words.covering(self.key_offset(group, 0), lblk)?);
        let word = words.at(self.key_offset(group, slot));
        // It may have changed between the two reads.
        Some(Key { group, slot, word }).filter(|key| (key.start()..key.end()).contains(&lblk))
    }

    /// The extent at a place where one was seen before, if it still exists.
    #[inline]
    pub(super) fn extent_at<W: Words + ?Sized>(self, words: &W, KeyPlace { group, slot }: KeyPlace) -> Option<Key> {
        if group >= self.groups || slot >= LEAF_KEYS {
            return None;
        }
        // The contents of a free group mean nothing.
        self.low(words, group)?;
        let word = words.at(self.key_offset(group, slot));
        let key = Key { group, slot, word };
        (key.low_half() != 0).then_some(key)
    }

    /// The child that page `lblk` belongs to, and the end of the pages that do.
    #[inline]
    pub(super) fn child_of<W: Words + ?Sized>(self, words: &W, group: Group, lblk: u64) -> Option<(Key, u64)> {
        let around = self.around(words, group.number, lblk);
        if let Some(key) = around.at {
            return Some((key, around.above.map_or(group.end, Key::start)));
        }
        let key = around.above?;
        let next = self.around(words, group.number, key.start()).above;
        Some((key, next.map_or(group.end, Key::start)))
    }

    /// The page word of a leaf's key.
    #[inline]
    pub(super) fn word_of<W: Words + ?Sized>(self, words: &W, key: Key) -> PageWord {
        PageWord(words.at(self.word_offset(key)))
    }

    /// Whether no group is in use.
    pub(super) fn is_empty<W: Words + ?Sized>(self, words: &W) -> bool {
        self.lows(words).next().is_none()
    }
}
