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
//! Invariant: a client's messages can end its own connection, and nothing else.
#![forbid(unsafe_code)]

mod admission;
mod aside;
mod calls;
mod change;
mod close_barrier;
mod deferred_reply;
mod export;
mod grace;
mod handle_mac;
mod immediate;
mod lane;
mod leases;
mod lock;
mod lock_order;
mod meter;
mod observe;
mod options;
mod pending;
pub mod rdma;
mod reaper;
mod reply;
mod session;
mod state;
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
use ferrite_checks::ranked::Mutex;
use ferrite_transport::reactor::{self, Close, Data, Link, Origin, Reactors, Served, Service, Turns};
use ferrite_transport::secure::AdmissionPolicy;
use ferrite_transport::send_queue::SendQueue;
use ferrite_transport::source::{Source, Throttle};
use ferrite_vfs::workers::{Work, Workers};
use ferrite_vfs::{FileSystem, FsError, Result};
use rustc_hash::FxHashMap;

use admission::{Account, Admission};
use aside::Aside;
use calls::RequestHandler;
use close_barrier::CloseBarrier;
use export::{Export, Store};
use grace::Grace;
use leases::Leases;
use meter::Received;
use pending::PendingConnections;
use reaper::drop_orphans;
use reply::put;
use session::Session;
use state::State;
use subtree::Borders;
use verbs::Verbs;

use ferrite_proto::{Call, Head, ImmediateRequest, MAGIC, Promises, Reader, Request, SessionRequest, VERSION, Welcome};

pub use admission::{Bounds, Resource};
pub use export::{ExportOptions, NOBODY};
pub use ferrite_transport::reactor::FabricOptions;
pub use meter::{Metrics, Observer};
pub use options::ServerOptions;
pub use rdma::{KeyWanted, Keys, Rdma};

/// How long a server that stops waits for sessions to end whose clients have left: an engine may be stuck.
const ENDS_WAIT: Duration = Duration::from_secs(10);

struct Inner {
    exports: Vec<Arc<Export>>,
    stores: Vec<Arc<Store>>,
    /// By store and number. Under it a thread takes locks of a session and of the admission, and no others.
    sessions: Mutex<lock_order::Sessions, FxHashMap<(usize, u64), Arc<Session>>>,
    admission: Arc<Admission>,
    pending_connections: PendingConnections,
    /// When slots were last revoked, as [`Inner::now_ms`] counts.
    slots_taken_ms: AtomicU64,
    /// Throttles log lines about sessions that have ended.
    end_log: Throttle,
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
    waiting_workers: Workers,
    /// Sessions that other threads are ending.
    session_ends: Arc<CloseBarrier>,
    reaper: OnceLock<std::thread::Thread>,
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
    reaper: Option<JoinHandle<()>>,
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
        let opened = Opened::open(engines, options)?;
        let policy = policy_of(&opened.exports)?;
        let pool = Pool::new(options.buffers_bytes).ok_or_else(|| cannot_start("no memory for buffers"))?;
        let inner = Arc::new(Inner::new(opened, &pool, options)?);
        let service = Arc::new(Front(Arc::clone(&inner)));
        let reactor_options = reactor::Options {
            threads: options.threads,
            busy_poll: options.busy_poll,
            policy: Arc::new(policy),
            fabric: options.fabric.clone(),
            turns: Arc::clone(&inner.turns),
            ..reactor::Options::default()
        };
        let reactors = Reactors::start(listeners, &service, &pool, &reactor_options).map_err(cannot_start)?;
        let reaper = inner.start_reaper().map_err(cannot_start)?;
        Ok(Server {
            reactors: Some(reactors),
            reaper: Some(reaper),
            inner,
        })
    }

    /// Stops serving: connections are closed. Sessions are not ended, so that clients continue when a server is started
    /// on the same engine again; the engine keeps their files open as long as this value lives. Close the engine before
    /// this is dropped, or open files without names are freed.
    ///
    /// Sessions whose clients have left end before it returns, in the pool too. Blocks for that, up to ten seconds.
    /// Afterwards this value changes nothing of the state in the pool, which may be that of the next server.
    pub fn stop(&mut self) {
        let Some(reactors) = self.reactors.take() else {
            return;
        };
        self.inner.stop.store(true, Ordering::Release);
        drop(reactors);
        self.inner.stores.iter().for_each(|store| store.leases.stop(&*store.fs));
        if let Some(reaper) = self.reaper.take() {
            reaper.thread().unpark();
            // A panic of it was reported when it happened.
            let _ = reaper.join();
        }
        let left = self.inner.session_ends.wait_for_all_until(Instant::now() + ENDS_WAIT);
        if left > 0 {
            tracing::warn!(
                "{left} sessions have not ended {} s after their clients left, because the engine does not answer; the \
                 next server will wait a lease for them",
                ENDS_WAIT.as_secs()
            );
        }
        self.inner.note_session_ends();
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
    fn open(engines: Vec<(Arc<dyn FileSystem>, Vec<ExportOptions>)>, options: &ServerOptions) -> Result<Opened> {
        let (mut stores, mut exports, mut grace) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (fs, wanted)) in engines.into_iter().enumerate() {
            let (state, recovered) = State::load(&*fs)?;
            if !recovered.has_sessions {
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
            grace.push(Grace::new(recovered, options.lease));
        }
        Ok(Opened { stores, exports, grace })
    }
}

