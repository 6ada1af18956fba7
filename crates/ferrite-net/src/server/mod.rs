//! The server: exports of engines, for many clients.
//!
//! What lives here: [`Server`]; which request goes where; how sessions begin, go on and end. A request to an engine
//! that keeps its data in memory is answered on the thread that received it; one to an engine that may wait for a
//! device is answered by a worker.
//!
//! A session outlives its connection, and a restart of the server: the client comes back with its ticket. After a
//! restart it says what it had open, pinned and locked; for as long as a lease lasts, locks are given to no others.
//!
//! Invariant: what a client sends can end its own connection, and nothing else.

mod answer;
mod export;
mod lock;
mod seal;
mod session;
mod state;
mod workers;

use std::collections::hash_map::Entry;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_buffers::Pool;
use ferrite_fabric::outbox::Outbox;
use ferrite_fabric::reactor::{self, Close, Data, Link, Reactors, Service};
use ferrite_vfs::{FileSystem, FsError, Result, SYSTEM};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use answer::{Answering, put};
use export::{Export, Store};
use seal::Sealer;
use session::Session;
use state::{State, random};
use workers::Workers;

use crate::wire::{Head, MAGIC, Promises, Reader, Request, SessionState, Ticket, VERSION, Welcome};

pub use export::{ExportOptions, NOBODY};

/// How a server runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Threads that serve connections.
    pub threads: usize,
    /// How long such a thread looks for work before it sleeps. Zero: it sleeps at once.
    pub busy: Duration,
    /// Threads for engines that may wait for a device.
    pub workers: usize,
    /// Without a sign of life for so long a session ends.
    pub lease: Duration,
    /// Memory for data on its way.
    pub buffers_bytes: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            threads: 1,
            busy: Duration::ZERO,
            workers: 16,
            lease: Duration::from_secs(30),
            buffers_bytes: 64 << 20,
        }
    }
}

impl ServerOptions {
    /// Sets [`Self::threads`].
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        ServerOptions { threads, ..self }
    }

    /// Sets [`Self::lease`].
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        ServerOptions { lease, ..self }
    }

    /// Sets [`Self::busy`].
    #[must_use]
    pub fn busy(self, busy: Duration) -> Self {
        ServerOptions { busy, ..self }
    }
}

/// Work for when the time of grace is over.
type Deferred = Box<dyn FnOnce() + Send>;

struct Grace {
    ends: Instant,
    deferred: Vec<Deferred>,
}

struct Inner {
    exports: Vec<Arc<Export>>,
    stores: Vec<Arc<Store>>,
    /// By store and number. No other lock is taken under this one.
    sessions: Mutex<FxHashMap<(usize, u64), Arc<Session>>>,
    /// Connections without a session, each with when it came.
    strangers: Mutex<FxHashMap<u64, (Link, Instant)>>,
    next_stranger: AtomicU64,
    /// By store.
    grace: Vec<Mutex<Option<Grace>>>,
    instance: u64,
    began: Instant,
    lease: Duration,
    pool: Pool,
    workers: Option<Workers>,
    stop: AtomicBool,
}

/// A running server. Dropping it stops it: connections are closed, and what sessions had is let go.
pub struct Server {
    // Before what it serves.
    reactors: Option<Reactors>,
    keeper: Option<JoinHandle<()>>,
    inner: Arc<Inner>,
}

