//! Leases on inodes: which sessions may cache, and how long a change waits for that.
//!
//! Contents: [`Leases`], the table of one engine. A lease on an inode covers everything that its session has read
//! of it since: attributes, data, and of a directory which names it has and lacks. It ends with its term, or when the
//! client answers a recall.
//!
//! Invariants:
//! * A lease is in the table before the engine reads the state it covers ([`Leases::grant`]), and a change is in
//!   it before it waits for leases, until it is made ([`Leases::recall`], [`Leases::changed`]). No session gets a lease
//!   on an inode that is being changed. So the state that a lease covers cannot change while it lasts.
//! * The server counts a term from later than the client does, on a clock that cannot be set.
//! * No thread waits here: a change that has to wait is work that is returned when it may continue.
//! * The pool records that there may be leases before the first is granted. After a restart changes wait until those of
//!   the earlier run are over.
//! * In a volume that servers hand to each other, no lease lasts longer than the owner's right to answer. So those of
//!   an owner that died are over when another takes the volume. Only one that leaves in order, before its right ends,
//!   records leases that its clients have not returned.
//! * A session whose recall ran out gets no leases for a while ([`super::unresponsive`]).
//! * There are no leases on an inode while RDMA can write to it, bypassing this table ([`Leases::bar`]).
//! * A change that bypasses the table is counted ([`Leases::pass`]), and there are no grants while one is in progress.
//!   Both sides write first and read then, so one of them sees the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::volume::Ownership;
use ferrite_vfs::workers::Work;
use ferrite_vfs::{FileSystem, FsError, Ino, ROOT_INO, Result, SYSTEM, XattrMode};
use rustc_hash::{FxHashMap, FxHashSet};

use super::unresponsive::{REPLY_MIN, Unresponsive};
use crate::lock_order;

/// The attribute of the pool's root that records how long leases of this run may last, in milliseconds.
const NAME: &[u8] = b"trusted.ferrite.leases";
/// Most leases at a time. With more, none is granted until some are over.
const LEASES_MAX: usize = 1 << 20;

/// With more leases, a stop asks for none back: that would keep the table from others for long.
const WITHDRAWN_MAX: usize = 1 << 14;

/// The inodes that a change touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Touched {
    These(Vec<Ino>),
    /// Unknown: it may touch any.
    Everything,
}

impl Touched {
    /// Whether a change that touches `other` touches nothing besides.
    pub(super) fn covers(&self, other: &Touched) -> bool {
        match (self, other) {
            (Touched::Everything, _) => true,
            (Touched::These(_), Touched::Everything) => false,
            (Touched::These(these), Touched::These(others)) => others.iter().all(|ino| these.contains(ino)),
        }
    }
}

/// A holder of leases: a session.
pub(super) trait Holder: Send + Sync {
    /// Its number, which no other has.
    fn number(&self) -> u64;

    /// That of its export, which no other has.
    fn export(&self) -> usize;

    /// Asks its client to drop an inode from its cache. Does not block.
    fn recall(&self, recall: u64, ino: Ino);
}

struct Lease {
    session: Arc<dyn Holder>,
    ends: Instant,
    /// The number of the recall sent to the client, 0 if none.
    recall: u64,
    /// When it was sent.
    recalled_at: Option<Instant>,
}

impl Lease {
    /// Whether it has expired although its client had time to return it before.
    fn ran_out(&self, now: Instant) -> bool {
        let had_time = |recalled_at: Instant| self.ends.saturating_duration_since(recalled_at) >= REPLY_MIN;
        self.ends <= now && self.recall != 0 && self.recalled_at.is_some_and(had_time)
    }
}

/// A change that waits.
struct Waiting {
    touched: Touched,
    session: u64,
    work: Work,
}

