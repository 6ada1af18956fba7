//! A client's session: the server's state for it while it lives.
//!
//! Contents: [`Session`] with its pinned inodes and open files; below it, its locks (`locks`), its slots of tokens
//! (`slots`), and the inodes that requests use (`within`).
//!
//! Everything that a client asks of its session can be repeated: a client that lost its connection sends unanswered
//! requests again. An open file has a number that the client chose. Pins are counted, so the session remembers which
//! requests that may come again have taken or released pins ([`Session::repeats`]).
//!
//! Invariants: a session's lock is never held during a call of the engine. An inode that a request uses stays pinned
//! until the request is done, whatever the client releases meanwhile.

mod changing;
mod locks;
mod opened;
mod slots;
mod within;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::{Mutex, MutexGuard};
use ferrite_transport::reactor::Link;
use ferrite_transport::send_queue::SendQueue;
use ferrite_vfs::{ClientId, FsError, Ino, OpenFile, OpenMode, Result, SYSTEM};
use rustc_hash::{FxHashMap, FxHashSet};

pub(super) use locks::Cancelled;
use locks::Waiting;
use opened::Opened;

use super::admission::{Account, Budget, Place, Resource};
use super::close_barrier::CloseBarrier;
use super::export::Export;
use super::meter::Meter;
use crate::lock_order;
use ferrite_proto::{ClientActivity, ResumeToken};

/// Most open files of a session.
const FILES_MAX: usize = 1 << 16;
/// Most requests of a session with workers.
const GIVEN_MAX: usize = 64;
/// Most waiting changes of a session. More than clients have in flight: while so many wait, the server reads nothing
/// from the connection, not even the replies to recalls that others wait for.
const DEFERRED_CHANGES_MAX: usize = 1024;
/// Most requests whose effects are remembered. A client never has that many in flight; with more, the oldest are
/// forgotten.
const EFFECTS_MAX: usize = 4096;
/// Most pins that they took, together. A listing takes some hundred.
const EFFECT_PINS_MAX: usize = 1 << 18;

#[derive(Default)]
struct Pinned {
    /// Pins of the engine.
    pins: u64,
    /// How many of them the client has released while a request used the inode.
    late: u64,
    /// Requests that use it.
    users: u32,
    /// The version of the export's border at which it was checked, 0 if it was not.
    looked_at: u64,
}

/// The effect of a request on the session that must not be repeated.
enum Effect {
    /// It took a pin of each of these.
    Pinned(Vec<Ino>),
    /// It released pins.
    Released,
}

impl Effect {
    fn pins(&self) -> usize {
        match self {
            Effect::Pinned(pinned) => pinned.len(),
            Effect::Released => 0,
        }
    }
}

#[derive(Default)]
struct Kept {
    pins: FxHashMap<Ino, Pinned>,
    /// Inodes without a pin that were checked, each with the version of the border.
    unpinned: FxHashMap<(Ino, u32), u64>,
    effects: BTreeMap<u64, Effect>,
    files: FxHashMap<u64, (Arc<dyn OpenFile>, OpenMode)>,
    /// How often each inode is open, and in which modes.
    opened: Opened,
    /// Numbers of files by which changes are being made, with the inode of each, and the number of changes.
    changing: FxHashMap<u64, (Option<Ino>, u32)>,
    /// Pins that `effects` remembers.
    effect_pins: usize,
    slots: Vec<u32>,
    /// The upper half of its slots' tokens.
    number: u64,
    /// The last request that came with a token, and when, as [`Session::last_seen_ms`] counts.
    last_change: u64,
    changed_ms: u64,
    /// The client has the replies to all requests before it.
    settled_below: u64,
    clients: FxHashMap<u64, ClientId>,
    waiting: FxHashMap<u64, Waiting>,
    /// Requests in progress in the engine.
    under_way: FxHashSet<u64>,
    /// Those among them that workers have.
    with_workers: FxHashSet<u64>,
    /// Those in progress whose clients have given up, each with the number of the file that it opens.
    abandoned: FxHashMap<u64, u64>,
    /// It has had a lock, which the pool records.
    is_locker: bool,
    is_reclaiming: bool,
    is_over: bool,
    /// Its place in the count of sessions.
    place: Option<Place>,
}

/// How to reach a session's client. Apart from the session, for objects that may outlive it: leases.
pub(super) struct Recipient {
    /// The session's number.
    pub(super) number: u64,
    pub(super) export: Arc<Export>,
    /// The client's current connection, if any.
    pub(super) link: Mutex<lock_order::SessionLink, Option<Link>>,
}

