//! Open files by number: what the kernel calls `fh`.
//!
//! Invariants:
//! * A number names one handle from `insert` to `remove`; a number that was never allocated, or was removed, names
//!   none.
//! * An inode counts as mapped from the `insert` of its first handle through which a shared mapping can store to the
//!   `remove` of its last. The kernel releases a handle only when its last mapping is gone, so such a mapping keeps its
//!   inode among them, whether its descriptor is closed or not.

use std::collections::HashMap;
use std::sync::Arc;

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::{Ino, OpenFile};

use crate::lock_order;

const SHARDS: usize = 16;

/// An open file, and whether a shared mapping can store through it.
struct Handle {
    file: Arc<dyn OpenFile>,
    maps: bool,
}

#[derive(Default)]
struct Shard {
    entries: Vec<Option<Handle>>,
    free: Vec<usize>,
    /// The number of such handles, by inode. A shard has all handles of its inodes.
    mappable: HashMap<Ino, usize>,
}

/// The open files of one mount. Sharded, so that threads working on different files seldom contend.
#[derive(Default)]
pub(crate) struct Handles {
    shards: [Mutex<lock_order::Handles, Shard>; SHARDS],
}

impl Handles {
    /// Adds a handle, with whether a mapping can store through it; returns its number.
    pub(crate) fn insert(&self, file: Arc<dyn OpenFile>, maps: bool) -> u64 {
        let ino = file.ino();
        let shard_number = ino as usize % SHARDS;
        let mut shard = self.shards[shard_number].lock();
        if maps {
            *shard.mappable.entry(ino).or_default() += 1;
        }
        let index = shard.free.pop().unwrap_or_else(|| {
            shard.entries.push(None);
            shard.entries.len() - 1
        });
        shard.entries[index] = Some(Handle { file, maps });
        (index * SHARDS + shard_number) as u64
    }

    /// The handle of a number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<dyn OpenFile>> {
        let number = usize::try_from(number).ok()?;
        let shard = self.shards[number % SHARDS].lock();
        let handle = shard.entries.get(number / SHARDS)?.as_ref()?;
        Some(Arc::clone(&handle.file))
    }

    /// Whether a mapping may have stored data that only the kernel has.
    pub(crate) fn may_be_mapped(&self, ino: Ino) -> bool {
        self.shards[ino as usize % SHARDS].lock().mappable.contains_key(&ino)
    }

    /// Number of open handles.
    pub(crate) fn count(&self) -> usize {
        let in_shard = |shard: &Mutex<lock_order::Handles, Shard>| {
            let shard = shard.lock();
            shard.entries.len() - shard.free.len()
        };
        self.shards.iter().map(in_shard).sum()
    }

    /// Removes a number. The file is closed when its last user is done.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<dyn OpenFile>> {
        let number = usize::try_from(number).ok()?;
        let mut shard = self.shards[number % SHARDS].lock();
        let Handle { file, maps } = shard.entries.get_mut(number / SHARDS)?.take()?;
        shard.free.push(number / SHARDS);
        let ino = file.ino();
        if maps && let Some(count) = shard.mappable.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                shard.mappable.remove(&ino);
            }
        }
        Some(file)
    }
}