#[derive(Default)]
struct Table {
    leases: FxHashMap<Ino, Vec<Lease>>,
    count: usize,
    recalls: FxHashMap<u64, Ino>,
    last_recall: u64,
    /// Changes in progress, by inode.
    changing: FxHashMap<Ino, u32>,
    /// Inodes whose changes bypass this table.
    barred: FxHashSet<Ino>,
    /// Changes in progress that may touch anything.
    changing_everything: u32,
    waiting: Vec<Waiting>,
    /// A change of names is in progress, and these are next.
    names: Option<VecDeque<Work>>,
    /// Leases of an earlier run may last until then.
    earlier: Option<Instant>,
    /// The server stops: no more leases are granted.
    is_stopping: bool,
    unresponsive: Unresponsive,
}

/// See the head of this module.
pub(super) struct Leases {
    term: Duration,
    /// Changes must look at the table.
    is_on: AtomicBool,
    /// Changes in progress that did not.
    passing: AtomicUsize,
    table: Mutex<lock_order::LeaseTable, Table>,
    /// Whether the pool records that there may be leases of this run.
    is_noted: Mutex<lock_order::LeasesNoted, bool>,
    /// The right to answer for a volume that servers hand to each other.
    ownership: Option<Arc<dyn Ownership>>,
}

