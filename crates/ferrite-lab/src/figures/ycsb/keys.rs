//! The pairs that YCSB requests: its generators, by their published formulas.
//!
//! Ranks follow a Zipf distribution with constant 0.99, drawn by the method of Gray et al. ("Quickly generating
//! billion-record synthetic databases"): exact for the two most popular ranks, an approximation for the others.
//! *Scrambled*: ranks of ten thousand million items are hashed onto the pairs, so that popular ones lie anywhere.
//! *Latest*: rank 0 is the newest pair.

use ferrite_measure::Rng;

/// YCSB's constant.
const THETA: f64 = 0.99;
/// Items of the scrambled distribution, whatever the number of pairs.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// Terms of a zeta sum that are added one by one.
const EXACT_TERMS: u64 = 1000;

/// `i` to the power of -theta, summed over `1..=count`.
fn sum_exactly(count: u64) -> f64 {
    (1..=count).map(|item| (item as f64).powf(-THETA)).sum()
}

/// Ranks from 0, the most popular.
#[derive(Debug, Clone)]
pub(super) struct Zipf {
    items: u64,
    /// Sum of the exact terms, which does not change with the number of items.
    head: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    pub(super) fn new(items: u64) -> Zipf {
        let mut zipf = Zipf {
            items: 0,
            head: sum_exactly(EXACT_TERMS),
            zeta: 0.0,
            eta: 0.0,
        };
        zipf.set_items(items);
        zipf
    }

    /// Continues with another number of items; at least 2.
    pub(super) fn set_items(&mut self, items: u64) {
        let items = items.max(2);
        if items == self.items {
            return;
        }
        self.items = items;
        self.zeta = self.zeta_of(items);
        let two = sum_exactly(2);
        self.eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - two / self.zeta);
    }

    /// The whole sum: its head, and Euler and Maclaurin's formula for the rest.
    fn zeta_of(&self, items: u64) -> f64 {
        if items <= EXACT_TERMS {
            return sum_exactly(items);
        }
        let (from, to) = (EXACT_TERMS as f64, items as f64);
        let integral = (to.powf(1.0 - THETA) - from.powf(1.0 - THETA)) / (1.0 - THETA);
        let ends = (to.powf(-THETA) - from.powf(-THETA)) / 2.0;
        let slopes = THETA * (from.powf(-THETA - 1.0) - to.powf(-THETA - 1.0)) / 12.0;
        self.head + integral + ends + slopes
    }

    /// A rank below the number of items.
    pub(super) fn next(&self, rng: &mut Rng) -> u64 {
        let unit = rng.unit();
        let at = unit * self.zeta;
        if at < 1.0 {
            return 0;
        }
        if at < sum_exactly(2) {
            return 1;
        }
        let place = (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        ((self.items as f64 * place) as u64).min(self.items - 1)
    }
}

