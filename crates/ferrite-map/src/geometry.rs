//! Place and size of a structure in a pool.

use ferrite_pm::Region;

use crate::{BlockNo, Inum, PageWord, WordLayout};

/// Place and size of a structure's own area, as the superblock has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Pool offset, divisible by the block size.
    pub area_offset: u64,
    /// Entries of the area, see [`crate::Mapping::slots_for`].
    pub slots: u64,
    /// Block number of data block 0.
    pub first_block: BlockNo,
    /// Data blocks.
    pub blocks: u32,
    /// Inodes of the pool; numbers stay below it.
    pub inodes: u32,
    /// Seed of the pool's hashes.
    pub seed: u64,
    /// No key of HashFS lies farther from its home than [`crate::hashfs::HashFs::DISTANCE_MAX`], and none may. Older
    /// pools do not guarantee that.
    pub keys_in_reach: bool,
    /// Where page words are divided.
    pub words: WordLayout,
}

impl Geometry {
    /// Index of a data block among the data blocks.
    pub fn index_of(&self, block: BlockNo) -> u64 {
        u64::from(block.get() - self.first_block.get())
    }

    /// Numbers of the inodes, for a structure whose area has a word for each; except those in parts of a sparse pool
    /// where nothing was ever stored.
    pub(crate) fn written_inums<'r>(&self, region: &'r Region) -> impl Iterator<Item = Inum> + use<'r> {
        region
            .written_entries(self.area_offset, 0..self.slots, 8)
            .map(|ino| Inum::new(ino as u32))
    }

    /// The block of a page.
    #[inline]
    pub fn page(&self, word: PageWord) -> BlockNo {
        self.words.page(word)
    }

    /// Whether `block` is a data block's number.
    pub fn is_data_block(&self, block: BlockNo) -> bool {
        block >= self.first_block && u64::from(block) < u64::from(self.first_block) + u64::from(self.blocks)
    }
}
