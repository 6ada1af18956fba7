//! The server: exports of engines, for many clients.
//!
//! Contents: [`Server`]; the routing of requests; how sessions begin, continue and end. The receiving thread answers a
//! request to an engine that keeps its data in memory; a worker answers one to an engine that may wait for a device. The
//! design is that of RUFS, section 2.3.2 (handles and their state) and 2.3.3 (messages and bulk data).
//!
//! A session outlives its connection, and a restart of the server: the client comes back with its ticket. After a
//! restart it reclaims its open files, pins and locks. Until all sessions that had locks have done so, for at most a
//! lease, no other session gets locks.
//!
//! With the feature `rdma`, an adapter offers files to one-sided verbs ([`rdma`]). Messages travel by
//! `ferrite-fabric`. This crate names no engine and no client; the tests of both ends live here.
//!
//! Invariant: a client's messages can end its own connection, and nothing else.
#![forbid(unsafe_code)]

mod admission;
mod answer;
mod aside;
mod change;
mod ends;
mod export;
mod grace;
mod keeper;
mod lane;
mod later;
mod leases;
mod lock;
mod meter;
mod observe;
mod options;
pub mod rdma;
mod seal;
mod session;
mod state;
mod strangers;
mod subtree;
mod tenure;
mod unresponsive;
mod verbs;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_buffers::Pool;
use ferrite_fabric::outbox::Outbox;
use ferrite_fabric::reactor::{self, Close, Data, Link, Origin, Reactors, Served, Service, Turns};
use ferrite_fabric::secure::Gate;
use ferrite_fabric::source::{Source, Throttle};
use ferrite_vfs::workers::{Work, Workers};
use ferrite_vfs::{FileSystem, FsError, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use admission::{Account, Admission};
use answer::{Answering, put};
use aside::Aside;
use export::{Export, Store};
use grace::Grace;
use keeper::drop_orphans;
use leases::Leases;
use meter::Received;
use session::Session;
use state::State;
use strangers::Strangers;
use subtree::Borders;
use verbs::Verbs;

use ferrite_proto::{Head, MAGIC, Promises, Reader, Request, VERSION, Welcome};

pub use admission::{Bounds, Resource};
pub use export::{ExportOptions, NOBODY};
pub use ferrite_fabric::reactor::FabricOptions;
pub use meter::{Metrics, Observer};
pub use options::ServerOptions;
pub use rdma::{KeyWanted, Keys, Rdma};

struct Inner {
    exports: Vec<Arc<Export>>,
    stores: Vec<Arc<Store>>,
    /// By store and number. Under it a thread takes locks of a session and of the admission, and no others.
    sessions: Mutex<FxHashMap<(usize, u64), Arc<Session>>>,
    admission: Arc<Admission>,
    strangers: Strangers,
    /// When slots were last revoked, as [`Inner::now_ms`] counts.
    slots_taken_ms: AtomicU64,
    /// Throttles log lines about sessions that have ended.
    endings: Throttle,
    /// By store.
    grace: Vec<Grace>,
    instance: u64,
    began: Instant,
    lease: Duration,
    pool: Pool,
    workers: Option<Workers>,
    /// For long requests to an engine that answers at once.
    aside: Aside,
    /// For changes that had to wait for leases.
    patient: Workers,
    keeper: OnceLock<std::thread::Thread>,
    /// Sessions' resources of the adapter, if there is one.
    verbs: Option<Verbs>,
    /// More than one thread answers without a worker, so that a request may still be in progress when its repetition
    /// comes over another connection.
    may_overlap: bool,
    /// How long the threads of the reactor work.
    turns: Arc<Turns>,
    stop: AtomicBool,
}

/// A running server. Dropping it stops it: connections are closed, and sessions' resources are released.
pub struct Server {
    // Dropped before the state that it serves.
    reactors: Option<Reactors>,
    keeper: Option<JoinHandle<()>>,
    inner: Arc<Inner>,
}

impl Server {
    /// Serves engines, each with its exports, to clients of `listeners`.
    ///
    /// # Errors
    /// If the root of an export is no directory, two exports have one name, or the system has no threads or memory.
    pub fn start(
        listeners: Vec<TcpListener>,
        engines: Vec<(Arc<dyn FileSystem>, Vec<ExportOptions>)>,
        options: &ServerOptions,
    ) -> Result<Server> {
        let (mut stores, mut exports, mut grace) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (fs, wanted)) in engines.into_iter().enumerate() {
            let (state, heritage) = State::load(&*fs)?;
            if !heritage.has_sessions {
                drop_orphans(&*fs);
            }
            let store = Arc::new(Store {
                state,
                borders: Borders::default(),
                leases: Arc::new(Leases::load(&*fs, options.cache_term)?),
                limits: fs.limits(),
                fs,
                unsettled_locks: AtomicUsize::new(0),
                number,
            });
            for export in wanted {
                exports.push(Arc::new(Export::open(&store, export)?));
            }
            stores.push(store);
            grace.push(Grace::new(heritage, options.lease));
        }
        let gate = gate_of(&exports)?;
        let no_resources = |error: &dyn std::fmt::Display| FsError::Io(format!("the server cannot start: {error}"));
        let pool = Pool::new(options.buffers_bytes).ok_or_else(|| no_resources(&"no memory for buffers"))?;
        let submitting = stores.iter().filter(|store| store.limits.submits);
        submitting.for_each(|store| store.fs.know_buffers(&pool));
        let may_block = stores.iter().any(|store| store.limits.may_block);
        let workers = may_block.then(|| Workers::start(options.workers)).transpose();
        let inner = Arc::new(Inner {
            exports,
            stores,
            sessions: Mutex::default(),
            admission: Admission::new(options.bounds.clone()),
            strangers: Strangers::new(),
            slots_taken_ms: AtomicU64::new(0),
            endings: Throttle::new(),
            grace,
            instance: u64::from_le_bytes(ferrite_vfs::random()?),
            began: Instant::now(),
            lease: options.lease,
            pool: pool.clone(),
            workers: workers.map_err(|error| no_resources(&error))?,
            aside: Aside::start().map_err(|error| no_resources(&error))?,
            patient: Workers::start(1).map_err(|error| no_resources(&error))?,
            keeper: OnceLock::new(),
            verbs: options.rdma.clone().map(Verbs::new),
            may_overlap: options.threads > 1,
            turns: Arc::default(),
            stop: AtomicBool::new(false),
        });
        let service = Arc::new(Front(Arc::clone(&inner)));
        let reactor_options = reactor::Options {
            threads: options.threads,
            busy: options.busy,
            gate: Arc::new(gate),
            fabric: options.fabric.clone(),
            turns: Arc::clone(&inner.turns),
            ..reactor::Options::default()
        };
        let reactors = Reactors::start(listeners, &service, &pool, &reactor_options);
        let keeper = {
            let inner = Arc::clone(&inner);
            std::thread::Builder::new()
                .name("ferrite-keeper".into())
                .spawn(move || inner.keep())
        };
        if let Ok(keeper) = &keeper {
            let _ = inner.keeper.set(keeper.thread().clone());
        }
        Ok(Server {
            reactors: Some(reactors.map_err(|error| no_resources(&error))?),
            keeper: Some(keeper.map_err(|error| no_resources(&error))?),
            inner,
        })
    }

    /// Stops serving: connections are closed. Sessions are not ended, so that clients continue when a server is started
    /// on the same engine again; the engine keeps their files open as long as this value lives. Close the engine before
    /// this is dropped, or open files without names are freed.
    pub fn stop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        self.reactors = None;
        self.inner.stores.iter().for_each(|store| store.leases.stop(&*store.fs));
        if let Some(keeper) = self.keeper.take() {
            keeper.thread().unpark();
            // A panic of it was reported when it happened.
            let _ = keeper.join();
        }
        self.inner.note_ends();
        self.inner
            .stores
            .iter()
            .for_each(|store| store.state.note_stop(&*store.fs));
    }

    /// Sessions now.
    pub fn sessions(&self) -> usize {
        self.inner.sessions.lock().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        // An engine that outlives this server has no use for its sessions' resources.
        let sessions = std::mem::take(&mut *self.inner.sessions.lock());
        sessions.into_values().for_each(|session| self.inner.close(&session));
    }
}

