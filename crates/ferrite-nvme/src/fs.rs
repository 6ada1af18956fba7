//! The engine behind the trait: dispatch of each call, with the answers that tokens repeat.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_vfs::locks::{LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::{
    Attr, Backlog, BadArgument, Ctx, DirEntry, FLAGS_XATTR, FileKind, FileSystem, FsError, Ino, InodeFlags, Limits,
    NewFile, NewNode, OpenFile, OpenMode, Opened, Outcome, PATH_MAX, QuotaAttribute, RenameMode, Result,
    SNAPSHOT_XATTR, SNAPSHOTS_NAME, SetAttr, StatFs, Unsynced, XattrMode,
};

use crate::FILE_BYTES_MAX;
use crate::blobs::capacity;
use crate::core::DEDUP_SLOTS;
use crate::names::{Listed, New, is_dir, missing, unreadable_entry};
use crate::owner::Owner;
use crate::rights::Wanted;

/// Number of inodes that a pool reports as its capacity. It is no limit: nodes take space of the metadata store only.
const INODES_MAX: u64 = 1 << 40;
/// How long a call for the free space waits for what was removed before.
const DELETES_FOR_STATFS: Duration = Duration::from_millis(500);
/// Names that a listing reads at once.
const NAMES_AT_ONCE: usize = 256;

/// The file system of an opened pool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NvmeFs(pub(crate) Arc<Owner>);

fn done(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Done => Ok(()),
        _ => Err(FsError::Superseded),
    }
}

fn kept(attr: Attr) -> Outcome {
    Outcome::Attr(Attr { change: 0, ..attr })
}

impl NvmeFs {
    /// Removed blobs count as free, so they are deleted first. A removed tree may have left very many: then some of
    /// their space counts later.
    fn delete_removed_for_statfs(&self) {
        let start = Instant::now();
        while self.0.housekeeper.deletes() && start.elapsed() < DELETES_FOR_STATFS {
            let Some(_inside) = self.0.freeze_barrier.try_enter() else {
                return;
            };
            if self.0.delete_some_removed().is_err() {
                return;
            }
        }
    }

    /// Attributes that a token kept, for a caller who may want a pin.
    fn attr_again(&self, ctx: &Ctx, outcome: Outcome) -> Result<Attr> {
        let Outcome::Attr(attr) = outcome else {
            return Err(FsError::Superseded);
        };
        match ctx.pins {
            true => self.0.pin(attr.ino).map(|pinned| self.0.give(ctx, pinned, attr)),
            false => Ok(attr),
        }
    }

    fn attr_change(
        &self,
        ctx: &Ctx,
        change: impl FnOnce(crate::core::Step<'_>) -> Result<(crate::inode_ref::InodeRef, Attr)>,
    ) -> Result<Attr> {
        self.0.change(
            ctx,
            |outcome| self.attr_again(ctx, outcome),
            |step| change(step).map(|(pinned, attr)| self.0.give(ctx, pinned, attr)),
        )
    }

    /// The same for a change that keeps all others out.
    fn clone_change(
        &self,
        ctx: &Ctx,
        change: impl FnOnce(crate::core::Step<'_>) -> Result<(crate::inode_ref::InodeRef, Attr)>,
    ) -> Result<Attr> {
        self.0.change_alone(
            ctx,
            |outcome| self.attr_again(ctx, outcome),
            |step| change(step).map(|(pinned, attr)| self.0.give(ctx, pinned, attr)),
        )
    }

    /// Whether listings leave an entry out: a directory of snapshots.
    fn is_hidden(&self, entry: &Listed) -> bool {
        let may_hold = entry.edge.kind == FileKind::Directory && entry.name == SNAPSHOTS_NAME;
        may_hold && self.takes_snapshots(entry.edge.ino)
    }

    /// Lists a directory, some names at a time. No lock is held while `sink` runs.
    fn list(&self, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&Listed) -> bool) -> Result<()> {
        is_dir(&*self.0.dir(dir)?.read().map_err(missing)?)?;
        let mut cookie = cookie;
        loop {
            let (listed, is_damaged) = self.0.names_after(dir, cookie, NAMES_AT_ONCE)?;
            for entry in &listed {
                if !self.is_hidden(entry) && !sink(entry) {
                    return Ok(());
                }
                cookie = entry.cookie;
            }
            if is_damaged {
                return Err(unreadable_entry(dir));
            }
            if listed.len() < NAMES_AT_ONCE {
                return Ok(());
            }
        }
    }
}

impl Listed {
    fn entry(&self) -> DirEntry<'_> {
        DirEntry {
            ino: self.edge.ino,
            kind: self.edge.kind,
            name: &self.name,
            next_cookie: self.cookie,
        }
    }
}

