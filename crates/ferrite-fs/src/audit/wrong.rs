//! The possible defects of a pool: a variant of [`Wrong`] for each rule of `rules`, with the text that users read.
//!
//! Mount quarantines what they affect (`load/quarantine.rs`), fsck into its report, repair into its repairs, scrub into
//! events. A rule that one of the four does not check says so in its comment.

use std::fmt;

use ferrite_map::{BlockNo, Inum, Lblk, MapEntry, NameSlotNo, PageId};
use ferrite_vfs::Shown;

use crate::format::data_sum;
use crate::format::unit::Unit;
use crate::options::Finding;

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// A copy of the superblock.
    Superblock { what: String },
    /// The checksum of an inode, and so all of it.
    InodeChecksum { ino: Inum },
    /// An inode of an unknown kind.
    Mode { ino: Inum, mode: u32 },
    /// More bytes than a file can have.
    Size { ino: Inum, bytes: u64 },
    /// The root is not a directory, or has a parent.
    Root,
    /// An inode's page count differs from the pages that the mapping has for it.
    PageCount { ino: Inum, counted: u32, mapped: u32 },
    /// Content in the inode, and pages or more bytes than fit.
    Inline { ino: Inum, pages: u32, bytes: u64 },
    /// A symbolic link without a target.
    NoTarget { ino: Inum },
    /// A pipe, socket or device with pages.
    SpecialPages { ino: Inum, pages: u32 },
    /// Something else than a regular file with pages is bound.
    Bound { ino: Inum },
    /// An inode's block of attributes cannot be its own.
    AttributeBlock {
        ino: Inum,
        block: BlockNo,
        what: BlockWrong,
    },
    /// The block does not hold attributes of that inode.
    Attributes { ino: Inum, block: BlockNo },
    /// A mapped page.
    Page { at: MapEntry, what: PageWrong },
    /// The last of an inode's written pages. Mount knows only where that lies.
    LastBehindEnd { ino: Inum, lblk: Lblk },
    /// A page's log.
    Log { page: MapEntry, what: LogWrong },
    /// Pages that name inodes past the end of the table. Mount only counts them: there is no inode to quarantine.
    PagesOfNobody { count: u64 },
    /// A directory's block.
    DirBlockBehindEnd { dir: Inum, lblk: Lblk },
    /// A directory's block has another block's header, or a damaged one.
    DirHeader { dir: Inum, lblk: Lblk },
    /// The same, for a block that a name leads to. Only its header would identify the block within the directory.
    NamedBlock { dir: Inum, block: BlockNo },
    /// Damage in an entry of a directory, or in the lengths of a block's entries; worded as lookups report it.
    DirEntry { dir: Inum, what: String },
    /// A sound entry.
    Entry { dir: Inum, name: String, what: EntryWrong },
    /// A directory's entry count differs from the entries in its blocks.
    EntryCount { dir: Inum, counted: u32, found: u32 },
    /// A directory's entry count differs from the entries that names lead to.
    NameCount { dir: Inum, counted: u32, led: u32 },
    /// A slot of the name table.
    Slot { number: NameSlotNo, what: SlotWrong },
    /// Too many name slots, or too few.
    SlotCount { slots: u64, entries: u64 },
    /// An inode that an entry of `dir` names was wiped.
    NamedAndFree { ino: Inum, dir: Inum },
    /// An inode's link count differs from the links found.
    LinkCount { ino: Inum, counted: u32, expected: u32 },
    /// A directory that has a name is not reachable from the root.
    Unreachable { dir: Inum },
    /// An inode with a link count has no name. fsck reports it as a wrong link count.
    NoName { ino: Inum },
    /// Damage inside a structure, as the structure reports it.
    Structure { what: String },
    /// A node of a tree lies in a block that cannot be its own.
    NodeBlock { block: BlockNo, what: BlockWrong },
    /// A node of a tree belongs to an inode that is free.
    NodeOfNobody { block: BlockNo, ino: Inum },
    /// Mount knows a block's second owner only. Finding whose pages lie in it takes another walk of the mapping.
    TwoOwners { block: BlockNo },
    /// The data of a page.
    Data { what: String },
    /// The outcome of the last change of a slot of tokens.
    Outcome { slot: u32 },
}

/// The defect of a mapped page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageWrong {
    /// The inode is free, or cannot exist.
    Nobody,
    /// Its block cannot be its own.
    Block(BlockNo, BlockWrong),
    /// A written page past the end of its file.
    BehindEnd,
    /// Lookups find another entry for the same page.
    Twice,
    /// The key cannot lie where it does.
    OutOfReach,
    /// Its block was written as another page, which is now a hole.
    WrittenAs { other: Lblk },
}

