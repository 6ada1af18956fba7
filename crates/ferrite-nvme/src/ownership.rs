//! Answers of a volume that another server may take over.
//!
//! Contents: [`Answering`], a layer over the engine for volumes whose metadata lies in a database. The engine answers
//! from memory what it knows, and a process that was stopped continues where it stood. So each answer, reads included,
//! is checked last: after everything that it is made of was read, and before the caller gets it. An answer that comes
//! too late becomes an error; a change that was committed before stays committed, as after a lost reply.
//!
//! [`Core`] says to servers whether it may answer, for answers that need no engine.
//!
//! Used by `volume`, and by tests.

use std::sync::Arc;
use std::time::Duration;

use ferrite_vfs::buffers::Buffer;
use ferrite_vfs::buffers::borrowed::Borrowed;
use ferrite_vfs::locks::{LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::volume::{Ownership, TenureReport};
use ferrite_vfs::{
    Attr, CloneRange, Ctx, DirEntry, FallocateMode, FileSystem, FsError, Ino, Layer, NewFile, NewNode, OpenFile,
    OpenFlags, OpenMode, Opened, ReadDone, RenameMode, Result, SetAttr, Start, StatFs, WriteDone, WriteMode, Written,
    XattrMode,
};

use crate::core::Core;
use crate::fs::NvmeFs;

/// See the head of this module.
pub struct Answering(NvmeFs);

impl Answering {
    /// The file system, with each answer checked.
    pub fn new(fs: NvmeFs) -> Answering {
        Answering(fs)
    }

    fn checked<T>(&self, answer: Result<T>) -> Result<T> {
        self.0.0.checked(answer)
    }

    /// The same for an answer with which the caller gets a pin, if it asked for pins: without the answer, it gets none.
    fn checked_pinned<T>(&self, ctx: &Ctx, answer: Result<T>, ino: impl Fn(&T) -> Ino) -> Result<T> {
        let pinned = answer.as_ref().ok().filter(|_| ctx.pins).map(ino);
        let checked = self.checked(answer);
        if let (Err(_), Some(ino)) = (&checked, pinned) {
            self.0.unpin(ctx, ino, 1);
        }
        checked
    }

    fn file(&self, file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(AnsweringFile {
            core: Arc::clone(self.0.0.core()),
            file,
        })
    }

    fn opened(&self, ctx: &Ctx, opened: Result<Opened>) -> Result<Opened> {
        let opened = self.checked_pinned(ctx, opened, |opened| opened.attr.ino);
        opened.map(|opened| Opened {
            file: self.file(opened.file),
            ..opened
        })
    }
}

impl Core {
    /// An answer, unless another server may answer by now.
    fn checked<T>(&self, answer: Result<T>) -> Result<T> {
        // A server that has lost the volume may also have met errors for that reason.
        self.meta.may_answer().map_err(FsError::from)?;
        answer
    }
}

impl Ownership for Core {
    fn may_answer(&self) -> bool {
        self.meta.may_answer().is_ok()
    }

    fn left(&self) -> Duration {
        self.meta.lease_left()
    }

    fn length(&self) -> Duration {
        self.meta.lease_length()
    }

    fn abandon(&self) {
        self.meta.abandon();
    }

    fn lost(&self) -> Option<String> {
        let ended = self.meta.health().err().filter(ferrite_meta::Error::is_fatal);
        ended
            .map(|error| error.to_string())
            .or_else(|| self.failed.lock().clone())
    }

    fn report(&self) -> TenureReport {
        let Some(owned) = self.meta.statistics().owned else {
            return TenureReport::default();
        };
        TenureReport {
            epoch: owned.epoch,
            left: owned.lease_left,
            renewals_failed: owned.renewals_failed,
            last_batch: owned.seq,
            batches: owned.batches,
            commits: owned.commits,
            commit_time: Duration::from_micros(owned.commit_us),
            commit_time_max: Duration::from_micros(owned.commit_us_max),
        }
    }
}

/// The methods whose answer is checked, and which are passed on otherwise.
macro_rules! checked {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> Result<$result> {
            let answer = self.below().$name($($arg),*);
            self.checked(answer)
        })*
    };
}

/// The same for methods that may give the caller a pin.
macro_rules! checked_pinned {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        $(fn $name(&self, ctx: &Ctx, $($arg: $type),*) -> Result<Attr> {
            let answer = self.0.$name(ctx, $($arg),*);
            self.checked_pinned(ctx, answer, |attr| attr.ino)
        })*
    };
}

impl Layer for Answering {
    fn below(&self) -> &dyn FileSystem {
        &self.0
    }

