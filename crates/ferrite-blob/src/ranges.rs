//! Which pages of a blob are being read and which overwritten, so that each transfer is one step for all others.
//!
//! Invariants: while a thread overwrites pages no other touches them; while a thread reads pages no other overwrites
//! them. A waiting thread comes before all later ones that would have to wait for it, so no thread starves. A turn ends
//! when its [`Turn`] is dropped, on any thread. The lock here only covers walks of lists, whose length is the number of
//! transfers under way on one blob.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::Thread;

use ferrite_checks::ranked::{Mutex, MutexGuard};

use crate::lock_order;

/// Where a thread that waits finds its turn.
struct Waiter {
    thread: Thread,
    turn: Arc<Mutex<lock_order::Turn, Option<Turn>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Claim {
    pages: Range<u64>,
    overwrites: bool,
    number: u64,
}

impl Claim {
    fn meets(&self, other: &Claim) -> bool {
        (self.overwrites || other.overwrites)
            && self.pages.start < other.pages.end
            && other.pages.start < self.pages.end
    }
}

#[derive(Default)]
struct Lists {
    number: u64,
    active: Vec<Claim>,
    waiting: VecDeque<(Claim, Waiter)>,
}

impl Lists {
    /// Grants the turns that need not wait any more.
    fn grant(&mut self) -> Vec<(Claim, Waiter)> {
        let mut granted = Vec::new();
        let mut index = 0;
        while let Some((claim, _)) = self.waiting.get(index) {
            let waits = self.active.iter().any(|other| other.meets(claim))
                || self.waiting.iter().take(index).any(|(other, _)| other.meets(claim));
            match waits {
                true => index += 1,
                false => {
                    self.active.push(claim.clone());
                    granted.extend(self.waiting.remove(index));
                }
            }
        }
        granted
    }
}

/// See the module's head.
#[derive(Clone, Default)]
pub(crate) struct Ranges(Arc<Mutex<lock_order::Ranges, Lists>>);

/// Pages that the caller may transfer. Dropping it releases them.
pub(crate) struct Turn {
    lists: Arc<Mutex<lock_order::Ranges, Lists>>,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let granted = {
            let mut lists = self.lists.lock();
            let ended = lists.active.iter().position(|claim| claim.number == self.number);
            if let Some(ended) = ended {
                lists.active.swap_remove(ended);
            }
            match lists.waiting.is_empty() {
                true => return,
                false => lists.grant(),
            }
        };
        for (claim, waiter) in granted {
            *waiter.turn.lock() = Some(Turn {
                lists: Arc::clone(&self.lists),
                number: claim.number,
            });
            waiter.thread.unpark();
        }
    }
}

impl Ranges {
    /// A turn, if it is free.
    pub(crate) fn try_take(&self, pages: Range<u64>, overwrites: bool) -> Option<Turn> {
        self.take(pages, overwrites).ok()
    }

    /// Waits for its turn.
    pub(crate) fn wait_for(&self, pages: Range<u64>, overwrites: bool) -> Turn {
        let (mut lists, claim) = match self.take(pages, overwrites) {
            Ok(turn) => return turn,
            Err(waits) => waits,
        };
        let turn: Arc<Mutex<lock_order::Turn, Option<Turn>>> = Arc::default();
        let waiter = Waiter {
            thread: std::thread::current(),
            turn: Arc::clone(&turn),
        };
        lists.waiting.push_back((claim, waiter));
        drop(lists);
        loop {
            if let Some(turn) = turn.lock().take() {
                return turn;
            }
            std::thread::park();
        }
    }

    fn take(&self, pages: Range<u64>, overwrites: bool) -> Result<Turn, (MutexGuard<'_, Lists>, Claim)> {
        let mut lists = self.0.lock();
        lists.number += 1;
        let number = lists.number;
        let claim = Claim {
            pages,
            overwrites,
            number,
        };
        let waits = lists.active.iter().any(|other| other.meets(&claim))
            || lists.waiting.iter().any(|(other, _)| other.meets(&claim));
        if waits {
            return Err((lists, claim));
        }
        lists.active.push(claim);
        Ok(Turn {
            lists: Arc::clone(&self.0),
            number,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn readers_share_and_writers_do_not() {
        let ranges = Ranges::default();
        let reads = ranges.try_take(0..4, false).unwrap();
        let reads_too = ranges.try_take(2..6, false).unwrap();
        assert!(ranges.try_take(3..4, true).is_none());
        drop(reads);
        assert!(ranges.try_take(3..4, true).is_none());
        let elsewhere = ranges.try_take(6..8, true).unwrap();
        assert!(ranges.try_take(7..9, false).is_none());
        drop((reads_too, elsewhere));
        assert!(ranges.try_take(0..9, true).is_some());
    }

    #[test]
    fn who_waits_is_not_overtaken_by_those_it_waits_for() {
        let ranges = Ranges::default();
        let reads = ranges.try_take(0..4, false).unwrap();
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| drop(ranges.wait_for(0..4, true)));
            while ranges.0.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            // It could share with the reader, but the writer came before it.
            assert!(ranges.try_take(0..4, false).is_none());
            assert!(ranges.try_take(4..8, true).is_some());
            drop(reads);
            writes.join().unwrap();
        });
        assert!(ranges.try_take(0..4, false).is_some());
    }

    #[test]
    fn threads_exclude_each_other() {
        let ranges = Ranges::default();
        // Each page counts readers by one and writers by a thousand.
        let pages: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (ranges, pages) = (&ranges, &pages);
                scope.spawn(move || {
                    let mut state = thread * 77 + 1;
                    for _ in 0..5000 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                        let from = (state >> 33) % 8;
                        let to = from + 1 + (state >> 41) % (8 - from);
                        let overwrites = (state >> 50).is_multiple_of(3);
                        let weight = if overwrites { 1000 } else { 1 };
                        let _turn = ranges.wait_for(from..to, overwrites);
                        for page in from..to {
                            let before = pages[page as usize].fetch_add(weight, Ordering::AcqRel);
                            assert!(before < 1000 && (!overwrites || before == 0), "{before}");
                        }
                        std::thread::yield_now();
                        for page in from..to {
                            pages[page as usize].fetch_sub(weight, Ordering::AcqRel);
                        }
                    }
                });
            }
        });
        assert!(ranges.0.lock().active.is_empty());
    }
}
