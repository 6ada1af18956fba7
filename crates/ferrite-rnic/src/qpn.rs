//! Numbers of queue pairs, shared by the threads of an adapter.
//!
//! A queue pair belongs to the thread whose index is its number modulo the number of threads, since the kernel
//! distributes datagrams that way. Numbers are allocated round robin: late packets of a dead queue pair reach none.

use std::collections::HashSet;

use ferrite_roce::wire::{Psn, QPN_MASK, Qpn};
use parking_lot::Mutex;

/// Smaller ones have special meanings.
const FIRST: Qpn = 16;

#[derive(Debug)]
struct State {
    next: Qpn,
    taken: HashSet<Qpn>,
}

/// All numbers, with those in use.
#[derive(Debug)]
pub(crate) struct QpnAllocator {
    state: Mutex<State>,
    most: usize,
}

impl QpnAllocator {
    pub(crate) fn new(most: usize) -> QpnAllocator {
        let state = State {
            next: (random() & QPN_MASK).max(FIRST),
            taken: HashSet::new(),
        };
        QpnAllocator {
            state: Mutex::new(state),
            // There must always be a free one.
            most: most.min(QPN_MASK as usize / 2),
        }
    }

    /// A number that was not used for long; `None` if too many are taken.
    pub(crate) fn take(&self) -> Option<Qpn> {
        let mut state = self.state.lock();
        if state.taken.len() >= self.most {
            return None;
        }
        loop {
            let qpn = state.next;
            state.next = if qpn == QPN_MASK { FIRST } else { qpn + 1 };
            if state.taken.insert(qpn) {
                return Some(qpn);
            }
        }
    }

    pub(crate) fn give_back(&self, qpn: Qpn) {
        self.state.lock().taken.remove(&qpn);
    }

    pub(crate) fn count(&self) -> usize {
        self.state.lock().taken.len()
    }
}

/// Unpredictable bits.
pub(crate) fn random() -> u32 {
    let mut bytes = [0; 4];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            // A kernel without it: the process id and the time must do.
            Err(_) => return std::process::id() ^ std::time::UNIX_EPOCH.elapsed().map_or(0, |it| it.subsec_nanos()),
        }
    }
    u32::from_ne_bytes(bytes)
}

/// A first sequence number.
pub(crate) fn random_psn() -> Psn {
    Psn::new(random() & QPN_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_in_a_circle_and_so_many_at_a_time() {
        let qpns = QpnAllocator::new(2);
        let first = qpns.take().unwrap();
        let second = qpns.take().unwrap();
        assert_ne!(first, second);
        assert_eq!(qpns.take(), None);
        qpns.give_back(first);
        let third = qpns.take().unwrap();
        assert!(third != first && third != second, "a number was given again at once");
        qpns.state.lock().next = QPN_MASK;
        qpns.give_back(second);
        qpns.give_back(third);
        assert_eq!([qpns.take(), qpns.take()], [Some(QPN_MASK), Some(FIRST)]);
        assert_eq!(qpns.count(), 2);
    }
}
