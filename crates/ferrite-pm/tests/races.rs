//! The guarantees for threads that read and store at the same place: docs/memory-model.md, stressed from outside.
//!
//! Guarantees: no reader sees a word of 8 bytes half old and half new, however it was stored and is read; threads that
//! store to different bytes of a word do not undo each other's stores; a thread that sees a word sees the bytes that
//! were streamed and fenced before it was stored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrite_pm::Region;

const PRESSED_FOR: Duration = Duration::from_millis(700);
const BYTES: u64 = 4096;

/// As good as random, and the same in each run.
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Runs some threads, each again and again, until time is up or one of them has failed.
fn press(threads: &mut [&mut (dyn FnMut() + Send)]) {
    let until = Instant::now() + PRESSED_FOR;
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in threads {
            let failed = &failed;
            scope.spawn(move || {
                struct Told<'a>(&'a AtomicBool);
                impl Drop for Told<'_> {
                    fn drop(&mut self) {
                        self.0.store(std::thread::panicking(), Ordering::Relaxed);
                    }
                }
                while Instant::now() < until && !failed.load(Ordering::Relaxed) {
                    let told = Told(failed);
                    (0..100).for_each(|_| thread());
                    // Only a panic counts.
                    std::mem::forget(told);
                }
            });
        }
    });
}

#[test]
fn words_are_whole_however_they_are_stored_and_read() {
    let region = Region::anonymous(2 * BYTES).unwrap();
    // Each word has eight equal bytes, always.
    let (mut first, mut second) = (1, 2);
    let mut seen = 0u64;
    press(&mut [
        &mut || {
            let (from, value) = (next(&mut first) % (BYTES / 8) * 8, next(&mut first) as u8);
            let len = (next(&mut first) % 40 * 8).min(BYTES - from);
            region.stream(from, &vec![value; len as usize]);
        },
        &mut || {
            let (word, value) = (next(&mut second) % (BYTES / 8 - 4), next(&mut second) as u8);
            region.store_words(word * 8, &[u64::from_ne_bytes([value; 8]); 4]);
            region.stream(0, &[value; BYTES as usize]);
        },
        &mut || {
            let from = next(&mut seen) % BYTES;
            let mut found = vec![0; (next(&mut seen) % 2500).min(BYTES - from) as usize];
            region.read(from, &mut found);
            let bytes: Vec<(u64, u8)> = (from..).zip(found).collect();
            for word in bytes.chunk_by(|(one, _), (other, _)| one / 8 == other / 8) {
                assert!(word.iter().all(|(_, byte)| *byte == word[0].1), "torn: {word:?}");
            }
        },
    ]);
}

/// Two threads that store to different bytes of a word, and to those beside it.
#[test]
fn bytes_that_share_a_word_are_not_lost() {
    let region = Region::anonymous(BYTES).unwrap();
    let own = |at: u64, len: usize| {
        let (region, mut turn) = (&region, 0u8);
        move || {
            // The stores of the turn before: a thread always sees its own latest stores.
            let mut found = [0; 16];
            region.read(at, &mut found[..len]);
            assert_eq!(found[..len], [turn; 16][..len], "another thread undid a store at {at}");
            turn = turn.wrapping_add(1);
            region.stream(at, &[turn; 16][..len]);
        }
    };
    press(&mut [&mut own(64, 3), &mut own(67, 10)]);
}

#[test]
fn what_was_fenced_is_there_for_who_sees_the_word_behind_it() {
    let region = Region::anonymous(2 * BYTES).unwrap();
    let (mut written, mut last) = (0u64, 0u64);
    press(&mut [
        &mut || {
            written += 1;
            region.stream(0, &written.to_ne_bytes().repeat(BYTES as usize / 8));
            region.fence().unwrap();
            region.store(BYTES, written);
        },
        &mut || {
            let published = region.load(BYTES);
            let mut found = [0; BYTES as usize];
            region.read(0, &mut found);
            let behind = region.load(BYTES);
            assert!(last <= published && published <= behind);
            for word in found.chunks_exact(8) {
                let word = u64::from_ne_bytes(word.try_into().unwrap());
                // The next one may be on its way.
                assert!(
                    (published..=behind + 1).contains(&word),
                    "{word} between {published} and {behind}"
                );
            }
            last = published;
        },
    ]);
    assert!(written > 100, "{written} pages: nothing was pressed");
}
