//! Errors of a metadata store.
//!
//! Invariant: an error that is not fatal has changed nothing, and the transaction that met it may only be dropped or
//! rolled back to a savepoint.

use ferrite_vfs::{FsError, SpaceOf};
use thiserror::Error;

/// Errors of a metadata store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Transactions wait for each other in a cycle; this one was chosen to give up. A caller that keeps the lock order
    /// of [`MetaStore`](crate::MetaStore) never sees it.
    #[error("transactions on metadata wait for each other; drop this one, and begin again")]
    Deadlock,
    /// Another transaction kept a lock for longer than the timeout.
    #[error("a transaction on metadata kept a lock for too long; drop this one, and begin again")]
    Busy,
    /// The place is full. Transactions that delete may still succeed.
    #[error("the store of metadata is full ({0}); delete something, or give it more space")]
    NoSpace(String),
    /// The place has no store, and none was to be created.
    #[error("there is no store of metadata ({0}); create it first, or name the place where it is")]
    Missing(String),
    /// The store is open elsewhere.
    #[error("the store of metadata is in use ({0}); close it there first")]
    InUse(String),
    /// A call that makes no sense, such as a rollback without a savepoint.
    #[error("the store of metadata was asked for what it cannot do: {0}")]
    Invalid(String),
    /// The data read differs from the data written.
    #[error("the store of metadata is damaged: {0}")]
    Corruption(String),
    /// The device or file system below refused.
    #[error("the store of metadata takes no more changes until it is opened again: {0}")]
    Io(String),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the store cannot be trusted any more: it is damaged, or the outcome of the last commit is unknown.
    /// Opening it again shows.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Error::Corruption(_) | Error::Io(_))
    }
}

impl From<Error> for FsError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoSpace(_) => FsError::NoSpace(SpaceOf::Blocks),
            Error::Corruption(_) => FsError::damaged(None, error.to_string()),
            error => FsError::Io(error.to_string()),
        }
    }
}
