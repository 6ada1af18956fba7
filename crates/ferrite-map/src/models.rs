//! Models of the DRAM state: the move lock, the free maps and the bounds themselves, under many schedules (shuttle).
//!
//! Contents: small programs of a few threads that use the real types as the mappings do, and check the invariants after
//! each step. Each also runs with deliberate mistakes in its use of them, which it must notice; otherwise it would
//! prove nothing. `cargo test -p ferrite-map --features shuttle --lib models` runs them. Shuttle treats every atomic
//! instruction as sequentially consistent, so the models do not try weaker orders.

use shuttle::sync::Arc;
use shuttle::thread;

use crate::bitmap::AtomicBitmap;
use crate::bounds::Bounds;
use crate::move_lock::MoveLock;
use crate::sync::{AtomicU64, Ordering::SeqCst};

/// Runs a model under many schedules, some of which delay one thread for long.
pub(crate) fn holds(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), 3000);
    shuttle::check_pct(model, 1000, 3);
}

/// A model with a mistake in it fails. That is not a matter of luck: far more schedules are tried than are needed.
pub(crate) fn is_noticed(name: &str, model: impl Fn() + Send + Sync + Clone + 'static) {
    let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        shuttle::check_random(model.clone(), 100_000);
        shuttle::check_pct(model, 50_000, 3);
    }));
    assert!(noticed.is_err(), "{name}: not noticed");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LockFlaw {
    None,
    /// A lookup does not retry.
    UnsteadyLook,
    /// A transaction does not take the move lock.
    NoLock,
    /// A move takes the move lock shared, like a transaction.
    SharedMove,
}

/// An entry that lies left or right, never in both places or none.
fn entries_move(flaw: LockFlaw) {
    let state = Arc::new((MoveLock::default(), [AtomicU64::new(1), AtomicU64::new(0)]));
    let movers = (0..2).map(|_| {
        let state = Arc::clone(&state);
        thread::spawn(move || {
            let (move_lock, places) = &*state;
            let (moving, shared) = match flaw {
                LockFlaw::SharedMove => (None, Some(move_lock.lock_shared())),
                _ => (Some(move_lock.lock_exclusive()), None),
            };
            let from = usize::from(places[1].load(SeqCst) == 1);
            places[from].store(0, SeqCst);
            places[1 - from].store(1, SeqCst);
            drop((moving, shared));
        })
    });
    let looker = Arc::clone(&state);
    let look = thread::spawn(move || {
        let (move_lock, places) = &*looker;
        let sum = || places[0].load(SeqCst) + places[1].load(SeqCst);
        let seen = match flaw {
            LockFlaw::UnsteadyLook => sum(),
            _ => move_lock.steady_for(2, sum),
        };
        assert_eq!(seen, 1, "a lookup met a move half done");
    });
    let changer = Arc::clone(&state);
    let change = thread::spawn(move || {
        let (move_lock, places) = &*changer;
        let shared = (flaw != LockFlaw::NoLock).then(|| move_lock.lock_shared());
        let found = usize::from(places[1].load(SeqCst) == 1);
        // A thread that has passed may try again without waiting, and reads without waiting.
        assert!(shared.is_none() || move_lock.steady_for(1, || true));
        assert_eq!(places[found].load(SeqCst), 1, "an entry moved under a transaction");
        drop(shared);
        if let Some(tried) = move_lock.try_lock_shared() {
            assert_eq!(move_lock.moves() % 2, 0, "a shared lock while entries move");
            drop(tried);
        }
    });
    movers
        .collect::<Vec<_>>()
        .into_iter()
        .chain([look, change])
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(state.0.moves() % 2, 0);
}

