//! Parts of slices that are on their way: all who want one of them wait for the same request.
//!
//! Invariant: a part is on its way until it is in the cache, or its request has failed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ferrite_checks::ranked::Mutex;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use crate::error::Result;
use crate::piece::Found;
use crate::slice::SliceId;

mod lock_order {
    ferrite_checks::ranks! {
        "ferrite-slices flights":
        /// The requests. The cache is looked at under it.
        Flights = 10;
    }
}

/// A request, which a task runs; clones wait for the same one.
pub(crate) type Flight = Shared<BoxFuture<'static, Result<Found>>>;

/// The parts that a request is for, and the request. Its task has it: nothing is left when tasks end with the bucket.
type Sent = (Range<u32>, WeakShared<BoxFuture<'static, Result<Found>>>);

type ByPart = HashMap<(SliceId, u32), Sent>;

/// All requests for parts. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Flights(Arc<Mutex<lock_order::Flights, ByPart>>);

/// Where a part comes from.
pub(crate) enum Source {
    Here(Bytes),
    /// Some parts of a request; whether it is a new one.
    Flight(Range<u32>, Flight, bool),
}

impl std::fmt::Debug for Flights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Flights").field(&self.0.lock().len()).finish()
    }
}

impl Flights {
    /// Where some parts of a slice come from: those that are here, as `here` says, or on their way, and requests for
    /// the others, which `send` makes. Each source is for one part that is here, or for as many as a request has.
    pub(crate) fn sources(
        &self,
        id: SliceId,
        parts: &Range<u32>,
        here: impl Fn(u32) -> Option<Bytes>,
        send: impl Fn(Range<u32>, Landing) -> Flight,
    ) -> Vec<Source> {
        let mut sent = self.0.lock();
        let mut found = Vec::new();
        let mut at = parts.start;
        while at < parts.end {
            if let Some(bytes) = here(at) {
                found.push(Source::Here(bytes));
                at += 1;
                continue;
            }
            let under_way = |part: u32| {
                let (window, flight) = sent.get(&(id, part))?;
                Some((window.end.min(parts.end), flight.upgrade()?))
            };
            if let Some((to, flight)) = under_way(at) {
                found.push(Source::Flight(at..to, flight, false));
                at = to;
                continue;
            }
            let is_missing = |part: &u32| under_way(*part).is_none() && here(*part).is_none();
            let to = (at + 1..parts.end).find(|part| !is_missing(part)).unwrap_or(parts.end);
            let landing = Landing(self.clone(), id, at..to);
            let flight = send(at..to, landing);
            if let Some(weak) = flight.downgrade() {
                sent.extend((at..to).map(|part| ((id, part), (at..to, weak.clone()))));
            }
            found.push(Source::Flight(at..to, flight, true));
            at = to;
        }
        found
    }
}

/// A request, until it has ended.
pub(crate) struct Landing(Flights, SliceId, Range<u32>);

impl Drop for Landing {
    fn drop(&mut self) {
        let mut sent = self.0.0.lock();
        for part in self.2.clone() {
            sent.remove(&(self.1, part));
        }
    }
}
