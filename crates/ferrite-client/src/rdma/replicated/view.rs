//! Each replica's knowledge of its set: an extended attribute of its file.
//!
//! Invariants:
//! * A client that opens a set for writing takes a number, its *ballot*, that is higher than any on a majority of the
//!   replicas, and records it on a majority. So no two writers have the same one.
//! * A replica's *epoch* (the ballot of a writer, and how often it has left a replica out) marks how far it is up to
//!   date: replicas with the highest epoch hold everything that was acknowledged. A writer that leaves a replica out
//!   raises the epoch of the others before it acknowledges anything more.
//!
//! 72 bytes, little-endian: `FERRCPY1`; the set's id, 16 bytes; ballot, the epoch's ballot, the epoch's number, 8 each;
//! number of replicas, 4; 1 while it is written, 4; 12 zeros; CRC-32C of these 68, 4.

/// The attribute.
pub(super) const NAME: &[u8] = b"user.ferrite.copies";
const MAGIC: &[u8; 8] = b"FERRCPY1";
const BYTES: usize = 72;

/// See the head of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    pub(super) set: [u8; 16],
    pub(super) ballot: u64,
    pub(super) epoch: (u64, u64),
    pub(super) replicas: u32,
    /// A writer has it open, or has ended without closing it.
    pub(super) is_written: bool,
}

impl View {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.set);
        bytes.extend(self.ballot.to_le_bytes());
        bytes.extend(self.epoch.0.to_le_bytes());
        bytes.extend(self.epoch.1.to_le_bytes());
        bytes.extend(self.replicas.to_le_bytes());
        bytes.extend(u32::from(self.is_written).to_le_bytes());
        bytes.resize(BYTES - 4, 0);
        let sum = crc32c::crc32c(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Decodes a view; `None` if the bytes are not one.
    pub(super) fn read(bytes: &[u8]) -> Option<View> {
        let (head, sum) = bytes.split_last_chunk::<4>()?;
        let is_whole = bytes.len() == BYTES && bytes.starts_with(MAGIC);
        if !is_whole || crc32c::crc32c(head) != u32::from_le_bytes(*sum) {
            return None;
        }
        let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let short = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(View {
            set: *bytes.get(8..)?.first_chunk()?,
            ballot: long(24)?,
            epoch: (long(32)?, long(40)?),
            replicas: short(48)?,
            is_written: short(52)? != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let view = View {
            set: [3; 16],
            ballot: 4,
            epoch: (4, 9),
            replicas: 3,
            is_written: true,
        };
        let bytes = view.bytes();
        assert_eq!(View::read(&bytes), Some(view));
        for bit in 0..BYTES * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(View::read(&wrong), None, "bit {bit}");
        }
        assert_eq!(View::read(&bytes[..71]), None);
        assert_eq!(View::read(b""), None);
    }
}
