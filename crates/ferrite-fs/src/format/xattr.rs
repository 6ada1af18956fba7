//! The blocks of an inode's extended attributes: one block, or one that lists others.
//!
//! ```text
//! one     signature "FxAt" u32 | checksum u32 of the rest, with the inode's number | count u32 | 0 u32
//! then    name length u16 | value length u16 | name | value     … one after another
//!
//! list    signature "FxAl" u32 | checksum u32 of the rest, with the inode's number | count u32 | length of all u32
//!         checksum u32 of all, with the inode's number | 0 u32 | numbers of the blocks that hold them u32 …
//! there   name length u16 | value length u32 | name | value     … one after another, cut into blocks
//! ```
//!
//! A change rewrites all of them in new blocks.

use ferrite_map::{BlockNo, Inum};
use ferrite_pm::Region;

use crate::format::checksum::{crc32c, crc32c_append};
use crate::format::layout::{BLOCK_BYTES, Superblock};

const BLOCK: usize = BLOCK_BYTES as usize;
const SIGNATURE: u32 = u32::from_le_bytes(*b"FxAt");
const LIST_SIGNATURE: u32 = u32::from_le_bytes(*b"FxAl");
const HEADER_BYTES: usize = 16;
const LIST_HEADER_BYTES: usize = 24;
/// Sum over all attributes of 4 + name + value that one block holds: the space after its header, less 16 bytes kept for
/// later formats.
const ONE_BLOCK_BYTES: usize = BLOCK - HEADER_BYTES - 16;
/// Most blocks in a list.
const LIST_MAX: usize = (BLOCK - LIST_HEADER_BYTES) / 4;

pub(crate) type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

fn checksum(ino: Inum, bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&ino.get().to_le_bytes()), bytes)
}