/// The defect of a page's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogWrong {
    /// A damaged entry or header, or a bad link from one; reported by the code that reads logs.
    Broken { what: String },
    /// A segment's link to the next segment is not the one that follows.
    Link { unit: Unit, next: u64, newer: u64 },
    /// A segment's block cannot hold logs.
    Block { unit: Unit, what: BlockWrong },
    /// A segment shares units with another.
    Overlaps { unit: Unit },
    /// The file is bound.
    OfBound,
}

/// The defect of a directory entry whose checksum is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryWrong {
    /// Lookups do not recognise the name.
    Padding,
    /// It names a free inode, or one that cannot exist.
    Free { ino: Inum },
    /// It names an inode of another kind.
    Kind,
    /// It names the root, or its own directory.
    Circle,
    /// Lookups find another entry of the same name.
    Twice,
    /// Lookups find no entry of this name.
    Missing,
    /// The directory that it names has another parent.
    Parent { parent: Inum },
    /// It counts for the quota of one directory, and the directory that it stands in for that of another. 0: for none.
    Quota { of: Inum, expected: Inum },
    /// The directory that it names already has a name.
    SecondName,
    /// The directory that it stands in does not exist.
    Nowhere,
}

/// The defect of a slot of the name table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotWrong {
    /// It does not point to a data block.
    Outside,
    /// It points to a place where no entry can be.
    Header { block: BlockNo },
    /// It points into a block that is not a directory's.
    NoDirectory { block: BlockNo },
    /// No entry is there.
    NoEntry { what: String },
    /// Another name's entry is there.
    Other { offset: u64 },
    /// The entry names an inode that cannot exist.
    NoInode { ino: Inum },
}

/// Why a block cannot belong to its referrer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockWrong {
    /// It lies outside the data blocks.
    NoData,
    /// It has an owner already.
    Taken,
}

