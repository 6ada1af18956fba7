//! Connections by rdma_cm: two managers over a network that loses, repeats and delays their datagrams.
//!
//! Guarantees under test: a connection that either side sees as made was made by both, once; an end reaches both sides,
//! or the timeout decides; messages from others are ignored.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferrite_roce::cm::{CmError, Config, Event, Id, Ignored, Manager, Offer, PRIVATE_BYTES_MAX, Target};
use ferrite_roce::wire::cm::{Mtu, Names, REJ_PRIVATE_BYTES, Reason, Rej, Repr};
use ferrite_roce::wire::{Psn, mad, private};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;

const PORT: u16 = 4_420;

fn offer(qpn: u32, private: &[u8]) -> Offer<'_> {
    Offer {
        qpn,
        psn: Psn::new(qpn * 3),
        responder_resources: 4,
        initiator_depth: 4,
        rnr_retry_count: 7,
        private,
    }
}

/// Two managers: 0 requests, 1 accepts.
struct Two {
    managers: [Manager; 2],
    addresses: [SocketAddr; 2],
    now_ns: u64,
    under_way: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sent: u64,
    bad_percent: u64,
    random: Rng,
    events: [Vec<Event>; 2],
    last: Vec<(usize, Vec<u8>)>,
}

impl Two {
    fn new(seed: u64, config: &Config) -> Two {
        let manager = |end: u64| {
            Manager::new(Config {
                seed: (seed * 1_000 + end * 500) as u32,
                ..config.clone()
            })
        };
        let mut managers = [manager(0), manager(1)];
        managers[1].listen(PORT);
        Two {
            managers,
            addresses: ["10.0.0.1:4791", "10.0.0.2:4791"].map(|address| address.parse().unwrap()),
            now_ns: 0,
            under_way: BTreeMap::new(),
            sent: 0,
            bad_percent: 0,
            random: Rng::new(seed),
            events: [vec![], vec![]],
            last: vec![],
        }
    }

    fn target(&self) -> Target {
        Target {
            local: self.addresses[0],
            peer: self.addresses[1].ip(),
            port: PORT,
            mtu: Mtu::B1024,
            retry_count: 7,
            ack_timeout: 14,
        }
    }

    fn ask(&mut self, qpn: u32, private: &[u8]) -> Id {
        let target = self.target();
        self.managers[0]
            .connect(self.now_ns, &target, &offer(qpn, private))
            .unwrap()
    }

    /// The next event; false if none comes before `limit_ns`.
    fn step(&mut self, limit_ns: u64) -> bool {
        for end in 0..2 {
            while let Some((local, peer, datagram)) = self.managers[end].poll_transmit() {
                assert_eq!((local, peer), (self.addresses[end], self.addresses[1 - end].ip()));
                self.last.push((end, datagram.to_vec()));
                for _ in 0..1 + u64::from(self.random.chance(self.bad_percent)) {
                    if !self.random.chance(self.bad_percent) {
                        let late = self.random.chance(self.bad_percent);
                        let delay = 10_000 + if late { self.random.below(2_000_000_000) } else { 0 };
                        self.sent += 1;
                        self.under_way
                            .insert((self.now_ns + delay, self.sent), (1 - end, datagram.to_vec()));
                    }
                }
            }
        }
        let arrival = self.under_way.first_key_value().map(|(&(at_ns, _), _)| at_ns);
        let timers = self.managers.iter().filter_map(Manager::poll_timeout_ns);
        let Some(next_ns) = arrival
            .into_iter()
            .chain(timers)
            .min()
            .filter(|at_ns| *at_ns <= limit_ns)
        else {
            self.now_ns = limit_ns;
            return false;
        };
        self.now_ns = self.now_ns.max(next_ns);
        while let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= self.now_ns
        {
            let (end, datagram) = entry.remove();
            let peer = self.addresses[1 - end].ip();
            let _ = self.managers[end].handle(self.now_ns, self.addresses[end], peer, &datagram);
        }
        for end in 0..2 {
            self.managers[end].handle_timeout(self.now_ns);
            while let Some(event) = self.managers[end].poll_event() {
                self.events[end].push(event);
            }
        }
        true
    }

