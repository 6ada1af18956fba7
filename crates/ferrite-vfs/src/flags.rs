//! Flags of inodes, as chattr(1) sets them: the extended attribute [`FLAGS_XATTR`], and the rules that follow from
//! them.
//!
//! Invariant: engines ask these functions for every change, whoever makes it; the flags bind root as well. An engine
//! that makes a change of its own, as a repair, does not ask.

use std::fmt;

use crate::{BadArgument, Cred, FallocateMode, FileKind, FsError, Result, SetAttr};

/// The attribute: the letters of the flags, as lsattr(1) shows them. It can always be read, and is not listed.
pub const FLAGS_XATTR: &[u8] = b"ferrite.flags";

/// The flags of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InodeFlags {
    /// `i`: nothing of it changes, neither content nor attributes nor names. A directory keeps its entries.
    pub is_immutable: bool,
    /// `a`: content is only added at the end, and nothing else of it changes. A directory only gets entries.
    pub is_append_only: bool,
    /// `A`: reads leave the time of access alone.
    pub no_atime: bool,
    /// `d`: dump(8) leaves it out.
    pub no_dump: bool,
}

/// A change of names in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameChange {
    /// It gets an entry.
    Adds,
    /// It loses one, or one leads elsewhere.
    Removes,
}

impl NameChange {
    /// A directory gets an entry, and loses one if it `replaces`.
    pub fn when(replaces: bool) -> Self {
        match replaces {
            true => NameChange::Removes,
            false => NameChange::Adds,
        }
    }
}

/// Each flag: its letter, and its number in Linux (`FS_IOC_GETFLAGS`, `FS_IOC_FSGETXATTR`).
const FLAGS: [(u8, u32, u32); 4] = [
    (b'i', 0x10, 0x08),
    (b'a', 0x20, 0x10),
    (b'A', 0x80, 0x40),
    (b'd', 0x40, 0x80),
];

impl InodeFlags {
    /// No flags.
    pub const NONE: InodeFlags = InodeFlags {
        is_immutable: false,
        is_append_only: false,
        no_atime: false,
        no_dump: false,
    };

    fn bits(self) -> [bool; 4] {
        [self.is_immutable, self.is_append_only, self.no_atime, self.no_dump]
    }

    fn of(bits: [bool; 4]) -> Self {
        let [is_immutable, is_append_only, no_atime, no_dump] = bits;
        InodeFlags {
            is_immutable,
            is_append_only,
            no_atime,
            no_dump,
        }
    }

    /// As engines store them, in four bits.
    pub fn to_stored(self) -> u8 {
        let bits = self.bits().into_iter().enumerate();
        bits.fold(0, |stored, (at, bit)| stored | u8::from(bit) << at)
    }

    /// `None` for bits that no flag has.
    pub fn from_stored(stored: u8) -> Option<Self> {
        let bits = [0, 1, 2, 3].map(|at| stored >> at & 1 == 1);
        (stored < 16).then(|| Self::of(bits))
    }

    /// The flags of `FS_IOC_GETFLAGS`.
    pub fn to_fs_flags(self) -> u32 {
        let with = self.bits().into_iter().zip(FLAGS);
        with.fold(0, |sum, (bit, (_, number, _))| if bit { sum | number } else { sum })
    }

    /// The flags of `FS_IOC_SETFLAGS`; `None` for one that is not kept.
    pub fn from_fs_flags(flags: u32) -> Option<Self> {
        let known = FLAGS.iter().fold(0, |all, (_, number, _)| all | number);
        (flags & !known == 0).then(|| Self::of(FLAGS.map(|(_, number, _)| flags & number != 0)))
    }

    /// The flags of `FS_IOC_FSGETXATTR`.
    pub fn to_fs_xflags(self) -> u32 {
        let with = self.bits().into_iter().zip(FLAGS);
        with.fold(0, |sum, (bit, (.., number))| if bit { sum | number } else { sum })
    }

    /// The flags of `FS_IOC_FSSETXATTR`; `None` for one that is not kept.
    pub fn from_fs_xflags(flags: u32) -> Option<Self> {
        let known = FLAGS.iter().fold(0, |all, (.., number)| all | number);
        (flags & !known == 0).then(|| Self::of(FLAGS.map(|(.., number)| flags & number != 0)))
    }

