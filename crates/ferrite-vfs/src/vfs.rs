//! Paths and permissions, once for all engines: what a kernel's VFS does for a mount, for callers without a kernel.
//!
//! What lives here: [`Vfs`], which walks paths and checks each step against the caller's [`Cred`], then calls the
//! engine. The rules themselves are in [`crate::posix`]; [`Dir`] is an open directory; changes of attributes are in
//! `attributes`. A check and the operation it allows are two steps: a concurrent chmod or rename can fall in between,
//! as it can between two system calls.
//!
//! Invariant: what was checked is what is used. Each inode on the way is pinned ([`Held`]) from before its number is
//! used until after. Otherwise a number that is freed and reused in between would give another file the old one's
//! permissions.
//!
//! Invariant: in a sticky directory a name stays its file's from the check to the removal, because every removal of a
//! name there takes a lock first ([`Vfs::turn`]). Nobody can put a file at a name that is taken, so creation need not
//! wait.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::posix::{self, Access};
use crate::{
    Attr, BadArgument, Cred, DirEntry, FileKind, FileSystem, FsError, Ino, NewNode, OpenFile, OpenMode, PATH_MAX,
    ROOT_INO, RenameMode, Result, SYMLOOP_MAX, SetAttr, StatFs,
};

mod attributes;

pub use attributes::Target;

/// How a file is opened; the names are those of `open(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Allow reads.
    pub read: bool,
    /// Allow writes.
    pub write: bool,
    /// Create the file if it is missing.
    pub create: bool,
    /// With `create`: refuse an existing file, or a link.
    pub exclusive: bool,
    /// Truncate the file to length 0.
    pub truncate: bool,
    /// Refuse a symbolic link as the last component.
    pub no_follow: bool,
    /// Leave access times alone.
    pub no_atime: bool,
    /// Permission bits of a new file, the umask applied.
    pub mode: u32,
}

/// A file system with paths and permissions, as one caller sees it. Cheap to clone.
///
/// Callers that share an engine share one of these: the first is made by [`Vfs::new`], those for other users by
/// [`Vfs::as_user`]. What makes checks hold in sticky directories is shared by a `Vfs` and its clones only.
#[derive(Clone)]
pub struct Vfs {
    fs: Arc<dyn FileSystem>,
    cred: Cred,
    base: Ino,
    /// Held from the check to the removal while a name is removed from a sticky directory.
    sticky: Arc<Mutex<()>>,
}

/// An open directory: the same one, whatever happens to its names. Dropping it closes it.
pub struct Dir {
    fs: Arc<dyn FileSystem>,
    ino: Ino,
}

impl Dir {
    /// Its inode.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Its attributes.
    pub fn getattr(&self) -> Result<Attr> {
        self.fs.getattr(self.ino)
    }

    /// Lists it, as [`FileSystem::readdir`]. The permission was checked at open, and that is enough.
    pub fn readdir(&self, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.fs.readdir(self.ino, cookie, sink)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.ino != ROOT_INO {
            self.fs.unpin(self.ino, 1);
        }
    }
}

/// The mode bit of directories where users may remove only their own names.
const STICKY: u32 = 0o1000;

/// How often a walk restarts because something on its way was removed meanwhile, before it returns `NotFound`. Also how
/// often an open restarts because the file was created or removed meanwhile.
const RACES_MAX: usize = 64;

/// An inode that stays what it is, and its attributes as last read. The root needs no pin: it is never freed.
struct Held<'v> {
    fs: &'v dyn FileSystem,
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
            self.fs.unpin(self.attr.ino, 1);
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

fn kill_priv(cred: &Cred) -> bool {
    !cred.is_root()
}

impl Vfs {
    /// `fs` as `cred` sees it. Relative paths start at the root.
    pub fn new(fs: Arc<dyn FileSystem>, cred: Cred) -> Vfs {
        Vfs {
            fs,
            cred,
            base: ROOT_INO,
            sticky: Arc::default(),
        }
    }

    /// The same file system as another user sees it.
    pub fn as_user(&self, cred: Cred) -> Vfs {
        Vfs { cred, ..self.clone() }
    }

    /// The same, but relative paths start at directory `base`, as with `openat(2)`; absolute ones and `..` lead out of
    /// it. The caller keeps `base` pinned.
    pub fn at(&self, base: Ino) -> Vfs {
        Vfs { base, ..self.clone() }
    }

