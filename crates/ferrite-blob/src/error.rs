//! Why a blob store refuses.

use ferrite_vfs::{FsError, SpaceOf};
use thiserror::Error;

/// Why a blob store refuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no blob of this number.
    #[error("there is no such blob")]
    NotFound,
    /// There is a blob of this number.
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
        /// Which.
        device: String,
        /// What was done.
        action: &'static str,
        /// The system's word for it.
        cause: String,
    },
    /// The store stopped after a failure that left unknown what is on the device.
    #[error("the data store takes no more changes after a failure: {0}; open it again")]
    Stopped(String),
    /// What is on the device cannot be right.
    #[error("the data store is damaged: {0}")]
    Damaged(String),
    /// Somebody else uses the device.
    #[error("{device}: in use by {by}; {mend}")]
    InUse {
        /// Which.
        device: String,
        /// By whom, as far as that is known.
        by: String,
        /// What to do about it.
        mend: &'static str,
    },
    /// The device cannot be used as this store.
    #[error("{0}")]
    Refused(String),
}

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// There is no such blob.
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
