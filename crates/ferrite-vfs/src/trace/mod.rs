//! Traces: which parts of which files a program wrote, as text, to read or replay later.
//!
//! Contents: the format, both ways ([`TraceWriter`] writes it, [`parse`] reads it), and [`Traced`], which records the
//! writes that pass through to any engine. A trace holds no names, no content and no times.
//!
//! The first line is `ferrite-trace 1`. Lines that begin with `#` are comments; they and empty lines are skipped. Every
//! other line is an [`Event`]:
//!
//! | line | event |
//! | --- | --- |
//! | `f INO LEN` | from here on the trace knows file `INO`, which has `LEN` bytes: it was just made (0), or opened for writing for the first time |
//! | `t INO LEN` | its size was set |
//! | `INO:LEN@OFFSET` | `LEN` bytes were written to it at `OFFSET` |
//!
//! A write may leave out `INO:` if it is the file of the line before, and `@OFFSET` if it starts where that file was
//! left: after the last write to it, or at its end after `f` and `t`. So a log is a list of lengths, and any whole
//! lines from the beginning of a trace are a trace.
//!
//! Invariant: [`parse`] of what a [`TraceWriter`] wrote gives the recorded events in their order.

mod traced;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use parking_lot::Mutex;
use thiserror::Error;

use crate::Ino;
pub use traced::Traced;

/// First line of every trace.
pub const HEADER: &str = "ferrite-trace 1";
/// No offset or length in a trace is larger; that of the longest file.
pub const MAX_BYTES: u64 = crate::memfs::MAX_FILE_BYTES;
/// A writer flushes its lines when it has buffered this many bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// The event in a line of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A file the trace has not shown yet, or a new file under an old number.
    File {
        /// Its inode.
        ino: Ino,
        /// Its size now, in bytes; 0 if it was just created.
        len_bytes: u64,
    },
    /// A write that succeeded.
    Write {
        /// The inode written to.
        ino: Ino,
        /// Where it begins, in bytes.
        offset_bytes: u64,
        /// How long it is, in bytes; never 0.
        len_bytes: u64,
    },
    /// A file's size was set.
    Truncate {
        /// Its inode.
        ino: Ino,
        /// The new size, in bytes.
        len_bytes: u64,
    },
}

/// Why a text is not a trace. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The first line is not that of a trace.
    #[error("line 1 is not `{HEADER}`, so this is no trace; `ferrite mount -o trace=FILE` records one")]
    NoTrace,
    /// A trace of another version.
    #[error("line 1: version {0} of the format; use a newer Ferrite, or record the trace again")]
    Version(String),
    /// A line in an unknown form.
    #[error("line {line}: `{text}`: {why}; correct the line, or cut the trace before it (`head -n {}`)", line - 1)]
    Line {
        /// The line number.
        line: usize,
        /// The line itself, or its beginning.
        text: String,
        /// The defect.
        why: &'static str,
    },
}

/// The values that lines may leave out, because earlier ones gave them.
#[derive(Debug, Default)]
struct Known {
    /// File of the last line.
    ino: Option<Ino>,
    /// The offset at which each file was left.
    ends: HashMap<Ino, u64>,
}

impl Known {
    fn learn(&mut self, event: Event) {
        let (ino, end) = match event {
            Event::File { ino, len_bytes } | Event::Truncate { ino, len_bytes } => (ino, len_bytes),
            Event::Write {
                ino,
                offset_bytes,
                len_bytes,
            } => (ino, offset_bytes + len_bytes),
        };
        self.ends.insert(ino, end);
        self.ino = Some(ino);
    }

    fn encode(&mut self, event: Event, text: &mut String) {
        // Writing to a string cannot fail.
        let _ = match event {
            Event::File { ino, len_bytes } => write!(text, "f {ino} {len_bytes}"),
            Event::Truncate { ino, len_bytes } => write!(text, "t {ino} {len_bytes}"),
            Event::Write {
                ino,
                offset_bytes,
                len_bytes,
            } => {
                if self.ino != Some(ino) {
                    let _ = write!(text, "{ino}:");
                }
                let _ = write!(text, "{len_bytes}");
                if self.ends.get(&ino) != Some(&offset_bytes) {
                    let _ = write!(text, "@{offset_bytes}");
                }
                Ok(())
            }
        };
        text.push('\n');
        self.learn(event);
    }

