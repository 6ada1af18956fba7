//! The check of RocksDB's logs, before RocksDB reads them.
//!
//! RocksDB's recovery ends at the first unreadable record and drops all that follow: it cannot tell a log that a crash
//! cut off from one that was damaged in the middle. Commits are synchronous here, and each is one record of the log, so
//! a crash leaves one record unfinished at most, and it is the last one.
//!
//! So an unreadable record is the torn tail of a crash if no later write is readable; otherwise the records behind it
//! were acknowledged, and this is damage. After a close the last log has no torn tail at all (`close_mark`).
//!
//! A later write is a record that begins behind that place in the same log, with a later sequence number; or a later
//! log whose first record does not follow the last readable one. A log that ends in zeros was not closed; RocksDB skips
//! them.
//!
//! Invariants: this check only reads, a block at a time, and trusts no length. The format is RocksDB's: blocks of 32
//! KiB; records of checksum (4), length (2), type (1), content; a record that does not fit is in several parts; the
//! content begins with the sequence number of its first change (8) and how many changes there are (4).

use crate::rocksdb::Reader;

use crate::error::{Error, Result};
use crate::shelf::Shelf;

const BLOCK_BYTES: usize = 32 << 10;
const HEAD_BYTES: usize = 7;
/// The part of a record's content that describes its changes.
const BATCH_HEAD_BYTES: usize = 12;
/// Sequence numbers have 56 bits.
const SEQUENCE_MAX: u64 = 1 << 56;

/// Parts of records, as their types say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Middle,
    Last,
}

/// A part of a record whose checksum is right.
struct Found<'b> {
    part: Part,
    content: &'b [u8],
    len_bytes: usize,
}

/// The content of a log.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Scanned {
    /// The sequence number of its first record.
    first: Option<u64>,
    /// No record that was begun has this sequence number, nor a larger one.
    next: Option<u64>,
    /// The sequence number that follows its last whole record.
    whole_next: Option<u64>,
    /// Where the first unreadable part begins, zeros included.
    broken_at: Option<u64>,
    /// Something behind that place was written later.
    goes_on: bool,
}

fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The part that begins at a place of a block, if its checksum is right.
fn part_at(block: &[u8], at: usize) -> Option<Found<'_>> {
    let head = block.get(at..at + HEAD_BYTES)?;
    let part = match head[6] {
        1 => Part::Whole,
        2 => Part::First,
        3 => Part::Middle,
        4 => Part::Last,
        _ => return None,
    };
    let len = usize::from(u16::from_le_bytes([head[4], head[5]]));
    let content = block.get(at + HEAD_BYTES..at + HEAD_BYTES + len)?;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[6..]), content);
    let is_right = masked(crc).to_le_bytes() == head[..4];
    is_right.then_some(Found {
        part,
        content,
        len_bytes: HEAD_BYTES + len,
    })
}

/// The first sequence number of a record, and how many changes it has.
fn batch_of(content: &[u8]) -> Option<(u64, u32)> {
    let (sequence, rest) = content.split_first_chunk()?;
    let (count, _) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*sequence), u32::from_le_bytes(*count)))
}

impl Scanned {
    /// Checks one block, which begins at `start` of the log. `is_inside` says that a record has begun and not ended.
    fn block(&mut self, block: &[u8], start: u64, is_inside: &mut Option<u64>) {
        let mut at = 0;
        while at + HEAD_BYTES <= block.len() && !self.goes_on {
            let Some(found) = part_at(block, at) else {
                self.broken_at.get_or_insert(is_inside.unwrap_or(start + at as u64));
                // The length itself may be wrong, so a record can begin anywhere.
                self.goes_on =
                    (at + 1..block.len()).any(|at| part_at(block, at).is_some_and(|found| self.is_later(&found)));
                return;
            };
            self.part(&found, start + at as u64, is_inside);
            at += found.len_bytes;
        }
    }

