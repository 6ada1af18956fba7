//! Requests about RDMA: rights to queue pairs and keys, and their lifetime.
//!
//! Invariants:
//! * A key is for a file of the session's export that its caller may read, and write if it allows writing, and for
//!   queue pairs of the session. A read-only export gives no key that allows writing.
//! * Keys and queue pairs end with their session. A thread that opens one checks afterwards whether the session has
//!   ended.
//! * While there is a key that allows writing a file, no session has a lease on it.
//! * A repeated request does no harm: a queue pair is identified by the client's end of it, and keys that the client
//!   has not received end with the session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::ranked::Mutex;
use ferrite_transport::send_queue::SendQueue;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{FsError, Ino, ROOT_INO, Result, SpaceOf, Unsupported, posix, walk};
use rustc_hash::FxHashMap;

use super::admission::{Charge, Resource};
use super::export::{Export, Store};
use super::rdma::{KeyWanted, Rdma};
use super::reply::put;
use super::session::Session;
use crate::lock_order;
use ferrite_proto::{
    BoundFileInfo, GrantedKey, Head, Node, QueuePairInfo, RdmaActivity, RdmaCounters, RdmaRequest, UdpPlace,
};

/// Most queue pairs of a session.
const QUEUE_PAIRS_MAX: usize = 64;
/// Most keys of a session.
const KEYS_MAX: usize = 4_096;

/// A granted key.
struct Key {
    ino: Ino,
    writable: bool,
    _charge: Charge,
}

/// The resources of a session.
struct Held {
    /// Its name in the adapter.
    number: u64,
    /// The name of its export, which no other has.
    export: String,
    /// By the client's end.
    queue_pairs: Vec<(QueuePairInfo, QueuePairInfo, Charge)>,
    keys: FxHashMap<u32, Key>,
}

/// A session: its store, and its number there.
type Owner = (usize, u64);

/// Sessions' resources of an adapter.
pub(super) struct Verbs {
    adapter: Arc<dyn Rdma>,
    next: AtomicU64,
    /// Held while keys come and go, so that leases are barred as long as there are keys. Taken before `held`.
    turn: Mutex<lock_order::VerbsTurn, ()>,
    held: Mutex<lock_order::VerbsHeld, FxHashMap<Owner, Held>>,
}

fn owner(session: &Session) -> Owner {
    (session.export.store.number, session.resume_token.session)
}

/// Answers a request about RDMA.
pub(super) fn reply(verbs: Option<&Verbs>, session: &Session, head: Head, request: RdmaRequest, out: &mut SendQueue) {
    let id = head.id;
    let Some(verbs) = verbs else {
        return answer_without(id, &request, out);
    };
    match request {
        RdmaRequest::Rdma {} => put(out, id, Ok(verbs.places())),
        RdmaRequest::RdmaActivity {} => put(out, id, Ok(verbs.activity(&session.export))),
        RdmaRequest::OpenQueuePair { client } => {
            let opened = verbs.open(session, &client);
            verbs.end_if_over(session);
            put(out, id, opened);
        }
        RdmaRequest::CloseQueuePair { qpn } => {
            verbs.close(session, qpn);
            put(out, id, Ok(()));
        }
        RdmaRequest::ReleaseKey { key } => {
            verbs.release(session, key);
            put(out, id, Ok(()));
        }
        RdmaRequest::Bind {
            node,
            writable,
            defragment,
            atomic,
        } => {
            let binding = Binding {
                writable,
                defragment,
                whole: false,
            };
            let bound = verbs.bind(session, head, node, binding, atomic);
            verbs.end_if_over(session);
            put(out, id, bound);
        }
        RdmaRequest::Unbind { node } => put(out, id, verbs.unbind(session, head, node)),
    }
}

/// Answers for a server without an adapter.
fn answer_without(id: u64, request: &RdmaRequest, out: &mut SendQueue) {
    match request {
        RdmaRequest::Rdma {} => put(out, id, Ok(Vec::<UdpPlace>::new())),
        RdmaRequest::RdmaActivity {} => put(out, id, Ok(RdmaActivity::default())),
        RdmaRequest::OpenQueuePair { .. }
        | RdmaRequest::CloseQueuePair { .. }
        | RdmaRequest::ReleaseKey { .. }
        | RdmaRequest::Bind { .. }
        | RdmaRequest::Unbind { .. } => put::<()>(out, id, Err(FsError::NotSupported(Unsupported::Region))),
    }
}

