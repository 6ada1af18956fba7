//! The first messages of a connection: which session it is for, and what the client has, if the server has forgotten.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_fabric::connection::{Connection, Fabric, Receiver, begin_fabrics, upgrade};
use ferrite_fabric::secure::Credentials;
use ferrite_vfs::FsError;

use super::book::Book;
use super::message::{Answer, encode};
use super::slots::Slots;
use super::{ConnectError, own_head};
use crate::wire::{MAGIC, Request, SessionState, Ticket, VERSION, Welcome};

/// Files that one request closes; a message does not hold all.
const CLOSED_AT_ONCE: usize = 4096;

/// A client that connects.
pub(super) struct Greeting<'c> {
    pub(super) address: &'c str,
    pub(super) export: &'c str,
    pub(super) credentials: &'c Credentials,
    pub(super) fabric: Option<&'c Fabric>,
    pub(super) book: &'c Book,
    pub(super) slots: &'c Slots,
    /// The client keeps what it has leases on.
    pub(super) wants_leases: bool,
    /// How long who waits for an answer looks for it.
    pub(super) spin: Duration,
    /// Others rely on what was told under earlier leases until it is taken back.
    pub(super) are_leases_relied_on: bool,
    /// The next number of a request.
    pub(super) numbers: &'c AtomicU64,
}

impl Greeting<'_> {
    /// Connects, and begins a session or takes up the one of a ticket; tells the term of its leases, too.
    /// Blocks, up to about `limit`.
    pub(super) fn greet(
        &self,
        ticket: Option<Ticket>,
        limit: Duration,
    ) -> Result<(Connection, Receiver, Welcome, Duration), ConnectError> {
        if self.fabric.is_some() {
            begin_fabrics();
        }
        let mut opened = Connection::open(self.address, self.credentials, limit)?;
        if let Some(fabric) = self.fabric {
            opened = upgrade(opened, self.address, fabric, limit)?;
        }
        let (connection, mut receiver) = opened;
        receiver.set_spin(self.spin);
        let mut dialogue = Dialogue {
            greeting: self,
            connection: &connection,
            receiver: &mut receiver,
            ends: Instant::now() + limit,
        };
        let hello = Request::Hello {
            magic: MAGIC,
            version: VERSION,
            export: self.export.as_bytes(),
            resume: ticket,
        };
        let answer = dialogue.ask(&hello)?;
        let address = self.address.to_owned();
        let welcome = match answer.result::<Welcome>() {
            Ok(welcome) => welcome,
            Err(why) if !answer.is_ok() => return Err(ConnectError::Refused { address, why }),
            Err(why) => {
                return Err(ConnectError::Foreign {
                    address,
                    why: why.to_string(),
                });
            }
        };
        self.book.set_root(welcome.root);
        match welcome.state {
            SessionState::Alive => {}
            SessionState::ToReclaim => {
                if self.slots.has_any() {
                    let (number, slots) = dialogue.ask(&Request::ReclaimSlots {})?.result().unwrap_or_default();
                    self.slots.reclaimed(number, slots);
                }
                dialogue.reclaim(true)?;
            }
            SessionState::New => {
                if ticket.is_some() {
                    tracing::warn!(
                        "the session on {address} has ended; locks were lost, and what others removed may be gone"
                    );
                }
                self.slots.begin(welcome.ticket.session);
                dialogue.reclaim(false)?;
            }
        }
        let term_ms = match self.wants_leases {
            true => dialogue
                .ask(&Request::Leases {
                    relied_on: self.are_leases_relied_on,
                })?
                .result::<u32>()
                .unwrap_or(0),
            false => 0,
        };
        let term = Duration::from_millis(u64::from(term_ms));
        Ok((connection, receiver, welcome, term))
    }
}

/// Requests on a connection that nobody else uses yet, one at a time.
struct Dialogue<'d> {
    greeting: &'d Greeting<'d>,
    connection: &'d Connection,
    receiver: &'d mut Receiver,
    ends: Instant,
}

impl Dialogue<'_> {
    fn ask(&mut self, request: &Request<'_>) -> Result<Answer, ConnectError> {
        let head = own_head(self.greeting.numbers.fetch_add(1, Ordering::Relaxed));
        self.connection.send(&encode(&head, request), &[])?;
        loop {
            match Answer::receive(self.receiver)? {
                Some((answer, _)) if answer.id() == head.id => return Ok(answer),
                None if Instant::now() >= self.ends => {
                    return Err(ConnectError::Foreign {
                        address: self.greeting.address.to_owned(),
                        why: "it does not answer".into(),
                    });
                }
                _ => {}
            }
        }
    }

    /// Says what was pinned, open and locked. What the server does not have any more is stale from now on, and so are
    /// open files whose locks are lost: their owners believe that nobody else has changed them.
    fn reclaim(&mut self, may_claim_locks: bool) -> Result<(), ConnectError> {
        let book = self.greeting.book;
        for node in book.pins() {
            let answer = self.ask(&Request::Pin { node })?;
            book.pinned_again(node.ino, answer.result::<()>().is_ok());
        }
        for (key, node, held) in book.locks() {
            for lock in held {
                let claim = Request::Lock {
                    node,
                    client: key.client,
                    lock,
                    may_wait: false,
                    is_claim: true,
                };
                let claimed = match may_claim_locks {
                    true => self.ask(&claim)?.result::<()>(),
                    false => Err(FsError::Stale),
                };
                if let Err(error) = claimed {
                    tracing::warn!("a lock was lost: inode {}: {error}", node.ino);
                    // At once: if this connection breaks, the next must not get it after all.
                    book.locks_are_lost(node.ino);
                }
            }
        }
        let (stale, files): (Vec<_>, Vec<_>) = book.files().into_iter().partition(|(_, opened)| opened.is_stale);
        // An earlier connection may have opened them, and then have broken.
        for stale in stale.chunks(CLOSED_AT_ONCE) {
            let files = stale.iter().map(|(file, _)| *file).collect();
            self.ask(&Request::Close { files })?;
        }
        for (file, opened) in files {
            let answer = self.ask(&Request::Reopen {
                node: opened.node,
                mode: opened.mode,
                seal: opened.seal,
                file,
            })?;
            if let Err(error) = answer.result::<()>() {
                tracing::warn!("a file that was open is gone: inode {}: {error}", opened.node.ino);
            }
        }
        self.ask(&Request::Reclaimed {}).map(drop)
    }
}
