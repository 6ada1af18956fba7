//! An append-only log in a file, with the interface of libpmemlog.
//!
//! Contents: [`Log`] (`log`), which appends, walks and rewinds; its bytes (`format`), and how they are found
//! again (`walk`); what it needs of a file ([`Store`], `store`), and that of an engine's file ([`FileStore`]). With the
//! feature `rdma`, files of a server that are reached by one-sided verbs (`remote`). FileMR (NSDI 2020, section 4.3)
//! built its remote log like this, on libpmemlog.
//!
//! Invariants:
//! * An append that has returned is durable, and every later walk has it, whole and once, until the log is rewound.
//! * A walk hands out whole appends only. What a crash or a lost connection left of one has no valid checksum.
//! * No place in the file is used twice: a rewind moves the log's start to its end. So a walk that is overtaken by a
//!   rewind cannot take new bytes for old ones.
//!
//! This crate names no engine.
#![forbid(unsafe_code)]

mod error;
mod format;
mod log;
#[cfg(feature = "rdma")]
mod remote;
mod store;
mod walk;

pub use error::{Error, Result};
pub use format::{FIRST_RECORD_AT, FRAME_BYTES, RECORD_BYTES_MAX};
pub use log::{Log, LogOptions};
#[cfg(feature = "rdma")]
pub use remote::RemoteStore;
pub use store::{FileStore, Store};
pub use walk::Walked;
