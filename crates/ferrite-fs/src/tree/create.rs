//! New names: files, directories, symbolic links, hard links.

use std::cell::OnceCell;
use std::sync::Arc;

use ferrite_map::{Inum, Lblk, PageId, PageWord};
use ferrite_pm::profile::{self, ProfileSpan};
use ferrite_vfs::posix::Inherited;
use ferrite_vfs::{
    Attr, Ctx, FileKind, FsError, Ino, LINK_MAX, Outcome, Result, SNAPSHOTS_NAME, Timestamp, Unsupported, acl, posix,
};

use super::lookup::{check_dir, gone};
use super::{dir, permission};
use crate::cache::inodes::{Exclusive, InodeMem};
use crate::file::rights;
use crate::format::inode::{INLINE_BYTES, Inode, QuotaId};
use crate::format::layout::BLOCK_BYTES;
use crate::format::xattr::Attributes;
use crate::page::block;
use crate::pool::core::{Core, map_error};
use crate::pool::locks::LockSet;
use crate::pool::tx::{Purpose, Tx};
use crate::retry::{self, Need};
use crate::space::quotas::Account;

/// The inode to create.
pub(crate) struct New<'a> {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) rdev: u32,
    /// The target of a symbolic link.
    pub(crate) target: &'a [u8],
}

/// Creates an inode and its first name.
///
/// One record sets the new inode, the entry, its slot in the name table and the directory's inode. A long link target
/// is written to a new block before that.
///
/// The inode comes with a pin if the context asks for that, and with one more if it is to be `opened`.
pub(crate) fn create(
    core: &Core,
    ctx: &Ctx,
    parent: Ino,
    name: &[u8],
    new: &New<'_>,
    opened: bool,
) -> Result<(Arc<InodeMem>, Attr)> {
    posix::check_name(name)?;
    core.check_writable()?;
    retry::with_space(core, Need::FEW, || {
        let parent = core.inode(parent).map_err(gone)?;
        let key = core.names.key(parent.ino, name);
        core.prefetch_free_inode();
        let mut parent_lock = parent.write();
        let mut directory = core.load_live(&parent).map_err(gone)?;
        check_dir(&directory)?;
        let taken = profile::within(ProfileSpan::Lookup, || dir::find(core, &directory, &key))?.is_some();
        permission::create(core, ctx, (parent.ino, &directory), new.kind, taken)?;
        if taken {
            return Err(FsError::Exists);
        }
        let is_dir = new.kind == FileKind::Directory;
        if is_dir && directory.nlink() >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let mut tx = Tx::new(core, Purpose::Change);
        let ino = tx.alloc_inode()?;
        let place = OnceCell::new();
        let child = profile::within(ProfileSpan::Books, || core.inodes.fresh(ino, &place));
        let now = Core::now();
        let mut inode = new_inode(core, ctx, &mut tx, (ino, now), (parent.ino, &directory), new)?;
        if is_dir && name == SNAPSHOTS_NAME {
            hold_snapshots(core, ctx, &directory, &mut inode)?;
        }
        if is_dir {
            directory.set_nlink(directory.nlink() + 1);
        }
        directory.set_mtime(now);
        directory.set_ctime(now);
        let space = (&mut directory, parent_lock.hints());
        let planned = profile::within(ProfileSpan::Record, || {
            dir::insert(core, &mut tx, &key, space, (ino, new.kind))
        })?;
        tx.put_inode(parent.ino, &mut directory);
        tx.put_inode(ino, &mut inode);
        tx.note_outcome(ctx, || {
            let attr = core.attr(ino, &inode)?;
            Ok(match opened {
                true => Outcome::Opened { attr, created: true },
                false => Outcome::Attr(attr),
            })
        })?;
        child.inode.set_alive();
        if let Err(error) = tx.commit(&[&parent, child.inode]) {
            child.inode.set_dead();
            return Err(error);
        }
        dir::inserted(&planned, parent_lock.hints());
        child.inode.pin(u64::from(ctx.pins) + u64::from(opened));
        let attr = core.locked_attr(child.inode, &inode)?;
        Ok((Arc::clone(child.inode), attr))
    })
}