/// FNV-1a of a number's eight bytes, as YCSB hashes.
pub(super) fn fnv(number: u64) -> u64 {
    number.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Chooses pairs by their numbers.
#[derive(Debug, Clone)]
pub(super) enum Chooser {
    /// Popular ones lie anywhere. Numbers are drawn below `span`, including future pairs, so that the popular ones stay
    /// the same while pairs are added.
    Scrambled { zipf: Zipf, span: u64 },
    /// The newest are the most popular.
    Latest { zipf: Zipf },
}

impl Chooser {
    pub(super) fn scrambled(span: u64) -> Chooser {
        let zipf = Zipf::new(SCRAMBLED_ITEMS);
        Chooser::Scrambled { zipf, span }
    }

    pub(super) fn latest(pairs: u64) -> Chooser {
        let zipf = Zipf::new(pairs);
        Chooser::Latest { zipf }
    }

    /// The number of a pair, below `pairs`.
    pub(super) fn next(&mut self, rng: &mut Rng, pairs: u64) -> u64 {
        match self {
            Chooser::Scrambled { zipf, span } => loop {
                let number = fnv(zipf.next(rng)) % *span;
                if number < pairs {
                    return number;
                }
            },
            Chooser::Latest { zipf } => {
                zipf.set_items(pairs);
                pairs.saturating_sub(1 + zipf.next(rng))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 200_000;

    /// YCSB ships this sum as a constant.
    #[test]
    fn the_sum_is_that_of_ycsb() {
        let zeta = Zipf::new(SCRAMBLED_ITEMS).zeta;
        assert!((zeta - 26.469_028_201_783_02).abs() < 1e-6, "{zeta}");
        for items in [2, 999, 1000, 1001, 50_000] {
            let zeta = Zipf::new(items).zeta;
            assert!((zeta - sum_exactly(items)).abs() < 1e-9, "{items}: {zeta}");
        }
    }

    /// Counts of the ranks below 1000 among many draws, against the distribution.
    #[test]
    fn ranks_come_as_often_as_they_should() {
        const ITEMS: u64 = 40_000;
        let (zipf, mut rng) = (Zipf::new(ITEMS), Rng::new(7));
        let mut counts = vec![0u32; ITEMS as usize];
        for _ in 0..DRAWS {
            counts[zipf.next(&mut rng) as usize] += 1;
        }
        let seen = |ranks: std::ops::Range<usize>| f64::from(counts[ranks].iter().sum::<u32>()) / f64::from(DRAWS);
        let due =
            |ranks: std::ops::Range<u64>| (sum_exactly(ranks.end) - sum_exactly(ranks.start)) / sum_exactly(ITEMS);
        // The two popular ones are exact: five standard deviations.
        for rank in 0..2 {
            let due = due(rank..rank + 1);
            let seen = seen(rank as usize..rank as usize + 1);
            assert!(
                (seen - due).abs() < 5.0 * (due / f64::from(DRAWS)).sqrt(),
                "rank {rank}: {seen}, not {due}"
            );
        }
        // The others follow the formula's approximation, as YCSB does.
        for (from, to) in [(2, 10), (10, 100), (100, 1000), (1000, 10_000), (10_000, ITEMS)] {
            let (seen, due) = (seen(from as usize..to as usize), due(from..to));
            assert!(
                (seen / due - 1.0).abs() < 0.15,
                "ranks {from} to {to}: {seen}, not {due}"
            );
        }
    }

    #[test]
    fn scrambled_pairs_are_below_the_count_and_as_skewed_as_their_ranks() {
        const PAIRS: u64 = 10_000;
        let (mut chooser, mut rng) = (Chooser::scrambled(PAIRS * 11 / 10), Rng::new(3));
        let mut counts = vec![0u32; PAIRS as usize];
        for _ in 0..DRAWS {
            counts[chooser.next(&mut rng, PAIRS) as usize] += 1;
        }
        let top = (0..PAIRS).max_by_key(|&pair| counts[pair as usize]);
        assert_eq!(top, Some(fnv(0) % (PAIRS * 11 / 10)).filter(|&pair| pair < PAIRS));
        // The most popular item, 1 in 26.5 draws, plus its share of the evenly spread tail.
        let share = f64::from(counts[top.unwrap() as usize]) / f64::from(DRAWS);
        assert!((0.036..0.046).contains(&share), "{share}");
        // The tail of ten thousand million items falls on every pair without exception.
        assert!(counts.iter().filter(|&&count| count == 0).count() < PAIRS as usize / 100);
    }

    #[test]
    fn the_newest_pairs_are_the_most_popular() {
        let (mut chooser, mut rng) = (Chooser::latest(5000), Rng::new(5));
        for pairs in [5000, 5100] {
            let mut newest = 0;
            for _ in 0..DRAWS {
                let chosen = chooser.next(&mut rng, pairs);
                assert!(chosen < pairs);
                newest += u32::from(chosen == pairs - 1);
            }
            let (share, due) = (f64::from(newest) / f64::from(DRAWS), 1.0 / sum_exactly(pairs));
            assert!((share / due - 1.0).abs() < 0.05, "{share}, not {due}");
        }
    }
}
