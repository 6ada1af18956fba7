//! Floor 9, a pool as a whole: reading all tables at mount, checking, repairing and scrubbing them.
//!
//! What must hold stands in `rules`, what does not is a `wrong::Wrong`. Mount (`load`) makes marks of it, which live in
//! `health::marks` as long as the pool is mounted; `fsck` reports it; `repair` works out which words would cure it, and
//! `rewrite` stores those; `scrub` tells it while the pool is in use.

pub(crate) mod boot;
pub(crate) mod fsck;
pub(crate) mod load;
pub(crate) mod owner;
pub(crate) mod repair;
pub mod rewrite;
pub(crate) mod rules;
pub(crate) mod scrub;
pub(crate) mod wrong;
