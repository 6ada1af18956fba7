//! Conversion between the engine's types and FUSE's: errors, and the modes of open files. The only place of the mount
//! that turns an engine's error into an errno.

use ferrite_vfs::{FsError, OpenMode, SpaceOf};
use fuser::{Errno, OpenAccMode, OpenFlags};

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
