//! Clean slices in memory: those that were read or written lately, and parts of slices that were read alone. Threads
//! that want the same wait for one request.
//!
//! A read of little, here or there, fetches the parts that it wants. When many parts of a slice have been wanted, all
//! of it is fetched.
//!
//! Invariant: a slice has the bytes here that its object has, or will have.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::arrivals::{Arrivals, Readahead};
use crate::bucket::Started;
use crate::error::{Error, Result};
use crate::flights::{Flights, Source};
use crate::objects::SliceObjects;
use crate::piece::{Found, Piece, parts_with};
use crate::slice::{BLOCK_BYTES, PART_BYTES, SliceId};

/// A shard admits no entry that is larger than itself, so there are few of them.
const SHARDS: usize = 4;
/// The memory for pieces that readers in order have not finished: a quarter, within these bounds.
const ARRIVALS_MIN: u64 = 8 * BLOCK_BYTES;
const ARRIVALS_MAX: u64 = 128 * BLOCK_BYTES;
/// A read of more than one part in so many of a slice fetches all of it.
const SMALL: u32 = 4;
/// When so many parts of a slice are here, and another one is wanted, all of it is fetched.
const PARTS_MAX: usize = 8;

#[derive(Debug, Clone)]
struct Weight;

impl Weighter<Piece, Bytes> for Weight {
    fn weight(&self, _: &Piece, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + 100
    }
}

