//! Errors of pools on real media. Their texts name the thing: the pool's file, or a device.

use std::path::Path;

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
