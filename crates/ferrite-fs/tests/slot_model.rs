//! A model of slots of the mapping table: claimed by inserts, released by those that abort and, after the checkpoint,
//! by deletes, with a crash at any moment; run by shuttle under many schedules.
//!
//! As in `ring_model.rs` nothing is instrumented: this states how `ferrite-map/src/hashfs.rs` uses its `AtomicBitmap`,
//! and how the engine's transactions and journal treat slots (`docs/design.md`), with the same atomics, locks and order
//! of steps. The medium is behind a lock of the standard library, so each access is one step for shuttle.

use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// Few, so that a released slot is taken again at once.
const SLOTS: usize = 3;
const THREADS: usize = 2;

/// A slot's word is the key it holds, 0 for none.
#[derive(Default)]
struct Medium {
    durable: [u64; SLOTS],
    cached: [u64; SLOTS],
    /// Durable records, in all rings: number, slot, key.
    records: Vec<(u64, usize, u64)>,
    /// The state after the committed operations.
    truth: [u64; SLOTS],
    checkpoint: u64,
    /// Whether a slot has an owner, from the claim until it may be claimed again.
    owned: [bool; SLOTS],
}

impl Medium {
    /// Whatever of the cache a crash leaves, replay must end with the committed state.
    fn crash(&self) {
        for slot in 0..SLOTS {
            for start in [self.durable[slot], self.cached[slot]] {
                let newest = self
                    .records
                    .iter()
                    .filter(|&&(seq, of, _)| of == slot && seq > self.checkpoint)
                    .max_by_key(|&&(seq, _, _)| seq);
                let found = newest.map_or(start, |&(_, _, key)| key);
                assert_eq!(
                    found, self.truth[slot],
                    "a crash leaves slot {slot} wrong (checkpoint {})",
                    self.checkpoint
                );
            }
        }
    }
}

#[derive(Default)]
struct Ring {
    dirty: Vec<usize>,
    freed: Vec<(u64, usize)>,
}

/// Ways to get it wrong, which the model must notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A slot is read and then taken, in two steps.
    ClaimInTwoSteps,
    /// A deleted key's slot is released as soon as its record is committed.
    EarlyReuse,
    /// A deleted key's slot is released before its record is committed.
    ReuseBeforeCommit,
    /// An aborted insert does not release its claim.
    AbortForgets,
}

struct Table {
    /// A bit a slot, as in `AtomicBitmap`.
    used: AtomicU64,
    medium: std::sync::Mutex<Medium>,
    rings: [Mutex<Ring>; THREADS],
    last_seq: [AtomicU64; THREADS],
    floor: AtomicU64,
    advancing: Mutex<()>,
    flaw: Flaw,
}

impl Table {
    fn new(flaw: Flaw) -> Table {
        Table {
            used: AtomicU64::new(0),
            medium: std::sync::Mutex::default(),
            rings: std::array::from_fn(|_| Mutex::default()),
            last_seq: std::array::from_fn(|_| AtomicU64::new(0)),
            floor: AtomicU64::new(0),
            advancing: Mutex::new(()),
            flaw,
        }
    }

    fn medium(&self) -> std::sync::MutexGuard<'_, Medium> {
        self.medium.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// `HashFs::free_slot`: the first free slot from `home` on, claimed.
    fn claim(&self, home: usize) -> Option<usize> {
        for slot in (home..SLOTS).chain(0..home) {
            let bit = 1 << slot;
            if self.used.load(SeqCst) & bit != 0 {
                continue;
            }
            let claimed = match self.flaw {
                Flaw::ClaimInTwoSteps => {
                    self.used.fetch_or(bit, SeqCst);
                    true
                }
                _ => self.used.fetch_or(bit, SeqCst) & bit == 0,
            };
            if claimed {
                let owned = std::mem::replace(&mut self.medium().owned[slot], true);
                assert!(!owned, "slot {slot} is given twice");
                return Some(slot);
            }
        }
        None
    }

    /// `HashFs::release`.
    fn release(&self, slot: usize) {
        self.medium().owned[slot] = false;
        let before = self.used.fetch_and(!(1 << slot), SeqCst);
        assert!(before & 1 << slot != 0, "slot {slot} is freed twice");
    }

