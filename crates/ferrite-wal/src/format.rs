//! The bytes of a log. Numbers are little-endian, places multiples of a page.
//!
//! Pages 0 and 1 are superblocks; the one with the larger generation counts:
//!
//! | offset | length | content |
//! | --- | --- | --- |
//! | 0 | 8 | `FERRWAL1` |
//! | 8 | 16 | the log's id, random |
//! | 24 | 16 | its owner's id, which means something to the caller |
//! | 40 | 8 | the length of the ring in bytes |
//! | 48 | 8 | the generation |
//! | 56 | 8 | the head: groups before it do not count |
//! | 64 | 8 | the epoch of the last owner that appended |
//! | 72 | 8 | how often that owner has begun the log anew |
//! | 80 | 4 | CRC-32C of what is before |
//!
//! The ring is the rest. A group begins at a page, at the place that is its position modulo the ring's length, and may
//! go on at the ring's beginning:
//!
//! | offset | length | content |
//! | --- | --- | --- |
//! | 0 | 4 | `FrWG` |
//! | 4 | 4 | CRC-32C of the rest of these 40 bytes and of the records |
//! | 8 | 16 | the log's id |
//! | 24 | 8 | the group's position |
//! | 32 | 4 | the length of its records in bytes |
//! | 36 | 4 | zeros |
//! | 40 | | the records: 4 bytes of length, and so many bytes, each |
//!
//! The next group begins at the next page.

use ferrite_checks::fault_injection::{Bug, is_seeded};

/// A page.
pub(crate) const PAGE: u64 = ferrite_blob::PAGE_BYTES as u64;
/// The ring's place.
pub(crate) const RING_AT: u64 = 2 * PAGE;
/// The longest group, with its frame.
pub const GROUP_BYTES_MAX: usize = 4 << 20;
/// The bytes of a group before its records.
pub(crate) const FRAME_BYTES: usize = 40;
/// The length of a record, before its bytes.
pub(crate) const LEN_BYTES: usize = 4;
/// The longest record.
pub const RECORD_BYTES_MAX: usize = GROUP_BYTES_MAX - FRAME_BYTES - LEN_BYTES;
/// A log has room for some groups.
pub const SIZE_MIN: u64 = 4 * GROUP_BYTES_MAX as u64 + RING_AT;

const SUPERBLOCK_MAGIC: &[u8; 8] = b"FERRWAL1";
const GROUP_MAGIC: &[u8; 4] = b"FrWG";
/// Where the checksum of a superblock is.
const SUM_AT: usize = 80;

/// A time in which all copies of a log got the same groups. Of two copies, the one with the smaller term lacks what was
/// appended since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Term {
    /// The epoch of the owner; 0 if no owner has begun.
    pub epoch: u64,
    /// How often it has begun anew.
    pub restarts: u64,
}

/// The position of a record, or of the end. Positions of one log grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// That of its group, by which the head moves.
    pub group: u64,
    /// Its own. It says all: no other record of the log ever has it.
    pub record: u64,
}

impl Position {
    /// That of the first record of a group, or of none yet.
    pub(crate) fn of_group(group: u64) -> Position {
        Position {
            group,
            record: group + FRAME_BYTES as u64,
        }
    }
}

/// The part of the ring that begins at a position, as one or two parts of the device, each with its length.
pub(crate) fn places(ring_bytes: u64, position: u64, bytes: u64) -> [(u64, u64); 2] {
    let at = position % ring_bytes;
    let first = bytes.min(ring_bytes - at);
    [(RING_AT + at, first), (RING_AT, bytes - first)]
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) id: [u8; 16],
    pub(crate) owner: [u8; 16],
    pub(crate) ring_bytes: u64,
    pub(crate) generation: u64,
    pub(crate) head: u64,
    pub(crate) term: Term,
}

