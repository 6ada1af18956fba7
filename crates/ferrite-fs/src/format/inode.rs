//! An inode as stored on the medium: 32 words with a checksum; see `docs/format.md`.
//!
//! Contents: [`Inode`], a copy of one inode in DRAM with typed access to its fields. An operation loads it,
//! changes it, and passes it to [`crate::pool::tx::Tx::put_inode`], which records the words that differ.
//!
//! Invariant: words 0 to 7 share a cache line and hold everything that a read or write of data needs.

use ferrite_map::{BlockNo, Inum};
use ferrite_pm::Region;
use ferrite_vfs::{Attr, FileKind, InodeFlags, LINK_MAX, QuotaLimits, Timestamp};
use zerocopy::IntoBytes;

use crate::format::checksum::crc32c_append;
use crate::format::layout::lblks;
use crate::format::layout::{BLOCK_BYTES, INODE_BYTES, MAX_FILE_BYTES, Superblock};

/// Words of an inode.
pub(crate) const INODE_WORDS: usize = (INODE_BYTES / 8) as usize;
/// Bytes of content or link target that fit in the inode itself.
pub(crate) const INLINE_BYTES: usize = 128;

/// Word numbers.
pub(crate) const W_BLOCKS_CRC: usize = 0;
const W_CTIME: usize = 1;
const W_MTIME: usize = 2;
pub(crate) const W_SIZE: usize = 3;
const W_ATIME: usize = 4;
const W_MODE_NLINK: usize = 5;
const W_OWNER: usize = 6;
const W_RDEV_FLAGS: usize = 7;
const W_GENERATION_PARENT: usize = 8;
const W_BTIME: usize = 9;
const W_XATTR_ENTRIES: usize = 10;
const W_TRUNCATE_FIRST: usize = 11;
const W_TRUNCATE_END: usize = 12;
const W_QUOTA: usize = 13;
const W_QUOTA_BYTES: usize = 14;
const W_QUOTA_INODES: usize = 15;
/// First inline word.
pub(crate) const W_INLINE: usize = 16;

/// The root directory.
pub(crate) const ROOT: Inum = Inum::new(ferrite_vfs::ROOT_INO as u32);

/// Spreads inode numbers over the start values of checksums. Odd, so that no two numbers collide.
pub(crate) const CRC_SPREAD: u32 = 0x9e37_79b1;

/// The content, or the link target, is stored in the inode.
const FLAG_INLINE: u32 = 1;
/// Others may change the content in place, see `file::bound`.
const FLAG_BOUND: u32 = 2;
/// A directory without a name that has entries all the same: mount removes it with everything below.
const FLAG_ORPHAN_TREE: u32 = 4;
/// A part of a snapshot, which does not change until the snapshot is removed as a whole.
const FLAG_READ_ONLY: u32 = 8;
/// A directory whose entries are snapshots of its parent: making one takes it, and removing it removes all of it.
const FLAG_SNAPSHOTS: u32 = 16;
/// A file that was created without a name, and may still get one.
const FLAG_NAMELESS: u32 = 32;
/// From this bit on, the flags that callers have set ([`InodeFlags::to_stored`]).
const CALLERS_SHIFT: u32 = 6;
const CALLERS_MASK: u32 = 0xf << CALLERS_SHIFT;

/// A quota: the number and the generation of the directory that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct QuotaId(u64);

impl QuotaId {
    pub(crate) const NONE: QuotaId = QuotaId(0);

    /// The directory.
    pub(crate) fn ino(self) -> Inum {
        Inum::new(self.0 as u32)
    }
}

/// A copy of an inode. All-zero mode means free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inode {
    /// Its words, in native byte order.
    pub(crate) words: [u64; INODE_WORDS],
}

macro_rules! halves {
    ($($low:ident, $set_low:ident, $high:ident, $set_high:ident: $word:expr;)*) => {$(
        pub(crate) fn $low(&self) -> u32 {
            self.words[$word] as u32
        }
        pub(crate) fn $high(&self) -> u32 {
            (self.words[$word] >> 32) as u32
        }
        #[allow(dead_code, reason = "one of the pair may have no setter use")]
        pub(crate) fn $set_low(&mut self, value: u32) {
            self.words[$word] = self.words[$word] >> 32 << 32 | u64::from(value);
        }
        #[allow(dead_code, reason = "one of the pair may have no setter use")]
        pub(crate) fn $set_high(&mut self, value: u32) {
            self.words[$word] = self.words[$word] & u64::from(u32::MAX) | u64::from(value) << 32;
        }
    )*};
}

