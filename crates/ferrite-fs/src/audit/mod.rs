//! Floor 9, a pool as a whole: reading all tables at mount, checking, repairing and scrubbing them.

pub(crate) mod boot;
pub(crate) mod fsck;
pub(crate) mod load;
pub mod mend;
pub(crate) mod owner;
pub(crate) mod repair;
pub(crate) mod scrub;
