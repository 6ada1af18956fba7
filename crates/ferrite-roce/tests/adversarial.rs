//! Datagrams from other hosts than the peer, from dead queue pairs, changed, cut short, or made up.
//!
//! Guarantees under test: they have no effect, are counted, and the connections keep working.

use std::net::SocketAddr;

use ferrite_roce::endpoint::{Connection, Dropped, Endpoint, InUse};
use ferrite_roce::requester::{self, Failure, Outcome, Request};
use ferrite_roce::responder;
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::{self, Flow, Ids};
use ferrite_roce::wire::packet::Repr;
use ferrite_roce::wire::{Error, Opcode, Psn, QPN_MANAGEMENT, deth, mad, reth};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;

use crate::support::{Array, File, Hosts};

fn hosts_with_file() -> Hosts {
    let mut hosts = Hosts::new(1, true);
    let file = File {
        bytes: vec![0; 4_096],
        ..File::default()
    };
    hosts.memories[1].files.insert(3, file);
    hosts
}

fn flow(hosts: &Hosts) -> Flow {
    Flow {
        source: hosts.address(0),
        destination: hosts.address(1),
    }
}

fn write(qpn: u32, psn: u32) -> Repr<'static> {
    let mut packet = Repr::new(Opcode::WriteOnly, qpn, Psn::new(psn));
    packet.headers.reth = Some(reth::Repr {
        address: 0,
        key: 3,
        len_bytes: 4,
    });
    packet.payload = b"evil";
    packet
}

fn with_icrc(flow: &Flow, packet: &Repr<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.emit(&mut bytes);
    icrc::append(flow, &mut bytes);
    bytes
}

