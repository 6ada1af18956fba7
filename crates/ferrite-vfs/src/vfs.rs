//! Paths, once for all engines: what a kernel's VFS does for a mount, for callers without a kernel.
//!
//! Contents: [`Vfs`], an engine as one caller sees it. It resolves a path ([`crate::walk`]) and calls the engine with
//! the caller's context; the engine checks permissions under its own locks, so no concurrent chmod or rename can fall
//! between a check and what it allowed. The rules are in [`crate::posix`]; [`Dir`] is an open directory; changes of
//! attributes are in `attributes`.
//!
//! Invariant: each inode is pinned ([`Held`]) from the walk that found it until it has been used. Otherwise a number
//! that is freed and reused in between would name another file.

use std::ops::Deref;
use std::sync::Arc;

use crate::fs::walk::{check_path, guarded, is_dots, retry, split};
use crate::locks::{LockRequest, Wait, wait_for};
use crate::posix::{self, Access};
use crate::{
    Attr, BadArgument, Cred, Ctx, DirEntry, FileKind, FileSystem, FsError, Ino, NO_NAME, NewFile, NewNode, OpenFile,
    OpenFlags, OpenMode, ROOT_INO, RenameMode, Result, Start, StatFs,
};

mod attributes;

pub use attributes::Target;

/// A file system with paths and permissions, as one caller sees it. Cheap to clone.
#[derive(Clone)]
pub struct Vfs {
    fs: Arc<dyn FileSystem>,
    /// Asks for checks and pins.
    ctx: Ctx,
    start: Start,
    /// Keeps the root of a confined one.
    _root: Option<Arc<Dir>>,
}

/// An open directory: the same one, whatever happens to its names. Dropping it closes it.
pub struct Dir {
    fs: Arc<dyn FileSystem>,
    ctx: Ctx,
    ino: Ino,
}

impl Dir {
    /// Its inode.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Its attributes.
    pub fn getattr(&self) -> Result<Attr> {
        self.fs.getattr(&self.ctx, self.ino)
    }

    /// Lists it, as [`FileSystem::readdir`]. The permission was checked at open, and that is enough.
    pub fn readdir(&self, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.fs.readdir(&self.ctx, self.ino, cookie, sink)
    }

    /// Lists it with attributes, as [`FileSystem::readdir_plus`]. Nothing comes pinned.
    pub fn readdir_plus(&self, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool) -> Result<()> {
        self.fs.readdir_plus(&without_pins(&self.ctx), self.ino, cookie, sink)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.ino != ROOT_INO {
            self.fs.unpin(&self.ctx, self.ino, 1);
        }
    }
}

/// The same caller, for calls whose reply is used up at once. Each pin costs a call to drop it.
fn without_pins(ctx: &Ctx) -> Ctx {
    Ctx {
        pins: false,
        ..ctx.clone()
    }
}

/// An inode that was pinned by a walk, and its attributes as the walk saw them.
struct Held<'v> {
    vfs: &'v Vfs,
    attr: Attr,
}

impl Deref for Held<'_> {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.attr.ino != ROOT_INO {
            self.vfs.fs.unpin(&self.vfs.ctx, self.attr.ino, 1);
        }
    }
}

/// Where the last component of a path lies.
struct Place<'v, 'p> {
    parent: Held<'v>,
    name: &'p [u8],
    /// The path ended in a slash: it must be a directory.
    needs_dir: bool,
}

impl Vfs {
    /// `fs` as `cred` sees it. Relative paths start at the root.
    pub fn new(fs: Arc<dyn FileSystem>, cred: Cred) -> Vfs {
        Vfs {
            fs,
            ctx: Ctx::checked(cred).pinning(),
            start: Start::default(),
            _root: None,
        }
    }

    /// The same file system as another user sees it.
    pub fn as_user(&self, cred: Cred) -> Vfs {
        Vfs {
            ctx: Ctx {
                cred,
                ..self.ctx.clone()
            },
            ..self.clone()
        }
    }

