//! The two traits an engine implements: [`FileSystem`] for inodes and names, [`OpenFile`] for data.

use std::sync::Arc;

use crate::{
    Attr, Cred, DirEntry, FallocateMode, Ino, NewNode, OpenMode, RenameMode, Result, SetAttr, StatFs, XattrMode,
};

/// A file system, addressed by inode number.
///
/// Every method that changes something is atomic, and durable when it returns (as far as the medium
/// is); on `Err` it has changed nothing. Methods may block on per-inode locks, never on another
/// caller's I/O wait other than the medium's own. `name` is one path component: never empty, never `.`
/// or `..`, without `/` or NUL, at most [`crate::NAME_MAX`] bytes (else `NameTooLong` or `Invalid`).
///
/// Engines do not check permissions; see the crate's head comment.
pub trait FileSystem: Send + Sync {
    /// Space and inodes.
    fn statfs(&self) -> Result<StatFs>;

    /// Attributes of the entry `name` of directory `parent`.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr>;

    /// The directory that holds directory `dir` (the root's is the root).
    fn parent(&self, dir: Ino) -> Result<Ino>;

    /// Attributes of an inode.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes, all in one step; returns the new ones. `ctime` moves with any change. A new size moves
    /// `mtime` too, unless `set.mtime` says otherwise, even if the size stays the same. `IsDirectory` or `Invalid` for
    /// a size on anything but a regular file.
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// Keeps `ino` usable, even with no name left, until as many [`Self::unpin`]s have been made. `Stale` if
    /// `generation` is no longer the inode's: it was freed since the caller saw it.
    fn pin(&self, ino: Ino, generation: u32) -> Result<()>;

    /// Drops `count` pins; an inode without names, pins and open files is freed.
    fn unpin(&self, ino: Ino, count: u64);

    /// [`Self::unpin`] by a caller that will not use `ino` again soon: its state in memory need not be kept.
    fn forget(&self, ino: Ino, count: u64) {
        self.unpin(ino, count);
    }

    /// The target of a symbolic link. `Invalid` for anything else.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Creates a regular or special file owned by `cred` (group and setgid as
    /// [`crate::posix::inherit`] says).
    fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr>;

    /// Creates a directory; `mode` has the umask applied.
    fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32) -> Result<Attr>;

    /// Creates a symbolic link to `target` (1 to 4095 bytes).
    fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;

    /// Gives `ino` another name. `NotPermitted` for a directory, `NotFound` if it has no name left.
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;

    /// Removes a name that is not a directory.
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()>;

    /// Renames, atomically. `Invalid` when a directory would go below itself. Replacing a name by
    /// another link of the same inode changes nothing.
    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;

    /// Lists `dir` from `cookie` (0: the start), without `.` and `..`, until `sink` returns false (the
    /// entry it refused is given again by its predecessor's `next_cookie`). Entries that exist throughout a
    /// listing come exactly once. `sink` must not call into this file system.
    fn readdir(&self, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;

    /// Opens a regular file. The inode stays usable until the handle is dropped.
    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>>;

    /// Value of an extended attribute. `name` has its namespace prefix (`user.` and so on).
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. `Exists` and `NoAttribute` as `mode` demands.
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;

    /// Names of all extended attributes.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute.
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    /// Makes everything done before durable (a no-op where each operation is durable already).
    fn sync(&self) -> Result<()>;
}

/// An open regular file. Dropping the last clone closes it.
pub trait OpenFile: Send + Sync {
    /// Its inode.
    fn ino(&self) -> Ino;

    /// Its attributes.
    fn getattr(&self) -> Result<Attr>;

    /// Reads at `offset` into `buf`; fewer bytes only at the end of the file. Sees one state of the
    /// file, never half of a concurrent write.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` at `offset`. For data longer than the engine's atomic bound, which is at least 2 MiB, it
    /// may write only a prefix when space runs out; the count says how much. `FileTooBig` past the limit.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize>;

    /// Writes at the end of the file, which is found and moved in the same atomic step. Returns the offset of the data,
    /// and its length.
    fn append(&self, data: &[u8]) -> Result<(u64, usize)>;

    /// Reserves, punches or zeroes a range.
    fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;

    /// First offset at or after `offset` that holds data (`NoSuchAddress`: none).
    fn seek_data(&self, offset: u64) -> Result<u64>;

    /// First offset at or after `offset` in a hole; the end of the file counts as one
    /// (`NoSuchAddress`: `offset` is not before the end).
    fn seek_hole(&self, offset: u64) -> Result<u64>;

    /// Makes the file durable (a no-op where each operation is durable already); reports a medium that failed.
    fn fsync(&self) -> Result<()>;
}