impl Recipient {
    /// Sends a message, unless another server may answer by now: then the connection is closed instead, and the client
    /// asks again. To be called after what the message says was read.
    pub(super) fn send(&self, write: impl FnOnce(&mut SendQueue)) {
        // Outside of the lock: the reactor takes it too.
        let link = self.link.lock().clone();
        if let Some(link) = link {
            match self.export.store.may_answer() {
                true => link.send(write),
                false => link.close(),
            }
        }
    }
}

/// A session.
pub(super) struct Session {
    pub(super) resume_token: ResumeToken,
    pub(super) export: Arc<Export>,
    /// The account it is charged to, and the resources of its client in all.
    pub(super) account: Account,
    pub(super) budget: Arc<Budget>,
    kept: Mutex<lock_order::Session, Kept>,
    /// Signals that a request is no longer in progress.
    done: Condvar,
    /// Requests that wait for a worker, or that one works on.
    given: AtomicUsize,
    pub(super) close_barrier: Arc<CloseBarrier>,
    /// Changes that wait for others' leases to end, or at least go through the table of leases.
    deferred_changes: AtomicUsize,
    /// The client caches under leases.
    has_leases: AtomicBool,
    /// Held while it gets its slots, so that it gets them once.
    getting_slots: Mutex<lock_order::GettingSlots, ()>,
    pub(super) recipient: Arc<Recipient>,
    /// Moves when the client comes with another connection; messages that still arrive by the old one are ignored.
    attachment: AtomicU64,
    pub(super) meter: Meter,
    /// When the server last heard of the client, in milliseconds since the server began.
    last_seen_ms: AtomicU64,
}

impl Drop for Session {
    fn drop(&mut self) {
        // The counts of requests that it was still answering when it ended.
        self.leave_counts();
    }
}

/// A request in progress. Dropping it ends that.
pub(super) struct UnderWay<'s> {
    session: &'s Session,
    request: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.session.finish(self.request);
        self.session.done.notify_all();
    }
}

impl Session {
    pub(super) fn new(export: &Arc<Export>, number: u64, is_reclaiming: bool, place: Place, now_ms: u64) -> Session {
        let comings = &export.comings;
        let coming = if is_reclaiming {
            &comings.reclaimed
        } else {
            &comings.begun
        };
        coming.fetch_add(1, Ordering::Relaxed);
        Session {
            resume_token: export.authenticator.resume_token(number),
            export: Arc::clone(export),
            account: place.account(),
            budget: Arc::clone(&place.budget),
            kept: Mutex::new(Kept {
                is_reclaiming,
                place: Some(place),
                ..Kept::default()
            }),
            done: Condvar::new(),
            given: AtomicUsize::new(0),
            close_barrier: Arc::default(),
            deferred_changes: AtomicUsize::new(0),
            has_leases: AtomicBool::new(false),
            getting_slots: Mutex::default(),
            recipient: Arc::new(Recipient {
                number,
                export: Arc::clone(export),
                link: Mutex::default(),
            }),
            attachment: AtomicU64::new(0),
            meter: Meter::default(),
            last_seen_ms: AtomicU64::new(now_ms),
        }
    }

