//! Two simulated days of a file server: files are made, rewritten, appended to, read and removed, by the sizes of
//! filebench's fileserver (128 KiB on average, appends of 16 KiB), while the pool fills to 95 % and empties to 60 %
//! every twelve hours. In the end the pool is sound, all content is right, and layout and write speed are as after the
//! first hour.
//!
//! An hour is a fixed number of operations. The engine is idle at its end, so work that waits for that is done
//! (`Engine::clean`). A pool that has seen only one hour alternates with the aged one, at the same fill, for two hours:
//! other load on the machine affects both. Time is the thread's CPU time; the medians are over the parts of these
//! hours.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use ferrite_fs::{Engine, FsckOptions, Mapping, MkfsOptions, MountOptions, fsck_with, mkfs};
use ferrite_measure::median;
use ferrite_pm::{Access, Region};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;
use ferrite_vfs::{FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, SYSTEM, SetAttr};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempPath;

const PAGE: usize = 4096;
const HOURS: u64 = 48;
/// Hours from one low of the pool's fill to the next.
const TIDE: u64 = 12;
const LOW_PERCENT: u64 = 60;
const HIGH_PERCENT: u64 = 95;
/// Parts of an hour, in which the aged and the young pool take turns.
const WINDOWS: u64 = 8;
const MEAN_BYTES: f64 = 128.0 * 1024.0;
const APPEND_BYTES: usize = 16 << 10;
/// Hours for which the two work alternately.
const COMPARED: u64 = 2;

/// A file and its content: the fills and lengths of its writes, in file order.
struct Content {
    ino: Ino,
    parts: Vec<(u32, usize)>,
}

impl Content {
    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.1).sum()
    }

    fn pages(&self) -> u64 {
        self.len().div_ceil(PAGE) as u64
    }

    fn bytes(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|&(fill, len)| content(fill, len)).collect()
    }
}

/// The main work of an operation, for [`Server::by_kind`].
#[derive(Clone, Copy)]
enum Kind {
    Write,
    Read,
    Remove,
}

/// The layout of files and free space.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Pages of all files over the runs of consecutive blocks they lie in.
    run: f64,
    /// Free blocks over the gaps between used ones that they make.
    free_run: f64,
}

struct Server {
    engine: Engine,
    rng: Rng,
    files: BTreeMap<u64, Content>,
    next: u64,
    fill: u32,
    pages: u64,
    /// Pages that files can have when nothing else is there.
    space: u64,
    /// Number of the pool's last block.
    last_block: u64,
    /// Bytes written to or read from the engine in this window, and the time it took.
    bytes: u64,
    busy: Duration,
    /// The same by kind of work, over the windows that are compared.
    by_kind: [(u64, Duration); 3],
    refused: u64,
}

