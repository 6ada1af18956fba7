//! Ranges against pages: the cost of registering a file with an adapter, and the hit rate of its cache.
//!
//! Contents: functions for benchmarks and figures.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ferrite_mr::{Counters, OutOfRange, Run};

use super::{Pages, Ranges, RegionId, Translation};

/// The cost of registering a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The time it takes.
    pub took: Duration,
    /// Entries that the adapter has afterwards.
    pub entries: usize,
}

/// One method of translation against the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versus<T> {
    /// As FileMR does it.
    pub ranges: T,
    /// As adapters do it.
    pub pages: T,
}

fn register(translation: &mut impl Translation, files: &[Vec<Run>]) -> Result<Registration, OutOfRange> {
    let began = Instant::now();
    for (region, runs) in (0..).zip(files) {
        let mut at = 0;
        for run in runs {
            translation.insert(region, at, *run)?;
            at += run.pages;
        }
    }
    Ok(Registration {
        took: began.elapsed(),
        entries: translation.entries(),
    })
}

/// Registers files with both. The pages of each lie in its runs, from the first page on and without holes.
///
/// # Errors
/// If a file has too many pages for one.
pub fn registration(files: &[Vec<Run>]) -> Result<Versus<Registration>, OutOfRange> {
    Ok(Versus {
        ranges: register(&mut Ranges::default(), files)?,
        pages: register(&mut Pages::default(), files)?,
    })
}

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// The cache's counters.
    pub counters: Counters,
    /// The time of all translations, including the table lookups of misses.
    pub took: Duration,
}

fn count(
    translation: &mut impl Translation,
    files: &[Vec<Run>],
    trace: &[(RegionId, u32)],
) -> Result<Replay, OutOfRange> {
    register(translation, files)?;
    let began = Instant::now();
    for &(region, page) in trace {
        black_box(translation.translate(region, page));
    }
    Ok(Replay {
        took: began.elapsed(),
        counters: translation.counters(),
    })
}

/// Sends accesses to pages of files (number of the file, page), in this order, through both caches, which start empty.
///
/// # Errors
/// As [`registration`].
pub fn replay(files: &[Vec<Run>], trace: &[(RegionId, u32)]) -> Result<Versus<Replay>, OutOfRange> {
    Ok(Versus {
        ranges: count(&mut Ranges::default(), files, trace)?,
        pages: count(&mut Pages::default(), files, trace)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_pages_are_one_range_or_an_entry_each() {
        let files = [vec![Run { page: 7, pages: 10_000 }], vec![Run { page: 7, pages: 1 }; 2]];
        let both = registration(&files).unwrap();
        assert_eq!((both.ranges.entries, both.pages.entries), (3, 10_002));
        let token = || (0..10_000).map(|page| (0, page));
        let trace: Vec<_> = token().chain(token()).chain([(1, 0), (1, 1)]).collect();
        let both = replay(&files, &trace).unwrap();
        assert_eq!(both.ranges.counters.misses, 3);
        assert_eq!(
            (both.pages.counters.hits, both.pages.counters.misses),
            (0, 20_002),
            "a loop longer than the cache"
        );
    }
}