    fn decode(&mut self, line: &str) -> Result<Event, &'static str> {
        let event = if let Some(words) = line.strip_prefix("f ") {
            let (ino, len_bytes) = file_and_size(words)?;
            Event::File { ino, len_bytes }
        } else if let Some(words) = line.strip_prefix("t ") {
            let (ino, len_bytes) = file_and_size(words)?;
            Event::Truncate { ino, len_bytes }
        } else {
            let (ino, rest) = match line.split_once(':') {
                Some((ino, rest)) => (file(ino)?, rest),
                None => (
                    self.ino
                        .ok_or("it leaves out the file, and no line before it has one")?,
                    line,
                ),
            };
            let (len, offset) = match rest.split_once('@') {
                Some((len, offset)) => (len, bytes(offset)?),
                None => {
                    let end = self.ends.get(&ino).copied();
                    (rest, end.ok_or("it leaves out the offset of a file not seen before")?)
                }
            };
            let len_bytes = bytes(len)?;
            if len_bytes == 0 || offset + len_bytes > MAX_BYTES {
                return Err("a write has 1 byte at least, and ends before 16 TiB");
            }
            Event::Write {
                ino,
                offset_bytes: offset,
                len_bytes,
            }
        };
        self.learn(event);
        Ok(event)
    }
}

fn digits(word: &str) -> Result<u64, &'static str> {
    // `parse` would accept a sign, too.
    let all = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| word.parse().ok())
        .flatten()
        .ok_or("want `f INO LEN`, `t INO LEN` or `INO:LEN@OFFSET`, in decimal numbers")
}

fn file(word: &str) -> Result<Ino, &'static str> {
    match digits(word)? {
        0 => Err("0 is no file's number"),
        ino => Ok(ino),
    }
}

fn bytes(word: &str) -> Result<u64, &'static str> {
    match digits(word)? {
        count if count <= MAX_BYTES => Ok(count),
        _ => Err("no file is longer than 16 TiB"),
    }
}

fn file_and_size(words: &str) -> Result<(Ino, u64), &'static str> {
    let (ino, len) = words.split_once(' ').ok_or("a number is missing")?;
    Ok((file(ino)?, bytes(len)?))
}

/// The events of a trace.
pub fn parse(text: &str) -> Result<Vec<Event>, TraceError> {
    let mut lines = text.lines();
    match lines.next() {
        Some(HEADER) => {}
        first => {
            let version = first.and_then(|line| line.strip_prefix("ferrite-trace "));
            return Err(version.map_or(TraceError::NoTrace, |version| {
                TraceError::Version(version.chars().take(20).collect())
            }));
        }
    }
    let mut known = Known::default();
    let mut events = Vec::new();
    for (index, line) in lines.enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let event = known.decode(line).map_err(|why| TraceError::Line {
            line: index + 2,
            text: line.chars().take(60).collect(),
            why,
        })?;
        events.push(event);
    }
    Ok(events)
}

/// Writes a trace as its events happen. Threads may share it; events are recorded in the order in which they arrive
/// here.
pub struct TraceWriter(Mutex<Recording>);

struct Recording {
    known: Known,
    /// Whole lines that are not written yet.
    text: String,
    sink: Box<dyn Write + Send>,
    /// Why it has ended early.
    failed: Option<io::Error>,
}

impl TraceWriter {
    /// Records to `sink`, from which nothing is read. Lines are buffered and passed on in blocks of 64 KiB, always
    /// whole.
    pub fn new(sink: Box<dyn Write + Send>) -> TraceWriter {
        TraceWriter(Mutex::new(Recording {
            known: Known::default(),
            text: format!("{HEADER}\n"),
            sink,
            failed: None,
        }))
    }

    /// Adds an event. An error of the sink ends the trace and affects no caller; [`Self::finish`] reports it.
    pub fn record(&self, event: Event) {
        self.0.lock().record(event);
    }

    /// Adds [`Event::File`], unless the trace knows the file.
    fn introduce(&self, ino: Ino, len_bytes: u64) {
        let mut recording = self.0.lock();
        if !recording.known.ends.contains_key(&ino) {
            recording.record(Event::File { ino, len_bytes });
        }
    }

    /// Writes out the buffered lines. Reports any error since the beginning, once.
    pub fn finish(&self) -> io::Result<()> {
        let mut recording = self.0.lock();
        recording.pass_on();
        recording.failed.take().map_or(Ok(()), Err)
    }
}

impl Recording {
    fn record(&mut self, event: Event) {
        if self.failed.is_some() {
            return;
        }
        self.known.encode(event, &mut self.text);
        if self.text.len() >= BUFFER_BYTES {
            self.pass_on();
        }
    }

    fn pass_on(&mut self) {
        if self.failed.is_none() {
            let written = self.sink.write_all(self.text.as_bytes());
            self.failed = written.and_then(|()| self.sink.flush()).err();
        }
        self.text.clear();
    }
}
