//! Blob stores: one device each, in pages of 4 KiB and clusters of 1 MiB (RUFS, sections 2.2 and 2.4). Blobs of less
//! than a cluster may share clusters, in units of 16 KiB.
//!
//! Contents: [`BlobStore`] and [`Blob`]; the devices below them ([`device`]: io_uring, memory, and layers that
//! record, fail or slow down); the format on the device (`format`, byte by byte in `docs/format-blob.md`).
//!
//! | module | contents |
//! | --- | --- |
//! | `page` | pages in memory, aligned as devices want them |
//! | `device` | the trait [`device::Device`], and all devices |
//! | `format` | superblock and metadata pages |
//! | `slots` | the places of blobs' metadata |
//! | `space` | free clusters, slots and overflow pages |
//! | `units` | free parts of clusters, where blobs share them |
//! | `ring` | writes that must not tear, on devices that tear pages |
//! | `ranges` | readers and writers of a blob's pages take turns |
//! | `overlay` | a device as it would be with the ring's pages in place, for read-only opening |
//! | `sums` | checksums of data, a layer over the device |
//! | `core` | a store's parts, and how a blob's metadata is loaded and stored |
//! | `blob` | reading and writing |
//! | `overwrite` | writing in place |
//! | `shared` | units that several blobs name: giving them, and changing them |
//! | `shared_units` | how many blobs name which |
//! | `clear` | zeroing a range |
//! | `submitted` | the same without waiting, where only the device has to be waited for |
//! | `superblocks` | the two superblocks, and whether the device still has its end |
//! | `scan` | reading all slots, when a store is opened |
//! | `store` | making, opening, closing; blobs as a whole |
//! | `verify` | finding damage in data |
//! | `digest` | one slot's contribution to the digest of a close |
//! | `proof` | the proof that a close leaves of its slots, and blobs with only an older state left |
//! | `untangle` | blobs that name another's units |
//! | `check` | every structure against every other |
//! | `area` | what is where on a device |
//! | `lock_order` | the ranks of all locks |
//!
//! *Architecture invariant:* every change is on the device when a call returns. A blob's metadata changes by one write
//! of one page, which is durable before anything that depends on it: data first, then the metadata that makes it
//! reachable; and released space is reused only when the metadata that released it is durable.
//!
//! *Architecture invariant:* this crate knows no files, names or engines.
#![deny(unsafe_code)]

mod area;
mod blob;
pub mod check;
mod clear;
mod core;
pub mod device;
mod digest;
mod error;
mod format;
mod lock_order;
mod overlay;
mod overwrite;
mod page;
mod proof;
mod ranges;
mod ring;
mod scan;
mod shared;
mod shared_units;
mod slots;
mod space;
mod store;
mod submitted;
mod sums;
mod superblocks;
mod units;
mod untangle;
mod verify;

pub use area::Area;
pub use blob::Blob;
pub use error::{Error, Result};
pub use format::{BlobId, METADATA_BYTES_MAX};
pub use store::{BlobStore, FormatOptions, Identity, Space};
pub use submitted::Ready;
pub use verify::DataDamage;

/// A page: the unit of a write in place.
pub const PAGE_BYTES: usize = 4096;
/// A cluster: the unit of a blob's space, except for its first cluster, parts of which other blobs may share.
pub const CLUSTER_BYTES: u64 = 1 << 20;
/// Pages of a cluster.
pub(crate) const CLUSTER_PAGES: u64 = CLUSTER_BYTES / PAGE_BYTES as u64;
/// A part of a cluster, if blobs share clusters: 16 KiB.
pub(crate) const SHARED_UNIT_PAGES: u32 = 4;
