//! Traces on a real engine: bytes written to the medium for each byte that the program wrote.
//!
//! Invariant: counts only the cost of writes and new sizes. Creating and removing files, and filling those that the
//! trace found, happens in between and is subtracted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_pm::{Counters, LINE_BYTES};
use ferrite_vfs::trace::Event;
use ferrite_vfs::{FileSystem, Ino, OpenFile, OpenMode, ROOT_INO, SYSTEM, SetAttr};

use super::PAGE;
use crate::engine::{engine_in_memory, new_file};
use crate::error::LabError;

/// Most pages that the files of a trace may have at a time: 1 GiB.
const PAGES_MAX: u64 = 1 << 18;
/// Bytes of each write that fills a file.
const CHUNK_BYTES: u64 = 1 << 20;

/// The cost of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Traffic {
    /// Bytes to the medium for each byte written.
    pub(crate) written: f64,
    /// The same after folding all logs at the end.
    pub(crate) settled: f64,
}

/// The requirements of a trace on a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    pages: u64,
    files: u64,
}

/// The most pages and files that exist at a time; `None` if that is too much.
fn need(events: &[Event]) -> Option<Need> {
    /// Pages filled beforehand, and those written past them.
    #[derive(Default)]
    struct Pages {
        filled: u64,
        others: HashSet<u64>,
    }
    let mut files: HashMap<Ino, Pages> = HashMap::new();
    let (mut live, mut most) = (0, 0);
    for event in events {
        match *event {
            Event::File { ino, len_bytes } => {
                let filled = len_bytes.div_ceil(PAGE);
                let pages = Pages {
                    filled,
                    others: HashSet::new(),
                };
                live += filled;
                if let Some(old) = files.insert(ino, pages) {
                    live -= old.filled + old.others.len() as u64;
                }
            }
            Event::Write {
                ino,
                offset_bytes,
                len_bytes,
            } => {
                if len_bytes > PAGES_MAX * PAGE {
                    return None;
                }
                let pages = files.entry(ino).or_default();
                for page in offset_bytes / PAGE..(offset_bytes + len_bytes).div_ceil(PAGE) {
                    live += u64::from(page >= pages.filled && pages.others.insert(page));
                }
            }
            Event::Truncate { ino, .. } => {
                files.entry(ino).or_default();
            }
        }
        if live > PAGES_MAX {
            return None;
        }
        most = most.max(live);
    }
    Some(Need {
        pages: most,
        files: files.len() as u64,
    })
}

/// A pool with the trace's files.
struct Stage {
    engine: Engine,
    open: HashMap<Ino, Arc<dyn OpenFile>>,
    /// Traffic that the program did not cause.
    aside: Counters,
    data: Vec<u8>,
}

impl Stage {
    fn new(need: Need, cow_only: bool, mapping: Mapping) -> Result<Stage, LabError> {
        // Copies and logs need room besides the pages.
        let bytes = need.pages * PAGE * 2 + need.files * 1024 + (64 << 20);
        let mkfs = MkfsOptions::default()
            .mapping(mapping)
            .inodes(need.files + 1024)
            .seed(1);
        // A cleaner that runs at arbitrary times would make counts differ from run to run.
        let mount = MountOptions::default().cleaner(false).cow_only(cow_only);
        Ok(Stage {
            engine: engine_in_memory(bytes, &mkfs, &mount)?,
            open: HashMap::new(),
            aside: Counters::default(),
            data: vec![0x5a; CHUNK_BYTES as usize],
        })
    }

    /// A file of that length under the trace's number; replaces a previous file of that number. Not counted.
    fn begin(&mut self, ino: Ino, len_bytes: u64) -> Result<Arc<dyn OpenFile>, LabError> {
        let before = self.engine.counters();
        let name = ino.to_string();
        if self.open.remove(&ino).is_some() {
            self.engine.unlink(SYSTEM, ROOT_INO, name.as_bytes())?;
        }
        let made = new_file(&self.engine, ROOT_INO, &name)?;
        let file = self.engine.open(SYSTEM, made, OpenMode::read_write())?;
        for offset in (0..len_bytes).step_by(CHUNK_BYTES as usize) {
            let len = CHUNK_BYTES.min(len_bytes - offset) as usize;
            file.write_at(SYSTEM, offset, &self.data[..len])?;
        }
        self.open.insert(ino, Arc::clone(&file));
        let spent = self.engine.counters() - before;
        self.aside.lines_written_back += spent.lines_written_back;
        self.aside.bytes_streamed += spent.bytes_streamed;
        Ok(file)
    }

    /// The file of that number; one that the trace has not described is empty.
    fn file(&mut self, ino: Ino) -> Result<Arc<dyn OpenFile>, LabError> {
        match self.open.get(&ino) {
            Some(file) => Ok(Arc::clone(file)),
            None => self.begin(ino, 0),
        }
    }

    fn medium_bytes(&self, since: Counters) -> f64 {
        let spent = self.engine.counters() - since;
        let bytes = |counters: Counters| counters.bytes_streamed + counters.lines_written_back * LINE_BYTES;
        (bytes(spent) - bytes(self.aside)) as f64
    }

