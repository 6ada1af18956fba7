//! Why a store of metadata refused.
//!
//! Invariant: an error that is not fatal has changed nothing, and the transaction that met it may only be dropped or
//! rolled back to a savepoint.

use ferrite_vfs::{FsError, SpaceOf};
use thiserror::Error;

/// Why a store refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Transactions wait for each other in a circle; this one was chosen to give up. Whoever keeps the lock order of
    /// [`MetaStore`](crate::MetaStore) does not see it.
    #[error("transactions on metadata wait for each other; drop this one, and begin again")]
    Deadlock,
    /// Another transaction kept a lock for longer than the time-out.
    #[error("a transaction on metadata kept a lock for too long; drop this one, and begin again")]
    Busy,
    /// The place is full. Transactions that delete may still succeed.
    #[error("the store of metadata is full ({0}); delete something, or give it more space")]
    NoSpace(String),
    /// There is no store at the place, and none was to be created.
    #[error("there is no store of metadata ({0}); create it first, or name the place where it is")]
    Missing(String),
    /// Somebody has the store open.
    #[error("the store of metadata is in use ({0}); close it there first")]
    InUse(String),
    /// A call that makes no sense, such as a rollback without a savepoint.
    #[error("the store of metadata was asked for what it cannot do: {0}")]
    Invalid(String),
    /// What was read is not what was written.
    #[error("the store of metadata is damaged: {0}")]
    Corruption(String),
    /// The device or file system below refused.
    #[error("the store of metadata takes no more changes until it is opened again: {0}")]
    Io(String),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the store cannot be trusted any more: what it holds is damaged, or nobody knows whether the last commit
    /// is there. Opening it again shows.
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
