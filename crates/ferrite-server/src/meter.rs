//! Counters of clients' requests.
//!
//! Contents: [`Meter`], which counts for one session, or for the ended sessions of an export; a server's report of
//! itself ([`Metrics`]).
//!
//! A request costs one clock read and a few additions to counters that mostly one thread uses. A session's counters go
//! to its export when it ends, under the lock on the list of sessions: a holder of that lock sees each request in one
//! place.

use std::array;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use ferrite_transport::reactor::{Data, TurnCounts};
use ferrite_transport::send_queue::SendQueue;

use crate::lock_order;
use ferrite_proto::{Activity, BoundFileInfo, Counted, LATENCY_CLASSES, OPCODES_MAX, OperationActivity, RdmaCounters};
use ferrite_vfs::latency::Latency;

#[derive(Debug, Default)]
struct Counts {
    errors: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    latency: Latency,
}

/// Counters by kind of request; unused kinds take no space.
#[derive(Debug)]
struct Operations([OnceLock<Box<Counts>>; OPCODES_MAX]);

impl Default for Operations {
    fn default() -> Self {
        Operations(array::from_fn(|_| OnceLock::new()))
    }
}

impl Operations {
    fn of(&self, number: usize) -> Option<&Counts> {
        Some(self.0.get(number)?.get_or_init(Box::default))
    }
}

thread_local! {
    /// Errors that this thread has sent.
    static FAILURES: Cell<u64> = const { Cell::new(0) };
}

/// Counts an error that this thread sends.
pub(super) fn note_failure() {
    FAILURES.set(FAILURES.get() + 1);
}

/// The measurements of a received request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    number: u16,
    received_bytes: usize,
    pub(super) since: Instant,
    /// The bytes queued so far at that time.
    put_bytes: u64,
    failures: u64,
}

/// A message as it was received.
pub(super) struct Received<'m> {
    pub(super) body: &'m [u8],
    pub(super) data: Data<'m>,
    pub(super) measured: Measured,
}

impl<'m> Received<'m> {
    /// A request received now, on the thread that answers it, unless a worker does.
    pub(super) fn new(number: u16, body: &'m [u8], data: Data<'m>, out: &SendQueue) -> Received<'m> {
        let measured = Measured {
            number,
            received_bytes: body.len() + data.bytes().len(),
            since: Instant::now(),
            put_bytes: out.put_bytes(),
            failures: FAILURES.get(),
        };
        Received { body, data, measured }
    }
}

/// The number of requests for locks, which are answered at any time.
const LOCK: u16 = 35;

impl Measured {
    /// Counts the request, if it was answered: otherwise it will come again, or a worker has it.
    pub(super) fn count_if_replied(&self, meter: &Meter, out: &SendQueue) {
        let sent_bytes = (out.put_bytes() - self.put_bytes) as usize;
        if sent_bytes > 0 || self.number == LOCK {
            meter.count(self, sent_bytes, FAILURES.get() != self.failures);
        }
    }

    /// The same request, now on this thread, with a queue of its own.
    pub(super) fn on_this_thread(self) -> Measured {
        Measured {
            put_bytes: 0,
            failures: FAILURES.get(),
            ..self
        }
    }
}

/// See the head of this module.
#[derive(Debug, Default)]
pub(super) struct Meter {
    operations: Operations,
    address: Mutex<lock_order::Address, Option<SocketAddr>>,
}

