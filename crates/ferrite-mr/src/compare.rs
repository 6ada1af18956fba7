//! Ranges against pages: what a file costs an adapter to register, and how often its cache knows the answer.
//!
//! What lives here: functions for benchmarks. Nothing of the server calls them.

use std::time::{Duration, Instant};

use crate::counters::Counters;
use crate::run::{OutOfRange, Run};
use crate::translate::{Pages, Ranges, RegionId, Translation};

/// The region of files that are compared.
const REGION: RegionId = 1;

/// What registering a file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// How long it takes.
    pub took: Duration,
    /// Entries that the adapter then has.
    pub entries: usize,
}

/// One way of translation against the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versus<T> {
    /// As FileMR does it.
    pub ranges: T,
    /// As adapters do it.
    pub pages: T,
}

fn register(translation: &mut impl Translation, runs: &[Run]) -> Result<Registration, OutOfRange> {
    let began = Instant::now();
    let mut at = 0;
    for run in runs {
        translation.insert(REGION, at, *run)?;
        at += run.pages;
    }
    Ok(Registration {
        took: began.elapsed(),
        entries: translation.entries(),
    })
}

/// Registers a file whose pages lie in `runs`, with both.
///
/// # Errors
/// If the file has too many pages for one.
pub fn registration(runs: &[Run]) -> Result<Versus<Registration>, OutOfRange> {
    Ok(Versus {
        ranges: register(&mut Ranges::default(), runs)?,
        pages: register(&mut Pages::default(), runs)?,
    })
}

fn count(translation: &mut impl Translation, runs: &[Run], trace: &[u32]) -> Result<Counters, OutOfRange> {
    register(translation, runs)?;
    for page in trace {
        translation.translate(REGION, *page);
    }
    Ok(translation.counters())
}

/// Sends accesses to pages of a file, in this order, through both caches, which are empty at first.
///
/// # Errors
/// As [`registration`].
pub fn replay(runs: &[Run], trace: &[u32]) -> Result<Versus<Counters>, OutOfRange> {
    Ok(Versus {
        ranges: count(&mut Ranges::default(), runs, trace)?,
        pages: count(&mut Pages::default(), runs, trace)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contiguous_file_is_one_range_or_all_its_pages() {
        let runs = [Run { page: 7, pages: 10_000 }];
        let both = registration(&runs).unwrap();
        assert_eq!((both.ranges.entries, both.pages.entries), (1, 10_000));
        let trace: Vec<u32> = (0..10_000).chain(0..10_000).collect();
        let both = replay(&runs, &trace).unwrap();
        assert_eq!(both.ranges.misses, 1);
        assert_eq!(
            (both.pages.hits, both.pages.misses),
            (0, 20_000),
            "a loop longer than the cache"
        );
    }
}
