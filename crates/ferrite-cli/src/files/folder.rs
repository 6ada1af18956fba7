//! An open directory, on this machine or in a volume, and what a copy does with the names in it.
//!
//! Invariants:
//! * Nothing here follows a symbolic link or takes more than one step: each call starts at an open directory and takes
//!   a name that [`check_name`] accepts. Users who may change the tree that is copied, or the one it is copied to, can
//!   put links and other directories where they like, and lead a copy nowhere. Only [`Folder::open`] follows: its path
//!   is the user's.
//! * The copy changes a file that it made by its descriptor ([`Thing`]), never by its name, which another process may
//!   have given to another file meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite::{FileKind, FileTimes, NewNode, RenameMode, XattrMode};
use ferrite_vfs::posix;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::Opened;
use super::place::{Found, Open, Place, Result, Why, timespec};

/// Most names that a copy keeps at a time, over all directories on its path: a server may claim any number of names in
/// a directory.
pub(super) const NAMES_MAX: usize = 1 << 24;

/// The directory itself, for calls that take a name.
const ITSELF: &str = ".";

/// Refuses a name that no entry can have: a path made of it would lead elsewhere.
fn check_name(name: &OsStr) -> Result<()> {
    posix::check_name(name.as_bytes()).map_err(|_| Why::new("is no name that an entry of a directory can have"))
}

/// See the head of this module.
pub(super) enum Folder {
    Here(OwnedFd),
    There(Arc<Opened>, ferrite::Dir),
}

