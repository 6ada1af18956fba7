//! The row of a blob, byte by byte.

use rangemap::RangeSet;

/// The version of a blob's row, and of one whose slices other blobs may name, too.
const VERSION: u8 = 1;
const VERSION_SHARING: u8 = 2;
/// Longest tail.
pub(super) const TAIL_BYTES_MAX: usize = 255;
/// Reserved ranges of a blob, at most.
pub(super) const RESERVED_MAX: usize = 100;

/// The row of a blob.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BlobRow {
    pub(super) valid_len: u64,
    /// Ranges that somebody has reserved. They count as space, and need none.
    pub(super) reserved: RangeSet<u64>,
    pub(super) tail: Vec<u8>,
    /// Other blobs may name its slices.
    pub(super) shares: bool,
}

impl BlobRow {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut row = vec![if self.shares { VERSION_SHARING } else { VERSION }];
        row.extend_from_slice(&self.valid_len.to_le_bytes());
        let reserved: Vec<_> = self.reserved.iter().take(RESERVED_MAX).collect();
        row.push(reserved.len() as u8);
        for range in reserved {
            row.extend_from_slice(&range.start.to_le_bytes());
            row.extend_from_slice(&range.end.to_le_bytes());
        }
        row.extend_from_slice(&self.tail);
        row
    }

    pub(super) fn decode(row: &[u8]) -> Option<BlobRow> {
        let (&version, rest) = row.split_first()?;
        let (valid_len, rest) = rest.split_first_chunk()?;
        let (&count, rest) = rest.split_first()?;
        let (ranges, tail) = rest.split_at_checked(usize::from(count) * 16)?;
        let mut reserved = RangeSet::new();
        for range in ranges.as_chunks::<16>().0 {
            let (start, end) = range.split_at(8);
            let (start, end) = (start.try_into().ok()?, end.try_into().ok()?);
            let range = u64::from_le_bytes(start)..u64::from_le_bytes(end);
            if range.is_empty() {
                return None;
            }
            reserved.insert(range);
        }
        let is_known = matches!(version, VERSION | VERSION_SHARING) && tail.len() <= TAIL_BYTES_MAX;
        is_known.then(|| BlobRow {
            valid_len: u64::from_le_bytes(*valid_len),
            reserved,
            tail: tail.to_vec(),
            shares: version == VERSION_SHARING,
        })
    }

    /// A row, of any blob, that says that others may name its slices. `None`: it does, or cannot be read.
    pub(super) fn shared(row: &[u8]) -> Option<Vec<u8>> {
        let row = BlobRow::decode(row).filter(|row| !row.shares)?;
        let shared = BlobRow { shares: true, ..row };
        Some(shared.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written_and_others_are_refused() {
        let mut row = BlobRow {
            valid_len: 5 << 40,
            tail: b"tail".to_vec(),
            ..BlobRow::default()
        };
        row.reserved.insert(0..4096);
        row.reserved.insert(8192..1 << 40);
        let encoded = row.encode();
        assert_eq!(BlobRow::decode(&encoded), Some(row));
        for len in 0..encoded.len() - 4 {
            assert_eq!(BlobRow::decode(&encoded[..len]), None, "{len}");
        }
        assert_eq!(BlobRow::decode(&BlobRow::default().encode()), Some(BlobRow::default()));
        for (at, byte) in [(0, 9), (9, 200), (25, 0)] {
            let mut other = encoded.clone();
            other[at] = byte;
            if at == 25 {
                other[18..26].fill(0);
            }
            assert_eq!(BlobRow::decode(&other), None, "{at}");
        }
        let long = BlobRow {
            tail: vec![0; TAIL_BYTES_MAX + 1],
            ..BlobRow::default()
        };
        assert_eq!(BlobRow::decode(&long.encode()), None);
    }
}
