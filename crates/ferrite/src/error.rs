//! [`Error`]: which operation failed, on which path, and why.
//!
//! Invariant: an error with an errno keeps it, here and in the [`io::Error`] made of it. Errors of engines are behind
//! types of this library: programs act on kinds and numbers, and an engine may change its own.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};
use ferrite_vfs::{FsError, SpaceOf};

use crate::fork_guard::Forked;

/// Result of this library's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file system refused an operation, which has changed nothing. Its text is that of the engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct OperationError(FsError);

impl OperationError {
    /// The error number, as in `errno(3)`: that of the Linux system call that does the same.
    pub fn raw_os_error(&self) -> i32 {
        self.0.errno()
    }

    /// The resource that ran out, if that is the reason (`ENOSPC`).
    pub fn out_of(&self) -> Option<SpaceOf> {
        match self.0 {
            FsError::NoSpace(of) => Some(of),
            _ => None,
        }
    }

    /// Whether something on the medium is damaged (`EIO`). Nothing wrong was returned.
    pub fn is_damage(&self) -> bool {
        matches!(self.0, FsError::Damaged(_))
    }
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The file system refused the operation, which has changed nothing.
    #[error(transparent)]
    Operation(OperationError),
    /// A volume cannot be created, opened or closed, or its address or options have no meaning here.
    #[error(transparent)]
    Volume(VolumeError),
    /// This process was forked from the one that opened the pool.
    #[error(
        "the pool was opened before this process was forked, and belongs to the process that opened it; use it only \
         there, open it after the fork, or share it through a mount"
    )]
    Forked,
    /// Content read as text is not valid UTF-8.
    #[error("its content is not UTF-8: {0}")]
    NotUtf8(#[source] std::str::Utf8Error),
    /// Flags of `open(2)` without effect in this library.
    #[error("the custom flags {flags:#o} have no effect here; omit them")]
    OpenFlags {
        /// The flags, as `libc` names them.
        flags: i32,
    },
    /// There is not enough memory for the content of a file.
    #[error("not enough memory for its {len_bytes} bytes; use smaller parts")]
    NoMemory {
        /// Length of the file.
        len_bytes: u64,
    },
    /// A queue has as many transfers as it may have, or no memory for the data of one more.
    #[error("the queue is full ({depth} transfers at most, 256 MiB in all); wait for completions first")]
    QueueFull {
        /// Its depth.
        depth: usize,
    },
    /// A queue cannot have this depth.
    #[error("its depth must be from 1 to {max}")]
    Depth {
        /// The largest.
        max: usize,
    },
    /// A submitted transfer has too many bytes.
    #[error("a submitted transfer has at most {max} bytes; submit it in parts")]
    TransferTooLong {
        /// The most.
        max: usize,
    },
}

impl From<Forked> for Cause {
    fn from(_: Forked) -> Self {
        Cause::Forked
    }
}

impl From<FsError> for Cause {
    fn from(error: FsError) -> Self {
        Cause::Operation(OperationError(error))
    }
}

impl From<VolumeError> for Cause {
    fn from(error: VolumeError) -> Self {
        Cause::Volume(error)
    }
}

/// The kind of an error of a volume. An operating system's error without a number keeps its own.
fn kind_of(error: &VolumeError) -> io::ErrorKind {
    if let Some(errno) = error.raw_os_error() {
        return io::Error::from_raw_os_error(errno).kind();
    }
    let system = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match error.kind() {
        VolumeErrorKind::InUse { .. } => io::ErrorKind::ResourceBusy,
        VolumeErrorKind::Medium => system.map_or(io::ErrorKind::Other, io::Error::kind),
        VolumeErrorKind::Invalid => io::ErrorKind::InvalidInput,
        VolumeErrorKind::Foreign | VolumeErrorKind::Damaged => io::ErrorKind::InvalidData,
        VolumeErrorKind::Unsupported => io::ErrorKind::Unsupported,
        VolumeErrorKind::Failed => io::ErrorKind::ReadOnlyFilesystem,
    }
}