/// An object with attributes: an open file or directory, or a link or special file, which cannot be opened.
pub(super) enum Thing<'t> {
    Here(BorrowedFd<'t>),
    /// Opened as a path (`O_PATH`).
    HereClosed(OwnedFd),
    There(&'t ferrite::File),
    ThereClosed(&'t ferrite::Dir, &'t OsStr),
}

fn replaced() -> Why {
    Why::new("was replaced by something else while it was copied; copy it again when nobody changes it")
}

fn open_at(dir: impl AsFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

impl Folder {
    /// Opens the directory that a user has named.
    pub(super) fn open(place: &Place) -> Result<Folder> {
        Ok(match place {
            Place::Here(path) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Folder::Here(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
            }
            Place::There { volume, path, .. } => Folder::There(Arc::clone(volume), volume.fs.open_dir(path)?),
        })
    }

    /// Whether it takes a descriptor of this process.
    pub(super) fn is_here(&self) -> bool {
        matches!(self, Folder::Here(_))
    }

    /// Its own attributes.
    pub(super) fn itself(&self) -> Result<Found> {
        match self {
            Folder::Here(dir) => Ok(Found::of_stat(&rustix::fs::fstat(dir)?)),
            Folder::There(volume, dir) => Ok(Found::there(volume, &dir.dir_metadata()?)),
        }
    }

    /// Attributes of an entry.
    pub(super) fn look(&self, name: &OsStr) -> Result<Found> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => Ok(Found::of_stat(&rustix::fs::statat(
                dir,
                name,
                AtFlags::SYMLINK_NOFOLLOW,
            )?)),
            Folder::There(volume, dir) => Ok(Found::there(volume, &dir.symlink_metadata(name)?)),
        }
    }

    /// The same; `None` if there is nothing.
    pub(super) fn look_for(&self, name: &OsStr) -> Result<Option<Found>> {
        match self.look(name) {
            Ok(found) => Ok(Some(found)),
            Err(why) if why.is(Errno::NOENT) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Has the kernel write what it still has of the file system that it is on.
    pub(super) fn sync(&self) -> Result<()> {
        match self {
            Folder::Here(dir) => Ok(rustix::fs::syncfs(dir)?),
            Folder::There(..) => Ok(()),
        }
    }

    /// Opens a directory in it.
    pub(super) fn enter(&self, name: &OsStr) -> Result<Folder> {
        check_name(name)?;
        self.step(name)
    }

    /// Opens it once more.
    pub(super) fn reopen(&self) -> Result<Folder> {
        self.step(OsStr::new(ITSELF))
    }

    /// Opens the directory that it is in.
    pub(super) fn above(&self) -> Result<Folder> {
        self.step(OsStr::new(".."))
    }

    /// Passes the identities of the directory and of its ancestors, up to the root, to `is_last` until that returns
    /// true. Ends early where the user may not look.
    ///
    /// # Errors
    /// If there are too many.
    pub(super) fn up(&self, levels_max: usize, mut is_last: impl FnMut((u64, u64)) -> bool) -> Result<()> {
        let mut here = self.itself()?.identity;
        let (mut climbed, mut path) = (None, PathBuf::new());
        for _ in 0..levels_max {
            if is_last(here) {
                return Ok(());
            }
            path.push("..");
            let above = match self {
                Folder::Here(dir) => {
                    let from = climbed.as_ref().map_or(dir.as_fd(), OwnedFd::as_fd);
                    open_at(from, OsStr::new(".."), OFlags::PATH | OFlags::DIRECTORY).and_then(|above| {
                        let found = Found::of_stat(&rustix::fs::fstat(&above)?);
                        climbed = Some(above);
                        Ok(found)
                    })
                }
                Folder::There(volume, dir) => match dir.symlink_metadata(&path) {
                    Ok(found) => Ok(Found::there(volume, &found)),
                    Err(error) => Err(error.into()),
                },
            };
            match above {
                // The root is in itself.
                Ok(above) if above.identity == here => return Ok(()),
                Ok(above) => here = above.identity,
                Err(why) if why.is_refusal() => return Ok(()),
                Err(why) => return Err(why),
            }
        }
        Err(Why::new("lies too deep below its root to be copied to"))
    }

    fn step(&self, name: &OsStr) -> Result<Folder> {
        Ok(match self {
            Folder::Here(dir) => Folder::Here(open_at(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)?),
            Folder::There(volume, dir) => Folder::There(Arc::clone(volume), dir.open_dir_nofollow(name)?),
        })
    }

    /// The names in it, in order; at most `names_max`. `check` may end it.
    pub(super) fn names(&self, names_max: usize, check: &dyn Fn() -> Result<()>) -> Result<Vec<OsString>> {
        let mut names = Vec::new();
        let mut take = |name: OsString| {
            check()?;
            check_name(&name)?;
            if names.len() == names_max {
                return Err(Why::new(format!(
                    "is left out: it and the directories above have more than {NAMES_MAX} entries; copy parts of them"
                )));
            }
            names.push(name);
            Ok(())
        };
        match self {
            Folder::Here(dir) => {
                for entry in rustix::fs::Dir::read_from(dir)? {
                    let entry = entry?;
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        take(OsString::from_vec(name.to_vec()))?;
                    }
                }
            }
            Folder::There(_, dir) => {
                for entry in dir.entries()? {
                    take(entry?.file_name())?;
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a regular file to read it: on this machine, the one that was `found`. If a server has put another there,
    /// that is still data of the export.
    pub(super) fn open_file(&self, name: &OsStr, found: &Found) -> Result<Open> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => {
                // Non-blocking, because it may be a pipe by now.
                let file = open_at(dir, name, OFlags::RDONLY | OFlags::NONBLOCK)?;
                let now = Found::of_stat(&rustix::fs::fstat(&file)?);
                match now.identity == found.identity && now.kind == FileKind::File {
                    true => Ok(Open::Here(file.into())),
                    false => Err(replaced()),
                }
            }
            Folder::There(_, dir) => {
                let mut options = ferrite::OpenOptions::new();
                options.read(true).no_follow(true);
                Ok(Open::There(dir.open_with(name, &options)?))
            }
        }
    }

    /// Makes a file, and opens it to write it.
    pub(super) fn create_new(&self, name: &OsStr, mode: u32) -> Result<Open> {
        check_name(name)?;
        Ok(match self {
            Folder::Here(dir) => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(mode))?;
                Open::Here(file.into())
            }
            Folder::There(_, dir) => {
                let mut options = ferrite::OpenOptions::new();
                options.write(true).create_new(true).mode(mode);
                Open::There(dir.open_with(name, &options)?)
            }
        })
    }

    /// Makes a directory, and opens it.
    pub(super) fn make_dir(&self, name: &OsStr, mode: u32) -> Result<Folder> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))?,
            Folder::There(_, dir) => dir.create_dir_with(name, mode)?,
        }
        self.enter(name)
    }

    /// Whether the user may write an entry that is a file.
    pub(super) fn may_write(&self, name: &OsStr) -> bool {
        match self {
            Folder::Here(dir) => {
                rustix::fs::accessat(dir, name, rustix::fs::Access::WRITE_OK, AtFlags::empty()).is_ok()
            }
            Folder::There(_, dir) => {
                let write = ferrite::Access {
                    write: true,
                    ..ferrite::Access::default()
                };
                dir.access(name, write).is_ok()
            }
        }
    }

    pub(super) fn read_link(&self, name: &OsStr) -> Result<PathBuf> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                Ok(OsString::from_vec(target.into_bytes()).into())
            }
            Folder::There(_, dir) => Ok(dir.read_link(name)?),
        }
    }

    pub(super) fn symlink(&self, target: &Path, name: &OsStr) -> Result<()> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => Ok(rustix::fs::symlinkat(target, dir, name)?),
            Folder::There(_, dir) => Ok(dir.symlink(target, name)?),
        }
    }

    /// Makes a special file like `like`.
    pub(super) fn make_node(&self, name: &OsStr, like: &Found, mode: u32) -> Result<()> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => {
                let kind = rustix::fs::FileType::from_raw_mode(like.kind.mode_bits());
                Ok(rustix::fs::mknodat(
                    dir,
                    name,
                    kind,
                    Mode::from_raw_mode(mode),
                    like.rdev,
                )?)
            }
            Folder::There(_, dir) => {
                let rdev = u32::try_from(like.rdev).map_err(|_| Why::new("its device number is too large"))?;
                let kind = like.kind;
                Ok(dir.mknod(name, &NewNode { kind, mode, rdev })?)
            }
        }
    }

    pub(super) fn remove_dir(&self, name: &OsStr) -> Result<()> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?),
            Folder::There(_, dir) => Ok(dir.remove_dir(name)?),
        }
    }

    /// Removes a directory with all that is in it; follows no link in it.
    pub(super) fn remove_tree(&self, name: &OsStr) -> Result<()> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => Ok(fs::remove_dir_all(Path::new(&by_proc(dir)).join(name))?),
            Folder::There(_, dir) => Ok(dir.remove_dir_all(name)?),
        }
    }

    pub(super) fn remove_file(&self, name: &OsStr) -> Result<()> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?),
            Folder::There(_, dir) => Ok(dir.remove_file(name)?),
        }
    }

    /// Renames an entry; with `replace`, over an existing one.
    pub(super) fn rename(&self, name: &OsStr, to: &OsStr, replace: bool) -> Result<()> {
        check_name(name).and_then(|()| check_name(to))?;
        match self {
            Folder::Here(dir) => {
                let flags = match replace {
                    true => RenameFlags::empty(),
                    false => RenameFlags::NOREPLACE,
                };
                match rustix::fs::renameat_with(dir, name, dir, to, flags) {
                    // Some file systems cannot refuse to replace; check before.
                    Err(Errno::INVAL) if !replace => match self.look(to) {
                        Ok(_) => Err(Errno::EXIST.into()),
                        Err(_) => Ok(rustix::fs::renameat(dir, name, dir, to)?),
                    },
                    renamed => Ok(renamed?),
                }
            }
            Folder::There(_, dir) => {
                let mode = match replace {
                    true => RenameMode::Replace,
                    false => RenameMode::NoReplace,
                };
                Ok(dir.rename_with(name, dir, to, mode)?)
            }
        }
    }

    /// Renames an entry to a new name in another directory of the same file system.
    pub(super) fn rename_to(&self, name: &OsStr, dir: &Folder, to: &OsStr) -> Result<()> {
        self.move_to(name, dir, to, (RenameFlags::NOREPLACE, RenameMode::NoReplace))
    }

    /// Exchanges an entry with one of another directory of the same file system.
    pub(super) fn exchange(&self, name: &OsStr, dir: &Folder, other: &OsStr) -> Result<()> {
        self.move_to(name, dir, other, (RenameFlags::EXCHANGE, RenameMode::Exchange))
    }

    fn move_to(&self, name: &OsStr, dir: &Folder, to: &OsStr, (flags, mode): (RenameFlags, RenameMode)) -> Result<()> {
        check_name(name).and_then(|()| check_name(to))?;
        match (self, dir) {
            (Folder::Here(from), Folder::Here(dir)) => Ok(rustix::fs::renameat_with(from, name, dir, to, flags)?),
            (Folder::There(_, from), Folder::There(_, dir)) => Ok(from.rename_with(name, dir, to, mode)?),
            _ => Err(Errno::XDEV.into()),
        }
    }

    /// Makes another name of a file in another directory, or this one, of the same file system.
    pub(super) fn link_to(&self, name: &OsStr, dir: &Folder, to: &OsStr) -> Result<()> {
        check_name(name).and_then(|()| check_name(to))?;
        match (self, dir) {
            (Folder::Here(from), Folder::Here(dir)) => Ok(rustix::fs::linkat(from, name, dir, to, AtFlags::empty())?),
            (Folder::There(_, from), Folder::There(_, dir)) => Ok(from.hard_link(name, dir, to)?),
            _ => Err(Errno::XDEV.into()),
        }
    }

    /// Has no other process that asks for this have the directory, as long as it is open here. Volumes that are not
    /// mounted have no such lock.
    ///
    /// # Errors
    /// If another process has it.
    pub(super) fn lock_alone(&self) -> Result<()> {
        let Folder::Here(dir) = self else { return Ok(()) };
        match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(Why::new("another process works in this directory")),
            // Not every file system has such locks.
            _ => Ok(()),
        }
    }

    /// Opens a regular file to write it; it is not made, and its content stays.
    pub(super) fn open_to_write(&self, name: &OsStr) -> Result<Open> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => {
                // Opening a device may have effects.
                let file = open_at(dir, name, OFlags::PATH)?;
                match Found::of_stat(&rustix::fs::fstat(&file)?).kind {
                    FileKind::File => {}
                    _ => return Err(replaced()),
                }
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                Ok(Open::Here(
                    rustix::fs::open(by_proc(&file), flags, Mode::empty())?.into(),
                ))
            }
            Folder::There(_, dir) => {
                let mut options = ferrite::OpenOptions::new();
                options.read(true).write(true).no_follow(true);
                Ok(Open::There(dir.open_with(name, &options)?))
            }
        }
    }

    /// The directory, for its attributes.
    pub(super) fn thing(&self) -> Thing<'_> {
        match self {
            Folder::Here(dir) => Thing::Here(dir.as_fd()),
            Folder::There(_, dir) => Thing::ThereClosed(dir, OsStr::new(ITSELF)),
        }
    }

    /// An entry that cannot be opened, for its attributes: the one that was `found`, or is of that kind.
    pub(super) fn closed<'f>(&'f self, name: &'f OsStr, kind: FileKind) -> Result<Thing<'f>> {
        check_name(name)?;
        match self {
            Folder::Here(dir) => {
                let file = open_at(dir, name, OFlags::PATH)?;
                match Found::of_stat(&rustix::fs::fstat(&file)?).kind == kind {
                    true => Ok(Thing::HereClosed(file)),
                    false => Err(replaced()),
                }
            }
            Folder::There(_, dir) => Ok(Thing::ThereClosed(dir, name)),
        }
    }
}

