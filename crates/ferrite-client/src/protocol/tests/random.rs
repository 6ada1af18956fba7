//! Random sequences of events, from a seed that a failure prints.
//!
//! Contents: [`Client`] drives the state machine as the product's driver does, with callers and a watcher that take one
//! step at a time in any order. [`Server`] is the other end.
//!
//! Invariants that each step checks: no request ends twice; no change happens twice; no change is sent twice without a
//! token that the session still has; one thread at a time connects, and only to servers of the list, each of them once
//! or twice before time passes. After the faults end, everything that was submitted
//! ends in bounded time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;
use ferrite_vfs::{DedupToken, FsError, Waits};

use super::server::{Message, Mode, SERVERS, Server};
use super::{
    AfterFailure, Attempt, Call, CallLimit, Deferred, Expired, Failure, Health, InFlight, Loss, MS, Next, Pending,
    Protocol, Recipient, Repeated, Repeats, Restoration, Seek, Seeker, SlotTable, Stagger, Tokens, Turn, list, welcome,
};

const LEASE_MS: u32 = 400;
/// Steps with faults, and the virtual time after them in which everything ends.
const STEPS: usize = 600;
const BOUND: Duration = Duration::from_secs(20);

/// A recipient, by its number.
#[derive(Debug)]
struct Sink(usize);

impl Recipient for Sink {
    fn data(&self) -> &[u8] {
        &[]
    }
}

/// A thread that connects.
#[derive(Debug)]
enum Connecting {
    Resting(Instant),
    TakingUp(u64, Repeated),
}

/// The place of a thread in its call.
#[derive(Debug)]
enum At {
    Preparing,
    Seeking(Seeker),
    Connecting(Seeker, Connecting),
    Waiting { reply: Option<bool>, is_broken: bool },
    Ended(Result<bool, FsError>),
}

/// A thread with a call; the watcher has none.
struct Thread {
    call: Option<Call>,
    id: u64,
    token: Option<DedupToken>,
    limit: CallLimit,
    at: At,
}

/// See the head of this module.
struct Client {
    now: Instant,
    rng: Rng,
    server: Server,
    protocol: Protocol<u64>,
    in_flight: InFlight<usize, Sink>,
    slots: SlotTable,
    next_id: u64,
    heard: Instant,
    /// The attempts since time passed.
    attempts: (Instant, usize),
    /// The watcher is the first.
    threads: Vec<Thread>,
    watch_at: Instant,
    /// The results of requests with recipients.
    sunk: Vec<Option<Result<bool, FsError>>>,
    /// Requests by which the server abandons others.
    abandons: Vec<u64>,
    /// Requests that change something, with the token with which each was sent.
    changes: BTreeMap<u64, Vec<Option<DedupToken>>>,
}

impl Client {
    /// A client with its first connection.
    fn new(seed: u64) -> Client {
        let now = Instant::now();
        let mut rng = Rng::new(seed);
        let mut server = Server::new(rng.chance(75));
        server.owner = (!seed.is_multiple_of(3)).then_some(0);
        let addresses = match server.owner {
            Some(_) => list(&SERVERS.join(",")),
            None => list("server:1"),
        };
        let watcher = Thread {
            call: None,
            id: 0,
            token: None,
            limit: CallLimit::until(None),
            at: At::Ended(Ok(true)),
        };
        let mut client = Client {
            now,
            server,
            rng,
            protocol: Protocol::new(addresses, now),
            in_flight: InFlight::default(),
            slots: SlotTable::default(),
            next_id: 1,
            heard: now,
            attempts: (now, 0),
            threads: vec![watcher],
            watch_at: now,
            sunk: Vec::new(),
            abandons: Vec::new(),
            changes: BTreeMap::new(),
        };
        let first = client.protocol.first_attempt(MS);
        let connection = client.handshake(&first).expect("the server is well");
        client.protocol.established(connection);
        client
    }

