//! The first messages of a connection: they select its session, and reclaim the client's state if the server has lost
//! it.
//!
//! Contents: [`SessionSetup`], which has the dialogue; [`SessionRecord`], what the client keeps for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_transport::connection::{Connection, Receiver, begin_fabrics, upgrade};
use ferrite_vfs::{FsError, Ino};
use rustc_hash::FxHashSet;

use super::message::{ReceiveError, Reply, encode};
use super::protocol::{Attempt, Restoration, Tokens as _};
use super::reclaim_state::ReclaimState;
use super::slots::Slots;
use super::unsynced::Unsynced;
use super::untrusted::{LeaseTerm, SlotsReply};
use super::{ClientOptions, ConnectError, own_head};
use ferrite_proto::{FileRequest, FsRequest, ImmediateRequest, MAGIC, Node, Request, SessionRequest, VERSION, Welcome};

/// Files that one request closes; one message cannot hold all.
const CLOSED_AT_ONCE: usize = 4096;

/// The client's record of its session, from connection to connection.
pub(super) struct SessionRecord {
    export: String,
    pub(super) reclaim_state: ReclaimState,
    pub(super) slots: Arc<Slots>,
    pub(super) unsynced: Arc<Unsynced>,
}

impl SessionRecord {
    /// The record of a session that has yet to begin.
    pub(super) fn of(export: &str) -> SessionRecord {
        SessionRecord {
            export: export.to_owned(),
            reclaim_state: ReclaimState::default(),
            slots: Arc::default(),
            unsynced: Arc::default(),
        }
    }
}

/// A connecting client.
pub(super) struct SessionSetup<'c> {
    pub(super) attempt: &'c Attempt,
    pub(super) options: &'c ClientOptions,
    pub(super) session: &'c SessionRecord,
    /// Whether the client caches under leases.
    pub(super) wants_leases: bool,
    /// Other parties (a kernel) rely on replies given under earlier leases until they are recalled.
    pub(super) are_leases_relied_on: bool,
    /// The next number of a request.
    pub(super) next_id: &'c AtomicU64,
}

impl SessionSetup<'_> {
    /// Connects, and begins a session or resumes the one of a resume token; also returns the term of its leases.
    /// Blocks, up to about the limit of the attempt.
    pub(super) fn set_up_session(&self) -> Result<(Connection, Receiver, Welcome, Duration), ConnectError> {
        let (connection, mut receiver) = self.connect()?;
        receiver.set_busy_poll(self.options.busy_poll);
        let mut dialogue = Dialogue {
            setup: self,
            connection: &connection,
            receiver: &mut receiver,
            ends: Instant::now() + self.attempt.limit,
        };
        let welcome = dialogue.hello()?;
        let lease = Duration::from_millis(u64::from(welcome.lease_ms));
        self.session.reclaim_state.set_root(welcome.root);
        self.session.slots.set_lease(lease);
        self.session.unsynced.session_set_up(welcome.instance, welcome.state);
        dialogue.restore(&welcome)?;
        let term = match self.wants_leases {
            true => dialogue.ask_for_leases()?,
            false => Duration::ZERO,
        };
        Ok((connection, receiver, welcome, term))
    }

    /// Opens a connection, over the fabric if the client has one.
    fn connect(&self) -> Result<(Connection, Receiver), ConnectError> {
        let Attempt {
            address,
            connect,
            limit,
            ..
        } = self.attempt;
        if self.options.fabric.is_some() {
            begin_fabrics();
        }
        let opened = Connection::open_within(address, &self.options.credentials, *connect, *limit)?;
        Ok(match &self.options.fabric {
            Some(fabric) => upgrade(opened, address, fabric, *limit)?,
            None => opened,
        })
    }
}

/// Requests on a connection that no other thread uses yet, one at a time.
struct Dialogue<'d> {
    setup: &'d SessionSetup<'d>,
    connection: &'d Connection,
    receiver: &'d mut Receiver,
    ends: Instant,
}