/// The packet as a sender with this identification in its IPv4 headers sends it: the CRC from the header on, bit by
/// bit.
fn with_icrc_and_id(flow: &Flow, packet: &Repr<'_>, id: u16) -> Vec<u8> {
    let mut bytes = with_icrc(flow, packet);
    let crc_at = bytes.len() - icrc::BYTES;
    // The CRC difference from the identification's two bytes, with everything behind them zero.
    let mut register = 0_u32;
    let behind = 14 + 8 + crc_at;
    for byte in id.to_be_bytes().into_iter().chain(std::iter::repeat_n(0, behind)) {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    let crc = u32::from_le_bytes(*bytes.last_chunk().unwrap()) ^ register;
    bytes[crc_at..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The passive host's verdict on these bytes.
fn receive(hosts: &mut Hosts, flow: &Flow, bytes: &[u8]) -> Result<(), Dropped> {
    let taken = hosts.ends[1].receive(hosts.now_ns, flow, bytes, &mut hosts.memories[1]);
    taken.map(drop)
}

#[test]
fn what_is_not_meant_for_a_queue_pair_does_not_reach_it() {
    let mut hosts = hosts_with_file();
    let [_, qpn] = hosts.connect(Mtu::B1024, [5, 6]);
    let ours = flow(&hosts);
    let right = with_icrc(&ours, &write(qpn, 5));
    let foreign: SocketAddr = "[fd00::9]:4791".parse().unwrap();
    let from_foreign = Flow {
        source: foreign,
        ..ours
    };
    let to_other = Flow {
        destination: foreign,
        ..ours
    };
    let mut partition = write(qpn, 5);
    partition.bth.partition = 0x8001;
    let mut datagram = Repr::new(Opcode::DatagramSendOnly, qpn, Psn::new(5));
    datagram.headers.deth = Some(deth::Repr::default());
    let cut = &right[..right.len() - 4];
    let cases: Vec<(&str, Flow, Vec<u8>, Dropped)> = vec![
        (
            "of a foreign host",
            from_foreign,
            with_icrc(&from_foreign, &write(qpn, 5)),
            Dropped::ForeignAddress,
        ),
        (
            "to another address",
            to_other,
            with_icrc(&to_other, &write(qpn, 5)),
            Dropped::ForeignAddress,
        ),
        ("replayed by a foreign host", from_foreign, right.clone(), Dropped::Icrc),
        (
            "of another partition",
            ours,
            with_icrc(&ours, &partition),
            Dropped::Partition,
        ),
        (
            "to nobody",
            ours,
            with_icrc(&ours, &write(qpn + 1, 5)),
            Dropped::UnknownQueuePair,
        ),
        ("a datagram", ours, with_icrc(&ours, &datagram), Dropped::WrongService),
        (
            "a WRITE to the queue pair of management",
            ours,
            with_icrc(&ours, &write(QPN_MANAGEMENT, 5)),
            Dropped::WrongService,
        ),
        ("cut short", ours, cut.to_vec(), Dropped::Icrc),
        (
            "cut to its base header",
            ours,
            right[..12].to_vec(),
            Dropped::Malformed(Error::Truncated),
        ),
        ("nothing", ours, vec![], Dropped::Malformed(Error::Truncated)),
        ("longer", ours, [&right[..], &[0; 4]].concat(), Dropped::Icrc),
        (
            "longer by a byte",
            ours,
            [&right[..], &[0]].concat(),
            Dropped::Malformed(Error::Length),
        ),
    ];
    let count = cases.len() as u64;
    for (name, flow, bytes, why) in cases {
        assert_eq!(receive(&mut hosts, &flow, &bytes), Err(why), "{name}");
    }
    let counters = hosts.ends[1].counters();
    let dropped = counters.malformed + counters.icrc + counters.partition + counters.unknown + counters.foreign;
    assert_eq!(dropped + counters.wrong_service, count);
    assert_eq!(counters.taken, 0);
    assert_eq!(hosts.memories[1].parts, 0);
    assert_eq!(receive(&mut hosts, &ours, &right), Ok(()));
    assert_eq!(hosts.memories[1].files[&3].bytes[..4], *b"evil");
}

/// A peer behind a port of its own gets its responses there, and no other process on its host passes for it. Each queue
/// pair determines which IPv4 identifications pass.
#[test]
fn a_queue_pair_knows_the_port_and_the_kind_of_its_peer() {
    let [local, peer, neighbour] = ["127.0.0.1:4791", "127.0.0.1:5000", "127.0.0.1:5001"].map(|it| it.parse().unwrap());
    let mut memory = Array::new(1);
    memory.files.insert(
        3,
        File {
            bytes: vec![0; 4_096],
            ..File::default()
        },
    );
    let mut endpoint = Endpoint::new(Ids::Any, 1);
    let mut connect = |peer: SocketAddr, ids: Ids| {
        let qpn = endpoint.allocate();
        let connection = Connection {
            local,
            peer,
            ids,
            requester: requester::Config::new(9, Mtu::B1024, Psn::new(5)),
            responder: responder::Config::new(qpn, 9, Mtu::B1024, Psn::new(5)),
        };
        endpoint.connect(connection).expect("a number of its own");
        qpn
    };
    let ours = connect(peer, Ids::Zero);
    let stock = connect(SocketAddr::new(peer.ip(), 4_791), Ids::Any);
    let mut receive = |source: SocketAddr, packet: &Repr<'_>, id: u16| {
        let flow = Flow {
            source,
            destination: local,
        };
        let bytes = with_icrc_and_id(&flow, packet, id);
        endpoint.receive(1, &flow, &bytes, &mut memory).map(drop)
    };
    let mut asking = write(ours, 5);
    asking.bth.ack_request = true;
    assert_eq!(receive(neighbour, &asking, 0), Err(Dropped::ForeignAddress));
    assert_eq!(receive(peer, &asking, 77), Err(Dropped::Icrc));
    assert_eq!(receive(peer, &asking, 0), Ok(()));
    assert_eq!(
        receive(neighbour, &write(stock, 5), 0),
        Ok(()),
        "adapters choose ports as they like"
    );
    assert_eq!(receive(peer, &write(stock, 6), 77), Ok(()));
    let answer = endpoint.poll_transmit(2, &mut memory, &mut Vec::new());
    assert_eq!(answer.map(|flow| (flow.source, flow.destination)), Some((local, peer)));
}

/// Late packets of a removed queue pair, or of one that a refusal broke.
#[test]
fn dead_queue_pairs_do_nothing() {
    let mut hosts = hosts_with_file();
    let ours = flow(&hosts);
    let [asking, qpn] = hosts.connect(Mtu::B1024, [5, 6]);
    let late = with_icrc(&ours, &write(qpn, 5));
    let memory = &mut hosts.memories[1];
    assert_eq!(hosts.ends[1].remove(qpn, memory), []);
    assert_eq!(receive(&mut hosts, &ours, &late), Err(Dropped::UnknownQueuePair));
    let [_, other] = hosts.connect(Mtu::B1024, [5, 6]);
    assert_ne!(other, qpn, "the number was given again at once");
    // Nor can the number be taken while in use.
    let again = Connection {
        local: hosts.address(1),
        peer: hosts.address(0),
        ids: Ids::Any,
        requester: requester::Config::new(asking, Mtu::B1024, Psn::new(0)),
        responder: responder::Config::new(other, asking, Mtu::B1024, Psn::new(0)),
    };
    assert_eq!(hosts.ends[1].connect(again), Err(InUse(other)));
    // A requester to a dead one gets no reply, and learns it by timeout.
    let request = Request::Read {
        key: 3,
        at: 0,
        len_bytes: 8,
    };
    hosts.ends[0].post(asking, 1, request).unwrap();
    let done = hosts.run(0, asking, 1);
    assert_eq!(done[0].result, Err(Failure::RetryExceeded));
    // Broken by a refusal: later requests get the same refusal, and are not executed.
    let [asking, qpn] = hosts.connect(Mtu::B1024, [5, 6]);
    let wrong = Request::Write {
        key: 4,
        at: 0,
        data: vec![1],
        immediate: None,
    };
    hosts.ends[0].post(asking, 2, wrong).unwrap();
    assert_eq!(hosts.run(0, asking, 1)[0].result, Err(Failure::Access));
    let parts = hosts.memories[1].parts;
    assert_eq!(receive(&mut hosts, &ours, &with_icrc(&ours, &write(qpn, 6))), Ok(()));
    assert_eq!(hosts.memories[1].parts, parts);
    // The end that refused sends no more requests.
    let request = Request::Read {
        key: 3,
        at: 0,
        len_bytes: 8,
    };
    assert!(hosts.ends[1].post(qpn, 9, request).is_err());
    // The end that was refused takes no requests either.
    let back = Flow {
        source: ours.destination,
        destination: ours.source,
    };
    let packet = with_icrc(&back, &write(asking, 6));
    let memory = &mut hosts.memories[0];
    assert_eq!(
        hosts.ends[0].receive(hosts.now_ns, &back, &packet, memory),
        Err(Dropped::Dead)
    );
    // Closing flushes queued work.
    let [asking, _] = hosts.connect(Mtu::B1024, [5, 6]);
    let request = Request::Read {
        key: 3,
        at: 0,
        len_bytes: 8,
    };
    hosts.ends[0].post(asking, 3, request.clone()).unwrap();
    let memory = &mut hosts.memories[0];
    let flushed = hosts.ends[0].remove(asking, memory);
    assert_eq!(flushed.len(), 1);
    assert_eq!(flushed[0].result, Err(Failure::Flushed));
    assert!(hosts.ends[0].post(asking, 4, request).is_err());
}

#[test]
fn management_datagrams_come_to_who_manages() {
    let mut hosts = hosts_with_file();
    let mut datagram = [0; mad::BYTES];
    datagram[7] = 9;
    let (local, peer) = (hosts.address(0), hosts.address(1).ip());
    hosts.ends[0].send_management(local, peer, datagram);
    while hosts.step() {}
    assert_eq!(hosts.management, [(1, local.ip(), datagram.to_vec())]);
    // With a wrong key, or too short.
    let ours = flow(&hosts);
    for (queue_key, len) in [(1, mad::BYTES), (deth::QKEY_MANAGEMENT, 100)] {
        let mut packet = Repr::new(Opcode::DatagramSendOnly, QPN_MANAGEMENT, Psn::new(0));
        packet.headers.deth = Some(deth::Repr { queue_key, source: 1 });
        packet.payload = &datagram[..len];
        assert_eq!(
            receive(&mut hosts, &ours, &with_icrc(&ours, &packet)),
            Err(Dropped::WrongService)
        );
    }
}

/// A peer that sends garbage with correct ICRCs, to requester and responder, beside a working pair.
#[test]
fn a_peer_that_sends_nonsense_harms_its_own_pair_alone() {
    let seed = seed_from_env().unwrap_or(8);
    println!("FERRITE_SEED={seed}");
    let random = &mut Rng::new(seed);
    let mut hosts = hosts_with_file();
    let ours = flow(&hosts);
    let [honest, _] = hosts.connect(Mtu::B256, [5, 6]);
    let mut taken = 0;
    for round in 0..3_000 {
        let [_, victim] = hosts.connect(Mtu::B256, [5, 6]);
        hosts.ends[1]
            .post(
                victim,
                0,
                Request::Read {
                    key: 1,
                    at: 0,
                    len_bytes: 1_000,
                },
            )
            .unwrap();
        let memory = &mut hosts.memories[1];
        while hosts.ends[1]
            .poll_transmit(hosts.now_ns, memory, &mut Vec::new())
            .is_some()
        {}
        for _ in 0..6 {
            let opcode = *random.pick(Opcode::ALL);
            let base = if opcode.is_answer() { 6 } else { 5 };
            let psn = base + random.below(3) as u32 + if random.chance(10) { 0x80_0000 } else { 0 };
            let len = if opcode.has_payload() {
                *random.pick(&[0, 1, 100, 256, 257])
            } else {
                0
            };
            let payload: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            let mut packet = Repr::new(opcode, victim, Psn::new(psn));
            packet.headers.reth = Some(reth::Repr {
                address: *random.pick(&[0, 100, 4_095, 4_096, 1 << 62, 1 << 63, u64::MAX]),
                key: *random.pick(&[3, 3, 4]),
                len_bytes: *random.pick(&[0, 1, 100, 256, 257, 600, u32::MAX]),
            });
            packet.headers.atomic = Some(Default::default());
            packet.payload = &payload;
            packet.bth.ack_request = random.chance(50);
            taken += u64::from(receive(&mut hosts, &ours, &with_icrc(&ours, &packet)).is_ok());
            let memory = &mut hosts.memories[1];
            while hosts.ends[1]
                .poll_transmit(hosts.now_ns, memory, &mut Vec::new())
                .is_some()
            {}
        }
        let memory = &mut hosts.memories[1];
        hosts.ends[1].remove(victim, memory);
        if round % 500 == 0 {
            let read = Request::Read {
                key: 3,
                at: 0,
                len_bytes: 600,
            };
            hosts.ends[0].post(honest, round, read).unwrap();
            assert!(matches!(hosts.run(0, honest, 1)[0].result, Ok(Outcome::Read(_))));
        }
    }
    assert!(taken > 5_000, "{taken} packets reached a queue pair");
    assert!(hosts.memories[1].is_quiet());
}