/// The content of the `fill`-th write. Cut from one long text, since generating it would take most of the time.
fn content(fill: u32, len: usize) -> Vec<u8> {
    static TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(1, 4 << 20));
    let start = fill as usize * 4099 % (TEXT.len() / 2);
    let mut bytes = TEXT[start..start + len].to_vec();
    // No two are alike, should they begin at the same place.
    for (byte, stamp) in bytes.iter_mut().zip(fill.to_le_bytes()) {
        *byte = stamp;
    }
    bytes
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Server {
    fn new(engine: Engine, seed: u64) -> Server {
        let space = engine.statfs(SYSTEM).unwrap().blocks_available;
        let last_block = engine.info().size_bytes / PAGE as u64 - 1;
        Server {
            engine,
            rng: Rng::new(seed),
            files: BTreeMap::new(),
            next: 0,
            fill: 0,
            pages: 0,
            space,
            last_block,
            bytes: 0,
            busy: Duration::ZERO,
            by_kind: Default::default(),
            refused: 0,
        }
    }

    /// Has the engine process this many bytes; `None` if there was no space for it.
    fn timed<T>(
        &mut self,
        kind: Kind,
        bytes: usize,
        work: impl FnOnce(&Engine) -> ferrite_vfs::Result<T>,
    ) -> Option<T> {
        let start = cpu_time();
        let done = work(&self.engine);
        let took = cpu_time() - start;
        self.busy += took;
        self.bytes += bytes as u64;
        let of_kind = &mut self.by_kind[kind as usize];
        *of_kind = (of_kind.0 + 1, of_kind.1 + took);
        match done {
            Ok(done) => Some(done),
            Err(FsError::NoSpace(_)) => {
                self.refused += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// As filebench draws them: a gamma distribution, here of shape 2.
    fn size(&mut self) -> usize {
        let mut exponential = || -((self.rng.below(1 << 30) + 1) as f64 / (1_u64 << 30) as f64).ln();
        let len = ((exponential() + exponential()) / 2.0 * MEAN_BYTES) as usize + 1;
        len.min(2 << 20)
    }

    fn fresh(&mut self, len: usize) -> (u32, Vec<u8>) {
        self.fill += 1;
        (self.fill, content(self.fill, len))
    }

    /// One of the files; there is one.
    fn some_file(&mut self) -> u64 {
        let at = self.rng.below(self.files.len() as u64) as usize;
        *self.files.keys().nth(at).expect("so many files")
    }

    fn create(&mut self) {
        let (number, len) = (self.next, self.size());
        self.next += 1;
        let name = format!("file{number:08}");
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        let made = self.timed(Kind::Write, 0, |engine| {
            engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node)
        });
        let Some(attr) = made else { return };
        self.files.insert(
            number,
            Content {
                ino: attr.ino,
                parts: Vec::new(),
            },
        );
        self.write_behind(number, len);
    }

    /// Writes `len` bytes after the file's content.
    fn write_behind(&mut self, number: u64, len: usize) {
        let (fill, data) = self.fresh(len);
        let (ino, old_pages) = (self.files[&number].ino, self.files[&number].pages());
        let wrote = self.timed(Kind::Write, len, |engine| {
            engine.open(SYSTEM, ino, OpenMode::read_write())?.append(SYSTEM, &data)
        });
        if let Some(ferrite_vfs::Written { len_bytes: count, .. }) = wrote {
            let file = self.files.get_mut(&number).expect("there");
            file.parts.push((fill, count));
            self.pages += file.pages() - old_pages;
        }
    }

    fn rewrite(&mut self, number: u64) {
        let len = self.size();
        let ino = self.files[&number].ino;
        let empty = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        if self
            .timed(Kind::Remove, 0, |engine| engine.setattr(SYSTEM, ino, &empty))
            .is_some()
        {
            let file = self.files.get_mut(&number).expect("there");
            self.pages -= file.pages();
            file.parts.clear();
            self.write_behind(number, len);
        }
    }

    fn read(&mut self, number: u64) {
        let (ino, expected) = (self.files[&number].ino, self.files[&number].bytes());
        let mut found = vec![0; expected.len() + 1];
        let len = expected.len();
        let read = self.timed(Kind::Read, len, |engine| {
            engine
                .open(SYSTEM, ino, OpenMode::read_only())?
                .read_at(SYSTEM, 0, &mut found)
        });
        assert_eq!(read, Some(len), "file {number}");
        assert!(found[..len] == expected, "file {number} holds something else");
    }

    fn delete(&mut self, number: u64) {
        let name = format!("file{number:08}");
        let gone = self.timed(Kind::Remove, 0, |engine| {
            engine.unlink(SYSTEM, ROOT_INO, name.as_bytes())
        });
        assert!(gone.is_some(), "removing a file needs no space");
        let file = self.files.remove(&number).expect("there");
        self.pages -= file.pages();
    }

    /// One operation, which takes the pool nearer to the given percentage.
    fn step(&mut self, percent: u64) {
        let wanted = self.space * percent / 100;
        if self.files.is_empty() {
            return self.create();
        }
        let number = self.some_file();
        match (self.rng.below(8), self.pages < wanted) {
            (0 | 1, _) => self.rewrite(number),
            (2 | 3, _) => self.read(number),
            (4, true) if self.files[&number].len() < 4 * MEAN_BYTES as usize => {
                self.write_behind(number, APPEND_BYTES);
            }
            (_, true) => self.create(),
            (_, false) => self.delete(number),
        }
    }

    /// Part of an hour; bytes read and written a second.
    fn window(&mut self, hour: u64, window: u64, hour_steps: u64) -> f64 {
        (self.bytes, self.busy) = (0, Duration::ZERO);
        for step in 0..hour_steps / WINDOWS {
            // The tide: up for six hours, down for six.
            let at = hour % TIDE * 1000 + (window * (hour_steps / WINDOWS) + step) * 1000 / hour_steps;
            let up = at.min(TIDE * 1000 - at);
            self.step(LOW_PERCENT + (HIGH_PERCENT - LOW_PERCENT) * up / (TIDE * 500));
        }
        self.bytes as f64 / self.busy.as_secs_f64()
    }

    /// The end of an hour: the engine has time.
    fn rest(&self) {
        self.engine.clean(usize::MAX).unwrap();
    }

    /// The current layout.
    fn layout(&self) -> Layout {
        let (mut pages, mut runs) = (0_u64, 0_u64);
        let mut used = Vec::new();
        for file in self.files.values() {
            let mut last = None;
            for page in self.engine.dump(file.ino).unwrap() {
                pages += 1;
                runs += u64::from(last != Some((page.page, page.block)));
                last = Some((page.page + 1, page.block + 1));
                used.push(u64::from(page.block));
            }
        }
        used.sort_unstable();
        let (mut free, mut gaps) = (0, 0);
        used.push(self.last_block);
        for pair in used.windows(2) {
            free += (pair[1] - pair[0]).saturating_sub(1);
            gaps += u64::from(pair[1] > pair[0] + 1);
        }
        Layout {
            run: pages as f64 / runs.max(1) as f64,
            free_run: free as f64 / gaps.max(1) as f64,
        }
    }

    fn verify(&mut self) {
        for number in self.files.keys().copied().collect::<Vec<_>>() {
            self.read(number);
        }
    }
}

fn mount(path: &TempPath) -> Engine {
    mount_region(Region::open(path, Access::ReadWrite).unwrap())
}

fn mount_region(region: Region) -> Engine {
    let options = MountOptions::default().cleaner(false);
    let engine = Engine::mount(region, &options).unwrap();
    assert!(engine.damage().is_empty(), "{:#?}", engine.damage());
    engine
}

fn check(path: &TempPath) {
    let region = Region::open(path, Access::ReadOnlyPrivate).unwrap();
    let report = fsck_with(region, FsckOptions::default().data(true), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "fsck: {:#?}", report.findings);
}

/// A new pool, filled as far as it ever empties.
fn make(mapping: Mapping, size_mib: u64, seed: u64) -> (Server, TempPath) {
    let file = tempfile::Builder::new()
        .prefix("ferrite-ageing-")
        .tempfile_in("/dev/shm")
        .unwrap();
    file.as_file().set_len(size_mib << 20).unwrap();
    let path = file.into_temp_path();
    let options = MkfsOptions::default().mapping(mapping).seed(seed);
    let region = Region::open(&path, Access::ReadWrite).unwrap();
    // All of it touched, or a young pool would pay for its memory.
    region.stream_zero(0, region.len());
    mkfs(&region, &options).unwrap();
    let mut server = Server::new(mount_region(region), seed);
    while server.pages < server.space * LOW_PERCENT / 100 {
        server.create();
    }
    (server, path)
}

/// A pool after two days.
struct Aged {
    mapping: Mapping,
    /// Throughput over that of a pool after its first hour.
    speed: f64,
    /// Length of runs, over that of a pool after its first hour.
    run: f64,
    /// The same, over that twelve hours before.
    run_since_last_tide: f64,
}

fn age(mapping: Mapping, size_mib: u64, steps: u64) -> Aged {
    let seed = seed_from_env().unwrap_or(1);
    println!("{mapping}: FERRITE_SEED={seed}");
    let (started, mut told) = (Instant::now(), Instant::now());
    let (mut aged, path) = make(mapping, size_mib, seed);
    let mut at_low_tide = Vec::new();
    for hour in 0..HOURS {
        for window in 0..WINDOWS {
            aged.window(hour, window, steps);
        }
        aged.rest();
        if hour % TIDE == TIDE - 1 {
            at_low_tide.push(aged.layout());
        }
        if told.elapsed() > Duration::from_secs(60) {
            let seconds = started.elapsed().as_secs();
            let _ = writeln!(std::io::stderr(), "{mapping}: hour {hour} after {seconds} s");
            told = Instant::now();
        }
    }
    let (mut young, _young_path) = make(mapping, size_mib, seed + 1);
    for window in 0..WINDOWS {
        young.window(0, window, steps);
    }
    young.rest();
    let mut speeds = [Vec::new(), Vec::new()];
    let moves = [&aged, &young].map(|server| server.engine.map_moves());
    for server in [&mut aged, &mut young] {
        server.by_kind = Default::default();
    }
    for hour in 1..=COMPARED {
        for window in 0..WINDOWS {
            for (server, speeds) in [&mut aged, &mut young].into_iter().zip(&mut speeds) {
                speeds.push(server.window(hour, window, steps));
            }
        }
        aged.rest();
        young.rest();
    }
    for (kind, what) in ["write", "read", "remove"].into_iter().enumerate() {
        let [aged, young] = [&aged, &young].map(|server| {
            let (calls, took) = server.by_kind[kind];
            took.as_secs_f64() * 1e6 / calls.max(1) as f64
        });
        println!("{mapping}: {what}: {aged:.1} us, young {young:.1}");
    }
    let moved = [&aged, &young].map(|server| server.engine.map_moves());
    println!(
        "{mapping}: moves of entries: {}, young {}",
        moved[0] - moves[0],
        moved[1] - moves[1]
    );
    let layouts = [&aged, &young].map(Server::layout);
    let speeds = speeds.map(|speeds| median(&speeds));
    drop(young);

    aged.verify();
    let Server {
        engine, files, refused, ..
    } = aged;
    drop(engine);
    check(&path);
    let mut again = Server::new(mount(&path), seed);
    again.files = files;
    again.verify();
    again.engine.unmount().unwrap();
    drop(again);
    check(&path);

    let (speed, run) = (speeds[0] / speeds[1], layouts[0].run / layouts[1].run);
    println!(
        "{mapping}: throughput {:.0} MB/s, young {:.0}: {speed:.2}; runs of {:.2} pages, young {:.2}: {run:.2}; \
         {refused} times no space; {} s",
        speeds[0] / 1e6,
        speeds[1] / 1e6,
        layouts[0].run,
        layouts[1].run,
        started.elapsed().as_secs(),
    );
    println!(
        "  free space in pieces of {:.1} blocks, young {:.1}",
        layouts[0].free_run, layouts[1].free_run
    );
    for (number, layout) in at_low_tide.iter().enumerate() {
        let hour = (number as u64 + 1) * TIDE;
        println!(
            "  hour {hour}: runs of {:.1}, free space in pieces of {:.1}",
            layout.run, layout.free_run
        );
    }
    let settled = |layouts: &[Layout]| layouts[layouts.len() - 1].run / layouts[layouts.len() - 2].run;
    Aged {
        mapping,
        speed,
        run,
        run_since_last_tide: settled(&at_low_tide),
    }
}

#[test]
fn two_days_of_a_file_server() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let only = std::env::var("FERRITE_MAPPING").ok();
    let mut aged = Vec::new();
    for &mapping in Mapping::ALL {
        if only.as_ref().is_none_or(|only| *only == mapping.to_string()) {
            let (size_mib, steps) = if soak { (1024, 4_000) } else { (96, 120) };
            aged.push(age(mapping, size_mib, steps));
        }
    }
    for aged in aged {
        let Aged {
            mapping, speed, run, ..
        } = aged;
        // A pool that was never full has its free space in one piece; one that was has the gaps that files left
        // (docs/benchmarks.md). That loss happens once, then the layout is stable.
        assert!(
            run > 0.3,
            "{mapping}: runs are {run:.2} times as long as in a young pool"
        );
        let run = aged.run_since_last_tide;
        assert!(
            run > 0.8,
            "{mapping}: runs are {run:.2} times as long as twelve hours before"
        );
        // Short turns of an unoptimized build are less conclusive.
        let least = if soak { 0.8 } else { 0.4 };
        assert!(
            speed > least,
            "{mapping}: throughput is {speed:.2} times that of a young pool"
        );
    }
}
