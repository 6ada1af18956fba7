//! One slot's contribution to the digest of a closed store (`proof`).
//!
//! Invariant: docs/format-blob.md has the same function; it is part of the format.

/// The contribution of a slot with this generation. A slot that was never written adds nothing.
pub(crate) fn of(slot: u32, generation: u64) -> u32 {
    if generation == 0 {
        return 0;
    }
    let mut mixed =
        generation.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(slot) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ mixed >> 32) as u32
}