    /// Reads the attribute's value.
    ///
    /// # Errors
    /// `Invalid` for any other letter.
    pub fn parse(letters: &[u8]) -> Result<Self> {
        let is_known = |letter: &u8| FLAGS.iter().any(|(known, ..)| known == letter);
        match letters.iter().all(is_known) {
            true => Ok(Self::of(FLAGS.map(|(letter, ..)| letters.contains(&letter)))),
            false => Err(FsError::Invalid(BadArgument::FlagLetters)),
        }
    }

    /// Whether inodes of this kind have flags.
    ///
    /// # Errors
    /// `Invalid` if they have none.
    pub fn check_kind(self, kind: FileKind) -> Result<()> {
        match kind {
            FileKind::File | FileKind::Directory => Ok(()),
            _ => Err(FsError::Invalid(BadArgument::FlagLetters)),
        }
    }

    /// Whether a caller may set `new` in place of these: the owner may set all but `i` and `a`, and root all.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn may_become(self, new: InodeFlags, cred: &Cred, owner: u32) -> Result<()> {
        let keeps = self.is_immutable == new.is_immutable && self.is_append_only == new.is_append_only;
        match cred.is_root() || cred.uid == owner && keeps {
            true => Ok(()),
            false => Err(FsError::NotPermitted),
        }
    }

    /// For a change of attributes, extended ones among them, of names that lead to the inode, and of content other than
    /// by writes.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_change(self) -> Result<()> {
        match self.is_immutable || self.is_append_only {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
    }

    /// For a change of attributes. Times that are set to the present need no more than the right to write.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_set(self, set: &SetAttr) -> Result<()> {
        match set.only_touches() {
            true if self.is_immutable && *set != SetAttr::default() => Err(FsError::NotPermitted),
            true => Ok(()),
            false => self.check_change(),
        }
    }

    /// For a change of space and content by `fallocate`.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_fallocate(self, mode: FallocateMode) -> Result<()> {
        match mode {
            FallocateMode::Allocate { .. } if !self.is_immutable => Ok(()),
            _ => self.check_change(),
        }
    }

    /// For a write that begins here in a file of this size.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_write(self, offset: u64, size: u64) -> Result<()> {
        match self.is_immutable || self.is_append_only && offset < size {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
    }

    /// For an open for writing, or one that truncates the file.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_open(self, writes: bool, truncates: bool) -> Result<()> {
        match self.is_immutable && (writes || truncates) || self.is_append_only && truncates {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
    }

    /// For a change of the names in a directory.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_names(self, change: NameChange) -> Result<()> {
        match self.is_immutable || self.is_append_only && change == NameChange::Removes {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
    }
}

impl fmt::Display for InodeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.bits().into_iter().zip(FLAGS).filter(|(bit, _)| *bit);
        set.map(|(_, (letter, ..))| char::from(letter))
            .try_for_each(|letter| write!(f, "{letter}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_flags_comes_back() {
        for stored in 0..16 {
            let flags = InodeFlags::from_stored(stored).unwrap();
            assert_eq!(flags.to_stored(), stored);
            assert_eq!(InodeFlags::from_fs_flags(flags.to_fs_flags()), Some(flags));
            assert_eq!(InodeFlags::from_fs_xflags(flags.to_fs_xflags()), Some(flags));
            assert_eq!(InodeFlags::parse(flags.to_string().as_bytes()), Ok(flags));
        }
        assert_eq!(InodeFlags::from_stored(16), None);
        assert_eq!(InodeFlags::from_fs_flags(1), None);
        assert!(InodeFlags::parse(b"x").is_err());
    }

    #[test]
    fn owners_set_what_binds_nobody() {
        let (root, owner) = (Cred::root(), Cred::new(7, 7));
        let set = |letters: &str| InodeFlags::parse(letters.as_bytes()).unwrap();
        assert_eq!(set("A").may_become(set("Ad"), &owner, 7), Ok(()));
        assert!(set("A").may_become(set("Ad"), &owner, 8).is_err());
        assert!(set("A").may_become(set("Ai"), &owner, 7).is_err());
        assert!(set("a").may_become(set(""), &owner, 7).is_err());
        assert_eq!(set("a").may_become(set("i"), &root, 7), Ok(()));
    }
}
