//! [`FileSystem`] for the engine: checks arguments, then delegates.

use std::sync::Arc;

use ferrite_pm::Medium;
use ferrite_vfs::locks::{LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::{
    Attr, BadArgument, Ctx, DirEntry, Durability, FLAGS_XATTR, FileKind, FileSystem, FsError, Ino, InodeFlags, Limits,
    NewFile, NewNode, OpenFile, OpenMode, Opened, QuotaAttribute, RenameMode, Result, SNAPSHOT_XATTR, SetAttr, StatFs,
    Unsynced, XattrMode, posix,
};

use super::file::PmFile;
use super::handle::Engine;
use crate::file::atime::touch_atime;
use crate::file::bound;
use crate::file::write::ATOMIC_BYTES;
use crate::format::layout::{BLOCK_BYTES, MAX_FILE_BYTES};
use crate::tree::attr::{self, Through};
use crate::tree::lookup::{lookup, pin};
use crate::tree::open::{self, Taken};
use crate::tree::{clone, create, dir, held, permission, plus, quota, remove, rename, user_quota, xattr};

impl Engine {
    fn make(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &create::New<'_>) -> Result<Attr> {
        let core = self.core();
        self.dedup(ctx, || {
            let made = core.told(create::create(core, ctx, parent, name, new, false))?;
            Ok(made.1)
        })
    }

    /// Truncates a file that is being opened; the permission was checked.
    fn truncate(&self, ctx: &Ctx, ino: Ino) -> Result<Attr> {
        let set = SetAttr {
            size: Some(0),
            kill_priv: ctx.kills_priv(),
            ..SetAttr::default()
        };
        let allowed = Ctx {
            check: false,
            ..ctx.clone()
        };
        attr::setattr(self.core(), &allowed, ino, &set, Through::Opening)
    }

    fn take(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Taken> {
        let core = self.core();
        let mut taken = open::create(core, ctx, parent, name, new)?;
        if new.open.truncate && !taken.created {
            match self.truncate(ctx, taken.attr.ino) {
                Ok(attr) => taken.attr = attr,
                Err(error) => {
                    remove::unpin(core, &taken.inode, 1 + u64::from(ctx.pins));
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }

    fn take_existing(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Taken> {
        let core = self.core();
        let inode = core.inode(ino)?;
        let mut attr = open::pin(core, ctx, &inode, mode)?;
        if mode.truncate {
            attr = self
                .truncate(ctx, ino)
                .inspect_err(|_| remove::unpin(core, &inode, 1))?;
        }
        Ok(Taken {
            inode,
            attr,
            created: false,
        })
    }
}

impl FileSystem for Engine {
    fn regions(&self) -> Option<&dyn ferrite_vfs::regions::Regions> {
        Some(self)
    }

    fn limits(&self) -> Limits {
        let core = self.core();
        let durability = match core.region.medium() {
            Medium::Anonymous => Durability::None,
            Medium::NamedDram => Durability::Process,
            Medium::File if core.options.durability == ferrite_pm::Durability::Process => Durability::Process,
            Medium::File | Medium::Dax => Durability::Power,
        };
        let mut limits = Limits::local(ATOMIC_BYTES as u64, MAX_FILE_BYTES, durability);
        limits.dedup_slots = core.superblock.dedup_slots as u32;
        limits.may_block = core.region.medium() == Medium::File;
        if core.region.defers_write_back() && !core.syncs_commits {
            limits.unsynced = Unsynced::Everything;
        }
        limits
    }

    fn statfs(&self, _: &Ctx) -> Result<StatFs> {
        let core = self.core();
        core.check_readable()?;
        let superblock = &core.superblock;
        // Space that operations freed but a crash could still replay counts as free, and so do blocks that log segments
        // will return: both can be reclaimed on demand. The call changes nothing.
        let count = || core.alloc.free() + core.pending().blocks + core.log_space.returning();
        let free = core.journal.while_settled(count);
        let reserve = superblock.reserve_blocks;
        let names = core.names.counts();
        let names_free = names.total - names.used;
        let inodes_free = core.inode_map.len() - core.inode_map.count_used();
        Ok(StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks: superblock.blocks,
            blocks_free: free,
            blocks_available: free.saturating_sub(reserve),
            inodes: superblock.inodes - 1,
            inodes_free: inodes_free.min(names_free),
            fsid: superblock.uuid as u64,
        })
    }

    fn lookup(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr> {
        posix::check_name(name)?;
        let core = self.core();
        let attr = core.reading(|core| lookup(core, ctx, parent, name))?;
        match core.bindings.is_empty() {
            true => Ok(attr),
            false => self.getattr(ctx, attr.ino),
        }
    }

    fn parent(&self, ctx: &Ctx, dir: Ino) -> Result<Ino> {
        self.core().reading(|core| {
            core.with_dir(dir, |ino, inode| {
                permission::search(core, ctx, (ino, inode))?;
                Ok(u64::from(inode.parent()))
            })
        })
    }

    fn getattr(&self, _: &Ctx, ino: Ino) -> Result<Attr> {
        self.core().reading(|core| {
            let inode = core.inode(ino)?;
            bound::settle_times(core, &inode);
            core.current_attr(&inode)
        })
    }

    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let core = self.core();
        self.dedup(ctx, || core.told(attr::setattr(core, ctx, ino, set, Through::Inode)))
    }

    fn pin(&self, _: &Ctx, ino: Ino, generation: u32) -> Result<()> {
        pin(self.core(), &self.core().inode(ino)?, generation)
    }

    fn unpin(&self, _: &Ctx, ino: Ino, count: u64) {
        if let Ok(inode) = self.core().inode(ino) {
            remove::unpin(self.core(), &inode, count);
        }
    }

    fn forget(&self, _: &Ctx, ino: Ino, count: u64) {
        if let Ok(inode) = self.core().inode(ino) {
            remove::forget(self.core(), inode, count);
        }
    }

    fn readlink(&self, _: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        self.core().reading(|core| {
            let inode = core.inode(ino)?;
            let _lock = inode.read();
            let loaded = core.load_live(&inode)?;
            if loaded.kind() != Some(FileKind::Symlink) {
                return Err(FsError::Invalid(BadArgument::NotLink));
            }
            create::link_target(core, inode.ino, &loaded)
        })
    }

    fn mknod(&self, ctx: &Ctx, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        if matches!(node.kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid(BadArgument::NodeKind));
        }
        let new = create::New {
            kind: node.kind,
            mode: node.mode,
            rdev: node.rdev,
            target: &[],
        };
        self.make(ctx, parent, name, &new)
    }

    fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        if self.takes_snapshots(parent) {
            let core = self.core();
            return self.dedup_alone(ctx, || core.told(clone::take_snapshot(core, ctx, parent, name)));
        }
        let new = create::New {
            kind: FileKind::Directory,
            mode,
            rdev: 0,
            target: &[],
        };
        self.make(ctx, parent, name, &new)
    }

    fn symlink(&self, ctx: &Ctx, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(FsError::Invalid(BadArgument::EmptyTarget));
        }
        if target.len() >= ferrite_vfs::PATH_MAX {
            return Err(FsError::NameTooLong);
        }
        let new = create::New {
            kind: FileKind::Symlink,
            mode: 0o777,
            rdev: 0,
            target,
        };
        self.make(ctx, parent, name, &new)
    }

    fn link(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let core = self.core();
        self.dedup(ctx, || core.told(create::link(core, ctx, ino, parent, name)))
    }

    fn clone_tree(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let core = self.core();
        self.dedup_alone(ctx, || core.told(clone::clone_tree(core, ctx, ino, parent, name)))
    }

    fn unlink(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        let core = self.core();
        self.dedup(ctx, || {
            core.told(remove::unlink(core, ctx, parent, name, false)).map(drop)
        })
    }

    fn rmdir(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        let core = self.core();
        let mut snapshot = None;
        let removed = self.dedup(ctx, || {
            snapshot = core.told(remove::unlink(core, ctx, parent, name, true))?;
            Ok(())
        });
        if let Some(top) = snapshot {
            // All of it goes, while others make changes and clones.
            remove::unpin(core, &top, 1);
        }
        removed
    }

    fn takes_snapshots(&self, dir: Ino) -> bool {
        let core = self.core();
        let load = || core.inode(dir).and_then(|inode| core.snapshot(&inode));
        core.superblock.has_shared_blocks() && load().is_ok_and(|inode| inode.is_snapshots())
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
        let core = self.core();
        self.dedup(ctx, || {
            core.told(rename::rename(core, ctx, (parent, name), (new_parent, new_name), mode))
        })
    }

    fn readdir(&self, ctx: &Ctx, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let core = self.core();
        core.reading(|core| core.with_dir(dir, |ino, inode| dir::list_shown(core, ino, inode, cookie, sink)))?;
        if core.options.dir_atime && !ctx.no_atime {
            touch_atime(core, &core.inode(dir)?);
        }
        Ok(())
    }

    fn readdir_plus(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()> {
        let core = self.core();
        core.reading(|core| plus::list(core, ctx, dir, cookie, sink))?;
        if core.options.dir_atime && !ctx.no_atime {
            touch_atime(core, &core.inode(dir)?);
        }
        Ok(())
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let taken = match mode.truncate {
            // The handle has the only pin.
            true => {
                let unpinned = Ctx {
                    pins: false,
                    ..ctx.clone()
                };
                self.dedup(&unpinned, || self.core().told(self.take_existing(&unpinned, ino, mode)))?
            }
            false => self.core().reading(|_| self.take_existing(ctx, ino, mode))?,
        };
        Ok(Arc::new(PmFile::new(self.clone(), taken.inode, mode)))
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        let core = self.core();
        core.check_readable()?;
        let taken = self.dedup(ctx, || core.told(self.take(ctx, parent, name, new)))?;
        Ok(Opened {
            attr: taken.attr,
            file: Arc::new(PmFile::new(self.clone(), taken.inode, new.open)),
            created: taken.created,
        })
    }

    fn getxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.core().reading(|core| match (QuotaAttribute::of(name), name) {
            (Some(QuotaAttribute::Tree), _) => quota::get(core, ino),
            (Some(QuotaAttribute::User(uid)), _) => user_quota::get(core, ctx, uid),
            (Some(QuotaAttribute::Users(from)), _) => user_quota::list(core, ctx, ino, from),
            (None, FLAGS_XATTR) => attr::flags(core, ino),
            (None, SNAPSHOT_XATTR) => held::get(core, ctx, ino),
            (None, _) => xattr::get(core, ctx, ino, name),
        })
    }

    fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let core = self.core();
        if let Some(attribute) = QuotaAttribute::of(name) {
            let set = || match attribute {
                QuotaAttribute::Tree => quota::set(core, ctx, ino, value),
                QuotaAttribute::User(uid) => user_quota::set(core, ctx, ino, uid, value),
                QuotaAttribute::Users(_) => Err(FsError::NotPermitted),
            };
            return self.dedup_alone(ctx, || core.told(set()));
        }
        if name == FLAGS_XATTR {
            let flags = InodeFlags::parse(value)?;
            return self.dedup(ctx, || core.told(attr::set_flags(core, ctx, ino, flags)));
        }
        let change = || core.told(xattr::set(core, ctx, ino, name, value, mode));
        match posix::is_own_xattr(name) {
            // Services set these where they must not wait for a clone, which leaves them out.
            true => self.dedup_alone(ctx, change),
            false => self.dedup(ctx, change),
        }
    }

    fn listxattr(&self, ctx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.core().reading(|core| xattr::list(core, ctx, ino))
    }

    fn removexattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let core = self.core();
        if let Some(attribute) = QuotaAttribute::of(name) {
            let remove = || match attribute {
                QuotaAttribute::Tree => quota::remove(core, ctx, ino),
                QuotaAttribute::User(uid) => user_quota::remove(core, ctx, ino, uid),
                QuotaAttribute::Users(_) => Err(FsError::NotPermitted),
            };
            return self.dedup_alone(ctx, || core.told(remove()));
        }
        if name == FLAGS_XATTR {
            return self.dedup(ctx, || core.told(attr::set_flags(core, ctx, ino, InodeFlags::NONE)));
        }
        let change = || core.told(xattr::remove(core, ctx, ino, name));
        match posix::is_own_xattr(name) {
            true => self.dedup_alone(ctx, change),
            false => self.dedup(ctx, change),
        }
    }

    fn drop_orphans(&self, _: &Ctx) -> Result<()> {
        let core = self.core();
        let mut kept = core.kept_orphans.lock();
        while let Some(&ino) = kept.last() {
            // The last holder frees it with its pin.
            core.told(remove::free_orphan(core, &core.inodes.get(ino)))?;
            kept.pop();
        }
        Ok(())
    }

    fn unnamed_files(&self) -> Option<u64> {
        Some(self.core().unnamed())
    }

    fn sync(&self, _: &Ctx) -> Result<()> {
        let core = self.core();
        core.check_readable()?;
        match core.failed.get() {
            Some(error) => Err(FsError::Io(error.clone())),
            None => core.journal.sync().map_err(|error| core.fail(&error)),
        }
    }

    fn lock(&self, ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool, done: LockDone) -> Option<LockTicket> {
        self.locks().lock(ctx, ino, request, may_wait, done)
    }

    fn unlock(&self, ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> Result<()> {
        self.locks().unlock(ctx, ino, owner, what)
    }

    fn conflicting_lock(&self, ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Result<Option<RecordLock>> {
        Ok(self.locks().conflict(ctx, ino, lock))
    }

    fn cancel_lock(&self, ctx: &Ctx, ticket: LockTicket) {
        self.locks().cancel(ctx, ticket);
    }

    fn release_client(&self, ctx: &Ctx) {
        self.locks().release_client(ctx);
    }
}
