//! How far from their home line keys of a table may lie. These bounds make deletes without tombstones possible
//! (docs/design.md, "File mapping").
//!
//! One byte per home line, in DRAM, rebuilt when the table is read at mount. A lookup stops at the bound; a delete
//! simply clears its slot. A bound that is too large costs time; one that is too small would lose keys. So a bound
//! grows before the key that needs it becomes visible, and it is lowered only to what the table itself shows.
//!
//! Lowering races with inserts, which claim their slots before their keys become visible. An insert claims its slot and
//! then checks whether its home is being lowered. A lowering announces its home and then reads the slots; it counts
//! every claimed slot without a key as this home's. All four steps are sequentially consistent, so at least one side
//! sees the other: the lowering sees the slot, or the insert sees the lowering and cancels it.

use crossbeam_utils::CachePadded;
use ferrite_pm::{line_trace, prefetch};

use crate::sync::{AtomicU8, AtomicU64, Ordering, spin_loop, zeroed};

/// Means: anywhere in the table.
const FULL: u8 = u8::MAX;
/// Number of announcements, shared by all homes.
const ANNOUNCEMENTS: usize = 64;
/// The lowering can no longer be cancelled and is about to end.
const COMMITTING: u64 = 1;
/// From this bit on, an announcement carries a ticket: a lowering that was cancelled must not mistake the next
/// announcement for the same home for its own.
const TICKET_SHIFT: u32 = 34;
const HOME_MASK: u64 = (1 << TICKET_SHIFT) - 2;

/// Bounds of all home lines of one table.
#[derive(Debug)]
pub struct Bounds {
    bytes: Box<[AtomicU8]>,
    lowering: Box<[CachePadded<Lowering>]>,
}

#[derive(Debug, Default)]
struct Lowering {
    /// Which home is being lowered, if any: its number + 1, twice, [`COMMITTING`], and a ticket.
    announced: AtomicU64,
    tickets: AtomicU64,
}

impl Bounds {
    /// For a table of `lines` lines without keys.
    pub fn new(lines: usize) -> Self {
        Bounds {
            bytes: zeroed(lines),
            lowering: (0..ANNOUNCEMENTS).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Makes sure that lookups of `home` reach `distance` lines past it. The slot there is already claimed.
    #[inline]
    pub fn raise(&self, home: usize, distance_lines: u64) {
        let lowering = &self.lowering[home % ANNOUNCEMENTS].announced;
        // Usually another home, or none, is announced, so a read is enough.
        loop {
            let announced = lowering.load(Ordering::SeqCst);
            if announced & HOME_MASK != (home as u64 + 1) << 1 {
                break;
            }
            if announced & COMMITTING == 0 {
                let _ = lowering.compare_exchange(announced, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
            spin_loop();
        }
        let needed = distance_lines.min(u64::from(FULL)) as u8;
        let bound = &self.bytes[home];
        // Reading first keeps the line shared in the common case.
        if bound.load(Ordering::Relaxed) < needed {
            line_trace::line("bounds", bound);
            bound.fetch_max(needed, Ordering::AcqRel);
        }
    }

    /// Lowers the bound of `home` to what `farthest` returns. `farthest` gets the current bound and returns the
    /// distance of the farthest slot, up to that bound, that holds a key of this home or is claimed and empty. Does
    /// nothing if there is a concurrent insert at this home, or a concurrent lowering of a home that shares the
    /// announcement.
    pub fn lower(&self, home: usize, farthest: impl FnOnce(u64) -> u64) {
        let bound = self.bytes[home].load(Ordering::Acquire);
        if bound == 0 || bound == FULL {
            return;
        }
        let Lowering {
            announced: lowering,
            tickets,
        } = &*self.lowering[home % ANNOUNCEMENTS];
        line_trace::line("bounds", tickets);
        let ticket = tickets.fetch_add(1, Ordering::Relaxed);
        let announced = ticket << TICKET_SHIFT | (home as u64 + 1) << 1;
        if lowering
            .compare_exchange(0, announced, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            return;
        }
        // Raises from before the announcement count, too.
        let bound = self.bytes[home].load(Ordering::SeqCst);
        let lower = match bound {
            // Slots farther away than a bound can express are not searched.
            FULL => FULL,
            _ => farthest(u64::from(bound)).min(u64::from(bound)) as u8,
        };
        let not_called_off =
            lowering.compare_exchange(announced, announced | COMMITTING, Ordering::SeqCst, Ordering::SeqCst);
        if not_called_off.is_ok() {
            // An insert that comes now to raise the bound waits until the announcement is gone. One that checked before
            // the announcement may have raised the bound meanwhile, past the searched slots; then the bound stays.
            let _ = self.bytes[home].compare_exchange(bound, lower, Ordering::SeqCst, Ordering::SeqCst);
            lowering.store(0, Ordering::SeqCst);
        }
    }

    /// Starts loading the bound that [`Self::lines_to_probe`] will read.
    #[inline]
    pub fn prefetch(&self, home: usize) {
        prefetch(std::ptr::from_ref(&self.bytes[home]));
    }

    /// Number of lines after `home` that a lookup must probe, in a table of `lines` lines.
    #[inline]
    pub fn lines_to_probe(&self, home: usize, lines: u64) -> u64 {
        match self.bytes[home].load(Ordering::Acquire) {
            FULL => lines - 1,
            bound => u64::from(bound).min(lines - 1),
        }
    }

    /// DRAM used, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raising_never_lowers_and_saturates_at_the_whole_table() {
        let bounds = Bounds::new(1000);
        for (raised, expected) in [(0, 0), (3, 3), (2, 3), (254, 254), (255, 999), (700, 999), (1, 999)] {
            bounds.raise(7, raised);
            assert_eq!(bounds.lines_to_probe(7, 1000), expected, "raised to {raised}");
        }
        assert_eq!(bounds.lines_to_probe(8, 1000), 0);
        bounds.lower(1, |_| panic!("nothing to lower"));
        bounds.raise(9, 7);
        bounds.lower(9, |bound| {
            assert_eq!(bound, 7);
            3
        });
        assert_eq!(bounds.lines_to_probe(9, 1000), 3);
        // An insert that arrives during the lowering cancels it.
        bounds.lower(9, |_| {
            bounds.raise(9, 2);
            0
        });
        assert_eq!(bounds.lines_to_probe(9, 1000), 3);
        // A table smaller than the bound is probed once, not twice.
        bounds.raise(1, 200);
        assert_eq!(bounds.lines_to_probe(1, 100), 99);
    }

    /// A bound that becomes "anywhere" while it is being lowered stays so: slots beyond a byte's reach are not
    /// searched.
    #[test]
    fn a_bound_that_has_just_become_full_is_not_lowered() {
        const ROUNDS: u64 = 20_000;
        let (bounds, round) = (&Bounds::new(1), &AtomicU64::new(0));
        let spin_until = |count: u64| {
            while round.load(Ordering::SeqCst) < count {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..ROUNDS {
                    spin_until(number * 2 + 1);
                    (0..number % 37).for_each(|_| std::hint::spin_loop());
                    bounds.raise(0, 300);
                    round.fetch_add(1, Ordering::SeqCst);
                }
            });
            for number in 0..ROUNDS {
                bounds.bytes[0].store(10, Ordering::SeqCst);
                round.fetch_add(1, Ordering::SeqCst);
                (0..number % 41).for_each(|_| std::hint::spin_loop());
                bounds.lower(0, |_| 1);
                spin_until(number * 2 + 2);
                assert_eq!(bounds.lines_to_probe(0, 1000), 999, "round {number}");
            }
        });
    }
}
