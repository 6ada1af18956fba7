//! Mounts whose daemon was killed: telling them, and taking their place.

use std::path::Path;
use std::process::Command;

use rustix::io::Errno;

use super::mounts::{MountPoint, with_path};
use super::{FAILED, Failure, control};

/// Whether nobody serves a mount any more: its daemon was killed. One that listens is not asked, since it may take its
/// time; attributes would say nothing, since the kernel has them ready.
pub(crate) fn is_dead(mount: &MountPoint) -> bool {
    control::process_of(mount).is_none() && rustix::fs::statvfs(&mount.dir).err() == Some(Errno::NOTCONN)
}

/// Takes dead mounts of ours away from a directory: their daemons were killed, so nobody can use them.
pub(crate) fn clear_dead(dir: &Path) -> Result<(), Failure> {
    while let Some(mount) = with_path(dir) {
        if !is_dead(&mount) {
            break;
        }
        tracing::info!(dir = %dir.display(), pool = %mount.pool.display(), "replacing a dead mount");
        // Lazily: programs may have files open there, which are as dead.
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