impl Superblock {
    pub(crate) fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        page[..8].copy_from_slice(SUPERBLOCK_MAGIC);
        page[8..24].copy_from_slice(&self.id);
        page[24..40].copy_from_slice(&self.owner);
        page[40..48].copy_from_slice(&self.ring_bytes.to_le_bytes());
        page[48..56].copy_from_slice(&self.generation.to_le_bytes());
        page[56..64].copy_from_slice(&self.head.to_le_bytes());
        page[64..72].copy_from_slice(&self.term.epoch.to_le_bytes());
        page[72..80].copy_from_slice(&self.term.restarts.to_le_bytes());
        let sum = crc32c::crc32c(&page[..SUM_AT]);
        page[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// `None`: it is torn, or something else.
    pub(crate) fn decode(page: &[u8]) -> Option<Superblock> {
        let is_whole = page.starts_with(SUPERBLOCK_MAGIC) && u32_at(page, SUM_AT)? == crc32c::crc32c(&page[..SUM_AT]);
        let found = Superblock {
            id: *page.get(8..)?.first_chunk()?,
            owner: *page.get(24..)?.first_chunk()?,
            ring_bytes: u64_at(page, 40)?,
            generation: u64_at(page, 48)?,
            head: u64_at(page, 56)?,
            term: Term {
                epoch: u64_at(page, 64)?,
                restarts: u64_at(page, 72)?,
            },
        };
        let is_possible = found.ring_bytes.is_multiple_of(PAGE)
            && (SIZE_MIN - RING_AT..1 << 62).contains(&found.ring_bytes)
            && found.head.is_multiple_of(PAGE)
            && found.head < 1 << 62;
        (is_whole && is_possible).then_some(found)
    }
}

/// The bytes that a group takes on the device.
pub(crate) fn padded(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(PAGE)
}

fn sum(group: &[u8]) -> u32 {
    crc32c::crc32c(&group[8..])
}

/// Writes the frame of a group; `group` is it with its records, without padding.
pub(crate) fn frame(id: [u8; 16], position: u64, group: &mut [u8]) {
    let len = (group.len() - FRAME_BYTES) as u32;
    group[..4].copy_from_slice(GROUP_MAGIC);
    group[8..24].copy_from_slice(&id);
    group[24..32].copy_from_slice(&position.to_le_bytes());
    group[32..36].copy_from_slice(&len.to_le_bytes());
    group[36..40].fill(0);
    let sum = sum(group);
    group[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// The length of the group that begins with this page, if one of this log may begin at this position.
pub(crate) fn group_bytes(id: [u8; 16], position: u64, page: &[u8]) -> Option<usize> {
    let bytes = u32_at(page, 32)? as usize + FRAME_BYTES;
    let is_one = page.starts_with(GROUP_MAGIC) && page[8..24] == id && u64_at(page, 24)? == position;
    (is_one && bytes <= GROUP_BYTES_MAX).then_some(bytes)
}

/// Whether a group, without padding, is as it was written.
pub(crate) fn is_whole(group: &[u8]) -> bool {
    u32_at(group, 4) == Some(sum(group)) || is_seeded(Bug::LogGroupUnverified)
}

/// The records of a group, without padding, each with its place in it. `None`: a length cannot be.
pub(crate) fn records(group: &[u8]) -> impl Iterator<Item = Option<(usize, &[u8])>> {
    let mut at = FRAME_BYTES;
    std::iter::from_fn(move || {
        let begins = at;
        let left = group.get(at..).filter(|left| !left.is_empty())?;
        let record = u32_at(left, 0).and_then(|len| left[LEN_BYTES..].get(..len as usize));
        at = record.map_or(group.len(), |record| begins + LEN_BYTES + record.len());
        Some(record.map(|record| (begins, record)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_is_read_as_it_was_written_and_others_are_refused() {
        let superblock = Superblock {
            id: [1; 16],
            owner: [2; 16],
            ring_bytes: 64 << 20,
            generation: 9,
            head: 12 << 12,
            term: Term { epoch: 3, restarts: 4 },
        };
        let mut page = vec![7; 4096];
        superblock.encode(&mut page);
        assert_eq!(Superblock::decode(&page), Some(superblock.clone()));
        for bit in 0..84 * 8 {
            let mut other = page.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&other), None, "bit {bit}");
        }
        for wrong in [
            Superblock {
                ring_bytes: 0,
                ..superblock.clone()
            },
            Superblock {
                head: 1,
                ..superblock.clone()
            },
            Superblock {
                head: 1 << 62,
                ..superblock
            },
        ] {
            wrong.encode(&mut page);
            assert_eq!(Superblock::decode(&page), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_group_is_read_as_it_was_written_and_others_are_refused() {
        let mut group = vec![0; FRAME_BYTES];
        for record in [&b"one"[..], b"", b"three"] {
            group.extend_from_slice(&(record.len() as u32).to_le_bytes());
            group.extend_from_slice(record);
        }
        frame([5; 16], 8192, &mut group);
        assert_eq!(group_bytes([5; 16], 8192, &group), Some(group.len()));
        assert_eq!(group_bytes([5; 16], 4096, &group), None);
        assert_eq!(group_bytes([6; 16], 8192, &group), None);
        let read: Vec<_> = records(&group).collect();
        assert_eq!(read, [Some((40, &b"one"[..])), Some((47, b"")), Some((51, b"three"))]);
        for bit in 0..group.len() * 8 {
            let mut other = group.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let is_known = group_bytes([5; 16], 8192, &other) == Some(group.len()) && is_whole(&other);
            assert!(!is_known, "bit {bit}");
        }
        // Lengths that reach beyond the group.
        group[FRAME_BYTES] = 200;
        assert_eq!(records(&group).collect::<Vec<_>>(), [None]);
    }
}
