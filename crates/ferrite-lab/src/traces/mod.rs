//! Recorded writes of real programs, split into updates of pages.
//!
//! Contents: the stored traces ([`STORED`], recorded by `scripts/record-traces.sh`) and users' own traces
//! ([`read`]); the sizes of their updates ([`Updates`]); [`replay`] writes them to an engine again. The format is that
//! of `ferrite_vfs::trace`.
//!
//! An update is the change of one page of 4 KiB by one write, whether or not the rest of the page has content.

pub(crate) mod replay;

use std::collections::HashMap;
use std::path::Path;

use ferrite_vfs::Ino;
use ferrite_vfs::trace::{Event, parse};

use crate::error::LabError;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// The kind of a program, as far as the paper's claim distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A server that writes pages (the paper's TPCC).
    PageStore,
    /// An embedded database (as in the paper's Facebook and Twitter).
    Embedded,
    /// Anything else that people run (the paper's Iphoto, Usr1, Usr2).
    Application,
}

/// A stored trace.
pub(crate) struct Stored {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    text: &'static str,
}

macro_rules! stored {
    ($($name:literal $kind:ident,)*) => {
        &[$(Stored {
            name: $name,
            kind: Kind::$kind,
            text: include_str!(concat!("../../traces/", $name, ".trace")),
        }),*]
    };
}

/// All stored traces. Their first lines name the program, and how much of its run they hold.
pub(crate) const STORED: &[Stored] = stored![
    "postgres" PageStore,
    "sqlite-rollback" Embedded,
    "sqlite-wal" Embedded,
    "photos" Application,
    "git" Application,
    "build" Application,
    "rsync" Application,
    "tar" Application,
    "log" Application,
];

impl Stored {
    pub(crate) fn events(&self) -> Result<Vec<Event>, LabError> {
        parse(self.text).map_err(|source| LabError::Trace {
            path: format!("{}.trace", self.name).into(),
            source,
        })
    }
}

/// A user's own trace, which must contain a write.
pub(crate) fn read(path: &Path) -> Result<Vec<Event>, LabError> {
    let bytes = std::fs::read(path).map_err(|source| LabError::File {
        path: path.into(),
        source,
    })?;
    // A recorder that was killed early has written nothing, not even the first line.
    let events = match bytes.is_empty() {
        true => Vec::new(),
        false => parse(&String::from_utf8_lossy(&bytes)).map_err(|source| LabError::Trace {
            path: path.into(),
            source,
        })?,
    };
    if Updates::of(&events).total == 0 {
        return Err(LabError::NoWrites { path: path.into() });
    }
    Ok(events)
}

/// The number of updates of each size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Updates {
    /// By bytes, 1 to 4096; index 0 is unused.
    counts: Vec<u64>,
    pub(crate) total: u64,
}

impl Updates {
    fn none() -> Updates {
        Updates {
            counts: vec![0; PAGE as usize + 1],
            total: 0,
        }
    }

    /// The updates of all writes among the events.
    pub(crate) fn of(events: &[Event]) -> Updates {
        Updates::where_file(events, |_| true)
    }

    /// The updates of writes to files that had content when the trace first saw them; databases are among these, their
    /// journals are not.
    pub(crate) fn of_found(events: &[Event]) -> Updates {
        Updates::where_file(events, |had_content| had_content)
    }

    fn where_file(events: &[Event], wanted: impl Fn(bool) -> bool) -> Updates {
        let mut updates = Updates::none();
        let mut had_content: HashMap<Ino, bool> = HashMap::new();
        for event in events {
            match *event {
                Event::File { ino, len_bytes } => {
                    had_content.insert(ino, len_bytes > 0);
                }
                Event::Write {
                    ino,
                    offset_bytes,
                    len_bytes,
                } => {
                    if wanted(had_content.get(&ino).copied().unwrap_or(false)) {
                        updates.add(offset_bytes, len_bytes);
                    }
                }
                Event::Truncate { .. } => {}
            }
        }
        updates
    }

    /// Splits a write into pages. A long one takes no longer.
    fn add(&mut self, offset_bytes: u64, len_bytes: u64) {
        let first = (PAGE - offset_bytes % PAGE).min(len_bytes);
        let rest = len_bytes - first;
        for (bytes, count) in [(first, 1), (PAGE, rest / PAGE), (rest % PAGE, 1)] {
            if bytes > 0 {
                self.counts[bytes as usize] += count;
                self.total += count;
            }
        }
    }

