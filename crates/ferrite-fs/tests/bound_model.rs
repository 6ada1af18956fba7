//! A model of displacement bounds that are lowered while others insert; run by shuttle under many schedules.
//!
//! As in `slot_model.rs` nothing is instrumented: this models `ferrite-map/src/bounds.rs` and `hashfs.rs`, with the
//! same atomics in the same order. One home, whose keys may lie 0 to 2 buckets after it, one slot a bucket.

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::thread;

const BUCKETS: usize = 3;
const ANNOUNCED: u64 = 2;
const COMMITTING: u64 = 1;

/// Ways to get it wrong, which the model must notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// An insert does not check whether its home is being lowered.
    NoLook,
    /// An insert checks before it claims its slot.
    LookBeforeClaim,
    /// Claimed slots without a key are not counted.
    ClaimsIgnored,
    /// A bound is stored although another thread cancelled it.
    StoredAnyway,
    /// A raise by a thread that checked before the announcement is overwritten.
    BlindStore,
    /// Announcements have no tickets, so a cancelled one takes the next one for itself.
    NoTickets,
}

struct Home {
    used: [AtomicU64; BUCKETS],
    keys: [AtomicU64; BUCKETS],
    bound: AtomicU64,
    lowering: AtomicU64,
    tickets: AtomicU64,
    flaw: Flaw,
}

impl Home {
    /// A key of another home in the first bucket, and a bound that is too large, as after deletes.
    fn new(flaw: Flaw) -> Home {
        let home = Home {
            used: std::array::from_fn(|_| AtomicU64::new(0)),
            keys: std::array::from_fn(|_| AtomicU64::new(0)),
            bound: AtomicU64::new(2),
            lowering: AtomicU64::new(0),
            tickets: AtomicU64::new(0),
            flaw,
        };
        home.used[0].store(1, SeqCst);
        home.keys[0].store(u64::MAX, SeqCst);
        home
    }

    /// The first half of `Bounds::raise`.
    fn call_off(&self) {
        loop {
            let announced = self.lowering.load(SeqCst);
            if announced & ANNOUNCED == 0 {
                break;
            }
            if announced & COMMITTING == 0 {
                let _ = self.lowering.compare_exchange(announced, 0, SeqCst, SeqCst);
            }
            thread::yield_now();
        }
    }

    /// `HashFs::insert`, then the commit that makes the key visible.
    fn insert(&self, key: u64) {
        if self.flaw == Flaw::LookBeforeClaim {
            self.call_off();
        }
        let distance = (0..BUCKETS)
            .find(|&distance| self.used[distance].swap(1, SeqCst) == 0)
            .expect("a slot for each key");
        if !matches!(self.flaw, Flaw::NoLook | Flaw::LookBeforeClaim) {
            self.call_off();
        }
        if self.bound.load(SeqCst) < distance as u64 {
            self.bound.fetch_max(distance as u64, SeqCst);
        }
        thread::yield_now();
        self.keys[distance].store(key, SeqCst);
    }

    /// `Bounds::lower`, with the counts of `HashFs::lower_a_bound`.
    fn lower(&self) {
        let ticket = match self.flaw {
            Flaw::NoTickets => 0,
            _ => self.tickets.fetch_add(1, SeqCst),
        };
        let announced = ticket << 2 | ANNOUNCED;
        if self.lowering.compare_exchange(0, announced, SeqCst, SeqCst).is_err() {
            return;
        }
        let bound = self.bound.load(SeqCst);
        let is_needed = |&distance: &u64| {
            let claimed = self.used[distance as usize].load(SeqCst) == 1;
            let key = self.keys[distance as usize].load(SeqCst);
            let counts_empty = self.flaw != Flaw::ClaimsIgnored;
            claimed && (key == 0 && counts_empty || key != 0 && key != u64::MAX)
        };
        let lower = (1..=bound).rev().find(is_needed).unwrap_or(0);
        let committing = announced | COMMITTING;
        let kept = self.lowering.compare_exchange(announced, committing, SeqCst, SeqCst);
        if kept.is_ok() || self.flaw == Flaw::StoredAnyway {
            if self.flaw == Flaw::BlindStore {
                self.bound.store(lower, SeqCst);
            } else {
                let _ = self.bound.compare_exchange(bound, lower, SeqCst, SeqCst);
            }
            self.lowering.store(0, SeqCst);
        }
    }

    fn finds(&self, key: u64) -> bool {
        let bound = self.bound.load(SeqCst) as usize;
        (0..=bound).any(|distance| self.keys[distance].load(SeqCst) == key)
    }
}

fn run(flaw: Flaw) {
    let home = Arc::new(Home::new(flaw));
    let mut threads = Vec::new();
    for key in [1, 2] {
        let home = Arc::clone(&home);
        threads.push(thread::spawn(move || {
            home.insert(key);
            assert!(home.finds(key), "key {key} is out of reach");
        }));
    }
    for _ in 0..2 {
        let home = Arc::clone(&home);
        threads.push(thread::spawn(move || home.lower()));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    for key in [1, 2] {
        assert!(home.finds(key), "key {key} is out of reach");
    }
    home.lower();
    for key in [1, 2] {
        assert!(home.finds(key), "key {key} is out of reach");
    }
}

#[test]
fn no_key_gets_out_of_reach() {
    shuttle::check_random(|| run(Flaw::None), 20_000);
    shuttle::check_pct(|| run(Flaw::None), 5_000, 3);
}

/// The model would notice.
#[test]
fn flaws_are_noticed() {
    for (name, flaw) in [
        ("no look", Flaw::NoLook),
        ("a look before the claim", Flaw::LookBeforeClaim),
        ("claims ignored", Flaw::ClaimsIgnored),
        ("stored anyway", Flaw::StoredAnyway),
        ("a blind store", Flaw::BlindStore),
        ("no tickets", Flaw::NoTickets),
    ] {
        let noticed = std::panic::catch_unwind(|| shuttle::check_random(move || run(flaw), 200_000));
        assert!(noticed.is_err(), "{name} was not noticed");
    }
}
