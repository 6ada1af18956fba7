//! The opener of pools: the PM engine as a volume.
//!
//! Contents: opening and making pools, and the engine's options, which the library passes on. Only this module and
//! [`crate::info`] name the engine.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ferrite_fs::{Engine, EngineError};
use ferrite_pm::{Access, PmError, Region};
use ferrite_vfs::volume::{Volume, VolumeError};

pub use ferrite_fs::{AtimePolicy, Durability, Mapping, MkfsOptions, MountOptions};

fn holds_nothing(pool: &Path) -> bool {
    std::fs::File::open(pool).is_ok_and(|file| ferrite_pm::blank::holds_nothing(&file))
}

/// Opens the pool at `path`. With read-only access, one that was not closed is recovered in memory, and nothing is
/// written.
pub(crate) fn open(path: &Path, options: &MountOptions) -> Result<Arc<dyn Volume>, VolumeError> {
    let access = if options.read_only {
        Access::ReadOnlyPrivate
    } else {
        Access::ReadWrite
    };
    let region = Region::open(path, access).map_err(EngineError::from)?;
    Ok(Arc::new(Engine::mount(region, options)?))
}

/// See [`crate::volume::Address::is_left_open`].
pub(crate) fn is_left_open(path: &Path) -> bool {
    Region::open(path, Access::ReadOnlyPrivate)
        .is_ok_and(|region| ferrite_fs::identify(&region).is_ok() && !ferrite_fs::is_clean(&region))
}

/// Makes a pool at `path` and opens it. Refuses a file that holds something.
pub(crate) fn create(path: &Path, size_bytes: u64, options: &MkfsOptions) -> Result<Arc<dyn Volume>, VolumeError> {
    let is_taken = |found: &std::fs::Metadata| found.is_file() && !holds_nothing(path);
    if std::fs::metadata(path).is_ok_and(|found| is_taken(&found)) {
        let text = "it is not empty; open it, or remove it first";
        let error = PmError::Io {
            action: "create the pool",
            path: path.to_path_buf(),
            source: io::Error::new(io::ErrorKind::AlreadyExists, text),
        };
        return Err(EngineError::from(error).into());
    }
    let region = ferrite_fs::create(path, size_bytes, options)?;
    Ok(Arc::new(Engine::mount(region, &MountOptions::default())?))
}
