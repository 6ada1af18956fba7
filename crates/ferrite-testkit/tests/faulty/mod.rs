//! The reference engine with one deliberate fault; everything else is passed through.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrite_testkit::TestEngine;
use ferrite_testkit::loops::LoopEngine;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, Ctx, DirEntry, FileKind, FileLayer, FileSystem, FsError, Ino, Layer, NewFile, OpenFile, OpenMode, Opened,
    Position, ROOT_INO, RenameMode, Result, SYSTEM, SetAttr, SetTime, Start, StatFs, WriteMode, Written, posix,
};

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A directory moved to another parent does not raise the new parent's link count.
    LinkCountAfterRename,
    /// A write that crosses a page edge loses the first byte after it.
    LostByteAtPageEdge,
    /// A listing that continues returns one entry again.
    EntryTwice,
    /// Appends do not move `mtime`.
    TimeStandsStill,
    /// A remount loses empty files of the root.
    ForgottenAtRemount,
    /// The attributes of a file without a name are refused.
    UnlinkedIsGone,
    /// Attributes of files without a name cannot be read.
    HoleWhereDataIs,
    /// A write of several pages is two.
    TornWrite,
    /// An append looks for the end first.
    AppendInTwoSteps,
    /// A rename that replaces removes the old file first.
    RenameInTwoSteps,
    /// Permission to remove is checked first, and the name removed afterwards.
    ChecksFirst,
    /// Removals are not checked.
    Unchecked,
    /// A file that `create` returns is not pinned.
    Unpinned,
    /// The change number of an inode is the time of its last change.
    ChangeIsTime,
    /// A listing with attributes pins an entry that was refused, too.
    PinsRefused,
    /// A path is searched without its last link.
    LinkNotFollowed,
    /// After some hundred removals one frees nothing.
    LeakAfterLong,
    /// After some hundred writes one loses its last byte.
    LostByteAfterLong,
}

/// The value of "some hundred".
const LONG: u64 = 400;

const PAGE: usize = 4096;

struct Faulty {
    inner: Arc<MemFs>,
    fault: Fault,
    /// Directories whose link count is reported one too low.
    wrong: Mutex<HashSet<Ino>>,
    /// Removals, or writes, so far.
    calls: Arc<AtomicU64>,
}

struct FaultyFile {
    inner: Arc<dyn OpenFile>,
    calls: Arc<AtomicU64>,
    fs: Arc<MemFs>,
    fault: Fault,
}

/// A broken engine.
pub(crate) struct FaultyEngine(Faulty);

impl FaultyEngine {
    /// An engine with this fault.
    pub(crate) fn new(fault: Fault) -> Self {
        FaultyEngine(Faulty {
            inner: Arc::new(MemFs::new()),
            fault,
            wrong: Mutex::default(),
            calls: Arc::default(),
        })
    }
}

impl TestEngine for FaultyEngine {
    fn fs(&self) -> &dyn FileSystem {
        &self.0
    }

    fn remount(&mut self) {
        if self.0.fault != Fault::ForgottenAtRemount {
            return;
        }
        let mut empty = Vec::new();
        let fs = &self.0.inner;
        let mut names = Vec::new();
        fs.readdir(SYSTEM, ROOT_INO, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.kind, entry.ino));
            true
        })
        .expect("readdir");
        for (name, kind, ino) in names {
            if kind == FileKind::File && fs.getattr(SYSTEM, ino).expect("getattr").size == 0 {
                empty.push(name);
            }
        }
        for name in empty {
            fs.unlink(SYSTEM, ROOT_INO, &name).expect("unlink");
        }
    }

    fn check(&self) {}
}

impl LoopEngine for FaultyEngine {
    fn crash(&mut self) {}
}

impl Faulty {
    fn tell(&self, mut attr: Attr) -> Attr {
        if self.wrong.lock().expect("never poisoned").contains(&attr.ino) {
            attr.nlink -= 1;
        }
        if self.fault == Fault::ChangeIsTime {
            attr.change = attr.ctime.0 as u64 / 4_000_000;
        }
        attr
    }
}

impl Layer for Faulty {
    fn below(&self) -> &dyn FileSystem {
        &*self.inner
    }

