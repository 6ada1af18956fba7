//! The bytes of a backend on its device. All numbers are little-endian.
//!
//! The root is a blob whose metadata is [`ROOT`]. It has two places for the table of names, at 0 and at
//! [`PLACE_BYTES`], each with the same layout:
//!
//! | offset | bytes | |
//! | --- | --- | --- |
//! | 0 | 8 | `FERRNAMS` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | CRC-32C of all that follows, up to the end of the last entry |
//! | 16 | 8 | sequence number; the place with the greater one is valid |
//! | 24 | 4 | number of entries |
//! | 28 | 4 | bytes of all entries |
//! | 32 | | entries: number of the blob (8), length of the name (2), name |
//!
//! A place whose first 32 bytes are zeros was never written. A file is a blob with this metadata:
//!
//! | offset | bytes | |
//! | --- | --- | --- |
//! | 0 | 8 | `FERRFILE` |
//! | 8 | 8 | size; for a log that was not closed, up to where it has zeros behind its content |
//! | 16 | 4 | CRC-32C of the first 16 bytes |

use std::collections::BTreeMap;

/// The metadata of the root.
pub(super) const ROOT: &[u8; 8] = b"FERRROOT";
/// Bytes of each of the root's two places.
pub(super) const PLACE_BYTES: u64 = 1 << 20;
/// Bytes of a place that give the length of the rest.
pub(super) const HEAD_BYTES: usize = 32;

const NAMES: &[u8; 8] = b"FERRNAMS";
const FILE: &[u8; 8] = b"FERRFILE";
const VERSION: u32 = 1;

/// Names, and their blobs.
pub(super) type Table = BTreeMap<Vec<u8>, u64>;

/// The content of a place's head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// It was never written.
    Empty,
    /// Its length, head included.
    Len(usize),
    /// Unknown content.
    Damaged,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The bytes of a place, or `None` if they do not fit it.
pub(super) fn place(sequence: u64, table: &Table) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEAD_BYTES];
    for (name, id) in table {
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(name.len()).ok()?.to_le_bytes());
        bytes.extend_from_slice(name);
    }
    if bytes.len() as u64 > PLACE_BYTES {
        return None;
    }
    let entries = (bytes.len() - HEAD_BYTES) as u32;
    bytes[..8].copy_from_slice(NAMES);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    bytes[24..28].copy_from_slice(&(table.len() as u32).to_le_bytes());
    bytes[28..32].copy_from_slice(&entries.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    Some(bytes)
}

/// Reads the head of a place.
pub(super) fn head(bytes: &[u8; HEAD_BYTES]) -> Head {
    if bytes.iter().all(|&byte| byte == 0) {
        return Head::Empty;
    }
    match u32_at(bytes, 28) {
        Some(entries)
            if bytes.starts_with(NAMES)
                && u32_at(bytes, 8) == Some(VERSION)
                && u64::from(entries) + HEAD_BYTES as u64 <= PLACE_BYTES =>
        {
            Head::Len(HEAD_BYTES + entries as usize)
        }
        _ => Head::Damaged,
    }
}

/// Reads a place whose length [`head`] gave: sequence number and table.
pub(super) fn table(bytes: &[u8]) -> Option<(u64, Table)> {
    if u32_at(bytes, 12)? != crc32c::crc32c(bytes.get(16..)?) {
        return None;
    }
    let mut table = Table::new();
    let mut at = HEAD_BYTES;
    for _ in 0..u32_at(bytes, 24)? {
        let id = u64_at(bytes, at)?;
        let len = u16::from_le_bytes(bytes.get(at + 8..at + 10)?.try_into().ok()?) as usize;
        table.insert(bytes.get(at + 10..at + 10 + len)?.to_vec(), id);
        at += 10 + len;
    }
    Some((u64_at(bytes, 16)?, table))
}

/// The metadata of a file of this size.
pub(super) fn file(size_bytes: u64) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(FILE);
    bytes[8..16].copy_from_slice(&size_bytes.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..16]);
    bytes[16..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The size of a file with this metadata, if it is a file's.
pub(super) fn file_size(metadata: &[u8]) -> Option<u64> {
    let is_file = metadata.starts_with(FILE) && u32_at(metadata, 16)? == crc32c::crc32c(&metadata[..16]);
    if is_file { u64_at(metadata, 8) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let names: Table = [(b"/db/CURRENT".to_vec(), 7), (vec![0xff; 300], 9)].into();
        let bytes = place(12, &names).unwrap();
        assert_eq!(head(bytes[..HEAD_BYTES].try_into().unwrap()), Head::Len(bytes.len()));
        assert_eq!(table(&bytes), Some((12, names)));
        assert_eq!(file_size(&file(1 << 40)), Some(1 << 40));
        assert_eq!(head(&[0; HEAD_BYTES]), Head::Empty);
    }

    /// Each bit counts, and no length leads beyond the end.
    #[test]
    fn damage_is_seen() {
        let bytes = place(12, &[(b"/db/CURRENT".to_vec(), 7)].into()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let head = head(damaged[..HEAD_BYTES].try_into().unwrap());
            assert!(head != Head::Len(bytes.len()) || table(&damaged).is_none(), "bit {bit}");
            let _ = table(&damaged[..damaged.len() / 2]);
        }
        for bit in 0..160 {
            let mut damaged = file(4096);
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(file_size(&damaged), None, "bit {bit}");
        }
        assert_eq!(file_size(b"FERRFILE"), None);
    }

    #[test]
    fn more_names_than_fit_are_refused() {
        let many: Table = (0..40_000_u64)
            .map(|id| (format!("{id:030}").into_bytes(), id))
            .collect();
        assert_eq!(place(1, &many), None);
    }
}
