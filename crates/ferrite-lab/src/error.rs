//! Why an experiment could not be run.

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
    /// The figure needs what this build was made without.
    #[error("{figure}: {mend}")]
    NotInThisBuild {
        /// Which one.
        figure: String,
        /// What is missing, and how to get it.
        mend: &'static str,
    },
    /// A mapping refused.
    #[error("{structure}: {source}")]
    Map {
        /// Which one.
        structure: &'static str,
        /// What it said.
        source: MapError,
    },
    /// The medium, usually for want of memory.
    #[error(transparent)]
    Medium(#[from] ferrite_pm::PmError),
    /// The CPU's counters.
    #[error(transparent)]
    Counters(#[from] ferrite_pm::EventError),
    /// The engine did not come up.
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
    /// An adapter in software, or what stands behind its keys.
    #[cfg(feature = "rdma")]
    #[error("RDMA: {0}")]
    Rdma(String),
    /// Something was measured that cannot be right.
    #[error("{0}")]
    Wrong(String),
    /// The server cannot be reached.
    #[error("server: {0}")]
    Net(#[from] ferrite_net::client::ConnectError),
    /// A peer that it is compared with cannot be had.
    #[error("{0}")]
    Peer(String),
    /// The system refused.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// A file could not be read.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A trace that is none.
    #[error("{path}: {source}", path = path.display())]
    Trace {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        source: ferrite_vfs::trace::TraceError,
    },
    /// A trace in which nothing is written.
    #[error(
        "{path}: a trace with no writes: nothing was written while it was recorded, or the daemon was killed before \
         it passed on its \
         lines; record it again, and end it with `ferrite umount`", path = path.display()
    )]
    NoWrites {
        /// Which one.
        path: PathBuf,
    },
    /// Results that are none.
    #[error("these are no results of the lab: {0}")]
    Json(#[from] serde_json::Error),
}