impl Verbs {
    pub(super) fn new(adapter: Arc<dyn Rdma>) -> Verbs {
        Verbs {
            adapter,
            next: AtomicU64::new(1),
            turn: Mutex::default(),
            held: Mutex::default(),
        }
    }

    fn places(&self) -> Vec<UdpPlace> {
        self.adapter.places().into_iter().map(UdpPlace).collect()
    }

    /// The counters of its adapter.
    pub(super) fn counters(&self) -> RdmaCounters {
        self.adapter.counters()
    }

    /// The adapter's activity, with only those files that this export gave keys of, unless it is the whole engine.
    pub(super) fn activity(&self, export: &Export) -> RdmaActivity {
        let store = &export.store;
        let mut files = self.adapter.files(&store.fs);
        if export.root() != ROOT_INO {
            let held = self.held.lock();
            let of_export = held.values().filter(|held| held.export == export.options.name);
            let known: Vec<Ino> = of_export
                .flat_map(|held| held.keys.values().map(|key| key.ino))
                .collect();
            files.retain(|file| known.contains(&file.ino));
        }
        let shown = |file: BoundFileInfo| BoundFileInfo {
            ino: export.shown(file.ino),
            ..file
        };
        RdmaActivity {
            places: self.places(),
            counters: self.adapter.counters(),
            files: files.into_iter().map(shown).collect(),
        }
    }

    /// The session's name in the adapter.
    fn number(&self, session: &Session) -> u64 {
        self.held
            .lock()
            .entry(owner(session))
            .or_insert_with(|| Held {
                number: self.next.fetch_add(1, Ordering::Relaxed),
                export: session.export.options.name.clone(),
                queue_pairs: Vec::new(),
                keys: FxHashMap::default(),
            })
            .number
    }

    fn open(&self, session: &Session, client: &QueuePairInfo) -> Result<QueuePairInfo> {
        let is_its_own =
            |address: std::net::SocketAddr| address.ip().to_canonical() == client.place.0.ip().to_canonical();
        if !session.meter.address().is_some_and(is_its_own) {
            return Err(FsError::Io(format!(
                "a queue pair must be at the address that the client connects from, which {} is not",
                client.place.0.ip()
            )));
        }
        let number = self.number(session);
        {
            let held = self.held.lock();
            if let Some(held) = held.get(&owner(session)) {
                if let Some((_, ours, _)) = held.queue_pairs.iter().find(|(theirs, ..)| theirs == client) {
                    return Ok(*ours);
                }
                if held.queue_pairs.len() >= QUEUE_PAIRS_MAX {
                    return Err(FsError::TooManyOpen);
                }
            }
        }
        let charge = session
            .budget
            .charge(Resource::QueuePairs)
            .ok_or(FsError::TooManyOpen)?;
        let ours = self.adapter.open(number, client)?;
        let is_kept = self.held.lock().get_mut(&owner(session)).map(|held| {
            held.queue_pairs.push((*client, ours, charge));
        });
        if is_kept.is_none() || session.is_over() {
            self.end_session(session);
            self.adapter.end_session(number);
            return Err(FsError::Disconnected);
        }
        Ok(ours)
    }

    fn close(&self, session: &Session, qpn: u32) {
        let mut held = self.held.lock();
        let Some(of_session) = held.get_mut(&owner(session)) else {
            return;
        };
        let before = of_session.queue_pairs.len();
        of_session.queue_pairs.retain(|(_, ours, _)| ours.qpn != qpn);
        let (number, had_it) = (of_session.number, of_session.queue_pairs.len() < before);
        drop(held);
        if had_it {
            self.adapter.close(number, qpn);
        }
    }

