//! Cursors: the leaf and the extent of a file that were read last, kept in DRAM.
//!
//! Contents: [`Cursors`], a fixed table that files share by a hash of their inode, and the map's epoch. Used by
//! the tree only.
//!
//! Invariants: the epoch in a cursor was read before the search that found its leaf began. So as long as the map's
//! epoch is the same, no block that was a node then has returned to the free blocks since. The head of the tree's
//! module states the consequences.
//!
//! A cursor is several words, each stored and read separately; two threads may leave a mixture. All of it is a hint
//! that its reader checks, except for one thing: that the leaf's block belongs to the epoch. So the leaf's word has the
//! lower half of its epoch, and the whole epoch is next to it. A mixture passes for sound only if a thread was delayed
//! between these two stores while exactly 2^32 nodes were freed.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::node::KeyPlace;
use crate::{BlockNo, Inum};

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
    /// `lower half of the epoch << 32 | block`, 0 if nothing was read.
    leaf: AtomicU64,
    /// The epoch that the search began in.
    epoch: AtomicU64,
    /// The leaf's range word when it was read, so that pages far from it are ruled out without reading the leaf.
    range: AtomicU64,
    /// Where in the leaf the extent read last is: `group << 32 | slot`.
    extent: AtomicU64,
}

/// The content of a cursor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Block of the leaf.
    pub(super) block: BlockNo,
    /// Its range word when it was read.
    pub(super) range: u64,
    /// Where in it an extent is.
    pub(super) extent: KeyPlace,
}

impl Cursors {
    pub(super) fn new() -> Self {
        Cursors {
            epoch: CachePadded::default(),
            table: (0..COUNT).map(|_| CachePadded::default()).collect(),
        }
    }

    fn of(&self, ino: Inum) -> &Cursor {
        // Consecutive inodes, typically created by one program, get different cursors.
        &self.table[ino.index() % COUNT]
    }

    /// Ends the life of all cursors set by searches that began before now. Must come before a node's block can be used
    /// for anything else.
    pub(super) fn end_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The epoch, to be read before a search begins.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether the epoch is still `epoch`; to be called after the reads in it.
    #[inline]
    pub(super) fn is_still(&self, epoch: u64) -> bool {
        fence(Ordering::Acquire);
        self.epoch.load(Ordering::Relaxed) == epoch
    }

    /// The leaf read last in this file, or in one that shares its cursor, if that was in this epoch.
    #[inline]
    pub(super) fn get(&self, ino: Inum, epoch: u64) -> Option<Seen> {
        let cursor = self.of(ino);
        let leaf = cursor.leaf.load(Ordering::Acquire);
        let is_his = leaf as u32 != 0 && leaf >> 32 == epoch & 0xffff_ffff;
        if !is_his || cursor.epoch.load(Ordering::Relaxed) != epoch {
            return None;
        }
        let extent = cursor.extent.load(Ordering::Relaxed);
        Some(Seen {
            block: BlockNo::new(leaf as u32),
            range: cursor.range.load(Ordering::Relaxed),
            extent: KeyPlace {
                group: extent >> 32,
                slot: extent & 0xffff_ffff,
            },
        })
    }

    /// Notes the result of a search that began in `epoch`.
    #[inline]
    pub(super) fn put(&self, ino: Inum, epoch: u64, seen: Seen) {
        let cursor = self.of(ino);
        let KeyPlace { group, slot } = seen.extent;
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
