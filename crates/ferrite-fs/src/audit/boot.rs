//! The mark of the boot in which a pool is used with `durability=process`: its meaning after a restart.

use ferrite_pm::Region;

use crate::format::checksum::{crc32c, crc32c_append};
use crate::format::layout::{CONTROL_BOOT, CONTROL_STATE, STATE_CLEAN};

/// A mark of a boot that stands where it should not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StaleBoot {
    /// The machine restarted while the pool was in use with `durability=process`.
    PowerLost,
    /// The pool is marked clean as well. Mount sets the mark after the word that marks the pool as in use, unmount
    /// clears it before that word, and both share a line; so this is damage.
    Impossible,
}

impl StaleBoot {
    /// The defect, as fsck reports it.
    pub(crate) fn what(self) -> &'static str {
        match self {
            StaleBoot::PowerLost => {
                "the pool was in use with durability=process when the machine restarted: what returned shortly before \
                 may be missing"
            }
            StaleBoot::Impossible => "the pool is marked clean, and as in use with durability=process as well",
        }
    }
}

/// The defect of the mark of the boot, if any.
pub(crate) fn stale_boot(region: &Region) -> Option<StaleBoot> {
    match region.load(CONTROL_BOOT) {
        0 => None,
        _ if region.load(CONTROL_STATE) == STATE_CLEAN => Some(StaleBoot::Impossible),
        mark => (mark != boot_id()).then_some(StaleBoot::PowerLost),
    }
}

/// A number that differs from boot to boot, never 0.
pub(crate) fn boot_id() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u64::from(crc32c(&id)) << 32 | u64::from(crc32c_append(0x5eed, &id)) | 1
}
