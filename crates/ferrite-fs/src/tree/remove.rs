//! Removing names and inodes: unlink, rmdir, and freeing an inode once nothing holds it.
//!
//! Crash argument: the record that removes the last name either frees the inode and its pages as well, or leaves an
//! inode with no name. Mount frees such inodes; no process can have one open then. Freeing in several records is safe
//! at each of them, because the inode is not reachable and the last record is the one that frees it.
//!
//! A tree without a name, as a clone that is not complete or was given up, or a snapshot that was removed, has a flag
//! in the directory at its top until the last entry is gone, by which mount finds it and continues. Each entry goes by
//! a record of its own. No name leads to the tree, but holders of pins may know parts of a removed snapshot.

use std::cell::OnceCell;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};

use ferrite_map::{Inum, Resource};
use ferrite_vfs::{Ctx, FileKind, FsError, Ino, Outcome, Result, SpaceOf, posix};

use super::lookup::{check_dir, gone};
use super::{dir, permission};
use crate::cache::inodes::{Exclusive, InodeMem};
use crate::file::{rights, truncate};
use crate::format::inode::{Inode, ROOT};
use crate::pool::core::Core;
use crate::pool::locks::LockSet;
use crate::pool::tx::{Purpose, Tx};
use crate::space::blocks::Class;
use crate::space::names::Found;

/// Most pages that the record which removes a name frees as well; beyond that, pages are freed in separate records.
const FREE_WITH_NAME: u32 = 64;

/// Removes a name: a directory's (which must be empty, or a snapshot) or any other.
///
/// Returns a removed snapshot, with a pin: the caller drops that when it holds no lock, and all of it goes.
///
/// Never fails for lack of space. Only removing a directory block can need some: it may be in the middle of an extent,
/// and the tree may need a node because that becomes two. Without a free block, the directory's block stays, empty, for
/// the next names. The pages of the file are removed in ascending order, each from the front of its extent, which needs
/// no space on any mapping.
pub(crate) fn unlink(
    core: &Core,
    ctx: &Ctx,
    parent: Ino,
    name: &[u8],
    want_dir: bool,
) -> Result<Option<Arc<InodeMem>>> {
    posix::check_name(name)?;
    core.check_writable()?;
    match unlink_attempt(core, ctx, parent, name, want_dir, false) {
        Err(FsError::NoSpace(SpaceOf::Blocks)) => unlink_attempt(core, ctx, parent, name, want_dir, true),
        other => other,
    }
}

fn unlink_attempt(
    core: &Core,
    ctx: &Ctx,
    parent: Ino,
    name: &[u8],
    want_dir: bool,
    keep_block: bool,
) -> Result<Option<Arc<InodeMem>>> {
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
        let is_snapshot = check_kind(core, ctx, &parent_inode, (found.kind, &inode), want_dir)?;
        let now = Core::now();
        // Removing an entry of a snapshot puts its directory, and is refused there.
        let purpose = match is_snapshot || want_dir && inode.is_snapshots() {
            true => Purpose::Clone,
            false => Purpose::Change,
        };
        let mut tx = Tx::new(core, purpose);
        tx.set_class(Class::Replacing);
        parent_inode.set_mtime(now);
        parent_inode.set_ctime(now);
        if want_dir {
            parent_inode.set_nlink(parent_inode.nlink().saturating_sub(1));
        }
        let place = (directory.ino, &mut parent_inode, dir.hints());
        dir::remove(core, &mut tx, place, &found, keep_block)?;
        let fate = match is_snapshot {
            true => drop_tree(&mut inode),
            false => drop_link(core, &mut tx, child.inode, &mut inode, now)?,
        };
        tx.put_inode(directory.ino, &mut parent_inode);
        tx.put_inode(child.inode.ino, &mut inode);
        tx.note_outcome(ctx, || Ok(Outcome::Done))?;
        // No other holder's pin is the last, then.
        if is_snapshot {
            child.inode.pin(1);
        }
        if let Err(error) = tx.commit(&[&directory, child.inode]) {
            if is_snapshot {
                child.inode.unpin(1);
            }
            return Err(error);
        }
        let fate = settle(core, child.inode, fate);
        let freed = child.inode;
        drop((dir, child));
        if is_snapshot {
            return Ok(Some(Arc::clone(freed)));
        }
        finish_committed(core, freed, fate);
        return Ok(None);
    }
}

/// Refuses what is not of the kind that is wanted, and a directory that is not empty, unless it is a snapshot; returns
/// whether it is.
fn check_kind(
    core: &Core,
    ctx: &Ctx,
    parent: &Inode,
    (kind, inode): (FileKind, &Inode),
    want_dir: bool,
) -> Result<bool> {
    let is_snapshot = want_dir && parent.is_snapshots();
    match (kind == FileKind::Directory, want_dir) {
        (true, false) => Err(FsError::IsDirectory),
        (false, true) => Err(FsError::NotDirectory),
        _ if is_snapshot => check_owner(core, ctx, parent).map(|()| true),
        _ if want_dir && inode.entries() != 0 => Err(FsError::NotEmpty),
        _ => Ok(false),
    }
}

