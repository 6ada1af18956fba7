//! Helpers of several tests of stores.

#[cfg(feature = "rocksdb")]
use std::{path::Path, sync::Arc};

#[cfg(feature = "rocksdb")]
use ferrite_meta::{Backend, MemoryBlobs, Options, RocksStore};
use ferrite_meta::{MetaStore, Result, Transaction};

/// Small, so that little data makes tables.
#[cfg(feature = "rocksdb")]
pub(crate) fn small() -> Options {
    Options {
        create: true,
        block_cache_bytes: 1 << 20,
        write_buffer_bytes: 128 << 10,
        prefix_len_bytes: 4,
        reserve_bytes: 0,
        ..Options::default()
    }
}

#[cfg(feature = "rocksdb")]
pub(crate) fn in_directory(path: &Path) -> Result<RocksStore> {
    RocksStore::open(Backend::Directory(path.join("meta")), &small())
}

#[cfg(feature = "rocksdb")]
pub(crate) fn on_blobs(blobs: &Arc<MemoryBlobs>) -> Result<RocksStore> {
    RocksStore::open(Backend::Blobs(Arc::clone(blobs) as _), &small())
}

/// One transaction.
pub(crate) fn change(store: &dyn MetaStore, work: impl FnOnce(&mut dyn Transaction) -> Result<()>) -> Result<()> {
    let mut txn = store.begin();
    work(txn.as_mut())?;
    txn.commit()
}