impl Meter {
    fn count(&self, measured: &Measured, sent_bytes: usize, has_failed: bool) {
        let Some(counts) = self.operations.of(usize::from(measured.number)) else {
            return;
        };
        counts.latency.count(measured.since.elapsed().as_nanos() as u64);
        counts
            .received_bytes
            .fetch_add(measured.received_bytes as u64, Ordering::Relaxed);
        counts.sent_bytes.fetch_add(sent_bytes as u64, Ordering::Relaxed);
        if has_failed {
            counts.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes the address that the client has connected from.
    pub(super) fn comes_from(&self, address: SocketAddr) {
        *self.address.lock() = Some(address);
    }

    /// The address that it last connected from.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock()
    }

    /// Takes over the counts of another, and leaves nothing there.
    pub(super) fn take_over(&self, other: &Meter) {
        let add = |to: &AtomicU64, from: &AtomicU64| {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        };
        for (number, from) in other.operations.0.iter().enumerate() {
            let (Some(from), Some(to)) = (from.get(), self.operations.of(number)) else {
                continue;
            };
            add(&to.errors, &from.errors);
            add(&to.received_bytes, &from.received_bytes);
            add(&to.sent_bytes, &from.sent_bytes);
            to.latency.take_over(&from.latency);
        }
    }

    /// Adds its counts to `all`, which is in the order of numbers and complete; returns them without latencies.
    pub(super) fn add_to(&self, all: &mut Vec<OperationActivity>) -> Vec<(u16, Counted)> {
        let mut mine = Vec::new();
        for (number, counts) in self.operations.0.iter().enumerate() {
            let Some(counts) = counts.get() else { continue };
            let latency = counts.latency.classes();
            let number = number as u16;
            let counted = Counted {
                requests: latency.iter().sum(),
                errors: counts.errors.load(Ordering::Relaxed),
                received_bytes: counts.received_bytes.load(Ordering::Relaxed),
                sent_bytes: counts.sent_bytes.load(Ordering::Relaxed),
                busy_ns: counts.latency.busy_ns(),
            };
            if counted.requests == 0 {
                continue;
            }
            mine.push((number, counted));
            let at = match all.binary_search_by_key(&number, |operation| operation.number) {
                Ok(at) => at,
                Err(at) => {
                    let none = OperationActivity {
                        number,
                        counted: Counted::default(),
                        latency: vec![0; LATENCY_CLASSES],
                    };
                    all.insert(at, none);
                    at
                }
            };
            all[at].counted += counted;
            let classes = all[at].latency.iter_mut().zip(&latency);
            classes.for_each(|(sum, count)| *sum += count);
        }
        mine
    }
}

/// How sessions of an export came and went.
#[derive(Debug, Default)]
pub(super) struct Comings {
    pub(super) begun: AtomicU64,
    pub(super) reclaimed: AtomicU64,
    pub(super) expired: AtomicU64,
}

/// A server's activity at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Metrics {
    /// How long it has been running.
    pub uptime: Duration,
    /// Connections of sessions.
    pub connections: u64,
    /// Connections that have not selected a session yet.
    pub pending_connections: u64,
    /// Memory for data in flight.
    pub buffers_bytes: u64,
    /// How much of it is in use.
    pub buffers_used_bytes: u64,
    /// How long the threads that serve connections took for a turn of one.
    pub turns: TurnCounts,
    /// By the name of the export.
    pub exports: Vec<(String, Activity)>,
    /// Sessions refused because there were too many, by the name of the export.
    pub sessions_refused: Vec<(String, u64)>,
    /// The counters of the RDMA adapter, if there is one.
    pub rdma: Option<RdmaCounters>,
    /// Bound files, by the name of the export.
    pub bound: Vec<(String, Vec<BoundFileInfo>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_over_is_counted_once() {
        let (one, two) = (Meter::default(), Meter::default());
        let measured = Measured {
            number: 42,
            received_bytes: 10,
            since: Instant::now(),
            put_bytes: 0,
            failures: 0,
        };
        one.count(&measured, 100, false);
        two.count(&measured, 200, true);
        two.count(&Measured { number: 13, ..measured }, 1, false);
        let mut before = Vec::new();
        one.add_to(&mut before);
        two.add_to(&mut before);
        one.take_over(&two);
        let mut after = Vec::new();
        assert_eq!(two.add_to(&mut after), []);
        one.add_to(&mut after);
        assert_eq!(before, after);
        assert_eq!(after[0].number, 13);
        assert_eq!((after[1].counted.requests, after[1].counted.errors), (2, 1));
        assert_eq!(after[1].counted.sent_bytes, 300);
        // An unknown number is not counted, and does no harm.
        one.count(
            &Measured {
                number: u16::MAX,
                ..measured
            },
            1,
            false,
        );
    }
}
