//! Floor 7, data of regular files: reading, writing, truncating, reserving, seeking; bound files.
//!
//! Contents: functions on one inode. The open handle that calls them is on the engine's floor.

pub(crate) mod atime;
pub(crate) mod bind;
pub(crate) mod bound;
pub(crate) mod clone;
mod defragment;
mod inline;
pub(crate) mod read;
mod read_borrowed;
pub(crate) mod region;
pub(crate) mod reserve;
pub(crate) mod rights;
mod seek;
pub(crate) mod truncate;
pub(crate) mod write;
