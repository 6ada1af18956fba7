//! How attributes and names are shown.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use ferrite::{FileKind, Metadata};
use jiff::{Timestamp, tz::TimeZone};

use crate::printable::printable;

/// The first column of `ls -l`: `drwxr-xr-x`.
pub(super) fn mode(found: &Metadata) -> String {
    let kind = match found.file_type().kind() {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mode = found.mode() & 0o7777;
    let mut text = String::from(kind);
    for (shift, special, marks) in [
        (6, 0o4000, ['s', 'S']),
        (3, 0o2000, ['s', 'S']),
        (0, 0o1000, ['t', 'T']),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => marks[0],
            (true, false) => marks[1],
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The kind in words, as stat(1) has them.
pub(super) fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character special file",
        FileKind::BlockDevice => "block special file",
    }
}

/// A time in the local zone, in a format of strftime(3).
pub(super) fn time(time: Option<SystemTime>, format: &str) -> String {
    match time.map(Timestamp::try_from) {
        Some(Ok(time)) => time.to_zoned(TimeZone::system()).strftime(format).to_string(),
        _ => "-".to_owned(),
    }
}

/// A name as it is written to standard output: its bytes; on a terminal, unless it is plain text, in quotes that a
/// shell accepts, because a name must not control the terminal.
pub(super) fn name(name: &OsStr) -> Vec<u8> {
    match std::io::stdout().is_terminal() {
        true => printable(name).into_bytes(),
        false => name.as_bytes().to_vec(),
    }
}

/// The output of `--json` for a file.
#[derive(serde::Serialize)]
pub(super) struct Json<'f> {
    /// As text; bytes that are not text are replaced.
    path: std::borrow::Cow<'f, str>,
    /// The bytes in hexadecimal, unless they are text.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    kind: &'static str,
    mode: String,
    links: u64,
    uid: u32,
    gid: u32,
    size_bytes: u64,
    allocated_bytes: u64,
    inode: u64,
    device: u64,
    accessed: String,
    modified: String,
    changed: String,
    created: String,
    /// Where a symbolic link points.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl<'f> Json<'f> {
    pub(super) fn new(path: &'f OsStr, found: &Metadata, target: Option<&OsStr>) -> Json<'f> {
        let utc = |time: Option<SystemTime>| match time.map(Timestamp::try_from) {
            Some(Ok(time)) => time.to_string(),
            _ => String::new(),
        };
        Json {
            path: path.to_string_lossy(),
            path_bytes: path
                .to_str()
                .is_none()
                .then(|| path.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()),
            kind: kind(found.file_type().kind()),
            mode: format!("{:04o}", found.mode() & 0o7777),
            links: found.nlink(),
            uid: found.uid(),
            gid: found.gid(),
            size_bytes: found.len(),
            allocated_bytes: found.blocks().saturating_mul(512),
            inode: found.ino(),
            device: found.rdev(),
            accessed: utc(found.accessed().ok()),
            modified: utc(found.modified().ok()),
            changed: utc(found.changed().ok()),
            created: utc(found.created().ok()),
            target: target.map(|target| target.to_string_lossy().into_owned()),
        }
    }
}
