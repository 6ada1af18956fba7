//! A stand-in for `on_fabric` in a build without the feature `fabric`: it refuses clients that want to move to a
//! fabric.

use std::convert::Infallible;
use std::time::Duration;

use ferrite_buffers::Pool;
use rustix::event::epoll::EventFlags;

use super::{FabricOptions, Reactor, Service};
use crate::frame::OWN_ID;

/// No connection ever has one.
pub(super) struct OnFabric(Infallible);

impl OnFabric {
    pub(super) fn is_stalled(&self, _: Duration) -> bool {
        match self.0 {}
    }

    pub(super) fn is_stuck(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn takes_bulk(&self) -> bool {
        match self.0 {}
    }
}

/// No thread has any fabric.
pub(super) struct Fabrics;

impl Fabrics {
    pub(super) fn new(_: Option<FabricOptions>, _: &Pool) -> Fabrics {
        Fabrics
    }

    pub(super) fn pause(&self) -> Duration {
        Duration::MAX
    }

    pub(super) fn forget(&mut self, _: u64, on_fabric: OnFabric) {
        match on_fabric.0 {}
    }
}

impl<S: Service> Reactor<S> {
    pub(super) fn poll(&mut self) -> bool {
        true
    }

    pub(super) fn serve_wired(&mut self, _: u64, _: EventFlags) {}

    pub(super) fn introduce(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.introduction = None;
        let mut frame = connection.out.frame();
        frame.body().extend(OWN_ID);
        frame.body().extend(b"\0it was built without fabric://");
        frame.finish();
        self.serve(number, EventFlags::empty());
    }
}
