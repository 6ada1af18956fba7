//! Extended attributes: all of an inode's in one block, written anew with every change.
//!
//! ```text
//! block   signature u32 | checksum u32 of the rest, with the inode's number | count u32 | 0 u32
//! then    name length u16 | value length u16 | name | value     …one behind the other
//! ```
//!
//! Crash argument: the new block is claimed and filled before the record that swings the inode's pointer to it; the
//! old block is freed by that record.

use ferrite_map::{MapTx, Resource};
use ferrite_pm::Region;
use ferrite_vfs::{FsError, Ino, Result, SpaceOf, XATTR_NAME_MAX, XATTR_SIZE_MAX, XattrMode};

use super::gone;
use crate::alloc::Class;
use crate::checksum::{crc32c, crc32c_append};
use crate::core::{Core, Need, map_error};
use crate::inode::Inode;
use crate::layout::{BLOCK_BYTES, Superblock};
use crate::tx::Tx;

const SIGNATURE: u32 = u32::from_le_bytes(*b"FxAt");
const HEADER_BYTES: usize = 16;
/// Sum over all attributes of 4 + name + value: what the block holds behind its header, less 16 kept for later formats.
const SPACE_BYTES: usize = BLOCK_BYTES as usize - HEADER_BYTES - 16;

type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

fn checksum(ino: u32, block: &[u8]) -> u32 {
    crc32c_append(crc32c(&ino.to_le_bytes()), &block[8..])
}

fn encode(ino: u32, attributes: &Attributes) -> Vec<u8> {
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

fn decode(ino: u32, block: &[u8]) -> Option<Attributes> {
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

/// All attributes of an inode; under its lock.
pub(crate) fn load(core: &Core, ino: u32, inode: &Inode) -> Result<Attributes> {
    let block = inode.xattr_block();
    if block == 0 {
        return Ok(Attributes::new());
    }
    let damaged = || {
        FsError::Io(format!(
            "inode {ino}: damaged extended attributes in block {block}; run `ferrite fsck`"
        ))
    };
    if !core.superblock.is_data_block(block) {
        return Err(damaged());
    }
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    core.region.read(core.superblock.block_offset(block), &mut bytes);
    decode(ino, &bytes).ok_or_else(damaged)
}

/// Whether `block` holds sound attributes of `ino`. For fsck.
pub(crate) fn is_sound(region: &Region, superblock: &Superblock, ino: u32, block: u32) -> bool {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    region.read(superblock.block_offset(block), &mut bytes);
    decode(ino, &bytes).is_some()
}

fn read<T>(core: &Core, ino: Ino, f: impl FnOnce(Attributes) -> Result<T>) -> Result<T> {
    let inode = core.inode(ino).map_err(gone)?;
    let _lock = inode.read();
    let loaded = core.load_live(&inode)?;
    f(load(core, inode.ino, &loaded)?)
}

fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(FsError::Invalid("empty attribute name")),
        1..=XATTR_NAME_MAX => Ok(()),
        _ => Err(FsError::Range),
    }
}

/// Value of one attribute.
pub(crate) fn get(core: &Core, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
    check_name(name)?;
    read(core, ino, |attributes| {
        attributes
            .into_iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value)
            .ok_or(FsError::NoAttribute)
    })
}

/// Names of all attributes.
pub(crate) fn list(core: &Core, ino: Ino) -> Result<Vec<Vec<u8>>> {
    read(core, ino, |attributes| {
        Ok(attributes.into_iter().map(|(name, _)| name).collect())
    })
}

/// Creates or replaces an attribute.
pub(crate) fn set(core: &Core, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
    check_name(name)?;
    // It would not fit if it were the only one, so there is no space to be made for it.
    if value.len() > XATTR_SIZE_MAX || 4 + name.len() + value.len() > SPACE_BYTES {
        return Err(FsError::ValueTooLong);
    }
    change(core, ino, |attributes| {
        let at = attributes.iter().position(|(found, _)| found == name);
        match (mode, at) {
            (XattrMode::Create, Some(_)) => return Err(FsError::Exists),
            (XattrMode::Replace, None) => return Err(FsError::NoAttribute),
            (_, Some(at)) => attributes[at].1 = value.to_vec(),
            (_, None) => attributes.push((name.to_vec(), value.to_vec())),
        }
        let used: usize = attributes
            .iter()
            .map(|(name, value)| 4 + name.len() + value.len())
            .sum();
        if used > SPACE_BYTES {
            return Err(FsError::NoSpace(SpaceOf::Attributes));
        }
        Ok(())
    })
}

/// Removes an attribute.
pub(crate) fn remove(core: &Core, ino: Ino, name: &[u8]) -> Result<()> {
    check_name(name)?;
    change(core, ino, |attributes| {
        let at = attributes
            .iter()
            .position(|(found, _)| found == name)
            .ok_or(FsError::NoAttribute)?;
        attributes.remove(at);
        Ok(())
    })
}

fn change(core: &Core, ino: Ino, edit: impl Fn(&mut Attributes) -> Result<()>) -> Result<()> {
    core.check_writable()?;
    core.with_space(Need::FEW, || {
        let inode = core.inode(ino).map_err(gone)?;
        let _lock = inode.write();
        let old = core.load_live(&inode)?;
        let mut attributes = load(core, inode.ino, &old)?;
        edit(&mut attributes)?;
        let mut new = old;
        let mut tx = Tx::new(core);
        if old.xattr_block() != 0 {
            tx.set_class(Class::Replacing);
            tx.freed(Resource::Block(old.xattr_block()));
        }
        let block = if attributes.is_empty() {
            0
        } else {
            tx.alloc_block().map_err(map_error)?
        };
        if block != 0 {
            tx.stream_block(block, &encode(inode.ino, &attributes));
        }
        new.set_xattr_block(block);
        new.set_ctime(Core::now());
        tx.put_inode(inode.ino, &mut new);
        tx.commit(&[&inode])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_block_reads_back_and_a_flipped_bit_is_noticed() {
        let attributes = vec![(b"user.a".to_vec(), vec![7; 4000]), (b"user.b".to_vec(), Vec::new())];
        let mut block = encode(5, &attributes);
        assert_eq!(decode(5, &block), Some(attributes));
        assert_eq!(decode(6, &block), None, "another inode's block");
        block[3000] ^= 4;
        assert_eq!(decode(5, &block), None);
    }
}
