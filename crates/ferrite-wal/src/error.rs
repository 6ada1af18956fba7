//! Errors of a log.

use thiserror::Error;

/// Errors of a log.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no space until the head moves.
    #[error("the log is full")]
    Full,
    /// The device failed, now or before; nothing is appended any more.
    #[error("{0}")]
    Failed(String),
    /// The device holds something else.
    #[error("{0}")]
    Refused(String),
    /// Two devices have different logs of the same owner, either of which may be the one that is wanted.
    #[error("{0}")]
    Conflict(String),
    /// The content of the device cannot be right.
    #[error("{0}")]
    Damaged(String),
}

/// The result of every call here.
pub type Result<T> = std::result::Result<T, Error>;
