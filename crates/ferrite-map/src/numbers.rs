//! Types for the numbers of a file system: inodes, pages of a file, blocks of a pool, slots of tables.
//!
//! Contents: a type for each of these numbers, [`PageId`] and [`PageRange`]. On the medium they are plain integers; the
//! code that reads them gives them their type, so no other code can mistake one for another.
//!
//! The types have only arithmetic that has a meaning for all their users. A computation that mixes numbers goes through
//! [`Inum::get`] and its like, so that a reader sees it.

/// Size of a block, which a page fills.
pub const BLOCK_BYTES: u64 = 4096;

/// A distinct number type, stored in 32 bits.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The number that is stored as `raw`.
            #[inline]
            pub const fn new(raw: u32) -> Self {
                $name(raw)
            }

            /// Its stored form.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// Its place in a table that has an entry for each.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<$name> for u64 {
            #[inline]
            fn from(number: $name) -> u64 {
                u64::from(number.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// Number of an inode. 0 is never used, and means none where the medium has a number.
    Inum
}

number! {
    /// Logical block: the number of a page in its file. Ends of ranges are `u64`, because the last page may be in them.
    Lblk
}

number! {
    /// Number of a block of the pool: its offset divided by the size of a block. Block 0 is the superblock's, so it
    /// means none where the medium has a number.
    BlockNo
}

number! {
    /// Number of a slot of the mapping's table, or the structure's substitute.
    SlotNo
}

number! {
    /// Number of a slot of the name table.
    NameSlotNo
}

impl SlotNo {
    /// The slot at `place` of the table.
    #[inline]
    pub const fn at(place: u64) -> SlotNo {
        SlotNo(place as u32)
    }
}

impl NameSlotNo {
    /// The slot at `place` of the table.
    #[inline]
    pub const fn at(place: u64) -> NameSlotNo {
        NameSlotNo(place as u32)
    }
}

impl Inum {
    /// The value on the medium for "no inode".
    pub const NONE: Inum = Inum(0);
}

impl BlockNo {
    /// The value on the medium for "no block".
    pub const NONE: BlockNo = BlockNo(0);

    /// The next block of the pool.
    #[inline]
    pub const fn checked_next(self) -> Option<BlockNo> {
        match self.0.checked_add(1) {
            Some(next) => Some(BlockNo(next)),
            None => None,
        }
    }

    /// The block before this one.
    #[inline]
    pub const fn checked_previous(self) -> Option<BlockNo> {
        match self.0.checked_sub(1) {
            Some(previous) => Some(BlockNo(previous)),
            None => None,
        }
    }

    /// The block that is `blocks` blocks after this one. The caller knows that the pool has it.
    #[inline]
    pub const fn plus(self, blocks: u32) -> BlockNo {
        BlockNo(self.0 + blocks)
    }

    /// The block that has the byte at `offset` of the pool.
    #[inline]
    pub const fn of_offset(offset: u64) -> BlockNo {
        BlockNo((offset / BLOCK_BYTES) as u32)
    }
}

impl Lblk {
    /// The first page of a file.
    pub const FIRST: Lblk = Lblk(0);
    /// The last page of the largest file.
    pub const LAST: Lblk = Lblk(u32::MAX);

    /// The page at `place` in a range of pages, which is not the end of all pages.
    #[inline]
    pub const fn at(place: u64) -> Lblk {
        Lblk(place as u32)
    }

    /// The next page of the file.
    #[inline]
    pub const fn checked_next(self) -> Option<Lblk> {
        match self.0.checked_add(1) {
            Some(next) => Some(Lblk(next)),
            None => None,
        }
    }

    /// The page before this one.
    #[inline]
    pub const fn checked_previous(self) -> Option<Lblk> {
        match self.0.checked_sub(1) {
            Some(previous) => Some(Lblk(previous)),
            None => None,
        }
    }

    /// The page that is `pages` pages after this one. The caller knows that a file can have it.
    #[inline]
    pub const fn plus(self, pages: u32) -> Lblk {
        Lblk(self.0 + pages)
    }

    /// This page and all after it.
    #[inline]
    pub fn onwards(self) -> impl Iterator<Item = Lblk> {
        (self.0..=u32::MAX).map(Lblk)
    }
}

/// A page of a file, as mappings map it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// Number of the inode.
    pub ino: Inum,
    /// Logical block: the page's number in the file.
    pub lblk: Lblk,
}

impl PageId {
    /// Page `lblk` of inode `ino`.
    #[inline]
    pub const fn new(ino: Inum, lblk: Lblk) -> Self {
        PageId { ino, lblk }
    }

    /// The page with these numbers, where both are still plain integers: in tests and experiments.
    #[inline]
    pub const fn from_raw(ino: u32, lblk: u32) -> Self {
        PageId::new(Inum(ino), Lblk(lblk))
    }

    /// As tables store it: the inode in the high half, so that the keys of a file are consecutive.
    #[inline]
    pub(crate) fn key(self) -> u64 {
        u64::from(self.ino) << 32 | u64::from(self.lblk)
    }

    /// The page that is stored as `key`.
    #[inline]
    pub(crate) fn of_key(key: u64) -> PageId {
        PageId::from_raw((key >> 32) as u32, key as u32)
    }
}

/// The pages `first..end` of a file. Plain integers, because the end may lie after the last page of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first page.
    pub first: u64,
    /// One past the last page.
    pub end: u64,
}

impl PageRange {
    /// All pages that a file can have.
    pub const ALL: PageRange = PageRange::new(0, 1 << 32);

    /// The pages from `first` to before `end`.
    #[inline]
    pub const fn new(first: u64, end: u64) -> Self {
        PageRange { first, end }
    }

    /// Whether page `lblk` is one of them.
    #[inline]
    pub const fn contains(self, lblk: u64) -> bool {
        self.first <= lblk && lblk < self.end
    }

    /// Whether it has no pages.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.first >= self.end
    }

    /// Number of pages.
    #[inline]
    pub const fn pages(self) -> u64 {
        self.end.saturating_sub(self.first)
    }
}

impl std::fmt::Display for PageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {} of inode {}", self.lblk, self.ino)
    }
}
