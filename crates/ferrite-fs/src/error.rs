//! Why a pool cannot be made, opened or trusted. Operations on a mounted pool report [`ferrite_vfs::FsError`] instead.

use ferrite_map::MapError;
use ferrite_pm::PmError;
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};
use thiserror::Error;

/// An error of a pool as a whole.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The medium refused the access or failed.
    #[error(transparent)]
    Medium(#[from] PmError),
    /// Not a Ferrite pool.
    #[error("not a Ferrite pool: {0}; check the path, or make a pool there with `ferrite mkfs`")]
    Foreign(String),
    /// Made by a newer Ferrite.
    #[error("the pool has format version {found}, this program reads up to {supported}; use a newer Ferrite")]
    NewerVersion {
        /// Version in the superblock.
        found: u32,
        /// Newest version this program knows.
        supported: u32,
    },
    /// The pool needs features this program lacks.
    #[error("the pool uses features this program does not know (incompatible {0:#x}); use a newer Ferrite")]
    UnknownFeatures(u64),
    /// Without features that this program lacks, the pool may only be read.
    #[error(
        "the pool uses features this program does not know (read-only-compatible {0:#x}), so it must not write to it; \
         use a newer \
         Ferrite, or mount it read-only with `-o ro`"
    )]
    ReadOnlyFeatures(u64),
    /// The file is shorter than its superblock says.
    #[error(
        "the pool is truncated: its superblock says {expected_bytes} bytes, the file has {found_bytes}; restore the \
         missing part from a copy"
    )]
    Truncated {
        /// Size in the superblock.
        expected_bytes: u64,
        /// Size found.
        found_bytes: u64,
    },
    /// A structure on the medium is damaged.
    #[error("damaged pool: {0}; run `ferrite fsck` on it")]
    Damaged(String),
    /// Neither copy of the superblock is valid.
    #[error(
        "damaged pool: both copies of the superblock are damaged (the first: {first}; the second: {second}), so \
         neither a mount nor \
         `ferrite fsck` has anything to start from; restore the pool from a copy"
    )]
    NoSuperblock {
        /// The defect of the first.
        first: String,
        /// The defect of the second.
        second: String,
    },
    /// Options that cannot be met.
    #[error("{0}")]
    Options(String),
    /// Used with `durability=process` when the machine went down.
    #[error(
        "the pool was in use with durability=process when the machine restarted, so completed operations may be \
         missing; `ferrite fsck --repair` makes it sound again and accepts that, as does a mount with `-o \
         accept_power_loss`"
    )]
    PowerLost,
    /// The engine has stopped all changes.
    #[error("the pool turned read-only: {0}")]
    Failed(String),
}

impl EngineError {
    /// The defect without the remedy: for lists of findings, which give the remedy once for all.
    pub(crate) fn cause(&self) -> String {
        match self {
            EngineError::Foreign(what) | EngineError::Damaged(what) => what.clone(),
            other => other.to_string(),
        }
    }
}

impl From<MapError> for EngineError {
    fn from(error: MapError) -> Self {
        EngineError::Damaged(error.to_string())
    }
}

impl From<EngineError> for VolumeError {
    /// The engine's error stays inside, see [`VolumeError::downcast`].
    fn from(error: EngineError) -> Self {
        let (kind, errno, names_volume) = match &error {
            EngineError::Medium(medium) => match medium {
                PmError::Io { source, .. } => (VolumeErrorKind::Medium, source.raw_os_error(), true),
                PmError::InUse { by, process, .. } => {
                    let (by, process) = (by.clone(), *process);
                    (VolumeErrorKind::InUse { by, process }, None, true)
                }
                PmError::Unsuitable { .. } => (VolumeErrorKind::Invalid, None, true),
                PmError::NoMemory { source, .. } => (VolumeErrorKind::Medium, source.raw_os_error(), false),
                _ => (VolumeErrorKind::Medium, None, false),
            },
            EngineError::Foreign(_) => (VolumeErrorKind::Foreign, None, false),
            EngineError::NewerVersion { .. } | EngineError::UnknownFeatures(_) | EngineError::ReadOnlyFeatures(_) => {
                (VolumeErrorKind::Unsupported, None, false)
            }
            EngineError::Truncated { .. }
            | EngineError::Damaged(_)
            | EngineError::NoSuperblock { .. }
            | EngineError::PowerLost => (VolumeErrorKind::Damaged, None, false),
            EngineError::Options(_) => (VolumeErrorKind::Invalid, None, false),
            EngineError::Failed(_) => (VolumeErrorKind::Failed, None, false),
        };
        let error = VolumeError::new(kind, error).with_errno(errno);
        match names_volume {
            true => error.with_name_in_text(),
            false => error,
        }
    }
}
