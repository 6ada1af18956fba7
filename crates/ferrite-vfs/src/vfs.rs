//! Paths and permissions, once for all engines: what a kernel's VFS does for a mount, for everybody else.
//!
//! What lives here: [`Vfs`], which walks paths and checks each step against the caller's [`Cred`], then calls the
//! engine. The rules themselves are in [`crate::posix`]. A check and the operation it allows are two steps: a
//! concurrent chmod can fall in between, as it can between two system calls.

use std::sync::Arc;

use crate::posix::{self, Access};
use crate::{
    Attr, Cred, DirEntry, FileKind, FileSystem, FsError, NewNode, OpenFile, OpenMode, PATH_MAX, ROOT_INO, RenameMode,
    Result, SYMLOOP_MAX, SetAttr, StatFs, XattrMode,
};

/// How a file is opened; the names are those of `open(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Allow reads.
    pub read: bool,
    /// Allow writes.
    pub write: bool,
    /// Make the file if it is missing.
    pub create: bool,
    /// With `create`: refuse an existing file, or a link.
    pub exclusive: bool,
    /// Cut the file to nothing.
    pub truncate: bool,
    /// Refuse a symbolic link as the last component.
    pub no_follow: bool,
    /// Leave access times alone.
    pub no_atime: bool,
    /// Permission bits of a new file, the umask applied.
    pub mode: u32,
}

/// A file system with paths and permissions, as one caller sees it. Cheap to clone.
#[derive(Clone)]
pub struct Vfs {
    fs: Arc<dyn FileSystem>,
    cred: Cred,
}

/// Where the last component of a path lies.
struct Place<'p> {
    parent: Attr,
    name: &'p [u8],
    /// The path ended in a slash: only a directory will do.
    needs_dir: bool,
}

fn kill_priv(cred: &Cred) -> bool {
    !cred.is_root()
}

impl Vfs {
    /// `fs` as `cred` sees it.
    pub fn new(fs: Arc<dyn FileSystem>, cred: Cred) -> Vfs {
        Vfs { fs, cred }
    }

    /// The engine below.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// Who calls.
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

    /// Walks to what `path` names. Links on the way are followed; the last one if `follow`, or if a slash comes behind it.
    fn walk(&self, path: &[u8], follow: bool) -> Result<Attr> {
        self.walk_from(self.fs.getattr(ROOT_INO)?, path, follow, &mut 0)
    }