    /// Share of the updates of at most the given number of bytes, in percent.
    pub(crate) fn at_most_percent(&self, bytes: u64) -> f64 {
        let small: u64 = self.counts[..=bytes.min(PAGE) as usize].iter().sum();
        small as f64 * 100.0 / self.total.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use ferrite_measure::Rng;

    /// By the definition: every byte written counts for its page.
    fn by_bytes(writes: &[(u64, u64)]) -> Updates {
        let mut updates = Updates::none();
        for &(offset, len) in writes {
            let mut pages: BTreeMap<u64, u64> = BTreeMap::new();
            (offset..offset + len).for_each(|byte| *pages.entry(byte / PAGE).or_default() += 1);
            for bytes in pages.into_values() {
                updates.counts[bytes as usize] += 1;
                updates.total += 1;
            }
        }
        updates
    }

    #[test]
    fn writes_are_cut_as_their_bytes_fall() {
        let mut rng = Rng::new(7);
        for _ in 0..500 {
            let writes: Vec<(u64, u64)> = (0..1 + rng.below(4))
                .map(|_| {
                    // At the edges of pages, one beside them, or anywhere.
                    let at = |rng: &mut Rng, bound: u64| match rng.below(3) {
                        0 => rng.below(bound) * PAGE,
                        1 => (rng.below(bound) + 1) * PAGE + rng.below(3) - 1,
                        _ => rng.below(bound * PAGE),
                    };
                    (at(&mut rng, 5), at(&mut rng, 4).max(1))
                })
                .collect();
            let events: Vec<Event> = writes
                .iter()
                .map(|&(offset_bytes, len_bytes)| Event::Write {
                    ino: 1,
                    offset_bytes,
                    len_bytes,
                })
                .collect();
            assert_eq!(Updates::of(&events), by_bytes(&writes), "{writes:?}");
        }
    }

    #[test]
    fn shares_add_up_and_files_are_told_apart() {
        let write = |ino, len_bytes| Event::Write {
            ino,
            offset_bytes: 4000,
            len_bytes,
        };
        let file = |ino, len_bytes| Event::File { ino, len_bytes };
        // 96 and 4 bytes; 96, a page and 4; a file made under a reused number; an unknown one.
        let events = [
            file(1, 10),
            write(1, 100),
            write(1, 4196),
            file(1, 0),
            write(1, 1),
            write(2, 1),
        ];
        let all = Updates::of(&events);
        assert_eq!(all.total, 7);
        let shares = [3, 4, 95, 96, 4095, 4096, 9999].map(|bytes| all.at_most_percent(bytes) * 7.0 / 100.0);
        assert_eq!(shares.map(|share| share.round() as u64), [2, 4, 4, 6, 6, 7, 7]);
        assert_eq!(Updates::of_found(&events).total, 5);
        assert_eq!(Updates::of(&[]).at_most_percent(64), 0.0);
    }

    #[test]
    fn all_stored_traces_can_be_read_and_say_what_they_are() {
        for stored in STORED {
            let events = stored
                .events()
                .unwrap_or_else(|error| panic!("{}: {error}", stored.name));
            assert!(Updates::of(&events).total >= 1000, "{}", stored.name);
            let remarks = stored.text.lines().filter(|line| line.starts_with('#'));
            assert!(remarks.count() >= 2, "{}", stored.name);
        }
    }

    #[test]
    fn a_users_trace_is_refused_by_its_name() {
        let error = read(Path::new("/nowhere/my.trace")).expect_err("there is none");
        assert!(error.to_string().contains("/nowhere/my.trace"), "{error}");
        let error = read(Path::new("Cargo.toml")).expect_err("no trace");
        assert!(error.to_string().contains("Cargo.toml: line 1"), "{error}");
        let file = std::env::temp_dir().join(format!("ferrite-lab-trace-{}", std::process::id()));
        for (content, says) in [
            (&b"\xff\xfe\x00"[..], "line 1 is not `ferrite-trace 1`"),
            (b"ferrite-trace 1\nf 7 0\n\xff\n", "line 3"),
            (b"", "no writes"),
            (b"ferrite-trace 1\nf 7 0\n", "no writes"),
        ] {
            std::fs::write(&file, content).expect("a temporary file");
            let error = read(&file).expect_err("nothing to look at").to_string();
            assert!(error.contains(says) && error.contains("ferrite-lab-trace"), "{error}");
        }
        let _ = std::fs::remove_file(&file);
    }
}
