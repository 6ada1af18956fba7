//! Counters of an adapter.

use std::ops::AddAssign;

use ferrite_roce::{endpoint, responder};

/// Counters of an adapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Present queue pairs.
    pub queue_pairs: u64,
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams that the kernel did not send.
    pub not_sent: u64,
    /// Requests carried out: packets of WRITEs, READs, atomics.
    pub executed: u64,
    /// Duplicate requests.
    pub duplicates: u64,
    /// Requests that arrived before earlier ones.
    pub out_of_order: u64,
    /// Requests that were deferred (RNR).
    pub not_ready: u64,
    /// Datagrams that reached no queue pair: damaged, from unknown senders, for dead queue pairs.
    pub dropped: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.queue_pairs += other.queue_pairs;
        self.received += other.received;
        self.sent += other.sent;
        self.not_sent += other.not_sent;
        self.executed += other.executed;
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        self.not_ready += other.not_ready;
        self.dropped += other.dropped;
    }
}

impl Counters {
    pub(crate) fn note_dropped(&mut self, of: &endpoint::Counters) {
        self.dropped += of.malformed + of.icrc + of.partition + of.unknown + of.foreign + of.wrong_service + of.dead;
    }

    pub(crate) fn note_responder(&mut self, of: &responder::Counters) {
        self.executed += of.executed;
        self.duplicates += of.duplicates;
        self.out_of_order += of.out_of_order;
        self.not_ready += of.not_ready;
    }
}
