//! Walking along a path, once for all engines.
//!
//! Contents: the defaults of [`FileSystem::resolve`] and [`FileSystem::open_path`] for engines that have nothing
//! better. Both run in the engine's process, so that a path costs a client one call. The engine checks each step if the
//! context asks.
//!
//! Invariant: each inode on the way is pinned ([`Held`]) from the lookup that found it until it has been used.
//! Otherwise a number that is freed and reused in between would lead into another directory.
//!
//! Invariant: no walk leaves [`Start::root`]. Absolute paths and links begin there. Within a root other than the file
//! system's own, `..` leads back along the walk itself, or, above its start, along the parents that lead to the root;
//! so a directory that is moved out meanwhile takes no walk with it.
//!
//! Invariant: a walk, with all its restarts, takes at most [`STEPS_MAX`] steps, each a few calls of the engine,
//! whatever paths and links contain.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::{Deref, Range};

use crate::acl;
use crate::posix::Guarded;
use crate::{
    Attr, BadArgument, Cred, Ctx, FileKind, FileSystem, FsError, Ino, NewFile, OpenFlags, Opened, PATH_MAX, ROOT_INO,
    Result, SYMLOOP_MAX, SYSTEM, Start, posix,
};

/// How often a walk restarts because something on its way was removed meanwhile, before it returns `NotFound`. Also how
/// often an open restarts because the file was created or removed meanwhile.
const RACES_MAX: usize = 64;
/// Most steps of a walk: names that are looked up, `..`, and directories on the way up from a start to its root. A path
/// without links has 2048 components at most, so this leaves steps for links; without a bound, 40 links of 4095 bytes
/// would make 80,000 steps of one request. With one more the walk is `Loop`, as with one link too many.
pub const STEPS_MAX: usize = 4096;

/// A pinned inode, which cannot be reused, and its attributes as last read. The root needs no pin: it is never freed.
struct Held<'v, F: FileSystem + ?Sized> {
    fs: &'v F,
    ctx: &'v Ctx,
    attr: Attr,
}

impl<F: FileSystem + ?Sized> Deref for Held<'_, F> {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

impl<F: FileSystem + ?Sized> Drop for Held<'_, F> {
    fn drop(&mut self) {
        if self.attr.ino != ROOT_INO {
            self.fs.unpin(self.ctx, self.attr.ino, 1);
        }
    }
}

impl<F: FileSystem + ?Sized> Held<'_, F> {
    /// Leaves the pin to the caller of the walk.
    fn keep(self) -> Attr {
        let attr = self.attr;
        std::mem::forget(self);
        attr
    }
}

/// The steps left to one walk. All attempts of a walk that restarts share them, so a caller gains nothing by making it
/// restart.
struct Budget {
    steps: Cell<usize>,
}

impl Budget {
    fn new() -> Budget {
        Budget {
            steps: Cell::new(STEPS_MAX),
        }
    }

    /// Takes one step. `Loop` when none is left.
    fn step(&self) -> Result<()> {
        let left = self.steps.get().checked_sub(1).ok_or(FsError::Loop)?;
        self.steps.set(left);
        Ok(())
    }
}

/// Where a walk is, and how it got there.
struct Place<'v, F: FileSystem + ?Sized> {
    at: Held<'v, F>,
    /// The way back for `..` within a root: the directories above `at`, the nearest last. A climb from the start to the
    /// root completes it, so that a walk climbs at most once. In a walk of the whole file system the engine supplies
    /// the parents, and this stays empty.
    way: Vec<Held<'v, F>>,
    /// Symbolic links that were followed.
    links: usize,
}

/// A path that is being walked, and how far that is. The path of a link stands above the one that led to the link.
struct Rest<'p> {
    path: Cow<'p, [u8]>,
    done: usize,
}

impl Rest<'_> {
    fn new(path: Cow<'_, [u8]>) -> Result<Rest<'_>> {
        check_path(&path)?;
        Ok(Rest { path, done: 0 })
    }

    /// The next component.
    fn next(&mut self) -> Option<Range<usize>> {
        let from = self.done + self.path[self.done..].iter().position(|&byte| byte != b'/')?;
        let len = self.path[from..].iter().position(|&byte| byte == b'/');
        self.done = len.map_or(self.path.len(), |len| from + len);
        Some(from..self.done)
    }

    /// Whether no component follows.
    fn is_done(&self) -> bool {
        self.path[self.done..].iter().all(|&byte| byte == b'/')
    }

    fn ends_in_slash(&self) -> bool {
        self.path.ends_with(b"/")
    }
}

/// One walk: its caller, and its start.
struct Walk<'v, F: FileSystem + ?Sized> {
    fs: &'v F,
    /// Asks for pins.
    ctx: &'v Ctx,
    start: Start,
    budget: Budget,
}