impl FileSystem for NvmeFs {
    fn limits(&self) -> Limits {
        let of_content = self.0.content_limits;
        let mut limits = Limits::local(of_content.atomic_write_bytes, FILE_BYTES_MAX, of_content.durability);
        limits.unsynced = match of_content.is_durable_at_once {
            true => Unsynced::Nothing,
            false => Unsynced::Content,
        };
        limits.sync_mode = of_content.sync_mode;
        limits.may_block = true;
        // Workers for submitted transfers are few, and a store elsewhere may keep them waiting for minutes.
        limits.submits = of_content.is_durable_at_once;
        limits.whole_write_bytes = FILE_BYTES_MAX;
        limits.dedup_slots = DEDUP_SLOTS;
        limits.validity = Duration::MAX;
        limits
    }

    fn backlog(&self) -> Option<Backlog> {
        self.0.content.backlog()
    }

    fn know_buffers(&self, pool: &ferrite_vfs::buffers::Pool) {
        self.0.content.know_buffers(pool);
    }

    fn statfs(&self, _: &Ctx) -> Result<StatFs> {
        self.0.check_open()?;
        if !self.0.is_read_only {
            self.delete_removed_for_statfs();
        }
        let capacity = capacity(&*self.0.content);
        // The unit in which long files get space and have holes.
        let block_bytes = self.0.content_limits.block_bytes.max(1);
        let inodes = self.0.inodes.load(std::sync::atomic::Ordering::Relaxed);
        Ok(StatFs {
            block_bytes: block_bytes as u32,
            blocks: capacity.bytes / block_bytes,
            blocks_free: capacity.free_bytes / block_bytes,
            blocks_available: capacity.free_bytes / block_bytes,
            inodes: INODES_MAX,
            inodes_free: INODES_MAX.saturating_sub(inodes),
            fsid: u64::from_le_bytes(self.0.uuid_head()),
        })
    }

    fn lookup(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.0.lookup(ctx, parent, name)
    }

    fn parent(&self, ctx: &Ctx, dir: Ino) -> Result<Ino> {
        self.0.parent(ctx, dir)
    }

