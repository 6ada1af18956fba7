//! Floor 2, free space: blocks, name slots, segments of page logs. (Slots of the mapping are the mapping's.)
//!
//! Contents: free maps in DRAM, and the rules for claims and releases. Claims are volatile: only a committed record
//! makes them last.

pub(crate) mod blocks;
pub(crate) mod names;
pub(crate) mod quotas;
pub(crate) mod segments;
pub(crate) mod shares;
