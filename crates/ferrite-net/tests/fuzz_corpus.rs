//! The fuzz targets of the network on a stable compiler: every file of their corpora, and a number of random inputs.
//!
//! `FERRITE_SEED` replays one random input of each target; `FERRITE_SOAK=1` runs each for three minutes.

#[path = "../../../fuzz/src/network.rs"]
mod network;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferrite_net::wire::{Head, Request, Wire};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;

/// Seeds of a corpus.
const SEEDS: u64 = 40;
/// Numbers of requests.
const NUMBERS: u64 = 50;

fn corpus(target: &str) -> PathBuf {
    Path::new("../../fuzz/corpus").join(target)
}

/// Bytes of which many are small, as numbers of things are.
fn bytes(random: &mut Rng, len: u64) -> Vec<u8> {
    let byte = |random: &mut Rng| match random.below(3) {
        0 => random.below(256) as u8,
        1 => random.below(4) as u8,
        _ => 0,
    };
    (0..len).map(|_| byte(random)).collect()
}

/// An input as a fuzzer makes it.
fn input(target: &str, seed: u64) -> Vec<u8> {
    let random = &mut Rng::new(seed);
    if target == "wire_message" {
        let kind = random.below(12);
        let mut input = vec![kind as u8];
        if kind >= 10 {
            let head = Head {
                id: random.below(5),
                settled_below: 0,
                pins: false,
                check: false,
                once: None,
                caller: Default::default(),
            };
            head.put(&mut input);
        }
        if kind >= 9 {
            input.extend((random.below(NUMBERS) as u16).to_le_bytes());
        }
        let len = random.below(120);
        input.extend(bytes(random, len));
        return input;
    }
    // Now and then without a greeting, or even without the handshake before it.
    let manners = random.below(16);
    let mut input = vec![if manners < 4 { manners as u8 } else { 0 }];
    for _ in 0..random.below(12) {
        let way = random.below(16) as u8;
        let mut piece = Vec::new();
        if way >> 1 & 3 >= 2 {
            piece.extend((random.below(NUMBERS) as u16).to_le_bytes());
        }
        let len = random.below(60);
        piece.extend(bytes(random, len));
        input.extend([piece.len() as u8, way]);
        input.extend(piece);
    }
    input
}

/// Says which input it was that was not survived.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

#[test]
fn every_input_of_the_corpora_is_survived() {
    for (target, attack) in network::TARGETS {
        let mut files: Vec<_> = std::fs::read_dir(corpus(target))
            .unwrap_or_else(|error| panic!("the corpus of {target}: {error}"))
            .map(|file| file.unwrap().path())
            .collect();
        files.sort_unstable();
        assert!(files.len() >= 20, "{target} has a corpus of {}", files.len());
        for file in files {
            let _named = Named(file.display().to_string());
            attack(&std::fs::read(&file).unwrap());
        }
    }
}

#[test]
fn random_inputs_are_survived() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let replay = seed_from_env();
    let first = replay.unwrap_or_else(rand_seed);
    println!("FERRITE_SEED={first} and those behind it");
    let limit = Duration::from_secs(if soak { 180 } else { 2 });
    for (target, attack) in network::TARGETS {
        let (started, mut done) = (Instant::now(), 0);
        while done == 0 || (replay.is_none() && started.elapsed() < limit) {
            let seed = first.wrapping_add(done);
            let _named = Named(format!("{target}: replay with FERRITE_SEED={seed}"));
            attack(&input(target, seed));
            done += 1;
        }
        eprintln!("{target}: {done} inputs");
    }
}

/// Requests that make sense reach the engine: the attack is not one on the first check alone.
#[test]
fn requests_with_a_seal_are_carried_out() {
    let name = format!("made-{}", std::process::id());
    let mut request = Vec::new();
    let mkdir = Request::Mkdir {
        parent: ferrite_net::wire::Node {
            ino: 0,
            generation: 0,
            seal: 0,
        },
        name: name.as_bytes(),
        mode: 0o755,
    };
    mkdir.put(&mut request);
    // The target puts the root there.
    let node_bytes = 20;
    request.drain(2..2 + node_bytes);
    let mut input = vec![0, request.len() as u8, 3 << 1];
    input.extend(request);
    network::server_session(&input);
    assert!(network::is_there(name.as_bytes()));
}

fn rand_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |now| now.as_nanos() as u64)
}

/// Writes the corpora anew: `cargo test -p ferrite-net --test fuzz_corpus -- --ignored`. Inputs with other names, that
/// somebody found and kept, stay.
#[test]
#[ignore = "changes files of the repository"]
fn write_the_corpora() {
    for (target, _) in network::TARGETS {
        std::fs::create_dir_all(corpus(target)).unwrap();
        for seed in 0..SEEDS {
            std::fs::write(corpus(target).join(format!("{seed:02}")), input(target, seed)).unwrap();
        }
    }
}
