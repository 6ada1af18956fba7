//! The table of outcomes: each entry is empty, or its checksum is right.

use ferrite_pm::Region;

use crate::audit::wrong::Wrong;
use crate::format::layout::Superblock;
use crate::format::outcome;

/// Damaged entries. Mount and scrub do not check this: a change with a token reads its entry, and fails if that is
/// damaged.
pub(crate) fn damaged<'v>(region: &'v Region, superblock: &'v Superblock) -> impl Iterator<Item = Wrong> + use<'v> {
    (0..superblock.dedup_slots as u32)
        .filter(|&slot| outcome::load(region, superblock.dedup_slot_offset(slot), slot).is_err())
        .map(|slot| Wrong::Outcome { slot })
}