/// The exports' demands on clients.
fn gate_of(exports: &[Arc<Export>]) -> Result<Gate> {
    let mut names = std::collections::HashSet::new();
    let mut gate = Gate::new(exports.iter().any(|export| export.options.keys.is_empty()));
    for options in exports.iter().map(|export| &export.options) {
        if !names.insert(&options.name) {
            let name = &options.name;
            return Err(FsError::Io(format!(
                "two exports have the name `{name}`; give them different ones"
            )));
        }
        options.keys.iter().for_each(|key| gate.admit(key, options.encryption));
    }
    Ok(gate)
}

/// A connection: without a session yet, or of one.
enum Peer {
    Stranger {
        link: Link,
        number: u64,
        account: Account,
        address: SocketAddr,
    },
    Client {
        session: Arc<Session>,
        attachment: u64,
    },
}

struct Front(Arc<Inner>);

impl Service for Front {
    type Peer = Peer;

    fn connected(&self, link: Link, origin: Origin) -> Peer {
        let source = Source::of(origin.address.ip());
        Peer::Stranger {
            number: self.0.strangers.come(link.clone(), source),
            link,
            account: Account {
                key: origin.key,
                source,
            },
            address: origin.address,
        }
    }

    fn data_bytes_max(&self, peer: &Peer) -> usize {
        match peer {
            // A connection that has not greeted gets no buffers.
            Peer::Stranger { .. } => 0,
            Peer::Client { .. } => ferrite_fabric::frame::DATA_BYTES_MAX,
        }
    }

