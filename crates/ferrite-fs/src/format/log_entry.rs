//! A page log as stored on the medium; see `docs/format.md`.
//!
//! ```text
//! segment   4, 8, 16, 32 or 64 units, aligned to its size; unit 0 is the header, entries follow
//! header    word 0  header unit of the next segment, 0 = none: the only word that changes, by a record
//!           word 1  signature | units << 32 | upper part of the number in word 3 << 40
//!           word 2  inode | logical block << 32
//!           word 3  low half of the newest entry of the segment before, 0 = none | crc32c of words 1, 2 and that << 32
//! entry     whole units; its last 16 bytes are the trailer, its data ends where the trailer begins
//! trailer   word 0  offset (16) | length (16) | index in the segment (8) | units after it (8) | flags (8) | depth (8)
//!           word 1  crc32c | units of all segments of the page << 32
//! ```
//!
//! The metadata follows the data, so that a reader can walk from the newest entry backwards. Everything an append must
//! know (space in the segment, length of the log) is in the newest trailer; DRAM holds nothing for a logged page.

use ferrite_map::PageId;
use ferrite_pm::Region;
use ferrite_vfs::{FsError, Result};
use zerocopy::IntoBytes;

use crate::format::checksum::crc32c_append;
use crate::format::data_sum;
use crate::format::inode::CRC_SPREAD;
use crate::format::layout::BLOCK_BYTES;
use crate::format::unit::{Segment, Unit, UnitSize};

const TRAILER_BYTES: usize = 16;
const SIGNATURE: u32 = u32::from_le_bytes(*b"FpLg");
/// Where word 1 of a header has what is left of a unit's number beyond 32 bits.
const PREVIOUS_HIGH_SHIFT: u32 = 40;
/// Flag: the entry has no data; its range reads as zeros.
const FLAG_ZERO: u8 = 1;
/// The header word, which records may change.
pub(crate) const NEXT_BYTES: u64 = 8;

impl UnitSize {
    /// Units that an entry with `len` bytes of data takes.
    #[inline]
    pub(crate) fn units_for(self, len: usize) -> u32 {
        self.units_of(len + TRAILER_BYTES)
    }

    /// Longest log, in units: with more than a page's worth of log, a merge writes less than it frees.
    #[inline]
    pub(crate) fn log_units_max(self) -> u32 {
        self.block_units()
    }
}

/// The trailer after the data of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// Where in the page.
    pub(crate) offset: u16,
    /// How many bytes.
    pub(crate) len: u16,
    /// The trailer's unit, counted from the segment's header.
    pub(crate) index: u8,
    /// Free units after it in the segment.
    pub(crate) space: u8,
    /// The range reads as zeros.
    pub(crate) zero: bool,
    /// Entries of the page up to this one; 255 means 255 or more.
    pub(crate) depth: u8,
    /// Units of all segments of the page.
    pub(crate) log_units: u16,
}

impl Trailer {
    /// Units of the entry.
    pub(crate) fn units(&self, size: UnitSize) -> u32 {
        size.units_for(self.data_len())
    }

    /// Bytes stored before the trailer.
    pub(crate) fn data_len(&self) -> usize {
        if self.zero { 0 } else { usize::from(self.len) }
    }

    /// Units of its segment.
    pub(crate) fn segment_units(&self) -> u32 {
        u32::from(self.index) + u32::from(self.space) + 1
    }

    /// Whether it is the first entry of its segment.
    fn is_first(&self, size: UnitSize) -> bool {
        u32::from(self.index) == self.units(size)
    }

    fn first_word(&self) -> u64 {
        let flags = if self.zero { FLAG_ZERO } else { 0 };
        u64::from(self.offset)
            | u64::from(self.len) << 16
            | u64::from(self.index) << 32
            | u64::from(self.space) << 40
            | u64::from(flags) << 48
            | u64::from(self.depth) << 56
    }

    fn parse(first: u64, second: u64) -> Trailer {
        Trailer {
            offset: first as u16,
            len: (first >> 16) as u16,
            index: (first >> 32) as u8,
            space: (first >> 40) as u8,
            zero: (first >> 48) as u8 & FLAG_ZERO != 0,
            depth: (first >> 56) as u8,
            log_units: (second >> 32) as u16,
        }
    }

