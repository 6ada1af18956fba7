//! Quotas of directory trees: setting, reading and removing them.
//!
//! A tree gets a quota while no other change of the pool is made ([`crate::freeze_barrier`]): each inode in it then
//! names the quota. Inodes made later get it from their directory, and no name crosses the border of a tree.
//!
//! Crash argument: the directory itself names the quota, and has its record (`Q`), before anything in it does, and
//! until nothing does any more; and the record has limits only in between. So after a crash on the way the quota counts
//! a part of the tree and limits nothing, and what encloses it still counts all; setting it again, or removing it,
//! completes the work.

use std::sync::Arc;

use ferrite_vfs::{BadArgument, Ctx, FsError, Ino, Outcome, QUOTA_LEVELS_MAX, Quota, QuotaLimits, QuotaUsage, Result};

use super::{Listed, missing};
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::quota::QuotaRecord;
use crate::inode_ref::InodeRef;
use crate::quotas::{Account, Owners, owners_of};

/// Inodes that one step changes.
const INODES_AT_ONCE: usize = 64;

fn put_limits(step: &mut Step<'_>, dir: Ino, limits: QuotaLimits) -> Result<()> {
    let record = QuotaRecord {
        limits,
        ..QuotaRecord::default()
    };
    Ok(step.txn.put(&key::quota(dir), &record.encode())?)
}

impl Core {
    /// The quota that counts an inode, as [`ferrite_vfs::QUOTA_XATTR`] gives it.
    pub(crate) fn quota_text(self: &Arc<Core>, ino: Ino) -> Result<Vec<u8>> {
        let root = self.pin(ino)?.read()?.node.quota;
        let (limits, used) = self.quotas.find(Account::Tree(root)).ok_or(FsError::NoAttribute)?;
        let quota = Quota {
            root,
            limits,
            used_bytes: u64::try_from(used.bytes).unwrap_or(0),
            used_inodes: u64::try_from(used.inodes).unwrap_or(0),
        };
        Ok(quota.to_string().into_bytes())
    }

    /// Refuses to count while what some files have is not known.
    pub(super) fn check_nothing_behind(&self) -> Result<()> {
        match self.behind.lock().is_empty() {
            true => Ok(()),
            false => {
                let text = "files lie on a data device that is not available; quotas can be set when it is back";
                Err(FsError::Io(text.into()))
            }
        }
    }

    /// The directory, for a caller who may give it a quota.
    fn quota_dir(self: &Arc<Core>, ctx: &Ctx, ino: Ino) -> Result<InodeRef> {
        self.check_writable()?;
        if ctx.check && !ctx.cred.is_root() {
            return Err(FsError::NotPermitted);
        }
        self.check_nothing_behind()?;
        let dir = self.pin(ino).map_err(missing)?;
        {
            let node = &dir.read().map_err(missing)?.node;
            match () {
                () if !node.is_dir() => return Err(FsError::Invalid(BadArgument::QuotaPlace)),
                () if node.is_kept_as_is() => return Err(FsError::ReadOnly),
                () if node.nlink == 0 => return Err(FsError::NotFound),
                () => {}
            }
        }
        Ok(dir)
    }

    /// Gives a directory, and all below it, a quota with these limits, or its quota other limits. Blocks on all changes
    /// in progress; the caller makes none. Durable when it returns. On an error that keeps it from being undone as
    /// well, as of the medium, a quota without limits is left.
    pub(crate) fn set_quota(self: &Arc<Core>, ctx: &Ctx, mut step: Step<'_>, ino: Ino, limits: &[u8]) -> Result<()> {
        let limits = QuotaLimits::parse(limits)?;
        // A caller without the right keeps nobody waiting.
        self.quota_dir(ctx, ino)?;
        self.settle_all();
        let _alone = self.freeze_barrier.shut_for_caller();
        let dir = self.quota_dir(ctx, ino)?;
        let (is_new, enclosing) = {
            let node = &dir.read()?.node;
            (!node.has_own_quota(ino), node.quota)
        };
        if is_new {
            self.begin_quota(&dir, enclosing)?;
        }
        // Also what an earlier call has left, before a crash.
        let moved = self.move_all(&dir, self.quotas.enclosing(ino), ino);
        let done = moved.and_then(|()| {
            put_limits(&mut step, ino, limits)?;
            step.commit(|| Outcome::Done)
        });
        if done.is_err() && is_new {
            let _ = self.own_step().and_then(|step| self.end_quota(step, &dir));
        }
        done?;
        self.quotas.set_limits(Account::Tree(ino), limits);
        Ok(())
    }

    /// Makes a directory, and nothing in it, name a quota of its own, without limits.
    fn begin_quota(self: &Arc<Core>, dir: &InodeRef, enclosing: Ino) -> Result<()> {
        if self.quotas.depth_through(enclosing) >= QUOTA_LEVELS_MAX {
            return Err(FsError::Invalid(BadArgument::QuotaPlace));
        }
        let own = dir.ino;
        let used = match self.meta.get(&key::quota(own))? {
            // The directory had one before.
            Some(_) => self.usage_of_all(&self.inodes_naming(own)?)?,
            None => QuotaUsage::default(),
        };
        self.quotas.begin(own, enclosing, used);
        let begun = self.own_step().and_then(|mut step| {
            put_limits(&mut step, own, QuotaLimits::default())?;
            self.put_quota(step, std::slice::from_ref(dir), own)
        });
        begun.inspect_err(|_| self.quotas.end(own))
    }

