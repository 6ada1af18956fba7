//! Attributes of files as tuples, of which the Python half makes an `os.stat_result`.

use std::os::unix::fs::MetadataExt;

use ferrite::Metadata;

/// Mode, inode, links, owner, group, size, blocks, device, and times of access, change of content and change of
/// attributes in nanoseconds.
pub(crate) type StatTuple = (u32, u64, u64, u32, u32, u64, u64, u64, i128, i128, i128);

/// The attributes of a file for Python.
pub(crate) fn stat_tuple(found: &Metadata) -> StatTuple {
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    (
        found.mode(),
        found.ino(),
        found.nlink(),
        found.uid(),
        found.gid(),
        found.size(),
        found.blocks(),
        found.rdev(),
        ns(found.atime(), found.atime_nsec()),
        ns(found.mtime(), found.mtime_nsec()),
        ns(found.ctime(), found.ctime_nsec()),
    )
}
