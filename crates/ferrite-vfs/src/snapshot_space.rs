//! The space that snapshots alone hold: the extended attribute [`SNAPSHOT_XATTR`] of a snapshot, and of a directory of
//! snapshots.
//!
//! Reading it looks at all that is in them, which takes some time for each file. It is not exact while files change.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::text::number;
use crate::{FsError, Result};

/// The attribute; see the head of this module. It is not listed.
pub const SNAPSHOT_XATTR: &[u8] = b"ferrite.snapshot";

/// The space that comes back when a snapshot is removed, or all of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotSpace {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// The one walk of an engine's snapshots, for engines.
#[derive(Debug)]
pub struct SnapshotWalk<'e>(&'e AtomicBool);

impl<'e> SnapshotWalk<'e> {
    /// Begins one, which ends when this is dropped.
    ///
    /// # Errors
    /// `Busy` while another one is in progress.
    pub fn begin(is_in_progress: &'e AtomicBool) -> Result<SnapshotWalk<'e>> {
        match is_in_progress.swap(true, Ordering::AcqRel) {
            true => Err(FsError::Busy),
            false => Ok(SnapshotWalk(is_in_progress)),
        }
    }
}

impl Drop for SnapshotWalk<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl fmt::Display for SnapshotSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "held_bytes={} held_inodes={}", self.bytes, self.inodes)
    }
}

impl SnapshotSpace {
    /// Reads the attribute's value.
    pub fn parse(text: &[u8]) -> Option<SnapshotSpace> {
        let text = std::str::from_utf8(text).ok()?;
        Some(SnapshotSpace {
            bytes: number(text, "held_bytes")?,
            inodes: number(text, "held_inodes")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        let space = SnapshotSpace {
            bytes: 1 << 40,
            inodes: 7,
        };
        assert_eq!(SnapshotSpace::parse(space.to_string().as_bytes()), Some(space));
        for text in [&b""[..], b"held_bytes=1", b"held_bytes=x held_inodes=1", &[0xff]] {
            assert_eq!(SnapshotSpace::parse(text), None, "{text:?}");
        }
    }
}