/// A cache of slices. Any number of threads may use it.
#[derive(Debug, Clone)]
pub struct SliceCache {
    objects: SliceObjects,
    pieces: Arc<Cache<Piece, Bytes, Weight>>,
    arrivals: Arc<Arrivals>,
    flights: Flights,
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
        let pieces = match options.build() {
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
            pieces: Arc::new(pieces),
            arrivals: Arc::new(Arrivals::new(for_arrivals)),
            flights: Flights::default(),
            uses: Arc::default(),
        }
    }

    fn piece(&self, piece: Piece) -> Option<Bytes> {
        self.pieces.get(&piece).or_else(|| self.arrivals.get(piece))
    }

    fn has(&self, piece: Piece) -> bool {
        self.pieces.contains_key(&piece) || self.arrivals.contains(piece)
    }

    fn count<T>(&self, found: Option<T>) -> Option<T> {
        let count = match found {
            Some(_) => &self.uses.hits,
            None => &self.uses.misses,
        };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// A slice, if all of it is here.
    pub fn get(&self, id: SliceId) -> Option<Bytes> {
        self.count(self.piece(Piece::Whole(id)))
    }

    /// These bytes of a slice, if they are here.
    pub fn find(&self, id: SliceId, bytes: Range<u32>) -> Option<Found> {
        let parts = || {
            let parts = parts_with(&bytes);
            let found: Option<Vec<Bytes>> = parts.clone().map(|part| self.piece(Piece::Part(id, part))).collect();
            Some(Found::Parts(parts.start, found?))
        };
        let whole = self.piece(Piece::Whole(id)).map(Found::Whole);
        self.count(whole.or_else(parts))
    }

    /// Whether a slice is here. Does not count as a use.
    pub fn contains(&self, id: SliceId) -> bool {
        self.has(Piece::Whole(id))
    }

    /// Adds a slice.
    pub fn insert(&self, id: SliceId, slice: Bytes) {
        self.pieces.insert(Piece::Whole(id), slice);
    }

    /// Adds a slice that a reader has waited for: it stays until it was read to its end.
    pub fn arrive(&self, id: SliceId, slice: Bytes) {
        self.arrivals.insert(Piece::Whole(id), &slice);
        self.insert(id, slice);
    }

    /// Bytes of memory in use. Some count twice.
    pub fn bytes(&self) -> u64 {
        self.pieces.weight() + self.arrivals.bytes()
    }

    /// How the reader in order with this number, which has come now, should be served: as far as there is memory.
    /// `is_new`: it has begun at the beginning of a file, and may not continue.
    pub fn readahead(&self, reader: u64, is_new: bool) -> Readahead {
        self.arrivals.readahead(reader, is_new)
    }

    /// The reader with this number has come to the end of its file.
    pub fn forget_reader(&self, reader: u64) {
        self.arrivals.forget(reader);
    }

    /// A reader has read these bytes of a slice. Pieces that it has read to their end stay only if they are used often.
    pub fn finish(&self, id: SliceId, slice_len: u32, bytes: Range<u32>, found: &Found) {
        match found {
            Found::Whole(_) if bytes.end == slice_len => self.arrivals.finish([Piece::Whole(id)]),
            Found::Whole(_) => {}
            Found::Parts(..) => {
                let ended = |part: &u32| (part + 1).saturating_mul(PART_BYTES).min(slice_len) <= bytes.end;
                let parts = parts_with(&bytes).filter(ended);
                self.arrivals.finish(parts.map(|part| Piece::Part(id, part)));
            }
        }
    }

    /// Slices that were here, and that were not, when somebody wanted them.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (get(&self.uses.hits), get(&self.uses.misses))
    }

    /// Starts to fetch these bytes of a slice of this length, with more around them where that is worth it, unless they
    /// are here. `order`: how the reader is served, if it reads in order.
    pub fn start(&self, id: SliceId, slice_len: u32, bytes: &Range<u32>, order: Option<Readahead>) -> Started<Found> {
        let cache = self.clone();
        let parts = self.parts_for(id, slice_len, bytes, order);
        let stays = order.is_some();
        self.objects.bucket.start(async move {
            match parts {
                None => cache.fetch(id, slice_len, stays).await.map(Found::Whole),
                Some(parts) => cache.fetch_parts(id, slice_len, parts, stays).await,
            }
        })
    }

    /// The same, for a reader that will come.
    pub fn start_ahead(&self, id: SliceId, slice_len: u32, bytes: &Range<u32>, order: Option<Readahead>) {
        let mut parts = parts_with(bytes);
        if !self.contains(id) && !parts.all(|part| self.has(Piece::Part(id, part))) {
            drop(self.start(id, slice_len, bytes, order));
        }
    }

    /// The parts to fetch for somebody who wants these bytes; `None`: all of it.
    fn parts_for(
        &self,
        id: SliceId,
        slice_len: u32,
        bytes: &Range<u32>,
        order: Option<Readahead>,
    ) -> Option<Range<u32>> {
        let all = parts_with(&(0..slice_len));
        let wanted = match order {
            Some(order) if order.unit_bytes >= BLOCK_BYTES => return None,
            Some(order) => {
                let unit = order.unit_bytes as u32;
                let end = bytes.end.checked_next_multiple_of(unit);
                bytes.start / unit * unit..end.map_or(slice_len, |end| end.min(slice_len))
            }
            None if bytes.len() as u32 > slice_len / SMALL || all.len() <= PARTS_MAX => return None,
            None => bytes.clone(),
        };
        let parts = parts_with(&wanted);
        if parts == all || !self.objects.has_parts(id) {
            return None;
        }
        let is_here = |part: &u32| self.has(Piece::Part(id, *part));
        let is_popular = order.is_none() && all.filter(is_here).take(PARTS_MAX).count() == PARTS_MAX;
        (!is_popular).then_some(parts)
    }

    /// `stays`: in any case until it was read to its end.
    async fn fetch(&self, id: SliceId, slice_len: u32, stays: bool) -> Result<Bytes> {
        let fetched = self.objects.fetch(id, slice_len);
        let slice = self.pieces.get_or_insert_async(&Piece::Whole(id), fetched).await?;
        if stays {
            self.arrivals.insert(Piece::Whole(id), &slice);
        }
        Ok(slice)
    }

    async fn fetch_parts(&self, id: SliceId, slice_len: u32, parts: Range<u32>, stays: bool) -> Result<Found> {
        match self.gather(id, slice_len, &parts, stays).await {
            // Somebody else's request, which may have waited for long.
            Err((Error::Failed(_), false)) => self.gather(id, slice_len, &parts, stays).await,
            found => found,
        }
        .map_err(|(error, _)| error)
    }

    /// With an error comes whether it is that of a new request.
    async fn gather(
        &self,
        id: SliceId,
        slice_len: u32,
        parts: &Range<u32>,
        stays: bool,
    ) -> std::result::Result<Found, (Error, bool)> {
        if let Some(slice) = self.piece(Piece::Whole(id)) {
            return Ok(Found::Whole(slice));
        }
        let here = |part: u32| self.piece(Piece::Part(id, part));
        let sources = self.flights.sources(id, parts, here, |window, landing| {
            let cache = self.clone();
            let flight = async move {
                let _landing = landing;
                cache.request(id, slice_len, window, stays).await
            };
            let flight = flight.boxed().shared();
            // All of them run at once, whoever waits for which.
            tokio::spawn(flight.clone());
            flight
        });
        let mut found = Vec::with_capacity(parts.len());
        for source in sources {
            match source {
                Source::Here(bytes) => found.push(bytes),
                Source::Flight(window, flight, is_new) => match flight.await.map_err(|error| (error, is_new))? {
                    whole @ Found::Whole(_) => return Ok(whole),
                    some @ Found::Parts(..) => {
                        let other = || (Error::Failed(format!("slice {id}: other parts have come")), true);
                        found.extend_from_slice(some.take(&window).ok_or_else(other)?);
                    }
                },
            }
        }
        Ok(Found::Parts(parts.start, found))
    }

    /// Reads parts, which are here then, or all of the slice if that is the only way.
    async fn request(&self, id: SliceId, slice_len: u32, parts: Range<u32>, stays: bool) -> Result<Found> {
        let Some(found) = self.objects.fetch_parts(id, slice_len, &parts).await? else {
            return self.fetch(id, slice_len, stays).await.map(Found::Whole);
        };
        for (number, part) in parts.clone().zip(&found) {
            let piece = Piece::Part(id, number);
            if stays {
                self.arrivals.insert(piece, part);
            }
            self.pieces.insert(piece, part.clone());
        }
        Ok(Found::Parts(parts.start, found))
    }

    /// Reads a slice from the bucket, whatever is here, and verifies it.
    pub fn verify(&self, id: SliceId, slice_len: u32) -> Started<Bytes> {
        let objects = self.objects.clone();
        self.objects
            .bucket
            .start(async move { objects.fetch_stored(id, slice_len).await })
    }
}