    fn is_ready(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Stranger { .. } => true,
            Peer::Client { session, .. } => !session.is_busy(),
        }
    }

    fn message(
        &self,
        peer: &mut Peer,
        body: &[u8],
        data: Data<'_>,
        out: &mut Outbox,
    ) -> std::result::Result<Served, Close> {
        let (head, request) = Reader::new(body).last::<(Head, Request<'_>)>().map_err(|_| Close)?;
        let inner = &self.0;
        match peer {
            Peer::Stranger {
                link,
                number,
                account,
                address,
            } => {
                let (session, welcome) = match inner.greet(&request, *account) {
                    Ok(greeted) => greeted,
                    Err(error) => {
                        // Report the reason; the client may retry.
                        put::<()>(out, head.id, Err(error));
                        return Ok(Served::Yes);
                    }
                };
                inner.strangers.leave(*number);
                session.meter.comes_from(*address);
                let attachment = session.attach(link.clone());
                put(out, head.id, Ok(welcome));
                *peer = Peer::Client { session, attachment };
                Ok(Served::Yes)
            }
            Peer::Client { session, attachment } => {
                if !session.is_attached(*attachment) {
                    return Err(Close);
                }
                if let Err(error) = head.caller.check() {
                    put::<()>(out, head.id, Err(error));
                    return Ok(Served::Yes);
                }
                let received = Received::new(request.number(), body, data, out);
                let asked = received.asked;
                session.seen(asked.since.duration_since(inner.began).as_millis() as u64);
                let served = inner.dispatch(session, head, request, received, out)?;
                asked.count_if_answered(&session.meter, out);
                Ok(served)
            }
        }
    }

    fn disconnected(&self, peer: Peer) {
        match peer {
            Peer::Stranger { number, .. } => self.0.strangers.leave(number),
            Peer::Client { session, attachment } => self.0.end_if_idle(&session, attachment),
        }
    }
}

