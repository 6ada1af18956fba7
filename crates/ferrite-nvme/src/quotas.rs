//! The usage of quotas by inodes ([`ferrite_vfs::QuotaTable`] adds it up). `quota_counts` has the reservations that
//! steps make, and counting anew.
//!
//! A node names the directory of the quota that counts it. Of space a quota counts the sizes of files, in whole pages,
//! and extended attributes: a node has all that it takes to count it, and no crash can part the two. Holes count, and
//! space that is reserved behind the end would not, so it is refused.

use std::collections::HashMap;

use ferrite_vfs::{FileKind, Ino, QuotaChange, QuotaCharge, QuotaTable, QuotaUsage};

use crate::FILE_BYTES_MAX;
use crate::format::node::Node;
use crate::lock_order;

pub(crate) type Quotas = QuotaTable<lock_order::Quotas, Ino>;
pub(crate) type Change = QuotaChange<Ino>;
pub(crate) type Charge<'c> = QuotaCharge<'c, lock_order::Quotas, Ino>;

/// Unit of space.
const PAGE_BYTES: u64 = 4096;

/// So many bytes in whole pages.
pub(crate) fn in_pages(bytes: u64) -> i64 {
    (bytes.min(FILE_BYTES_MAX).div_ceil(PAGE_BYTES) * PAGE_BYTES).cast_signed()
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

/// Adds up what inodes use of the quotas that they name.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) used: HashMap<Ino, QuotaUsage>,
    /// Inodes with extended attributes, and their quotas.
    with_xattrs: HashMap<Ino, Ino>,
}

impl Tally {
    pub(crate) fn node(&mut self, ino: Ino, node: &Node) {
        if node.quota == 0 {
            return;
        }
        let sum = self.used.entry(node.quota).or_default();
        *sum = sum.plus(usage_of(node), 1);
        if node.has_xattrs {
            self.with_xattrs.insert(ino, node.quota);
        }
    }

    /// The record of extended attributes of a node that was added has so many bytes.
    pub(crate) fn xattrs(&mut self, ino: Ino, bytes: u64) {
        let quota = self.with_xattrs.get(&ino);
        if let Some(sum) = quota.and_then(|quota| self.used.get_mut(quota)) {
            *sum = sum.plus(usage_of_xattrs(bytes), 1);
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
