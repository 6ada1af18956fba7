//! Cursors: which leaf of a file was looked at last, and which extent, kept in DRAM.
//!
//! What lives here: [`Cursors`], a fixed table that files share by a hash of their inode, and the map's epoch. Used by
//! the tree only.
//!
//! Invariants: the epoch a cursor carries was read before the search that found its leaf began, so as long as the map's
//! epoch is the same, no block that was a node then has gone back to the free blocks since. What follows from that is
//! in the tree's head.
//!
//! A cursor is words, each stored and read by itself; two threads may leave a mixture. All of it is a hint that its
//! reader checks, but for one thing: that the leaf's block goes with the epoch. So the leaf's word has the lower half
//! of its epoch, and the whole epoch is beside it. A mixture passes for sound only if somebody was held up between
//! these two stores while 2^32 nodes were freed, and exactly as many.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;

/// Cursors in the table.
const COUNT: usize = 1024;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Cursors {
    epoch: CachePadded<AtomicU64>,
    table: Box<[CachePadded<Cursor>]>,
}

#[derive(Debug, Default)]
struct Cursor {
    /// `lower half of the epoch << 32 | block`, 0 when nothing was looked at.
    leaf: AtomicU64,
    /// The epoch that the search began in.
    epoch: AtomicU64,
    /// The leaf's range word as it was, so that pages far from it do not cost a look at the leaf.
    range: AtomicU64,
    /// Where in the leaf the extent is that was looked at last: `group << 32 | slot`.
    extent: AtomicU64,
}

/// What a cursor says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Block of the leaf.
    pub(super) block: u32,
    /// Its range word as it was.
    pub(super) range: u64,
    /// Group and slot of an extent.
    pub(super) extent: (u64, u64),
}

impl Cursors {
    pub(super) fn new() -> Self {
        Cursors {
            epoch: CachePadded::default(),
            table: (0..COUNT).map(|_| CachePadded::default()).collect(),
        }
    }

    fn of(&self, ino: u32) -> &Cursor {
        // Consecutive inodes, which one program makes, get cursors of their own.
        &self.table[ino as usize % COUNT]
    }

    /// Ends the life of all cursors set by searches that began before now. Before a node's block can be used for
    /// anything else.
    pub(super) fn end_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The epoch, to be read before a search begins.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether the epoch is still `epoch`, after what was read in it.
    #[inline]
    pub(super) fn is_still(&self, epoch: u64) -> bool {
        fence(Ordering::Acquire);
        self.epoch.load(Ordering::Relaxed) == epoch
    }

    /// What was looked at last in this file or one it shares a cursor with, if that was in this epoch.
    #[inline]
    pub(super) fn get(&self, ino: u32, epoch: u64) -> Option<Seen> {
        let cursor = self.of(ino);
        let leaf = cursor.leaf.load(Ordering::Acquire);
        let is_his = leaf as u32 != 0 && leaf >> 32 == epoch & 0xffff_ffff;
        if !is_his || cursor.epoch.load(Ordering::Relaxed) != epoch {
            return None;
        }
        let extent = cursor.extent.load(Ordering::Relaxed);
        Some(Seen {
            block: leaf as u32,
            range: cursor.range.load(Ordering::Relaxed),
            extent: (extent >> 32, extent & 0xffff_ffff),
        })
    }

    /// Notes what a search that began in `epoch` found.
    #[inline]
    pub(super) fn put(&self, ino: u32, epoch: u64, seen: Seen) {
        let cursor = self.of(ino);
        let (group, slot) = seen.extent;
        cursor.range.store(seen.range, Ordering::Relaxed);
        cursor.extent.store(group << 32 | slot, Ordering::Relaxed);
        cursor.epoch.store(epoch, Ordering::Relaxed);
        cursor
            .leaf
            .store(epoch << 32 | u64::from(seen.block), Ordering::Release);
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        (COUNT * size_of::<CachePadded<Cursor>>() + size_of::<CachePadded<AtomicU64>>()) as u64
    }
}