impl Inner {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Handles the first message of a connection, which selects its session.
    fn greet(&self, request: &Request<'_>, account: Account) -> Result<(Arc<Session>, Welcome)> {
        let &Request::Hello {
            magic,
            version,
            export: name,
            resume,
        } = request
        else {
            return Err(FsError::Io("the first message must be a greeting".into()));
        };
        if magic != MAGIC {
            return Err(FsError::Io(
                "this is a Ferrite server, and the client is none of Ferrite".into(),
            ));
        }
        if version != VERSION {
            return Err(FsError::Io(format!(
                "the server speaks version {VERSION} of the protocol, the client version {version}; bring both to the \
                 same version of Ferrite"
            )));
        }
        let key = account.key;
        // Exports whose keys the client lacks do not exist for it.
        let meant = |export: &&Arc<Export>| export.options.name.as_bytes() == name && export.options.is_open_to(key);
        let export = self.exports.iter().find(meant).ok_or_else(|| {
            FsError::Io(format!(
                "the server exports nothing named `{}` {}",
                String::from_utf8_lossy(name),
                match key {
                    Some(_) => "to who has this key; give the key and the name of the same export",
                    None => "to who has no key; is the name right, and does the export need a key (`key=FILE`)?",
                }
            ))
        })?;
        let (session, state) = self.session(export, account, resume)?;
        session.seen(self.now_ms());
        let limits = &export.store.limits;
        let welcome = Welcome {
            version: VERSION,
            instance: self.instance,
            ticket: session.ticket,
            state,
            lease_ms: self.lease.as_millis() as u32,
            root: export.root_node(),
            promises: Promises {
                atomic_write_bytes: limits.atomic_write_bytes,
                whole_write_bytes: limits.whole_write_bytes,
                file_bytes_max: limits.file_bytes_max,
                durability: limits.durability,
                durable_operations: limits.durable_operations,
                has_slots: export.store.state.has_slots(),
            },
        };
        Ok((session, welcome))
    }

    fn grace(&self, store: &Store) -> &Grace {
        &self.grace[store.number]
    }

    /// Notes that a session of an earlier run has claimed its locks, or will not. After the last one the others get
    /// theirs.
    fn locks_are_back(&self, session: &Session) {
        let store = &session.export.store;
        for work in self.grace(store).locks_are_back(session.ticket.session) {
            match store.limits.may_block {
                true => self.work(store, work),
                // There may be many.
                false => self.go_on(work),
            }
        }
    }

    /// Runs work on an engine, here or on a worker if the engine may wait.
    fn work(&self, store: &Store, work: impl FnOnce() + Send + 'static) {
        match &self.workers {
            Some(workers) if store.limits.may_block => workers.give(work),
            _ => work(),
        }
    }

    /// Runs work that has waited, on a thread that has received nothing.
    fn go_on(&self, work: Work) {
        self.patient.give(work);
    }

    /// Wakes the keeper, because work waits for a term to end.
    fn wake_keeper(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }

