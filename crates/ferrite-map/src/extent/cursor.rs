//! Cursors: which leaf of a file was looked at last, and which extent, kept in DRAM.
//!
//! What lives here: [`Cursors`], a fixed table that files share by a hash of their inode, and the map's epoch. Used by the tree only.
//!
//! Invariants: a cursor is read whole or not at all (each has a sequence number, odd while it is written). The epoch a
//! cursor carries was read before the search that found its leaf began, so as long as the map's epoch is the same, no block that was a
//! node then has gone back to the free blocks since. What follows from that is in the tree's head.

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
    sequence: AtomicU64,
    /// `inode << 32 | block`, 0 when nothing was looked at.
    leaf: AtomicU64,
    /// The leaf's range word as it was, so that pages far from it do not cost a look at the leaf.
    range: AtomicU64,
    /// Where in the leaf the extent is that was looked at last: `group << 32 | slot`.
    extent: AtomicU64,
    epoch: AtomicU64,
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

    /// Ends the life of all cursors set by searches that began before now. Before a node's block can be used for anything else.
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

    /// What was looked at last, if that was in this epoch.
    #[inline]
    pub(super) fn get(&self, ino: u32, epoch: u64) -> Option<Seen> {
        let cursor = self.of(ino);
        let sequence = cursor.sequence.load(Ordering::Acquire);
        let leaf = cursor.leaf.load(Ordering::Relaxed);
        let range = cursor.range.load(Ordering::Relaxed);
        let extent = cursor.extent.load(Ordering::Relaxed);
        let since = cursor.epoch.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = sequence.is_multiple_of(2) && cursor.sequence.load(Ordering::Relaxed) == sequence;
        let is_his = leaf as u32 != 0 && (leaf >> 32) as u32 == ino;
        (whole && is_his && since == epoch).then_some(Seen {
            block: leaf as u32,
            range,
            extent: (extent >> 32, extent & 0xffff_ffff),
        })
    }

    /// Notes what a search that began in `epoch` found.
    #[inline]
    pub(super) fn put(&self, ino: u32, epoch: u64, seen: Seen) {
        let cursor = self.of(ino);
        let sequence = cursor.sequence.load(Ordering::Relaxed);
        let begun = sequence.is_multiple_of(2)
            && cursor
                .sequence
                .compare_exchange(sequence, sequence + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        // Somebody else is at it: a hint is not worth waiting for.
        if !begun {
            return;
        }
        fence(Ordering::Release);
        cursor
            .leaf
            .store(u64::from(ino) << 32 | u64::from(seen.block), Ordering::Relaxed);
        cursor.range.store(seen.range, Ordering::Relaxed);
        let (group, slot) = seen.extent;
        cursor.extent.store(group << 32 | slot, Ordering::Relaxed);
        cursor.epoch.store(epoch, Ordering::Relaxed);
        cursor.sequence.store(sequence + 2, Ordering::Release);
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        (COUNT * size_of::<CachePadded<Cursor>>() + size_of::<CachePadded<AtomicU64>>()) as u64
    }
}
