//! Floor 2, what is free: blocks, name slots, segments of page logs. (Slots of the mapping are the mapping's.)
//!
//! Contents: free maps in DRAM, and the rules for claiming from them and giving back. Claims are volatile: only
//! a committed record makes them last.

pub(crate) mod blocks;
pub(crate) mod names;
pub(crate) mod segments;
