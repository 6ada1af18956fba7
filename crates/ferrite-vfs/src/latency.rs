//! [`Latency`]: how long operations of one kind took, for servers and mounts that report it.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

/// Classes of how long an operation took. Class `n` has those of less than `2^(n + SHORTEST_LOG2)` ns that belong to
/// none before it; the last one has all that took longer.
pub const LATENCY_CLASSES: usize = 26;
/// See [`LATENCY_CLASSES`].
pub const SHORTEST_LOG2: u32 = 10;

/// A histogram that threads count in. A count costs two additions to memory that mostly one thread uses.
#[derive(Debug)]
pub struct Latency {
    busy_ns: AtomicU64,
    /// Their sum is the number of operations, so that both always agree.
    classes: [AtomicU64; LATENCY_CLASSES],
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            busy_ns: AtomicU64::new(0),
            classes: array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

fn class(time_ns: u64) -> usize {
    let bits = u64::BITS - time_ns.leading_zeros();
    (bits.saturating_sub(SHORTEST_LOG2) as usize).min(LATENCY_CLASSES - 1)
}

impl Latency {
    /// Counts an operation.
    pub fn count(&self, time_ns: u64) {
        self.classes[class(time_ns)].fetch_add(1, Ordering::Relaxed);
        self.busy_ns.fetch_add(time_ns, Ordering::Relaxed);
    }

    /// The time that all of them took.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns.load(Ordering::Relaxed)
    }

    /// How many there were in each class.
    pub fn classes(&self) -> Vec<u64> {
        self.classes.iter().map(|class| class.load(Ordering::Relaxed)).collect()
    }

    /// Takes over the counts of another, and leaves nothing there.
    pub fn take_over(&self, other: &Latency) {
        let add = |to: &AtomicU64, from: &AtomicU64| {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        };
        add(&self.busy_ns, &other.busy_ns);
        self.classes
            .iter()
            .zip(&other.classes)
            .for_each(|(to, from)| add(to, from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        for (time_ns, expected) in [
            (0, 0),
            (1023, 0),
            (1024, 1),
            (2047, 1),
            (2048, 2),
            (u64::MAX, LATENCY_CLASSES - 1),
        ] {
            assert_eq!(class(time_ns), expected, "{time_ns} ns");
        }
        for n in 0..LATENCY_CLASSES - 1 {
            let end = 1u64 << (n as u32 + SHORTEST_LOG2);
            assert_eq!((class(end - 1), class(end)), (n, n + 1));
        }
    }

    #[test]
    fn counts_that_are_taken_over_are_in_one_place() {
        let (one, other) = (Latency::default(), Latency::default());
        one.count(500);
        other.count(2000);
        one.take_over(&other);
        assert_eq!((one.busy_ns(), other.busy_ns()), (2500, 0));
        assert_eq!(one.classes()[..3], [1, 1, 0]);
        assert_eq!(other.classes().iter().sum::<u64>(), 0);
    }
}
