//! Programs that run to their end, with a time limit, and the search for programs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Bytes of output that are read back.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a log that an error shows.
const LOG_BYTES_MAX: usize = 4096;

/// The path of a program: in one of `folders`, or where the shell would find it.
pub(crate) fn find(program: &'static str, package: &'static str, folders: &[PathBuf]) -> Result<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let places = folders.iter().cloned().chain(std::env::split_paths(&search));
    // Daemons lie where a user's shell may not look.
    let places = places.chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let mut paths = places.map(|folder| folder.join(program));
    paths
        .find(|path| path.is_file())
        .ok_or(Error::Missing { program, package })
}

/// Runs a command with `input`; returns its standard output. It is killed after `limit`.
///
/// # Errors
///
/// [`Error::Failed`], with all output, if it ends with another code than 0 or takes longer.
pub(crate) fn run(command: &mut Command, input: &str, limit: Duration) -> Result<String> {
    let what = format!("{command:?}");
    let fail = |cause: String, log: String| Error::Failed {
        what: what.clone(),
        cause,
        log,
    };
    let file = |text: &str| -> std::io::Result<File> {
        let mut file = tempfile::tempfile()?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        file.rewind()?;
        Ok(file)
    };
    // Files, not pipes: a pipe that nobody reads would stop a program that has much to say.
    let files = || Ok::<_, std::io::Error>((file(input)?, file("")?, file("")?));
    let (input, mut output, mut errors) = files().map_err(|error| Error::io("a temporary file", &error))?;
    let copies = || Ok::<_, std::io::Error>((output.try_clone()?, errors.try_clone()?));
    let (output_copy, errors_copy) = copies().map_err(|error| Error::io("a temporary file", &error))?;
    command
        .stdin(Stdio::from(input))
        .stdout(output_copy)
        .stderr(errors_copy);
    let mut child = command
        .spawn()
        .map_err(|error| Error::io(command.get_program(), &error))?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if began.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            // The second wait returns soon: nothing survives this signal.
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let text = text(&mut output);
    match status {
        Some(status) if status.success() => Ok(text),
        Some(status) => Err(fail(status.to_string(), format!("{text}{}", self::text(&mut errors)))),
        None => Err(fail(
            format!("it took longer than {} s", limit.as_secs()),
            format!("{text}{}", self::text(&mut errors)),
        )),
    }
}

/// The beginning of a file.
fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind();
    let _ = file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The end of a log.
pub(crate) fn tail(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let end = &bytes[bytes.len().saturating_sub(LOG_BYTES_MAX)..];
    format!("the end of {}:\n{}", path.display(), String::from_utf8_lossy(end))
}

/// Calls `is_done` until it returns true; returns whether it did so within `limit`.
pub(crate) fn wait_until(limit: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if is_done() {
            return true;
        }
        if began.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A TCP port of loopback that was free a moment ago, and that this process has not given out before: servers take
/// theirs only seconds later.
pub(crate) fn free_port() -> Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = bound.map_err(|error| Error::io("a port of 127.0.0.1", &error))?.port();
        if given.insert(port) {
            return Ok(port);
        }
    }
}
