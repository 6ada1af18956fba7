//! Why a call failed.

use ferrite_vfs::FsError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine, or the connection to a server.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The way to the file: a verb, or too few copies.
    #[error(transparent)]
    Store(Box<dyn std::error::Error + Send + Sync>),
    /// The file holds something else.
    #[error("the file is no log: it is not empty, and does not begin like one")]
    NotALog,
    /// The file is empty, and no log was to be made.
    #[error("there is no log in the file: it is empty")]
    Empty,
    /// Where the log starts cannot be right.
    #[error("the log is damaged: its start, {start}, is not in the file of {size} bytes")]
    Start {
        /// What the header says.
        start: u64,
        /// The file's size.
        size: u64,
    },
    /// One append cannot be this long.
    #[error("an append of {len_bytes} bytes is too long for this log: at most {most}")]
    TooLong {
        /// What was to be appended.
        len_bytes: u64,
        /// What may be.
        most: u64,
    },
    /// The log's capacity is used up.
    #[error("the log is full: it holds {used} of {capacity} bytes")]
    Full {
        /// Bytes that it holds, with what frames them.
        used: u64,
        /// Bytes that it may hold.
        capacity: u64,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
