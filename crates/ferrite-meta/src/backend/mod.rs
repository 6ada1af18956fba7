//! A backend for RocksDB's files without a kernel file system: each file is a blob, and one blob, the root, holds their
//! names.
//!
//! | module | contents |
//! | --- | --- |
//! | `blobs` | [`Blobs`], a backend's interface to its device, and [`MemoryBlobs`] |
//! | `format` | the bytes of the root, and of a file's metadata |
//! | `names` | the table of names, written alternately to two places |
//! | `tail` | appended bytes of a file that are not on the device yet |
//! | `cache` | blocks of 256 KiB for random reads (RUFS, §2.5) |
//! | `files` | [`BlobFiles`]: all that together, as RocksDB wants it |
//! | `below` | the same files for a second database beside the first |
//!
//! The order of writes to the device, which ensures that a crash at any moment leaves a backend that opens:
//!
//! * A new file is a blob first, then a name. A removed one loses its name first, then its blob. In between there is a
//!   blob without a name, which the next opening deletes.
//! * Names change by one write of the whole table to the older of its two places. One that was cut off has a wrong
//!   checksum, and the other place holds the previous table.
//! * A file's bytes are on the device before the size that covers them.

mod below;
mod blobs;
mod cache;
mod files;
mod format;
mod names;
mod tail;
#[cfg(test)]
mod tests;

pub(crate) use below::Below;
pub use blobs::{BlobError, Blobs, MemoryBlobs};
pub(crate) use files::BlobFiles;
