//! Page logs (HDPM §4): unaligned writes, the reads that follow them, and the cost of cleaning, compared with the same
//! engine without logs, which copies a page for every unaligned write, as NOVA does.
//!
//! The cleaner's thread is off; cleaning runs between the rows, so that it cannot run while the other side is measured.

use std::sync::Arc;

use ferrite_fs::{Engine, MountOptions};
use ferrite_lab::{engine_in_memory, new_file};
use ferrite_measure::mix;
use ferrite_pm::Region;
use ferrite_vfs::{FileSystem, OpenFile, OpenMode, ROOT_INO, SYSTEM};

use super::operations::{FILL_PERCENT, pool};
use super::{Circumstances, Duel, Effort, Output, page, whole};
use crate::Failure;

/// Write sizes: name and bytes.
const SIZES: [(&str, usize); 8] = [
    ("overwrite_8b_durable", 8),
    ("overwrite_64b_durable", 64),
    ("overwrite_256b_durable", 256),
    ("overwrite_1k_durable", 1 << 10),
    ("overwrite_2k_durable", 2 << 10),
    ("overwrite_3k_durable", 3 << 10),
    ("overwrite_4k_durable", 4 << 10),
    ("overwrite_8k_durable", 8 << 10),
];
/// Read sizes: bytes, name of the first pass, of the steady state.
const READS: [(usize, &str, &str); 3] = [
    (4 << 10, "read_4k_first_pass", "read_4k_after_unaligned"),
    (16 << 10, "read_16k_first_pass", "read_16k_after_unaligned"),
    (64 << 10, "read_64k_first_pass", "read_64k_after_unaligned"),
];
/// Longest of the unaligned writes before the reads.
const SCATTER_BYTES: u64 = 200;
/// Overwrites of one range, and the row's name.
const REPEATS: [(usize, &str); 4] = [
    (1, "read_40b_written_1x"),
    (4, "read_40b_written_4x"),
    (16, "read_40b_written_16x"),
    (64, "read_40b_written_64x"),
];

/// The cost of a copy compared with the raw stores.
const COPY: &str = "cow_only_8b";

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    let sizes = SIZES.iter().map(|(name, _)| *name);
    let reads = READS.iter().flat_map(|(_, first_pass, after)| [*first_pass, *after]);
    let repeats = REPEATS.iter().map(|(_, name)| *name);
    sizes.chain([COPY]).chain(reads).chain(repeats).collect()
}

struct Side {
    engine: Engine,
    file: Arc<dyn OpenFile>,
}

impl Side {
    fn new(bytes: u64, options: &MountOptions) -> Result<Side, Failure> {
        let (engine, made) = pool(bytes, 1, options)?;
        let mode = OpenMode {
            no_atime: true,
            ..OpenMode::read_write()
        };
        let file = engine.open(SYSTEM, made[0], mode)?;
        Ok(Side { engine, file })
    }
}

struct Bench {
    effort: Effort,
    logs: Side,
    copies: Side,
}

fn circumstances(cache: &'static str) -> Circumstances {
    Circumstances {
        page_bytes: 2 << 20,
        fill_percent: FILL_PERCENT,
        cache,
        threads: 1,
        placement: "any".into(),
    }
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let quiet = MountOptions::default().cleaner(false).merge_read_entries(0);
    let cow = quiet.cow_only(true);
    let bytes = effort.file_bytes;
    let bench = Bench {
        effort,
        logs: Side::new(bytes, &quiet)?,
        copies: Side::new(bytes, &cow)?,
    };
    bench.writes(out)?;
    bench.honest_copies(out)?;
    bench.reads(out)?;
    drop(bench);
    scans(effort, out, &quiet)
}

