//! Errors of a blob store.

use ferrite_vfs::{FsError, SpaceOf};
use thiserror::Error;

/// Errors of a blob store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// No blob has this number.
    #[error("there is no such blob")]
    NotFound,
    /// A blob with this number exists.
    #[error("there is such a blob already")]
    Exists,
    /// No cluster is free.
    #[error("the data store is full")]
    NoSpace,
    /// A blob lies in more pieces than its metadata can name.
    #[error("the blob is in too many pieces; copy the file, and it will be in fewer")]
    TooManyPieces,
    /// The device failed.
    #[error("{device}: {action} failed: {cause}")]
    Device {
        /// The device's name.
        device: String,
        /// The action that failed.
        action: &'static str,
        /// The system's message.
        cause: String,
    },
    /// The store stopped after a failure that left the content of the device unknown.
    #[error("the data store takes no more changes after a failure: {0}; open it again")]
    Stopped(String),
    /// The content of the device cannot be right.
    #[error("the data store is damaged: {0}")]
    Damaged(String),
    /// Another process uses the device.
    #[error("{device}: in use by {by}; {mend}")]
    InUse {
        /// The device's name.
        device: String,
        /// The user, as far as known.
        by: String,
        /// The remedy.
        mend: &'static str,
    },
    /// The device cannot be used as this store.
    #[error("{0}")]
    Refused(String),
}

/// The result of every call here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the blob does not exist.
    pub fn is_not_found(&self) -> bool {
        *self == Error::NotFound
    }
}

impl From<Error> for FsError {
    fn from(error: Error) -> FsError {
        match error {
            Error::NotFound => FsError::NotFound,
            Error::NoSpace | Error::TooManyPieces => FsError::NoSpace(SpaceOf::Blocks),
            Error::Damaged(_) => FsError::damaged(None, error.to_string()),
            _ => FsError::Io(error.to_string()),
        }
    }
}
