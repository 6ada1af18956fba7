//! A transaction for tests of mappings: words are stored at the commit, in order, and freed resources are released at
//! once.
//!
//! Contents: [`TestTx`], made by [`super::Bed`].

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use ferrite_pm::Region;

use crate::bitmap::AtomicBitmap;
use crate::move_lock::SharedMoveLock;
use crate::{BLOCK_BYTES, BlockNo, FileMap, MapError, MapTx, Resource, StoredWord};

/// A transaction of the tests.
pub(crate) struct TestTx<'b> {
    pub(super) map: &'b dyn FileMap,
    pub(super) blocks: &'b AtomicBitmap,
    pub(super) region: &'b Region,
    pub(super) first_block: BlockNo,
    pub(crate) words: Vec<StoredWord>,
    pub(crate) claimed: Vec<Resource>,
    pub(crate) freed: Vec<Resource>,
    /// The newest of `words`, by offset.
    pub(super) stored: BTreeMap<u64, u64>,
    /// Held until the words are set.
    pub(super) shared: Option<SharedMoveLock<'b>>,
}

impl TestTx<'_> {
    pub(crate) fn release(&self, resource: Resource) {
        match resource {
            Resource::Block(block) => {
                assert!(
                    self.blocks.release(u64::from(block.get() - self.first_block.get())),
                    "block {block} was freed twice"
                );
            }
            Resource::MapSlot(slot) => assert!(self.map.release(slot), "entry {slot} was freed twice"),
            other => panic!("{other:?} is not a mapping's to claim or free"),
        }
    }

    /// Applies the words in order, then frees. (There is no replay and no delayed reader here, so that is late enough.)
    pub(crate) fn commit(mut self, region: &Region) {
        for &StoredWord { offset, value } in &self.words {
            region.store(offset, value);
        }
        self.claimed.clear();
        for resource in std::mem::take(&mut self.freed) {
            self.release(resource);
        }
        self.shared = None;
    }
}

impl Drop for TestTx<'_> {
    fn drop(&mut self) {
        for resource in std::mem::take(&mut self.claimed) {
            self.release(resource);
        }
    }
}

impl MapTx for TestTx<'_> {
    fn set_word(&mut self, offset: u64, value: u64) {
        assert_eq!(offset % 8, 0, "misaligned word");
        self.words.push(StoredWord { offset, value });
        self.stored.insert(offset, value);
    }

    fn word(&self, offset: u64) -> u64 {
        self.stored
            .get(&offset)
            .copied()
            .unwrap_or_else(|| self.region.load(offset))
    }

    fn stored(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        let set = (0..count as u64).any(|index| self.stored.contains_key(&(offset + index * 8)));
        (!set).then(|| self.region.words(offset, count))
    }

    fn fresh_block(&mut self) -> Result<BlockNo, MapError> {
        let block = self.alloc_block()?;
        self.region
            .stream(u64::from(block) * BLOCK_BYTES, &[0; BLOCK_BYTES as usize]);
        Ok(block)
    }

    fn claim_block(&mut self, block: BlockNo) -> bool {
        let index = block
            .get()
            .checked_sub(self.first_block.get())
            .map(u64::from)
            .filter(|&index| index < self.blocks.len());
        let claimed = index.is_some_and(|index| self.blocks.claim(index));
        if claimed {
            self.claimed.push(Resource::Block(block));
        }
        claimed
    }

    fn alloc_block(&mut self) -> Result<BlockNo, MapError> {
        let index = self.blocks.claim_from(0).ok_or(MapError::NoBlock)?;
        let block = self.first_block.plus(index as u32);
        self.claimed.push(Resource::Block(block));
        Ok(block)
    }

    fn claimed(&mut self, resource: Resource) {
        self.claimed.push(resource);
    }

    fn freed(&mut self, resource: Resource) {
        self.freed.push(resource);
    }
}