#[test]
fn moves_and_transactions_keep_apart() {
    holds(|| entries_move(LockFlaw::None));
    for (name, flaw) in [
        ("a look at nothing steady", LockFlaw::UnsteadyLook),
        ("a transaction without the lock", LockFlaw::NoLock),
        ("a move that does not lock out transactions", LockFlaw::SharedMove),
    ] {
        is_noticed(name, move || entries_move(flaw));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BoundFlaw {
    None,
    /// The bound is raised before the slot is claimed.
    RaisedFirst,
    /// The bound is raised when the key is already visible.
    RaisedLast,
    /// A lowering counts keys alone, not claimed slots.
    ClaimsIgnored,
    /// A slot is released before its key is cleared.
    ReleasedFirst,
}

/// Distances at which keys of the one home may lie.
const SLOTS: u64 = 3;

/// Keys of one home, as HashFS keeps them, with one slot per line: found as long as they are there, whatever other keys
/// come and go.
struct Home {
    used: AtomicBitmap,
    bounds: Bounds,
    keys: [AtomicU64; SLOTS as usize],
    flaw: BoundFlaw,
}

impl Home {
    fn insert(&self, key: u64) -> u64 {
        let free = |&slot: &u64| !self.used.is_set(slot);
        if self.flaw == BoundFlaw::RaisedFirst {
            self.bounds.raise(0, (0..SLOTS).find(free).unwrap_or(0));
        }
        let slot = (0..SLOTS)
            .find(|slot| free(slot) && self.used.claim(*slot))
            .or_else(|| self.used.claim_from(0))
            .expect("fewer keys than slots");
        if !matches!(self.flaw, BoundFlaw::RaisedFirst | BoundFlaw::RaisedLast) {
            self.bounds.raise(0, slot);
        }
        assert_eq!(
            self.keys[slot as usize].swap(key, SeqCst),
            0,
            "slot {slot} is given twice"
        );
        if self.flaw == BoundFlaw::RaisedLast {
            assert!(self.finds(key), "key {key} is out of reach");
            self.bounds.raise(0, slot);
        }
        slot
    }

    fn remove(&self, slot: u64) {
        if self.flaw == BoundFlaw::ReleasedFirst {
            self.used.release(slot);
            self.keys[slot as usize].store(0, SeqCst);
        } else {
            self.keys[slot as usize].store(0, SeqCst);
            assert!(self.used.release(slot));
        }
        self.bounds.lower(0, |bound| {
            let is_needed = |slot: &u64| match self.keys[*slot as usize].load(SeqCst) {
                0 => self.flaw != BoundFlaw::ClaimsIgnored && self.used.octet(0) >> slot & 1 == 1,
                _ => true,
            };
            (1..=bound.min(SLOTS - 1)).rev().find(is_needed).unwrap_or(0)
        });
    }

    fn finds(&self, key: u64) -> bool {
        (0..=self.bounds.lines_to_probe(0, SLOTS)).any(|slot| self.keys[slot as usize].load(SeqCst) == key)
    }
}

fn keys_come_and_go(flaw: BoundFlaw) {
    let home = Arc::new(Home {
        used: AtomicBitmap::new(SLOTS),
        bounds: Bounds::new(1),
        keys: std::array::from_fn(|_| AtomicU64::new(0)),
        flaw,
    });
    let resting = [home.insert(1), home.insert(2)];
    let threads: Vec<_> = [(resting[0], 3), (resting[1], 4)]
        .into_iter()
        .map(|(slot, key)| {
            let home = Arc::clone(&home);
            thread::spawn(move || {
                home.remove(slot);
                let slot = home.insert(key);
                assert!(home.finds(key), "key {key} is out of reach");
                slot
            })
        })
        .collect();
    let slots: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_ne!(slots[0], slots[1], "two keys in a slot");
    for key in [3, 4] {
        assert!(home.finds(key), "key {key} is out of reach");
    }
    assert_eq!(home.used.count_used(), 2);
}

#[test]
fn keys_stay_within_their_bounds() {
    holds(|| keys_come_and_go(BoundFlaw::None));
    for (name, flaw) in [
        ("a bound raised before the claim", BoundFlaw::RaisedFirst),
        ("a bound raised after the key", BoundFlaw::RaisedLast),
        ("claimed slots that are not counted", BoundFlaw::ClaimsIgnored),
        ("a slot released before its key is cleared", BoundFlaw::ReleasedFirst),
    ] {
        is_noticed(name, move || keys_come_and_go(flaw));
    }
}

/// Bits in two words, so that a search wraps. With `in_steps` a bit is read first and set afterwards, as a mistake.
fn bits_are_claimed(in_steps: bool) {
    let bits = Arc::new(AtomicBitmap::new(66));
    (2..64).for_each(|bit| bits.set(bit));
    let claim = move |bits: &AtomicBitmap, from: u64| match in_steps {
        true => {
            let bit = [64, 65, 0, 1].into_iter().find(|&bit| !bits.is_set(bit));
            bit.inspect(|&bit| bits.set(bit))
        }
        false => bits.claim_from(from),
    };
    let threads: Vec<_> = [64, 65, 1]
        .into_iter()
        .map(|from| {
            let bits = Arc::clone(&bits);
            thread::spawn(move || {
                let first = claim(&bits, from).expect("more bits than threads");
                assert!(bits.release(first), "bit {first} was another one's");
                claim(&bits, from).expect("more bits than threads")
            })
        })
        .collect();
    let mut claimed: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    claimed.sort_unstable();
    claimed.dedup();
    assert_eq!(claimed.len(), 3, "a bit was claimed twice");
    assert_eq!(bits.count_used(), 62 + 3);
}

#[test]
fn a_bit_has_one_owner() {
    holds(|| bits_are_claimed(false));
    is_noticed("a claim in two steps", || bits_are_claimed(true));
}
