//! The error type of every [`crate::FileSystem`] operation, and its errno (used at the edge only).

use thiserror::Error;

/// Result of a file-system operation.
pub type Result<T> = std::result::Result<T, FsError>;

/// What [`FsError::NoSpace`] says there is none of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceOf {
    /// Blocks of data.
    Blocks,
    /// Entries of the mapping.
    MapEntries,
    /// Inodes.
    Inodes,
    /// Names.
    Names,
    /// Room for the extended attributes of one inode.
    Attributes,
    /// Record locks.
    RecordLocks,
}

impl std::fmt::Display for SpaceOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SpaceOf::Blocks => "blocks",
            SpaceOf::MapEntries => "mapping slots",
            SpaceOf::Inodes => "inodes",
            SpaceOf::Names => "names",
            SpaceOf::Attributes => "extended attribute space",
            SpaceOf::RecordLocks => "record locks",
        })
    }
}

/// Why an operation was refused. An operation that returns an error has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FsError {
    /// No entry of that name, or a component of the path is missing.
    #[error("no such file or directory")]
    NotFound,
    /// The permission bits refuse it (`EACCES`).
    #[error("permission denied")]
    AccessDenied,
    /// Only the owner or root may do it (`EPERM`).
    #[error("operation not permitted")]
    NotPermitted,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory cannot be used here.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// No block, inode or name is left, or whatever it says.
    #[error("no space left on device: out of {0}")]
    NoSpace(SpaceOf),
    /// A name longer than 255 bytes, or a path or link target of 4096 bytes or more.
    #[error("file name too long")]
    NameTooLong,
    /// An argument makes no sense; the text says which and why.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The link count would pass its limit.
    #[error("too many links")]
    TooManyLinks,
    /// The two names are in different file systems.
    #[error("cross-device link")]
    CrossDevice,
    /// The file system is mounted read-only, or turned read-only after an error.
    #[error("read-only file system")]
    ReadOnly,
    /// No such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// A buffer is too small for the result, or an attribute's name too long.
    #[error("result too large for the buffer")]
    Range,
    /// The value of an extended attribute is longer than any may be, whatever other attributes there are.
    #[error("attribute value too long: it would not fit if it were the only one")]
    ValueTooLong,
    /// The file would grow past the largest size the format can hold.
    #[error("file too large")]
    FileTooBig,
    /// No data or hole at or after the offset (`ENXIO`), or no such device.
    #[error("no such device or address")]
    NoSuchAddress,
    /// This engine or medium cannot do it.
    #[error("operation not supported: {0}")]
    NotSupported(&'static str),
    /// More symbolic links than a path may hold, or a link where none may be followed.
    #[error("too many levels of symbolic links")]
    Loop,
    /// In use.
    #[error("resource busy")]
    Busy,
    /// The handle is not open for this.
    #[error("bad file descriptor")]
    BadHandle,
    /// A lock is held by someone else.
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// Waiting for the lock would never end.
    #[error("resource deadlock avoided")]
    Deadlock,
    /// The inode is gone, and its number may belong to another file now.
    #[error("stale file handle")]
    Stale,
    /// The medium or a structure on it is damaged; the text names it. Nothing wrong was returned.
    #[error("input/output error: {0}")]
    Io(String),
}

impl FsError {
    /// The errno a front end reports.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotFound => libc::ENOENT,
            FsError::AccessDenied => libc::EACCES,
            FsError::NotPermitted => libc::EPERM,
            FsError::Exists => libc::EEXIST,
            FsError::NotDirectory => libc::ENOTDIR,
            FsError::IsDirectory => libc::EISDIR,
            FsError::NotEmpty => libc::ENOTEMPTY,
            FsError::NoSpace(_) => libc::ENOSPC,
            FsError::NameTooLong => libc::ENAMETOOLONG,
            FsError::Invalid(_) => libc::EINVAL,
            FsError::TooManyLinks => libc::EMLINK,
            FsError::CrossDevice => libc::EXDEV,
            FsError::ReadOnly => libc::EROFS,
            FsError::NoAttribute => libc::ENODATA,
            FsError::Range => libc::ERANGE,
            FsError::ValueTooLong => libc::E2BIG,
            FsError::FileTooBig => libc::EFBIG,
            FsError::NoSuchAddress => libc::ENXIO,
            FsError::NotSupported(_) => libc::EOPNOTSUPP,
            FsError::Loop => libc::ELOOP,
            FsError::Busy => libc::EBUSY,
            FsError::BadHandle => libc::EBADF,
            FsError::WouldBlock => libc::EAGAIN,
            FsError::Deadlock => libc::EDEADLK,
            FsError::Stale => libc::ESTALE,
            FsError::Io(_) => libc::EIO,
        }
    }
}

impl From<FsError> for std::io::Error {
    fn from(error: FsError) -> Self {
        std::io::Error::from_raw_os_error(error.errno())
    }
}