    /// Replays the events of a trace. Returns the bytes that its program wrote.
    fn write_all(&mut self, events: &[Event]) -> Result<u64, LabError> {
        let mut user_bytes = 0;
        for event in events {
            match *event {
                Event::File { ino, len_bytes } => {
                    self.begin(ino, len_bytes)?;
                }
                Event::Truncate { ino, len_bytes } => {
                    let ino = self.file(ino)?.ino();
                    let set = SetAttr {
                        size: Some(len_bytes),
                        ..SetAttr::default()
                    };
                    self.engine.setattr(SYSTEM, ino, &set)?;
                }
                Event::Write {
                    ino,
                    offset_bytes,
                    len_bytes,
                } => {
                    let file = self.file(ino)?;
                    let len = len_bytes as usize;
                    if self.data.len() < len {
                        self.data.resize(len, 0x5a);
                    }
                    let written = file.write_at(SYSTEM, offset_bytes, &self.data[..len])?;
                    if written < len {
                        return Err(LabError::Wrong(format!("{written} of {len} bytes were written")));
                    }
                    user_bytes += len_bytes;
                }
            }
        }
        Ok(user_bytes)
    }
}

/// Writes a trace to a fresh pool in memory. `None` if its files are too large for that.
pub(crate) fn replay(events: &[Event], cow_only: bool) -> Result<Option<Traffic>, LabError> {
    let Some(need) = need(events) else { return Ok(None) };
    let mut stage = Stage::new(need, cow_only, Mapping::default())?;
    let start = stage.engine.counters();
    let user_bytes = stage.write_all(events)?;
    let written = stage.medium_bytes(start);
    stage.engine.clean(usize::MAX)?;
    let settled = stage.medium_bytes(start);
    let user_bytes = user_bytes.max(1) as f64;
    Ok(Some(Traffic {
        written: written / user_bytes,
        settled: settled / user_bytes,
    }))
}

/// The pool that a trace leaves behind.
#[cfg(feature = "rdma")]
pub(crate) struct Left {
    pub(crate) engine: Engine,
    /// The inode numbers of its files in the trace, and in this pool.
    pub(crate) files: Vec<(Ino, Ino)>,
}

/// Writes a trace to a fresh pool with this mapping, and leaves it. `None` as with [`replay`].
#[cfg(feature = "rdma")]
pub(crate) fn leave(events: &[Event], mapping: Mapping) -> Result<Option<Left>, LabError> {
    let Some(need) = need(events) else { return Ok(None) };
    let mut stage = Stage::new(need, false, mapping)?;
    stage.write_all(events)?;
    let mut files: Vec<_> = stage.open.iter().map(|(&ino, file)| (ino, file.ino())).collect();
    files.sort_unstable();
    Ok(Some(Left {
        engine: stage.engine,
        files,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(ino: Ino, offset_bytes: u64, len_bytes: u64) -> Event {
        Event::Write {
            ino,
            offset_bytes,
            len_bytes,
        }
    }

    #[test]
    fn needs_are_the_most_at_a_time() {
        let file = |ino, len_bytes| Event::File { ino, len_bytes };
        // Three pages, the fourth by the third line, and one of another file; then the first file is gone.
        let events = [
            file(1, 10_000),
            write(1, 0, 100),
            write(1, 12_280, 10),
            write(2, 5 << 40, 4096),
            file(1, 0),
            write(1, 1, 1),
            Event::Truncate { ino: 3, len_bytes: 9 },
        ];
        assert_eq!(need(&events), Some(Need { pages: 5, files: 3 }));
        assert_eq!(need(&[file(1, 2 << 30)]), None);
        assert_eq!(need(&[write(1, 0, 2 << 30)]), None);
    }

    /// Small overwrites of existing data: logs write a little, copies a page each. Whole pages are the same for both.
    #[test]
    fn unaligned_overwrites_are_dear_without_logs_and_whole_pages_are_not() {
        let file = Event::File {
            ino: 9,
            len_bytes: 1 << 20,
        };
        let mut small = vec![file];
        small.extend((0..200).map(|page| write(9, page * PAGE + 77, 100)));
        let mut whole = vec![file];
        whole.extend((0..200).map(|page| write(9, page * PAGE, PAGE)));
        let run = |events: &[Event], cow_only| replay(events, cow_only).expect("it runs").expect("it fits");
        let (logs, copies) = (run(&small, false), run(&small, true));
        assert!(logs.written < 6.0 && copies.written > 40.0, "{logs:?}, {copies:?}");
        assert!(logs.settled > 40.0, "every log is folded in the end: {logs:?}");
        let (logs, copies) = (run(&whole, false), run(&whole, true));
        assert!(
            (logs.written / copies.written - 1.0).abs() < 0.01,
            "{logs:?}, {copies:?}"
        );
        assert!(
            (1.0..1.1).contains(&logs.written),
            "what fills the file counts for nothing: {logs:?}"
        );
    }
}
