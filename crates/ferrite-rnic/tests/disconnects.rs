//! Queue pairs that end: refused, closed, with a server that went away, with peers that died; and unknown peers.
//!
//! Guarantees under test: every waiting caller learns of it, with a cause; a peer without a queue pair has no effect.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_rnic::{End, Error, Initiator, InitiatorOptions, NoService, Options, Rnic, StartError};
use ferrite_roce::wire::aeth::Nak;
use ferrite_roce::wire::icrc::{self, Flow};
use ferrite_roce::wire::packet::Repr;
use ferrite_roce::wire::{Opcode, Psn, reth};

use crate::support::{Ends, Files, KEY, asking, connect, options, start};

#[test]
fn a_wrong_key_ends_the_queue_pair_and_the_service_hears_once() {
    let files = Files::with(4_096);
    let ends = Arc::new(Ends::default());
    let service = Arc::clone(&ends);
    let rnic = Rnic::start(&options("127.0.0.1:0", 2), service, |_| files.clone()).unwrap();
    let (mut initiator, qpn) = connect(&rnic, rnic.addresses()[0], asking());
    let (mut other, _) = connect(&rnic, rnic.addresses()[0], asking());
    initiator.write(KEY, 0, b"fine").unwrap();
    assert!(matches!(initiator.write(KEY + 1, 0, b"wrong"), Err(Error::Access)));
    assert!(initiator.is_broken());
    assert!(matches!(initiator.write(KEY, 0, b"never"), Err(Error::Ended)));
    assert!(matches!(initiator.append(KEY, b"never"), Err(Error::Ended)));
    other.write(KEY, 4, b" too").unwrap();
    assert_eq!(files.bytes()[..8], *b"fine too");
    assert_eq!(*ends.0.lock().unwrap(), [(qpn, End::Refused(Nak::Access))]);
    // After a while it is removed.
    let began = Instant::now();
    while rnic.counters().queue_pairs == 2 {
        assert!(began.elapsed() < Duration::from_secs(20), "a refused queue pair stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ends.0.lock().unwrap().len(), 1);
    // Behind the end of the file there is nothing to read.
    assert!(matches!(other.read(KEY, 4_090, &mut [0; 8]), Err(Error::Access)));
}

#[test]
fn what_is_closed_does_nothing_any_more() {
    let files = Files::with(4_096);
    let rnic = start("127.0.0.1:0", 2, &files);
    let options = InitiatorOptions {
        retry_after: Duration::from_millis(5),
        retries: 3,
        ..asking()
    };
    let (mut initiator, qpn) = connect(&rnic, rnic.addresses()[0], options);
    initiator.write(KEY, 0, b"before").unwrap();
    rnic.close(qpn);
    rnic.close(qpn);
    assert_eq!(rnic.counters().queue_pairs, 0);
    match initiator.write(KEY, 0, b"behind") {
        Err(error @ Error::NoAnswer { .. }) => assert!(error.is_of_connection()),
        other => panic!("{other:?}"),
    }
    assert_eq!(files.bytes()[..6], *b"before");
    assert!(rnic.counters().dropped >= 4);
}

/// The kernel reports that no process listens, so no caller waits for the retries.
#[test]
fn a_server_that_ended_is_noticed_at_once_and_a_new_one_is_found() {
    let files = Files::with(4_096);
    let rnic = start("127.0.0.1:0", 1, &files);
    let server = rnic.addresses()[0];
    let slow = InitiatorOptions {
        retry_after: Duration::from_millis(50),
        retries: 1_000,
        ..asking()
    };
    let (mut initiator, _) = connect(&rnic, server, slow);
    initiator.write(KEY, 0, b"one").unwrap();
    drop(rnic);
    let began = Instant::now();
    match initiator.write(KEY, 3, b"two") {
        Err(error @ Error::Refused { .. }) => assert!(error.to_string().contains("nobody listens")),
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() < Duration::from_secs(10));
    let rnic = start(&server.to_string(), 1, &files);
    // The old queue pair is unknown to it.
    let (mut initiator, _) = connect(&rnic, server, asking());
    initiator.write(KEY, 3, b"two").unwrap();
    assert_eq!(files.bytes()[..6], *b"onetwo");
}

#[test]
fn a_peer_that_died_in_a_message_leaves_nothing_half_done() {
    let files = Files::with(4_096);
    let rnic = start("127.0.0.1:0", 1, &files);
    let server = rnic.addresses()[0];
    let initiator = Initiator::new(server, asking()).unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut offer = initiator.offer();
    offer.address = peer.local_addr().unwrap();
    let queue_pair = rnic.open_queue_pair(&offer).unwrap();
    let mut first = Repr::new(Opcode::WriteFirst, queue_pair.qpn, offer.psn);
    first.headers.reth = Some(reth::Repr {
        address: ferrite_roce::memory::APPEND_AT,
        key: KEY,
        len_bytes: 10_000,
    });
    let payload = [1; 4_096];
    first.payload = &payload;
    let flow = Flow {
        source: offer.address,
        destination: server,
    };
    let mut bytes = Vec::new();
    first.emit(&mut bytes);
    icrc::append(&flow, &mut bytes);
    peer.send_to(&bytes, server).unwrap();
    let began = Instant::now();
    while rnic.counters().executed == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "the packet did not arrive");
    }
    rnic.close(queue_pair.qpn);
    assert_eq!(files.0.lock().unwrap().abandoned, 1);
}