    /// The engine below.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The caller.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    fn search(&self, dir: &Attr) -> Result<()> {
        if dir.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        posix::may_access(dir, &self.cred, Access::EXEC)
    }

    fn step(&self, dir: &Attr, name: &[u8]) -> Result<Attr> {
        self.search(dir)?;
        match name {
            b"." => Ok(*dir),
            b".." => self.fs.getattr(self.fs.parent(dir.ino)?),
            name => self.fs.lookup(dir.ino, name),
        }
    }

    /// Keeps an inode from being freed; `Stale` if it already was.
    fn hold(&self, attr: Attr) -> Result<Held<'_>> {
        if attr.ino != ROOT_INO {
            self.fs.pin(attr.ino, attr.generation)?;
        }
        Ok(Held { fs: &*self.fs, attr })
    }

    /// Restarts a walk if something on its way was removed meanwhile. If it is really missing, the new walk reports
    /// that.
    fn retry<T>(&self, mut walk: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..RACES_MAX {
            match walk() {
                Err(FsError::Stale) => {}
                other => return other,
            }
        }
        Err(FsError::NotFound)
    }

    fn start(&self, path: &[u8]) -> Result<Held<'_>> {
        let ino = if path.starts_with(b"/") { ROOT_INO } else { self.base };
        self.hold(self.fs.getattr(ino)?)
    }

    /// Walks to what `path` names. Links on the way are followed; the last one if `follow`, or if a slash follows it.
    fn walk(&self, path: &[u8], follow: bool) -> Result<Attr> {
        self.retry(|| self.walk_from(self.start(path)?, path, follow, &mut 0))
    }

    /// Like [`Self::walk`], for an inode that is then used by its number.
    fn target(&self, path: &[u8], follow: bool) -> Result<Held<'_>> {
        self.retry(|| self.hold(self.walk_from(self.start(path)?, path, follow, &mut 0)?))
    }

    fn walk_from(&self, base: Held<'_>, path: &[u8], follow: bool, links: &mut usize) -> Result<Attr> {
        check_path(path)?;
        let mut at = base;
        let trailing = path.ends_with(b"/");
        let mut parts = path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty())
            .peekable();
        while let Some(part) = parts.next() {
            let mut next = self.step(&at, part)?;
            let last = parts.peek().is_none();
            if next.kind == FileKind::Symlink && (!last || follow || trailing) {
                *links += 1;
                if *links > SYMLOOP_MAX {
                    return Err(FsError::Loop);
                }
                let link = self.hold(next)?;
                let target = self.fs.readlink(link.ino)?;
                let from = if target.starts_with(b"/") {
                    self.start(&target)?
                } else {
                    at
                };
                next = self.walk_from(from, &target, true, links)?;
            }
            if !last {
                at = self.hold(next)?;
                continue;
            }
            if trailing && next.kind != FileKind::Directory {
                return Err(FsError::NotDirectory);
            }
            return Ok(next);
        }
        // Nothing but slashes.
        Ok(*at)
    }

    /// Walks to the directory that holds the last component.
    fn place<'p>(&self, path: &'p [u8]) -> Result<Place<'_, 'p>> {
        check_path(path)?;
        let needs_dir = path.ends_with(b"/");
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
        let trimmed = &path[..end];
        let split = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let (dir, name) = trimmed.split_at(split);
        if name.is_empty() {
            // The root itself, which cannot be made, removed or renamed.
            return Err(FsError::Busy);
        }
        let parent = if dir.is_empty() {
            self.retry(|| self.start(path))?
        } else {
            self.target(dir, true)?
        };
        self.search(&parent)?;
        Ok(Place {
            parent,
            name,
            needs_dir,
        })
    }

    /// Where a new entry goes, if the caller may create one there.
    fn new_place<'p>(&self, path: &'p [u8], makes_dir: bool) -> Result<Place<'_, 'p>> {
        let place = match self.place(path) {
            Err(FsError::Busy) => return Err(FsError::Exists),
            other => other?,
        };
        if is_dots(place.name) {
            return Err(FsError::Exists);
        }
        if self.fs.lookup(place.parent.ino, place.name).is_ok() {
            return Err(FsError::Exists);
        }
        if place.needs_dir && !makes_dir {
            return Err(FsError::NotFound);
        }
        posix::may_access(&place.parent, &self.cred, Access::WRITE_EXEC)?;
        Ok(place)
    }

    /// What is at an existing place.
    fn entry(&self, place: &Place<'_, '_>) -> Result<Attr> {
        let entry = self.fs.lookup(place.parent.ino, place.name)?;
        if place.needs_dir && entry.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        Ok(entry)
    }

    /// The right to remove a name from these directories, until it is dropped. Only sticky directories need it:
    /// elsewhere a user who may remove one name may remove all.
    fn turn(&self, dirs: &[&Attr]) -> Option<MutexGuard<'_, ()>> {
        let sticky = dirs.iter().any(|dir| dir.mode & STICKY != 0);
        sticky.then(|| self.sticky.lock())
    }

    /// What is at an existing place, if the caller may remove it from there.
    fn removable(&self, place: &Place<'_, '_>) -> Result<Attr> {
        let victim = self.entry(place)?;
        posix::may_delete(&place.parent, &victim, &self.cred)?;
        Ok(victim)
    }

    /// Attributes; of what a link points to, if `follow`.
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Attr> {
        self.walk(path, follow)
    }

    /// Whether the caller may use what `path` names in these ways.
    pub fn access(&self, path: &[u8], want: Access) -> Result<()> {
        posix::may_access(&self.walk(path, true)?, &self.cred, want)
    }

    /// Opens a regular file, and creates it if `flags.create` is set.
    ///
    /// # Errors
    /// Those of `open(2)`: `NotPermitted` for `no_atime` on another user's file, among others. A FIFO, socket or device
    /// cannot be opened here: `NoSuchAddress`.
    pub fn open(&self, path: &[u8], flags: &OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let exclusive = flags.create && flags.exclusive;
        for _ in 0..RACES_MAX {
            match self.try_open(path, flags, exclusive) {
                // It was missing when looked up, but existed when we came to create it: look again.
                Err(FsError::Exists) if flags.create && !exclusive => {}
                // It was created, and then removed by another caller before it was open: create another.
                Err(FsError::Stale) => {}
                other => return other,
            }
        }
        Err(FsError::Busy)
    }

    fn try_open(&self, path: &[u8], flags: &OpenFlags, exclusive: bool) -> Result<Arc<dyn OpenFile>> {
        let file = match self.target(path, !flags.no_follow && !exclusive) {
            Ok(_) if exclusive => return Err(FsError::Exists),
            Ok(file) if file.kind == FileKind::Symlink => return Err(FsError::Loop),
            Ok(file) => file,
            Err(FsError::NotFound) if flags.create => return self.create(path, flags),
            Err(error) => return Err(error),
        };
        if file.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        let want = Access {
            read: flags.read,
            write: flags.write || flags.truncate,
            exec: false,
        };
        posix::may_access(&file, &self.cred, want)?;
        if flags.no_atime && !self.cred.is_root() && self.cred.uid != file.uid {
            return Err(FsError::NotPermitted);
        }
        // Opened first: what cannot be opened is not truncated either.
        let opened = self.fs.open(file.ino, self.open_mode(&file, flags))?;
        if flags.truncate {
            let set = SetAttr {
                size: Some(0),
                kill_priv: kill_priv(&self.cred),
                by_stranger: posix::is_stranger(&file, &self.cred),
                ..SetAttr::default()
            };
            self.fs.setattr(file.ino, &set)?;
        }
        Ok(opened)
    }

    fn create(&self, path: &[u8], flags: &OpenFlags) -> Result<Arc<dyn OpenFile>> {
        if path.ends_with(b"/") {
            return Err(FsError::IsDirectory);
        }
        let node = NewNode {
            kind: FileKind::File,
            mode: flags.mode & 0o7777,
            rdev: 0,
        };
        // A dangling link as the last component names the file to create.
        let attr = match self.new_place(path, false) {
            Ok(place) => self.fs.mknod(&self.cred, place.parent.ino, place.name, &node)?,
            Err(FsError::Exists) if !flags.exclusive && !flags.no_follow => {
                let target = self.resolve_dangling(path)?;
                let place = self.new_place(&target, false)?;
                self.fs.mknod(&self.cred, place.parent.ino, place.name, &node)?
            }
            Err(error) => return Err(error),
        };
        let file = self.hold(attr)?;
        self.fs.open(file.ino, self.open_mode(&file, flags))
    }

    /// The path a dangling link leads to.
    fn resolve_dangling(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut path = path.to_vec();
        for _ in 0..SYMLOOP_MAX {
            if path.ends_with(b"/") {
                return Err(FsError::IsDirectory);
            }
            let place = self.place(&path)?;
            match self.fs.lookup(place.parent.ino, place.name) {
                Ok(attr) if attr.kind == FileKind::Symlink => {
                    let target = self.fs.readlink(self.hold(attr)?.ino)?;
                    let dir_len = path.len() - place.name.len();
                    path = if target.starts_with(b"/") {
                        target
                    } else {
                        [&path[..dir_len], &target].concat()
                    };
                }
                _ => return Ok(path),
            }
        }
        Err(FsError::Loop)
    }

    fn open_mode(&self, file: &Attr, flags: &OpenFlags) -> OpenMode {
        let (read, write) = (flags.read, flags.write);
        OpenMode {
            read,
            write,
            kill_priv: kill_priv(&self.cred),
            by_stranger: posix::is_stranger(file, &self.cred),
            no_atime: flags.no_atime,
        }
    }

    /// Creates a directory. Setuid and setgid cannot be asked for, as with `mkdir(2)`: setgid comes from the parent.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<Attr> {
        let place = self.new_place(path, true)?;
        self.fs.mkdir(&self.cred, place.parent.ino, place.name, mode & 0o1777)
    }

    /// Creates a special (or regular) file. Only root may create devices.
    pub fn mknod(&self, path: &[u8], node: &NewNode) -> Result<Attr> {
        let place = self.new_place(path, false)?;
        if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) && !self.cred.is_root() {
            return Err(FsError::NotPermitted);
        }
        self.fs.mknod(&self.cred, place.parent.ino, place.name, node)
    }

    /// Creates a symbolic link to `target`; an empty one leads nowhere, so it is `NotFound`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<Attr> {
        check_path(target)?;
        let place = self.new_place(path, false)?;
        self.fs.symlink(&self.cred, place.parent.ino, place.name, target)
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
        if file.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        self.fs.link(file.ino, place.parent.ino, place.name)
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        let place = match self.place(path) {
            // The root.
            Err(FsError::Busy) => return Err(FsError::IsDirectory),
            other => other?,
        };
        if is_dots(place.name) {
            return Err(FsError::IsDirectory);
        }
        let _turn = self.turn(&[&place.parent]);
        let victim = self.removable(&place)?;
        if victim.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        self.fs.unlink(place.parent.ino, place.name)
    }

    /// Removes an empty directory. A path that ends in `..` names a directory that is not empty; one that ends in `.`
    /// is `Invalid`, and the root is `Busy`.
    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        let place = self.place(path)?;
        match place.name {
            b"." => return Err(FsError::Invalid(BadArgument::DotOrDotDot)),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        let _turn = self.turn(&[&place.parent]);
        self.removable(&place)?;
        self.fs.rmdir(place.parent.ino, place.name)
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
        let _turn = self.turn(&[&from.parent, &to.parent]);
        let moved = self.entry(&from)?;
        let victim = match (self.fs.lookup(to.parent.ino, to.name), mode) {
            (Ok(_), RenameMode::NoReplace) => return Err(FsError::Exists),
            // Two names of one file: nothing happens, so nothing needs a permission.
            (Ok(victim), _) if victim.ino == moved.ino => return Ok(()),
            (Ok(victim), _) => Some(victim),
            (Err(FsError::NotFound), RenameMode::Replace | RenameMode::NoReplace) => None,
            (Err(error), _) => return Err(error),
        };
        let exchanged = victim.filter(|_| mode == RenameMode::Exchange);
        let becomes = exchanged.unwrap_or(moved);
        if to.needs_dir && becomes.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        posix::may_delete(&from.parent, &moved, &self.cred)?;
        match &victim {
            Some(victim) => posix::may_delete(&to.parent, victim, &self.cred)?,
            None => posix::may_access(&to.parent, &self.cred, Access::WRITE_EXEC)?,
        }
        // A directory that moves changes its `..`, so it must be writable itself.
        if from.parent.ino != to.parent.ino {
            for attr in [Some(moved), exchanged].into_iter().flatten() {
                if attr.kind == FileKind::Directory {
                    posix::may_access(&attr, &self.cred, Access::WRITE)?;
                }
            }
        }
        self.fs.rename(from.parent.ino, from.name, to.parent.ino, to.name, mode)
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.fs.readlink(self.target(path, false)?.ino)
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
        let dir = self.target(path, follow)?;
        if dir.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        posix::may_access(&dir, &self.cred, Access::READ)?;
        if dir.ino != ROOT_INO {
            // `dir` keeps it pinned until the handle's own pin exists.
            self.fs.pin(dir.ino, dir.generation)?;
        }
        let fs = Arc::clone(&self.fs);
        Ok(Dir { fs, ino: dir.ino })
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs()
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn check_path(path: &[u8]) -> Result<()> {
    match path.len() {
        0 => Err(FsError::NotFound),
        len if len >= PATH_MAX => Err(FsError::NameTooLong),
        _ if path.contains(&0) => Err(FsError::Invalid(BadArgument::PathBytes)),
        _ => Ok(()),
    }
}
