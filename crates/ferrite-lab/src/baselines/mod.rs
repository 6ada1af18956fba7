//! Structures that the papers compare with. They serve the lab only: no pool can be made with one.
//!
//! They keep the rules of [`ferrite_map::FileMap`] for everything that the lab does. Parts that only a file system
//! needs are simplified: a check visits pages and does not look for damage.

pub(crate) mod extents;
pub(crate) mod level;
pub(crate) mod page_cache;
pub(crate) mod tombstones;

#[cfg(test)]
mod tests;

use ferrite_map::{Inum, Lblk};

/// A 64-bit hash of a key; `seed` chooses the function.
pub(crate) fn hash(key: u64, seed: u64) -> u64 {
    let mixed = (key ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// Maps a hash to one of `count` places, evenly, without a division.
pub(crate) fn place(hash: u64, count: u64) -> u64 {
    ((u128::from(hash) * u128::from(count)) >> 64) as u64
}

/// The key of a page.
pub(crate) fn key_of(ino: Inum, lblk: Lblk) -> u64 {
    u64::from(ino) << 32 | u64::from(lblk)
}
