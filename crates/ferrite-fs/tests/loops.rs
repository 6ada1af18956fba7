//! The long, dumb loops of ferrite-testkit on the PM engine: every mapping, three sizes of pools, with and without data
//! checksums, with and without the cleaner.
//!
//! How many turns fit between two moves of the journal's checkpoint follows from the length of a ring (docs/format.md):
//! the checkpoint moves when half of one is used, or when more than 8,192 freed resources wait in it. A rewrite leaves
//! some 450 bytes of records, so on 64 MiB (rings of 64 or 128 KiB) it takes 70 to 140 turns, from 1 GiB on (1 MiB)
//! 1,100; a create and unlink 380 bytes, a punch and write 400.
//!
//! So `turns_min` is beyond the second, and four moves take up to 5,000 turns. The runner does not count on these
//! numbers: it watches the checkpoint itself, and checks the pool just before it would move.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use ferrite_fs::{Engine, FsckOptions, Mapping, MkfsOptions, MountOptions, Superblock, fsck_with, identify, mkfs};
use ferrite_pm::{Access, Region};
use ferrite_testkit::loops::{self, Effort, Loop, LoopEngine, Progress};
use ferrite_testkit::{TestEngine, seed_from_env};
use ferrite_vfs::{FileSystem, Ino, SYSTEM};
use rustix::fs::SeekFrom;
use tempfile::TempPath;

/// Where docs/format.md has the journal's checkpoint: the first word of the control block. Its lower 48 bits count.
const CHECKPOINT_OFFSET: u64 = 4096;
/// How often a pool is checked whose cleaner may be at work.
const LOOKS: usize = 20;

/// A pool that loops run on.
#[derive(Debug, Clone, Copy)]
struct Pool {
    mapping: Mapping,
    size_mib: u64,
    data_checksum: bool,
    cleaner: bool,
}

impl Pool {
    fn name(&self) -> String {
        format!(
            "{}, {} MiB, data checksums {}, cleaner {}",
            self.mapping,
            self.size_mib,
            if self.data_checksum { "on" } else { "off" },
            if self.cleaner { "on" } else { "off" }
        )
    }

    /// The environment variables that select this pool alone.
    fn variables(&self) -> String {
        format!(
            "FERRITE_MAPPING={} FERRITE_POOL={},{},{}",
            self.mapping, self.size_mib, self.data_checksum, self.cleaner
        )
    }

    /// Whether the variables select it, or nothing.
    fn is_wanted(&self) -> bool {
        let asked = |name: &str, value: String| std::env::var(name).map_or(true, |asked| asked == value);
        asked("FERRITE_MAPPING", self.mapping.to_string())
            && asked(
                "FERRITE_POOL",
                format!("{},{},{}", self.size_mib, self.data_checksum, self.cleaner),
            )
    }

    fn mount_options(&self) -> MountOptions {
        MountOptions::default().cleaner(self.cleaner)
    }
}

/// A mounted pool in a file of its own, which takes no more memory than was written to it.
struct PmEngine {
    /// `None` only during a remount.
    engine: Option<Engine>,
    superblock: Superblock,
    file: File,
    path: TempPath,
    pool: Pool,
}

impl PmEngine {
    fn new(pool: Pool, seed: u64) -> PmEngine {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() {
            shm.to_path_buf()
        } else {
            std::env::temp_dir()
        };
        let path = tempfile::Builder::new()
            .prefix("ferrite-loops-")
            .tempfile_in(dir)
            .unwrap()
            .into_temp_path();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.set_len(pool.size_mib << 20).unwrap();
        let options = MkfsOptions::default()
            .mapping(pool.mapping)
            .data_checksum(pool.data_checksum)
            .seed(seed)
            // Few, so that numbers and name slots cycle, and a check has less to read.
            .inodes(2_000);
        let region = Region::open(&path, Access::ReadWrite).unwrap();
        mkfs(&region, &options).unwrap();
        let superblock = identify(&region).unwrap();
        drop(region);
        let mut made = PmEngine {
            engine: None,
            superblock,
            file,
            path,
            pool,
        };
        made.mount();
        made
    }

    fn mount(&mut self) {
        let region = Region::open(&self.path, Access::ReadWrite).unwrap();
        let engine = Engine::mount(region, &self.pool.mount_options()).unwrap();
        assert!(
            engine.damage().is_empty(),
            "a mount finds damage: {:#?}",
            engine.damage()
        );
        self.engine = Some(engine);
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("mounted")
    }