/// A change that did not look at the table, because there were no leases when it began.
pub(super) struct Passing(Arc<Leases>);

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.passing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Leases {
    /// Loads the table; changes wait until leases of an earlier run are over. With a term of zero there are no leases.
    pub(super) fn load(fs: &dyn FileSystem, term: Duration, ownership: Option<Arc<dyn Ownership>>) -> Result<Leases> {
        // The right is renewed at a third of its length: as much is left then, and time for a slow renewal.
        let term = ownership.as_ref().map_or(term, |of| term.min(of.length() / 3));
        let noted = match fs.getxattr(SYSTEM, ROOT_INO, NAME) {
            Ok(noted) => Some(noted),
            Err(FsError::NoAttribute | FsError::NotSupported(_)) => None,
            Err(error) => return Err(error),
        };
        let earlier = noted.map(|noted| {
            let term_ms = <[u8; 4]>::try_from(&noted[..]).map_or(u32::MAX / 1000, u32::from_le_bytes);
            Instant::now() + Duration::from_millis(u64::from(term_ms))
        });
        Ok(Leases {
            term,
            is_on: AtomicBool::new(earlier.is_some()),
            passing: AtomicUsize::new(0),
            table: Mutex::new(Table {
                earlier,
                // Replies to recalls of an earlier run may still come.
                last_recall: u64::from_le_bytes(ferrite_vfs::random()?) >> 1,
                ..Table::default()
            }),
            is_noted: Mutex::new(false),
            ownership,
        })
    }

    /// Begins a change. `None` if there may be leases, so that it has to go through the table.
    pub(super) fn pass(self: &Arc<Self>) -> Option<Passing> {
        self.passing.fetch_add(1, Ordering::SeqCst);
        let passing = Passing(Arc::clone(self));
        (!self.is_on.load(Ordering::SeqCst)).then_some(passing)
    }

    /// Begins leases for a session. It has lost its earlier ones, unless its client says that other parties still rely
    /// on them. Returns their term, zero if it gets none, and the changes that can continue.
    pub(super) fn begin(&self, fs: &dyn FileSystem, session: &dyn Holder, relied_on: bool) -> (Duration, Vec<Work>) {
        let mut is_noted = self.is_noted.lock();
        if self.ownership.is_some() {
            *is_noted = !self.term.is_zero();
        } else if !*is_noted && !self.term.is_zero() {
            let earlier = self.table.lock().earlier;
            // The next run must wait for those of an earlier one, too.
            let longest = earlier.map_or(self.term, |ends| {
                self.term.max(ends.saturating_duration_since(Instant::now()))
            });
            *is_noted = match note(fs, longest) {
                Ok(()) => true,
                Err(error) => {
                    tracing::warn!("there are no leases, for the pool cannot note them: {error}");
                    false
                }
            };
        }
        if *is_noted {
            self.is_on.store(true, Ordering::SeqCst);
        }
        let term = if *is_noted { self.term } else { Duration::ZERO };
        drop(is_noted);
        let mut table = self.table.lock();
        table
            .unresponsive
            .begins(session.number(), session.export(), Instant::now());
        if !relied_on {
            table.retain(|lease| lease.session.number() != session.number());
        }
        (term, table.ready(Instant::now()))
    }

    /// Notes that a session is over. Its leases stay until their terms end, whatever its client caches.
    pub(super) fn is_over(&self, session: &dyn Holder) {
        if self.is_on.load(Ordering::Acquire) {
            self.table.lock().unresponsive.ends(session.number());
        }
    }

    /// Drops the leases of a session whose client has emptied its cache. Returns the changes that can continue.
    pub(super) fn end(&self, session: &dyn Holder) -> Vec<Work> {
        let mut table = self.table.lock();
        table.retain(|lease| lease.session.number() != session.number());
        table.ready(Instant::now())
    }

    /// Grants a session a lease on an inode before the session reads it, or extends its lease. False if that is
    /// impossible.
    pub(super) fn grant(&self, session: Arc<dyn Holder>, ino: Ino) -> bool {
        if self.passing.load(Ordering::SeqCst) > 0 {
            return false;
        }
        let mut table = self.table.lock();
        if table.changing_everything > 0 || table.changing.contains_key(&ino) || table.barred.contains(&ino) {
            return false;
        }
        if table.is_stopping || self.ownership.as_ref().is_some_and(|of| of.left() < self.term) {
            return false;
        }
        let now = Instant::now();
        if !table.unresponsive.may_have(session.number(), session.export(), now) {
            return false;
        }
        if table.count >= LEASES_MAX {
            table.drop_ended(self.term, now);
            if table.count >= LEASES_MAX {
                return false;
            }
        }
        let ends = now + self.term;
        let table = &mut *table;
        let leases = table.leases.entry(ino).or_default();
        match leases
            .iter_mut()
            .find(|lease| lease.session.number() == session.number())
        {
            Some(lease) if lease.ran_out(now) => {
                let (session, export) = (session.number(), session.export());
                table.unresponsive.note(session, export, self.term, now);
                return false;
            }
            Some(lease) => {
                lease.ends = ends;
                // An unanswered recall was for earlier reads of the client.
                table.recalls.remove(&std::mem::take(&mut lease.recall));
            }
            None => {
                leases.push(Lease {
                    session,
                    ends,
                    recall: 0,
                    recalled_at: None,
                });
                table.count += 1;
            }
        }
        true
    }

    /// Bars leases on an inode whose changes bypass this table from now on. Called while a change of it is in progress,
    /// when its earlier leases are over.
    pub(super) fn bar(&self, ino: Ino) {
        self.table.lock().barred.insert(ino);
    }

    /// Ends that.
    pub(super) fn unbar(&self, ino: Ino) {
        self.table.lock().barred.remove(&ino);
    }

    /// Runs `work` when no other change of names is in progress: returns it if that is so now. The caller reports the
    /// end of the change ([`Self::names_changed`]).
    pub(super) fn change_names(&self, work: Work) -> Option<Work> {
        match &mut self.table.lock().names {
            Some(queue) => {
                queue.push_back(work);
                None
            }
            names => {
                *names = Some(VecDeque::new());
                Some(work)
            }
        }
    }

    /// Ends a change of names. Returns the next.
    pub(super) fn names_changed(&self) -> Option<Work> {
        let mut table = self.table.lock();
        let next = table.names.as_mut().and_then(VecDeque::pop_front);
        if next.is_none() {
            table.names = None;
        }
        next
    }

    /// Begins a change by a session. Recalls other sessions' leases; runs `work` when these are over: returns it if
    /// they are. The caller reports the end of the change ([`Self::changed`]).
    pub(super) fn recall(&self, touched: &Touched, session: &dyn Holder, work: Work) -> Option<Work> {
        let mut table = self.table.lock();
        let session = session.number();
        match touched {
            Touched::These(inodes) => inodes
                .iter()
                .for_each(|&ino| *table.changing.entry(ino).or_default() += 1),
            Touched::Everything => table.changing_everything += 1,
        }
        let now = Instant::now();
        if !table.is_in_use(touched, session, now) {
            return Some(work);
        }
        table.send_recalls(touched, session);
        table.waiting.push(Waiting {
            touched: touched.clone(),
            session,
            work,
        });
        None
    }

    /// Ends a change, made or failed.
    pub(super) fn changed(&self, touched: &Touched) {
        let mut table = self.table.lock();
        match touched {
            Touched::Everything => table.changing_everything -= 1,
            Touched::These(inodes) => {
                for ino in inodes {
                    match table.changing.get_mut(ino) {
                        Some(count) if *count > 1 => *count -= 1,
                        _ => drop(table.changing.remove(ino)),
                    }
                }
            }
        }
    }

    /// Ends leases whose recalls a client has answered. Returns the changes that can continue.
    pub(super) fn recalled(&self, session: &dyn Holder, recalls: &[u64]) -> Vec<Work> {
        let mut table = self.table.lock();
        for &recall in recalls {
            let Some(&ino) = table.recalls.get(&recall) else {
                continue;
            };
            let Some(leases) = table.leases.get_mut(&ino) else {
                continue;
            };
            let before = leases.len();
            // A client cannot answer another's recall.
            leases.retain(|lease| lease.recall != recall || lease.session.number() != session.number());
            let ended = before - leases.len();
            if leases.is_empty() {
                table.leases.remove(&ino);
            }
            if ended > 0 {
                table.recalls.remove(&recall);
                table.count -= ended;
            }
        }
        table.ready(Instant::now())
    }

    /// The changes that can continue because terms are over.
    pub(super) fn due(&self, fs: &dyn FileSystem) -> Vec<Work> {
        if !self.is_on.load(Ordering::Acquire) {
            return Vec::new();
        }
        let now = Instant::now();
        let is_noted = self.is_noted.lock();
        if self.table.lock().earlier.is_some_and(|ends| ends <= now) {
            let is_of_earlier = !*is_noted || self.ownership.is_some();
            if is_of_earlier && let Err(error) = fs.removexattr(SYSTEM, ROOT_INO, NAME) {
                tracing::debug!("the pool still says that there are leases: {error}");
            }
            self.table.lock().earlier = None;
        }
        drop(is_noted);
        let mut table = self.table.lock();
        if table.leases.values().flatten().any(|lease| lease.ends <= now) {
            table.drop_ended(self.term, now);
        }
        table.ready(now)
    }

    /// Begins to end all leases before the server stops: grants no more, and asks clients to return theirs. False if
    /// there are none. The caller gives clients some time ([`Self::has_any`]).
    pub(super) fn withdraw(&self) -> bool {
        let mut table = self.table.lock();
        table.is_stopping = true;
        table.drop_ended(self.term, Instant::now());
        if table.count > WITHDRAWN_MAX {
            return false;
        }
        // No session has this number.
        table.send_recalls(&Touched::Everything, u64::MAX);
        table.count > 0
    }

    /// Whether clients have leases.
    pub(super) fn has_any(&self) -> bool {
        let now = Instant::now();
        let table = self.table.lock();
        table.leases.values().flatten().any(|lease| lease.ends > now)
    }

    /// Whether changes wait.
    pub(super) fn has_waiting(&self) -> bool {
        self.is_on.load(Ordering::Acquire) && !self.table.lock().waiting.is_empty()
    }

    /// Stops the table with the server, which sends no more replies: waiting changes are not made, and clients repeat
    /// them. The next run waits for leases that still last, if any. `fs` is `None` if the volume is lost.
    pub(super) fn stop(&self, fs: Option<&dyn FileSystem>) {
        let mut is_noted = self.is_noted.lock();
        let mut unnoted = Duration::ZERO;
        let dropped = {
            let mut table = self.table.lock();
            let lasts = table.leases.values().flatten().map(|lease| lease.ends).max();
            // So that another call of this knows it, too.
            table.earlier = table.earlier.max(lasts);
            let left = table.earlier.map(|ends| ends.saturating_duration_since(Instant::now()));
            let left = left.filter(|left| !left.is_zero());
            match (fs, left, &self.ownership) {
                // Its right to answer ends with this, and the next owner may begin at once.
                (Some(fs), Some(left), Some(_)) => {
                    if let Err(error) = note(fs, left) {
                        tracing::warn!("the pool cannot note leases of clients, so their end is waited for: {error}");
                        unnoted = left;
                    }
                }
                (Some(fs), None, None) if *is_noted => match fs.removexattr(SYSTEM, ROOT_INO, NAME) {
                    Ok(()) => *is_noted = false,
                    Err(error) => tracing::debug!("the pool still says that there are leases: {error}"),
                },
                _ => {}
            }
            table.retain(|_| false);
            let names = table.names.as_mut().map(std::mem::take);
            (std::mem::take(&mut table.waiting), names)
        };
        drop(is_noted);
        drop(dropped);
        // A term at most.
        std::thread::sleep(unnoted);
    }
}

