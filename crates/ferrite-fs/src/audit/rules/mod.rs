//! The invariants of every pool: each rule once, as a function from the bytes on the medium to
//! [`Wrong`](super::wrong::Wrong).
//!
//! Contents: [`View`], which all rules read, and one file each for the rules of [`inodes`], [`pages`] and their
//! blocks, [`logs`], [`dirs`] with their entries, the [`names`] that lead to those, [`links`], [`quotas`], and the
//! copies of the [`superblock`].
//!
//! Four callers check them: mount (`load`), which has two threads and little time; `fsck`, which checks everything;
//! `repair`, which checks between its repairs; and `scrub`, which goes inode by inode under locks. So each has its own
//! walk, and only the rules are shared. Rules that scrub skips were checked by the mount: a pool in use changes their
//! data only by records, which keep it right.
//!
//! Invariants: nothing here writes, keeps state or knows its caller. The caller keeps the table of block owners: rules
//! that need it take a function that claims. Where one of the four does not check a rule, or checks less, the rule's
//! comment says why.

pub(crate) mod dirs;
pub(crate) mod inodes;
pub(crate) mod links;
pub(crate) mod logs;
pub(crate) mod names;
pub(crate) mod outcomes;
pub(crate) mod pages;
pub(crate) mod quotas;
pub(crate) mod superblock;

use ferrite_map::{BlockNo, FileMap, Inum};
use ferrite_pm::Region;

use crate::audit::wrong::BlockWrong;
use crate::format::inode::Inode;
use crate::format::layout::Superblock;

/// The pool as the rules read it.
#[derive(Clone, Copy)]
pub(crate) struct View<'v> {
    pub(crate) region: &'v Region,
    pub(crate) superblock: &'v Superblock,
    pub(crate) map: &'v dyn FileMap,
}

impl View<'_> {
    /// An inode, sound or not. `ino` must be in the table.
    pub(crate) fn inode(&self, ino: Inum) -> Inode {
        Inode::load(self.region, self.superblock.inode_offset(ino))
    }

    /// Whether such an inode can exist.
    pub(crate) fn is_ino(&self, ino: Inum) -> bool {
        ino != Inum::NONE && u64::from(ino) < self.superblock.inodes
    }

    /// The inode `ino`, if it is in use, sound or not: damage to an inode frees nothing.
    pub(crate) fn in_use(&self, ino: Inum) -> Option<Inode> {
        self.is_ino(ino).then(|| self.inode(ino)).filter(Inode::in_use)
    }

    /// Whatever refers to a block must be its only owner. `claim` records an owner, and is false if there was one.
    pub(crate) fn own(&self, block: BlockNo, claim: impl FnOnce(BlockNo) -> bool) -> Result<(), BlockWrong> {
        if !self.superblock.is_data_block(block) {
            return Err(BlockWrong::NoData);
        }
        claim(block).then_some(()).ok_or(BlockWrong::Taken)
    }
}
