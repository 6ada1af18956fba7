//! The connection as callers see it: always there, only slow at times.
//!
//! Contents: [`Link`], which makes requests and waits for their replies, whatever happens to the connection meanwhile.
//! The state machine `protocol` decides; this and four other modules drive it, each with a part of [`Link`]: they own
//! the sockets, the threads and the clock. `connecting` makes the connection and drops it, `receiving` takes replies
//! off it, `watcher` is the thread that looks after it when no other does, and `close` ends it.
//!
//! Invariants: request numbers are never reused, so that no reply is taken for another's. No thread sends or receives
//! under the lock of the state machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;
use ferrite_transport::watch::Wake;
use ferrite_vfs::{Ctx, Result, Waits};

use super::addresses::Addresses;
use super::cache::Cache;
use super::deadline::Deadline;
use super::deferred_sends::DeferredSends;
use super::groups::GroupCache;
use super::message::{Reply, State, Waiter, check_length, encode};
use super::protocol::{Call, Next, Protocol, Repeats};
use super::recall_queue::RecallQueue;
use super::requests::{Pending, Requests};
use super::session_setup::SessionRecord;
use super::slots::Slot;
use super::untrusted::SlotsReply;
use super::up::Up;
use super::{ClientOptions, ConnectError, head, own_head};
use crate::lock_order;
use ferrite_proto::{Head, Promises, Request, SessionRequest};

/// See the head of this module.
pub(super) struct Link {
    pub(super) options: ClientOptions,
    /// The state machine. Its holder sends nothing.
    pub(super) protocol: Mutex<lock_order::Protocol, Protocol<Arc<Up>>>,
    /// Signals changes of `protocol` to the threads that wait for the connection.
    pub(super) changed: Condvar,
    pub(super) session: SessionRecord,
    pub(super) requests: Requests,
    pub(super) deferred_sends: DeferredSends,
    pub(super) leases: Leases,
    pub(super) groups: GroupCache,
    pub(super) watcher: Watcher,
}

/// The state that the client keeps under leases, and the recalls that end those.
pub(super) struct Leases {
    pub(super) cache: Option<Cache>,
    /// Recalls to answer.
    pub(super) recalls: Mutex<lock_order::Recalls, Vec<u64>>,
    pub(super) recall_queue: RecallQueue,
}

/// The background thread, and the means to end its wait.
pub(super) struct Watcher {
    pub(super) thread: Mutex<lock_order::Watcher, Option<JoinHandle<()>>>,
    pub(super) wake: Wake,
}

impl Link {
    /// Connects for the first time.
    pub(super) fn open(
        addresses: Addresses,
        export: &str,
        options: &ClientOptions,
    ) -> std::result::Result<Arc<Link>, ConnectError> {
        let link = Arc::new(Link {
            options: options.clone(),
            protocol: Mutex::new(Protocol::new(addresses, Instant::now())),
            changed: Condvar::new(),
            session: SessionRecord::of(export),
            requests: Requests::default(),
            deferred_sends: DeferredSends::default(),
            leases: Leases {
                cache: options.cache_bytes.map(Cache::new),
                recalls: Mutex::default(),
                recall_queue: RecallQueue::default(),
            },
            groups: GroupCache::default(),
            watcher: Watcher {
                thread: Mutex::default(),
                wake: Wake::new()?,
            },
        });
        let up = Arc::new(link.connect_first()?);
        link.protocol.lock().established(up);
        link.start_watcher()?;
        Ok(link)
    }

    pub(super) fn promises(&self) -> Promises {
        self.protocol
            .lock()
            .promises()
            .expect("known since the first connection")
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.protocol.lock().reconnects()
    }

    /// The server's address, while there is a connection.
    pub(super) fn peer(&self) -> Option<std::net::IpAddr> {
        let peer = self.protocol.lock().connection()?.connection.peer().ok()?;
        Some(peer.ip().to_canonical())
    }

    /// The one of the client's addresses that it is connected to.
    pub(super) fn server(&self) -> Option<Arc<str>> {
        let protocol = self.protocol.lock();
        protocol.connection().map(|up| Arc::clone(&up.address))
    }

    pub(super) fn is_encrypted(&self) -> Option<bool> {
        let up = self.protocol.lock().connection().cloned();
        up.map(|up| up.connection.is_encrypted())
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.ids().load(Ordering::Relaxed)
    }

    pub(super) fn fresh_id(&self) -> u64 {
        self.requests.fresh_id()
    }