    fn getattr(&self, _: &Ctx, ino: Ino) -> Result<Attr> {
        self.0.check_open()?;
        let pinned = self.0.pin(ino)?;
        let state = pinned.read()?;
        Ok(self.0.attr(&pinned, &state))
    }

    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let again = |outcome| match outcome {
            Outcome::Attr(attr) => Ok(attr),
            _ => Err(FsError::Superseded),
        };
        self.0.change(ctx, again, |step| {
            let pinned = self.0.pin(ino)?;
            self.0
                .setattr(ctx, step, &pinned, &Wanted::of(set, false), Outcome::Attr)
        })
    }

    fn pin(&self, _: &Ctx, ino: Ino, generation: u32) -> Result<()> {
        self.0.check_open()?;
        if generation != 1 {
            return Err(FsError::Stale);
        }
        let pinned = self.0.pin(ino)?;
        drop(pinned.read()?);
        pinned.leave();
        Ok(())
    }

    fn unpin(&self, _: &Ctx, ino: Ino, count: u64) {
        self.0.unpin(ino, count);
    }

    fn readlink(&self, _: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        self.0.check_open()?;
        self.0.readlink(ino)
    }

    fn mknod(&self, ctx: &Ctx, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.attr_change(ctx, |step| {
            if matches!(node.kind, FileKind::Directory | FileKind::Symlink) {
                return Err(FsError::Invalid(BadArgument::NodeKind));
            }
            let new = New {
                rdev: node.rdev,
                ..New::of(node.kind, node.mode)
            };
            self.0.make(ctx, step, parent, name, &new, kept)
        })
    }

    fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        if self.takes_snapshots(parent) {
            return self.clone_change(ctx, |step| self.0.take_snapshot(ctx, step, parent, name));
        }
        self.attr_change(ctx, |step| {
            self.0
                .make(ctx, step, parent, name, &New::of(FileKind::Directory, mode), kept)
        })
    }

    fn symlink(&self, ctx: &Ctx, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.attr_change(ctx, |step| {
            if target.is_empty() {
                return Err(FsError::Invalid(BadArgument::EmptyTarget));
            }
            if target.len() >= PATH_MAX {
                return Err(FsError::NameTooLong);
            }
            let new = New {
                target,
                ..New::of(FileKind::Symlink, 0o777)
            };
            self.0.make(ctx, step, parent, name, &new, kept)
        })
    }

    fn link(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.attr_change(ctx, |step| self.0.link(ctx, step, ino, parent, name))
    }

    fn clone_tree(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.clone_change(ctx, |step| self.0.clone_tree(ctx, step, ino, parent, name))
    }

    fn takes_snapshots(&self, dir: Ino) -> bool {
        let pinned = self.0.pin(dir);
        pinned.is_ok_and(|pinned| pinned.read().is_ok_and(|state| state.node.marks.holds_snapshots))
    }

    fn unlink(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        self.0.change(ctx, done, |step| self.0.unlink(ctx, step, parent, name))
    }

    fn rmdir(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        let again = |outcome| done(outcome).map(|()| None);
        let removed = self
            .0
            .change(ctx, again, |step| self.0.rmdir(ctx, step, parent, name))?;
        // A snapshot without other pins goes here.
        drop(removed);
        Ok(())
    }

    fn rename(
        &self,
        ctx: &Ctx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.0.change(ctx, done, |step| {
            self.0.rename(ctx, step, (parent, name), (new_parent, new_name), mode)
        })
    }

    fn readdir(&self, _: &Ctx, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.list(dir, cookie, &mut |listed| sink(&listed.entry()))
    }

    fn readdir_plus(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()> {
        self.list(dir, cookie, &mut |listed| {
            let found = self.0.pin(listed.edge.ino).and_then(|pinned| {
                let attr = pinned.read().map(|state| self.0.attr(&pinned, &state))?;
                Ok((pinned, attr))
            });
            match found {
                // It was removed since it was listed.
                Err(FsError::Stale) => true,
                Err(error) => sink(&listed.entry(), Err(error)),
                Ok((pinned, attr)) => {
                    let goes_on = sink(&listed.entry(), Ok(attr));
                    if goes_on {
                        self.0.give(ctx, pinned, attr);
                    }
                    goes_on
                }
            }
        })
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        self.0.check_open()?;
        if !mode.truncate {
            return Ok(Arc::new(self.0.open(ctx, ino, mode)?.0));
        }
        let unpinned = Ctx {
            pins: false,
            ..ctx.clone()
        };
        self.0.change(
            ctx,
            |outcome| Ok(self.0.open_again(&unpinned, mode, outcome)?.file),
            |_| Ok(Arc::new(self.0.open(ctx, ino, mode)?.0) as Arc<dyn OpenFile>),
        )
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        if self.0.is_read_only {
            self.0.check_open()?;
            return self.0.open_existing(ctx, parent, name, new);
        }
        self.0.change(
            ctx,
            |outcome| self.0.open_again(ctx, new.open, outcome),
            |step| self.0.create(ctx, step, parent, name, new),
        )
    }

    fn getxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.0.check_open()?;
        match (QuotaAttribute::of(name), name) {
            (Some(QuotaAttribute::Tree), _) => self.0.quota_text(ino),
            (Some(QuotaAttribute::User(uid)), _) => self.0.user_quota_text(ctx, uid),
            (Some(QuotaAttribute::Users(from)), _) => self.0.user_quotas_text(ctx, ino, from),
            (None, SNAPSHOT_XATTR) => self.0.snapshot_text(ctx, ino),
            (None, FLAGS_XATTR) => Ok(self.0.pin(ino)?.read()?.node.flags.to_string().into_bytes()),
            (None, _) => self.0.getxattr(ctx, ino, name),
        }
    }

    fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if let Some(attribute) = QuotaAttribute::of(name) {
            return self.0.change_alone(ctx, done, |step| match attribute {
                QuotaAttribute::Tree => self.0.set_quota(ctx, step, ino, value),
                QuotaAttribute::User(uid) => self.0.set_user_quota(ctx, step, (ino, uid), value),
                QuotaAttribute::Users(_) => Err(FsError::NotPermitted),
            });
        }
        if name == FLAGS_XATTR {
            let flags = InodeFlags::parse(value)?;
            return self.0.change(ctx, done, |step| self.0.set_flags(ctx, step, ino, flags));
        }
        self.0
            .change(ctx, done, |step| self.0.setxattr(ctx, step, ino, (name, value), mode))
    }

    fn listxattr(&self, ctx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.0.check_open()?;
        self.0.listxattr(ctx, ino)
    }

    fn removexattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        if let Some(attribute) = QuotaAttribute::of(name) {
            return self.0.change_alone(ctx, done, |step| match attribute {
                QuotaAttribute::Tree => self.0.remove_quota(ctx, step, ino),
                QuotaAttribute::User(uid) => self.0.remove_user_quota(ctx, step, ino, uid),
                QuotaAttribute::Users(_) => Err(FsError::NotPermitted),
            });
        }
        if name == FLAGS_XATTR {
            let flags = InodeFlags::NONE;
            return self.0.change(ctx, done, |step| self.0.set_flags(ctx, step, ino, flags));
        }
        self.0
            .change(ctx, done, |step| self.0.removexattr(ctx, step, ino, name))
    }

    fn drop_orphans(&self, _: &Ctx) -> Result<()> {
        // Not while a clone is made, which is an orphan until it has its name.
        let _inside = self.0.freeze_barrier.enter();
        self.0.free_orphans()
    }

    fn sync_names(&self, _: &Ctx) -> Result<()> {
        self.0.check_open()?;
        match self.0.is_read_only {
            true => Ok(()),
            false => Ok(self.0.meta.sync()?),
        }
    }

    fn sync(&self, _: &Ctx) -> Result<()> {
        self.0.check_open()?;
        if self.0.is_read_only {
            return Ok(());
        }
        // While the barrier is shut, times wait.
        let Some(_inside) = self.0.freeze_barrier.try_enter() else {
            self.0.content.sync()?;
            return Ok(self.0.meta.sync()?);
        };
        self.0.reclaim()?;
        self.0.content.sync()?;
        Ok(self.0.meta.sync()?)
    }

    fn lock(&self, ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool, done: LockDone) -> Option<LockTicket> {
        self.0.locks.lock(ctx, ino, request, may_wait, done)
    }

    fn unlock(&self, ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> Result<()> {
        self.0.locks.unlock(ctx, ino, owner, what)
    }

    fn conflicting_lock(&self, ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Result<Option<RecordLock>> {
        Ok(self.0.locks.conflict(ctx, ino, lock))
    }

    fn cancel_lock(&self, ctx: &Ctx, ticket: LockTicket) {
        self.0.locks.cancel(ctx, ticket);
    }

    fn release_client(&self, ctx: &Ctx) {
        self.0.locks.release_client(ctx);
    }
}
