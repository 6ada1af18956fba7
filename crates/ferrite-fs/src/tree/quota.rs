//! Quotas of directory trees: setting, reading and removing them.
//!
//! A tree gets a quota while no other change is made ([`Core::changes`]): each inode in it then names the quota, in a
//! record of its own. Inodes made later get it from their directory, and no name crosses the border of a tree.
//!
//! Crash argument: the directory itself names the quota before anything in it does, and until nothing does any more,
//! and has limits only in between. So after a crash on the way the quota counts a part of the tree and limits nothing,
//! and what encloses it still counts all; setting it again, or removing it, completes the work.

use std::sync::{Arc, PoisonError};

use ferrite_vfs::{BadArgument, Ctx, FsError, Ino, QUOTA_LEVELS_MAX, Quota, QuotaLimits, QuotaUsage, Result};

use super::dir;
use super::lookup::gone;
use crate::cache::inodes::InodeMem;
use crate::format::inode::{Inode, QuotaId};
use crate::format::layout::CONTROL_QUOTAS;
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx, WhenFrozen};
use crate::retry::{self, Need};
use crate::space::quotas::{Account, usage_of};

/// The quota that counts an inode, as [`ferrite_vfs::QUOTA_XATTR`] gives it.
pub(crate) fn get(core: &Core, ino: Ino) -> Result<Vec<u8>> {
    let mem = core.inode(ino).map_err(gone)?;
    let id = core.snapshot(&mem).map_err(gone)?.quota();
    let (limits, used) = core.quotas.find(Account::Tree(id)).ok_or(FsError::NoAttribute)?;
    let quota = Quota {
        root: u64::from(id.ino()),
        limits,
        used_bytes: u64::try_from(used.bytes).unwrap_or(0),
        used_inodes: u64::try_from(used.inodes).unwrap_or(0),
    };
    Ok(quota.to_string().into_bytes())
}

/// The directory, for a caller who may give it a quota.
fn directory(core: &Core, ctx: &Ctx, ino: Ino) -> Result<(Arc<InodeMem>, Inode)> {
    core.check_writable()?;
    if ctx.check && !ctx.cred.is_root() {
        return Err(FsError::NotPermitted);
    }
    let mem = core.inode(ino).map_err(gone)?;
    let inode = core.snapshot(&mem).map_err(gone)?;
    match () {
        () if !inode.is_dir() => Err(FsError::Invalid(BadArgument::QuotaPlace)),
        () if inode.is_read_only() => Err(FsError::ReadOnly),
        () if inode.nlink() == 0 => Err(FsError::NotFound),
        () => Ok((mem, inode)),
    }
}

/// Gives a directory, and all below it, a quota with these limits, or its quota other limits. Blocks on all changes in
/// progress. Durable when it returns. On an error that keeps it from being undone as well, as of the medium, a quota
/// without limits is left.
pub(crate) fn set(core: &Core, ctx: &Ctx, ino: Ino, limits: &[u8]) -> Result<()> {
    let limits = QuotaLimits::parse(limits)?;
    // A caller without the right keeps nobody waiting.
    directory(core, ctx, ino)?;
    let _alone = core.changes.write().unwrap_or_else(PoisonError::into_inner);
    let (mem, inode) = directory(core, ctx, ino)?;
    let own = inode.own_quota(mem.ino);
    let is_new = !inode.has_own_quota(mem.ino);
    if is_new {
        let enclosing = inode.quota();
        if core.quotas.depth_through(enclosing) >= QUOTA_LEVELS_MAX {
            return Err(FsError::Invalid(BadArgument::QuotaPlace));
        }
        mark_used(core)?;
        core.quotas.begin(own, enclosing, left_by_earlier(core, own));
        change(core, &mem, |inode| inode.set_quota(own)).inspect_err(|_| core.quotas.end(own))?;
    }
    // Also what an earlier call has left, before a crash.
    let done = move_all(core, &mem, core.quotas.enclosing(own), own)
        .and_then(|()| change(core, &mem, |inode| inode.set_quota_limits(limits)));
    if done.is_err() && is_new {
        let _ = undo(core, &mem, own);
    }
    done?;
    core.quotas.set_limits(Account::Tree(own), limits);
    Ok(())
}

