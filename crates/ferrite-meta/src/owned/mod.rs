//! A store of metadata whose pairs lie in a database, and of which this process is the owner.
//!
//! Contents: [`Owned`], a [`MetaStore`] over any [`Remote`]. Locks, and the cache of what the owner knows, are in
//! memory; the database is asked for what the cache lacks, and gets each commit before it becomes visible here.
//!
//! | module | contents |
//! | --- | --- |
//! | `cache` | ranges of which all pairs are known, within a limit of memory |
//! | `committer` | commits that wait at the same time become one batch |
//! | `lease` | until when the owner may answer |
//! | `known` | reads that miss the cache, beside commits |
//! | `renewer` | the thread that prolongs the lease |
//!
//! # What holds
//!
//! * A read sees what was acknowledged before it began, and a batch whole or not at all: a page of the database tells
//!   the batch that it has seen, and the reader waits until that batch is in the cache, too.
//! * An answer is given only while the lease runs, which is checked after everything was read ([`Owned::may_answer`]).
//! * Once another server has taken the shard, or the outcome of a commit stays unknown, every call fails for ever: only
//!   a new tenure can tell what is there.

mod cache;
mod committer;
mod known;
mod lease;
mod renewer;

pub use lease::{MonotonicClock, answers_until};

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;

use crate::error::{Error, Result};
use crate::lock_order;
use crate::locks::Locks;
use crate::overlay::{Base, Changes, Overlay};
use crate::owned_status::OwnedStatus;
use crate::remote::{Owner, Remote, ShardStatus, Tenure};
use crate::store::{MetaStore, Statistics, Transaction, Visit};
use cache::Run;
use committer::{Committer, Member, batch_of};
use known::Known;
use lease::Lease;
use renewer::Renewer;

/// Pairs that a read of a single key asks for: its neighbours are often next.
const READ_AROUND: usize = 64;
/// The first part of a scan, and the largest.
const SCAN_PAIRS: (usize, usize) = (256, 4096);
/// Pairs that the database counts in one request: some tenths of a second.
const TALLY_PAIRS: usize = 250_000;

/// How a shard is owned.
#[non_exhaustive]
pub struct OwnedOptions {
    /// How long a tenure lasts without being renewed. Another server takes over that long after this one has died. 10
    /// seconds by default.
    pub ttl: Duration,
    /// How much earlier the owner stops to answer than the database lets another take over: more than the database's
    /// clock and this machine's may differ by over one `ttl`. A tenth of `ttl` by default.
    pub margin: Option<Duration>,
    /// Bytes of memory for the cache, at most. 256 MiB by default.
    pub cache_bytes: usize,
    /// How long a commit waits for the database before its outcome counts as unknown, which stops the store. 10 seconds
    /// by default.
    pub commit_timeout: Duration,
    /// Between attempts to learn the outcome of a batch. 20 ms by default.
    pub retry_after: Duration,
    /// How long a transaction waits for a lock. 5 seconds by default.
    pub lock_timeout: Duration,
    /// The clock of leases; by default the time since this machine started, suspended time included.
    pub clock: MonotonicClock,
    /// Prolong the lease from a thread of the store; else the caller calls [`Owned::renew`].
    pub renews: bool,
}

impl Default for OwnedOptions {
    fn default() -> Self {
        OwnedOptions {
            ttl: Duration::from_secs(10),
            margin: None,
            cache_bytes: 256 << 20,
            commit_timeout: Duration::from_secs(10),
            retry_after: Duration::from_millis(20),
            lock_timeout: Duration::from_secs(5),
            clock: Box::new(lease::boot_clock),
            renews: true,
        }
    }
}