    /// Attaches a new connection of the client. Returns its number.
    pub(super) fn attach(&self, link: Link) -> u64 {
        let mut current = self.recipient.link.lock();
        if let Some(old) = current.replace(link) {
            old.close();
        }
        self.attachment.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Detaches earlier connections: the client is about to come with another one.
    pub(super) fn detach(&self) {
        self.attachment.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether requests of this connection still count.
    pub(super) fn is_attached(&self, attachment: u64) -> bool {
        self.attachment.load(Ordering::Acquire) == attachment
    }

    /// Sends a message over the client's current connection, if any.
    pub(super) fn send(&self, write: impl FnOnce(&mut SendQueue)) {
        self.recipient.send(write);
    }

    pub(super) fn seen(&self, now_ms: u64) {
        self.last_seen_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn last_seen_ms(&self) -> u64 {
        self.last_seen_ms.load(Ordering::Relaxed)
    }

    pub(super) fn is_reclaiming(&self) -> bool {
        self.kept.lock().is_reclaiming
    }

    /// Notes that the client has reclaimed, with `request`. Changes of the earlier run, which have smaller numbers, may
    /// come again.
    pub(super) fn has_reclaimed(&self, request: u64) {
        let mut kept = self.kept.lock();
        kept.is_reclaiming = false;
        kept.last_change = kept.last_change.max(request);
    }

    /// Moves its counters to its export. The caller holds the lock on the list that it is about to leave.
    pub(super) fn leave_counts(&self) {
        self.export.past.take_over(&self.meter);
    }

    /// The same for a session whose client is gone.
    pub(super) fn expire(&self) {
        self.export.comings.expired.fetch_add(1, Ordering::Relaxed);
        self.leave_counts();
    }

    /// The client's state, without its operations; `now_ms` since the server began.
    pub(super) fn client_activity(&self, now_ms: u64) -> ClientActivity {
        let is_connected = self.is_connected();
        let kept = self.kept.lock();
        ClientActivity {
            session: self.resume_token.session,
            address: self
                .meter
                .address()
                .map_or(Vec::new(), |address| address.to_string().into_bytes()),
            is_connected,
            connections: self.attachment.load(Ordering::Acquire),
            idle_ms: now_ms.saturating_sub(self.last_seen_ms()),
            files: kept.files.len() as u64,
            pinned: kept.pins.len() as u64,
            waiting: kept.waiting.len() as u64,
            operations: Vec::new(),
        }
    }

    /// Records that the engine has pinned `ino` at the client's request. While it reclaims it gets one pin of each
    /// inode: the client repeats claims of an earlier connection that broke, in requests of other numbers.
    ///
    /// # Errors
    /// If its client has reached its limit of pinned inodes.
    pub(super) fn claim(&self, request: u64, ino: Ino) -> Result<()> {
        let kept = self.kept.lock();
        let has_pin = kept.pins.get(&ino).is_some_and(|pinned| pinned.pins > pinned.late);
        if kept.is_reclaiming && has_pin {
            drop(kept);
            self.export.fs().unpin(SYSTEM, ino, 1);
            return Ok(());
        }
        match self.grant_to(kept, request, ino) {
            true => Ok(()),
            false => Err(FsError::TooManyOpen),
        }
    }

    /// Records that the engine has pinned `ino` for the reply to a request. False if the client has reached its limit
    /// of pinned inodes: then this one is unpinned again.
    pub(super) fn grant(&self, request: u64, ino: Ino) -> bool {
        self.grant_to(self.kept.lock(), request, ino)
    }

    fn grant_to(&self, mut kept: MutexGuard<'_, Kept>, request: u64, ino: Ino) -> bool {
        if !kept.pins.contains_key(&ino) && !self.budget.take(Resource::PinnedInodes) {
            drop(kept);
            self.export.fs().unpin(SYSTEM, ino, 1);
            return false;
        }
        kept.pins.entry(ino).or_default().pins += 1;
        let is_remembered = match kept.effects.entry(request).or_insert(Effect::Pinned(Vec::new())) {
            Effect::Pinned(pinned) => {
                pinned.push(ino);
                true
            }
            Effect::Released => false,
        };
        kept.effect_pins += usize::from(is_remembered);
        kept.bound_effects();
        let is_over = kept.is_over;
        drop(kept);
        if is_over {
            self.unpin(ino, 1);
        }
        true
    }

    /// Begins a request. Undoes its effects if it came before; true if it was a release, which must not be repeated.
    /// `settled_below` comes from the same message.
    pub(super) fn repeats(&self, request: u64, settled_below: u64) -> bool {
        let mut kept = self.kept.lock();
        kept.settled_below = kept.settled_below.max(settled_below);
        while let Some(first) = kept.effects.first_entry()
            && *first.key() < settled_below
        {
            let effect = first.remove();
            kept.effect_pins -= effect.pins();
        }
        let effect = kept.effects.remove(&request);
        kept.effect_pins -= effect.as_ref().map_or(0, Effect::pins);
        match effect {
            None => false,
            Some(Effect::Released) => {
                kept.effects.insert(request, Effect::Released);
                true
            }
            Some(Effect::Pinned(pinned)) => {
                drop(kept);
                pinned.into_iter().for_each(|ino| self.unpin(ino, 1));
                false
            }
        }
    }

    /// Undoes the effects of a request on the session: its client has given up, or it has failed after all.
    pub(super) fn undo(&self, request: u64) {
        self.repeats(request, 0);
    }

    /// The client does not wait for the reply to a request any more, nor does it know of the file that this opened.
    pub(super) fn abandon(&self, request: u64, file: u64) {
        let mut kept = self.kept.lock();
        if kept.under_way.contains(&request) {
            kept.abandoned.insert(request, file);
            return;
        }
        drop(kept);
        self.undo(request);
        self.close_files(&[file]);
    }

    fn finish(&self, request: u64) {
        let mut kept = self.kept.lock();
        kept.under_way.remove(&request);
        let abandoned = kept.abandoned.remove(&request);
        drop(kept);
        if let Some(file) = abandoned {
            self.undo(request);
            self.close_files(&[file]);
        }
    }

    /// Begins a request that another thread may be executing already, because the client has repeated it: waits until
    /// that is done.
    pub(super) fn begin_alone(&self, request: u64) -> UnderWay<'_> {
        let mut kept = self.kept.lock();
        while !kept.under_way.insert(request) {
            self.done.wait(&mut kept);
        }
        drop(kept);
        UnderWay { session: self, request }
    }

    /// Hands a request to a worker. False if one has it already, whose reply the client will get.
    pub(super) fn give(&self, request: u64) -> bool {
        let mut kept = self.kept.lock();
        let is_new = kept.under_way.insert(request);
        if is_new {
            kept.with_workers.insert(request);
            self.given.fetch_add(1, Ordering::AcqRel);
        }
        is_new
    }

    /// Whether workers have requests of it.
    pub(super) fn has_given(&self) -> bool {
        self.given.load(Ordering::Acquire) > 0
    }

    /// Whether a worker has this request, whose reply the client will get.
    pub(super) fn is_given(&self, request: u64) -> bool {
        self.has_given() && self.kept.lock().with_workers.contains(&request)
    }

    /// Notes that the worker is done, and is about to send the reply. In this order: a repetition from now on, after a
    /// reconnect, is answered anew, and an earlier one gets this reply.
    pub(super) fn worker_done(&self, request: u64) {
        self.kept.lock().with_workers.remove(&request);
        self.finish(request);
        self.given.fetch_sub(1, Ordering::AcqRel);
    }

    /// Defers a change. False if it is deferred already, so that the client will get the reply.
    pub(super) fn defer_change(&self, request: u64) -> bool {
        let is_new = self.kept.lock().under_way.insert(request);
        if is_new {
            self.deferred_changes.fetch_add(1, Ordering::AcqRel);
        }
        is_new
    }

    /// Notes that a deferred change is made; see [`Self::worker_done`].
    pub(super) fn end_deferred_change(&self, request: u64) {
        self.finish(request);
        self.deferred_changes.fetch_sub(1, Ordering::AcqRel);
        self.done.notify_all();
    }

    /// Notes that the client wants leases.
    pub(super) fn wants_leases(&self) {
        self.has_leases.store(true, Ordering::Release);
    }

    /// Grants a lease on an inode to be read, if the client wants leases and the export gives any.
    pub(super) fn lease(&self, ino: Ino) -> bool {
        self.has_leases.load(Ordering::Acquire) && self.export.store.leases.grant(Arc::clone(&self.recipient) as _, ino)
    }

    /// Whether workers have the maximum of its requests.
    pub(super) fn is_busy(&self) -> bool {
        self.given.load(Ordering::Acquire) >= GIVEN_MAX
            || self.deferred_changes.load(Ordering::Acquire) >= DEFERRED_CHANGES_MAX
    }

    /// Whether the client has a connection, as far as is known.
    pub(super) fn is_connected(&self) -> bool {
        self.recipient
            .link
            .lock()
            .as_ref()
            .is_some_and(|link| !link.is_closed())
    }

    /// Releases pins for the client. Inodes are as the engine numbers them.
    pub(super) fn release(&self, request: u64, pins: &[(Ino, u64)]) {
        {
            let mut kept = self.kept.lock();
            let before = kept.effects.insert(request, Effect::Released);
            kept.effect_pins -= before.as_ref().map_or(0, Effect::pins);
            kept.bound_effects();
        }
        pins.iter().for_each(|&(ino, count)| self.unpin(ino, count));
    }

    fn unpin(&self, ino: Ino, count: u64) {
        let mut kept = self.kept.lock();
        let Some(pinned) = kept.pins.get_mut(&ino) else {
            return;
        };
        let count = count.min(pinned.pins - pinned.late);
        if pinned.users > 0 && pinned.late + count == pinned.pins {
            pinned.late += count;
            return;
        }
        pinned.pins -= count;
        let is_gone = pinned.pins == 0;
        if is_gone {
            kept.pins.remove(&ino);
        }
        drop(kept);
        if is_gone {
            self.budget.give_back(Resource::PinnedInodes, 1);
        }
        if count > 0 {
            self.export.fs().forget(SYSTEM, ino, count);
        }
    }

    /// Whether it may open another file.
    pub(super) fn has_space_for_file(&self) -> Result<()> {
        let kept = self.kept.lock();
        match kept.is_over || kept.files.len() >= FILES_MAX {
            true => Err(FsError::TooManyOpen),
            false => Ok(()),
        }
    }

    /// Keeps an open file under the client's number. If this number is in use, an earlier try of the same request
    /// opened it. That file stays, unless the request has found another one this time: the client has seen no reply
    /// but the one that it gets now.
    pub(super) fn keep_file(&self, number: u64, file: Arc<dyn OpenFile>, mode: OpenMode) -> Result<()> {
        let mut kept = self.kept.lock();
        if !kept.may_stand_for(number, file.ino()) {
            drop(kept);
            drop(file);
            return Err(FsError::Busy);
        }
        let has_space = !kept.is_over
            && (kept.files.contains_key(&number)
                || (kept.files.len() < FILES_MAX && self.budget.take(Resource::OpenFiles)));
        if !has_space {
            drop(kept);
            drop(file);
            return Err(FsError::TooManyOpen);
        }
        let Kept { files, opened, .. } = &mut *kept;
        let ino = file.ino();
        let extra = match files.entry(number) {
            std::collections::hash_map::Entry::Occupied(mut place) if place.get().0.ino() != ino => {
                opened.add(ino, mode);
                let (old, as_mode) = place.insert((file, mode));
                opened.remove(old.ino(), as_mode);
                Some(old)
            }
            std::collections::hash_map::Entry::Occupied(_) => Some(file),
            std::collections::hash_map::Entry::Vacant(place) => {
                opened.add(ino, mode);
                place.insert((file, mode));
                None
            }
        };
        drop(kept);
        drop(extra);
        Ok(())
    }

    /// An open file; `Stale` if the session has none of this number, which it lost with a restart of the server.
    pub(super) fn file(&self, number: u64) -> Result<Arc<dyn OpenFile>> {
        let kept = self.kept.lock();
        let file = kept.files.get(&number).map(|(file, _)| Arc::clone(file));
        file.ok_or(FsError::Stale)
    }

    pub(super) fn close_files(&self, numbers: &[u64]) {
        for number in numbers {
            let mut kept = self.kept.lock();
            let closed = kept.files.remove(number);
            if let Some((file, mode)) = &closed {
                kept.opened.remove(file.ino(), *mode);
                self.budget.give_back(Resource::OpenFiles, 1);
            }
            drop(kept);
            drop(closed);
        }
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.kept.lock().is_over
    }

    /// From now on it gets nothing more, and keeps its resources until [`Self::end`].
    pub(super) fn begin_to_end(&self) {
        if let Some(link) = self.recipient.link.lock().take() {
            link.close();
        }
        self.attachment.fetch_add(1, Ordering::AcqRel);
        let mut kept = self.kept.lock();
        kept.is_over = true;
        kept.waiting.retain(|_, waiting| !waiting.is_deferred);
    }

    /// Ends it, and releases everything it has. Has no effect the second time. The pool does not count it any more
    /// ([`super::state::State::session_ends`]).
    pub(super) fn end(&self) {
        self.begin_to_end();
        let mut kept = self.kept.lock();
        let files = std::mem::take(&mut kept.files);
        kept.opened = Opened::default();
        let clients = std::mem::take(&mut kept.clients);
        kept.slots = Vec::new();
        let pins: Vec<(Ino, u64)> = kept.pins.iter().map(|(&ino, pinned)| (ino, pinned.pins)).collect();
        let place = kept.place.take();
        drop(kept);
        self.budget.give_back(Resource::OpenFiles, files.len());
        self.budget.give_back(Resource::LockOwners, clients.len());
        for client in clients.into_values() {
            self.export.fs().release_client(&SYSTEM.clone().of_client(client));
        }
        drop(files);
        pins.into_iter().for_each(|(ino, count)| self.unpin(ino, count));
        // Last: another may come in its place now.
        drop(place);
    }

    /// Whether ending it now costs its client nothing: it has no state, no request in progress, and no reply that may
    /// be requested again.
    pub(super) fn has_nothing(&self) -> bool {
        if self.given.load(Ordering::Acquire) > 0 || self.deferred_changes.load(Ordering::Acquire) > 0 {
            return false;
        }
        let kept = self.kept.lock();
        let holds = !kept.pins.is_empty() || !kept.files.is_empty() || !kept.slots.is_empty();
        let locks = !kept.clients.is_empty() || !kept.waiting.is_empty() || kept.is_locker;
        !(holds || locks || kept.is_reclaiming || kept.is_over || !kept.under_way.is_empty())
    }
}

impl Kept {
    fn bound_effects(&mut self) {
        while self.effects.len() > EFFECTS_MAX || (self.effect_pins > EFFECT_PINS_MAX && self.effects.len() > 1) {
            let Some((_, effect)) = self.effects.pop_first() else {
                return;
            };
            self.effect_pins -= effect.pins();
        }
    }
}
