//! Damage in the content of files, where data has checksums: the files affected, and all damaged bytes.
//!
//! Invariant: nothing is changed here. Small files have their content in their nodes, which the metadata store
//! verifies.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use ferrite_blob::{CLUSTER_BYTES, PAGE_BYTES};
use ferrite_vfs::{FsError, Ino, Result};

use crate::blobs::capacity;
use crate::content_store::{self, Blob, DataDamage, Place};
use crate::core::Core;
use crate::format::key;
use crate::format::node::{Content, Node};
use crate::table::State;

/// How messages describe bytes that differ from those written.
pub(crate) const WRONG: &str = "the wrong checksum";

/// Called with how many bytes of how many have been read.
pub(crate) type Shows<'s> = &'s mut dyn FnMut(u64, u64);

/// The result of reading all content.
#[derive(Debug, Default)]
pub(crate) struct DataFound {
    /// Files, their blobs, and which bytes of them.
    pub(crate) damaged: Vec<(Ino, Place, DataDamage)>,
    /// Pages that were read.
    pub(crate) pages: u64,
}

/// Bytes of a file, for people.
pub(crate) fn bytes_in_words(ranges: &[Range<u64>]) -> String {
    let words: Vec<String> = ranges
        .iter()
        .map(|range| format!("bytes {} to {}", range.start, range.end - 1))
        .collect();
    words.join(", ")
}

/// An error of reading a part of a file, which names the damaged bytes.
pub(crate) fn unreadable(ino: Ino, blob: &dyn Blob, bytes: Range<u64>, error: content_store::Error) -> FsError {
    let content_store::Error::Damaged(what) = &error else {
        return error.into();
    };
    let mut at = bytes.start / CLUSTER_BYTES * CLUSTER_BYTES;
    while at < bytes.end {
        let from = at.max(bytes.start);
        let len = (at + CLUSTER_BYTES).min(bytes.end) - from;
        if let Some(first) = blob
            .damaged(from, len)
            .ok()
            .and_then(|found| found.wrong.into_iter().next())
        {
            return FsError::damaged_bytes(ino, first.start, first.end - first.start, what.as_str());
        }
        at += CLUSTER_BYTES;
    }
    FsError::damaged(ino, what.as_str())
}

/// Limits the bytes read per second.
struct Pace {
    start: Instant,
    bytes_a_s: Option<u64>,
}

impl Pace {
    fn wait(&self, done: u64) {
        let Some(bytes_a_s) = self.bytes_a_s.filter(|&bytes| bytes > 0) else {
            return;
        };
        let due = Duration::from_secs_f64(done as f64 / bytes_a_s as f64);
        std::thread::sleep(due.saturating_sub(self.start.elapsed()));
    }
}

impl Core {
    /// Refuses a file that is empty only as far as this machine knows: nobody would ask for its bytes.
    pub(crate) fn check_emptiness(&self, ino: Ino, state: &State) -> Result<()> {
        let is_empty = state.node.size == 0 && matches!(state.node.content, Content::Blob(_));
        if !is_empty || !self.content.may_be_staged_elsewhere() {
            return Ok(());
        }
        let blob = self.blob_of(ino, state)?;
        blob.read_at(&mut [0], 0)
            .map_err(|error| unreadable(ino, &**blob, 0..1, error))
    }

    /// The blobs that verify their content, each with the files that have it.
    fn files_in_blobs(&self) -> Result<BTreeMap<Place, Vec<Ino>>> {
        let mut files: BTreeMap<Place, Vec<Ino>> = BTreeMap::new();
        self.each(b'N', |at, value| {
            let node = Node::decode(value).map(|node| node.content);
            if let (Some(ino), Some(Content::Blob(place))) = (key::ino_of(at), node)
                && self.content.has_checksums(place.store)
            {
                files.entry(place).or_default().push(ino);
            }
        })?;
        Ok(files)
    }

    /// Reads all content that has checksums, at most so many bytes a second. Files may be in use: it skips files that
    /// are removed meanwhile.
    ///
    /// # Errors
    /// Errors of the stores.
    pub(crate) fn verify_data(&self, bytes_a_s: Option<u64>, show: Shows<'_>) -> Result<DataFound> {
        let mut found = DataFound::default();
        let files = self.files_in_blobs()?;
        if files.is_empty() {
            return Ok(found);
        }
        let capacity = capacity(&*self.content);
        let total = capacity.bytes - capacity.free_bytes;
        let pace = Pace {
            start: Instant::now(),
            bytes_a_s,
        };
        let mut done = 0;
        for (place, users) in files {
            // Blobs that are not to be had as a whole are findings of their own.
            let blob = self.content.open(place).ok();
            let Some(blob) = blob.filter(|blob| !blob.is_staged_elsewhere()) else {
                continue;
            };
            let mut damaged = DataDamage::default();
            let mut at = 0;
            while let Some(from) = blob.next_data(at)?.filter(|&from| from < blob.valid_len()) {
                let to = ((from / CLUSTER_BYTES + 1) * CLUSTER_BYTES).min(blob.valid_len());
                match blob.damaged(from, to - from) {
                    Ok(more) => {
                        damaged.wrong.extend(more.wrong);
                        damaged.unreadable.extend(more.unreadable);
                    }
                    Err(error) if error.is_not_found() => break,
                    Err(error) => return Err(error.into()),
                }
                found.pages += (to - from).div_ceil(PAGE_BYTES as u64);
                done += to - from;
                show(done, total.max(done));
                pace.wait(done);
                at = (from / CLUSTER_BYTES + 1) * CLUSTER_BYTES;
            }
            if damaged != DataDamage::default() {
                let each = users.into_iter().map(|ino| (ino, place, damaged.clone()));
                found.damaged.extend(each);
            }
        }
        Ok(found)
    }
}
