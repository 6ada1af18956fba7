//! The mark of the file in which a pool is in use: it identifies a copy that was taken meanwhile.
//!
//! Mount sets it and unmount clears it (`engine/mount.rs`), with the words that record whether the pool is in use; all
//! of them share a line. It is one word, so a crash leaves the old one or the new one, and it counts only with the
//! number of mounts that it names, so an old one is ignored.

use ferrite_pm::Region;

use crate::error::EngineError;
use crate::format::checksum::crc32c;
use crate::format::layout::{CONTROL_MOUNTS, CONTROL_OWNER, CONTROL_STATE, STATE_CLEAN};

/// The meaning of [`Engine::may_be_live_copy`](crate::Engine::may_be_live_copy), for users.
pub const MAYBE_COPIED: &str = "the pool may be a copy that was taken while the original was mounted: it is marked as \
in use \
     in another file. What was written meanwhile may be missing or wrong, and no check finds all of that. Take a copy \
     of \
     a mounted pool with `ferrite copy`; if this one was only copied or moved after a crash, all is well";

/// The mark of the file that `region` lies in; 0 in memory.
pub(crate) fn owner_mark(region: &Region, mounts: u64) -> u64 {
    let file = region.file_identity();
    file.map_or(0, |identity| {
        u64::from(crc32c(&identity.to_le_bytes())) << 32 | u64::from(mounts as u32)
    })
}

/// Whether the pool is marked as in use in another file than the one it lies in: it was copied meanwhile, or after a
/// crash. A crash alone leaves the mark of this file, an unmount none, and a mount by a program that does not know the
/// mark one that names another number of mounts.
pub fn may_be_live_copy(region: &Region) -> bool {
    let (mark, mounts) = (region.load(CONTROL_OWNER), region.load(CONTROL_MOUNTS));
    let counts = mark != 0 && mark as u32 == mounts as u32 && region.load(CONTROL_STATE) != STATE_CLEAN;
    let own = owner_mark(region, mounts);
    counts && own != 0 && mark != own
}

/// Clears the mark of the original file in a copy of a pool that is not in use. Durable when it returns.
pub fn disown(region: &Region) -> Result<(), EngineError> {
    region.store(CONTROL_OWNER, 0);
    region.write_back(CONTROL_OWNER, 8);
    Ok(region.fence()?)
}
