//! [`Metadata`] and [`FileTimes`], like those of `std::fs`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrite_vfs::{Attr, FileKind, SetAttr, SetTime, Timestamp};

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

/// Attributes of a file, including those of [`std::os::unix::fs::MetadataExt`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    /// File type.
    pub fn kind(&self) -> FileKind {
        self.0.kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.kind == FileKind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind == FileKind::File
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileKind::Symlink
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Permission bits with setuid, setgid and sticky (`07777`), without the file type.
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// The same, as the standard library's type.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.0.mode)
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// Number of names.
    pub fn nlink(&self) -> u64 {
        self.0.nlink.into()
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Device number of a device file, as encoded by `makedev(3)`.
    pub fn rdev(&self) -> u64 {
        self.0.rdev.into()
    }

    /// Space used, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// Time of the last access, as far as the pool keeps access times ([`AtimePolicy`](crate::AtimePolicy)).
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }

    /// Time of the last change of the content.
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }

    /// Time of the last change of the content, the attributes or the names.
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.ctime)
    }

    /// Creation time.
    pub fn created(&self) -> SystemTime {
        system_time(self.0.btime)
    }

    /// All attributes.
    pub fn attr(&self) -> &Attr {
        &self.0
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
