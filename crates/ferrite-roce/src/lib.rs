//! RoCEv2 in software: RDMA's packets over UDP, without sockets, threads and clocks.
//!
//! Bytes and a time go in; bytes, times to wake and completions come out. Nothing of the program uses this crate yet
//! other than its tests. The adapter that gives it sockets, and the files behind its keys, come next.
//!
//! * [`wire`]: packets as values.
//!
//! Invariant: nothing here panics, or grows without bound, whatever arrives.

#![forbid(unsafe_code)]

pub mod wire;
