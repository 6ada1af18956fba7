//! The table of outcomes: what became of the last change of each slot of tokens ([`ferrite_vfs::Once`]).
//!
//! What lives here: one entry as it is stored; see `docs/format.md`. A record that makes a change sets the words of its
//! entry as well, so the change and its outcome are one.
//!
//! Invariant: an entry is all zero, or its checksum is right.

use std::sync::atomic::Ordering;

use ferrite_pm::Region;
use ferrite_vfs::{Attr, ErrorCode, FileKind, FsError, Once, Outcome, Timestamp};
use zerocopy::IntoBytes;

use crate::format::checksum::crc32c_append;

/// Size of an entry.
pub(crate) const ENTRY_BYTES: u64 = 128;
/// Words of an entry.
const ENTRY_WORDS: usize = (ENTRY_BYTES / 8) as usize;
/// Number of the token, and the word with checksum, kind and length.
const HEAD_WORDS: usize = 2;
const ATTR_WORDS: usize = 12;

const DONE: u64 = 1;
const ATTR: u64 = 2;
const OPENED: u64 = 3;
const CREATED: u64 = 4;
const WROTE: u64 = 5;
const FAILED: u64 = 6;

fn attr_words(attr: &Attr) -> [u64; ATTR_WORDS] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [
        attr.ino,
        pair(attr.generation, attr.kind.mode_bits() | attr.mode),
        pair(attr.nlink, attr.rdev),
        pair(attr.uid, attr.gid),
        attr.size,
        attr.blocks,
        attr.atime.0 as u64,
        attr.mtime.0 as u64,
        attr.ctime.0 as u64,
        attr.btime.0 as u64,
        0,
        0,
    ]
}

fn attr_of(words: &[u64]) -> Option<Attr> {
    let half = |index: usize, high: bool| (words[index] >> if high { 32 } else { 0 }) as u32;
    let time = |index: usize| Timestamp(words[index] as i64);
    Some(Attr {
        ino: words[0],
        generation: half(1, false),
        kind: FileKind::from_mode(half(1, true))?,
        mode: half(1, true) & 0o7777,
        nlink: half(2, false),
        rdev: half(2, true),
        uid: half(3, false),
        gid: half(3, true),
        size: words[4],
        blocks: words[5],
        atime: time(6),
        mtime: time(7),
        ctime: time(8),
        btime: time(9),
        change: 0,
    })
}

fn checksum(slot: u32, words: &[u64]) -> u32 {
    let head = [words[0], words[1] >> 32];
    let sum = crc32c_append(slot, head.as_bytes());
    crc32c_append(sum, words[HEAD_WORDS..].as_bytes())
}

/// The words of an entry; those behind them keep what they hold. `None` for an error that has no number.
pub(crate) fn encode(once: Once, outcome: &Outcome) -> Option<Vec<u64>> {
    let (kind, content) = match outcome {
        Outcome::Done => (DONE, Vec::new()),
        Outcome::Attr(attr) => (ATTR, attr_words(attr).to_vec()),
        Outcome::Opened { attr, created: false } => (OPENED, attr_words(attr).to_vec()),
        Outcome::Opened { attr, created: true } => (CREATED, attr_words(attr).to_vec()),
        Outcome::Wrote { offset, len_bytes } => (WROTE, vec![*offset, *len_bytes]),
        Outcome::Failed(error) => {
            let ErrorCode { cause, particulars } = error.code()?;
            (FAILED, vec![u64::from(cause) | u64::from(particulars) << 16])
        }
    };
    let mut words = vec![once.seq, kind << 32 | (content.len() as u64) << 40];
    words.extend(content);
    words[1] |= u64::from(checksum(once.slot, &words));
    Some(words)
}

/// [`decode`] of the entry at `offset`.
pub(crate) fn load(region: &Region, offset: u64, slot: u32) -> Result<Option<(u64, Outcome)>, FsError> {
    let mut words = [0; ENTRY_WORDS];
    for (word, stored) in words.iter_mut().zip(region.words(offset, ENTRY_WORDS)) {
        *word = stored.load(Ordering::Acquire);
    }
    decode(slot, &words)
}

