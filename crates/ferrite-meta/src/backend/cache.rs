//! Blocks of 256 KiB for random reads (RUFS, §2.5): RocksDB reads a few KiB, and soon their neighbours.
//!
//! Invariants: a block belongs to a file without a writer, so that it never changes, until [`Cache::forget`]; the least
//! recently used goes first. A thread that needs a block that another one is reading waits for that one, and the lock
//! of the table is not held meanwhile. Used by `files` only.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::blobs::BlobError;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 256 << 10;

/// A blob, and which of its blocks.
type Key = (u64, u64);
/// Filled by the first reader.
type Block = Arc<Mutex<Option<Box<[u8]>>>>;

pub(super) struct Cache {
    blocks_max: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    blocks: HashMap<Key, (Block, u64)>,
    /// By the time of the last use.
    used: BTreeMap<u64, Key>,
    now: u64,
    hits: u64,
    misses: u64,
}

impl Cache {
    /// A cache of about this size. A cache smaller than a block keeps nothing.
    pub(super) fn new(bytes: usize) -> Cache {
        Cache {
            blocks_max: bytes / BLOCK_BYTES,
            table: Mutex::default(),
        }
    }

    /// Fills `into` from `offset` on. `load` reads a block, which is to cover the whole range.
    pub(super) fn read(
        &self,
        blob: u64,
        offset: u64,
        into: &mut [u8],
        load: &dyn Fn(u64) -> Result<Box<[u8]>, BlobError>,
    ) -> Result<(), BlobError> {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let (number, within) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
            let len = (into.len() - done).min(BLOCK_BYTES - within);
            let block = self.block((blob, number));
            let mut filled = block.lock();
            let bytes = match &mut *filled {
                Some(bytes) => bytes,
                none => none.insert(load(number)?),
            };
            let there = bytes
                .get(within..within + len)
                .ok_or_else(|| BlobError::Corruption("a file is shorter than its size says".into()))?;
            into[done..done + len].copy_from_slice(there);
            done += len;
        }
        Ok(())
    }

    /// Drops all blocks of a blob.
    pub(super) fn forget(&self, blob: u64) {
        let mut table = self.table.lock();
        let Table { blocks, used, .. } = &mut *table;
        blocks.retain(|key, (_, time)| {
            let stays = key.0 != blob;
            if !stays {
                used.remove(time);
            }
            stays
        });
    }

    /// Blocks that were found, and those that were not.
    pub(super) fn counts(&self) -> (u64, u64) {
        let table = self.table.lock();
        (table.hits, table.misses)
    }

    fn block(&self, key: Key) -> Block {
        let mut table = self.table.lock();
        table.now += 1;
        let now = table.now;
        if let Some((block, time)) = table.blocks.get_mut(&key) {
            let (block, before) = (Arc::clone(block), std::mem::replace(time, now));
            table.used.remove(&before);
            table.used.insert(now, key);
            table.hits += 1;
            return block;
        }
        table.misses += 1;
        let block = Block::default();
        table.blocks.insert(key, (Arc::clone(&block), now));
        table.used.insert(now, key);
        while table.blocks.len() > self.blocks_max
            && let Some((_, oldest)) = table.used.pop_first()
        {
            table.blocks.remove(&oldest);
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Block `number` is full of its number.
    fn read(cache: &Cache, loads: &Cell<u32>, offset: u64, len: usize) -> Vec<u8> {
        let mut into = vec![0xee; len];
        let load = |number: u64| {
            loads.set(loads.get() + 1);
            Ok(vec![number as u8; BLOCK_BYTES].into())
        };
        cache.read(1, offset, &mut into, &load).unwrap();
        into
    }

    #[test]
    fn a_block_is_read_once_and_the_least_recently_used_goes() {
        let (cache, loads) = (Cache::new(2 * BLOCK_BYTES), Cell::new(0));
        let block = BLOCK_BYTES as u64;
        assert_eq!(read(&cache, &loads, block - 1, 2), [0, 1]);
        assert_eq!(read(&cache, &loads, 5, 1), [0]);
        assert_eq!((loads.get(), cache.counts()), (2, (1, 2)));
        // Block 1 was used before block 0.
        read(&cache, &loads, 2 * block, 1);
        read(&cache, &loads, 7, 1);
        assert_eq!(loads.get(), 3);
        read(&cache, &loads, block, 1);
        assert_eq!(loads.get(), 4);
        cache.forget(1);
        read(&cache, &loads, block, 1);
        assert_eq!(loads.get(), 5);
    }

    #[test]
    fn a_block_that_could_not_be_read_is_tried_again() {
        let cache = Cache::new(BLOCK_BYTES);
        let failed = cache.read(1, 0, &mut [0], &|_| Err(BlobError::Io("wanted by this test".into())));
        assert!(failed.is_err());
        cache
            .read(1, 0, &mut [0], &|_| Ok(vec![0; BLOCK_BYTES].into()))
            .unwrap();
        let short = cache.read(2, 10, &mut [0; 2], &|_| Ok(vec![0; 11].into()));
        assert!(matches!(short, Err(BlobError::Corruption(_))));
    }

    #[test]
    fn without_memory_nothing_is_kept() {
        let (cache, loads) = (Cache::new(0), Cell::new(0));
        assert_eq!(read(&cache, &loads, 0, 1), [0]);
        assert_eq!(read(&cache, &loads, 0, 1), [0]);
        assert_eq!(loads.get(), 2);
    }
}
