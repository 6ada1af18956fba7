//! Metadata of the NVMe engine: ordered keys with pessimistic transactions.
//!
//! | module | contents |
//! | --- | --- |
//! | `store` | the traits [`MetaStore`] and [`Transaction`], and why no deadlock is possible above them |
//! | `error` | errors of a store |
//! | `memory`, `overlay`, `locks` | [`MemoryStore`], for tests and for engines that need no persistence |
//! | `remote` | the trait [`Remote`]: a database elsewhere, whose shards have one owner at a time |
//! | `owned` | [`Owned`], a store over any `Remote`, in the process that owns a shard of it |
//! | `viewed` | [`Viewed`], a store that reads a shard of any `Remote` without owning it |
//! | `rocks` | `RocksStore`, with the cargo feature `rocksdb` |
//! | `rocksdb` | RocksDB's transactions on a directory or on files behind a trait; the border to C++ |
//! | `close_mark`, `log_check`, `shelf` | telling damage of RocksDB's logs from the torn tail of a crash |
//! | `salvage` | copies: the readable part of a damaged store, dumps, and stores restored from dumps |
//! | `backend` | RocksDB's files without a kernel file system: on `Blobs` |
//!
//! *Architecture invariant:* the public interface exposes nothing of RocksDB, nor of a database.

#![deny(unsafe_code)]

#[cfg(feature = "rocksdb")]
mod backend;
#[cfg(feature = "rocksdb")]
mod close_mark;
mod error;
mod lock_order;
mod locks;
#[cfg(feature = "rocksdb")]
mod log_check;
mod memory;
mod overlay;
mod owned;
mod owned_status;
mod remote;
#[cfg(feature = "rocksdb")]
mod rocks;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "rocksdb")]
mod salvage;
#[cfg(feature = "rocksdb")]
mod shelf;
mod store;
mod viewed;

#[cfg(feature = "rocksdb")]
pub use backend::{BlobError, Blobs, MemoryBlobs};
pub use error::{Error, Result};
pub use memory::MemoryStore;
pub use owned::{MonotonicClock, Owned, OwnedOptions, answers_until};
pub use owned_status::OwnedStatus;
pub use remote::{
    Applied, Batch, BatchLimits, Fault, FaultPlan, FaultyRemote, MemoryRemote, Owner, Page, Pair, Remote, RemoteCall,
    ShardRow, ShardStatus, Tally, Tenure, Values,
};
#[cfg(feature = "postgres")]
pub use remote::{PostgresOptions, PostgresRemote, ServerState, Tenancy, VolumeState};
#[cfg(feature = "rocksdb")]
pub use rocks::{Backend, Options, RocksStore};
#[cfg(feature = "rocksdb")]
pub use salvage::{Fix, Salvaged, dump};
pub use store::{Lock, MetaStore, Statistics, Transaction, Visit};
pub use viewed::Viewed;