impl Wrong {
    /// The part of a pool it concerns, as fsck reports it.
    pub(crate) fn phase(&self) -> &'static str {
        match self {
            Wrong::Superblock { .. } => "superblock",
            Wrong::InodeChecksum { .. }
            | Wrong::Mode { .. }
            | Wrong::Size { .. }
            | Wrong::Root
            | Wrong::PageCount { .. }
            | Wrong::Inline { .. }
            | Wrong::NoTarget { .. }
            | Wrong::SpecialPages { .. }
            | Wrong::Bound { .. }
            | Wrong::AttributeBlock { .. }
            | Wrong::Attributes { .. } => "inodes",
            Wrong::Page { .. }
            | Wrong::LastBehindEnd { .. }
            | Wrong::PagesOfNobody { .. }
            | Wrong::Structure { .. }
            | Wrong::NodeBlock { .. }
            | Wrong::NodeOfNobody { .. }
            | Wrong::TwoOwners { .. } => "mapping",
            Wrong::Log { .. } => "logs",
            Wrong::DirBlockBehindEnd { .. }
            | Wrong::DirHeader { .. }
            | Wrong::NamedBlock { .. }
            | Wrong::DirEntry { .. }
            | Wrong::Entry { .. }
            | Wrong::EntryCount { .. } => "directories",
            Wrong::NameCount { .. } | Wrong::Slot { .. } | Wrong::SlotCount { .. } | Wrong::NamedAndFree { .. } => {
                "names"
            }
            Wrong::Outcome { .. } => "outcomes",
            Wrong::LinkCount { .. } | Wrong::Unreachable { .. } | Wrong::NoName { .. } => "links",
            Wrong::Data { .. } => "data",
        }
    }

    /// In one line, preceded by the part of the pool.
    pub(crate) fn told(&self) -> String {
        format!("{}: {self}", self.phase())
    }

    /// As fsck reports it.
    pub(crate) fn finding(&self) -> Finding {
        Finding {
            phase: self.phase(),
            what: self.to_string(),
        }
    }

    /// An entry of `dir`, by its name.
    pub(crate) fn entry(dir: Inum, name: &[u8], what: EntryWrong) -> Wrong {
        let name = String::from_utf8_lossy(name).into_owned();
        Wrong::Entry { dir, name, what }
    }

    /// Whether blocks that look free may be in use after this: a pool in use must not change then. After damage to an
    /// inode its pages are still in the mapping, under its number; after damage to an entry, its place in the directory
    /// is still taken.
    pub(crate) fn hides_owners(&self) -> bool {
        !matches!(
            self,
            Wrong::Superblock { .. }
                | Wrong::InodeChecksum { .. }
                | Wrong::Mode { .. }
                | Wrong::Size { .. }
                | Wrong::Root
                | Wrong::Data { .. }
                | Wrong::NamedBlock { .. }
                | Wrong::DirEntry { .. }
                | Wrong::Entry { .. }
        )
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::InodeChecksum { ino } => write!(to, "inode {ino}: wrong checksum"),
            Wrong::Mode { ino, mode } => write!(to, "inode {ino}: impossible mode {mode:o}"),
            Wrong::Size { ino, bytes } => write!(to, "inode {ino}: impossible size {bytes}"),
            Wrong::Root => write!(to, "inode 1: the root is no directory, or not its own parent"),
            Wrong::PageCount { ino, counted, mapped } => {
                write!(to, "inode {ino}: counts {counted} pages, {mapped} are mapped")
            }
            Wrong::Inline { ino, pages, bytes } => {
                write!(
                    to,
                    "inode {ino}: has its content inside, but {pages} pages and {bytes} bytes"
                )
            }
            Wrong::NoTarget { ino } => write!(to, "inode {ino}: symbolic link without a target"),
            Wrong::SpecialPages { ino, pages } => write!(to, "inode {ino}: special file with {pages} pages"),
            Wrong::Bound { ino } => write!(to, "inode {ino}: bound, which only regular files in blocks can be"),
            Wrong::AttributeBlock { ino, block, what } => {
                write!(to, "inode {ino}: extended attributes in block {block}, {what}")
            }
            Wrong::Attributes { ino, block } => {
                write!(to, "inode {ino}: damaged extended attributes in block {block}")
            }
            Wrong::Page { at, what } => page(to, at, *what),
            Wrong::Log { page, what } => log(to, page, what),
            Wrong::LastBehindEnd { ino, lblk } => write!(to, "inode {ino}: page {lblk} lies behind its end"),
            Wrong::PagesOfNobody { count } => write!(to, "{count} pages are mapped for inodes that cannot be"),
            Wrong::DirBlockBehindEnd { dir, lblk } => {
                write!(to, "directory {dir}: block {lblk} lies behind its end")
            }
            Wrong::DirHeader { dir, lblk } => {
                write!(
                    to,
                    "directory {dir}: block {lblk} has another's header, or a damaged one"
                )
            }
            Wrong::NamedBlock { dir, block } => write!(to, "directory {dir}: block {block} has a damaged header"),
            Wrong::DirEntry { dir, what } => write!(to, "directory {dir}: {what}"),
            Wrong::Entry { dir, name, what } => {
                write!(to, "entry {} of directory {dir}: {what}", Shown(name.as_bytes()))
            }
            Wrong::EntryCount { dir, counted, found } => {
                write!(to, "directory {dir}: counts {counted} entries, {found} found")
            }
            Wrong::NameCount { dir, counted, led } => {
                write!(to, "directory {dir}: counts {counted} entries, names lead to {led}")
            }
            Wrong::Slot { number, what } => write!(to, "name slot {number}: {what}"),
            Wrong::Outcome { slot } => write!(to, "slot {slot}: damaged"),
            Wrong::SlotCount { slots, entries } => write!(to, "{slots} name slots for {entries} entries"),
            Wrong::NamedAndFree { ino, dir } => {
                write!(to, "inode {ino}: looks free, but has a name in directory {dir}")
            }
            Wrong::LinkCount { ino, counted, expected } => {
                write!(to, "inode {ino}: link count {counted}, {expected} found")
            }
            Wrong::Unreachable { dir } => write!(to, "directory {dir} cannot be reached from the root"),
            Wrong::NoName { ino } => write!(to, "inode {ino}: has no name"),
            Wrong::Superblock { what } | Wrong::Structure { what } | Wrong::Data { what } => to.write_str(what),
            Wrong::NodeBlock { block, what } => write!(to, "a node of the mapping lies in block {block}, {what}"),
            Wrong::NodeOfNobody { block, ino } => {
                write!(to, "a node in block {block} belongs to inode {ino}, which is free")
            }
            Wrong::TwoOwners { block } => write!(to, "block {block} has two owners"),
        }
    }
}

