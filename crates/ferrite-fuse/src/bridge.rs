//! One FUSE request, one call of the engine.
//!
//! Invariants: the engine pins every inode whose number a reply gives the kernel, in the call that finds it, and
//! `forget` drops the pin. So the number stays the file's as long as the kernel knows it, unlinked or not. The root is
//! never pinned. Each request that may change something goes through `change!`, so that a freeze holds it back.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferrite_vfs::{
    Attr, BadArgument, FallocateMode, FileKind, FileSystem, FsError, Ino, NewFile, NewNode, OpenFile, Position,
    ROOT_INO, RenameMode, Result, SYSTEM, SetAttr, WriteMode, XattrMode, posix,
};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::caller::ctx;
use crate::convert::{absent, errno, file_attr, file_type, open_mode, set_time, unknown};
use crate::freezer::Freezer;
use crate::handles::Handles;
use crate::locks::{Locks, Wire};
use crate::vouched::Vouched;

/// Longest time that the kernel is told to trust an answer: it takes no infinite one.
const TRUST_MAX: Duration = Duration::from_secs(86_400);
/// Largest write request. The engine takes each as one atomic step.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Offsets of `.` and `..` come first; the engine's cookies are shifted past them.
const FIRST_COOKIE: u64 = 2;

thread_local! {
    /// The buffer from which reads are answered.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves a file system to the kernel. Clones serve the same mount.
#[derive(Clone)]
pub(crate) struct Bridge {
    fs: Arc<dyn FileSystem>,
    handles: Arc<Handles>,
    /// Every operation is durable when it returns, so the kernel need not ask for `fsync`.
    durable_operations: bool,
    /// How long the kernel may keep names and attributes.
    trust: Duration,
    freezer: Freezer,
    /// If the engine keeps record locks, and not the kernel.
    locks: Option<Arc<Locks>>,
    /// If the engine vouches for what it tells, until it takes that back.
    vouched: Option<Arc<Vouched>>,
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

impl Bridge {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, freezer: Freezer, engine_locks: bool) -> Self {
        let limits = fs.limits();
        let vouched = fs.vouching().map(|_| Arc::default());
        let locks = engine_locks.then(|| Locks::new(Arc::clone(&fs)));
        Bridge {
            fs,
            handles: Arc::default(),
            durable_operations: limits.durable_operations,
            trust: limits.trust.min(TRUST_MAX),
            freezer,
            locks,
            vouched,
        }
    }

    /// What is to be taken back from the kernel, if the engine wants that.
    pub(crate) fn vouched(&self) -> Option<Arc<Vouched>> {
        self.vouched.clone()
    }

    fn entry(&self, reply: ReplyEntry, result: Result<Attr>) {
        answer!(reply, result, attr => {
            reply.entry(&self.trust, &file_attr(&attr), Generation(u64::from(attr.generation)));
        });
    }

    fn handle(&self, fh: FileHandle) -> Result<Arc<dyn OpenFile>> {
        self.handles.get(fh.0).ok_or(FsError::BadHandle)
    }

    fn insert(&self, file: Arc<dyn OpenFile>) -> (FileHandle, FopenFlags) {
        let flags = match self.trust.is_zero() {
            // Others write to the same files: each read is the engine's.
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::FOPEN_KEEP_CACHE,
        };
        (FileHandle(self.handles.insert(file)), flags)
    }

    /// Lists `.` and `..`, which engines do not; false if there was no room.
    fn list_dots(&self, ino: Ino, offset: u64, mut add: impl FnMut(Ino, u64, &OsStr) -> bool) -> bool {
        if offset == 0 && !add(ino, 1, OsStr::new(".")) {
            return false;
        }
        offset > 1
            || add(
                self.fs.parent(SYSTEM, ino).unwrap_or(ino),
                FIRST_COOKIE,
                OsStr::new(".."),
            )
    }
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
        if self.trust.is_zero() {
            // What is read directly can still be mapped, on kernels that allow it; only close-to-open holds then.
            let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        }
        for flag in wanted {
            // A kernel without one of them loses speed, not correctness.
            let _ = config.add_capabilities(flag);
        }
        if let Some(locks) = &self.locks {
            let mut wanted = InitFlags::FUSE_POSIX_LOCKS;
            wanted.set(InitFlags::FUSE_FLOCK_LOCKS, locks.keep_flock());
            config.add_capabilities(wanted).map_err(|_| {
                std::io::Error::other(
                    "this kernel does not pass on locks; omit the option that has the engine keep them",
                )
            })?;
        }
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn destroy(&mut self) {
        if let Some(locks) = &self.locks {
            locks.end();
        }
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let looked = self.fs.lookup(&ctx(req), parent.0, name.as_bytes());
        let found = looked.as_ref().ok().map(|attr| attr.ino);
        let name_ttl = match &self.vouched {
            Some(vouched) => vouched.name(&*self.fs, parent.0, name, found),
            None => self.trust,
        };
        match looked {
            Ok(attr) => {
                let generation = Generation(u64::from(attr.generation));
                reply.entry_with_ttls(&self.trust, &name_ttl, &file_attr(&attr), generation);
            }
            Err(FsError::NotFound) => reply.entry(&name_ttl, &absent(), Generation(0)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if ino.0 != ROOT_INO {
            // It may free a file without a name.
            change!(self, [], |bridge| bridge.fs.forget(SYSTEM, ino.0, nlookup));
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.fs.getattr(&ctx(req), ino.0), attr => {
            let ttl = match &self.vouched {
                Some(_) => Vouched::attr(&*self.fs, &attr),
                None => self.trust,
            };
            reply.attr(&ttl, &file_attr(&attr));
        });
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
        let ctx = ctx(req);
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            kill_priv: false,
        };
        // What HANDLE_KILLPRIV_V2 makes our task: any chown (also one that changes nothing, which arrives empty, like
        // the request that precedes a fallocate), and a truncate by an unprivileged caller.
        let chown = uid.is_some() || gid.is_some() || set == SetAttr::default();
        let kill_priv = mode.is_none() && (chown || (size.is_some() && !ctx.cred.is_root()));
        let set = SetAttr { kill_priv, ..set };
        change!(self, [], |bridge| {
            answer!(reply, bridge.fs.setattr(&ctx, ino.0, &set), attr => {
                reply.attr(&bridge.trust, &file_attr(&attr));
            });
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        answer!(reply, self.fs.readlink(&ctx(req), ino.0), target => reply.data(&target));
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
        let ctx = ctx(req);
        change!(self, [name], |bridge| {
            bridge.entry(reply, bridge.fs.mknod(&ctx, parent.0, name.as_bytes(), &node));
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let ctx = ctx(req);
        change!(self, [name], |bridge| {
            let made = bridge.fs.mkdir(&ctx, parent.0, name.as_bytes(), mode & 0o7777);
            bridge.entry(reply, made);
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ctx = ctx(req);
        change!(self, [name], |bridge| {
            answer!(reply, bridge.fs.unlink(&ctx, parent.0, name.as_bytes()), () => reply.ok());
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ctx = ctx(req);
        change!(self, [name], |bridge| {
            answer!(reply, bridge.fs.rmdir(&ctx, parent.0, name.as_bytes()), () => reply.ok());
        });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let ctx = ctx(req);
        change!(self, [name, target], |bridge| {
            bridge.entry(reply, bridge.fs.symlink(&ctx, parent.0, name.as_bytes(), target));
        });
    }

    fn rename(
        &self,
        req: &Request,
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
        let ctx = ctx(req);
        change!(self, [name, newname], |bridge| {
            if let Some(vouched) = &bridge.vouched {
                vouched.moves(newparent.0, newname);
                vouched.moves(parent.0, name);
            }
            let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
            answer!(reply, bridge.fs.rename(&ctx, from.0, from.1, to.0, to.1, mode), () => reply.ok());
        });
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let ctx = ctx(req);
        change!(self, [newname], |bridge| {
            bridge.entry(reply, bridge.fs.link(&ctx, ino.0, newparent.0, newname.as_bytes()));
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        answer!(reply, self.fs.open(&ctx(req), ino.0, open_mode(flags)), file => {
            let (fh, flags) = self.insert(file);
            reply.opened(fh, flags);
        });
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
        // Without O_EXCL: the kernel looked the name up before it asked, so if it is taken, another caller was faster.
        let new = NewFile {
            mode: mode & 0o7777,
            open: open_mode(OpenFlags(flags)),
            exclusive: flags & libc::O_EXCL != 0,
        };
        let ctx = ctx(req);
        change!(self, [name], |bridge| {
            answer!(reply, bridge.fs.create(&ctx, parent.0, name.as_bytes(), &new), opened => {
                let attr = opened.attr;
                let (fh, flags) = bridge.insert(opened.file);
                let generation = Generation(u64::from(attr.generation));
                reply.created(&bridge.trust, &file_attr(&attr), generation, fh, flags);
            });
        });
    }

    fn read(
        &self,
        req: &Request,
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
                .and_then(|file| file.read_at(&ctx(req), offset, &mut buffer[..size as usize]));
            answer!(reply, result, count => reply.data(&buffer[..count]));
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let ctx = ctx(req);
        // Where the end is, the engine knows best. Pages of a mapping have their place, however the file was opened.
        let appends = flags.0 & libc::O_APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let mode = WriteMode {
            position: if appends { Position::End } else { Position::At(offset) },
            kill_priv: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        change!(self, [data], |bridge| {
            let result = bridge.handle(fh).and_then(|file| file.write(&ctx, mode, data));
            answer!(reply, result, written => reply.written(written.len_bytes as u32));
        });
    }

    fn flush(&self, _req: &Request, ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        match &self.locks {
            Some(locks) => answer!(reply, locks.flush(ino.0, fh.0, lock_owner.0), () => reply.ok()),
            // There is nothing to flush; after one such reply the kernel stops asking.
            None => reply.error(Errno::ENOSYS),
        }
    }

    fn getlk(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let Some(locks) = &self.locks else {
            return reply.error(Errno::ENOSYS);
        };
        let wanted = Wire { start, last, kind, pid };
        answer!(reply, locks.get(ino.0, lock_owner.0, wanted), found => {
            reply.locked(found.start, found.last, found.kind, found.pid);
        });
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some(locks) = &self.locks else {
            return reply.error(Errno::ENOSYS);
        };
        let wanted = Wire { start, last, kind, pid };
        let done = Box::new(move |outcome| answer!(reply, outcome, () => reply.ok()));
        // Locks change nothing on the medium, so no freeze holds them back.
        locks.set((ino.0, fh.0), lock_owner.0, wanted, (req.pid(), sleep), done);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(locks) = &self.locks {
            locks.release(ino.0, fh.0);
        }
        // The last close frees a file without a name.
        change!(self, [], |bridge| {
            drop(bridge.handles.remove(fh.0));
            reply.ok();
        });
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer!(reply, self.handle(fh).and_then(|file| file.fsync(&ctx(req))), () => match self.durable_operations {
            // All is durable already. After one such reply the kernel stops asking, which saves a database one round
            // trip per commit.
            true => reply.error(Errno::ENOSYS),
            false => reply.ok(),
        });
    }

    fn fsyncdir(&self, req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer!(reply, self.fs.sync(&ctx(req)), () => reply.ok());
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut add = |ino, next, kind, name: &OsStr| !reply.add(INodeNo(ino), next, file_type(kind), name);
        let room = self.list_dots(ino.0, offset, |ino, next, name| {
            add(ino, next, FileKind::Directory, name)
        });
        let listed = match room {
            true => self
                .fs
                .readdir(&ctx(req), ino.0, offset.saturating_sub(FIRST_COOKIE), &mut |entry| {
                    let next = entry.next_cookie + FIRST_COOKIE;
                    add(entry.ino, next, entry.kind, OsStr::from_bytes(entry.name))
                }),
            false => Ok(()),
        };
        answer!(reply, listed, () => reply.ok());
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let mut add = |ino, next, name: &OsStr, ttl: &Duration, attr: &FileAttr, generation| {
            let generation = Generation(u64::from(generation));
            !reply.add(INodeNo(ino), next, name, ttl, attr, generation)
        };
        // The kernel takes only the number from these two.
        let room = self.list_dots(ino.0, offset, |ino, next, name| {
            add(ino, next, name, &Duration::ZERO, &unknown(ino, FileKind::Directory), 0)
        });
        let listed = match room {
            true => {
                let start = offset.saturating_sub(FIRST_COOKIE);
                self.fs.readdir_plus(&ctx(req), ino.0, start, &mut |entry, attr| {
                    let (attr, generation, ttl) = match attr {
                        Ok(attr) => (file_attr(&attr), attr.generation, self.trust),
                        // A damaged inode still has a name: a program that copies the directory must fail on it.
                        Err(_) => (unknown(entry.ino, entry.kind), 0, Duration::ZERO),
                    };
                    let next = entry.next_cookie + FIRST_COOKIE;
                    add(entry.ino, next, OsStr::from_bytes(entry.name), &ttl, &attr, generation)
                })
            }
            false => Ok(()),
        };
        answer!(reply, listed, () => reply.ok());
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        answer!(reply, self.fs.statfs(&ctx(req)), stat => reply.statfs(
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
        req: &Request,
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
        let ctx = ctx(req);
        change!(self, [name, value], |bridge| {
            let result = check_xattr(name).and_then(|name| bridge.fs.setxattr(&ctx, ino.0, name, value, mode));
            answer!(reply, result, () => reply.ok());
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(
            reply,
            size,
            check_xattr(name).and_then(|name| self.fs.getxattr(&ctx(req), ino.0, name)),
        );
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.fs.listxattr(&ctx(req), ino.0).map(|names| {
            // A list of names, each with its terminating zero.
            names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect()
        });
        reply_xattr(reply, size, names);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ctx = ctx(req);
        change!(self, [name], |bridge| {
            let result = check_xattr(name).and_then(|name| bridge.fs.removexattr(&ctx, ino.0, name));
            answer!(reply, result, () => reply.ok());
        });
    }

    fn fallocate(
        &self,
        req: &Request,
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
        let ctx = ctx(req);
        change!(self, [], |bridge| {
            let result = bridge
                .handle(fh)
                .and_then(|file| file.fallocate(&ctx, mode, offset, length));
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

    fn lseek(&self, req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let result = u64::try_from(offset)
            .map_err(|_| FsError::NoSuchAddress)
            .and_then(|offset| {
                let file = self.handle(fh)?;
                match whence {
                    libc::SEEK_DATA => file.seek_data(&ctx(req), offset),
                    libc::SEEK_HOLE => file.seek_hole(&ctx(req), offset),
                    _ => Err(FsError::Invalid(BadArgument::SeekKind)),
                }
            });
        answer!(reply, result, offset => reply.offset(offset as i64));
    }
}
