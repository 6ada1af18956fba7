//! Checksums of file data (`mkfs --data-checksum`): the checksum word of a block.
//!
//! Contents: the word ([`word`]); which page a block was filled as, judging by its word ([`misplaced`]); and
//! how a page is named in damage reports ([`place`]). The code that fills a block with a page of a file, or with a
//! link's target, sets the word: [`crate::pool::tx::Tx::stream_page`] through its record, a merge in place.
//! Directories, logs and attributes have their own checksums; the words of their blocks mean nothing.
//!
//! Invariants:
//! * The word is salted with the pool's seed, the inode and the logical block, so a block that a damaged mapping leads
//!   to does not pass.
//! * A word is durable before the page word that leads to its block can be. A block waits for the journal's checkpoint
//!   before it is used again, so no replay brings back the word of an earlier use.

use ferrite_map::{BlockNo, Lblk, MapEntry, PageId, StoredWord};
use ferrite_pm::Region;
use ferrite_vfs::FsError;

use crate::format::checksum::crc32c;
use crate::format::layout::{BLOCK_BYTES, Superblock};
use crate::format::page_buffer::PageBuffer;

/// Set in every word, so that a zeroed table validates nothing.
const MARKED: u64 = 1 << 32;

/// The word of a block that holds page (ino, lblk); `crc` is the crc32c of the whole block. The low half is the salted
/// checksum; the high half identifies the page.
pub(crate) fn word(seed: u64, PageId { ino, lblk }: PageId, crc: u32) -> u64 {
    let mut mixed = seed ^ (u64::from(ino) << 32 | u64::from(lblk));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed | MARKED) ^ u64::from(crc)
}

/// Returns another page of the same inode if the block of `entry`, a page of a file or link, was filled as that page:
/// the mapping has it at a place that differs in one bit. The content of the block is not examined. Also `None` for
/// data without checksums, and if the word is damaged.
pub(crate) fn misplaced(region: &Region, superblock: &Superblock, entry: &MapEntry) -> Option<Lblk> {
    let &MapEntry {
        ino, lblk, word: page, ..
    } = entry;
    if page.is_unwritten() || !superblock.is_data_block(superblock.page(page)) {
        return None;
    }
    let stored = region.load(superblock.sum_word_offset(superblock.page(page))?) >> 32;
    let was = |lblk: Lblk| word(superblock.seed, PageId::new(ino, lblk), 0) >> 32 == stored;
    if was(lblk) {
        return None;
    }
    (0..u32::BITS)
        .map(|bit| Lblk::new(lblk.get() ^ 1 << bit))
        .find(|&other| was(other))
}

/// The defect of the word of the block of `entry`, a page of a file or link, and the right word. `None` if it is right
/// or absent: data without checksums, reserved pages. The caller keeps writers out.
pub(crate) fn wrong_word(region: &Region, superblock: &Superblock, entry: &MapEntry) -> Option<(FsError, StoredWord)> {
    let &MapEntry {
        ino, lblk, word: page, ..
    } = entry;
    let block = superblock.page(page);
    if page.is_unwritten() || !superblock.is_data_block(block) {
        return None;
    }
    let offset = superblock.sum_word_offset(block)?;
    let mut data = PageBuffer::take();
    region.read(superblock.block_offset(block), &mut data[..]);
    let (stored, right) = (
        region.load(offset),
        word(superblock.seed, PageId::new(ino, lblk), crc32c(&data[..])),
    );
    (stored != right).then(|| {
        (
            mismatch(PageId::new(ino, lblk), block, stored ^ right),
            StoredWord::new(offset, right),
        )
    })
}

#[cold]
pub(crate) fn mismatch(page: PageId, block: BlockNo, difference: u64) -> FsError {
    let what = match difference >> 32 {
        0 => "has the wrong checksum",
        _ => "holds another page's data, or its checksum is damaged",
    };
    damaged(page, format!("block {block} {what}"))
}

/// A page mapped to a block number that cannot be a data block.
#[cold]
pub(crate) fn no_data(page: PageId, block: BlockNo) -> FsError {
    let what = format!("mapped to block {block}, which holds no data; run `ferrite fsck`");
    damaged(page, what)
}

/// Something wrong with a page of a file.
#[cold]
pub(crate) fn damaged(PageId { ino, lblk }: PageId, what: impl Into<String>) -> FsError {
    FsError::damaged_bytes(u64::from(ino), u64::from(lblk) * BLOCK_BYTES, BLOCK_BYTES, what)
}

/// A page as users look for it: by inode and offset.
pub(crate) fn place(PageId { ino, lblk }: PageId) -> String {
    let start = u64::from(lblk) * BLOCK_BYTES;
    format!("inode {ino}, bytes {start} to {}", start + BLOCK_BYTES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_pools_one_pages_and_one_contents() {
        let own = word(7, PageId::from_raw(5, 9), 1234);
        assert_ne!(own >> 32, 0);
        for other in [
            word(8, PageId::from_raw(5, 9), 1234),
            word(7, PageId::from_raw(9, 5), 1234),
            word(7, PageId::from_raw(5, 8), 1234),
            word(7, PageId::from_raw(6, 9), 1234),
        ] {
            assert_ne!(own >> 32, other >> 32, "another page shows in the high half");
            assert_ne!(own as u32, other as u32, "and in the low half");
        }
        let changed = word(7, PageId::from_raw(5, 9), 1235);
        assert_eq!(
            own >> 32,
            changed >> 32,
            "other content does not look like another page"
        );
        assert_ne!(own, changed);
        assert_ne!(word(0, PageId::from_raw(0, 0), 0), 0, "zeros never pass");
    }
}
