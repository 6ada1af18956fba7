//! A place that a command reads or changes: a path on this machine, or one in a volume; the same calls for both.
//!
//! Invariant: nothing here follows a symbolic link at the end of a path, except [`Place::look_through`] and
//! [`Place::open`].

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ferrite::{FileKind, FileTimes, NewNode, RenameMode, XattrMode};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::{Opened, Operand, Volumes, shown};
use crate::Failure;

/// Why something failed, for the user.
#[derive(Debug)]
pub(super) struct Why {
    pub(super) errno: Option<i32>,
    pub(super) text: String,
}

pub(super) type Result<T, E = Why> = std::result::Result<T, E>;

impl Why {
    pub(super) fn new(text: impl Into<String>) -> Why {
        Why {
            errno: None,
            text: text.into(),
        }
    }

    pub(super) fn is(&self, errno: Errno) -> bool {
        self.errno == Some(errno.raw_os_error())
    }

    fn is_refusal(&self) -> bool {
        self.is(Errno::ACCESS) || self.is(Errno::PERM)
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Why {
        Why {
            errno: error.raw_os_error(),
            text: error.to_string(),
        }
    }
}

impl From<Errno> for Why {
    fn from(error: Errno) -> Why {
        io::Error::from(error).into()
    }
}

impl From<ferrite::Error> for Why {
    fn from(error: ferrite::Error) -> Why {
        Why {
            errno: error.raw_os_error(),
            text: error.cause().to_string(),
        }
    }
}

/// What is at a place.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
    /// Device and inode; the device of a volume is its number among those that are open.
    pub(super) identity: (u64, u64),
    accessed: SystemTime,
    modified: SystemTime,
}

impl Found {
    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    fn here(found: &fs::Metadata) -> Found {
        let kind = found.file_type();
        Found {
            kind: match () {
                () if kind.is_dir() => FileKind::Directory,
                () if kind.is_symlink() => FileKind::Symlink,
                () if kind.is_fifo() => FileKind::Fifo,
                () if kind.is_socket() => FileKind::Socket,
                () if kind.is_char_device() => FileKind::CharDevice,
                () if kind.is_block_device() => FileKind::BlockDevice,
                () => FileKind::File,
            },
            mode: found.mode() & 0o7777,
            uid: found.uid(),
            gid: found.gid(),
            rdev: found.rdev(),
            identity: (found.dev(), found.ino()),
            accessed: found.accessed().unwrap_or(SystemTime::UNIX_EPOCH),
            modified: found.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }

    fn there(volume: &Arc<Opened>, found: &ferrite::Metadata) -> Found {
        Found {
            kind: found.kind(),
            mode: found.mode(),
            uid: found.uid(),
            gid: found.gid(),
            rdev: found.rdev(),
            // An address in memory: no device of this machine has such a number.
            identity: (Arc::as_ptr(volume) as u64, found.ino()),
            accessed: found.accessed(),
            modified: found.modified(),
        }
    }
}

/// A file that is open.
pub(super) enum Open {
    Here(fs::File),
    There(ferrite::File),
}

/// See the head of this module.
#[derive(Clone)]
pub(super) enum Place {
    Here(PathBuf),
    There {
        volume: Arc<Opened>,
        prefix: OsString,
        path: PathBuf,
    },
}

impl Place {
    /// The place that an operand names; `None` for standard input and output.
    pub(super) fn of(operand: &Operand, volumes: &mut Volumes) -> std::result::Result<Option<Place>, Failure> {
        Ok(Some(match operand {
            Operand::Standard => return Ok(None),
            Operand::Here(path) => Place::Here(path.clone()),
            Operand::There { address, prefix, path } => Place::There {
                volume: volumes.open(address)?,
                prefix: prefix.clone(),
                path: path.clone(),
            },
        }))
    }

    fn with_path(&self, path: PathBuf) -> Place {
        match self {
            Place::Here(_) => Place::Here(path),
            Place::There { volume, prefix, .. } => Place::There {
                volume: Arc::clone(volume),
                prefix: prefix.clone(),
                path,
            },
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Place::Here(path) | Place::There { path, .. } => path,
        }
    }

