//! A database in memory, for tests: several servers share one, and its clock is the test's.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::Mutex;

use super::{Applied, Batch, Owner, Page, Remote, ShardRow, ShardStatus, Tenure, Values};
use crate::error::{Error, Result};
use crate::lock_order;

/// Shards in memory. All of them exist, and are empty at first. Nothing is durable.
#[derive(Debug)]
pub struct MemoryRemote {
    shards: Mutex<lock_order::Shards, HashMap<u64, Shard>>,
    clock: Clock,
}

#[derive(Debug)]
enum Clock {
    System(Instant),
    Manual(Mutex<lock_order::ManualClock, Duration>),
}

#[derive(Debug, Default)]
struct Shard {
    row: ShardRow,
    owner: Option<Owner>,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Default for MemoryRemote {
    fn default() -> Self {
        MemoryRemote {
            shards: Mutex::default(),
            clock: Clock::System(Instant::now()),
        }
    }
}

impl MemoryRemote {
    /// An empty database, whose clock is the system's.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty database, whose clock stands still except for [`Self::advance`].
    pub fn with_manual_clock() -> Self {
        MemoryRemote {
            shards: Mutex::default(),
            clock: Clock::Manual(Mutex::default()),
        }
    }

    /// Moves a manual clock forward; has no effect on the system's.
    pub fn advance(&self, by: Duration) {
        if let Clock::Manual(now) = &self.clock {
            *now.lock() += by;
        }
    }

    /// Takes away the right to change a shard, as if another server had taken and left it. Returns the new epoch.
    pub fn move_epoch(&self, shard: u64) -> u64 {
        let mut shards = self.shards.lock();
        let shard = shards.entry(shard).or_default();
        shard.row.epoch += 1;
        shard.row.expires = Duration::ZERO;
        shard.row.epoch
    }

    /// A copy, as a backup would make it: same shards, same pairs.
    pub fn copy(&self) -> Self {
        let shards = self.shards.lock();
        let copied = shards.iter().map(|(&number, shard)| {
            let copy = Shard {
                pairs: shard.pairs.clone(),
                owner: shard.owner.clone(),
                ..*shard
            };
            (number, copy)
        });
        MemoryRemote {
            shards: Mutex::new(copied.collect()),
            ..Self::default()
        }
    }

    fn now(&self) -> Duration {
        match &self.clock {
            Clock::System(start) => start.elapsed(),
            Clock::Manual(now) => *now.lock(),
        }
    }

    /// Runs `work` on a shard, unless another server has taken it.
    fn with<T>(&self, tenure: &Tenure, work: impl FnOnce(&mut Shard) -> Result<T>) -> Result<T> {
        let mut shards = self.shards.lock();
        let shard = shards.entry(tenure.shard).or_default();
        if !is_seeded(Bug::BatchWithoutEpoch) {
            shard.row.check(tenure.epoch)?;
        }
        work(shard)
    }
}

impl Remote for MemoryRemote {
    fn take(&self, number: u64, owner: &Owner, ttl: Duration) -> Result<Tenure> {
        let mut shards = self.shards.lock();
        let shard = shards.entry(number).or_default();
        let now = self.now();
        if let Err(left) = shard.row.take(now, ttl) {
            let (owner, address) = shard
                .owner
                .clone()
                .map(|other| (other.name, other.address))
                .unwrap_or_default();
            return Err(Error::Owned { owner, address, left });
        }
        shard.owner = Some(owner.clone());
        Ok(Tenure {
            shard: number,
            epoch: shard.row.epoch,
            seq: shard.row.seq,
        })
    }

    fn renew(&self, tenure: &Tenure, ttl: Duration) -> Result<()> {
        let now = self.now();
        self.with(tenure, |shard| {
            let epoch = shard.row.epoch;
            shard.row.renew(epoch, now, ttl)
        })
    }

    fn apply(&self, tenure: &Tenure, seq: u64, batch: &Batch) -> Result<Applied> {
        self.with(tenure, |shard| {
            if is_seeded(Bug::BatchWithoutNumber) {
                shard.row.seq = seq.saturating_sub(1);
            }
            let applied = shard.row.apply(shard.row.epoch, seq)?;
            if applied == Applied::Now {
                batch.deletes.iter().for_each(|key| drop(shard.pairs.remove(key)));
                shard.pairs.extend(batch.puts.iter().cloned());
            }
            Ok(applied)
        })
    }

    fn get_many(&self, tenure: &Tenure, keys: &[&[u8]]) -> Result<Values> {
        self.with(tenure, |shard| {
            Ok(Values {
                values: keys.iter().map(|&key| shard.pairs.get(key).cloned()).collect(),
                seq: shard.row.seq,
            })
        })
    }

    fn scan(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Page> {
        self.with(tenure, |shard| {
            let bounds = (Bound::Included(from), Bound::Excluded(to));
            let range = (from < to).then(|| shard.pairs.range::<[u8], _>(bounds));
            let mut rest = range
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.clone(), value.clone()));
            let pairs = rest.by_ref().take(limit.max(1)).collect();
            Ok(Page {
                pairs,
                next: rest.next().map(|(key, _)| key),
                seq: shard.row.seq,
            })
        })
    }

    fn status(&self, number: u64) -> Result<ShardStatus> {
        let mut shards = self.shards.lock();
        let shard = shards.entry(number).or_default();
        Ok(ShardStatus {
            owner: shard.owner.clone(),
            epoch: shard.row.epoch,
            seq: shard.row.seq,
            lease_left: shard.row.expires.saturating_sub(self.now()),
        })
    }
}