    /// Checksum of an entry at `unit` of page (ino, lblk), bound to its place, so that stale entries elsewhere do not
    /// pass.
    fn checksum(&self, PageId { ino, lblk }: PageId, unit: Unit, data: &[u8]) -> u32 {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let page = u64::from(ino) << 32 | u64::from(lblk);
        let place = unit.number() ^ u64::from(self.log_units) << 32;
        let mixed = (self.first_word() ^ page.wrapping_mul(K)).wrapping_mul(K);
        let mixed = (mixed ^ mixed >> 29 ^ place).wrapping_mul(K);
        crc32c_append((mixed >> 32) as u32, data)
    }

    /// Writes data and trailer to the end of `entry`, which has a whole number of units.
    pub(crate) fn encode(&self, page: PageId, unit: Unit, data: &[u8], entry: &mut [u8]) {
        let at = entry.len() - TRAILER_BYTES;
        entry[at - data.len()..at].copy_from_slice(data);
        let second = u64::from(self.checksum(page, unit, data)) | u64::from(self.log_units) << 32;
        entry[at..at + 8].copy_from_slice(&self.first_word().to_le_bytes());
        entry[at + 8..].copy_from_slice(&second.to_le_bytes());
    }
}

/// Part of a page: its bytes `from..to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

/// An entry found on the medium.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Its trailer.
    pub(crate) trailer: Trailer,
    /// The unit of its trailer, which identifies the entry.
    pub(crate) unit: Unit,
    page: PageId,
    crc: u32,
}

fn damaged(page: PageId, unit: Unit, what: &str) -> FsError {
    data_sum::damaged(page, format!("log entry at unit {unit}: {what}; run `ferrite fsck`"))
}

impl Entry {
    /// Reads the trailer at `unit`, which is in a data block, and checks that it is plausible.
    pub(crate) fn load(region: &Region, page: PageId, unit: Unit) -> Result<Entry> {
        let end = unit.end();
        let (first, second) = (region.load(end - 16), region.load(end - 8));
        let trailer = Trailer::parse(first, second);
        let ends_in_page = u64::from(trailer.offset) + u64::from(trailer.len) <= BLOCK_BYTES;
        let index = u32::from(trailer.index);
        let in_segment = index >= trailer.units(unit.size()) && index <= unit.index();
        let segment = trailer.segment_units();
        let is_segment = matches!(segment, 4 | 8 | 16 | 32 | 64) && segment <= unit.size().block_units();
        if trailer.len == 0 || !ends_in_page || !in_segment || !is_segment {
            return Err(damaged(page, unit, "impossible lengths"));
        }
        Ok(Entry {
            trailer,
            unit,
            page,
            crc: second as u32,
        })
    }

    /// The part of the page that it covers.
    pub(crate) fn span(&self) -> Span {
        Span {
            from: self.trailer.offset,
            to: self.trailer.offset + self.trailer.len,
        }
    }

    /// Copies its data (none for zeros) and verifies the checksum.
    pub(crate) fn read<'b>(&self, region: &Region, buffer: &'b mut [u8; BLOCK_BYTES as usize]) -> Result<&'b [u8]> {
        let data = &mut buffer[..self.trailer.data_len()];
        let end = self.unit.end() - TRAILER_BYTES as u64;
        region.read(end - data.len() as u64, data);
        if self.trailer.checksum(self.page, self.unit, data) != self.crc {
            return Err(damaged(self.page, self.unit, "wrong checksum"));
        }
        Ok(data)
    }

    /// Its segment, according to the trailer.
    pub(crate) fn segment(&self) -> Segment {
        Segment {
            header: self.unit.minus(u32::from(self.trailer.index)),
            units: self.trailer.segment_units(),
        }
    }

    /// Whether it is the first entry of its segment.
    pub(crate) fn is_first(&self) -> bool {
        self.trailer.is_first(self.unit.size())
    }

    /// The entry before it; `None` for the first of the page. Checks the header when this leads to another segment.
    pub(crate) fn previous(&self, region: &Region) -> Result<Option<Unit>> {
        if !self.is_first() {
            return Ok(Some(self.unit.minus(self.trailer.units(self.unit.size()))));
        }
        let header = Header::load(region, self.page, self.segment().header)?;
        if header.units != self.trailer.segment_units() {
            return Err(damaged(self.page, self.unit, "its segment has a different length"));
        }
        Ok(header.previous)
    }
}

/// A segment's header, without the word that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Units of the segment, including the header.
    pub(crate) units: u32,
    /// Newest entry of the previous segment.
    pub(crate) previous: Option<Unit>,
}

