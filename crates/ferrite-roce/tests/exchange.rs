//! Requesters and responders over a network that loses, repeats, reorders and changes what it carries.
//!
//! Guarantees under test: everything completes; nothing is done twice or in the wrong place; reads return written data.
//! The memory of `support` asserts order and bounds at each call; these tests compare with models.

use std::collections::HashMap;

use ferrite_roce::requester::{Completion, Outcome, Request};
use ferrite_roce::wire::Qpn;
use ferrite_roce::wire::cm::Mtu;
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;

use crate::support::{APPEND, File, Hosts, NetworkFaults, RESERVE};

const BAD: NetworkFaults = NetworkFaults {
    loss: 5,
    duplication: 5,
    reordering: 5,
    corruption: 5,
};

fn file(len: usize) -> File {
    File {
        bytes: vec![0; len],
        ..File::default()
    }
}

/// Runs `test` for some seeds, which it prints.
fn with_seeds(count: u64, test: impl Fn(u64)) {
    let soak = if std::env::var_os("FERRITE_SOAK").is_some() {
        50
    } else {
        1
    };
    let seeds = match seed_from_env() {
        Some(seed) => seed..seed + 1,
        None => 0..count * soak,
    };
    for seed in seeds {
        println!("FERRITE_SEED={seed}");
        test(seed);
    }
}

fn read(outcome: &Completion) -> &[u8] {
    match &outcome.result {
        Ok(Outcome::Read(bytes)) => bytes,
        other => panic!("{other:?} of a READ"),
    }
}

/// One queue pair writes its part of a file and reads it again; others do the same with theirs.
#[test]
fn what_is_written_is_read_and_nothing_else_changes() {
    with_seeds(12, |seed| {
        let random = &mut Rng::new(seed);
        let mut hosts = Hosts::new(seed, true);
        hosts.network_faults = BAD;
        hosts.memories[1].not_ready_percent = 2;
        let part = 40_000;
        let mut model = Vec::new();
        let mut pairs = Vec::new();
        for number in 0..3 {
            let mtu = Mtu::ALL[(seed as usize + number) % 5];
            // Numbers wrap during the test.
            let psns = [0xff_ffc0 + number as u32, random.next_u64() as u32];
            pairs.push(hosts.connect(mtu, psns)[0]);
            model.push(vec![0; part]);
        }
        let mut whole = file(part * 3);
        whole.is_whole = seed % 3 == 2;
        hosts.memories[1].files.insert(7, whole);
        for round in 0..4 {
            let mut expected: HashMap<(Qpn, u64), Vec<u8>> = HashMap::new();
            for (number, qpn) in pairs.iter().enumerate() {
                for id in 0..10 {
                    let len = match random.below(4) {
                        0 => 0,
                        1 => random.below(20) as usize,
                        _ => random.below(20_000) as usize,
                    };
                    let start = random.below((part - len) as u64 + 1) as usize;
                    let at = (number * part + start) as u64;
                    let request = if id < 5 {
                        let data = pattern(random.below(1000) as u32, len);
                        model[number][start..start + len].copy_from_slice(&data);
                        let immediate = random.chance(20).then_some(id as u32);
                        let key = 7;
                        Request::Write {
                            key,
                            at,
                            data,
                            immediate,
                        }
                    } else {
                        // The state after earlier rounds and all WRITEs of this one, which come first.
                        expected.insert((*qpn, id), model[number][start..start + len].to_vec());
                        Request::Read {
                            key: 7,
                            at,
                            len_bytes: len as u32,
                        }
                    };
                    hosts.ends[0].post(*qpn, id, request).unwrap();
                }
            }
            for (number, qpn) in pairs.iter().enumerate() {
                let done = hosts.run(0, *qpn, 10);
                let ids: Vec<u64> = done.iter().map(|one| one.id).collect();
                assert_eq!(ids, (0..10).collect::<Vec<_>>(), "work completes once and in order");
                for one in &done {
                    match expected.get(&(*qpn, one.id)) {
                        Some(bytes) => assert_eq!(read(one), bytes, "round {round}, pair {number}, READ {}", one.id),
                        None => assert_eq!(one.result, Ok(Outcome::Done)),
                    }
                }
            }
        }
        assert_eq!(hosts.memories[1].files[&7].bytes, model.concat());
        assert!(hosts.memories[1].is_quiet());
        assert!(hosts.corrupted > 20, "{} datagrams were changed", hosts.corrupted);
        let (requester, responder) = (hosts.ends[0].get(pairs[0]).unwrap().0, hosts.ends[1].counters());
        assert!(requester.counters().sent_again > 0 && responder.icrc > 0);
    });
}