    /// `Journal::commit` of a record that sets a slot's key; it frees the slot if the key is 0. A thread has a ring and
    /// an inode of its own, so nothing but the floor orders what two of them do to one slot.
    fn commit(&self, ring: usize, slot: usize, key: u64) {
        if key == 0 && self.flaw == Flaw::ReuseBeforeCommit {
            self.release(slot);
        }
        let mut state = self.rings[ring].lock().unwrap();
        let seq = self.last_seq[ring].load(SeqCst).max(self.floor.load(SeqCst)) + 1;
        {
            // The fence of the record: from here on it counts.
            let mut medium = self.medium();
            medium.records.push((seq, slot, key));
            medium.truth[slot] = key;
        }
        thread::yield_now();
        self.medium().cached[slot] = key;
        state.dirty.push(slot);
        if key == 0 && matches!(self.flaw, Flaw::None | Flaw::ClaimInTwoSteps | Flaw::AbortForgets) {
            state.freed.push((seq, slot));
        }
        self.last_seq[ring].store(seq, SeqCst);
        drop(state);
        if key == 0 && self.flaw == Flaw::EarlyReuse {
            self.release(slot);
        }
    }

    /// `Journal::advance`.
    fn advance(&self) {
        let _one_at_a_time = self.advancing.lock().unwrap();
        let target = self.last_seq.iter().map(|seq| seq.load(SeqCst)).max().unwrap_or(0);
        self.floor.store(target, SeqCst);
        let mut written = Vec::new();
        for ring in &self.rings {
            for slot in ring.lock().unwrap().dirty.drain(..) {
                written.push((slot, self.medium().cached[slot]));
            }
        }
        thread::yield_now();
        {
            let mut medium = self.medium();
            for (slot, key) in written {
                medium.durable[slot] = key;
            }
        }
        thread::yield_now();
        self.medium().checkpoint = target;
        let mut reusable = Vec::new();
        for ring in &self.rings {
            let mut state = ring.lock().unwrap();
            state.freed.retain(|&(seq, slot)| {
                let waits = seq > target;
                if !waits {
                    reusable.push(slot);
                }
                waits
            });
        }
        reusable.into_iter().for_each(|slot| self.release(slot));
    }

    /// A thread that inserts a key and deletes it again, or aborts its insert.
    fn work(&self, thread: usize, turns: usize) {
        for turn in 0..turns {
            let Some(slot) = self.claim((thread + turn) % SLOTS) else {
                self.advance();
                continue;
            };
            if thread == 1 && turn % 2 == 0 {
                if self.flaw != Flaw::AbortForgets {
                    self.release(slot);
                }
                continue;
            }
            self.commit(thread, slot, (thread * 100 + turn + 1) as u64);
            if turn + 1 < turns {
                self.commit(thread, slot, 0);
            }
        }
    }
}

fn run(flaw: Flaw) {
    let table = Arc::new(Table::new(flaw));
    let mut threads = Vec::new();
    for thread in 0..THREADS {
        let table = Arc::clone(&table);
        threads.push(thread::spawn(move || table.work(thread, 4)));
    }
    let advancing = Arc::clone(&table);
    threads.push(thread::spawn(move || (0..2).for_each(|_| advancing.advance())));
    let crashing = Arc::clone(&table);
    threads.push(thread::spawn(move || {
        for _ in 0..12 {
            crashing.medium().crash();
            thread::yield_now();
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    table.medium().crash();
    table.advance();
    let keys = table.medium().truth;
    let used = table.used.load(SeqCst);
    for (slot, &key) in keys.iter().enumerate() {
        assert_eq!(
            used >> slot & 1 == 1,
            key != 0,
            "slot {slot} with key {key} is lost, or free"
        );
    }
}

fn explore(flaw: Flaw) {
    // A flaw ends the search when it is found; that it is found must not be a matter of luck.
    let factor = if flaw == Flaw::None { 1 } else { 50 };
    shuttle::check_random(move || run(flaw), 5000 * factor);
    shuttle::check_pct(move || run(flaw), 20_000 * factor, 3);
}

#[test]
fn no_slot_is_given_twice_and_none_is_lost() {
    explore(Flaw::None);
}

#[test]
#[should_panic(expected = "is given twice")]
fn claims_in_two_steps_are_noticed() {
    explore(Flaw::ClaimInTwoSteps);
}

#[test]
#[should_panic(expected = "leaves slot")]
fn slots_reused_before_the_checkpoint_are_noticed() {
    explore(Flaw::EarlyReuse);
}

#[test]
#[should_panic(expected = "slot")]
fn slots_reused_before_their_commit_are_noticed() {
    explore(Flaw::ReuseBeforeCommit);
}

#[test]
#[should_panic(expected = "is lost, or free")]
fn slots_that_an_abort_forgets_are_noticed() {
    explore(Flaw::AbortForgets);
}
