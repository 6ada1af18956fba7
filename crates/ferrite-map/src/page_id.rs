//! Which page of which file.

/// A page of a file: what mappings map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// Number of the inode.
    pub ino: u32,
    /// Logical block: the page's number in the file.
    pub lblk: u32,
}

impl PageId {
    /// Page `lblk` of inode `ino`.
    #[inline]
    pub const fn new(ino: u32, lblk: u32) -> Self {
        PageId { ino, lblk }
    }
}

/// A page as tables store it: the inode in the high half, so that the keys of a file are consecutive.
#[inline]
pub(crate) fn key_of(ino: u32, lblk: u32) -> u64 {
    u64::from(ino) << 32 | u64::from(lblk)
}

impl std::fmt::Display for PageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {} of inode {}", self.lblk, self.ino)
    }
}
