//! Why a call failed.

use ferrite_vfs::FsError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the engine, or of the connection to a server.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// An error on the way to the file: of a verb, or because of too few replicas.
    #[error(transparent)]
    Store(Box<dyn std::error::Error + Send + Sync>),
    /// The file holds something else.
    #[error("the file is no log: it is not empty, and does not begin like one")]
    NotALog,
    /// The file is empty, and the options do not allow making a log.
    #[error("there is no log in the file: it is empty")]
    Empty,
    /// The start of the log cannot be right.
    #[error("the log is damaged: its start, {start}, is not in the file of {size} bytes")]
    Start {
        /// The start according to the header.
        start: u64,
        /// The file's size.
        size: u64,
    },
    /// One append cannot be this long.
    #[error("an append of {len_bytes} bytes is too long for this log: at most {most}")]
    TooLong {
        /// Bytes of the append.
        len_bytes: u64,
        /// The maximum.
        most: u64,
    },
    /// The log's capacity is used up.
    #[error("the log is full: it holds {used} of {capacity} bytes")]
    Full {
        /// Bytes that it holds, including frames.
        used: u64,
        /// Bytes that it may hold.
        capacity: u64,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
