//! The client's cache of the server's replies, valid as long as it has leases.
//!
//! Contents: [`Cache`]: by inode attributes, the names that a directory has and lacks, and pages of data.
//!
//! Invariants:
//! * The cache keeps a reply only if it came with a lease, and only until the term is over, counted from before the
//!   request was sent ([`Cache::ask`]). The clock also runs while the machine sleeps.
//! * A reply is kept only if nothing of its inode was dropped since its request was sent ([`RequestStart`]): it may be
//!   older than a recall that has overtaken it.
//! * While this client itself changes an inode, the cache neither keeps nor serves anything of it ([`Cache::change`]):
//!   the server does not recall leases for a session's own changes. A change that may still take effect though no
//!   caller waits for it never ends.
//! * Without a connection the cache is empty, so that a server which has restarted, or ended the session, need not
//!   know.
//! * Reads by others do not recall access times. This client's own reads drop the attributes.
//! * All hits on one inode under one lock show one state: nothing changes while there is a lease.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::{Attr, FsError, Ino, Result};
use rustc_hash::FxHashMap;

use crate::lock_order;
use ferrite_proto::{Caller, Node, NodeAttr};

/// Data is kept by pages of this length.
pub(super) const PAGE_BYTES: usize = 4096;
/// Longer reads are not kept.
pub(super) const READ_BYTES_MAX: usize = 128 << 10;
/// There is no lease on anything that the cache keeps for less.
const VALIDITY_MIN: Duration = Duration::from_millis(200);
/// Inodes that share a count of what was dropped.
const STRIPES: usize = 1024;
/// The approximate size of a record without its content.
const RECORD_BYTES: usize = 320;

/// A time on a clock that cannot be set and does not stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(Duration);

impl Moment {
    fn now() -> Moment {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Moment(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }
}

/// The state of the cache when a request was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestStart {
    /// The count of drops.
    drops: u64,
    since: Moment,
}

/// The callers that may see a name: the server checks permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Requester {
    pub(super) caller: Caller,
    pub(super) check: bool,
}

struct Record {
    generation: u32,
    ends: Moment,
    used: u64,
    bytes: usize,
    attr: Option<Attr>,
    names: FxHashMap<Vec<u8>, (Requester, Option<Node>)>,
    pages: FxHashMap<u64, Box<[u8]>>,
}

#[derive(Default, Clone, Copy)]
struct Stripe {
    /// The count of drops when something of it was last dropped.
    dropped: u64,
    /// The same for the last read by this client, which may have moved its access time.
    read: u64,
    changing: u32,
}

struct Kept {
    term: Duration,
    records: FxHashMap<Ino, Record>,
    /// By last use.
    by_use: BTreeMap<u64, Ino>,
    uses: u64,
    bytes: usize,
    stripes: Vec<Stripe>,
    /// As for a stripe, when everything was last dropped.
    all_dropped: u64,
    /// Drops so far.
    drops: u64,
    all_changing: u32,
}

/// Counters of a cache.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheActivity {
    /// Calls answered without the server.
    pub hits: u64,
    /// Recalls by the server.
    pub recalls: u64,
    /// Approximate size of its content now.
    pub bytes: u64,
}

/// See the head of this module.
pub(super) struct Cache {
    bytes_max: usize,
    kept: Mutex<lock_order::Cache, Kept>,
    hits: AtomicU64,
    recalls: AtomicU64,
}

/// The inodes that a change touches, as far as the client knows them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Changed {
    One(Ino),
    Everything,
}

/// A change by this client, which ends when this is dropped. Forgetting it keeps the inode out of the cache.
pub(super) struct Changing<'c> {
    cache: &'c Cache,
    changed: Changed,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.cache.has_changed(self.changed);
    }
}

impl Cache {
    /// Keeps up to `bytes_max`.
    pub(super) fn new(bytes_max: usize) -> Cache {
        Cache {
            bytes_max,
            kept: Mutex::new(Kept {
                term: Duration::ZERO,
                records: FxHashMap::default(),
                by_use: BTreeMap::new(),
                uses: 0,
                bytes: 0,
                stripes: vec![Stripe::default(); STRIPES],
                all_dropped: 0,
                drops: 0,
                all_changing: 0,
            }),
            hits: AtomicU64::new(0),
            recalls: AtomicU64::new(0),
        }
    }

    /// Empties the cache for a new connection, on which leases have this term.
    pub(super) fn connected(&self, term: Duration) {
        let mut kept = self.kept.lock();
        kept.drop_all();
        kept.term = term;
    }

    /// Empties the cache when the connection is lost.
    pub(super) fn disconnected(&self) {
        self.connected(Duration::ZERO);
    }

    pub(super) fn activity(&self) -> CacheActivity {
        CacheActivity {
            hits: self.hits.load(Ordering::Relaxed),
            recalls: self.recalls.load(Ordering::Relaxed),
            bytes: self.kept.lock().bytes as u64,
        }
    }

