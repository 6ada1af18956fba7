//! The block of an inode's extended attributes.
//!
//! ```text
//! block   signature u32 | checksum u32 of the rest, with the inode's number | count u32 | 0 u32
//! then    name length u16 | value length u16 | name | value     … one after another
//! ```

use ferrite_map::{BlockNo, Inum};
use ferrite_pm::Region;

use crate::format::checksum::{crc32c, crc32c_append};
use crate::format::layout::{BLOCK_BYTES, Superblock};

const SIGNATURE: u32 = u32::from_le_bytes(*b"FxAt");
const HEADER_BYTES: usize = 16;
/// Sum over all attributes of 4 + name + value: the space after the block's header, less 16 bytes kept for later
/// formats.
pub(crate) const SPACE_BYTES: usize = BLOCK_BYTES as usize - HEADER_BYTES - 16;

pub(crate) type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

fn checksum(ino: Inum, block: &[u8]) -> u32 {
    crc32c_append(crc32c(&ino.get().to_le_bytes()), &block[8..])
}

pub(crate) fn encode(ino: Inum, attributes: &Attributes) -> Vec<u8> {
    let mut block = vec![0; HEADER_BYTES];
    block[8..12].copy_from_slice(&(attributes.len() as u32).to_le_bytes());
    for (name, value) in attributes {
        block.extend_from_slice(&(name.len() as u16).to_le_bytes());
        block.extend_from_slice(&(value.len() as u16).to_le_bytes());
        block.extend_from_slice(name);
        block.extend_from_slice(value);
    }
    block.resize(BLOCK_BYTES as usize, 0);
    block[..4].copy_from_slice(&SIGNATURE.to_le_bytes());
    let crc = checksum(ino, &block);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    block
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

pub(crate) fn decode(ino: Inum, block: &[u8]) -> Option<Attributes> {
    let half = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    if half(0) != SIGNATURE || half(4) != checksum(ino, block) {
        return None;
    }
    let mut rest = &block[HEADER_BYTES..];
    let mut attributes = Attributes::new();
    for _ in 0..half(8) {
        let lengths = take(&mut rest, 4)?;
        let name_len = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
        let value_len = usize::from(u16::from_le_bytes([lengths[2], lengths[3]]));
        let name = take(&mut rest, name_len)?.to_vec();
        attributes.push((name, take(&mut rest, value_len)?.to_vec()));
    }
    Some(attributes)
}

/// Whether `block` holds sound attributes of `ino`. For fsck.
pub(crate) fn is_sound(region: &Region, superblock: &Superblock, ino: Inum, block: BlockNo) -> bool {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    region.read(superblock.block_offset(block), &mut bytes);
    decode(ino, &bytes).is_some()
}
