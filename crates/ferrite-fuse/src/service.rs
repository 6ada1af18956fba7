//! The engine calls of one request: one call, one value.
//!
//! Contents: [`Service`], and its results. It does not know how a request came or how its reply goes: the transports
//! do, `classic` (`/dev/fuse`) and `ring` (FUSE over io_uring).
//!
//! Invariants: the engine pins every inode whose number a reply gives the kernel, in the call that finds it, and
//! `forget` drops the pin. So the number stays the file's as long as the kernel knows it, unlinked or not. The root is
//! never pinned. Nothing here checks the freeze barrier: a transport makes a call that may change something only with a
//! passage.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferrite_vfs::{
    Attr, BadArgument, Ctx, FileKind, FileSystem, FsError, Ino, NewFile, NewNode, OpenFile, OpenMode, Position,
    QuotaAttribute, ROOT_INO, RenameMode, Result, SNAPSHOT_XATTR, SNAPSHOTS_NAME, SYSTEM, SetAttr, WriteMode,
    XattrMode, acl, check_attribute_name, posix, walk,
};
use fuser::{Errno, FopenFlags, OpenFlags, WriteFlags};

use self::disconnected::Away;
use crate::attr_validity::AttrValidity;
use crate::convert::{Refused, open_mode, requested_mode};
use crate::freeze_barrier::FreezeBarrier;
use crate::handles::Handles;
use crate::leased::LeasedEntries;
use crate::locks::Locks;
use crate::meter::Meter;
use crate::notify::Notifications;
use crate::options::FuseOptions;
use crate::retries::Retries;

/// Longest time to live that the kernel gets: it accepts no infinite one.
const VALIDITY_MAX: Duration = Duration::from_secs(86_400);
/// Offsets of `.` and `..` come first; the engine's cookies are shifted past them.
const FIRST_COOKIE: u64 = 2;

/// The result of a request, or why it was refused.
pub(crate) type Response<T> = std::result::Result<T, Refused>;

/// The target of a name.
pub(crate) struct Entry {
    /// `None`: the name does not exist, which the kernel caches, too.
    pub(crate) attr: Option<Attr>,
    pub(crate) name_ttl: Duration,
    pub(crate) attr_validity: AttrValidity,
}

/// Attributes, and how long the kernel may keep them.
pub(crate) struct Known {
    pub(crate) attr: Attr,
    pub(crate) attr_validity: AttrValidity,
}

/// An open file.
pub(crate) struct Opened {
    pub(crate) fh: u64,
    pub(crate) flags: FopenFlags,
}

/// A name in a listing with attributes.
pub(crate) struct Listed<'a> {
    pub(crate) ino: Ino,
    /// The offset of the next one.
    pub(crate) next: u64,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
    /// `None`: the kernel gets only the name.
    pub(crate) attr: Option<Attr>,
    /// Also for the name.
    pub(crate) attr_validity: AttrValidity,
}

/// One mount's engine, and the state of its users.
pub(crate) struct Service {
    fs: Arc<dyn FileSystem>,
    start: Instant,
    /// The key of the tokens for clones.
    clone_tokens: RandomState,
    /// When a name was last removed, in milliseconds since `start`; 0 for never.
    removed_ms: AtomicU64,
    retries: Arc<Retries>,
    handles: Handles,
    may_block: bool,
    /// How long the kernel may keep names and attributes.
    validity: Duration,
    /// How the kernel may treat the data of open files.
    opened: FopenFlags,
    freeze_barrier: FreezeBarrier,
    meter: Meter,
    /// Reads move no access times: the mount is read-only, or has that option.
    no_atime: bool,
    /// If the engine keeps record locks instead of the kernel.
    locks: Option<Arc<Locks>>,
    /// If the engine is a server, which may be away.
    away: Option<Away>,
    /// If the engine gives leases on its replies, which it recalls.
    leased: Option<Arc<LeasedEntries>>,
    /// Once it is mounted.
    notifications: OnceLock<Notifications>,
}

impl Drop for Service {
    /// Of a service that was never mounted.
    fn drop(&mut self) {
        self.retries.end();
    }
}

fn check_xattr(name: &[u8]) -> Result<&[u8]> {
    check_attribute_name(name).map(|()| name)
}

