//! The contract of [`Remote`], as tests for any database: written from the trait's words.

use std::time::Duration;

use ferrite_meta::{Applied, Batch, Error, Owner, Remote};

pub(crate) const SHARD: u64 = 7;
pub(crate) const TTL: Duration = Duration::from_millis(400);

pub(crate) fn owner(name: &str) -> Owner {
    Owner {
        name: name.into(),
        address: format!("{name}.example:2049"),
    }
}

pub(crate) fn puts(pairs: &[(&[u8], &[u8])]) -> Batch {
    Batch {
        puts: pairs
            .iter()
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect(),
        deletes: Vec::new(),
    }
}

fn deletes(keys: &[&[u8]]) -> Batch {
    Batch {
        puts: Vec::new(),
        deletes: keys.iter().map(|key| key.to_vec()).collect(),
    }
}

/// Runs all cases, each on a database that has the shard, empty and without owner, from `make`.
pub(crate) fn conforms<R: Remote>(make: impl Fn() -> R) {
    for (name, case) in [
        ("one owner at a time", one_owner_at_a_time as fn(&R)),
        ("all of a batch or nothing", all_of_a_batch_or_nothing),
        ("a batch is applied once", a_batch_is_applied_once),
        (
            "a lost tenure changes and reads nothing",
            a_lost_tenure_changes_and_reads_nothing,
        ),
        ("pages come in the order of bytes", pages_come_in_the_order_of_bytes),
        ("values and keys are any bytes", values_and_keys_are_any_bytes),
        ("what is given up can be taken", what_is_given_up_can_be_taken),
        (
            "a look tells who owns it and changes nothing",
            a_look_tells_who_owns_it_and_changes_nothing,
        ),
        ("pairs are counted in parts", pairs_are_counted_in_parts),
    ] {
        println!("{name}");
        case(&make());
    }
}

fn one_owner_at_a_time(remote: &impl Remote) {
    let first = remote.take(SHARD, &owner("a"), TTL).unwrap();
    match remote.take(SHARD, &owner("b"), TTL) {
        Err(Error::Owned {
            owner: by,
            address,
            left,
        }) => {
            assert_eq!((by.as_str(), address.as_str()), ("a", "a.example:2049"));
            assert!(left <= TTL && !left.is_zero(), "{left:?}");
        }
        other => panic!("{other:?}"),
    }
    // Renewals keep it.
    for _ in 0..4 {
        std::thread::sleep(TTL / 2);
        remote.renew(&first, TTL).unwrap();
    }
    assert!(matches!(remote.take(SHARD, &owner("b"), TTL), Err(Error::Owned { .. })));
    // Without them it ends.
    std::thread::sleep(TTL + TTL / 4);
    let second = remote.take(SHARD, &owner("b"), TTL).unwrap();
    assert!(second.epoch > first.epoch);
    assert_eq!(remote.renew(&first, TTL), Err(Error::Lost { epoch: second.epoch }));
    remote.renew(&second, TTL).unwrap();
}

fn all_of_a_batch_or_nothing(remote: &impl Remote) {
    let tenure = remote.take(SHARD, &owner("a"), 100 * TTL).unwrap();
    assert_eq!(tenure.seq, 0);
    assert_eq!(
        remote.apply(&tenure, 1, &puts(&[(b"a", b"1"), (b"b", b"2")])),
        Ok(Applied::Now)
    );
    let both = Batch {
        puts: vec![(b"b".to_vec(), b"3".to_vec()), (b"c".to_vec(), b"4".to_vec())],
        deletes: vec![b"a".to_vec(), b"never".to_vec()],
    };
    assert_eq!(remote.apply(&tenure, 2, &both), Ok(Applied::Now));
    let found = remote.get_many(&tenure, &[b"c", b"a", b"b", b"never"]).unwrap();
    assert_eq!(found.values, [Some(b"4".to_vec()), None, Some(b"3".to_vec()), None]);
    assert_eq!(found.seq, 2);
    // A batch of nothing counts, too.
    assert_eq!(remote.apply(&tenure, 3, &Batch::default()), Ok(Applied::Now));
    assert_eq!(remote.get_many(&tenure, &[]).unwrap().seq, 3);
}