/// Records in the pool that there may be leases for that long. Durable when it returns.
fn note(fs: &dyn FileSystem, longest: Duration) -> Result<()> {
    let term_ms = u32::try_from(longest.as_millis() + 1).unwrap_or(u32::MAX).to_le_bytes();
    fs.setxattr(SYSTEM, ROOT_INO, NAME, &term_ms, XattrMode::Any)
}

impl Table {
    fn retain(&mut self, stays: impl Fn(&Lease) -> bool) {
        let (mut count, recalls) = (0, &mut self.recalls);
        self.leases.retain(|_, leases| {
            leases.retain(|lease| {
                let stays = stays(lease);
                if !stays {
                    recalls.remove(&lease.recall);
                }
                stays
            });
            count += leases.len();
            !leases.is_empty()
        });
        self.count = count;
    }

    /// Drops expired leases. A session that did not return one on request gets none for a while.
    fn drop_ended(&mut self, term: Duration, now: Instant) {
        for lease in self.leases.values().flatten().filter(|lease| lease.ran_out(now)) {
            let (session, export) = (lease.session.number(), lease.session.export());
            self.unresponsive.note(session, export, term, now);
        }
        self.retain(|lease| lease.ends > now);
    }

    /// Whether sessions other than `session` may cache the touched inodes.
    fn is_in_use(&self, touched: &Touched, session: u64, now: Instant) -> bool {
        let is_in_use = |leases: &Vec<Lease>| {
            let of_other = |lease: &Lease| lease.session.number() != session && lease.ends > now;
            leases.iter().any(of_other)
        };
        // The holders of an earlier run's leases are unknown.
        self.earlier.is_some_and(|ends| ends > now)
            || match touched {
                Touched::These(inodes) => inodes.iter().filter_map(|ino| self.leases.get(ino)).any(is_in_use),
                Touched::Everything => self.leases.values().any(is_in_use),
            }
    }

    fn send_recalls(&mut self, touched: &Touched, session: u64) {
        let inodes: Vec<Ino> = match touched {
            Touched::These(inodes) => inodes.clone(),
            Touched::Everything => self.leases.keys().copied().collect(),
        };
        for ino in inodes {
            for lease in self.leases.get_mut(&ino).into_iter().flatten() {
                if lease.session.number() == session || lease.recall != 0 {
                    continue;
                }
                self.last_recall += 1;
                let number = self.last_recall;
                lease.recall = number;
                lease.recalled_at = Some(Instant::now());
                self.recalls.insert(number, ino);
                lease.session.recall(number, ino);
            }
        }
    }

    /// Takes the changes that need not wait any more.
    fn ready(&mut self, now: Instant) -> Vec<Work> {
        let waiting = std::mem::take(&mut self.waiting);
        let in_use = |waiting: &Waiting| self.is_in_use(&waiting.touched, waiting.session, now);
        let (waiting, ready): (Vec<Waiting>, Vec<Waiting>) = waiting.into_iter().partition(in_use);
        self.waiting = waiting;
        ready.into_iter().map(|waiting| waiting.work).collect()
    }
}
