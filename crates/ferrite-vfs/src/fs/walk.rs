//! Walking along a path, once for all engines.
//!
//! What lives here: what [`FileSystem::resolve`] and [`FileSystem::open_path`] do unless an engine can do better. Both
//! run where the engine is, so that a path costs a client one call. The engine checks each step if the context asks.
//!
//! Invariant: each inode on the way is pinned ([`Held`]) from the lookup that found it until it has been used.
//! Otherwise a number that is freed and reused in between would lead into another directory.
//!
//! Invariant: nothing outside of [`Start::root`] is reached. Absolute paths and links begin there. Within another root
//! than the file system's own, `..` leads back along the walk itself, or, above its start, to a parent from which
//! parents lead to the root; so a directory that is moved out meanwhile takes nobody with it.

use std::borrow::Cow;
use std::ops::Deref;

use crate::{
    Attr, BadArgument, Ctx, FileKind, FileSystem, FsError, Ino, NewFile, OpenFlags, Opened, PATH_MAX, ROOT_INO, Result,
    SYMLOOP_MAX, Start, posix,
};

/// How often a walk restarts because something on its way was removed meanwhile, before it returns `NotFound`. Also how
/// often an open restarts because the file was created or removed meanwhile.
const RACES_MAX: usize = 64;
/// Longest way up from a start to its root.
const DEPTH_MAX: usize = PATH_MAX;

/// An inode that stays what it is, and its attributes as last read. The root needs no pin: it is never freed.
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

/// Where the last component of a path lies.
struct Place<'v, 'p, F: FileSystem + ?Sized> {
    parent: Held<'v, F>,
    name: &'p [u8],
}

/// One walk: who goes, and from where.
struct Walk<'v, F: FileSystem + ?Sized> {
    fs: &'v F,
    /// Asks for pins.
    ctx: &'v Ctx,
    start: Start,
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
    let walk = Walk { fs, ctx, start };
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
    let walk = Walk { fs, ctx, start };
    for _ in 0..RACES_MAX {
        let opened = match flags.create {
            true => walk.create(path, flags),
            false => walk.open(path, flags),
        };
        match opened {
            // Something on the way was removed, or what was there when it was looked at: look again.
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
            true => posix::may_search(dir, &self.ctx.cred),
            false if dir.kind != FileKind::Directory => Err(FsError::NotDirectory),
            false => Ok(()),
        }
    }

    /// Where a path begins.
    fn begin(&self, path: &[u8]) -> Result<Held<'v, F>> {
        let absolute = path.starts_with(b"/");
        self.pin(if absolute { self.start.root } else { self.start.base })
    }

    /// `..` of a directory at which the walk knows no way back.
    fn up(&self, dir: &Attr) -> Result<Held<'v, F>> {
        if dir.ino == self.start.root {
            return self.pin(dir.ino);
        }
        let parent = self.pin(self.fs.parent(self.ctx, dir.ino)?)?;
        if self.start.root != ROOT_INO {
            let mut at = parent.ino;
            for _ in 0..DEPTH_MAX {
                if at == self.start.root {
                    return Ok(parent);
                }
                if at == ROOT_INO {
                    break;
                }
                at = self.fs.parent(self.ctx, at).map_err(gone)?;
            }
            // It was moved out of the root, so its parent is not there for this caller.
            return Err(FsError::NotFound);
        }
        Ok(parent)
    }

    fn to(&self, path: &[u8], follow: bool) -> Result<Held<'v, F>> {
        self.from(self.begin(path)?, path, follow, &mut 0)
    }

    /// Walks from `base`, which is also where an absolute path has begun.
    fn from(&self, base: Held<'v, F>, path: &[u8], follow: bool, links: &mut usize) -> Result<Held<'v, F>> {
        check_path(path)?;
        // The way back, for `..` within a root. In the whole file system, the engine knows parents best.
        let mut way: Vec<Held<'v, F>> = Vec::new();
        let confined = self.start.root != ROOT_INO;
        let mut at = base;
        let trailing = path.ends_with(b"/");
        let mut parts = path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty())
            .peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            let mut next = match part {
                b"." => {
                    self.search(&at)?;
                    continue;
                }
                b".." => {
                    self.search(&at)?;
                    at = match way.pop() {
                        Some(back) => back,
                        None => self.up(&at)?,
                    };
                    continue;
                }
                name => self.lookup(at.ino, name)?,
            };
            if next.kind == FileKind::Symlink && (!last || follow || trailing) {
                *links += 1;
                if *links > SYMLOOP_MAX {
                    return Err(FsError::Loop);
                }
                let target = self.fs.readlink(self.ctx, next.ino)?;
                let from = match target.starts_with(b"/") {
                    true => self.begin(&target)?,
                    false => self.pin(at.ino)?,
                };
                next = self.from(from, &target, true, links)?;
                // The link's way is not this walk's way back.
                way.clear();
            } else if confined && !last {
                way.push(at);
            }
            if last && trailing && next.kind != FileKind::Directory {
                return Err(FsError::NotDirectory);
            }
            at = next;
        }
        Ok(at)
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
        let mut base = self.begin(&path)?;
        for _ in 0..=SYMLOOP_MAX {
            check_path(&path)?;
            let (dir, name) = split(&path);
            if name.is_empty() || is_dots(name) || path.ends_with(b"/") {
                // No file can have such a path.
                return match self.from(base, &path, true, &mut 0) {
                    Ok(_) if flags.exclusive => Err(FsError::Exists),
                    Ok(_) | Err(FsError::NotFound) => Err(FsError::IsDirectory),
                    Err(error) => Err(error),
                };
            }
            let place = Place {
                parent: match dir.is_empty() {
                    true => base,
                    false => self.from(base, dir, true, &mut 0)?,
                },
                name,
            };
            match self.fs.create(self.ctx, place.parent.ino, place.name, &new) {
                // A link, perhaps to what is missing: then that is the file to create.
                Err(FsError::Loop) if !flags.no_follow => {}
                other => return other,
            }
            let link = self.lookup(place.parent.ino, place.name)?;
            if link.kind != FileKind::Symlink {
                return Err(FsError::Stale);
            }
            let target = self.fs.readlink(self.ctx, link.ino)?;
            base = match target.starts_with(b"/") {
                true => self.begin(&target)?,
                false => place.parent,
            };
            path = Cow::Owned(target);
        }
        Err(FsError::Loop)
    }
}

/// What an inode that is gone means on a walk: the name that led to it was removed.
fn gone(error: FsError) -> FsError {
    match error {
        FsError::Stale => FsError::NotFound,
        other => other,
    }
}
