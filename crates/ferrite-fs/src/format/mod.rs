//! Floor 1, the bytes: superblock, inode, directory block, journal record, log entry, attributes, checksums of data.
//!
//! Contents: how each structure is laid out, encoded, read and checked, byte by byte as in `docs/format.md`. Nothing
//! here knows of free space, locks or operations in progress, and nothing here changes a pool.

pub(crate) mod checksum;
pub(crate) mod data_sum;
pub(crate) mod dentry;
pub(crate) mod inode;
pub mod layout;
pub(crate) mod log_entry;
pub(crate) mod outcome;
pub(crate) mod page_buffer;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod unit;
pub(crate) mod xattr;
