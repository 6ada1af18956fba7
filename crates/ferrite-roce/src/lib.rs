//! RoCEv2 in software: RDMA's packets over UDP, without sockets, threads and clocks.
//!
//! Bytes and a time go in; bytes, times to wake and completions come out. `ferrite-rnic` gives it sockets.
//!
//! * [`wire`]: packets as values.
//! * [`memory`]: the memory behind the keys, as a trait.
//! * [`responder`]: executes requests, once and in order.
//! * [`requester`]: sends requests, and resends them.
//! * [`endpoint`]: many queue pairs of one host.
//! * [`cm`]: makes and ends connections as rdma_cm does.
//!
//! Invariant: nothing here panics, or grows without bound, whatever arrives.

#![forbid(unsafe_code)]

pub mod cm;
pub mod endpoint;
pub mod memory;
pub mod requester;
pub mod responder;
pub mod wire;
