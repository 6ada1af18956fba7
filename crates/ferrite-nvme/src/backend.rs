//! A metadata backend without a kernel file system: a blob store of its own, as `ferrite_meta` wants its blobs.
//!
//! Invariants: the store holds nothing else. It is closed when its last user drops it. Its pages may tear: a log's page
//! is written again with the same bytes before the new ones, and the table of names has a checksum and a second place.
//! So overwriting is one write here, where a file's page costs two on a device that may tear it.

use ferrite_blob::device::{Device, Op};
use ferrite_blob::{Blob, BlobId, BlobStore, CLUSTER_BYTES, Error};
use ferrite_meta::{BlobError, Blobs};

/// A blob store for metadata.
pub struct MetaBlobs(BlobStore);

/// A device whose pages need no protection against tearing.
struct MayTear(Box<dyn Device>);

impl Device for MayTear {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        true
    }

    fn is_cut_off(&self) -> bool {
        self.0.is_cut_off()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> ferrite_blob::Result<()> {
        self.0.run(batch)
    }
}

impl MetaBlobs {
    /// Opens the store on a device that was formatted as one.
    ///
    /// # Errors
    /// As [`BlobStore::open`]; [`Error::Damaged`] if some of it is unreadable.
    pub fn open(device: Box<dyn Device>) -> ferrite_blob::Result<Self> {
        MetaBlobs::of(device, false)
    }

    /// Opens the store read-only. It writes nothing, now or later.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn inspect(device: Box<dyn Device>) -> ferrite_blob::Result<Self> {
        MetaBlobs::of(device, true)
    }

    /// Opens the store, and rewrites its damaged metadata from what can be read of it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn mend(device: Box<dyn Device>) -> ferrite_blob::Result<Self> {
        let store = BlobStore::open(Box::new(MayTear(device)), false)?;
        for id in store.older() {
            store.accept_older(id)?;
        }
        for what in store.mend()? {
            tracing::warn!("the store of metadata was mended: {what}");
        }
        Ok(MetaBlobs(store))
    }

    fn of(device: Box<dyn Device>, read_only: bool) -> ferrite_blob::Result<Self> {
        let store = BlobStore::open(Box::new(MayTear(device)), read_only)?;
        match store.damage().first() {
            None => Ok(MetaBlobs(store)),
            Some(first) => Err(Error::Damaged(first.clone())),
        }
    }

    fn blob(&self, id: u64) -> Result<Blob, BlobError> {
        self.0.blob(BlobId::from_raw(id)).map_err(refused)
    }
}

fn refused(error: Error) -> BlobError {
    match error {
        Error::NotFound => BlobError::NotFound,
        Error::NoSpace | Error::TooManyPieces => BlobError::NoSpace,
        Error::Damaged(text) => BlobError::Corruption(text),
        error => BlobError::Io(error.to_string()),
    }
}

impl Blobs for MetaBlobs {
    fn create(&self, metadata: &[u8]) -> Result<u64, BlobError> {
        let id = self.0.reserve(1).map_err(refused)?.pop().ok_or(BlobError::NoSpace)?;
        self.0.create(id, metadata).map_err(refused)?;
        Ok(id.raw())
    }

    fn delete(&self, id: u64) -> Result<(), BlobError> {
        self.0.delete(BlobId::from_raw(id)).map_err(refused)
    }

    fn ids(&self) -> Result<Vec<u64>, BlobError> {
        let ids = self.0.ids().map_err(refused)?;
        Ok(ids.into_iter().map(BlobId::raw).collect())
    }

    fn metadata(&self, id: u64) -> Result<Vec<u8>, BlobError> {
        Ok(self.blob(id)?.metadata())
    }

    fn read_at(&self, id: u64, into: &mut [u8], offset: u64) -> Result<(), BlobError> {
        self.blob(id)?.read_at(into, offset).map_err(refused)
    }

    fn write_at(&self, id: u64, data: &[u8], offset: u64, metadata: Option<&[u8]>) -> Result<(), BlobError> {
        let blob = self.blob(id)?;
        match metadata {
            Some(metadata) if data.is_empty() => blob.set_metadata(metadata),
            metadata => blob.write_at(data, offset, metadata),
        }
        .map_err(refused)
    }

    fn size_bytes(&self) -> Result<u64, BlobError> {
        Ok(self.0.space().clusters * CLUSTER_BYTES)
    }

    fn free_bytes(&self) -> Result<u64, BlobError> {
        Ok(self.0.space().free_bytes)
    }
}

impl Drop for MetaBlobs {
    fn drop(&mut self) {
        // Without it, the next opening only takes longer.
        if let Err(error) = self.0.clone().close() {
            tracing::warn!(%error, "the store of metadata did not close well");
        }
    }
}
