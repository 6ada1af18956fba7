//! Numbers that look random and are the same for a seed: SplitMix64.
//!
//! Invariant: the stream of a seed never changes, so that a seed printed by an old run can always be replayed, and
//! results of the lab stay comparable (general generators change their streams between versions). Not for secrets.

/// The increment of SplitMix64's state for each number.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A small deterministic generator.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose stream is fixed by `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// At least 0, below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// A well-mixed function of a number: the first number of the stream with that seed.
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(STEP);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference values of SplitMix64 for seed 1234567, as in other languages' test suites: a changed stream would make
    /// every seed ever printed worthless.
    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut rng = Rng::new(1_234_567);
        let numbers: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
        assert_eq!(mix(1_234_567), numbers[0]);
    }

    #[test]
    fn what_is_made_of_the_numbers_stays_within_its_bounds() {
        let mut rng = Rng::new(7);
        let mut items: Vec<u64> = (0..100).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        assert!(items.contains(rng.pick(&items.clone())));
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[rng.below(10) as usize] = true;
            assert!((0.0..1.0).contains(&rng.unit()));
            assert!(rng.chance(100) && !rng.chance(0));
        }
        assert_eq!((seen, rng.below(0)), ([true; 10], 0));
    }
}
