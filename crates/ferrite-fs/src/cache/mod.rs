//! Floor 2, caches in DRAM: inodes in use and their locks, where a file has pages, which pages have logs, which files
//! are bound.
//!
//! Nothing here is on the medium. A mount starts without any of it, except the pages that have logs.

pub(crate) mod bindings;
pub(crate) mod inodes;
pub(crate) mod logged;
pub(crate) mod mapped_ranges;
