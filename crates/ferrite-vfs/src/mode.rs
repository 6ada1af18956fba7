//! The bits of a mode that rules look at, and the permissions that an access check asks for. Callers outside the crate
//! find them in [`crate::posix`].

/// The file runs with its owner's rights.
pub const S_ISUID: u32 = 0o4000;
/// The file runs with its group's rights; of a directory: new entries get its group.
pub const S_ISGID: u32 = 0o2000;
pub(crate) const S_ISVTX: u32 = 0o1000;
pub(crate) const S_IRWXG: u32 = 0o070;
pub(crate) const S_IXGRP: u32 = 0o010;

/// The permissions that an access check asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Read the content, or list the directory.
    pub read: bool,
    /// Change the content, or the directory's entries.
    pub write: bool,
    /// Execute, or search the directory.
    pub exec: bool,
}

impl Access {
    /// Reading.
    pub const READ: Access = Access {
        read: true,
        write: false,
        exec: false,
    };
    /// Writing.
    pub const WRITE: Access = Access {
        read: false,
        write: true,
        exec: false,
    };
    /// Executing or searching.
    pub const EXEC: Access = Access {
        read: false,
        write: false,
        exec: true,
    };
    /// Changing a directory's entries.
    pub const WRITE_EXEC: Access = Access {
        read: false,
        write: true,
        exec: true,
    };

    /// As the bits of a mode: read 4, write 2, execute 1.
    pub(crate) fn bits(self) -> u32 {
        u32::from(self.read) * 4 + u32::from(self.write) * 2 + u32::from(self.exec)
    }
}
