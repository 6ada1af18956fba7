//! The reasons why an experiment could not run.

use std::path::PathBuf;

use ferrite_map::MapError;
use thiserror::Error;

/// See the module's head.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// No figure has that id.
    #[error("no figure is called {0}; `ferrite-lab list` shows them")]
    UnknownFigure(String),
    /// The figure needs something that this build lacks.
    #[error("{figure}: {mend}")]
    NotInThisBuild {
        /// The figure.
        figure: String,
        /// The missing part, and how to get it.
        mend: &'static str,
    },
    /// A mapping refused.
    #[error("{structure}: {source}")]
    Map {
        /// The mapping.
        structure: &'static str,
        /// Its error.
        source: MapError,
    },
    /// The medium, usually for want of memory.
    #[error(transparent)]
    Medium(#[from] ferrite_pm::PmError),
    /// The CPU's counters.
    #[error(transparent)]
    Counters(#[from] ferrite_pm::EventError),
    /// The engine could not be made or mounted.
    #[error(transparent)]
    Engine(#[from] ferrite_fs::EngineError),
    /// A file system call failed.
    #[error("file system: {0}")]
    FileSystem(#[from] ferrite_vfs::FsError),
    /// LevelDB refused.
    #[cfg(feature = "leveldb")]
    #[error(transparent)]
    LevelDb(#[from] ferrite_leveldb::DbError),
    /// A blob store refused.
    #[cfg(feature = "nvme")]
    #[error(transparent)]
    Blob(#[from] ferrite_blob::Error),
    /// A metadata store refused.
    #[cfg(feature = "nvme")]
    #[error(transparent)]
    Meta(#[from] ferrite_meta::Error),
    /// An adapter in software failed, or the memory behind its keys.
    #[cfg(feature = "rdma")]
    #[error("RDMA: {0}")]
    Rdma(String),
    /// A measured value that cannot be right.
    #[error("{0}")]
    Wrong(String),
    /// The server cannot be reached.
    #[error("server: {0}")]
    Net(#[from] ferrite_client::ConnectError),
    /// A peer for a comparison is not available.
    #[error("{0}")]
    Peer(String),
    /// The system refused.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// A file could not be read.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A file that is not a trace.
    #[error("{path}: {source}", path = path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: ferrite_vfs::trace::TraceError,
    },
    /// A trace without writes.
    #[error(
        "{path}: a trace with no writes: nothing was written while it was recorded, or the daemon was killed before \
         it passed on its \
         lines; record it again, and end it with `ferrite umount`", path = path.display()
    )]
    NoWrites {
        /// The file.
        path: PathBuf,
    },
    /// Text that is not a result.
    #[error("these are no results of the lab: {0}")]
    Json(#[from] serde_json::Error),
}
