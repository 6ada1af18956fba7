//! The server: exports of engines, for many clients.
//!
//! Contents: [`Server`]; the routing of requests; how sessions begin, continue and end. The receiving thread answers a
//! request to an engine that keeps its data in memory; a worker answers one to an engine that may wait for a device.
//! The type of a request ([`Request`]) says which part of the server answers it. The design is that of RUFS, section
//! 2.3.2 (handles and their state) and 2.3.3 (messages and bulk data).
//!
//! A session outlives its connection, and a restart of the server: the client comes back with its resume token. After a
//! restart it reclaims its open files, pins and locks. Until all sessions that had locks have done so, for at most a
//! lease, no other session gets locks.
//!
//! With the feature `rdma`, an adapter offers files to one-sided verbs ([`rdma`]). Messages travel by
//! `ferrite-transport`. This crate names no engine and no client; the tests of both ends live here.
//!
//! A volume that servers hand to each other ([`Movable`]) comes and goes while the server runs.
//!
//! Invariant: a client's messages can end its own connection, and nothing else.
#![forbid(unsafe_code)]

mod admission;
mod aside;
mod calls;
mod change;
mod close_barrier;
mod common;
mod deferred_reply;
mod export;
mod front;
mod grace;
mod handle_mac;
mod immediate;
mod lane;
mod leases;
mod lock;
mod lock_order;
mod meter;
mod movable;
mod observe;
mod options;
mod pending;
pub mod rdma;
mod reaper;
mod reply;
mod running;
mod session;
mod state;
mod subtree;
mod tenure;
mod unresponsive;
mod verbs;

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_buffers::Pool;
use ferrite_checks::ranked::Mutex;
use ferrite_transport::reactor::{self, Close, Reactors, Served};
use ferrite_transport::send_queue::SendQueue;
use ferrite_transport::source::Throttle;
use ferrite_vfs::volume::Ownership;
use ferrite_vfs::workers::{Work, Workers};
use ferrite_vfs::{FileSystem, FsError, Result};
use rustc_hash::FxHashMap;

use admission::Admission;
use aside::Aside;
use calls::RequestHandler;
use close_barrier::CloseBarrier;
use common::Common;
use export::{Export, Store};
use front::{Front, policy_of};
use grace::Grace;
use leases::Leases;
use meter::Received;
use movable::Place;
use pending::PendingConnections;
use reaper::drop_orphans;
use reply::put;
use running::{Running, withdraw_leases};
use session::Session;
use state::State;
use subtree::Borders;
use verbs::Verbs;

use ferrite_proto::{Call, Head, Request, SessionRequest};

pub use admission::{Bounds, Resource};
pub use export::{ExportOptions, ExportQuota, NOBODY};
pub use ferrite_transport::reactor::FabricOptions;
pub use meter::Metrics;
pub use movable::{Movable, Stopped};
pub use observe::Observer;
pub use options::ServerOptions;
pub use rdma::{KeyWanted, Keys, Rdma};

/// The state of engines that are served together.
struct Inner {
    exports: Vec<Arc<Export>>,
    stores: Vec<Arc<Store>>,
    /// By store and number. Under it a thread takes locks of a session and of the admission, and no others.
    sessions: Mutex<lock_order::Sessions, FxHashMap<(usize, u64), Arc<Session>>>,
    common: Arc<Common>,
    /// Whether an answer that was made before may leave; `None`: always.
    ownership: Option<Arc<dyn Ownership>>,
    /// When slots were last revoked, as [`Inner::now_ms`] counts.
    slots_taken_ms: AtomicU64,
    /// Throttles log lines about sessions that have ended.
    end_log: Throttle,
    /// By store.
    grace: Vec<Grace>,
    instance: u64,
    began: Instant,
    lease: Duration,
    workers: Option<Workers>,
    /// For long requests to an engine that answers at once.
    aside: Aside,
    /// For changes that had to wait for leases.
    waiting_workers: Workers,
    /// Sessions that other threads are ending.
    session_ends: Arc<CloseBarrier>,
    reaper: OnceLock<std::thread::Thread>,
    /// Sessions' resources of the adapter, if there is one.
    verbs: Option<Verbs>,
    /// More than one thread answers without a worker, so that a request may still be in progress when its repetition
    /// comes over another connection.
    may_overlap: bool,
    stop: AtomicBool,
}