impl Cause {
    /// The error number, as in `errno(3)`. `None` if no errno fits: a pool that is damaged or in use, a forked child,
    /// content that is not UTF-8.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Cause::Operation(error) => Some(error.raw_os_error()),
            Cause::Volume(error) => error.raw_os_error(),
            Cause::OpenFlags { .. } | Cause::Depth { .. } | Cause::TransferTooLong { .. } => Some(libc::EINVAL),
            Cause::QueueFull { .. } => Some(libc::EAGAIN),
            Cause::NoMemory { .. } => Some(libc::ENOMEM),
            Cause::Forked | Cause::NotUtf8(_) => None,
        }
    }

    /// The error number, or the closest if no errno fits; for programs in languages whose errors all have one.
    pub fn closest_os_error(&self) -> i32 {
        self.raw_os_error().unwrap_or_else(|| match self.kind() {
            io::ErrorKind::ResourceBusy => libc::EBUSY,
            io::ErrorKind::InvalidInput => libc::EINVAL,
            io::ErrorKind::InvalidData => libc::EBADMSG,
            io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
            io::ErrorKind::ReadOnlyFilesystem => libc::EROFS,
            io::ErrorKind::OutOfMemory => libc::ENOMEM,
            io::ErrorKind::NotFound => libc::ENOENT,
            io::ErrorKind::AlreadyExists => libc::EEXIST,
            io::ErrorKind::PermissionDenied => libc::EACCES,
            io::ErrorKind::TimedOut => libc::ETIMEDOUT,
            io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
            _ => libc::EIO,
        })
    }

    /// The corresponding [`std::io::ErrorKind`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Cause::Operation(error) => io::Error::from_raw_os_error(error.raw_os_error()).kind(),
            Cause::Volume(error) => kind_of(error),
            Cause::Forked => io::ErrorKind::ResourceBusy,
            Cause::NotUtf8(_) => io::ErrorKind::InvalidData,
            Cause::OpenFlags { .. } | Cause::Depth { .. } | Cause::TransferTooLong { .. } => {
                io::ErrorKind::InvalidInput
            }
            Cause::QueueFull { .. } => io::ErrorKind::WouldBlock,
            Cause::NoMemory { .. } => io::ErrorKind::OutOfMemory,
        }
    }

    /// Whether its text already begins with the path.
    fn names_path(&self) -> bool {
        matches!(self, Cause::Volume(error) if error.names_volume())
    }
}

/// Which operation failed, on which path, and why. Its text contains all three.
///
/// `?` converts it to an [`io::Error`]. An error with an errno becomes the same as in [`std::fs`],
/// [`io::Error::from_raw_os_error`], which cannot hold the path. Any other is wrapped.
pub struct Error(Box<Parts>);

struct Parts {
    action: &'static str,
    path: PathBuf,
    new_path: Option<PathBuf>,
    cause: Cause,
}

impl Error {
    /// `action` completes "cannot"; the path follows it.
    pub(crate) fn new(action: &'static str, path: impl Into<PathBuf>, cause: impl Into<Cause>) -> Error {
        Error(Box::new(Parts {
            action,
            path: path.into(),
            new_path: None,
            cause: cause.into(),
        }))
    }

    /// Adds the second path of the operation: the new name.
    pub(crate) fn with_new_path(mut self, path: PathBuf) -> Error {
        self.0.new_path = Some(path);
        self
    }

    /// The operation that failed: "rename", "create the directory".
    pub fn action(&self) -> &'static str {
        self.0.action
    }

    /// The path: that of the [`Dir`](crate::Dir) joined with the given one, or the path of the pool.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The new name, of operations that have two: a rename, a hard link.
    pub fn new_path(&self) -> Option<&Path> {
        self.0.new_path.as_deref()
    }

    /// Why the operation failed.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// As [`Cause::raw_os_error`].
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.cause.raw_os_error()
    }

    /// As [`Cause::closest_os_error`].
    pub fn closest_os_error(&self) -> i32 {
        self.0.cause.closest_os_error()
    }

    /// As [`Cause::kind`].
    pub fn kind(&self) -> io::ErrorKind {
        self.0.cause.kind()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts {
            action,
            path,
            new_path,
            cause,
        } = &*self.0;
        if cause.names_path() {
            return write!(f, "{cause}");
        }
        write!(f, "cannot {action} {}", path.display())?;
        if let Some(new_path) = new_path {
            write!(f, " to {}", new_path.display())?;
        }
        write!(f, ": {cause}")
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("action", &self.0.action)
            .field("path", &self.0.path)
            .field("new_path", &self.0.new_path)
            .field("cause", &self.0.cause)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.cause)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(error.kind(), error),
        }
    }
}
