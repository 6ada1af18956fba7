//! Bound files at the end of a network that loses, repeats, reorders and changes datagrams.

use ferrite_mr::{FileMemory, Options};
use ferrite_roce::memory::{APPEND_AT, RESERVE_AT};
use ferrite_roce::requester::{Outcome, Request};
use ferrite_roce::wire::Qpn;
use ferrite_roce::wire::cm::Mtu;
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;

use crate::double::{Fixture, SESSION, fixture};
use crate::support::{Hosts, NetworkFaults};

const BAD: NetworkFaults = NetworkFaults {
    loss: 5,
    duplication: 5,
    reordering: 5,
    corruption: 5,
};

fn hosts(fixture: &Fixture, seed: u64, pairs: usize) -> (Hosts<FileMemory>, Vec<[Qpn; 2]>) {
    let memories = [fixture.registrar.memory(), fixture.registrar.memory()];
    let mut hosts = Hosts::with(memories, seed, true);
    hosts.network_faults = BAD;
    let connect = |number: usize| {
        let pair = hosts.connect(Mtu::ALL[(seed as usize + number) % 5], [0xff_fff0, 0xff_fffe]);
        fixture.registrar.attach(SESSION, pair[1]);
        pair
    };
    let pairs = (0..pairs).map(connect).collect();
    (hosts, pairs)
}

fn seeds() -> std::ops::Range<u64> {
    match seed_from_env() {
        Some(seed) => seed..seed + 1,
        None => 0..5,
    }
}

fn put(key: u32, at: u64, data: Vec<u8>) -> Request {
    Request::Write {
        key,
        at,
        data,
        immediate: None,
    }
}

/// WRITEs, READs, appends, reservations and sums of several queue pairs, while pages move.
#[test]
fn what_a_bad_network_carries_is_exact() {
    for seed in seeds() {
        println!("FERRITE_SEED={seed}");
        let random = &mut Rng::new(seed);
        let part = 30_000u64;
        let fixture = fixture(part * 3 + 8, Options::default());
        let (mut hosts, pairs) = hosts(&fixture, seed, 3);
        let mut model = vec![vec![0u8; part as usize]; 3];
        let (mut sum, mut appended) = (0u64, Vec::new());
        for round in 0..4 {
            for (number, [qpn, _]) in pairs.iter().enumerate() {
                for id in 0..4u64 {
                    let len = 1 + random.below(9_000) as usize;
                    let start = random.below(part - len as u64) as usize;
                    let data = pattern(random.below(1 << 20) as u32 + 1, len);
                    model[number][start..start + len].copy_from_slice(&data);
                    let at = 8 + number as u64 * part + start as u64;
                    hosts.ends[0].post(*qpn, id, put(fixture.key, at, data)).unwrap();
                }
                let data = pattern(random.below(1 << 20) as u32 + 1, 1 + random.below(6_000) as usize);
                appended.push(data.clone());
                hosts.ends[0].post(*qpn, 4, put(fixture.key, APPEND_AT, data)).unwrap();
                let key = fixture.key;
                for (id, at, add) in [(5, 0, random.below(100)), (6, RESERVE_AT, 0)] {
                    sum += add;
                    hosts.ends[0]
                        .post(*qpn, id, Request::FetchAdd { key, at, add })
                        .unwrap();
                }
                let at = 8 + number as u64 * part;
                let len_bytes = part as u32;
                hosts.ends[0]
                    .post(*qpn, 7, Request::Read { key, at, len_bytes })
                    .unwrap();
            }
            match round {
                1 => fixture.file.forget(),
                // Moves the pages that it touches.
                _ => (0..9).for_each(|page| fixture.file.write(page * 10_000, &[])),
            }
            for (number, [qpn, _]) in pairs.iter().enumerate() {
                let done = hosts.run(0, *qpn, 8);
                assert_eq!(done.len(), 8);
                for one in &done {
                    match (&one.result, one.id) {
                        (Ok(Outcome::Read(bytes)), 7) => assert!(*bytes == model[number], "round {round}"),
                        (Ok(_), _) => {}
                        (Err(failure), id) => panic!("{id}: {failure}"),
                    }
                }
            }
        }
        assert_eq!(fixture.file.read(0, 8), sum.to_le_bytes());
        assert!(fixture.file.read(8, 3 * part as usize) == model.concat());
        let parts = fixture.file.parts.lock().unwrap();
        let mut found: Vec<Vec<u8>> = parts.iter().map(|(_, data)| data.clone()).collect();
        found.sort_unstable();
        appended.sort_unstable();
        assert!(found == appended, "each append is there once");
        assert_eq!(fixture.registrar.assembled_bytes(), 0);
        assert!(hosts.corrupted > 0);
    }
}

/// Each of these ends its connection with a refusal, and changes nothing.
#[test]
fn what_is_not_allowed_is_refused_on_the_wire() {
    for seed in seeds() {
        println!("FERRITE_SEED={seed}");
        let fixture = fixture(10_000, Options::default());
        let (mut hosts, pairs) = hosts(&fixture, seed, 7);
        let key = fixture.key;
        fixture.registrar.detach(pairs[6][1]);
        let word = || vec![1; 8];
        let requests = [
            put(key ^ 1, 0, word()),
            put(key, 9_993, word()),
            put(key, u64::MAX - 8, word()),
            put(key, RESERVE_AT, word()),
            Request::Read {
                key,
                at: 1 << 61,
                len_bytes: 100_000,
            },
            Request::FetchAdd {
                key,
                at: 10_000,
                add: 1,
            },
            put(key, 0, word()),
        ];
        for ([qpn, _], request) in pairs.iter().zip(requests) {
            hosts.ends[0].post(*qpn, 1, request.clone()).unwrap();
            let done = hosts.run(0, *qpn, 1);
            assert!(done[0].result.is_err(), "{request:?}");
        }
        assert_eq!(
            (fixture.file.size(), fixture.file.read(0, 10_000)),
            (10_000, vec![0; 10_000])
        );
    }
}

/// A key is revoked while its message is on its way: a prefix may be there, the rest is refused.
#[test]
fn a_message_ends_where_its_key_does() {
    for seed in seeds() {
        println!("FERRITE_SEED={seed}");
        let len = 200_000;
        let fixture = fixture(len as u64, Options::default());
        let (mut hosts, pairs) = hosts(&fixture, seed, 1);
        let data = pattern(9, len);
        let qpn = pairs[0][0];
        hosts.ends[0].post(qpn, 1, put(fixture.key, 0, data.clone())).unwrap();
        while fixture.file.read(1_000, 8) != data[1_000..1_008] {
            assert!(hosts.step());
        }
        fixture.registrar.release(SESSION, fixture.key).unwrap();
        let kept = fixture.file.read(0, len);
        let arrived = kept.iter().zip(&data).take_while(|(kept, sent)| kept == sent).count();
        assert!((1_008..len).contains(&arrived) && kept[arrived..].iter().all(|byte| *byte == 0));
        assert!(hosts.run(0, qpn, 1)[0].result.is_err());
        assert!(fixture.file.read(0, len) == kept && !fixture.file.is_bound());
    }
}
