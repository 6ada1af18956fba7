//! The proof that a close leaves: a file that records the store's final state.
//!
//! RocksDB needs its log after a close as after a crash, and an unreadable record at its end looks like the torn tail
//! of a crash in both cases. So the last thing a close writes is a mark with the names and lengths of the logs and of
//! the manifest; an opening for changes first removes it, durably. With the mark the logs are whole to the last byte,
//! and anything else is damage. Its absence means a crash.
//!
//! | line | |
//! | --- | --- |
//! | `ferrite closed 1` | kind and version of the file |
//! | `CURRENT NAME` | the manifest that RocksDB uses |
//! | `NAME BYTES` | a log, or the manifest; any number of them |
//! | `crc HEX` | CRC-32C of the lines before |
//!
//! Invariants: no mark is there while RocksDB changes anything. A mark of another manifest is stale: a program that
//! does not know marks has used the store since; it is ignored.

use crate::error::{Error, Result};
use crate::log_check;
use crate::shelf::Shelf;

/// The name of the mark. RocksDB leaves unknown names alone.
pub(crate) const NAME: &str = "CLOSED";
const HEAD: &str = "ferrite closed 1";
const CURRENT: &str = "CURRENT";
/// No mark is that long, and no name of a manifest.
const MARK_BYTES_MAX: usize = 4 << 20;

/// The final state of a store.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    manifest: String,
    files: Vec<(String, u64)>,
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let mut text = format!("{HEAD}\n{CURRENT} {}\n", self.manifest);
        for (name, size) in &self.files {
            text.push_str(&format!("{name} {size}\n"));
        }
        let crc = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("crc {crc:08x}\n"));
        text.into_bytes()
    }

    /// `None`: it is no mark, or only a part of one.
    fn decode(bytes: &[u8]) -> Option<Mark> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (body, crc) = text.strip_suffix('\n')?.rsplit_once("\ncrc ")?;
        let body_bytes = bytes.get(..body.len() + 1)?;
        if u32::from_str_radix(crc, 16).ok()? != crc32c::crc32c(body_bytes) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let manifest = lines.next()?.strip_prefix(CURRENT)?.trim().to_owned();
        let file = |line: &str| {
            let (name, size) = line.rsplit_once(' ')?;
            Some((name.to_owned(), size.parse().ok()?))
        };
        let files = lines.map(file).collect::<Option<_>>()?;
        Some(Mark { manifest, files })
    }
}

fn manifest_of(shelf: &Shelf) -> Result<Option<String>> {
    let current = shelf.read(CURRENT, MARK_BYTES_MAX)?;
    Ok(current.map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned()))
}

/// Writes the mark. RocksDB has closed.
pub(crate) fn write(shelf: &Shelf) -> Result<()> {
    let Some(manifest) = manifest_of(shelf)? else {
        return Ok(());
    };
    let mut names = log_check::logs(shelf)?;
    names.push(manifest.clone());
    let mut files = Vec::new();
    for name in names {
        if let Some(size) = shelf.size_bytes(&name)? {
            files.push((name, size));
        }
    }
    shelf.put(NAME, &Mark { manifest, files }.encode())
}

/// Removes the mark, durably, before RocksDB changes anything.
pub(crate) fn remove(shelf: &Shelf) -> Result<()> {
    shelf.remove(NAME)
}

/// Checks the logs against the mark without RocksDB, which would take damage for their end.
///
/// # Errors
/// [`Error::Corruption`], which names the file.
pub(crate) fn check(shelf: &Shelf) -> Result<()> {
    let mark = shelf.read(NAME, MARK_BYTES_MAX)?.and_then(|bytes| Mark::decode(&bytes));
    let Some(mark) = mark else {
        return log_check::check(shelf, false);
    };
    if manifest_of(shelf)?.is_none_or(|manifest| manifest != mark.manifest) {
        return log_check::check(shelf, false);
    }
    for (name, size) in &mark.files {
        let found = shelf.size_bytes(name)?;
        if found != Some(*size) {
            let found = found.map_or("it is missing".to_owned(), |found| format!("it has {found}"));
            return Err(Error::Corruption(format!(
                "{name} had {size} bytes when the store was closed, and {found}; `ferrite fsck --repair` keeps all that \
                 can be read, or restore the metadata from a dump"
            )));
        }
    }
    log_check::check(shelf, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_of_a_checkpoint_counts() {
        let mark = Mark {
            manifest: "MANIFEST-000005".into(),
            files: vec![("000004.log".into(), 77), ("MANIFEST-000005".into(), 1 << 40)],
        };
        let bytes = mark.encode();
        assert_eq!(Mark::decode(&bytes), Some(mark));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The case of a digit of the checksum does not matter.
            let is_same = damaged.eq_ignore_ascii_case(&bytes);
            assert!(Mark::decode(&damaged).is_none() || is_same, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Mark::decode(&bytes[..len]), None, "{len}");
        }
    }
}
