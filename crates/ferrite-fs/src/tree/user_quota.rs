//! Quotas of users: setting, reading and removing them.
//!
//! They are kept in attributes of the root directory ([`UserQuotas`]). A user who gets a quota is counted while no
//! other change is made ([`Core::changes`]), from the inodes; records count from then on.
//!
//! Crash argument: all quotas are in one attribute list, which one record replaces, and the counts are those of a
//! mount. So a crash leaves the quotas of before or of after. The word
//! [`CONTROL_QUOTAS`](crate::format::layout::CONTROL_QUOTAS), which has a mount look for them, is durable before; it
//! alone has no effect but on the time of the mount.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use ferrite_map::Inum;
use ferrite_vfs::{
    BadArgument, Ctx, FsError, Ino, QuotaLimits, QuotaUsage, ROOT_INO, Result, SYSTEM, SpaceOf, USER_QUOTAS_MAX,
    UserQuota, UserQuotas, posix,
};

use super::{quota, xattr};
use crate::file::rights;
use crate::format::inode::{Inode, ROOT};
use crate::format::xattr::Attributes;
use crate::pool::core::Core;
use crate::space::quotas::{Account, owners_of, usage_of};

/// How long the inodes of a user are counted, again and again, until nothing changes meanwhile: only upkeep does.
const COUNT_MAX: Duration = Duration::from_secs(10);
/// Before the next look, while a change is under way.
const PAUSE: Duration = Duration::from_micros(100);

fn of_attributes(attributes: &Attributes) -> Option<UserQuotas> {
    UserQuotas::of(attributes.iter().map(|(name, value)| (&name[..], &value[..])))
}

/// Those that are kept. Damage, which a check reports, leaves none until then.
pub(crate) fn kept(core: &Core) -> UserQuotas {
    let attributes = rights::attributes(core, ROOT, &core.load(ROOT)).ok();
    let kept = attributes.and_then(|attributes| of_attributes(&attributes));
    if kept.is_none() {
        tracing::warn!("the quotas of users cannot be read: none holds until `ferrite fsck --repair`");
    }
    kept.unwrap_or_default()
}

/// The quota of a user.
///
/// # Errors
/// `NotPermitted` for other users than that one and root; `NoAttribute` without a quota.
pub(crate) fn get(core: &Core, ctx: &Ctx, uid: u32) -> Result<Vec<u8>> {
    if ctx.check && !ctx.cred.is_root() && ctx.cred.uid != uid {
        return Err(FsError::NotPermitted);
    }
    let (limits, used) = core.quotas.find(Account::User(uid)).ok_or(FsError::NoAttribute)?;
    Ok(UserQuota::of(uid, limits, used).to_string().into_bytes())
}

/// The quotas of users, from one on, for root, by the root directory: clients of a part of the pool do not see them.
pub(crate) fn list(core: &Core, ctx: &Ctx, ino: Ino, from: u32) -> Result<Vec<u8>> {
    match ctx.check && !ctx.cred.is_root() {
        true => Err(FsError::NotPermitted),
        false if ino != ROOT_INO => Err(FsError::Invalid(BadArgument::QuotaPlace)),
        false => Ok(UserQuota::list(&core.quotas.users(from))),
    }
}

/// Whether the caller may change quotas of users by an attribute of this inode.
fn check(core: &Core, ctx: &Ctx, ino: Ino) -> Result<()> {
    core.check_writable()?;
    match () {
        () if ctx.check && !ctx.cred.is_root() => Err(FsError::NotPermitted),
        () if ino != ROOT_INO => Err(FsError::Invalid(BadArgument::QuotaPlace)),
        () => Ok(()),
    }
}

/// Gives a user a quota with these limits, or the quota other limits. Blocks on all changes in progress. Durable when
/// it returns.
pub(crate) fn set(core: &Core, ctx: &Ctx, ino: Ino, uid: u32, limits: &[u8]) -> Result<()> {
    let limits = QuotaLimits::parse(limits)?;
    // A caller without the right keeps nobody waiting.
    check(core, ctx, ino)?;
    let _alone = core.changes.write().unwrap_or_else(PoisonError::into_inner);
    check(core, ctx, ino)?;
    let account = Account::User(uid);
    let is_new = core.quotas.find(account).is_none();
    if is_new {
        if core.quotas.users(0).len() >= USER_QUOTAS_MAX {
            return Err(FsError::NoSpace(SpaceOf::Attributes));
        }
        quota::mark_used(core)?;
        core.quotas.begin_user(uid);
    }
    let counted = match is_new {
        true => count(core, uid),
        false => Ok(()),
    };
    let new = UserQuota::of(uid, limits, QuotaUsage::default());
    let done = counted.and_then(|()| keep(core, (uid, Some(new))));
    match done {
        Ok(()) => core.quotas.set_limits(account, limits),
        Err(_) if is_new => core.quotas.end_user(uid),
        Err(_) => {}
    }
    done
}

/// Removes the quota of a user. Blocks on all changes in progress. Durable when it returns.
pub(crate) fn remove(core: &Core, ctx: &Ctx, ino: Ino, uid: u32) -> Result<()> {
    check(core, ctx, ino)?;
    let _alone = core.changes.write().unwrap_or_else(PoisonError::into_inner);
    check(core, ctx, ino)?;
    core.quotas.find(Account::User(uid)).ok_or(FsError::NoAttribute)?;
    keep(core, (uid, None))?;
    core.quotas.end_user(uid);
    Ok(())
}

/// Changes what is kept of a user, in one record.
fn keep(core: &Core, (uid, quota): (u32, Option<UserQuota>)) -> Result<()> {
    xattr::change(core, SYSTEM, (ROOT_INO, UserQuotas::NAME), |attributes| {
        let damaged = || FsError::damaged(ROOT_INO, "the quotas of users cannot be read; run `ferrite fsck`");
        let mut kept = of_attributes(attributes).ok_or_else(damaged)?;
        kept.0.remove(&uid);
        kept.0.extend(quota.map(|quota| (uid, quota)));
        attributes.retain(|(name, _)| !UserQuotas::is_kept_in(name));
        attributes.extend(kept.attributes());
        match posix::xattrs_fit(attributes.iter().map(|(name, value)| (&name[..], &value[..]))) {
            true => Ok(()),
            false => Err(FsError::NoSpace(SpaceOf::Attributes)),
        }
    })
}

/// Counts what a user owns. Callers keep changes out; upkeep that was begun before records counted for the user holds
/// the lock of its inode, and later upkeep is seen by [`ferrite_vfs::QuotaTable::settled`].
fn count(core: &Core, uid: u32) -> Result<()> {
    let is_owned = |inode: &Inode| inode.in_use() && inode.uid() == uid;
    let part = |ino: Inum| -> Option<QuotaUsage> {
        is_owned(&core.load(ino)).then(|| {
            let mem = core.inodes.get(ino);
            let _lock = mem.read();
            let inode = core.load(ino);
            match owners_of(&inode).user == Some(uid) {
                true => usage_of(&inode),
                false => QuotaUsage::default(),
            }
        })
    };
    let until = Instant::now() + COUNT_MAX;
    while Instant::now() < until {
        let Some(settled) = core.quotas.settled() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let parts = core.superblock.inums(&core.region).filter_map(part);
        let used = parts.fold(QuotaUsage::default(), |sum, part| sum.plus(part, 1));
        if core.quotas.set_used(uid, used, settled) {
            return Ok(());
        }
    }
    Err(FsError::Busy)
}