/// The usage of inodes that name the quota since the directory had one before: files that are open without a name, or
/// have one elsewhere.
fn left_by_earlier(core: &Core, own: QuotaId) -> QuotaUsage {
    let all = core.superblock.inums(&core.region).map(|ino| core.load(ino));
    let left = all.filter(|inode| inode.in_use() && inode.quota() == own);
    left.fold(QuotaUsage::default(), |sum, inode| sum.plus(usage_of(&inode), 1))
}

/// Has nothing in a directory name its quota, which has no limits, any more.
fn undo(core: &Core, mem: &Arc<InodeMem>, own: QuotaId) -> Result<()> {
    let enclosing = core.quotas.enclosing(own);
    move_all(core, mem, own, enclosing)?;
    change(core, mem, |inode| inode.set_quota(enclosing))?;
    core.quotas.end(own);
    Ok(())
}

/// Removes the quota of a directory. Blocks on all changes in progress. Durable when it returns. On an error a quota
/// without limits may be left.
pub(crate) fn remove(core: &Core, ctx: &Ctx, ino: Ino) -> Result<()> {
    directory(core, ctx, ino)?;
    let _alone = core.changes.write().unwrap_or_else(PoisonError::into_inner);
    let (mem, inode) = directory(core, ctx, ino)?;
    if !inode.has_own_quota(mem.ino) {
        return Err(FsError::NoAttribute);
    }
    let own = inode.quota();
    let none = QuotaLimits::default();
    change(core, &mem, |inode| inode.set_quota_limits(none))?;
    core.quotas.set_limits(Account::Tree(own), none);
    undo(core, &mem, own)
}

/// Has mounts count from now on. Durable before any inode names a quota.
pub(crate) fn mark_used(core: &Core) -> Result<()> {
    if core.region.load(CONTROL_QUOTAS) != 0 {
        return Ok(());
    }
    core.region.store(CONTROL_QUOTAS, 1);
    core.region.write_back(CONTROL_QUOTAS, 8);
    core.region.sync().map_err(|error| core.fail(&error))
}

/// Changes words of an inode that callers do not see.
fn change(core: &Core, mem: &Arc<InodeMem>, edit: impl Fn(&mut Inode)) -> Result<()> {
    put(core, mem, Purpose::Upkeep(WhenFrozen::Wait), edit)
}

fn put(core: &Core, mem: &Arc<InodeMem>, purpose: Purpose, edit: impl Fn(&mut Inode)) -> Result<()> {
    retry::with_space(core, Need::FEW, || {
        let _lock = mem.write();
        let mut inode = core.load_live(mem)?;
        edit(&mut inode);
        let mut tx = Tx::new(core, purpose);
        tx.put_inode(mem.ino, &mut inode);
        tx.commit(&[mem])
    })
}

/// Makes all that is below a directory, and counted by `from` or a quota around it, counted by `to`. Trees with a quota
/// of their own lie in that one then. Not durable before the next change.
fn move_all(core: &Core, top: &Arc<InodeMem>, from: QuotaId, to: QuotaId) -> Result<()> {
    let (mut dirs, mut walked) = (vec![Arc::clone(top)], 0);
    while let Some(dir) = dirs.pop() {
        walked += 1;
        if walked > core.superblock.inodes {
            return Err(FsError::damaged(u64::from(dir.ino), "the directory contains itself"));
        }
        let mut cookie = 0;
        loop {
            let entries = dir::list_some(core, &dir, cookie)?;
            let Some(last) = entries.last() else { break };
            cookie = last.next_cookie;
            for entry in entries {
                let mem = core.inode(u64::from(entry.ino))?;
                let inode = core.snapshot(&mem)?;
                if inode.has_own_quota(mem.ino) && core.quotas.find(Account::Tree(inode.quota())).is_some() {
                    core.quotas.move_into(inode.quota(), to);
                    continue;
                }
                // Also what an interrupted call has left for a quota further up, or for one that is gone; but a file
                // with names in several trees keeps that of another.
                let is_here =
                    inode.is_dir() || inode.nlink() <= 1 || core.quotas.find(Account::Tree(inode.quota())).is_none();
                if inode.quota() == from || inode.quota() != to && is_here {
                    put(core, &mem, Purpose::Background, |inode| inode.set_quota(to))?;
                }
                // Snapshots count for no quota.
                if inode.is_dir() && !inode.is_snapshots() {
                    dirs.push(mem);
                }
            }
        }
    }
    Ok(())
}
