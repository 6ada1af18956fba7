//! Queue pairs by rdma_cm: a connection manager, and its demands on the threads.
//!
//! It lives on the thread that gets datagrams for queue pair 1. Queue pairs of its connections live on all threads; it
//! opens them by commands, and no thread waits for another.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ferrite_roce::cm::{self, Event, Id, Manager, Offer};
use ferrite_roce::endpoint::{Connection, Endpoint};
use ferrite_roce::wire::cm::{Mtu, Reason, Req};
use ferrite_roce::wire::icrc::Ids;
use ferrite_roce::wire::{Psn, Qpn, UDP_PORT, private};
use ferrite_roce::{requester, responder};

use crate::command_queue::Command;
use crate::qpn::{random, random_psn};
use crate::service::{ConnectRequest, End};
use crate::shared::Shared;

/// READs and atomics at a time, each way.
const DEPTH: u8 = 16;
/// A peer accepts any number of RNR NAKs.
const RNR_RETRY_FOR_EVER: u8 = 7;

#[derive(Debug)]
struct Pair {
    qpn: Qpn,
    psn: Psn,
    resources: u8,
    reply: Vec<u8>,
}

/// Connections by rdma_cm.
#[derive(Debug)]
pub(crate) struct Listener {
    manager: Manager,
    pairs: HashMap<Id, Pair>,
    by_qpn: HashMap<Qpn, Id>,
}

impl Listener {
    pub(crate) fn new(port: u16, connections_max: usize) -> Listener {
        let mut manager = Manager::new(cm::Config {
            guid: u64::from(random()) << 32 | u64::from(random()),
            seed: random(),
            connections_max,
            ..cm::Config::default()
        });
        manager.listen(port);
        Listener {
            manager,
            pairs: HashMap::new(),
            by_qpn: HashMap::new(),
        }
    }

    pub(crate) fn poll_timeout_ns(&self) -> Option<u64> {
        self.manager.poll_timeout_ns()
    }

    /// A management datagram arrived.
    pub(crate) fn handle(&mut self, now_ns: u64, local: SocketAddr, peer: IpAddr, datagram: &[u8], shared: &Shared) {
        // An ignored message is counted as taken; there is no one to report it to.
        let _ = self.manager.handle(now_ns, local, peer, datagram);
        self.events(now_ns, Some(local), shared);
    }

    pub(crate) fn handle_timeout(&mut self, now_ns: u64, shared: &Shared) {
        self.manager.handle_timeout(now_ns);
        self.events(now_ns, None, shared);
    }

    /// Passes outgoing datagrams to the endpoint.
    pub(crate) fn transmit(&mut self, endpoint: &mut Endpoint) {
        while let Some((local, peer, datagram)) = self.manager.poll_transmit() {
            endpoint.send_management(local, peer, datagram);
        }
    }

    /// The queue pair of a request is open.
    pub(crate) fn accept(&mut self, now_ns: u64, id: Id, shared: &Shared) {
        let Some(pair) = self.pairs.get(&id) else {
            return;
        };
        let offer = Offer {
            qpn: pair.qpn,
            psn: pair.psn,
            responder_resources: pair.resources,
            initiator_depth: DEPTH,
            rnr_retry_count: RNR_RETRY_FOR_EVER,
            private: &pair.reply,
        };
        if self.manager.accept(now_ns, id, &offer).is_err() {
            self.drop_pair(id, End::Lost, shared);
        }
    }

    /// A queue pair ended otherwise; so does its connection.
    pub(crate) fn gone(&mut self, now_ns: u64, qpn: Qpn) {
        if let Some(id) = self.by_qpn.remove(&qpn) {
            self.pairs.remove(&id);
            // It may be over already.
            let _ = self.manager.disconnect(now_ns, id);
        }
    }

    fn events(&mut self, now_ns: u64, local: Option<SocketAddr>, shared: &Shared) {
        while let Some(event) = self.manager.poll_event() {
            match event {
                Event::Requested { id, peer, request } => {
                    let admitted = local.ok_or_else(Vec::new).and_then(|local| {
                        let pair = self.admit(id, local, peer, &request, shared)?;
                        self.by_qpn.insert(pair.qpn, id);
                        self.pairs.insert(id, pair);
                        Ok(())
                    });
                    if let Err(mut data) = admitted {
                        data.truncate(ferrite_roce::wire::cm::REJ_PRIVATE_BYTES);
                        let _ = self.manager.reject(now_ns, id, Reason::BY_PROGRAM, &data);
                    }
                }
                Event::Closed { id } => self.drop_pair(id, End::Closed, shared),
                Event::TimedOut { id } | Event::Rejected { id, .. } => self.drop_pair(id, End::Lost, shared),
                Event::Established { .. } | Event::Connected { .. } => {}
            }
        }
    }

    /// Asks the service; returns its refusal, if any.
    fn admit(&self, id: Id, local: SocketAddr, peer: IpAddr, request: &Req, shared: &Shared) -> Result<Pair, Vec<u8>> {
        let mtu = Mtu::from_code(request.mtu).ok_or_else(Vec::new)?;
        let qpn = shared.qpns.take().ok_or_else(Vec::new)?;
        let connect = ConnectRequest {
            peer,
            local: local.ip(),
            qpn,
            private: &request.private[private::BYTES..],
        };
        let mut reply = shared
            .service
            .accept(&connect)
            .inspect_err(|_| shared.qpns.give_back(qpn))?;
        reply.truncate(ferrite_roce::wire::cm::REP_PRIVATE_BYTES);
        // Each end announces where the packets of the other begin.
        let psn = random_psn();
        let resources = request.initiator_depth.clamp(1, DEPTH);
        let mut responder = responder::Config::new(qpn, request.qpn, mtu, psn);
        responder.resources = resources;
        let mut requester = requester::Config::new(request.qpn, mtu, request.psn);
        requester.depth = request.responder_resources.clamp(1, DEPTH);
        let connection = Connection {
            local,
            peer: SocketAddr::new(peer, UDP_PORT),
            ids: Ids::Any,
            requester,
            responder,
        };
        let manager = shared.command_queue_of_manager();
        shared.command_queue_of(qpn).post(Command::Open {
            connection: Box::new(connection),
            done: Box::new(move || manager.post(Command::Accept { id })),
        });
        Ok(Pair {
            qpn,
            psn,
            resources,
            reply,
        })
    }

    fn drop_pair(&mut self, id: Id, end: End, shared: &Shared) {
        if let Some(pair) = self.pairs.remove(&id) {
            self.by_qpn.remove(&pair.qpn);
            shared.command_queue_of(pair.qpn).post(Command::Close {
                qpn: pair.qpn,
                end: Some(end),
                done: None,
            });
        }
    }
}
