//! Crashes while a log on a pool is appended to and rewound: each fence, and images that a crash there could leave.
//!
//! Protects: a walk returns the appends before the crash, whole; the append in progress is there whole or not at all; a
//! rewind that had returned is not undone; and the log still works.

use std::collections::HashSet;
use std::sync::Arc;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, mkfs};
use ferrite_log::{FileStore, Log, LogOptions};
use ferrite_pm::{Choice, Image, Log as Recorded, Recorder, Region};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;
use ferrite_vfs::{FileSystem, Ino, NewFile, OpenMode, ROOT_INO, SYSTEM};

const POOL_BYTES: u64 = 4 << 20;

fn mount(region: Region) -> Engine {
    Engine::mount(region, &MountOptions::default().cleaner(false)).unwrap()
}

fn open(engine: &Engine, ino: Ino, create: bool) -> ferrite_log::Result<Log<FileStore>> {
    let store = FileStore::open(engine, SYSTEM, ino, true)?;
    Log::open(store, &LogOptions::default().create(create))
}

fn walk(log: &Log<FileStore>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    log.walk_appends(|data| {
        found.push(data.to_vec());
        true
    })
    .unwrap();
    found
}

struct Run {
    log: Recorded,
    ino: Ino,
    /// Before the first step and after each. `None`: no log exists yet.
    states: Vec<Option<Vec<Vec<u8>>>>,
}

fn record(mapping: Mapping, seed: u64, steps: usize) -> Run {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let options = MkfsOptions::default().mapping(mapping).inodes(63).rings(2).seed(42);
    mkfs(&region, &options).unwrap();
    let mut empty = vec![0; POOL_BYTES as usize];
    region.read(0, &mut empty);
    let recorder = Recorder::new(empty.clone());
    let mut region = Region::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = mount(region);
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let ino = engine.create(SYSTEM, ROOT_INO, b"log", &new).unwrap().attr.ino;
    recorder.mark(0);
    let mut random = Rng::new(seed);
    let mut log = open(&engine, ino, true).unwrap();
    let mut states = vec![None, Some(Vec::new())];
    recorder.mark(1);
    for number in 2..steps {
        let mut content = states.last().unwrap().clone().unwrap();
        match random.below(12) {
            0 => {
                log.rewind().unwrap();
                content.clear();
            }
            1 => log = open(&engine, ino, false).unwrap(),
            _ => {
                let len = [3, 64, 1_000, 4_064, 30_000][random.below(5) as usize];
                let data = pattern(number as u32, len);
                log.append(&data).unwrap();
                content.push(data);
            }
        }
        states.push(Some(content));
        recorder.mark(number as u64);
    }
    let recorded = recorder.log();
    drop(engine);
    Run {
        log: recorded,
        ino,
        states,
    }
}

fn verify(image: &Image, run: &Run, returned: usize) -> Result<(), String> {
    let engine = mount(Region::of_image(image).unwrap());
    let before = &run.states[returned];
    let after = run.states.get(returned + 1).unwrap_or(before);
    let found = match open(&engine, run.ino, false) {
        Ok(log) => Some(walk(&log)),
        Err(ferrite_log::Error::Empty) => None,
        Err(error) => return Err(error.to_string()),
    };
    if found != *before && found != *after {
        let lens =
            |state: &Option<Vec<Vec<u8>>>| state.as_ref().map(|all| all.iter().map(Vec::len).collect::<Vec<_>>());
        return Err(format!(
            "walked {:?}, was {:?}, becomes {:?}",
            lens(&found),
            lens(before),
            lens(after)
        ));
    }
    let log = open(&engine, run.ino, true).unwrap();
    let mut wanted = found.unwrap_or_default();
    wanted.push(b"behind".to_vec());
    log.append(b"behind").unwrap();
    if walk(&log) != wanted {
        return Err("what is appended afterwards is not behind it".into());
    }
    log.rewind().unwrap();
    match walk(&log).is_empty() {
        true => Ok(()),
        false => Err("a rewind leaves something".into()),
    }
}

#[test]
fn a_crash_leaves_whole_appends() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let seed = seed_from_env().unwrap_or(1);
    println!("FERRITE_SEED={seed}");
    let (steps, subsets) = if soak { (150, 12) } else { (40, 2) };
    let mut images = 0;
    for &mapping in Mapping::ALL {
        let run = record(mapping, seed, steps);
        let mut seen = HashSet::new();
        let mut cursor = run.log.cursor();
        loop {
            if let Some(&returned) = cursor.marks().last() {
                let point = cursor.point() as u64;
                let random = (0..subsets).map(|n| Choice::Random(seed ^ point << 16 ^ n));
                for choice in [Choice::None, Choice::All].into_iter().chain(random) {
                    if !seen.insert(cursor.fingerprint(choice)) {
                        continue;
                    }
                    let verified = cursor.with_image(choice, |image| verify(image, &run, returned as usize));
                    verified.unwrap_or_else(|wrong| {
                        panic!("{mapping:?}, seed {seed}, point {point}, {choice:?}, after step {returned}: {wrong}")
                    });
                }
            }
            if !cursor.advance() {
                break;
            }
        }
        images += seen.len();
    }
    println!("{images} images");
    assert!(images > 500, "only {images} images");
}