macro_rules! whole {
    ($($get:ident, $set:ident: $word:expr;)*) => {$(
        pub(crate) fn $get(&self) -> u64 {
            self.words[$word]
        }
        pub(crate) fn $set(&mut self, value: u64) {
            self.words[$word] = value;
        }
    )*};
}

impl Inode {
    halves! {
        blocks, set_blocks, crc, set_crc: W_BLOCKS_CRC;
        mode_bits, set_mode_bits, nlink, set_nlink: W_MODE_NLINK;
        uid, set_uid, gid, set_gid: W_OWNER;
        rdev, set_rdev, flags, set_flags: W_RDEV_FLAGS;
        generation, set_generation, parent_word, set_parent_word: W_GENERATION_PARENT;
        xattr_word, set_xattr_word, entries, set_entries: W_XATTR_ENTRIES;
    }
    whole! {
        size, set_size: W_SIZE;
        truncate_first, set_truncate_first: W_TRUNCATE_FIRST;
        truncate_end, set_truncate_end: W_TRUNCATE_END;
    }

    /// The block that holds its attributes.
    pub(crate) fn xattr_block(&self) -> BlockNo {
        BlockNo::new(self.xattr_word())
    }

    pub(crate) fn set_xattr_block(&mut self, block: BlockNo) {
        self.set_xattr_word(block.get());
    }

    /// The directory that a directory is in.
    pub(crate) fn parent(&self) -> Inum {
        Inum::new(self.parent_word())
    }

    pub(crate) fn set_parent(&mut self, parent: Inum) {
        self.set_parent_word(parent.get());
    }

    /// Reads the inode at `offset`. A race with a writer yields a mixture: the caller validates.
    pub(crate) fn load(region: &Region, offset: u64) -> Inode {
        let mut words = [0; INODE_WORDS];
        for (word, stored) in words.iter_mut().zip(region.words(offset, INODE_WORDS)) {
            *word = stored.load(std::sync::atomic::Ordering::Acquire);
        }
        Inode { words }
    }

    /// A free inode.
    pub(crate) fn empty() -> Inode {
        Inode {
            words: [0; INODE_WORDS],
        }
    }

    /// The quota that counts it.
    pub(crate) fn quota(&self) -> QuotaId {
        QuotaId(self.words[W_QUOTA])
    }

    pub(crate) fn set_quota(&mut self, quota: QuotaId) {
        self.words[W_QUOTA] = quota.0;
    }

    /// The owner of the inode with these words.
    #[inline]
    pub(crate) fn owner(word: impl Fn(usize) -> u64) -> u32 {
        word(W_OWNER) as u32
    }

    /// Whether the inodes with these words, one after the other, concern no quota of a tree.
    #[inline]
    pub(crate) fn is_not_counted(word: impl Fn(usize) -> u64, new: &Inode) -> bool {
        word(W_QUOTA) | new.words[W_QUOTA] == 0
    }

    /// The quota of this directory, if it gets or has one.
    pub(crate) fn own_quota(&self, ino: Inum) -> QuotaId {
        QuotaId(u64::from(ino) | u64::from(self.generation()) << 32)
    }

    pub(crate) fn has_own_quota(&self, ino: Inum) -> bool {
        self.quota() != QuotaId::NONE && self.is_dir() && self.quota() == self.own_quota(ino)
    }

    /// The limits of its own quota.
    pub(crate) fn quota_limits(&self) -> QuotaLimits {
        QuotaLimits {
            bytes: self.words[W_QUOTA_BYTES],
            inodes: self.words[W_QUOTA_INODES],
        }
    }

    pub(crate) fn set_quota_limits(&mut self, limits: QuotaLimits) {
        self.words[W_QUOTA_BYTES] = limits.bytes;
        self.words[W_QUOTA_INODES] = limits.inodes;
    }

    /// A free inode on its next use: only the generation differs.
    pub(crate) fn reborn(&self) -> Inode {
        let mut inode = Inode::empty();
        inode.set_generation(self.generation().wrapping_add(1));
        inode
    }

