//! The interface of a backend to its device: blobs, which are numbered areas of bytes that grow.
//!
//! Invariants: every call that changes something is durable when it returns. [`MemoryBlobs`] can replay its calls up to
//! any moment, also to the middle of a write, as a power failure would leave them.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use thiserror::Error;

/// Errors of blobs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlobError {
    /// The blob does not exist.
    #[error("no such blob")]
    NotFound,
    /// The device is full.
    #[error("the device is full")]
    NoSpace,
    /// The data read differs from the data written.
    #[error("damaged: {0}")]
    Corruption(String),
    /// The device refused.
    #[error("{0}")]
    Io(String),
}

/// Blobs on a device that holds nothing else. Any thread may use any blob.
pub trait Blobs: Send + Sync {
    /// Makes an empty blob with metadata of at most 32 bytes, and returns its number.
    fn create(&self, metadata: &[u8]) -> Result<u64, BlobError>;

    /// Deletes a blob.
    fn delete(&self, id: u64) -> Result<(), BlobError>;

    /// The numbers of all blobs.
    fn ids(&self) -> Result<Vec<u64>, BlobError>;

    /// A blob's metadata.
    fn metadata(&self, id: u64) -> Result<Vec<u8>, BlobError>;

    /// Fills `into` from `offset` on. Bytes that were never written read as zeros.
    fn read_at(&self, id: u64, into: &mut [u8], offset: u64) -> Result<(), BlobError>;

    /// Writes whole pages of 4 KiB, and then, at once or not at all, metadata. A write that a power failure cuts off
    /// may leave a part of the pages, in units of 512 bytes.
    fn write_at(&self, id: u64, data: &[u8], offset: u64, metadata: Option<&[u8]>) -> Result<(), BlobError>;

    /// Bytes of the whole device.
    fn size_bytes(&self) -> Result<u64, BlobError>;

    /// Approximate number of bytes that may still be written.
    fn free_bytes(&self) -> Result<u64, BlobError>;
}

/// Bytes by which a blob in memory grows.
const CLUSTER_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone)]
enum Change {
    Create(u64, Vec<u8>),
    Delete(u64),
    Write(u64, u64, Vec<u8>, Option<Vec<u8>>),
}

#[derive(Debug, Default, Clone)]
struct Blob {
    metadata: Vec<u8>,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    blobs: BTreeMap<u64, Blob>,
    next: u64,
    used_bytes: u64,
    /// All changes, if a record is kept.
    record: Option<Vec<Change>>,
}

/// Blobs in memory: for tests.
#[derive(Debug)]
pub struct MemoryBlobs {
    state: Mutex<State>,
    capacity_bytes: u64,
}

impl MemoryBlobs {
    /// An empty device of this size. Optionally keeps a record of its changes, for [`Self::image`].
    pub fn new(capacity_bytes: u64, keep_record: bool) -> Self {
        let state = State {
            next: 1,
            record: keep_record.then(Vec::new),
            ..State::default()
        };
        MemoryBlobs {
            state: Mutex::new(state),
            capacity_bytes,
        }
    }

    /// Number of recorded changes. Those of calls that have returned are included.
    pub fn changes(&self) -> usize {
        self.state.lock().record.as_ref().map_or(0, Vec::len)
    }

    /// The device as a power failure leaves it after `changes` changes; if the next one is a write, it was cut off
    /// after some sectors of 512 bytes.
    pub fn image(&self, changes: usize, sectors: usize) -> Self {
        let image = Self::new(self.capacity_bytes, false);
        let state = self.state.lock();
        let record = state.record.as_deref().unwrap_or_default();
        let mut left = image.state.lock();
        let done = changes.min(record.len());
        for change in &record[..done] {
            left.apply(change.clone());
        }
        if let Some(Change::Write(id, offset, data, _)) = record.get(done) {
            let part = data[..data.len().min(sectors * 512)].to_vec();
            left.apply(Change::Write(*id, *offset, part, None));
        }
        drop(left);
        image
    }

