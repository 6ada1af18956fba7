//! What one slot adds to the digest of a store that is closed (`proof`).
//!
//! Invariant: docs/format-blob.md has the same function; it is part of the format.

/// What a slot with this generation adds to the digest. A slot that was never written adds nothing.
pub(crate) fn of(slot: u32, generation: u64) -> u32 {
    if generation == 0 {
        return 0;
    }
    let mut mixed =
        generation.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(slot) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ mixed >> 32) as u32
}
