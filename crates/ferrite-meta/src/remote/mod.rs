//! Ordered keys in a database elsewhere, each shard of which one server at a time may change.
//!
//! Contents: the trait [`Remote`], with five calls that any transactional database can offer, a look at a shard's row
//! and a count of pairs, and two notices of how long answers are of use; [`Tenure`], the right to change a shard;
//! [`ShardRow`], the rules of a shard's row; [`MemoryRemote`] and [`FaultyRemote`] for tests; `PostgresRemote`, with
//! the cargo feature `postgres`.
//! [`Owned`](crate::Owned) makes a [`MetaStore`](crate::MetaStore) of one, [`Viewed`](crate::Viewed) one that only
//! reads. A reader without a tenure passes the epoch that the row has.
//!
//! # What a database must hold
//!
//! * A shard has a row `(epoch, seq, owner, expiry)` and pairs of keys and values. [`Remote::take`] raises the epoch in
//!   one atomic step, if the time of the previous owner has run out by *the database's* clock. No clock of a server is
//!   ever compared with another's.
//! * [`Remote::apply`] changes all pairs of a batch or none, and only if the row still has the epoch of the tenure and
//!   the sequence number before the batch's; it stores the batch's number in the same step. So what an owner sends
//!   after another has taken over changes nothing, and a batch that is sent again after a lost answer is not applied
//!   twice.
//! * A read tells the sequence number of the state that it saw, in which each batch is there whole or not at all, and
//!   it sees all that was acknowledged before it began.
//! * An acknowledged batch survives the crash of any one machine that the database promises to survive. If it cannot
//!   tell, it answers [`Error::Unknown`](crate::Error::Unknown).
//!
//! Ownership is a right to cache and never the basis of safety: a server that wrongly believes to be the owner can
//! change nothing.
//!
//! Every call is bounded in time by the implementation, and waits at most that long.

mod faulty;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
mod shard_row;

pub use faulty::{Fault, FaultPlan, FaultyRemote, RemoteCall};
pub use memory::MemoryRemote;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresRemote, ServerState, Tenancy, VolumeState};
pub use shard_row::ShardRow;

use std::time::Duration;

use crate::error::Result;

/// A key with its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The server that owns a shard, or wants to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Unique to this process, so that no two processes take each other for themselves.
    pub name: String,
    /// Where clients reach it; may be empty.
    pub address: String,
}

/// The right to change a shard, until another server takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    /// The shard.
    pub shard: u64,
    /// Larger than that of every tenure before.
    pub epoch: u64,
    /// The sequence number of the last batch that was applied before this tenure began.
    pub seq: u64,
}

/// The outcome of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was applied by this call.
    Now,
    /// An earlier call with the same number had applied it.
    Before,
}

/// A batch of changes of different keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Pairs to be stored.
    pub puts: Vec<Pair>,
    /// Keys to be removed, whether they exist or not.
    pub deletes: Vec<Vec<u8>>,
}

/// The values of some keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values {
    /// In the order of the keys that were asked for.
    pub values: Vec<Option<Vec<u8>>>,
    /// The last batch that the state has.
    pub seq: u64,
}

/// A part of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys.
    pub pairs: Vec<Pair>,
    /// Where the next page begins; without it, the range ends here.
    pub next: Option<Vec<u8>>,
    /// The last batch that the state has.
    pub seq: u64,
}

/// The owner of a shard, as its row says. By the database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStatus {
    /// The last server that took it; `None` if none ever did.
    pub owner: Option<Owner>,
    /// That of its tenure.
    pub epoch: u64,
    /// The last batch that was applied.
    pub seq: u64,
    /// For how long its tenure still runs, unless it is renewed. Zero: another server may take the shard.
    pub lease_left: Duration,
}

impl ShardStatus {
    /// Whether a server's tenure runs.
    pub fn is_owned(&self) -> bool {
        !self.lease_left.is_zero()
    }
}

/// How many pairs a part of a range has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Pairs.
    pub keys: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Where the next part begins; without it, the range ends here.
    pub next: Option<Vec<u8>>,
    /// The last batch that the state has.
    pub seq: u64,
}

/// How large a batch may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Changes of keys.
    pub changes: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
}