    fn handshake(&mut self, attempt: &Attempt) -> Result<u64, Failure> {
        let servers = match self.server.owner {
            Some(_) => &SERVERS[..],
            None => &["server:1"],
        };
        assert!(servers.contains(&&*attempt.address), "{attempt:?}");
        if self.attempts.0 != self.now {
            self.attempts = (self.now, 0);
        }
        self.attempts.1 += 1;
        assert!(self.attempts.1 <= 2 * servers.len(), "it connects without a pause");
        let state = self.server.handshake(attempt, &mut self.rng)?;
        match attempt.restoration(state) {
            Restoration::Nothing => {}
            Restoration::Reclaim => {
                // Some slots may be another session's by now.
                if self.rng.chance(50) {
                    self.server.slots.pop();
                }
                let (number, slots) = (self.server.number, self.server.slots.clone());
                self.slots.reclaimed(number, slots, self.now);
            }
            Restoration::BeginAnew { .. } => {
                let (number, slots) = (self.server.number, self.server.slots.clone());
                self.slots.begin(self.server.session);
                self.slots.fill(self.server.session, number, slots, self.now);
            }
        }
        self.protocol.welcomed(&welcome(self.server.session, state, LEASE_MS));
        self.heard = self.now;
        Ok(self.server.connection)
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Puts a request on the wire, unless that is broken.
    fn send(&mut self, message: Message) {
        if let Some(tokens) = self.changes.get_mut(&message.id) {
            tokens.push(message.token);
            if tokens.len() > 1 {
                assert!(tokens.iter().all(|token| *token == message.token), "{message:?}");
                let token = message.token.expect("a change is sent twice without a token");
                assert!(self.slots.has(token), "{message:?} is sent to a session that lacks it");
            }
        }
        if self.server.is_open && message.connection == self.server.connection {
            self.server.requests.push_back(message);
        } else {
            self.lost(message.connection);
        }
    }

    fn lost(&mut self, connection: u64) {
        self.lost_by(connection, &Loss::Broken);
    }

    fn lost_by(&mut self, connection: u64, loss: &Loss) {
        self.protocol.lost(&connection, loss);
        self.watch_at = self.now;
        if self.server.connection == connection {
            self.server.disconnect();
        }
        for (_, &thread) in self.in_flight.waiters() {
            if let At::Waiting { reply: None, is_broken } = &mut self.threads[thread].at {
                *is_broken = true;
            }
        }
    }

    /// Ends requests whose deadline is past, or whose token `slots` lacks. Returns the requests by which the server
    /// abandons the former.
    fn expire(&mut self, slots: Option<&SlotTable>) -> Vec<u64> {
        let next_id = &mut self.next_id;
        let abandon = |_: &InFlight<usize, Sink>, _| {
            *next_id += 1;
            (*next_id - 1, body(*next_id - 1, None))
        };
        let expired = self.in_flight.expire(self.now, slots, abandon);
        let mut abandons = Vec::new();
        for Expired {
            deferred,
            error,
            abandon,
        } in expired
        {
            assert_eq!(abandon.is_some(), error == FsError::TimedOut);
            abandons.extend(abandon.map(|abandon| abandon.id));
            self.sink(*deferred, Err(error));
        }
        self.abandons.extend(&abandons);
        abandons
    }

    fn sink(&mut self, deferred: Deferred<Sink>, result: Result<bool, FsError>) {
        if let Some(token) = deferred.token {
            self.slots.free(token);
        }
        let before = self.sunk[deferred.recipient.0].replace(result);
        assert!(before.is_none(), "a request is answered twice");
    }

    /// A request whose caller waits.
    fn call(&mut self) {
        let (id, thread) = (self.fresh_id(), self.threads.len());
        let is_change = self.rng.chance(60);
        if is_change {
            self.changes.insert(id, Vec::new());
        }
        let within = self.rng.chance(30).then(|| MS * self.rng.below(3000) as u32);
        let timeout = self.rng.chance(20).then_some(1000 * MS);
        let waits = Waits { within, caller: None };
        self.in_flight.insert(id, Pending::Thread(thread));
        self.threads.push(Thread {
            call: Some(Call::new(if is_change { Repeats::WithToken } else { Repeats::Yes })),
            id,
            token: None,
            limit: CallLimit::of(timeout, &waits, || self.now),
            at: At::Preparing,
        });
    }

    /// A request with a recipient, or one that must only arrive.
    fn submit(&mut self) {
        let id = self.fresh_id();
        let is_change = self.rng.chance(50);
        let token = is_change.then(|| self.slots.take(self.now)).flatten();
        if is_change && token.is_none() {
            return;
        }
        if self.rng.chance(20) && !is_change {
            self.in_flight.insert(id, Pending::Posted(body(id, None)));
        } else {
            let deadline = self.rng.chance(30).then(|| self.now + MS * self.rng.below(2000) as u32);
            let recipient = Sink(self.sunk.len());
            self.sunk.push(None);
            let body = body(id, token);
            self.in_flight.insert(
                id,
                Pending::Deferred(Box::new(Deferred {
                    body,
                    token,
                    deadline,
                    recipient,
                })),
            );
        }
        if is_change {
            self.changes.insert(id, Vec::new());
        }
        if let Some(&connection) = self.protocol.connection() {
            self.send(Message { connection, id, token });
        }
    }

    /// The thread that receives takes a reply off the connection.
    fn receive(&mut self) {
        if self.server.mode == Mode::Silent || self.protocol.connection() != Some(&self.server.connection) {
            return;
        }
        let Some((id, result)) = self.server.replies.pop_front() else {
            return;
        };
        self.heard = self.now;
        match self.in_flight.answered(id) {
            Some(Pending::Thread(thread)) => {
                // A thread that repeats its request gets the reply to the repetition.
                if let At::Waiting { reply, .. } = &mut self.threads[thread].at {
                    *reply = Some(result);
                }
            }
            Some(Pending::Deferred(deferred)) => self.sink(*deferred, Ok(result)),
            Some(Pending::Posted(_) | Pending::Cancels(..)) | None => {}
        }
    }

    /// One step of a thread.
    fn step(&mut self, index: usize) {
        let at = std::mem::replace(&mut self.threads[index].at, At::Preparing);
        let next = match at {
            At::Ended(result) => At::Ended(result),
            At::Preparing => self.prepare(index),
            At::Seeking(seeker) => self.seek(index, seeker),
            At::Connecting(seeker, connecting) => self.connect(index, seeker, connecting),
            At::Waiting { reply: Some(reply), .. } => At::Ended(Ok(reply)),
            At::Waiting { is_broken: true, .. } => At::Seeking(self.seeker(index)),
            waiting @ At::Waiting { .. } => self.limited(index, waiting),
        };
        if matches!(next, At::Ended(_)) {
            self.end(index);
        }
        self.threads[index].at = next;
    }

    fn end(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        if let Some(token) = thread.token.take() {
            self.slots.free(token);
        }
        self.in_flight.remove(thread.id);
    }

    fn limited(&self, index: usize, at: At) -> At {
        match self.threads[index].limit.check(self.now) {
            Ok(()) => at,
            Err(error) => At::Ended(Err(error)),
        }
    }

    fn seeker(&self, index: usize) -> Seeker {
        self.protocol.seeker(!self.threads[index].limit.is_short())
    }

    fn prepare(&mut self, index: usize) -> At {
        if let Some(token) = self.threads[index].token.take() {
            self.slots.free(token);
        }
        let thread = &mut self.threads[index];
        let call = thread.call.as_mut().expect("the watcher prepares nothing");
        if call.needs_token() {
            thread.token = self.slots.take(self.now);
            call.set_token(thread.token);
            // All are in use.
            if thread.token.is_none() && self.slots.has_any() && !self.protocol.is_over() {
                return self.limited(index, At::Preparing);
            }
        }
        At::Seeking(self.seeker(index))
    }

    fn seek(&mut self, index: usize, seeker: Seeker) -> At {
        match self.protocol.seek(&seeker) {
            Seek::Found(connection) => self.found(index, connection),
            Seek::Fail(error) => At::Ended(Err(error)),
            Seek::Connect => {
                let at = self.protocol.begin_attempts(self.now);
                let apart = if self.server.owner.is_some() { 1000 } else { 20 };
                assert!(at <= self.now + apart * MS);
                At::Connecting(seeker, Connecting::Resting(at))
            }
            Seek::Wait { wakes_watcher } => {
                if wakes_watcher {
                    self.watch_at = self.now;
                }
                self.limited(index, At::Seeking(seeker))
            }
        }
    }

    fn found(&mut self, index: usize, connection: u64) -> At {
        let thread = &mut self.threads[index];
        let Some(call) = &mut thread.call else {
            return At::Ended(Ok(true));
        };
        match call.connected(&self.slots) {
            Next::Send => {}
            Next::Repeat => {
                if let Err(error) = thread.limit.check(self.now) {
                    return At::Ended(Err(error));
                }
            }
            Next::Prepare => return At::Preparing,
            Next::Fail(error) => return At::Ended(Err(error)),
        }
        let (id, token) = (thread.id, thread.token);
        self.send(Message { connection, id, token });
        At::Waiting {
            reply: None,
            // A send that failed.
            is_broken: self.protocol.connection() != Some(&connection),
        }
    }

    fn connect(&mut self, index: usize, seeker: Seeker, connecting: Connecting) -> At {
        match connecting {
            Connecting::Resting(at) if self.now < at && !self.protocol.is_over() => {
                At::Connecting(seeker, Connecting::Resting(at))
            }
            Connecting::Resting(_) => {
                let Some(attempt) = self.protocol.attempt() else {
                    return At::Ended(Err(FsError::Disconnected));
                };
                let failure = match self.handshake(&attempt) {
                    Ok(connection) => {
                        let begun = Connecting::TakingUp(connection, Repeated::default());
                        return At::Connecting(seeker, begun);
                    }
                    Err(failure) => failure,
                };
                let (deadline, stagger) = (self.threads[index].limit.deadline(), self.rng.next_u64() as u32);
                let stagger = Stagger::of(stagger);
                match self.protocol.attempt_failed(failure, deadline, self.now, stagger) {
                    AfterFailure::RetryAt(at) => {
                        assert!(at > self.now || self.server.owner.is_some() && at == self.now);
                        assert!(at <= self.now + 1000 * MS);
                        At::Connecting(seeker, Connecting::Resting(at))
                    }
                    AfterFailure::GiveUp(error) => At::Ended(Err(error)),
                }
            }
            Connecting::TakingUp(connection, mut repeated) => {
                let slots = std::mem::take(&mut self.slots);
                // The requests to abandon some are among the unsent.
                drop(self.expire(Some(&slots)));
                self.slots = slots;
                let unsent = self.in_flight.to_repeat(&mut repeated);
                if unsent.is_empty() {
                    self.protocol.established(connection);
                    return At::Seeking(seeker);
                }
                for request in unsent {
                    let (id, token) = parse(&request.body);
                    assert_eq!(id, request.id);
                    self.send(Message { connection, id, token });
                }
                At::Connecting(seeker, Connecting::TakingUp(connection, repeated))
            }
        }
    }

    /// A turn of the watcher, if it is time.
    fn watch(&mut self) {
        if !matches!(self.threads[0].at, At::Ended(_)) {
            return self.step(0);
        }
        if self.now < self.watch_at {
            return;
        }
        for id in self.expire(None) {
            if let Some(&connection) = self.protocol.connection() {
                let token = None;
                self.send(Message { connection, id, token });
            }
        }
        match self.protocol.turn() {
            Turn::End => {}
            Turn::Connect { within, rest } => {
                self.threads[0].limit = CallLimit::until(Some(self.now + within));
                self.threads[0].at = At::Seeking(self.seeker(0));
                self.watch_at = self.now + rest;
            }
            Turn::Watch(connection, lease) => {
                self.watch_at = self.now + lease.tick();
                match lease.health(self.now - self.heard) {
                    Health::Heard => {}
                    Health::Silent => {
                        let id = self.fresh_id();
                        let token = None;
                        self.send(Message { connection, id, token });
                    }
                    Health::Gone => self.lost_by(connection, &Loss::Silent),
                }
            }
        }
    }

    /// Anything that may happen.
    fn event(&mut self) {
        match self.rng.below(40) {
            0..=3 => self.call(),
            4..=6 => self.submit(),
            7..=14 if self.server.mode == Mode::Well => self.server.execute(),
            15..=20 => self.receive(),
            21 => {
                let connection = self.server.connection;
                self.server.disconnect();
                self.lost(connection);
            }
            // The client has yet to notice.
            22 => self.server.disconnect(),
            23 => {
                self.server.disconnect();
                self.server.requests.clear();
                self.server.has_restarted = true;
            }
            24 if self.rng.chance(30) => self.server.end_session(),
            32 if self.server.owner.is_some() => self.fail_over(),
            25 | 26 => {
                let modes = [Mode::Well, Mode::Well, Mode::Silent, Mode::Unreachable, Mode::Refusing];
                self.server.mode = *self.rng.pick(&modes);
            }
            27..=29 => self.watch(),
            30 => self.now += MS * self.rng.below(300) as u32,
            31 => self.now += MS,
            _ => {
                let index = self.rng.below(self.threads.len() as u64) as usize;
                self.step(index);
            }
        }
    }

    /// Another server takes over. The client has yet to notice, or the old owner names an owner.
    fn fail_over(&mut self) {
        let owner = self.rng.below(SERVERS.len() as u64) as usize;
        self.server.owner = Some(owner);
        self.server.disconnect();
        self.server.requests.clear();
        self.server.has_restarted = true;
        if self.rng.chance(50) {
            let named = *self.rng.pick(&[SERVERS[owner], SERVERS[0], "", "elsewhere:4"]);
            self.lost_by(self.server.connection, &Loss::NotOwner(named.to_owned()));
        }
    }

    /// Everything happens that can, without faults.
    fn calm_turn(&mut self) {
        self.server.mode = Mode::Well;
        self.now += 5 * MS;
        self.watch();
        for index in 0..self.threads.len() {
            self.step(index);
        }
        for _ in 0..self.in_flight.waiters().count() + 16 {
            self.server.execute();
            self.receive();
        }
        // The receiving thread finds the end of the connection.
        if !self.server.is_open && self.protocol.connection().is_some() {
            self.lost(self.server.connection);
        }
    }

    fn check(&self) {
        let connect = |thread: &&Thread| matches!(thread.at, At::Connecting(..));
        assert!(self.threads.iter().filter(connect).count() <= 1, "two threads connect");
        for id in self.changes.keys() {
            let times = self.server.executed.get(id).copied().unwrap_or_default();
            assert!(times <= 1, "change {id} happened {times} times");
        }
    }

    fn has_ended(&self) -> bool {
        self.threads[1..].iter().all(|thread| matches!(thread.at, At::Ended(_)))
            && self.sunk.iter().all(Option::is_some)
    }

    /// Closes the client, as its driver does.
    fn close(&mut self) {
        self.protocol.close();
        let all: Vec<_> = self.in_flight.take_all().collect();
        for pending in all {
            match pending {
                Pending::Thread(thread) => {
                    if let At::Waiting { reply: None, is_broken } = &mut self.threads[thread].at {
                        *is_broken = true;
                    }
                }
                Pending::Deferred(deferred) => self.sink(*deferred, Err(FsError::Disconnected)),
                Pending::Posted(_) | Pending::Cancels(..) => {}
            }
        }
    }

    /// A call that succeeded has happened, and the others have reasons that they may have.
    fn check_outcomes(&self) {
        for thread in &self.threads[1..] {
            let times = self.server.executed.get(&thread.id).copied().unwrap_or_default();
            match &thread.at {
                At::Ended(Ok(true)) => assert!(times >= 1, "request {} did not happen", thread.id),
                At::Ended(Ok(false)) => panic!("request {} had a token of another session", thread.id),
                At::Ended(Err(FsError::TimedOut)) => assert!(!thread.limit.is_endless()),
                At::Ended(Err(FsError::Disconnected | FsError::AccessDenied)) => {}
                other => panic!("request {} has not ended: {other:?}", thread.id),
            }
        }
    }
}

/// A request's body, from which [`parse`] has its token.
fn body(id: u64, token: Option<DedupToken>) -> Vec<u8> {
    let (slot, seq) = token.map_or((0, 0), |token| (u64::from(token.slot), token.seq));
    [id, slot, seq].iter().flat_map(|part| part.to_le_bytes()).collect()
}

fn parse(body: &[u8]) -> (u64, Option<DedupToken>) {
    let part = |at: usize| u64::from_le_bytes(body[at * 8..][..8].try_into().unwrap());
    let (slot, seq) = (part(1) as u32, part(2));
    (part(0), (seq > 0).then_some(DedupToken { slot, seq }))
}

/// How much the runs have covered.
#[derive(Default)]
struct Coverage {
    repeated: usize,
    unknown: usize,
    abandoned: usize,
    reconnects: u64,
}

fn run(seed: u64, coverage: &mut Coverage) {
    let mut client = Client::new(seed);
    for _ in 0..STEPS {
        client.event();
        client.check();
    }
    let closes = seed.is_multiple_of(4);
    if closes {
        client.close();
    }
    let start = client.now;
    while !client.has_ended() {
        client.calm_turn();
        client.check();
        assert!(client.now - start < BOUND, "requests do not end");
        assert!(
            !closes || client.now - start <= 100 * MS,
            "a closed client's calls do not end"
        );
    }
    client.check_outcomes();
    // Posted requests arrive as well.
    while !closes && !client.in_flight.to_repeat(&mut Repeated::default()).is_empty() {
        client.calm_turn();
        assert!(client.now - start < BOUND, "a posted request does not arrive");
    }
    for id in client.abandons.iter().filter(|_| !closes) {
        assert!(
            client.server.executed.contains_key(id),
            "the server abandons nothing by {id}"
        );
    }
    coverage.abandoned += client.abandons.len();
    coverage.repeated += client.changes.values().filter(|sent| sent.len() > 1).count();
    let is_unknown = |thread: &&Thread| matches!(thread.at, At::Ended(Err(FsError::Disconnected)));
    coverage.unknown += client.threads.iter().filter(is_unknown).count();
    coverage.reconnects += client.protocol.reconnects();
}

#[test]
fn random_events_keep_the_invariants() {
    let seeds = match seed_from_env() {
        Some(seed) => seed..seed + 1,
        None => 0..400,
    };
    let mut coverage = Coverage::default();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        println!("FERRITE_SEED={seed}");
        run(seed, &mut coverage);
    }
    if count > 1 {
        let Coverage {
            repeated,
            unknown,
            abandoned,
            reconnects,
        } = coverage;
        assert!(repeated > 100, "only {repeated} changes were repeated");
        assert!(unknown > 100, "only {unknown} calls had an unknown outcome");
        assert!(abandoned > 100, "only {abandoned} requests were abandoned");
        assert!(reconnects > 400, "only {reconnects} reconnects");
    }
}
