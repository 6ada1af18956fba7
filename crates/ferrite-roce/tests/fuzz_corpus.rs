//! The fuzz target of the RDMA wire on a stable compiler: every file of its corpus, and a number of random inputs.
//!
//! `FERRITE_SEED` replays one random input; `FERRITE_SOAK=1` runs for three minutes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferrite_roce::wire::Opcode;
use ferrite_roce::wire::opcode::Place;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;

use crate::roce;

/// Seeds of the corpus.
const SEEDS: u64 = 40;

fn corpus(target: &str) -> PathBuf {
    Path::new("../../fuzz/corpus").join(target)
}

/// Bytes with many small ones, as counts have.
fn bytes(random: &mut Rng, len: u64) -> Vec<u8> {
    let byte = |random: &mut Rng| match random.below(3) {
        0 => random.below(256) as u8,
        1 => random.below(4) as u8,
        _ => 0,
    };
    (0..len).map(|_| byte(random)).collect()
}

/// Requests that are valid alone, and in sequence.
const LIKELY: &[Opcode] = &[
    Opcode::WriteOnly,
    Opcode::SendOnly,
    Opcode::ReadRequest,
    Opcode::FetchAdd,
    Opcode::CompareSwap,
    Opcode::ReadResponseOnly,
    Opcode::Acknowledge,
];
const IN_A_ROW: [Opcode; 3] = [Opcode::WriteFirst, Opcode::WriteMiddle, Opcode::WriteLast];

/// Plausible content behind the base header of a request: the address, the key, the length, the bytes.
fn content(random: &mut Rng, opcode: Opcode) -> Vec<u8> {
    let is_full = matches!(opcode.place(), Place::First | Place::Middle);
    let len = if is_full {
        256
    } else {
        *random.pick(&[0u64, 8, 8, 100, 128])
    };
    let mut content = Vec::new();
    if opcode.has_reth() || opcode.is_atomic() {
        content.extend(random.pick(&[0u64, 0, 1, 8, 3_000, 1 << 63, u64::MAX]).to_be_bytes());
        content.extend(random.pick(&[1u32, 1, 1, 1, 2]).to_be_bytes());
    }
    if opcode.has_reth() {
        let announced = match opcode {
            Opcode::ReadRequest => *random.pick(&[0, 8, 300, 1_000]),
            Opcode::WriteFirst => 2 * 256 + 8,
            _ => len as u32,
        };
        content.extend(announced.to_be_bytes());
    }
    let behind = opcode.extended_bytes().saturating_sub(content.len());
    content.extend(bytes(random, behind as u64));
    if opcode.has_payload() {
        content.extend(bytes(random, len));
    }
    content
}

/// An input as a fuzzer makes it.
fn input(seed: u64) -> Vec<u8> {
    let random = &mut Rng::new(seed);
    let kind = random.below(4);
    let mut input = vec![kind as u8];
    match kind {
        0 => {
            let opcode = *random.pick(Opcode::ALL);
            input.extend([opcode.number(), (random.below(4) << 4) as u8]);
            let len = 10 + opcode.extended_bytes() as u64 + 4 * random.below(10);
            input.extend(bytes(random, len));
        }
        1 => {
            input.extend([1, 7, 2, 3]);
            input.extend([0; 13]);
            input.push(0x10 + random.below(8) as u8);
            input.extend([0; 6]);
            input.extend(bytes(random, 232));
        }
        2 => {
            for _ in 0..random.below(6) {
                let opcodes = match random.below(4) {
                    0 => IN_A_ROW.to_vec(),
                    1 => vec![*random.pick(Opcode::ALL)],
                    _ => vec![*random.pick(LIKELY)],
                };
                for opcode in opcodes {
                    let content = content(random, opcode);
                    let distance = *random.pick(&[0x82, 0x82, 0x82, 0x82, 0x82, 0x82, 2, 0x81, 0x83, 0xc2]);
                    input.extend([(content.len() / 2) as u8, opcode.number(), distance]);
                    input.extend(content);
                }
            }
        }
        _ => {
            for _ in 0..random.below(20) {
                let (theirs, ours) = (random.below(4) as u8, random.below(5) as u8);
                input.extend([random.below(20) as u8, random.below(256) as u8, theirs, ours]);
                let len = u64::from(input[input.len() - 4]);
                input.extend(bytes(random, len));
            }
        }
    }
    input
}

/// Names the input that failed.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

#[test]
fn every_input_of_the_corpus_is_survived() {
    for (target, attack) in roce::TARGETS {
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
    for (target, attack) in roce::TARGETS {
        let (started, mut done) = (Instant::now(), 0);
        while done == 0 || (replay.is_none() && started.elapsed() < limit) {
            let seed = first.wrapping_add(done);
            let _named = Named(format!("{target}: replay with FERRITE_SEED={seed}"));
            attack(&input(seed));
            done += 1;
        }
        eprintln!("{target}: {done} inputs");
    }
}

/// Valid requests reach the memory: the attack gets past the first check.
#[test]
fn requests_that_make_sense_are_carried_out() {
    let inputs = (0..).map(input).filter(|input| input[0] == 2);
    let calls: Vec<u64> = inputs.take(400).map(|input| roce::session(&input[1..])).collect();
    let deep = calls.iter().filter(|calls| **calls >= 3).count();
    assert!(deep >= 40, "memory was called three times by {deep} of 400 inputs");
}

fn rand_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |now| now.as_nanos() as u64)
}

/// Rewrites the corpus: `cargo test -p ferrite-roce --test fuzz_corpus -- --ignored`. Inputs with other names, that
/// were found and kept, stay.
#[test]
#[ignore = "changes files of the repository"]
fn write_the_corpus() {
    for (target, _) in roce::TARGETS {
        std::fs::create_dir_all(corpus(target)).unwrap();
        for seed in 0..SEEDS {
            std::fs::write(corpus(target).join(format!("{seed:02}")), input(seed)).unwrap();
        }
    }
}
