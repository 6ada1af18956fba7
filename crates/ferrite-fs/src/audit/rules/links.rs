//! Link counts: the number of names, and for directories also the number of subdirectories.

use ferrite_map::Inum;

use crate::audit::wrong::Wrong;
use crate::format::inode::{Inode, ROOT};

/// The link count of an inode that `names` names lead to; a directory also contains `subdirs` others. Mount and scrub
/// do not check this: a count is under its inode's checksum, and mount has no time to read the inode of every name.
pub(crate) fn expected(ino: Inum, inode: &Inode, names: u32, subdirs: u32) -> u32 {
    // A directory's own name counts once, and it counts itself; the root has no name but counts as if it had.
    match inode.is_dir() {
        true if ino == ROOT => names + subdirs + 2,
        true if names == 0 => 0,
        true => names + subdirs + 1,
        false => names,
    }
}

/// An inode's link count equals the links found. An inode without a name or links is an orphan: it was open, or being
/// removed, and the next mount frees it.
pub(crate) fn count(ino: Inum, inode: &Inode, expected: u32) -> Option<Wrong> {
    let counted = inode.nlink();
    (counted != expected).then_some(Wrong::LinkCount { ino, counted, expected })
}