#[test]
fn foreign_hosts_and_nonsense_do_nothing() {
    let files = Files::with(4_096);
    let rnic = start("127.0.0.1:0", 2, &files);
    let server = rnic.addresses()[0];
    let (mut initiator, qpn) = connect(&rnic, server, asking());
    let foreign = UdpSocket::bind("127.0.0.1:0").unwrap();
    let source = foreign.local_addr().unwrap();
    let mut sent = 0;
    for psn in 0..50 {
        let mut packet = Repr::new(Opcode::WriteOnly, qpn, Psn::new(initiator.offer().psn.value() + psn));
        packet.headers.reth = Some(reth::Repr {
            address: 0,
            key: KEY,
            len_bytes: 4,
        });
        packet.payload = b"evil";
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        icrc::append(
            &Flow {
                source,
                destination: server,
            },
            &mut bytes,
        );
        for bytes in [&bytes[..], &bytes[..20], &[7; 3_000], &[], &[9; 60_000]] {
            sent += u64::from(foreign.send_to(bytes, server).is_ok());
        }
    }
    initiator.write(KEY, 8, b"good").unwrap();
    let began = Instant::now();
    while rnic.counters().dropped < sent {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", rnic.counters());
    }
    assert_eq!(files.bytes()[..12], *b"\0\0\0\0\0\0\0\0good");
}

#[test]
fn addresses_that_cannot_be_had_are_refused_with_a_hint() {
    let files = Files::default();
    let first = start("127.0.0.1:0", 2, &files);
    let address = first.addresses()[0].to_string();
    for threads in [1, 2] {
        let refused = Rnic::start(&options(&address, threads), Arc::new(NoService), |_| files.clone());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("another program has the port"), "{text}");
    }
    let nowhere = Rnic::start(&Options::default(), Arc::new(NoService), |_| files.clone());
    assert!(matches!(nowhere, Err(StartError::NoAddress)));
    let few = Options {
        queue_pairs_max: 1,
        ..options("127.0.0.1:0", 1)
    };
    let rnic = Rnic::start(&few, Arc::new(NoService), |_| files.clone()).unwrap();
    let (initiator, qpn) = connect(&rnic, rnic.addresses()[0], asking());
    assert!(matches!(
        rnic.open_queue_pair(&initiator.offer()),
        Err(Error::NoQueuePair)
    ));
    rnic.close(qpn);
    rnic.open_queue_pair(&initiator.offer()).unwrap();
    // A peer that no local address leads to.
    let mut elsewhere = initiator.offer();
    (elsewhere.address, elsewhere.local) = ("[::1]:9".parse::<SocketAddr>().unwrap(), None);
    assert!(matches!(rnic.open_queue_pair(&elsewhere), Err(Error::Socket { .. })));
}

/// The kernel picks another source address for the route to a peer than the listening one.
#[test]
fn of_several_addresses_of_a_host_the_one_that_listens_is_told() {
    let files = Files::with(4_096);
    let rnic = start("127.0.0.9:0", 1, &files);
    let server = rnic.addresses()[0];
    let mut initiator = Initiator::new(server, asking()).unwrap();
    let mut offer = initiator.offer();
    offer.local = None;
    let queue_pair = rnic.open_queue_pair(&offer).unwrap();
    assert_eq!(queue_pair.address, server);
    initiator.connect(&queue_pair);
    initiator.write(KEY, 0, b"here").unwrap();
    assert_eq!(files.bytes()[..4], *b"here");
    // A peer that insists on an address gets no other.
    offer.local = Some("127.0.0.8".parse().unwrap());
    assert!(matches!(rnic.open_queue_pair(&offer), Err(Error::Socket { .. })));
}

/// Listening on all addresses, each response leaves from the address of its request.
#[test]
fn a_wildcard_answers_from_the_address_that_was_asked() {
    for (listen, requested) in [("0.0.0.0:0", ["127.0.0.1", "127.0.0.9"]), ("[::]:0", ["::1", "::1"])] {
        let files = Files::with(4_096);
        let rnic = start(listen, 2, &files);
        for (index, ip) in requested.into_iter().enumerate() {
            let server = SocketAddr::new(ip.parse().unwrap(), rnic.addresses()[0].port());
            let (mut initiator, _) = connect(&rnic, server, asking());
            initiator.write(KEY, index as u64, b"x").unwrap();
        }
        assert_eq!(files.bytes()[..2], *b"xx");
        assert_eq!(rnic.counters().dropped, 0);
    }
}
