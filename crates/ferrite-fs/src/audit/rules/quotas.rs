//! Quotas: a directory counts for the quota of the one that it is in, or has one of its own.

use ferrite_map::Inum;
use ferrite_vfs::QuotaLimits;

use super::View;
use crate::audit::wrong::EntryWrong;
use crate::format::inode::{Inode, QuotaId};

/// The quota of what a directory names. Snapshots count for none.
pub(crate) fn inherited(dir: &Inode) -> QuotaId {
    match dir.is_read_only() {
        true => QuotaId::NONE,
        false => dir.quota(),
    }
}

/// A directory counts for the quota of the directory that names it. A file may have names in several trees, and then
/// counts for one of them. While a quota is set or removed it has no limits, and a crash may leave that half done, so
/// then either quota is right. Mount does not check this, as it reads no inode of a name; nor does scrub, since the
/// counts are made at a mount.
pub(crate) fn counts(view: View<'_>, dir: &Inode, (ino, inode): (Inum, &Inode)) -> Result<(), EntryWrong> {
    let (quota, expected) = (inode.quota(), inherited(dir));
    let is_half_done = |id: QuotaId| {
        view.in_use(id.ino())
            .is_some_and(|root| root.own_quota(id.ino()) == id && root.quota_limits() == QuotaLimits::default())
    };
    let is_free = !inode.is_dir() || inode.has_own_quota(ino);
    match quota == expected || is_free || is_half_done(quota) || is_half_done(expected) {
        true => Ok(()),
        false => Err(EntryWrong::Quota {
            of: quota.ino(),
            expected: expected.ino(),
        }),
    }
}
