//! Files as RDMA memory regions: the adapter's half of FileMR (Yang, Izraelevitz, Swanson, NSDI 2020).
//!
//! Contents: [`Registrar`], which binds files of any engine with [`ferrite_vfs::regions`] and grants *filekeys* for
//! them; and [`FileMemory`], the memory behind the queue pairs of one thread, which finds pages and copies without a
//! call of the file system. `docs/filemr.md` describes the guarantees of each.
//!
//! Below that, two methods to translate pages of files, which know no files: FileMR's ([`RangeMtt`], a tree of runs for
//! each file, behind a [`RangeCache`]) and the usual one of adapters ([`PageMtt`], an array of pages, behind a
//! [`PageCache`]). Both caches have 4096 entries, four to a set. [`Ranges`] and [`Pages`] combine table and cache, for
//! experiments that compare them.
//!
//! *Architecture invariant:* this crate knows no engine, no sockets and no service.

#![forbid(unsafe_code)]

mod access_cache;
mod appends;
pub mod compare;
mod counters;
mod faults;
mod file;
mod key;
mod keys;
mod lock_order;
mod memory;
mod meter;
#[cfg(all(test, feature = "shuttle"))]
mod models;
mod page_cache;
mod page_mtt;
mod range_cache;
mod range_mtt;
mod registrar;
mod run;
mod sets;
mod shared;
mod sync;
mod translate;

pub use counters::Counters;
pub use file::{FileMr, FileStatus};
pub use key::{Holder, KeyCheck, Rights, SessionId, may_keep};
pub use memory::FileMemory;
pub use meter::Counts;
pub use page_cache::PageCache;
pub use page_mtt::PageMtt;
pub use range_cache::RangeCache;
pub use range_mtt::RangeMtt;
pub use registrar::{Granted, Listed, Options, Registrar};
pub use run::{OutOfRange, Placed, Run};
pub use sets::{ENTRIES, WAYS};
pub use translate::{Pages, Ranges, RegionId, Translation};
