//! Byte-addressable media: one mapped region, and how stores to it become durable (docs/design.md, "Media").
//!
//! | module | what lives there |
//! | --- | --- |
//! | `region` | [`Region`]: loads, stores, streams, write-backs, fences |
//! | `map`, `medium` | opening and mapping; telling media apart; the pool lock |
//! | [`holder`] | who holds the lock on a file |
//! | `creation` | the file of a new pool, which is whole or not there |
//! | [`blank`] | files that hold nothing, and may become pools without a question |
//! | `shared` | copies between a pool and our own memory, by atomic words |
//! | `cpu` | the instructions, chosen by CPU feature |
//! | `sync` | group commit on ordinary files |
//! | `faults` | faults on a mapping poison the region instead of killing the process |
//! | `copies` | private views of device DAX, which the kernel maps only shared |
//! | `deferred` | views whose write-back is deferred until a sync |
//! | `dirty` | [`DirtyLines`]: lines that wait to be written back |
//! | `counters` | fences, lines, bytes |
//! | `thread` | a number for each thread |
//! | [`profile`] | what an operation spends its time on, in builds that explain themselves |
//! | [`line_trace`] | which lines an operation writes that others write, too, in the same builds |
//! | [`fork`] | distinguishing a process from its forked children |
//! | `events` | what CPU and kernel count: cache misses |
//! | `recorder`, `crash`, `omission` | logging stores; building the images a crash could leave; forgetting fences |
//! | `image` | [`Image`]: the bytes of a pool, of which tests make many regions |
//!
//! *Architecture invariant:* this crate knows nothing of the stored data, and no other crate makes stores to a pool
//! durable by other means. *Architecture invariant:* no `&[u8]` into a pool is ever made: another thread may be storing
//! there (docs/memory-model.md).
#![deny(unsafe_code)]

pub mod blank;
#[allow(unsafe_code)]
mod copies;
mod counters;
#[allow(unsafe_code)]
mod cpu;
mod crash;
mod creation;
mod deferred;
mod dirty;
mod error;
#[allow(unsafe_code)]
mod events;
#[allow(unsafe_code)]
mod faults;
#[allow(unsafe_code)]
pub mod fork;
pub mod holder;
mod image;
pub mod line_trace;
#[allow(unsafe_code)]
mod map;
mod medium;
mod omission;
pub mod profile;
mod recorder;
#[allow(unsafe_code)]
mod region;
mod shared;
mod sync;
mod thread;
mod zeroed;

pub use counters::Counters;
pub use cpu::{CpuFeatures, LINE_BYTES, cpu_features, prefetch, prefetch_to_store};
pub use crash::{Choice, Event, ImageCursor, Log};
pub use dirty::DirtyLines;
pub use error::PmError;
pub use events::{CpuEvent, EventCounter, EventError};
pub use image::Image;
pub use map::Access;
pub use medium::Medium;
pub use omission::Step;
pub use recorder::Recorder;
pub use region::{Durability, Region, WrittenEntries};
pub use thread::thread_number;
pub use zeroed::zeroed;