/// Creates a file without a name in a directory, which stays as it is. `is_final`: it never gets one.
///
/// One record sets its inode, which has no links: before the record is durable the file does not exist, and after that
/// it is an orphan, which the next mount frees. The file comes with a pin for its handle, and with one more if the
/// context asks for that.
pub(crate) fn create_nameless(
    core: &Core,
    ctx: &Ctx,
    parent: Ino,
    mode: u32,
    is_final: bool,
) -> Result<(Arc<InodeMem>, Attr)> {
    core.check_writable()?;
    let new = New {
        kind: FileKind::File,
        mode,
        rdev: 0,
        target: b"",
    };
    retry::with_space(core, Need::FEW, || {
        let parent = core.inode(parent).map_err(gone)?;
        let _parent_lock = parent.read();
        let directory = core.load_live(&parent).map_err(gone)?;
        check_dir(&directory)?;
        permission::create(core, ctx, (parent.ino, &directory), new.kind, false)?;
        if directory.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        let mut tx = Tx::new(core, Purpose::Change);
        let ino = tx.alloc_inode()?;
        let place = OnceCell::new();
        let child = core.inodes.fresh(ino, &place);
        let mut inode = new_inode(core, ctx, &mut tx, (ino, Core::now()), (parent.ino, &directory), &new)?;
        inode.set_nlink(0);
        inode.set_nameless(!is_final);
        tx.put_inode(ino, &mut inode);
        tx.note_outcome(ctx, || {
            let attr = core.attr(ino, &inode)?;
            Ok(Outcome::Opened { attr, created: true })
        })?;
        child.inode.set_alive();
        // Before any thread can free it, which takes its lock.
        core.note_unnamed();
        if let Err(error) = tx.commit(&[child.inode]) {
            child.inode.set_dead();
            core.unnamed_freed();
            return Err(error);
        }
        child.inode.pin(u64::from(ctx.pins) + 1);
        let attr = core.locked_attr(child.inode, &inode)?;
        Ok((Arc::clone(child.inode), attr))
    })
}

/// Makes a new directory the one of the snapshots of its parent. It belongs to the owner of that, who alone may take
/// snapshots, besides root.
fn hold_snapshots(core: &Core, ctx: &Ctx, parent: &Inode, inode: &mut Inode) -> Result<()> {
    if !core.superblock.has_shared_blocks() {
        return Err(FsError::NotSupported(Unsupported::Clone));
    }
    if ctx.check && !ctx.cred.is_root() && ctx.cred.uid != parent.uid() {
        return Err(FsError::NotPermitted);
    }
    inode.set_uid(parent.uid());
    inode.set_gid(parent.gid());
    inode.set_snapshots();
    Ok(())
}

/// The inode of a new file in this directory, born now, with the lists it inherits and its target in `tx`, which does
/// not put the inode itself yet.
#[inline]
fn new_inode(
    core: &Core,
    ctx: &Ctx,
    tx: &mut Tx<'_>,
    (ino, now): (Inum, Timestamp),
    (parent, directory): (Inum, &Inode),
    new: &New<'_>,
) -> Result<Inode> {
    let is_dir = new.kind == FileKind::Directory;
    let default = rights::attribute(core, parent, directory, acl::DEFAULT)?;
    let lists = acl::inherit(default.as_deref(), new.kind, new.mode, ctx.umask)?;
    let attr = core.attr(parent, directory)?;
    let Inherited { gid, mode } = posix::inherit(&attr, &ctx.cred, lists.mode, is_dir);
    let mut inode = profile::within(ProfileSpan::Lookup, || core.load(ino)).reborn();
    inode.set_mode_bits(new.kind.mode_bits() | mode & 0o7777);
    inode.set_uid(ctx.cred.uid);
    inode.set_gid(gid);
    initialize(&mut inode, new, now);
    inode.set_quota(directory.quota());
    if is_dir {
        inode.set_parent(parent);
    }
    store_target(core, tx, ino, &mut inode, new.target)?;
    let lists: Attributes = lists.attributes().collect();
    if !lists.is_empty() {
        rights::put_attributes(core, tx, ino, &mut inode, &lists)?;
    }
    Ok(inode)
}

/// A new whiteout: a character device 0:0 that hides its name in the layers below an overlay. In `tx`, which puts its
/// inode; its name is an old one of `directory`.
pub(super) fn whiteout<'p>(
    core: &Core,
    ctx: &Ctx,
    tx: &mut Tx<'_>,
    (parent, directory): (Inum, &Inode),
    place: &'p OnceCell<Arc<InodeMem>>,
) -> Result<Exclusive<'p>> {
    let new = New {
        kind: FileKind::CharDevice,
        mode: 0,
        rdev: 0,
        target: b"",
    };
    let ino = tx.alloc_inode()?;
    let child = core.inodes.fresh(ino, place);
    let mut inode = core.load(ino).reborn();
    let posix::Inherited { gid, .. } = posix::inherit(&core.attr(parent, directory)?, &ctx.cred, new.mode, false);
    inode.set_mode_bits(new.kind.mode_bits());
    inode.set_uid(ctx.cred.uid);
    inode.set_gid(gid);
    initialize(&mut inode, &new, Core::now());
    inode.set_quota(directory.quota());
    tx.put_inode(ino, &mut inode);
    Ok(child)
}

