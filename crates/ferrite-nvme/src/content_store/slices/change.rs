//! Changes of a blob, and the records of them in a write-ahead log.
//!
//! | offset | length | content of a record |
//! | --- | --- | --- |
//! | 0 | 1 | the kind of change |
//! | 1 | 1 | its place in a call: 1: the first, 2: the last, 3: both, 0: neither |
//! | 2 | 24 | the blob's shard, epoch and number |
//! | 26 | 8 | an offset or a length, as the kind has it |
//! | 34 | 8 | a length |
//! | 42 | | bytes |
//!
//! Numbers are little-endian. A call counts if it is whole. A crash may cut off the last one of a blob; the next call
//! comes after its remains.
//!
//! Invariant: a change says what is there after it, never what it adds. So changes that are made again, in their
//! order, over a state which has some of them, end in the same state.

use std::ops::Range;

use super::UNIT_BYTES;
use super::blob_row::TAIL_BYTES_MAX;
use super::state::State;
use crate::content_store::UniqueId;

/// The bytes of a record before those of a write.
pub(super) const HEADER_BYTES: usize = 42;

/// The place of a change in its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InCall {
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

/// A change that is a call of its own.
pub(super) const WHOLE: InCall = InCall {
    is_first: true,
    is_last: true,
};

/// A change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change<'d> {
    /// Bytes at an offset. `State` does not make it: buffers count as memory.
    Write {
        offset: u64,
        data: &'d [u8],
    },
    /// Bytes up to here were written.
    Extend {
        end: u64,
    },
    Truncate {
        len: u64,
    },
    Punch {
        offset: u64,
        len: u64,
    },
    Zero {
        offset: u64,
        len: u64,
    },
    Reserve {
        offset: u64,
        len: u64,
    },
    /// Bytes that cannot be read become a hole.
    GiveUp {
        offset: u64,
        len: u64,
    },
    Tail(&'d [u8]),
    /// Nothing: the end of a call that sets no tail.
    End,
    /// Nothing: bytes of a slice that left memory, which its owner alone reads.
    Copy(&'d [u8]),
}

impl<'d> Change<'d> {
    /// Its record, as two parts.
    pub(super) fn encode(&self, of: UniqueId, place: InCall) -> ([u8; HEADER_BYTES], &'d [u8]) {
        let (kind, first, second, data): (u8, u64, u64, &[u8]) = match *self {
            Change::Write { offset, data } => (1, offset, 0, data),
            Change::Extend { end } => (2, end, 0, &[]),
            Change::Truncate { len } => (3, len, 0, &[]),
            Change::Punch { offset, len } => (4, offset, len, &[]),
            Change::Zero { offset, len } => (5, offset, len, &[]),
            Change::Reserve { offset, len } => (6, offset, len, &[]),
            Change::GiveUp { offset, len } => (7, offset, len, &[]),
            Change::Tail(tail) => (8, 0, 0, tail),
            Change::End => (9, 0, 0, &[]),
            Change::Copy(bytes) => (10, 0, 0, bytes),
        };
        let mut header = [0; HEADER_BYTES];
        (header[0], header[1]) = (kind, u8::from(place.is_first) | u8::from(place.is_last) << 1);
        for (index, number) in [of.shard, of.epoch, of.number, first, second].into_iter().enumerate() {
            header[2 + index * 8..10 + index * 8].copy_from_slice(&number.to_le_bytes());
        }
        (header, data)
    }

    /// The blob and change of a record, and its place in a call. `None`: it cannot be.
    pub(super) fn decode(record: &'d [u8]) -> Option<(UniqueId, InCall, Change<'d>)> {
        let (header, data) = record.split_first_chunk::<HEADER_BYTES>()?;
        let numbers = header[2..].as_chunks::<8>().0;
        let [shard, epoch, number, first, second] = *numbers else {
            return None;
        };
        let of = UniqueId {
            shard: u64::from_le_bytes(shard),
            epoch: u64::from_le_bytes(epoch),
            number: u64::from_le_bytes(number),
        };
        let (first, second) = (u64::from_le_bytes(first), u64::from_le_bytes(second));
        let (offset, len) = (first, second);
        let change = match header[0] {
            1 => Change::Write { offset, data },
            2 => Change::Extend { end: first },
            3 => Change::Truncate { len: first },
            4 => Change::Punch { offset, len },
            5 => Change::Zero { offset, len },
            6 => Change::Reserve { offset, len },
            7 => Change::GiveUp { offset, len },
            8 => Change::Tail(data),
            9 => Change::End,
            10 => Change::Copy(data),
            _ => return None,
        };
        let end = match change {
            Change::Write { offset, data } => offset.checked_add(data.len() as u64)?,
            Change::Extend { end } => end,
            Change::Tail(tail) if tail.len() > TAIL_BYTES_MAX => return None,
            // Their bytes end where a blob does.
            _ => 0,
        };
        let place = InCall {
            is_first: header[1] & 1 != 0,
            is_last: header[1] & 2 != 0,
        };
        let is_possible = header[1] <= 3 && end <= i64::MAX as u64;
        is_possible.then_some((of, place, change))
    }

    /// The bytes that it changes, in a blob whose bytes end at `end`.
    pub(super) fn bytes(&self, end: u64) -> Range<u64> {
        match *self {
            Change::Write { offset, data } => offset..offset.saturating_add(data.len() as u64),
            Change::Extend { end: to } => end.min(to)..to,
            Change::Truncate { len } => len..end.max(len),
            Change::Punch { offset, len }
            | Change::Zero { offset, len }
            | Change::Reserve { offset, len }
            | Change::GiveUp { offset, len } => offset..offset.saturating_add(len),
            Change::Tail(_) | Change::End | Change::Copy(_) => 0..0,
        }
    }
}

impl State {
    /// Makes a change in memory. Returns how many bytes the buffers lost.
    pub(super) fn apply(&mut self, change: &Change<'_>) -> u64 {
        match *change {
            Change::Write { .. } | Change::End | Change::Copy(_) => 0,
            Change::Extend { end } => {
                self.row.valid_len = self.row.valid_len.max(end);
                0
            }
            Change::Truncate { len } => self.truncate(len),
            Change::Punch { offset, len } => {
                let gone = up_to_end(offset, len);
                let lost = self.remove_any(gone.clone());
                if gone.end >= self.row.valid_len {
                    self.row.valid_len = self.row.valid_len.min(gone.start);
                }
                lost
            }
            Change::Zero { offset, len } => {
                let bytes = up_to_end(offset, len);
                let lost = self.remove_any(bytes.clone());
                self.reserve(bytes);
                lost
            }
            Change::Reserve { offset, len } => {
                self.reserve(up_to_end(offset, len));
                0
            }
            Change::GiveUp { offset, len } => self.remove_any(up_to_end(offset, len)),
            Change::Tail(tail) => {
                self.row.tail = tail.to_vec();
                0
            }
        }
    }

    fn remove_any(&mut self, gone: Range<u64>) -> u64 {
        match gone.is_empty() {
            true => 0,
            false => self.remove(gone),
        }
    }
}

/// A range of a blob, as far as a blob can reach.
fn up_to_end(offset: u64, len: u64) -> Range<u64> {
    let most = i64::MAX as u64 / UNIT_BYTES * UNIT_BYTES;
    offset.min(most)..offset.saturating_add(len).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_others_are_refused() {
        let of = UniqueId {
            shard: 1,
            epoch: 2,
            number: 3,
        };
        let (offset, len) = (5 << 40, 4096);
        for change in [
            Change::Write {
                offset,
                data: b"content",
            },
            Change::Extend { end: offset },
            Change::Truncate { len: offset },
            Change::Punch { offset, len },
            Change::Zero { offset, len },
            Change::Reserve { offset, len },
            Change::GiveUp { offset, len },
            Change::Tail(b"tail"),
            Change::End,
            Change::Copy(b"content"),
        ] {
            for (is_first, is_last) in [(false, false), (false, true), (true, false), (true, true)] {
                let place = InCall { is_first, is_last };
                let (header, data) = change.encode(of, place);
                let record = [&header[..], data].concat();
                assert_eq!(Change::decode(&record), Some((of, place, change)));
            }
        }
        let whole = InCall {
            is_first: true,
            is_last: true,
        };
        let (header, _) = Change::Truncate { len: 1 }.encode(of, whole);
        assert_eq!(Change::decode(&header[..41]), None);
        for (at, byte) in [(0, 0), (0, 11), (1, 4)] {
            let mut other = header;
            other[at] = byte;
            assert_eq!(Change::decode(&other), None, "{at}");
        }
        for (offset, data) in [(u64::MAX, b"x"), (i64::MAX as u64, b"x")] {
            let (header, data) = Change::Write { offset, data }.encode(of, whole);
            assert_eq!(Change::decode(&[&header[..], data].concat()), None);
        }
    }
}
