//! The destinations of a command's log: standard error, and for a mount's daemon a file or syslog.
//!
//! Contents: the process's only log. A daemon begins like any command. As soon as it knows its options it opens
//! its log ([`keep_in`], [`tell_syslog`]), and when it detaches from the terminal, it stops writing there
//! ([`leave_stderr`]). Errors at the start go to both.
//!
//! Invariants:
//! * A log that cannot be written (a full disk, no syslog) never blocks a daemon or ends it.
//! * No line has what a file contains: of other libraries only warnings and errors are written.
//! * Lines in files have times; syslog adds its own, and a terminal needs none. Only terminals get colours.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::{Failure, about};

/// The variable that names another socket than [`SYSLOG`].
const SYSLOG_VARIABLE: &str = "FERRITE_SYSLOG";
/// Where syslog listens.
const SYSLOG: &str = "/dev/log";
/// The facility of daemons, from RFC 3164.
const FACILITY: u8 = 3;

/// Where a daemon keeps its log, besides standard error.
enum Kept {
    Nothing,
    File(File),
    Syslog {
        socket: UnixDatagram,
        to: PathBuf,
        /// Prefix of each line: program, process, pool.
        tag: String,
    },
}

/// Lines that [`recent`] returns at most, and the length that each is cut to.
const RECENT_LINES_MAX: usize = 100;
const RECENT_LINE_CHARS_MAX: usize = 500;

struct Log {
    /// The last warnings and errors, oldest first.
    recent: VecDeque<String>,
    /// Lines up to this level go to standard error.
    stderr: Option<Level>,
    /// Lines up to this level are kept.
    kept_level: Level,
    kept: Kept,
}

static LOG: Mutex<Log> = Mutex::new(Log {
    recent: VecDeque::new(),
    stderr: Some(Level::ERROR),
    kept_level: Level::WARN,
    kept: Kept::Nothing,
});

fn change(change: impl FnOnce(&mut Log)) {
    change(&mut LOG.lock().unwrap_or_else(PoisonError::into_inner));
}

/// The last warnings and errors of this process, oldest first, with their times: of its log, and complaints.
pub(crate) fn recent() -> Vec<String> {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    log.recent.iter().cloned().collect()
}

/// Notes a complaint that went to standard error.
pub(crate) fn remember(line: &str) {
    change(|log| log.remember(line));
}

/// Starts the process's log on standard error: errors, and more for each `-v`. A log that is kept has warnings, too.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => Level::ERROR,
        1 => Level::INFO,
        _ => Level::DEBUG,
    };
    let kept_level = level.max(Level::WARN);
    change(|log| (log.stderr, log.kept_level) = (Some(level), kept_level));
    // A second call, in tests, finds a subscriber in place, which suffices.
    let _ = tracing_subscriber::fmt()
        .with_max_level(kept_level)
        .with_writer(Lines)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .try_init();
}

/// Appends the log to a file from now on.
pub(crate) fn keep_in(path: &Path) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(about(path))?;
    change(|log| log.kept = Kept::File(file));
    Ok(())
}

/// Sends the log to syslog from now on, as that of `pool`. Without a syslog nothing is sent; one that starts later gets
/// the following lines.
pub(crate) fn tell_syslog(pool: &Path) {
    let to = std::env::var_os(SYSLOG_VARIABLE).map_or_else(|| SYSLOG.into(), PathBuf::from);
    let tag = format!("ferrite[{}]: {}", std::process::id(), pool.display());
    // A syslog that does not keep up loses lines; the mount does not wait for it.
    let socket = UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    if let Ok(socket) = socket {
        change(|log| log.kept = Kept::Syslog { socket, to, tag });
    }
}

/// Stops writing to standard error. A thread that panics writes to the log.
pub(crate) fn leave_stderr() {
    change(|log| log.stderr = None);
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

/// Makes a writer for each line, which knows its level.
struct Lines;

struct Line(Level);

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line(Level::ERROR)
    }

    fn make_writer_for(&self, metadata: &Metadata<'_>) -> Line {
        Line(wanted(metadata.target(), *metadata.level()))
    }
}