    /// A device of another size, with the same content.
    pub fn copy(&self, capacity_bytes: u64) -> Self {
        let copy = Self::new(capacity_bytes, false);
        let (from, mut to) = (self.state.lock(), copy.state.lock());
        (to.next, to.used_bytes) = (from.next, from.used_bytes);
        to.blobs.clone_from(&from.blobs);
        drop(to);
        copy
    }

    /// Changes bytes behind the store's back.
    pub fn damage(&self, id: u64, offset: u64) {
        if let Some(byte) = self
            .state
            .lock()
            .blobs
            .get_mut(&id)
            .and_then(|blob| blob.bytes.get_mut(offset as usize))
        {
            *byte ^= 0x55;
        }
    }
}

impl State {
    fn apply(&mut self, change: Change) {
        if let Some(record) = &mut self.record {
            record.push(change.clone());
        }
        match change {
            Change::Create(id, metadata) => {
                self.next = self.next.max(id + 1);
                let bytes = Vec::new();
                self.blobs.insert(id, Blob { metadata, bytes });
            }
            Change::Delete(id) => {
                let gone = self.blobs.remove(&id);
                self.used_bytes -= gone.map_or(0, |blob| blob.bytes.len() as u64);
            }
            Change::Write(id, offset, data, metadata) => {
                let Some(blob) = self.blobs.get_mut(&id) else { return };
                let (offset, before) = (offset as usize, blob.bytes.len());
                if before < offset + data.len() {
                    let clusters = (offset + data.len()).next_multiple_of(CLUSTER_BYTES as usize);
                    blob.bytes.resize(clusters, 0);
                    self.used_bytes += (clusters - before) as u64;
                }
                blob.bytes[offset..offset + data.len()].copy_from_slice(&data);
                if let Some(metadata) = metadata {
                    blob.metadata = metadata;
                }
            }
        }
    }

    fn blob(&self, id: u64) -> Result<&Blob, BlobError> {
        self.blobs.get(&id).ok_or(BlobError::NotFound)
    }
}

impl Blobs for MemoryBlobs {
    fn create(&self, metadata: &[u8]) -> Result<u64, BlobError> {
        let mut state = self.state.lock();
        let id = state.next;
        state.apply(Change::Create(id, metadata.to_vec()));
        Ok(id)
    }

    fn delete(&self, id: u64) -> Result<(), BlobError> {
        let mut state = self.state.lock();
        state.blob(id)?;
        state.apply(Change::Delete(id));
        Ok(())
    }

    fn ids(&self) -> Result<Vec<u64>, BlobError> {
        Ok(self.state.lock().blobs.keys().copied().collect())
    }

    fn metadata(&self, id: u64) -> Result<Vec<u8>, BlobError> {
        Ok(self.state.lock().blob(id)?.metadata.clone())
    }

    fn read_at(&self, id: u64, into: &mut [u8], offset: u64) -> Result<(), BlobError> {
        let state = self.state.lock();
        let bytes = &state.blob(id)?.bytes;
        let there = bytes.get(offset as usize..).unwrap_or_default();
        let len = there.len().min(into.len());
        into[..len].copy_from_slice(&there[..len]);
        into[len..].fill(0);
        Ok(())
    }

    fn write_at(&self, id: u64, data: &[u8], offset: u64, metadata: Option<&[u8]>) -> Result<(), BlobError> {
        let mut state = self.state.lock();
        let has = state.blob(id)?.bytes.len() as u64;
        let wanted = (offset + data.len() as u64).next_multiple_of(CLUSTER_BYTES);
        if state.used_bytes + wanted.saturating_sub(has) > self.capacity_bytes {
            return Err(BlobError::NoSpace);
        }
        state.apply(Change::Write(id, offset, data.to_vec(), metadata.map(<[u8]>::to_vec)));
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64, BlobError> {
        Ok(self.capacity_bytes)
    }

    fn free_bytes(&self) -> Result<u64, BlobError> {
        Ok(self.capacity_bytes - self.state.lock().used_bytes)
    }
}
