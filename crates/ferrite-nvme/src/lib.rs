//! The NVMe engine: files on devices instead of memory (RUFS, the server's half).
//!
//! Contents: the engine behind [`ferrite_vfs::FileSystem`]. Names and attributes are in an ordered store with
//! transactions ([`ferrite_meta`]), content is in a content store ([`content_store`]): in blob stores, one per device
//! ([`ferrite_blob`]), or elsewhere. Code above the traits knows neither which metadata store it uses nor where
//! content lives.
//!
//! The layers, from the lowest: `content_store` (where content lives); `format` (keys and values); `table` (inodes in
//! memory), `blobs` (blobs made in advance), `housekeeper` (a list of work), `freeze_barrier`, `unfinished` (inodes of
//! a clone that is being made), `quotas`, `lock_order`; `core` (what all operations share: steps, tokens, numbers);
//! `inode_ref`, `detached`, `reclaim`, `small` (content without a blob), `rights`, `quota_counts`, `sharing` (blobs of
//! several files); `names` (edges, creating, removing, renaming, cloning), `attr`, `data` (damaged content), `content`
//! (open files), `whole_copy`, `evacuate`; `check`, `repair`, `adopt` (blobs without a name); `fs` (the trait); `open`
//! (making, opening, recovery); `refusal`, `config`, `description`, `backend`, `ceph`, `s3`, `tier` and `staged` (the
//! log in front of a bucket), `pool`, `info`, `s3_info`, `ownership_info`, `volume` (pools of real parts),
//! `examination` (their servers), `candidate` (servers that hand a pool to each other), `salvage` (metadata that cannot
//! be read as a whole).
//!
//! *Architecture invariant:* an operation takes its locks in the order that `lock_order` lists. The transaction's own
//! locks on places of names, by key, come between directories and inodes; those on nodes, by key, come last: then it
//! waits for nothing else. `docs/nvme.md` argues why operations cannot deadlock.
//!
//! *Architecture invariant:* a change of names or attributes is one transaction. A file's size and times may be ahead
//! in its blob; a record says so before they are.
#![forbid(unsafe_code)]

mod adopt;
mod attr;
#[cfg(feature = "rocksdb")]
mod backend;
mod blobs;
#[cfg(feature = "postgres")]
mod candidate;
#[cfg(feature = "rocksdb")]
mod ceph;
mod check;
#[cfg(feature = "rocksdb")]
mod config;
mod content;
pub mod content_store;
mod core;
mod data;
#[cfg(feature = "rocksdb")]
mod description;
mod detached;
#[cfg(feature = "rocksdb")]
mod device;
mod evacuate;
#[cfg(feature = "rocksdb")]
mod examination;
mod format;
mod freeze_barrier;
mod fs;
mod housekeeper;
#[cfg(feature = "rocksdb")]
mod info;
mod inode_ref;
mod lock_order;
#[cfg(feature = "rocksdb")]
mod metadata;
mod names;
mod open;
mod owner;
mod ownership;
#[cfg(feature = "rocksdb")]
mod ownership_info;
#[cfg(feature = "rocksdb")]
mod pool;
#[cfg(all(feature = "rocksdb", feature = "s3"))]
mod pool_object;
mod quota_counts;
mod quotas;
mod reclaim;
#[cfg(feature = "rocksdb")]
mod refusal;
mod repair;
mod rights;
#[cfg(feature = "rocksdb")]
mod s3;
#[cfg(all(feature = "rocksdb", feature = "s3"))]
mod s3_info;
#[cfg(feature = "rocksdb")]
mod salvage;
#[cfg(all(test, feature = "postgres"))]
mod scale_tests;
mod sharing;
mod small;
#[cfg(all(feature = "rocksdb", feature = "s3"))]
mod staged;
mod table;
#[cfg(all(feature = "rocksdb", feature = "s3"))]
mod tier;
mod transfer;
mod unfinished;
#[cfg(feature = "rocksdb")]
mod volume;
mod whole_copy;

#[cfg(feature = "rocksdb")]
pub use backend::MetaBlobs;
#[cfg(feature = "postgres")]
pub use candidate::candidacy;
pub use check::{Finding, Report};
#[cfg(feature = "rocksdb")]
pub use config::{Compression, Config, Data, DataPlace, Metadata, Rados, ReactorConfig, S3, Tier, TierMode};
#[cfg(feature = "rocksdb")]
pub use examination::{PoolCheck, Verdict, examine};
pub use ferrite_blob::device::block_device_of;
#[cfg(feature = "rocksdb")]
pub use ferrite_meta::{OwnedStatus, Salvaged, ShardStatus, Statistics};
pub use fs::NvmeFs;
pub use open::{Options, assemble, assemble_with, format, format_with};
pub use ownership::Answering;
#[cfg(feature = "rocksdb")]
pub use pool::{MakeOptions, add, make, make_described, number_of, remove};
pub use repair::Repaired;
#[cfg(feature = "rocksdb")]
pub use salvage::{metadata_damage, restore_metadata, salvage_metadata};
#[cfg(feature = "rocksdb")]
pub use volume::NvmeVolume;

/// Longest file.
pub const FILE_BYTES_MAX: u64 = 1 << 44;
