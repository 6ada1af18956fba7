//! The client: an engine that lives on a server.
//!
//! Contents: [`Client`], a [`FileSystem`] whose calls are requests; the connection behind it, which is remade when it
//! breaks: a state machine decides (`protocol`), and threads with sockets and clocks do what it says (`link`); the
//! session state that the client keeps for that (`session_setup`, `reclaim_state`, `slots`); an export as a volume that
//! mount, library and program open ([`volume`]). The design is that of RUFS, section 2.3.3 (messages and bulk data),
//! with sessions as in NFSv4.1 and tokens ([`ferrite_vfs::dedup`]) that make a change happen once though its reply is
//! lost.
//!
//! With the feature `rdma`, files can be written and read by one-sided verbs ([`rdma`]). Messages travel by
//! `ferrite-transport`. This crate names no engine and no server.
//!
//! A call blocks until its reply is there. While the server is unreachable it waits, up to
//! [`ClientOptions::timeout`]; a change carries a token, so it is sent again and still happens once. Each call sees
//! the earlier changes of other clients: the cache (`cache`) is valid under leases only, and is empty without them.
#![forbid(unsafe_code)]

pub mod addresses;
mod batching;
mod cache;
mod close;
mod connecting;
mod deadline;
mod deferred;
mod deferred_sends;
mod file;
mod file_system;
mod groups;
mod leased;
mod link;
mod listing;
mod lock_order;
mod locks;
mod message;
mod pieces;
mod protocol;
#[cfg(feature = "rdma")]
pub mod rdma;
mod recall_queue;
mod receiving;
mod reclaim_state;
mod requests;
mod session_setup;
mod slots;
mod unsynced;
mod untrusted;
mod up;
mod verbs;
pub mod volume;
mod watcher;

use std::sync::Arc;
use std::time::Duration;

use ferrite_transport::secure::{Credentials, Encrypt, Key};
use ferrite_vfs::{Ctx, FileSystem, FsError, Groups, Limits, OpenMode, ROOT_INO, SYSTEM, Unsynced};
use thiserror::Error;

use ferrite_proto::{Activity, Caller, FsRequest, Head, Request, SessionRequest};
use groups::GroupCache;
use link::Link;
use listing::ReadDirSizes;

pub use cache::CacheActivity;
pub use ferrite_transport::connection::{BUSY_POLL, Fabric};
pub use ferrite_transport::secure;

/// How a client behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// How long a call waits for a server that is unreachable, or does not answer. `None`: until it answers.
    pub timeout: Option<Duration>,
    /// How long the first connection may take, with all servers.
    pub connect: Duration,
    /// Changes that can be in flight at a time.
    pub slots: u32,
    /// The key of the export, and whether to encrypt the traffic. Without a key only exports that have none can be
    /// reached, and from their host only.
    pub credentials: Credentials,
    /// Moves to a fabric, and fails if that is impossible.
    pub fabric: Option<Fabric>,
    /// Caches up to so many bytes of the server's replies, as long as nobody changes them. `None`: each call asks the
    /// server.
    pub cache_bytes: Option<usize>,
    /// The client refuses every change with `ReadOnly`, without asking the server.
    pub read_only: bool,
    /// How long a thread polls for its reply before it sleeps, at most, where that pays. Zero: it sleeps at once. Over
    /// a fabric [`Fabric::busy_poll`] counts.
    pub busy_poll: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            timeout: None,
            connect: Duration::from_secs(10),
            slots: 64,
            credentials: Credentials::default(),
            fabric: None,
            cache_bytes: None,
            read_only: false,
            busy_poll: BUSY_POLL,
        }
    }
}

impl ClientOptions {
    /// Sets [`Self::timeout`].
    #[must_use]
    pub fn timeout(self, timeout: Option<Duration>) -> Self {
        ClientOptions { timeout, ..self }
    }

    /// Sets [`Self::busy_poll`].
    #[must_use]
    pub fn busy_poll(self, busy_poll: Duration) -> Self {
        ClientOptions { busy_poll, ..self }
    }

    /// Sets [`Self::cache_bytes`].
    #[must_use]
    pub fn cache_bytes(self, cache_bytes: Option<usize>) -> Self {
        ClientOptions { cache_bytes, ..self }
    }

    /// Sets [`Self::read_only`].
    #[must_use]
    pub fn read_only(self, read_only: bool) -> Self {
        ClientOptions { read_only, ..self }
    }

