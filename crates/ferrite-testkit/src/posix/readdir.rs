//! Listings: complete, without duplicates, and stable while the directory changes.

use std::collections::BTreeMap;

use ferrite_vfs::{FileKind, Ino, SYSTEM};

use super::{Case, Harness, TOO_FEW_INODES};
use crate::rng::Rng;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "readdir/kinds and numbers are right",
        run: kinds,
    },
    Case {
        name: "readdir/an empty directory",
        run: empty,
    },
    Case {
        name: "readdir/a refused entry comes again",
        run: refused_entry,
    },
    Case {
        name: "readdir/10,000 entries in parts of every size",
        run: parts,
    },
    Case {
        name: "readdir/entries that stay come once, whatever else comes and goes",
        run: stable,
    },
    Case {
        name: "readdir/removing everything while listing",
        run: remove_all,
    },
    Case {
        name: "readdir/renames while listing",
        run: renames,
    },
    Case {
        name: "readdir/cookies outlive their entries",
        run: old_cookies,
    },
];

/// Lists up to `count` entries from `cookie`; returns their names and the cookie to continue from.
fn part(h: &Harness<'_>, dir: Ino, cookie: u64, count: usize) -> (Vec<String>, u64) {
    let (mut names, mut next) = (Vec::new(), cookie);
    h.fs()
        .readdir(SYSTEM, dir, cookie, &mut |entry| {
            if names.len() == count {
                return false;
            }
            names.push(String::from_utf8(entry.name.to_vec()).expect("the cases use UTF-8"));
            next = entry.next_cookie;
            true
        })
        .unwrap_or_else(|error| panic!("readdir from {cookie}: {error}"));
    (names, next)
}

/// The number of times each name comes in a listing of parts of `count`, with `between` run after each part.
fn tally(h: &Harness<'_>, dir: Ino, count: usize, mut between: impl FnMut(&[String])) -> BTreeMap<String, usize> {
    let (mut seen, mut cookie, mut calls) = (BTreeMap::new(), 0, 0);
    loop {
        let (names, next) = part(h, dir, cookie, count);
        if names.is_empty() {
            return seen;
        }
        between(&names);
        for name in names {
            *seen.entry(name).or_default() += 1;
        }
        cookie = next;
        calls += 1;
        assert!(calls < 100_000, "a listing that never ends");
    }
}

fn kinds(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    let mut expected = Vec::new();
    for (name, kind) in [
        ("b", FileKind::BlockDevice),
        ("c", FileKind::CharDevice),
        ("d", FileKind::Directory),
        ("f", FileKind::File),
        ("l", FileKind::Symlink),
        ("p", FileKind::Fifo),
        ("s", FileKind::Socket),
    ] {
        expected.push((name.to_owned(), kind, h.node(&format!("d/{name}"), kind)));
    }
    let mut listed = Vec::new();
    h.fs()
        .readdir(SYSTEM, dir, 0, &mut |entry| {
            listed.push((String::from_utf8_lossy(entry.name).into_owned(), entry.kind, entry.ino));
            true
        })
        .expect("readdir");
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(listed, expected, "and neither . nor ..");
}

fn empty(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    assert!(h.names("d").is_empty());
    for index in 0..500 {
        h.file(&format!("d/{index}"));
    }
    for index in 0..500 {
        h.unlink(&format!("d/{index}"));
    }
    assert!(h.names("d").is_empty());
    assert_eq!(part(h, dir, 0, 0).0.len(), 0);
}

fn refused_entry(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    for index in 0..100 {
        h.file(&format!("d/{index}"));
    }
    let (mut offered, mut taken, mut cookie) = (Vec::new(), Vec::new(), 0);
    while taken.len() < 100 {
        // One entry is accepted, the next refused: that must be the first of the next call.
        let mut call = Vec::new();
        h.fs()
            .readdir(SYSTEM, dir, cookie, &mut |entry| {
                call.push((entry.name.to_vec(), entry.next_cookie));
                call.len() < 2
            })
            .expect("readdir");
        assert!(call.len() <= 2, "entries came after a refusal");
        if let Some(last) = offered.pop() {
            assert_eq!(call[0].0, last);
        }
        taken.push(call[0].0.clone());
        cookie = call[0].1;
        offered = call.into_iter().skip(1).map(|(name, _)| name).collect();
    }
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 100);
}

