//! Open files by number: what the kernel calls `fh`.
//!
//! Invariant: a number names one handle from `insert` to `remove`; a number never given, or taken back, names none.

use std::sync::Arc;

use ferrite_vfs::OpenFile;
use parking_lot::Mutex;

const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    slots: Vec<Option<Arc<dyn OpenFile>>>,
    free: Vec<usize>,
}

/// The open files of one mount. Sharded, so that threads working on different files seldom contend.
#[derive(Default)]
pub(crate) struct Handles {
    shards: [Mutex<Shard>; SHARDS],
}

impl Handles {
    /// Adds a handle; returns its number.
    pub(crate) fn insert(&self, file: Arc<dyn OpenFile>) -> u64 {
        let shard_number = file.ino() as usize % SHARDS;
        let mut shard = self.shards[shard_number].lock();
        let slot = shard.free.pop().unwrap_or_else(|| {
            shard.slots.push(None);
            shard.slots.len() - 1
        });
        shard.slots[slot] = Some(file);
        (slot * SHARDS + shard_number) as u64
    }

    /// The handle of a number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<dyn OpenFile>> {
        let number = usize::try_from(number).ok()?;
        self.shards[number % SHARDS].lock().slots.get(number / SHARDS)?.clone()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let in_shard = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.slots.len() - shard.free.len()
        };
        self.shards.iter().map(in_shard).sum()
    }

    /// Removes a number. The file is closed when its last user is done.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<dyn OpenFile>> {
        let number = usize::try_from(number).ok()?;
        let mut shard = self.shards[number % SHARDS].lock();
        let file = shard.slots.get_mut(number / SHARDS)?.take()?;
        shard.free.push(number / SHARDS);
        Some(file)
    }
}
