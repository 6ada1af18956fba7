//! The classic transport: fuser reads a request from `/dev/fuse`, calls back, and writes the reply.
//!
//! One callback, one call of [`Service`]. With rings only `INIT`, `FORGET` and requests from before the rings arrive
//! here; the kernel never says which transport a request will take, so all are understood.
//!
//! Invariant: each request that may change something goes through [`Bridge::change`] or [`when_open`], so that a
//! freeze holds it back.

mod calls;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferrite_vfs::{Ctx, FileKind, NAME_MAX, SetAttr};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::caller;
use crate::convert::{absent, file_attr, file_type, set_time, unknown};
use crate::locks::{Requester, Wire};
use crate::ring::{MAX_WRITE_BYTES, Rings, opcode};
use crate::service::{Entry, Known, Response, Service};
use crate::space::{Change, RetryTimeout, when_open};

thread_local! {
    /// The buffer for the data of reads.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves a file system to the kernel.
pub(crate) struct Bridge {
    service: Arc<Service>,
    /// The other transport, if it may be used.
    rings: Option<Arc<Rings>>,
}

fn ctx(req: &Request) -> Ctx {
    caller::ctx(req.pid(), req.uid(), req.gid())
}

/// Replies with an error, or with `$ok` of the value.
macro_rules! respond {
    ($reply:ident, $result:expr, $value:pat => $ok:expr) => {
        match $result {
            Ok($value) => $ok,
            Err(refused) => $reply.error(refused.errno),
        }
    };
}

fn reply_entry(reply: ReplyEntry, response: Response<Entry>) {
    respond!(reply, response, entry => {
        let generation = Generation(entry.attr.map_or(0, |attr| u64::from(attr.generation)));
        let attr = entry.attr.as_ref().map_or_else(absent, file_attr);
        reply.entry_with_ttls(&entry.attr_validity.duration(), &entry.name_ttl, &attr, generation);
    });
}

fn reply_xattr(reply: ReplyXattr, size: u32, response: Response<Vec<u8>>) {
    respond!(reply, response, value => match size {
        0 => reply.size(value.len() as u32),
        _ if value.len() > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(&value),
    });
}

impl Bridge {
    pub(crate) fn new(service: Arc<Service>, rings: Option<Arc<Rings>>) -> Self {
        Bridge { service, rings }
    }
}

impl Filesystem for Bridge {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_POSIX_ACL,
            // A default access control list stands in for the mask.
            InitFlags::FUSE_DONT_MASK,
            // Not `FUSE_ASYNC_DIO`: the kernel drops the pages of a direct write before and after it, but not when the
            // write ends asynchronously. Pages that a buffered reader filled meanwhile would stay, and a truncate would
            // not wait for it.
        ];
        if self.service.is_direct() {
            // Directly read files can still be mapped, on kernels that allow it. If others write, too, only
            // close-to-open consistency holds then.
            let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        }
        for flag in wanted {
            // A kernel without one of them loses speed, not correctness.
            let _ = config.add_capabilities(flag);
        }
        if let Some(locks) = self.service.locks() {
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
        if let Some(rings) = &self.rings {
            // Last: once the kernel has the flag, it sends nothing until the rings are there.
            rings.grant(config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok());
        }
        Ok(())
    }

    fn destroy(&mut self) {
        if let Some(rings) = &self.rings {
            rings.end();
        }
        self.service.end();
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ctx = ctx(req);
        self.ask(
            opcode::LOOKUP,
            [name.as_bytes()],
            move |service, [name]| service.lookup(&ctx, parent.0, name),
            move |found| reply_entry(reply, found),
        );
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.change(
            opcode::FORGET,
            [],
            move |service, []| {
                service.forget(ino.0, nlookup);
                Ok(())
            },
            move |_made| (),
        );
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let ctx = ctx(req);
        let show = move |response: Response<Known>| {
            respond!(reply, response, known => reply.attr(&known.attr_validity.duration(), &file_attr(&known.attr)));
        };
        if ino == INodeNo::ROOT {
            // This reply comes soon, whatever the engine does.
            let getattr = || self.service.getattr(&ctx, ino.0);
            return show(self.service.meter().counted(opcode::GETATTR, getattr));
        }
        self.ask(
            opcode::GETATTR,
            [],
            move |service, []| service.getattr(&ctx, ino.0),
            show,
        );
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
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let ctx = ctx(req);
        let set = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            kill_priv: false,
        };
        self.change(
            opcode::SETATTR,
            [],
            move |service, []| service.setattr(&ctx, ino.0, fh.map(|fh| fh.0), &set),
            move |made| {
                respond!(reply, made, known => {
                    reply.attr(&known.attr_validity.duration(), &file_attr(&known.attr));
                })
            },
        );
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let ctx = ctx(req);
        self.ask(
            opcode::READLINK,
            [],
            move |service, []| service.readlink(&ctx, ino.0),
            move |response| respond!(reply, response, target => reply.data(&target)),
        );
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let ctx = Ctx { umask, ..ctx(req) };
        self.change(
            opcode::MKNOD,
            [name.as_bytes()],
            move |service, [name]| service.mknod(&ctx, (parent.0, name), mode, rdev),
            move |made| reply_entry(reply, made),
        );
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let ctx = Ctx { umask, ..ctx(req) };
        self.change(
            opcode::MKDIR,
            [name.as_bytes()],
            move |service, [name]| service.mkdir(&ctx, parent.0, name, mode),
            move |made| reply_entry(reply, made),
        );
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ctx = ctx(req);
        self.change(
            opcode::UNLINK,
            [name.as_bytes()],
            move |service, [name]| service.unlink(&ctx, parent.0, name),
            move |made| respond!(reply, made, () => reply.ok()),
        );
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ctx = ctx(req);
        self.change(
            opcode::RMDIR,
            [name.as_bytes()],
            move |service, [name]| service.rmdir(&ctx, parent.0, name),
            move |made| respond!(reply, made, () => reply.ok()),
        );
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let ctx = ctx(req);
        self.change(
            opcode::SYMLINK,
            [name.as_bytes(), target],
            move |service, [name, target]| service.symlink(&ctx, parent.0, name, target),
            move |made| reply_entry(reply, made),
        );
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
        let ctx = ctx(req);
        self.change(
            opcode::RENAME,
            [name.as_bytes(), newname.as_bytes()],
            move |service, [name, newname]| {
                let (from, to) = ((parent.0, name), (newparent.0, newname));
                service.rename(&ctx, from, to, flags.bits())
            },
            move |made| respond!(reply, made, () => reply.ok()),
        );
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let ctx = ctx(req);
        self.change(
            opcode::LINK,
            [newname.as_bytes()],
            move |service, [newname]| service.link(&ctx, ino.0, newparent.0, newname),
            move |made| reply_entry(reply, made),
        );
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let ctx = ctx(req);
        self.ask(
            opcode::OPEN,
            [],
            move |service, []| service.open(&ctx, ino.0, flags.0),
            move |response| respond!(reply, response, opened => reply.opened(FileHandle(opened.fh), opened.flags)),
        );
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let ctx = Ctx { umask, ..ctx(req) };
        self.change(
            opcode::CREATE,
            [name.as_bytes()],
            move |service, [name]| service.create(&ctx, (parent.0, name), mode, flags),
            move |made| {
                respond!(reply, made, (known, opened) => {
                    let generation = Generation(u64::from(known.attr.generation));
                    let fh = FileHandle(opened.fh);
                    reply.created(&known.attr_validity.duration(), &file_attr(&known.attr), generation, fh, opened.flags);
                })
            },
        );
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
        let ctx = ctx(req);
        let read = move |service: &Service| {
            READ_BUFFER.with_borrow_mut(|buffer| {
                if buffer.len() < size as usize {
                    buffer.resize(size as usize, 0);
                }
                let result = service.read(&ctx, fh.0, offset, &mut buffer[..size as usize]);
                respond!(reply, result, count => reply.data(&buffer[..count]));
                result
            })
        };
        self.ask(opcode::READ, [], move |service, []| read(service), move |_response| ());
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
        self.change(
            opcode::WRITE,
            [data],
            move |service, [data]| service.write(&ctx, (fh.0, offset), data, write_flags, flags.0),
            move |made| respond!(reply, made, written => reply.written(written)),
        );
    }

    fn flush(&self, req: &Request, ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        let ctx = ctx(req);
        self.ask(
            opcode::FLUSH,
            [],
            move |service, []| service.flush(&ctx, ino.0, fh.0, lock_owner.0),
            move |response| respond!(reply, response, () => reply.ok()),
        );
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let wanted = Wire { start, last, kind, pid };
        let ctx = ctx(req);
        self.ask(
            opcode::GETLK,
            [],
            move |service, []| service.getlk(&ctx, ino.0, lock_owner.0, wanted),
            move |response| respond!(reply, response, found => reply.locked(found.start, found.last, found.kind, found.pid)),
        );
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
        let wanted = Wire { start, last, kind, pid };
        let requester = Requester {
            thread: req.pid(),
            may_wait: sleep,
            is_flock: None,
        };
        let done = move |outcome: Response<()>| respond!(reply, outcome, () => reply.ok());
        let set = move |service: &Service| {
            service.setlk((ino.0, fh.0), lock_owner.0, wanted, requester, done);
            Ok(())
        };
        self.ask(opcode::SETLK, [], move |service, []| set(service), move |_response| ());
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
        let release = move |service: &Arc<Service>| {
            service.release_locks(ino.0, fh.0);
            let close = move |service: &Service| {
                service.release(fh.0);
                Ok(())
            };
            let change = Change::new(None, close, |_made: Response<()>| reply.ok());
            when_open(Arc::clone(service), change, RetryTimeout::default());
            Ok(())
        };
        let service = Arc::clone(&self.service);
        self.ask(
            opcode::RELEASE,
            [],
            move |_service, []| release(&service),
            move |_response| (),
        );
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let ctx = ctx(req);
        self.ask(
            opcode::FSYNC,
            [],
            move |service, []| service.fsync(&ctx, fh.0),
            move |response| respond!(reply, response, () => reply.ok()),
        );
    }

    fn fsyncdir(&self, req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let ctx = ctx(req);
        self.ask(
            opcode::FSYNCDIR,
            [],
            move |service, []| service.fsyncdir(&ctx),
            move |response| respond!(reply, response, () => reply.ok()),
        );
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.service.opendir();
        reply.opened(FileHandle(opened.fh), opened.flags);
    }

    fn readdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let ctx = ctx(req);
        let list = move |service: &Service| {
            let add = |ino, next, kind: FileKind, name: &[u8]| {
                !reply.add(INodeNo(ino), next, file_type(kind), OsStr::from_bytes(name))
            };
            let listed = service.readdir(&ctx, ino.0, offset, add);
            respond!(reply, listed, () => reply.ok());
            listed
        };
        self.ask(
            opcode::READDIR,
            [],
            move |service, []| list(service),
            move |_response| (),
        );
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let ctx = ctx(req);
        let list = move |service: &Service| {
            let listed = service.readdirplus(&ctx, ino.0, offset, |it| {
                let generation = Generation(it.attr.map_or(0, |attr| u64::from(attr.generation)));
                let attr = it.attr.as_ref().map_or_else(|| unknown(it.ino, it.kind), file_attr);
                let name = OsStr::from_bytes(it.name);
                !reply.add(
                    INodeNo(it.ino),
                    it.next,
                    name,
                    &it.attr_validity.duration(),
                    &attr,
                    generation,
                )
            });
            respond!(reply, listed, () => reply.ok());
            listed
        };
        self.ask(
            opcode::READDIRPLUS,
            [],
            move |service, []| list(service),
            move |_response| (),
        );
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let ctx = ctx(req);
        let asked = self
            .service
            .meter()
            .counted(opcode::STATFS, || self.service.statfs_at(&ctx, ino.0));
        respond!(reply, asked, stat => reply.statfs(
            stat.blocks,
            stat.blocks_free,
            stat.blocks_available,
            stat.inodes,
            stat.inodes_free,
            stat.block_bytes,
            NAME_MAX as u32,
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
        let ctx = ctx(req);
        self.change(
            opcode::SETXATTR,
            [name.as_bytes(), value],
            move |service, [name, value]| service.setxattr(&ctx, ino.0, name, value, flags),
            move |made| respond!(reply, made, () => reply.ok()),
        );
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let ctx = ctx(req);
        self.ask(
            opcode::GETXATTR,
            [name.as_bytes()],
            move |service, [name]| service.getxattr(&ctx, ino.0, name),
            move |response| reply_xattr(reply, size, response),
        );
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let ctx = ctx(req);
        self.ask(
            opcode::LISTXATTR,
            [],
            move |service, []| service.listxattr(&ctx, ino.0),
            move |response| reply_xattr(reply, size, response),
        );
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ctx = ctx(req);
        self.change(
            opcode::REMOVEXATTR,
            [name.as_bytes()],
            move |service, [name]| service.removexattr(&ctx, ino.0, name),
            move |made| respond!(reply, made, () => reply.ok()),
        );
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
        let ctx = ctx(req);
        self.change(
            opcode::FALLOCATE,
            [],
            move |service, []| service.fallocate(&ctx, (fh.0, offset), length, mode),
            move |made| respond!(reply, made, () => reply.ok()),
        );
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let ctx = ctx(req);
        let (from, to) = ((fh_in.0, offset_in), (fh_out.0, offset_out));
        self.change(
            opcode::COPY_FILE_RANGE,
            [],
            move |service, []| service.copy_file_range(&ctx, from, to, len),
            move |made| respond!(reply, made, count => reply.written(count)),
        );
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
        // No ioctl exists. fuser would write a warning to the log, which users must not be able to fill.
        reply.error(Errno::ENOTTY);
    }

    fn lseek(&self, req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let ctx = ctx(req);
        self.ask(
            opcode::LSEEK,
            [],
            move |service, []| service.lseek(&ctx, fh.0, offset, whence),
            move |response| respond!(reply, response, offset => reply.offset(offset as i64)),
        );
    }
}