    fn walk_from(&self, base: Attr, path: &[u8], follow: bool, links: &mut usize) -> Result<Attr> {
        check_path(path)?;
        let mut at = if path[0] == b'/' {
            self.fs.getattr(ROOT_INO)?
        } else {
            base
        };
        let trailing = path.ends_with(b"/");
        let mut parts = path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty())
            .peekable();
        while let Some(part) = parts.next() {
            let next = self.step(&at, part)?;
            let last = parts.peek().is_none();
            at = if next.kind == FileKind::Symlink && (!last || follow || trailing) {
                *links += 1;
                if *links > SYMLOOP_MAX {
                    return Err(FsError::Loop);
                }
                let target = self.fs.readlink(next.ino)?;
                self.walk_from(at, &target, true, links)?
            } else {
                next
            };
        }
        if trailing && at.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        Ok(at)
    }

    /// Walks to the directory that holds the last component.
    fn place<'p>(&self, path: &'p [u8]) -> Result<Place<'p>> {
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
            self.fs.getattr(ROOT_INO)?
        } else {
            self.walk(dir, true)?
        };
        self.search(&parent)?;
        Ok(Place {
            parent,
            name,
            needs_dir,
        })
    }

    /// Where a new entry goes, if the caller may put one there.
    fn new_place<'p>(&self, path: &'p [u8], makes_dir: bool) -> Result<Place<'p>> {
        let place = match self.place(path) {
            Err(FsError::Busy) => return Err(FsError::Exists),
            other => other?,
        };
        if matches!(place.name, b"." | b"..") {
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

    /// An existing entry that the caller may remove.
    fn old_place<'p>(&self, path: &'p [u8]) -> Result<(Place<'p>, Attr)> {
        let place = self.place(path)?;
        if matches!(place.name, b"." | b"..") {
            return Err(FsError::Invalid("`.` and `..` cannot be removed or renamed"));
        }
        let victim = self.fs.lookup(place.parent.ino, place.name)?;
        if place.needs_dir && victim.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        posix::may_delete(&place.parent, &victim, &self.cred)?;
        Ok((place, victim))
    }

    /// Attributes; of what a link points to, if `follow`.
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Attr> {
        self.walk(path, follow)
    }

    /// Whether the caller may use what `path` names in these ways.
    pub fn access(&self, path: &[u8], want: Access) -> Result<()> {
        posix::may_access(&self.walk(path, true)?, &self.cred, want)
    }

    /// Opens a regular file, and makes it if `flags.create` says so.
    pub fn open(&self, path: &[u8], flags: &OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let exclusive = flags.create && flags.exclusive;
        let attr = match self.walk(path, !flags.no_follow && !exclusive) {
            Ok(_) if exclusive => return Err(FsError::Exists),
            Ok(attr) if attr.kind == FileKind::Symlink => return Err(FsError::Loop),
            Ok(attr) => attr,
            Err(FsError::NotFound) if flags.create => return self.create(path, flags),
            Err(error) => return Err(error),
        };
        if attr.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        let want = Access {
            read: flags.read,
            write: flags.write || flags.truncate,
            exec: false,
        };
        posix::may_access(&attr, &self.cred, want)?;
        if flags.truncate {
            let set = SetAttr {
                size: Some(0),
                kill_priv: kill_priv(&self.cred),
                ..SetAttr::default()
            };
            self.fs.setattr(attr.ino, &set)?;
        }
        self.fs.open(attr.ino, self.open_mode(flags))
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
        // A dangling link as the last component names the file to make.
        let attr = match self.new_place(path, false) {
            Ok(place) => self.fs.mknod(&self.cred, place.parent.ino, place.name, &node)?,
            Err(FsError::Exists) if !flags.exclusive && !flags.no_follow => {
                let target = self.resolve_dangling(path)?;
                let place = self.new_place(&target, false)?;
                self.fs.mknod(&self.cred, place.parent.ino, place.name, &node)?
            }
            Err(error) => return Err(error),
        };
        self.fs.open(attr.ino, self.open_mode(flags))
    }

    /// The path a dangling link leads to.
    fn resolve_dangling(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut path = path.to_vec();
        for _ in 0..SYMLOOP_MAX {
            let place = self.place(&path)?;
            match self.fs.lookup(place.parent.ino, place.name) {
                Ok(attr) if attr.kind == FileKind::Symlink => {
                    let target = self.fs.readlink(attr.ino)?;
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

    fn open_mode(&self, flags: &OpenFlags) -> OpenMode {
        let (read, write) = (flags.read, flags.write);
        OpenMode {
            read,
            write,
            kill_priv: kill_priv(&self.cred),
            no_atime: flags.no_atime,
        }
    }

    /// Makes a directory.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<Attr> {
        let place = self.new_place(path, true)?;
        self.fs.mkdir(&self.cred, place.parent.ino, place.name, mode & 0o7777)
    }

    /// Makes a special (or regular) file. Devices are root's.
    pub fn mknod(&self, path: &[u8], node: &NewNode) -> Result<Attr> {
        if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) && !self.cred.is_root() {
            return Err(FsError::NotPermitted);
        }
        let place = self.new_place(path, false)?;
        self.fs.mknod(&self.cred, place.parent.ino, place.name, node)
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<Attr> {
        let place = self.new_place(path, false)?;
        self.fs.symlink(&self.cred, place.parent.ino, place.name, target)
    }

    /// Gives a file another name. A symbolic link gets one itself.
    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<Attr> {
        let attr = self.walk(old, false)?;
        if attr.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let place = self.new_place(new, false)?;
        self.fs.link(attr.ino, place.parent.ino, place.name)
    }

    /// Removes a name that is no directory's.
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        let (place, victim) = self.old_place(path)?;
        if victim.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        self.fs.unlink(place.parent.ino, place.name)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        let (place, _) = self.old_place(path)?;
        self.fs.rmdir(place.parent.ino, place.name)
    }

    /// Renames, as [`FileSystem::rename`].
    pub fn rename(&self, old: &[u8], new: &[u8], mode: RenameMode) -> Result<()> {
        let (from, moved) = self.old_place(old)?;
        let to = self.place(new)?;
        if matches!(to.name, b"." | b"..") {
            return Err(FsError::Invalid("`.` and `..` cannot be removed or renamed"));
        }
        if to.needs_dir && moved.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        match self.fs.lookup(to.parent.ino, to.name) {
            Ok(victim) => posix::may_delete(&to.parent, &victim, &self.cred)?,
            Err(FsError::NotFound) => posix::may_access(&to.parent, &self.cred, Access::WRITE_EXEC)?,
            Err(error) => return Err(error),
        }
        // A directory that moves changes its `..`, so it must be writable itself.
        if moved.kind == FileKind::Directory && from.parent.ino != to.parent.ino {
            posix::may_access(&moved, &self.cred, Access::WRITE)?;
        }
        self.fs.rename(from.parent.ino, from.name, to.parent.ino, to.name, mode)
    }

    /// Changes attributes, as far as the caller may.
    pub fn setattr(&self, path: &[u8], set: &SetAttr, follow: bool) -> Result<Attr> {
        let attr = self.walk(path, follow)?;
        let set = posix::may_setattr(&attr, &self.cred, set)?;
        self.fs.setattr(attr.ino, &set)
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.fs.readlink(self.walk(path, false)?.ino)
    }

    /// Lists a directory, as [`FileSystem::readdir`].
    pub fn readdir(&self, path: &[u8], cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let attr = self.walk(path, true)?;
        if attr.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        posix::may_access(&attr, &self.cred, Access::READ)?;
        self.fs.readdir(attr.ino, cookie, sink)
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs()
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        let attr = self.xattr_target(path, name, Access::READ)?;
        self.fs.getxattr(attr.ino, name)
    }

    /// Sets an extended attribute.
    pub fn setxattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let attr = self.xattr_target(path, name, Access::WRITE)?;
        self.fs.setxattr(attr.ino, name, value, mode)
    }

    /// Names of all extended attributes that the caller may see.
    pub fn listxattr(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = self.fs.listxattr(self.walk(path, true)?.ino)?;
        names.retain(|name| self.cred.is_root() || !name.starts_with(b"trusted."));
        Ok(names)
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        let attr = self.xattr_target(path, name, Access::WRITE)?;
        self.fs.removexattr(attr.ino, name)
    }

    /// The rules of xattr(7): `user.` belongs to the content of files and directories, `trusted.` to root.
    fn xattr_target(&self, path: &[u8], name: &[u8], want: Access) -> Result<Attr> {
        let attr = self.walk(path, true)?;
        let prefix = name.split(|&byte| byte == b'.').next().unwrap_or_default();
        match prefix {
            b"user" => {
                if !matches!(attr.kind, FileKind::File | FileKind::Directory) {
                    return Err(if want.write {
                        FsError::NotPermitted
                    } else {
                        FsError::NoAttribute
                    });
                }
                posix::may_access(&attr, &self.cred, want)?;
            }
            b"trusted" if !self.cred.is_root() => {
                return Err(if want.write {
                    FsError::NotPermitted
                } else {
                    FsError::NoAttribute
                });
            }
            b"security" if want.write && !self.cred.is_root() => return Err(FsError::NotPermitted),
            b"trusted" | b"security" => {}
            _ => return Err(FsError::NotSupported("this attribute namespace")),
        }
        Ok(attr)
    }
}

fn check_path(path: &[u8]) -> Result<()> {
    match path.len() {
        0 => Err(FsError::NotFound),
        len if len >= PATH_MAX => Err(FsError::NameTooLong),
        _ if path.contains(&0) => Err(FsError::Invalid("a path holds no zero byte")),
        _ => Ok(()),
    }
}