/// What an entry holds: the number of the last token and the outcome, or nothing.
///
/// # Errors
/// If the entry is damaged.
fn decode(slot: u32, words: &[u64; ENTRY_WORDS]) -> Result<Option<(u64, Outcome)>, FsError> {
    if words[..HEAD_WORDS] == [0; HEAD_WORDS] {
        return Ok(None);
    }
    let damaged = || {
        FsError::damaged(
            None,
            format!("the outcome of slot {slot} is damaged; run `ferrite fsck`"),
        )
    };
    let (kind, len) = (words[1] >> 32 & 0xff, (words[1] >> 40) as usize);
    let used = words.get(..HEAD_WORDS + len).ok_or_else(damaged)?;
    if checksum(slot, used) != words[1] as u32 {
        return Err(damaged());
    }
    let content = &used[HEAD_WORDS..];
    let outcome = match (kind, len) {
        (DONE, 0) => Outcome::Done,
        (ATTR, ATTR_WORDS) => Outcome::Attr(attr_of(content).ok_or_else(damaged)?),
        (OPENED | CREATED, ATTR_WORDS) => Outcome::Opened {
            attr: attr_of(content).ok_or_else(damaged)?,
            created: kind == CREATED,
        },
        (WROTE, 2) => Outcome::Wrote {
            offset: content[0],
            len_bytes: content[1],
        },
        (FAILED, 1) => {
            let error = FsError::from_code(ErrorCode::new(content[0] as u16, (content[0] >> 16) as u16));
            Outcome::Failed(error.ok_or_else(damaged)?)
        }
        _ => return Err(damaged()),
    };
    Ok(Some((words[0], outcome)))
}

#[cfg(test)]
mod tests {
    use ferrite_vfs::{BadArgument, SpaceOf};

    use super::*;

    fn attr() -> Attr {
        Attr {
            ino: 77,
            generation: 3,
            kind: FileKind::Symlink,
            mode: 0o4751,
            nlink: 2,
            uid: 1000,
            gid: 100,
            rdev: 9,
            size: 1 << 40,
            blocks: 8,
            atime: Timestamp(-5),
            mtime: Timestamp(6),
            ctime: Timestamp(7),
            btime: Timestamp(8),
            change: 0,
        }
    }

    #[test]
    fn outcomes_are_read_as_they_were_written_and_flipped_bits_are_noticed() {
        let once = Once { slot: 5, seq: 12 };
        for outcome in [
            Outcome::Done,
            Outcome::Attr(attr()),
            Outcome::Opened {
                attr: attr(),
                created: true,
            },
            Outcome::Opened {
                attr: attr(),
                created: false,
            },
            Outcome::Wrote {
                offset: 1 << 43,
                len_bytes: 4096,
            },
            Outcome::Failed(FsError::NoSpace(SpaceOf::Names)),
            Outcome::Failed(FsError::Invalid(BadArgument::NoLength)),
            Outcome::Failed(FsError::NotEmpty),
        ] {
            // A longer outcome was there before.
            let mut words = [0xabab; ENTRY_WORDS];
            let written = encode(once, &outcome).unwrap();
            words[..written.len()].copy_from_slice(&written);
            assert_eq!(decode(5, &words), Ok(Some((12, outcome))));
            assert!(decode(6, &words).is_err(), "another slot's");
            for bit in 0..written.len() * 64 {
                let mut flipped = words;
                flipped[bit / 64] ^= 1 << (bit % 64);
                assert!(decode(5, &flipped).is_err(), "bit {bit}");
            }
        }
        assert_eq!(decode(5, &[0; ENTRY_WORDS]), Ok(None));
        assert_eq!(encode(once, &Outcome::Failed(FsError::Io("gone".into()))), None);
    }
}
