//! Files behind an adapter in software: common parts of the figures of FileMR and `ferrite-lab bench mr`.
//!
//! Contents: [`Served`], a file of an engine with an adapter in front of it; [`Service`], a whole server;
//! [`RawWrites`], packets made beforehand, so that only the responder is measured, and [`raw_round_trip_ns`], the same
//! with a mere echo; [`layout`], the placement of files' pages; [`workloads`], files as programs leave them, and
//! accesses to them; [`translation`], tables and caches of pages beside those of ranges.

pub mod layout;
mod served;
mod service;
pub mod translation;
mod udp;
pub mod workloads;

pub use served::Served;
pub use service::Service;
pub use udp::{RawWrites, raw_round_trip_ns};

use crate::error::LabError;

/// An error of an adapter, or of the memory behind it.
fn failed(error: impl std::fmt::Display) -> LabError {
    LabError::Rdma(error.to_string())
}