/// A path in two: the directory of the last component, and its name, which is empty for the root.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let after_slash = |path: &[u8]| path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    let trimmed = &path[..end];
    trimmed.split_at(after_slash(trimmed))
}

pub(crate) fn check_path(path: &[u8]) -> Result<()> {
    match path.len() {
        0 => Err(FsError::NotFound),
        len if len >= PATH_MAX => Err(FsError::NameTooLong),
        _ if path.contains(&0) => Err(FsError::Invalid(BadArgument::PathBytes)),
        _ => Ok(()),
    }
}

pub(crate) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn pinning(ctx: &Ctx) -> Cow<'_, Ctx> {
    match ctx.pins {
        true => Cow::Borrowed(ctx),
        false => Cow::Owned(ctx.clone().pinning()),
    }
}

/// Restarts a walk if something on its way was removed meanwhile. If it is really missing, the new walk reports that.
pub(crate) fn retry<T>(mut walk: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..RACES_MAX {
        match walk() {
            Err(FsError::Stale) => {}
            other => return other,
        }
    }
    Err(FsError::NotFound)
}

/// See [`FileSystem::resolve`].
pub fn resolve<F: FileSystem + ?Sized>(fs: &F, ctx: &Ctx, start: &Start, path: &[u8], follow: bool) -> Result<Attr> {
    let pinning = pinning(ctx);
    let (ctx, start, keeps) = (&*pinning, *start, ctx.pins);
    let walk = Walk {
        fs,
        ctx,
        start,
        budget: Budget::new(),
    };
    retry(|| {
        let found = walk.to(path, follow)?;
        Ok(if keeps { found.keep() } else { *found })
    })
}

/// See [`FileSystem::open_path`].
pub fn open<F: FileSystem + ?Sized>(
    fs: &F,
    ctx: &Ctx,
    start: &Start,
    path: &[u8],
    flags: &OpenFlags,
) -> Result<Opened> {
    let pinning = pinning(ctx);
    let (ctx, start, keeps) = (&*pinning, *start, ctx.pins);
    let walk = Walk {
        fs,
        ctx,
        start,
        budget: Budget::new(),
    };
    for _ in 0..RACES_MAX {
        let opened = match flags.create {
            true => walk.create(path, flags),
            false => walk.open(path, flags),
        };
        match opened {
            // Something on the way, or the file just looked up, was removed: look it up again.
            Err(FsError::Stale) => {}
            Ok(opened) => {
                if !keeps && opened.attr.ino != ROOT_INO {
                    fs.unpin(ctx, opened.attr.ino, 1);
                }
                return Ok(opened);
            }
            Err(error) => return Err(error),
        }
    }
    Err(FsError::Busy)
}

