//! A thread of an adapter: received datagrams go to its endpoint, and the endpoint's output leaves in batches.
//!
//! Invariants:
//!
//! * A turn takes a batch from each socket before it sends, so consecutive requests get one acknowledgement.
//! * A turn sends a bounded number of packets: a long READ floods neither the network nor other queue pairs.
//! * A queue pair that was refused stays for a while, to repeat the refusal, and then goes. The service learns of it
//!   once.
//! * While the kernel takes no more datagrams, the worker produces none.
//! * A caller that sent a peer a request learns the outcome, even if the queue pair goes.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use ferrite_roce::endpoint::{Endpoint, Taken};
use ferrite_roce::memory::Memory;
use ferrite_roce::requester::{Completion, Outcome};
use ferrite_roce::wire::Qpn;
use ferrite_roce::wire::icrc::{Flow, Ids};
use ferrite_transport::busy_poll::BusyPoll;
use rustix::event::{PollFd, PollFlags};

use crate::batch::BATCH;
use crate::clock::Clock;
use crate::command_queue::{Command, CommandQueue};
use crate::counters::Counters;
use crate::error::Error;
use crate::listener::Listener;
use crate::port::{self, Port};
use crate::service::{End, Options};
use crate::shared::Shared;

/// Most packets per turn.
const BURST: usize = 2 * BATCH;
/// How long a refused queue pair repeats the refusal.
const LINGER_NS: u64 = 2_000_000_000;

/// The state of a thread.
pub(crate) struct Worker<M> {
    ports: Vec<Port>,
    sockets: Vec<Arc<OwnedFd>>,
    endpoint: Endpoint,
    memory: M,
    listener: Option<Listener>,
    shared: Arc<Shared>,
    command_queue: Arc<CommandQueue>,
    clock: Clock,
    busy_poll: BusyPoll,
    /// The service knows that they have ended.
    ended: HashSet<Qpn>,
    /// When those are removed.
    lingering: VecDeque<(u64, Qpn)>,
    /// Callers that wait for requests to peers, and the number of the next request.
    requested: BTreeMap<(Qpn, u64), Sender<Result<Outcome, Error>>>,
    next_question: u64,
    /// Counts of removed queue pairs.
    counters: Counters,
    datagram: Vec<u8>,
}

impl<M: Memory> Worker<M> {
    pub(crate) fn new(
        ports: Vec<Port>,
        memory: M,
        shared: Arc<Shared>,
        index: usize,
        options: &Options,
        service_port: Option<u16>,
    ) -> Worker<M> {
        Worker {
            sockets: ports.iter().map(Port::socket).collect(),
            ports,
            // The allocator that all threads share provides the numbers.
            endpoint: Endpoint::new(Ids::Any, 0),
            memory,
            listener: service_port.map(|port| Listener::new(port, options.queue_pairs_max)),
            command_queue: shared.command_queue_of(index as Qpn),
            shared,
            clock: Clock::new(),
            busy_poll: BusyPoll::new(options.busy_poll),
            ended: HashSet::new(),
            lingering: VecDeque::new(),
            requested: BTreeMap::new(),
            next_question: 0,
            counters: Counters::default(),
            datagram: Vec::new(),
        }
    }

    /// Works until it is stopped.
    pub(crate) fn run(mut self) {
        loop {
            for command in self.command_queue.take() {
                if matches!(command, Command::Stop) {
                    return self.stop();
                }
                self.obey(command);
            }
            let has_received = self.receive();
            self.handle_time();
            self.collect_answers();
            let has_sent = self.transmit();
            if !has_received && !has_sent {
                self.wait();
            }
        }
    }

    fn stop(mut self) {
        self.command_queue.close();
        let numbers: Vec<Qpn> = self.endpoint.qpns().collect();
        for qpn in numbers {
            self.remove(qpn);
        }
    }

