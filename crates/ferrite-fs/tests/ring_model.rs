//! A model of journal rings, sequence numbers and the checkpoint under committers, `advance` and a crash at any moment,
//! run by shuttle under many schedules.
//!
//! As in `merge_model.rs` the engine is not instrumented: this states the protocol of `journal/mod.rs`
//! (docs/crash-consistency.md, rules 3 to 5) with the same locks, atomics and order of steps. The medium is behind a
//! lock of the standard library, so each access is one step for shuttle.

use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const WORDS: usize = 2;
const RINGS: usize = 2;

/// A word's value is the sequence number of the record that set it.
#[derive(Default)]
struct Medium {
    durable: [u64; WORDS],
    cached: [u64; WORDS],
    /// Durable records, in all rings: number and word.
    records: Vec<(u64, usize)>,
    /// By word, the newest committed record.
    newest: [u64; WORDS],
    checkpoint: u64,
}

impl Medium {
    /// Whatever of the cache a crash leaves, replay must end with the newest record of each word.
    fn crash(&self) {
        for word in 0..WORDS {
            for start in [self.durable[word], self.cached[word]] {
                let replayed = self
                    .records
                    .iter()
                    .filter(|&&(seq, of)| of == word && seq > self.checkpoint)
                    .map(|&(seq, _)| seq)
                    .max();
                let found = replayed.unwrap_or(start);
                assert_eq!(
                    found, self.newest[word],
                    "a crash loses a committed record of word {word} (checkpoint {})",
                    self.checkpoint
                );
            }
        }
    }
}

#[derive(Default)]
struct Ring {
    dirty: Vec<usize>,
}

/// Ways to get it wrong, which the model must notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The floor is raised after the rings were visited.
    LateFloor,
    /// The checkpoint goes to the newest number there is after the visit.
    LateTarget,
    /// Numbers come from the ring alone, not from the changed words.
    OwnNumbers,
    /// The checkpoint moves before the fence.
    EarlyCheckpoint,
}

struct Journal {
    medium: std::sync::Mutex<Medium>,
    rings: [Mutex<Ring>; RINGS],
    last_seq: [AtomicU64; RINGS],
    floor: AtomicU64,
    advancing: Mutex<()>,
    /// Locks of the changed words, with the newest number each has seen.
    words: [Mutex<u64>; WORDS],
    flaw: Flaw,
}

impl Journal {
    fn new(flaw: Flaw) -> Journal {
        Journal {
            medium: std::sync::Mutex::default(),
            rings: std::array::from_fn(|_| Mutex::default()),
            last_seq: std::array::from_fn(|_| AtomicU64::new(0)),
            floor: AtomicU64::new(0),
            advancing: Mutex::new(()),
            words: std::array::from_fn(|_| Mutex::new(0)),
            flaw,
        }
    }

    fn medium(&self) -> std::sync::MutexGuard<'_, Medium> {
        self.medium.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn commit(&self, ring: usize, word: usize) {
        let mut newest = self.words[word].lock().unwrap();
        let mut state = self.rings[ring].lock().unwrap();
        let min_seq = if self.flaw == Flaw::OwnNumbers { 0 } else { *newest };
        let seq = min_seq
            .max(self.last_seq[ring].load(SeqCst))
            .max(self.floor.load(SeqCst))
            + 1;
        {
            // The fence of the record: from here on it counts.
            let mut medium = self.medium();
            medium.records.push((seq, word));
            medium.newest[word] = seq;
        }
        thread::yield_now();
        self.medium().cached[word] = seq;
        state.dirty.push(word);
        self.last_seq[ring].store(seq, SeqCst);
        *newest = seq;
    }

    fn advance(&self) {
        let _one_at_a_time = self.advancing.lock().unwrap();
        let newest = || self.last_seq.iter().map(|seq| seq.load(SeqCst)).max().unwrap_or(0);
        let mut target = newest();
        if self.flaw != Flaw::LateFloor {
            self.floor.store(target, SeqCst);
        }
        let mut written = Vec::new();
        for ring in &self.rings {
            let mut state = ring.lock().unwrap();
            for word in state.dirty.drain(..) {
                written.push((word, self.medium().cached[word]));
            }
        }
        match self.flaw {
            Flaw::LateFloor => self.floor.store(target, SeqCst),
            Flaw::LateTarget => target = newest(),
            Flaw::EarlyCheckpoint => self.medium().checkpoint = target,
            Flaw::None | Flaw::OwnNumbers => {}
        }
        thread::yield_now();
        {
            let mut medium = self.medium();
            for (word, value) in written {
                medium.durable[word] = medium.durable[word].max(value);
            }
        }
        thread::yield_now();
        self.medium().checkpoint = target;
    }
}

fn run(flaw: Flaw) {
    let journal = Arc::new(Journal::new(flaw));
    let mut threads = Vec::new();
    for ring in 0..RINGS {
        let journal = Arc::clone(&journal);
        threads.push(thread::spawn(move || {
            for turn in 0..4 {
                journal.commit(ring, (turn + ring) % WORDS);
            }
        }));
    }
    let advancing = Arc::clone(&journal);
    threads.push(thread::spawn(move || (0..3).for_each(|_| advancing.advance())));
    let crashing = Arc::clone(&journal);
    threads.push(thread::spawn(move || {
        for _ in 0..12 {
            crashing.medium().crash();
            thread::yield_now();
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    journal.medium().crash();
}

fn explore(flaw: Flaw) {
    // A flaw ends the search when it is found; that it is found must not be a matter of luck.
    let factor = if flaw == Flaw::None { 1 } else { 50 };
    shuttle::check_random(move || run(flaw), 5000 * factor);
    shuttle::check_pct(move || run(flaw), 20_000 * factor, 3);
}

#[test]
fn no_schedule_and_no_crash_loses_a_record() {
    explore(Flaw::None);
}

#[test]
#[should_panic(expected = "loses a committed record")]
fn a_floor_raised_too_late_is_noticed() {
    explore(Flaw::LateFloor);
}

#[test]
#[should_panic(expected = "loses a committed record")]
fn a_checkpoint_taken_too_late_is_noticed() {
    explore(Flaw::LateTarget);
}

#[test]
#[should_panic(expected = "loses a committed record")]
fn numbers_that_ignore_what_is_changed_are_noticed() {
    explore(Flaw::OwnNumbers);
}

#[test]
#[should_panic(expected = "loses a committed record")]
fn a_checkpoint_before_its_fence_is_noticed() {
    explore(Flaw::EarlyCheckpoint);
}
