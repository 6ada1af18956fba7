//! A place that a user names: a path on this machine, or one in a volume; the same calls for both. Callers reach
//! everything below it through [`super::folder`], which takes no paths.
//!
//! Invariant: nothing here follows a symbolic link at the end of a path, except [`Place::look_through`],
//! [`Place::look_for`] and [`Place::open`].

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferrite::{FallocateMode, FileKind, RenameMode};
use rustix::fs::{CWD, Timespec};
use rustix::io::Errno;

use super::{Opened, Operand, Volumes, shown};
use crate::Failure;
use crate::printable::printable;

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

    pub(super) fn is_refusal(&self) -> bool {
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

/// The attributes of an existing place.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
    /// Names of a file.
    pub(super) links: u64,
    /// Device and inode; the device of a volume is its number among the open ones.
    pub(super) identity: (u64, u64),
    pub(super) len_bytes: u64,
    pub(super) accessed: SystemTime,
    pub(super) modified: SystemTime,
    /// When its attributes last changed, if that is known.
    pub(super) changed: SystemTime,
}

impl Found {
    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The system's attributes of an open file, or of an entry of a directory.
    pub(super) fn of_stat(found: &rustix::fs::Stat) -> Found {
        let mode = found.st_mode;
        Found {
            kind: FileKind::from_mode(mode).unwrap_or(FileKind::File),
            mode: mode & 0o7777,
            uid: found.st_uid,
            gid: found.st_gid,
            rdev: found.st_rdev,
            links: found.st_nlink,
            identity: (found.st_dev, found.st_ino),
            len_bytes: u64::try_from(found.st_size).unwrap_or(0),
            accessed: time(found.st_atime, found.st_atime_nsec),
            modified: time(found.st_mtime, found.st_mtime_nsec),
            changed: time(found.st_ctime, found.st_ctime_nsec),
        }
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
            links: found.nlink(),
            identity: (found.dev(), found.ino()),
            len_bytes: found.len(),
            accessed: found.accessed().unwrap_or(SystemTime::UNIX_EPOCH),
            modified: found.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed: time(found.ctime(), u64::try_from(found.ctime_nsec()).unwrap_or(0)),
        }
    }

    pub(super) fn there(volume: &Arc<Opened>, found: &ferrite::Metadata) -> Found {
        Found {
            kind: found.file_type().kind(),
            mode: found.mode() & 0o7777,
            uid: found.uid(),
            gid: found.gid(),
            rdev: found.rdev(),
            links: found.nlink(),
            // An address in memory: no device of this machine has such a number.
            identity: (Arc::as_ptr(volume) as u64, found.ino()),
            len_bytes: found.len(),
            accessed: found.accessed().unwrap_or(SystemTime::UNIX_EPOCH),
            modified: found.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed: found.changed().unwrap_or(SystemTime::UNIX_EPOCH),
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
    /// The place that an operand names; `None` for standard input or output.
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

    /// The message of a failure here.
    pub(super) fn message(&self, why: &Why) -> String {
        self.message_at(&self.shown(), why)
    }

    /// The message of a failure at a path below this one.
    pub(super) fn message_at(&self, at: &OsStr, why: &Why) -> String {
        let hint = match self {
            Place::There { volume, .. } => volume.hint(why),
            Place::Here(_) => "",
        };
        format!("{}: {}{hint}", printable(at), why.text)
    }

    /// An entry of this directory.
    pub(super) fn join(&self, name: &OsStr) -> Place {
        self.with_path(self.path().join(name))
    }

    /// The value of an attribute that the file system makes up, of up to a page.
    pub(super) fn xattr(&self, attribute: &OsStr) -> Result<Vec<u8>> {
        match self {
            Place::Here(path) => {
                let mut text = vec![0; 4096];
                let len = rustix::fs::getxattr(path, attribute, &mut text[..])?;
                text.truncate(len);
                Ok(text)
            }
            Place::There { volume, path, .. } => Ok(volume.fs.get_xattr(path, attribute)?),
        }
    }

    /// The directory that contains this place.
    pub(super) fn parent(&self) -> Place {
        let parent = self.path().parent().filter(|path| !path.as_os_str().is_empty());
        self.with_path(parent.unwrap_or(Path::new(".")).to_path_buf())
    }

    /// Whether only a directory can have this path.
    pub(super) fn ends_in_slash(&self) -> bool {
        self.path().as_os_str().as_bytes().ends_with(b"/")
    }

    /// Attributes of this place.
    pub(super) fn look(&self) -> Result<Found> {
        match self {
            Place::Here(path) => Ok(Found::here(&fs::symlink_metadata(path)?)),
            Place::There { volume, path, .. } => Ok(Found::there(volume, &volume.fs.symlink_metadata(path)?)),
        }
    }

    /// When its attributes last changed, if that is known.
    pub(super) fn changed(&self) -> Option<SystemTime> {
        match self {
            Place::Here(path) => {
                let found = rustix::fs::lstat(path).ok()?;
                Some(time(found.st_ctime, found.st_ctime_nsec))
            }
            Place::There { volume, path, .. } => volume.fs.symlink_metadata(path).ok()?.changed().ok(),
        }
    }

    /// Attributes of the target of a symbolic link here.
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

    /// Opens a file to read it.
    pub(super) fn open(&self) -> Result<Open> {
        Ok(match self {
            Place::Here(path) => Open::Here(fs::File::open(path)?),
            Place::There { volume, path, .. } => Open::There(volume.fs.open_file(path)?),
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

    /// Renames within the volume; with `replace`, over an existing file.
    pub(super) fn rename(&self, to: &Place, replace: bool) -> Result<()> {
        match self {
            Place::Here(path) => {
                use rustix::fs::RenameFlags;
                let flags = match replace {
                    true => RenameFlags::empty(),
                    false => RenameFlags::NOREPLACE,
                };
                match rustix::fs::renameat_with(CWD, path, CWD, to.path(), flags) {
                    // Some file systems cannot refuse to replace; check before.
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
}

/// A time, as seconds, and nanoseconds that count forward.
pub(super) fn time(seconds: i64, nanos: u64) -> SystemTime {
    let whole = match u64::try_from(seconds) {
        Ok(after) => SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(after)),
        Err(_) => SystemTime::UNIX_EPOCH.checked_sub(Duration::from_secs(seconds.unsigned_abs())),
    };
    let time = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(nanos)));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(super) fn timespec(time: SystemTime) -> Timespec {
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

impl Place {
    /// Whether it is on a server, and not on this machine.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self, Place::There { volume, .. } if volume.address.is_remote())
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

    /// Makes all that was written durable.
    pub(super) fn sync(&self) -> Result<()> {
        match self {
            Open::Here(file) => Ok(file.sync_all()?),
            Open::There(file) => Ok(file.sync_all()?),
        }
    }

    pub(super) fn set_len(&self, len_bytes: u64) -> Result<()> {
        match self {
            Open::Here(file) => Ok(file.set_len(len_bytes)?),
            Open::There(file) => Ok(file.set_len(len_bytes)?),
        }
    }

    /// Frees a range, which then reads as zeros. Writes the zeros where the file system cannot do that.
    pub(super) fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        use rustix::fs::FallocateFlags;
        match self {
            Open::Here(file) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                match rustix::fs::fallocate(file, flags, offset, len_bytes) {
                    Err(Errno::OPNOTSUPP) => self.write_zeros(offset, len_bytes),
                    punched => Ok(punched?),
                }
            }
            Open::There(file) => Ok(file.allocate(FallocateMode::PunchHole, offset, len_bytes)?),
        }
    }

    fn write_zeros(&self, mut offset: u64, len_bytes: u64) -> Result<()> {
        let zeros = [0; 1 << 16];
        // Behind the end there is nothing but zeros.
        let end = offset.saturating_add(len_bytes).min(self.look()?);
        while offset < end {
            let len = (end - offset).min(zeros.len() as u64);
            self.write_all_at(&zeros[..len as usize], offset)?;
            offset += len;
        }
        Ok(())
    }

    /// Reads the next bytes of a file without a length: a pipe, a file of `/proc`.
    pub(super) fn read_next(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Open::Here(file) => Ok(io::Read::read(&mut &*file, buffer)?),
            Open::There(file) => Ok(file.read_at(buffer, offset)?),
        }
    }

    /// The range of data at or after `offset`, in a file of `len_bytes`; `None` if no data follows. If the file system
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
