//! One FUSE request, one call of the engine.
//!
//! Invariants: every reply that gives the kernel an inode number has pinned the inode (by number and generation), and
//! `forget` drops the pin. So the number stays the file's as long as the kernel knows it, unlinked or not. The root is
//! never pinned. Each request that may change something goes through `change!`, so that a freeze holds it back.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferrite_vfs::{
    Attr, BadArgument, Cred, FallocateMode, FileKind, FileSystem, FsError, Ino, NewNode, OpenFile, OpenMode, ROOT_INO,
    RenameMode, Result, SetAttr, XattrMode, posix,
};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};

use crate::convert::{absent, errno, file_attr, file_type, set_time, unknown};
use crate::freezer::Freezer;
use crate::handles::Handles;

/// How long the kernel may keep names and attributes: the pool has no other owner that could change them.
const TTL: Duration = Duration::from_secs(86_400);
/// Largest write request. The engine takes each as one atomic step.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Offsets of `.` and `..` come first; the engine's cookies are shifted past them.
const FIRST_COOKIE: u64 = 2;
/// Entries of a directory collected for one reply; a reply of a page holds fewer.
const ENTRIES_PER_REPLY: usize = 128;

thread_local! {
    /// The buffer from which reads are answered.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves a file system to the kernel. Clones serve the same mount.
#[derive(Clone)]
pub(crate) struct Bridge {
    fs: Arc<dyn FileSystem>,
    handles: Arc<Handles>,
    durable_operations: bool,
    freezer: Freezer,
}

/// The caller.
#[derive(Clone, Copy)]
struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Caller {
    fn of(req: &Request) -> Caller {
        Caller {
            uid: req.uid(),
            gid: req.gid(),
            pid: req.pid(),
        }
    }

    fn cred(self) -> Cred {
        Cred::new(self.uid, self.gid)
    }
}

/// Runs `$body`, which changes something, with `$bridge` for `$this`: at once, or when the mount is thawed. What is
/// borrowed from the request is named, and copied if the change has to wait.
macro_rules! change {
    ($this:ident, [$($borrowed:ident),*], |$bridge:ident| $body:expr) => {
        match $this.freezer.pass() {
            Some(_passage) => {
                let $bridge = $this;
                $body
            }
            None => {
                let bridge = $this.clone();
                $(let $borrowed = $borrowed.to_owned();)*
                $this.freezer.hold_back(move || {
                    let $bridge = &bridge;
                    $(let $borrowed = &*$borrowed;)*
                    $body
                });
            }
        }
    };
}

/// Replies with an error, or with `$ok` of the value.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $ok:expr) => {
        match $result {
            Ok($value) => $ok,
            Err(error) => $reply.error(errno(&error)),
        }
    };
}

/// An entry collected under the directory's lock, for a reply.
struct Gathered {
    ino: Ino,
    kind: FileKind,
    name: Vec<u8>,
    next: u64,
}

