//! The tests of client and server, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod access_times;
mod admission;
mod again;
mod bounds;
mod busy;
mod cache_leases;
mod common;
mod devices;
mod disconnects;
#[cfg(feature = "rdma")]
#[path = "common/double.rs"]
mod double;
#[cfg(feature = "rdma")]
mod exchange;
mod exports;
mod failover;
mod fuzz_corpus;
#[path = "../../../fuzz/src/handshake.rs"]
mod handshake;
mod keys;
mod lease_rules;
mod leases;
mod listings;
mod locks;
#[cfg(feature = "rdma")]
#[path = "common/lossy_network.rs"]
mod lossy_network;
mod lying_server;
mod many_clients;
mod movable;
#[path = "../../../fuzz/src/network.rs"]
mod network;
mod order;
mod pieces;
mod power;
#[cfg(feature = "rdma")]
mod rdma;
mod read_only;
#[cfg(feature = "rdma")]
mod replicated;
#[path = "../../../fuzz/src/replies.rs"]
mod replies;
mod rights;
mod sessions;
mod stop;
mod submitted;
mod subtrees;
mod suites;
mod unsynced;
#[cfg(feature = "rdma")]
mod verbs_leases;
