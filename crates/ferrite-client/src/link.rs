//! The connection as callers see it: always there, only slow at times.
//!
//! Contents: [`Link`], which sends requests, matches the replies, and reconnects when necessary.
//!
//! There is no dedicated receiving thread, because handing a reply over costs more than most requests: one of the
//! threads that wait for a reply receives for all, until it has its own, and then passes that duty on. A background
//! thread, the *watcher*, does it when only locks are waited for, and sends pings.
//!
//! Invariants: request numbers are never reused, so that no reply is taken for another's. A request that could have
//! taken effect is sent again only if that does no harm: if it changes nothing, if repeating it has no further effect
//! on the session, or if it carries a token of the session that is still alive.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ferrite_checks::ranked::{Condvar, Mutex};
use ferrite_transport::FabricError;
use ferrite_transport::connection::{Connection, Receiver};
use ferrite_transport::watch::Wake;
use ferrite_vfs::{Ctx, FsError, Result, Waits};

use super::backoff::Backoff;
use super::batching::SendBatching;
use super::cache::Cache;
use super::deadline::Deadline;
use super::deferred_sends::DeferredSends;
use super::groups::GroupCache;
use super::message::{Reply, State, Waiter, check_length, encode};
use super::recall_queue::RecallQueue;
use super::requests::{Completion, Pending, Requests};
use super::session_setup::{SessionRecord, SessionSetup};
use super::slots::Slot;
use super::untrusted::SlotsReply;
use super::{ClientOptions, ConnectError, head, own_head};
use crate::lock_order;
use ferrite_proto::{Head, ImmediateRequest, Promises, RECALL_ID, Request, ResumeToken, SessionRequest};

/// The first wait between attempts to connect, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How long a waiting thread sleeps before it checks whether it should receive.
const LOOK_UP: Duration = Duration::from_millis(200);
/// How often the watcher sends a ping, at least.
const WATCH_MAX: Duration = Duration::from_secs(10);

/// A server that is silent for longer is gone, whatever lease it has promised.
const LEASE_MAX: Duration = Duration::from_secs(3600);

/// A connection that works, or did.
pub(super) struct Up {
    pub(super) connection: Connection,
    pub(super) receiver: Mutex<lock_order::Receiver, Receiver>,
    is_broken: AtomicBool,
    pub(super) outgoing: SendBatching,
    /// When something was last received.
    heard: Mutex<lock_order::Heard, Instant>,
}

#[derive(Default)]
pub(super) struct ConnectionState {
    pub(super) up: Option<Arc<Up>>,
    is_connecting: bool,
    resume_token: Option<ResumeToken>,
    promises: Option<Promises>,
    lease: Duration,
    /// The client is closed.
    pub(super) is_over: bool,
    /// How often the server has refused to continue the session, and the last reason.
    refusals: (u64, Option<FsError>),
}

/// See the head of this module.
pub(super) struct Link {
    address: String,
    pub(super) options: ClientOptions,
    pub(super) connection_state: Mutex<lock_order::ConnectionState, ConnectionState>,
    pub(super) changed: Condvar,
    pub(super) requests: Requests,
    pub(super) deferred_sends: DeferredSends,
    reconnects: AtomicU64,
    backoff: Backoff,
    pub(super) session: SessionRecord,
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

/// Whether a request may be repeated though it may have taken effect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeats {
    /// Repeating it has no further effect.
    Yes,
    /// It is a change, which needs a token.
    WithToken,
}

