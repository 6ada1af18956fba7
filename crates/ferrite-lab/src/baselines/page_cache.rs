//! A page cache for the nodes of a tree: heap pages in one list, behind one lock, as Strata's.
//!
//! The cache copies a node when it is first read, and again after each change of it: its generation word on the medium
//! differs then. So it never serves the state of an aborted transaction, or one that another thread has changed.

use ferrite_map::BlockNo;
use ferrite_pm::Region;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::alloc::BLOCK_BYTES;

/// Words of a node.
pub(crate) const NODE_WORDS: u64 = BLOCK_BYTES / 8;
/// The index of the word that counts changes.
pub(crate) const GENERATION: u64 = 1;
/// Most pages kept before the least recently used one is evicted.
const CAPACITY: usize = 4096;
const NOBODY: usize = usize::MAX;

/// A node's copy.
pub(crate) type Page = [u64; NODE_WORDS as usize];

struct Entry {
    block: BlockNo,
    before: usize,
    behind: usize,
    page: Box<Page>,
}

/// See the module's head.
pub(crate) struct PageCache {
    state: Mutex<State>,
}

struct State {
    entries: Vec<Entry>,
    index: FxHashMap<BlockNo, usize>,
    /// Most recently used.
    first: usize,
    /// Least recently used.
    last: usize,
}

impl PageCache {
    pub(crate) fn new() -> Self {
        PageCache {
            state: Mutex::new(State {
                entries: Vec::new(),
                index: FxHashMap::default(),
                first: NOBODY,
                last: NOBODY,
            }),
        }
    }

    /// Passes the page of node `block` to `look`, with the lock held, and returns the result.
    pub(crate) fn with<T>(&self, region: &Region, block: BlockNo, look: impl FnOnce(&Page) -> T) -> T {
        let mut state = self.state.lock();
        let at = state.get(region, block);
        look(&state.entries[at].page)
    }

    pub(crate) fn dram_bytes(&self) -> u64 {
        self.state.lock().entries.len() as u64 * (BLOCK_BYTES + size_of::<Entry>() as u64)
    }
}

impl State {
    fn get(&mut self, region: &Region, block: BlockNo) -> usize {
        let known = self.index.get(&block).copied();
        let generation = region.load(u64::from(block) * BLOCK_BYTES + GENERATION * 8);
        let at = match known {
            Some(at) => {
                self.unlink(at);
                at
            }
            None => self.vacant(block),
        };
        if known.is_none() || self.entries[at].page[GENERATION as usize] != generation {
            let words = region.words(u64::from(block) * BLOCK_BYTES, NODE_WORDS as usize);
            for (copy, word) in self.entries[at].page.iter_mut().zip(words) {
                *copy = word.load(std::sync::atomic::Ordering::Acquire);
            }
        }
        self.link_first(at);
        at
    }

    /// An entry for `block` that is in no list.
    fn vacant(&mut self, block: BlockNo) -> usize {
        let at = if self.entries.len() < CAPACITY {
            self.entries.push(Entry {
                block,
                before: NOBODY,
                behind: NOBODY,
                page: Box::new([0; NODE_WORDS as usize]),
            });
            self.entries.len() - 1
        } else {
            let at = self.last;
            self.unlink(at);
            self.index.remove(&self.entries[at].block);
            self.entries[at].block = block;
            at
        };
        self.index.insert(block, at);
        at
    }

    fn unlink(&mut self, at: usize) {
        let (before, behind) = (self.entries[at].before, self.entries[at].behind);
        match before {
            NOBODY => self.first = behind,
            _ => self.entries[before].behind = behind,
        }
        match behind {
            NOBODY => self.last = before,
            _ => self.entries[behind].before = before,
        }
    }

    fn link_first(&mut self, at: usize) {
        self.entries[at].before = NOBODY;
        self.entries[at].behind = self.first;
        match self.first {
            NOBODY => self.last = at,
            first => self.entries[first].before = at,
        }
        self.first = at;
    }
}
