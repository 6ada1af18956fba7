//! Errors of content stores.

use ferrite_vfs::{FsError, SpaceOf};
use thiserror::Error;

/// Errors of a content store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such blob.
    #[error("there is no such blob")]
    NotFound,
    /// There is such a blob already.
    #[error("there is such a blob already")]
    Exists,
    /// The store is full, or a blob is in more pieces than it can be. Nothing has changed.
    #[error("the data store is full")]
    NoSpace,
    /// Another server has taken over the content. The change was not made, nor will any other be.
    #[error("another server has owned the content since epoch {epoch}; open the pool there, or here again")]
    Fenced {
        /// The epoch of the newer owner, as far as the store knows it.
        epoch: u64,
    },
    /// The store did not answer. The change may have been made, be made later, or never.
    #[error("the data store did not answer, so the outcome is unknown: {0}")]
    Unknown(String),
    /// The content of the store cannot be right. The text names the place.
    #[error("the data store is damaged: {0}")]
    Damaged(String),
    /// The store failed, or refused, for the reason given.
    #[error("{0}")]
    Failed(String),
}

/// The result of calls of a content store.
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
            Error::NoSpace => FsError::NoSpace(SpaceOf::Blocks),
            Error::Damaged(_) => FsError::damaged(None, error.to_string()),
            // No token keeps it as an outcome: the request may be sent again.
            Error::Exists | Error::Fenced { .. } | Error::Unknown(_) | Error::Failed(_) => {
                FsError::Io(error.to_string())
            }
        }
    }
}

impl From<ferrite_blob::Error> for Error {
    fn from(error: ferrite_blob::Error) -> Error {
        match error {
            ferrite_blob::Error::NotFound => Error::NotFound,
            ferrite_blob::Error::Exists => Error::Exists,
            ferrite_blob::Error::NoSpace | ferrite_blob::Error::TooManyPieces => Error::NoSpace,
            ferrite_blob::Error::Damaged(what) => Error::Damaged(what),
            error => Error::Failed(error.to_string()),
        }
    }
}
