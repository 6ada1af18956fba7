//! An engine behind an imaginary network: the view of a service's client, in one process.
//!
//! Contents: [`Remote`], any engine as seen through a [`Network`]. The network counts the calls, delays them, lets some
//! overtake others, loses requests and replies, and repeats calls that allow it, according to its [`Conditions`]
//! (`wire`). `engine` passes each call of the two traits across it; `parcel` copies arguments.
//!
//! Invariant: the engine uses nothing that a caller owns. Arguments are copied before a call, results after it, and a
//! listing is gathered before its receiver sees an entry.
//!
//! Invariant: a call that changes something is executed at most once. That includes a pin.

mod engine;
mod parcel;
mod wire;

use std::sync::Arc;

use ferrite_vfs::FileSystem;

use crate::TestEngine;

pub use wire::{Conditions, Network};

/// An engine that can be put behind a network.
pub trait Served: Send + Sync {
    /// The engine.
    fn engine(&self) -> &dyn FileSystem;
}

impl Served for Arc<dyn FileSystem> {
    fn engine(&self) -> &dyn FileSystem {
        &**self
    }
}

impl<E: TestEngine + Send + Sync> Served for E {
    fn engine(&self) -> &dyn FileSystem {
        self.fs()
    }
}

/// An engine behind a network.
pub struct Remote<E> {
    engine: E,
    network: Arc<Network>,
}

impl<E: Served> Remote<E> {
    /// Puts `engine` behind a network of its own.
    pub fn new(engine: E, conditions: Conditions) -> Self {
        Remote {
            engine,
            network: Arc::new(Network::new(conditions)),
        }
    }

    /// The network, for reading its counts of calls and changing its conditions.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }
}

impl<E: TestEngine + Send + Sync> TestEngine for Remote<E> {
    fn fs(&self) -> &dyn FileSystem {
        self
    }

    fn remount(&mut self) {
        self.engine.remount();
    }

    fn check(&self) {
        self.engine.check();
    }
}
