//! Counting for all quotas at a mount, after recovery.

use std::collections::HashMap;

use ferrite_map::Inum;
use ferrite_vfs::{QuotaUsage, UserQuota};

use super::user_quota;
use crate::format::inode::{Inode, QuotaId};
use crate::format::layout::CONTROL_QUOTAS;
use crate::pool::core::Core;
use crate::space::quotas::{Account, owners_of, usage_of};

/// Counts for all quotas, from the inodes.
pub(crate) fn load(core: &Core) {
    if core.region.load(CONTROL_QUOTAS) == 0 {
        return;
    }
    let users = user_quota::kept(core);
    let of_user = |(&uid, quota): (&u32, &UserQuota)| (Account::User(uid), quota.limits(), QuotaId::NONE);
    let mut found: Vec<_> = users.0.iter().map(of_user).collect();
    let mut used: HashMap<Account, QuotaUsage> = HashMap::new();
    for ino in core.superblock.inums(&core.region) {
        let inode = core.load(ino);
        let has_quota = inode.quota() != QuotaId::NONE || users.0.contains_key(&inode.uid());
        if !inode.in_use() || !has_quota || !inode.is_sound(ino) {
            continue;
        }
        for account in owners_of(&inode).accounts() {
            let sum = used.entry(account).or_default();
            *sum = sum.plus(usage_of(&inode), 1);
        }
        if inode.has_own_quota(ino) {
            let account = Account::Tree(inode.quota());
            found.push((account, inode.quota_limits(), enclosing(core, ino, &inode)));
        }
    }
    core.quotas.load(found, &used);
}

/// The quota that a directory with one of its own lies in.
fn enclosing(core: &Core, ino: Inum, inode: &Inode) -> QuotaId {
    let parent = inode.parent();
    match parent == ino || u64::from(parent) >= core.superblock.inodes {
        true => QuotaId::NONE,
        false => core.load(parent).quota(),
    }
}