/// A database that holds shards of pairs. Any number of threads may use it at once.
pub trait Remote: Send + Sync {
    /// Takes a shard for `ttl`, counted from now by the database's clock.
    ///
    /// # Errors
    /// [`Error::Owned`](crate::Error::Owned) while another server's time runs;
    /// [`Error::Missing`](crate::Error::Missing) if there is no such shard;
    /// [`Error::Unreachable`](crate::Error::Unreachable); others of the database.
    fn take(&self, shard: u64, owner: &Owner, ttl: Duration) -> Result<Tenure>;

    /// Prolongs a tenure to `ttl` from now by the database's clock. With zero it ends: the next server may take the
    /// shard at once.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if another server has taken the shard;
    /// [`Error::Unreachable`](crate::Error::Unreachable); others of the database.
    fn renew(&self, tenure: &Tenure, ttl: Duration) -> Result<()>;

    /// Applies a batch, all of it or nothing. `seq` is one more than that of the batch before. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost), nothing was changed; [`Error::NoSpace`](crate::Error::NoSpace), nothing was
    /// changed; [`Error::Unreachable`](crate::Error::Unreachable), nothing was sent;
    /// [`Error::Unknown`](crate::Error::Unknown): it may have been applied, now or later, and the same call finds out;
    /// [`Error::WentBack`](crate::Error::WentBack): the database has lost batches that it had acknowledged.
    fn apply(&self, tenure: &Tenure, seq: u64, batch: &Batch) -> Result<Applied>;

    /// The values of some keys, all as of one moment.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost), [`Error::Unreachable`](crate::Error::Unreachable); others of the database.
    fn get_many(&self, tenure: &Tenure, keys: &[&[u8]]) -> Result<Values>;

    /// The first pairs of `from..to`, at most `limit` (at least 1), as of one moment. Keeps nothing open in the
    /// database.
    ///
    /// # Errors
    /// As for [`Self::get_many`].
    fn scan(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Page>;

    /// The owner of a shard. Changes nothing, and needs no tenure.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), [`Error::Unreachable`](crate::Error::Unreachable); others of the
    /// database.
    fn status(&self, shard: u64) -> Result<ShardStatus>;

    /// Counts the first pairs of `from..to`, at most `limit` (at least 1), as of one moment. A database that can count
    /// without sending the pairs does so.
    ///
    /// # Errors
    /// As for [`Self::get_many`].
    fn tally(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Tally> {
        let page = self.scan(tenure, from, to, limit)?;
        Ok(Tally {
            keys: page.pairs.len() as u64,
            value_bytes: page.pairs.iter().map(|(_, value)| value.len() as u64).sum(),
            next: page.next,
            seq: page.seq,
        })
    }

    /// Tells how long the owner may still answer: until it says so again, calls wait no longer than that, and a moment;
    /// with [`Duration::MAX`] as long as they may. An answer that comes later is of no use, and whoever waits for it
    /// keeps what a successor needs. Renewals wait as before.
    fn is_useful_for(&self, _left: Duration) {}

    /// Ends the calls that are under way within a moment, renewals too: their answers are of no use any more.
    fn end_calls(&self) {}

    /// How large a batch may be.
    fn limits(&self) -> BatchLimits {
        BatchLimits {
            changes: 4096,
            bytes: 4 << 20,
        }
    }
}

impl<R: Remote + ?Sized> Remote for std::sync::Arc<R> {
    fn take(&self, shard: u64, owner: &Owner, ttl: Duration) -> Result<Tenure> {
        (**self).take(shard, owner, ttl)
    }

    fn renew(&self, tenure: &Tenure, ttl: Duration) -> Result<()> {
        (**self).renew(tenure, ttl)
    }

    fn apply(&self, tenure: &Tenure, seq: u64, batch: &Batch) -> Result<Applied> {
        (**self).apply(tenure, seq, batch)
    }

    fn get_many(&self, tenure: &Tenure, keys: &[&[u8]]) -> Result<Values> {
        (**self).get_many(tenure, keys)
    }

    fn scan(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Page> {
        (**self).scan(tenure, from, to, limit)
    }

    fn status(&self, shard: u64) -> Result<ShardStatus> {
        (**self).status(shard)
    }

    fn tally(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Tally> {
        (**self).tally(tenure, from, to, limit)
    }

    fn is_useful_for(&self, left: Duration) {
        (**self).is_useful_for(left);
    }

    fn end_calls(&self) {
        (**self).end_calls();
    }

    fn limits(&self) -> BatchLimits {
        (**self).limits()
    }
}
