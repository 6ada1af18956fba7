//! The bytes of a log. All numbers are little-endian.
//!
//! The header is the first page:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | `FERRLOG1` |
//! | 8 | 16 | the log's id, random |
//! | 24 | 8 | capacity, 0: none |
//! | 32 | 4 | CRC-32C of what is before |
//! | 40 | 8 | where the log starts; changed in place, by a rewind |
//!
//! Records follow, from [`FIRST_RECORD_AT`] on. Each is a frame and an append's bytes:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | `FLR1` |
//! | 4 | 4 | length of the bytes |
//! | 8 | 8 | who appended: a random number for each opened log |
//! | 16 | 8 | which of its appends this is |
//! | 24 | 4 | CRC-32C of the id and the bytes |
//! | 28 | 4 | CRC-32C of the id and the frame so far |
//!
//! Zeros may lie between records, and remains of appends that never returned. The checksums include the id so that a
//! log that is appended to another one, and torn there, is not taken for records of that one.

use crate::error::{Error, Result};

/// Where records begin. The header's page is never freed by a rewind.
pub const FIRST_RECORD_AT: u64 = 4096;
/// Bytes of an append beyond its data.
pub const FRAME_BYTES: u64 = 32;
/// The longest append, if the file accepts it.
pub const RECORD_BYTES_MAX: u64 = (8 << 20) - FRAME_BYTES;

/// Position of the start in the header.
pub(crate) const START_AT: u64 = 40;

const LOG_MAGIC: &[u8; 8] = b"FERRLOG1";
const RECORD_MAGIC: &[u8; 4] = b"FLR1";
const FRAME: usize = FRAME_BYTES as usize;
/// Bytes of the header that have a meaning.
pub(crate) const HEADER: usize = 48;

/// The contents of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: [u8; 16],
    pub(crate) capacity: u64,
    pub(crate) start: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Header {
    /// The page.
    pub(crate) fn page(&self) -> Vec<u8> {
        let mut page = vec![0; FIRST_RECORD_AT as usize];
        page[..8].copy_from_slice(LOG_MAGIC);
        page[8..24].copy_from_slice(&self.id);
        page[24..32].copy_from_slice(&self.capacity.to_le_bytes());
        let sum = crc32c::crc32c(&page[..32]);
        page[32..36].copy_from_slice(&sum.to_le_bytes());
        page[40..48].copy_from_slice(&self.start.to_le_bytes());
        page
    }

    /// Reads one.
    pub(crate) fn read(bytes: &[u8]) -> Result<Header> {
        let read = || {
            let id = *bytes.get(8..)?.first_chunk::<16>()?;
            let is_whole = bytes.starts_with(LOG_MAGIC) && u32_at(bytes, 32)? == crc32c::crc32c(&bytes[..32]);
            is_whole.then_some(Header {
                id,
                capacity: u64_at(bytes, 24)?,
                start: u64_at(bytes, START_AT as usize)?,
            })
        };
        read().ok_or(Error::NotALog)
    }
}

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) len: usize,
    pub(crate) writer: u64,
    pub(crate) number: u64,
    sum: u32,
}

fn sum_of(id: &[u8; 16], bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(id), bytes)
}

impl Frame {
    /// A record of these bytes, which are at most [`RECORD_BYTES_MAX`].
    pub(crate) fn record<'a>(
        id: &[u8; 16],
        writer: u64,
        number: u64,
        len: usize,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Vec<u8> {
        let mut record = Vec::with_capacity(FRAME + len);
        record.resize(FRAME, 0);
        parts.for_each(|part| record.extend_from_slice(part));
        let sum = sum_of(id, &record[FRAME..]);
        record[..4].copy_from_slice(RECORD_MAGIC);
        record[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        record[8..16].copy_from_slice(&writer.to_le_bytes());
        record[16..24].copy_from_slice(&number.to_le_bytes());
        record[24..28].copy_from_slice(&sum.to_le_bytes());
        let own = sum_of(id, &record[..28]);
        record[28..32].copy_from_slice(&own.to_le_bytes());
        record
    }

    /// The frame at the beginning of `bytes`, if any.
    pub(crate) fn read(id: &[u8; 16], bytes: &[u8]) -> Option<Frame> {
        let is_whole = bytes.starts_with(RECORD_MAGIC) && u32_at(bytes, 28)? == sum_of(id, &bytes[..28]);
        let len = u64::from(u32_at(bytes, 4)?);
        (is_whole && len <= RECORD_BYTES_MAX).then_some(Frame {
            len: len as usize,
            writer: u64_at(bytes, 8)?,
            number: u64_at(bytes, 16)?,
            sum: u32_at(bytes, 24)?,
        })
    }

    /// Whether these are its bytes.
    pub(crate) fn is_of(&self, id: &[u8; 16], bytes: &[u8]) -> bool {
        bytes.len() == self.len && sum_of(id, bytes) == self.sum
    }
}

/// The position in `bytes` where the next frame may be, from `from` on; also one where a frame's first bytes may be cut
/// off at the end.
pub(crate) fn next_candidate(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < bytes.len() {
        let rest = &bytes[at..];
        match rest.iter().position(|byte| *byte == RECORD_MAGIC[0]) {
            None => return bytes.len(),
            Some(skipped) => at += skipped,
        }
        let len = RECORD_MAGIC.len().min(bytes.len() - at);
        if bytes[at..at + len] == RECORD_MAGIC[..len] {
            return at;
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let header = Header {
            id: [7; 16],
            capacity: 99,
            start: 4096,
        };
        let page = header.page();
        assert_eq!(Header::read(&page).unwrap(), header);
        for bit in 0..36 * 8 {
            let mut wrong = page.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::read(&wrong).is_err(), "bit {bit}");
        }
        assert!(Header::read(&page[..40]).is_err() && Header::read(&[]).is_err());
        let parts: [&[u8]; 2] = [b"on", b"e"];
        let record = Frame::record(&header.id, 5, 6, 3, parts.into_iter());
        let frame = Frame::read(&header.id, &record).unwrap();
        assert_eq!((frame.len, frame.writer, frame.number), (3, 5, 6));
        assert!(frame.is_of(&header.id, b"one") && !frame.is_of(&header.id, b"onE"));
        for bit in 0..FRAME * 8 {
            let mut wrong = record.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Frame::read(&header.id, &wrong), None, "bit {bit}");
        }
        assert_eq!(Frame::read(&[8; 16], &record), None, "of another log");
        assert_eq!(Frame::read(&header.id, &record[..31]), None);
    }

    #[test]
    fn candidates_are_found_also_where_they_are_cut_off() {
        assert_eq!(next_candidate(b"FxFLFLR1", 0), 4);
        assert_eq!(next_candidate(b"FLR1", 1), 4);
        assert_eq!(next_candidate(b"....FLR", 0), 4);
        assert_eq!(next_candidate(b"...FLRF", 0), 6);
        assert_eq!(next_candidate(b"\0\0\0", 0), 3);
    }
}