    /// Has nothing in a directory name its quota, which has no limits, any more, nor the directory itself.
    fn end_quota(self: &Arc<Core>, mut step: Step<'_>, dir: &InodeRef) -> Result<()> {
        let (own, enclosing) = (dir.ino, self.quotas.enclosing(dir.ino));
        self.move_all(dir, own, enclosing)?;
        match self.move_those_left(own, enclosing)? {
            true => step.txn.delete(&key::quota(own))?,
            false => {
                let ended = QuotaRecord {
                    has_ended: true,
                    ..QuotaRecord::default()
                };
                step.txn.put(&key::quota(own), &ended.encode())?;
            }
        }
        self.put_quota(step, std::slice::from_ref(dir), enclosing)?;
        self.quotas.end(own);
        Ok(())
    }

    /// Has files that have a name elsewhere, and still name a quota that is about to end, name the one around it.
    /// Returns whether none is left: those without a name go soon, and count for none until then.
    fn move_those_left(self: &Arc<Core>, own: Ino, enclosing: Ino) -> Result<bool> {
        let used = self.quotas.find(Account::Tree(own)).map(|(_, used)| used);
        if used.is_none_or(|used| used.inodes <= 1) {
            return Ok(true);
        }
        let (mut named, mut nameless) = (Vec::new(), 0);
        for inode in self.inodes_naming(own)? {
            let nlink = inode.read()?.node.nlink;
            match nlink {
                0 => nameless += 1,
                _ => named.push(inode),
            }
        }
        for some in named.chunks(INODES_AT_ONCE) {
            self.put_quota(self.own_step()?, some, enclosing)?;
        }
        Ok(nameless == 0)
    }

    /// Removes the quota of a directory. Blocks as [`Self::set_quota`]. Durable when it returns. On an error a quota
    /// without limits may be left.
    pub(crate) fn remove_quota(self: &Arc<Core>, ctx: &Ctx, step: Step<'_>, ino: Ino) -> Result<()> {
        self.quota_dir(ctx, ino)?;
        self.settle_all();
        let _alone = self.freeze_barrier.shut_for_caller();
        let dir = self.quota_dir(ctx, ino)?;
        if !dir.read()?.node.has_own_quota(ino) {
            return Err(FsError::NoAttribute);
        }
        let mut unlimited = self.own_step()?;
        put_limits(&mut unlimited, ino, QuotaLimits::default())?;
        unlimited.commit(|| Outcome::Done)?;
        self.quotas.set_limits(Account::Tree(ino), QuotaLimits::default());
        self.end_quota(step, &dir)
    }

    /// Makes inodes name another quota, in one step.
    fn put_quota(&self, mut step: Step<'_>, inodes: &[InodeRef], to: Ino) -> Result<()> {
        // A new quota has no limits yet, and what encloses it counts these already.
        step.is_limited = false;
        step.ignore_flags();
        for inode in inodes {
            let mut state = inode.write()?;
            self.store_node(inode, &mut state)?;
            let mut node = state.node.clone();
            let owners = Owners {
                tree: to,
                ..owners_of(&node)
            };
            step.count_move(inode.ino, &node, owners)?;
            node.quota = to;
            step.put_node(inode.ino, &node)?;
        }
        step.commit(|| Outcome::Done)?;
        for inode in inodes {
            inode.write()?.node.quota = to;
        }
        Ok(())
    }

    /// Makes all that is below a directory, and counted by `from` or a quota around it, counted by `to`. Trees with a
    /// quota of their own lie in that one then.
    fn move_all(self: &Arc<Core>, top: &InodeRef, from: Ino, to: Ino) -> Result<()> {
        self.walk_below(top.ino, |dir, entries, dirs| {
            if self.housekeeper.is_stopping() {
                return Err(FsError::Io("the pool is being closed".into()));
            }
            let mut moved: Vec<InodeRef> = Vec::new();
            for entry in entries {
                let inode = self.moved_entry(dir, entry, (from, to), dirs)?;
                // A file may have several names here.
                moved.extend(inode.filter(|inode| moved.iter().all(|other| other.ino != inode.ino)));
            }
            match moved.is_empty() {
                true => Ok(()),
                false => self.put_quota(self.own_step()?, &moved, to),
            }
        })
    }

    /// Looks at an entry of a directory whose tree moves to another quota; returns the inode if it moves as well, and
    /// adds a directory to look into.
    fn moved_entry(
        self: &Arc<Core>,
        dir: Ino,
        entry: &Listed,
        (from, to): (Ino, Ino),
        dirs: &mut Vec<Ino>,
    ) -> Result<Option<InodeRef>> {
        let ino = entry.edge.ino;
        let inode = self.pin(ino).map_err(|error| self.dangling(dir, ino, error))?;
        let is_moved = {
            let node = &inode.read()?.node;
            if node.has_own_quota(ino) && self.quotas.find(Account::Tree(ino)).is_some() {
                self.quotas.move_into(ino, to);
                return Ok(None);
            }
            // Snapshots count for no quota.
            if node.is_dir() && !node.marks.holds_snapshots {
                dirs.push(ino);
            }
            // Also what an interrupted call has left for a quota further up, or for one that is gone; but a file with
            // names in several trees keeps that of another.
            let is_here = node.is_dir() || node.nlink <= 1 || self.quotas.find(Account::Tree(node.quota)).is_none();
            node.quota == from && from != to || node.quota != to && is_here
        };
        Ok(is_moved.then_some(inode))
    }
}
