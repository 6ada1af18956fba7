//! Slices as objects: their ids, names and bytes.
//!
//! An object is 36 bytes of header, and then the bytes of the slice as they are:
//!
//! | offset | length | content |
//! | --- | --- | --- |
//! | 0 | 4 | `FrS1` |
//! | 4 | 1 | how the bytes are stored; 0: as they are |
//! | 5 | 3 | zeros |
//! | 8 | 8 | the epoch of the id |
//! | 16 | 8 | the number of the id |
//! | 24 | 8 | the length of the slice in bytes |
//! | 32 | 4 | CRC-32C of everything before it and of the stored bytes |
//!
//! Numbers are little-endian. The id is a part of it, so the bytes of one slice never pass for those of another.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use ferrite_checks::fault_injection::{Bug, is_seeded};

use crate::error::{Error, Result};

/// The length of a block of a file: slices are not longer, and do not cross its borders.
pub const BLOCK_BYTES: u64 = 4 << 20;
const MAGIC: [u8; 4] = *b"FrS1";
const HEADER_BYTES: usize = 36;
/// Where the checksum is.
const CRC_AT: usize = 32;

/// The id of a slice: the epoch of the owner that made it, and a number that this owner used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceId {
    /// The owner's epoch.
    pub epoch: u64,
    /// Which of its slices this is.
    pub number: u64,
}

impl fmt::Display for SliceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}/{:016x}", self.epoch, self.number)
    }
}

impl SliceId {
    /// The id that [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<SliceId> {
        let (epoch, number) = text.split_once('/')?;
        let hex = |text: &str| {
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let is_number = text.len() == 16 && text.bytes().all(is_hex);
            is_number.then(|| u64::from_str_radix(text, 16).ok()).flatten()
        };
        Some(SliceId {
            epoch: hex(epoch)?,
            number: hex(number)?,
        })
    }
}

/// The length of a slice's object.
pub fn object_bytes(slice_bytes: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(slice_bytes)
}

fn crc(header: &[u8], stored: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..CRC_AT]), stored)
}

/// The object of a slice that consists of these parts.
pub fn encode<'p>(id: SliceId, parts: impl Iterator<Item = &'p [u8]> + Clone) -> Bytes {
    let len: usize = parts.clone().map(<[u8]>::len).sum();
    let mut object = BytesMut::with_capacity(HEADER_BYTES + len);
    object.put_slice(&MAGIC);
    object.put_bytes(0, 4);
    object.put_u64_le(id.epoch);
    object.put_u64_le(id.number);
    object.put_u64_le(len as u64);
    object.put_bytes(0, 4);
    parts.for_each(|part| object.put_slice(part));
    let (header, stored) = object.split_at_mut(HEADER_BYTES);
    let sum = crc(header, stored);
    header[CRC_AT..].copy_from_slice(&sum.to_le_bytes());
    object.freeze()
}

/// The bytes of a slice, from the object that [`encode`] has just made.
pub fn payload(object: &Bytes) -> Bytes {
    object.slice(HEADER_BYTES.min(object.len())..)
}

/// The bytes of a slice, from its object.
///
/// # Errors
/// [`Error::Damaged`]: they are not those that were stored.
pub fn decode(id: SliceId, object: &Bytes) -> Result<Bytes> {
    let damaged = |what: &str| Err(Error::Damaged(format!("slice {id}: {what}")));
    if object.len() < HEADER_BYTES {
        return damaged("its object is too short");
    }
    let (header, stored) = object.split_at(HEADER_BYTES);
    if header[..4] != MAGIC {
        return damaged("its object holds something else");
    }
    if header[CRC_AT..] != crc(header, stored).to_le_bytes() && !is_seeded(Bug::SliceUnverified) {
        return damaged("its object has the wrong checksum");
    }
    if header[4..8] != [0; 4] {
        return damaged("a later version of Ferrite stored its object");
    }
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
    if (number(8), number(16)) != (id.epoch, id.number) {
        return damaged("its object is that of another slice");
    }
    if number(24) != stored.len() as u64 || stored.len() as u64 > BLOCK_BYTES {
        return damaged("its object has another length than it says");
    }
    Ok(object.slice(HEADER_BYTES..))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SliceId = SliceId { epoch: 3, number: 70 };

    #[test]
    fn a_slice_is_read_as_it_was_stored() {
        let object = encode(ID, [&b"one"[..], b"", b"two"].into_iter());
        assert_eq!(object.len() as u64, object_bytes(6));
        assert_eq!(decode(ID, &object).unwrap(), b"onetwo"[..]);
        assert_eq!(SliceId::parse(&ID.to_string()), Some(ID));
    }

    /// Protects readers: no changed bit, no other length, no other slice passes.
    #[test]
    fn any_other_object_is_refused() {
        let object = encode(ID, std::iter::once(&b"content of a slice"[..]));
        for bit in 0..object.len() * 8 {
            let mut other = object.to_vec();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(ID, &other.into()).is_err(), "bit {bit}");
        }
        for len in 0..object.len() {
            assert!(decode(ID, &object.slice(..len)).is_err(), "{len} bytes");
        }
        assert!(decode(SliceId { epoch: 3, number: 71 }, &object).is_err());
    }

    #[test]
    fn other_names_are_no_ids() {
        for text in [
            "",
            "1/2",
            "0000000000000001",
            "000000000000000G/0000000000000001",
            "+00000000000000A/0000000000000001",
        ] {
            assert_eq!(SliceId::parse(text), None, "{text}");
        }
    }
}
