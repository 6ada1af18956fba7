//! The end of a mount's daemon on a signal: clean, even while files are in use.
//!
//! Contents: the thread that waits for signals. It asks the kernel to unmount. Programs with open files get [`GRACE`]
//! to close them, and do so if they received the signal at the same time. Then the thread cuts the connection, their
//! calls fail from then on, and the daemon closes the pool. No operation that returned is lost; stores to shared
//! mappings are written out before.
//!
//! Invariant: nothing here waits for a server that does not answer. Such a server must not keep the daemon alive: the
//! daemon gives up the data to be written out to it, and the calls that wait for it. So the daemon of a mount whose
//! server is away ends within [`GRACE`] plus the moment that closing takes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ferrite::volume::Volume;
use ferrite_fuse::Unmounter;
use ferrite_vfs::Waits;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Failure;
use super::freeze_guard::FreezeGuard;

/// How long users of a mount may take to close their files.
const GRACE: Duration = Duration::from_secs(3);
/// How often the unmount is retried meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How long the volume must have been idle before all of the kernel's write-out has arrived.
const QUIET: Duration = Duration::from_millis(300);

/// How long a server that seems to be up may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(300);

/// How long the write-out to a server may take: a little longer than it does if the server answers.
const WRITE_OUT_MAX: Duration = Duration::from_secs(4);

/// Starts the thread, for `volume` mounted on `dir`.
pub(crate) fn end_on_signal(
    unmounter: Unmounter,
    dir: PathBuf,
    volume: Arc<dyn Volume>,
    is_remote: bool,
    freeze_guard: FreezeGuard,
) -> Result<(), Failure> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            tracing::info!(signal, "received a signal to end");
            // Otherwise requests held back by a freeze would be cut off.
            let _ = freeze_guard.thaw(None);
            end(&unmounter, &dir, &volume, is_remote);
        }
    })?;
    Ok(())
}

fn end(unmounter: &Unmounter, dir: &Path, volume: &Arc<dyn Volume>, is_remote: bool) {
    let unmounted = match is_remote {
        true => unmount_from_server(unmounter, || answers(&**volume)),
        false => unmount(unmounter),
    };
    let Err(error) = unmounted else { return };
    tracing::warn!(%error, "still in use; cutting off its users");
    let is_cut_off = match is_remote {
        false => part(|| write_out(dir, &**volume), || unmounter.cut_off()),
        true if !answers(&**volume) => part(|| Err(ErrorKind::NotConnected.into()), || unmounter.cut_off()),
        true => {
            let (dir, volume) = (dir.to_path_buf(), Arc::clone(volume));
            let write_out = move || write_out(&dir, &*volume);
            part(|| in_time(WRITE_OUT_MAX, write_out), || unmounter.cut_off())
        }
    };
    if is_remote && is_cut_off {
        // Requests that wait for the server would keep the daemon until it is back, though no program waits for them.
        if let Err(error) = volume.close() {
            tracing::warn!(%error, "cannot leave the server");
        }
    }
}

/// Unmounts as soon as the mount has no users any more, within [`GRACE`].
fn unmount(unmounter: &Unmounter) -> std::io::Result<()> {
    let start = Instant::now();
    loop {
        match unmounter.unmount() {
            Err(_) if start.elapsed() < GRACE => std::thread::sleep(ASK_EVERY),
            ended => return ended,
        }
    }
}

/// The same for a mount of a server. The kernel may block in the unmount to write out data, so another thread has to
/// ask for it. This one waits for that thread as long as the server answers.
fn unmount_from_server(unmounter: &Unmounter, answers: impl Fn() -> bool) -> std::io::Result<()> {
    let unmounter = unmounter.clone();
    let (done, outcome) = mpsc::channel();
    std::thread::Builder::new()
        .name("unmount".into())
        .spawn(move || done.send(unmount(&unmounter)))?;
    let mut timeout = GRACE + ASK_EVERY;
    loop {
        match outcome.recv_timeout(timeout) {
            Ok(ended) => return ended,
            Err(mpsc::RecvTimeoutError::Timeout) if answers() => timeout = ASK_EVERY,
            Err(_) => return Err(ErrorKind::TimedOut.into()),
        }
    }
}

/// Whether the server answers.
fn answers(volume: &dyn Volume) -> bool {
    let ctx = ferrite_vfs::SYSTEM.clone().waiting(Waits::within(ANSWERS_WITHIN));
    volume.fs().statfs(&ctx).is_ok()
}

/// The result of `work`, or an error if it takes longer than `most`; its thread then continues.
fn in_time(most: Duration, work: impl FnOnce() -> std::io::Result<()> + Send + 'static) -> std::io::Result<()> {
    let (done, outcome) = mpsc::channel();
    std::thread::Builder::new()
        .name("write-out".into())
        .spawn(move || done.send(work()))?;
    outcome
        .recv_timeout(most)
        .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Cuts off the users after writing out as much as possible. Data that cannot be written out, or failed long ago (the
/// kernel reports an old error to the first caller that asks), is no reason to stay. Returns whether the mount has no
/// users any more.
fn part(write_out: impl FnOnce() -> std::io::Result<()>, cut_off: impl FnOnce() -> std::io::Result<()>) -> bool {
    if let Err(error) = write_out() {
        tracing::warn!(%error, "stores to shared mappings may not all have been written out");
    }
    match cut_off() {
        Ok(()) => true,
        // Another process has unmounted it, perhaps with `umount -f`, which answers no requests.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => true,
        Err(error) => {
            tracing::warn!(%error, "cannot cut off the users of the mount; the daemon ends when the mount is no longer \
            in use");
            false
        }
    }
}

/// Makes the kernel write out the data that programs stored in shared mappings. The kernel sends the requests but, for
/// FUSE, does not wait for them. So this watches the volume until it has been idle for a while, or has been busy for
/// too long.
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
    use std::io::Error;

    use super::*;

    /// A daemon that stayed would hold up the shutdown of the machine, and its pool would not be closed.
    #[test]
    fn users_are_cut_off_though_writing_out_failed() {
        for written in [Ok(()), Err(ErrorKind::StorageFull)] {
            let mut is_cut_off = false;
            let is_over = part(
                || written.map_err(Error::from),
                || {
                    is_cut_off = true;
                    Ok(())
                },
            );
            assert!(is_cut_off && is_over, "after {written:?}");
        }
    }

    /// A daemon without the right to cut off users stays to serve them.
    #[test]
    fn a_volume_is_left_only_if_nobody_uses_the_mount() {
        assert!(!part(|| Ok(()), || Err(ErrorKind::Unsupported.into())));
        assert!(part(|| Ok(()), || Err(Error::from_raw_os_error(libc::EINVAL))));
    }

    /// A server that is away answers nothing.
    #[test]
    fn writing_out_is_given_up_after_a_while() {
        assert!(in_time(WRITE_OUT_MAX, || Ok(())).is_ok());
        let (hold, held) = mpsc::channel::<()>();
        let waits = move || {
            let _ = held.recv();
            Ok(())
        };
        let given_up = in_time(Duration::from_millis(10), waits).unwrap_err();
        assert_eq!(given_up.kind(), ErrorKind::TimedOut);
        drop(hold);
    }
}
