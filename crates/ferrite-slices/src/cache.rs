//! Clean slices in memory: those that were read or written lately. Threads that want the same slice wait for one
//! request.
//!
//! Invariant: a slice has the bytes here that its object has, or will have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::arrivals::Arrivals;
use crate::bucket::Started;
use crate::objects::SliceObjects;
use crate::slice::{BLOCK_BYTES, SliceId};

/// A shard admits no entry that is larger than itself, so there are few of them.
const SHARDS: usize = 4;
/// The memory for slices that readers have not finished: a quarter, within these bounds.
const ARRIVALS_MIN: u64 = 8 * BLOCK_BYTES;
const ARRIVALS_MAX: u64 = 128 * BLOCK_BYTES;

#[derive(Debug, Clone)]
struct Weight;

impl Weighter<SliceId, Bytes> for Weight {
    fn weight(&self, _: &SliceId, slice: &Bytes) -> u64 {
        slice.len() as u64 + 100
    }
}

/// A cache of slices. Any number of threads may use it.
#[derive(Debug, Clone)]
pub struct SliceCache {
    objects: SliceObjects,
    slices: Arc<Cache<SliceId, Bytes, Weight>>,
    arrivals: Arc<Arrivals>,
    uses: Arc<Uses>,
}

#[derive(Debug, Default)]
struct Uses {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl SliceCache {
    /// A cache of about so many bytes, and at least some blocks.
    pub fn new(objects: SliceObjects, bytes: u64) -> SliceCache {
        let for_arrivals = (bytes / 4).clamp(ARRIVALS_MIN, ARRIVALS_MAX);
        let bytes = bytes.saturating_sub(for_arrivals).max(SHARDS as u64 * 2 * BLOCK_BYTES);
        let mut options = OptionsBuilder::new();
        options.estimated_items_capacity((bytes / (256 << 10)) as usize);
        options.weight_capacity(bytes).shards(SHARDS);
        let slices = match options.build() {
            Ok(options) => Cache::with_options(
                options,
                Weight,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            // It has all that it needs.
            Err(_) => Cache::with_weighter(64, bytes, Weight),
        };
        SliceCache {
            objects,
            slices: Arc::new(slices),
            arrivals: Arc::new(Arrivals::new(for_arrivals)),
            uses: Arc::default(),
        }
    }

    /// A slice, if it is here.
    pub fn get(&self, id: SliceId) -> Option<Bytes> {
        let found = self.slices.get(&id).or_else(|| self.arrivals.get(id));
        let count = match found {
            Some(_) => &self.uses.hits,
            None => &self.uses.misses,
        };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Whether a slice is here. Does not count as a use.
    pub fn contains(&self, id: SliceId) -> bool {
        self.slices.contains_key(&id) || self.arrivals.contains(id)
    }

    /// Adds a slice.
    pub fn insert(&self, id: SliceId, slice: Bytes) {
        self.slices.insert(id, slice);
    }

    /// Adds a slice that a reader has waited for: it stays until it was read to its end.
    pub fn arrive(&self, id: SliceId, slice: Bytes) {
        self.arrivals.insert(id, &slice, false);
        self.slices.insert(id, slice);
    }

    /// Bytes of memory in use. Some count twice.
    pub fn bytes(&self) -> u64 {
        self.slices.weight() + self.arrivals.bytes()
    }

    /// By how many bytes a reader in order should be served ahead: as far as there is memory.
    pub fn ahead_bytes(&self) -> u64 {
        self.arrivals.ahead_bytes()
    }

    /// A reader has come to the end of a slice: it stays only if it is used often.
    pub fn finish(&self, id: SliceId) {
        self.arrivals.finish(id);
    }

    /// Slices that were here, and that were not, when somebody wanted them.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (get(&self.uses.hits), get(&self.uses.misses))
    }

    /// Starts to fetch a slice of this length, unless it is here.
    pub fn start(&self, id: SliceId, slice_len: u32) -> Started<Bytes> {
        self.fetch(id, slice_len, false)
    }

    /// The same, for a reader that will come.
    pub fn start_ahead(&self, id: SliceId, slice_len: u32) {
        drop(self.fetch(id, slice_len, true));
    }

    fn fetch(&self, id: SliceId, slice_len: u32, is_ahead: bool) -> Started<Bytes> {
        let (cache, arrivals) = (Arc::clone(&self.slices), Arc::clone(&self.arrivals));
        let objects = self.objects.clone();
        self.objects.bucket.start(async move {
            let slice = cache.get_or_insert_async(&id, objects.fetch(id, slice_len)).await?;
            arrivals.insert(id, &slice, is_ahead);
            Ok(slice)
        })
    }

    /// Reads a slice from the bucket, whatever is here, and verifies it.
    pub fn verify(&self, id: SliceId, slice_len: u32) -> Started<Bytes> {
        let objects = self.objects.clone();
        self.objects
            .bucket
            .start(async move { objects.fetch_stored(id, slice_len).await })
    }
}
