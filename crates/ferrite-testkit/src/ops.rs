//! Every operation of the contract as a value ([`Op`]); [`crate::generate`] makes sequences of them.
//!
//! Invariant: an operation names things by path or slot, never by inode number, so that the same sequence means the
//! same on two engines and stays meaningful when the shrinker drops any of its operations.

use std::fmt;

use ferrite_vfs::{FallocateMode, NewNode, OpenMode, RenameMode, SetAttr, Timestamp, XattrMode, acl};

use crate::acl::acl_of;
use crate::rng::pattern;

/// Slots for open handles, pins and running listings (separate arrays).
pub const SLOTS: u8 = 6;
/// Page size whose multiples the generator favours.
pub const PAGE: u64 = 4096;
/// Farthest offset the generator uses.
pub const FAR: u64 = 1 << 40;
/// Times set by operations lie before this (2001); the engines' own clocks lie after it. So whether a time moved can be
/// checked without comparing clocks.
pub const EXPLICIT_TIME_END: Timestamp = Timestamp(1_000_000_000 * 1_000_000_000);

/// Number of names.
pub const NAMES: usize = 12;

/// The index of the name of directories of snapshots, which few operations use.
pub const SNAPSHOTS: u8 = u8::MAX;

/// The name with this index: short ones, ones of bytes that are not UTF-8, and two of the maximum length.
pub fn name(index: u8) -> Vec<u8> {
    if index == SNAPSHOTS {
        return ferrite_vfs::SNAPSHOTS_NAME.to_vec();
    }
    match index as usize % NAMES {
        8 => b"with space\xff\x01".to_vec(),
        9 => "\u{e9}\u{4e2d}\u{6587}".as_bytes().to_vec(),
        10 => vec![b'x'; ferrite_vfs::NAME_MAX],
        11 => [vec![b'x'; ferrite_vfs::NAME_MAX - 1], vec![b'y']].concat(),
        short => vec![b'a' + short as u8],
    }
}

/// The extended-attribute name with this index.
pub fn xattr_name(index: u8) -> Vec<u8> {
    match index % 7 {
        0 => b"user.a".to_vec(),
        1 => b"user.b".to_vec(),
        2 => b"trusted.c".to_vec(),
        3 => b"security.capability".to_vec(),
        4 => acl::ACCESS.to_vec(),
        5 => acl::DEFAULT.to_vec(),
        _ => [b"user.".to_vec(), vec![b'n'; ferrite_vfs::XATTR_NAME_MAX - 5]].concat(),
    }
}

/// A value of about this length for the extended attribute with this index.
pub fn xattr_value(index: u8, len: usize) -> Vec<u8> {
    match acl::is_acl(&xattr_name(index)) {
        true => acl_of(len),
        false => pattern(1 + len as u32, len),
    }
}

/// A path as name indices from the root; empty for the root itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub Vec<u8>);

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        for &index in &self.0 {
            let bytes = name(index);
            let short = &bytes[bytes.len().saturating_sub(6)..];
            write!(f, "/{}{}", if bytes.len() > 6 { "~" } else { "" }, short.escape_ascii())?;
        }
        Ok(())
    }
}

/// The object of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// The inode a path leads to now.
    At(Path),
    /// The open handle or pinned inode in a slot, whatever happened to its name.
    Slot(u8),
}

/// One call of the contract.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The fields are the parameters of the trait's methods.
pub enum Op {
    Mknod {
        path: Path,
        node: NewNode,
        user: u32,
    },
    Mkdir {
        path: Path,
        mode: u32,
        user: u32,
    },
    Symlink {
        path: Path,
        len: usize,
    },
    Link {
        from: Path,
        to: Path,
    },
    /// Clones a file or a tree.
    CloneTree {
        from: Path,
        to: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    Lookup {
        path: Path,
    },
    Parent {
        path: Path,
    },
    Readlink {
        path: Path,
    },
    Getattr {
        on: Target,
    },
    Setattr {
        on: Target,
        set: SetAttr,
    },
    Pin {
        path: Path,
        slot: u8,
    },
    Open {
        path: Path,
        slot: u8,
        mode: OpenMode,
        /// Else changes through the handle clear setuid and setgid.
        privileged: bool,
    },
    /// Creates a file without a name in a directory, and opens it; it may get a name unless `is_final`.
    CreateNameless {
        dir: Path,
        slot: u8,
        mode: u32,
        is_final: bool,
    },
    /// Gives the inode of a slot a name.
    LinkOpen {
        slot: u8,
        to: Path,
    },
    Close {
        slot: u8,
    },
    Read {
        on: Target,
        offset: u64,
        len: usize,
    },
    Write {
        on: Target,
        offset: u64,
        len: usize,
        fill: u32,
    },
    Append {
        on: Target,
        len: usize,
        fill: u32,
    },
    Fallocate {
        on: Target,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    /// Clones whole pages, by one call of the engine or one write.
    Clone {
        source: Target,
        source_offset: u64,
        on: Target,
        offset: u64,
        len: u64,
    },
    SeekData {
        on: Target,
        offset: u64,
    },
    SeekHole {
        on: Target,
        offset: u64,
    },
    Fsync {
        on: Target,
    },
    Getxattr {
        on: Target,
        name: u8,
    },
    Setxattr {
        on: Target,
        name: u8,
        len: usize,
        mode: XattrMode,
    },
    Listxattr {
        on: Target,
    },
    Removexattr {
        on: Target,
        name: u8,
    },
    List {
        path: Path,
    },
    ListBegin {
        path: Path,
        slot: u8,
    },
    ListNext {
        slot: u8,
        count: usize,
    },
    ListEnd {
        slot: u8,
    },
    Statfs,
    Sync,
}