    pub(super) fn disconnect(&self) {
        if let Some(up) = self.protocol.lock().connection() {
            up.connection.close();
        }
    }

    /// Makes a request and waits for its reply; data of the reply goes into `into`, as much as it holds.
    pub(super) fn call(
        &self,
        ctx: &Ctx,
        request: &Request<'_>,
        repeats: Repeats,
        data: &[u8],
        into: &mut [u8],
    ) -> Result<Reply> {
        self.options.permit(request)?;
        let limit = Deadline::of(self.options.timeout, &ctx.waits);
        let mut call = Call::new(repeats);
        let mut head = head(ctx, &self.groups);
        let waiter = Arc::new(Waiter::new());
        self.requests.enter(&mut head, |_| Pending::Thread(Arc::clone(&waiter)));
        let reply = self.call_until_replied((&mut head, &mut call), request, &waiter, &limit, (data, into));
        self.requests.leave(head.id);
        if self.deferred_sends.has_some() {
            // It may have had the slot that another request waits for.
            self.flush_deferred_sends();
        }
        if call.is_abandoned(&reply) {
            self.post(SessionRequest::Abandon {
                request: head.id,
                file: request.file().unwrap_or_default(),
            });
        }
        reply
    }

    fn call_until_replied(
        &self,
        (head, call): (&mut Head, &mut Call),
        request: &Request<'_>,
        waiter: &Arc<Waiter>,
        limit: &Deadline,
        (data, into): (&[u8], &mut [u8]),
    ) -> Result<Reply> {
        let mut slot: Option<Slot<'_>>;
        let mut body = Vec::new();
        loop {
            if call.is_to_prepare() {
                if call.needs_token() {
                    slot = self.slot(limit)?;
                    head.token = slot.as_ref().map(|slot| slot.token);
                    call.set_token(head.token);
                }
                body = encode(head, request);
                check_length(&body, request)?;
            }
            let up = self.up(limit)?;
            let epoch = self.session.unsynced.epoch();
            match call.connected(&*self.session.slots) {
                Next::Send => {}
                // A server that accepts every connection and breaks it would keep the caller for ever.
                Next::Repeat => limit.check()?,
                Next::Prepare => continue,
                Next::Fail(error) => return Err(error),
            }
            waiter.set(State::Waiting);
            let reply = match up.connection.ask(&body, data, into.len()) {
                Ok(()) => self.wait(&up, waiter, head.id, limit, into)?,
                Err(_) => {
                    self.lost(&up);
                    None
                }
            };
            if let Some(reply) = reply {
                self.note_unsynced(call.needs_token(), &reply, epoch);
                return Ok(reply);
            }
        }
    }

    /// Makes a request without waiting for its reply. It arrives, unless the session ends.
    pub(super) fn post<'r>(&self, request: impl Into<Request<'r>>) {
        let request = request.into();
        let mut head = own_head(0);
        let mut body = Vec::new();
        let up = {
            // The connecting thread sends everything that is noted before others see the connection.
            let protocol = self.protocol.lock();
            self.requests.enter(&mut head, |head| {
                body = encode(head, &request);
                Pending::Posted(body.clone())
            });
            protocol.connection().cloned()
        };
        // Without a connection, the next one sends it.
        if let Some(up) = up
            && up.connection.send(&body, &[]).is_err()
        {
            self.lost(&up);
        }
    }

    pub(super) fn ask_for_slots(&self, waits: Waits) -> Result<()> {
        let session = self.protocol.lock().session();
        let request = Request::from(SessionRequest::Slots {
            count: self.options.slots,
        });
        let ctx = ferrite_vfs::SYSTEM.clone().waiting(waits);
        let reply = self.call(&ctx, &request, Repeats::Yes, &[], &mut [])?;
        let SlotsReply((number, mut slots)) = reply.result()?;
        slots.truncate(self.options.slots as usize);
        self.session.slots.fill(session, number, slots);
        Ok(())
    }

    /// A slot for a change; `None` if the server has none.
    fn slot(&self, limit: &Deadline) -> Result<Option<Slot<'_>>> {
        if !self.promises().has_slots {
            return Ok(None);
        }
        loop {
            if self.session.slots.are_wanted() {
                self.ask_for_slots(limit.rest())?;
            }
            let slot = self.session.slots.take(limit)?;
            // The slots may have ended with the session.
            if slot.is_some() || !self.session.slots.are_wanted() {
                return Ok(slot);
            }
        }
    }
}
