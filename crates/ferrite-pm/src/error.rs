//! Why a pool's medium cannot be used, or stopped working.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// An error of the medium.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PmError {
    /// The operating system refused.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another process has the pool open.
    #[error(
        "{path}: in use by {by}, which has it open; close it there, or end that process",
        path = path.display()
    )]
    InUse {
        /// The pool.
        path: PathBuf,
        /// The holder, as far as known.
        by: String,
        /// The process that has it, if it is visible.
        process: Option<u32>,
    },
    /// It cannot hold a pool.
    #[error("{path}: {why}", path = path.display())]
    Unsuitable {
        /// The path.
        path: PathBuf,
        /// The defect, and the remedy.
        why: String,
    },
    /// No memory for a region.
    #[error("cannot map {len_bytes} bytes of memory: {source}")]
    NoMemory {
        /// The requested size.
        len_bytes: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The medium failed earlier; nothing read from it since can be trusted.
    #[error("the medium failed: {0}")]
    Poisoned(String),
}

impl PmError {
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        PmError::Io {
            action,
            path: path.to_path_buf(),
            source: source.into(),
        }
    }
}
