//! Files as RDMA memory regions: the adapter's half of FileMR (Yang, Izraelevitz, Swanson, NSDI 2020).
//!
//! Contents: [`Registrar`], which binds files of any engine with [`ferrite_vfs::regions`] and grants *filekeys* for
//! them; and [`FileMemory`], the memory behind the queue pairs of one thread, which finds pages and copies without a
//! call of the file system. `docs/filemr.md` describes the guarantees of each.
//!
//! A packet passes four places, in this order:
//!
//! | module | type | its part |
//! | --- | --- | --- |
//! | `memory` | [`FileMemory`] | takes the packet, and copies to or from pages |
//! | `permissions` | `FileAccess` | whether its queue pair may use the key, and for what |
//! | `translation` | `Guard` | where the pages lie, and that they stay there until the copy is durable |
//! | `background` | `Background` | requests pages that are not translated yet, while the packet waits |
//!
//! `file` has the bound file that all of them refer to, and `registrar` the list of these. [`RangeMtt`] and
//! [`RangeCache`], FileMR's method of translation, are public for experiments that compare it with others, and so is
//! the store of its cache, [`Sets`].
//!
//! *Architecture invariant:* this crate knows no engine, no sockets and no service.

#![forbid(unsafe_code)]

mod appends;
mod background;
mod faults;
mod file;
mod key;
mod lock_order;
mod memory;
mod meter;
#[cfg(all(test, feature = "shuttle"))]
mod models;
mod permissions;
mod registrar;
mod sync;
mod translation;

pub use file::{FileMr, FileStatus};
pub use key::{Holder, KeyCheck, Rights, SessionId, may_keep};
pub use memory::FileMemory;
pub use meter::Counts;
pub use registrar::{Granted, Listed, Options, Registrar};
pub use translation::{
    Counters, ENTRIES, OutOfRange, Placed, RangeCache, RangeMtt, Removed, Run, SETS, Sets, WAYS, hash_of,
};
