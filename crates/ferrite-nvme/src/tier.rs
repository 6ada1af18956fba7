//! The device with the log of a pool whose content is in S3: making the log, and opening it.
//!
//! It may be on two devices; what one of them has is enough. The log names the pool as its owner, so a device never
//! serves two. A pool may be opened without its log, and with another one: changes that only the first one has are
//! marked in the metadata, and errors until it comes back.
//!
//! Used by `s3`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrite_blob::device::Device;
use ferrite_blob::device::uring::{Reactor, Uring};
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};
use ferrite_wal::{Mirror, Opened, Wal};

use crate::config::{Tier, TierMode};
use crate::content_store::ChangeLog;
use crate::device::{self, as_data, of_store};
use crate::refusal::{Result, invalid, refuse};

/// How long the far device of a mirror may take to be opened, and for each answer.
pub(crate) const FAR_WITHIN: Duration = Duration::from_secs(10);

fn of_log(error: &ferrite_wal::Error) -> VolumeError {
    let kind = match error {
        ferrite_wal::Error::Refused(_) => VolumeErrorKind::Foreign,
        ferrite_wal::Error::Damaged(_) => VolumeErrorKind::Damaged,
        _ => VolumeErrorKind::Medium,
    };
    refuse(kind, error.to_string()).with_name_in_text()
}

/// Opens a device, which is made if it is a file.
fn device_of(device: &Path, size: Option<u64>, reactor: &Arc<Reactor>) -> Result<Arc<Uring>> {
    if !device.exists() {
        let place = device.display();
        let size = size.ok_or_else(|| {
            let text = format!("{place}: no such device; give `size` in `[tier]` to have a file made");
            invalid(text).with_name_in_text()
        })?;
        Uring::create(device, size).map_err(of_store)?;
    }
    device::device(&as_data(device), reactor, false).map(Arc::new)
}

/// Refuses to overwrite a device that holds something. With `force`, it is made blank.
fn clear(tier: &Path, device: &Arc<Uring>, force: bool) -> Result<()> {
    let there = match Wal::open(Arc::clone(device) as Arc<dyn Device>) {
        Ok(Opened::Blank) => return Ok(()),
        Ok(Opened::Log(_)) => format!("{}: it has the log of a pool of Ferrite", tier.display()),
        Err(ferrite_wal::Error::Refused(what)) => what,
        Err(ferrite_wal::Error::Damaged(what)) => what,
        Err(error) => return Err(of_log(&error)),
    };
    match force {
        true => Wal::erase(&**device).map_err(|error| of_log(&error)),
        false => {
            let text = format!("{there}; give --force to overwrite it");
            Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text())
        }
    }
}

/// Makes an empty log for a new pool. With `force`, a log of another pool is lost.
///
/// # Errors
/// A device holds something, unless forced; errors of the devices.
pub(crate) fn make(tier: &Tier, reactor: &Arc<Reactor>, pool: [u8; 16], force: bool) -> Result<()> {
    let near = cleared(&tier.device, tier.size, force, reactor)?;
    match tier.mirror.clone() {
        None => format(&*near, pool),
        Some(path) => {
            let (far_path, size) = (path.clone(), tier.size);
            let far = within(&path, move || {
                cleared(&far_path, size, force, &device::sleeping_reactor()?)
            });
            let mirror = Mirror::open(near, far?, pool, FAR_WITHIN);
            format(&mirror.map_err(|error| of_log(&error))?, pool)
        }
    }
}

/// Opens a device for a new log, and makes it blank.
fn cleared(path: &Path, size: Option<u64>, force: bool, reactor: &Arc<Reactor>) -> Result<Arc<Uring>> {
    let device = device_of(path, size, reactor)?;
    clear(path, &device, force)?;
    device.allocate().map_err(of_store).map(|()| device)
}

/// The result of opening a far device, whose server may be away.
fn within(path: &Path, open: impl FnOnce() -> Result<Arc<Uring>> + Send + 'static) -> Result<Arc<Uring>> {
    device::within(FAR_WITHIN, open).unwrap_or_else(|| {
        let text = format!("{}: no answer within {} s", path.display(), FAR_WITHIN.as_secs());
        Err(refuse(VolumeErrorKind::Medium, text).with_name_in_text())
    })
}

