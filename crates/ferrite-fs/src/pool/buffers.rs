//! The lists of a transaction, in memory that the thread's next transaction reuses.
//!
//! Contents: [`Buffers`], the lists of [`crate::pool::tx::Tx`], and the [`Lease`] through which it borrows those of its
//! thread. Nothing here makes decisions.
//!
//! Invariant: buffers that are not leased are empty.

use std::cell::Cell;

use ferrite_map::{FreshNodes, Inum, PageRange, Resource, SetLines, StoredWord};
use ferrite_pm::Region;
use rustc_hash::FxHashMap;

use crate::format::record::Record;

/// Pages of an inode.
pub(super) struct FilePages {
    pub(super) ino: Inum,
    pub(super) pages: PageRange,
}

/// The lists of a transaction. The next one reuses their memory.
pub(super) struct Buffers {
    pub(super) record: Record,
    pub(super) claimed: Vec<Resource>,
    /// Reusable once the checkpoint has passed the record.
    pub(super) freed: Vec<Resource>,
    /// Reusable as soon as the record is durable, see [`Tx::freed`].
    pub(super) freed_at_once: Vec<Resource>,
    /// Pages that the record maps. Not used for mappings that can list a file's pages.
    pub(super) mapped: Vec<FilePages>,
    /// Stretches in which it leaves nothing mapped.
    pub(super) cleared: Vec<FilePages>,
    pub(super) staged: Staged,
    /// Words of a mapping whose changes build on each other; they go into the record last, each once.
    pub(super) map_words: FxHashMap<u64, u64>,
    /// The same, on their way into the record.
    pub(super) sorted: Vec<StoredWord>,
    /// The lines that contain them.
    pub(super) set_lines: SetLines,
    /// New nodes of the mapping, from this transaction.
    pub(super) fresh: FreshNodes,
}

impl Buffers {
    fn new() -> Self {
        Buffers {
            record: Record::new(),
            claimed: Vec::new(),
            freed: Vec::new(),
            freed_at_once: Vec::new(),
            mapped: Vec::new(),
            cleared: Vec::new(),
            staged: Staged::default(),
            map_words: FxHashMap::default(),
            sorted: Vec::new(),
            set_lines: SetLines::default(),
            fresh: FreshNodes::default(),
        }
    }

    /// Moves the words of new nodes to the record, before the words that lead to them.
    pub(super) fn record_fresh_nodes(&mut self) {
        self.fresh
            .take_words(|offset, value| self.record.set_word(offset, value));
    }

    /// Adds the mapping's words to the record, in offset order, so that adjacent words share an item.
    pub(super) fn record_map_words(&mut self) {
        self.sorted.clear();
        let words = self.map_words.drain();
        self.sorted
            .extend(words.map(|(offset, value)| StoredWord { offset, value }));
        self.sorted.sort_unstable();
        for &StoredWord { offset, value } in &self.sorted {
            self.record.set_word(offset, value);
        }
    }
}

/// Bytes to stream with the record.
#[derive(Default)]
pub(super) struct Staged {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

/// The target of some of the bytes: those after the pieces before it.
struct Piece {
    /// Pool offset.
    offset: u64,
    len_bytes: usize,
}

impl Staged {
    pub(super) fn push(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if let Some(last) = self.pieces.last_mut()
            && last.offset + last.len_bytes as u64 == offset
        {
            last.len_bytes += bytes.len();
            return;
        }
        self.pieces.push(Piece {
            offset,
            len_bytes: bytes.len(),
        });
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
    }

    pub(super) fn stream(&self, region: &Region) {
        let mut rest = &*self.bytes;
        for &Piece { offset, len_bytes } in &self.pieces {
            let (piece, behind) = rest.split_at(len_bytes);
            region.stream(offset, piece);
            rest = behind;
        }
    }
}

thread_local! {
    /// Memory of this thread's last transaction, so that the next one allocates nothing.
    static BUFFERS: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}

/// The thread's buffers, empty; they go back when this is dropped. Boxed, so that taking them moves a pointer.
pub(super) struct Lease(Option<Box<Buffers>>);

impl Lease {
    pub(super) fn take() -> Self {
        Lease(Some(BUFFERS.take().unwrap_or_else(|| Box::new(Buffers::new()))))
    }
}

impl std::ops::Deref for Lease {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        self.0.as_ref().expect("taken only when dropped")
    }
}

impl std::ops::DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Buffers {
        self.0.as_mut().expect("taken only when dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.claimed.clear();
        self.freed.clear();
        self.freed_at_once.clear();
        self.mapped.clear();
        self.cleared.clear();
        self.staged.clear();
        self.map_words.clear();
        self.set_lines = SetLines::default();
        self.fresh.clear();
        self.record.clear();
        BUFFERS.set(self.0.take());
    }
}
