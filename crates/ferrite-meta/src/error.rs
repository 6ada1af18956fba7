//! Errors of a metadata store.
//!
//! Invariant: an error that is not fatal has changed nothing, and the transaction that met it may only be dropped or
//! rolled back to a savepoint.

use std::time::Duration;

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
    /// The place has a store already.
    #[error("there is a store of metadata already ({0}); remove it, or name another place")]
    Exists(String),
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
    /// Another server owns the shard, and its time runs.
    #[error("{owner}{} owns this volume, for {} ms more; ask there, or wait", in_brackets(.address), left.as_millis())]
    Owned {
        /// The name of the owner's process.
        owner: String,
        /// Where clients reach it; may be empty.
        address: String,
        /// Until another server may take it, unless the owner prolongs its time.
        left: Duration,
    },
    /// Another server has taken the shard since.
    #[error("another server owns this volume since epoch {epoch}; this one answers no longer")]
    Lost {
        /// The epoch of the other's tenure, or of one between.
        epoch: u64,
    },
    /// The owner could not prolong its time. It answers again if it can, and no other has taken the shard.
    #[error("this server could not prolong its ownership of the volume, so it does not answer: {0}")]
    Expired(String),
    /// The database could not be reached in time, and nothing was sent.
    #[error("the database of the metadata cannot be reached ({0}); start it, or mend the way to it")]
    Unreachable(String),
    /// The database did not say in time whether it has applied a batch.
    #[error("the database of the metadata did not confirm a commit, which may be there or not: {0}")]
    Unknown(String),
    /// The database has lost what it had acknowledged.
    #[error(
        "the database of the metadata has lost commits: it is at {has}, and had confirmed {wanted}; do not use it: \
         restore it, or promote a standby that has them"
    )]
    WentBack {
        /// The last batch that it has.
        has: u64,
        /// The last batch that it had confirmed.
        wanted: u64,
    },
}

/// An address after a name, if there is one.
fn in_brackets(address: &str) -> String {
    match address {
        "" => String::new(),
        address => format!(" ({address})"),
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the store cannot be trusted any more: it is damaged, or the outcome of the last commit is unknown.
    /// Opening it again shows.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Error::Corruption(_) | Error::Io(_) | Error::Lost { .. } | Error::Unknown(_) | Error::WentBack { .. }
        )
    }
}

impl From<Error> for FsError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoSpace(_) => FsError::NoSpace(SpaceOf::Blocks),
            Error::Corruption(_) => FsError::damaged(None, error.to_string()),
            Error::Owned { address, .. } => FsError::NotOwner { address },
            Error::Lost { .. } | Error::Expired(_) => FsError::NotOwner { address: String::new() },
            error => FsError::Io(error.to_string()),
        }
    }
}