fn page(to: &mut fmt::Formatter<'_>, at: &MapEntry, what: PageWrong) -> fmt::Result {
    let &MapEntry { ino, lblk, slot, .. } = at;
    match what {
        PageWrong::Nobody | PageWrong::Block(..) | PageWrong::BehindEnd => {
            write!(to, "mapping slot {slot} (inode {ino}, page {lblk}): ")?;
        }
        PageWrong::Twice | PageWrong::OutOfReach | PageWrong::WrittenAs { .. } => {
            write!(to, "mapping slot {slot}: page {lblk} of inode {ino} ")?;
        }
    }
    match what {
        PageWrong::Nobody => write!(to, "the inode is free"),
        PageWrong::Block(block, what) => write!(to, "names block {block}, {what}"),
        PageWrong::BehindEnd => write!(to, "lies behind the end of the file"),
        PageWrong::Twice => write!(to, "is mapped twice"),
        PageWrong::OutOfReach => write!(to, "cannot be there"),
        PageWrong::WrittenAs { other } => write!(to, "is what was written as page {other}"),
    }
}

fn log(to: &mut fmt::Formatter<'_>, page: &MapEntry, what: &LogWrong) -> fmt::Result {
    match what {
        LogWrong::Broken { .. } => write!(to, "{}: ", data_sum::place(PageId::new(page.ino, page.lblk)))?,
        _ => write!(to, "log of page {} of inode {}: ", page.lblk, page.ino)?,
    }
    match what {
        LogWrong::Broken { what } => to.write_str(what),
        LogWrong::Link { unit, next, newer } => {
            write!(to, "segment {unit} is followed by {newer}, but names {next}")
        }
        LogWrong::Block { unit, what } => {
            write!(to, "segment {unit} lies in block {}, {what}", unit.block())
        }
        LogWrong::Overlaps { unit } => write!(to, "segment {unit} overlaps another"),
        LogWrong::OfBound => to.write_str("the file is bound"),
    }
}

impl LogWrong {
    /// As [`PageWrong::reason`].
    pub(crate) fn reason(&self) -> String {
        match self {
            LogWrong::Broken { what } => what.clone(),
            LogWrong::Link { unit, .. } => format!("its log has a segment at unit {unit}, which names a wrong one"),
            LogWrong::Block { unit, .. } => {
                format!("its log has a segment at unit {unit}, which lies in a block that holds something else")
            }
            LogWrong::Overlaps { unit } => {
                format!("its log has a segment at unit {unit}, which overlaps another page's")
            }
            LogWrong::OfBound => "it has a log, and its file is bound".into(),
        }
    }
}

impl PageWrong {
    /// Why a page cannot be read, as mount and readers of the page report it after the page's place.
    pub(crate) fn reason(&self) -> String {
        match self {
            PageWrong::Nobody => "its inode is free".into(),
            PageWrong::Block(block, BlockWrong::NoData) => format!("its block {block} holds no data"),
            PageWrong::Block(block, BlockWrong::Taken) => format!("its block {block} has another owner as well"),
            PageWrong::BehindEnd => "it lies behind the end of the file".into(),
            PageWrong::Twice => "it is mapped twice".into(),
            PageWrong::OutOfReach => "a key that cannot be where it is maps it".into(),
            PageWrong::WrittenAs { other } => format!("its block holds page {other}"),
        }
    }
}

impl fmt::Display for EntryWrong {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryWrong::Padding => write!(to, "bytes behind the name, so no lookup finds it"),
            EntryWrong::Free { ino } => write!(to, "names inode {ino}, which is free"),
            EntryWrong::Kind => write!(to, "its kind is not the inode's"),
            EntryWrong::Circle => write!(to, "names the root, or its own directory"),
            EntryWrong::Twice => write!(to, "the name stands twice"),
            EntryWrong::Missing => write!(to, "missing in the name table, so no lookup finds it"),
            EntryWrong::Parent { parent } => write!(to, "the directory's parent is inode {parent}"),
            EntryWrong::Quota { of, expected } => write!(
                to,
                "counts for the quota of inode {of}, but its directory for that of inode {expected}"
            ),
            EntryWrong::SecondName => write!(to, "is a second name of a directory"),
            EntryWrong::Nowhere => write!(to, "stands in a directory that is gone"),
        }
    }
}

impl fmt::Display for SlotWrong {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotWrong::Outside => write!(to, "points outside the data blocks"),
            SlotWrong::Header { block } => write!(to, "points to the header of block {block}"),
            SlotWrong::NoDirectory { block } => write!(to, "points into block {block}, which is no directory's"),
            SlotWrong::NoEntry { what } => to.write_str(what),
            SlotWrong::Other { offset } => {
                write!(to, "is not the one of the entry it points to, at offset {offset}")
            }
            SlotWrong::NoInode { ino } => write!(to, "leads to inode {ino}, which cannot be"),
        }
    }
}

impl fmt::Display for BlockWrong {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            BlockWrong::NoData => "which is no data block",
            BlockWrong::Taken => "which belongs to another as well",
        })
    }
}