/// A running server. Dropping it stops it: connections are closed, and sessions' resources are released.
pub struct Server {
    // Dropped before the state that it serves.
    reactors: Option<Reactors>,
    front: Arc<Front>,
    home: Running,
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
        Server::start_with_movable(listeners, engines, Vec::new(), options).map(|(server, _)| server)
    }

    /// The same, with the exports of volumes that servers hand to each other. Each begins elsewhere, and has a handle
    /// in the order of `movable`.
    ///
    /// # Errors
    /// Those of [`Server::start`].
    pub fn start_with_movable(
        listeners: Vec<TcpListener>,
        engines: Vec<(Arc<dyn FileSystem>, Vec<ExportOptions>)>,
        movable: Vec<Vec<ExportOptions>>,
        options: &ServerOptions,
    ) -> Result<(Server, Vec<Movable>)> {
        let opened = Opened::open(engines, options, None)?;
        let own = opened.exports.iter().map(|export| &export.options);
        let policy = policy_of(own.chain(movable.iter().flatten()))?;
        let pool = Pool::new(options.buffers_bytes).ok_or_else(|| cannot_start("no memory for buffers"))?;
        let common = Arc::new(Common {
            admission: Admission::new(options.bounds.clone()),
            pending_connections: PendingConnections::new(),
            pool: pool.clone(),
            turns: Arc::default(),
            options: options.clone(),
        });
        let home = Running::start(opened, &common, None)?;
        let front = Arc::new(Front {
            home: Arc::clone(&home.inner),
            places: movable.into_iter().map(Place::new).collect(),
            common: Arc::clone(&common),
        });
        let reactor_options = reactor::Options {
            threads: options.threads,
            busy_poll: options.busy_poll,
            policy: Arc::new(policy),
            fabric: options.fabric.clone(),
            turns: Arc::clone(&common.turns),
            ..reactor::Options::default()
        };
        let reactors = Reactors::start(listeners, &front, &pool, &reactor_options).map_err(cannot_start)?;
        let handle = |place: &Arc<Place>| Movable {
            place: Arc::clone(place),
            common: Arc::clone(&common),
        };
        let handles = front.places.iter().map(handle).collect();
        let server = Server {
            reactors: Some(reactors),
            front,
            home,
        };
        Ok((server, handles))
    }

    /// Stops serving: connections are closed. Sessions are not ended, so that clients continue when a server is started
    /// on the same engine again; the engine keeps their files open as long as this value lives. Close the engine before
    /// this is dropped, or open files without names are freed.
    ///
    /// Sessions whose clients have left end before it returns, in the pool too. Blocks for that, up to ten seconds.
    /// Afterwards this value changes nothing of the state in the pool, which may be that of the next server. Movable
    /// volumes are to be stopped before.
    pub fn stop(&mut self) {
        let Some(reactors) = self.reactors.take() else {
            return;
        };
        withdraw_leases(&self.home.inner);
        self.home.inner.stop.store(true, Ordering::Release);
        drop(reactors);
        self.home.stop();
    }

    /// Sessions now.
    pub fn sessions(&self) -> usize {
        let all = self.front.engines();
        all.iter().map(|inner| inner.sessions.lock().len()).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn cannot_start(why: impl std::fmt::Display) -> FsError {
    FsError::Io(format!("the server cannot start: {why}"))
}

/// Engines with their exports, and what earlier runs of a server have left in them.
struct Opened {
    stores: Vec<Arc<Store>>,
    exports: Vec<Arc<Export>>,
    /// By store.
    grace: Vec<Grace>,
}

impl Opened {
    fn open(
        engines: Vec<(Arc<dyn FileSystem>, Vec<ExportOptions>)>,
        options: &ServerOptions,
        ownership: Option<&Arc<dyn Ownership>>,
    ) -> Result<Opened> {
        let (mut stores, mut exports, mut grace) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (fs, wanted)) in engines.into_iter().enumerate() {
            let (state, recovered) = State::load(&*fs)?;
            if !recovered.has_sessions {
                drop_orphans(&*fs);
            }
            let store = Arc::new(Store {
                state,
                borders: Borders::default(),
                leases: Arc::new(Leases::load(&*fs, options.cache_term, ownership.cloned())?),
                limits: fs.limits(),
                ownership: ownership.cloned(),
                fs,
                unsettled_locks: AtomicUsize::new(0),
                number,
            });
            for export in wanted {
                exports.push(Arc::new(Export::open(&store, export)?));
            }
            stores.push(store);
            grace.push(Grace::new(recovered, options.lease));
        }
        Ok(Opened { stores, exports, grace })
    }
}

