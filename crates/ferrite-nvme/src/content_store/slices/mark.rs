//! Marks: rows that say which blobs have changes in a write-ahead log that are durable there, and nowhere else.
//!
//! A mark is durable before anybody hears that such a change is; the publication that has the changes removes it. So
//! whoever opens the pool without this log knows which bytes are older than they should be.

use std::ops::Range;

use ferrite_slices::CHUNK_BYTES;
use rangemap::RangeSet;

/// The version of a mark.
const VERSION: u8 = 1;
/// Longest name of a log.
const NAME_BYTES_MAX: usize = 200;
/// Ranges of a mark; one that would have more has a single one over all.
const RANGES_MAX: usize = 64;

/// Chunks of a blob.
pub(super) type Chunks = RangeSet<u64>;

/// A mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// The log's id.
    pub(super) log: [u8; 16],
    /// Where the log is, for messages.
    pub(super) name: String,
    /// Records before this position do not count.
    pub(super) from: u64,
    /// The chunks that the changes touch.
    pub(super) chunks: Chunks,
}

/// The chunks of some bytes.
pub(super) fn chunks_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES)
}

/// All of these, in few ranges.
pub(super) fn few(chunks: &Chunks) -> Chunks {
    match (chunks.first(), chunks.last()) {
        (Some(first), Some(last)) if chunks.len() > RANGES_MAX => std::iter::once(first.start..last.end).collect(),
        _ => chunks.clone(),
    }
}

impl Mark {
    /// Whether it says enough about changes from this position on, in these chunks.
    pub(super) fn covers(&self, from: u64, chunks: &Chunks) -> bool {
        self.from <= from && chunks.iter().all(|range| self.chunks.gaps(range).next().is_none())
    }

    /// A mark that cannot be read: it concerns all bytes, and no log is its.
    pub(super) fn unreadable() -> Mark {
        Mark {
            log: [0; 16],
            name: "a log whose record cannot be read".into(),
            from: 0,
            chunks: std::iter::once(0..u64::MAX / CHUNK_BYTES).collect(),
        }
    }

    /// The end of the bytes that it concerns.
    pub(super) fn end(&self) -> u64 {
        let last = self.chunks.last().map_or(0, |last| last.end);
        last.saturating_mul(CHUNK_BYTES).min(i64::MAX as u64)
    }

    /// Whether it concerns some of these bytes.
    pub(super) fn touches(&self, bytes: &Range<u64>) -> bool {
        let chunks = chunks_of(bytes);
        !chunks.is_empty() && self.chunks.overlaps(&chunks)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut name = &*self.name;
        while name.len() > NAME_BYTES_MAX {
            let mut shorter = name.chars();
            shorter.next_back();
            name = shorter.as_str();
        }
        let mut mark = vec![VERSION];
        mark.extend_from_slice(&self.log);
        mark.extend_from_slice(&self.from.to_le_bytes());
        mark.push(name.len() as u8);
        mark.extend_from_slice(name.as_bytes());
        for range in few(&self.chunks).iter() {
            mark.extend_from_slice(&range.start.to_le_bytes());
            mark.extend_from_slice(&range.end.to_le_bytes());
        }
        mark
    }

    pub(super) fn decode(mark: &[u8]) -> Option<Mark> {
        let (&version, rest) = mark.split_first()?;
        let (log, rest) = rest.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (&len, rest) = rest.split_first()?;
        let (name, rest) = rest.split_at_checked(len.into())?;
        let (ranges, []) = rest.as_chunks::<8>() else {
            return None;
        };
        let mut chunks = Chunks::new();
        for pair in ranges.chunks(2) {
            let &[start, end] = pair else { return None };
            let range = u64::from_le_bytes(start)..u64::from_le_bytes(end);
            if range.is_empty() {
                return None;
            }
            chunks.insert(range);
        }
        (version == VERSION).then(|| Mark {
            log: *log,
            name: String::from_utf8_lossy(name).into_owned(),
            from: u64::from_le_bytes(*from),
            chunks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_others_are_refused() {
        let mut mark = Mark {
            log: [3; 16],
            name: "/dev/x of host".into(),
            from: 12 << 12,
            chunks: [0..1, 5..9].into_iter().collect(),
        };
        let encoded = mark.encode();
        assert_eq!(Mark::decode(&encoded), Some(mark.clone()));
        for len in 0..encoded.len() {
            let cut = Mark::decode(&encoded[..len]);
            assert!(cut.is_none_or(|cut| cut.chunks != mark.chunks), "{len}");
        }
        assert_eq!(Mark::decode(&[&encoded[..], &[0; 16]].concat()), None);
        mark.name = "ä".repeat(150);
        mark.chunks = (0..1000).map(|chunk| chunk * 2..chunk * 2 + 1).collect();
        let long = Mark::decode(&mark.encode()).unwrap();
        assert_eq!((long.name.len(), long.chunks.len()), (NAME_BYTES_MAX, 1));
        assert!(long.covers(mark.from, &mark.chunks));
    }

    #[test]
    fn a_mark_covers_what_it_names() {
        let mark = Mark {
            log: [3; 16],
            name: String::new(),
            from: 100,
            chunks: std::iter::once(1..3).collect(),
        };
        let chunks = |range: Range<u64>| std::iter::once(range).collect::<Chunks>();
        assert!(mark.covers(100, &chunks(1..3)) && mark.covers(200, &Chunks::new()));
        assert!(!mark.covers(99, &chunks(1..2)) && !mark.covers(100, &chunks(2..4)));
        assert!(mark.touches(&(CHUNK_BYTES..CHUNK_BYTES + 1)) && mark.touches(&(0..CHUNK_BYTES * 9)));
        assert!(!mark.touches(&(0..CHUNK_BYTES)) && !mark.touches(&(CHUNK_BYTES..CHUNK_BYTES)));
    }
}
