//! Files behind an adapter in software: what the figures of FileMR and `ferrite-lab bench mr` share.
//!
//! Contents: [`Served`], a file of an engine with an adapter in front of it; [`Service`], a whole server;
//! [`RawWrites`], packets that were made beforehand, so that only who answers is measured, and [`bare_round_trip_ns`],
//! the same without anybody behind; [`layout`], where the pages of files lie; [`workloads`], files as programs leave
//! them, and accesses to them.

pub mod layout;
mod served;
mod service;
mod udp;
pub mod workloads;

pub use served::Served;
pub use service::Service;
pub use udp::{RawWrites, bare_round_trip_ns};

use crate::error::LabError;

/// What an adapter, or what is behind it, said.
fn failed(error: impl std::fmt::Display) -> LabError {
    LabError::Rdma(error.to_string())
}
