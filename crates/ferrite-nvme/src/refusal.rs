//! Errors of pools on real media. Their texts name the thing: the pool's file, or a device.

use std::path::Path;

use ferrite_vfs::FsError;
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

/// The result of everything that concerns a pool as a whole.
pub(crate) type Result<T> = std::result::Result<T, VolumeError>;

pub(crate) fn refuse(kind: VolumeErrorKind, text: String) -> VolumeError {
    VolumeError::new(kind, text)
}

pub(crate) fn invalid(text: String) -> VolumeError {
    refuse(VolumeErrorKind::Invalid, text)
}

pub(crate) fn medium(path: &Path, error: impl std::fmt::Display) -> VolumeError {
    refuse(VolumeErrorKind::Medium, format!("{}: {error}", path.display())).with_name_in_text()
}

/// An error of the engine while a pool is made or opened.
pub(crate) fn of_fs(place: &str, error: &FsError) -> VolumeError {
    let (kind, text) = match error {
        FsError::NotFound => (
            VolumeErrorKind::Foreign,
            "there is no file system in its metadata".into(),
        ),
        FsError::ReadOnly => (
            VolumeErrorKind::Damaged,
            "it was not closed, and a look cannot put it right; open it for writing once".into(),
        ),
        FsError::Damaged { .. } => (VolumeErrorKind::Damaged, error.to_string()),
        _ => (VolumeErrorKind::Medium, error.to_string()),
    };
    refuse(kind, format!("{place}: {text}")).with_name_in_text()
}
