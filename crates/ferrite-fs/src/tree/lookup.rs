//! Shared code of the operations on names: finding a name, and [`Edits`], the working copies of the inodes that an
//! operation changes.

use std::sync::Arc;

use ferrite_map::Inum;
use ferrite_vfs::{Attr, Ctx, FsError, Ino, ROOT_INO, Result};

use super::{dir, permission};
use crate::cache::inodes::InodeMem;
use crate::format::inode::Inode;
use crate::pool::core::Core;
use crate::pool::tx::Tx;
use crate::space::names::Found;

/// Working copies of the inodes that a rename changes.
pub(crate) struct Edits {
    list: Vec<(Inum, Inode)>,
}

impl Edits {
    /// Loads the inodes, whose locks are held. Fails with `NotFound` if one was freed, or is a directory without
    /// names.
    pub(crate) fn load(core: &Core, inodes: &[&Arc<InodeMem>]) -> Result<Edits> {
        let mut list: Vec<(Inum, Inode)> = Vec::with_capacity(inodes.len());
        for inode in inodes {
            if list.iter().all(|&(ino, _)| ino != inode.ino) {
                list.push((inode.ino, core.load_live(inode).map_err(gone)?));
            }
        }
        Ok(Edits { list })
    }

    /// The working copy of `ino`.
    pub(crate) fn get(&mut self, ino: Inum) -> &mut Inode {
        let found = self.list.iter_mut().find(|&&mut (number, _)| number == ino);
        &mut found.expect("only loaded inodes are edited").1
    }

    /// Records all changes.
    pub(crate) fn put(&mut self, tx: &mut Tx<'_>) {
        for (ino, new) in &mut self.list {
            tx.put_inode(*ino, new);
        }
    }
}

/// For an operation that got an inode through a name, an inode that is gone means a name that is gone.
pub(crate) fn gone(error: FsError) -> FsError {
    match error {
        FsError::Stale => FsError::NotFound,
        other => other,
    }
}

/// Checks that `inode` is a directory to which names can be added.
pub(crate) fn check_dir(inode: &Inode) -> Result<()> {
    if !inode.is_dir() {
        return Err(FsError::NotDirectory);
    }
    if inode.nlink() == 0 {
        return Err(FsError::NotFound);
    }
    Ok(())
}

/// Finds `name` in `dir`. The child's cache entry is taken under the directory's lock, while the child is certainly
/// alive, so that a later free is visible.
pub(crate) fn find(core: &Core, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<Option<(Found, Arc<InodeMem>)>> {
    core.with_dir(dir, |ino, inode| {
        permission::search(core, ctx, (ino, inode))?;
        let Some(found) = dir::find(core, inode, &core.names.key(ino, name))? else {
            return Ok(None);
        };
        let child = core.inodes.get(found.ino);
        // An inode is freed under the directory's lock, which is held until the name is gone. So this name is damage,
        // and retrying, as after a race, would never end.
        if child.is_dead() {
            return Err(free_inode_named(u64::from(found.ino)));
        }
        Ok(Some((found, child)))
    })
    .map_err(gone)
}

/// Damage: a name leads to an inode that is free.
pub(crate) fn free_inode_named(ino: Ino) -> FsError {
    FsError::damaged(ino, "is free, but has an entry; run `ferrite fsck`")
}

/// The inode that `name` in `dir` leads to, as it was at some time during the call.
#[inline]
pub(crate) fn lookup(core: &Core, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
    loop {
        let (child, attr) = look(core, ctx, dir, name)?;
        if !ctx.pins || attr.ino == ROOT_INO {
            return Ok(attr);
        }
        match pin(core, &child, attr.generation) {
            // Its last name was removed between the two steps.
            Err(FsError::Stale) => {}
            pinned => return pinned.map(|()| attr),
        }
    }
}

/// The same, with its entry in the cache; not pinned.
#[inline]
pub(crate) fn look(core: &Core, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<(Arc<InodeMem>, Attr)> {
    let mut unlinked = None;
    loop {
        let (found, child) = find(core, ctx, dir, name)?.ok_or(FsError::NotFound)?;
        match core.current_attr(&child) {
            // Its last name was removed between the two reads, and a holder keeps it open: the name is gone by now, or
            // leads elsewhere. If it does neither, the link count is damaged.
            Ok(attr) if attr.nlink == 0 && unlinked != Some((found.ino, attr.generation)) => {
                unlinked = Some((found.ino, attr.generation));
            }
            Ok(attr) => return Ok((child, attr)),
            // The same, and the inode was freed.
            Err(FsError::Stale) if child.is_dead() => continue,
            Err(FsError::Stale) => return Err(free_inode_named(u64::from(found.ino))),
            Err(error) => return Err(error),
        }
    }
}

/// See [`ferrite_vfs::FileSystem::pin`].
pub(crate) fn pin(core: &Core, inode: &Arc<InodeMem>, generation: u32) -> Result<()> {
    let _lock = inode.read();
    if core.load_live(inode)?.generation() != generation {
        return Err(FsError::Stale);
    }
    inode.pin(1);
    Ok(())
}
