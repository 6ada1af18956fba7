//! Names and inodes that go: unlink, rmdir, and freeing an inode once nothing holds it.
//!
//! Crash argument: the record that removes the last name either frees the inode and its pages as well, or leaves
//! an inode with no name. Mount frees such inodes; nobody can have one open then. Freeing in several records is
//! safe at each of them, because the inode is not reachable and the last record is the one that frees it.

use std::cell::OnceCell;
use std::sync::Arc;

use ferrite_map::Resource;
use ferrite_vfs::{FileKind, FsError, Ino, Result, posix};

use super::{Edits, check_dir, gone};
use crate::alloc::Class;
use crate::core::{Core, LockSet};
use crate::dir;
use crate::file::cut;
use crate::icache::InodeMem;
use crate::inode::Inode;
use crate::names::Found;
use crate::tx::Tx;

/// Pages that the record which removes a name frees as well; beyond it they go in records of their own.
const FREE_WITH_NAME: u32 = 64;

/// Removes a name: a directory's (which must be empty) or any other.
pub(crate) fn unlink(core: &Core, parent: Ino, name: &[u8], want_dir: bool) -> Result<()> {
    posix::check_name(name)?;
    core.check_writable()?;
    loop {
        let directory = core.inode(parent).map_err(gone)?;
        let child = OnceCell::new();
        let Some((mut locks, found)) = lock_both(core, &directory, &child, name)? else {
            // The child could not be locked in order, or changed before it was.
            continue;
        };
        let child = child.get().ok_or(FsError::NotFound)?;
        match (found.kind == FileKind::Directory, want_dir) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            _ => {}
        }
        let mut edits = Edits::load(core, &[&directory, child])?;
        if want_dir && edits.get(child.ino).entries() != 0 {
            return Err(FsError::NotEmpty);
        }
        let now = core.now();
        let mut tx = Tx::new(core);
        tx.set_class(Class::Replacing);
        let inode = edits.get(directory.ino);
        inode.set_mtime(now);
        inode.set_ctime(now);
        if want_dir {
            inode.set_nlink(inode.nlink() - 1);
        }
        dir::remove(
            core,
            &mut tx,
            (directory.ino, inode, locks.hints(directory.ino)),
            &found,
            false,
        )?;
        let fate = drop_link(core, &mut tx, child, edits.get(child.ino), now)?;
        edits.put(&mut tx);
        tx.commit(&[&directory, child])?;
        settle(core, child, fate);
        drop(locks);
        return finish(core, child, fate);
    }
}

/// Locks `directory` and its entry `name`, whose inode goes to `child`. Looks the name up once if the child can be locked
/// after its directory: because its number is higher, or because nobody else holds it. Else both are locked in order,
/// and `None` says that the entry changed meanwhile.
fn lock_both<'a>(
    core: &Core,
    directory: &'a Arc<InodeMem>,
    child: &'a OnceCell<Arc<InodeMem>>,
    name: &[u8],
) -> Result<Option<(LockSet<'a>, Found)>> {
    let look = || -> Result<Found> {
        check_dir(&core.load_live(directory).map_err(gone)?)?;
        core.names.find(directory.ino, name)?.ok_or(FsError::NotFound)
    };
    let dir_lock = directory.write();
    let found = look()?;
    if found.ino == directory.ino {
        return Err(FsError::Io(format!(
            "directory {} contains itself; run `ferrite fsck`",
            found.ino
        )));
    }
    let child = child.get_or_init(|| core.inodes.get(found.ino));
    let child_lock = if found.ino > directory.ino {
        Some(child.write())
    } else {
        child.try_write()
    };
    if let Some(child_lock) = child_lock {
        return Ok(Some((LockSet::of(dir_lock, child_lock), found)));
    }
    drop(dir_lock);
    let locks = LockSet::lock(&[directory, child]);
    Ok((look()? == found && !child.is_dead()).then_some((locks, found)))
}

/// What became of an inode that lost a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has other names, or somebody holds it.
    Lives,
    /// Freed by the same record.
    Freed,
    /// To be freed now, by records of its own.
    Orphan,
}

/// Takes one name off `inode` (all of them, if it is a directory), in `tx`; frees it if that is little work.
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
    if nlink > 0 || child.pins() > 0 {
        return Ok(Fate::Lives);
    }
    if inode.blocks() > FREE_WITH_NAME {
        return Ok(Fate::Orphan);
    }
    for lblk in cut::mapped_pages(core, child.ino, inode, 0) {
        cut::unmap(core, tx, child.ino, lblk, inode)?;
    }
    free_inode(tx, child.ino, inode);
    Ok(Fate::Freed)
}

/// Turns `inode`, which maps nothing, into a free one.
fn free_inode(tx: &mut Tx<'_>, ino: u32, inode: &mut Inode) {
    use ferrite_map::MapTx;
    if inode.xattr_block() != 0 {
        tx.freed(Resource::Block(inode.xattr_block()));
    }
    let generation = inode.generation();
    *inode = Inode::empty();
    inode.set_generation(generation);
    tx.freed(Resource::Inode(ino));
}

/// After the commit, with the lock still held: nobody may find a freed inode.
pub(crate) fn settle(core: &Core, child: &InodeMem, fate: Fate) {
    if fate == Fate::Freed {
        child.set_dead();
        core.inodes.remove(child);
    }
}

/// After the locks are released: frees an orphan.
pub(crate) fn finish(core: &Core, child: &Arc<InodeMem>, fate: Fate) -> Result<()> {
    match fate {
        Fate::Orphan => free_orphan(core, child),
        _ => Ok(()),
    }
}

/// Frees an inode that has no name, unless somebody holds it. Blocking: one record for every few hundred pages.
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
    cut::unmap_from(core, child, &mut inode, 0)?;
    let mut tx = Tx::new(core);
    let old = core.load(child.ino);
    free_inode(&mut tx, child.ino, &mut inode);
    tx.put_inode(child.ino, &old, &mut inode);
    tx.commit(&[child])?;
    settle(core, child, Fate::Freed);
    drop(lock);
    Ok(())
}

/// Takes pins back; the last one frees an inode without names.
pub(crate) fn unpin(core: &Core, inode: &Arc<InodeMem>, count: u64) {
    if !inode.unpin(count) || inode.is_dead() {
        return;
    }
    let orphan = core.snapshot(inode).is_ok_and(|loaded| loaded.nlink() == 0);
    if orphan && let Err(error) = free_orphan(core, inode) {
        // Nothing is lost: the next mount frees it.
        tracing::debug!(ino = inode.ino, %error, "an inode without names stays until the next mount");
    }
}