    fn part(&mut self, found: &Found<'_>, at: u64, is_inside: &mut Option<u64>) {
        if self.broken_at.is_some() {
            self.goes_on |= self.is_later(found);
            return;
        }
        let begins = matches!(found.part, Part::Whole | Part::First);
        match (*is_inside, begins) {
            // A record ends, or begins, without its other parts.
            (Some(begun), true) => {
                self.broken_at = Some(begun);
                self.goes_on = self.is_later(found);
                return;
            }
            (None, false) => {
                self.broken_at = Some(at);
                return;
            }
            _ => {}
        }
        if begins && let Some((sequence, count)) = batch_of(found.content) {
            self.first.get_or_insert(sequence);
            self.whole_next = Some(sequence);
            self.next = Some(sequence.saturating_add(count.into()));
        }
        if matches!(found.part, Part::Whole | Part::Last) {
            self.whole_next = self.next;
        }
        *is_inside = match found.part {
            Part::First => Some(at),
            Part::Middle => *is_inside,
            Part::Whole | Part::Last => None,
        };
    }

    /// Whether a part that was found behind a broken one begins a record of its own: one that was written later. Parts
    /// of the broken record itself, the content of user files, and remains of older logs do not.
    fn is_later(&self, found: &Found<'_>) -> bool {
        let begins = matches!(found.part, Part::Whole | Part::First);
        let batch = batch_of(found.content).filter(|_| begins && found.content.len() >= BATCH_HEAD_BYTES);
        batch.is_some_and(|(sequence, _)| sequence >= self.next.unwrap_or(0) && sequence < SEQUENCE_MAX)
    }
}

fn scan(name: &str, log: &dyn Reader) -> Result<Scanned> {
    let mut scanned = Scanned::default();
    let mut block = vec![0; BLOCK_BYTES];
    let (mut start, mut is_inside) = (0, None);
    while !scanned.goes_on {
        let read = log.read_at(start, &mut block);
        let len = read.map_err(|error| Error::Io(format!("{name}: {error}")))?;
        if block[..len].iter().any(|&byte| byte != 0) {
            scanned.block(&block[..len], start, &mut is_inside);
        } else if len > 0 {
            scanned.broken_at.get_or_insert(is_inside.unwrap_or(start));
        }
        start += BLOCK_BYTES as u64;
        if len < BLOCK_BYTES {
            break;
        }
    }
    // Cut off before a record's last part.
    scanned.broken_at = scanned.broken_at.or(is_inside);
    Ok(scanned)
}

/// The logs of a store, in the order in which they were written.
pub(crate) fn logs(shelf: &Shelf) -> Result<Vec<String>> {
    let number = |name: &str| name.strip_suffix(".log")?.parse::<u64>().ok();
    let mut logs: Vec<(u64, String)> = shelf
        .names()?
        .into_iter()
        .filter_map(|name| Some((number(&name)?, name)))
        .collect();
    logs.sort_unstable();
    Ok(logs.into_iter().map(|(_, name)| name).collect())
}