    /// The findings of a check on a copy of the current pool.
    fn findings(&self) -> Vec<String> {
        let copy = copy_of(&self.file);
        let report = fsck_with(copy, FsckOptions::default().data(true), &mut |_, _, _| {}).unwrap();
        report
            .findings
            .iter()
            .map(|finding| format!("{}: {}", finding.phase, finding.what))
            .collect()
    }
}

/// All that is in a file, in memory: reads only the parts that were ever written.
fn copy_of(file: &File) -> Region {
    let len = file.metadata().unwrap().len();
    let copy = Region::anonymous(len).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap();
        let mut from = start;
        while from < at {
            let count = buffer.len().min((at - from) as usize);
            file.read_exact_at(&mut buffer[..count], from).unwrap();
            for (index, page) in buffer[..count].chunks(4096).enumerate() {
                // Zeros are there already, and most of the tables is zeros.
                if page.iter().any(|&byte| byte != 0) {
                    copy.stream(from + index as u64 * 4096, page);
                }
            }
            from += count as u64;
        }
    }
    copy
}

impl TestEngine for PmEngine {
    fn fs(&self) -> &dyn FileSystem {
        self.engine()
    }

    fn remount(&mut self) {
        self.engine().unmount().unwrap();
        self.engine = None;
        let findings = self.findings();
        assert!(findings.is_empty(), "fsck after an unmount: {findings:#?}");
        self.mount();
    }

    fn check(&self) {
        let mut findings = self.findings();
        for _ in 1..LOOKS {
            // Pages that the cleaner moves during the copy look damaged, but real damage stays.
            if findings.is_empty() || !self.pool.cleaner {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            findings = self.findings();
        }
        assert!(findings.is_empty(), "fsck of the mounted pool's copy: {findings:#?}");
        let scrubbed = self.engine().scrub(None).unwrap();
        assert!(scrubbed.findings.is_empty(), "scrub: {:#?}", scrubbed.findings);
        let info = self.engine().info();
        assert!(info.failed.is_none() && info.runtime_findings.is_empty(), "{info:#?}");
    }
}

impl LoopEngine for PmEngine {
    fn crash(&mut self) {
        self.engine = None;
        let findings = self.findings();
        assert!(findings.is_empty(), "fsck after a crash: {findings:#?}");
        self.mount();
    }

    fn checkpoint(&self) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, CHECKPOINT_OFFSET).unwrap();
        u64::from_le_bytes(word) & ((1 << 48) - 1)
    }

    fn free(&self) -> Vec<(&'static str, u64)> {
        let stat = self.engine().statfs(SYSTEM).unwrap();
        let info = self.engine().info();
        vec![
            ("blocks", stat.blocks_free),
            ("inodes", info.inodes_free),
            ("names", info.names_free),
            ("pages mapped", info.pages),
            ("pages with logs", info.logged_pages),
        ]
    }

    /// Pages of one home in the tables of hashfs and cuckoo, by the hash that docs/format.md gives. Elsewhere, any
    /// pages.
    fn neighbours(&self, ino: Ino) -> Vec<u32> {
        let bucket_slots = match self.pool.mapping {
            Mapping::Hashfs => 8,
            Mapping::Cuckoo => 5,
            _ => return loops::pages_far_apart(),
        };
        let buckets = self.superblock.map_slots / bucket_slots;
        let home = |lblk: u32| (hash(ino << 32 | u64::from(lblk), self.superblock.seed) * buckets) >> 32;
        let wanted = home(0);
        (0..u32::MAX).filter(|&lblk| home(lblk) == wanted).take(64).collect()
    }
}

