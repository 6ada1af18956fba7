//! Removing names and inodes: unlink, rmdir, and freeing an inode once nothing holds it.
//!
//! Crash argument: the record that removes the last name either frees the inode and its pages as well, or leaves an
//! inode with no name. Mount frees such inodes; no process can have one open then. Freeing in several records is safe
//! at each of them, because the inode is not reachable and the last record is the one that frees it.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ferrite_map::{Inum, Resource};
use ferrite_vfs::{Ctx, FileKind, FsError, Ino, Outcome, Result, SpaceOf, posix};

use super::lookup::{check_dir, gone};
use super::{dir, permission};
use crate::cache::inodes::{Exclusive, InodeMem};
use crate::file::{rights, truncate};
use crate::format::inode::Inode;
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx};
use crate::space::blocks::Class;
use crate::space::names::Found;

/// Most pages that the record which removes a name frees as well; beyond that, pages are freed in separate records.
const FREE_WITH_NAME: u32 = 64;

/// Removes a name: a directory's (which must be empty) or any other.
///
/// Never fails for lack of space. Only removing a directory block can need some: it may be in the middle of an extent,
/// and the tree may need a node because that becomes two. Without a free block, the directory's block stays, empty, for
/// the next names. The pages of the file are removed in ascending order, each from the front of its extent, which needs
/// no space on any mapping.
pub(crate) fn unlink(core: &Core, ctx: &Ctx, parent: Ino, name: &[u8], want_dir: bool) -> Result<()> {
    posix::check_name(name)?;
    core.check_writable()?;
    match unlink_attempt(core, ctx, parent, name, want_dir, false) {
        Err(FsError::NoSpace(SpaceOf::Blocks)) => unlink_attempt(core, ctx, parent, name, want_dir, true),
        other => other,
    }
}

fn unlink_attempt(core: &Core, ctx: &Ctx, parent: Ino, name: &[u8], want_dir: bool, keep_block: bool) -> Result<()> {
    loop {
        let directory = core.inode(parent).map_err(gone)?;
        let child = OnceCell::new();
        let Some(locked) = lock_both(core, ctx, &directory, &child, name)? else {
            // The child could not be locked in order, or changed before it was locked.
            continue;
        };
        let Locked {
            mut dir,
            inode: mut parent_inode,
            child,
            found,
        } = locked;
        let mut inode = core.load_live(child.inode).map_err(gone)?;
        permission::delete(core, ctx, (directory.ino, &parent_inode), (found.ino, &inode))?;
        match (found.kind == FileKind::Directory, want_dir) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            _ => {}
        }
        if want_dir && inode.entries() != 0 {
            return Err(FsError::NotEmpty);
        }
        let now = Core::now();
        let mut tx = Tx::new(core, Purpose::Change);
        tx.set_class(Class::Replacing);
        parent_inode.set_mtime(now);
        parent_inode.set_ctime(now);
        if want_dir {
            parent_inode.set_nlink(parent_inode.nlink().saturating_sub(1));
        }
        let place = (directory.ino, &mut parent_inode, dir.hints());
        dir::remove(core, &mut tx, place, &found, keep_block)?;
        let fate = drop_link(core, &mut tx, child.inode, &mut inode, now)?;
        tx.put_inode(directory.ino, &mut parent_inode);
        tx.put_inode(child.inode.ino, &mut inode);
        tx.note_outcome(ctx, || Ok(Outcome::Done))?;
        tx.commit(&[&directory, child.inode])?;
        let fate = settle(core, child.inode, fate);
        let freed = child.inode;
        drop((dir, child));
        finish_committed(core, freed, fate);
        return Ok(());
    }
}

/// A directory and one of its entries, both locked.
struct Locked<'a> {
    dir: Exclusive<'a>,
    /// The inode of the directory.
    inode: Inode,
    child: Exclusive<'a>,
    found: Found,
}

/// Locks `directory` and its entry `name`, whose inode is stored in `child`. One lookup suffices if the child can be
/// locked after its directory: because its number is higher, or because no other thread holds it. Otherwise both are
/// locked in order, and `None` means that the entry changed meanwhile.
fn lock_both<'a>(
    core: &Core,
    ctx: &Ctx,
    directory: &'a Arc<InodeMem>,
    child: &'a OnceCell<Arc<InodeMem>>,
    name: &[u8],
) -> Result<Option<Locked<'a>>> {
    let key = core.names.key(directory.ino, name);
    let look = || -> Result<(Inode, Found)> {
        let inode = core.load_live(directory).map_err(gone)?;
        check_dir(&inode)?;
        permission::search(core, ctx, (directory.ino, &inode))?;
        let found = dir::find(core, &inode, &key)?.ok_or(FsError::NotFound)?;
        Ok((inode, found))
    };
    let dir = directory.write();
    let (inode, found) = look()?;
    if found.ino == directory.ino {
        return Err(FsError::damaged(
            u64::from(found.ino),
            "the directory contains itself; run `ferrite fsck`",
        ));
    }
    let entry = child.get_or_init(|| core.inodes.get(found.ino));
    let locked = if found.ino > directory.ino {
        Some(entry.write())
    } else {
        entry.try_write()
    };
    if let Some(child) = locked {
        return Ok(Some(Locked {
            dir,
            inode,
            child,
            found,
        }));
    }
    drop(dir);
    let child = entry.write();
    let dir = directory.write();
    let (inode, again) = look()?;
    let unchanged = again == found && !entry.is_dead();
    Ok(unchanged.then_some(Locked {
        dir,
        inode,
        child,
        found,
    }))
}

