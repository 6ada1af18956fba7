//! The report of an owner: [`OwnedStatus`].

use std::time::Duration;

/// The state of an owner, and what it has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedStatus {
    /// The epoch of the tenure.
    pub epoch: u64,
    /// The number of the last batch.
    pub seq: u64,
    /// For how long it may still answer.
    pub lease_left: Duration,
    /// Commits, and the batches that they became.
    pub commits: u64,
    /// Batches sent, without repetitions.
    pub batches: u64,
    /// Microseconds that batches took, in all.
    pub commit_us: u64,
    /// Microseconds that the slowest batch took.
    pub commit_us_max: u64,
    /// Renewals of the lease that failed.
    pub renewals_failed: u64,
    /// Reads that the cache answered.
    pub hits: u64,
    /// Reads that asked the database.
    pub misses: u64,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Bytes that the cache may have.
    pub cache_bytes_max: u64,
}
