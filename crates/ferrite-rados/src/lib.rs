//! Objects in a Ceph cluster: a small, safe binding of librados (Debian's librados-dev, 16.2), with the cargo feature
//! `librados`. Without it this crate is empty, and nothing is linked.
//!
//! | module | contents |
//! | --- | --- |
//! | `client` | `Client`: a connection, its `Instance`, and the blocklist that fences another instance |
//! | `pool` | `Pool`: operations on objects, at once or several in progress, and pages of names |
//! | `op` | `WriteOp`, `ReadOp`: the steps of one atomic operation on one object |
//! | `bounded` | time limits for the calls of librados that have none |
//! | `error`, `name` | `Error`, which names pool and object; the names that librados takes |
//! | `sys` | the calls of librados; the only module with `unsafe` |
//!
//! **Atomicity and durability.** All steps of an operation take effect, or none does, also over crashes. A write that
//! returned is durable on all replicas that the pool's placement group has at that moment (`min_size` or more).
//!
//! **Nothing waits for ever.** Operations on objects end after `Options::object_timeout`, calls of the monitor after
//! `Options::monitor_timeout`. The outcome of a write that timed out is unknown (`Error::TimedOut`): an OSD may
//! still carry it out later. Only a blocklist that this instance is on, or an epoch that the write compares, prevents
//! that.
//!
//! **Fencing.** There are two ways. (1) Every write compares an xattr with the writer's epoch
//! (`WriteOp::compare_epoch`): a writer whose epoch is lower changes nothing (`Error::Fenced`). (2) The new owner puts
//! the old one's instance on the blocklist (`Client::blocklist`): all its operations fail (`Error::Blocklisted`).
//! In a cluster of one OSD, on loopback with its store in memory, a durable write of 4 KiB with (1) takes 1.00 to 1.01
//! times as long as a plain one (medians), and with an xattr of 64 bytes stored as well, 1.02 to 1.03 times; the test
//! `cost_of_fencing` prints these ratios. (2) costs a write nothing.
//!
//! A process must not fork between `Client::connect` and its last use: librados has threads.
//!
//! *Architecture invariant:* this crate knows no other crate of the workspace, and its interface exposes nothing of
//! librados.
#![deny(unsafe_code)]

#[cfg(feature = "librados")]
mod bounded;
#[cfg(feature = "librados")]
mod client;
#[cfg(feature = "librados")]
mod error;
#[cfg(feature = "librados")]
mod name;
#[cfg(feature = "librados")]
mod op;
#[cfg(feature = "librados")]
mod pool;
#[cfg(feature = "librados")]
mod sys;

#[cfg(feature = "librados")]
pub use client::{Client, ClusterSpace, Instance, Options};
#[cfg(feature = "librados")]
pub use error::{Error, Place, Result};
#[cfg(feature = "librados")]
pub use op::{Compare, OPERATION_BYTES_MAX, ReadOp, WriteOp, XATTR_BYTES_MAX};
#[cfg(feature = "librados")]
pub use pool::{Cursor, Listed, Page, PendingRead, PendingWrite, Pool, ReadReply, Usage};
