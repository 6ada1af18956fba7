//! The objects of a pool's slices: their names, and slices that are stored and read.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;

use crate::bucket::Bucket;
use crate::cipher::SealSalt;
use crate::codec::Codec;
use crate::disk_cache::DiskCache;
use crate::error::{Error, Result};
use crate::slice::SliceId;

/// The slices below one place of a bucket. Clones are the same.
#[derive(Debug, Clone)]
pub struct SliceObjects {
    pub(crate) bucket: Bucket,
    /// The part of all names before the ids.
    prefix: Arc<str>,
    codec: Arc<Codec>,
    disk: Option<DiskCache>,
}

impl SliceObjects {
    /// The slices below `prefix`, some of which may be on a disk.
    pub fn new(bucket: Bucket, prefix: &str, codec: Codec, disk: Option<DiskCache>) -> SliceObjects {
        SliceObjects {
            bucket,
            prefix: prefix.into(),
            codec: Arc::new(codec),
            disk,
        }
    }

    /// The name of a slice's object.
    pub fn name(&self, id: SliceId) -> String {
        format!("{}/{id}", self.prefix)
    }

    /// The lengths that the object of a slice may have.
    pub fn object_bytes(&self, slice_bytes: u32) -> RangeInclusive<u64> {
        self.codec.object_bytes(slice_bytes)
    }

    /// Stores a slice, again and again until that succeeds. `slice` gives it when the request has its turn, and before
    /// each repetition; `None` ends the attempts. `heard` gets the outcome of each attempt, and says whether to try
    /// again after a failure.
    pub fn keep_storing(
        &self,
        id: SliceId,
        slice: impl Fn() -> Result<Option<Bytes>> + Send + Sync + 'static,
        heard: impl FnMut(Result<()>) -> bool + Send + 'static,
    ) {
        let codec = Arc::clone(&self.codec);
        let salt = SealSalt::random();
        let object = move || slice()?.map(|slice| codec.encode(id, slice, salt)).transpose();
        self.bucket.keep_putting(self.name(id), object, heard);
    }

    /// The objects on a disk of this machine.
    pub fn disk(&self) -> Option<&DiskCache> {
        self.disk.as_ref()
    }

    /// The object of a slice has to go, and is not read any more.
    pub fn forget(&self, id: SliceId) {
        if let Some(disk) = &self.disk {
            disk.remove(id);
        }
    }

    /// Reads a slice of this length, from the disk if it is there, and verifies it.
    pub(crate) async fn fetch(&self, id: SliceId, slice_len: u32) -> Result<Bytes> {
        let Some(disk) = &self.disk else {
            return self.fetch_stored(id, slice_len).await;
        };
        if let Some(slice) = tokio::task::block_in_place(|| self.on_disk(disk, id, slice_len)) {
            return Ok(slice);
        }
        let (object, slice) = self.fetch_object(id, slice_len).await?;
        if let Some(turn) = disk.turn().await {
            let disk = disk.clone();
            tokio::task::spawn_blocking(move || disk.add(id, &object, turn));
        }
        Ok(slice)
    }

    fn on_disk(&self, disk: &DiskCache, id: SliceId, slice_len: u32) -> Option<Bytes> {
        let object = disk.get(id, *self.object_bytes(slice_len).end())?;
        let slice = self.codec.decode(id, &object);
        match slice.ok().filter(|slice| slice.len() as u64 == u64::from(slice_len)) {
            Some(slice) => Some(slice),
            None => {
                tracing::debug!(%id, "an object on the disk is damaged");
                disk.remove(id);
                None
            }
        }
    }

    /// Reads a slice of this length from the bucket, and verifies it.
    pub(crate) async fn fetch_stored(&self, id: SliceId, slice_len: u32) -> Result<Bytes> {
        self.fetch_object(id, slice_len).await.map(|(_, slice)| slice)
    }

    /// Whether parts of a slice can be read alone. With a disk, one that is not there is read whole, and kept there.
    pub(crate) fn has_parts(&self, id: SliceId) -> bool {
        let is_near = self.disk.as_ref().is_none_or(|disk| disk.contains(id));
        is_near && !self.codec.compresses && self.bucket.has_ranges()
    }

    /// Reads some parts of a slice of this length, and verifies them. `None`: they have to be read with all of it,
    /// which may have another form, or be damaged.
    pub(crate) async fn fetch_parts(
        &self,
        id: SliceId,
        slice_len: u32,
        parts: &Range<u32>,
    ) -> Result<Option<Vec<Bytes>>> {
        let range = self.codec.range_of(slice_len, parts);
        let decode = |stored: Bytes| self.codec.decode_parts(id, slice_len, parts, &stored).ok();
        if let Some(disk) = &self.disk {
            return Ok(tokio::task::block_in_place(|| {
                disk.get_range(id, range).and_then(decode)
            }));
        }
        match self.bucket.get_range(&self.name(id), range).await {
            Ok(stored) => Ok(tokio::task::block_in_place(|| decode(stored))),
            Err(Error::NotFound(_)) => Err(self.missing(id)),
            Err(Error::Damaged(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn at(&self, id: SliceId, what: &str) -> Error {
        Error::Damaged(format!("{}/{}: {what}", self.bucket.place(), self.name(id)))
    }

    fn missing(&self, id: SliceId) -> Error {
        self.at(id, "the slice is missing")
    }

    async fn fetch_object(&self, id: SliceId, slice_len: u32) -> Result<(Bytes, Bytes)> {
        let most = *self.object_bytes(slice_len).end();
        let object = match self.bucket.get(&self.name(id), most).await {
            Ok(object) => object,
            Err(Error::NotFound(_)) => return Err(self.missing(id)),
            Err(error) => return Err(error),
        };
        let decoded = tokio::task::block_in_place(|| self.codec.decode(id, &object));
        let slice = match decoded {
            Ok(slice) => slice,
            Err(Error::Damaged(what)) => return Err(self.at(id, &what)),
            Err(error) => return Err(error),
        };
        match slice.len() as u64 == u64::from(slice_len) {
            true => Ok((object, slice)),
            false => Err(self.at(id, "the slice has another length than its file's map says")),
        }
    }
}
