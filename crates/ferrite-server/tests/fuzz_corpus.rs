//! The fuzz targets of the network on a stable compiler: every file of their corpora, and a number of random inputs.
//!
//! `FERRITE_SEED` replays one random input of each target; `FERRITE_SOAK=1` runs each for three minutes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferrite_proto::{Encode, FsRequest, Head};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;

use crate::handshake;
use crate::network;
use crate::replies;

/// All targets.
const TARGETS: [network::Target; 4] = [
    network::TARGETS[0],
    network::TARGETS[1],
    ("handshake", handshake::handshake),
    ("client_replies", replies::client_replies),
];

/// Seeds of a corpus.
const SEEDS: u64 = 40;
/// Numbers of requests.
const NUMBERS: u64 = 61;

fn corpus(target: &str) -> PathBuf {
    Path::new("../../fuzz/corpus").join(target)
}

/// Bytes of which many are small, like real numbers of objects.
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
                token: None,
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
    if target == "handshake" {
        return handshake_input(random);
    }
    if target == "client_replies" {
        return replies_input(random);
    }
    // Occasionally without a hello, or even without the handshake before it.
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

fn handshake_input(random: &mut Rng) -> Vec<u8> {
    let who = random.below(8) as u8;
    // Mostly a server that knows the key.
    let demands = random.below(32) as u8 | if random.chance(75) { 2 } else { 0 };
    let step = [1, 7, 28, 255][random.below(4) as usize];
    let changes = random.below(4) as u8;
    let mut input = vec![who, demands, step, changes];
    if who & 1 == 1 {
        // A preamble, or a similar message.
        let mut preamble = vec![0; 28];
        preamble[..10].copy_from_slice(b"\xf3errite\n\x01\x00");
        preamble[9] = random.below(3) as u8;
        if random.chance(25) {
            preamble[random.below(10) as usize] ^= 1 << random.below(8);
        }
        input.extend(preamble);
    } else {
        for _ in 0..changes {
            // Of the client's bytes, handshake and records have some 150; the server sends 61.
            let to_server = random.below(2) as u8;
            let place = random.below(if to_server == 1 { 150 } else { 61 }) as u8;
            input.extend([to_server, place, 1 << random.below(8)]);
        }
    }
    let len = random.below(80);
    input.extend(bytes(random, len));
    input
}

/// Mostly one small change of a reply, and occasionally one of the hello.
fn replies_input(random: &mut Rng) -> Vec<u8> {
    let mut input = vec![random.below(2) as u8];
    for _ in 0..1 + random.below(4) {
        let (is_long, is_hello) = (random.chance(20), random.chance(10));
        let len = 1 + random.below(if is_long { 60 } else { 10 });
        let to = random.below(if is_hello { 4 } else { 64 }) as u8;
        input.extend([to, random.below(8) as u8, len as u8]);
        input.extend(bytes(random, len));
    }
    input
}

/// Names the input that a target did not survive.
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
    for (target, attack) in TARGETS {
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
    for (target, attack) in TARGETS {
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

/// Valid requests reach the engine: the attack is not one on the first check alone.
#[test]
fn requests_with_a_mac_are_carried_out() {
    let name = format!("made-{}", std::process::id());
    let mut request = Vec::new();
    let mkdir = FsRequest::Mkdir {
        parent: ferrite_proto::Node {
            ino: 0,
            generation: 0,
            mac: 0,
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

/// Rewrites the corpora: `cargo test -p ferrite-server --test it fuzz_corpus:: -- --ignored`. Other inputs, which
/// were found and kept, stay.
#[test]
#[ignore = "changes files of the repository"]
fn write_the_corpora() {
    for (target, _) in TARGETS {
        std::fs::create_dir_all(corpus(target)).unwrap();
        for seed in 0..SEEDS {
            std::fs::write(corpus(target).join(format!("{seed:02}")), input(target, seed)).unwrap();
        }
    }
}
