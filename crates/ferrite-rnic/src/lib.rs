//! An RDMA adapter in software: RoCEv2 over UDP sockets.
//!
//! [`ferrite_roce`] knows packets, queue pairs and connections, and neither sockets nor clocks. This crate has both, at
//! both ends:
//!
//! * [`Rnic`]: threads that respond. Each has its own queue pairs and its own [`Memory`](ferrite_roce::memory::Memory).
//! * [`Initiator`]: the requesting end. A queue pair with verbs, driven by its caller, for hosts without RDMA hardware.
//! * [`path`]: which addresses and which packets lead to a peer.
//!
//! Invariant: this crate knows no files. The memory interprets keys, and the program that opens queue pairs decides who
//! gets one.

#![deny(unsafe_code)]

mod batch;
mod clock;
mod command_queue;
mod counters;
mod error;
mod initiator;
mod listener;
pub mod path;
mod port;
mod qpn;
mod rnic;
mod service;
mod shared;
mod worker;

pub use counters::Counters;
pub use error::{Error, StartError};
pub use initiator::{Counters as InitiatorCounters, Initiator, Options as InitiatorOptions, Ticket};
pub use rnic::{Rnic, everywhere};
pub use service::{ConnectRequest, End, NoService, Options, Peer, QueuePair, Service};