/// Makes an empty log on a device that is the pool's.
fn format(device: &dyn Device, pool: [u8; 16]) -> Result<()> {
    Wal::format(device, device::random(), pool).map_err(|error| of_log(&error))
}

/// Opens the log of a device, which gets one if it is blank.
fn open_log(device: &Arc<dyn Device>, pool: [u8; 16]) -> Result<Box<Wal>> {
    let opened = || Wal::open(Arc::clone(device)).map_err(|error| of_log(&error));
    let wal = match opened()? {
        Opened::Log(wal) => wal,
        Opened::Blank => {
            format(&**device, pool)?;
            match opened()? {
                Opened::Log(wal) => wal,
                Opened::Blank => {
                    let text = format!("{}: it does not keep what is written", device.name());
                    return Err(refuse(VolumeErrorKind::Medium, text).with_name_in_text());
                }
            }
        }
    };
    check_owner(&wal, pool).map(|()| wal)
}

fn check_owner(wal: &Wal, pool: [u8; 16]) -> Result<()> {
    match wal.owner() == pool {
        true => Ok(()),
        false => {
            let text = format!(
                "{}: it has the log of another pool; name another device in `[tier]`",
                wal.name()
            );
            Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text())
        }
    }
}

/// Opens the log of a pool. A device that is blank gets one. With a mirror, one of the two devices is enough to have
/// the changes of the log; then it is used when the other one is back. `None`: no device that is here has it, and the
/// other one may.
///
/// # Errors
/// It holds something else, or the log of another pool; it is in use; damage; errors of the device.
pub(crate) fn open(tier: &Tier, reactor: &Arc<Reactor>, pool: [u8; 16]) -> Result<Option<ChangeLog>> {
    let near = device_of(&tier.device, tier.size, reactor);
    let Some(far_path) = tier.mirror.as_deref() else {
        let near = near?;
        // A file that was made sparse needs its space from here on.
        near.allocate().map_err(of_store)?;
        let wal = open_log(&(near as Arc<dyn Device>), pool)?;
        return Ok(Some(ChangeLog::new(
            wal,
            name_of(tier),
            tier.mode() != TierMode::Through,
        )));
    };
    let far = far_device(far_path);
    let pair = Pair { tier, far_path, pool };
    match (near, far) {
        (Ok(near), Ok(far)) => match pair.both(&near, &far) {
            Ok(log) => Ok(Some(log)),
            Err(error) if matches!(error, ferrite_wal::Error::Conflict(_)) => Err(of_log(&error)),
            Err(error) => pair.either(Some(near), Some(far), of_log(&error)),
        },
        (Ok(near), Err(error)) => pair.either(Some(near), None, error),
        (Err(error), Ok(far)) if !matches!(error.kind(), VolumeErrorKind::InUse { .. }) => {
            pair.either(None, Some(far), error)
        }
        (Err(error), _) => Err(error),
    }
}

/// Opens the far device, which must be there: one that is made may be on another disk than the one that is meant, where
/// a mount is missing. Its server may be away, so this is bounded.
fn far_device(path: &Path) -> Result<Arc<Uring>> {
    let of_thread = path.to_path_buf();
    within(path, move || existing_device(&of_thread))
}

/// A device with a reactor of its own: the kernel may have whoever submits a transfer to it wait for its server.
fn existing_device(path: &Path) -> Result<Arc<Uring>> {
    if !path.exists() {
        let text = format!(
            "{}: no such file; mount what it is on, or make it, as long as the other one (truncate -s)",
            path.display()
        );
        return Err(invalid(text).with_name_in_text());
    }
    let reactor = device::sleeping_reactor()?;
    let device = device_of(path, None, &reactor)?;
    device.allocate().map_err(of_store).map(|()| device)
}

/// The two devices of a log, in the making.
#[derive(Clone, Copy)]
struct Pair<'p> {
    tier: &'p Tier,
    far_path: &'p Path,
    pool: [u8; 16],
}