impl Bridge {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, durable_operations: bool, freezer: Freezer) -> Self {
        Bridge {
            fs,
            handles: Arc::default(),
            durable_operations,
            freezer,
        }
    }

    /// Pins the inode that a reply is about to name.
    fn pinned(&self, attr: Attr) -> Result<Attr> {
        if attr.ino != ROOT_INO {
            self.fs.pin(attr.ino, attr.generation).map_err(|error| match error {
                FsError::Stale => FsError::NotFound,
                other => other,
            })?;
        }
        Ok(attr)
    }

    fn entry(&self, reply: ReplyEntry, result: Result<Attr>) {
        let pinned = result.and_then(|attr| self.pinned(attr));
        answer!(reply, pinned, attr => {
            reply.entry(&TTL, &file_attr(&attr), Generation(u64::from(attr.generation)));
        });
    }

    fn handle(&self, fh: FileHandle) -> Result<Arc<dyn OpenFile>> {
        self.handles.get(fh.0).ok_or(FsError::BadHandle)
    }

    fn open_file(&self, ino: Ino, flags: OpenFlags) -> Result<(FileHandle, FopenFlags)> {
        let (read, write) = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => (true, false),
            // The kernel reads a page before it changes part of it in a shared mapping.
            OpenAccMode::O_WRONLY | OpenAccMode::O_RDWR => (true, true),
        };
        let no_atime = flags.0 & libc::O_NOATIME != 0;
        let file = self.fs.open(
            ino,
            OpenMode {
                read,
                write,
                kill_priv: false,
                by_stranger: false,
                no_atime,
            },
        )?;
        Ok((FileHandle(self.handles.insert(file)), FopenFlags::FOPEN_KEEP_CACHE))
    }

    /// `set`, plus what clears setuid and setgid. If the group may not execute, Linux lets members of the group keep
    /// setgid and clears it when others change the file. The engine cannot know which of them the caller is.
    fn without_privilege(&self, caller: Caller, ino: Ino, set: SetAttr) -> Result<SetAttr> {
        let attr = self.fs.getattr(ino)?;
        let keeps = attr.kind == FileKind::Directory || attr.mode & (libc::S_ISGID | libc::S_IXGRP) != libc::S_ISGID;
        Ok(SetAttr {
            kill_priv: true,
            by_stranger: !keeps && caller.uid != 0 && !is_in_group(caller, attr.gid),
            ..set
        })
    }

    fn gather(&self, ino: Ino, offset: u64) -> Result<Vec<Gathered>> {
        let mut entries = Vec::new();
        if offset == 0 {
            entries.push(Gathered {
                ino,
                kind: FileKind::Directory,
                name: b".".to_vec(),
                next: 1,
            });
        }
        if offset <= 1 {
            let parent = self.fs.parent(ino).unwrap_or(ino);
            entries.push(Gathered {
                ino: parent,
                kind: FileKind::Directory,
                name: b"..".to_vec(),
                next: 2,
            });
        }
        self.fs
            .readdir(ino, offset.saturating_sub(FIRST_COOKIE), &mut |entry| {
                entries.push(Gathered {
                    ino: entry.ino,
                    kind: entry.kind,
                    name: entry.name.to_vec(),
                    next: entry.next_cookie + FIRST_COOKIE,
                });
                entries.len() < ENTRIES_PER_REPLY
            })?;
        Ok(entries)
    }
}

/// Whether the caller is in a group. A request names the first group only. The others are looked up; if that fails, the
/// caller counts as in none of them.
fn is_in_group(caller: Caller, gid: u32) -> bool {
    let others = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
        let groups = status
            .lines()
            .find_map(|line| line.strip_prefix("Groups:").map(str::to_owned));
        groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
    };
    caller.gid == gid || others()
}

fn check_xattr(name: &OsStr) -> Result<&[u8]> {
    posix::check_xattr_name(name.as_bytes()).map(|()| name.as_bytes())
}

fn reply_xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>>) {
    answer!(reply, result, value => match size {
        0 => reply.size(value.len() as u32),
        _ if value.len() > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(&value),
    });
}

