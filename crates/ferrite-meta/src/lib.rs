//! Metadata of the NVMe engine: ordered keys with pessimistic transactions.
//!
//! | module | what lives there |
//! | --- | --- |
//! | `store` | the traits [`MetaStore`] and [`Transaction`], and why no deadlock is possible above them |
//! | `error` | why a store refused |
//! | `memory`, `locks` | [`MemoryStore`], for tests and for engines that shall forget |
//! | `rocks` | `RocksStore`, with the cargo feature `rocksdb` |
//! | `home` | RocksDB's files without a kernel's file system: on `Blobs` |
//!
//! *Architecture invariant:* nothing in the public interface is RocksDB's. A store on several machines must be possible
//! behind the same traits.

#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "rocksdb")]
mod home;
mod locks;
mod memory;
#[cfg(feature = "rocksdb")]
mod rocks;
mod store;

pub use error::{Error, Result};
#[cfg(feature = "rocksdb")]
pub use home::{BlobError, Blobs, MemoryBlobs};
pub use memory::MemoryStore;
#[cfg(feature = "rocksdb")]
pub use rocks::{Home, Options, RocksStore};
pub use store::{Lock, MetaStore, Statistics, Transaction, Visit};
