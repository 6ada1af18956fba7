//! An entry of the ring as stored: pages about to be written in place, and hashes that tell a torn entry from a whole
//! one.
//!
//! Its bytes are in docs/format-blob.md. Only [`crate::ring`] writes entries and reads them.

use rapidhash::v3::{DEFAULT_RAPID_SECRETS, rapidhash_v3_seeded};

use super::{BlobId, has_checksum, put, put_checksum, u32_at, u64_at};

/// An entry of the ring: one or two pages about to be written in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RingEntry {
    pub(crate) number: u64,
    /// When this one was made, all entries below it had been written in place.
    pub(crate) low: u64,
    pub(crate) id: BlobId,
    /// Of the blob's metadata. It never changes while a write in place is under way.
    pub(crate) generation: u64,
    /// Pages on the device; the second is 0 if there is only one.
    pub(crate) targets: [u64; 2],
    pub(crate) crcs: [u32; 2],
    /// Hashes of the content of the pages, see [`hash_of`]; 0: none, in an entry of an older program.
    pub(crate) hashes: [u64; 2],
}

/// The hash of a page in the ring. A torn write leaves a part of an older entry, which may hold an older version of the
/// same page. If the differing part carries a crc32c of its own, as pages of databases do, the crc32c of the whole is
/// blind to that.
pub(crate) fn hash_of(page: &[u8]) -> u64 {
    rapidhash_v3_seeded(page, &DEFAULT_RAPID_SECRETS).max(1)
}

const RING_MAGIC: u32 = u32::from_le_bytes(*b"BlRg");

impl RingEntry {
    /// Writes the entry's first page.
    pub(crate) fn encode(&self, page: &mut [u8]) {
        put(page, 0, &RING_MAGIC.to_le_bytes());
        put(page, 12, &self.crcs[0].to_le_bytes());
        put(page, 16, &self.number.to_le_bytes());
        put(page, 24, &self.low.to_le_bytes());
        put(page, 32, &self.id.raw().to_le_bytes());
        put(page, 40, &self.generation.to_le_bytes());
        put(page, 48, &self.targets[0].to_le_bytes());
        put(page, 56, &self.targets[1].to_le_bytes());
        put(page, 64, &self.crcs[1].to_le_bytes());
        put(page, 72, &self.hashes[0].to_le_bytes());
        put(page, 80, &self.hashes[1].to_le_bytes());
        put_checksum(page);
    }

    /// `None`: it was never written, or not completely.
    pub(crate) fn decode(page: &[u8]) -> Option<RingEntry> {
        if u32_at(page, 0) != RING_MAGIC || !has_checksum(page) {
            return None;
        }
        Some(RingEntry {
            number: u64_at(page, 16),
            low: u64_at(page, 24),
            id: BlobId(u64_at(page, 32)),
            generation: u64_at(page, 40),
            targets: [u64_at(page, 48), u64_at(page, 56)],
            crcs: [u32_at(page, 12), u32_at(page, 64)],
            hashes: [u64_at(page, 72), u64_at(page, 80)],
        })
    }

    /// Whether `data` is the whole content of its page number `index`.
    pub(crate) fn is_whole(&self, index: usize, data: &[u8]) -> bool {
        let hash = self.hashes[index];
        crc32c::crc32c(data) == self.crcs[index] && (hash == 0 || hash_of(data) == hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    /// A torn entry holds sectors of the one before at its place: two versions of a page with a crc32c of its own.
    #[test]
    fn a_torn_page_of_an_entry_is_noticed_whatever_it_carries() {
        let version = |value: u64| {
            let mut page = [0x77; PAGE_BYTES];
            page[1024..1032].copy_from_slice(&value.to_le_bytes());
            page[1032..1036].copy_from_slice(&crc32c::crc32c(&value.to_le_bytes()).to_le_bytes());
            page
        };
        let (older, newer) = (version(1), version(2));
        let mut entry = RingEntry {
            number: 9,
            low: 7,
            id: BlobId(3),
            generation: 2,
            targets: [40, 41],
            crcs: [crc32c::crc32c(&newer); 2],
            hashes: [hash_of(&newer); 2],
        };
        let mut stored = [0; PAGE_BYTES];
        entry.encode(&mut stored);
        assert_eq!(RingEntry::decode(&stored).as_ref(), Some(&entry));
        for index in [0, 1] {
            assert!(entry.is_whole(index, &newer) && !entry.is_whole(index, &older));
        }
        entry.hashes = [0; 2];
        assert!(entry.is_whole(0, &newer), "an entry of an older program");
        assert!(entry.is_whole(0, &older), "what the hashes are for");
    }
}
