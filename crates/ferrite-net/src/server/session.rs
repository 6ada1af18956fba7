//! A client's session: what the server keeps for it while it lives.
//!
//! Contents: [`Session`] with the inodes it has pinned and its open files; below it, what it has of locks
//! (`locks`) and slots of tokens (`slots`), and the inodes that requests use (`within`).
//!
//! Everything that a client asks of its session can be repeated: a client that lost its connection sends again what was
//! not answered. An open file has a number that the client chose. Pins are counted, so the session remembers which
//! requests that may come again have taken or given back pins ([`Session::repeats`]).
//!
//! Invariants: a session's lock is never held while the engine is called. An inode that is in use by a request stays
//! pinned until the request is done, whatever the client releases meanwhile.

mod changing;
mod locks;
mod opened;
mod slots;
mod within;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ferrite_fabric::outbox::Outbox;
use ferrite_fabric::reactor::Link;
use ferrite_vfs::{ClientId, FsError, Ino, OpenFile, OpenMode, Result, SYSTEM};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustc_hash::{FxHashMap, FxHashSet};

pub(super) use locks::Cancelled;
use locks::Waiting;
use opened::Opened;

use super::admission::{Account, Budget, Place, Resource};
use super::ends::Ends;
use super::export::Export;
use super::meter::Meter;
use crate::wire::{ClientActivity, Ticket};

/// Most files a session has open.
const FILES_MAX: usize = 1 << 16;
/// Most requests that workers have of a session.
const GIVEN_MAX: usize = 64;
/// Most changes of a session that wait. More than clients have under way: while so many wait, nothing is taken of the
/// connection, not even the answers to recalls that others wait for.
const PARKED_MAX: usize = 1024;
/// Most requests whose effects are remembered. A client has not as many under way; with more, the oldest are forgotten.
const EFFECTS_MAX: usize = 4096;
/// Most pins that they took, together. A listing takes some hundred.
const EFFECT_PINS_MAX: usize = 1 << 18;

#[derive(Default)]
struct Pinned {
    /// Pins of the engine.
    pins: u64,
    /// How many of them the client has given back while a request used the inode.
    late: u64,
    /// Requests that use it.
    users: u32,
    /// The version of the export's border at which it was looked at, 0 if it was not.
    looked_at: u64,
}

/// What a request did to the session that must not be done twice.
enum Effect {
    /// It took a pin of each of these.
    Pinned(Vec<Ino>),
    /// It gave pins back.
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
    /// Inodes without a pin that were looked at, each with the version of the border.
    unpinned: FxHashMap<(Ino, u32), u64>,
    effects: BTreeMap<u64, Effect>,
    files: FxHashMap<u64, (Arc<dyn OpenFile>, OpenMode)>,
    /// How often each inode is open, and how.
    opened: Opened,
    /// Numbers of files by which changes are being made, what each stands for, and by how many.
    changing: FxHashMap<u64, (Option<Ino>, u32)>,
    /// Pins that `effects` remembers.
    effect_pins: usize,
    slots: Vec<u32>,
    /// What the tokens of its slots carry in their upper half.
    number: u64,
    /// The last request that came with a token, and when, as [`Session::last_seen_ms`] counts.
    last_change: u64,
    changed_ms: u64,
    /// The client has the answers to all requests before it.
    settled_below: u64,
    clients: FxHashMap<u64, ClientId>,
    waiting: FxHashMap<u64, Waiting>,
    /// Requests that the engine works on.
    under_way: FxHashSet<u64>,
    /// Those among them that workers have.
    with_workers: FxHashSet<u64>,
    /// Those under way whose clients have given up, each with the number of the file that it opens.
    abandoned: FxHashMap<u64, u64>,
    /// It has had a lock, which is noted in the pool.
    is_locker: bool,
    is_reclaiming: bool,
    is_over: bool,
    /// That it is counted.
    place: Option<Place>,
}

/// How a session's client is reached. Apart from the session, for what may outlive it: leases.
pub(super) struct Recipient {
    /// Of the session.
    pub(super) number: u64,
    pub(super) export: Arc<Export>,
    /// By whatever connection the client has now, if any.
    pub(super) link: Mutex<Option<Link>>,
}