impl<'v, F: FileSystem + ?Sized> Walk<'v, F> {
    fn pin(&self, ino: Ino) -> Result<Held<'v, F>> {
        let (fs, ctx) = (self.fs, self.ctx);
        let attr = fs.getattr(ctx, ino)?;
        if ino != ROOT_INO {
            fs.pin(ctx, ino, attr.generation)?;
        }
        Ok(Held { fs, ctx, attr })
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Held<'v, F>> {
        let (fs, ctx) = (self.fs, self.ctx);
        let attr = fs.lookup(ctx, dir, name)?;
        Ok(Held { fs, ctx, attr })
    }

    fn search(&self, dir: &Attr) -> Result<()> {
        match self.ctx.check {
            true => posix::may_search(&guarded(self.fs, *dir, &self.ctx.cred)?, &self.ctx.cred),
            false if dir.kind != FileKind::Directory => Err(FsError::NotDirectory),
            false => Ok(()),
        }
    }

    /// Where a path begins.
    fn begin(&self, path: &[u8]) -> Result<Place<'v, F>> {
        let absolute = path.starts_with(b"/");
        Ok(Place {
            at: self.pin(if absolute { self.start.root } else { self.start.base })?,
            way: Vec::new(),
            links: 0,
        })
    }

    fn is_confined(&self) -> bool {
        self.start.root != ROOT_INO
    }

    /// The directories from the root down to the parent of `dir`, each pinned before the lookup of its own parent.
    fn climb(&self, dir: Ino) -> Result<Vec<Held<'v, F>>> {
        let mut way = Vec::new();
        let mut at = dir;
        while at != self.start.root {
            if at == ROOT_INO {
                // It was moved out of the root, so this caller cannot see its parent.
                return Err(FsError::NotFound);
            }
            self.budget.step()?;
            let parent = self.pin(self.fs.parent(self.ctx, at)?)?;
            at = parent.ino;
            way.push(parent);
        }
        way.reverse();
        Ok(way)
    }

    /// `..`
    fn up(&self, to: &mut Place<'v, F>) -> Result<()> {
        if to.at.ino == self.start.root {
            return Ok(());
        }
        if !self.is_confined() {
            to.at = self.pin(self.fs.parent(self.ctx, to.at.ino)?)?;
            return Ok(());
        }
        if to.way.is_empty() {
            to.way = self.climb(to.at.ino)?;
        }
        if let Some(back) = to.way.pop() {
            to.at = back;
        }
        Ok(())
    }

    fn to(&self, path: &[u8], follow: bool) -> Result<Held<'v, F>> {
        Ok(self.from(self.begin(path)?, path, follow)?.at)
    }

    /// Continues a walk whose absolute path has begun at the root already.
    fn from(&self, mut to: Place<'v, F>, path: &[u8], follow: bool) -> Result<Place<'v, F>> {
        let mut rests = vec![Rest::new(Cow::Borrowed(path))?];
        loop {
            let is_links = rests.len() > 1;
            let Some(rest) = rests.last_mut() else {
                return Ok(to);
            };
            let Some(part) = rest.next() else {
                if rest.ends_in_slash() && to.at.kind != FileKind::Directory {
                    return Err(FsError::NotDirectory);
                }
                rests.pop();
                continue;
            };
            self.budget.step()?;
            let next = match &rest.path[part] {
                b"." => {
                    self.search(&to.at)?;
                    continue;
                }
                b".." => {
                    self.search(&to.at)?;
                    self.up(&mut to)?;
                    continue;
                }
                name => self.lookup(to.at.ino, name)?,
            };
            if next.kind == FileKind::Symlink && (is_links || follow || !rest.is_done() || rest.ends_in_slash()) {
                let target = self.follow(&mut to, &next)?;
                rests.push(Rest::new(Cow::Owned(target))?);
                continue;
            }
            let left = std::mem::replace(&mut to.at, next);
            if self.is_confined() {
                to.way.push(left);
            }
        }
    }

    /// The target of a link in the walk's current directory. The walk continues from there, or from the root.
    fn follow(&self, to: &mut Place<'v, F>, link: &Attr) -> Result<Vec<u8>> {
        to.links += 1;
        if to.links > SYMLOOP_MAX {
            return Err(FsError::Loop);
        }
        let target = self.fs.readlink(self.ctx, link.ino)?;
        if target.starts_with(b"/") {
            to.at = self.pin(self.start.root)?;
            to.way.clear();
        }
        Ok(target)
    }

    fn open(&self, path: &[u8], flags: &OpenFlags) -> Result<Opened> {
        let found = self.to(path, !flags.no_follow)?;
        let file = match found.kind {
            FileKind::Symlink => return Err(FsError::Loop),
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => self.fs.open(self.ctx, found.ino, flags.open_mode())?,
        };
        Ok(Opened {
            attr: found.keep(),
            file,
            created: false,
        })
    }

    fn create(&self, path: &[u8], flags: &OpenFlags) -> Result<Opened> {
        let new = NewFile {
            mode: flags.mode & 0o7777,
            open: flags.open_mode(),
            exclusive: flags.exclusive,
        };
        let mut path = Cow::Borrowed(path);
        let mut to = self.begin(&path)?;
        loop {
            check_path(&path)?;
            let (dir, name) = split(&path);
            if name.is_empty() || is_dots(name) || path.ends_with(b"/") {
                // No file can have such a path.
                return match self.from(to, &path, true) {
                    Ok(_) if flags.exclusive => Err(FsError::Exists),
                    Ok(_) | Err(FsError::NotFound) => Err(FsError::IsDirectory),
                    Err(error) => Err(error),
                };
            }
            if !dir.is_empty() {
                to = self.from(to, dir, true)?;
            }
            self.budget.step()?;
            match self.fs.create(self.ctx, to.at.ino, name, &new) {
                // A link, perhaps dangling: then its target is the file to create.
                Err(FsError::Loop) if !flags.no_follow => {}
                other => return other,
            }
            let link = self.lookup(to.at.ino, name)?;
            if link.kind != FileKind::Symlink {
                return Err(FsError::Stale);
            }
            let target = self.follow(&mut to, &link)?;
            path = Cow::Owned(target);
        }
    }
}

/// An inode of `fs` as this caller is checked against it, for checks outside engines. An engine that knows no lists has
/// none.
///
/// # Errors
/// Those of reading the list.
pub fn guarded(fs: &(impl FileSystem + ?Sized), attr: Attr, cred: &Cred) -> Result<Guarded> {
    Guarded::of(attr, cred, || match fs.getxattr(SYSTEM, attr.ino, acl::ACCESS) {
        Err(FsError::NoAttribute | FsError::NotSupported(_)) => Ok(None),
        found => found.map(Some),
    })
}
