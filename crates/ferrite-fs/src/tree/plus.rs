//! Listing a directory with the attributes of its entries.
//!
//! Names are collected under the directory's lock, and each inode is pinned there: its name cannot be removed
//! meanwhile, so the inode is certainly alive, and its own lock, which may be taken before a directory's, is not
//! needed. Attributes are read afterwards, without the directory's lock.

use std::sync::Arc;

use ferrite_vfs::{Attr, Ctx, DirEntry, FileKind, FsError, Ino, Result};

use super::lookup::free_inode_named;
use super::{dir, remove};
use crate::cache::inodes::InodeMem;
use crate::pool::core::Core;

/// Entries collected at a time.
const BATCH: usize = 64;

/// An entry; dropping it drops its pin.
struct Entry<'e> {
    core: &'e Core,
    ino: Ino,
    /// `None` for a number that no inode has, which is damage.
    inode: Option<Arc<InodeMem>>,
    kind: FileKind,
    name: Box<[u8]>,
    next_cookie: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if let Some(inode) = &self.inode {
            remove::unpin(self.core, inode, 1);
        }
    }
}

/// See [`ferrite_vfs::FileSystem::readdir_plus`].
pub(crate) fn list(
    core: &Core,
    ctx: &Ctx,
    dir: Ino,
    cookie: u64,
    sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
) -> Result<()> {
    let (mut cookie, mut given) = (cookie, false);
    loop {
        let batch = match collect(core, dir, cookie) {
            // As with a plain listing, an error follows the entries: the next call reports it. The caller has entries,
            // and their pins, that it must not lose.
            Err(_) if given => return Ok(()),
            batch => batch?,
        };
        for entry in &batch {
            let attr = match entry
                .inode
                .as_ref()
                .map_or(Err(FsError::Stale), |inode| core.current_attr(inode))
            {
                // Its name was removed since it was collected, so it counts as removed before.
                Ok(attr) if attr.nlink == 0 => continue,
                Err(FsError::Stale) => Err(free_inode_named(entry.ino)),
                other => other,
            };
            let known = attr.is_ok();
            let shown = DirEntry {
                ino: entry.ino,
                kind: entry.kind,
                name: &entry.name,
                next_cookie: entry.next_cookie,
            };
            if !sink(&shown, attr) {
                return Ok(());
            }
            given = true;
            // The collector's pin keeps it alive until here.
            if let Some(inode) = entry.inode.as_ref().filter(|_| ctx.pins && known) {
                inode.pin(1);
            }
        }
        match batch.last() {
            Some(last) => cookie = last.next_cookie,
            None => return Ok(()),
        }
    }
}

fn collect(core: &Core, dir: Ino, cookie: u64) -> Result<Vec<Entry<'_>>> {
    let mut batch = Vec::with_capacity(BATCH);
    core.with_dir(dir, |ino, directory| {
        dir::list(core, ino, directory, cookie, &mut |entry| {
            if batch.len() == BATCH {
                return false;
            }
            if dir::is_hidden(core, entry) {
                return true;
            }
            let inode = core.inode(entry.ino).ok();
            inode.iter().for_each(|inode| inode.pin(1));
            batch.push(Entry {
                core,
                ino: entry.ino,
                inode,
                kind: entry.kind,
                name: entry.name.into(),
                next_cookie: entry.next_cookie,
            });
            true
        })
    })?;
    Ok(batch)
}