#[derive(Default)]
struct Counters {
    commits: AtomicU64,
    batches: AtomicU64,
    commit_us: AtomicU64,
    commit_us_max: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

/// The part of a store that its threads share.
struct Shared<R> {
    remote: R,
    owner: Owner,
    tenure: Tenure,
    lease: Lease,
    renewals_failed: AtomicU64,
    /// Why every call fails.
    dead: Mutex<lock_order::Failure, Option<Error>>,
}

impl<R: Remote> Shared<R> {
    /// Prolongs the lease once, unless it was given up.
    fn renew(&self) -> Result<()> {
        self.check_alive()?;
        let sent = self.lease.now();
        match self.remote.renew(&self.tenure, self.lease.ttl()) {
            Ok(()) => {
                self.lease.prolong(sent);
                self.remote.is_useful_for(self.lease.left());
                Ok(())
            }
            Err(error) => {
                Counters::add(&self.renewals_failed, 1);
                self.lease.failed(&error);
                Err(self.stopped_by(error))
            }
        }
    }

    /// Notes an error that ends the tenure.
    fn stopped_by(&self, error: Error) -> Error {
        if error.is_fatal() {
            self.dead.lock().get_or_insert_with(|| error.clone());
        }
        error
    }

    fn check_alive(&self) -> Result<()> {
        match &*self.dead.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

/// See the head of this module.
pub struct Owned<R: Remote> {
    shared: Arc<Shared<R>>,
    known: Known,
    committer: Committer,
    locks: Locks,
    counters: Counters,
    cache_bytes_max: usize,
    commit_timeout: Duration,
    retry_after: Duration,
    renewer: Option<Renewer>,
}

impl<R: Remote + 'static> Owned<R> {
    /// Takes a shard of a database.
    ///
    /// # Errors
    /// [`Error::Owned`] while another server's time runs; others of [`Remote::take`]; no thread could be started.
    pub fn open(remote: R, shard: u64, owner: &Owner, options: OwnedOptions) -> Result<Owned<R>> {
        let margin = options.margin.unwrap_or(options.ttl / 10);
        let lease = Lease::new(options.clock, options.ttl, margin);
        let sent = lease.now();
        let tenure = remote.take(shard, owner, options.ttl)?;
        lease.prolong(sent);
        remote.is_useful_for(lease.left());
        let known = Known::new(options.cache_bytes, tenure.seq);
        let shared = Arc::new(Shared {
            remote,
            owner: owner.clone(),
            tenure,
            lease,
            renewals_failed: AtomicU64::new(0),
            dead: Mutex::default(),
        });
        let renewer = match options.renews {
            true => Some(Renewer::start(Arc::clone(&shared), options.ttl / 3)?),
            false => None,
        };
        Ok(Owned {
            shared,
            known,
            committer: Committer::default(),
            locks: Locks::new(options.lock_timeout),
            counters: Counters::default(),
            cache_bytes_max: options.cache_bytes,
            commit_timeout: options.commit_timeout,
            retry_after: options.retry_after,
            renewer,
        })
    }
}

impl<R: Remote> Owned<R> {
    /// Prolongs the lease. Only for stores that do not renew it themselves.
    ///
    /// # Errors
    /// Those of [`Remote::renew`].
    pub fn renew(&self) -> Result<()> {
        self.shared.renew()
    }

    /// The database.
    pub fn remote(&self) -> &R {
        &self.shared.remote
    }

    /// Its state, and what it has done.
    pub fn status(&self) -> OwnedStatus {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (seq, cache_bytes) = self.known.seq_and_bytes();
        OwnedStatus {
            epoch: self.shared.tenure.epoch,
            seq,
            lease_left: self.shared.lease.left(),
            commits: read(&self.counters.commits),
            batches: read(&self.counters.batches),
            commit_us: read(&self.counters.commit_us),
            commit_us_max: read(&self.counters.commit_us_max),
            renewals_failed: read(&self.shared.renewals_failed),
            hits: read(&self.counters.hits),
            misses: read(&self.counters.misses),
            cache_bytes: cache_bytes as u64,
            cache_bytes_max: self.cache_bytes_max as u64,
        }
    }

