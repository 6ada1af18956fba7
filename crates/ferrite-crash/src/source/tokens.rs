//! The operations that carry tokens, and those tokens: as of clients with a few slots each.
//!
//! Invariant: slots belong to one thread each, and numbers of a slot ascend in the order of its operations, as those of
//! a session do.

use ferrite_testkit::ops::Op;
use ferrite_testkit::rng::Rng;
use ferrite_vfs::{DedupToken, OpenMode};

/// Slots of each thread: so few that outcomes soon replace each other.
const SLOTS: u64 = 3;
/// Slots of the smallest pool that has any.
const SLOTS_OF_POOL: u64 = 32;

/// The tokens of the operations of each thread. An even number gives one to each operation that changes something; an
/// odd one leaves some without.
pub(super) fn draw(threads: &[Vec<Op>], number: u64) -> Vec<Vec<Option<DedupToken>>> {
    let mut rng = Rng::new(number ^ 0x70ce5);
    let first = rng.below(SLOTS_OF_POOL - SLOTS * threads.len() as u64 + 1);
    let of_thread = |(thread, ops): (usize, &Vec<Op>)| {
        // The number before the first must be one that a slot may have.
        let mut newest = [(); SLOTS as usize].map(|()| 1 + rng.below(1000));
        let token = |op: &Op| {
            if !changes(op) || (number % 2 == 1 && rng.below(4) == 0) {
                return None;
            }
            let slot = rng.below(SLOTS);
            newest[slot as usize] += 1 + u64::from(rng.below(8) == 0);
            Some(DedupToken {
                slot: (first + SLOTS * thread as u64 + slot) as u32,
                seq: newest[slot as usize],
            })
        };
        ops.iter().map(token).collect()
    };
    threads.iter().enumerate().map(of_thread).collect()
}

/// Whether its first call changes something: other calls follow some operations, to set what the contract leaves open.
fn changes(op: &Op) -> bool {
    matches!(
        op,
        Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::CloneTree { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Setattr { .. }
            | Op::Open {
                mode: OpenMode { truncate: true, .. },
                ..
            }
            | Op::Write { .. }
            | Op::Append { .. }
            | Op::Fallocate { .. }
            | Op::Clone { .. }
            | Op::Setxattr { .. }
            | Op::Removexattr { .. }
    )
}
