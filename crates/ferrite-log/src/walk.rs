//! The search for records.
//!
//! Invariants: all bytes passed on have valid checksums, and were not passed on before in this walk. Outside records
//! each byte may begin one, also behind a valid frame: a crash may have left a part of an append, of any length, after
//! which others have continued. Such a part may hold duplicates of earlier records, if a client appends a log to
//! itself; the walk has met their numbers before.

use std::collections::HashMap;

use crate::error::Result;
use crate::format::{FRAME_BYTES, Frame, HEADER, Header, next_candidate};
use crate::store::Store;

/// Bytes per read.
const PIECE_BYTES: usize = 1 << 20;
const FRAME: usize = FRAME_BYTES as usize;

/// The findings of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Walked {
    /// Appends.
    pub appends: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Duplicates: appends that were resent because a connection broke. The walk skips them.
    pub duplicates: u64,
    /// Bytes between records that are not zeros: remains of appends that never returned, or damage.
    pub skipped_bytes: u64,
    /// The log was rewound meanwhile, and the walk ended there.
    pub is_cut_short: bool,
}

/// Bytes of the file in memory.
struct Window<'s, S> {
    store: &'s S,
    end: u64,
    /// Their position in the file.
    at: u64,
    bytes: Vec<u8>,
    /// Number of them that the walk has passed.
    done: usize,
}

impl<S: Store> Window<'_, S> {
    /// Has at least `len` bytes, or all up to the end; returns false if it had to read some.
    fn has(&mut self, len: usize) -> Result<bool> {
        if self.bytes.len() - self.done >= len {
            return Ok(true);
        }
        self.bytes.drain(..self.done);
        self.at += self.done as u64;
        self.done = 0;
        let from = self.at + self.bytes.len() as u64;
        let wanted = (len.max(PIECE_BYTES) - self.bytes.len()) as u64;
        let wanted = wanted.min(self.end.saturating_sub(from)) as usize;
        if wanted == 0 {
            return Ok(true);
        }
        let filled = self.bytes.len();
        self.bytes.resize(filled + wanted, 0);
        let count = self.store.read(from, &mut self.bytes[filled..])?;
        self.bytes.truncate(filled + count);
        if count < wanted {
            // Another client has truncated it.
            self.end = from + count as u64;
        }
        Ok(false)
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.done..]
    }
}

/// See [`crate::Log::walk_appends`].
pub(crate) fn walk(
    store: &impl Store,
    id: &[u8; 16],
    start: u64,
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<Walked> {
    let mut walked = Walked::default();
    let mut last_of: HashMap<u64, u64> = HashMap::new();
    let mut window = Window {
        store,
        end: store.size()?,
        at: start,
        bytes: Vec::new(),
        done: 0,
    };
    let is_new = |window: &mut Window<'_, _>, len| -> Result<bool> {
        if window.has(len)? {
            return Ok(true);
        }
        // The bytes may have been freed before the read, and look like a gap.
        let mut header = [0; HEADER];
        store.read(0, &mut header)?;
        Ok(Header::read(&header)?.start == start)
    };
    loop {
        if !is_new(&mut window, FRAME)? {
            walked.is_cut_short = true;
            return Ok(walked);
        }
        if window.rest().is_empty() {
            return Ok(walked);
        }
        let frame = Frame::read(id, window.rest());
        if let Some(frame) = frame
            && !is_new(&mut window, FRAME + frame.len)?
        {
            walked.is_cut_short = true;
            return Ok(walked);
        }
        let found = frame.and_then(|frame| {
            let data = window.rest().get(FRAME..FRAME + frame.len)?;
            frame.is_of(id, data).then_some((frame, data))
        });
        let Some((frame, data)) = found else {
            let skipped = next_candidate(window.rest(), 1);
            let bytes = &window.rest()[..skipped];
            walked.skipped_bytes += bytes.iter().filter(|byte| **byte != 0).count() as u64;
            window.done += skipped;
            continue;
        };
        if last_of.get(&frame.writer).is_some_and(|last| *last >= frame.number) {
            walked.duplicates += 1;
        } else {
            last_of.insert(frame.writer, frame.number);
            walked.appends += 1;
            walked.bytes += data.len() as u64;
            if !take(data) {
                return Ok(walked);
            }
        }
        window.done += FRAME + frame.len;
    }
}