    /// The inode of a clone of this one, on the free inode `free`: of the same kind and owner, with the same content
    /// as far as that is in the inode, and nothing else that others refer to.
    pub(crate) fn clone_onto(&self, free: &Inode, now: Timestamp) -> Inode {
        let mut inode = *self;
        inode.set_generation(free.reborn().generation());
        inode.set_flags(self.flags() & FLAG_INLINE);
        inode.set_blocks(0);
        inode.set_xattr_block(BlockNo::NONE);
        inode.set_entries(0);
        inode.set_truncate_first(0);
        inode.set_truncate_end(0);
        if self.is_dir() {
            inode.set_size(0);
        }
        inode.set_parent(Inum::NONE);
        inode.set_quota(QuotaId::NONE);
        inode.set_quota_limits(QuotaLimits::default());
        inode.set_ctime(now);
        inode.set_btime(now);
        inode
    }

    /// Checksum of everything but itself, bound to the inode's number. Of the inline area, it covers only the content.
    pub(crate) fn checksum(&self, ino: Inum) -> u32 {
        let content = if self.is_inline() {
            self.size().min(INLINE_BYTES as u64).div_ceil(8) as usize
        } else {
            0
        };
        // One call instead of two; differences in the start value are detected as well as differences in the bytes.
        let start = ino.get().wrapping_mul(CRC_SPREAD) ^ self.blocks();
        crc32c_append(start, self.words[1..W_INLINE + content].as_bytes())
    }

    /// Whether the stored checksum is right. An inode that was never used is all zero and needs none.
    pub(crate) fn is_sound(&self, ino: Inum) -> bool {
        self.crc() == self.checksum(ino) || self.words == [0; INODE_WORDS]
    }

    /// Whether size and counts are possible for a file in this pool, so that operations can do arithmetic on them.
    /// Files that share blocks may have any number of pages. A free inode keeps its old content.
    pub(crate) fn is_plausible(&self, superblock: &Superblock) -> bool {
        !self.in_use()
            || (self.size() <= MAX_FILE_BYTES
                && (!self.is_inline() || self.size() <= INLINE_BYTES as u64)
                && (u64::from(self.blocks()) <= superblock.blocks || superblock.has_shared_blocks())
                && self.nlink() <= LINK_MAX
                && u64::from(self.entries()) <= superblock.name_slots)
    }

    /// First logical block from which on it has only reserved pages: at its size, or at the end of the range that an
    /// intent still has to unmap, whichever comes later.
    pub(crate) fn written_end(&self) -> u64 {
        lblks(self.size()).max(self.truncate_end())
    }

    /// Whether it belongs to a file.
    pub(crate) fn in_use(&self) -> bool {
        self.mode_bits() != 0
    }