    checked! {
        statfs(ctx: &Ctx) -> StatFs;
        parent(ctx: &Ctx, dir: Ino) -> Ino;
        getattr(ctx: &Ctx, ino: Ino) -> Attr;
        setattr(ctx: &Ctx, ino: Ino, set: &SetAttr) -> Attr;
        readlink(ctx: &Ctx, ino: Ino) -> Vec<u8>;
        unlink(ctx: &Ctx, parent: Ino, name: &[u8]) -> ();
        rmdir(ctx: &Ctx, parent: Ino, name: &[u8]) -> ();
        rename(ctx: &Ctx, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> ();
        getxattr(ctx: &Ctx, ino: Ino, name: &[u8]) -> Vec<u8>;
        setxattr(ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> ();
        listxattr(ctx: &Ctx, ino: Ino) -> Vec<Vec<u8>>;
        removexattr(ctx: &Ctx, ino: Ino, name: &[u8]) -> ();
        drop_orphans(ctx: &Ctx) -> ();
        sync(ctx: &Ctx) -> ();
        sync_names(ctx: &Ctx) -> ();
        unlock(ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> ();
        conflicting_lock(ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Option<RecordLock>;
    }

    checked_pinned! {
        lookup(parent: Ino, name: &[u8]);
        mknod(parent: Ino, name: &[u8], node: &NewNode);
        mkdir(parent: Ino, name: &[u8], mode: u32);
        symlink(parent: Ino, name: &[u8], target: &[u8]);
        link(ino: Ino, parent: Ino, name: &[u8]);
        clone_tree(ino: Ino, parent: Ino, name: &[u8]);
        resolve(start: &Start, path: &[u8], follow: bool);
    }

    fn pin(&self, ctx: &Ctx, ino: Ino, generation: u32) -> Result<()> {
        let answer = self.0.pin(ctx, ino, generation);
        let checked = self.checked(answer.clone());
        if answer.is_ok() && checked.is_err() {
            self.0.unpin(ctx, ino, 1);
        }
        checked
    }

    /// The caller has used the entries when the listing fails, but answers nobody with them.
    fn readdir(&self, ctx: &Ctx, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let answer = self.0.readdir(ctx, dir, cookie, sink);
        self.checked(answer)
    }

    fn readdir_plus(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()> {
        let answer = self.0.readdir_plus(ctx, dir, cookie, sink);
        self.checked(answer)
    }

    fn lock(&self, ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool, done: LockDone) -> Option<LockTicket> {
        let core = Arc::clone(self.0.0.core());
        let checked = move |answer| done(core.checked(answer));
        self.0.lock(ctx, ino, request, may_wait, Box::new(checked))
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let answer = self.0.open(ctx, ino, mode);
        self.checked(answer).map(|file| self.file(file))
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        self.opened(ctx, self.0.create(ctx, parent, name, new))
    }

    fn open_path(&self, ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<Opened> {
        self.opened(ctx, self.0.open_path(ctx, start, path, flags))
    }
}

/// An open file of such a volume.
struct AnsweringFile {
    core: Arc<Core>,
    file: Arc<dyn OpenFile>,
}

impl AnsweringFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.file
    }

    fn checked<T>(&self, answer: Result<T>) -> Result<T> {
        self.core.checked(answer)
    }
}

impl OpenFile for AnsweringFile {
    fn ino(&self) -> Ino {
        self.file.ino()
    }

    checked! {
        getattr(ctx: &Ctx) -> Attr;
        setattr(ctx: &Ctx, set: &SetAttr) -> Attr;
        read_at(ctx: &Ctx, offset: u64, buf: &mut [u8]) -> usize;
        read_versioned(ctx: &Ctx, offset: u64, buf: &mut [u8]) -> (usize, Option<u64>);
        write(ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Written;
        clone_range(ctx: &Ctx, range: &CloneRange) -> Written;
        fallocate(ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> ();
        seek_data(ctx: &Ctx, offset: u64) -> u64;
        seek_hole(ctx: &Ctx, offset: u64) -> u64;
        fsync(ctx: &Ctx) -> ();
    }

    fn read_borrowed(
        &self,
        ctx: &Ctx,
        offset: u64,
        len_bytes: usize,
        take: &mut dyn FnMut(&Borrowed, u64),
    ) -> Result<bool> {
        let answer = self.file.read_borrowed(ctx, offset, len_bytes, take);
        self.checked(answer)
    }

    fn submit_read(&self, ctx: &Ctx, offset: u64, buffer: Buffer, done: ReadDone) {
        let core = Arc::clone(&self.core);
        let checked = move |buffer, read| done(buffer, core.checked(read));
        self.file.submit_read(ctx, offset, buffer, Box::new(checked));
    }

    fn submit_write(&self, ctx: &Ctx, mode: WriteMode, buffer: Buffer, done: WriteDone) {
        let core = Arc::clone(&self.core);
        let checked = move |buffer, written| done(buffer, core.checked(written));
        self.file.submit_write(ctx, mode, buffer, Box::new(checked));
    }
}