    /// As the user wrote it.
    pub(super) fn shown(&self) -> OsString {
        match self {
            Place::Here(path) => path.clone().into(),
            Place::There { prefix, path, .. } => shown(prefix, path),
        }
    }

    /// The message of something that failed here.
    pub(super) fn message(&self, why: &Why) -> String {
        let shown = self.shown();
        let hint = match self {
            Place::There { volume, .. }
                if why.is_refusal() && volume.address.is_remote() && rustix::process::geteuid().is_root() =>
            {
                "; root of another machine is nobody to a server, unless it was started with --no-root-squash"
            }
            _ => "",
        };
        format!("{}: {}{hint}", shown.display(), why.text)
    }

    /// An entry of the directory that is here.
    pub(super) fn join(&self, name: &OsStr) -> Place {
        self.with_path(self.path().join(name))
    }

    /// The directory that this is in.
    pub(super) fn parent(&self) -> Place {
        let parent = self.path().parent().filter(|path| !path.as_os_str().is_empty());
        self.with_path(parent.unwrap_or(Path::new(".")).to_path_buf())
    }

    /// Whether the path can only be that of a directory.
    pub(super) fn ends_in_slash(&self) -> bool {
        self.path().as_os_str().as_bytes().ends_with(b"/")
    }

    /// Attributes of what is here.
    pub(super) fn look(&self) -> Result<Found> {
        match self {
            Place::Here(path) => Ok(Found::here(&fs::symlink_metadata(path)?)),
            Place::There { volume, path, .. } => Ok(Found::there(volume, &volume.fs.symlink_metadata(path)?)),
        }
    }

    /// Attributes of what a symbolic link here leads to.
    pub(super) fn look_through(&self) -> Result<Found> {
        match self {
            Place::Here(path) => Ok(Found::here(&fs::metadata(path)?)),
            Place::There { volume, path, .. } => Ok(Found::there(volume, &volume.fs.metadata(path)?)),
        }
    }