/// Counters that many pairs add to, values they swap, appends and reservations.
#[test]
fn nothing_is_done_twice() {
    with_seeds(12, |seed| {
        let random = &mut Rng::new(seed);
        let mut hosts = Hosts::new(seed, seed % 2 == 0);
        hosts.network_faults = BAD;
        if seed % 2 == 1 {
            // Sixteen bits of the ICRC do not cover IPv4's identification; the hosts here are configured to expect 0.
            hosts.network_faults.corruption = 2;
        }
        hosts.memories[1].not_ready_percent = 2;
        hosts.memories[1].files.insert(1, file(64));
        let mut log = file(0);
        log.is_whole = seed % 4 == 3;
        hosts.memories[1].files.insert(2, log);
        let pairs: Vec<[Qpn; 2]> = (0..4)
            .map(|number| hosts.connect(Mtu::ALL[number % 3], [0xff_fff0, 0xff_fffe]))
            .collect();
        let (mut sum, mut appended, mut sent) = (0u64, HashMap::new(), HashMap::new());
        let rounds = 30;
        for (number, [qpn, peer]) in pairs.iter().enumerate() {
            for id in 0..rounds {
                let request = match id % 5 {
                    0 | 1 => {
                        let add = random.below(1_000);
                        sum += add;
                        Request::FetchAdd { key: 1, at: 0, add }
                    }
                    2 => {
                        let len = 1 + random.below(2_500) as usize;
                        let data = pattern((number as u32 + 1) << 16 | id as u32, len);
                        appended.entry(*peer).or_insert_with(Vec::new).push(data.clone());
                        Request::Write {
                            key: 2,
                            at: APPEND,
                            data,
                            immediate: None,
                        }
                    }
                    3 => Request::FetchAdd {
                        key: 2,
                        at: RESERVE,
                        add: 8 * (1 + random.below(4)),
                    },
                    _ => {
                        let data = pattern(id as u32 + 1, random.below(1_500) as usize);
                        sent.entry(*peer).or_insert_with(Vec::new).push(data.clone());
                        let immediate = random.chance(50).then_some(5);
                        Request::Send {
                            data,
                            immediate,
                            invalidate: None,
                        }
                    }
                };
                hosts.ends[0].post(*qpn, id, request).unwrap();
            }
        }
        let mut reserved = Vec::new();
        for [qpn, _] in &pairs {
            for one in hosts.run(0, *qpn, rounds as usize) {
                match one.result {
                    Ok(Outcome::Atomic(before)) if one.id % 5 == 3 => reserved.push(before),
                    Ok(_) => {}
                    Err(failure) => panic!("{} failed: {failure}", one.id),
                }
            }
        }
        let memory = &hosts.memories[1];
        let counter = u64::from_le_bytes(memory.files[&1].bytes[..8].try_into().unwrap());
        assert_eq!(counter, sum, "FETCH_ADDs were lost or repeated");
        let log = &memory.files[&2];
        let mut places: Vec<u64> = log.reserved.iter().map(|(at, _)| *at).collect();
        places.sort_unstable();
        reserved.sort_unstable();
        assert_eq!(places, reserved, "each reservation was made once, for who has it");
        for [_, peer] in &pairs {
            let theirs = log.committed.iter().filter(|(_, (qpn, ..))| qpn == peer);
            let found: Vec<Vec<u8>> = theirs
                .map(|(&at, &(_, _, len))| log.bytes[at as usize..][..len as usize].to_vec())
                .collect();
            assert_eq!(&found, &appended[peer], "appends come once and in order");
            let theirs = memory.received.iter().filter(|(qpn, ..)| qpn == peer);
            let found: Vec<Vec<u8>> = theirs.map(|(_, data, ..)| data.clone()).collect();
            assert_eq!(&found, &sent[peer], "SENDs come once and in order");
        }
        assert!(memory.is_quiet());
    });
}

/// Both ends send requests at the same time, over the same queue pair.
#[test]
fn both_ends_of_a_pair_may_ask() {
    with_seeds(4, |seed| {
        let mut hosts = Hosts::new(seed, true);
        hosts.network_faults = BAD;
        let pair = hosts.connect(Mtu::B256, [3, 0xff_ffff]);
        for (end, &qpn) in pair.iter().enumerate() {
            hosts.memories[end].files.insert(9, file(10_000));
            for id in 0..20 {
                let data = pattern(id as u32 + 1, 500);
                let write = Request::Write {
                    key: 9,
                    at: id * 500,
                    data,
                    immediate: None,
                };
                hosts.ends[end].post(qpn, id, write).unwrap();
            }
            let read = Request::Read {
                key: 9,
                at: 0,
                len_bytes: 10_000,
            };
            hosts.ends[end].post(qpn, 20, read).unwrap();
        }
        let written: Vec<u8> = (0..20).flat_map(|id| pattern(id + 1, 500)).collect();
        for (end, &qpn) in pair.iter().enumerate() {
            let done = hosts.run(end, qpn, 21);
            assert_eq!(read(&done[20]), written);
        }
    });
}

/// The swapping end learns of its success: of all that expect the same value one succeeds.
#[test]
fn one_of_many_swaps_succeeds() {
    with_seeds(4, |seed| {
        let mut hosts = Hosts::new(seed, true);
        hosts.network_faults = BAD;
        hosts.memories[1].files.insert(1, file(16));
        let pairs: Vec<Qpn> = (0..5).map(|_| hosts.connect(Mtu::B1024, [1, 2])[0]).collect();
        for (number, qpn) in pairs.iter().enumerate() {
            for id in 0..10 {
                let (compare, swap) = (id, id + 1);
                let at = 8;
                let request = Request::CompareSwap {
                    key: 1,
                    at,
                    compare,
                    swap,
                };
                hosts.ends[0].post(*qpn, id + 100 * number as u64, request).unwrap();
            }
        }
        let mut winners = HashMap::new();
        for qpn in &pairs {
            for one in hosts.run(0, *qpn, 10) {
                let wanted = one.id % 100;
                if one.result == Ok(Outcome::Atomic(wanted)) {
                    assert_eq!(winners.insert(wanted, *qpn), None, "two pairs swapped {wanted}");
                }
            }
        }
        let last = u64::from_le_bytes(hosts.memories[1].files[&1].bytes[8..].try_into().unwrap());
        assert_eq!(winners.len() as u64, last);
        assert!(last >= 1);
    });
}