    fn obey(&mut self, command: Command) {
        let now_ns = self.clock.now_ns();
        match command {
            Command::Open { connection, done } => {
                // Each number is allocated once.
                if self.endpoint.connect(*connection).is_ok() {
                    done();
                }
            }
            Command::Close { qpn, end, done } => {
                if self.endpoint.get(qpn).is_some() {
                    match end {
                        Some(end) => self.tell_end(qpn, end),
                        None => drop(self.ended.insert(qpn)),
                    }
                    self.remove(qpn);
                }
                drop(done);
            }
            Command::Ask { qpn, request, done } => match self.endpoint.post(qpn, self.next_question, *request) {
                Ok(()) => {
                    self.requested.insert((qpn, self.next_question), done);
                    self.next_question += 1;
                }
                // A caller that no longer waits needs no reply.
                Err(error) => drop(done.send(Err(Error::of_post(error)))),
            },
            Command::Accept { id } => {
                if let Some(listener) = &mut self.listener {
                    listener.accept(now_ns, id, &self.shared);
                }
            }
            Command::Gone { qpn } => {
                if let Some(listener) = &mut self.listener {
                    listener.gone(now_ns, qpn);
                }
            }
            Command::Count { done } => drop(done.send(self.count())),
            Command::Stop => {}
        }
    }

    fn count(&self) -> Counters {
        let mut counters = self.counters;
        counters.note_dropped(&self.endpoint.counters());
        for port in &self.ports {
            let of_port = port.counters();
            counters.received += of_port.received;
            counters.sent += of_port.sent;
            counters.not_sent += of_port.failed;
        }
        for qpn in self.endpoint.qpns() {
            if let Some((_, responder)) = self.endpoint.get(qpn) {
                counters.note_responder(&responder.counters());
            }
        }
        counters
    }

    /// A queue pair goes.
    fn remove(&mut self, qpn: Qpn) {
        if let Some((_, responder)) = self.endpoint.get(qpn) {
            self.counters.note_responder(&responder.counters());
            for completion in self.endpoint.remove(qpn, &mut self.memory) {
                self.answer(qpn, completion);
            }
            self.shared.qpns.give_back(qpn);
        }
        self.ended.remove(&qpn);
    }

    /// Reports responses of peers to the callers that wait for them. A queue pair that fails in this has ended.
    fn collect_answers(&mut self) {
        let mut next = self.requested.first_key_value().map(|((qpn, _), _)| *qpn);
        while let Some(qpn) = next {
            while let Some(completion) = self.endpoint.poll_completion(qpn) {
                let has_failed = completion.result.is_err();
                self.answer(qpn, completion);
                if has_failed {
                    self.note_broken(qpn, End::Lost);
                }
            }
            let later = self.requested.range((qpn + 1, 0)..).next();
            next = later.map(|((qpn, _), _)| *qpn);
        }
    }

    fn answer(&mut self, qpn: Qpn, completion: Completion) {
        if let Some(done) = self.requested.remove(&(qpn, completion.id)) {
            let result = completion.result.map_err(|failure| match self.endpoint.peer(qpn) {
                Some(peer) => Error::of(failure, peer),
                None => Error::Ended,
            });
            // A caller that no longer waits needs no reply.
            let _ = done.send(result);
        }
    }

    fn tell_end(&mut self, qpn: Qpn, end: End) {
        if self.ended.insert(qpn) {
            self.shared.service.ended(qpn, end);
        }
    }

    /// Processes received datagrams; returns whether there were any.
    fn receive(&mut self) -> bool {
        let mut has_received = false;
        let mut broken = Vec::new();
        for port in &mut self.ports {
            if !port.poll() {
                continue;
            }
            has_received = true;
            let now_ns = self.clock.now_ns();
            port.take(|flow, datagram| {
                match self.endpoint.receive(now_ns, flow, datagram, &mut self.memory) {
                    Ok(Taken::Request(qpn)) => {
                        let nak = self.endpoint.get(qpn).and_then(|(_, responder)| responder.broken());
                        broken.extend(nak.map(|nak| (qpn, nak)));
                    }
                    Ok(Taken::Management { datagram }) => {
                        if let Some(listener) = &mut self.listener {
                            listener.handle(now_ns, flow.destination, flow.source.ip(), datagram, &self.shared);
                        }
                    }
                    // Responses are collected once per turn.
                    Ok(Taken::Answer(_)) | Err(_) => {}
                }
            });
        }
        for (qpn, nak) in broken {
            self.note_broken(qpn, End::Refused(nak));
        }
        has_received
    }

