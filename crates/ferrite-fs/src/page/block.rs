//! Reading the block of a page, and verifying its checksum where data carries one.
//!
//! Contents: copying from a block ([`read_block`]), and the checksum word of a block that is about to be filled
//! ([`for_block`]). [`crate::format::data_sum`] describes that word.
//!
//! Invariant: a read returns only verified bytes: it copies first, then verifies the copy.
//!
//! Readers hold no lock: a mismatch counts only if the inode's version is found unchanged, so nothing is reported from
//! here.

use ferrite_map::{BlockNo, PageId, PageWord, StoredWord};
use ferrite_pm::LINE_BYTES;
use ferrite_vfs::Result;

use crate::format::checksum::crc32c;
use crate::format::data_sum::{self, mismatch, no_data};
use crate::format::layout::BLOCK_BYTES;
use crate::format::page_buffer::PageBuffer;
use crate::pool::core::Core;

/// The checksum word of `block` if it holds `data` as `page`; `None` if data carries no checksums.
pub(crate) fn for_block(core: &Core, page: PageId, block: BlockNo, data: &[u8]) -> Option<StoredWord> {
    let offset = core.superblock.sum_word_offset(block)?;
    let value = data_sum::word(core.superblock.seed, page, crc32c(data));
    Some(StoredWord { offset, value })
}

/// Copies the bytes from `from` on of the block of a written page, without its log. If data carries checksums, the
/// whole block is verified.
#[inline]
pub(crate) fn read_block(core: &Core, page: PageId, word: PageWord, from: usize, part: &mut [u8]) -> Result<()> {
    let block = core.superblock.page(word);
    if !core.superblock.is_data_block(block) {
        return Err(no_data(page, block));
    }
    match core.superblock.sum_word_offset(block) {
        None => {
            core.region
                .read(core.superblock.block_offset(block) + from as u64, part);
            Ok(())
        }
        Some(sum_offset) => {
            core.region.prefetch(sum_offset);
            read_verified(core, page, block, from, part)
        }
    }
}

/// Starts loading all of a page: its translation is as cold as its lines, and the hardware's own prefetching begins
/// slowly. For callers that will copy the page, but must wait for something else first.
#[inline]
pub(crate) fn prefetch_all(core: &Core, word: PageWord) {
    if core.superblock.is_data_block(core.superblock.page(word)) {
        let offset = core.superblock.block_offset(core.superblock.page(word));
        (0..BLOCK_BYTES)
            .step_by(LINE_BYTES as usize)
            .for_each(|line| core.region.prefetch(offset + line));
    }
}

/// The same for a page of a bound file, whose content others may change: if data carries checksums, only the identity
/// of the block's page is verified.
pub(crate) fn read_bound(core: &Core, page: PageId, word: PageWord, from: usize, part: &mut [u8]) -> Result<()> {
    let block = core.superblock.page(word);
    if !core.superblock.is_data_block(block) {
        return Err(no_data(page, block));
    }
    check_identity(core, page, block)?;
    core.region
        .read(core.superblock.block_offset(block) + from as u64, part);
    Ok(())
}

/// Verifies that `block` was filled as `page`, if data carries checksums.
fn check_identity(core: &Core, page: PageId, block: BlockNo) -> Result<()> {
    let Some(offset) = core.superblock.sum_word_offset(block) else {
        return Ok(());
    };
    let shared = data_sum::shared(core.superblock.seed, page, core.region.load(offset));
    shared.map(drop).map_err(|difference| mismatch(page, block, difference))
}

fn read_verified(core: &Core, page: PageId, block: BlockNo, from: usize, part: &mut [u8]) -> Result<()> {
    let offset = core.superblock.block_offset(block);
    if part.len() as u64 == BLOCK_BYTES {
        core.region.read(offset, part);
        return verify(core, page, block, part);
    }
    let mut whole = PageBuffer::take();
    core.region.read(offset, &mut whole[..]);
    verify(core, page, block, &whole[..])?;
    part.copy_from_slice(&whole[from..from + part.len()]);
    Ok(())
}

/// Verifies that `data`, copied from all of `block`, was written there as `page`.
fn verify(core: &Core, page: PageId, block: BlockNo, data: &[u8]) -> Result<()> {
    let Some(offset) = core.superblock.sum_word_offset(block) else {
        return Ok(());
    };
    let (seed, crc, stored) = (core.superblock.seed, crc32c(data), core.region.load(offset));
    match data_sum::fits(seed, page, crc, stored) {
        true => Ok(()),
        false => Err(mismatch(page, block, stored ^ data_sum::word(seed, page, crc))),
    }
}
