//! Directory blocks as stored on the medium: a header, then consecutive entries.
//!
//! Contents: encoding and reading of blocks and entries. [`crate::tree::dir`] decides where entries go.
//!
//! ```text
//! block   word 0  directory's inode | logical block << 32        word 1  signature | checksum of word 0 << 32
//! entry   word 0  inode | length << 32 | name length << 48 | kind << 56      inode 0: free, only this word counts
//!         word 1  directory's inode | checksum << 32 (inode, kind, directory, name)
//!         then the name, zero-padded to 8 bytes
//! ```
//!
//! Invariant: the lengths of a block's entries add up to the block, so it can be parsed from its start at any time.

use std::sync::atomic::Ordering;

use ferrite_map::{Inum, Lblk, PageId};
use ferrite_pm::Region;
use ferrite_vfs::{FileKind, FsError, NAME_MAX, Result};

use crate::format::checksum::{crc32c, crc32c_append};
use crate::format::inode::CRC_SPREAD;
use crate::format::layout::BLOCK_BYTES;

/// Where the first entry of a block starts.
pub(crate) const FIRST_ENTRY: u64 = 16;
const SIGNATURE: u32 = u32::from_le_bytes(*b"FdIr");
/// Longest entry.
const ENTRY_MAX: usize = 16 + NAME_MAX.next_multiple_of(8);

/// Space that an entry with this name needs.
pub(crate) fn entry_bytes(name: &[u8]) -> u64 {
    16 + name.len().next_multiple_of(8) as u64
}

/// The code of a kind in an entry.
fn kind_code(kind: FileKind) -> u64 {
    u64::from(kind.mode_bits() >> 12)
}

fn kind_from_code(code: u64) -> Option<FileKind> {
    FileKind::from_mode((code as u32) << 12)
}

fn checksum(ino: Inum, kind: u64, parent: Inum, name: &[u8]) -> u32 {
    let start = ino.get().wrapping_mul(CRC_SPREAD) ^ parent.get().rotate_left(16) ^ (kind as u32) << 8;
    crc32c_append(start, name)
}

/// The header words of a block.
pub(crate) fn block_header(dir: Inum, lblk: Lblk) -> [u64; 2] {
    let first = u64::from(dir) | u64::from(lblk) << 32;
    [
        first,
        u64::from(SIGNATURE) | u64::from(crc32c(&first.to_le_bytes())) << 32,
    ]
}

/// Directory and logical block of the block at `offset`.
pub(crate) fn read_block_header(region: &Region, offset: u64) -> Result<PageId> {
    let first = region.load(offset);
    let page = PageId::from_raw(first as u32, (first >> 32) as u32);
    if region.load(offset + 8) != block_header(page.ino, page.lblk)[1] {
        let what = format!("directory block at offset {offset}: damaged header");
        return Err(FsError::damaged(None, what));
    }
    Ok(page)
}

/// Directory of the block at `offset`, whose header was already found sound.
pub(crate) fn header_dir(region: &Region, offset: u64) -> Inum {
    Inum::new(region.load(offset) as u32)
}

/// The word of a free entry.
pub(crate) fn free_word(len_bytes: u64) -> u64 {
    len_bytes << 32
}

/// Calls `set` for each word of an entry that takes `len_bytes` in total.
pub(crate) fn encode(
    dir: Inum,
    ino: Inum,
    kind: FileKind,
    name: &[u8],
    len_bytes: u64,
    mut set: impl FnMut(u64 /* offset in the entry */, u64),
) {
    let kind = kind_code(kind);
    set(
        0,
        u64::from(ino) | len_bytes << 32 | (name.len() as u64) << 48 | kind << 56,
    );
    set(8, u64::from(dir) | u64::from(checksum(ino, kind, dir, name)) << 32);
    for (index, chunk) in name.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        set(16 + index as u64 * 8, u64::from_le_bytes(word));
    }
}

/// Word 0 of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    /// Inode; 0 for free space.
    pub(crate) ino: Inum,
    /// Length of the entry.
    pub(crate) len_bytes: u64,
    name_len: usize,
    kind: u64,
}

