//! The suites' own random numbers: SplitMix64.
//!
//! Invariant: the stream of a seed never changes, so that a seed printed by an old run replays for ever
//! (general generators change their streams between versions). Not for anything but tests.

/// A small deterministic generator.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose stream is fixed by `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (which is not 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items` (not empty).
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

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
