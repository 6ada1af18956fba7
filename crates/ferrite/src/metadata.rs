//! [`Metadata`], [`FileType`] and [`FileTimes`], like those of `std::fs`.

use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrite_vfs::{Attr, FileKind, SetAttr, SetTime, Timestamp};

use crate::error::Result;

fn system_time(time: Timestamp) -> SystemTime {
    match u64::try_from(time.0) {
        Ok(after) => UNIX_EPOCH + Duration::from_nanos(after),
        Err(_) => UNIX_EPOCH - Duration::from_nanos(time.0.unsigned_abs()),
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp(match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    })
}

/// Size of the blocks in which reads and writes are fastest, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// The type of a file. [`FileTypeExt`] has the types that only Unix knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileType(pub(crate) FileKind);

impl FileType {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0 == FileKind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0 == FileKind::File
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0 == FileKind::Symlink
    }

    /// The type, for a match on all that there are.
    pub fn kind(&self) -> FileKind {
        self.0
    }
}

impl FileTypeExt for FileType {
    fn is_block_device(&self) -> bool {
        self.0 == FileKind::BlockDevice
    }

    fn is_char_device(&self) -> bool {
        self.0 == FileKind::CharDevice
    }

    fn is_fifo(&self) -> bool {
        self.0 == FileKind::Fifo
    }

    fn is_socket(&self) -> bool {
        self.0 == FileKind::Socket
    }
}

/// Attributes of a file. [`MetadataExt`] has owner, group, inode number, links and all else that `stat(2)` reports; its
/// `mode` includes the type of the file, as `st_mode` does, and its `dev` is 0, because a volume is no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    /// File type.
    pub fn file_type(&self) -> FileType {
        FileType(self.0.kind)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Permission bits with setuid, setgid and sticky (`07777`), without the file type.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.0.mode)
    }

    /// Time of the last access, as far as the pool keeps access times ([`AtimePolicy`](crate::AtimePolicy)).
    ///
    /// # Errors
    /// None so far. The form is that of the standard library, here and in the calls below.
    pub fn accessed(&self) -> Result<SystemTime> {
        Ok(system_time(self.0.atime))
    }

    /// Time of the last change of the content.
    pub fn modified(&self) -> Result<SystemTime> {
        Ok(system_time(self.0.mtime))
    }

    /// Time of the last change of the content, the attributes or the names: `ctime`, which the standard library has as
    /// a number only.
    pub fn changed(&self) -> Result<SystemTime> {
        Ok(system_time(self.0.ctime))
    }

    /// Creation time. Every engine knows it.
    pub fn created(&self) -> Result<SystemTime> {
        Ok(system_time(self.0.btime))
    }

    /// Changes each time the inode number is given to a new file: together with the number, it identifies a file for
    /// ever.
    pub fn generation(&self) -> u32 {
        self.0.generation
    }
}

impl MetadataExt for Metadata {
    fn dev(&self) -> u64 {
        0
    }

    fn ino(&self) -> u64 {
        self.0.ino
    }

    fn mode(&self) -> u32 {
        self.0.kind.mode_bits() | self.0.mode
    }

    fn nlink(&self) -> u64 {
        self.0.nlink.into()
    }

    fn uid(&self) -> u32 {
        self.0.uid
    }

    fn gid(&self) -> u32 {
        self.0.gid
    }

    fn rdev(&self) -> u64 {
        self.0.rdev.into()
    }

    fn size(&self) -> u64 {
        self.0.size
    }

    fn atime(&self) -> i64 {
        self.0.atime.seconds()
    }

    fn atime_nsec(&self) -> i64 {
        self.0.atime.nanoseconds().into()
    }

    fn mtime(&self) -> i64 {
        self.0.mtime.seconds()
    }

    fn mtime_nsec(&self) -> i64 {
        self.0.mtime.nanoseconds().into()
    }

    fn ctime(&self) -> i64 {
        self.0.ctime.seconds()
    }

    fn ctime_nsec(&self) -> i64 {
        self.0.ctime.nanoseconds().into()
    }

    fn blksize(&self) -> u64 {
        BLOCK_BYTES
    }

    fn blocks(&self) -> u64 {
        self.0.blocks
    }
}

/// Times to set; the others are left unchanged.
///
/// Times are kept in nanoseconds, from 1677 to 2262; other times are clamped to this range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileTimes {
    accessed: Option<SetTime>,
    modified: Option<SetTime>,
}

impl FileTimes {
    /// Sets no time yet.
    pub fn new() -> FileTimes {
        FileTimes::default()
    }

    /// Sets both times to now. This needs only write permission, not ownership.
    pub fn now() -> FileTimes {
        FileTimes {
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::Now),
        }
    }

    /// Sets the access time.
    #[must_use]
    pub fn set_accessed(mut self, time: SystemTime) -> FileTimes {
        self.accessed = Some(SetTime::To(timestamp(time)));
        self
    }

    /// Sets the modification time.
    #[must_use]
    pub fn set_modified(mut self, time: SystemTime) -> FileTimes {
        self.modified = Some(SetTime::To(timestamp(time)));
        self
    }

    /// Sets the access time to the engine's clock at the operation.
    #[must_use]
    pub fn set_accessed_now(mut self) -> FileTimes {
        self.accessed = Some(SetTime::Now);
        self
    }

    /// Sets the modification time to the engine's clock at the operation.
    #[must_use]
    pub fn set_modified_now(mut self) -> FileTimes {
        self.modified = Some(SetTime::Now);
        self
    }

    pub(crate) fn request(self) -> SetAttr {
        SetAttr {
            atime: self.accessed,
            mtime: self.modified,
            ..SetAttr::default()
        }
    }
}

/// A change of permission bits, without the file type bits that `std`'s permissions can have.
pub(crate) fn mode_request(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode & 0o7777),
        ..SetAttr::default()
    }
}

/// A change of owner and group.
pub(crate) fn owner_request(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr {
        uid,
        gid,
        ..SetAttr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_there_and_back_and_stop_at_the_ends() {
        for ns in [0, 1, -1, i64::MAX, i64::MIN + 1, 1_700_000_000_123_456_789] {
            assert_eq!(timestamp(system_time(Timestamp(ns))), Timestamp(ns));
        }
        let beyond = Duration::from_secs(1 << 36);
        assert_eq!(timestamp(UNIX_EPOCH + beyond), Timestamp(i64::MAX));
        assert_eq!(timestamp(UNIX_EPOCH - beyond), Timestamp(i64::MIN));
    }
}