    fn statfs(&self, ctx: &Ctx) -> Result<StatFs> {
        let mut stat = self.inner.statfs(ctx)?;
        if self.fault == Fault::LeakAfterLong && self.calls.load(Ordering::Relaxed) > LONG {
            stat.inodes_free -= 1;
        }
        Ok(stat)
    }
    fn lookup(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.inner.lookup(ctx, parent, name).map(|attr| self.tell(attr))
    }
    fn getattr(&self, ctx: &Ctx, ino: Ino) -> Result<Attr> {
        let attr = self.inner.getattr(ctx, ino)?;
        if attr.nlink == 0 && self.fault == Fault::UnlinkedIsGone {
            return Err(FsError::Stale);
        }
        Ok(self.tell(attr))
    }
    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.inner.setattr(ctx, ino, set).map(|attr| self.tell(attr))
    }

    fn unlink(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::ChecksFirst if ctx.check => {
                let (dir, victim) = (self.inner.getattr(ctx, parent)?, self.inner.lookup(ctx, parent, name)?);
                posix::may_delete(&posix::Guarded::by_mode(dir), &victim, &ctx.cred)?;
                // Long enough for others to come in between even on a busy machine.
                let calls = self.calls.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(40 * (calls % 4)));
                self.inner.unlink(SYSTEM, parent, name)
            }
            Fault::Unchecked => self.inner.unlink(SYSTEM, parent, name),
            _ => self.inner.unlink(ctx, parent, name),
        }
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        let opened = self.inner.create(ctx, parent, name, new)?;
        if self.fault == Fault::Unpinned && ctx.pins {
            self.inner.unpin(ctx, opened.attr.ino, 1);
        }
        Ok(opened)
    }

    fn resolve(&self, ctx: &Ctx, start: &Start, path: &[u8], follow: bool) -> Result<Attr> {
        let follow = follow && self.fault != Fault::LinkNotFollowed;
        self.inner.resolve(ctx, start, path, follow).map(|attr| self.tell(attr))
    }

    fn readdir_plus(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()> {
        let mut refused = None;
        self.inner.readdir_plus(ctx, dir, cookie, &mut |entry, attr| {
            let told = attr.clone().map(|attr| self.tell(attr));
            let goes_on = sink(entry, told);
            refused = attr.ok().filter(|_| !goes_on);
            goes_on
        })?;
        match refused {
            Some(attr) if ctx.pins && self.fault == Fault::PinsRefused => {
                self.inner.pin(ctx, attr.ino, attr.generation)
            }
            _ => Ok(()),
        }
    }
    fn rename(
        &self,
        ctx: &Ctx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let is_dir = self
            .inner
            .lookup(ctx, parent, name)
            .is_ok_and(|attr| attr.kind == FileKind::Directory);
        if self.fault == Fault::RenameInTwoSteps && mode == RenameMode::Replace && !is_dir {
            let _ = self.inner.unlink(ctx, new_parent, new_name);
            std::thread::yield_now();
        }
        self.inner.rename(ctx, parent, name, new_parent, new_name, mode)?;
        if self.fault == Fault::LinkCountAfterRename && is_dir && parent != new_parent {
            self.wrong.lock().expect("never poisoned").insert(new_parent);
        }
        Ok(())
    }
    fn readdir(&self, ctx: &Ctx, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        if self.fault == Fault::EntryTwice && cookie != 0 {
            let mut first: Option<(Ino, FileKind, Vec<u8>)> = None;
            self.inner.readdir(ctx, dir, 0, &mut |entry| {
                first = Some((entry.ino, entry.kind, entry.name.to_vec()));
                false
            })?;
            let mut more = false;
            self.inner.readdir(ctx, dir, cookie, &mut |_| {
                more = true;
                false
            })?;
            if let (Some((ino, kind, name)), true) = (first, more)
                && !sink(&DirEntry {
                    ino,
                    kind,
                    name: &name,
                    next_cookie: cookie,
                })
            {
                return Ok(());
            }
        }
        self.inner.readdir(ctx, dir, cookie, sink)
    }
    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let inner = self.inner.open(ctx, ino, mode)?;
        Ok(Arc::new(FaultyFile {
            inner,
            calls: self.calls.clone(),
            fs: self.inner.clone(),
            fault: self.fault,
        }))
    }
}

impl FaultyFile {
    fn write_to(&self, ctx: &Ctx, offset: u64, data: &[u8]) -> Result<usize> {
        let edge = PAGE - offset as usize % PAGE;
        match self.fault {
            Fault::LostByteAtPageEdge if data.len() > edge => {
                let mut damaged = data.to_vec();
                damaged[edge] = 0;
                self.inner.write_at(ctx, offset, &damaged)
            }
            Fault::LostByteAfterLong if self.calls.fetch_add(1, Ordering::Relaxed) == LONG => {
                let mut damaged = data.to_vec();
                *damaged.last_mut().expect("not empty") = 0;
                self.inner.write_at(ctx, offset, &damaged)
            }
            Fault::TornWrite if data.len() > PAGE => {
                let (first, second) = data.split_at(data.len() / 2);
                let done = self.inner.write_at(ctx, offset, first)?;
                std::thread::yield_now();
                Ok(done + self.inner.write_at(ctx, offset + done as u64, second)?)
            }
            _ => self.inner.write_at(ctx, offset, data),
        }
    }
    fn write_behind(&self, ctx: &Ctx, data: &[u8]) -> Result<Written> {
        match self.fault {
            Fault::AppendInTwoSteps => {
                let end = self.inner.getattr(ctx)?.size;
                std::thread::yield_now();
                Ok(Written::new(end, self.inner.write_at(ctx, end, data)?))
            }
            Fault::TimeStandsStill => {
                let mtime = self.inner.getattr(ctx)?.mtime;
                let place = self.inner.append(ctx, data)?;
                let set = SetAttr {
                    mtime: Some(SetTime::To(mtime)),
                    ..SetAttr::default()
                };
                self.fs.setattr(ctx, self.inner.ino(), &set)?;
                Ok(place)
            }
            _ => self.inner.append(ctx, data),
        }
    }
}

impl FileLayer for FaultyFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.inner
    }

    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        match mode.position {
            Position::At(offset) => self
                .write_to(ctx, offset, data)
                .map(|count| Written::new(offset, count)),
            Position::End => self.write_behind(ctx, data),
        }
    }

    fn seek_data(&self, ctx: &Ctx, offset: u64) -> Result<u64> {
        let found = self.inner.seek_data(ctx, offset)?;
        let late = found + PAGE as u64;
        let size = self.inner.getattr(ctx)?.size;
        Ok(
            if self.fault == Fault::HoleWhereDataIs && found > offset && late < size {
                late
            } else {
                found
            },
        )
    }
}