    fn note_broken(&mut self, qpn: Qpn, end: End) {
        if !self.ended.contains(&qpn) {
            self.tell_end(qpn, end);
            self.lingering.push_back((self.clock.now_ns() + LINGER_NS, qpn));
        }
    }

    fn handle_time(&mut self) {
        if self.timeout_ns().is_none() {
            return;
        }
        let now_ns = self.clock.now_ns();
        self.endpoint.handle_timeout(now_ns);
        if let Some(listener) = &mut self.listener {
            listener.handle_timeout(now_ns, &self.shared);
        }
        while let Some(&(at_ns, qpn)) = self.lingering.front()
            && at_ns <= now_ns
        {
            self.lingering.pop_front();
            // It may have been closed meanwhile.
            if self.ended.contains(&qpn) {
                self.remove(qpn);
                self.shared.command_queue_of_manager().post(Command::Gone { qpn });
            }
        }
    }

    /// Sends a bounded number of packets; returns whether more may be ready.
    fn transmit(&mut self) -> bool {
        if let Some(listener) = &mut self.listener {
            listener.transmit(&mut self.endpoint);
        }
        self.ports.iter_mut().for_each(Port::flush);
        if self.ports.iter().any(Port::is_blocked) {
            return false;
        }
        let now_ns = self.clock.now_ns();
        let mut has_more = true;
        for _ in 0..BURST {
            let Some(flow) = self
                .endpoint
                .poll_transmit(now_ns, &mut self.memory, &mut self.datagram)
            else {
                has_more = false;
                break;
            };
            self.push(flow);
        }
        self.ports.iter_mut().for_each(Port::flush);
        has_more && !self.ports.iter().any(Port::is_blocked)
    }

    fn push(&mut self, flow: Flow) {
        let Some(port) = self.ports.iter_mut().find(|port| port.is_from(flow.source)) else {
            return;
        };
        if !port.has_space() {
            port.flush();
        }
        // Otherwise the kernel takes no more; the datagram is lost, as any may be.
        if port.has_space() {
            port.push(flow, &mut self.datagram);
        }
    }

    fn timeout_ns(&self) -> Option<u64> {
        let of_listener = self.listener.as_ref().and_then(Listener::poll_timeout_ns);
        let of_lingering = self.lingering.front().map(|(at_ns, _)| *at_ns);
        let all = [self.endpoint.poll_timeout_ns(), of_listener, of_lingering];
        all.into_iter().flatten().min()
    }

    fn wait(&mut self) {
        let timeout_ns = self.timeout_ns();
        let (clock, command_queue, sockets) = (self.clock, &self.command_queue, &self.sockets);
        let is_blocked = self.ports.iter().any(Port::is_blocked);
        let is_due = || timeout_ns.is_some_and(|at_ns| clock.now_ns() >= at_ns);
        let ports = &mut self.ports;
        self.busy_poll.wait(
            || {
                let seen = ports.iter_mut().filter_map(|port| port.poll_a_while().then_some(()));
                let has_come = seen.count() > 0;
                (has_come || command_queue.has_some() || is_due()).then_some(())
            },
            || {
                let wanted = match is_blocked {
                    true => PollFlags::IN | PollFlags::OUT,
                    false => PollFlags::IN,
                };
                let of_sockets = sockets
                    .iter()
                    .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), wanted));
                let mut fds: Vec<PollFd<'_>> = of_sockets.collect();
                fds.push(PollFd::from_borrowed_fd(command_queue.doorbell(), PollFlags::IN));
                (
                    (),
                    port::sleep(&mut fds, timeout_ns.map(|at_ns| at_ns.saturating_sub(clock.now_ns()))),
                )
            },
        );
    }
}
