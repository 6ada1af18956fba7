//! Power loss: images of what a device could hold, built from a record of all writes.
//!
//! Protected: every record that was durable, and was not freed, is there, once and in order; what else is there comes
//! right behind it, and was appended. Records are of any length, their bytes look like groups, and the ring goes round
//! several times.

use std::convert::Infallible;
use std::sync::Arc;

use ferrite_blob::device::{Device, Logged, Memory, Recorder, lose_power};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;
use ferrite_wal::{Error, Opened, Position, SIZE_MIN, Wal};

const ID: [u8; 16] = [9; 16];
const STEPS: usize = 160;
/// The unit that a power loss may tear.
const SECTOR_BYTES: usize = 512;

fn open(device: Arc<dyn Device>) -> Result<Wal, Error> {
    match Wal::open(device)? {
        Opened::Log(wal) => Ok(*wal),
        Opened::Blank => panic!("it is blank"),
    }
}

/// The bytes of a record: its number, and bytes that begin like a group at each page.
fn record(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![number as u8; len];
    for page in bytes.chunks_mut(4096).filter(|page| page.len() > 40) {
        page[..4].copy_from_slice(b"FrWG");
        page[24..32].copy_from_slice(&(number << 12).to_le_bytes());
    }
    let mut record = number.to_le_bytes().to_vec();
    record.extend_from_slice(&bytes);
    record
}

/// A moment: the first record that is kept, and how many are durable at least.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    first: u64,
    durable: u64,
}

struct Run {
    base: Vec<u8>,
    log: Vec<Logged>,
    /// By the number of a mark.
    known: Vec<Known>,
    lens: Vec<usize>,
}

/// Appends, makes durable and frees at random. With `forgets`, no write is durable.
fn run(seed: u64, forgets: bool) -> Run {
    let mut rng = Rng::new(seed);
    let memory = Memory::new(SIZE_MIN);
    Wal::format(&memory, ID, [2; 16]).unwrap();
    let base = memory.image();
    let recorder = Arc::new(Recorder::new(memory));
    let wal = open(Arc::clone(&recorder) as Arc<dyn Device>).unwrap();
    let (mut lens, mut at): (Vec<usize>, Vec<Position>) = (Vec::new(), Vec::new());
    let mut known = vec![Known::default()];
    for _ in 0..STEPS {
        let mut now = *known.last().unwrap();
        match rng.below(16) {
            0..12 => {
                let most = [60, 5000, 300_000, 3 << 20][rng.below(4) as usize];
                let len = rng.below(most) as usize;
                match wal.append(&[&record(lens.len() as u64, len)]) {
                    Ok(position) => {
                        lens.push(len);
                        at.push(position);
                    }
                    Err(Error::Full) => {
                        wal.sync().unwrap();
                        now.durable = lens.len() as u64;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            12..15 => {
                wal.sync().unwrap();
                now.durable = lens.len() as u64;
                assert!(at.last().is_none_or(|&last| wal.is_durable(last)));
            }
            _ => {
                let kept = now.first + rng.below(lens.len() as u64 + 1 - now.first);
                // Records need not be there from the moment at which they may be gone.
                now.first = kept;
                recorder.log().mark(known.len() as u64);
                known.push(now);
                let to = at.get(kept as usize).copied().unwrap_or_else(|| wal.end());
                wal.trim(to).unwrap();
            }
        }
        recorder.log().mark(known.len() as u64);
        known.push(now);
    }
    let mut log = recorder.log().take();
    for entry in &mut log {
        if let Logged::Write { durable, .. } = entry {
            *durable &= !forgets;
        }
    }
    Run { base, log, known, lens }
}

/// Looks at some images of a run.
fn check(run: &Run, seed: u64, images: usize) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    for _ in 0..images {
        let cut = rng.below(run.log.len() as u64 + 1) as usize;
        let marks = run.log[..cut].iter().rev().filter_map(|entry| match entry {
            Logged::Mark(number) => Some(*number as usize),
            _ => None,
        });
        let known = run.known[marks.into_iter().next().unwrap_or(0)];
        let mut image = [run.base.clone()];
        let keeps_most = rng.below(3) == 0;
        let mut keeps = || rng.below(if keeps_most { 50 } else { 2 }) > 0;
        lose_power(&mut image, &run.log, cut, SECTOR_BYTES, &mut keeps);
        let [image] = image;
        let what = format!("seed {seed}, cut {cut}, {known:?}");
        let wal = open(Arc::new(Memory::of(image))).map_err(|error| format!("{what}: {error}"))?;
        let mut found = Vec::new();
        let read = wal.replay(|_, bytes| {
            found.push(bytes.to_vec());
            Ok::<(), Infallible>(())
        });
        read.map_err(|error| format!("{what}: {error}"))?;
        check_found(run, known, &found).map_err(|error| format!("{what}: {error}"))?;
        // It continues from there.
        let more = match wal.append(&[b"more"]) {
            Err(Error::Full) => wal.trim(wal.end()),
            done => done.map(drop),
        };
        more.and_then(|()| wal.sync())
            .map_err(|error| format!("{what}: {error}"))?;
    }
    Ok(())
}

fn check_found(run: &Run, known: Known, found: &[Vec<u8>]) -> Result<(), String> {
    let number = |bytes: &[u8]| bytes.first_chunk().map(|number| u64::from_le_bytes(*number));
    let first = match found.first() {
        Some(bytes) => number(bytes).ok_or("a record without a number")?,
        None => known.durable,
    };
    if first > known.first && known.first < known.durable {
        return Err(format!("it begins at record {first}"));
    }
    for (index, bytes) in found.iter().enumerate() {
        let wanted = first + index as u64;
        let len = run.lens.get(wanted as usize).ok_or("more records than were appended")?;
        if *bytes != record(wanted, *len) {
            return Err(format!("record {:?} in the place of {wanted}", number(bytes)));
        }
    }
    match first + found.len() as u64 >= known.durable {
        true => Ok(()),
        false => Err(format!(
            "it ends behind {} of {} records",
            first + found.len() as u64,
            known.durable
        )),
    }
}

fn check_seeds(seeds: u64, images: usize, forgets: bool) -> Result<(), String> {
    let first = seed_from_env().unwrap_or(0);
    (first..first + seeds).try_for_each(|seed| check(&run(seed, forgets), seed, images))
}

// A mistake is the whole process's: no other test runs beside it.
#[test]
#[cfg(not(feature = "seeded-bugs"))]
fn what_is_durable_survives() {
    check_seeds(8, 12, false).unwrap();
    let forgotten = check_seeds(8, 12, true);
    assert!(forgotten.is_err(), "groups that are not durable are not missed");
}

#[test]
#[cfg(feature = "seeded-bugs")]
fn mistakes_are_found() {
    use ferrite_checks::fault_injection::{self, Bug};
    for bug in Bug::of("ferrite-wal") {
        fault_injection::seed(Some(bug));
        let found = std::panic::catch_unwind(|| check_seeds(30, 12, false));
        fault_injection::seed(None);
        println!("{bug:?}: {found:?}");
        assert!(!matches!(found, Ok(Ok(()))), "{bug:?} is not found");
    }
}