/// The owner of a directory removes its snapshots, besides root: at once, with what others have in them.
fn check_owner(core: &Core, ctx: &Ctx, snapshots: &Inode) -> Result<()> {
    // Without its lock, which comes before those that the caller holds: the owner is in one word.
    let uid = core.load(snapshots.parent()).uid();
    match ctx.check && !ctx.cred.is_root() && ctx.cred.uid != uid {
        true => Err(FsError::NotPermitted),
        false => Ok(()),
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

/// Removes the name of a snapshot; all of it goes when its last pin does.
fn drop_tree(inode: &mut Inode) -> Fate {
    inode.set_nlink(0);
    inode.set_parent(ROOT);
    inode.set_orphan_tree(true);
    Fate::Held
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

/// Frees an inode that has no name, unless it is pinned; one at the top of a tree with all that is below. Blocking: one
/// record for every few hundred pages, and one for each inode of a tree.
pub(crate) fn free_orphan(core: &Core, child: &Arc<InodeMem>) -> Result<()> {
    core.check_writable()?;
    if child.pins() == 0 && core.snapshot(child).is_ok_and(|loaded| loaded.is_orphan_tree()) {
        // Others that pin it meanwhile do not clear it, too.
        child.pin(1);
        let cleared = clear(core, child);
        child.unpin(1);
        cleared?;
    }
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

/// A directory on the way down, and where its listing continues.
struct Level {
    dir: Arc<InodeMem>,
    cookie: u64,
}

/// Removes all entries of a directory, and all below them. Blocks on the locks of the inodes; one record for each. The
/// caller holds no lock, nor the right to make changes.
fn clear(core: &Core, top: &Arc<InodeMem>) -> Result<()> {
    let mut way = vec![Level {
        dir: Arc::clone(top),
        cookie: 0,
    }];
    while let Some(level) = way.last_mut() {
        let entries = dir::list_some(core, &level.dir, level.cookie)?;
        if entries.is_empty() {
            way.pop();
            continue;
        }
        let dir = Arc::clone(&level.dir);
        let mut below = None;
        for entry in entries {
            below = remove_entry(core, &dir, &entry)?;
            if below.is_some() {
                break;
            }
            level.cookie = entry.next_cookie;
        }
        if let Some(dir) = below {
            // Damage may have made a circle.
            if way.len() as u64 > core.superblock.inodes {
                return Err(FsError::damaged(u64::from(dir.ino), "the directory contains itself"));
            }
            way.push(Level { dir, cookie: 0 });
        }
    }
    Ok(())
}

/// Removes an entry; returns its directory instead if that has entries itself. Waits for a clone that is being made:
/// others may know parts of a removed snapshot, and clone them.
fn remove_entry(core: &Core, dir: &Arc<InodeMem>, entry: &dir::Listed) -> Result<Option<Arc<InodeMem>>> {
    let _changes = core.changes.read().unwrap_or_else(PoisonError::into_inner);
    let child = core.inode(u64::from(entry.ino))?;
    match remove_attempt(core, dir, (&child, &entry.name), false) {
        Err(FsError::NoSpace(SpaceOf::Blocks)) => remove_attempt(core, dir, (&child, &entry.name), true),
        other => other,
    }
    .map(|is_removed| (!is_removed).then_some(child))
}

/// As `unlink`; see there for `keep_block`. False if the entry is a directory with entries.
fn remove_attempt(
    core: &Core,
    parent: &Arc<InodeMem>,
    (child, name): (&Arc<InodeMem>, &[u8]),
    keep_block: bool,
) -> Result<bool> {
    let mut locks = LockSet::lock(&[parent, child]);
    let mut directory = core.load_live(parent)?;
    let mut inode = core.load_live(child)?;
    let found = dir::find(core, &directory, &core.names.key(parent.ino, name))?;
    let Some(found) = found.filter(|found| found.ino == child.ino && child.ino != parent.ino) else {
        let what = format!("the entry of inode {} cannot be found by its name", child.ino);
        return Err(FsError::damaged(u64::from(parent.ino), what));
    };
    if inode.is_dir() && inode.entries() > 0 {
        return Ok(false);
    }
    let mut tx = Tx::new(core, Purpose::Clone);
    tx.set_class(Class::Replacing);
    if found.kind == FileKind::Directory {
        directory.set_nlink(directory.nlink().saturating_sub(1));
    }
    let place = (parent.ino, &mut directory, locks.hints(parent.ino));
    dir::remove(core, &mut tx, place, &found, keep_block)?;
    let fate = drop_link(core, &mut tx, child, &mut inode, Core::now())?;
    tx.put_inode(parent.ino, &mut directory);
    tx.put_inode(child.ino, &mut inode);
    tx.commit(&[parent, child])?;
    let fate = settle(core, child, fate);
    drop(locks);
    finish(core, child, fate)?;
    Ok(true)
}
