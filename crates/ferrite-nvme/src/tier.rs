//! The device with the log of a pool whose content is in S3: making the log, and opening it.
//!
//! The log names the pool as its owner, so a device never serves two. A pool may be opened without its log, and with
//! another one: changes that only the first one has are marked in the metadata, and errors until it comes back.
//!
//! Used by `s3`.

use std::path::Path;
use std::sync::Arc;

use ferrite_blob::device::Device;
use ferrite_blob::device::uring::{Reactor, Uring};
use ferrite_vfs::volume::VolumeErrorKind;
use ferrite_wal::{Opened, Wal};

use crate::config::{Tier, TierMode};
use crate::content_store::ChangeLog;
use crate::device::{self, as_data, of_store};
use crate::refusal::{Result, invalid, refuse};

fn of_log(error: &ferrite_wal::Error) -> ferrite_vfs::volume::VolumeError {
    let kind = match error {
        ferrite_wal::Error::Refused(_) => VolumeErrorKind::Foreign,
        ferrite_wal::Error::Damaged(_) => VolumeErrorKind::Damaged,
        _ => VolumeErrorKind::Medium,
    };
    refuse(kind, error.to_string()).with_name_in_text()
}

/// Opens the device, which is made if it is a file.
fn device_of(tier: &Tier, reactor: &Arc<Reactor>) -> Result<Arc<Uring>> {
    if !tier.device.exists() {
        let place = tier.device.display();
        let size = tier.size.ok_or_else(|| {
            let text = format!("{place}: no such device; give `size` in `[tier]` to have a file made");
            invalid(text).with_name_in_text()
        })?;
        Uring::create(&tier.device, size).map_err(of_store)?;
    }
    device::device(&as_data(&tier.device), reactor, false).map(Arc::new)
}

/// Makes an empty log on a device that is the pool's.
fn format(device: &Uring, pool: [u8; 16]) -> Result<()> {
    device.allocate().map_err(of_store)?;
    Wal::format(device, device::random(), pool).map_err(|error| of_log(&error))
}

fn open_log(device: &Arc<Uring>) -> Result<Opened> {
    Wal::open(Arc::clone(device) as Arc<dyn Device>).map_err(|error| of_log(&error))
}

/// Makes an empty log for a new pool. With `force`, a log of another pool is lost.
///
/// # Errors
/// The device holds something, unless forced; errors of the device.
pub(crate) fn make(tier: &Tier, reactor: &Arc<Reactor>, pool: [u8; 16], force: bool) -> Result<()> {
    let device = device_of(tier, reactor)?;
    match Wal::open(Arc::clone(&device) as Arc<dyn Device>) {
        Ok(Opened::Blank) => {}
        Ok(Opened::Log(_)) | Err(_) if force => {}
        Ok(Opened::Log(_)) => {
            let place = tier.device.display();
            let text = format!("{place}: it has the log of a pool of Ferrite; give --force to overwrite it");
            return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
        }
        Err(ferrite_wal::Error::Refused(what)) => {
            let text = format!("{what}; give --force to overwrite it");
            return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
        }
        Err(error) => return Err(of_log(&error)),
    }
    format(&device, pool)
}

/// Opens the log of a pool. A device that is blank gets one.
///
/// # Errors
/// It holds something else, or the log of another pool; it is in use; damage; errors of the device.
pub(crate) fn open(tier: &Tier, reactor: &Arc<Reactor>, pool: [u8; 16]) -> Result<ChangeLog> {
    let device = device_of(tier, reactor)?;
    let wal = match open_log(&device)? {
        Opened::Log(wal) => wal,
        Opened::Blank => {
            format(&device, pool)?;
            match open_log(&device)? {
                Opened::Log(wal) => wal,
                Opened::Blank => {
                    let text = format!("{}: it does not keep what is written", tier.device.display());
                    return Err(refuse(VolumeErrorKind::Medium, text).with_name_in_text());
                }
            }
        }
    };
    if wal.owner() != pool {
        let text = format!(
            "{}: it has the log of another pool; name another device in `[tier]`",
            tier.device.display()
        );
        return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
    }
    // A file that was made sparse needs its space from here on.
    device.allocate().map_err(of_store)?;
    Ok(ChangeLog {
        wal,
        name: name_of(&tier.device),
        is_used: tier.mode == TierMode::Back,
    })
}

/// The id of the log that is there, for a look at a pool. `None` also if the owner of the pool has it.
pub(crate) fn id_there(tier: &Tier, reactor: &Arc<Reactor>) -> Option<[u8; 16]> {
    let device = device::device(&as_data(&tier.device), reactor, true).ok()?;
    Wal::id_on(&device).ok().flatten()
}

/// The device and its machine, as the metadata names them to other machines.
fn name_of(device: &Path) -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match machine.trim() {
        "" => device.display().to_string(),
        machine => format!("{} of {machine}", device.display()),
    }
}
