//! The usage of quotas, of trees and of users, by inodes ([`ferrite_vfs::QuotaTable`] adds it up). `quota_counts` has
//! the reservations that steps make, and counting anew.
//!
//! A node names the directory of the quota that counts it. Of space a quota counts the sizes of files, in whole pages,
//! and extended attributes: a node has all that it takes to count it, and no crash can part the two. Holes count, and
//! space that is reserved behind the end would not, so it is refused.

use std::collections::{HashMap, HashSet};

use ferrite_vfs::{FileKind, Ino, QuotaAccount, QuotaChange, QuotaCharge, QuotaOwners, QuotaTable, QuotaUsage};

use crate::FILE_BYTES_MAX;
use crate::format::node::Node;
use crate::lock_order;

pub(crate) type Quotas = QuotaTable<lock_order::Quotas, Ino>;
pub(crate) type Change = QuotaChange<Ino>;
pub(crate) type Account = QuotaAccount<Ino>;
pub(crate) type Owners = QuotaOwners<Ino>;
pub(crate) type Charge<'c> = QuotaCharge<'c, lock_order::Quotas, Ino>;

/// Unit of space.
const PAGE_BYTES: u64 = 4096;

/// So many bytes in whole pages.
pub(crate) fn in_pages(bytes: u64) -> i64 {
    (bytes.min(FILE_BYTES_MAX).div_ceil(PAGE_BYTES) * PAGE_BYTES).cast_signed()
}

/// The quotas that count a node. Root has no quota, and snapshots count for none.
pub(crate) fn owners_of(node: &Node) -> Owners {
    let is_counted = node.uid != 0 && !node.marks.in_snapshot && !node.marks.holds_snapshots;
    Owners {
        tree: node.quota,
        user: is_counted.then_some(node.uid),
    }
}

/// The part of an inode, without its extended attributes.
pub(crate) fn usage_of(node: &Node) -> QuotaUsage {
    QuotaUsage {
        bytes: if node.kind == FileKind::File {
            in_pages(node.size)
        } else {
            0
        },
        inodes: 1,
    }
}

/// The part of extended attributes, which take this much in their record.
pub(crate) fn usage_of_xattrs(bytes: u64) -> QuotaUsage {
    QuotaUsage {
        bytes: in_pages(bytes),
        inodes: 0,
    }
}

/// Adds up what inodes use of the quotas of the trees that they name, and of users that have one.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) used: HashMap<Account, QuotaUsage>,
    users: HashSet<u32>,
    /// Counted inodes with extended attributes.
    with_xattrs: HashMap<Ino, Owners>,
}

impl Tally {
    /// Of all trees, and of these users.
    pub(crate) fn of(users: impl Iterator<Item = u32>) -> Tally {
        Tally {
            users: users.collect(),
            ..Tally::default()
        }
    }

    fn add(&mut self, owners: Owners, usage: QuotaUsage) {
        for account in owners.accounts() {
            let sum = self.used.entry(account).or_default();
            *sum = sum.plus(usage, 1);
        }
    }

    pub(crate) fn node(&mut self, ino: Ino, node: &Node) {
        let all = owners_of(node);
        let owners = Owners {
            user: all.user.filter(|uid| self.users.contains(uid)),
            ..all
        };
        self.add(owners, usage_of(node));
        if node.has_xattrs && owners != Owners::default() {
            self.with_xattrs.insert(ino, owners);
        }
    }

    /// The record of extended attributes of a node that was added has so many bytes.
    pub(crate) fn xattrs(&mut self, ino: Ino, bytes: u64) {
        if let Some(&owners) = self.with_xattrs.get(&ino) {
            self.add(owners, usage_of_xattrs(bytes));
        }
    }
}

/// The reservations of a step.
#[derive(Default)]
pub(crate) struct Reserved<'c>(pub(crate) Vec<(Charge<'c>, Vec<Change>)>);

impl Reserved<'_> {
    /// The change is made.
    pub(crate) fn keep(self) {
        for (charge, changes) in self.0 {
            charge.keep(&changes);
        }
    }
}
