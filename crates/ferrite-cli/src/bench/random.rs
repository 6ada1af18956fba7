//! Numbers that look random and cost nothing: the same for both sides of a duel.

/// A well-mixed function of a number (splitmix64).
pub(crate) fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Offset of a random page of a file.
pub(crate) fn page(number: u64, file_bytes: u64) -> u64 {
    mix(number) % (file_bytes / 4096) * 4096
}