    /// The same; `None` if there is nothing.
    pub(super) fn look_for(&self) -> Result<Option<Found>> {
        match self.look_through() {
            Ok(found) => Ok(Some(found)),
            Err(why) if why.is(Errno::NOENT) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// The names in a directory.
    pub(super) fn names(&self) -> Result<Vec<OsString>> {
        let mut names: Vec<OsString> = match self {
            Place::Here(path) => fs::read_dir(path)?
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<io::Result<_>>()?,
            Place::There { volume, path, .. } => volume
                .fs
                .read_dir(path)?
                .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
                .collect::<ferrite::Result<_>>()?,
        };
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a file to read it.
    pub(super) fn open(&self) -> Result<Open> {
        Ok(match self {
            Place::Here(path) => Open::Here(fs::File::open(path)?),
            Place::There { volume, path, .. } => Open::There(volume.fs.open_file(path)?),
        })
    }

    /// Makes a file, and opens it to write it.
    pub(super) fn create_new(&self, mode: u32) -> Result<Open> {
        Ok(match self {
            Place::Here(path) => Open::Here(OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?),
            Place::There { volume, path, .. } => Open::There(
                ferrite::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(mode)
                    .open(&volume.fs, path)?,
            ),
        })
    }

    /// Whether the user may write what is here.
    pub(super) fn may_write(&self) -> bool {
        match self {
            Place::Here(path) => rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok(),
            Place::There { volume, path, .. } => {
                let write = ferrite::Access {
                    write: true,
                    ..ferrite::Access::default()
                };
                volume.fs.access(path, write).is_ok()
            }
        }
    }

    pub(super) fn create_dir(&self, mode: u32) -> Result<()> {
        match self {
            Place::Here(path) => Ok(rustix::fs::mkdir(path, rustix::fs::Mode::from_raw_mode(mode))?),
            Place::There { volume, path, .. } => Ok(volume.fs.create_dir_with(path, mode)?),
        }
    }

    pub(super) fn read_link(&self) -> Result<PathBuf> {
        match self {
            Place::Here(path) => Ok(fs::read_link(path)?),
            Place::There { volume, path, .. } => Ok(volume.fs.read_link(path)?),
        }
    }

    pub(super) fn symlink(&self, target: &Path) -> Result<()> {
        match self {
            Place::Here(path) => Ok(std::os::unix::fs::symlink(target, path)?),
            Place::There { volume, path, .. } => Ok(volume.fs.symlink(target, path)?),
        }
    }

    /// Makes a special file as `like`.
    pub(super) fn make_node(&self, like: &Found, mode: u32) -> Result<()> {
        match self {
            Place::Here(path) => {
                let kind = rustix::fs::FileType::from_raw_mode(like.kind.mode_bits());
                let mode = rustix::fs::Mode::from_raw_mode(mode);
                Ok(rustix::fs::mknodat(CWD, path, kind, mode, like.rdev)?)
            }
            Place::There { volume, path, .. } => {
                let rdev = u32::try_from(like.rdev).map_err(|_| Why::new("its device number is too large"))?;
                let node = NewNode {
                    kind: like.kind,
                    mode,
                    rdev,
                };
                Ok(volume.fs.mknod(path, &node)?)
            }
        }
    }

    pub(super) fn remove_file(&self) -> Result<()> {
        match self {
            Place::Here(path) => Ok(fs::remove_file(path)?),
            Place::There { volume, path, .. } => Ok(volume.fs.remove_file(path)?),
        }
    }

    /// Renames within the volume; with `replace`, over what is there.
    pub(super) fn rename(&self, to: &Place, replace: bool) -> Result<()> {
        match self {
            Place::Here(path) => {
                use rustix::fs::RenameFlags;
                let flags = match replace {
                    true => RenameFlags::empty(),
                    false => RenameFlags::NOREPLACE,
                };
                match rustix::fs::renameat_with(CWD, path, CWD, to.path(), flags) {
                    // Some file systems cannot refuse; then it is refused before.
                    Err(Errno::INVAL) if !replace => match to.look() {
                        Ok(_) => Err(Errno::EXIST.into()),
                        Err(_) => Ok(rustix::fs::rename(path, to.path())?),
                    },
                    renamed => Ok(renamed?),
                }
            }
            Place::There { volume, path, .. } => {
                let mode = match replace {
                    true => RenameMode::Replace,
                    false => RenameMode::NoReplace,
                };
                Ok(volume.fs.rename_with(path, to.path(), mode)?)
            }
        }
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<()> {
        match self {
            Place::Here(path) => Ok(fs::set_permissions(path, Permissions::from_mode(mode))?),
            Place::There { volume, path, .. } => Ok(volume.fs.set_mode(path, mode)?),
        }
    }

    /// Gives it owner, permissions, extended attributes and times of `from`, which `like` describes. What only
    /// root may give is left out if the user may not.
    pub(super) fn preserve(&self, from: &Place, like: &Found) -> Result<()> {
        let owned = match self {
            Place::Here(path) => std::os::unix::fs::lchown(path, Some(like.uid), Some(like.gid)).map_err(Why::from),
            Place::There { volume, path, .. } => {
                let chown = volume.fs.lchown(path, Some(like.uid), Some(like.gid));
                chown.map_err(Why::from)
            }
        };
        let is_owned = match owned {
            Ok(()) => true,
            Err(why) if why.is_refusal() || why.is(Errno::INVAL) => false,
            Err(why) => return Err(why),
        };
        if like.kind != FileKind::Symlink {
            // The bits that let others act as the owner are for the right owner only.
            self.set_mode(if is_owned { like.mode } else { like.mode & 0o1777 })?;
        }
        self.copy_xattrs(from)?;
        match self {
            Place::Here(path) => {
                let times = Timestamps {
                    last_access: timespec(like.accessed),
                    last_modification: timespec(like.modified),
                };
                Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            Place::There { volume, path, .. } => {
                let times = FileTimes::new().set_accessed(like.accessed).set_modified(like.modified);
                Ok(volume.fs.set_times_nofollow(path, times)?)
            }
        }
    }

    fn copy_xattrs(&self, from: &Place) -> Result<()> {
        for name in from.xattr_names()? {
            let set = from.xattr(&name).and_then(|value| self.set_xattr(&name, &value));
            match set {
                Ok(()) => {}
                // Those of the system are the user's to give only sometimes.
                Err(why) if !name.as_bytes().starts_with(b"user.") && (why.is_refusal() || is_unsupported(&why)) => {}
                Err(why) => return Err(Why::new(format!("extended attribute {}: {}", name.display(), why.text))),
            }
        }
        Ok(())
    }

    fn xattr_names(&self) -> Result<Vec<OsString>> {
        match self {
            Place::Here(path) => {
                let mut names = vec![0; 1 << 16];
                let len = match rustix::fs::llistxattr(path, &mut names[..]) {
                    Err(Errno::OPNOTSUPP) => 0,
                    listed => listed?,
                };
                let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
                Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
            }
            Place::There { volume, path, .. } => Ok(volume.fs.list_xattrs_nofollow(path)?),
        }
    }

    fn xattr(&self, name: &OsStr) -> Result<Vec<u8>> {
        match self {
            Place::Here(path) => {
                let mut value = vec![0; 1 << 16];
                let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
                value.truncate(len);
                Ok(value)
            }
            Place::There { volume, path, .. } => Ok(volume.fs.get_xattr_nofollow(path, name)?),
        }
    }

    fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Result<()> {
        match self {
            Place::Here(path) => Ok(rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())?),
            Place::There { volume, path, .. } => Ok(volume.fs.set_xattr_nofollow(path, name, value, XattrMode::Any)?),
        }
    }
}

fn is_unsupported(why: &Why) -> bool {
    why.is(Errno::OPNOTSUPP) || why.is(Errno::NODATA)
}

fn timespec(time: SystemTime) -> Timespec {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Timespec {
            tv_sec: after.as_secs() as i64,
            tv_nsec: after.subsec_nanos().into(),
        },
        Err(before) => {
            let before = before.duration();
            let nanos = before.subsec_nanos();
            // The nanoseconds count forward.
            Timespec {
                tv_sec: -(before.as_secs() as i64) - i64::from(nanos > 0),
                tv_nsec: if nanos > 0 { i64::from(1_000_000_000 - nanos) } else { 0 },
            }
        }
    }
}

impl Open {
    pub(super) fn look(&self) -> Result<u64> {
        Ok(match self {
            Open::Here(file) => file.metadata()?.len(),
            Open::There(file) => file.metadata()?.len(),
        })
    }

    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Open::Here(file) => Ok(file.read_at(buffer, offset)?),
            Open::There(file) => Ok(file.read_at(buffer, offset)?),
        }
    }

    pub(super) fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        match self {
            Open::Here(file) => Ok(file.write_all_at(data, offset)?),
            Open::There(file) => Ok(file.write_all_at(data, offset)?),
        }
    }