    /// Called while a change of the file is in progress, if the key allows writing.
    fn bind(&self, session: &Session, head: Head, node: Node, binding: Binding, atomic: bool) -> Result<GrantedKey> {
        let export = &session.export;
        if binding.writable && export.options.read_only {
            return Err(FsError::ReadOnly);
        }
        let ctx = export.ctx(head.caller, head.check, false);
        let file = session.hold(node)?;
        let number = self.number(session);
        let _turn = self.turn.lock();
        if self
            .held
            .lock()
            .get(&owner(session))
            .is_some_and(|held| held.keys.len() >= KEYS_MAX)
        {
            return Err(FsError::NoSpace(SpaceOf::MapEntries));
        }
        let charge = session.budget.charge(Resource::Keys);
        let charge = charge.ok_or(FsError::NoSpace(SpaceOf::MapEntries))?;
        let granted = self.adapter.bind(&KeyWanted {
            session: number,
            fs: &export.store.fs,
            ctx: &ctx,
            ino: file.ino,
            binding,
            atomic,
        })?;
        let key = Key {
            ino: file.ino,
            writable: binding.writable,
            _charge: charge,
        };
        if key.writable {
            export.store.leases.bar(file.ino);
        }
        let is_kept = self.held.lock().get_mut(&owner(session)).map(|held| {
            held.keys.insert(granted.key, key);
        });
        if is_kept.is_none() || session.is_over() {
            self.end(session);
            self.adapter.end_session(number);
            self.unbar(&export.store, &[file.ino]);
            return Err(FsError::Disconnected);
        }
        Ok(granted)
    }

    fn release(&self, session: &Session, key: u32) {
        let _turn = self.turn.lock();
        let mut held = self.held.lock();
        let Some(of_session) = held.get_mut(&owner(session)) else {
            return;
        };
        let number = of_session.number;
        let Some(released) = of_session.keys.remove(&key) else {
            return;
        };
        drop(held);
        self.adapter.release(number, key);
        self.unbar(&session.export.store, &[released.ino]);
    }

    /// Needs the right to write the file, as others lose their keys.
    fn unbind(&self, session: &Session, head: Head, node: Node) -> Result<()> {
        let export = &session.export;
        if export.options.read_only {
            return Err(FsError::ReadOnly);
        }
        let ctx = export.ctx(head.caller, head.check, false);
        let file = session.hold(node)?;
        if ctx.check {
            let attr = export.fs().getattr(&ctx, file.ino)?;
            let guarded = walk::guarded(export.fs(), attr, &ctx.cred)?;
            posix::may_access(&guarded, &ctx.cred, posix::Access::WRITE)?;
        }
        let _turn = self.turn.lock();
        // Even if the file could not be sealed, its keys have ended.
        let unbound = self.adapter.unbind(&export.store.fs, file.ino);
        let number = export.store.number;
        for (owner, held) in self.held.lock().iter_mut() {
            if owner.0 == number {
                held.keys.retain(|_, key| key.ino != file.ino);
            }
        }
        export.store.leases.unbar(file.ino);
        unbound
    }

    /// Whether a session has keys or queue pairs, or is about to get some.
    pub(super) fn knows(&self, session: &Session) -> bool {
        self.held.lock().contains_key(&owner(session))
    }

    /// Removes everything that arrived while the session ended, also after a failure.
    fn end_if_over(&self, session: &Session) {
        if session.is_over() {
            self.end_session(session);
        }
    }

    /// Ends the keys and queue pairs of an ended session. A session without any does not wait while others get theirs,
    /// which takes long; one that is about to get some checks afterwards whether it has ended.
    pub(super) fn end_session(&self, session: &Session) {
        if !self.knows(session) {
            return;
        }
        let _turn = self.turn.lock();
        self.end(session);
    }

    fn end(&self, session: &Session) {
        let Some(held) = self.held.lock().remove(&owner(session)) else {
            return;
        };
        self.adapter.end_session(held.number);
        let inodes: Vec<Ino> = held.keys.values().map(|key| key.ino).collect();
        self.unbar(&session.export.store, &inodes);
    }

    /// Allows leases again on inodes that no key allows writing.
    fn unbar(&self, store: &Store, inodes: &[Ino]) {
        let held = self.held.lock();
        let is_writable = |ino: Ino| {
            let of_store = held.iter().filter(|(owner, _)| owner.0 == store.number);
            of_store
                .flat_map(|(_, held)| held.keys.values())
                .any(|key| key.ino == ino && key.writable)
        };
        for &ino in inodes.iter().filter(|ino| !is_writable(**ino)) {
            store.leases.unbar(ino);
        }
    }
}