/// The exports' demands on clients.
fn policy_of(exports: &[Arc<Export>]) -> Result<AdmissionPolicy> {
    let mut names = std::collections::HashSet::new();
    let mut policy = AdmissionPolicy::new(exports.iter().any(|export| export.options.keys.is_empty()));
    for options in exports.iter().map(|export| &export.options) {
        if !names.insert(&options.name) {
            let name = &options.name;
            return Err(FsError::Io(format!(
                "two exports have the name `{name}`; give them different ones"
            )));
        }
        options
            .keys
            .iter()
            .for_each(|key| policy.admit(key, options.encryption));
    }
    Ok(policy)
}

/// A connection: without a session yet, or of one.
enum Peer {
    Pending {
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
        Peer::Pending {
            number: self.0.pending_connections.come(link.clone(), source),
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
            // A connection that has no session yet gets no buffers.
            Peer::Pending { .. } => 0,
            Peer::Client { .. } => ferrite_transport::frame::DATA_BYTES_MAX,
        }
    }

    fn is_ready(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Pending { .. } => true,
            Peer::Client { session, .. } => !session.is_busy(),
        }
    }

    fn message(
        &self,
        peer: &mut Peer,
        body: &[u8],
        data: Data<'_>,
        out: &mut SendQueue,
    ) -> std::result::Result<Served, Close> {
        let (head, request) = Reader::new(body).last::<(Head, Request<'_>)>().map_err(|_| Close)?;
        let inner = &self.0;
        match peer {
            Peer::Pending {
                link,
                number,
                account,
                address,
            } => {
                let (session, welcome) = match inner.set_up_session(&request, *account) {
                    Ok(set_up) => set_up,
                    Err(error) => {
                        // Report the reason; the client may retry.
                        put::<()>(out, head.id, Err(error));
                        return Ok(Served::Yes);
                    }
                };
                inner.pending_connections.leave(*number);
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
                let received = Received::new(request.opcode(), body, data, out);
                let measured = received.measured;
                session.seen(measured.since.duration_since(inner.began).as_millis() as u64);
                let served = inner.dispatch(session, head, request, received, out)?;
                measured.count_if_replied(&session.meter, out);
                Ok(served)
            }
        }
    }

    fn disconnected(&self, peer: Peer) {
        match peer {
            Peer::Pending { number, .. } => self.0.pending_connections.leave(number),
            Peer::Client { session, attachment } => self.0.end_if_idle(&session, attachment),
        }
    }
}

impl Inner {
    /// The state of a server that does not receive yet; starts the threads that work for it.
    fn new(opened: Opened, pool: &Pool, options: &ServerOptions) -> Result<Inner> {
        let Opened { stores, exports, grace } = opened;
        let submitting = stores.iter().filter(|store| store.limits.submits);
        submitting.for_each(|store| store.fs.know_buffers(pool));
        let may_block = stores.iter().any(|store| store.limits.may_block);
        let workers = may_block.then(|| Workers::start(options.workers)).transpose();
        Ok(Inner {
            exports,
            stores,
            sessions: Mutex::default(),
            admission: Admission::new(options.bounds.clone()),
            pending_connections: PendingConnections::new(),
            slots_taken_ms: AtomicU64::new(0),
            end_log: Throttle::new(),
            grace,
            instance: u64::from_le_bytes(ferrite_vfs::random()?),
            began: Instant::now(),
            lease: options.lease,
            pool: pool.clone(),
            workers: workers.map_err(cannot_start)?,
            aside: Aside::start().map_err(cannot_start)?,
            waiting_workers: Workers::start(1).map_err(cannot_start)?,
            session_ends: Arc::default(),
            reaper: OnceLock::new(),
            verbs: options.rdma.clone().map(Verbs::new),
            may_overlap: options.threads > 1,
            turns: Arc::default(),
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

    /// Handles the first message of a connection, which selects its session.
    fn set_up_session(&self, request: &Request<'_>, account: Account) -> Result<(Arc<Session>, Welcome)> {
        let &Request::Immediate(ImmediateRequest::Hello {
            magic,
            version,
            export: name,
            resume,
        }) = request
        else {
            return Err(FsError::Io("the first message must be a Hello".into()));
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
            resume_token: session.resume_token,
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
                change::begin(self, session, head.id, received, true);
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
            Call::Fs(request) => match RequestHandler::new(session, head, &self.pool) {
                Ok(handler) => handler.reply(request, out),
                Err(error) => put::<()>(out, id, Err(error)),
            },
            Call::File(request) => match RequestHandler::new(session, head, &self.pool) {
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