fn a_batch_is_applied_once(remote: &impl Remote) {
    let tenure = remote.take(SHARD, &owner("a"), 100 * TTL).unwrap();
    let first = puts(&[(b"k", b"first")]);
    assert_eq!(remote.apply(&tenure, 1, &first), Ok(Applied::Now));
    assert_eq!(remote.apply(&tenure, 1, &first), Ok(Applied::Before));
    assert_eq!(remote.apply(&tenure, 2, &puts(&[(b"k", b"second")])), Ok(Applied::Now));
    // The first again, late: refused, since its number is over.
    assert!(remote.apply(&tenure, 1, &first).is_err());
    assert_eq!(
        remote.get_many(&tenure, &[b"k"]).unwrap().values,
        [Some(b"second".to_vec())]
    );
    // A number that skips one means that the database has lost that one.
    assert_eq!(
        remote.apply(&tenure, 4, &first),
        Err(Error::WentBack { has: 2, wanted: 3 })
    );
    assert_eq!(
        remote.get_many(&tenure, &[b"k"]).unwrap().values,
        [Some(b"second".to_vec())]
    );
}

fn a_lost_tenure_changes_and_reads_nothing(remote: &impl Remote) {
    let old = remote.take(SHARD, &owner("a"), TTL / 8).unwrap();
    remote.apply(&old, 1, &puts(&[(b"k", b"old")])).unwrap();
    std::thread::sleep(TTL / 4);
    let new = remote.take(SHARD, &owner("b"), 100 * TTL).unwrap();
    assert_eq!(new.seq, 1);
    let lost = Err(Error::Lost { epoch: new.epoch });
    assert_eq!(remote.apply(&old, 2, &puts(&[(b"k", b"zombie")])), lost);
    assert_eq!(remote.apply(&old, 2, &deletes(&[b"k"])), lost);
    // Even a batch that it had applied: it cannot know what was done since.
    assert_eq!(remote.apply(&old, 1, &puts(&[(b"k", b"old")])), lost);
    assert_eq!(
        remote.get_many(&old, &[b"k"]).unwrap_err(),
        Error::Lost { epoch: new.epoch }
    );
    assert_eq!(
        remote.scan(&old, b"a", b"z", 9).unwrap_err(),
        Error::Lost { epoch: new.epoch }
    );
    assert_eq!(remote.get_many(&new, &[b"k"]).unwrap().values, [Some(b"old".to_vec())]);
    assert_eq!(remote.apply(&new, 2, &puts(&[(b"k", b"new")])), Ok(Applied::Now));
}

