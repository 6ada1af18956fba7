//! Files as programs leave them, and accesses to them: the data for comparing ranges and pages.
//!
//! Pools have the mapping `extent`: FileMR's file system (NOVA) keeps extents, too.
//!
//! * *large*: a file in a pool that was never full, and one in a pool full of small files, half of which were removed.
//!   Accesses are to random pages.
//! * *fileserver*, *varmail*: the mixes after filebench. Accesses read whole files, chosen at random.
//! * *redis*: a log of commands, which grows by records of 64 to 511 bytes, while a dump is written beside it and
//!   replaces the previous one. Accesses are these writes.
//! * *sqlite*: the recorded transactions of the lab's traces. Accesses are their writes.

use std::collections::BTreeMap;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_measure::Rng;
use ferrite_mr::Run;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::trace::Event;
use ferrite_vfs::{FileSystem, Ino, OpenMode, ROOT_INO, SYSTEM};

use super::layout;
use crate::engine::{engine_in_memory, new_file};
use crate::error::LabError;
use crate::mixes::{self, Mix, Whole};
use crate::traces::{STORED, replay};

const PAGE_BYTES: u64 = 4096;
/// Fill of a pool before half of it is removed.
const FULL_PERCENT: u64 = 95;
/// Pages of such a file, at most.
const SMALL_PAGES_MAX: u64 = 64;
/// Bytes of a program's write to a large file.
const WRITE_BYTES: usize = 128 << 10;
/// Bytes of a dump for each write to the log beside it.
const DUMP_WRITE_BYTES: u64 = 4096;

/// An access: the number of a file, and a page of it.
pub type Access = (u32, u32);

/// Files, and the accesses to them.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// The placement of each file's pages.
    pub files: Vec<Vec<Run>>,
    /// The same after defragmenting them as far as space allows; not for large files.
    pub defragmented: Vec<Vec<Run>>,
    /// In their order.
    pub accesses: Vec<Access>,
}

/// A pool that nothing is added to during measurements.
fn engine(bytes: u64) -> Result<Engine, LabError> {
    let mkfs = MkfsOptions::default().mapping(Mapping::Extent).seed(1);
    engine_in_memory(bytes, &mkfs, &MountOptions::default())
}

/// The placement of files' pages; omits files without pages.
fn layouts(engine: &Engine, files: &[Ino], defragment: bool) -> Result<Vec<Vec<Run>>, LabError> {
    let binding = Binding {
        defragment,
        ..layout::WHOLE
    };
    let layouts = files.iter().map(|&ino| Ok(layout::bind(engine, ino, binding)?.pages()));
    let layouts = layouts.collect::<Result<Vec<_>, LabError>>()?;
    Ok(layouts.into_iter().filter(|runs| !runs.is_empty()).collect())
}

fn pages_of(runs: &[Run]) -> u32 {
    runs.iter().map(|run| run.pages).sum()
}

/// Random pages of a large file of `bytes`. `is_aged`: in a pool with fragmented free space.
///
/// # Errors
/// Too little memory.
pub fn large(bytes: u64, is_aged: bool, accesses: u32, seed: u64) -> Result<Workload, LabError> {
    let mut rng = Rng::new(seed);
    let engine = engine(3 * bytes + (64 << 20))?;
    if is_aged {
        age(&engine, &mut rng)?;
    }
    let ino = new_file(&engine, ROOT_INO, "large")?;
    let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
    let data = vec![1; WRITE_BYTES];
    for offset in (0..bytes).step_by(WRITE_BYTES) {
        file.write_at(SYSTEM, offset, &data)?;
    }
    let files = layouts(&engine, &[ino], false)?;
    let pages = u64::from(files.first().map_or(0, |runs| pages_of(runs)));
    Ok(Workload {
        name: if is_aged {
            "large file, aged pool"
        } else {
            "large file, young pool"
        },
        defragmented: Vec::new(),
        files,
        accesses: (0..accesses).map(|_| (0, rng.below(pages.max(1)) as u32)).collect(),
    })
}

/// Fills a pool with small files and removes half of them.
fn age(engine: &Engine, rng: &mut Rng) -> Result<(), LabError> {
    let data = vec![2; (SMALL_PAGES_MAX * PAGE_BYTES) as usize];
    let mut number = 0;
    loop {
        let space = engine.statfs(SYSTEM)?;
        if (space.blocks - space.blocks_free) * 100 > space.blocks * FULL_PERCENT {
            break;
        }
        let ino = new_file(engine, ROOT_INO, &number.to_string())?;
        let bytes = (1 + rng.below(SMALL_PAGES_MAX)) * PAGE_BYTES;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
        file.append(SYSTEM, &data[..bytes as usize])?;
        number += 1;
    }
    let mut removed: Vec<u32> = (0..number).collect();
    rng.shuffle(&mut removed);
    for file in &removed[..removed.len() / 2] {
        engine.unlink(SYSTEM, ROOT_INO, file.to_string().as_bytes())?;
    }
    Ok(())
}

