//! Mounts whose daemon was killed: detecting and replacing them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::mounts::{MountPoint, with_path};
use super::{FAILED, Failure, control};

/// How long a daemon that was killed may take to end.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a mount is no longer served because its daemon was killed. A daemon that listens is not queried, because it
/// may be slow; attributes would prove nothing, because the kernel caches them. While the kernel ends the connection it
/// aborts requests; with rings that takes a while.
pub(crate) fn is_dead(mount: &MountPoint) -> bool {
    control::process_of(mount).is_none() && is_cut_off(mount)
}

/// Whether the kernel has lost its daemon. Then the daemon has ended, or is about to.
fn is_cut_off(mount: &MountPoint) -> bool {
    let ends = |error| matches!(error, Errno::NOTCONN | Errno::CONNABORTED);
    rustix::fs::statvfs(&mount.dir).is_err_and(ends)
}

/// Removes dead Ferrite mounts from a directory: their daemons were killed, so they are unusable.
pub(crate) fn clear_dead(dir: &Path) -> Result<(), Failure> {
    let start = Instant::now();
    while let Some(mount) = with_path(dir) {
        if !is_dead(&mount) {
            // A daemon that was just killed may take moments to release everything.
            if is_cut_off(&mount) && start.elapsed() < TIMEOUT {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            break;
        }
        tracing::info!(dir = %dir.display(), pool = %mount.pool.display(), "replacing a dead mount");
        // Lazily: programs may have files open there, which are dead too.
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
