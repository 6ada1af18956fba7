//! What must hold in every pool: each rule once, as a function from what lies on the medium to what is
//! [`Wrong`](super::wrong::Wrong) with it.
//!
//! What lives here: [`View`], what all rules look at, and by file the rules for [`inodes`], for [`pages`] and their
//! blocks, for [`logs`], for [`dirs`] with the entries in them, for the [`names`] that lead to those, for [`links`],
//! and for the copies of the [`superblock`].
//!
//! Four ask them: mount (`load`), which has two threads and no time; `fsck`, which asks everything; `repair`, which
//! asks between its cures; and `scrub`, inode by inode under locks. So the walks are theirs and only the rules are
//! shared. What scrub does not ask, the mount did: what a pool in use changes since, its records keep right.
//!
//! Invariants: nothing here writes, keeps a book or knows who asks. Who owns which block is the asker's book: rules
//! that need it take a function that claims. Where one of the four does not ask a rule, or asks less, the rule says
//! why.

pub(crate) mod dirs;
pub(crate) mod inodes;
pub(crate) mod links;
pub(crate) mod logs;
pub(crate) mod names;
pub(crate) mod pages;
pub(crate) mod superblock;

use ferrite_map::FileMap;
use ferrite_pm::Region;

use crate::audit::wrong::BlockWrong;
use crate::format::inode::Inode;
use crate::format::layout::Superblock;

/// What the rules look at.
#[derive(Clone, Copy)]
pub(crate) struct View<'v> {
    pub(crate) region: &'v Region,
    pub(crate) superblock: &'v Superblock,
    pub(crate) map: &'v dyn FileMap,
}

impl View<'_> {
    /// An inode, sound or not. `ino` is one of the table.
    pub(crate) fn inode(&self, ino: u32) -> Inode {
        Inode::load(self.region, self.superblock.inode_offset(ino))
    }

    /// Whether there can be such an inode.
    pub(crate) fn is_ino(&self, ino: u32) -> bool {
        ino != 0 && u64::from(ino) < self.superblock.inodes
    }

    /// The inode `ino`, if it is in use, sound or not: that it was damaged frees nothing.
    pub(crate) fn in_use(&self, ino: u32) -> Option<Inode> {
        self.is_ino(ino).then(|| self.inode(ino)).filter(Inode::in_use)
    }

    /// Whatever names a block must be its only owner. `claim` notes an owner, and is false if there was one.
    pub(crate) fn own(&self, block: u32, claim: impl FnOnce(u32) -> bool) -> Result<(), BlockWrong> {
        if !self.superblock.is_data_block(block) {
            return Err(BlockWrong::NoData);
        }
        claim(block).then_some(()).ok_or(BlockWrong::Taken)
    }
}
