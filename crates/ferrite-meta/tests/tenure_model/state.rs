//! The state of the model: processes, the database, and what is under way between them.
//!
//! Contents: [`State`] and its parts. Every moment is relative to the present, which is [`NOW`] on all clocks: a tick
//! moves the past away instead. Processes have no names, so states that differ only in their order are one.

use std::time::Duration;

use ferrite_meta::ShardRow;

/// Moments and lengths of time.
pub(crate) type Ticks = u8;

/// The present. All that is compared with it is younger.
pub(crate) const NOW: Ticks = 16;

pub(crate) fn duration(ticks: Ticks) -> Duration {
    Duration::from_secs(ticks.into())
}

pub(crate) fn ticks(duration: Duration) -> Ticks {
    duration.as_secs() as Ticks
}

/// A set of small numbers: of epochs, or of writes, each of which is a client's and has one batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Numbers(u8);

impl Numbers {
    pub(crate) fn add(&mut self, number: u8) {
        self.0 |= 1 << number;
    }

    pub(crate) fn has(self, number: u8) -> bool {
        self.0 & (1 << number) != 0
    }

    pub(crate) fn contains(self, other: Numbers) -> bool {
        other.0 & !self.0 == 0
    }
}

/// A call whose reply the process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Call {
    /// To prolong, else to take.
    pub renews: bool,
    /// By the caller's clock, before the request left.
    pub sent: Ticks,
    /// On its way. A refusal is left out: a process that hears one does nothing that a dead one does not.
    pub reply: Option<Reply>,
}

/// The database's reply to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    Renewed,
    /// `content`: the shard at that moment.
    Taken {
        epoch: u8,
        seq: u8,
        content: Numbers,
    },
}

/// A batch that its owner has not seen the end of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Pending {
    pub seq: u8,
    pub write: u8,
    pub is_sent: bool,
    /// It was sent when another had taken the shard.
    pub is_late: bool,
    /// The reply on its way: applied, or refused.
    pub is_applied: Option<bool>,
}

/// Of a read. The answer leaves with the last step; if it is held up, it stays what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ReadPhase {
    /// Only with a mistake: the owner has checked first.
    Checked {
        acknowledged: Numbers,
    },
    Read(Answer),
    /// The client has an answer that it should not have: a right one leaves nothing to check.
    Answered(Answer),
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Answer {
    /// It was read while its owner's epoch was the newest.
    pub is_newest: bool,
    /// It lacks what was acknowledged before the client asked.
    pub is_old: bool,
}

/// A tenure as its owner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Held {
    pub epoch: u8,
    /// Of the last batch whose end is known.
    pub seq: u8,
    pub known: Numbers,
    /// End of the lease by the owner's clock.
    pub until: Ticks,
    pub is_stopping: bool,
    /// Only with a mistake: given up, and still answering.
    pub is_given_up: bool,
    pub batch: Option<Pending>,
    pub read: Option<ReadPhase>,
}

impl Held {
    pub(crate) fn may_answer(&self) -> bool {
        !self.is_stopping && self.until > NOW
    }

    pub(crate) fn awaits(&self, batch: &Batch) -> bool {
        let is_it = |pending: Pending| pending.is_sent && (pending.seq, pending.write) == (batch.seq, batch.write);
        self.epoch == batch.epoch && self.batch.is_some_and(is_it)
    }
}

/// A process of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Process {
    /// By how much its clock is ahead of the database's.
    pub ahead: Ticks,
    pub call: Option<Call>,
    pub held: Option<Held>,
}

impl Process {
    /// Whether it depends on its clock: else that may show anything.
    pub(crate) fn uses_clock(&self) -> bool {
        self.call.is_some() || self.held.is_some_and(|held| held.may_answer())
    }
}

/// A batch in the network, or applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Batch {
    pub epoch: u8,
    pub seq: u8,
    pub write: u8,
}

/// See the head of this module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub processes: Vec<Process>,
    pub row: ShardRow,
    /// The batches that were applied.
    pub log: Vec<Batch>,
    /// Tenures that were given up, whose requests may still arrive.
    pub given_up: Numbers,
    /// The batches that were sent and may still arrive, in order.
    pub batches: Vec<Batch>,
    pub writes: u8,
    pub acknowledged: Numbers,
}

impl State {
    pub(crate) fn new(processes: usize) -> State {
        State {
            processes: vec![Process::default(); processes],
            row: ShardRow {
                expires: duration(NOW),
                ..ShardRow::default()
            },
            log: Vec::new(),
            given_up: Numbers::default(),
            batches: Vec::new(),
            writes: 0,
            acknowledged: Numbers::default(),
        }
    }

    /// The content of the shard.
    pub(crate) fn applied(&self) -> Numbers {
        let mut writes = Numbers::default();
        self.log.iter().for_each(|batch| writes.add(batch.write));
        writes
    }

    /// The last tenure.
    pub(crate) fn epoch(&self) -> u8 {
        self.row.epoch as u8
    }

    /// Whether the owner of a batch would take a reply to it.
    pub(crate) fn is_awaited(&self, batch: &Batch) -> bool {
        let mut held = self.processes.iter().filter_map(|process| process.held);
        held.any(|held| held.awaits(batch))
    }
}
