//! The PM engine: a file system in a region of byte-addressable storage (`docs/design.md`).
//!
//! The crate has layers; each uses only those below it.
//!
//! | layer | folder | what lives there |
//! | --- | --- | --- |
//! | 10 | `engine` | making, mounting, unmounting; the traits of `ferrite-vfs` |
//! | 9 | `audit` | a pool as a whole: reading its tables, checking, repairing, scrubbing |
//! | 8 | `tree` | directories, names, attributes |
//! | 7 | `file` | data of regular files |
//! | 6 | `retry` | what an operation does when it finds no space |
//! | 5 | `page` | a data page: block, checksum, log; merging logs |
//! | 4 | `pool` | the state of a mounted pool; a transaction |
//! | 3 | `journal` | rings of records: commit, apply, retire, replay |
//! | 2 | `space`, `cache`, `health` | what is free; what is kept in DRAM; what is damaged |
//! | 1 | `format`, `background` | the bytes of each structure; threads that work as long as a pool is mounted |
//! | 0 | `error`, `options`, `lock_order`, `thread` | what all layers use |
//!
//! *Architecture invariant:* structures on the medium change only by applying a committed record. Words are stored
//! outside `journal` in only four places: `mkfs`; the control words of mount, unmount and freeze; [`rewrite`], which
//! applies a repair as a record would; and merges, which change no content (`page/merge.rs`).
//!
//! *Architecture invariant:* there is no `unsafe` here; the medium is accessed only through `ferrite-pm`.
#![forbid(unsafe_code)]

mod audit;
mod background;
mod cache;
mod engine;
mod error;
mod file;
mod format;
mod health;
mod journal;
mod lock_order;
mod options;
mod page;
mod pool;
mod retry;
mod space;
mod thread;
mod tree;

pub use audit::fsck::{fsck, fsck_with};
pub use audit::owner::{MAYBE_COPIED, disown, may_be_live_copy};
pub use audit::repair::{repair, repair_with};
pub use audit::rewrite;
pub use engine::{Engine, create, create_telling, grow, identify, is_clean, mkfs};
pub use error::EngineError;
pub use ferrite_pm::Durability;
pub use format::layout::{self, Superblock};
pub use options::{
    AtimePolicy, DramUse, EntryDump, Finding, FsckOptions, FsckReport, LastScrub, Mapping, Mended, MergeCounts,
    MkfsOptions, MountOptions, Owner, PageDump, PoolInfo, QuotaUse, RepairReport, RuntimeFinding, ScrubReport,
    UserQuota,
};
pub use thread::number_thread;
