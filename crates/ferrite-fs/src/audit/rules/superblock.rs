//! The superblock: both copies agree with the better one.

use ferrite_pm::Region;

use crate::audit::wrong::Wrong;
use crate::format::layout::{BLOCK_BYTES, Superblock};

/// The defects of the copies of `superblock`.
pub(crate) fn copies(region: &Region, superblock: &Superblock) -> Vec<Wrong> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    let mut found = Vec::new();
    for (name, offset) in [("first", 0), ("second", superblock.second_copy_offset())] {
        region.read(offset, &mut block);
        let what = match Superblock::decode(&block) {
            Ok(copy) if copy == *superblock => continue,
            Ok(_) => format!("the {name} copy differs"),
            Err(error) => format!("the {name} copy: {}", error.cause()),
        };
        found.push(Wrong::Superblock { what });
    }
    found
}
