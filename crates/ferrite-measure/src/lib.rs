//! Common tools of tests, benchmarks and the lab: generating work and evaluating measurements.
//!
//! | module | what lives there |
//! | --- | --- |
//! | `random` | [`Rng`] and [`mix`]: numbers that are the same for a seed, permanently |
//! | `stats` | [`mean`], [`median`] with and without its interval, [`p99`] |
//! | `rate` | [`turns_per_second`] of several threads |
//!
//! *Architecture invariant:* it depends on nothing, so that tests of any crate can use it; the engine and the library
//! do not use it.
#![forbid(unsafe_code)]

mod random;
mod rate;
mod stats;

pub use random::{Rng, mix};
pub use rate::turns_per_second;
pub use stats::{mean, median, median_with_interval, p99};
