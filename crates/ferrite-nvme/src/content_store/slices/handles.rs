//! Blobs in use: each has one shared state, whoever opens it, and those with changes are known until they are durable.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::blob::SharedBlob;
use super::calls::AnyBlob;
use super::store::{LOADERS, Store, id_of};
use crate::content_store::{Error, Place, Result, UniqueId};

fn shared(blob: Arc<AnyBlob>) -> Option<Arc<SharedBlob>> {
    blob.downcast().ok()
}

/// A blob, by its only shared state.
pub(super) fn open(store: &Arc<Store>, place: Place) -> Result<Arc<SharedBlob>> {
    let id = id_of(place)?;
    // Nobody loads a blob whose last handle another thread is about to make.
    let _loading = store.loading[(id.number % LOADERS) as usize].lock();
    if let Some(blob) = known(store, id) {
        return match blob.is_deleted() {
            true => Err(Error::NotFound),
            false => Ok(blob),
        };
    }
    let (rows, mark) = (store.rows.load(place)?, store.rows.mark(place)?);
    Ok(add(store, SharedBlob::loaded(store, place, rows, mark)))
}

/// A blob, if it is in use.
pub(super) fn known(store: &Store, id: UniqueId) -> Option<Arc<SharedBlob>> {
    store.blobs.lock().get(&id).and_then(Weak::upgrade).and_then(shared)
}

/// Has a blob be found by others.
pub(super) fn add(store: &Store, (id, blob): (UniqueId, SharedBlob)) -> Arc<SharedBlob> {
    let blob = Arc::new(blob);
    let any: Arc<AnyBlob> = Arc::clone(&blob) as _;
    store.blobs.lock().insert(id, Arc::downgrade(&any));
    blob
}

/// The blobs with changes that are older than this.
pub(super) fn unpublished(store: &Store, age: Duration) -> Vec<Arc<SharedBlob>> {
    let now = Instant::now();
    let unpublished = store.unpublished.lock();
    let old = unpublished.values().filter(|one| now.duration_since(one.since) >= age);
    old.filter_map(|one| shared(Arc::clone(&one.blob))).collect()
}

/// By how much the bytes of files are more, or fewer, than those that rows name.
pub(super) fn unpublished_bytes(store: &Store) -> i64 {
    let more = |blob: Arc<SharedBlob>| {
        let state = blob.state.lock();
        (state.map.bytes() + state.buffered()) as i64 - state.published_bytes as i64
    };
    unpublished(store, Duration::ZERO).into_iter().map(more).sum()
}

/// Publishes all blobs. Objects of all of them are on their way before it waits for the first, and it waits for all
/// of them together as long as for one.
///
/// # Errors
/// The first; the others are published all the same.
pub(super) fn publish_all(store: &Store) -> Result<()> {
    let until = Instant::now() + store.options.publish_timeout;
    let blobs = unpublished(store, Duration::ZERO);
    let mut done = Ok(());
    for blob in &blobs {
        done = done.and(blob.send());
    }
    for blob in &blobs {
        let published = match blob.publish_until(until) {
            // It was deleted meanwhile.
            Err(Error::NotFound) => Ok(()),
            other => other,
        };
        done = done.and(published);
    }
    done
}
