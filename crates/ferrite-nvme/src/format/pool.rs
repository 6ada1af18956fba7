//! The record of a pool as a whole.

use std::ops::RangeInclusive;

use ferrite_vfs::Ino;

use super::Reader;

/// Versions of everything in the metadata store. A pool of another version is refused. A pool of version 1, in which no
/// content lies beside its node, one of version 2 or 3, in which each blob has one file, and one of version 4 or 5, in
/// which no inode has a quota or flags, get a current version when they are opened for changes. In pools of versions 3,
/// 5 and 7, blobs have ids that the engine makes.
pub(crate) const VERSIONS: RangeInclusive<u32> = 1..=7;
/// The current versions, without such ids and with them.
const CURRENT: [u32; 2] = [6, 7];

/// The pool as its metadata store records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolRecord {
    pub(crate) uuid: [u8; 16],
    /// Key of the hash that gives names their places in listings.
    pub(crate) hash_key: [u8; 16],
    /// How many data stores belong to the pool.
    pub(crate) stores: u16,
    /// Grows with each opening; the upper part of counters of changes.
    pub(crate) epoch: u64,
    /// The first opening since which every close was clean. Counters of changes below it may have been reported with
    /// other contents.
    pub(crate) trusted_since: u64,
    /// No inode has this number, nor a larger one.
    pub(crate) next_ino: Ino,
    /// Inodes, when it was closed.
    pub(crate) inodes: u64,
    /// Files with content beside their nodes, and its bytes, when it was closed.
    pub(crate) small_files: u64,
    pub(crate) small_bytes: u64,
    pub(crate) is_clean: bool,
    /// Its blobs have ids that the engine makes; otherwise, those of data devices.
    pub(crate) has_unique_ids: bool,
    /// The numbers of data stores that were removed. They are never given again: a device that comes back must not
    /// pass for another.
    pub(crate) removed: Vec<u16>,
}

impl PoolRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let version = CURRENT[usize::from(self.has_unique_ids)];
        let mut value = version.to_le_bytes().to_vec();
        value.extend_from_slice(&self.uuid);
        value.extend_from_slice(&self.hash_key);
        value.extend_from_slice(&self.stores.to_le_bytes());
        value.push(u8::from(self.is_clean));
        for number in [
            self.epoch,
            self.trusted_since,
            self.next_ino,
            self.inodes,
            self.small_files,
            self.small_bytes,
        ] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.extend_from_slice(&(self.removed.len() as u16).to_le_bytes());
        for number in &self.removed {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value
    }

    /// The version of a record.
    pub(crate) fn version_of(value: &[u8]) -> Option<u32> {
        Reader(value).u32()
    }

    /// `None`: it is damaged.
    pub(crate) fn decode(value: &[u8]) -> Option<PoolRecord> {
        let mut from = Reader(value);
        let version = from.u32()?;
        if !VERSIONS.contains(&version) {
            return None;
        }
        let mut record = PoolRecord {
            uuid: from.bytes()?,
            hash_key: from.bytes()?,
            stores: from.u16()?,
            is_clean: from.u8()? == 1,
            epoch: from.u64()?,
            trusted_since: from.u64()?,
            next_ino: from.u64()?,
            inodes: from.u64()?,
            small_files: 0,
            small_bytes: 0,
            has_unique_ids: matches!(version, 3 | 5 | 7),
            removed: Vec::new(),
        };
        if version >= 2 {
            (record.small_files, record.small_bytes) = (from.u64()?, from.u64()?);
        }
        if version >= 6 {
            for _ in 0..from.u16()? {
                record.removed.push(from.u16()?);
            }
        }
        Some(record)
    }
}
