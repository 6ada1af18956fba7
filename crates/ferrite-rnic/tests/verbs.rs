//! All verbs over real sockets on loopback: both families, every path MTU, long messages, several under way, several
//! threads.
//!
//! Guarantees under test: acknowledged data is there, whole, and reads return written data.

use std::net::SocketAddr;
use std::thread;

use ferrite_rnic::{Initiator, InitiatorOptions, Rnic};
use ferrite_roce::requester::{Outcome, Request};
use ferrite_roce::wire::cm::Mtu;
use ferrite_testkit::rng::pattern;

use crate::support::{Files, KEY, LOOPBACKS, asking, connect, start};

#[test]
fn every_verb_at_every_mtu_on_both_families() {
    for listen in LOOPBACKS {
        let files = Files::with(100_000);
        let rnic = start(listen, 1, &files);
        let server = rnic.addresses()[0];
        for mtu in Mtu::ALL {
            let options = InitiatorOptions {
                mtu: Some(mtu),
                ..asking()
            };
            let (mut initiator, _) = connect(&rnic, server, options);
            assert_eq!(initiator.mtu(), mtu);
            every_verb(&mut initiator, &files, mtu.bytes());
            assert!(!initiator.is_broken());
        }
        let counters = rnic.counters();
        assert_eq!((counters.queue_pairs, counters.dropped, counters.not_sent), (5, 0, 0));
        assert!(counters.executed > 5 * 100 && counters.received >= counters.executed);
    }
}

fn every_verb(initiator: &mut Initiator, files: &Files, mtu: usize) {
    for len in [0, 1, mtu - 1, mtu, mtu + 1, 20_000, 50_000] {
        let data = pattern(len as u32 + 1, len);
        initiator.write(KEY, 777, &data).unwrap();
        assert_eq!(files.bytes()[777..777 + len], data);
        let mut read = vec![0; len];
        initiator.read(KEY, 777, &mut read).unwrap();
        assert_eq!(read, data);
    }
    let end = files.bytes().len();
    let data = pattern(3, 3 * mtu + 5);
    initiator.append(KEY, &data).unwrap();
    assert_eq!(files.bytes()[end..], data);
    let reserved = initiator.reserve(KEY, 100).unwrap();
    assert_eq!(reserved as usize, end + data.len());
    initiator.write(KEY, reserved, &data[..100]).unwrap();
    assert_eq!(files.bytes()[reserved as usize..], data[..100]);
    let end = reserved + 100;
    assert_eq!(initiator.extend(KEY, reserved, end + 8).unwrap(), end);
    assert_eq!(initiator.extend(KEY, end, end + 8).unwrap(), end);
    assert_eq!(files.bytes().len() as u64, end + 8);
    initiator.write(KEY, 8, &5_u64.to_le_bytes()).unwrap();
    assert_eq!(initiator.fetch_add(KEY, 8, 10).unwrap(), 5);
    assert_eq!(initiator.compare_swap(KEY, 8, 1, 2).unwrap(), 15);
    assert_eq!(initiator.compare_swap(KEY, 8, 15, 2).unwrap(), 15);
    assert_eq!(initiator.fetch_add(KEY, 8, 0).unwrap(), 2);
}

#[test]
fn long_messages_and_many_at_a_time() {
    let files = Files::with(24 << 20);
    let rnic = start("127.0.0.1:0", 1, &files);
    let (mut initiator, _) = connect(&rnic, rnic.addresses()[0], asking());
    let data = pattern(9, 20 << 20);
    initiator.write(KEY, 5, &data).unwrap();
    assert!(files.bytes()[5..5 + data.len()] == data[..]);
    let mut read = vec![0; data.len()];
    initiator.read(KEY, 5, &mut read).unwrap();
    assert!(read == data);
    initiator.append(KEY, &data[..9 << 20]).unwrap();
    assert!(files.bytes()[24 << 20..] == data[..9 << 20]);
    // Small ones, all posted before the wait for the first; the second of two READs sees the write in between.
    let mut tickets = Vec::new();
    for index in 0..500_u64 {
        let (key, at) = (KEY, index * 8);
        let data = index.to_le_bytes().to_vec();
        let immediate = None;
        tickets.push(
            initiator
                .post(Request::Write {
                    key,
                    at,
                    data,
                    immediate,
                })
                .unwrap(),
        );
        let len_bytes = 8;
        tickets.push(initiator.post(Request::Read { key, at, len_bytes }).unwrap());
    }
    for (index, ticket) in tickets.into_iter().enumerate() {
        let wanted = match index % 2 {
            0 => Outcome::Done,
            _ => Outcome::Read((index as u64 / 2).to_le_bytes().to_vec()),
        };
        assert_eq!(initiator.wait(ticket).unwrap(), wanted);
    }
}

#[test]
fn a_server_that_is_not_ready_is_asked_again() {
    let files = Files::with(4_096);
    let rnic = start("[::1]:0", 1, &files);
    let (mut initiator, _) = connect(&rnic, rnic.addresses()[0], asking());
    files.put_off(5);
    initiator.write(KEY, 0, b"later").unwrap();
    assert_eq!(files.bytes()[..5], *b"later");
    assert_eq!(initiator.counters().not_ready, 5);
    assert_eq!(rnic.counters().not_ready, 5);
}

/// Appends of many queue pairs on several threads neither mix nor get lost, and sums are exact.
#[test]
fn many_queue_pairs_on_several_threads() {
    const CLIENTS: u64 = 4;
    const PAIRS: u64 = 8;
    const RECORD: usize = 10_000;
    for listen in LOOPBACKS {
        let files = Files::with(64);
        let rnic = start(listen, 3, &files);
        let rnic = &rnic;
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || one_client(rnic, rnic.addresses()[0], client, PAIRS, RECORD));
            }
        });
        let bytes = files.bytes();
        let count = CLIENTS * PAIRS;
        assert_eq!(bytes.len(), 64 + count as usize * 4 * RECORD);
        assert_eq!(bytes[..8], (count * (count - 1) / 2).to_le_bytes());
        let mut seen: Vec<u8> = bytes[64..]
            .chunks(RECORD)
            .map(|record| {
                assert!(record.iter().all(|byte| *byte == record[0]), "appends are mixed");
                record[0]
            })
            .collect();
        seen.sort_unstable();
        let wanted: Vec<u8> = (0..count as u8).flat_map(|one| [one; 4]).collect();
        assert_eq!(seen, wanted);
        assert_eq!(rnic.counters().queue_pairs, count);
        // A filter that sends datagrams to the wrong thread would cause drops here.
        assert_eq!(rnic.counters().dropped, 0);
    }
}

fn one_client(rnic: &Rnic, server: SocketAddr, client: u64, pairs: u64, record: usize) {
    let mut initiators: Vec<_> = (0..pairs).map(|_| connect(rnic, server, asking())).collect();
    let owners: std::collections::HashSet<u32> = initiators.iter().map(|(_, qpn)| qpn % 3).collect();
    assert!(owners.len() > 1, "all queue pairs are on one thread");
    for round in 0..4 {
        for (index, (initiator, _)) in initiators.iter_mut().enumerate() {
            let number = client * pairs + index as u64;
            initiator.append(KEY, &vec![number as u8; record]).unwrap();
            if round == 0 {
                initiator.fetch_add(KEY, 0, number).unwrap();
            }
        }
    }
}
