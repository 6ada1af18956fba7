//! A model of one page under a writer, a reader, a folder and the reuse of freed cells, run by shuttle under many
//! schedules.
//!
//! The engine itself is not instrumented: this states its protocol (docs/crash-consistency.md, rule 8, and
//! docs/architecture.md) with the same version, lock, word and order of steps, so that a change of the protocol can be
//! tried here first. Atomics are those of shuttle, which interleaves them but does not reorder them.

use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// Block, log, and one each that a write and a merge are filling, and one more. The cell freed last is filled first.
const CELLS: usize = 5;
/// The content of a cell while it is being rewritten.
const GARBAGE: u64 = u64::MAX;
/// No log.
const NONE: u64 = 0xff;

/// Blocks and log entries alike are cells with a value; the page's value is that of its newest log entry, or of its
/// block.
struct Page {
    version: AtomicU64,
    lock: Mutex<()>,
    /// Cell of the block | cell of the newest entry << 8.
    word: AtomicU64,
    cells: Vec<AtomicU64>,
    free: Mutex<Vec<u64>>,
}

/// Ways to get it wrong, which the model must notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The merge sets the word although the version has moved.
    BlindMerge,
    /// The reader trusts its data without checking the version again.
    BlindRead,
}

impl Page {
    fn new() -> Page {
        let page = Page {
            version: AtomicU64::new(0),
            lock: Mutex::new(()),
            word: AtomicU64::new(NONE << 8),
            cells: (0..CELLS).map(|_| AtomicU64::new(GARBAGE)).collect(),
            free: Mutex::new((1..CELLS as u64).collect()),
        };
        page.cells[0].store(0, SeqCst);
        page
    }

    /// Claims a cell and fills it: as long as no word names it, readers may see garbage there.
    fn fill(&self, value: u64) -> Option<u64> {
        let cell = self.free.lock().unwrap().pop()?;
        self.cells[cell as usize].store(GARBAGE, SeqCst);
        self.cells[cell as usize].store(value, SeqCst);
        Some(cell)
    }

    /// Frees cells at once: the journal's checkpoint, which delays this in the engine, protects from crashes, not from
    /// readers.
    fn give_back(&self, cells: [u64; 2]) {
        self.free
            .lock()
            .unwrap()
            .extend(cells.into_iter().filter(|&cell| cell != NONE));
    }

    /// The caller holds the lock.
    fn set(&self, word: u64) {
        self.version.fetch_add(1, SeqCst);
        self.word.store(word, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    fn look(&self) -> (u64, u64, u64) {
        let word = self.word.load(SeqCst);
        let (block, log) = (word & 0xff, word >> 8);
        let newest = if log == NONE { block } else { log };
        (block, log, self.cells[newest as usize].load(SeqCst))
    }

    fn append(&self, value: u64) {
        let _lock = self.lock.lock().unwrap();
        let (block, log, _) = self.look();
        if let Some(cell) = self.fill(value) {
            self.set(block | cell << 8);
            self.give_back([log, NONE]);
        }
    }

    fn overwrite(&self, value: u64) {
        let _lock = self.lock.lock().unwrap();
        let (block, log, _) = self.look();
        if let Some(cell) = self.fill(value) {
            self.set(cell | NONE << 8);
            self.give_back([block, log]);
        }
    }

    fn merge(&self, flaw: Flaw) {
        let version = self.version.load(SeqCst);
        let (block, log, value) = self.look();
        if !version.is_multiple_of(2) || log == NONE || self.version.load(SeqCst) != version {
            return;
        }
        let Some(cell) = self.fill(value) else { return };
        let installed = self.lock.try_lock().is_ok_and(|_lock| {
            let unchanged = self.version.load(SeqCst) == version || flaw == Flaw::BlindMerge;
            if unchanged {
                self.set(cell | NONE << 8);
            }
            unchanged
        });
        self.give_back(if installed { [block, log] } else { [cell, NONE] });
    }

    fn read(&self, flaw: Flaw) -> u64 {
        for _ in 0..3 {
            let version = self.version.load(SeqCst);
            let (_, _, value) = self.look();
            if flaw == Flaw::BlindRead || version.is_multiple_of(2) && self.version.load(SeqCst) == version {
                return value;
            }
        }
        let _lock = self.lock.lock().unwrap();
        self.look().2
    }
}

fn run(flaw: Flaw) {
    let page = Arc::new(Page::new());
    let returned = Arc::new(AtomicU64::new(0));
    let writer = {
        let (page, returned) = (Arc::clone(&page), Arc::clone(&returned));
        thread::spawn(move || {
            for value in 1..=6 {
                if value % 3 == 0 {
                    page.overwrite(value);
                } else {
                    page.append(value);
                }
                returned.store(value, SeqCst);
            }
        })
    };
    let merger = {
        let page = Arc::clone(&page);
        thread::spawn(move || (0..4).for_each(|_| page.merge(flaw)))
    };
    let reader = {
        let (page, returned) = (Arc::clone(&page), Arc::clone(&returned));
        thread::spawn(move || {
            for _ in 0..4 {
                let least = returned.load(SeqCst);
                let value = page.read(flaw);
                assert!(value != GARBAGE, "broken: a read of what was being written anew");
                assert!(value >= least, "broken: a read of {value} after {least} had returned");
            }
        })
    };
    writer.join().unwrap();
    merger.join().unwrap();
    reader.join().unwrap();
    assert_eq!(page.read(Flaw::None), 6, "broken: the last write is lost");
}

/// Random schedules, and schedules that switch threads at few places only, which find long delays of one of them.
fn explore(flaw: Flaw) {
    // A flaw ends the search when it is found; that it is found must not be a matter of luck.
    let factor = if flaw == Flaw::None { 1 } else { 50 };
    shuttle::check_random(move || run(flaw), 3000 * factor);
    shuttle::check_pct(move || run(flaw), 20_000 * factor, 3);
}

#[test]
fn no_schedule_breaks_the_protocol() {
    explore(Flaw::None);
}

#[test]
#[should_panic(expected = "broken")]
fn a_merge_that_does_not_look_again_loses_writes() {
    explore(Flaw::BlindMerge);
}

#[test]
#[should_panic(expected = "broken")]
fn a_read_that_does_not_look_again_sees_garbage() {
    explore(Flaw::BlindRead);
}
