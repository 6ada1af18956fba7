//! Exactly once: tokens of changes, and the outcome an engine keeps of a change that carried one.
//!
//! A client that lost a reply sends its request again. With a token, the change still happens once: the engine stores
//! token and [`Outcome`] with the change, in one atomic step, and replies to a retransmission from there, after a crash
//! too. A reply cache in DRAM could not do that.
//!
//! Contract: a client numbers the changes of one slot in ascending order and has at most one of them in flight, as in a
//! session of NFSv4.1. So an engine keeps one outcome for each slot. Calls that change nothing need no token, and
//! ignore it.

use crate::{Attr, ErrorCode, FileKind, FsError, Timestamp};

/// A token: names one change of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DedupToken {
    /// Which of the engine's slots: 0 to [`crate::Limits::dedup_slots`] - 1. The server that hands out slots makes sure
    /// that no two clients use the same.
    pub slot: u32,
    /// Larger than that of every earlier change with this slot. Never 0.
    pub seq: u64,
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing, successfully.
    Done,
    /// Attributes. [`Attr::change`] is not kept: it is 0 in a repeated reply.
    Attr(Attr),
    /// An open file: a repetition opens the same file.
    Opened {
        /// Its attributes then.
        attr: Attr,
        /// The change created it.
        created: bool,
    },
    /// The extent that data was written to.
    Wrote {
        /// Its offset.
        offset: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// It was refused.
    Failed(FsError),
}

const DONE: u8 = 1;
const ATTR: u8 = 2;
const OPENED: u8 = 3;
const CREATED: u8 = 4;
const WROTE: u8 = 5;
const FAILED: u8 = 6;
/// Words of the attributes in an outcome.
const ATTR_WORDS: usize = 12;

impl Outcome {
    /// The outcome as engines store it: its kind, and words that mean the same for ever. `None` for an error that has
    /// no number.
    pub fn to_words(&self) -> Option<(u8, Vec<u64>)> {
        Some(match self {
            Outcome::Done => (DONE, Vec::new()),
            Outcome::Attr(attr) => (ATTR, attr_words(attr).to_vec()),
            Outcome::Opened { attr, created: false } => (OPENED, attr_words(attr).to_vec()),
            Outcome::Opened { attr, created: true } => (CREATED, attr_words(attr).to_vec()),
            Outcome::Wrote { offset, len_bytes } => (WROTE, vec![*offset, *len_bytes]),
            Outcome::Failed(error) => {
                let ErrorCode { cause, particulars } = error.code()?;
                (FAILED, vec![u64::from(cause) | u64::from(particulars) << 16])
            }
        })
    }

    /// The outcome that has this kind and these words; `None` if no outcome has them, which is damage.
    pub fn from_words(kind: u8, words: &[u64]) -> Option<Outcome> {
        Some(match (kind, words) {
            (DONE, []) => Outcome::Done,
            (ATTR, words) => Outcome::Attr(attr_of(words)?),
            (OPENED | CREATED, words) => Outcome::Opened {
                attr: attr_of(words)?,
                created: kind == CREATED,
            },
            (WROTE, &[offset, len_bytes]) => Outcome::Wrote { offset, len_bytes },
            (FAILED, &[code]) => Outcome::Failed(FsError::from_code(ErrorCode::new(code as u16, (code >> 16) as u16))?),
            _ => return None,
        })
    }
}

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
    let words: &[u64; ATTR_WORDS] = words.try_into().ok()?;
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

/// Whether an error is kept. Failures of the medium or the engine are not: the request may succeed later.
pub fn keeps(error: &FsError) -> bool {
    !matches!(error, FsError::Stale | FsError::Loop | FsError::ReadOnly) && error.code().is_some()
}
