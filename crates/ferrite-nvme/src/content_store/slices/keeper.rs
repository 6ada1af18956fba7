//! The thread that keeps content in S3 in order: it publishes what has waited for long, writes crowded blocks anew, and
//! has the objects of dead slices deleted (`collection`).
//!
//! Invariants: it holds the store only while it works, so that an engine that was dropped takes all with it. It waits
//! for no request of which the outcome can be seen later: a service that is silent keeps it from no other work. A block
//! is written anew from the bytes that its slices have, and only if nothing has changed in it meanwhile.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ferrite_checks::ranked::Mutex;
use ferrite_slices::{BLOCK_BYTES, Extent};

use super::blob::SharedBlob;
use super::buffer::Buffer;
use super::calls::{Calls, Queue};
use super::collection::Collection;
use super::reading::{copy_of, hulls_of, within};
use super::store::{Store, of_bucket};
use super::{handles, lock_order, logged, rejoin};
use crate::content_store::{Error, Result};

/// How often it looks, if nobody calls.
const PERIOD: Duration = Duration::from_secs(1);
/// How long it waits for a blob that others change.
const TURN: Duration = Duration::from_millis(50);
/// How long it waits for a slice of a block that it writes anew.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// Blocks that are written anew before it looks for changes again.
const BLOCKS_A_TURN: usize = 16;

/// The thread.
#[derive(Default)]
pub(super) struct Keeper {
    calls: Calls,
    thread: Mutex<lock_order::Keeper, Option<JoinHandle<()>>>,
}

impl Keeper {
    pub(super) fn calls(&self) -> Calls {
        self.calls.clone()
    }

    pub(super) fn start(&self, store: &Arc<Store>) -> Result<()> {
        let (calls, store) = (self.calls.clone(), Arc::downgrade(store));
        let thread = std::thread::Builder::new()
            .name("ferrite-nvme-s3".into())
            .spawn(move || run(&calls, &store))
            .map_err(|error| Error::Failed(format!("no thread for content in S3: {error}")))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends it, and waits for it if it is to be orderly.
    pub(super) fn end(&self, waits: bool) {
        self.calls.0.queue.lock().is_over = true;
        self.calls.0.called.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|_| waits) {
            // It has no result.
            let _ = thread.join();
        }
    }
}

fn run(calls: &Calls, store: &Weak<Store>) {
    let mut collection = Collection::new();
    loop {
        let was_called;
        {
            let mut queue = calls.0.queue.lock();
            let waits = |queue: &mut Queue| !queue.is_called && !queue.is_over;
            calls.0.called.wait_while_for(&mut queue, waits, PERIOD);
            was_called = std::mem::take(&mut queue.is_called);
            if queue.is_over {
                return;
            }
        }
        let Some(store) = store.upgrade() else { return };
        if store.epoch().is_none() {
            continue;
        }
        let age = match was_called || logged::is_short(&store) {
            true => Duration::ZERO,
            false => store.publish_after(),
        };
        publish_old(calls, &store, age);
        logged::trim(&store);
        rejoin::rejoin(&store);
        rewrite_blocks(calls, &store);
        if let Err(error) = collection.advance(&store) {
            tracing::debug!(%error, "objects of dead slices stay for now");
        }
    }
}

fn publish_old(calls: &Calls, store: &Store, age: Duration) {
    let mut blobs = handles::unpublished(store, age);
    // Others are sent later; a failure shows in a publication that somebody asks for.
    blobs.retain(|blob| !calls.is_over() && blob.send_within(TURN).unwrap_or(false));
    if store.is_replaying.load(Ordering::Acquire) {
        return;
    }
    for blob in blobs {
        if calls.is_over() {
            return;
        }
        if let Err(error) = blob.publish_within(TURN)
            && !error.is_not_found()
        {
            tracing::debug!(place = %blob.place, %error, "changes are published later");
        }
    }
}

fn rewrite_blocks(calls: &Calls, store: &Store) {
    for _ in 0..BLOCKS_A_TURN {
        let next = {
            let mut queue = calls.0.queue.lock();
            match queue.is_over || queue.is_called {
                true => None,
                false => queue.blocks.pop_front(),
            }
        };
        let Some((blob, block)) = next else { return };
        let blob = blob.upgrade().and_then(|blob| blob.downcast::<SharedBlob>().ok());
        let Some(blob) = blob else { continue };
        match blob.rewrite(block).and_then(|is_due| match is_due {
            true => blob.publish_within(TURN).map(|()| true),
            false => Ok(false),
        }) {
            Ok(false) => {}
            Ok(true) => {
                store.rewritten_blocks.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                // The others would wait for the same service.
                tracing::debug!(place = %blob.place, block, %error, "a block stays as it is");
                return;
            }
        }
    }
}

impl SharedBlob {
    /// The bytes of an extent whose slice is stored, of which `hull` is wanted.
    fn fetch(&self, extent: &Extent, hull: &Range<u32>) -> Result<Vec<u8>> {
        let cache = &self.store.cache;
        let found = match cache.find(extent.slice, within(extent)) {
            Some(found) => found,
            None => {
                let started = cache.start(extent.slice, extent.slice_len, hull, None);
                started.wait_for(FETCH_MAX).map_err(of_bucket)?
            }
        };
        copy_of(&found, extent)
    }

    /// Has the bytes of a block be written again, as one slice. Returns whether they are.
    fn rewrite(self: &Arc<Self>, block: u64) -> Result<bool> {
        let within = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        let pieces: Vec<(u64, Extent)> = self.state.lock().map.pieces(within.clone()).collect();
        let hulls = hulls_of(pieces.iter().map(|(_, extent)| extent));
        let mut fetched: Vec<Vec<u8>> = Vec::with_capacity(pieces.len());
        for (_, extent) in &pieces {
            let uploading = self.state.lock().uploads.contains_key(&extent.slice);
            if uploading {
                return Ok(false);
            }
            let hull = hulls.get(&extent.slice).cloned().unwrap_or(0..extent.slice_len);
            fetched.push(self.fetch(extent, &hull)?);
        }
        let Some(_changing) = self.changing.try_lock_for(TURN) else {
            return Ok(false);
        };
        let mut state = self.state.lock();
        let is_same = state.map.pieces(within).eq(pieces.iter().copied());
        if state.is_deleted || !is_same || pieces.is_empty() || state.buffers.contains_key(&block) {
            return Ok(false);
        }
        let mut buffer = Buffer::new();
        for ((start, _), bytes) in pieces.iter().zip(&fetched) {
            buffer.write((start - block * BLOCK_BYTES) as usize, bytes);
        }
        let more = buffer.memory();
        state.buffers.insert(block, buffer);
        self.store.note_changes(self.id, self);
        drop(state);
        self.store.count_buffered(more, 0);
        Ok(true)
    }
}