    /// The same, but relative paths start at directory `base`, as with `openat(2)`; absolute ones and `..` lead out of
    /// it. The caller keeps `base` pinned.
    pub fn at(&self, base: Ino) -> Vfs {
        Vfs {
            start: Start { base, ..self.start },
            ..self.clone()
        }
    }

    /// The same file system, but with the directory at `path` as its root, as with `chroot(2)` or a bind mount: neither
    /// `..` nor absolute paths nor links lead out of it. The returned value keeps the directory usable, even without a
    /// name.
    ///
    /// # Errors
    /// Those of opening the directory.
    pub fn rooted(&self, path: &[u8]) -> Result<Vfs> {
        let dir = self.open_dir(path)?;
        Ok(Vfs {
            start: Start {
                root: dir.ino,
                base: dir.ino,
            },
            _root: Some(Arc::new(dir)),
            ..self.clone()
        })
    }

    /// The engine below.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The caller.
    pub fn cred(&self) -> &Cred {
        &self.ctx.cred
    }

    /// The context of the caller's operations on open files.
    pub fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    /// Locks as [`FileSystem::lock`], and blocks as `wait` says.
    ///
    /// # Errors
    /// Those of the call; `WouldBlock` also when the time is up. An old `flock` lock is gone then if there was time to
    /// wait.
    pub fn lock(&self, ino: Ino, request: &LockRequest, wait: Wait) -> Result<()> {
        wait_for(
            wait,
            |may_wait, done| self.fs.lock(&self.ctx, ino, request, may_wait, done),
            |ticket| self.fs.cancel_lock(&self.ctx, ticket),
        )
    }

    /// The caller, see [`without_pins`].
    fn unpinned_ctx(&self) -> Ctx {
        without_pins(&self.ctx)
    }