    /// Whether an answer made of what was read before may be given.
    ///
    /// # Errors
    /// Another server has taken the shard, or may have; the outcome of a commit is unknown.
    pub fn may_answer(&self) -> Result<()> {
        self.shared.check_alive()?;
        self.shared.lease.check()
    }

    fn value_of(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>> {
        if let Some(value) = self.known.get(key) {
            Counters::add(&self.counters.hits, 1);
            return Ok(value);
        }
        Counters::add(&self.counters.misses, 1);
        let reading = self.known.start_reading();
        let Some(to) = same_kind_end(key) else {
            let found = self.shared.remote.get_many(&self.shared.tenure, &[key])?;
            let value = found.values.into_iter().next().flatten();
            let pairs = value.map(|value| (key.to_vec(), value)).into_iter().collect();
            let mut to = key.to_vec();
            to.push(0);
            return Ok(reading
                .learn(key, &to, pairs, found.seq, self.commit_timeout)?
                .remove(key));
        };
        let page = self.shared.remote.scan(&self.shared.tenure, key, &to, READ_AROUND)?;
        let until = page.next.unwrap_or(to);
        let mut pairs = reading.learn(key, &until, page.pairs, page.seq, self.commit_timeout)?;
        Ok(pairs.remove(key))
    }

    /// The first pairs of a range, as of one moment.
    fn portion(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Run> {
        if let Some(run) = self.known.run(from, to, limit) {
            Counters::add(&self.counters.hits, 1);
            return Ok(run);
        }
        Counters::add(&self.counters.misses, 1);
        let reading = self.known.start_reading();
        let page = self.shared.remote.scan(&self.shared.tenure, from, to, limit)?;
        let until = page.next.unwrap_or_else(|| to.to_vec());
        let pairs = reading.learn(from, &until, page.pairs, page.seq, self.commit_timeout)?;
        Ok(Run {
            pairs: pairs.into_iter().collect(),
            until,
        })
    }

    /// Sends a batch until its outcome is known, or the time is over.
    fn send(&self, members: &[Arc<Member>]) -> Result<()> {
        self.shared.check_alive()?;
        let batch = batch_of(members);
        let start = Instant::now();
        let seq = self.known.seq() + 1;
        // Why it is not known whether an earlier attempt was applied.
        let mut doubt = None;
        let outcome = loop {
            let error = match self.shared.remote.apply(&self.shared.tenure, seq, &batch) {
                Ok(_) => break Ok(()),
                Err(error) => error,
            };
            match error {
                lost @ Error::WentBack { .. } => break Err(lost),
                Error::Unknown(_) | Error::Unreachable(_)
                    if start.elapsed() < self.commit_timeout && !self.shared.lease.left().is_zero() =>
                {
                    let is_unknown = matches!(error, Error::Unknown(_));
                    doubt = doubt.or(is_unknown.then_some(error));
                }
                // An earlier attempt may have been applied before what this one met.
                error => break Err(doubt.unwrap_or(error)),
            }
            std::thread::sleep(self.retry_after);
        };
        outcome.map_err(|error| self.shared.stopped_by(error))?;
        Counters::add(&self.counters.batches, 1);
        Counters::add(&self.counters.commits, members.len() as u64);
        let took_us = start.elapsed().as_micros() as u64;
        Counters::add(&self.counters.commit_us, took_us);
        self.counters.commit_us_max.fetch_max(took_us, Ordering::Relaxed);
        self.known.applied(seq, members.iter().map(|member| &member.changes));
        Ok(())
    }
}

/// The end of the keys that have the same first byte, if there is one.
fn same_kind_end(key: &[u8]) -> Option<Vec<u8>> {
    let next = key.first()?.checked_add(1)?;
    Some(vec![next])
}

impl<R: Remote> Base for Owned<R> {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn committed(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.shared.check_alive()?;
        let value = self.value_of(key).map_err(|error| self.shared.stopped_by(error))?;
        self.may_answer()?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan_committed(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let mut from = from.to_vec();
        let mut limit = SCAN_PAIRS.0;
        while from.as_slice() < to {
            self.shared.check_alive()?;
            let portion = self.portion(&from, to, limit);
            let run = portion.map_err(|error| self.shared.stopped_by(error))?;
            self.may_answer()?;
            for (key, value) in &run.pairs {
                if visit(key, value) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            from = run.until;
            limit = SCAN_PAIRS.1.min(2 * limit);
        }
        Ok(())
    }

    fn commit(&self, changes: Changes) -> Result<()> {
        self.may_answer()?;
        let limits = self.shared.remote.limits();
        self.committer.commit(changes, limits, &|members| self.send(members))
    }
}

impl<R: Remote> MetaStore for Owned<R> {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        Box::new(Overlay::new(self))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.committed(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        self.scan_committed(from, to, visit)
    }

    /// Every commit is durable when it returns.
    fn sync(&self) -> Result<()> {
        self.shared.check_alive()
    }

    fn health(&self) -> Result<()> {
        self.shared.check_alive()
    }

    fn abandon(&self) {
        let ended = self.shared.lease.check().err();
        let why = ended.unwrap_or_else(|| Error::Expired("the volume was abandoned".into()));
        self.shared.dead.lock().get_or_insert(why);
        self.shared.lease.end();
        self.shared.remote.end_calls();
    }

    fn give_up(&self) {
        let mut dead = self.shared.dead.lock();
        if dead.is_some() {
            return;
        }
        // It answers nothing any more before another server may, even if a renewal is under way.
        *dead = Some(Error::Expired("the volume was given up".into()));
        drop(dead);
        self.shared.lease.end();
        // If the database does not hear it, the tenure ends without it.
        let _ = self.shared.remote.renew(&self.shared.tenure, Duration::ZERO);
        self.shared.remote.is_useful_for(Duration::MAX);
    }

    fn may_answer(&self) -> Result<()> {
        Owned::may_answer(self)
    }

    fn lease_left(&self) -> Duration {
        self.shared.lease.left()
    }

    fn lease_length(&self) -> Duration {
        self.shared.lease.ttl()
    }

    fn know_empty(&self, from: &[u8], to: &[u8]) {
        self.known.know_empty(from, to);
    }

    /// In parts, so that each request ends in bounded time.
    fn tally(&self, from: &[u8], to: &[u8]) -> Result<Option<(u64, u64)>> {
        self.shared.check_alive()?;
        let (mut from, wanted) = (Some(from.to_vec()), self.known.seq());
        let (mut keys, mut bytes) = (0, 0);
        while let Some(at) = from {
            let part = self.shared.remote.tally(&self.shared.tenure, &at, to, TALLY_PAIRS);
            let part = part.map_err(|error| self.shared.stopped_by(error))?;
            if part.seq < wanted {
                let error = Error::WentBack { has: part.seq, wanted };
                return Err(self.shared.stopped_by(error));
            }
            keys += part.keys;
            bytes += part.value_bytes;
            from = part.next;
        }
        self.may_answer()?;
        Ok(Some((keys, bytes)))
    }

    fn statistics(&self) -> Statistics {
        let status = self.status();
        Statistics {
            memory_bytes: status.cache_bytes,
            cache_hits: status.hits,
            cache_misses: status.misses,
            log_syncs: status.batches,
            shard: Some(ShardStatus {
                owner: Some(self.shared.owner.clone()),
                epoch: status.epoch,
                seq: status.seq,
                lease_left: status.lease_left,
            }),
            owned: Some(status),
            ..Statistics::default()
        }
    }
}

impl<R: Remote> Drop for Owned<R> {
    fn drop(&mut self) {
        drop(self.renewer.take());
        MetaStore::give_up(self);
    }
}
