//! The two traits an engine implements: [`FileSystem`] for inodes and names, [`OpenFile`] for data.

pub mod walk;

use std::sync::Arc;

use crate::locks::{LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use crate::regions::Regions;
use ferrite_buffers::borrowed::Borrowed;
use ferrite_buffers::{Buffer, Pool};

use crate::{
    Attr, Backlog, CacheLeases, CloneRange, Ctx, DirEntry, FallocateMode, FsError, Ino, Limits, NewFile, NewNode,
    OpenFileId, OpenFlags, OpenMode, Opened, Position, RenameMode, Result, SetAttr, Start, StatFs, Unsupported,
    Unsynced, WriteMode, Written, XattrMode,
};

/// Completion of [`OpenFile::submit_read`]: called exactly once.
pub type ReadDone = Box<dyn FnOnce(Buffer, Result<usize>) + Send>;
/// Completion of [`OpenFile::submit_write`]: called exactly once, with the extent written.
pub type WriteDone = Box<dyn FnOnce(Buffer, Result<Written>) + Send>;

/// A file system, addressed by inode number.
///
/// Every method that changes something is atomic, and durable when it returns (as far as [`Limits::durability`] says);
/// on `Err` it has changed nothing. Methods may block on per-inode locks, and on a device if [`Limits::may_block`] says
/// so, never on another caller's I/O wait. `name` is one path component: never empty, never `.` or `..`, without `/` or
/// NUL, at most [`crate::NAME_MAX`] bytes (else `NameTooLong` or `Invalid`).
///
/// With [`Ctx::check`] an engine checks permissions itself, by the rules of [`crate::posix`]; see there for what each
/// call needs. A missing permission is `AccessDenied` or `NotPermitted`.
pub trait FileSystem: Send + Sync {
    /// The engine's guarantees. They never change.
    fn limits(&self) -> Limits;

    /// Changes that have not reached the place where content stays, if that is elsewhere. Does not block for long.
    fn backlog(&self) -> Option<Backlog> {
        None
    }

    /// Announces a pool whose buffers will be submitted. Engines with devices may register its memory, and keep it
    /// registered for as long as they live; this only makes transfers cheaper.
    fn know_buffers(&self, _: &Pool) {}

    /// The engine's cache leases, if others change its files too and it knows when. Without them, a caller may cache
    /// replies for no longer than [`Limits::validity`].
    fn cache_leases(&self) -> Option<&dyn CacheLeases> {
        None
    }

    /// Its files as memory regions, if their pages lie in memory.
    fn regions(&self) -> Option<&dyn Regions> {
        None
    }

    /// Space and inodes.
    fn statfs(&self, ctx: &Ctx) -> Result<StatFs>;

    /// Attributes of the entry `name` of directory `parent`.
    fn lookup(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr>;

    /// The directory that holds directory `dir` (the root's is the root).
    fn parent(&self, ctx: &Ctx, dir: Ino) -> Result<Ino>;

    /// Attributes of an inode.
    fn getattr(&self, ctx: &Ctx, ino: Ino) -> Result<Attr>;

    /// Changes attributes, all in one step; returns the new ones. `ctime` moves with any change. A new size moves
    /// `mtime` too, unless `set.mtime` says otherwise, even if the size stays the same. `IsDirectory` or `Invalid` for
    /// a size on anything but a regular file.
    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// Keeps `ino` usable, even with no name left, until as many [`Self::unpin`]s have been made. `Stale` if
    /// `generation` is no longer the inode's: it was freed since the caller saw it.
    fn pin(&self, ctx: &Ctx, ino: Ino, generation: u32) -> Result<()>;

    /// Drops `count` pins; an inode without names, pins and open files is freed.
    fn unpin(&self, ctx: &Ctx, ino: Ino, count: u64);

    /// [`Self::unpin`] by a caller that will not use `ino` again soon: its state in memory need not be kept.
    fn forget(&self, ctx: &Ctx, ino: Ino, count: u64) {
        self.unpin(ctx, ino, count);
    }

    /// The target of a symbolic link. `Invalid` for anything else.
    fn readlink(&self, ctx: &Ctx, ino: Ino) -> Result<Vec<u8>>;

    /// Creates a regular or special file owned by the caller (group and setgid as [`crate::posix::inherit`] says).
    fn mknod(&self, ctx: &Ctx, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr>;

    /// Creates a directory; `mode` has the umask applied.
    ///
    /// A directory of the name [`SNAPSHOTS_NAME`](crate::SNAPSHOTS_NAME) is for snapshots of the one that it is in, and
    /// belongs to the owner of that, who alone may make it besides root. Listings leave it out; callers change nothing
    /// in it but by this call and [`Self::rmdir`]: a directory made in it is a snapshot, which is taken as
    /// [`Self::clone_tree`] makes a clone, without the directories of snapshots in it, and everything in which is
    /// read-only. Removing the directory removes the whole snapshot. `NotSupported` for that name from an engine that
    /// shares nothing.
    fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Result<Attr>;

    /// Creates a symbolic link to `target` (1 to 4095 bytes).
    fn symlink(&self, ctx: &Ctx, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;

    /// Gives `ino` another name, or its first. `NotPermitted` for a directory, `NotFound` if it has no name left.
    fn link(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;

    /// Clones `ino`, and everything below it if it is a directory, to a new name: what it held at one moment during the
    /// call, in one atomic step. The clone has the owners, modes, extended attributes and times of the original, except
    /// `ctime`, and shares its blocks. Names of one file within the tree are names of one file in the clone. Other
    /// changes wait meanwhile, reads do not. Bound files are copied.
    ///
    /// With [`Ctx::check`], callers other than root must own everything that they clone, else `NotPermitted`.
    /// `NotSupported` from an engine that shares nothing.
    fn clone_tree(&self, _ctx: &Ctx, _ino: Ino, _parent: Ino, _name: &[u8]) -> Result<Attr> {
        Err(FsError::NotSupported(Unsupported::Clone))
    }

    /// Removes a name that is not a directory.
    fn unlink(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()>;

    /// Removes an empty directory, or a snapshot: the owner of the directory that it was taken of, and root.
    fn rmdir(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()>;

    /// Whether a directory is one of snapshots, see [`Self::mkdir`]. Making and removing directories in it may take
    /// long, and making one keeps other changes waiting.
    fn takes_snapshots(&self, _dir: Ino) -> bool {
        false
    }

    /// Renames, atomically. `Invalid` when a directory would go below itself. Replacing a name by
    /// another link of the same inode changes nothing. A whiteout belongs to the caller, as a file that it creates.
    fn rename(
        &self,
        ctx: &Ctx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()>;

    /// Lists `dir` from `cookie` (0: the start), without `.` and `..`, until `sink` returns false (the entry it refused
    /// is given again by its predecessor's `next_cookie`). Entries that exist throughout a listing come exactly once.
    /// `sink` must not call into this file system. The caller was allowed to read the directory when it opened it, so
    /// nothing is checked here.
    fn readdir(&self, ctx: &Ctx, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;

    /// [`Self::readdir`] with the attributes of each entry, or the error of reading them. With [`Ctx::pins`], an entry
    /// that `sink` accepts with attributes comes pinned.
    fn readdir_plus(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()>;

    /// Opens a regular file. The inode stays usable until the handle is dropped.
    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>>;

    /// Creates a regular file and opens it, or opens the existing one, unless `new.exclusive` is set. In one step: it
    /// opens the file that the name led to. An existing file of another kind is refused as by [`Self::open`]; a
    /// symbolic link is `Loop`.
    ///
    /// With [`NO_NAME`](crate::NO_NAME) the file is one of `parent` without a name: it has no links, and goes with its
    /// last reference. [`Self::link`] may give it its first name before that, unless `new.exclusive` is set.
    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened>;

    /// The inode that `path` leads to from `start`. Follows links on the way; the last one if `follow`, or if a slash
    /// follows it. If [`Ctx::check`] is set, checks the permission to search each directory on the way.
    fn resolve(&self, ctx: &Ctx, start: &Start, path: &[u8], follow: bool) -> Result<Attr> {
        walk::resolve(self, ctx, start, path, follow)
    }

    /// Opens the regular file that `path` leads to from `start`, and creates or truncates it, as `flags` say and
    /// `open(2)` does.
    fn open_path(&self, ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<Opened> {
        walk::open(self, ctx, start, path, flags)
    }

    /// Value of an extended attribute. `name` has its namespace prefix (`user.` and so on).
    fn getxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. `Exists` and `NoAttribute` as `mode` demands.
    fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;

    /// Names of all extended attributes (with [`Ctx::check`]: of those the caller may see).
    fn listxattr(&self, ctx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute.
    fn removexattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()>;

    /// Frees the files without names that were open when the engine ended, and that the mount options made it keep.
    /// Files that are pinned or open by now are freed when the last reference is dropped.
    fn drop_orphans(&self, _ctx: &Ctx) -> Result<()> {
        Ok(())
    }

    /// How many files without a name pins or opens keep: their space comes back when the last reference is dropped.
    /// `None` from an engine that does not count them. Not exact while files are removed.
    fn unnamed_files(&self) -> Option<u64> {
        None
    }

    /// Makes everything done before durable (a no-op where each operation is durable already).
    fn sync(&self, ctx: &Ctx) -> Result<()>;

    /// Makes the names and attributes that were changed before durable, as an `fsync` of a directory asks. Does not
    /// wait for content, unless that becomes durable together with them.
    fn sync_names(&self, ctx: &Ctx) -> Result<()> {
        sync_names(self, ctx)
    }

    /// Asks for an advisory lock on a file for an owner of [`Ctx::client`]. The rules of locks are in [`crate::locks`];
    /// nothing is checked. `done` is called exactly once: before this returns if the request does not wait, else when
    /// it is settled, possibly on another thread and before the returned ticket is seen. Never blocks. Callers that
    /// want to block use [`crate::Vfs::lock`].
    ///
    /// The outcome is `WouldBlock` when others hold the lock and the request may not wait; `Deadlock` when they, along
    /// some chain, wait for this owner (record locks only); `Interrupted` after [`Self::cancel_lock`]; `Disconnected`
    /// after [`Self::release_client`]; `NoSpace` with too many locks or too many requests that wait (see the bounds in
    /// [`crate::locks`]).
    fn lock(&self, ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool, done: LockDone) -> Option<LockTicket>;

    /// Releases the locks of an owner on a file. Its waiting requests keep waiting. No error if it holds nothing.
    /// `NoSpace` if releasing the middle of a lock leaves two, and there are too many locks.
    fn unlock(&self, ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> Result<()>;

    /// A lock that conflicts with `lock`, as `fcntl(F_GETLK)` reports it; of several, one that starts first.
    fn conflicting_lock(&self, ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Result<Option<RecordLock>>;

    /// Ends a request of [`Ctx::client`] that waits, with `Interrupted`. No effect if it is settled already.
    fn cancel_lock(&self, ctx: &Ctx, ticket: LockTicket);

    /// Releases every lock of [`Ctx::client`], which is gone, and ends its requests with `Disconnected`.
    fn release_client(&self, ctx: &Ctx);
}

/// [`FileSystem::sync_names`], as it follows from the limits of an engine.
///
/// # Errors
/// Those of [`FileSystem::sync`].
pub fn sync_names<F: FileSystem + ?Sized>(fs: &F, ctx: &Ctx) -> Result<()> {
    match fs.limits().unsynced {
        Unsynced::Content => Ok(()),
        Unsynced::Nothing | Unsynced::Everything => fs.sync(ctx),
    }
}

/// An open regular file. Dropping the last clone closes it.
///
/// Permissions were checked when it was opened. With [`Ctx::check`], changes by an unprivileged caller clear setuid and
/// setgid, and [`OpenFile::setattr`] is checked like [`FileSystem::setattr`].
pub trait OpenFile: Send + Sync {
    /// Its inode.
    fn ino(&self) -> Ino;

    /// How the engine knows it, for [`Self::clone_range`].
    fn id(&self) -> OpenFileId {
        OpenFileId {
            ino: self.ino(),
            number: 0,
        }
    }

    /// Its attributes.
    fn getattr(&self, ctx: &Ctx) -> Result<Attr>;

    /// Changes attributes of the open file, as [`FileSystem::setattr`]. A size needs a handle that is open for writing
    /// (else `Invalid`) and no other permission, as with `ftruncate(2)`.
    fn setattr(&self, ctx: &Ctx, set: &SetAttr) -> Result<Attr>;

    /// Reads at `offset` into `buf`; fewer bytes only at the end of the file. Sees one state of the
    /// file, never half of a concurrent write.
    fn read_at(&self, ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// [`Self::read_at`], and the file's version: reads of one open file with the same version saw one state. `None`:
    /// the engine cannot tell for this read.
    fn read_versioned(&self, ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<(usize, Option<u64>)> {
        let before = self.getattr(ctx)?.change;
        let count = self.read_at(ctx, offset, buf)?;
        let is_one_state = before != 0 && self.getattr(ctx)?.change == before;
        Ok((count, is_one_state.then_some(before)))
    }

    /// Passes `take` the borrowed bytes from `offset` on, at most `len_bytes` and fewer only at the end of the file, to
    /// be sent without a copy, and the file's version as in [`Self::read_versioned`]. Until `take` returns, the bytes
    /// do not change and writers of the file wait, so `take` must not block. False: the caller must read instead;
    /// `take` was not called. After a media error met meanwhile, the caller must not use the bytes that `take` got.
    fn read_borrowed(
        &self,
        _: &Ctx,
        _offset: u64,
        _len_bytes: usize,
        _take: &mut dyn FnMut(&Borrowed, u64),
    ) -> Result<bool> {
        Ok(false)
    }

    /// Writes all of `data`; returns the extent written. At [`Position::End`], the end is found and moved in the same
    /// atomic step. For data longer than [`Limits::whole_write_bytes`] it may write only a prefix when space runs out;
    /// the length says how much. `FileTooBig` past the limit.
    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written>;

    /// [`Self::write`] at an offset; returns the length.
    fn write_at(&self, ctx: &Ctx, offset: u64, data: &[u8]) -> Result<usize> {
        self.write(ctx, Position::At(offset).into(), data)
            .map(|written| written.len_bytes)
    }

    /// [`Self::write`] at the end.
    fn append(&self, ctx: &Ctx, data: &[u8]) -> Result<Written> {
        self.write(ctx, Position::End.into(), data)
    }

    /// [`Self::read_at`] into a buffer that network and devices know, as long as the buffer; `done` gets it back with
    /// the count. Engines that wait for a device return first and call `done` on another thread; the default reads and
    /// then calls it. `done` must not block.
    fn submit_read(&self, ctx: &Ctx, offset: u64, mut buffer: Buffer, done: ReadDone) {
        let read = self.read_at(ctx, offset, &mut buffer);
        done(buffer, read);
    }

    /// [`Self::write`] from such a buffer, likewise.
    fn submit_write(&self, ctx: &Ctx, mode: WriteMode, buffer: Buffer, done: WriteDone) {
        let written = self.write(ctx, mode, &buffer);
        done(buffer, written);
    }

    /// Reserves, punches or zeroes a range.
    fn fallocate(&self, ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;

    /// Makes a range of another open file of this engine, or of this one, the content of a range of this file, as far
    /// as [`CloneRange::len_in`] says, or less; returns the extent. In one atomic step that moves no data: both ranges
    /// share blocks, which a later write to either leaves to the other. Holes stay holes, and so do pages that are only
    /// reserved. `NotSupported` if nothing can be shared: then the caller copies ([`crate::copy_range`]).
    fn clone_range(&self, _: &Ctx, _range: &CloneRange) -> Result<Written> {
        Err(FsError::NotSupported(Unsupported::Clone))
    }

    /// First offset at or after `offset` that holds data (`NoSuchAddress` without one).
    fn seek_data(&self, ctx: &Ctx, offset: u64) -> Result<u64>;

    /// First offset at or after `offset` in a hole; the end of the file counts as one
    /// (`NoSuchAddress`: `offset` is not before the end).
    fn seek_hole(&self, ctx: &Ctx, offset: u64) -> Result<u64>;

    /// Makes the file durable (a no-op where each operation is durable already); reports a medium that failed.
    fn fsync(&self, ctx: &Ctx) -> Result<()>;
}
