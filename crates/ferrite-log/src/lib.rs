//! An append-only log in a file, with the interface of libpmemlog.
//!
//! Contents: [`Log`] (`log`), which appends, walks and rewinds; its bytes (`format`), and the search for records
//! (`walk`); its requirements on a file ([`Store`], `store`), and their implementation for an engine's file
//! ([`FileStore`]). With the feature `rdma`, files of a server that clients reach by one-sided verbs (`remote`). FileMR
//! (NSDI 2020, section 4.3) built its remote log like this, on libpmemlog.
//!
//! Invariants:
//! * An append that has returned is durable, and every later walk has it, whole and once, until the log is rewound.
//! * A walk passes on whole appends only. The remains of one after a crash or a lost connection have no valid checksum.
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
