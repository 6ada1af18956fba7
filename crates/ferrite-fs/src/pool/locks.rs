//! Several inodes locked at once, in the order that [`crate::lock_order`] states: ascending number.

use std::sync::Arc;

use ferrite_map::Inum;

use crate::cache::inodes::{DirHints, Exclusive, InodeMem};

/// Exclusive locks on several inodes, taken in ascending order of number.
pub(crate) struct LockSet<'a> {
    held: Vec<Exclusive<'a>>,
}

impl<'a> LockSet<'a> {
    /// Locks all of `inodes`; duplicates count once.
    pub(crate) fn lock(inodes: &[&'a Arc<InodeMem>]) -> LockSet<'a> {
        let mut sorted = inodes.to_vec();
        sorted.sort_unstable_by_key(|inode| inode.ino);
        sorted.dedup_by_key(|inode| inode.ino);
        LockSet {
            held: sorted.into_iter().map(InodeMem::write).collect(),
        }
    }

    /// The hints of `ino`, which must be one of the locked inodes.
    pub(crate) fn hints(&mut self, ino: Inum) -> &mut DirHints {
        let held = self.held.iter_mut().find(|held| held.inode.ino == ino);
        held.expect("only locked inodes are asked for").hints()
    }
}
