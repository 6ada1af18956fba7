//! Directories: their blocks, the entries in them, and the inodes that the entries name.

use ferrite_map::{Inum, PageId};
use ferrite_vfs::FsError;

use super::View;
use crate::audit::wrong::{EntryWrong, Wrong};
use crate::format::dentry::{self, Entry, FIRST_ENTRY};
use crate::format::inode::{Inode, ROOT};
use crate::format::layout::BLOCK_BYTES;

/// The verdict on a directory block's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// It is this block of this directory.
    Right,
    /// It is another block, or another directory's: its entries are not this one's.
    Others,
    /// The header is damaged. Each entry names the directory it belongs to.
    Damaged,
}

/// The header of the block at pool offset `offset`, which is mapped as block `page`. Anything but
/// [`Header::Right`] is [`Wrong::DirHeader`].
pub(crate) fn header(view: View<'_>, offset: u64, page: PageId) -> Header {
    match dentry::read_block_header(view.region, offset) {
        Ok(found) if found == page => Header::Right,
        Ok(_) => Header::Others,
        Err(_) => Header::Damaged,
    }
}

/// Walks a directory's block: `met` gets the pool offset of every entry in use, and the entry, if it is sound. Fails
/// where entries do not add up; entries after that point are not visited.
pub(crate) fn entries(
    view: View<'_>,
    dir: Inum,
    offset: u64,
    met: &mut dyn FnMut(u64, Result<Entry, Wrong>),
) -> Result<(), Wrong> {
    let damaged = |error: FsError| Wrong::DirEntry { dir, what: text(error) };
    let mut within = FIRST_ENTRY;
    while within < BLOCK_BYTES {
        let at = offset + within;
        let head = dentry::head(view.region, at).map_err(damaged)?;
        if head.ino != Inum::NONE {
            met(at, dentry::read(view.region, at, dir).map_err(damaged));
        }
        within += head.len_bytes;
    }
    Ok(())
}

/// A sound entry's name ends where lookups expect it to: the bytes after it up to the next word are zero.
pub(crate) fn padding(entry: &Entry) -> Result<(), EntryWrong> {
    entry.is_padded().then_some(()).ok_or(EntryWrong::Padding)
}

/// The inode that a sound entry names is in use. Repair checks its own tables instead, in which damaged inodes are
/// rebuilt.
pub(crate) fn target(view: View<'_>, entry: &Entry) -> Result<Inode, EntryWrong> {
    let ino = entry.ino;
    view.in_use(ino).ok_or(EntryWrong::Free { ino })
}

/// The claims of an entry of `dir` about the inode that it names. Mount and scrub do not check this: checksums cover
/// both, and the inode of every name would have to be read.
pub(crate) fn kind(dir: Inum, entry: (Inum, ferrite_vfs::FileKind), inode: &Inode) -> Result<(), EntryWrong> {
    let (ino, kind) = entry;
    if inode.kind() != Some(kind) {
        return Err(EntryWrong::Kind);
    }
    match ino == ROOT || ino == dir {
        true => Err(EntryWrong::Circle),
        false => Ok(()),
    }
}

/// A directory counts its entries: those `found` in its blocks. Mount counts those that names lead to instead
/// ([`super::names::count`]), which it reads anyway.
pub(crate) fn count(dir: Inum, counted: u32, found: u32) -> Option<Wrong> {
    (counted != found).then_some(Wrong::EntryCount { dir, counted, found })
}

/// Damage in the words of the operation that meets it.
pub(super) fn text(error: FsError) -> String {
    match error {
        FsError::Damaged(damage) => damage.to_string(),
        other => other.to_string(),
    }
}