impl Filesystem for Bridge {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_CACHE_SYMLINKS,
            // Not `FUSE_ASYNC_DIO`: the kernel drops the pages of a direct write before it, and again after it, but not
            // when the write ends asynchronously. Pages that a buffered reader filled meanwhile would stay, and a
            // truncate would not wait for it.
        ];
        for flag in wanted {
            // A kernel without one of them loses speed, not correctness.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.fs.lookup(parent.0, name.as_bytes()) {
            Err(FsError::NotFound) => reply.entry(&TTL, &absent(), Generation(0)),
            result => self.entry(reply, result),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if ino.0 != ROOT_INO {
            // It may free a file without a name.
            change!(self, [], |bridge| bridge.fs.forget(ino.0, nlookup));
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.fs.getattr(ino.0), attr => reply.attr(&TTL, &file_attr(&attr)));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let caller = Caller::of(req);
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            kill_priv: false,
            by_stranger: false,
        };
        // What HANDLE_KILLPRIV_V2 makes our task: any chown (also one that changes nothing, which arrives empty, like
        // the request that precedes a fallocate), and a truncate by an unprivileged caller.
        let chown = uid.is_some() || gid.is_some() || set == SetAttr::default();
        let kills = mode.is_none() && (chown || (size.is_some() && caller.uid != 0));
        change!(self, [], |bridge| {
            let changed = match kills {
                true => bridge
                    .without_privilege(caller, ino.0, set)
                    .and_then(|set| bridge.fs.setattr(ino.0, &set)),
                false => bridge.fs.setattr(ino.0, &set),
            };
            answer!(reply, changed, attr => reply.attr(&TTL, &file_attr(&attr)));
        });
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        answer!(reply, self.fs.readlink(ino.0), target => reply.data(&target));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = FileKind::from_mode(mode) else {
            return reply.error(Errno::EINVAL);
        };
        let node = NewNode {
            kind,
            mode: mode & 0o7777,
            rdev,
        };
        let cred = Caller::of(req).cred();
        change!(self, [name], |bridge| {
            bridge.entry(reply, bridge.fs.mknod(&cred, parent.0, name.as_bytes(), &node));
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let cred = Caller::of(req).cred();
        change!(self, [name], |bridge| {
            let made = bridge.fs.mkdir(&cred, parent.0, name.as_bytes(), mode & 0o7777);
            bridge.entry(reply, made);
        });
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        change!(self, [name], |bridge| {
            answer!(reply, bridge.fs.unlink(parent.0, name.as_bytes()), () => reply.ok());
        });
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        change!(self, [name], |bridge| {
            answer!(reply, bridge.fs.rmdir(parent.0, name.as_bytes()), () => reply.ok());
        });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let cred = Caller::of(req).cred();
        change!(self, [name, target], |bridge| {
            bridge.entry(reply, bridge.fs.symlink(&cred, parent.0, name.as_bytes(), target));
        });
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            flags if flags.is_empty() => RenameMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        change!(self, [name, newname], |bridge| {
            let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
            answer!(reply, bridge.fs.rename(from.0, from.1, to.0, to.1, mode), () => reply.ok());
        });
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        change!(self, [newname], |bridge| {
            bridge.entry(reply, bridge.fs.link(ino.0, newparent.0, newname.as_bytes()));
        });
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        answer!(reply, self.open_file(ino.0, flags), (fh, flags) => reply.opened(fh, flags));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let node = NewNode {
            kind: FileKind::File,
            mode: mode & 0o7777,
            rdev: 0,
        };
        let cred = Caller::of(req).cred();
        change!(self, [name], |bridge| {
            let made = match bridge.fs.mknod(&cred, parent.0, name.as_bytes(), &node) {
                // The kernel looked it up before it asked, so another caller was faster; that is fine unless O_EXCL.
                Err(FsError::Exists) if flags & libc::O_EXCL == 0 => bridge.fs.lookup(parent.0, name.as_bytes()),
                made => made,
            };
            let opened = made.and_then(|attr| bridge.pinned(attr)).and_then(|attr| {
                let opened = bridge.open_file(attr.ino, OpenFlags(flags));
                if opened.is_err() {
                    bridge.fs.unpin(attr.ino, 1);
                }
                opened.map(|(fh, flags)| (attr, fh, flags))
            });
            answer!(reply, opened, (attr, fh, flags) => {
                reply.created(&TTL, &file_attr(&attr), Generation(u64::from(attr.generation)), fh, flags);
            });
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                buffer.resize(size as usize, 0);
            }
            let result = self
                .handle(fh)
                .and_then(|file| file.read_at(offset, &mut buffer[..size as usize]));
            answer!(reply, result, count => reply.data(&buffer[..count]));
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let caller = Caller::of(req);
        change!(self, [data], |bridge| {
            let result = bridge.handle(fh).and_then(|file| {
                if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                    // Before the write, so that new content never runs with the old file's rights.
                    let set = bridge.without_privilege(caller, ino.0, SetAttr::default())?;
                    bridge.fs.setattr(ino.0, &set)?;
                }
                file.write_at(offset, data)
            });
            answer!(reply, result, count => reply.written(count as u32));
        });
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        // There is nothing to flush; after one such reply the kernel stops asking.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // The last close frees a file without a name.
        change!(self, [], |bridge| {
            drop(bridge.handles.remove(fh.0));
            reply.ok();
        });
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer!(reply, self.handle(fh).and_then(|file| file.fsync()), () => match self.durable_operations {
            // All is durable already. After one such reply the kernel stops asking, which saves a database one round
            // trip per commit.
            true => reply.error(Errno::ENOSYS),
            false => reply.ok(),
        });
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer!(reply, self.fs.sync(), () => reply.ok());
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = match self.gather(ino.0, offset) {
            Ok(entries) => entries,
            Err(error) => return reply.error(errno(&error)),
        };
        for entry in entries {
            if reply.add(
                INodeNo(entry.ino),
                entry.next,
                file_type(entry.kind),
                OsStr::from_bytes(&entry.name),
            ) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let entries = match self.gather(ino.0, offset) {
            Ok(entries) => entries,
            Err(error) => return reply.error(errno(&error)),
        };
        for entry in entries {
            let dots = entry.name == b"." || entry.name == b"..";
            let attr = self
                .fs
                .getattr(entry.ino)
                .and_then(|attr| if dots { Ok(attr) } else { self.pinned(attr) });
            let pins = attr.is_ok() && !dots && entry.ino != ROOT_INO;
            let (attr, generation, ttl) = match attr {
                Ok(attr) => (file_attr(&attr), attr.generation, TTL),
                // Removed since it was listed: treated as if it had been removed before.
                Err(FsError::NotFound | FsError::Stale) => continue,
                // A damaged inode still has a name: a program that copies the directory must fail on it.
                Err(_) => (unknown(entry.ino, entry.kind), 0, Duration::ZERO),
            };
            let name = OsStr::from_bytes(&entry.name);
            let generation = Generation(u64::from(generation));
            if reply.add(INodeNo(entry.ino), entry.next, name, &ttl, &attr, generation) {
                if pins {
                    self.fs.unpin(entry.ino, 1);
                }
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        answer!(reply, self.fs.statfs(), stat => reply.statfs(
            stat.blocks,
            stat.blocks_free,
            stat.blocks_available,
            stat.inodes,
            stat.inodes_free,
            stat.block_bytes,
            ferrite_vfs::NAME_MAX as u32,
            stat.block_bytes,
        ));
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        change!(self, [name, value], |bridge| {
            let result = check_xattr(name).and_then(|name| bridge.fs.setxattr(ino.0, name, value, mode));
            answer!(reply, result, () => reply.ok());
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(
            reply,
            size,
            check_xattr(name).and_then(|name| self.fs.getxattr(ino.0, name)),
        );
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.fs.listxattr(ino.0).map(|names| {
            // A list of names, each with its terminating zero.
            names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect()
        });
        reply_xattr(reply, size, names);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        change!(self, [name], |bridge| {
            let result = check_xattr(name).and_then(|name| bridge.fs.removexattr(ino.0, name));
            answer!(reply, result, () => reply.ok());
        });
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        let mode = match mode {
            0 => FallocateMode::Allocate { keep_size: false },
            KEEP => FallocateMode::Allocate { keep_size: true },
            PUNCH => FallocateMode::PunchHole,
            ZERO => FallocateMode::ZeroRange { keep_size: false },
            ZERO_KEEP => FallocateMode::ZeroRange { keep_size: true },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        change!(self, [], |bridge| {
            let result = bridge.handle(fh).and_then(|file| file.fallocate(mode, offset, length));
            answer!(reply, result, () => reply.ok());
        });
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        // There are none. fuser would write a warning to the log, which users must not be able to fill.
        reply.error(Errno::ENOTTY);
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let result = u64::try_from(offset)
            .map_err(|_| FsError::NoSuchAddress)
            .and_then(|offset| {
                let file = self.handle(fh)?;
                match whence {
                    libc::SEEK_DATA => file.seek_data(offset),
                    libc::SEEK_HOLE => file.seek_hole(offset),
                    _ => Err(FsError::Invalid(BadArgument::SeekKind)),
                }
            });
        answer!(reply, result, offset => reply.offset(offset as i64));
    }
}