impl Recipient {
    /// Sends something.
    pub(super) fn send(&self, write: impl FnOnce(&mut Outbox)) {
        // Outside of the lock: the reactor takes it too.
        let link = self.link.lock().clone();
        if let Some(link) = link {
            link.send(write);
        }
    }
}

/// A session.
pub(super) struct Session {
    pub(super) ticket: Ticket,
    pub(super) export: Arc<Export>,
    /// Whom it is counted for, and what its client has in all.
    pub(super) account: Account,
    pub(super) budget: Arc<Budget>,
    kept: Mutex<Kept>,
    /// A request is not under way any more.
    done: Condvar,
    /// Requests that wait for a worker, or that one works on.
    given: AtomicUsize,
    pub(super) ends: Arc<Ends>,
    /// Changes that wait for leases of others to end, or go by the table of leases at least.
    parked: AtomicUsize,
    /// The client keeps what it has a lease on.
    has_leases: AtomicBool,
    /// Held while it gets its slots, so that it gets them once.
    getting_slots: Mutex<()>,
    pub(super) recipient: Arc<Recipient>,
    /// Moves when the client comes with another connection; what still arrives by the old one is ignored.
    attachment: AtomicU64,
    pub(super) meter: Meter,
    /// When the client was last heard of, in milliseconds since the server began.
    last_seen_ms: AtomicU64,
}

impl Drop for Session {
    fn drop(&mut self) {
        // What it was still answering when it ended.
        self.leave_counts();
    }
}

