//! The tests of the RDMA adapter in software, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod disconnects;
mod lossy_network;
mod managed;
mod support;
mod verbs;
