//! The bytes of objects.
//!
//! An object is 36 bytes of header, and then the parts of its slice, each with a checksum:
//!
//! | offset | length | content |
//! | --- | --- | --- |
//! | 0 | 4 | `FrS2` |
//! | 4 | 1 | the form of the parts: 1: compressed by zstd, 2: encrypted (`cipher`), 3: compressed, then encrypted |
//! | 5 | 3 | zeros |
//! | 8 | 8 | the epoch of the id |
//! | 16 | 8 | the number of the id |
//! | 24 | 8 | the length of the slice in bytes |
//! | 32 | 4 | CRC-32C of everything before it |
//!
//! Numbers are little-endian. The parts of a slice are [`PART_BYTES`] long, but for the last one; a slice that is
//! compressed has one part. Behind each part, as it is stored, is the CRC-32C of the header's first 32 bytes, of the
//! part's number (4 bytes) and of the stored part; the same is authenticated with an encrypted one. So no part passes
//! for another, nor for one of another slice. A reader knows the header of a slice that is not compressed, and can read
//! some parts alone.
//!
//! With a key nothing is read that is not encrypted: nobody without the key can replace content.
//!
//! Every object says its form, so compression may be switched on and off at any time.

use std::borrow::Cow;
use std::ops::{Range, RangeInclusive};

use bytes::{Bytes, BytesMut};
use ferrite_checks::fault_injection::{Bug, is_seeded};
use object_store::PutPayload;

use crate::cipher::{ContentKey, SEAL_BYTES, SealSalt};
use crate::error::{Error, Result};
use crate::slice::{BLOCK_BYTES, PART_BYTES, SliceId};

const MAGIC: [u8; 4] = *b"FrS2";
const HEADER_BYTES: usize = 36;
/// Where the header's checksum is.
const HEADER_CRC_AT: usize = 32;
const CRC_BYTES: usize = 4;
/// Forms of the parts.
const COMPRESSED: u8 = 1;
const ENCRYPTED: u8 = 2;
/// Fast enough for a disk, and most of what higher levels save.
const LEVEL: i32 = 3;
/// Compression that saves less than this part costs readers more than it saves.
const WORTH: usize = 16;

/// How new objects are made, and objects are read.
#[derive(Debug, Clone, Default)]
pub struct Codec {
    /// New slices are compressed, where that makes them smaller.
    pub compresses: bool,
    /// The key of the content, if it is encrypted.
    pub key: Option<ContentKey>,
}

fn damaged<T>(id: SliceId, what: &str) -> Result<T> {
    Err(Error::Damaged(format!("slice {id}: {what}")))
}

/// How many parts a slice has. An empty one has one, too, which authenticates the header.
fn parts_of(slice_bytes: u64) -> u32 {
    slice_bytes.div_ceil(u64::from(PART_BYTES)).max(1) as u32
}

/// A header without its checksum, which is also what is authenticated with each part.
struct Header([u8; HEADER_CRC_AT]);

