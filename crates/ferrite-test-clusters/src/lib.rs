//! PostgreSQL, Ceph and S3 in temporary folders, on loopback, for tests and benchmarks that need the real
//! servers.
//!
//! | module | contents |
//! | --- | --- |
//! | `postgres` | [`Postgres`]: a primary, and a synchronous standby if asked for |
//! | `ceph` | [`Ceph`]: a monitor, up to three OSDs with BlueStore, a pool, and a manager if asked for |
//! | `s3` | [`S3`]: a service that speaks the protocol of S3, and fails on demand |
//! | `proxy` | [`Proxy`]: a network that can be cut |
//! | `daemon` | processes that die with this one; [`pause`], which stops any |
//! | `folder` | temporary folders that disappear even if this process is killed |
//! | `command` | programs that run to their end, with a time limit |
//! | `error` | [`Error`], and [`or_skip`] |
//!
//! Start times on two cores, with four times as much other work as they can do: PostgreSQL 3 to 4 s, its standby 2 s
//! more; Ceph with two OSDs 5 to 10 s. A Ceph takes about 130 MB of memory, 300 MB more with its manager, and 50 MB for
//! empty stores.
//!
//! Invariants: nothing outlives the test process, even if that is killed: the kernel signals the daemons, and a shell
//! that waits for the end of a pipe removes the folder. Every wait has a limit, and an error carries the end of the
//! server's log. Nothing listens anywhere but on loopback. The servers trust every user of the machine, so they must
//! hold nothing but the data of tests.
//!
//! *Architecture invariant:* only tests and the lab use this crate. It knows no other crate of the workspace.
#![forbid(unsafe_code)]

mod ceph;
mod command;
mod daemon;
mod error;
mod folder;
mod postgres;
mod proxy;
mod s3;

pub use ceph::{Ceph, CephOptions, PausedMonitor};
pub use daemon::pause;
pub use error::{Error, Result, or_skip};
pub use postgres::{Postgres, PostgresOptions, Server};
pub use proxy::{Passing, Proxy};
pub use s3::{S3, S3Fault, S3Request};
