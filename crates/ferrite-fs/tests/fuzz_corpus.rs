//! The fuzz targets on a stable compiler: every file of their corpora, and a number of random inputs.
//!
//! `FERRITE_SEED` replays one random input of each target; `FERRITE_SOAK=1` runs each for three minutes.

#[path = "../../../fuzz/src/attacks.rs"]
mod attacks;

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
}

/// A few patches, as a fuzzer makes them.
fn input(seed: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    let patches = 1 + rng.random_range(0..6usize) * rng.random_range(0..4usize);
    let mut bytes = vec![0; patches * 12];
    rng.fill_bytes(&mut bytes);
    for patch in bytes.chunks_exact_mut(12) {
        // Small numbers lead to more places that are in use.
        if rng.random_bool(0.5) {
            patch[6..8].fill(0);
        }
        if rng.random_bool(0.3) {
            patch[9..12].fill(0);
        }
    }
    bytes
}

#[test]
fn every_input_of_the_corpora_is_survived() {
    for (target, attack) in attacks::TARGETS {
        let files: Vec<_> = std::fs::read_dir(corpus(target))
            .unwrap_or_else(|error| panic!("the corpus of {target}: {error}"))
            .map(|file| file.unwrap().path())
            .collect();
        assert!(files.len() >= 20, "{target} has a corpus of {}", files.len());
        for file in files {
            let data = std::fs::read(&file).unwrap();
            assert!(catch_unwind(|| attack(&data)).is_ok(), "{}", file.display());
        }
    }
}

#[test]
fn random_inputs_are_survived() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let replay = std::env::var("FERRITE_SEED")
        .ok()
        .map(|seed| seed.parse::<u64>().expect("FERRITE_SEED is a number"));
    for (target, attack) in attacks::TARGETS {
        let started = Instant::now();
        let limit = Duration::from_secs(if soak { 180 } else { 4 });
        let first = replay.unwrap_or(0);
        for seed in first.. {
            let data = input(seed);
            if catch_unwind(|| attack(&data)).is_err() {
                let path = std::env::temp_dir().join(format!("{target}-{seed}"));
                let _ = std::fs::write(&path, &data);
                panic!(
                    "{target}: replay with FERRITE_SEED={seed}; the input is in {}",
                    path.display()
                );
            }
            if replay.is_some() || started.elapsed() > limit {
                println!("{target}: {} inputs", seed - first + 1);
                break;
            }
        }
    }
}

/// Writes the corpora anew: `cargo test -p ferrite-fs --test fuzz_corpus -- --ignored`.
#[test]
#[ignore = "changes files of the repository"]
fn write_the_corpora() {
    for (number, (target, _)) in attacks::TARGETS.into_iter().enumerate() {
        std::fs::create_dir_all(corpus(target)).unwrap();
        for seed in 0..24 {
            std::fs::write(
                corpus(target).join(format!("{seed:02}")),
                input(1000 * number as u64 + seed),
            )
            .unwrap();
        }
    }
}