impl Header {
    fn new(id: SliceId, form: u8, len: u64) -> Header {
        let mut bytes = [0; HEADER_CRC_AT];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = form;
        for (at, number) in [(8, id.epoch), (16, id.number), (24, len)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        Header(bytes)
    }

    fn crc(&self) -> u32 {
        crc32c::crc32c(&self.0)
    }

    fn part_crc(&self, number: u32, stored: &[u8]) -> u32 {
        let with_number = crc32c::crc32c_append(self.crc(), &number.to_le_bytes());
        crc32c::crc32c_append(with_number, stored)
    }

    /// The form and the length of the slice with this id, from the beginning of its object.
    fn parse(id: SliceId, object: &[u8]) -> Result<(Header, u8, u64)> {
        let Some((bytes, crc)) = object.get(..HEADER_BYTES).map(|header| header.split_at(HEADER_CRC_AT)) else {
            return damaged(id, "its object is too short");
        };
        if bytes[..4] != MAGIC {
            return damaged(id, "its object holds something else");
        }
        let mut header = Header([0; HEADER_CRC_AT]);
        header.0.copy_from_slice(bytes);
        if crc != header.crc().to_le_bytes() && !is_seeded(Bug::SliceUnverified) {
            return damaged(id, "its object has the wrong checksum");
        }
        let form = bytes[4];
        if form > COMPRESSED | ENCRYPTED || bytes[5..8] != [0; 3] {
            return damaged(id, "a later version of Ferrite stored its object");
        }
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        if (number(8), number(16)) != (id.epoch, id.number) {
            return damaged(id, "its object is that of another slice");
        }
        match number(24) {
            len if len > BLOCK_BYTES => damaged(id, "its object has another length than it says"),
            len => Ok((header, form, len)),
        }
    }
}

impl Codec {
    /// By how much a part is longer as it is stored.
    fn more_bytes(&self) -> usize {
        CRC_BYTES + self.key.as_ref().map_or(0, |_| SEAL_BYTES)
    }

    fn form(&self) -> u8 {
        self.key.as_ref().map_or(0, |_| ENCRYPTED)
    }

    /// The lengths that the object of a slice may have.
    pub fn object_bytes(&self, slice_bytes: u32) -> RangeInclusive<u64> {
        let more = self.more_bytes() as u64;
        let least = HEADER_BYTES as u64 + more;
        let parts = u64::from(parts_of(u64::from(slice_bytes)));
        least..=HEADER_BYTES as u64 + u64::from(slice_bytes) + parts * more
    }

    /// Where some parts of a slice are in its object, if that is not compressed.
    pub(crate) fn range_of(&self, slice_bytes: u32, parts: &Range<u32>) -> Range<u64> {
        let at = |part: u32| {
            let before = part.saturating_mul(PART_BYTES).min(slice_bytes);
            (HEADER_BYTES + self.more_bytes() * part as usize) as u64 + u64::from(before)
        };
        at(parts.start)..at(parts.end)
    }

    /// The object of a slice. Made again with the same salt it is the same: a request that is repeated finds what it
    /// has stored.
    ///
    /// # Errors
    /// [`Error::Failed`]: it cannot be compressed or encrypted.
    pub(crate) fn encode(&self, id: SliceId, slice: Bytes, salt: Option<SealSalt>) -> Result<PutPayload> {
        let (mut form, len) = (self.form(), slice.len() as u64);
        let mut content = slice;
        if self.compresses {
            let smaller = zstd::bulk::compress(&content, LEVEL)
                .map_err(|error| Error::Failed(format!("slice {id} cannot be compressed: {error}")))?;
            if smaller.len() < content.len() - content.len() / WORTH {
                form |= COMPRESSED;
                content = smaller.into();
            }
        }
        let header = Header::new(id, form, len);
        let mut object = vec![Bytes::copy_from_slice(&header.0), sum(header.crc())];
        let part_bytes = match form & COMPRESSED {
            0 => PART_BYTES as usize,
            _ => content.len().max(1),
        };
        for number in 0..content.len().div_ceil(part_bytes).max(1) {
            let from = number * part_bytes;
            let part = content.slice(from..content.len().min(from + part_bytes));
            let stored = match &self.key {
                None => part,
                Some(key) => {
                    let sealed = salt.and_then(|salt| key.seal(salt, number as u32, &header.0, &part));
                    let sealed = sealed.ok_or_else(|| Error::Failed(format!("slice {id} cannot be encrypted")))?;
                    sealed.into()
                }
            };
            let crc = header.part_crc(number as u32, &stored);
            object.extend([stored, sum(crc)]);
        }
        Ok(PutPayload::from_iter(object))
    }

