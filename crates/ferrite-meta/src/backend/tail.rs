//! Appended bytes of a file that are not on the device yet.
//!
//! Invariants: everything before `base` is on the device, and `base` is a multiple of a page; `bytes` holds the rest. A
//! page with synced bytes is rewritten with more behind them, and the same before: cut off or not, synced bytes stay.
//!
//! A log has zeros on the device from its end up to `zeros_to`, which is its size there: so most syncs are one write in
//! place, without metadata. They must be zeros, not the remains of other files: RocksDB would accept old records as its
//! own.

use super::blobs::{BlobError, Blobs};
use super::format;
use super::names::PAGE_BYTES;

/// From this length on, bytes go to the device without a sync.
const CHUNK_BYTES: usize = 1 << 20;
/// Zeros written ahead of a log at a time, at most.
const AHEAD_BYTES: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES as u64;

#[derive(Debug)]
pub(super) struct Tail {
    is_log: bool,
    base: u64,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that are on the device.
    clean: usize,
    zeros_to: u64,
    /// The size that the metadata on the device has.
    stored_size: u64,
}

impl Tail {
    /// The tail of a file of this size, whose last page is read.
    pub(super) fn of(blobs: &dyn Blobs, id: u64, is_log: bool, size_bytes: u64) -> Result<Tail, BlobError> {
        let base = size_bytes / PAGE * PAGE;
        let mut bytes = vec![0; (size_bytes - base) as usize];
        if !bytes.is_empty() {
            blobs.read_at(id, &mut bytes, base)?;
        }
        Ok(Tail {
            is_log,
            base,
            clean: bytes.len(),
            bytes,
            zeros_to: 0,
            stored_size: size_bytes,
        })
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Copies the bytes that are only here into their part of `into` (a part of the file from `offset` on), and returns
    /// how much of `into` comes before that.
    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> usize {
        let before = self.base.saturating_sub(offset).min(into.len() as u64) as usize;
        let from = (offset + before as u64).saturating_sub(self.base) as usize;
        let (rest, there) = (&mut into[before..], self.bytes.get(from..).unwrap_or_default());
        let len = rest.len().min(there.len());
        rest[..len].copy_from_slice(&there[..len]);
        before
    }

    pub(super) fn append(&mut self, blobs: &dyn Blobs, id: u64, data: &[u8]) -> Result<(), BlobError> {
        self.bytes.extend_from_slice(data);
        if self.bytes.len() < CHUNK_BYTES {
            return Ok(());
        }
        let whole = self.bytes.len() / PAGE_BYTES * PAGE_BYTES;
        blobs.write_at(id, &self.bytes[..whole], self.base, None)?;
        self.forget(whole);
        Ok(())
    }

    /// Writes everything to the device. The size is exact if the file is closed, or is not a log.
    pub(super) fn sync(&mut self, blobs: &dyn Blobs, id: u64, closed: bool) -> Result<(), BlobError> {
        let end = self.size_bytes();
        let from = self.clean / PAGE_BYTES * PAGE_BYTES;
        let mut to = end.next_multiple_of(PAGE);
        let size = if !self.is_log || closed {
            end
        } else if end <= self.zeros_to {
            self.zeros_to
        } else {
            // A short log gets few, so that small stores stay small.
            to = (end + end.clamp(16 * PAGE, AHEAD_BYTES)).next_multiple_of(PAGE);
            to
        };
        let dirty = self.clean < self.bytes.len() || to > end.next_multiple_of(PAGE);
        let metadata = (size != self.stored_size).then(|| format::file(size));
        if !dirty && metadata.is_none() {
            return Ok(());
        }
        let mut pages = Vec::new();
        if dirty {
            pages.reserve((to - self.base) as usize);
            pages.extend_from_slice(&self.bytes[from..]);
            pages.resize((to - self.base) as usize - from, 0);
        }
        blobs.write_at(
            id,
            &pages,
            self.base + from as u64,
            metadata.as_ref().map(<[u8; 20]>::as_slice),
        )?;
        self.stored_size = size;
        self.zeros_to = self.zeros_to.max(to);
        self.clean = self.bytes.len();
        self.forget(self.bytes.len() / PAGE_BYTES * PAGE_BYTES);
        Ok(())
    }

    /// Cuts the file off.
    pub(super) fn truncate(&mut self, blobs: &dyn Blobs, id: u64, size_bytes: u64) -> Result<(), BlobError> {
        let before = self.size_bytes();
        if size_bytes >= before {
            return Ok(());
        }
        self.sync(blobs, id, true)?;
        *self = Tail::of(blobs, id, self.is_log, size_bytes)?;
        // Shorter in the metadata first: then zeros for the part that may be covered again.
        blobs.write_at(id, &[], 0, Some(&format::file(size_bytes)))?;
        let mut page = self.bytes.clone();
        page.resize((before.next_multiple_of(PAGE) - self.base) as usize, 0);
        blobs.write_at(id, &page, self.base, None)
    }

    /// Drops the first bytes, which are whole pages on the device.
    fn forget(&mut self, len: usize) {
        self.bytes.drain(..len);
        self.base += len as u64;
        self.clean = self.clean.saturating_sub(len);
    }
}