impl Open {
    /// The file, for its attributes.
    pub(super) fn thing(&self) -> Thing<'_> {
        match self {
            Open::Here(file) => Thing::Here(file.as_fd()),
            Open::There(file) => Thing::There(file),
        }
    }
}

/// The attributes of a file that a copy keeps.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// Attributes that turn a file into more than data on its machine: setuid, setgid, capabilities.
    pub(super) privileges: bool,
}

impl Kept {
    fn has_xattr(self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        self.privileges || name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
    }
}

/// The path through which a descriptor is reached, for calls that take no descriptor of this kind.
fn by_proc(file: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl Thing<'_> {
    fn chown(&self, uid: u32, gid: u32) -> Result<()> {
        let (user, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self {
            Thing::Here(file) => Ok(rustix::fs::fchown(file, user, group)?),
            Thing::HereClosed(file) => Ok(rustix::fs::chownat(file, "", user, group, AtFlags::EMPTY_PATH)?),
            Thing::There(file) => Ok(file.chown(Some(uid), Some(gid))?),
            Thing::ThereClosed(dir, name) => Ok(dir.lchown(name, Some(uid), Some(gid))?),
        }
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<()> {
        match self {
            Thing::Here(file) => Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?),
            Thing::HereClosed(file) => Ok(fs::set_permissions(by_proc(file), Permissions::from_mode(mode))?),
            Thing::There(file) => Ok(file.set_mode(mode)?),
            Thing::ThereClosed(dir, name) => Ok(dir.set_mode_nofollow(name, mode)?),
        }
    }

    pub(super) fn set_times(&self, like: &Found) -> Result<()> {
        let times = Timestamps {
            last_access: timespec(like.accessed),
            last_modification: timespec(like.modified),
        };
        let there = || FileTimes::new().set_accessed(like.accessed).set_modified(like.modified);
        match self {
            Thing::Here(file) => Ok(rustix::fs::futimens(file, &times)?),
            Thing::HereClosed(file) => Ok(rustix::fs::utimensat(file, "", &times, AtFlags::EMPTY_PATH)?),
            Thing::There(file) => Ok(file.set_times(there())?),
            Thing::ThereClosed(dir, name) => Ok(dir.set_times_nofollow(name, there())?),
        }
    }

    /// Gives it owner, permissions, extended attributes and times of `from`, which `like` describes. Omits attributes
    /// that only root may set if the user may not.
    pub(super) fn preserve(&self, from: &Thing<'_>, like: &Found, kept: Kept) -> Result<()> {
        let mode = self.set_owner(like, kept)?;
        for name in from.xattr_names()?.into_iter().filter(|name| kept.has_xattr(name)) {
            let set = from.xattr(&name).and_then(|value| self.set_xattr(&name, &value));
            optional(&name, set)?;
        }
        self.set_final_mode(like, mode)?;
        self.set_times(like)
    }

    /// The same with these extended attributes; removes others, but for those that are `left`.
    pub(super) fn set_all(
        &self,
        like: &Found,
        xattrs: &[(OsString, Vec<u8>)],
        left: impl Fn(&OsStr) -> bool,
        kept: Kept,
    ) -> Result<()> {
        let is_wanted = |name: &OsString| left(name) || xattrs.iter().any(|(wanted, _)| wanted == name);
        for name in self.xattr_names()?.iter().filter(|name| !is_wanted(name)) {
            optional(name, self.remove_xattr(name))?;
        }
        let mode = self.set_owner(like, kept)?;
        for (name, value) in xattrs.iter().filter(|(name, _)| kept.has_xattr(name)) {
            optional(name, self.set_xattr(name, value))?;
        }
        self.set_final_mode(like, mode)?;
        self.set_times(like)
    }

    /// Sets the owner if the user may do that; returns the permissions for it, which come after extended attributes:
    /// those need the permission to write.
    fn set_owner(&self, like: &Found, kept: Kept) -> Result<u32> {
        let is_owned = match self.chown(like.uid, like.gid) {
            Ok(()) => true,
            Err(why) if why.is_refusal() || why.is(Errno::INVAL) => false,
            Err(why) => return Err(why),
        };
        // The bits that let others act as the owner are for the right owner only.
        let has_privileges = is_owned && kept.privileges;
        let mode = like.mode & if has_privileges { 0o7777 } else { 0o1777 };
        if !rustix::process::geteuid().is_root() && mode & 0o200 == 0 {
            self.set_final_mode(like, mode | 0o600)?;
        }
        Ok(mode)
    }

    fn set_final_mode(&self, like: &Found, mode: u32) -> Result<()> {
        match like.kind {
            FileKind::Symlink => Ok(()),
            _ => self.set_mode(mode),
        }
    }

    /// All extended attributes.
    pub(super) fn xattrs(&self) -> Result<Vec<(OsString, Vec<u8>)>> {
        let names = self.xattr_names()?.into_iter();
        names.map(|name| self.xattr(&name).map(|value| (name, value))).collect()
    }

    fn xattr_names(&self) -> Result<Vec<OsString>> {
        let mut names = vec![0; 1 << 16];
        let listed = match self {
            Thing::Here(file) => rustix::fs::flistxattr(file, &mut names[..]),
            Thing::HereClosed(file) => rustix::fs::listxattr(by_proc(file), &mut names[..]),
            Thing::There(file) => return Ok(file.list_xattrs()?),
            Thing::ThereClosed(dir, name) => return Ok(dir.list_xattrs_nofollow(name)?),
        };
        let len = match listed {
            Err(Errno::OPNOTSUPP) => 0,
            listed => listed?,
        };
        let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
    }

    pub(super) fn xattr(&self, name: &OsStr) -> Result<Vec<u8>> {
        let mut value = vec![0; 1 << 16];
        let len = match self {
            Thing::Here(file) => rustix::fs::fgetxattr(file, name, &mut value[..])?,
            Thing::HereClosed(file) => rustix::fs::getxattr(by_proc(file), name, &mut value[..])?,
            Thing::There(file) => return Ok(file.get_xattr(name)?),
            Thing::ThereClosed(dir, at) => return Ok(dir.get_xattr_nofollow(at, name)?),
        };
        value.truncate(len);
        Ok(value)
    }

    pub(super) fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Result<()> {
        match self {
            Thing::Here(file) => Ok(rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())?),
            Thing::HereClosed(file) => Ok(rustix::fs::setxattr(by_proc(file), name, value, XattrFlags::empty())?),
            Thing::There(file) => Ok(file.set_xattr(name, value, XattrMode::Any)?),
            Thing::ThereClosed(dir, at) => Ok(dir.set_xattr_nofollow(at, name, value, XattrMode::Any)?),
        }
    }

    pub(super) fn remove_xattr(&self, name: &OsStr) -> Result<()> {
        match self {
            Thing::Here(file) => Ok(rustix::fs::fremovexattr(file, name)?),
            Thing::HereClosed(file) => Ok(rustix::fs::removexattr(by_proc(file), name)?),
            Thing::There(file) => Ok(file.remove_xattr(name)?),
            Thing::ThereClosed(dir, at) => Ok(dir.remove_xattr_nofollow(at, name)?),
        }
    }
}

/// The result of changing an extended attribute: those of the system, users may change only sometimes.
fn optional(name: &OsStr, changed: Result<()>) -> Result<()> {
    match changed {
        Err(why) if !name.as_bytes().starts_with(b"user.") && (why.is_refusal() || is_unsupported(&why)) => Ok(()),
        Err(why) => Err(Why::new(format!("extended attribute {}: {}", name.display(), why.text))),
        Ok(()) => Ok(()),
    }
}

fn is_unsupported(why: &Why) -> bool {
    why.is(Errno::OPNOTSUPP) || why.is(Errno::NODATA)
}