    /// The bytes of a slice, from its object.
    ///
    /// # Errors
    /// [`Error::Damaged`]: they are not those that were stored. [`Error::Refused`]: they need a key.
    pub fn decode(&self, id: SliceId, object: &Bytes) -> Result<Bytes> {
        let (header, form, len) = Header::parse(id, object)?;
        match (form & ENCRYPTED, self.form()) {
            (ENCRYPTED, 0) => {
                return Err(Error::Refused(format!(
                    "slice {id} is encrypted, and the pool has no key"
                )));
            }
            (0, ENCRYPTED) => return damaged(id, "its object is not encrypted, and others of this pool are"),
            _ => {}
        }
        let stored = &object[HEADER_BYTES..];
        if stored.is_empty() {
            return damaged(id, "its object is too short");
        }
        let slice = match form & COMPRESSED {
            0 => {
                let mut slice = BytesMut::with_capacity(len as usize);
                self.each_part(id, &header, 0, stored, |part| slice.extend_from_slice(part))?;
                slice.freeze()
            }
            // As it is bounded, so is what it can become.
            _ => {
                let clear = self.part(id, &header, 0, stored)?;
                match zstd::bulk::decompress(&clear, len as usize) {
                    Ok(slice) => slice.into(),
                    Err(_) => return damaged(id, "its object cannot be decompressed"),
                }
            }
        };
        match slice.len() as u64 == len {
            true => Ok(slice),
            false => damaged(id, "its object has another length than it says"),
        }
    }

    /// Some parts of a slice of this length, one by one, from the bytes of its object at [`Self::range_of`].
    ///
    /// # Errors
    /// [`Error::Damaged`]: they are not those that were stored, or the slice is compressed.
    pub(crate) fn decode_parts(
        &self,
        id: SliceId,
        slice_bytes: u32,
        parts: &Range<u32>,
        stored: &[u8],
    ) -> Result<Vec<Bytes>> {
        let header = Header::new(id, self.form(), u64::from(slice_bytes));
        let mut found = Vec::with_capacity(parts.len());
        // Bytes of their own: one may stay when the others go.
        self.each_part(id, &header, parts.start, stored, |part| {
            found.push(Bytes::copy_from_slice(part));
        })?;
        match found.len() == parts.len() {
            true => Ok(found),
            false => damaged(id, "its object has another length than it says"),
        }
    }

    /// Visits the bytes of the parts that are stored here, from the part `first` on.
    fn each_part(
        &self,
        id: SliceId,
        header: &Header,
        first: u32,
        stored: &[u8],
        mut visit: impl FnMut(&[u8]),
    ) -> Result<()> {
        let parts = stored.chunks(PART_BYTES as usize + self.more_bytes());
        for (number, part) in (first..).zip(parts) {
            visit(&self.part(id, header, number, part)?);
        }
        Ok(())
    }

    /// The bytes of a part, from what is stored.
    fn part<'s>(&self, id: SliceId, header: &Header, number: u32, stored: &'s [u8]) -> Result<Cow<'s, [u8]>> {
        let Some((stored, crc)) = stored.split_last_chunk::<CRC_BYTES>() else {
            return damaged(id, "its object is too short");
        };
        if *crc != header.part_crc(number, stored).to_le_bytes() && !is_seeded(Bug::SliceUnverified) {
            return damaged(id, "its object has the wrong checksum");
        }
        match &self.key {
            None => Ok(Cow::Borrowed(stored)),
            Some(key) => match key.open(number, &header.0, stored) {
                Some(clear) => Ok(Cow::Owned(clear)),
                None => damaged(
                    id,
                    "its object was not encrypted with this pool's key, or has changed since",
                ),
            },
        }
    }
}