impl Dialogue<'_> {
    fn ask<'r>(&mut self, request: impl Into<Request<'r>>) -> Result<Reply, ConnectError> {
        let head = own_head(self.setup.next_id.fetch_add(1, Ordering::Relaxed));
        self.connection.send(&encode(&head, &request.into()), &[])?;
        loop {
            let received = Reply::receive(self.receiver).map_err(|error| match error {
                ReceiveError::Broken(error) => ConnectError::Fabric(error),
                ReceiveError::NotOwner(owner) => ConnectError::Refused {
                    address: self.setup.attempt.address.to_string(),
                    why: FsError::NotOwner { address: owner },
                },
            });
            match received? {
                Some((reply, _)) if reply.id() == head.id => return Ok(reply),
                // Nor do unrequested replies extend the time.
                _ if Instant::now() >= self.ends => {
                    return Err(ConnectError::Foreign {
                        address: self.setup.attempt.address.to_string(),
                        why: "it does not answer".into(),
                    });
                }
                _ => {}
            }
        }
    }

    /// Selects the session.
    fn hello(&mut self) -> Result<Welcome, ConnectError> {
        let reply = self.ask(ImmediateRequest::Hello {
            magic: MAGIC,
            version: VERSION,
            export: self.setup.session.export.as_bytes(),
            resume: self.setup.attempt.resume_token,
        })?;
        let address = self.setup.attempt.address.to_string();
        match reply.result::<Welcome>() {
            Ok(welcome) => Ok(welcome),
            Err(why) if !reply.is_ok() => Err(ConnectError::Refused { address, why }),
            Err(why) => Err(ConnectError::Foreign {
                address,
                why: why.to_string(),
            }),
        }
    }

    /// Brings the session to the state that the client relies on, as far as the server has lost it.
    fn restore(&mut self, welcome: &Welcome) -> Result<(), ConnectError> {
        let SessionSetup { attempt, session, .. } = self.setup;
        let SessionRecord {
            reclaim_state, slots, ..
        } = session;
        match attempt.restoration(welcome.state) {
            Restoration::Nothing => Ok(()),
            Restoration::Reclaim => {
                if slots.has_any() {
                    let reported = self.ask(SessionRequest::ReclaimSlots {})?.result();
                    let (number, own) = reported.map(|SlotsReply(reported)| reported).unwrap_or_default();
                    slots.reclaimed(number, own);
                }
                self.reclaim(true)
            }
            Restoration::BeginAnew { had_session } => {
                // A session that had no state ends with its connection, and its loss does no harm.
                if had_session && reclaim_state.has_any() {
                    tracing::warn!(
                        "the session on {} has ended; locks were lost, and what others removed may be gone",
                        attempt.address
                    );
                }
                slots.begin(welcome.resume_token.session);
                self.reclaim(false)
            }
        }
    }

    /// Asks for leases, and returns their term: zero if the server gives none.
    fn ask_for_leases(&mut self) -> Result<Duration, ConnectError> {
        let reply = self.ask(SessionRequest::Leases {
            relied_on: self.setup.are_leases_relied_on,
        })?;
        let term_ms = reply.result().map_or(0, |LeaseTerm(term_ms)| term_ms);
        Ok(Duration::from_millis(u64::from(term_ms)))
    }

    /// Reclaims open files, locks and pins. State that the server has lost is stale from now on, and so are open files
    /// whose locks are lost: their owners rely on nobody else having changed them.
    ///
    /// Files first: an inode without a name is freed with its last pin, and a claim of a lock pins it only for its own
    /// duration. Pins of unlocked inodes last: there may be very many, and the time for claims of locks is short.
    fn reclaim(&mut self, may_claim_locks: bool) -> Result<(), ConnectError> {
        let reclaim_state = &self.setup.session.reclaim_state;
        if !may_claim_locks {
            for (_, node, _) in reclaim_state.locks() {
                self.lock_is_lost(node.ino, &FsError::Stale)?;
            }
        }
        let (stale, files): (Vec<_>, Vec<_>) = reclaim_state
            .files()
            .into_iter()
            .partition(|(_, opened)| opened.is_stale);
        // An earlier connection may have opened them before it broke.
        self.close(&stale.into_iter().map(|(file, _)| file).collect::<Vec<_>>())?;
        for (file, opened) in files {
            let reply = self.ask(FsRequest::Reopen {
                node: opened.node,
                mode: opened.mode,
                mac: opened.mac,
                file,
            })?;
            if let Err(error) = reply.result::<()>() {
                tracing::warn!("a file that was open is gone: inode {}: {error}", opened.node.ino);
                if error == FsError::Stale {
                    reclaim_state.file_is_gone(file);
                }
            }
        }
        let locks = reclaim_state.locks();
        let locked: FxHashSet<Ino> = locks.iter().map(|(_, node, _)| node.ino).collect();
        let (first, last): (Vec<_>, Vec<_>) = reclaim_state
            .pins()
            .into_iter()
            .partition(|node| locked.contains(&node.ino));
        self.pin(first)?;
        for (key, node, held) in locks {
            for lock in held {
                let claim = ImmediateRequest::Lock {
                    node,
                    client: key.client,
                    lock,
                    may_wait: false,
                    is_claim: true,
                };
                if let Err(error) = self.ask(claim)?.result::<()>() {
                    self.lock_is_lost(node.ino, &error)?;
                }
            }
        }
        self.pin(last)?;
        self.ask(ImmediateRequest::Reclaimed {}).map(drop)
    }

    /// Recorded at once: if this connection breaks, the next must not get the lock after all.
    fn lock_is_lost(&mut self, ino: Ino, why: &FsError) -> Result<(), ConnectError> {
        tracing::warn!("a lock was lost: inode {ino}: {why}");
        let stale = self.setup.session.reclaim_state.locks_are_lost(ino);
        self.close(&stale)
    }

    fn pin(&mut self, nodes: Vec<Node>) -> Result<(), ConnectError> {
        for node in nodes {
            let reply = self.ask(FsRequest::Pin { node })?;
            self.setup
                .session
                .reclaim_state
                .pinned_again(node.ino, reply.result::<()>().is_ok());
        }
        Ok(())
    }

    fn close(&mut self, files: &[u64]) -> Result<(), ConnectError> {
        for files in files.chunks(CLOSED_AT_ONCE) {
            let files = files.to_vec();
            self.ask(FileRequest::Close { files })?;
        }
        Ok(())
    }
}