impl Pair<'_> {
    fn both(self, near: &Arc<Uring>, far: &Arc<Uring>) -> ferrite_wal::Result<ChangeLog> {
        let failed = |error: ferrite_blob::Error| ferrite_wal::Error::Failed(error.to_string());
        near.allocate().map_err(failed)?;
        let of_near = Arc::clone(near) as Arc<dyn Device>;
        let mirror = Mirror::open(of_near, Arc::clone(far) as Arc<dyn Device>, self.pool, FAR_WITHIN)?;
        let mirror = Arc::new(mirror);
        let opened = || Wal::open(Arc::clone(&mirror) as Arc<dyn Device>);
        let wal = match opened()? {
            Opened::Log(wal) => wal,
            Opened::Blank => {
                Wal::format(&*mirror, device::random(), self.pool)?;
                match opened()? {
                    Opened::Log(wal) => wal,
                    Opened::Blank => {
                        let text = format!("{}: it does not keep what is written", mirror.name());
                        return Err(ferrite_wal::Error::Failed(text));
                    }
                }
            }
        };
        Ok(self.log(wal, mirror, self.far_path, true))
    }

    /// Opens the log on one device, while the other cannot be used: of two, on the one that has later changes.
    fn either(
        self,
        near: Option<Arc<Uring>>,
        far: Option<Arc<Uring>>,
        error: VolumeError,
    ) -> Result<Option<ChangeLog>> {
        let is_blank = |device: &Option<Arc<Uring>>| {
            let id = device.as_ref().map(|device| Wal::id_on(&**device));
            matches!(id, Some(Ok(None)))
        };
        let is_any_blank = is_blank(&near);
        let near = near.map(|near| self.alone(near, false)).transpose();
        let far = far.map(|far| self.alone(far, true)).transpose();
        let found = [near, far].into_iter().filter_map(|found| found.ok().flatten());
        let best = found.max_by_key(|(wal, _, is_far)| (wal.term(), !is_far));
        let what = "the log is not used without its second device; fsync waits for the bucket";
        match best {
            Some((wal, mirror, is_far)) => {
                let away = if is_far { &self.tier.device } else { self.far_path };
                tracing::warn!(device = %away.display(), %error, what);
                Ok(Some(self.log(wal, mirror, away, false)))
            }
            None if is_any_blank => {
                tracing::warn!(%error, "there is no log before both of its devices are there");
                Ok(None)
            }
            None => Err(error),
        }
    }

    fn alone(self, device: Arc<Uring>, is_far: bool) -> Result<(Box<Wal>, Arc<Mirror>, bool)> {
        let name = device.name().to_owned();
        let mirror = Mirror::alone(device, is_far, FAR_WITHIN).map_err(|error| of_log(&error))?;
        let mirror = Arc::new(mirror);
        match Wal::open(Arc::clone(&mirror) as Arc<dyn Device>).map_err(|error| of_log(&error))? {
            Opened::Log(wal) => check_owner(&wal, self.pool).map(|()| (wal, mirror, is_far)),
            Opened::Blank => Err(invalid(format!("{name}: it is blank")).with_name_in_text()),
        }
    }

    fn log(self, wal: Box<Wal>, mirror: Arc<Mirror>, far: &Path, is_complete: bool) -> ChangeLog {
        let far = far.to_path_buf();
        let reopen = move || {
            let opened = existing_device(&far).map_err(|error| error.to_string());
            opened.map(|device| device as Arc<dyn Device>)
        };
        ChangeLog::new(wal, name_of(self.tier), self.tier.mode() != TierMode::Through).on_two(
            mirror,
            is_complete,
            Arc::new(reopen),
        )
    }
}

/// The id of the log that is there, for a look at a pool. `None` also if the owner of the pool has it.
pub(crate) fn id_there(tier: &Tier) -> Option<[u8; 16]> {
    let id = |path: &Path| {
        let path = path.to_path_buf();
        let found = device::within(FAR_WITHIN, move || {
            let reactor = device::sleeping_reactor().ok()?;
            let device = device::device(&as_data(&path), &reactor, true).ok()?;
            Wal::id_on(&device).ok().flatten()
        });
        found.flatten()
    };
    id(&tier.device).or_else(|| id(tier.mirror.as_deref()?))
}

/// The devices and their machine, as the metadata names them to other machines.
fn name_of(tier: &Tier) -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let devices: Vec<String> = tier.devices().map(|device| device.display().to_string()).collect();
    let devices = devices.join(" and ");
    match machine.trim() {
        "" => devices,
        machine => format!("{devices} of {machine}"),
    }
}
