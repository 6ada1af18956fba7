//! Directories: their blocks, the entries in them, and what those name.

use ferrite_vfs::{FsError, ROOT_INO};

use super::View;
use crate::audit::wrong::{EntryWrong, Wrong};
use crate::format::dentry::{self, Entry, FIRST_ENTRY};
use crate::format::inode::Inode;
use crate::format::layout::BLOCK_BYTES;

/// What a directory's block says by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// That it is this block of this directory.
    Right,
    /// Another block, or another directory: its entries are not this one's.
    Others,
    /// Nothing. Entries say themselves whose they are.
    Damaged,
}

/// The header of the block at pool offset `offset`, which is mapped as block `lblk` of `dir`. Anything but
/// [`Header::Right`] is [`Wrong::DirHeader`].
pub(crate) fn header(view: View<'_>, offset: u64, (dir, lblk): (u32, u32)) -> Header {
    match dentry::read_block_header(view.region, offset) {
        Ok(found) if found == (dir, lblk) => Header::Right,
        Ok(_) => Header::Others,
        Err(_) => Header::Damaged,
    }
}

/// Walks a directory's block: `met` gets the pool offset of every entry in use, and the entry, if it is sound. Fails
/// where entries do not add up; what lies behind is not met then.
pub(crate) fn entries(
    view: View<'_>,
    dir: u32,
    offset: u64,
    met: &mut dyn FnMut(u64, Result<Entry, Wrong>),
) -> Result<(), Wrong> {
    let damaged = |error: FsError| Wrong::DirEntry { dir, what: text(error) };
    let mut within = FIRST_ENTRY;
    while within < BLOCK_BYTES {
        let at = offset + within;
        let head = dentry::head(view.region, at).map_err(damaged)?;
        if head.ino != 0 {
            met(at, dentry::read(view.region, at, dir).map_err(damaged));
        }
        within += head.len_bytes;
    }
    Ok(())
}

/// A sound entry's name ends where lookups think it does: what follows up to the next word is zero.
pub(crate) fn padding(entry: &Entry) -> Result<(), EntryWrong> {
    entry.is_padded().then_some(()).ok_or(EntryWrong::Padding)
}

/// What a sound entry names is in use. Repair asks its own books instead, where damaged inodes are made again.
pub(crate) fn target(view: View<'_>, entry: &Entry) -> Result<Inode, EntryWrong> {
    let ino = entry.ino;
    view.in_use(ino).ok_or(EntryWrong::Free { ino })
}

/// What an entry of `dir` says of the inode that it names. Mount and scrub do not ask: both are vouched for by
/// checksums, and the inode of every name would have to be read.
pub(crate) fn kind(dir: u32, entry: (u32, ferrite_vfs::FileKind), inode: &Inode) -> Result<(), EntryWrong> {
    let (ino, kind) = entry;
    if inode.kind() != Some(kind) {
        return Err(EntryWrong::Kind);
    }
    match u64::from(ino) == ROOT_INO || ino == dir {
        true => Err(EntryWrong::Circle),
        false => Ok(()),
    }
}

/// A directory counts its entries: those `found` in its blocks. Mount counts those that names lead to instead
/// ([`super::names::count`]), which it looks at anyway.
pub(crate) fn count(dir: u32, counted: u32, found: u32) -> Option<Wrong> {
    (counted != found).then_some(Wrong::EntryCount { dir, counted, found })
}

/// Damage in the words of whoever meets it.
pub(super) fn text(error: FsError) -> String {
    match error {
        FsError::Damaged(damage) => damage.to_string(),
        other => other.to_string(),
    }
}