/// A request that is being answered. Dropping it ends that.
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
            ticket: export.sealer.ticket(number),
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
            ends: Arc::default(),
            parked: AtomicUsize::new(0),
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

    /// The client has come with this connection. Returns the number under which it is known.
    pub(super) fn attach(&self, link: Link) -> u64 {
        let mut current = self.recipient.link.lock();
        if let Some(old) = current.replace(link) {
            old.close();
        }
        self.attachment.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The client is about to come with another connection: those of before do not count any more.
    pub(super) fn detach(&self) {
        self.attachment.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether requests of this connection still count.
    pub(super) fn is_attached(&self, attachment: u64) -> bool {
        self.attachment.load(Ordering::Acquire) == attachment
    }

    /// Sends something by whatever connection the client has now, if any.
    pub(super) fn send(&self, write: impl FnOnce(&mut Outbox)) {
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

    /// `request` says so. Changes of the earlier run may come again, which have smaller numbers.
    pub(super) fn has_reclaimed(&self, request: u64) {
        let mut kept = self.kept.lock();
        kept.is_reclaiming = false;
        kept.last_change = kept.last_change.max(request);
    }

    /// Its counters go to its export. The caller holds the lock on the list that it is about to leave.
    pub(super) fn leave_counts(&self) {
        self.export.past.take_over(&self.meter);
    }

    /// The same for one whose client is gone.
    pub(super) fn expire(&self) {
        self.export.comings.expired.fetch_add(1, Ordering::Relaxed);
        self.leave_counts();
    }

    /// What the client has, without what it did; `now_ms` since the server began.
    pub(super) fn told(&self, now_ms: u64) -> ClientActivity {
        let is_connected = self.is_connected();
        let kept = self.kept.lock();
        ClientActivity {
            session: self.ticket.session,
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

    /// The engine has pinned `ino` because the client has asked for that. While it reclaims it gets one pin of each
    /// inode: what an earlier connection claimed before it broke is claimed again, by requests of other numbers.
    ///
    /// # Errors
    /// If its client has as many inodes pinned as it may.
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

    /// The engine has pinned `ino` for the answer to a request. False if the client has as many inodes pinned as it
    /// may: then this one is not pinned any more.
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

    /// A request begins. What it did when it came before, if it did, is undone; true if it was a release, which is not
    /// to be done again. `settled_below` is what the client says in the same message.
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

    /// What a request did to the session is undone: its client has given up, or it has failed after all.
    pub(super) fn undo(&self, request: u64) {
        self.repeats(request, 0);
    }

    /// The client does not wait for the answer to a request any more, nor does it know of the file that this opened.
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

    /// A request begins that another thread may be at work on already, because the client has sent it again: waits
    /// until that is done.
    pub(super) fn begin_alone(&self, request: u64) -> UnderWay<'_> {
        let mut kept = self.kept.lock();
        while !kept.under_way.insert(request) {
            self.done.wait(&mut kept);
        }
        drop(kept);
        UnderWay { session: self, request }
    }

    /// A request is given to a worker. False if one has it already, whose answer the client will get.
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

    /// Whether a worker has this request, whose answer the client will get.
    pub(super) fn is_given(&self, request: u64) -> bool {
        self.has_given() && self.kept.lock().with_workers.contains(&request)
    }

    /// The worker is done, and is about to send the answer. In this order: what comes again now, because the
    /// connection has changed, is answered anew, and what came before gets this answer.
    pub(super) fn taken_back(&self, request: u64) {
        self.kept.lock().with_workers.remove(&request);
        self.finish(request);
        self.given.fetch_sub(1, Ordering::AcqRel);
    }

    /// A change is going to wait. False if it does already, so that the client will get the answer.
    pub(super) fn park(&self, request: u64) -> bool {
        let is_new = self.kept.lock().under_way.insert(request);
        if is_new {
            self.parked.fetch_add(1, Ordering::AcqRel);
        }
        is_new
    }

    /// It is made; see [`Self::taken_back`].
    pub(super) fn unpark(&self, request: u64) {
        self.finish(request);
        self.parked.fetch_sub(1, Ordering::AcqRel);
        self.done.notify_all();
    }

    /// The client has asked for leases.
    pub(super) fn wants_leases(&self) {
        self.has_leases.store(true, Ordering::Release);
    }

    /// Grants a lease on what is going to be read, if the client wants leases and the export gives any.
    pub(super) fn lease(&self, ino: Ino) -> bool {
        self.has_leases.load(Ordering::Acquire) && self.export.store.leases.grant(Arc::clone(&self.recipient) as _, ino)
    }

    /// Whether workers have as many of its requests as they may.
    pub(super) fn is_busy(&self) -> bool {
        self.given.load(Ordering::Acquire) >= GIVEN_MAX || self.parked.load(Ordering::Acquire) >= PARKED_MAX
    }

    /// Whether the client has a connection, as far as is known.
    pub(super) fn is_connected(&self) -> bool {
        self.recipient
            .link
            .lock()
            .as_ref()
            .is_some_and(|link| !link.is_closed())
    }

    /// The client gives pins back. Inodes are as the engine numbers them.
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
    pub(super) fn has_room_for_file(&self) -> Result<()> {
        let kept = self.kept.lock();
        match kept.is_over || kept.files.len() >= FILES_MAX {
            true => Err(FsError::TooManyOpen),
            false => Ok(()),
        }
    }

    /// Keeps an open file under the client's number. If there is one with this number, the same request opened it
    /// before. It stays, unless the request has found another file this time: the client has had no answer but the one
    /// that it gets now.
    pub(super) fn keep_file(&self, number: u64, file: Arc<dyn OpenFile>, mode: OpenMode) -> Result<()> {
        let mut kept = self.kept.lock();
        if !kept.may_stand_for(number, file.ino()) {
            drop(kept);
            drop(file);
            return Err(FsError::Busy);
        }
        let has_room = !kept.is_over
            && (kept.files.contains_key(&number)
                || (kept.files.len() < FILES_MAX && self.budget.take(Resource::OpenFiles)));
        if !has_room {
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

    /// An open file; `Stale` if the session has none of this number, which it lost when the server was restarted.
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

    /// From now on it gets nothing more, and keeps what it has until [`Self::end`].
    pub(super) fn begin_to_end(&self) {
        if let Some(link) = self.recipient.link.lock().take() {
            link.close();
        }
        self.attachment.fetch_add(1, Ordering::AcqRel);
        let mut kept = self.kept.lock();
        kept.is_over = true;
        kept.waiting.retain(|_, waiting| !waiting.is_deferred);
    }

    /// Ends it: everything it has is let go. Has no effect the second time. The pool does not count it any more
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

    /// Whether it has nothing that its client would miss if it ended now: not even a request under way, nor an answer
    /// that may be asked for again.
    pub(super) fn has_nothing(&self) -> bool {
        if self.given.load(Ordering::Acquire) > 0 || self.parked.load(Ordering::Acquire) > 0 {
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
