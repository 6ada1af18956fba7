//! Why a cluster did not start, and the decision to skip a test or to fail it.

use std::io::Write;
use std::path::PathBuf;

use thiserror::Error;

/// Why a cluster, or one of its servers, is not there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine lacks a program. Tests are skipped then.
    #[error("{program} is not installed; the Debian package {package} has it (scripts/setup-debian.sh test)")]
    Missing {
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// A server or a command failed, or took longer than its limit.
    #[error("{what}: {cause}\n{log}")]
    Failed {
        /// The server or the command.
        what: String,
        /// The reason.
        cause: String,
        /// The end of its log.
        log: String,
    },
    /// A file, a folder or a process could not be made.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file, the folder or the program.
        path: PathBuf,
        /// The system's reason.
        cause: String,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, cause: &std::io::Error) -> Error {
        Error::Io {
            path: path.into(),
            cause: cause.to_string(),
        }
    }
}

/// The cluster, or `None` after a line that says that the test is skipped, and why.
///
/// # Panics
///
/// If the programs are installed and the cluster did not start all the same.
pub fn or_skip<T>(started: Result<T>) -> Option<T> {
    match started {
        Ok(cluster) => Some(cluster),
        Err(why @ Error::Missing { .. }) => {
            // Not by a macro: the test harness would keep its output, since the test passes.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
