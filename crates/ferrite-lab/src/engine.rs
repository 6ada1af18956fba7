//! Whole engines on pools in anonymous memory, for the figures that need one and for `ferrite-lab bench`.

use ferrite_fs::{Engine, MkfsOptions, MountOptions};
use ferrite_pm::Region;
use ferrite_vfs::{FileKind, FileSystem, Ino, NewNode, SYSTEM};

use crate::error::LabError;
use crate::pool::{HUGE_PAGE_BYTES, touch};

/// A file that any user may create.
pub const FILE_NODE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

/// A mounted engine on a new pool of at least `bytes`, whose memory is all allocated: no page faults occur during a
/// measurement.
///
/// # Errors
/// Too little memory, or options that do not fit the size.
pub fn engine_in_memory(bytes: u64, mkfs: &MkfsOptions, mount: &MountOptions) -> Result<Engine, LabError> {
    let region = Region::anonymous(bytes.next_multiple_of(HUGE_PAGE_BYTES as u64))?;
    touch(&region);
    ferrite_fs::mkfs(&region, mkfs)?;
    Ok(Engine::mount(region, mount)?)
}

/// Makes an empty file, as root.
///
/// # Errors
/// The engine's: the name is taken, the pool is full.
pub fn new_file(engine: &Engine, dir: Ino, name: &str) -> Result<Ino, LabError> {
    Ok(engine.mknod(SYSTEM, dir, name.as_bytes(), &FILE_NODE)?.ino)
}
