//! From pages of a file to pages of memory, as an RDMA adapter does it: FileMR (Yang, Izraelevitz, Swanson, NSDI 2020).
//!
//! What lives here: two ways to translate, and nothing that knows files. [`Ranges`] follows FileMR: a tree of runs for
//! each region ([`RangeMtt`]) behind a cache of runs ([`RangeCache`]). [`Pages`] is its rival, what adapters have: an
//! array of pages ([`PageMtt`]) behind a cache of pages ([`PageCache`]). Both caches have 4096 entries, four to a set,
//! and count hits and misses. Nothing of the program uses this crate yet other than its tests.
//!
//! Invariant: a cache never gives what its table does not have any more. Whoever removes pages removes them from both,
//! which [`Ranges`] and [`Pages`] do in one call.

#![forbid(unsafe_code)]

mod counters;
mod page_cache;
mod page_mtt;
mod range_cache;
mod range_mtt;
mod run;
mod sets;
mod translate;

pub use counters::Counters;
pub use page_cache::PageCache;
pub use page_mtt::PageMtt;
pub use range_cache::RangeCache;
pub use range_mtt::RangeMtt;
pub use run::{OutOfRange, Placed, Run};
pub use sets::{ENTRIES, WAYS};
pub use translate::{Pages, Ranges, RegionId, Translation};
