//! Why a volume cannot be opened, closed or administered. Operations on its files report [`crate::FsError`] instead.

use std::error::Error;
use std::fmt;

/// The kind of an error, for callers that act on it. The list is closed: engines map their errors onto it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeErrorKind {
    /// Another process has it open.
    InUse {
        /// The holder, as far as known.
        by: String,
        /// The process, if it is on this machine and visible.
        process: Option<u32>,
    },
    /// The medium or the connection refused the access, or failed.
    Medium,
    /// The options or the address cannot be met.
    Invalid,
    /// The medium holds something else, or nothing.
    Foreign,
    /// This build lacks what it needs: the engine, the version of the format, a feature.
    Unsupported,
    /// It is damaged, or may have lost completed operations.
    Damaged,
    /// Changes were stopped after a failure.
    Failed,
}

/// An error of a volume as a whole. Its text is the engine's: the cause and the remedy.
#[derive(Debug)]
pub struct VolumeError {
    kind: VolumeErrorKind,
    errno: Option<i32>,
    names_volume: bool,
    cause: Box<dyn Error + Send + Sync>,
}

impl VolumeError {
    /// An error of `kind` with the engine's own error as the cause.
    pub fn new(kind: VolumeErrorKind, cause: impl Into<Box<dyn Error + Send + Sync>>) -> VolumeError {
        VolumeError {
            kind,
            errno: None,
            names_volume: false,
            cause: cause.into(),
        }
    }

    /// Adds the error number, if the operating system gave one.
    #[must_use]
    pub fn with_errno(self, errno: Option<i32>) -> VolumeError {
        VolumeError { errno, ..self }
    }

    /// Records that the text begins with the name of the volume, so that no caller adds it.
    #[must_use]
    pub fn with_name_in_text(self) -> VolumeError {
        VolumeError {
            names_volume: true,
            ..self
        }
    }

    /// The kind of the error.
    pub fn kind(&self) -> &VolumeErrorKind {
        &self.kind
    }

    /// The error number, as in `errno(3)`, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.errno
    }

    /// Whether the text begins with the name of the volume.
    pub fn names_volume(&self) -> bool {
        self.names_volume
    }

    /// The engine's own error, for callers who know which engine they opened; `self` if it is of another type.
    pub fn downcast<E: Error + 'static>(self) -> Result<E, VolumeError> {
        match self.cause.downcast::<E>() {
            Ok(cause) => Ok(*cause),
            Err(cause) => Err(VolumeError { cause, ..self }),
        }
    }
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl Error for VolumeError {
    /// That of the cause, whose text is this error's.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_comes_back_as_what_it_was_and_nothing_else() {
        let refused = || std::io::Error::from_raw_os_error(libc::EPERM);
        let error = VolumeError::new(VolumeErrorKind::Medium, refused()).with_errno(Some(libc::EPERM));
        assert_eq!(error.to_string(), refused().to_string());
        let error = error.downcast::<crate::FsError>().unwrap_err();
        assert_eq!(
            (error.kind(), error.raw_os_error()),
            (&VolumeErrorKind::Medium, Some(libc::EPERM))
        );
        let cause: std::io::Error = error.downcast().unwrap();
        assert_eq!(cause.raw_os_error(), Some(libc::EPERM));
    }
}
