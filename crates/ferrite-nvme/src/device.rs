//! The devices that a pool's file names: opening them, and the errors of what they hold.
//!
//! Used by `pool`, `metadata`, `salvage`, `tier` and `examination`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrite_blob::device::uring::{self, Reactor, Uring, Waiting};
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

use crate::config::{Config, Data};
use crate::refusal::{Result, refuse};

/// An error of a store, whose text names its device.
pub(crate) fn of_store(error: ferrite_blob::Error) -> VolumeError {
    let kind = match &error {
        ferrite_blob::Error::InUse { by, .. } => VolumeErrorKind::InUse {
            by: by.clone(),
            process: None,
        },
        ferrite_blob::Error::Refused(_) => VolumeErrorKind::Foreign,
        ferrite_blob::Error::Damaged(_) => VolumeErrorKind::Damaged,
        _ => VolumeErrorKind::Medium,
    };
    refuse(kind, error.to_string()).with_name_in_text()
}

pub(crate) fn random<const LEN: usize>() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    // The system has random numbers once it has started; until then this waits for them.
    while rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) != Ok(LEN) {}
    bytes
}

pub(crate) fn reactor(config: &Config) -> Result<Arc<Reactor>> {
    let waiting = match config.reactor.busy_us {
        0 => Waiting::Sleeping,
        _ => Waiting::Busy(config.reactor.busy()),
    };
    start(waiting)
}

/// A reactor for a device that is not used all the time.
#[cfg(feature = "s3")]
pub(crate) fn sleeping_reactor() -> Result<Arc<Reactor>> {
    start(Waiting::Sleeping)
}

fn start(waiting: Waiting) -> Result<Arc<Reactor>> {
    Reactor::start(waiting).map_err(|error| {
        let text = format!(
            "io_uring cannot be used ({error}); look at /proc/sys/kernel/io_uring_disabled, and at the limits of this \
             process or container"
        );
        refuse(VolumeErrorKind::Medium, text).with_errno(error.raw_os_error())
    })
}

pub(crate) fn device(data: &Data, reactor: &Arc<Reactor>, read_only: bool) -> Result<Uring> {
    let mut options = uring::Options::default();
    options.read_only = read_only;
    options.whole_pages = data.whole_pages;
    Uring::open(&data.device, reactor, &options).map_err(of_store)
}

/// The result of something that may never end, such as a look at a file whose server is away; `None` if it takes
/// longer than this. Then it has a thread until it does end.
pub(crate) fn within<T: Send + 'static>(limit: Duration, run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("ferrite-nvme-far".into());
    // Nobody waits any more if it took too long.
    let begun = thread.spawn(move || drop(done.send(run())));
    begun.ok()?;
    result.recv_timeout(limit).ok()
}

/// A device that is named by its path alone.
pub(crate) fn as_data(path: &Path) -> Data {
    Data {
        device: path.to_path_buf(),
        ..Data::default()
    }
}