/// Sets the attributes of a new inode that do not depend on its creator or its directory.
fn initialize(inode: &mut Inode, new: &New<'_>, now: Timestamp) {
    inode.set_nlink(if new.kind == FileKind::Directory { 2 } else { 1 });
    inode.set_rdev(new.rdev);
    inode.set_inline(matches!(new.kind, FileKind::File | FileKind::Symlink));
    inode.set_atime(now);
    inode.set_mtime(now);
    inode.set_ctime(now);
    inode.set_btime(now);
}

/// Stores a link's target in the inode, or in the link's first page.
pub(super) fn store_target(core: &Core, tx: &mut Tx<'_>, ino: Inum, inode: &mut Inode, target: &[u8]) -> Result<()> {
    inode.set_size(target.len() as u64);
    if target.len() <= INLINE_BYTES {
        inode.write_inline(0, target);
        return Ok(());
    }
    inode.set_inline(false);
    let block = core
        .map
        .alloc_page(tx, PageId::new(ino, Lblk::FIRST))
        .map_err(map_error)?;
    let mut page = [0; BLOCK_BYTES as usize];
    page[..target.len()].copy_from_slice(target);
    tx.stream_page(PageId::new(ino, Lblk::FIRST), block, &page);
    tx.insert_page(PageId::new(ino, Lblk::FIRST), PageWord::of_block(block))?;
    inode.set_blocks(1);
    Ok(())
}

/// Reads a link's target; the caller holds its lock.
pub(crate) fn link_target(core: &Core, ino: Inum, inode: &Inode) -> Result<Vec<u8>> {
    let damaged = |what: &str| FsError::damaged(u64::from(ino), format!("symbolic link: {what}; run `ferrite fsck`"));
    let len = inode.size() as usize;
    if inode.is_inline() {
        return inode
            .inline_bytes()
            .get(..len)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| damaged("impossible length"));
    }
    let word = core.map.get(PageId::new(ino, Lblk::FIRST));
    if word.is_hole() || len >= ferrite_vfs::PATH_MAX {
        return Err(damaged("no target"));
    }
    let mut target = vec![0; len];
    block::read_block(core, PageId::new(ino, Lblk::FIRST), word, 0, &mut target)?;
    Ok(target)
}

/// Gives an inode another name, or its first: one record for entry, slot and both inodes.
pub(crate) fn link(core: &Core, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
    posix::check_name(name)?;
    core.check_writable()?;
    retry::with_space(core, Need::FEW, || {
        let target = core.inode(ino).map_err(gone)?;
        let parent = core.inode(parent).map_err(gone)?;
        let mut locks = LockSet::lock(&[&target, &parent]);
        let mut directory = core.load_live(&parent).map_err(gone)?;
        check_dir(&directory)?;
        let mut inode = core.load_live(&target).map_err(gone)?;
        let now = Core::now();
        let kind = inode.kind().ok_or(FsError::NotFound)?;
        if kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let is_first = inode.nlink() == 0;
        if is_first && !inode.is_nameless() {
            return Err(FsError::NotFound);
        }
        let key = core.names.key(parent.ino, name);
        let taken = dir::find(core, &directory, &key)?.is_some();
        permission::create(core, ctx, (parent.ino, &directory), FileKind::File, taken)?;
        if taken {
            return Err(FsError::Exists);
        }
        if inode.nlink() >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        inode.callers_flags().check_change()?;
        if inode.quota() != directory.quota() {
            // One without a name was made before the quota was set, or another's has ended.
            match is_first || inode.quota() != QuotaId::NONE && core.quotas.find(Account::Tree(inode.quota())).is_none()
            {
                true => inode.set_quota(directory.quota()),
                false => return Err(FsError::CrossDevice),
            }
        }
        inode.set_nlink(inode.nlink() + 1);
        inode.set_nameless(false);
        inode.set_ctime(now);
        directory.set_mtime(now);
        directory.set_ctime(now);
        let mut tx = Tx::new(core, Purpose::Change);
        let place = (&mut directory, locks.hints(parent.ino));
        let planned = dir::insert(core, &mut tx, &key, place, (target.ino, kind))?;
        tx.put_inode(parent.ino, &mut directory);
        tx.put_inode(target.ino, &mut inode);
        tx.note_outcome(ctx, || core.attr(target.ino, &inode).map(Outcome::Attr))?;
        tx.commit(&[&target, &parent])?;
        dir::inserted(&planned, locks.hints(parent.ino));
        if is_first {
            core.unnamed_freed();
        }
        target.pin(u64::from(ctx.pins));
        core.locked_attr(&target, &inode)
    })
}