/// One of the mixes, after some turns. Accesses read whole files.
pub(crate) fn mix(mix: Mix, files: u32, accesses: u32, seed: u64) -> Result<Workload, LabError> {
    let mkfs = MkfsOptions::default().mapping(Mapping::Extent).seed(1);
    let store = Whole::new(&mkfs, &MountOptions::default(), mix, 1, files)?;
    mixes::fill(&store, mix, 1, files)?;
    let mut rng = Rng::new(seed);
    for _ in 0..4 * files {
        mixes::turn(&store, mix, 0, files, &mut rng)?;
    }
    let inodes = store.files(0, files)?;
    let files = layouts(store.engine(), &inodes, false)?;
    let mut trace = Vec::new();
    while trace.len() < accesses as usize {
        let file = rng.below(files.len() as u64) as u32;
        trace.extend((0..pages_of(&files[file as usize])).map(|page| (file, page)));
    }
    Ok(Workload {
        name: if mix == Mix::Varmail { "varmail" } else { "fileserver" },
        defragmented: layouts(store.engine(), &inodes, true)?,
        files,
        accesses: trace,
    })
}

/// A log of `log_bytes`, and a dump a quarter as long for each quarter of the log.
pub(crate) fn redis(log_bytes: u64, seed: u64) -> Result<Workload, LabError> {
    let mut rng = Rng::new(seed);
    let engine = engine(3 * log_bytes + (64 << 20))?;
    let open = |name: &str| -> Result<_, LabError> {
        let ino = new_file(&engine, ROOT_INO, name)?;
        Ok((ino, engine.open(SYSTEM, ino, OpenMode::read_write())?))
    };
    let data = vec![3; DUMP_WRITE_BYTES as usize];
    let (log_ino, log) = open("appendonly.aof")?;
    let (mut dump_ino, mut dump) = open("dump.rdb")?;
    let (mut end, mut dumped) = (0, 0);
    let mut trace = Vec::new();
    while end < log_bytes {
        let record = 64 + rng.below(448);
        log.append(SYSTEM, &data[..record as usize])?;
        trace.push((0, (end / PAGE_BYTES) as u32));
        end += record;
        if dumped * 4 < end {
            if dumped >= log_bytes / 4 {
                engine.unlink(SYSTEM, ROOT_INO, b"dump.rdb")?;
                (dump_ino, dump) = open("dump.rdb")?;
            }
            dump.append(SYSTEM, &data)?;
            trace.push((1, (dumped / PAGE_BYTES) as u32));
            dumped += DUMP_WRITE_BYTES;
        }
    }
    Ok(Workload {
        name: "redis",
        files: layouts(&engine, &[log_ino, dump_ino], false)?,
        defragmented: layouts(&engine, &[log_ino, dump_ino], true)?,
        accesses: trace,
    })
}

/// The recorded transactions of SQLite in its default mode.
pub(crate) fn sqlite() -> Result<Workload, LabError> {
    let missing = || LabError::Wrong("there is no trace of SQLite".into());
    let stored = STORED.iter().find(|stored| stored.name == "sqlite-rollback");
    let events = stored.ok_or_else(missing)?.events()?;
    let left = replay::leave(&events, Mapping::Extent)?.ok_or_else(missing)?;
    let (mut files, mut inodes) = (Vec::new(), Vec::new());
    let mut numbers = BTreeMap::new();
    for (of_trace, ino) in left.files {
        let runs = layout::bind(&left.engine, ino, layout::WHOLE)?.pages();
        if !runs.is_empty() {
            numbers.insert(of_trace, (files.len() as u32, u64::from(pages_of(&runs))));
            files.push(runs);
            inodes.push(ino);
        }
    }
    let mut trace = Vec::new();
    for event in &events {
        let Event::Write {
            ino,
            offset_bytes,
            len_bytes,
        } = *event
        else {
            continue;
        };
        if let Some(&(file, pages)) = numbers.get(&ino) {
            let written = offset_bytes / PAGE_BYTES..(offset_bytes + len_bytes).div_ceil(PAGE_BYTES).min(pages);
            trace.extend(written.map(|page| (file, page as u32)));
        }
    }
    Ok(Workload {
        name: "sqlite",
        defragmented: layouts(&left.engine, &inodes, true)?,
        files,
        accesses: trace,
    })
}
