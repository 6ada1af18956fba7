//! Link counts: as many as there are names, and of directories those inside them.

use ferrite_vfs::ROOT_INO;

use crate::audit::wrong::Wrong;
use crate::format::inode::Inode;

/// The link count of an inode to which `names` names lead, and, if it is a directory, `subdirs` of them stand in it.
/// Mount and scrub do not ask: a count is under its inode's checksum, and mount has no time to read the inode of
/// every name.
pub(crate) fn expected(ino: u32, inode: &Inode, names: u32, subdirs: u32) -> u32 {
    // A directory's own name counts once, and it counts itself; the root has none but counts as if.
    match inode.is_dir() {
        true if u64::from(ino) == ROOT_INO => names + subdirs + 2,
        true if names == 0 => 0,
        true => names + subdirs + 1,
        false => names,
    }
}

/// An inode counts the links that there are. One without a name or links is an orphan: somebody had it open, or was
/// removing it, and the next mount frees it.
pub(crate) fn count(ino: u32, inode: &Inode, expected: u32) -> Option<Wrong> {
    let counted = inode.nlink();
    (counted != expected).then_some(Wrong::LinkCount { ino, counted, expected })
}