    fn dispatch(
        self: &Arc<Self>,
        session: &Arc<Session>,
        head: Head,
        request: Request<'_>,
        received: Received<'_>,
        out: &mut Outbox,
    ) -> std::result::Result<Served, Close> {
        let id = head.id;
        let store = &session.export.store;
        match request {
            Request::Hello { .. } => return Err(Close),
            Request::Ping {} => {
                session.settled(head.settled_below);
                put(out, id, Ok(()));
            }
            Request::Goodbye {} => {
                let (inner, session) = (Arc::clone(self), Arc::clone(session));
                let ready = store.leases.end(&*session.recipient);
                ready.into_iter().for_each(|work| self.go_on(work));
                match store.limits.may_block && !self.has_keys(&session) {
                    true => self.work(store, move || inner.end(&session)),
                    false => self.go_on(Box::new(move || inner.end(&session))),
                }
                return Err(Close);
            }
            Request::Reclaimed {} => {
                session.has_reclaimed(id);
                session.keeps_its_locks();
                self.locks_are_back(session);
                put(out, id, Ok(()));
            }
            Request::CancelLock { request } => {
                lock::cancel(session, request);
                put(out, id, Ok(()));
            }
            Request::Lock {
                node,
                client,
                lock,
                may_wait,
                is_claim,
            } => {
                // Locks that others may have got since no longer belong to the session.
                if is_claim && !(session.is_reclaiming() && self.grace(store).takes_claims_of(session.ticket.session)) {
                    put::<()>(out, id, Err(FsError::Stale));
                    return Ok(Served::Yes);
                }
                let is_deferred = !is_claim && self.grace(store).awaits_locks();
                if !lock::begin(session, id, client, is_deferred) {
                    return Ok(Served::Yes);
                }
                let mut caller = session.export.ctx(head.caller, head.check, false);
                caller.check &= !is_claim;
                let wanted = lock::Wanted {
                    node,
                    lock,
                    may_wait,
                    caller,
                };
                let session = Arc::clone(session);
                let work = move || lock::lock(&session, id, &wanted);
                let work: grace::Deferred = Box::new(work);
                let work = match is_deferred {
                    true => self.grace(store).put_off(work),
                    false => Some(work),
                };
                if let Some(work) = work {
                    self.ask_for_lock(store, work);
                }
            }
            Request::Recalled { recalls } => {
                put(out, id, Ok(()));
                let ready = store.leases.recalled(&*session.recipient, &recalls);
                ready.into_iter().for_each(|work| self.go_on(work));
            }
            // Moving a file's pages takes long, and so does sealing a file whose last key is gone.
            Request::Bind { .. } | Request::ReleaseKey { .. } | Request::Unbind { .. } => {
                change::begin(self, session, id, received, true);
            }
            request => return Ok(self.ask_engine(session, head, request, received, out)),
        }
        Ok(Served::Yes)
    }

    /// Answers a request that needs the engine.
    fn answer(
        &self,
        session: &Arc<Session>,
        head: Head,
        request: Request<'_>,
        data: &[u8],
        out: &mut Outbox,
    ) -> Served {
        let id = head.id;
        match request {
            Request::Leases { relied_on } => {
                let leases = &session.export.store.leases;
                if !session.export.options.gives_leases() {
                    put(out, id, Ok(0u32));
                    return Served::Yes;
                }
                session.wants_leases();
                let (term, ready) = leases.begin(session.export.fs(), &*session.recipient, relied_on);
                put(out, id, Ok(term.as_millis() as u32));
                ready.into_iter().for_each(|work| self.go_on(work));
            }
            Request::Activity {} => put(out, id, Ok(self.activity(&session.export))),
            Request::Abandon { request, file } => {
                lock::abandon(session, request, file);
                put(out, id, Ok(()));
            }
            Request::Slots { count } => put(out, id, Ok(self.slots(session, count as usize))),
            Request::ReclaimSlots {} => put(out, id, Ok(session.reclaim_slots(id))),
            Request::Unlock {
                node,
                client,
                owner,
                what,
            } => put(out, id, lock::unlock(session, node, client, owner, what)),
            Request::ConflictingLock { node, client, lock } => {
                let caller = session.export.ctx(head.caller, head.check, false);
                put(out, id, lock::conflicting(session, &caller, (node, client), &lock));
            }
            Request::ReleaseClient { client } => put(out, id, lock::release_client(session, client)),
            request @ (Request::Rdma {}
            | Request::OpenQueuePair { .. }
            | Request::CloseQueuePair { .. }
            | Request::Bind { .. }
            | Request::ReleaseKey { .. }
            | Request::Unbind { .. }
            | Request::RdmaActivity {}) => verbs::answer(self.verbs.as_ref(), session, head, &request, out),
            request => match Answering::new(session, head, &self.pool) {
                Ok(answering) => return answering.answer(request, data, out),
                Err(error) => put::<()>(out, id, Err(error)),
            },
        }
        Served::Yes
    }
}