fn to_response<T>(result: Result<T>) -> Response<T> {
    result.map_err(|error| Refused::from(&error))
}

/// Whether the kernel, from Linux 6.9 on, keeps writes past its cache apart from mappings of the same file. Only then
/// may several run at a time.
fn has_modes() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| is_at_least(&release, (6, 9)))
}

fn is_at_least(release: &str, least: (u32, u32)) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    numbers.next().zip(numbers.next()) >= Some(least)
}

impl Service {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, freeze_barrier: FreezeBarrier, options: &FuseOptions) -> Service {
        let limits = fs.limits();
        let leased = fs.cache_leases().map(|_| Arc::default());
        // Others use it, too, so it is elsewhere.
        let may_be_away = limits.validity.is_zero() || leased.is_some();
        let away = may_be_away.then(|| Away::new(&*fs, options.readers() + 1));
        let locks = options.engine_locks.then(|| Locks::new(Arc::clone(&fs)));
        Service {
            fs,
            start: Instant::now(),
            clone_tokens: RandomState::new(),
            removed_ms: AtomicU64::new(0),
            retries: Retries::start(),
            handles: Handles::default(),
            may_block: limits.may_block,
            validity: limits.validity.min(VALIDITY_MAX),
            opened: match (limits.validity.is_zero(), options.direct_io) {
                // Others write to the same files: each read goes to the engine.
                (true, _) => FopenFlags::FOPEN_DIRECT_IO,
                (false, true) if has_modes() => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
                (false, true) => FopenFlags::FOPEN_DIRECT_IO,
                (false, false) => FopenFlags::FOPEN_KEEP_CACHE,
            },
            freeze_barrier,
            meter: Meter::default(),
            no_atime: options.noatime || options.read_only,
            locks,
            away,
            leased,
            notifications: OnceLock::new(),
        }
    }

    /// The mount is there, and can be notified of what the kernel does not see.
    pub(crate) fn notify_by(&self, notifications: Notifications) {
        let _ = self.notifications.set(notifications);
    }

    /// The entries to recall from the kernel, if the engine wants that.
    pub(crate) fn leased(&self) -> Option<&Arc<LeasedEntries>> {
        self.leased.as_ref()
    }

    /// In which transports count the calls that they make.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(crate) fn freeze_barrier(&self) -> &FreezeBarrier {
        &self.freeze_barrier
    }

    pub(crate) fn locks(&self) -> Option<&Arc<Locks>> {
        self.locks.as_ref()
    }

    /// Whether the kernel may keep anything at all.
    fn may_cache(&self) -> bool {
        !self.validity.is_zero()
    }

    /// Whether operations are durable when they return, as the engine currently guarantees.
    fn is_durable(&self) -> bool {
        self.fs.limits().is_durable_at_once()
    }

    /// Whether reads and writes of files bypass the kernel's cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.opened.contains(FopenFlags::FOPEN_DIRECT_IO)
    }

    /// Whether a call may wait for a device or a network.
    pub(crate) fn may_block(&self) -> bool {
        self.may_block
    }

    /// The mount has ended.
    pub(crate) fn end(&self) {
        if let Some(locks) = &self.locks {
            locks.end();
        }
        self.retries.end();
    }

    fn known(&self, attr: Attr, validity: Duration) -> Known {
        let (attr, attr_validity) = self.shown(attr, validity);
        Known { attr, attr_validity }
    }

    fn entry(&self, result: Result<Attr>) -> Response<Entry> {
        let (attr, attr_validity) = self.shown(to_response(result)?, self.validity);
        Ok(Entry {
            attr: Some(attr),
            name_ttl: self.validity,
            attr_validity,
        })
    }

    fn handle(&self, fh: u64) -> Result<Arc<dyn OpenFile>> {
        self.handles.get(fh).ok_or(FsError::BadHandle)
    }

    /// Adds an open file, by the flags of `open`.
    fn insert(&self, file: Arc<dyn OpenFile>, flags: i32) -> Opened {
        let maps = flags & libc::O_ACCMODE == libc::O_RDWR;
        let mut opened = self.opened;
        // Without a mapping that can store, a close has nothing to flush. With one it must reach the daemon: the reply
        // proves to the program that the daemon lives, and so that the kernel's earlier writes have arrived.
        opened.set(FopenFlags::FOPEN_NOFLUSH, !maps && self.locks.is_none());
        let fh = self.handles.insert(file, maps);
        Opened { fh, flags: opened }
    }

    pub(crate) fn lookup(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Response<Entry> {
        if let b"." | b".." = name {
            return self.resolve(ctx, parent, name == b"..");
        }
        let looked = self.fs.lookup(ctx, parent, name);
        let found = looked.as_ref().ok().map(|attr| attr.ino);
        let name_ttl = match &self.leased {
            Some(leased) => leased.name(&*self.fs, parent, OsStr::from_bytes(name), found),
            None => self.validity,
        };
        let (attr, attr_validity) = match looked {
            Ok(attr) => {
                let (attr, attr_validity) = self.shown(attr, self.validity);
                (Some(attr), attr_validity)
            }
            Err(FsError::NotFound) => (None, AttrValidity::NOT),
            Err(error) => return Err(Refused::from(&error)),
        };
        Ok(Entry {
            attr,
            name_ttl,
            attr_validity,
        })
    }

    /// The inode itself, or the directory that holds it. A kernel that has a file handle of `open_by_handle_at(2)`, but
    /// no longer the inode, looks up `.`, and compares generations; for a directory it continues with `..`. No name
    /// leads to the inode then, so none is cached.
    fn resolve(&self, ctx: &Ctx, ino: Ino, to_parent: bool) -> Response<Entry> {
        let resolved = || {
            let ino = if to_parent { self.fs.parent(ctx, ino)? } else { ino };
            let attr = self.fs.getattr(ctx, ino)?;
            if ctx.pins && ino != ROOT_INO {
                self.fs.pin(ctx, ino, attr.generation)?;
            }
            Ok(attr)
        };
        let (attr, attr_validity) = self.shown(to_response(resolved())?, Duration::ZERO);
        Ok(Entry {
            attr: Some(attr),
            name_ttl: Duration::ZERO,
            attr_validity,
        })
    }

    fn note_removal(&self) {
        self.removed_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    /// How many files without a name the engine holds, if known.
    pub(crate) fn unnamed_files(&self) -> Option<u64> {
        self.fs.unnamed_files()
    }

    /// Whether some of them are not open here, so that the kernel is about to forget them.
    pub(crate) fn are_forgotten_soon(&self, unnamed: u64) -> bool {
        unnamed > self.handles.count() as u64
    }

    /// Whether a name was removed in the last `within`. Files removed earlier have been forgotten, or are in use.
    pub(crate) fn was_removal(&self, within: Duration) -> bool {
        let removed_ms = self.removed_ms.load(Ordering::Relaxed);
        removed_ms > 0 && u128::from(self.now_ms().saturating_sub(removed_ms)) < within.as_millis()
    }

    /// Changes that found no space.
    pub(crate) fn retries(&self) -> &Arc<Retries> {
        &self.retries
    }

    /// May free a file without a name.
    pub(crate) fn forget(&self, ino: Ino, nlookup: u64) {
        if ino != ROOT_INO {
            self.fs.forget(SYSTEM, ino, nlookup);
        }
    }

    /// How long the kernel may cache attributes that the engine has just reported.
    fn validity_of(&self, attr: &Attr) -> Duration {
        match &self.leased {
            Some(_) => LeasedEntries::attr(&*self.fs, attr),
            None => self.validity,
        }
    }

    /// `set` as in the request, of a file that was opened as `fh` if one is given.
    pub(crate) fn setattr(&self, ctx: &Ctx, ino: Ino, fh: Option<u64>, set: &SetAttr) -> Response<Known> {
        let set = SetAttr {
            mode: set.mode.map(|mode| mode & 0o7777),
            kill_priv: false,
            ..*set
        };
        // HANDLE_KILLPRIV_V2 makes this the daemon's task: any chown (also one that changes nothing, which arrives
        // empty, like the request that precedes a fallocate), and a truncate by an unprivileged caller.
        let chown = set.uid.is_some() || set.gid.is_some() || set == SetAttr::default();
        let kill_priv = set.mode.is_none() && (chown || (set.size.is_some() && !ctx.cred.is_root()));
        let set = SetAttr { kill_priv, ..set };
        // A caller that has a file open for writing may set its size, whatever its mode has become.
        let file = fh.filter(|_| set.size.is_some()).and_then(|fh| self.handles.get(fh));
        let made = match file.map(|file| file.setattr(ctx, &set)) {
            // `O_TRUNC` without `O_WRONLY` is one, too.
            None | Some(Err(FsError::Invalid(BadArgument::NotWritable))) => self.fs.setattr(ctx, ino, &set),
            Some(made) => made,
        };
        Ok(self.known(to_response(made)?, self.validity))
    }

    pub(crate) fn readlink(&self, ctx: &Ctx, ino: Ino) -> Response<Vec<u8>> {
        to_response(self.fs.readlink(&self.reading(ctx), ino))
    }

    pub(crate) fn mknod(&self, ctx: &Ctx, (parent, name): (Ino, &[u8]), mode: u32, rdev: u32) -> Response<Entry> {
        let kind = FileKind::from_mode(mode).ok_or(Errno::EINVAL)?;
        let mode = mode & 0o7777;
        self.entry(self.fs.mknod(ctx, parent, name, &NewNode { kind, mode, rdev }))
    }

    pub(crate) fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Response<Entry> {
        // The kernel does not know the rules for snapshots.
        let check = ctx.check || name == SNAPSHOTS_NAME || self.fs.takes_snapshots(parent);
        let ctx = &Ctx { check, ..ctx.clone() };
        self.entry(self.fs.mkdir(ctx, parent, name, mode & 0o7777))
    }

    /// Whether making or removing a directory in this one is a matter of a whole tree.
    pub(crate) fn takes_snapshots(&self, dir: Ino) -> bool {
        self.fs.takes_snapshots(dir)
    }

    pub(crate) fn unlink(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Response<()> {
        self.note_removal();
        to_response(self.fs.unlink(ctx, parent, name))
    }

    pub(crate) fn rmdir(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Response<()> {
        self.note_removal();
        // As in `mkdir`.
        let check = ctx.check || self.fs.takes_snapshots(parent);
        to_response(self.fs.rmdir(&Ctx { check, ..ctx.clone() }, parent, name))
    }

    pub(crate) fn symlink(&self, ctx: &Ctx, parent: Ino, name: &[u8], target: &[u8]) -> Response<Entry> {
        self.entry(self.fs.symlink(ctx, parent, name, target))
    }

    /// `flags` as for `renameat2`.
    pub(crate) fn rename(&self, ctx: &Ctx, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Response<()> {
        let mode = RenameMode::from_flags(flags).ok_or(Errno::EINVAL)?;
        if let Some(leased) = &self.leased {
            leased.moves(to.0, OsStr::from_bytes(to.1));
            leased.moves(from.0, OsStr::from_bytes(from.1));
        }
        self.note_removal();
        to_response(self.fs.rename(ctx, from.0, from.1, to.0, to.1, mode))
    }

    pub(crate) fn link(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Response<Entry> {
        self.entry(self.fs.link(ctx, ino, parent, name))
    }

    fn open_mode(&self, flags: i32) -> OpenMode {
        let mode = match self.may_cache() {
            true => open_mode(OpenFlags(flags)),
            // Others have it, too, and may check again what this kernel has checked: request nothing else. It reads no
            // page to write a part of it, since it keeps none.
            false => OpenMode {
                truncate: false,
                ..requested_mode(OpenFlags(flags))
            },
        };
        OpenMode {
            no_atime: mode.no_atime || self.no_atime,
            ..mode
        }
    }

    /// The context of reads without an open file.
    fn reading<'c>(&self, ctx: &'c Ctx) -> Cow<'c, Ctx> {
        match self.no_atime {
            true => Cow::Owned(Ctx {
                no_atime: true,
                ..ctx.clone()
            }),
            false => Cow::Borrowed(ctx),
        }
    }

    /// `flags` as for `open`.
    pub(crate) fn open(&self, ctx: &Ctx, ino: Ino, flags: i32) -> Response<Opened> {
        let mode = self.open_mode(flags);
        let opened = match self.fs.open(ctx, ino, mode) {
            // An engine that checks callers lets only owners leave access times alone, and the caller did not request
            // that.
            Err(FsError::NotPermitted) if mode.no_atime && flags & libc::O_NOATIME == 0 => {
                let no_atime = false;
                self.fs.open(ctx, ino, OpenMode { no_atime, ..mode })
            }
            opened => opened,
        };
        to_response(opened).map(|file| self.insert(file, flags))
    }

    pub(crate) fn create(
        &self,
        ctx: &Ctx,
        (parent, name): (Ino, &[u8]),
        mode: u32,
        flags: i32,
    ) -> Response<(Known, Opened)> {
        // Without O_EXCL: the kernel looked the name up before this request, so if it is taken, another caller was
        // faster.
        let new = NewFile {
            mode: mode & 0o7777,
            open: self.open_mode(flags),
            exclusive: flags & libc::O_EXCL != 0,
        };
        let mut made = to_response(self.fs.create(ctx, parent, name, &new))?;
        if !made.created {
            match self.enter_existing(ctx, &made, flags) {
                Ok(attr) => made.attr = attr,
                Err(error) => {
                    // The kernel does not learn of it, so it will not forget it.
                    drop(made.file);
                    if ctx.pins {
                        self.forget(made.attr.ino, 1);
                    }
                    return Err(Refused::from(&error));
                }
            }
        }
        let opened = self.insert(made.file, flags);
        Ok((self.known(made.attr, self.validity), opened))
    }

    /// Does for an existing file what the kernel omits for one that it believes to be new: checks permissions, and
    /// truncates. Returns its attributes then.
    fn enter_existing(&self, ctx: &Ctx, made: &ferrite_vfs::Opened, flags: i32) -> Result<Attr> {
        let requested = requested_mode(OpenFlags(flags));
        let guarded = walk::guarded(&*self.fs, made.attr, &ctx.cred)?;
        posix::may_open(&guarded, &ctx.cred, requested)?;
        if !requested.truncate {
            return Ok(made.attr);
        }
        let set = SetAttr {
            size: Some(0),
            kill_priv: !ctx.cred.is_root(),
            ..SetAttr::default()
        };
        match requested.write {
            true => made.file.setattr(ctx, &set),
            false => self.fs.setattr(ctx, made.attr.ino, &set),
        }
    }

    /// Reads into `into`; returns how many bytes.
    pub(crate) fn read(&self, ctx: &Ctx, fh: u64, offset: u64, into: &mut [u8]) -> Response<usize> {
        to_response(self.handle(fh).and_then(|file| file.read_at(ctx, offset, into)))
    }

    pub(crate) fn write(
        &self,
        ctx: &Ctx,
        (fh, offset): (u64, u64),
        data: &[u8],
        how: WriteFlags,
        flags: i32,
    ) -> Response<u32> {
        // The engine knows best where the end is. Pages of a mapping have their place, however the file was opened.
        let is_call = !how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = is_call && flags & libc::O_APPEND != 0;
        // `O_SYNC` has this bit, too. Where the kernel keeps a file's data it requests the sync itself.
        let syncs = is_call && flags & libc::O_DSYNC != 0 && self.is_direct() && !self.is_durable();
        let mode = WriteMode {
            position: if appends { Position::End } else { Position::At(offset) },
            kill_priv: how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let file = to_response(self.handle(fh))?;
        let written = to_response(file.write(ctx, mode, data))?;
        if syncs {
            to_response(file.fsync(ctx))?;
        }
        Ok(written.len_bytes as u32)
    }

    /// The last close frees a file without a name.
    pub(crate) fn release(&self, fh: u64) {
        drop(self.handles.remove(fh));
    }

    /// Has a reply though everything may be durable already: after `ENOSYS` the kernel would send no more, and report
    /// success for data that it could not write when the daemon is gone.
    pub(crate) fn fsync(&self, ctx: &Ctx, fh: u64) -> Response<()> {
        to_response(self.handle(fh).and_then(|file| file.fsync(ctx)))
    }

    pub(crate) fn fsyncdir(&self, ctx: &Ctx) -> Response<()> {
        to_response(self.fs.sync_names(ctx))
    }

    /// Inodes identify directories.
    pub(crate) fn opendir(&self) -> Opened {
        Opened {
            fh: 0,
            flags: FopenFlags::empty(),
        }
    }

    /// Lists `.` and `..`, which engines do not; false if they did not fit.
    fn list_dots(&self, ino: Ino, offset: u64, mut add: impl FnMut(Ino, u64, &[u8]) -> bool) -> bool {
        if offset == 0 && !add(ino, 1, b".") {
            return false;
        }
        offset > 1 || add(self.fs.parent(SYSTEM, ino).unwrap_or(ino), FIRST_COOKIE, b"..")
    }

    /// Lists until `add` (inode, offset of the next one, kind, name) reports that the space is used up.
    pub(crate) fn readdir(
        &self,
        ctx: &Ctx,
        ino: Ino,
        offset: u64,
        mut add: impl FnMut(Ino, u64, FileKind, &[u8]) -> bool,
    ) -> Response<()> {
        if !self.list_dots(ino, offset, |ino, next, name| add(ino, next, FileKind::Directory, name)) {
            return Ok(());
        }
        let start = offset.saturating_sub(FIRST_COOKIE);
        to_response(self.fs.readdir(&self.reading(ctx), ino, start, &mut |entry| {
            add(entry.ino, entry.next_cookie + FIRST_COOKIE, entry.kind, entry.name)
        }))
    }

    /// Lists with attributes until `add` reports that the space is used up.
    pub(crate) fn readdirplus(
        &self,
        ctx: &Ctx,
        ino: Ino,
        offset: u64,
        mut add: impl FnMut(&Listed<'_>) -> bool,
    ) -> Response<()> {
        // The kernel takes only the number from these two.
        if !self.list_dots(ino, offset, |ino, next, name| {
            add(&Listed {
                ino,
                next,
                kind: FileKind::Directory,
                name,
                attr: None,
                attr_validity: AttrValidity::NOT,
            })
        }) {
            return Ok(());
        }
        let start = offset.saturating_sub(FIRST_COOKIE);
        to_response(
            self.fs
                .readdir_plus(&self.reading(ctx), ino, start, &mut |entry, attr| {
                    // A damaged inode still has a name: a program that copies the directory must fail on it.
                    let shown = attr.ok().map(|attr| self.shown(attr, self.validity));
                    add(&Listed {
                        ino: entry.ino,
                        next: entry.next_cookie + FIRST_COOKIE,
                        kind: entry.kind,
                        name: entry.name,
                        attr_validity: shown.map_or(AttrValidity::NOT, |(_, attr_validity)| attr_validity),
                        attr: shown.map(|(attr, _)| attr),
                    })
                }),
        )
    }

    pub(crate) fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Response<()> {
        if name == CLONE_XATTR.as_bytes() {
            return self.clone_tree(ctx, ino, value);
        }
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        let set = |name| {
            let ctx = space::changing_xattr(ctx, name)?;
            self.fs.setxattr(&ctx, ino, name, value, mode)
        };
        to_response(check_xattr(name).and_then(set))
    }

    pub(crate) fn getxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Response<Vec<u8>> {
        if name == CLONE_XATTR.as_bytes() {
            return self.clone_token(ctx, ino);
        }
        let get = |name| match name {
            // The kernel lets everybody ask who may read the directory.
            SNAPSHOT_XATTR => self.fs.getxattr(&space::checked(ctx), ino, name),
            _ if QuotaAttribute::of(name).is_some() => self.fs.getxattr(&space::checked(ctx), ino, name),
            _ => self.fs.getxattr(ctx, ino, name),
        };
        let found = check_xattr(name).and_then(get);
        to_response(match found {
            // The kernel asks for lists before it grants access. An engine without any has none.
            Err(FsError::NotSupported(_)) if acl::is_acl(name) => Err(FsError::NoAttribute),
            other => other,
        })
    }

    /// A list of names, each with its terminating zero.
    pub(crate) fn listxattr(&self, ctx: &Ctx, ino: Ino) -> Response<Vec<u8>> {
        let names = to_response(self.fs.listxattr(ctx, ino))?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    pub(crate) fn removexattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Response<()> {
        let remove = |name| {
            let ctx = space::changing_xattr(ctx, name)?;
            self.fs.removexattr(&ctx, ino, name)
        };
        to_response(check_xattr(name).and_then(remove))
    }
}

mod dirty;
mod disconnected;
pub(crate) mod flags;
mod locking;
mod space;

pub use space::{CLONE_XATTR, clone_request};
#[cfg(test)]
mod tests;
