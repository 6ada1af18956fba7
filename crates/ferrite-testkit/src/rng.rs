//! The suites' random numbers, and the data that they write.

pub use ferrite_measure::Rng;

/// The `len` bytes that a write with this `fill` stores: all zeros for 0; otherwise every 8-byte word of it
/// is different, so that a byte that lands elsewhere or is lost shows.
pub fn pattern(fill: u32, len: usize) -> Vec<u8> {
    if fill == 0 {
        return vec![0; len];
    }
    let mut bytes = Vec::with_capacity(len + 8);
    let mut rng = Rng::new(u64::from(fill) << 32);
    while bytes.len() < len {
        // No zero byte: a byte that was never written must differ from one that was.
        bytes.extend_from_slice(&(rng.next_u64() | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
