//! Mounts whose daemon was killed: detecting and replacing them.

use std::path::Path;
use std::process::Command;

use rustix::io::Errno;

use super::mounts::{MountPoint, with_path};
use super::{FAILED, Failure, control};

/// Whether a mount is no longer served because its daemon was killed. A daemon that listens is not queried, because it
/// may be slow; attributes would prove nothing, because the kernel caches them.
pub(crate) fn is_dead(mount: &MountPoint) -> bool {
    control::process_of(mount).is_none() && rustix::fs::statvfs(&mount.dir).err() == Some(Errno::NOTCONN)
}

/// Removes dead mounts of ours from a directory: their daemons were killed, so they are unusable.
pub(crate) fn clear_dead(dir: &Path) -> Result<(), Failure> {
    while let Some(mount) = with_path(dir) {
        if !is_dead(&mount) {
            break;
        }
        tracing::info!(dir = %dir.display(), pool = %mount.pool.display(), "replacing a dead mount");
        // Lazily: programs may have files open there, which are just as dead.
        let (program, words) = match rustix::process::geteuid().is_root() {
            true => ("umount", &["-l"][..]),
            false => ("fusermount3", &["-u", "-z"][..]),
        };
        let status = Command::new(program).args(words).arg("--").arg(dir).status()?;
        if !status.success() {
            let text = format!("{}: a mount whose daemon died could not be unmounted", dir.display());
            return Err(Failure::new(FAILED, text));
        }
    }
    Ok(())
}