/// The content of attributes that do not fit one block, in whole blocks; empty if they fit.
pub(crate) fn parts(attributes: &Attributes) -> Vec<u8> {
    let bytes = attributes.iter().map(|(name, value)| 4 + name.len() + value.len());
    if bytes.sum::<usize>() <= ONE_BLOCK_BYTES {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (name, value) in attributes {
        all.extend_from_slice(&(name.len() as u16).to_le_bytes());
        all.extend_from_slice(&(value.len() as u32).to_le_bytes());
        all.extend_from_slice(name);
        all.extend_from_slice(value);
    }
    all.resize(all.len().next_multiple_of(BLOCK), 0);
    all
}

/// The block to which the inode points: with all attributes if they fit, else with the list of the blocks that hold
/// `parts`.
pub(crate) fn encode(ino: Inum, attributes: &Attributes, parts: &[u8], blocks: &[BlockNo]) -> Vec<u8> {
    let count = attributes.len() as u32;
    let mut block = Vec::with_capacity(BLOCK);
    if blocks.is_empty() {
        block.extend_from_slice(&SIGNATURE.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(&count.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        for (name, value) in attributes {
            block.extend_from_slice(&(name.len() as u16).to_le_bytes());
            block.extend_from_slice(&(value.len() as u16).to_le_bytes());
            block.extend_from_slice(name);
            block.extend_from_slice(value);
        }
    } else {
        let words = [LIST_SIGNATURE, 0, count, parts.len() as u32, checksum(ino, parts), 0];
        for word in words.into_iter().chain(blocks.iter().map(|block| block.get())) {
            block.extend_from_slice(&word.to_le_bytes());
        }
    }
    block.resize(BLOCK, 0);
    let crc = checksum(ino, &block[8..]);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    block
}

fn half(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}

fn is_whole(ino: Inum, block: &[u8]) -> bool {
    half(block, 4) == checksum(ino, &block[8..])
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

/// Attributes one after another; lengths of values have `length_bytes` bytes.
fn decode(mut rest: &[u8], count: u32, length_bytes: usize) -> Option<Attributes> {
    let mut attributes = Attributes::new();
    for _ in 0..count {
        let mut length = |bytes: usize| {
            let taken = take(&mut rest, bytes)?;
            Some(taken.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
        };
        let (name_len, value_len) = (length(2)?, length(length_bytes)?);
        let name = take(&mut rest, name_len)?.to_vec();
        attributes.push((name, take(&mut rest, value_len)?.to_vec()));
    }
    Some(attributes)
}

/// The blocks that the list in `block` names, which are data blocks; `None` if it is damaged, and none if it is no
/// list.
fn listed(superblock: &Superblock, ino: Inum, block: &[u8]) -> Option<Vec<BlockNo>> {
    if half(block, 0) != LIST_SIGNATURE {
        return Some(Vec::new());
    }
    let count = half(block, 12) as usize / BLOCK;
    if !is_whole(ino, block) || count == 0 || count > LIST_MAX {
        return None;
    }
    let numbers = (0..count).map(|index| BlockNo::new(half(block, LIST_HEADER_BYTES + index * 4)));
    let blocks: Vec<BlockNo> = numbers.collect();
    blocks
        .iter()
        .all(|&block| superblock.is_data_block(block))
        .then_some(blocks)
}

fn load(region: &Region, superblock: &Superblock, block: BlockNo) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    region.read(superblock.block_offset(block), &mut bytes);
    bytes
}

/// The further blocks of the attributes of `ino` in `block`, a data block; none if the list of them is damaged.
pub(crate) fn further_blocks(region: &Region, superblock: &Superblock, ino: Inum, block: BlockNo) -> Vec<BlockNo> {
    // Most attributes have no further blocks, and one line shows it.
    match region.load(superblock.block_offset(block)) as u32 == LIST_SIGNATURE {
        true => listed(superblock, ino, &load(region, superblock, block)).unwrap_or_default(),
        false => Vec::new(),
    }
}

/// The attributes of `ino` in `block`, a data block; `None` if they are damaged.
pub(crate) fn read(region: &Region, superblock: &Superblock, ino: Inum, block: BlockNo) -> Option<Attributes> {
    let head = load(region, superblock, block);
    let blocks = listed(superblock, ino, &head)?;
    if blocks.is_empty() {
        let is_one = half(&head, 0) == SIGNATURE && is_whole(ino, &head);
        return is_one
            .then(|| decode(&head[HEADER_BYTES..], half(&head, 8), 2))
            .flatten();
    }
    let parts: Vec<u8> = blocks
        .into_iter()
        .flat_map(|block| load(region, superblock, block))
        .collect();
    match checksum(ino, &parts) == half(&head, 16) {
        true => decode(&parts, half(&head, 8), 4),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::MkfsOptions;

    /// Stores attributes in blocks from the first data block on, and reads them back.
    fn check(attributes: &Attributes) {
        let superblock = Superblock::plan(16 << 20, &MkfsOptions::default(), 1, 0).unwrap();
        let region = Region::anonymous(16 << 20).unwrap();
        let (ino, head) = (Inum::new(5), BlockNo::new(superblock.first_block as u32));
        let parts = parts(attributes);
        let blocks: Vec<BlockNo> = (1..=parts.len() / BLOCK)
            .map(|index| head.plus(2 * index as u32))
            .collect();
        for (&block, part) in blocks.iter().zip(parts.chunks(BLOCK)) {
            region.stream(superblock.block_offset(block), part);
        }
        region.stream(superblock.block_offset(head), &encode(ino, attributes, &parts, &blocks));
        assert_eq!(read(&region, &superblock, ino, head).as_ref(), Some(attributes));
        assert_eq!(further_blocks(&region, &superblock, ino, head), blocks);
        assert_eq!(read(&region, &superblock, Inum::new(6), head), None, "another inode's");
        for block in [head].iter().chain(&blocks) {
            let at = superblock.block_offset(*block) + 3000;
            region.store(at, region.load(at) ^ 4);
            assert_eq!(read(&region, &superblock, ino, head), None, "a flipped bit in {block}");
            region.store(at, region.load(at) ^ 4);
        }
    }

    #[test]
    fn attributes_of_any_size_read_back_and_a_flipped_bit_is_noticed() {
        let named = |name: &[u8], len: usize| (name.to_vec(), vec![7; len]);
        check(&vec![named(b"user.a", 4000), named(b"user.b", 0)]);
        check(&vec![named(b"user.a", 4000), named(b"user.b", 100)]);
        check(&vec![named(b"user.a", 65_536), named(b"user.b", 1)]);
        check(
            &(0..15)
                .map(|number| named(format!("user.{number}").as_bytes(), 65_536))
                .collect(),
        );
    }
}
