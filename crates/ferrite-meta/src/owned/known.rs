//! The owner's cache, beside commits and reads under way.
//!
//! Contents: [`Known`], the cache with its lock; [`Reading`], a read that asks the database.
//!
//! A page of the database is of a moment between the start and the end of the request, and commits go on meanwhile. So
//! a reader notes the last batch before it asks; batches from then on are kept in a list while anybody reads, and are
//! laid over the page before it goes into the cache. A page may also be ahead: it has a batch whose commit has not
//! returned here. Then the reader waits for that commit, so that no caller sees one key of a batch and not another.
//!
//! Invariants: the cache is the state after batch `seq`, as far as it knows it. The list has all batches after the one
//! that the oldest reader noted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::Mutex;

use super::cache::{Cache, Run, Value};
use crate::error::{Error, Result};
use crate::lock_order;
use crate::overlay::{Changes, between};
use crate::remote::Pair;

struct State {
    cache: Cache,
    seq: u64,
    batches: VecDeque<(u64, Arc<Changes>)>,
    /// How many readers have noted which batch.
    readers: BTreeMap<u64, usize>,
}

/// See the head of this module.
pub(super) struct Known {
    state: Mutex<lock_order::KnownPairs, State>,
    advanced: Condvar,
}

/// A read that asks the database. Dropping it ends the read.
pub(super) struct Reading<'k> {
    known: &'k Known,
    since: u64,
}

impl Known {
    pub(super) fn new(cache_bytes: usize, seq: u64) -> Known {
        Known {
            state: Mutex::new(State {
                cache: Cache::new(cache_bytes),
                seq,
                batches: VecDeque::new(),
                readers: BTreeMap::new(),
            }),
            advanced: Condvar::new(),
        }
    }

    pub(super) fn seq(&self) -> u64 {
        self.state.lock().seq
    }

    pub(super) fn seq_and_bytes(&self) -> (u64, usize) {
        let state = self.state.lock();
        (state.seq, state.cache.bytes())
    }

    /// The value of a key, or that it has none; `None` if that is not known.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<Value>> {
        self.state.lock().cache.get(key)
    }

    /// The first `limit` pairs of a range, or all it has, if they are known.
    pub(super) fn run(&self, from: &[u8], to: &[u8], limit: usize) -> Option<Run> {
        let run = self.state.lock().cache.run(from, to, limit);
        (run.pairs.len() >= limit || run.until.as_slice() >= to).then_some(run)
    }

    /// Learns that a range has no pairs.
    pub(super) fn know_empty(&self, from: &[u8], to: &[u8]) {
        self.state.lock().cache.know(from, to, BTreeMap::new());
    }

    /// Begins a read.
    pub(super) fn start_reading(&self) -> Reading<'_> {
        let mut state = self.state.lock();
        let since = state.seq;
        *state.readers.entry(since).or_default() += 1;
        Reading { known: self, since }
    }

    /// A batch was applied.
    pub(super) fn applied<'c>(&self, seq: u64, members: impl Iterator<Item = &'c Changes>) {
        let mut state = self.state.lock();
        let keeps = !state.readers.is_empty();
        let mut all = Changes::new();
        for (key, value) in members.flatten() {
            state.cache.change(key, value.as_ref());
            if keeps {
                all.insert(key.clone(), value.clone());
            }
        }
        state.seq = seq;
        if keeps {
            state.batches.push_back((seq, Arc::new(all)));
        }
        drop(state);
        self.advanced.notify_all();
    }
}

impl Reading<'_> {
    /// Takes what the database said of `from..to` into the cache, and returns it as of now. Waits for a commit that the
    /// page has already.
    ///
    /// # Errors
    /// The page is older than what was acknowledged; the commit does not return.
    pub(super) fn learn(
        self,
        from: &[u8],
        to: &[u8],
        pairs: Vec<Pair>,
        seq: u64,
        timeout: Duration,
    ) -> Result<BTreeMap<Vec<u8>, Value>> {
        if seq < self.since {
            return Err(Error::WentBack {
                has: seq,
                wanted: self.since,
            });
        }
        let mut pairs: BTreeMap<Vec<u8>, Value> = pairs.into_iter().map(|(key, value)| (key, value.into())).collect();
        // A batch ends in bounded time; the margin is for a busy machine.
        let until = Instant::now() + 2 * timeout;
        let mut state = self.known.state.lock();
        while state.seq < seq {
            if self.known.advanced.wait_until(&mut state, until).timed_out() && state.seq < seq {
                return Err(Error::Unknown(format!(
                    "batch {seq} is there, but its commit did not return"
                )));
            }
        }
        let is_later = |number: u64| number > seq && !is_seeded(Bug::PageWithoutLaterBatches);
        let later: Vec<_> = state
            .batches
            .iter()
            .filter(|&&(number, _)| is_later(number))
            .cloned()
            .collect();
        for (key, value) in later.iter().flat_map(|(_, changes)| between(changes, from, to)) {
            match value {
                Some(value) => drop(pairs.insert(key.clone(), Arc::clone(value))),
                None => drop(pairs.remove(key)),
            }
        }
        state.cache.know(from, to, pairs.clone());
        drop(state);
        Ok(pairs)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.known.state.lock();
        if let Some(count) = state.readers.get_mut(&self.since) {
            *count -= 1;
            if *count == 0 {
                state.readers.remove(&self.since);
            }
        }
        let oldest = state.readers.keys().next().copied().unwrap_or(u64::MAX);
        while state.batches.front().is_some_and(|(number, _)| *number <= oldest) {
            state.batches.pop_front();
        }
    }
}
