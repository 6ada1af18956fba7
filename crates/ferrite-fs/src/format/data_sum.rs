//! Checksums of file data (`mkfs --data-checksum`): the checksum word of a block.
//!
//! Contents: the word ([`word`]); which page a block was filled as, judging by its word ([`misplaced`]); and
//! how a page is named in damage reports ([`place`]). The code that fills a block with a page of a file, or with a
//! link's target, sets the word: [`crate::pool::tx::Tx::stream_page`] through its record, a merge in place.
//! Directories, logs and attributes have their own checksums; the words of their blocks mean nothing.
//!
//! Invariants:
//! * The word is salted with the pool's seed, the inode and the logical block, so a block that a damaged mapping leads
//!   to does not pass. That of a shared block has an identity of its own instead, which it keeps.
//! * A word is durable before the page word that leads to its block can be. A block waits for the journal's checkpoint
//!   before it is used again, so no replay brings back the word of an earlier use.

use ferrite_map::{BlockNo, Inum, Lblk, MapEntry, PageId, StoredWord};
use ferrite_pm::Region;
use ferrite_vfs::FsError;

use crate::format::checksum::crc32c;
use crate::format::layout::{BLOCK_BYTES, Superblock};
use crate::format::page_buffer::PageBuffer;

/// The identity in the words of shared blocks, which fits each page that names them. No file has this page.
const SHARED: PageId = PageId::new(Inum::NONE, Lblk::FIRST);

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

/// Whether `stored` is the word of a block that holds this page, or a shared block that does; `crc` as in [`word`].
#[inline]
pub(crate) fn fits(seed: u64, page: PageId, crc: u32, stored: u64) -> bool {
    stored == word(seed, page, crc) || stored == word(seed, SHARED, crc)
}

/// The word of a shared block with the same content. The error is the difference from what the word should be.
pub(crate) fn shared(seed: u64, page: PageId, stored: u64) -> Result<u64, u64> {
    let (own, any) = (word(seed, page, 0), word(seed, SHARED, 0));
    match (stored ^ own) >> 32 {
        0 => Ok(stored ^ own ^ any),
        _ if (stored ^ any) >> 32 == 0 => Ok(stored),
        _ => Err(stored ^ own),
    }
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
    if was(lblk) || word(superblock.seed, SHARED, 0) >> 32 == stored {
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
    let (page, crc) = (PageId::new(ino, lblk), crc32c(&data[..]));
    let mark = superblock.mark(block);
    let is_marked = mark.is_some_and(|(offset, bit)| region.load(offset) & bit != 0);
    let identity = if is_marked { SHARED } else { page };
    let (stored, right) = (region.load(offset), word(superblock.seed, identity, crc));
    (!fits(superblock.seed, page, crc, stored)).then(|| {
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

    #[test]
    fn the_word_of_a_shared_block_fits_all_its_pages_and_one_content() {
        let (page, other) = (PageId::from_raw(5, 9), PageId::from_raw(6, 2));
        let any = shared(7, page, word(7, page, 1234)).unwrap();
        assert_eq!(shared(7, other, any), Ok(any));
        for page in [page, other] {
            assert!(fits(7, page, 1234, any));
            assert!(!fits(7, page, 1235, any));
        }
        assert!(!fits(7, other, 1234, word(7, page, 1234)));
        assert!(shared(7, other, word(7, page, 1234)).is_err());
    }
}
