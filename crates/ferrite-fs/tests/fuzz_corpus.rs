//! The fuzz targets on a stable compiler: every file of their corpora, and a number of random inputs. A part of the
//! corpora also behind a network that delays, reorders and repeats.
//!
//! `FERRITE_SEED` replays one random input of each target; `FERRITE_SOAK=1` runs each for three minutes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_fs::Engine;
use ferrite_testkit::network::{Conditions, Remote};
use ferrite_testkit::{seed_from_env, two_at_a_time};
use ferrite_vfs::FileSystem;
use ferrite_vfs::memfs::MemFs;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::attacks;
use crate::common;

/// Bytes of a patch.
const PATCH: usize = 12;
/// Seeds of a corpus.
const SEEDS: u64 = 40;
/// An attack takes milliseconds.
const HANGS: Duration = Duration::from_secs(60);

fn corpus(target: &str) -> PathBuf {
    Path::new("../../fuzz/corpus").join(target)
}

/// A few patches, as a fuzzer makes them.
fn input(seed: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    let patches = 1 + rng.random_range(0..5usize) * rng.random_range(0..4usize);
    let mut bytes = vec![0; patches * PATCH];
    rng.fill_bytes(&mut bytes);
    for patch in bytes.chunks_exact_mut(PATCH) {
        // Most places of most tables are free.
        if rng.random_bool(0.8) {
            patch[1] &= 0x7f;
        }
        // Small values are those that structures hold.
        if rng.random_bool(0.5) {
            patch[9..12].fill(0);
        }
    }
    // The kind of pool: all of them in turn.
    bytes[3] = seed as u8;
    bytes
}

/// Runs one target's attacks in a thread of their own, so that a hang is noticed and the input named.
struct Victim {
    inputs: mpsc::Sender<Vec<u8>>,
    survived: mpsc::Receiver<bool>,
    _thread: JoinHandle<()>,
}

impl Victim {
    fn new(attack: impl Fn(&[u8]) + Send + 'static) -> Victim {
        let (inputs, received) = mpsc::channel::<Vec<u8>>();
        let (answer, survived) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            for data in received {
                let _ = answer.send(catch_unwind(AssertUnwindSafe(|| attack(&data))).is_ok());
            }
        });
        Victim {
            inputs,
            survived,
            _thread: thread,
        }
    }

    /// Panics with the text of `name` if the engine does not survive.
    fn attack(&self, data: &[u8], name: impl Fn() -> String) {
        self.inputs.send(data.to_vec()).expect("the thread lives");
        match self.survived.recv_timeout(HANGS) {
            Ok(true) => {}
            Ok(false) => panic!("{}: a panic", name()),
            Err(_) => panic!("{}: no end after {} s", name(), HANGS.as_secs()),
        }
    }
}

/// The files of a corpus.
fn inputs_of(target: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(corpus(target))
        .unwrap_or_else(|error| panic!("the corpus of {target}: {error}"))
        .map(|file| file.unwrap().path())
        .collect();
    files.sort_unstable();
    assert!(files.len() >= 20, "{target} has a corpus of {}", files.len());
    files
}

#[test]
fn every_input_of_the_corpora_is_survived() {
    for (target, attack) in attacks::TARGETS {
        let victim = Victim::new(attack);
        for file in inputs_of(target) {
            victim.attack(&std::fs::read(&file).unwrap(), || file.display().to_string());
        }
    }
}

type MakeEngine = fn(&[u8]) -> Arc<dyn FileSystem>;

fn behind_a_network(engine: Arc<dyn FileSystem>, seed: u64) -> Remote<Arc<dyn FileSystem>> {
    Remote::new(engine, Conditions::rough(seed))
}

/// Tries one input in this many, unless there is time for all.
const NETWORK_EVERY: usize = 4;

#[test]
fn inputs_of_the_corpora_are_survived_behind_a_network() {
    let every = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 1,
        None => NETWORK_EVERY,
    };
    for (number, (target, pool)) in attacks::DAMAGES.into_iter().enumerate() {
        let front = |engine: Engine| Box::new(behind_a_network(Arc::new(engine), 5)) as Box<dyn FileSystem>;
        let victim = Victim::new(move |data| attacks::live_behind(&pool(data), front));
        // Inputs of the same number have the same kind of pool.
        for file in inputs_of(target).iter().skip(number % every).step_by(every) {
            victim.attack(&std::fs::read(file).unwrap(), || file.display().to_string());
        }
    }
}

/// The attacks on a sound pool leave the same tree on both engines, behind a network or not.
#[test]
fn a_network_changes_nothing_of_what_attacks_do() {
    let pool = common::empty_pool(4 << 20, &common::fixed().inodes(127).rings(2));
    let engines: [MakeEngine; 2] = [|_| Arc::new(MemFs::new()), |pool| Arc::new(common::mount(pool))];
    let attacked = |fs: &dyn FileSystem| {
        attacks::fill(fs).unwrap();
        let mut names = attacks::walk(fs);
        // Engines list them in orders of their own.
        names.sort_by(|(_, a, _), (_, b, _)| a.cmp(b));
        attacks::write(fs, &names);
        common::capture(fs)
    };
    let expected = attacked(&*engines[0](&pool));
    assert!(expected.len() > 30, "{} files", expected.len());
    for engine in engines {
        assert_eq!(attacked(&*engine(&pool)), expected);
        for seed in 0..4 {
            let remote = behind_a_network(engine(&pool), seed);
            assert_eq!(attacked(&remote), expected, "seed {seed}");
            assert!(remote.network().resent() > 0, "seed {seed}: a calm network");
        }
    }
}

#[test]
fn random_inputs_are_survived() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let replay = seed_from_env();
    let first = replay.unwrap_or_else(rand::random);
    println!("FERRITE_SEED={first} and those behind it");
    let limit = Duration::from_secs(if soak { 180 } else { 4 });
    two_at_a_time(&attacks::TARGETS, |&target| {
        try_random_inputs(target, first, replay.is_none().then_some(limit));
    });
}

/// Tries inputs from seed `first` on, until `limit` is over; without one, that input alone.
fn try_random_inputs((target, attack): (&str, fn(&[u8])), first: u64, limit: Option<Duration>) {
    let victim = Victim::new(attack);
    let started = Instant::now();
    let mut done = 0;
    while done == 0 || limit.is_some_and(|limit| started.elapsed() < limit) {
        let seed = first.wrapping_add(done);
        let data = input(seed);
        victim.attack(&data, || {
            let path = std::env::temp_dir().join(format!("{target}-{seed}"));
            let _ = std::fs::write(&path, &data);
            let path = path.display();
            format!("{target}: replay with FERRITE_SEED={seed}; the input is in {path}")
        });
        done += 1;
    }
    println!("{target}: {done} inputs");
}

/// Writes the corpora anew: `cargo test -p ferrite-fs --test it fuzz_corpus:: -- --ignored`. Inputs with other names,
/// found earlier and kept, stay.
#[test]
#[ignore = "changes files of the repository"]
fn write_the_corpora() {
    for (number, (target, _)) in attacks::TARGETS.into_iter().enumerate() {
        std::fs::create_dir_all(corpus(target)).unwrap();
        for seed in 0..SEEDS {
            std::fs::write(
                corpus(target).join(format!("{seed:02}")),
                input(1000 * number as u64 + seed),
            )
            .unwrap();
        }
    }
}