/// The fate of an inode that lost a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has other names.
    Lives,
    /// It has none, but it was held when it lost the last one.
    Held,
    /// Freed by the same record.
    Freed,
    /// To be freed now, by separate records.
    Orphan,
}

/// Removes one name of `inode` (all of them, if it is a directory), in `tx`; frees the inode if that is little work.
pub(crate) fn drop_link(
    core: &Core,
    tx: &mut Tx<'_>,
    child: &InodeMem,
    inode: &mut Inode,
    now: ferrite_vfs::Timestamp,
) -> Result<Fate> {
    let nlink = if inode.is_dir() {
        0
    } else {
        inode.nlink().saturating_sub(1)
    };
    inode.set_nlink(nlink);
    inode.set_ctime(now);
    if nlink > 0 {
        return Ok(Fate::Lives);
    }
    if child.pins() > 0 {
        return Ok(Fate::Held);
    }
    if inode.blocks() > FREE_WITH_NAME {
        return Ok(Fate::Orphan);
    }
    for lblk in truncate::mapped_pages(core, child, inode, 0) {
        truncate::unmap(core, tx, child.ino, lblk, inode)?;
    }
    free_inode(core, tx, child.ino, inode);
    Ok(Fate::Freed)
}

/// Turns `inode`, which maps nothing, into a free one.
fn free_inode(core: &Core, tx: &mut Tx<'_>, ino: Inum, inode: &mut Inode) {
    use ferrite_map::MapTx;
    for block in rights::attribute_blocks(core, ino, inode) {
        tx.freed(Resource::Block(block));
    }
    // The rest stays unchanged: a mode of 0 is enough to invalidate it.
    inode.set_mode_bits(0);
    tx.freed(Resource::Inode(ino));
}

/// Called after the commit, with the lock still held: threads that wait for the lock, or still hold the entry, must
/// see that the inode is gone. Returns what to do with it now. Its last holder may have dropped its pin while the
/// record was being committed, when the inode still had a name, and so have left it alone.
///
/// The holder drops its pin, then checks for names; we have removed the name, then check for pins. With a fence in
/// between on both sides, at least one of the two sees the other. If both do, the second finds the inode freed.
pub(crate) fn settle(core: &Core, child: &InodeMem, fate: Fate) -> Fate {
    if matches!(fate, Fate::Held | Fate::Orphan) {
        // Before any thread can free it, which takes the lock.
        core.note_unnamed();
    }
    match fate {
        Fate::Freed => child.set_dead(),
        Fate::Held => {
            fence(Ordering::SeqCst);
            if child.pins() == 0 {
                return Fate::Orphan;
            }
        }
        Fate::Lives | Fate::Orphan => {}
    }
    fate
}

/// After the locks are released: frees an orphan.
pub(crate) fn finish(core: &Core, child: &Arc<InodeMem>, fate: Fate) -> Result<()> {
    match fate {
        Fate::Orphan => free_orphan(core, child),
        _ => Ok(()),
    }
}

/// The same after the record that removed the name is committed: the operation has happened, and a failure here cannot
/// undo it. An orphan that cannot be freed now is freed by the next mount.
pub(crate) fn finish_committed(core: &Core, child: &Arc<InodeMem>, fate: Fate) {
    if let Err(error) = core.told(finish(core, child, fate)) {
        tracing::debug!(ino = child.ino.get(), %error, "an inode without names stays until the next mount");
    }
}

/// Frees an inode that has no name, unless it is pinned. Blocking: one record for every few hundred pages.
pub(crate) fn free_orphan(core: &Core, child: &Arc<InodeMem>) -> Result<()> {
    core.check_writable()?;
    let lock = child.write();
    let Ok(loaded) = core.load_live(child) else {
        return Ok(());
    };
    if loaded.nlink() > 0 || child.pins() > 0 {
        return Ok(());
    }
    let mut inode = loaded;
    truncate::unmap_from(core, child, &mut inode, 0)?;
    let mut tx = Tx::new(core, Purpose::Change);
    free_inode(core, &mut tx, child.ino, &mut inode);
    tx.put_inode(child.ino, &mut inode);
    tx.commit(&[child])?;
    child.set_dead();
    core.unnamed_freed();
    drop(lock);
    Ok(())
}

/// Removes pins; removing the last one frees an inode without names.
pub(crate) fn unpin(core: &Core, inode: &Arc<InodeMem>, count: u64) {
    if !inode.unpin(count) {
        return;
    }
    if !inode.is_dead() {
        free_unnamed(core, inode);
    }
    core.inodes.unpinned(inode);
}

/// The same for a caller that will not need the inode again: its cache entry is dropped as well.
pub(crate) fn forget(core: &Core, inode: Arc<InodeMem>, count: u64) {
    if !inode.unpin(count) {
        return;
    }
    if !inode.is_dead() {
        free_unnamed(core, &inode);
    }
    core.inodes.release(inode);
}

/// After the last pin: frees an inode without names.
fn free_unnamed(core: &Core, inode: &Arc<InodeMem>) {
    // The other half of the argument at `settle`.
    fence(Ordering::SeqCst);
    let orphan = core.snapshot(inode).is_ok_and(|loaded| loaded.nlink() == 0);
    if orphan && let Err(error) = free_orphan(core, inode) {
        // Nothing is lost: the next mount frees it.
        tracing::debug!(ino = inode.ino.get(), %error, "an inode without names stays until the next mount");
    }
}
