//! Floor 9, a pool as a whole: reading all tables at mount, checking, repairing and scrubbing them.
//!
//! `rules` states the invariants of a pool; a violation is a `wrong::Wrong`. Mount (`load`) turns it into entries of
//! the quarantine, which `health::quarantine` keeps as long as the pool is mounted; `fsck` reports it; `repair` works
//! out which words would fix it, and `rewrite` stores those; `scrub` reports it while the pool is in use.

pub(crate) mod boot;
pub(crate) mod fsck;
pub(crate) mod load;
pub(crate) mod owner;
pub(crate) mod repair;
pub mod rewrite;
pub(crate) mod rules;
pub(crate) mod scrub;
pub(crate) mod wrong;