/// The hash of docs/format.md.
fn hash(key: u64, seed: u64) -> u64 {
    let mut mixed = (key ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed >> 32
}

fn soak() -> bool {
    std::env::var_os("FERRITE_SOAK").is_some()
}

/// Runs those loops on the pool that the variables select; returns the failures, with the way to run each again.
fn run_all(test: &str, pool: Pool, wanted: impl Fn(&Loop) -> bool, effort: Effort) -> Vec<String> {
    let only = std::env::var("FERRITE_LOOP").ok();
    let seed = seed_from_env().unwrap_or(1);
    let (mut failures, mut told) = (Vec::new(), Instant::now());
    if !pool.is_wanted() {
        return failures;
    }
    let started = Instant::now();
    for of in loops::all() {
        if only
            .as_deref()
            .map_or(!wanted(of), |only| !only.split(',').any(|name| name == of.name))
        {
            continue;
        }
        let progress = Progress::default();
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loops::run(&mut PmEngine::new(pool, seed), of, seed, effort, &progress);
        }));
        if let Err(panic) = outcome {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no text");
            failures.push(format!(
                "{}, seed {seed}, loop {} ({}), {progress}: {text}\n  again: {}{} FERRITE_LOOP={} FERRITE_SEED={seed} \
                 cargo test -p ferrite-fs --test it loops::{test}",
                pool.name(),
                of.name,
                of.presses,
                if soak() { "FERRITE_SOAK=1 " } else { "" },
                pool.variables(),
                of.name,
            ));
        }
        println!(
            "{}: {}: {progress}, {:.1} s",
            pool.name(),
            of.name,
            begun.elapsed().as_secs_f64()
        );
        if told.elapsed() > Duration::from_secs(60) {
            // Not captured by the test harness, so that a waiting user sees the progress.
            let _ = writeln!(
                std::io::stderr(),
                "{}: {} after {} s",
                pool.name(),
                of.name,
                started.elapsed().as_secs()
            );
            told = Instant::now();
        }
    }
    failures
}

/// Fails with the list of all failures.
fn tell(failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Four moves of the checkpoint take 5,000 turns of a rewrite where rings are longest.
const EFFORT: Effort = Effort {
    moves: 4,
    turns_min: 1_500,
    turns_max: 6_000,
};
/// Each resource cycles some dozen times.
const LONG_EFFORT: Effort = Effort {
    moves: 24,
    turns_min: 12_000,
    turns_max: 40_000,
};

fn effort() -> Effort {
    if soak() { LONG_EFFORT } else { EFFORT }
}

/// All ways to make and mount a pool, with or without data checksums and a cleaner.
const WAYS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

/// Where rings are short the checkpoint moves every hundred turns.
#[test]
fn long_loops_on_64_mib() {
    let mut failures = Vec::new();
    for (turn, &mapping) in Mapping::ALL.iter().enumerate() {
        for (way, (data_checksum, cleaner)) in WAYS.into_iter().enumerate() {
            let pool = Pool {
                mapping,
                size_mib: 64,
                data_checksum,
                cleaner,
            };
            // Each loop in one of the ways, on each mapping in another one.
            let wanted = |of: &Loop| soak() || (number(of) + turn) % WAYS.len() == way;
            failures.extend(run_all("long_loops_on_64_mib", pool, wanted, effort()));
        }
    }
    tell(&failures);
}

/// Where rings are longest most waits for the checkpoint.
#[test]
fn long_loops_on_1_gib() {
    let mut failures = Vec::new();
    for (turn, &mapping) in Mapping::ALL.iter().enumerate() {
        for (way, (data_checksum, cleaner)) in WAYS.into_iter().enumerate() {
            let pool = Pool {
                mapping,
                size_mib: 1024,
                data_checksum,
                cleaner,
            };
            // Without a cleaner nothing moves the checkpoint but the loop: that way all on the default mapping, some on
            // the others.
            let wanted = |of: &Loop| {
                soak()
                    || match (mapping == Mapping::default(), way) {
                        (true, 0) => true,
                        (true, 3) => number(of).is_multiple_of(6),
                        (false, 0) => number(of) % (Mapping::ALL.len() - 1) + 1 == turn,
                        _ => false,
                    }
            };
            failures.extend(run_all("long_loops_on_1_gib", pool, wanted, effort()));
        }
    }
    tell(&failures);
}

/// A table so large that a loop never returns to its start.
#[test]
fn long_loops_on_8_gib() {
    let mut failures = Vec::new();
    for &mapping in Mapping::ALL {
        let pool = Pool {
            mapping,
            size_mib: 8192,
            data_checksum: false,
            cleaner: false,
        };
        let few = [
            "truncate_write",
            "unlink_create",
            "punch_fill",
            "neighbours",
            "new_names",
        ];
        let wanted = |of: &Loop| soak() || (mapping == Mapping::default() && few.contains(&of.name));
        failures.extend(run_all("long_loops_on_8_gib", pool, wanted, effort()));
    }
    tell(&failures);
}

/// The index of a loop among all.
fn number(of: &Loop) -> usize {
    loops::all()
        .position(|other| other.name == of.name)
        .expect("one of them")
}
