//! A model of cursors and epochs: a reader follows a cursor while its leaf is unlinked and the block is reused.
//!
//! Contents: one file of one page. The cursor is the real one, a [`TransCache`] that two readers share. The medium, the
//! lookup ([`super::super::Radix`]'s `get_in_leaf`), and the actions of a transaction, the checkpoint and another file
//! are modelled here, step by step. As everywhere, a reader's result counts if the inode's version is the same
//! afterwards. See `models.rs` for how to run it.

use shuttle::sync::Arc;
use shuttle::thread;

use crate::models::{holds, is_noticed};
use crate::sync::{AtomicU64, Ordering::SeqCst};
use crate::{BlockNo, Inum, Lblk, TransCache};

const INO: u32 = 5;
const PAGE: u32 = 700;
/// Another file's data in a block that was a leaf.
const DATA: u64 = 99;
/// The page's word at each version; odd versions are changes in progress.
const TRUTH: [u64; 7] = [10, 0, 0, 0, 11, 0, 0];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The block is used again before the epoch ends.
    EpochAfterReuse,
    /// The page's word is left in a leaf that is unlinked.
    WordStays,
    /// A walk notes the epoch in which it ends, not that in which it began.
    EpochOfTheEnd,
    /// A reader trusts a cursor without checking the epoch again.
    NoSecondLook,
}

struct File {
    version: AtomicU64,
    /// Block of the leaf, 0 for none.
    root: AtomicU64,
    epoch: AtomicU64,
    /// The page's place in blocks 1 and 2; there is no block 0.
    blocks: [AtomicU64; 3],
    cache: TransCache,
    flaw: Flaw,
}

impl File {
    fn look_up(&self) -> u64 {
        let before = self.epoch.load(SeqCst);
        if let Some(leaf) = self.cache.leaf(Inum::new(INO), Lblk::new(PAGE), before) {
            let word = self.blocks[leaf.index()].load(SeqCst);
            let same = self.flaw == Flaw::NoSecondLook || self.epoch.load(SeqCst) == before;
            if same && word != 0 {
                return word;
            }
        }
        let leaf = self.root.load(SeqCst);
        if leaf == 0 {
            return 0;
        }
        let word = self.blocks[leaf as usize].load(SeqCst);
        let found = match self.flaw {
            Flaw::EpochOfTheEnd => self.epoch.load(SeqCst),
            _ => before,
        };
        self.cache
            .put_leaf(Inum::new(INO), Lblk::new(PAGE), BlockNo::new(leaf as u32), found);
        word
    }

    fn read(&self) {
        let version = self.version.load(SeqCst);
        if version.is_multiple_of(2) {
            let word = self.look_up();
            if self.version.load(SeqCst) == version {
                assert_eq!(word, TRUTH[version as usize], "a reader of version {version}");
            }
        }
    }

    fn change(&self, words: &[(&AtomicU64, u64)]) {
        self.version.fetch_add(1, SeqCst);
        words.iter().for_each(|&(word, value)| word.store(value, SeqCst));
        self.version.fetch_add(1, SeqCst);
    }

    /// Unmaps the page and with it the leaf; the checkpoint passes; another file gets the block; the page is mapped
    /// again in another leaf, and unmapped.
    fn write(&self) {
        let cleared = if self.flaw == Flaw::WordStays { 10 } else { 0 };
        self.change(&[(&self.blocks[1], cleared), (&self.root, 0)]);
        if self.flaw == Flaw::EpochAfterReuse {
            self.blocks[1].store(DATA, SeqCst);
        }
        self.epoch.fetch_add(1, SeqCst);
        self.blocks[1].store(DATA, SeqCst);
        self.change(&[(&self.blocks[2], 11), (&self.root, 2)]);
        self.change(&[(&self.blocks[2], 0), (&self.root, 0)]);
    }
}

fn run(flaw: Flaw) {
    let file = Arc::new(File {
        version: AtomicU64::new(0),
        root: AtomicU64::new(1),
        epoch: AtomicU64::new(0),
        blocks: [AtomicU64::new(0), AtomicU64::new(TRUTH[0]), AtomicU64::new(0)],
        cache: TransCache::default(),
        flaw,
    });
    let readers = (0..2).map(|_| {
        let file = Arc::clone(&file);
        thread::spawn(move || (0..4).for_each(|_| file.read()))
    });
    let mut threads: Vec<_> = readers.collect();
    let writer = Arc::clone(&file);
    threads.push(thread::spawn(move || writer.write()));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    file.read();
}

#[test]
fn a_cursor_never_leads_into_a_block_of_others() {
    holds(|| run(Flaw::None));
    for (name, flaw) in [
        ("a block that is used before its epoch ends", Flaw::EpochAfterReuse),
        ("a word that stays in an unlinked leaf", Flaw::WordStays),
        ("the epoch in which a walk ends", Flaw::EpochOfTheEnd),
        ("no second look at the epoch", Flaw::NoSecondLook),
    ] {
        is_noticed(name, move || run(flaw));
    }
}