    pub(super) fn set_len(&self, len_bytes: u64) -> Result<()> {
        match self {
            Open::Here(file) => Ok(file.set_len(len_bytes)?),
            Open::There(file) => Ok(file.set_len(len_bytes)?),
        }
    }

    /// Reads what comes next, for what has no length: a pipe, a file of `/proc`.
    pub(super) fn read_next(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Open::Here(file) => Ok(io::Read::read(&mut &*file, buffer)?),
            Open::There(file) => Ok(file.read_at(buffer, offset)?),
        }
    }

    /// The range of data at or after `offset`, in a file of `len_bytes`; `None` if there is none. If the file system
    /// does not report holes, everything is data.
    pub(super) fn data_from(&self, offset: u64, len_bytes: u64) -> Option<(u64, u64)> {
        let nothing = Errno::NXIO.raw_os_error();
        let (start, end) = match self {
            Open::Here(file) => {
                let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
                    Err(Errno::NXIO) => return None,
                    other => other.unwrap_or(offset),
                };
                (start, rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)).ok())
            }
            Open::There(file) => {
                let start = match file.seek_data(offset) {
                    Err(error) if error.raw_os_error() == Some(nothing) => return None,
                    other => other.unwrap_or(offset),
                };
                (start, file.seek_hole(start).ok())
            }
        };
        let end = end.unwrap_or(len_bytes).min(len_bytes);
        (start < end).then_some((start, end))
    }
}
