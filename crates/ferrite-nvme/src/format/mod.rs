//! The format of the metadata store: keys and values, byte by byte.
//!
//! Contents: the keys (`key`), nodes and edges (`node`), a blob's own metadata of its file (`tail`), the record of
//! the pool as a whole (`pool`), and those of quotas (`quota`).
//!
//! Invariants: numbers in keys are big-endian, so that keys sort as their numbers do; numbers in values are
//! little-endian. A value begins with its version. A value that cannot be decoded is damage of its owner, never a
//! panic.

pub(crate) mod key;
pub(crate) mod node;
pub(crate) mod pool;
pub(crate) mod quota;
pub(crate) mod tail;

use ferrite_vfs::Timestamp;

/// Takes numbers from the front of a value; `None` when it has ended.
pub(crate) struct Reader<'v>(pub(crate) &'v [u8]);

impl<'v> Reader<'v> {
    pub(crate) fn bytes<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (head, rest) = self.0.split_first_chunk::<LEN>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        self.bytes().map(|bytes| Timestamp(i64::from_le_bytes(bytes)))
    }

    /// The rest of the value.
    pub(crate) fn rest(self) -> &'v [u8] {
        self.0
    }
}
