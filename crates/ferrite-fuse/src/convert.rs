//! Conversion between the engine's types and FUSE's. The only place of the mount that turns an engine's error into an
//! errno.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrite_vfs::{Attr, FileKind, FsError, Ino, OpenMode, SetTime, SpaceOf, Timestamp};
use fuser::{Errno, FileAttr, FileType, INodeNo, OpenAccMode, OpenFlags, TimeOrNow};

/// Preferred size of an I/O request.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) errno: Errno,
    /// It lacked space of the kind that nameless files give back when they are freed.
    pub(crate) lacks_space: bool,
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused {
            errno,
            lacks_space: false,
        }
    }
}

impl From<&FsError> for Refused {
    fn from(error: &FsError) -> Refused {
        let lacks_space = match error {
            FsError::NoSpace(of) => match of {
                SpaceOf::Blocks | SpaceOf::MapEntries | SpaceOf::Inodes | SpaceOf::Names => true,
                // Of one inode, and of the locks held.
                SpaceOf::Attributes | SpaceOf::RecordLocks => false,
            },
            _ => false,
        };
        Refused {
            errno: Errno::from_i32(error.errno()),
            lacks_space,
        }
    }
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    match u64::try_from(time.0) {
        Ok(after) => UNIX_EPOCH + Duration::from_nanos(after),
        Err(_) => UNIX_EPOCH - Duration::from_nanos(time.0.unsigned_abs()),
    }
}

/// The time in a request. Before the epoch a request holds seconds below 0 and nanoseconds above them, but fuser 0.18
/// subtracts both from the epoch; here the nanoseconds are added again. `tests/posix/attributes.table` fails once fuser
/// fixes this.
fn requested(time: SystemTime) -> Timestamp {
    let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    let (seconds, nanos) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (seconds(after), after.subsec_nanos()),
        Err(before) => (-seconds(before.duration()), before.duration().subsec_nanos()),
    };
    Timestamp::new(seconds, nanos)
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(requested(time)),
    }
}

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: attr.mode as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The mode to open a file in whose pages the kernel keeps, from the flags of `open(2)`.
pub(crate) fn open_mode(flags: OpenFlags) -> OpenMode {
    // The kernel reads a page before it changes part of it in a shared mapping, so a writer also reads.
    OpenMode {
        read: true,
        write: flags.acc_mode() != OpenAccMode::O_RDONLY,
        truncate: false,
        no_atime: flags.0 & libc::O_NOATIME != 0,
    }
}

/// The permissions that the flags of `open(2)` request, [`open_mode`] aside.
pub(crate) fn requested_mode(flags: OpenFlags) -> OpenMode {
    OpenMode {
        read: flags.acc_mode() != OpenAccMode::O_WRONLY,
        truncate: flags.0 & libc::O_TRUNC != 0,
        ..open_mode(flags)
    }
}

/// The attributes that a listing returns for a name whose inode cannot be read. No file is this long: the kernel
/// returns the name, makes no inode of the rest (Linux 5.5; before, it does, but asks again at the next use), and at
/// once forgets the number, which was never pinned. That does no harm: an unreadable inode is not freed either.
pub(crate) fn unknown(ino: Ino, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: u64::MAX,
        kind: file_type(kind),
        ..absent()
    }
}

/// The reply for a name that does not exist; the kernel then caches that.
pub(crate) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_go_out_right() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -3_000_000_000_000_000_001] {
            let time = system_time(Timestamp(ns));
            let signed = match time.duration_since(UNIX_EPOCH) {
                Ok(after) => after.as_nanos() as i128,
                Err(before) => -(before.duration().as_nanos() as i128),
            };
            assert_eq!(signed, i128::from(ns));
        }
    }

    #[test]
    fn times_in_requests_are_understood() {
        // -100 s and 5 ns, as fuser passes it on.
        let time = UNIX_EPOCH - Duration::new(100, 5);
        assert_eq!(requested(time), Timestamp(-100_000_000_000 + 5));
        assert_eq!(requested(UNIX_EPOCH + Duration::new(7, 9)), Timestamp(7_000_000_009));
    }
}