impl Bench {
    fn duel(&self, name: &'static str, against: &'static str, len: Option<usize>, slower: usize) -> DuelOf<'_> {
        DuelOf {
            name,
            against,
            len,
            rounds: self.effort.rounds,
            operations: self.effort.operations / slower,
            ours: &self.logs.engine,
            theirs: &self.copies.engine,
        }
    }

    fn writes(&self, out: &mut Output) -> Result<(), Failure> {
        let bytes = self.effort.file_bytes;
        for (name, len) in SIZES {
            let data = vec![9; len];
            // Whole pages stay whole; smaller writes go anywhere.
            let at = |n: u64| match len {
                4096 => page(n, bytes),
                8192 => page(n, bytes - 4096),
                _ => mix(n) % (bytes - len as u64),
            };
            let (logs, copies) = (Arc::clone(&self.logs.file), Arc::clone(&self.copies.file));
            let mut ours = |n| whole(logs.write_at(SYSTEM, at(n), &data)?, len);
            let mut theirs = |n| whole(copies.write_at(SYSTEM, at(n), &data)?, len);
            // All rounds together write less than the pool has free, because no cleaning runs meanwhile.
            let slower = if (1024..4096).contains(&len) { len / 256 } else { 1 };
            let duel = self.duel(name, "logs off", Some(len), slower);
            duel.run(&mut ours, &mut theirs, out)?;
            self.logs.engine.clean(usize::MAX)?;
        }
        Ok(())
    }

    /// The least cost of a copy: reading a page, streaming it, a fence; without words, locks or a second fence.
    fn honest_copies(&self, out: &mut Output) -> Result<(), Failure> {
        let bytes = self.effort.file_bytes;
        let floor = Region::anonymous(bytes)?;
        floor.stream_zero(0, bytes);
        let copies = Arc::clone(&self.copies.file);
        let mut ours = |n| whole(copies.write_at(SYSTEM, page(n, bytes) + 1000, &[1; 8])?, 8);
        let mut buffer = [0; 4096];
        let mut theirs = |n| {
            floor.read(page(n, bytes), &mut buffer);
            floor.stream(page(n ^ 0x5555, bytes), &buffer);
            Ok(floor.fence()?)
        };
        let duel = self.duel(COPY, "4 KiB copy + floor", None, 1);
        let duel = DuelOf {
            ours: &self.copies.engine,
            ..duel
        };
        duel.run(&mut ours, &mut theirs, out)
    }

    /// The paper's figure 6: a million unaligned writes, then reads in order.
    fn reads(&self, out: &mut Output) -> Result<(), Failure> {
        let bytes = self.effort.file_bytes;
        scatter(&self.logs.file, bytes)?;
        scatter(&self.copies.file, bytes)?;
        for steady in [false, true] {
            if steady {
                self.logs.engine.clean(usize::MAX)?;
            }
            for (len, first_pass, after) in READS {
                let (logs, copies) = (Arc::clone(&self.logs.file), Arc::clone(&self.copies.file));
                let (mut buffer, mut peer_buffer) = (vec![0; len], vec![0; len]);
                let at = |n: u64| n * len as u64 % bytes;
                let mut ours = |n| whole(logs.read_at(SYSTEM, at(n), &mut buffer)?, len);
                let mut theirs = |n| whole(copies.read_at(SYSTEM, at(n), &mut peer_buffer)?, len);
                let name = if steady { after } else { first_pass };
                self.duel(name, "logs off", None, len / 4096)
                    .run(&mut ours, &mut theirs, out)?;
            }
        }
        Ok(())
    }
}

/// Short writes at random places of a file, one for each KiB of it.
pub(super) fn scatter(file: &Arc<dyn OpenFile>, bytes: u64) -> Result<(), Failure> {
    for n in 0..bytes / 1024 {
        let len = 1 + mix(n ^ 77) % SCATTER_BYTES;
        let data = [n as u8; SCATTER_BYTES as usize];
        whole(
            file.write_at(SYSTEM, mix(n) % (bytes - len), &data[..len as usize])?,
            len as usize,
        )?;
    }
    Ok(())
}

/// Reading a range that was overwritten repeatedly: backwards the newest entry is enough, forwards each is copied.
fn scans(effort: Effort, out: &mut Output, quiet: &MountOptions) -> Result<(), Failure> {
    const PAGES: u64 = 1024;
    const LEN: usize = 40;
    let forward = quiet.forward_scan(true);
    for (repeats, name) in REPEATS {
        let side = |options: &MountOptions| -> Result<Side, Failure> {
            let engine = engine_in_memory(64 << 20, &super::options(), options)?;
            let file = engine.open(SYSTEM, new_file(&engine, ROOT_INO, "file")?, OpenMode::read_write())?;
            file.write_at(SYSTEM, 0, &vec![1; PAGES as usize * 4096])?;
            for turn in 0..repeats {
                for page in 0..PAGES {
                    file.write_at(SYSTEM, page * 4096 + 500, &[turn as u8; LEN])?;
                }
            }
            Ok(Side { engine, file })
        };
        let (reverse, forward) = (side(quiet)?, side(&forward)?);
        let (mut buffer, mut peer_buffer) = ([0; LEN], [0; LEN]);
        let at = |n: u64| mix(n) % PAGES * 4096 + 500;
        let mut ours = |n| whole(reverse.file.read_at(SYSTEM, at(n), &mut buffer)?, LEN);
        let mut theirs = |n| whole(forward.file.read_at(SYSTEM, at(n), &mut peer_buffer)?, LEN);
        DuelOf {
            name,
            against: "forward scan",
            len: None,
            rounds: effort.rounds,
            operations: effort.operations,
            ours: &reverse.engine,
            theirs: &forward.engine,
        }
        .run(&mut ours, &mut theirs, out)?;
    }
    Ok(())
}

/// A duel of two engines.
struct DuelOf<'a> {
    name: &'static str,
    against: &'static str,
    /// Bytes the user writes with an operation.
    len: Option<usize>,
    rounds: usize,
    operations: usize,
    ours: &'a Engine,
    theirs: &'a Engine,
}

impl DuelOf<'_> {
    fn run(&self, ours: super::Work<'_>, theirs: super::Work<'_>, out: &mut Output) -> Result<(), Failure> {
        let their_counters = || self.theirs.counters();
        Duel {
            group: "hdpm",
            name: self.name,
            against: self.against,
            rounds: self.rounds,
            operations: self.operations,
            circumstances: circumstances("larger than the caches"),
            counters: &|| self.ours.counters(),
            amplification: self.len.map(|len| (len, &their_counters as &dyn Fn() -> _)),
        }
        .run(ours, theirs, out)
    }
}
