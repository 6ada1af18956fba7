//! Quotas of users: setting, reading and removing them.
//!
//! They are kept in attributes of the root directory ([`UserQuotas`]), with the usage when the pool was closed. A user
//! who gets a quota is counted while no other change of the pool is made ([`crate::freeze_barrier`]), from the inodes;
//! steps count from then on.
//!
//! Crash argument: one step replaces the record of attributes, which has all quotas, and an opening after a crash
//! counts anew. So a crash leaves the quotas of before or of after.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_vfs::{
    BadArgument, Ctx, FsError, Ino, QuotaLimits, QuotaUsage, ROOT_INO, Result, SYSTEM, SpaceOf, USER_QUOTAS_MAX,
    UserQuota, UserQuotas, posix,
};

use crate::core::{Core, Step};
use crate::format::key;
use crate::quotas::{Account, Tally, owners_of};

/// How long the inodes of a user are counted, again and again, until nothing changes meanwhile: only housekeeping does.
const COUNT_MAX: Duration = Duration::from_secs(10);
/// Before the next look, while a change is under way.
const PAUSE: Duration = Duration::from_micros(100);

impl Core {
    /// The quota of a user.
    ///
    /// # Errors
    /// `NotPermitted` for other users than that one and root; `NoAttribute` without a quota.
    pub(crate) fn user_quota_text(&self, ctx: &Ctx, uid: u32) -> Result<Vec<u8>> {
        if ctx.check && !ctx.cred.is_root() && ctx.cred.uid != uid {
            return Err(FsError::NotPermitted);
        }
        let (limits, used) = self.quotas.find(Account::User(uid)).ok_or(FsError::NoAttribute)?;
        Ok(UserQuota::of(uid, limits, used).to_string().into_bytes())
    }

    /// The quotas of users, from one on, for root, by the root directory: clients of a part of the pool do not see
    /// them.
    pub(crate) fn user_quotas_text(&self, ctx: &Ctx, ino: Ino, from: u32) -> Result<Vec<u8>> {
        match ctx.check && !ctx.cred.is_root() {
            true => Err(FsError::NotPermitted),
            false if ino != ROOT_INO => Err(FsError::Invalid(BadArgument::QuotaPlace)),
            false => Ok(UserQuota::list(&self.quotas.users(from))),
        }
    }

    /// Whether the caller may change quotas of users by an attribute of this inode.
    fn check_user_quotas(&self, ctx: &Ctx, ino: Ino) -> Result<()> {
        self.check_writable()?;
        self.check_nothing_behind()?;
        match () {
            () if ctx.check && !ctx.cred.is_root() => Err(FsError::NotPermitted),
            () if ino != ROOT_INO => Err(FsError::Invalid(BadArgument::QuotaPlace)),
            () => Ok(()),
        }
    }

    /// Gives a user a quota with these limits, or the quota other limits. Blocks on all changes in progress; the caller
    /// makes none. Durable when it returns.
    pub(crate) fn set_user_quota(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        (ino, uid): (Ino, u32),
        limits: &[u8],
    ) -> Result<()> {
        let limits = QuotaLimits::parse(limits)?;
        // A caller without the right keeps nobody waiting.
        self.check_user_quotas(ctx, ino)?;
        let _alone = self.freeze_barrier.shut_for_caller();
        self.check_user_quotas(ctx, ino)?;
        let account = Account::User(uid);
        let is_new = self.quotas.find(account).is_none();
        if is_new {
            if self.quotas.users(0).len() >= USER_QUOTAS_MAX {
                return Err(FsError::NoSpace(SpaceOf::Attributes));
            }
            self.quotas.begin_user(uid);
        }
        let counted = match is_new {
            true => self.count_user(uid),
            false => Ok(()),
        };
        let new = UserQuota::of(uid, limits, QuotaUsage::default());
        let done = counted.and_then(|()| {
            self.keep_user_quotas(step, |kept| {
                kept.insert(uid, new);
            })
        });
        match done {
            Ok(()) => self.quotas.set_limits(account, limits),
            Err(_) if is_new => self.quotas.end_user(uid),
            Err(_) => {}
        }
        done
    }

