//! The PM engine: a file system in a region of byte-addressable storage (DESIGN §3 to §6).
//!
//! | module | what lives there |
//! | --- | --- |
//! | [`layout`] | the format: superblock, where everything lies |
//! | `inode`, `dentry` | the format of one inode, one directory block |
//! | `journal` | records, rings, commit, apply, retire, replay |
//! | `tx` | one operation in the making |
//! | `alloc`, `names`, `icache` | free blocks; name table; inodes in DRAM |
//! | `sums` | checksums of file data |
//! | `core` | the state of a mounted pool, and what all operations share |
//! | `dir`, `ops`, `file` | directories; names and attributes; data |
//! | `mkfs`, `mount`, `fsck`, `info` | a pool as a whole |
//! | `events` | what goes wrong later, for the log and `ferrite info` |
//! | `load`, `damage` | the tables read at mount; what was found wrong there, and whom it concerns |
//! | `repair`, `mend` | what is to be changed in a damaged pool; changing it so that a crash does no harm |
//!
//! *Architecture invariant:* structures on the medium change only by applying a committed record (and in `mkfs`).
//! Nothing outside `journal` and `mkfs` stores a word, but for folds, which change no content (`pagelog/fold.rs`). *Architecture invariant:* there is no `unsafe` here; the medium is
//! reached through `ferrite-pm` alone.
#![forbid(unsafe_code)]

mod alloc;
mod checksum;
mod core;
mod damage;
mod dentry;
mod dir;
mod engine;
mod error;
mod events;
mod file;
mod fsck;
mod icache;
mod info;
mod inode;
mod journal;
pub mod layout;
mod load;
pub mod mend;
mod mkfs;
mod mount;
mod names;
mod ops;
mod options;
mod pagelog;
pub mod planted;
mod repair;
mod scrub;
mod spread;
mod sums;
mod tx;

pub use engine::{Engine, identify};
pub use error::EngineError;
pub use fsck::{fsck, fsck_with};
pub use journal::number_thread;
pub use layout::Superblock;
pub use mkfs::{create, mkfs};
pub use options::{
    AtimePolicy, DramUse, EntryDump, Finding, FoldCounts, FsckOptions, FsckReport, LastScrub, Mapping, Mended,
    MkfsOptions, MountOptions, PageDump, PoolInfo, RepairReport, RuntimeFinding, ScrubReport,
};
pub use repair::{repair, repair_with};
