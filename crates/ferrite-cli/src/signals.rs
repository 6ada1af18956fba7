//! How a mount's daemon ends on a signal: cleanly, even while files are in use.
//!
//! What lives here: the thread that waits for signals. It asks the kernel to unmount. Programs with open files get
//! [`GRACE`] to close them, as they do if they were asked to end at the same time. Then the connection is cut, their
//! calls fail from then on, and the daemon closes the pool. No operation that returned is lost; stores to shared
//! mappings are written out before.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite::volume::Volume;
use ferrite_fuse::Unmounter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Failure;
use super::frost::Frost;

/// How long users of a mount may take to close their files.
const GRACE: Duration = Duration::from_secs(3);
/// How often the unmount is retried meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How long the volume must have been idle before everything that the kernel was to write out has arrived.
const QUIET: Duration = Duration::from_millis(300);

/// Starts the thread, for `volume` mounted on `dir`.
pub(crate) fn end_on_signal(
    unmounter: Unmounter,
    dir: PathBuf,
    volume: Arc<dyn Volume>,
    frost: Frost,
) -> Result<(), Failure> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            tracing::info!(signal, "received a signal to end");
            // Otherwise requests that are held back would be cut off.
            let _ = frost.thaw(None);
            end(&unmounter, &dir, &*volume);
        }
    })?;
    Ok(())
}

fn end(unmounter: &Unmounter, dir: &Path, volume: &dyn Volume) {
    let start = Instant::now();
    let error = loop {
        match unmounter.unmount() {
            Ok(()) => return,
            Err(error) if start.elapsed() >= GRACE => break error,
            Err(_) => std::thread::sleep(ASK_EVERY),
        }
    };
    tracing::warn!(%error, "still in use; cutting off its users");
    part(|| write_out(dir, volume), || unmounter.cut_off());
}

/// Cuts the users off after all that can be written out was. What fails to be, or failed long ago, as the kernel tells
/// whoever asks first, is no reason to stay.
fn part(write_out: impl FnOnce() -> std::io::Result<()>, cut_off: impl FnOnce() -> std::io::Result<()>) {
    if let Err(error) = write_out() {
        tracing::warn!(%error, "stores to shared mappings may not all have been written out");
    }
    if let Err(error) = cut_off() {
        tracing::warn!(%error, "cannot cut off the users of the mount; the daemon ends when the mount is no longer \
        in use");
    }
}

/// Makes the kernel write out what programs stored in shared mappings. The kernel sends the requests but, for FUSE,
/// does not wait for them. So this watches the volume until it has been idle for a while, or has been kept busy for too
/// long.
fn write_out(dir: &Path, volume: &dyn Volume) -> std::io::Result<()> {
    let synced = rustix::fs::syncfs(std::fs::File::open(dir)?);
    let start = Instant::now();
    let (mut seen, mut since) = (volume.activity(), start);
    while since.elapsed() < QUIET && start.elapsed() < GRACE {
        std::thread::sleep(ASK_EVERY);
        let now = volume.activity();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
    Ok(synced?)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    /// A daemon that stayed would hold up the shutdown of the machine, and its pool would not be closed.
    #[test]
    fn users_are_cut_off_though_writing_out_failed() {
        for written in [Ok(()), Err(ErrorKind::StorageFull)] {
            let mut is_cut_off = false;
            part(
                || written.map_err(Error::from),
                || {
                    is_cut_off = true;
                    Ok(())
                },
            );
            assert!(is_cut_off, "after {written:?}");
        }
    }
}
