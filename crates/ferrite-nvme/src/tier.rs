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
const FAR_WITHIN: Duration = Duration::from_secs(10);

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

/// Opens the log of a device that is the pool's, which gets one if it is blank.
fn open_log(device: &Arc<dyn Device>, pool: [u8; 16]) -> ferrite_wal::Result<Box<Wal>> {
    let opened = || Wal::open(Arc::clone(device));
    if let Opened::Log(wal) = opened()? {
        return Ok(wal);
    }
    Wal::format(&**device, device::random(), pool)?;
    match opened()? {
        Opened::Log(wal) => Ok(wal),
        Opened::Blank => {
            let text = format!("{}: it does not keep what is written", device.name());
            Err(ferrite_wal::Error::Failed(text))
        }
    }
}

/// Refuses a device that is not the pool's. A file that was made sparse gets its space, once it is known to be.
fn ours(device: Arc<Uring>, pool: [u8; 16]) -> Result<Arc<Uring>> {
    match Wal::owner_on(&*device).map_err(|error| of_log(&error))? {
        Some(owner) if owner != pool => {
            let text = format!(
                "{}: it has the log of another pool; name another device in `[tier]`",
                device.name()
            );
            Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text())
        }
        _ => device.allocate().map_err(of_store).map(|()| device),
    }
}

/// Opens the log of a pool. A device that is blank gets one. With a mirror, one of the two devices is enough to have
/// the changes of the log; then it is used when the other one is back. `None`: no device that is here has it, and the
/// other one may.
///
/// # Errors
/// It holds something else, or the log of another pool; it is in use; damage; errors of the device.
pub(crate) fn open(tier: &Tier, reactor: &Arc<Reactor>, pool: [u8; 16]) -> Result<Option<ChangeLog>> {
    let near = device_of(&tier.device, tier.size, reactor).and_then(|near| ours(near, pool));
    let Some(far_path) = tier.mirror.as_deref() else {
        let wal = open_log(&(near? as Arc<dyn Device>), pool).map_err(|error| of_log(&error))?;
        return Ok(Some(new_log(wal, tier)));
    };
    let far = far_device(far_path, pool);
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
fn far_device(path: &Path, pool: [u8; 16]) -> Result<Arc<Uring>> {
    let of_thread = path.to_path_buf();
    within(path, move || existing_device(&of_thread, pool))
}

/// A device with a reactor of its own: the kernel may have whoever submits a transfer to it wait for its server.
fn existing_device(path: &Path, pool: [u8; 16]) -> Result<Arc<Uring>> {
    if !path.exists() {
        let text = format!(
            "{}: no such file; mount what it is on, or make it, as long as the other one (truncate -s)",
            path.display()
        );
        return Err(invalid(text).with_name_in_text());
    }
    let reactor = device::sleeping_reactor()?;
    ours(device_of(path, None, &reactor)?, pool)
}

fn new_log(wal: Box<Wal>, tier: &Tier) -> ChangeLog {
    ChangeLog::new(wal, name_of(tier), tier.mode() != TierMode::Through)
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
        let of_near = Arc::clone(near) as Arc<dyn Device>;
        let mirror = Mirror::open(of_near, Arc::clone(far) as Arc<dyn Device>, self.pool, FAR_WITHIN)?;
        let mirror = Arc::new(mirror);
        let wal = open_log(&(Arc::clone(&mirror) as Arc<dyn Device>), self.pool)?;
        Ok(self.log(wal, mirror, self.far_path, true))
    }

    /// Opens the log on one device, while the other cannot be used: of two, on the one that has later changes.
    fn either(
        self,
        near: Option<Arc<Uring>>,
        far: Option<Arc<Uring>>,
        error: VolumeError,
    ) -> Result<Option<ChangeLog>> {
        let is_near_blank = near.as_ref().is_some_and(|near| Wal::id_on(&**near) == Ok(None));
        let near = near.and_then(|near| self.alone(near, false));
        let far = far.and_then(|far| self.alone(far, true));
        let found = [near, far].into_iter().flatten();
        let best = found.max_by_key(|(wal, _, is_far)| (wal.term(), !is_far));
        let what = "the log is not used without its second device; fsync waits for the bucket";
        match best {
            Some((wal, mirror, is_far)) => {
                let away = if is_far { &self.tier.device } else { self.far_path };
                tracing::warn!(device = %away.display(), %error, what);
                Ok(Some(self.log(wal, mirror, away, false)))
            }
            None if is_near_blank => {
                tracing::warn!(%error, "there is no log before both of its devices are there");
                Ok(None)
            }
            None => Err(error),
        }
    }

    /// The log of a device, if it has one that can be read.
    fn alone(self, device: Arc<Uring>, is_far: bool) -> Option<(Box<Wal>, Arc<Mirror>, bool)> {
        let name = device.name().to_owned();
        let opened = Mirror::alone(device, is_far, FAR_WITHIN).and_then(|mirror| {
            let mirror = Arc::new(mirror);
            Ok((Wal::open(Arc::clone(&mirror) as Arc<dyn Device>)?, mirror))
        });
        match opened {
            Ok((Opened::Log(wal), mirror)) => Some((wal, mirror, is_far)),
            Ok((Opened::Blank, _)) => None,
            Err(error) => {
                tracing::warn!(device = name, %error, "it is not used");
                None
            }
        }
    }

    fn log(self, wal: Box<Wal>, mirror: Arc<Mirror>, far: &Path, is_complete: bool) -> ChangeLog {
        let (far, pool) = (far.to_path_buf(), self.pool);
        let reopen = move || {
            let opened = existing_device(&far, pool).map_err(|error| error.to_string());
            opened.map(|device| device as Arc<dyn Device>)
        };
        new_log(wal, self.tier).on_two(mirror, is_complete, Arc::new(reopen))
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
