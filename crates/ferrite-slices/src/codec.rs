//! The bytes of objects.
//!
//! An object is 36 bytes of header, and then the bytes of the slice, as they are or in another form:
//!
//! | offset | length | content |
//! | --- | --- | --- |
//! | 0 | 4 | `FrS1` |
//! | 4 | 1 | the form of the bytes: 1: compressed by zstd, 2: encrypted (`cipher`), 3: compressed, then encrypted |
//! | 5 | 3 | zeros |
//! | 8 | 8 | the epoch of the id |
//! | 16 | 8 | the number of the id |
//! | 24 | 8 | the length of the slice in bytes |
//! | 32 | 4 | CRC-32C of everything before it and of the stored bytes |
//!
//! Numbers are little-endian. The id is a part of it, so the bytes of one slice never pass for those of another; what
//! is before the checksum is authenticated with encrypted bytes. With a key nothing is read that is not encrypted:
//! nobody without the key can replace content.
//!
//! Every object says its form, so compression may be switched on and off at any time.

use std::ops::RangeInclusive;

use bytes::Bytes;
use ferrite_checks::fault_injection::{Bug, is_seeded};
use object_store::PutPayload;

use crate::cipher::{ContentKey, SEAL_BYTES, SealSalt};
use crate::error::{Error, Result};
use crate::slice::{BLOCK_BYTES, SliceId};

const MAGIC: [u8; 4] = *b"FrS1";
const HEADER_BYTES: usize = 36;
/// Where the checksum is.
const CRC_AT: usize = 32;
/// Forms of the bytes.
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

fn crc(header: &[u8], stored: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..CRC_AT]), stored)
}

fn damaged<T>(id: SliceId, what: &str) -> Result<T> {
    Err(Error::Damaged(format!("slice {id}: {what}")))
}

impl Codec {
    /// The lengths that the object of a slice may have.
    pub fn object_bytes(&self, slice_bytes: u32) -> RangeInclusive<u64> {
        let more = self.key.as_ref().map_or(0, |_| SEAL_BYTES);
        let least = (HEADER_BYTES + more) as u64;
        least..=least + u64::from(slice_bytes)
    }

    /// The object of a slice. Made again with the same salt it is the same: a request that is repeated finds what it
    /// has stored.
    ///
    /// # Errors
    /// [`Error::Failed`]: it cannot be compressed or encrypted.
    pub(crate) fn encode(&self, id: SliceId, slice: Bytes, salt: Option<SealSalt>) -> Result<PutPayload> {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        for (at, number) in [(8, id.epoch), (16, id.number), (24, slice.len() as u64)] {
            header[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let mut stored = slice;
        if self.compresses {
            let smaller = zstd::bulk::compress(&stored, LEVEL)
                .map_err(|error| Error::Failed(format!("slice {id} cannot be compressed: {error}")))?;
            if smaller.len() < stored.len() - stored.len() / WORTH {
                header[4] |= COMPRESSED;
                stored = smaller.into();
            }
        }
        if let Some(key) = &self.key {
            header[4] |= ENCRYPTED;
            let sealed = salt.and_then(|salt| key.seal(salt, &header[..CRC_AT], &stored));
            let sealed = sealed.ok_or_else(|| Error::Failed(format!("slice {id} cannot be encrypted")))?;
            stored = sealed.into();
        }
        let sum = crc(&header, &stored);
        header[CRC_AT..].copy_from_slice(&sum.to_le_bytes());
        Ok(PutPayload::from_iter([Bytes::copy_from_slice(&header), stored]))
    }

    /// The bytes of a slice, from its object.
    ///
    /// # Errors
    /// [`Error::Damaged`]: they are not those that were stored. [`Error::Refused`]: they need a key.
    pub fn decode(&self, id: SliceId, object: &Bytes) -> Result<Bytes> {
        if object.len() < HEADER_BYTES {
            return damaged(id, "its object is too short");
        }
        let (header, stored) = object.split_at(HEADER_BYTES);
        if header[..4] != MAGIC {
            return damaged(id, "its object holds something else");
        }
        if header[CRC_AT..] != crc(header, stored).to_le_bytes() && !is_seeded(Bug::SliceUnverified) {
            return damaged(id, "its object has the wrong checksum");
        }
        let form = header[4];
        if form > COMPRESSED | ENCRYPTED || header[5..8] != [0; 3] {
            return damaged(id, "a later version of Ferrite stored its object");
        }
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        if (number(8), number(16)) != (id.epoch, id.number) {
            return damaged(id, "its object is that of another slice");
        }
        let len = number(24);
        if len > BLOCK_BYTES {
            return damaged(id, "its object has another length than it says");
        }
        let clear = self.decrypt(id, header, object.slice(HEADER_BYTES..))?;
        let slice = match form & COMPRESSED {
            0 => clear,
            // As it is bounded, so is what it can become.
            _ => match zstd::bulk::decompress(&clear, len as usize) {
                Ok(slice) => slice.into(),
                Err(_) => return damaged(id, "its object cannot be decompressed"),
            },
        };
        match slice.len() as u64 == len {
            true => Ok(slice),
            false => damaged(id, "its object has another length than it says"),
        }
    }

    fn decrypt(&self, id: SliceId, header: &[u8], stored: Bytes) -> Result<Bytes> {
        match (&self.key, header[4] & ENCRYPTED != 0) {
            (None, false) => Ok(stored),
            (Some(key), true) => match key.open(&header[..CRC_AT], &stored) {
                Some(clear) => Ok(clear.into()),
                None => damaged(
                    id,
                    "its object was not encrypted with this pool's key, or has changed since",
                ),
            },
            (None, true) => Err(Error::Refused(format!(
                "slice {id} is encrypted, and the pool has no key"
            ))),
            (Some(_), false) => damaged(id, "its object is not encrypted, and others of this pool are"),
        }
    }
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
        let with_sum = |mut object: Vec<u8>| {
            let sum = crc(&object[..HEADER_BYTES], &object[HEADER_BYTES..]);
            object[CRC_AT..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
            Bytes::from(object)
        };
        let [clear, _, sealed, other] = codecs();
        let other = Codec {
            key: Some(ContentKey::generate().unwrap()),
            ..other
        };
        let object = object(&sealed, b"content of a slice");
        for bit in (0..object.len() * 8).filter(|bit| !(CRC_AT * 8..HEADER_BYTES * 8).contains(bit)) {
            let mut changed = object.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(sealed.decode(ID, &with_sum(changed)).is_err(), "bit {bit}");
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
            let sum = crc(&object[..HEADER_BYTES], &object[HEADER_BYTES..]);
            object[CRC_AT..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
            let refused = Codec::default().decode(ID, &object.clone().into());
            assert!(matches!(refused, Err(Error::Damaged(_))));
        }
    }
}