/// Refuses logs with an unreadable acknowledged record. With `was_closed` there is no torn tail.
///
/// # Errors
/// [`Error::Corruption`], which names the log and the place.
pub(crate) fn check(shelf: &Shelf, was_closed: bool) -> Result<()> {
    let damaged = |name: &str, at: u64, why: &str| {
        Err(Error::Corruption(format!(
            "the log {name} cannot be read from byte {at} on, and {why}; `ferrite fsck --repair` keeps all that can be \
             read, or restore the metadata from a dump"
        )))
    };
    let mut torn: Option<(String, u64)> = None;
    let mut next: Option<u64> = None;
    let logs = logs(shelf)?;
    for name in &logs {
        let Some(log) = shelf.open(name)? else { continue };
        let scanned = scan(name, &*log)?;
        if let (Some((torn_name, at)), Some(first)) = (&torn, scanned.first)
            && next.is_some_and(|next| first > next)
        {
            return damaged(
                torn_name,
                *at,
                "changes that were made later are whole: no crash cut it off",
            );
        }
        if let Some(at) = scanned.broken_at {
            if scanned.goes_on {
                return damaged(name, at, "records behind that place are whole: no crash cut it off");
            }
            // Earlier logs may be torn since a crash that came before the close.
            if was_closed && logs.last() == Some(name) {
                return damaged(name, at, "it was closed in order");
            }
            torn = Some((name.clone(), at));
        } else if scanned.first.is_some() {
            torn = None;
        }
        next = scanned.whole_next.or(next);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Backend, MetaStore, Options, RocksStore};

    /// A copy of the files of a store that is still open, as a killed process leaves them: `count` commits of
    /// `len_bytes` each.
    fn killed(count: u64, len_bytes: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            create: true,
            reserve_bytes: 0,
            ..Options::default()
        };
        let store = RocksStore::open(Backend::Directory(dir.path().join("live")), &options).unwrap();
        for number in 0..count {
            let mut txn = store.begin();
            txn.put(&number.to_be_bytes(), &vec![number as u8; len_bytes]).unwrap();
            txn.commit().unwrap();
        }
        std::fs::create_dir(dir.path().join("left")).unwrap();
        for entry in std::fs::read_dir(dir.path().join("live")).unwrap() {
            let from = entry.unwrap().path();
            std::fs::copy(&from, dir.path().join("left").join(from.file_name().unwrap())).unwrap();
        }
        dir
    }

    /// The log with the records, and its store.
    fn log_of(dir: &Path) -> (std::path::PathBuf, Shelf) {
        let shelf = Shelf::Directory(dir.join("left"));
        let name = logs(&shelf).unwrap().pop().unwrap();
        (dir.join("left").join(name), shelf)
    }

    #[test]
    fn a_log_cut_off_anywhere_is_a_torn_tail() {
        let dir = killed(5, 20_000);
        let (path, shelf) = log_of(dir.path());
        let bytes = std::fs::read(&path).unwrap();
        for len in (0..bytes.len()).step_by(997) {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert_eq!(check(&shelf, false), Ok(()), "{len} bytes");
            // Zeros behind it, as on blobs, or where a file system had made it longer before the content came.
            let mut zeros = bytes[..len].to_vec();
            zeros.resize(bytes.len() + 100_000, 0);
            std::fs::write(&path, &zeros).unwrap();
            assert_eq!(check(&shelf, false), Ok(()), "{len} bytes, and zeros");
        }
        // The last record may be written in any subset of its sectors.
        for from in (bytes.len() - 15_000..bytes.len() - 512).step_by(512) {
            let mut torn = bytes.clone();
            torn[from..from + 512].fill(0);
            std::fs::write(&path, &torn).unwrap();
            assert_eq!(check(&shelf, false), Ok(()), "{from}");
            assert!(matches!(check(&shelf, true), Err(Error::Corruption(_))), "{from}");
        }
    }

    #[test]
    fn damage_before_whole_records_is_named() {
        for len_bytes in [10, 700, 40_000] {
            let dir = killed(8, len_bytes);
            let (path, shelf) = log_of(dir.path());
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(check(&shelf, true), Ok(()), "{len_bytes}");
            // All but the last record.
            let end = bytes.len() * 7 / 8 - 30;
            for at in (0..end).step_by((end / 90).max(1)) {
                for damage in [&[0x55; 16][..], &[0; 512]] {
                    let mut damaged = bytes.clone();
                    let to = (at + damage.len()).min(end);
                    damaged[at..to].copy_from_slice(&damage[..to - at]);
                    if damaged == bytes {
                        continue;
                    }
                    std::fs::write(&path, &damaged).unwrap();
                    let said = check(&shelf, false);
                    assert!(
                        matches!(&said, Err(Error::Corruption(text)) if text.contains(".log")),
                        "{len_bytes}, {at}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_log_whose_end_is_missing_is_damage_if_a_later_log_goes_on() {
        let dir = killed(6, 100);
        let (path, shelf) = log_of(dir.path());
        let bytes = std::fs::read(&path).unwrap();
        let later = path.with_file_name("900000.log");
        // The next record after a recovery without the torn one.
        let record = |sequence: u64| {
            let mut content = sequence.to_le_bytes().to_vec();
            content.extend_from_slice(&[1, 0, 0, 0, 1, 1, b'k', 1, b'v']);
            let mut part = vec![1];
            part.extend_from_slice(&content);
            let mut bytes = masked(crc32c::crc32c(&part)).to_le_bytes().to_vec();
            bytes.extend_from_slice(&(content.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&part);
            bytes
        };
        let last = scan(
            "log",
            &*shelf
                .open(path.file_name().unwrap().to_str().unwrap())
                .unwrap()
                .unwrap(),
        )
        .unwrap();
        let last = last.next.unwrap() - 1;
        std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
        for (first, is_sound) in [(last, true), (last + 1, false)] {
            std::fs::write(&later, record(first)).unwrap();
            assert_eq!(check(&shelf, false).is_ok(), is_sound, "{first}");
        }
    }
}
