//! [`Error`]: which operation failed, on which path, and why.
//!
//! Invariant: an error with an errno keeps it, here and in the [`io::Error`] made of it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ferrite_fs::EngineError;
use ferrite_pm::PmError;
use ferrite_vfs::FsError;
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

use crate::own::Forked;

/// Result of this library's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The file system refused the operation, which has changed nothing.
    #[error(transparent)]
    Operation(#[from] FsError),
    /// A pool cannot be created, opened or closed.
    #[error(transparent)]
    Pool(#[from] EngineError),
    /// Another volume cannot be opened or closed, or its address has no meaning here.
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
    /// There is not enough memory for the content of a file.
    #[error("not enough memory for its {len_bytes} bytes; read it in parts")]
    NoMemory {
        /// Length of the file.
        len_bytes: u64,
    },
}

impl From<Forked> for Cause {
    fn from(_: Forked) -> Self {
        Cause::Forked
    }
}

impl From<PmError> for Cause {
    fn from(error: PmError) -> Self {
        Cause::Pool(error.into())
    }
}

impl From<VolumeError> for Cause {
    fn from(error: VolumeError) -> Self {
        match error.downcast() {
            Ok(error) => Cause::Pool(error),
            Err(error) => Cause::Volume(error),
        }
    }
}

impl Cause {
    /// The error number, as in `errno(3)`. `None` if no errno fits: a pool that is damaged or in use, a forked child,
    /// content that is not UTF-8.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Cause::Operation(error) => Some(error.errno()),
            Cause::Pool(EngineError::Medium(PmError::Io { source, .. } | PmError::NoMemory { source, .. })) => {
                source.raw_os_error()
            }
            Cause::Volume(error) => error.raw_os_error(),
            Cause::NoMemory { .. } => Some(libc::ENOMEM),
            Cause::Pool(_) | Cause::Forked | Cause::NotUtf8(_) => None,
        }
    }

    /// The corresponding [`std::io::ErrorKind`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Cause::Operation(error) => io::Error::from_raw_os_error(error.errno()).kind(),
            Cause::Pool(error) => match error {
                EngineError::Medium(PmError::InUse { .. }) => io::ErrorKind::ResourceBusy,
                EngineError::Medium(PmError::Io { source, .. } | PmError::NoMemory { source, .. }) => source.kind(),
                EngineError::Medium(PmError::Unsuitable { .. }) | EngineError::Options(_) => {
                    io::ErrorKind::InvalidInput
                }
                EngineError::NewerVersion { .. }
                | EngineError::UnknownFeatures(_)
                | EngineError::ReadOnlyFeatures(_) => io::ErrorKind::Unsupported,
                EngineError::Failed(_) => io::ErrorKind::ReadOnlyFilesystem,
                _ => io::ErrorKind::InvalidData,
            },
            Cause::Volume(error) => match (error.raw_os_error(), error.kind()) {
                (Some(errno), _) => io::Error::from_raw_os_error(errno).kind(),
                (None, VolumeErrorKind::InUse { .. }) => io::ErrorKind::ResourceBusy,
                (None, VolumeErrorKind::Medium) => io::ErrorKind::Other,
                (None, VolumeErrorKind::Invalid) => io::ErrorKind::InvalidInput,
                (None, VolumeErrorKind::Foreign | VolumeErrorKind::Damaged) => io::ErrorKind::InvalidData,
                (None, VolumeErrorKind::Unsupported) => io::ErrorKind::Unsupported,
                (None, VolumeErrorKind::Failed) => io::ErrorKind::ReadOnlyFilesystem,
            },
            Cause::Forked => io::ErrorKind::ResourceBusy,
            Cause::NotUtf8(_) => io::ErrorKind::InvalidData,
            Cause::NoMemory { .. } => io::ErrorKind::OutOfMemory,
        }
    }

    /// Whether its text already begins with the path.
    fn names_path(&self) -> bool {
        match self {
            Cause::Pool(EngineError::Medium(medium)) => matches!(
                medium,
                PmError::Io { .. } | PmError::InUse { .. } | PmError::Unsuitable { .. }
            ),
            Cause::Volume(error) => error.names_volume(),
            _ => false,
        }
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