impl Link {
    /// Connects for the first time.
    pub(super) fn open(
        address: &str,
        export: &str,
        options: &ClientOptions,
    ) -> std::result::Result<Arc<Link>, ConnectError> {
        let link = Arc::new(Link {
            address: address.to_owned(),
            options: options.clone(),
            connection_state: Mutex::default(),
            changed: Condvar::new(),
            requests: Requests::default(),
            deferred_sends: DeferredSends::default(),
            reconnects: AtomicU64::new(0),
            backoff: Backoff::default(),
            session: SessionRecord::of(export),
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
        let up = link.set_up_session(None, options.connect)?;
        link.connection_state.lock().up = Some(Arc::new(up));
        let watcher = {
            let link = Arc::downgrade(&link);
            std::thread::Builder::new()
                .name("ferrite-watcher".into())
                .spawn(move || {
                    while let Some(link) = link.upgrade() {
                        if !link.watch() {
                            break;
                        }
                    }
                })?
        };
        *link.watcher.thread.lock() = Some(watcher);
        Ok(link)
    }

    pub(super) fn promises(&self) -> Promises {
        self.connection_state
            .lock()
            .promises
            .expect("known since the first connection")
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    /// The server's address, while there is a connection.
    pub(super) fn peer(&self) -> Option<std::net::IpAddr> {
        let peer = self.connection_state.lock().up.as_ref()?.connection.peer().ok()?;
        Some(peer.ip().to_canonical())
    }

    pub(super) fn is_encrypted(&self) -> Option<bool> {
        let up = self.connection_state.lock().up.clone();
        up.map(|up| up.connection.is_encrypted())
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.ids().load(Ordering::Relaxed)
    }

    pub(super) fn fresh_id(&self) -> u64 {
        self.requests.fresh_id()
    }

    pub(super) fn disconnect(&self) {
        if let Some(up) = &self.connection_state.lock().up {
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
        let mut was_sent = false;
        let mut head = head(ctx, &self.groups);
        let waiter = Arc::new(Waiter::new());
        self.requests.enter(&mut head, |_| Pending::Thread(Arc::clone(&waiter)));
        let reply = self.call_until_replied(
            (&mut head, &mut was_sent),
            (request, repeats),
            &waiter,
            &limit,
            (data, into),
        );
        self.requests.leave(head.id);
        if self.deferred_sends.has_some() {
            // It may have had the slot that another request waits for.
            self.flush_deferred_sends();
        }
        if was_sent && matches!(reply, Err(FsError::TimedOut | FsError::Interrupted)) {
            // It may still have an effect on the session, unknown to this client.
            self.post(SessionRequest::Abandon {
                request: head.id,
                file: request.file().unwrap_or_default(),
            });
        }
        reply
    }

    fn call_until_replied(
        &self,
        (head, was_sent): (&mut Head, &mut bool),
        (request, repeats): (&Request<'_>, Repeats),
        waiter: &Arc<Waiter>,
        limit: &Deadline,
        (data, into): (&[u8], &mut [u8]),
    ) -> Result<Reply> {
        let mut slot = None;
        let mut body = Vec::new();
        loop {
            if !*was_sent {
                if repeats == Repeats::WithToken {
                    slot = self.slot(limit)?;
                    head.token = slot.as_ref().map(|slot: &Slot<'_>| slot.token);
                }
                body = encode(head, request);
                check_length(&body, request)?;
            }
            let up = self.up(limit)?;
            let epoch = self.session.unsynced.epoch();
            if *was_sent && !self.may_repeat(repeats, head) {
                return Err(FsError::Disconnected);
            }
            if !*was_sent && repeats == Repeats::WithToken && !self.session.slots.is_current(slot.as_ref()) {
                // Another session has begun since.
                continue;
            }
            // A server that accepts every connection and breaks it would keep the caller for ever.
            if *was_sent {
                limit.check()?;
            }
            waiter.set(State::Waiting);
            // A request that was sent in part was not executed, but the client cannot tell which part was sent.
            *was_sent = true;
            let reply = match up.connection.ask(&body, data, into.len()) {
                Ok(()) => self.wait(&up, waiter, head.id, limit, into),
                Err(_) => {
                    self.lost(&up);
                    Ok(None)
                }
            };
            if let Some(reply) = reply? {
                self.note_unsynced(repeats, &reply, epoch);
                return Ok(reply);
            }
        }
    }

    fn may_repeat(&self, repeats: Repeats, head: &Head) -> bool {
        match (repeats, head.token) {
            (Repeats::Yes, _) => true,
            (Repeats::WithToken, Some(token)) => self.session.slots.has(token),
            (Repeats::WithToken, None) => false,
        }
    }

    /// Makes a request without waiting for its reply. It arrives, unless the session ends.
    pub(super) fn post<'r>(&self, request: impl Into<Request<'r>>) {
        let request = request.into();
        let mut head = own_head(0);
        let mut body = Vec::new();
        let up = {
            // The connecting thread sends everything that is noted before others see the connection.
            let connection_state = self.connection_state.lock();
            self.requests.enter(&mut head, |head| {
                body = encode(head, &request);
                Pending::Posted(body.clone())
            });
            connection_state.up.clone()
        };
        // Without a connection, the next one sends it.
        if let Some(up) = up
            && up.connection.send(&body, &[]).is_err()
        {
            self.lost(&up);
        }
    }

    pub(super) fn ask_for_slots(&self, waits: Waits) -> Result<()> {
        let session = self
            .connection_state
            .lock()
            .resume_token
            .map_or(0, |resume_token| resume_token.session);
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

    /// Waits for the reply to the request `id`; `None` if the connection broke.
    pub(super) fn wait(
        &self,
        up: &Arc<Up>,
        waiter: &Waiter,
        id: u64,
        limit: &Deadline,
        into: &mut [u8],
    ) -> Result<Option<Reply>> {
        loop {
            match waiter.take() {
                State::Replied(reply) => return Ok(Some(reply.with_data(into))),
                State::Broken => return Ok(None),
                State::Waiting | State::Called => {}
            }
            if let Some(mut receiver) = up.receiver.try_lock() {
                // It may have been answered before the receiver was free.
                let state = waiter.take();
                let received = match state {
                    State::Replied(reply) => Ok(Some(reply.with_data(into))),
                    State::Broken => Ok(None),
                    _ => self.receive(up, &mut receiver, Some((id, &mut *into)), limit),
                };
                drop(receiver);
                self.call_another(id);
                self.complete(up);
                match received {
                    Ok(None) if !up.is_broken.load(Ordering::Acquire) => {}
                    Ok(None) => return Ok(None),
                    other => return other,
                }
            } else {
                waiter.sleep(LOOK_UP);
            }
            limit.check()?;
        }
    }

    /// Receives for all waiting threads, until the reply to the request `mine` is there. `None` if the connection
    /// broke, or nothing came for a while and no thread waits here, or completions are to be called.
    fn receive(
        &self,
        up: &Arc<Up>,
        receiver: &mut Receiver,
        mut mine: Option<(u64, &mut [u8])>,
        limit: &Deadline,
    ) -> Result<Option<Reply>> {
        let mut has_completions = false;
        loop {
            if up.is_broken.load(Ordering::Acquire) || has_completions && !receiver.has_frame() {
                return Ok(None);
            }
            let received = match Reply::receive(receiver) {
                Ok(Some((mut reply, data_bytes))) => match &mut mine {
                    Some((id, into)) if *id == reply.id() => {
                        let taken = reply.take_data(receiver, data_bytes, into);
                        taken.map(|()| Some(reply))
                    }
                    _ if reply.id() == RECALL_ID => {
                        has_completions = true;
                        self.note_recall(&reply).map(|()| None)
                    }
                    _ => self.requests.deliver(reply, receiver, data_bytes).map(|is_deferred| {
                        has_completions |= is_deferred;
                        None
                    }),
                },
                Ok(None) => match mine {
                    Some(_) => {
                        limit.check()?;
                        continue;
                    }
                    None => return Ok(None),
                },
                Err(error) => Err(error),
            };
            match received {
                Ok(reply) => {
                    *up.heard.lock() = Instant::now();
                    if reply.is_some() {
                        return Ok(reply);
                    }
                }
                Err(error) => {
                    tracing::debug!("{}: {error}", self.address);
                    self.lost(up);
                    return Ok(None);
                }
            }
        }
    }

    /// Calls the completions whose replies have come, and sends their new requests. The caller does not hold the
    /// receiver.
    fn complete(&self, up: &Arc<Up>) {
        self.reply_to_recalls();
        let completed = self.requests.completed();
        if completed.is_empty() {
            return;
        }
        up.outgoing.hold();
        completed.into_iter().for_each(|completion| self.finish(completion));
        self.flush_deferred_sends();
        if up.outgoing.release(&up.connection).is_err() {
            self.lost(up);
        }
    }

    pub(super) fn call_completions(&self) {
        let completed = self.requests.completed();
        completed.into_iter().for_each(|completion| self.finish(completion));
    }

    fn finish(&self, completion: Completion) {
        if let Some(token) = completion.token {
            self.session.slots.free(token);
        }
        if let Some(len_bytes) = completion.expected_bytes() {
            self.deferred_sends.landed(len_bytes);
        }
        completion.call();
    }

    /// Makes another waiting thread receive, if there is one.
    fn call_another(&self, but: u64) {
        if !self.requests.call_another(but) && self.requests.awaits_deferred() {
            self.watcher.wake.ring();
        }
    }

    /// Drops the broken connection `up`: all threads that wait for its replies retry.
    pub(super) fn lost(&self, up: &Arc<Up>) {
        up.is_broken.store(true, Ordering::Release);
        up.connection.close();
        {
            let mut connection_state = self.connection_state.lock();
            if connection_state
                .up
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, up))
            {
                connection_state.up = None;
                if let Some(cache) = &self.leases.cache {
                    cache.disconnected();
                }
            }
        }
        self.requests.break_off();
        self.watcher.wake.ring();
    }

    /// The connection; makes it, or waits until it is made. A caller that may give up leaves that to the watcher.
    pub(super) fn up(&self, limit: &Deadline) -> Result<Arc<Up>> {
        let mut connection_state = self.connection_state.lock();
        let refusals = connection_state.refusals.0;
        loop {
            if connection_state.is_over {
                return Err(FsError::Disconnected);
            }
            if let Some(up) = &connection_state.up {
                return Ok(Arc::clone(up));
            }
            if connection_state.refusals.0 != refusals {
                return Err(connection_state.refusals.1.clone().unwrap_or(FsError::Disconnected));
            }
            if !connection_state.is_connecting && !limit.is_short() {
                connection_state.is_connecting = true;
                let resume_token = connection_state.resume_token;
                drop(connection_state);
                let made = self.connect_again(resume_token, limit.deadline());
                connection_state = self.connection_state.lock();
                connection_state.is_connecting = false;
                if let Err(why) = &made
                    && !matches!(why, FsError::TimedOut | FsError::Disconnected)
                {
                    connection_state.refusals = (connection_state.refusals.0 + 1, Some(why.clone()));
                }
                self.changed.notify_all();
                made?;
                continue;
            }
            if !connection_state.is_connecting {
                self.watcher.wake.ring();
            }
            match limit.next_check() {
                None => self.changed.wait(&mut connection_state),
                Some(at) => drop(self.changed.wait_until(&mut connection_state, at)),
            }
            limit.check()?;
        }
    }

    fn connect_again(&self, resume_token: Option<ResumeToken>, deadline: Option<Instant>) -> Result<()> {
        let mut backoff = BACKOFF.0;
        self.backoff.wait();
        loop {
            match self.set_up_session(resume_token, ATTEMPT) {
                Ok(up) => {
                    self.reconnects.fetch_add(1, Ordering::Relaxed);
                    self.take_up(Arc::new(up));
                    return Ok(());
                }
                Err(ConnectError::Refused { why, .. }) if !matches!(why, FsError::TooManySessions(_)) => {
                    return Err(why);
                }
                // The peer has proved nothing, so the error may be transient.
                Err(error @ ConnectError::Fabric(FabricError::Handshake { .. })) if backoff == BACKOFF.0 => {
                    tracing::warn!("connecting again: {error}");
                }
                Err(error) => tracing::debug!("connecting again: {error}"),
            }
            if self.connection_state.lock().is_over {
                return Err(FsError::Disconnected);
            }
            if deadline.is_some_and(|deadline| Instant::now() + backoff >= deadline) {
                return Err(FsError::TimedOut);
            }
            // Staggered against all other clients that have lost the same server.
            let share = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.subsec_micros() % 512);
            std::thread::sleep(backoff * (512 + share) / 1024);
            backoff = (backoff * 2).min(BACKOFF.1);
        }
    }

    /// Sends unanswered requests that no thread waits for, and then opens the connection to all. Requests noted
    /// meanwhile are sent as well, so that nothing is forgotten, nothing is sent twice, and nothing overtakes another.
    fn take_up(&self, up: Arc<Up>) {
        let mut sent_below = 0;
        loop {
            let mut connection_state = self.connection_state.lock();
            // Changes of an ended session may have taken effect. Under the lock, because `send_deferred` compares new
            // ones with the session's slots under it.
            self.requests
                .expire(Instant::now(), |token| !self.session.slots.has(token));
            let unsent = self.requests.outstanding(sent_below);
            if unsent.is_empty() {
                if !connection_state.is_over {
                    connection_state.up = Some(up);
                }
                return;
            }
            drop(connection_state);
            for (id, body, data) in unsent {
                // If it fails, the next user of the connection finds out.
                let _ = up.connection.send(&body, &data);
                sent_below = id + 1;
            }
        }
    }

    /// Connects, and begins a session or resumes the one of a resume token.
    fn set_up_session(
        &self,
        resume_token: Option<ResumeToken>,
        limit: Duration,
    ) -> std::result::Result<Up, ConnectError> {
        let setup = SessionSetup {
            address: &self.address,
            options: &self.options,
            session: &self.session,
            wants_leases: self.leases.cache.is_some(),
            are_leases_relied_on: self.leases.recall_queue.is_on(),
            next_id: self.requests.ids(),
        };
        let (connection, receiver, welcome, term) = setup.set_up_session(resume_token, limit)?;
        if let Some(cache) = &self.leases.cache {
            cache.connected(term);
        }
        let mut connection_state = self.connection_state.lock();
        connection_state.resume_token = Some(welcome.resume_token);
        connection_state.promises = Some(welcome.promises);
        connection_state.lease = Duration::from_millis(u64::from(welcome.lease_ms)).min(LEASE_MAX);
        drop(connection_state);
        Ok(Up {
            connection,
            receiver: Mutex::new(receiver),
            is_broken: AtomicBool::new(false),
            outgoing: SendBatching::default(),
            heard: Mutex::new(Instant::now()),
        })
    }

    /// One turn of the watcher. False when the client is closed.
    fn watch(&self) -> bool {
        let (up, lease) = {
            let connection_state = self.connection_state.lock();
            if connection_state.is_over {
                return false;
            }
            (connection_state.up.clone(), connection_state.lease)
        };
        let tick = (lease / 4).clamp(Duration::from_millis(10), WATCH_MAX);
        self.look_after_submitted();
        // Recalls come at any time.
        let waits = self.leases.cache.is_some() || self.requests.awaits_deferred();
        let Some(up) = up else {
            // Another thread may be connecting; if none waits, the watcher has to.
            if self.up(&Deadline::until(Some(Instant::now() + ATTEMPT))).is_err() {
                // A server that refuses does so at once.
                self.watcher.wake.wait(None, BACKOFF.1);
            }
            return true;
        };
        let silence = up.heard.lock().elapsed();
        if silence > lease.max(tick * 2) {
            // It has not even answered pings: the server is gone, or its host is.
            self.lost(&up);
            return true;
        }
        if silence >= tick {
            let ping = self.requests.ping();
            if up
                .connection
                .send(&encode(&ping, &ImmediateRequest::Ping {}), &[])
                .is_err()
            {
                self.lost(&up);
                return true;
            }
        }
        if waits || silence >= tick {
            if let Some(mut receiver) = up.receiver.try_lock_for(tick) {
                // It returns when nothing has come for a while, and then other threads have their turn.
                let _ = self.receive(&up, &mut receiver, None, &Deadline::until(None));
                drop(receiver);
                self.call_another(0);
                self.complete(&up);
            }
            return true;
        }
        if self.watcher.wake.wait(Some(up.connection.as_fd()), tick) {
            self.lost(&up);
        }
        true
    }
}
