//! Floor 2, quotas of directory trees and of users: how much inodes use of them ([`ferrite_vfs::QuotaTable`] adds it
//! up).
//!
//! An inode names the quota of the tree that counts it ([`QuotaId`], a word of the inode), and has an owner. The counts
//! are in DRAM alone: each record that changes an inode changes them ([`crate::pool::tx::Tx::put_inode`]), and a mount
//! counts anew.

use ferrite_map::Inum;
use ferrite_vfs::{QuotaAccount, QuotaChange, QuotaCharge, QuotaOwners, QuotaTable, QuotaUsage};

use crate::format::inode::{Inode, QuotaId};
use crate::format::layout::BLOCK_BYTES;
use crate::lock_order;

pub(crate) type Quotas = QuotaTable<lock_order::Quotas, QuotaId>;
pub(crate) type Charged<'q> = QuotaCharge<'q, lock_order::Quotas, QuotaId>;
pub(crate) type Change = QuotaChange<QuotaId>;
pub(crate) type Account = QuotaAccount<QuotaId>;

/// The part of an inode; nothing for a free one.
pub(crate) fn usage_of(inode: &Inode) -> QuotaUsage {
    let pages = u64::from(inode.blocks()) + u64::from(inode.xattr_word() != 0);
    match inode.in_use() {
        true => QuotaUsage {
            bytes: (pages * BLOCK_BYTES).cast_signed(),
            inodes: 1,
        },
        false => QuotaUsage::default(),
    }
}

/// The quotas that count an inode. Root has no quota, and snapshots count for none.
pub(crate) fn owners_of(inode: &Inode) -> QuotaOwners<QuotaId> {
    let is_counted = inode.in_use() && inode.uid() != 0 && !inode.is_read_only();
    QuotaOwners {
        tree: inode.quota(),
        user: is_counted.then(|| inode.uid()),
    }
}

/// A change of an inode by a record.
pub(crate) fn change_of(ino: Inum, old: &Inode, new: &Inode) -> Change {
    Change {
        ino: ino.into(),
        before: (owners_of(old), usage_of(old)),
        after: (owners_of(new), usage_of(new)),
        is_own: old.has_own_quota(ino),
    }
}
