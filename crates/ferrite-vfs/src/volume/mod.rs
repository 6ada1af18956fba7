//! The administrator's side of an engine: [`Volume`], and its reports.
//!
//! Contents: the trait through which the program, the control socket and the library administer an opened engine
//! without knowing which one it is; its reports; its error, [`VolumeError`]; the ownership of volumes that servers hand
//! to each other, in `ownership`.
//!
//! *Architecture invariant:* a report crosses a socket, so it is plain data. Details of one engine cross it as text for
//! people and as JSON for programs; no code above the engine interprets either.

mod error;
mod ownership;

use std::any::Any;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{FileSystem, Ino};

pub use error::{VolumeError, VolumeErrorKind};
pub use ownership::{Candidacy, Ownership, Tenancy, TenureReport};

/// A receiver of progress: phase, done, total.
pub type Progress<'p> = &'p mut dyn FnMut(&'static str, u64, u64);

/// An opened engine as its administrator sees it. All calls on it concern one file system, that of [`Self::fs`].
///
/// Dropping it without [`Self::close`] is like a crash: no completed operation is lost, but the next open may have to
/// recover.
pub trait Volume: Send + Sync {
    /// The file system. The volume keeps its own reference.
    fn fs(&self) -> Arc<dyn FileSystem>;

    /// Closes it cleanly; every later call on its file system fails. Durable when it returns; waits for operations that
    /// are committing. Has no effect the second time.
    fn close(&self) -> Result<(), VolumeError>;

    /// Everything `ferrite info` shows. Not instant: it may count.
    fn info(&self) -> Result<VolumeInfo, VolumeError>;

    /// Damage that was found when it was opened, one line each. Access to what is damaged fails with
    /// [`crate::FsError::Damaged`], everything else works.
    fn damage(&self) -> Vec<String>;

    /// Other warnings for the user who opens it, one line each, with the remedy.
    fn warnings(&self) -> Vec<String>;

    /// Whether changes are refused: because the opener requested it, because of damage, or because the medium failed.
    fn is_read_only(&self) -> bool;

    /// Makes all completed operations durable in place and blocks changes until [`Self::thaw`] or [`Self::close`], so
    /// that the medium can be copied. Reads continue. Waits for the operations that are committing. Fails if it is
    /// frozen already.
    fn freeze(&self) -> Result<(), VolumeError>;

    /// Lets changes continue; has no effect on a volume that is not frozen.
    fn thaw(&self) -> Result<(), VolumeError>;

    /// Verifies everything that carries a checksum, reading at most `bytes_per_second` (`None` or 0: no limit), while
    /// the volume is in use. Changes nothing. Blocks until it is done.
    fn scrub(&self, bytes_per_second: Option<u64>, progress: Progress<'_>) -> Result<ScrubReport, VolumeError>;

    /// How a file is stored, piece by piece.
    fn dump(&self, ino: Ino) -> Result<Vec<DumpedPiece>, VolumeError>;

    /// A number that moves with each change of the medium. Cheap.
    fn activity(&self) -> u64;

    /// Inodes dropped from memory since it was opened, which hints when memory can be returned to the system. Cheap.
    fn inodes_dropped(&self) -> u64 {
        0
    }

    /// The ownership of a volume that servers hand to each other; `None` if it belongs to this machine.
    fn ownership(&self) -> Option<Arc<dyn Ownership>> {
        None
    }

    /// The engine itself, for callers who know which one they opened.
    fn as_any(&self) -> &dyn Any;
}

/// The report of `ferrite info` and `ferrite df` on a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// The engine: the scheme of its addresses.
    pub engine: String,
    /// The medium that stores it.
    pub medium: String,
    /// In words: which failures a completed operation survives.
    pub durability: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How much of that can hold files.
    pub capacity_bytes: u64,
    /// How much of the capacity is in use.
    pub used_bytes: u64,
    /// How much new files may use. Less than what is free, if the engine keeps a reserve.
    pub available_bytes: u64,
    /// Inodes in total.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// The error after which it became read-only, if it did.
    pub failed: Option<String>,
    /// See [`Volume::damage`].
    pub damage: Vec<String>,
    /// The server that owns it, if this is a look from elsewhere. Its space is not known then.
    #[serde(default)]
    pub in_use_by: Option<String>,
    /// How often damage was met since it was opened.
    pub findings_since_open: u64,
    /// All of it and the details of this engine, for people, in the order to show it.
    pub lines: Vec<InfoLine>,
    /// The same for programs: a JSON object with names that the engine chooses and keeps. It is empty if the engine was
    /// built without the cargo feature for it.
    pub json: String,
}

/// A line of a report for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfoLine {
    /// Its subject; empty if it continues the line before.
    pub name: String,
    /// Its text.
    pub value: String,
}