fn parts(h: &Harness<'_>) {
    // Each part is a call, with as much of the listing as a reply holds; this takes several replies.
    let entries = if h.is_served() { 3_000 } else { 10_000 };
    let dir = h.mkdir("d");
    if h.fs().statfs(SYSTEM).expect("statfs").inodes_free < entries as u64 + 10 {
        return h.skip(TOO_FEW_INODES);
    }
    for index in 0..entries {
        h.file(&format!("d/entry {index}"));
    }
    for count in [1, 2, 7, 100, 4096, 20_000] {
        let seen = tally(h, dir, count, |_| {});
        assert_eq!(seen.len(), entries, "parts of {count}");
        assert!(
            seen.values().all(|&times| times == 1),
            "parts of {count}: an entry came twice"
        );
    }
}

fn stable(h: &Harness<'_>) {
    let seed = crate::seed_from_env().unwrap_or(0x11_57);
    let rounds = if h.is_served() { 2 } else { 8 };
    for round in 0..rounds {
        let mut rng = Rng::new(seed + round);
        let path = format!("d{round}");
        let dir = h.mkdir(&path);
        let name = |index: u64| format!("{path}/{}{index}", "long ".repeat((index % 9) as usize * 3));
        let mut others = Vec::new();
        for index in 0..1500 {
            h.file(&name(index));
            if index % 3 != 0 {
                others.push(index);
            }
        }
        let mut next = 1500;
        let count = 1 + rng.below(60) as usize;
        let seen = tally(h, dir, count, |_| {
            for _ in 0..rng.below(12) {
                if rng.chance(60) && !others.is_empty() {
                    let index = others.swap_remove(rng.below(others.len() as u64) as usize);
                    h.unlink(&name(index));
                } else if next < 4000 {
                    h.file(&name(next));
                    others.push(next);
                    next += 1;
                }
            }
        });
        for index in (0..1500).step_by(3) {
            let entry = &name(index)[path.len() + 1..];
            let times = seen.get(entry).copied().unwrap_or(0);
            assert_eq!(
                times, 1,
                "entry {index} came {times} times, round {round} (FERRITE_SEED={seed})"
            );
        }
        for index in others {
            let times = seen.get(&name(index)[path.len() + 1..]).copied().unwrap_or(0);
            assert!(
                times <= 1,
                "entry {index} came {times} times, round {round} (FERRITE_SEED={seed})"
            );
        }
    }
}

fn remove_all(h: &Harness<'_>) {
    for count in [1, 3, 50, 1000] {
        let dir = h.mkdir("d");
        for index in 0..1000 {
            h.file(&format!("d/{index}"));
        }
        let seen = tally(h, dir, count, |names| {
            names.iter().for_each(|name| h.unlink(&format!("d/{name}")))
        });
        assert_eq!(seen.len(), 1000, "rm -r with parts of {count} left entries out");
        h.rmdir("d");
    }
}

/// Entries renamed meanwhile may come under either name; the others come once.
fn renames(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    for index in 0..600 {
        h.file(&format!("d/{index}"));
    }
    let mut index = 0;
    let seen = tally(h, dir, 20, |_| {
        for _ in 0..10 {
            if index < 600 {
                h.rename(&format!("d/{index}"), &format!("d/renamed to something longer {index}"));
            }
            index += 2;
        }
    });
    for index in (1..600).step_by(2) {
        assert_eq!(seen.get(&index.to_string()), Some(&1), "entry {index}");
    }
}

fn old_cookies(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    for index in 0..300 {
        h.file(&format!("d/{index}"));
    }
    let (first, cookie) = part(h, dir, 0, 100);
    // The very entry after which the cookie continues is removed with its neighbours, and others take the space.
    for name in first.iter().skip(50) {
        h.unlink(&format!("d/{name}"));
    }
    let (mut later, _) = part(h, dir, cookie, 1000);
    assert_eq!(later.len(), 200);
    for name in &later[..100] {
        h.unlink(&format!("d/{name}"));
    }
    let (mut rest, end) = part(h, dir, cookie, 1000);
    later.drain(..100);
    later.sort();
    rest.sort();
    assert_eq!(rest, later);
    assert!(part(h, dir, end, 10).0.is_empty(), "the end is the end");
}
