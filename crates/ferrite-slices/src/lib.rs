//! Immutable slices of files in S3, or in any place that the crate `object_store` reaches.
//!
//! | module | contents |
//! | --- | --- |
//! | `address` | `Address`: `s3://BUCKET/PREFIX` or `file:///DIRECTORY` |
//! | `bucket` | `Bucket`: requests for objects below the prefix, started or waited for, each of bounded length |
//! | `hedge` | reads that take unusually long, sent a second time |
//! | `connect` | the client of S3: endpoint, region, time limits, repetition |
//! | `credentials` | keys from the files that the tools of AWS have, read again when they change |
//! | `slice` | `SliceId`, by which slices and their objects are named |
//! | `codec` | `Codec`: the bytes of objects, with checksums, compressed and encrypted if that is wanted |
//! | `cipher` | `ContentKey`, and what is encrypted with it |
//! | `objects` | `SliceObjects`: slices that are stored and read |
//! | `slice_map` | `SliceMap`: which bytes of a file lie in which slices; its encoded parts, one for each chunk |
//! | `cache` | `SliceCache`: slices that were read or written lately, and parts of slices, each fetched once |
//! | `disk_cache` | `DiskCache`: objects in a directory of this machine |
//! | `arrivals` | pieces that have arrived, until they were read; `Readahead`: how readers in order are served |
//! | `piece` | `Found`: a slice, or parts of it; the names of both in caches |
//! | `flights` | parts that are on their way |
//! | `error` | `Error`, which names the place, the cause and the mend |
//!
//! **Slices never change.** A slice has up to [`BLOCK_BYTES`] of one file's block; its id is used once, so an object is
//! made by a conditional request, and a repeated request finds the same bytes or fails. A later slice covers an earlier
//! one in the map of its file; the map says which is later, not the bucket.
//!
//! **Nothing waits for ever.** A request ends after [`REQUEST_MAX`], once it has its turn; readers do not wait for
//! writers' turns.
//!
//! *Architecture invariant:* this crate knows neither files nor metadata.
#![forbid(unsafe_code)]

mod address;
mod arrivals;
mod bucket;
mod cache;
mod cipher;
mod codec;
mod connect;
mod credentials;
mod disk_cache;
mod error;
mod flights;
mod hedge;
mod objects;
mod piece;
mod slice;
mod slice_map;

pub use address::Address;
pub use arrivals::Readahead;
pub use bucket::{Bucket, Listed, REQUEST_MAX, Requests, Started};
pub use cache::SliceCache;
pub use cipher::ContentKey;
pub use codec::Codec;
pub use connect::ConnectOptions;
pub use disk_cache::{DISK_CACHE_BYTES_MIN, DiskCache};
pub use error::{Error, Result};
pub use objects::SliceObjects;
pub use piece::Found;
pub use slice::{BLOCK_BYTES, SliceId};
pub use slice_map::{BlockUse, CHUNK_BYTES, Extent, SliceMap, Unnamed};