impl Inner {
    /// The state of a server that does not receive yet; starts the threads that work for it.
    fn new(opened: Opened, common: &Arc<Common>, ownership: Option<Arc<dyn Ownership>>) -> Result<Inner> {
        let options = &common.options;
        let Opened { stores, exports, grace } = opened;
        let submitting = stores.iter().filter(|store| store.limits.submits);
        submitting.for_each(|store| store.fs.know_buffers(&common.pool));
        let may_block = stores.iter().any(|store| store.limits.may_block);
        let workers = may_block.then(|| Workers::start(options.workers)).transpose();
        Ok(Inner {
            exports,
            stores,
            sessions: Mutex::default(),
            // Files of volumes that move are not offered to RDMA: its writes know no owner.
            verbs: options.rdma.clone().filter(|_| ownership.is_none()).map(Verbs::new),
            common: Arc::clone(common),
            ownership,
            slots_taken_ms: AtomicU64::new(0),
            end_log: Throttle::new(),
            grace,
            instance: u64::from_le_bytes(ferrite_vfs::random()?),
            began: Instant::now(),
            lease: options.lease,
            workers: workers.map_err(cannot_start)?,
            aside: Aside::start().map_err(cannot_start)?,
            waiting_workers: Workers::start(1).map_err(cannot_start)?,
            session_ends: Arc::default(),
            reaper: OnceLock::new(),
            may_overlap: options.threads > 1,
            stop: AtomicBool::new(false),
        })
    }

    fn start_reaper(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let inner = Arc::clone(self);
        let reaper = std::thread::Builder::new()
            .name("ferrite-reaper".into())
            .spawn(move || inner.reap())?;
        let _ = self.reaper.set(reaper.thread().clone());
        Ok(reaper)
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn grace(&self, store: &Store) -> &Grace {
        &self.grace[store.number]
    }

    /// Notes that a session of an earlier run has claimed its locks, or will not. After the last one the others get
    /// theirs.
    fn locks_are_back(&self, session: &Session) {
        let store = &session.export.store;
        for work in self.grace(store).locks_are_back(session.resume_token.session) {
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
        self.waiting_workers.give(work);
    }

    /// Wakes the reaper, because work waits for a term to end.
    fn wake_reaper(&self) {
        if let Some(reaper) = self.reaper.get() {
            reaper.unpark();
        }
    }

    fn dispatch(
        self: &Arc<Self>,
        session: &Arc<Session>,
        head: Head,
        request: Request<'_>,
        received: Received<'_>,
        out: &mut SendQueue,
    ) -> std::result::Result<Served, Close> {
        match request {
            Request::Immediate(request) => self.handle(session, head, request, out)?,
            Request::Call(Call::Rdma(request)) if request.is_long() => {
                change::begin(self, session, head.id, received, (true, None));
            }
            Request::Call(call) => return Ok(self.ask_engine(session, head, call, received, out)),
        }
        Ok(Served::Yes)
    }

    /// Answers a request that may wait for the engine, on a thread that may.
    fn reply(&self, session: &Arc<Session>, head: Head, request: Call<'_>, data: &[u8], out: &mut SendQueue) -> Served {
        let id = head.id;
        match request {
            Call::Session(request) => self.answer_session(session, id, request, out),
            Call::Lock(request) => lock::reply(session, head, request, out),
            Call::Rdma(request) => verbs::reply(self.verbs.as_ref(), session, head, request, out),
            Call::Fs(request) => match RequestHandler::new(session, head, &self.common.pool) {
                Ok(handler) => handler.reply(request, out),
                Err(error) => put::<()>(out, id, Err(error)),
            },
            Call::File(request) => match RequestHandler::new(session, head, &self.common.pool) {
                Ok(handler) => return handler.answer_file(request, data, out),
                Err(error) => put::<()>(out, id, Err(error)),
            },
        }
        Served::Yes
    }

    /// Answers a request about the session.
    fn answer_session(&self, session: &Arc<Session>, id: u64, request: SessionRequest, out: &mut SendQueue) {
        match request {
            SessionRequest::Slots { count } => put(out, id, Ok(self.slots(session, count as usize))),
            SessionRequest::ReclaimSlots {} => put(out, id, Ok(session.reclaim_slots(id))),
            SessionRequest::Abandon { request, file } => {
                lock::abandon(session, request, file);
                put(out, id, Ok(()));
            }
            SessionRequest::Activity {} => put(out, id, Ok(self.activity(&session.export))),
            SessionRequest::Leases { relied_on } => {
                if !session.export.options.gives_leases() {
                    return put(out, id, Ok(0u32));
                }
                session.wants_leases();
                let leases = &session.export.store.leases;
                let (term, ready) = leases.begin(session.export.fs(), &*session.recipient, relied_on);
                put(out, id, Ok(term.as_millis() as u32));
                ready.into_iter().for_each(|work| self.go_on(work));
            }
        }
    }
}