    /// To be called before a request is sent.
    pub(super) fn ask(&self) -> RequestStart {
        RequestStart {
            drops: self.kept.lock().drops,
            since: Moment::now(),
        }
    }

    /// The server recalls its lease on an inode. The cache keeps nothing of it when this returns.
    pub(super) fn recall(&self, ino: Ino) {
        self.recalls.fetch_add(1, Ordering::Relaxed);
        self.kept.lock().drop_one(ino);
    }

    /// The server has answered a read of this client, which may have moved the access time.
    pub(super) fn was_read(&self, ino: Ino) {
        let mut kept = self.kept.lock();
        kept.drops += 1;
        let drops = kept.drops;
        kept.stripe_mut(ino).read = drops;
        if let Some(record) = kept.records.get_mut(&ino) {
            record.attr = None;
        }
    }

    /// To be called before a change is sent.
    pub(super) fn change(&self, changed: Changed) -> Changing<'_> {
        self.begin_change(changed);
        Changing { cache: self, changed }
    }

    /// The same for a change whose end the caller reports with [`Self::has_changed`].
    pub(super) fn begin_change(&self, changed: Changed) {
        let mut kept = self.kept.lock();
        match changed {
            Changed::One(ino) => {
                kept.drop_one(ino);
                kept.stripe_mut(ino).changing += 1;
            }
            Changed::Everything => {
                kept.drop_all();
                kept.all_changing += 1;
            }
        }
    }

    /// Notes that a change was answered.
    pub(super) fn has_changed(&self, changed: Changed) {
        let mut kept = self.kept.lock();
        match changed {
            Changed::One(ino) => {
                kept.drop_one(ino);
                kept.stripe_mut(ino).changing -= 1;
            }
            Changed::Everything => {
                kept.drop_all();
                kept.all_changing -= 1;
            }
        }
    }

    /// The attributes of an inode.
    pub(super) fn attr(&self, node: Node) -> Option<Attr> {
        let attr = self.kept.lock().record(node)?.attr;
        self.hit(attr)
    }

    /// The inode behind a name in a directory, with its attributes; `NotFound` if the name is known to be absent.
    pub(super) fn name(&self, dir: Node, name: &[u8], requester: &Requester) -> Option<Result<(Node, Attr)>> {
        let mut kept = self.kept.lock();
        let (whose, node) = kept.record(dir)?.names.get(name)?;
        if whose != requester {
            return None;
        }
        let found = match *node {
            None => Err(FsError::NotFound),
            Some(node) => Ok((node, kept.record(node)?.attr?)),
        };
        drop(kept);
        self.hit(Some(found))
    }

    /// Reads data into `buf`, if the cache has all of it.
    pub(super) fn read(&self, node: Node, offset: u64, buf: &mut [u8]) -> Option<usize> {
        if buf.is_empty() || buf.len() > READ_BYTES_MAX {
            return None;
        }
        let mut kept = self.kept.lock();
        let record = kept.record(node)?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset.checked_add(done as u64)?;
            let page = record.pages.get(&(at / PAGE_BYTES as u64))?;
            let within = (at % PAGE_BYTES as u64) as usize;
            let known = page.get(within..).unwrap_or_default();
            let count = known.len().min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&known[..count]);
            done += count;
            // A short page is the last.
            if count == 0 || page.len() < PAGE_BYTES && count == known.len() {
                break;
            }
        }
        drop(kept);
        self.hit(Some(done))
    }

    /// For how long, at least, these attributes of the inode stay valid, except the access time.
    pub(super) fn validity(&self, attr: &Attr) -> Duration {
        self.kept.lock().validity(attr.ino, |record| {
            let same = |kept: Attr| {
                let atime = kept.atime;
                kept == Attr { atime, ..*attr }
            };
            record.attr.is_some_and(same)
        })
    }

    /// For how long, at least, a name leads there, or to nothing.
    pub(super) fn name_validity(&self, dir: Ino, name: &[u8], found: Option<Ino>) -> Duration {
        self.kept.lock().validity(dir, |record| {
            let kept = record.names.get(name);
            kept.is_some_and(|(_, node)| node.map(|node| node.ino) == found)
        })
    }

    fn hit<T>(&self, found: Option<T>) -> Option<T> {
        if found.is_some() {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Keeps attributes that came with a lease.
    pub(super) fn keep_attr(&self, start: &RequestStart, attr: &Attr) {
        let mut kept = self.kept.lock();
        kept.put_attr(start, attr);
        kept.shrink(self.bytes_max);
    }

    /// Keeps the inode behind a name, which came with leases on the directory and on the inode; or that the name is
    /// absent.
    pub(super) fn keep_name(
        &self,
        start: &RequestStart,
        dir: Node,
        name: &[u8],
        requester: Requester,
        node_attr: Option<&NodeAttr>,
    ) {
        let mut kept = self.kept.lock();
        let node = node_attr.map(NodeAttr::node);
        if let Some(node_attr) = node_attr {
            kept.put_attr(start, &node_attr.attr);
        }
        let bytes = name.len() + RECORD_BYTES / 2;
        if let Some(record) = kept.renew(start, dir.ino, dir.generation)
            && record.names.insert(name.to_vec(), (requester, node)).is_none()
        {
            record.bytes += bytes;
            kept.bytes += bytes;
        }
        kept.shrink(self.bytes_max);
    }

    /// Keeps data that was read with a lease; the request was for `wanted_bytes`.
    pub(super) fn keep_data(&self, start: &RequestStart, node: Node, offset: u64, data: &[u8], wanted_bytes: usize) {
        let mut kept = self.kept.lock();
        let Some(record) = kept.renew(start, node.ino, node.generation) else {
            return;
        };
        let mut added = 0;
        let Some(mut at) = offset.checked_next_multiple_of(PAGE_BYTES as u64) else {
            return;
        };
        while let Some(rest) = data.get((at - offset) as usize..) {
            let page = &rest[..rest.len().min(PAGE_BYTES)];
            // Unless the file ends there.
            if page.len() < PAGE_BYTES && data.len() == wanted_bytes {
                break;
            }
            if record.pages.insert(at / PAGE_BYTES as u64, page.into()).is_none() {
                added += page.len() + RECORD_BYTES / 4;
            }
            if page.len() < PAGE_BYTES {
                break;
            }
            at += PAGE_BYTES as u64;
        }
        record.bytes += added;
        kept.bytes += added;
        kept.shrink(self.bytes_max);
    }
}

impl Kept {
    /// Half of the time for which the record of an inode is kept, if `says` confirms it: the recipient needs some of
    /// the time to start using it.
    fn validity(&self, ino: Ino, says: impl FnOnce(&Record) -> bool) -> Duration {
        let Some(record) = self.records.get(&ino).filter(|record| says(record)) else {
            return Duration::ZERO;
        };
        let left = record.ends.0.saturating_sub(Moment::now().0);
        if left > VALIDITY_MIN { left / 2 } else { Duration::ZERO }
    }

    fn stripe(&self, ino: Ino) -> &Stripe {
        &self.stripes[ino as usize % STRIPES]
    }

    fn stripe_mut(&mut self, ino: Ino) -> &mut Stripe {
        &mut self.stripes[ino as usize % STRIPES]
    }

    fn remove(&mut self, ino: Ino) {
        if let Some(record) = self.records.remove(&ino) {
            self.by_use.remove(&record.used);
            self.bytes -= record.bytes;
        }
    }

    fn drop_one(&mut self, ino: Ino) {
        self.drops += 1;
        let drops = self.drops;
        self.stripe_mut(ino).dropped = drops;
        self.remove(ino);
    }

    fn drop_all(&mut self) {
        self.drops += 1;
        self.all_dropped = self.drops;
        self.records.clear();
        self.by_use.clear();
        self.bytes = 0;
    }

    /// The cached state of an inode now.
    fn record(&mut self, node: Node) -> Option<&mut Record> {
        self.uses += 1;
        let record = self.records.get(&node.ino)?;
        if record.generation != node.generation || record.ends <= Moment::now() {
            self.remove(node.ino);
            return None;
        }
        let record = self.records.get_mut(&node.ino)?;
        self.by_use.remove(&record.used);
        record.used = self.uses;
        self.by_use.insert(self.uses, node.ino);
        Some(record)
    }

    /// The record of an inode, whose lease a reply has just extended. `None` if the cache must not keep the reply.
    fn renew(&mut self, start: &RequestStart, ino: Ino, generation: u32) -> Option<&mut Record> {
        let stripe = *self.stripe(ino);
        if self.all_changing > 0
            || stripe.changing > 0
            || stripe.dropped > start.drops
            || self.all_dropped > start.drops
            || self.term.is_zero()
        {
            return None;
        }
        let ends = Moment(start.since.0 + self.term);
        // Later replies have extended the lease only if this one's had not ended before. Once the code assumed that,
        // and kept a late reply as long as one that overtook it.
        if ends <= Moment::now() {
            return None;
        }
        let node = Node {
            ino,
            generation,
            mac: 0,
        };
        if self.record(node).is_none() {
            let record = Record {
                generation,
                ends,
                used: self.uses,
                bytes: RECORD_BYTES,
                attr: None,
                names: FxHashMap::default(),
                pages: FxHashMap::default(),
            };
            self.bytes += RECORD_BYTES;
            self.by_use.insert(self.uses, ino);
            self.records.insert(ino, record);
        }
        let record = self.records.get_mut(&ino)?;
        record.ends = record.ends.max(ends);
        Some(record)
    }

    fn put_attr(&mut self, start: &RequestStart, attr: &Attr) {
        if self.stripe(attr.ino).read <= start.drops
            && let Some(record) = self.renew(start, attr.ino, attr.generation)
        {
            record.attr = Some(*attr);
        }
    }

    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some((_, &ino)) = self.by_use.first_key_value()
        {
            self.remove(ino);
        }
    }
}

#[cfg(test)]
mod tests;
