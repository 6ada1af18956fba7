//! Slices that have no object yet, and where their bytes are.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use ferrite_slices::Error as BucketError;
use ferrite_wal::Position;

use super::in_log::InLog;
use super::store::Store;

/// A slice whose object is on its way.
pub(super) struct Upload {
    pub(super) bytes: Unstored,
    /// Attempts that failed.
    pub(super) failures: u32,
    pub(super) error: Option<BucketError>,
}

/// The bytes of a slice that has no object.
pub(super) enum Unstored {
    /// In memory; also in the log, if all of them are there.
    Memory {
        slice: Bytes,
        in_log: Option<Arc<InLog>>,
        _counted: Counted,
    },
    /// In the log alone.
    Log(Arc<Spilled>),
}

impl Unstored {
    /// The log does not have all of it.
    pub(super) fn is_in_memory_alone(&self) -> bool {
        matches!(self, Unstored::Memory { in_log: None, .. })
    }
}

/// Bytes of slices without objects, which count as memory.
pub(super) struct Counted {
    store: Weak<Store>,
    bytes: u64,
}

impl Upload {
    /// The position from which on the log has to be kept for it.
    pub(super) fn kept_from(&self) -> Option<Position> {
        match &self.bytes {
            Unstored::Log(spilled) => spilled.in_log.first(),
            Unstored::Memory { in_log, .. } => in_log.as_deref().and_then(InLog::first),
        }
    }
}

impl Counted {
    pub(super) fn new(store: &Arc<Store>, bytes: u64) -> Counted {
        store.count_buffered(bytes, 0);
        Counted {
            store: Arc::downgrade(store),
            bytes,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.count_buffered(0, self.bytes);
        }
    }
}

/// A slice in the log alone.
pub(super) struct Spilled {
    pub(super) in_log: Arc<InLog>,
    pub(super) crc: u32,
    /// It counts as long as it waits.
    _counted: Waiting,
}

/// Bytes that wait in the log alone.
struct Waiting {
    store: Weak<Store>,
    bytes: u64,
}

impl Waiting {
    fn new(store: &Arc<Store>, bytes: u64) -> Waiting {
        store.count_spilled(bytes as i64);
        Waiting {
            store: Arc::downgrade(store),
            bytes,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.count_spilled(-(self.bytes as i64));
        }
    }
}

impl Spilled {
    pub(super) fn new(store: &Arc<Store>, slice: &Bytes, in_log: Arc<InLog>) -> Spilled {
        Spilled {
            in_log,
            crc: crc32c::crc32c(slice),
            _counted: Waiting::new(store, slice.len() as u64),
        }
    }
}
