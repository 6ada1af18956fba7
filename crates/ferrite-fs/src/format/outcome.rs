//! The table of outcomes: the result of the last change of each slot of tokens ([`ferrite_vfs::DedupToken`]).
//!
//! Contents: one entry as it is stored; see `docs/format.md`. A record that makes a change sets the words of its
//! entry as well, so the change and its outcome are one.
//!
//! Invariant: an entry is all zero, or its checksum is right.

use std::sync::atomic::Ordering;

use ferrite_pm::Region;
use ferrite_vfs::{DedupToken, FsError, Outcome};
use zerocopy::IntoBytes;

use crate::format::checksum::crc32c_append;

/// Size of an entry.
pub(crate) const ENTRY_BYTES: u64 = 128;
/// Words of an entry.
const ENTRY_WORDS: usize = (ENTRY_BYTES / 8) as usize;
/// Number of the token, and the word with checksum, kind and length.
const HEAD_WORDS: usize = 2;
fn checksum(slot: u32, words: &[u64]) -> u32 {
    let head = [words[0], words[1] >> 32];
    let sum = crc32c_append(slot, head.as_bytes());
    crc32c_append(sum, words[HEAD_WORDS..].as_bytes())
}

/// The words of an entry; the words after them keep their content. `None` for an error that has no number.
pub(crate) fn encode(token: DedupToken, outcome: &Outcome) -> Option<Vec<u64>> {
    let (kind, content) = outcome.to_words()?;
    let mut words = vec![token.seq, u64::from(kind) << 32 | (content.len() as u64) << 40];
    words.extend(content);
    words[1] |= u64::from(checksum(token.slot, &words));
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

/// Decodes an entry: the number of the last token and the outcome, or nothing.
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
    let outcome = Outcome::from_words(kind as u8, &used[HEAD_WORDS..]).ok_or_else(damaged)?;
    Ok(Some((words[0], outcome)))
}

#[cfg(test)]
mod tests {
    use ferrite_vfs::{Attr, BadArgument, FileKind, SpaceOf, Timestamp};

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
        let token = DedupToken { slot: 5, seq: 12 };
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
            let written = encode(token, &outcome).unwrap();
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
        assert_eq!(encode(token, &Outcome::Failed(FsError::Io("gone".into()))), None);
    }
}
