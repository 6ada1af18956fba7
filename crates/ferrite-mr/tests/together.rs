//! Threads of an RNIC and of programs on the same pages, while the engine moves them.
//!
//! Guarantees under test: no write of either side is lost or lands elsewhere; the engine's own assertions hold
//! (`double`).

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ferrite_mr::Options;
use ferrite_roce::memory::{APPEND_AT, Fault, Memory};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;

use crate::double::{PAGE, SESSION, fixture, read, retry_while_deferred, write};

const PAGES: u64 = 4;
const WORDS: u64 = PAGES * PAGE as u64 / 8;
/// Threads that write: each owns the words whose number leaves its remainder.
const REMOTE: u64 = 2;
const LOCAL: u64 = 2;

/// Each thread writes its own words, reads them again, and finds its last writes in the end.
#[test]
fn no_write_of_either_side_is_lost() {
    let seed = seed_from_env().unwrap_or(1);
    println!("FERRITE_SEED={seed}");
    let fixture = fixture(PAGES * PAGE as u64, Options::default());
    let all = REMOTE + LOCAL;
    let ends = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..all)
            .map(|thread| {
                let fixture = &fixture;
                scope.spawn(move || {
                    let random = &mut Rng::new(seed << 8 | thread);
                    let mut memory = fixture.registrar.memory();
                    let mut mine = vec![0u64; (WORDS / all) as usize];
                    for round in 1..=1_500u64 {
                        let which = random.below(mine.len() as u64);
                        let at = (which * all + thread) * 8;
                        let value = (round << 8 | thread).to_le_bytes();
                        let found = if thread < REMOTE {
                            let qpn = 1 + thread as u32;
                            write(&mut memory, qpn, fixture.key, at, &value).unwrap();
                            read(&mut memory, qpn, fixture.key, at, 8).unwrap()
                        } else {
                            // Faults bring a page that is not published again.
                            fixture.file.publishes.store(random.chance(70), SeqCst);
                            fixture.file.write(at, &value);
                            fixture.file.read(at, 8)
                        };
                        assert_eq!(found, value, "thread {thread}, round {round}, word {at}");
                        mine[which as usize] = u64::from_le_bytes(value);
                    }
                    mine
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    let bytes = fixture.file.read(0, (WORDS * 8) as usize);
    for (word, found) in bytes.chunks_exact(8).enumerate() {
        let (which, thread) = (word as u64 / all, word as u64 % all);
        let wanted = ends[thread as usize][which as usize];
        assert_eq!(u64::from_le_bytes(found.try_into().unwrap()), wanted, "word {word}");
    }
    let status = &fixture.registrar.list()[0].status;
    assert!(status.revocations > 1_000 && status.total.faults > 0);
    assert_eq!(status.by_thread.len() as u64, REMOTE);
}

/// Sums are exact, appends come once each and whole, and threads share the engine's steps.
#[test]
fn sums_and_appends_of_many_threads_are_exact() {
    let fixture = fixture(8, Options::default());
    let (threads, rounds) = (4u32, 200u32);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let fixture = &fixture;
            scope.spawn(move || {
                let mut memory = fixture.registrar.memory();
                for round in 0..rounds {
                    let qpn = 1 + thread;
                    retry_while_deferred(|| memory.fetch_add(qpn, fixture.key, 0, u64::from(round))).unwrap();
                    let data = pattern(thread << 16 | (round + 1), 1 + (round % 90) as usize);
                    write(&mut memory, qpn, fixture.key, APPEND_AT, &data).unwrap();
                }
            });
        }
    });
    let sum = u64::from(threads * (0..rounds).sum::<u32>());
    assert_eq!(fixture.file.read(0, 8), sum.to_le_bytes());
    let mut wanted: Vec<Vec<u8>> = (0..threads)
        .flat_map(|thread| (0..rounds).map(move |round| pattern(thread << 16 | (round + 1), 1 + (round % 90) as usize)))
        .collect();
    let parts = fixture.file.parts.lock().unwrap();
    let mut end = 8;
    for (at, data) in parts.iter() {
        assert_eq!(*at, end, "appends follow each other");
        assert_eq!(&fixture.file.read(*at, data.len()), data);
        end += data.len() as u64;
    }
    assert_eq!(end, fixture.file.size());
    let mut found: Vec<Vec<u8>> = parts.iter().map(|(_, data)| data.clone()).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert!(found == wanted, "each append is there once");
    let steps = fixture.file.steps.load(SeqCst);
    println!("{} appends in {steps} steps", parts.len());
    assert!(steps <= parts.len() as u64);
}

/// Once a key is revoked, nothing that it allowed happens any more.
#[test]
fn a_key_that_was_released_changes_nothing_any_more() {
    for _ in 0..30 {
        let fixture = fixture(PAGE as u64, Options::default());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for qpn in 1..3 {
                let (fixture, is_over) = (&fixture, &is_over);
                scope.spawn(move || {
                    let mut memory = fixture.registrar.memory();
                    loop {
                        let was_over = is_over.load(SeqCst);
                        let added = retry_while_deferred(|| memory.fetch_add(qpn, fixture.key, 0, 1));
                        let appended = write(&mut memory, qpn, fixture.key, APPEND_AT, &[1]);
                        if was_over {
                            assert_eq!((added, appended), (Err(Fault::Access), Err(Fault::Access)));
                            return;
                        }
                    }
                });
            }
            while fixture.file.read(0, 8) == [0; 8] {
                std::thread::yield_now();
            }
            fixture.registrar.release(SESSION, fixture.key).unwrap();
            let (bytes, size) = (fixture.file.read(0, 8), fixture.file.size());
            is_over.store(true, SeqCst);
            std::thread::yield_now();
            assert_eq!((fixture.file.read(0, 8), fixture.file.size()), (bytes, size));
        });
        assert!(!fixture.file.is_bound());
    }
}