    /// Its kind; `None` for a free or damaged inode.
    pub(crate) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode_bits())
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    pub(crate) fn is_file(&self) -> bool {
        self.kind() == Some(FileKind::File)
    }

    /// Permission bits.
    pub(crate) fn permissions(&self) -> u32 {
        self.mode_bits() & 0o7777
    }

    /// Replaces the permission bits.
    pub(crate) fn set_permissions(&mut self, mode: u32) {
        self.set_mode_bits(self.mode_bits() & !0o7777 | mode & 0o7777);
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.flags() & FLAG_INLINE != 0
    }

    pub(crate) fn set_inline(&mut self, inline: bool) {
        self.set_flag(FLAG_INLINE, inline);
    }

    fn set_flag(&mut self, flag: u32, is_set: bool) {
        self.set_flags(if is_set {
            self.flags() | flag
        } else {
            self.flags() & !flag
        });
    }

    /// Whether others may change the content in place: it has no logs, no record carries a check of it, and its
    /// checksums identify only the page of a block.
    pub(crate) fn is_bound(&self) -> bool {
        self.flags() & FLAG_BOUND != 0
    }

    pub(crate) fn set_bound(&mut self, bound: bool) {
        self.set_flag(FLAG_BOUND, bound);
    }

    /// Whether it is a directory that is removed with everything below: one that nothing leads to yet, or any more.
    pub(crate) fn is_orphan_tree(&self) -> bool {
        self.flags() & FLAG_ORPHAN_TREE != 0
    }

    pub(crate) fn set_orphan_tree(&mut self, orphan: bool) {
        self.set_flag(FLAG_ORPHAN_TREE, orphan);
    }

    /// Whether it never had a name, and may get one.
    pub(crate) fn is_nameless(&self) -> bool {
        self.flags() & FLAG_NAMELESS != 0
    }

    pub(crate) fn set_nameless(&mut self, nameless: bool) {
        self.set_flag(FLAG_NAMELESS, nameless);
    }

    /// Whether its entries are snapshots of its parent.
    pub(crate) fn is_snapshots(&self) -> bool {
        self.flags() & FLAG_SNAPSHOTS != 0
    }

    pub(crate) fn set_snapshots(&mut self) {
        self.set_flag(FLAG_SNAPSHOTS, true);
    }

    /// Whether callers may not change it: a part of a snapshot, or a directory of snapshots.
    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        self.flags() & (FLAG_READ_ONLY | FLAG_SNAPSHOTS) != 0
    }

    /// Whether the inode with these words is read-only and in use; one without names goes away.
    #[inline]
    pub(crate) fn is_kept_as_is(word: impl Fn(usize) -> u64) -> bool {
        let flags = (word(W_RDEV_FLAGS) >> 32) as u32;
        let (mode_bits, nlink) = (word(W_MODE_NLINK) as u32, word(W_MODE_NLINK) >> 32);
        flags & (FLAG_READ_ONLY | FLAG_SNAPSHOTS) != 0 && mode_bits != 0 && nlink > 0
    }

    /// Makes it an ordinary inode.
    pub(crate) fn clear_snapshot_flags(&mut self) {
        self.set_flag(FLAG_READ_ONLY | FLAG_SNAPSHOTS, false);
    }

    /// Makes it a part of a snapshot, or of an ordinary clone.
    pub(crate) fn set_read_only(&mut self, read_only: bool) {
        self.set_flag(FLAG_READ_ONLY, read_only);
    }

    /// The flags that callers have set.
    #[inline]
    pub(crate) fn callers_flags(&self) -> InodeFlags {
        let stored = (self.flags() & CALLERS_MASK) >> CALLERS_SHIFT;
        InodeFlags::from_stored(stored as u8).unwrap_or_default()
    }

    pub(crate) fn set_callers_flags(&mut self, flags: InodeFlags) {
        self.set_flags(self.flags() & !CALLERS_MASK | u32::from(flags.to_stored()) << CALLERS_SHIFT);
    }

    /// The inline area.
    pub(crate) fn inline_bytes(&self) -> [u8; INLINE_BYTES] {
        let mut bytes = [0; INLINE_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&self.words[W_INLINE..]) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Replaces part of the inline area.
    pub(crate) fn write_inline(&mut self, offset: usize, data: &[u8]) {
        let mut bytes = self.inline_bytes();
        bytes[offset..offset + data.len()].copy_from_slice(data);
        for (word, chunk) in self.words[W_INLINE..].iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        }
    }

    /// Zeroes the inline area from `offset` on.
    pub(crate) fn clear_inline(&mut self, offset: usize) {
        self.write_inline(offset, &[0; INLINE_BYTES][offset..]);
    }

    pub(crate) fn atime(&self) -> Timestamp {
        Timestamp(self.words[W_ATIME] as i64)
    }

    pub(crate) fn mtime(&self) -> Timestamp {
        Timestamp(self.words[W_MTIME] as i64)
    }

    pub(crate) fn ctime(&self) -> Timestamp {
        Timestamp(self.words[W_CTIME] as i64)
    }

    pub(crate) fn set_atime(&mut self, time: Timestamp) {
        self.words[W_ATIME] = time.0 as u64;
    }

    pub(crate) fn set_mtime(&mut self, time: Timestamp) {
        self.words[W_MTIME] = time.0 as u64;
    }

    pub(crate) fn set_ctime(&mut self, time: Timestamp) {
        self.words[W_CTIME] = time.0 as u64;
    }

    pub(crate) fn set_btime(&mut self, time: Timestamp) {
        self.words[W_BTIME] = time.0 as u64;
    }

    /// As `stat` shows it, last changed by record `change`; `None` for a free or damaged inode.
    #[inline]
    pub(crate) fn attr(&self, ino: Inum, change: u64) -> Option<Attr> {
        let blocks = u64::from(self.blocks()) + u64::from(self.xattr_block() != BlockNo::NONE);
        Some(Attr {
            ino: u64::from(ino),
            generation: self.generation(),
            change,
            kind: self.kind()?,
            mode: self.permissions(),
            nlink: self.nlink(),
            uid: self.uid(),
            gid: self.gid(),
            rdev: self.rdev(),
            size: self.size(),
            blocks: blocks * (BLOCK_BYTES / 512),
            atime: self.atime(),
            mtime: self.mtime(),
            ctime: self.ctime(),
            btime: Timestamp(self.words[W_BTIME] as i64),
        })
    }
}