    /// Removes the quota of a user. Blocks as [`Self::set_user_quota`]. Durable when it returns.
    pub(crate) fn remove_user_quota(self: &Arc<Core>, ctx: &Ctx, step: Step<'_>, ino: Ino, uid: u32) -> Result<()> {
        self.check_user_quotas(ctx, ino)?;
        let _alone = self.freeze_barrier.shut_for_caller();
        self.check_user_quotas(ctx, ino)?;
        self.quotas.find(Account::User(uid)).ok_or(FsError::NoAttribute)?;
        self.keep_user_quotas(step, |kept| {
            kept.remove(&uid);
        })?;
        self.quotas.end_user(uid);
        Ok(())
    }

    /// Changes what is kept, in one step.
    fn keep_user_quotas(
        self: &Arc<Core>,
        step: Step<'_>,
        edit: impl FnOnce(&mut BTreeMap<u32, UserQuota>),
    ) -> Result<()> {
        self.change_xattrs(SYSTEM, step, ROOT_INO, UserQuotas::NAME, |xattrs| {
            let read = xattrs.iter().map(|(name, value)| (&name[..], &value[..]));
            let damaged = || FsError::damaged(ROOT_INO, "the quotas of users cannot be read; run `ferrite fsck`");
            let mut kept = UserQuotas::of(read).ok_or_else(damaged)?;
            edit(&mut kept.0);
            xattrs.retain(|name, _| !UserQuotas::is_kept_in(name));
            xattrs.extend(kept.attributes());
            match posix::xattrs_fit(xattrs.iter().map(|(name, value)| (&name[..], &value[..]))) {
                true => Ok(()),
                false => Err(FsError::NoSpace(SpaceOf::Attributes)),
            }
        })
    }

    /// Keeps how much users use for the next opening. Nothing changes before the pool is closed.
    pub(crate) fn keep_user_counts(self: &Arc<Core>) -> Result<()> {
        let users = self.quotas.users(0);
        if users.is_empty() {
            return Ok(());
        }
        let mut step = self.own_step()?;
        // A step that deletes has space reserved in a full store, which must be closed, too.
        step.txn.delete(&key::xattrs(ROOT_INO))?;
        self.keep_user_quotas(step, |kept| {
            *kept = users.into_iter().map(|quota| (quota.uid, quota)).collect()
        })
    }

    /// Counts what a user owns.
    fn count_user(self: &Arc<Core>, uid: u32) -> Result<()> {
        let until = Instant::now() + COUNT_MAX;
        while Instant::now() < until {
            let Some(settled) = self.quotas.settled() else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let used = self.usage_of_user(uid)?;
            if self.quotas.set_used(uid, used, settled) {
                return Ok(());
            }
        }
        Err(FsError::Busy)
    }

    /// How much a user owns. Inodes in memory count as they are there, and the other ones as their records say, which
    /// are read in the order that they have.
    fn usage_of_user(self: &Arc<Core>, uid: u32) -> Result<QuotaUsage> {
        let in_memory = self.all_pinned();
        let skipped: HashSet<Ino> = in_memory.iter().map(|inode| inode.ino).collect();
        let mut tally = Tally::of(std::iter::once(uid));
        self.tally_records(&mut tally, |ino| !skipped.contains(&ino))?;
        let mut used = tally.used.get(&Account::User(uid)).copied().unwrap_or_default();
        for inode in &in_memory {
            let owner = match inode.read() {
                Ok(state) => owners_of(&state.node).user,
                // It is gone.
                Err(FsError::Stale) => continue,
                Err(error) => return Err(error),
            };
            if owner == Some(uid) {
                used = used.plus(self.usage_of_all(std::slice::from_ref(inode))?, 1);
            }
        }
        Ok(used)
    }
}