impl Head {
    fn parse(word: u64) -> Head {
        Head {
            ino: Inum::new(word as u32),
            len_bytes: word >> 32 & 0xffff,
            name_len: (word >> 48 & 0xff) as usize,
            kind: word >> 56,
        }
    }
}

/// Reads the head of the entry at `offset` and checks that the entry stays in its block. One in use takes what its name
/// needs: a longer one would cover another.
pub(crate) fn head(region: &Region, offset: u64) -> Result<Head> {
    let head = Head::parse(region.load(offset));
    let space = BLOCK_BYTES - offset % BLOCK_BYTES;
    let is_possible = match head.ino.get() {
        0 => head.len_bytes >= 8 && head.len_bytes.is_multiple_of(8),
        _ => head.len_bytes == 16 + head.name_len.next_multiple_of(8) as u64,
    };
    if !is_possible || head.len_bytes > space {
        let len_bytes = head.len_bytes;
        let what = format!("directory entry at offset {offset}: impossible length {len_bytes}");
        return Err(FsError::damaged(None, what));
    }
    Ok(head)
}

/// A whole entry.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Inode.
    pub(crate) ino: Inum,
    /// Kind.
    pub(crate) kind: FileKind,
    bytes: [u8; ENTRY_MAX],
    name_len: usize,
}

impl Entry {
    /// Its name.
    pub(crate) fn name(&self) -> &[u8] {
        &self.bytes[16..16 + self.name_len]
    }

    /// Whether what follows the name up to the next word is zero, as [`read_if`] assumes. The checksum does not
    /// cover it.
    pub(crate) fn is_padded(&self) -> bool {
        let end = 16 + self.name_len.next_multiple_of(8);
        self.bytes[16 + self.name_len..end].iter().all(|&byte| byte == 0)
    }
}

/// Reads and checks the used entry at `offset` of directory `dir`.
pub(crate) fn read(region: &Region, offset: u64, dir: Inum) -> Result<Entry> {
    let damaged = |what: &str| FsError::damaged(None, format!("directory entry at offset {offset}: {what}"));
    let head = head(region, offset)?;
    if head.ino == Inum::NONE {
        return Err(damaged("free, but a name points to it"));
    }
    let mut bytes = [0; ENTRY_MAX];
    region.read(offset, &mut bytes[..16 + head.name_len.next_multiple_of(8)]);
    let word = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if word as u32 != dir.get() {
        return Err(damaged("belongs to another directory"));
    }
    let name = &bytes[16..16 + head.name_len];
    if (word >> 32) as u32 != checksum(head.ino, head.kind, dir, name) {
        return Err(damaged("wrong checksum"));
    }
    let kind = kind_from_code(head.kind).ok_or_else(|| damaged("unknown kind"))?;
    Ok(Entry {
        ino: head.ino,
        kind,
        bytes,
        name_len: head.name_len,
    })
}

/// Inode and kind of the entry at `offset`, if it is `name` in directory `dir`. A mismatch is not an error, since tags
/// of the name table may collide; a match with a wrong checksum is.
pub(crate) fn read_if(region: &Region, offset: u64, dir: Inum, name: &[u8]) -> Result<Option<(Inum, FileKind)>> {
    let head = Head::parse(region.load(offset));
    let space = BLOCK_BYTES - offset % BLOCK_BYTES;
    if head.ino == Inum::NONE || head.name_len != name.len() || space < entry_bytes(name) {
        return Ok(None);
    }
    let second = region.load(offset + 8);
    if second as u32 != dir.get() {
        return Ok(None);
    }
    for (chunk, stored) in name.chunks(8).zip(region.words(offset + 16, name.len().div_ceil(8))) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        if u64::from_le_bytes(word) != stored.load(Ordering::Acquire) {
            return Ok(None);
        }
    }
    if (second >> 32) as u32 != checksum(head.ino, head.kind, dir, name) {
        let what = format!("directory entry at offset {offset}: wrong checksum");
        return Err(FsError::damaged(None, what));
    }
    let kind = kind_from_code(head.kind)
        .ok_or_else(|| FsError::damaged(None, format!("directory entry at offset {offset}: unknown kind")))?;
    Ok(Some((head.ino, kind)))
}
