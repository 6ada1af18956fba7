//! A store that reads a shard without owning it, for looks at a volume that a server may have.
//!
//! Contents: [`Viewed`], a [`MetaStore`] over any [`Remote`]. It has no cache, keeps nothing open in the database, and
//! changes nothing there, not even the row of the shard, so its owner does not notice it.
//!
//! # What holds
//!
//! * A value is of one moment, and so is each part of a scan; the owner may change the shard between them. The parts of
//!   a scan come in the order of time. [`Statistics::shard`] has the number of the last batch: if two looks at it, one
//!   before and one after some reads, have the same number, those reads are of one moment.
//! * A read carries the epoch that the row had. When another server has taken the shard, it begins again with the new
//!   epoch, a bounded number of times.
//! * Every change is refused.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::locks::Locks;
use crate::overlay::{Base, Changes, Overlay};
use crate::remote::{Remote, ShardStatus, Tenure};
use crate::store::{MetaStore, Statistics, Transaction, Visit};

/// The first part of a scan, and the largest: memory for a part is bounded by 4,096 pairs.
const SCAN_PAIRS: (usize, usize) = (256, 4096);
/// Pairs that the database counts in one request: some tenths of a second.
const TALLY_PAIRS: usize = 250_000;
/// Owners that may change during one read.
const OWNERS_MAX: usize = 16;

/// See the head of this module.
pub struct Viewed<R: Remote> {
    remote: R,
    shard: u64,
    /// The epoch that the row had last.
    epoch: AtomicU64,
    /// Nobody waits for them: no change is ever made.
    locks: Locks,
}

impl<R: Remote> Viewed<R> {
    /// Looks at a shard.
    ///
    /// # Errors
    /// Those of [`Remote::status`].
    pub fn open(remote: R, shard: u64) -> Result<Viewed<R>> {
        let epoch = remote.status(shard)?.epoch;
        Ok(Viewed {
            remote,
            shard,
            epoch: AtomicU64::new(epoch),
            locks: Locks::new(Duration::from_secs(1)),
        })
    }

    /// The owner of the shard now.
    ///
    /// # Errors
    /// Those of [`Remote::status`].
    pub fn status(&self) -> Result<ShardStatus> {
        self.remote.status(self.shard)
    }

    /// Reads as of the epoch that the shard has at that moment.
    fn read<T>(&self, call: impl Fn(&Tenure) -> Result<T>) -> Result<T> {
        for _ in 0..OWNERS_MAX {
            let tenure = Tenure {
                shard: self.shard,
                epoch: self.epoch.load(Ordering::Relaxed),
                seq: 0,
            };
            match call(&tenure) {
                Err(Error::Lost { epoch }) => self.epoch.store(epoch, Ordering::Relaxed),
                answer => return answer,
            }
        }
        Err(Error::Busy)
    }
}

impl<R: Remote> Base for Viewed<R> {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn committed(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.read(|tenure| self.remote.get_many(tenure, &[key]))?;
        Ok(found.values.into_iter().next().flatten())
    }

    fn scan_committed(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let (mut from, mut limit) = (from.to_vec(), SCAN_PAIRS.0);
        while from.as_slice() < to {
            let page = self.read(|tenure| self.remote.scan(tenure, &from, to, limit))?;
            for (key, value) in &page.pairs {
                if visit(key, value) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            let Some(next) = page.next else { return Ok(()) };
            from = next;
            limit = SCAN_PAIRS.1.min(2 * limit);
        }
        Ok(())
    }

    fn commit(&self, _changes: Changes) -> Result<()> {
        Err(Error::Invalid(
            "a change of a volume that is only looked at; open it for use".into(),
        ))
    }
}

impl<R: Remote> MetaStore for Viewed<R> {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        Box::new(Overlay::new(self))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.committed(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        self.scan_committed(from, to, visit)
    }

    /// It has nothing to store.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// In parts, each as of a moment.
    fn tally(&self, from: &[u8], to: &[u8]) -> Result<Option<(u64, u64)>> {
        let (mut keys, mut bytes, mut from) = (0, 0, Some(from.to_vec()));
        while let Some(at) = from {
            let part = self.read(|tenure| self.remote.tally(tenure, &at, to, TALLY_PAIRS))?;
            keys += part.keys;
            bytes += part.value_bytes;
            from = part.next;
        }
        Ok(Some((keys, bytes)))
    }

    /// Asks the database; without an answer there is no owner to tell of.
    fn statistics(&self) -> Statistics {
        Statistics {
            shard: self.status().ok(),
            ..Statistics::default()
        }
    }
}