    /// The inode that a path leads to, pinned.
    fn target(&self, path: &[u8], follow: bool) -> Result<Held<'_>> {
        let attr = self.fs.resolve(&self.ctx, &self.start, path, follow)?;
        Ok(Held { vfs: self, attr })
    }

    /// Finds the directory that holds the last component. `Busy` for the root, which cannot be made, removed or
    /// renamed.
    fn place<'p>(&self, path: &'p [u8]) -> Result<Place<'_, 'p>> {
        check_path(path)?;
        let (dir, name) = split(path);
        if name.is_empty() {
            return Err(FsError::Busy);
        }
        let dir = if dir.is_empty() { b"." } else { dir };
        Ok(Place {
            parent: self.target(dir, true)?,
            name,
            needs_dir: path.ends_with(b"/"),
        })
    }

    /// Where a new entry goes.
    fn new_place<'p>(&self, path: &'p [u8], makes_dir: bool) -> Result<Place<'_, 'p>> {
        let place = match self.place(path) {
            Err(FsError::Busy) => return Err(FsError::Exists),
            other => other?,
        };
        if is_dots(place.name) {
            self.may_search(&place.parent)?;
            return Err(FsError::Exists);
        }
        if place.needs_dir && !makes_dir {
            self.look(&place)?;
            return Err(FsError::Exists);
        }
        Ok(place)
    }

    /// The inode at a place.
    fn look(&self, place: &Place<'_, '_>) -> Result<Held<'_>> {
        let attr = self.fs.lookup(&self.ctx, place.parent.ino, place.name)?;
        Ok(Held { vfs: self, attr })
    }

    /// Attributes; of the link's target, if `follow`.
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Attr> {
        self.fs.resolve(&self.unpinned_ctx(), &self.start, path, follow)
    }

    fn may_search(&self, dir: &Attr) -> Result<()> {
        posix::may_search(&guarded(&*self.fs, *dir, self.cred())?, self.cred())
    }

    fn may_access(&self, attr: Attr, want: Access) -> Result<()> {
        posix::may_access(&guarded(&*self.fs, attr, self.cred())?, self.cred(), want)
    }

    /// Whether the caller may use the file at `path` in these ways.
    pub fn access(&self, path: &[u8], want: Access) -> Result<()> {
        self.may_access(self.stat(path, true)?, want)
    }

    /// Opens a regular file, and creates it if `flags.create` is set.
    ///
    /// # Errors
    /// Those of `open(2)`: `NotPermitted` for `no_atime` on another user's file, among others. A FIFO, socket or device
    /// cannot be opened here: `NoSuchAddress`.
    pub fn open(&self, path: &[u8], flags: &OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let opened = self.fs.open_path(&self.unpinned_ctx(), &self.start, path, flags)?;
        Ok(opened.file)
    }

    /// Opens a new file without a name in a directory, as `open(2)` does with `O_TMPFILE`, and with `O_EXCL` if it must
    /// never get a name.
    ///
    /// # Errors
    /// `Invalid` for a file that is not open for writing; those of creating one.
    pub fn create_nameless(&self, dir: &[u8], flags: &OpenFlags, is_final: bool) -> Result<Arc<dyn OpenFile>> {
        if !flags.write {
            return Err(FsError::Invalid(BadArgument::NotWritable));
        }
        let dir = self.target(dir, !flags.no_follow)?;
        let new = NewFile {
            mode: flags.mode & 0o7777,
            open: OpenMode {
                read: flags.read,
                write: true,
                no_atime: flags.no_atime,
                ..OpenMode::default()
            },
            exclusive: is_final,
        };
        let opened = self.fs.create(&self.unpinned_ctx(), dir.ino, NO_NAME, &new)?;
        Ok(opened.file)
    }

    /// Gives an open file a name, as `linkat(2)` does with `AT_EMPTY_PATH`.
    pub fn link_open(&self, ino: Ino, new: &[u8]) -> Result<Attr> {
        let place = self.new_place(new, false)?;
        self.fs.link(&self.unpinned_ctx(), ino, place.parent.ino, place.name)
    }

    /// Creates a directory. Ignores setuid and setgid, as `mkdir(2)` does: setgid comes from the parent.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<Attr> {
        let ctx = self.unpinned_ctx();
        retry(|| {
            let place = self.new_place(path, true)?;
            self.fs.mkdir(&ctx, place.parent.ino, place.name, mode & 0o1777)
        })
    }

    /// Creates a special (or regular) file. Only root may create devices.
    pub fn mknod(&self, path: &[u8], node: &NewNode) -> Result<Attr> {
        let ctx = self.unpinned_ctx();
        retry(|| {
            let place = self.new_place(path, false)?;
            self.fs.mknod(&ctx, place.parent.ino, place.name, node)
        })
    }

    /// Creates a symbolic link to `target`; an empty one leads nowhere, so it is `NotFound`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<Attr> {
        check_path(target)?;
        let ctx = self.unpinned_ctx();
        retry(|| {
            let place = self.new_place(path, false)?;
            self.fs.symlink(&ctx, place.parent.ino, place.name, target)
        })
    }

    /// Gives a file another name. A symbolic link is not followed.
    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<Attr> {
        self.link_between(old, self, new)
    }

    /// As [`Self::link`], but a relative `new` starts at directory `new_base`, which the caller keeps pinned.
    pub fn link_at(&self, old: &[u8], new_base: Ino, new: &[u8]) -> Result<Attr> {
        self.link_between(old, &self.at(new_base), new)
    }

    fn link_between(&self, old: &[u8], to: &Vfs, new: &[u8]) -> Result<Attr> {
        let file = self.target(old, false)?;
        let place = to.new_place(new, false)?;
        self.fs
            .link(&self.unpinned_ctx(), file.ino, place.parent.ino, place.name)
    }

    /// Clones a file or a tree: [`FileSystem::clone_tree`]. A symbolic link is not followed.
    pub fn clone_tree(&self, original: &[u8], clone: &[u8]) -> Result<Attr> {
        let source = self.target(original, false)?;
        let place = self.new_place(clone, true)?;
        self.fs
            .clone_tree(&self.unpinned_ctx(), source.ino, place.parent.ino, place.name)
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        let place = match self.place(path) {
            // The root.
            Err(FsError::Busy) => return Err(FsError::IsDirectory),
            other => other?,
        };
        if is_dots(place.name) {
            self.may_search(&place.parent)?;
            return Err(FsError::IsDirectory);
        }
        if place.needs_dir {
            return match self.look(&place)?.kind {
                FileKind::Directory => Err(FsError::IsDirectory),
                _ => Err(FsError::NotDirectory),
            };
        }
        self.fs.unlink(&self.ctx, place.parent.ino, place.name)
    }

    /// Removes an empty directory. A path that ends in `..` names a directory that is not empty; one that ends in `.`
    /// is `Invalid`, and the root is `Busy`.
    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        let place = self.place(path)?;
        if is_dots(place.name) {
            self.may_search(&place.parent)?;
        }
        match place.name {
            b"." => Err(FsError::Invalid(BadArgument::DotOrDotDot)),
            b".." => Err(FsError::NotEmpty),
            name => self.fs.rmdir(&self.ctx, place.parent.ino, name),
        }
    }

    /// Renames, as [`FileSystem::rename`]. The root, and paths that end in `.` or `..`, are `Busy`.
    pub fn rename(&self, old: &[u8], new: &[u8], mode: RenameMode) -> Result<()> {
        self.rename_between(old, self, new, mode)
    }

    /// As [`Self::rename`], but a relative `new` starts at directory `new_base`, which the caller keeps pinned.
    pub fn rename_at(&self, old: &[u8], new_base: Ino, new: &[u8], mode: RenameMode) -> Result<()> {
        self.rename_between(old, &self.at(new_base), new, mode)
    }

    fn rename_between(&self, old: &[u8], target: &Vfs, new: &[u8], mode: RenameMode) -> Result<()> {
        let (from, to) = (self.place(old)?, target.place(new)?);
        if is_dots(from.name) || is_dots(to.name) {
            return Err(FsError::Busy);
        }
        if from.needs_dir || to.needs_dir {
            let moved = self.look(&from)?;
            let replaced = match (mode, self.look(&to)) {
                (RenameMode::Exchange, replaced) => Some(replaced?),
                (mode, Ok(_)) if mode.refuses_target() => return Err(FsError::Exists),
                _ => None,
            };
            let is_file = |attr: &Attr| attr.kind != FileKind::Directory;
            let becomes = replaced.as_ref().unwrap_or(&moved);
            if (from.needs_dir && is_file(&moved)) || (to.needs_dir && is_file(becomes)) {
                return Err(FsError::NotDirectory);
            }
        }
        let (from_ino, to_ino) = (from.parent.ino, to.parent.ino);
        self.fs.rename(&self.ctx, from_ino, from.name, to_ino, to.name, mode)
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.fs.readlink(&self.ctx, self.target(path, false)?.ino)
    }

    /// Lists a directory, as [`FileSystem::readdir`].
    pub fn readdir(&self, path: &[u8], cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.open_dir(path)?.readdir(cookie, sink)
    }

    /// Opens a directory, to list it in more than one step.
    pub fn open_dir(&self, path: &[u8]) -> Result<Dir> {
        self.open_dir_with(path, true)
    }

    /// The same, but a symbolic link as the last component is not followed (`O_NOFOLLOW`): `NotDirectory`.
    pub fn open_dir_itself(&self, path: &[u8]) -> Result<Dir> {
        self.open_dir_with(path, false)
    }

    fn open_dir_with(&self, path: &[u8], follow: bool) -> Result<Dir> {
        // From here on the handle owns the pin.
        let attr = self.fs.resolve(&self.ctx, &self.start, path, follow)?;
        let dir = Dir {
            fs: Arc::clone(&self.fs),
            ctx: self.ctx.clone(),
            ino: attr.ino,
        };
        if attr.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        self.may_access(attr, Access::READ)?;
        Ok(dir)
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs(&self.ctx)
    }
}