/// Result of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Descriptions of the damage found.
    pub findings: Vec<String>,
    /// There was more damage than `findings` lists, which holds a limited number.
    #[serde(default)]
    pub more: bool,
    /// Inodes in use.
    pub inodes: u64,
    /// Directory entries.
    pub entries: u64,
    /// Entries of page logs; 0 for an engine without them.
    pub log_entries: u64,
    /// How many of the findings are damaged file data, which a repair of structures does not fix.
    #[serde(default)]
    pub data_findings: u64,
    /// Pages of data whose checksums were verified; 0 if data carries none.
    #[serde(default)]
    pub pages: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// A part of a file, as `ferrite dump` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpedPiece {
    /// For people.
    pub lines: Vec<String>,
    /// For programs: a JSON object.
    pub json: String,
}

/// A size for people: `1.5 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Parses a size in bytes as users write it: `1G`, `1.5G`, `64MiB`, `4096`. Suffixes K, M, G, T (optionally with `B` or
/// `iB`) are powers of 1024.
///
/// # Errors
/// The mistake, and how to write a size.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let hint = "write a number followed by K, M, G or T, for example 512M or 1G";
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return Err(format!("`{suffix}` is not a size suffix; {hint}")),
    };
    let wrong = || format!("`{text}` is not a size; {hint}");
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    // Fractions of a byte are dropped. Twelve digits distinguish the bytes of a TiB.
    if part.is_empty() || part.len() > 12 || (shift == 0 && number.contains('.')) {
        return Err(wrong());
    }
    let part_of = 10_u64.pow(part.len() as u32);
    let part: u64 = part.parse().map_err(|_| wrong())?;
    let part = (u128::from(part) << shift) / u128::from(part_of);
    whole
        .checked_mul(1 << shift)
        .and_then(|bytes| bytes.checked_add(part as u64))
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("`{text}` is out of range; {hint}"))
}

/// How to write a text of a TOML file that lacks its quotation marks: `listen = "tcp"` for `listen = tcp`. `at` is the
/// byte where a parser of TOML stopped.
pub fn unquoted(toml: &str, at: usize) -> Option<String> {
    let before = toml.get(..at)?;
    let line = toml[before.rfind('\n').map_or(0, |end| end + 1)..].lines().next()?;
    let (name, value) = line.split_once('=')?;
    let value = value.split('#').next()?.trim();
    let is_bare = value.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/' || first == '~')
        && !["true", "false", "inf", "nan"].contains(&value)
        && !value.contains('"');
    is_bare.then(|| format!("a text needs quotation marks: `{} = \"{value}\"`", name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_quotation_marks_are_noticed() {
        let hint = |toml, at| unquoted(toml, at);
        let expected = Some("a text needs quotation marks: `listen = \"tcp\"`".to_owned());
        assert_eq!(hint("a = 1\nlisten = tcp # here\n", 16), expected);
        assert_eq!(hint("listen = tcp", 12), expected, "at the end");
        assert!(hint("path = /dev/shm/pool", 8).is_some());
        for toml in [
            "listen = true",
            "listen = \"tcp\"",
            "listen = 12",
            "listen",
            "",
            "é = x",
        ] {
            assert_eq!(hint(toml, 1), None, "{toml}");
        }
        assert_eq!(hint("a", 7), None);
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536 << 20), "1.5 GiB");
        assert_eq!(human_bytes(5000 << 40), "5000.0 TiB");
    }

    #[test]
    fn sizes_parse_as_people_write_them_and_wrong_ones_say_why() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("1G"), Ok(1 << 30));
        assert_eq!(parse_bytes("64MiB"), Ok(64 << 20));
        assert_eq!(parse_bytes("2kB"), Ok(2048));
        assert_eq!(parse_bytes("1.5G"), Ok(3 << 29));
        assert_eq!(parse_bytes("0.25T"), Ok(1 << 38));
        assert_eq!(parse_bytes("1.999999999999T"), Ok((2 << 40) - 2));
        assert_eq!(parse_bytes("0.1K"), Ok(102), "parts of a byte are dropped");
        for wrong in ["1.", ".5G", "1.5", "1.2.3G", "1.5.G", "1.0000000000001G", "."] {
            assert!(parse_bytes(wrong).unwrap_err().contains("not a size"), "{wrong}");
        }
        assert!(parse_bytes("1X").unwrap_err().contains("`X`"));
        assert!(parse_bytes("G").unwrap_err().contains("not a size"));
        assert!(parse_bytes("-1G").is_err());
        assert!(parse_bytes("0").is_err());
        assert!(parse_bytes("99999999999T").unwrap_err().contains("range"));
    }
}