/// The level of a line; one that is never written for details of other libraries: PostgreSQL's driver prints the values
/// that it sends, and with them the content of files.
fn wanted(target: &str, level: Level) -> Level {
    match level > Level::WARN && !target.starts_with("ferrite") {
        true => Level::TRACE,
        false => level,
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        change(|log| log.write(self.0, line));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The time of now, for a line.
fn stamp() -> String {
    let mut text = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

impl Log {
    fn remember(&mut self, line: &str) {
        if self.recent.len() == RECENT_LINES_MAX {
            self.recent.pop_front();
        }
        let line: String = line.trim().chars().take(RECENT_LINE_CHARS_MAX).collect();
        self.recent.push_back(format!("{} {line}", stamp()));
    }

    /// Writes one line, including its line end, to all destinations. Errors cannot be reported.
    fn write(&mut self, level: Level, line: &[u8]) {
        if level <= Level::WARN {
            self.remember(&plain(line));
        }
        if self.stderr.is_some_and(|most| level <= most) {
            let _ = std::io::stderr().write_all(line);
        }
        if level > self.kept_level {
            return;
        }
        match &mut self.kept {
            Kept::Nothing => {}
            Kept::File(file) => {
                let stamped = stamp() + &plain(line);
                // In one piece, so that lines of several daemons may share a file.
                let _ = file.write_all(stamped.as_bytes());
            }
            Kept::Syslog { socket, to, tag } => {
                let _ = socket.send_to(packet(level, tag, &plain(line)).as_bytes(), to);
            }
        }
    }
}

/// A line without colours; it begins with a blank.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut parts = text.split('\x1b');
    let mut plain = format!(" {}", parts.next().unwrap_or_default().trim_start());
    for part in parts {
        // A colour is an escape, digits and an `m`.
        let behind = part.strip_prefix('[').and_then(|part| part.split_once('m'));
        plain.push_str(behind.map_or(part, |(_, behind)| behind));
    }
    plain
}

/// A syslog packet (RFC 3164, section 4.1). The time stamp may be absent, and is: the receiver adds its own, in its own
/// time zone.
fn packet(level: Level, tag: &str, line: &str) -> String {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    format!("<{}>{tag}:{}", FACILITY * 8 + severity, line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_priority_tag_and_no_colours() {
        let line = plain(b"\x1b[31mERROR\x1b[0m \x1b[2mferrite_fs\x1b[0m: damage what=\"block 9 [10m]\"\n");
        assert_eq!(line, " ERROR ferrite_fs: damage what=\"block 9 [10m]\"\n");
        assert_eq!(
            packet(Level::ERROR, "ferrite[7]: /pool", &line),
            "<27>ferrite[7]: /pool: ERROR ferrite_fs: damage what=\"block 9 [10m]\""
        );
        assert!(packet(Level::WARN, "t", " w\n").starts_with("<28>"));
        assert!(packet(Level::INFO, "t", " i\n").starts_with("<30>"));
    }

    #[test]
    fn details_of_other_libraries_are_not_written() {
        assert_eq!(wanted("tokio_postgres::query", Level::DEBUG), Level::TRACE);
        assert_eq!(wanted("tokio_postgres::query", Level::ERROR), Level::ERROR);
        assert_eq!(wanted("ferrite_nvme::open", Level::DEBUG), Level::DEBUG);
    }

    #[test]
    fn levels_decide_where_a_line_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log {
            recent: VecDeque::new(),
            stderr: None,
            kept_level: Level::WARN,
            kept: Kept::File(File::create(&path).unwrap()),
        };
        log.write(Level::ERROR, b"first\n");
        log.write(Level::INFO, b"second\n");
        log.write(Level::WARN, b"third\n");
        assert!(
            log.recent.len() == 2 && log.recent[1].ends_with("Z third"),
            "{:?}",
            log.recent
        );
        let text = std::fs::read_to_string(path).unwrap();
        let words: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
        assert_eq!(
            words.iter().map(|(_, text)| *text).collect::<Vec<_>>(),
            ["first", "third"]
        );
        assert!(
            words
                .iter()
                .all(|(time, _)| time.starts_with("20") && time.ends_with('Z'))
        );
    }
}