impl Server {
    /// Serves engines, each with its exports, to whoever connects to `listeners`.
    ///
    /// # Errors
    /// If the root of an export is no directory, or the system gives no threads or memory.
    pub fn start(
        listeners: Vec<TcpListener>,
        engines: Vec<(Arc<dyn FileSystem>, Vec<ExportOptions>)>,
        options: &ServerOptions,
    ) -> Result<Server> {
        let (mut stores, mut exports, mut grace) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (fs, wanted)) in engines.into_iter().enumerate() {
            let (state, has_sessions) = State::load(&*fs)?;
            let store = Arc::new(Store {
                sealer: Sealer::new(state.secret()),
                state,
                limits: fs.limits(),
                fs,
                number,
            });
            for export in wanted {
                exports.push(Arc::new(Export::open(&store, export)?));
            }
            stores.push(store);
            grace.push(Mutex::new(has_sessions.then(|| Grace {
                ends: Instant::now() + options.lease,
                deferred: Vec::new(),
            })));
        }
        let no_resources = |error: &dyn std::fmt::Display| FsError::Io(format!("the server cannot start: {error}"));
        let pool = Pool::new(options.buffers_bytes).ok_or_else(|| no_resources(&"no memory for buffers"))?;
        let may_block = stores.iter().any(|store| store.limits.may_block);
        let workers = may_block.then(|| Workers::start(options.workers)).transpose();
        let inner = Arc::new(Inner {
            exports,
            stores,
            sessions: Mutex::default(),
            strangers: Mutex::default(),
            next_stranger: AtomicU64::new(0),
            grace,
            instance: u64::from_le_bytes(random()?),
            began: Instant::now(),
            lease: options.lease,
            pool: pool.clone(),
            workers: workers.map_err(|error| no_resources(&error))?,
            stop: AtomicBool::new(false),
        });
        let service = Arc::new(Front(Arc::clone(&inner)));
        let reactor_options = reactor::Options {
            threads: options.threads,
            busy: options.busy,
            ..reactor::Options::default()
        };
        let reactors = Reactors::start(listeners, &service, &pool, &reactor_options);
        let keeper = {
            let inner = Arc::clone(&inner);
            std::thread::Builder::new()
                .name("ferrite-keeper".into())
                .spawn(move || inner.keep())
        };
        Ok(Server {
            reactors: Some(reactors.map_err(|error| no_resources(&error))?),
            keeper: Some(keeper.map_err(|error| no_resources(&error))?),
            inner,
        })
    }

    /// Stops serving: connections are closed. Sessions are not ended, so that clients go on when a server is started on
    /// the same engine again; the engine keeps what they have open as long as this value lives. Close the engine before
    /// this is dropped, or files without names that are open are freed.
    pub fn stop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        self.reactors = None;
        if let Some(keeper) = self.keeper.take() {
            keeper.thread().unpark();
            // A panic of it was reported when it happened.
            let _ = keeper.join();
        }
    }

    /// Sessions now.
    pub fn sessions(&self) -> usize {
        self.inner.sessions.lock().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A connection: of nobody yet, or of a session.
enum Peer {
    Stranger { link: Link, number: u64 },
    Client { session: Arc<Session>, attachment: u64 },
}

struct Front(Arc<Inner>);

impl Service for Front {
    type Peer = Peer;

    fn connected(&self, link: Link, _: SocketAddr) -> Peer {
        let number = self.0.next_stranger.fetch_add(1, Ordering::Relaxed);
        self.0.strangers.lock().insert(number, (link.clone(), Instant::now()));
        Peer::Stranger { link, number }
    }

    fn data_bytes_max(&self, peer: &Peer) -> usize {
        match peer {
            // Who has not greeted gets no buffers.
            Peer::Stranger { .. } => 0,
            Peer::Client { .. } => ferrite_fabric::frame::DATA_BYTES_MAX,
        }
    }

    fn message(
        &self,
        peer: &mut Peer,
        body: &[u8],
        data: Data<'_>,
        out: &mut Outbox,
    ) -> std::result::Result<(), Close> {
        let (head, request) = Reader::new(body).last::<(Head, Request<'_>)>().map_err(|_| Close)?;
        let inner = &self.0;
        match peer {
            Peer::Stranger { link, number } => {
                let (session, welcome) = match inner.greet(&request) {
                    Ok(greeted) => greeted,
                    Err(error) => {
                        // It is told why, and may try again.
                        put::<()>(out, head.id, Err(error));
                        return Ok(());
                    }
                };
                inner.strangers.lock().remove(number);
                let attachment = session.attach(link.clone());
                put(out, head.id, Ok(welcome));
                *peer = Peer::Client { session, attachment };
                Ok(())
            }
            Peer::Client { session, attachment } => {
                if !session.is_attached(*attachment) {
                    return Err(Close);
                }
                session.seen(inner.now_ms());
                inner.dispatch(session, head, request, body, data, out)
            }
        }
    }

    fn disconnected(&self, peer: Peer) {
        if let Peer::Stranger { number, .. } = peer {
            self.0.strangers.lock().remove(&number);
        }
    }
}

impl Inner {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// The first message of a connection: which session it is for.
    fn greet(&self, request: &Request<'_>) -> Result<(Arc<Session>, Welcome)> {
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
        let named = |export: &&Arc<Export>| export.options.name.as_bytes() == name;
        let export = self.exports.iter().find(named).ok_or_else(|| {
            FsError::Io(format!(
                "the server exports nothing named `{}`",
                String::from_utf8_lossy(name)
            ))
        })?;
        let (session, state) = self.session(export, resume);
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
                file_bytes_max: limits.file_bytes_max,
                durability: limits.durability,
                durable_operations: limits.durable_operations,
                has_slots: export.store.state.has_slots(),
            },
        };
        Ok((session, welcome))
    }

    /// The session that a ticket is for, or a new one.
    fn session(&self, export: &Arc<Export>, resume: Option<Ticket>) -> (Arc<Session>, SessionState) {
        let store = &export.store;
        if let Some(ticket) = resume
            && store.sealer.ticket(&export.options.name, ticket.session) == ticket
        {
            let is_in_grace = self.is_in_grace(store);
            if is_in_grace {
                // Before it can be found, and end.
                store.state.session_is_back(&*store.fs);
            }
            let (found, is_new) = {
                let mut sessions = self.sessions.lock();
                match sessions.entry((store.number, ticket.session)) {
                    Entry::Occupied(entry) => {
                        // Under the lock, or it might be taken for gone at this moment.
                        entry.get().seen(self.now_ms());
                        (Some(Arc::clone(entry.get())), false)
                    }
                    Entry::Vacant(place) if is_in_grace => {
                        let session = Session::new(export, ticket.session, true, self.now_ms());
                        (Some(Arc::clone(place.insert(Arc::new(session)))), true)
                    }
                    Entry::Vacant(_) => (None, false),
                }
            };
            if is_in_grace && !is_new {
                store.state.session_has_ended();
            }
            if let Some(session) = found {
                let state = match session.is_reclaiming() {
                    true => SessionState::ToReclaim,
                    false => SessionState::Alive,
                };
                return (session, state);
            }
        }
        let number = store.state.new_session(&*store.fs);
        let session = Arc::new(Session::new(export, number, false, self.now_ms()));
        self.sessions
            .lock()
            .insert((store.number, number), Arc::clone(&session));
        (session, SessionState::New)
    }

    fn is_in_grace(&self, store: &Store) -> bool {
        self.grace[store.number].lock().is_some()
    }

    fn dispatch(
        self: &Arc<Self>,
        session: &Arc<Session>,
        head: Head,
        request: Request<'_>,
        body: &[u8],
        data: Data<'_>,
        out: &mut Outbox,
    ) -> std::result::Result<(), Close> {
        let id = head.id;
        match request {
            Request::Hello { .. } => return Err(Close),
            Request::Ping {} => put(out, id, Ok(())),
            Request::Slots { count } => put(out, id, Ok(session.slots(count as usize))),
            Request::ReclaimSlots { number, slots } => {
                session.reclaim_slots(number, &slots);
                put(out, id, Ok(()));
            }
            Request::Goodbye {} => {
                self.end(session);
                return Err(Close);
            }
            Request::Reclaimed {} => {
                session.has_reclaimed();
                put(out, id, Ok(()));
            }
            Request::Lock {
                node,
                client,
                lock,
                may_wait,
            } => {
                let is_deferred = self.is_in_grace(&session.export.store) && !session.is_reclaiming();
                if !lock::begin(session, id, client, is_deferred) {
                    return Ok(());
                }
                let session = Arc::clone(session);
                let store = Arc::clone(&session.export.store);
                let work = move || lock::lock(&session, id, node, &lock, may_wait);
                match is_deferred {
                    true => self.after_grace(&store, work),
                    false => work(),
                }
            }
            Request::Unlock {
                node,
                client,
                owner,
                what,
            } => put(out, id, lock::unlock(session, node, client, owner, what)),
            Request::ConflictingLock { node, client, lock } => {
                put(out, id, lock::conflicting(session, node, client, &lock));
            }
            Request::CancelLock { request } => put(out, id, lock::cancel(session, request)),
            Request::ReleaseClient { client } => put(out, id, lock::release_client(session, client)),
            request => match &self.workers {
                Some(workers) if session.export.store.limits.may_block => {
                    self.give(workers, session, body, data);
                }
                _ => match Answering::new(session, head, &self.pool) {
                    Ok(answering) => answering.answer(request, data.bytes(), out),
                    Err(error) => put::<()>(out, id, Err(error)),
                },
            },
        }
        Ok(())
    }

    /// Has a request answered by a worker.
    fn give(self: &Arc<Self>, workers: &Workers, session: &Arc<Session>, body: &[u8], data: Data<'_>) {
        enum Owned {
            Bytes(Vec<u8>),
            Buffer(ferrite_buffers::Buffer),
        }
        let (inner, session, body) = (Arc::clone(self), Arc::clone(session), body.to_vec());
        let data = match data {
            Data::Inline(bytes) => Owned::Bytes(bytes.to_vec()),
            Data::Buffer(buffer) => Owned::Buffer(buffer),
        };
        workers.give(move || {
            let Ok((head, request)) = Reader::new(&body).last::<(Head, Request<'_>)>() else {
                return;
            };
            let data: &[u8] = match &data {
                Owned::Bytes(bytes) => bytes,
                Owned::Buffer(buffer) => buffer,
            };
            let id = head.id;
            let mut out = Outbox::default();
            match Answering::new(&session, head, &inner.pool) {
                Ok(answering) => answering.answer(request, data, &mut out),
                Err(error) => put::<()>(&mut out, id, Err(error)),
            }
            session.send(|to| to.append(&mut out));
        });
    }

    /// Does `work` when the time of grace is over, or now if it is.
    fn after_grace(&self, store: &Store, work: impl FnOnce() + Send + 'static) {
        let mut grace = self.grace[store.number].lock();
        match &mut *grace {
            Some(grace) => grace.deferred.push(Box::new(work)),
            None => {
                drop(grace);
                work();
            }
        }
    }

    fn end(&self, session: &Arc<Session>) {
        let store = &session.export.store;
        // Before it ends: nobody may come back to it meanwhile.
        let was_there = self.sessions.lock().remove(&(store.number, session.ticket.session));
        if was_there.is_some() {
            self.let_go(session);
        }
    }

    /// Ends a session that nobody finds any more.
    fn let_go(&self, session: &Arc<Session>) {
        let store = &session.export.store;
        store.state.free_slots(&*store.fs, &session.end());
        store.state.session_has_ended();
        if !self.is_in_grace(store) {
            store.state.note_end(&*store.fs);
        }
    }

    /// Ends sessions whose clients are gone, and times of grace.
    fn keep(&self) {
        let tick = (self.lease / 10).clamp(Duration::from_millis(10), Duration::from_secs(1));
        while !self.stop.load(Ordering::Acquire) {
            std::thread::park_timeout(tick);
            let now_ms = self.now_ms();
            let lease_ms = self.lease.as_millis() as u64;
            let is_gone = |session: &Session| now_ms.saturating_sub(session.last_seen_ms()) > lease_ms;
            let gone: Vec<Arc<Session>> = {
                let mut sessions = self.sessions.lock();
                sessions
                    .extract_if(|_, session| is_gone(session))
                    .map(|(_, session)| session)
                    .collect()
            };
            for session in gone {
                tracing::info!("session {} has ended: its client is gone", session.ticket.session);
                self.let_go(&session);
            }
            for (link, since) in self.strangers.lock().values() {
                if since.elapsed() > self.lease {
                    link.close();
                }
            }
            for (store, grace) in self.stores.iter().zip(&self.grace) {
                self.end_grace(store, grace);
            }
        }
    }

    fn end_grace(&self, store: &Store, grace: &Mutex<Option<Grace>>) {
        let is_over = |grace: &Grace| Instant::now() >= grace.ends;
        if !grace.lock().as_ref().is_some_and(is_over) {
            return;
        }
        // A session that still reclaims has had its time.
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let of_store = |session: &&Arc<Session>| session.export.store.number == store.number;
        let sessions: Vec<&Arc<Session>> = sessions.iter().filter(of_store).collect();
        sessions.iter().for_each(|session| session.has_reclaimed());
        store.state.free_inherited(&*store.fs);
        if let Err(error) = store.fs.drop_orphans(SYSTEM) {
            tracing::warn!("files without names that nobody has open could not be freed: {error}");
        }
        let deferred = grace.lock().take().map(|grace| grace.deferred).unwrap_or_default();
        store.state.note_end(&*store.fs);
        deferred.into_iter().for_each(|work| work());
    }
}