fn sum(crc: u32) -> Bytes {
    Bytes::copy_from_slice(&crc.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use ferrite_testkit::rng::pattern;

    use super::*;

    const ID: SliceId = SliceId { epoch: 3, number: 70 };

    fn codecs() -> [Codec; 4] {
        let key = ContentKey::generate().unwrap();
        [(false, None), (true, None), (false, Some(&key)), (true, Some(&key))].map(|(compresses, key)| Codec {
            compresses,
            key: key.cloned(),
        })
    }

    fn object(codec: &Codec, slice: &[u8]) -> Bytes {
        codec
            .encode(ID, Bytes::copy_from_slice(slice), SealSalt::random())
            .unwrap()
            .into()
    }

    /// An object of one part, with checksums that are right.
    fn with_sums(mut object: Vec<u8>) -> Bytes {
        let header = Header(object[..HEADER_CRC_AT].try_into().unwrap());
        let end = object.len() - CRC_BYTES;
        let of_part = header.part_crc(0, &object[HEADER_BYTES..end]);
        object[HEADER_CRC_AT..HEADER_BYTES].copy_from_slice(&header.crc().to_le_bytes());
        object[end..].copy_from_slice(&of_part.to_le_bytes());
        object.into()
    }

    #[test]
    fn a_slice_is_read_as_it_was_stored() {
        let random = pattern(1, BLOCK_BYTES as usize);
        for codec in codecs() {
            for slice in [&b""[..], b"one", &[b'x'; 100_000], &random] {
                let object = object(&codec, slice);
                let lengths = codec.object_bytes(slice.len() as u32);
                assert!(lengths.contains(&(object.len() as u64)), "{codec:?} {}", object.len());
                assert!(codec.decode(ID, &object).unwrap() == slice, "{codec:?} {}", slice.len());
                let is_small = object.len() < 1000;
                assert_eq!(
                    is_small,
                    slice.len() < 4 || (slice.len() == 100_000 && codec.compresses)
                );
                assert_eq!(object[4] & ENCRYPTED != 0, codec.key.is_some());
                let is_clear = object.windows(8).any(|part| part == b"xxxxxxxx");
                assert!(!is_clear || codec.key.is_none());
            }
        }
    }

    /// Protects readers: no changed bit, no other length, no other slice passes.
    #[test]
    fn any_other_object_is_refused() {
        for codec in codecs() {
            let object = object(
                &codec,
                &b"content of a slice, of a slice, of a slice, of a slice".repeat(3),
            );
            for bit in 0..object.len() * 8 {
                let mut other = object.to_vec();
                other[bit / 8] ^= 1 << (bit % 8);
                assert!(codec.decode(ID, &other.into()).is_err(), "bit {bit}");
            }
            for len in 0..object.len() {
                assert!(codec.decode(ID, &object.slice(..len)).is_err(), "{len} bytes");
            }
            assert!(codec.decode(SliceId { epoch: 3, number: 71 }, &object).is_err());
        }
    }

    /// The same against somebody who can store objects, with checksums that are right.
    #[test]
    fn nobody_without_the_key_can_replace_a_slice() {
        let [clear, _, sealed, other] = codecs();
        let other = Codec {
            key: Some(ContentKey::generate().unwrap()),
            ..other
        };
        let object = object(&sealed, b"content of a slice");
        let sums = [HEADER_CRC_AT..HEADER_BYTES, object.len() - CRC_BYTES..object.len()];
        for bit in (0..object.len() * 8).filter(|bit| sums.iter().all(|sum| !sum.contains(&(bit / 8)))) {
            let mut changed = object.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(sealed.decode(ID, &with_sums(changed)).is_err(), "bit {bit}");
        }
        assert!(matches!(other.decode(ID, &object), Err(Error::Damaged(_))));
        assert!(matches!(clear.decode(ID, &object), Err(Error::Refused(_))));
        let plain: Bytes = clear.encode(ID, b"forged"[..].into(), None).unwrap().into();
        assert!(matches!(sealed.decode(ID, &plain), Err(Error::Damaged(_))));
    }

    /// A small object does not take more memory than a block.
    #[test]
    fn a_bomb_is_refused() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], LEVEL).unwrap();
        let mut object = vec![0; HEADER_BYTES];
        object[..4].copy_from_slice(&MAGIC);
        object[4] = COMPRESSED;
        object[8..16].copy_from_slice(&ID.epoch.to_le_bytes());
        object[16..24].copy_from_slice(&ID.number.to_le_bytes());
        for len in [BLOCK_BYTES, 64 << 20] {
            object.truncate(HEADER_BYTES);
            object[24..32].copy_from_slice(&len.to_le_bytes());
            object.extend_from_slice(&bomb);
            object.extend_from_slice(&[0; CRC_BYTES]);
            let refused = Codec::default().decode(ID, &with_sums(object.clone()));
            assert!(matches!(refused, Err(Error::Damaged(_))));
        }
    }

    /// Protects readers of parts: they get those that they asked for, of this slice, or none.
    #[test]
    fn parts_are_read_alone() {
        let part = PART_BYTES as usize;
        for codec in codecs().into_iter().filter(|codec| !codec.compresses) {
            for len in [1, part - 1, part, part + 1, 5 * part + 77, BLOCK_BYTES as usize] {
                let slice = pattern(len as u32, len);
                let object = object(&codec, &slice);
                assert_eq!(object.len() as u64, *codec.object_bytes(len as u32).end());
                let all = parts_of(len as u64);
                for parts in [0..1, 0..all, all - 1..all, all / 2..all] {
                    let range = codec.range_of(len as u32, &parts);
                    let stored = &object[range.start as usize..range.end as usize];
                    let decode = |id, len, parts, stored| codec.decode_parts(id, len, parts, stored);
                    let found = decode(ID, len as u32, &parts, stored).unwrap().concat();
                    let wanted = parts.start as usize * part..len.min(parts.end as usize * part);
                    assert!(found == slice[wanted], "{codec:?} {len} {parts:?}");
                    let next = parts.start + 1..parts.end + 1;
                    assert!(decode(ID, len as u32, &next, stored).is_err(), "another part");
                    assert!(decode(ID, len as u32 + 1, &parts, stored).is_err(), "another length");
                    let other = SliceId { epoch: 3, number: 71 };
                    assert!(decode(other, len as u32, &parts, stored).is_err(), "another slice");
                    assert!(
                        decode(ID, len as u32, &parts, &stored[..stored.len() - 1]).is_err(),
                        "shorter"
                    );
                    let mut changed = stored.to_vec();
                    changed[stored.len() / 2] ^= 4;
                    assert!(decode(ID, len as u32, &parts, &changed).is_err(), "changed");
                }
            }
        }
        let compressed = Codec {
            compresses: true,
            key: None,
        };
        let object = object(&compressed, &vec![7; 4 * part]);
        let range = compressed.range_of(4 * PART_BYTES, &(0..1));
        assert!(
            range.end as usize > object.len(),
            "what is compressed is shorter, or wrong"
        );
        let refused = compressed.decode_parts(ID, 4 * PART_BYTES, &(0..1), &object[HEADER_BYTES..]);
        assert!(matches!(refused, Err(Error::Damaged(_))));
    }

    /// Protects encrypted content from somebody who can store objects: parts stay in their places.
    #[test]
    fn sealed_parts_do_not_change_places() {
        let [_, _, sealed, _] = codecs();
        let stored_bytes = PART_BYTES as usize + sealed.more_bytes();
        let object = object(&sealed, &pattern(1, 2 * PART_BYTES as usize)).to_vec();
        let (header, parts) = object.split_at(HEADER_BYTES);
        let (first, second) = parts.split_at(stored_bytes);
        let mut moved = [header, second, first].concat();
        let about = Header(moved[..HEADER_CRC_AT].try_into().unwrap());
        for number in 0..2 {
            let from = HEADER_BYTES + number * stored_bytes;
            let end = from + stored_bytes - CRC_BYTES;
            let crc = about.part_crc(number as u32, &moved[from..end]);
            moved[end..end + CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
        assert!(matches!(sealed.decode(ID, &moved.into()), Err(Error::Damaged(_))));
    }
}
