//! A blob's own metadata of its file: size and times, while the file is in use (RUFS, section 2.2.1).
//!
//! A write that makes a file longer changes them there, in the same step in which the blob's new clusters become part
//! of it; it does not touch the metadata store. Node and tail both carry the counter of changes; the larger one is
//! right.

use ferrite_vfs::{Ino, Timestamp};

use super::Reader;

/// Size and times as a blob knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The file, for checks.
    pub(crate) ino: Ino,
    pub(crate) size: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) change: u64,
}

impl Tail {
    pub(crate) fn encode(&self) -> [u8; 48] {
        let mut value = [0; 48];
        let numbers = [
            self.ino,
            self.size,
            self.atime.0 as u64,
            self.mtime.0 as u64,
            self.ctime.0 as u64,
            self.change,
        ];
        for (bytes, number) in value.chunks_exact_mut(8).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        value
    }

    /// `None`: the blob belongs to no file yet, or this is damage.
    pub(crate) fn decode(value: &[u8]) -> Option<Tail> {
        let mut from = Reader(value);
        Some(Tail {
            ino: from.u64()?,
            size: from.u64()?,
            atime: from.time()?,
            mtime: from.time()?,
            ctime: from.time()?,
            change: from.u64()?,
        })
    }
}
