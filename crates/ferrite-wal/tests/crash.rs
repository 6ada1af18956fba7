//! Power loss: images of what a device could hold, built from a record of all writes.
//!
//! Protected: every record that was durable, and was not freed, is there, once and in order; what else is there comes
//! right behind it, and was appended. Records are of any length, their bytes look like groups, and the ring goes round
//! several times. The same holds on a mirror, for both devices together and for each one alone; and what is appended
//! once they were together is on both.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ferrite_blob::device::{Device, Logged, Memory, Recorder, lose_power};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;
use ferrite_wal::{Error, Mirror, Opened, Position, SIZE_MIN, Wal};

const ID: [u8; 16] = [9; 16];
const OWNER: [u8; 16] = [2; 16];
/// No device here is ever so late.
const LIMIT: Duration = Duration::from_secs(60);
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
    /// By device.
    logs: Vec<Vec<Logged>>,
    /// By the number of a mark.
    known: Vec<Known>,
    lens: Vec<usize>,
}

fn mirror(devices: &[Arc<dyn Device>]) -> Result<Arc<dyn Device>, Error> {
    match devices {
        [one] => Ok(Arc::clone(one)),
        [near, far] => Ok(Arc::new(Mirror::open(Arc::clone(near), Arc::clone(far), OWNER, LIMIT)?)),
        _ => panic!("a mirror of {}", devices.len()),
    }
}

/// Appends, makes durable and frees at random, on so many devices. With `forgets`, no write is durable.
fn run(seed: u64, devices: usize, forgets: bool) -> Run {
    let mut rng = Rng::new(seed);
    let memory = Memory::new(SIZE_MIN);
    Wal::format(&memory, ID, OWNER).unwrap();
    let base = memory.image();
    let recorders: Vec<_> = (0..devices)
        .map(|_| Arc::new(Recorder::new(Memory::of(base.clone()))))
        .collect();
    let all: Vec<_> = recorders
        .iter()
        .map(|recorder| Arc::clone(recorder) as Arc<dyn Device>)
        .collect();
    let wal = open(mirror(&all).unwrap()).unwrap();
    let mark = |number: usize| recorders.iter().for_each(|recorder| recorder.log().mark(number as u64));
    mark(0);
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
                mark(known.len());
                known.push(now);
                let to = at.get(kept as usize).copied().unwrap_or_else(|| wal.end());
                wal.trim(to).unwrap();
            }
        }
        mark(known.len());
        known.push(now);
    }
    let mut logs: Vec<_> = recorders.iter().map(|recorder| recorder.log().take()).collect();
    for entry in logs.iter_mut().flatten() {
        if let Logged::Write { durable, .. } = entry {
            *durable &= !forgets;
        }
    }
    Run {
        base,
        logs,
        known,
        lens,
    }
}

/// Where a log has a mark; its end, if it has none of this number.
fn place(log: &[Logged], number: usize) -> usize {
    let is_it = |entry: &Logged| matches!(entry, Logged::Mark(found) if *found == number as u64);
    log.iter().position(is_it).unwrap_or(log.len())
}

/// Possible contents of the devices of a run after a power loss somewhere between this mark and the next one.
fn images(run: &Run, number: usize, rng: &mut Rng) -> Vec<Arc<dyn Device>> {
    let image = |log: &Vec<Logged>| {
        let (from, to) = (place(log, number), place(log, number + 1));
        let cut = from + rng.below((to - from) as u64 + 1) as usize;
        let keeps_most = rng.below(3) == 0;
        let mut keeps = || rng.below(if keeps_most { 50 } else { 2 }) > 0;
        let mut image = [run.base.clone()];
        lose_power(&mut image, log, cut, SECTOR_BYTES, &mut keeps);
        let [image] = image;
        Arc::new(Memory::of(image)) as Arc<dyn Device>
    };
    run.logs.iter().map(image).collect()
}

/// The records of a log that is opened.
fn records(wal: &Wal) -> Result<Vec<Vec<u8>>, String> {
    let mut found = Vec::new();
    let read = wal.replay(|_, bytes| {
        found.push(bytes.to_vec());
        Ok::<(), Infallible>(())
    });
    read.map_err(|error| error.to_string()).map(|()| found)
}

/// Looks at some images of a run.
fn check(run: &Run, seed: u64, count: usize) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    for _ in 0..count {
        let number = rng.below(run.known.len() as u64) as usize;
        let known = run.known[number];
        let devices = images(run, number, &mut rng);
        let checked = check_images(run, known, &devices, &mut rng);
        checked.map_err(|error| format!("seed {seed}, mark {number}, {known:?}: {error}"))?;
    }
    Ok(())
}

fn check_images(run: &Run, known: Known, devices: &[Arc<dyn Device>], rng: &mut Rng) -> Result<(), String> {
    let said = |error: Error| error.to_string();
    // Each of them alone.
    for device in devices {
        let alone = Mirror::alone(Arc::clone(device), false, LIMIT).map_err(said)?;
        let wal = open(Arc::new(alone)).map_err(said)?;
        check_found(run, known, &records(&wal)?)?;
    }
    let wal = open(mirror(devices).map_err(said)?).map_err(said)?;
    check_found(run, known, &records(&wal)?)?;
    // It continues from there, also if one of the devices is lost then.
    let more = match wal.append(&[b"more"]) {
        Err(Error::Full) => wal.trim(wal.end()),
        done => done.map(drop),
    };
    more.and_then(|()| wal.sync()).map_err(said)?;
    let found = records(&wal)?;
    drop(wal);
    let left = open(Arc::clone(&devices[rng.below(devices.len() as u64) as usize])).map_err(said)?;
    match records(&left)? == found {
        true => Ok(()),
        false => Err("one device does not have what was durable on both".into()),
    }
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

fn check_seeds(seeds: u64, images: usize, devices: usize, forgets: bool) -> Result<(), String> {
    let first = seed_from_env().unwrap_or(0);
    (first..first + seeds).try_for_each(|seed| check(&run(seed, devices, forgets), seed, images))
}

// A mistake is the whole process's: no other test runs beside it.
#[test]
#[cfg(not(feature = "seeded-bugs"))]
fn what_is_durable_survives() {
    for devices in [1, 2] {
        check_seeds(8, 10, devices, false).unwrap();
        let forgotten = check_seeds(8, 10, devices, true);
        assert!(forgotten.is_err(), "groups that are not durable are not missed");
    }
}

#[test]
#[cfg(feature = "seeded-bugs")]
fn mistakes_are_found() {
    use ferrite_checks::fault_injection::{self, Bug};
    for bug in Bug::of("ferrite-wal") {
        fault_injection::seed(Some(bug));
        let found = std::panic::catch_unwind(|| {
            check_seeds(30, 12, 1, false)?;
            check_seeds(30, 12, 2, false)
        });
        fault_injection::seed(None);
        println!("{bug:?}: {found:?}");
        assert!(!matches!(found, Ok(Ok(()))), "{bug:?} is not found");
    }
}