    /// Runs for so long; the passive side accepts requests if `accepts`.
    fn run(&mut self, for_ns: u64, accepts: bool) {
        let limit_ns = self.now_ns + for_ns;
        let mut seen = self.events[1].len();
        while self.step(limit_ns) {
            while let Some(event) = self.events[1].get(seen) {
                seen += 1;
                if let Event::Requested { id, request, .. } = event
                    && accepts
                {
                    let (id, qpn) = (*id, request.qpn);
                    self.managers[1]
                        .accept(self.now_ns, id, &offer(qpn + 1, b"welcome"))
                        .unwrap();
                }
            }
        }
    }

    fn count(&self, end: usize, which: impl Fn(&Event) -> bool) -> usize {
        self.events[end].iter().filter(|event| which(event)).count()
    }
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    match seed_from_env() {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

#[test]
fn a_connection_is_made_and_ended() {
    let mut two = Two::new(1, &Config::default());
    let id = two.ask(70, b"hello");
    two.run(1_000_000, true);
    let Event::Connected { reply, .. } = &two.events[0][0] else {
        panic!("{:?}", two.events[0]);
    };
    assert_eq!((reply.qpn, reply.psn), (71, Psn::new(213)));
    assert_eq!(&reply.private[..7], b"welcome");
    let [
        Event::Requested {
            request,
            peer,
            id: theirs,
        },
        Event::Established { .. },
    ] = &two.events[1][..]
    else {
        panic!("{:?}", two.events[1]);
    };
    assert_eq!(*peer, two.addresses[0].ip());
    assert_eq!((request.qpn, request.psn), (70, Psn::new(210)));
    let addresses = private::Packet::new_checked(&request.private).unwrap();
    let addresses = private::Repr::parse(&addresses).unwrap();
    assert_eq!(
        (addresses.source, addresses.destination),
        (two.addresses[0].ip(), two.addresses[1].ip())
    );
    assert_eq!(&request.private[private::BYTES..][..5], b"hello");
    let theirs = *theirs;
    two.managers[1].disconnect(two.now_ns, theirs).unwrap();
    two.run(1_000_000, true);
    assert_eq!(two.events[0][1..], [Event::Closed { id }]);
    assert_eq!(two.events[1][2..], [Event::Closed { id: theirs }]);
    assert_eq!(two.last.len(), 5, "REQ, REP, RTU, DREQ, DREP and nothing else");
    // Both are forgotten in the end.
    two.run(60_000_000_000, true);
    assert!(two.managers[0].is_empty() && two.managers[1].is_empty());
}

/// One datagram in five each is lost, comes twice or comes late, also after the end.
#[test]
fn connections_are_made_once_whatever_is_lost() {
    for seed in seeds(40) {
        println!("FERRITE_SEED={seed}");
        let mut two = Two::new(seed, &Config::default());
        two.bad_percent = 20;
        let ids: Vec<Id> = (0..8).map(|number| two.ask(100 + number, &[number as u8])).collect();
        two.run(9_000_000_000, true);
        let made = |event: &Event| matches!(event, Event::Connected { .. });
        assert_eq!(two.count(0, made), 8);
        assert_eq!(
            two.count(1, |event| matches!(event, Event::Requested { .. })),
            8,
            "a REQ counted twice"
        );
        let accepted: Vec<Id> = two.events[1]
            .iter()
            .filter_map(|event| match event {
                Event::Requested { id, .. } => Some(*id),
                _ => None,
            })
            .collect();
        for id in &accepted {
            // A packet arrived although the RTU did not.
            two.managers[1].data_arrived(*id);
        }
        two.run(1, true);
        assert_eq!(two.count(1, |event| matches!(event, Event::Established { .. })), 8);
        for (number, id) in ids.iter().enumerate() {
            let end = number % 2;
            let id = if end == 0 { *id } else { accepted[number] };
            let _ = two.managers[end].disconnect(two.now_ns, id);
        }
        for id in ids {
            let _ = two.managers[0].disconnect(two.now_ns, id);
        }
        two.run(200_000_000_000, true);
        for end in 0..2 {
            assert_eq!(
                two.count(end, |event| matches!(event, Event::Closed { .. })),
                8,
                "end {end}"
            );
            assert!(two.managers[end].is_empty());
        }
    }
}

#[test]
fn refusals_say_why() {
    let mut two = Two::new(3, &Config::default());
    // No program listens there.
    let target = Target {
        port: PORT + 1,
        ..two.target()
    };
    let id = two.managers[0].connect(0, &target, &offer(5, b"")).unwrap();
    two.run(1_000_000, true);
    let Event::Rejected { id: refused, rejection } = &two.events[0][0] else {
        panic!("{:?}", two.events);
    };
    assert_eq!((*refused, rejection.reason), (id, Reason::INVALID_SERVICE));
    // The program refuses.
    two.ask(6, b"");
    two.run(1_000_000, false);
    let Some(Event::Requested { id, .. }) = two.events[1].pop() else {
        panic!("{:?}", two.events);
    };
    two.managers[1]
        .reject(two.now_ns, id, Reason::BY_PROGRAM, b"no")
        .unwrap();
    two.run(1_000_000, false);
    let Event::Rejected { rejection, .. } = &two.events[0][1] else {
        panic!("{:?}", two.events);
    };
    assert_eq!(rejection.reason, Reason::BY_PROGRAM);
    assert_eq!(&rejection.private[..2], b"no");
    let late = two.managers[1].accept(two.now_ns, id, &offer(1, b""));
    assert_eq!(late, Err(CmError::State));
    // The REQ comes again: the same refusal, and no second request.
    let (_, request) = two.last.iter().rev().find(|(end, _)| *end == 0).unwrap().clone();
    two.last.clear();
    two.managers[1]
        .handle(two.now_ns, two.addresses[1], two.addresses[0].ip(), &request)
        .unwrap();
    two.run(1_000_000, false);
    assert_eq!(two.last.len(), 1);
    assert!(two.events[1].is_empty());
    // Oversized data is refused.
    let long = vec![0; PRIVATE_BYTES_MAX + 1];
    let target = two.target();
    assert_eq!(
        two.managers[0].connect(0, &target, &offer(1, &long)),
        Err(CmError::TooLong)
    );
}

#[test]
fn a_host_that_does_not_answer_times_out() {
    let mut two = Two::new(4, &Config::default());
    two.bad_percent = 100;
    let id = two.ask(9, b"");
    two.run(100_000_000_000, true);
    assert_eq!(two.events[0], [Event::TimedOut { id }]);
    assert!(two.managers[0].is_empty());
    // One, ten more, and a refusal at the end.
    assert_eq!(two.last.len(), 12);
}

/// A slow program: the other end gets an MRA, and a request to a program that is too slow is refused.
#[test]
fn a_slow_program_gets_time_and_not_for_ever() {
    let config = Config {
        accept_timeout_ns: 8_000_000_000,
        retries: 2,
        ..Config::default()
    };
    let mut two = Two::new(5, &config);
    two.ask(9, b"");
    two.run(6_000_000_000, false);
    assert!(two.events[0].is_empty(), "{:?}: it did not wait", two.events[0]);
    two.run(20_000_000_000, false);
    assert!(matches!(&two.events[0][..], [Event::Rejected { rejection, .. }] if rejection.reason == Reason::TIMEOUT));
    assert!(matches!(
        two.events[1][..],
        [Event::Requested { .. }, Event::TimedOut { .. }]
    ));
}

/// A requester gives up before the program has replied, and says so by its own name.
#[test]
fn a_request_that_is_given_up_is_one_no_more() {
    let mut two = Two::new(8, &Config::default());
    let id = two.ask(9, b"");
    two.run(1_000_000, false);
    let request = two.last[0].1.clone();
    let (_, message) = Repr::parse(&mad::Packet::new_checked(&request).unwrap()).unwrap();
    let Repr::Req(request) = message else {
        panic!("{message:?}");
    };
    let Event::Requested { id: theirs, .. } = two.events[1][0] else {
        panic!("{:?}", two.events[1]);
    };
    let given_up = Repr::Rej(Box::new(Rej {
        local: id,
        remote: 0,
        refused: 2,
        reason: Reason::TIMEOUT,
        guid: Some(request.guid),
        private: [0; REJ_PRIVATE_BYTES],
    }));
    let (local, datagram) = (two.addresses[1], given_up.emit(1));
    let foreign: IpAddr = "10.0.0.9".parse().unwrap();
    let heard = two.managers[1].handle(two.now_ns, local, foreign, &datagram);
    assert_eq!(heard, Err(Ignored::Unknown));
    let peer = two.addresses[0].ip();
    assert_eq!(two.managers[1].handle(two.now_ns, local, peer, &datagram), Ok(()));
    let event = two.managers[1].poll_event();
    assert!(
        matches!(event, Some(Event::Rejected { id, .. }) if id == theirs),
        "{event:?}"
    );
    assert_eq!(
        two.managers[1].accept(two.now_ns, theirs, &offer(1, b"")),
        Err(CmError::State)
    );
    assert!(two.managers[1].is_empty());
}

#[test]
fn there_are_no_more_connections_than_allowed() {
    let config = Config {
        connections_max: 3,
        ..Config::default()
    };
    let mut two = Two::new(6, &config);
    for number in 0..3 {
        two.ask(number, b"");
    }
    let target = two.target();
    assert_eq!(two.managers[0].connect(0, &target, &offer(1, b"")), Err(CmError::Full));
    two.run(1_000_000, true);
    // Another host sends a request to the full one.
    let mut third = Manager::new(Config::default());
    let target = Target {
        local: "10.0.0.3:4791".parse().unwrap(),
        ..two.target()
    };
    third.connect(0, &target, &offer(1, b"")).unwrap();
    let (_, _, request) = third.poll_transmit().unwrap();
    two.managers[1]
        .handle(two.now_ns, two.addresses[1], target.local.ip(), &request)
        .unwrap();
    let (_, peer, answer) = two.managers[1].poll_transmit().unwrap();
    assert_eq!(peer, target.local.ip());
    third.handle(1, target.local, target.peer, &answer).unwrap();
    let event = third.poll_event();
    assert!(matches!(event, Some(Event::Rejected { rejection, .. }) if rejection.reason == Reason::NO_RESOURCES));
}

/// Other hosts cannot end or confirm a connection, and a peer that restarted replaces its old one.
#[test]
fn only_the_peer_is_heard() {
    let mut two = Two::new(7, &Config::default());
    let id = two.ask(11, b"");
    two.run(1_000_000, true);
    let Event::Requested { id: theirs, .. } = two.events[1][0] else {
        panic!("{:?}", two.events[1]);
    };
    let foreign: IpAddr = "10.0.0.9".parse().unwrap();
    let names = Names {
        local: id,
        remote: theirs,
    };
    for (message, peer, names_both) in [
        (Repr::Dreq { names, remote_qpn: 12 }, foreign, true),
        (Repr::Rtu(names), foreign, true),
        (Repr::Drep(names), foreign, true),
        (
            Repr::Mra {
                names,
                answered: 1,
                timeout: 31,
            },
            foreign,
            true,
        ),
        (
            Repr::Dreq {
                names: Names { local: id + 1, ..names },
                remote_qpn: 12,
            },
            two.addresses[0].ip(),
            false,
        ),
    ] {
        let datagram = message.emit(77);
        let heard = two.managers[1].handle(two.now_ns, two.addresses[1], peer, &datagram);
        assert_eq!(heard, Err(Ignored::Unknown), "{message:?} {names_both}");
    }
    assert_eq!(two.managers[1].poll_event(), None);
    // Two DREQs for unknown connections: each gets a DREP, and nothing else is sent.
    let answers: Vec<IpAddr> = std::iter::from_fn(|| two.managers[1].poll_transmit())
        .map(|(_, peer, datagram)| {
            let packet = mad::Packet::new_checked(&datagram).unwrap();
            assert!(matches!(Repr::parse(&packet), Ok((77, Repr::Drep(_)))));
            peer
        })
        .collect();
    assert_eq!(answers, [foreign, two.addresses[0].ip()]);
    let heard = two.managers[1].handle(0, two.addresses[1], foreign, &[0; mad::BYTES]);
    assert!(matches!(heard, Err(Ignored::Malformed(_))));
    // The peer lost its state and uses the same name for another connection.
    let (_, request) = two.last.iter().find(|(end, _)| *end == 0).unwrap();
    let packet = mad::Packet::new_checked(request).unwrap();
    let (transaction, message) = Repr::parse(&packet).unwrap();
    let again = message.emit(transaction + 1);
    two.managers[1]
        .handle(two.now_ns, two.addresses[1], two.addresses[0].ip(), &again)
        .unwrap();
    assert_eq!(two.managers[1].poll_event(), Some(Event::Closed { id: theirs }));
    assert!(matches!(two.managers[1].poll_event(), Some(Event::Requested { .. })));
}