    /// Sets [`Self::slots`].
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        ClientOptions { slots, ..self }
    }

    /// Sets the key of [`Self::credentials`].
    #[must_use]
    pub fn key(mut self, key: Option<Key>) -> Self {
        self.credentials.key = key;
        self
    }

    /// Sets whether to encrypt the traffic. It is encrypted if either end wants it.
    #[must_use]
    pub fn encrypt(mut self, encrypt: Encrypt) -> Self {
        self.credentials.encrypt = encrypt;
        self
    }

    /// Refuses requests that a read-only client must not make.
    fn permit(&self, request: &Request<'_>) -> Result<(), FsError> {
        match self.read_only && (request.is_change() || request.opens_for_writing()) {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Sets [`Self::fabric`].
    #[must_use]
    pub fn fabric(self, fabric: Option<Fabric>) -> Self {
        ClientOptions { fabric, ..self }
    }
}

/// Why a client could not connect for the first time.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The server cannot be reached.
    #[error(transparent)]
    Fabric(#[from] ferrite_transport::FabricError),
    /// The server refuses the client.
    #[error("{address} refused the connection: {why}")]
    Refused {
        /// Host and port.
        address: String,
        /// The server's reason.
        why: FsError,
    },
    /// The peer is not a Ferrite server.
    #[error("{address} does not answer like a Ferrite server: {why}")]
    Foreign {
        /// Host and port.
        address: String,
        /// The violation.
        why: String,
    },
    /// The address is malformed.
    #[error(transparent)]
    BadAddress(#[from] addresses::BadServers),
    /// Several servers were tried, and none takes the client: address and cause of each.
    #[error("no server takes the client: {}", each(.0))]
    NoServer(Vec<(String, ConnectError)>),
    /// The system has no thread to give.
    #[error("the client cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// The causes of several servers, in a sentence.
fn each(causes: &[(String, ConnectError)]) -> String {
    let shown = causes.iter().map(|(address, cause)| match cause.to_string() {
        cause if cause.contains(address) => cause,
        cause => format!("{address}: {cause}"),
    });
    shown.collect::<Vec<_>>().join("; ")
}

/// An export of a server. Dropping it ends the session: the server releases its locks and closes its files.
pub struct Client {
    link: Arc<Link>,
    readdir_sizes: ReadDirSizes,
}

impl Client {
    /// Connects to the export of a server at `HOST:PORT`, or of the one among several that owns the volume:
    /// `HOST:PORT,HOST:PORT`. Blocks.
    ///
    /// The client tries each server at least once. If one says that it does not own the volume, it tries them again, up
    /// to [`ClientOptions::connect`]: an owner that was killed has a successor within seconds.
    pub fn connect(address: &str, export: &str, options: &ClientOptions) -> std::result::Result<Client, ConnectError> {
        Ok(Client {
            link: Link::open(address.parse()?, export, options)?,
            readdir_sizes: ReadDirSizes::default(),
        })
    }

    /// How often the client reconnected.
    pub fn reconnects(&self) -> u64 {
        self.link.reconnects()
    }

    /// The server that the client is connected to, as its address names it; `None` while there is no connection.
    pub fn server(&self) -> Option<Arc<str>> {
        self.link.server()
    }

    /// Whether the traffic is encrypted now; `None` while there is no connection.
    pub fn is_encrypted(&self) -> Option<bool> {
        self.link.is_encrypted()
    }

    /// Whether changes are refused, by this client or by the export. Blocks as every call.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn is_read_only(&self) -> Result<bool, FsError> {
        if self.link.options.read_only {
            return Ok(true);
        }
        // Directories cannot be opened for writing, so this changes nothing anywhere. A server first reports that the
        // export is read-only.
        let request = FsRequest::Open {
            node: self.node(ROOT_INO)?,
            mode: OpenMode::read_write(),
            file: self.link.fresh_id(),
        };
        match self.ask(SYSTEM, request)?.result::<untrusted::FileMac>() {
            Err(FsError::ReadOnly) => Ok(true),
            _ => Ok(false),
        }
    }

    /// Requests made so far.
    pub fn requests(&self) -> u64 {
        self.link.requests()
    }

    /// Counters of the cache; `None` without one.
    pub fn cache_activity(&self) -> Option<CacheActivity> {
        self.link.leases.cache.as_ref().map(cache::Cache::activity)
    }

    /// The server's counters of operations on this export, by client. Blocks as every call.
    pub fn activity(&self) -> Result<Activity, FsError> {
        let requested = self.link.call(
            SYSTEM,
            &SessionRequest::Activity {}.into(),
            protocol::Repeats::Yes,
            &[],
            &mut [],
        );
        requested?.result()
    }

    /// Ends the session, as dropping it does; later calls fail with `Disconnected`.
    pub fn close(&self) {
        self.link.close();
    }

    /// Breaks the connection, as a network may at any time. For tests.
    pub fn disconnect(&self) {
        self.link.disconnect();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

/// A request's description of its caller.
fn head(ctx: &Ctx, known: &GroupCache) -> Head {
    let groups = match &ctx.cred.groups {
        Groups::None => Vec::new(),
        Groups::List(list) => list.to_vec(),
        Groups::OfProcess { pid, list } => known.of(*pid, *list),
    };
    Head {
        id: 0,
        settled_below: 0,
        pins: ctx.pins,
        check: ctx.check,
        token: None,
        caller: Caller {
            uid: ctx.cred.uid,
            gid: ctx.cred.gid,
            groups,
        },
    }
}

/// The head of a request that the client makes for itself.
fn own_head(id: u64) -> Head {
    Head {
        id,
        settled_below: 0,
        pins: false,
        check: false,
        token: None,
        caller: Caller::default(),
    }
}

/// How long callers may cache a reply: other clients use the same server.
const VALIDITY: Duration = Duration::ZERO;

fn limits(link: &Link) -> Limits {
    let promises = link.promises();
    let message_bytes = ferrite_transport::frame::DATA_BYTES_MAX as u64;
    let mut limits = Limits::local(
        promises.atomic_write_bytes.min(message_bytes),
        promises.file_bytes_max.min(i64::MAX as u64),
        promises.durability,
    );
    limits.whole_write_bytes = promises.whole_write_bytes.min(message_bytes);
    if !promises.is_durable_at_once {
        limits.unsynced = Unsynced::Everything;
    }
    limits.sync_mode = promises.sync_mode;
    limits.may_block = true;
    limits.submits = true;
    limits.validity = VALIDITY;
    limits
}

const _: fn() = || {
    fn is_engine<T: FileSystem>() {}
    is_engine::<Client>();
};