fn pages_come_in_the_order_of_bytes(remote: &impl Remote) {
    let tenure = remote.take(SHARD, &owner("a"), 100 * TTL).unwrap();
    let keys: [&[u8]; 6] = [b"", b"\x00", b"a", b"a\x00", b"b", b"\xff\xff"];
    let pairs: Vec<_> = keys.iter().rev().map(|&key| (key, &b"v"[..])).collect();
    remote.apply(&tenure, 1, &puts(&pairs)).unwrap();
    for limit in 1..8 {
        let mut seen = Vec::new();
        let mut from = Vec::new();
        loop {
            let page = remote.scan(&tenure, &from, b"\xff\xff\x00", limit).unwrap();
            assert!(page.pairs.len() <= limit);
            assert_eq!(page.seq, 1);
            seen.extend(page.pairs.into_iter().map(|(key, _)| key));
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!(seen, keys, "in pages of {limit}");
    }
    let page = remote.scan(&tenure, b"a", b"b", 9).unwrap();
    assert_eq!(page.pairs.len(), 2);
    assert_eq!(page.next, None);
    assert_eq!(remote.scan(&tenure, b"c", b"d", 9).unwrap().pairs, []);
    assert_eq!(remote.scan(&tenure, b"b", b"a", 9).unwrap().pairs, []);
}

fn values_and_keys_are_any_bytes(remote: &impl Remote) {
    let tenure = remote.take(SHARD, &owner("a"), 100 * TTL).unwrap();
    let all: Vec<u8> = (0..=255).collect();
    let long = vec![0xab; 300_000];
    let long_key = vec![7; 1000];
    let pairs: [(&[u8], &[u8]); 4] = [
        (&all, &all),
        (b"empty", b""),
        (b"'; --", b"\\x00'\""),
        (&long_key, &long),
    ];
    remote.apply(&tenure, 1, &puts(&pairs)).unwrap();
    let found = remote.get_many(&tenure, &pairs.map(|(key, _)| key)).unwrap();
    assert_eq!(found.values, pairs.map(|(_, value)| Some(value.to_vec())));
}

fn what_is_given_up_can_be_taken(remote: &impl Remote) {
    let first = remote.take(SHARD, &owner("a"), 100 * TTL).unwrap();
    remote.apply(&first, 1, &puts(&[(b"k", b"v")])).unwrap();
    remote.renew(&first, Duration::ZERO).unwrap();
    let second = remote.take(SHARD, &owner("b"), 100 * TTL).unwrap();
    assert_eq!((second.epoch, second.seq), (first.epoch + 1, 1));
    assert!(matches!(remote.renew(&first, TTL), Err(Error::Lost { .. })));
}

fn a_look_tells_who_owns_it_and_changes_nothing(remote: &impl Remote) {
    let fresh = remote.status(SHARD).unwrap();
    assert_eq!((fresh.owner.clone(), fresh.seq), (None, 0));
    assert!(!fresh.is_owned());
    let tenure = remote.take(SHARD, &owner("a"), 100 * TTL).unwrap();
    remote.apply(&tenure, 1, &puts(&[(b"k", b"v")])).unwrap();
    for _ in 0..3 {
        let seen = remote.status(SHARD).unwrap();
        assert_eq!(seen.owner, Some(owner("a")));
        assert_eq!((seen.epoch, seen.seq), (tenure.epoch, 1));
        assert!(seen.lease_left > 98 * TTL && seen.lease_left <= 100 * TTL, "{seen:?}");
    }
    remote.renew(&tenure, Duration::ZERO).unwrap();
    assert!(!remote.status(SHARD).unwrap().is_owned());
    // The looks took nothing.
    assert_eq!(remote.take(SHARD, &owner("b"), TTL).unwrap().epoch, tenure.epoch + 1);
}

fn pairs_are_counted_in_parts(remote: &impl Remote) {
    let tenure = remote.take(SHARD, &owner("a"), 100 * TTL).unwrap();
    let pairs: [(&[u8], &[u8]); 5] = [
        (b"a", b"1"),
        (b"b", b""),
        (b"b\x00", b"333"),
        (b"c", b"22"),
        (b"d", b"x"),
    ];
    remote.apply(&tenure, 1, &puts(&pairs)).unwrap();
    for limit in 1..7 {
        let (mut keys, mut bytes, mut from) = (0, 0, Some(b"a".to_vec()));
        while let Some(at) = from {
            let part = remote.tally(&tenure, &at, b"d", limit).unwrap();
            assert!(part.keys <= limit as u64 && part.seq == 1, "{part:?}");
            keys += part.keys;
            bytes += part.value_bytes;
            from = part.next;
        }
        assert_eq!((keys, bytes), (4, 6), "in parts of {limit}");
    }
    assert_eq!(remote.tally(&tenure, b"x", b"y", 9).unwrap().keys, 0);
    let next = remote.take(SHARD, &owner("a"), TTL).unwrap_or_else(|_| {
        remote.renew(&tenure, Duration::ZERO).unwrap();
        remote.take(SHARD, &owner("b"), TTL).unwrap()
    });
    let lost = remote.tally(&tenure, b"a", b"d", 9).unwrap_err();
    assert_eq!(lost, Error::Lost { epoch: next.epoch });
}
