//! A database in memory, for tests: several servers share one, and its clock is the test's.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::Mutex;

use super::{Applied, Batch, Owner, Page, Remote, Tenure, Values};
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
    epoch: u64,
    seq: u64,
    owner: Option<Owner>,
    expires: Duration,
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
        shard.epoch += 1;
        shard.expires = Duration::ZERO;
        shard.epoch
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
        match shard.epoch == tenure.epoch || is_seeded(Bug::BatchWithoutEpoch) {
            true => work(shard),
            false => Err(Error::Lost { epoch: shard.epoch }),
        }
    }
}

impl Remote for MemoryRemote {
    fn take(&self, number: u64, owner: &Owner, ttl: Duration) -> Result<Tenure> {
        let mut shards = self.shards.lock();
        let shard = shards.entry(number).or_default();
        let now = self.now();
        if let Some(other) = &shard.owner
            && shard.expires > now
        {
            return Err(Error::Owned {
                owner: other.name.clone(),
                address: other.address.clone(),
                left: shard.expires - now,
            });
        }
        shard.epoch += 1;
        shard.owner = Some(owner.clone());
        shard.expires = now + ttl;
        Ok(Tenure {
            shard: number,
            epoch: shard.epoch,
            seq: shard.seq,
        })
    }

    fn renew(&self, tenure: &Tenure, ttl: Duration) -> Result<()> {
        let now = self.now();
        self.with(tenure, |shard| {
            shard.expires = now + ttl;
            Ok(())
        })
    }

    fn apply(&self, tenure: &Tenure, seq: u64, batch: &Batch) -> Result<Applied> {
        self.with(tenure, |shard| match shard.seq {
            has if has == seq && !is_seeded(Bug::BatchWithoutNumber) => Ok(Applied::Before),
            has if has + 1 != seq && !is_seeded(Bug::BatchWithoutNumber) => {
                Err(Error::WentBack { has, wanted: seq - 1 })
            }
            _ => {
                batch.deletes.iter().for_each(|key| drop(shard.pairs.remove(key)));
                shard.pairs.extend(batch.puts.iter().cloned());
                shard.seq = seq;
                Ok(Applied::Now)
            }
        })
    }

    fn get_many(&self, tenure: &Tenure, keys: &[&[u8]]) -> Result<Values> {
        self.with(tenure, |shard| {
            Ok(Values {
                values: keys.iter().map(|&key| shard.pairs.get(key).cloned()).collect(),
                seq: shard.seq,
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
                seq: shard.seq,
            })
        })
    }
}