impl Header {
    fn words(&self, PageId { ino, lblk }: PageId) -> [u64; 4] {
        let previous = self.previous.map_or(0, Unit::number);
        let (low, high) = (previous as u32, previous >> 32);
        let first = u64::from(SIGNATURE) | u64::from(self.units) << 32 | high << PREVIOUS_HIGH_SHIFT;
        let second = u64::from(ino) | u64::from(lblk) << 32;
        let crc = crc32c_append(low.wrapping_mul(CRC_SPREAD), [first, second].as_bytes());
        [0, first, second, u64::from(low) | u64::from(crc) << 32]
    }

    /// Writes it to the first bytes of `segment`.
    pub(crate) fn encode(&self, page: PageId, segment: &mut [u8]) {
        for (chunk, word) in segment.chunks_exact_mut(8).zip(self.words(page)) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads and checks the header at `unit` of a segment of page (ino, lblk).
    pub(crate) fn load(region: &Region, page: PageId, unit: Unit) -> Result<Header> {
        let at = unit.offset();
        let found = [8, 16, 24].map(|offset| region.load(at + offset));
        let previous = u64::from(found[2] as u32) | found[0] >> PREVIOUS_HIGH_SHIFT << 32;
        let header = Header {
            units: (found[0] >> 32) as u32 & 0xff,
            previous: (previous != 0).then(|| Unit::new(previous, unit.size())),
        };
        if header.words(page)[1..] != found {
            return Err(damaged(
                page,
                unit,
                "the header of its segment is damaged, or another page's",
            ));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use ferrite_map::BlockNo;

    use super::*;

    #[test]
    fn an_entry_reads_back_at_its_place_only() {
        for unit_bytes in [64, 128, 256, 512, 1024] {
            reads_back_at_its_place_only(UnitSize::of_bytes(unit_bytes).unwrap());
        }
    }

    fn reads_back_at_its_place_only(size: UnitSize) {
        let region = Region::anonymous(16 << 12).unwrap();
        let page = PageId::from_raw(7, 9);
        let len = size.bytes() as usize;
        let trailer = Trailer {
            offset: 100,
            len: len as u16,
            index: 2,
            space: 1,
            zero: false,
            depth: 1,
            log_units: 4,
        };
        assert_eq!(
            (trailer.units(size), trailer.segment_units(), trailer.is_first(size)),
            (2, 4, true)
        );
        let mut bytes = vec![0; 3 * len];
        let header = Header {
            units: 4,
            previous: None,
        };
        let first = Unit::first_of(BlockNo::new(3), size);
        let (unit, data) = (first.plus(2), vec![5; len]);
        header.encode(page, &mut bytes);
        trailer.encode(page, unit, &data, &mut bytes[len..]);
        region.stream(first.offset(), &bytes);
        let mut buffer = [0; 4096];
        let entry = Entry::load(&region, page, unit).unwrap();
        assert_eq!(entry.trailer, trailer);
        assert_eq!(entry.read(&region, &mut buffer).unwrap(), &data);
        assert_eq!(entry.previous(&region).unwrap(), None);
        let foreign = Entry::load(&region, PageId::from_raw(7, 8), unit).unwrap();
        assert!(foreign.read(&region, &mut buffer).is_err(), "another page's entry");
        assert!(foreign.previous(&region).is_err(), "another page's segment");
        region.store(unit.offset(), region.load(unit.offset()) ^ 1);
        assert!(entry.read(&region, &mut buffer).is_err(), "a flipped bit");
        assert!(Entry::load(&region, page, first.plus(1)).is_err(), "no trailer there");
    }

    /// A pool of 2 TiB has units whose numbers need 35 bits.
    #[test]
    fn a_header_names_units_beyond_32_bits() {
        let region = Region::anonymous(16 << 12).unwrap();
        let page = PageId::from_raw(7, 9);
        let first = Unit::first_of(BlockNo::new(3), UnitSize::SMALLEST);
        for number in [1, u64::from(u32::MAX), 1 << 32, (1 << 35) - 65] {
            let header = Header {
                units: 64,
                previous: Some(Unit::new(number, UnitSize::SMALLEST)),
            };
            let mut bytes = [0; 64];
            header.encode(page, &mut bytes);
            region.stream(first.offset(), &bytes);
            assert_eq!(Header::load(&region, page, first).unwrap(), header);
            for bit in 64..256 {
                let at = first.offset() + bit / 64 * 8;
                region.store(at, region.load(at) ^ 1 << (bit % 64));
                assert!(Header::load(&region, page, first).is_err(), "bit {bit} is not covered");
                region.store(at, region.load(at) ^ 1 << (bit % 64));
            }
        }
    }
}
