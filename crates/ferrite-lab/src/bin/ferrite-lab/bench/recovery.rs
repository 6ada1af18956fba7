//! The time of a mount after a crash, and of a full fsck, by the number of files, which hold pages and page logs
//! ([`Contents`]).

use std::path::Path;
use std::time::Instant;

use ferrite_fs::{Engine, MountOptions, fsck, mkfs};
use ferrite_lab::FILE_NODE;
use ferrite_measure::median;
use ferrite_pm::{Access, Region};
use ferrite_vfs::{FileSystem, OpenMode, ROOT_INO, SYSTEM};

use super::{Circumstances, Effort, Output, Row};
use crate::{FAILED, Failure};

const FILES_PER_DIR: u64 = 1000;
/// Operations right before each crash, so that there is something to replay.
const LAST_OPERATIONS: u64 = 2000;
/// Most time that a mount and an fsck may take per file.
const MOUNT_NS_PER_FILE: f64 = 1_000.0;
const FSCK_NS_PER_FILE: f64 = 10_000.0;

const PAGE_BYTES: u64 = 4096;
/// Bytes of each entry of a page log.
const LOGGED_BYTES: usize = 40;
/// Entries of each page log.
const LOG_ENTRIES: u64 = 3;

/// Contents of the files: one in `one_has_pages_of` has pages, alternately one and two; of these, one in
/// `one_has_log_of` has a log of its first page.
#[derive(Debug, Clone, Copy)]
struct Contents {
    one_has_pages_of: u64,
    one_has_log_of: u64,
}

/// The largest number of files has pages less often: with pages in each the pool would take memory that many machines
/// lack.
const SIZES: [(u64, &str, &str, Contents); 3] = [
    (10_000, "mount_10k_files", "fsck_10k_files", EACH),
    (100_000, "mount_100k_files", "fsck_100k_files", EACH),
    (1_000_000, "mount_1m_files", "fsck_1m_files", SOME),
];
const EACH: Contents = Contents {
    one_has_pages_of: 1,
    one_has_log_of: 10,
};
const SOME: Contents = Contents {
    one_has_pages_of: 8,
    one_has_log_of: 10,
};

impl Contents {
    /// Bytes that file `number` of a pool holds, and whether its first page has a log.
    fn of(self, number: u64) -> (u64, bool) {
        if !number.is_multiple_of(self.one_has_pages_of) {
            return (0, false);
        }
        let with_pages = number / self.one_has_pages_of;
        (
            (1 + with_pages % 2) * PAGE_BYTES,
            with_pages.is_multiple_of(self.one_has_log_of),
        )
    }

    /// Pages and logs of this many files.
    fn count(self, files: u64) -> (u64, u64) {
        (0..files)
            .map(|number| self.of(number))
            .fold((0, 0), |(pages, logs), (bytes, has_log)| {
                (pages + bytes / PAGE_BYTES, logs + u64::from(has_log))
            })
    }
}

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    SIZES.iter().flat_map(|&(_, mount, fsck, _)| [mount, fsck]).collect()
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let memory = Path::new("/dev/shm");
    let dir = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let dir = dir.map_err(|error| Failure::new(FAILED, format!("no directory for a pool: {error}")))?;
    let rounds = effort.rounds.min(5);
    for (files, mount_name, fsck_name, contents) in SIZES {
        if files > 100_000 && effort.operations < 10_000 {
            continue;
        }
        if !out.wants(mount_name) && !out.wants(fsck_name) {
            continue;
        }
        let path = dir.path().join(files.to_string());
        let (pages, logs) = contents.count(files);
        let fill_percent = fill(&path, files, contents)?;
        let (mut mounts, mut checks) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let start = Instant::now();
            let engine = Engine::mount(Region::open(&path, Access::ReadWrite)?, &quiet())?;
            mounts.push(start.elapsed().as_nanos() as f64);
            work(&engine, round as u64)?;
            // Dropped without an unmount, as if the process had been killed.
            drop(engine);
            let start = Instant::now();
            let report = fsck(Region::open(&path, Access::ReadOnlyPrivate)?, &mut |_, _, _| {})?;
            checks.push(start.elapsed().as_nanos() as f64);
            if !report.findings.is_empty() || report.entries < files || report.pages < pages {
                return Err(Failure::new(FAILED, "the pool does not hold what was written to it"));
            }
        }
        std::fs::remove_file(&path).map_err(|error| Failure::new(FAILED, error.to_string()))?;
        let mut row = |name, against, took: Vec<f64>, ns_per_file: f64| {
            if !out.wants(name) {
                return Ok(());
            }
            let median_ns = median(&took);
            out.row(&Row {
                group: "recovery",
                name,
                against,
                ratio: median_ns / (files as f64 * ns_per_file),
                median_ns,
                against_median_ns: files as f64 * ns_per_file,
                fences: 0.0,
                lines_written_back: 0.0,
                bytes_streamed: 0.0,
                medium_bytes_per_byte: None,
                contents: Some(format!("{pages} pages, {logs} page logs")),
                circumstances: Circumstances {
                    page_bytes: 4096,
                    fill_percent,
                    cache: "whatever the kernel kept",
                    threads: 1,
                    placement: "any".into(),
                },
            })
        };
        row(mount_name, "1 s a million", mounts, MOUNT_NS_PER_FILE)?;
        row(fsck_name, "10 s a million", checks, FSCK_NS_PER_FILE)?;
    }
    Ok(())
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

/// Makes a pool; returns how full it is, in percent.
fn fill(path: &Path, files: u64, contents: Contents) -> Result<u32, Failure> {
    let (pages, logs) = contents.count(files);
    // A log takes a block, and some mappings a node for each file that has pages.
    let bytes = files * 512 + (2 * pages + logs) * PAGE_BYTES + (64 << 20);
    let region = Region::create(path, bytes.next_multiple_of(2 << 20))?;
    let options = super::options().inodes(files + files / FILES_PER_DIR + LAST_OPERATIONS + 64);
    mkfs(&region, &options)?;
    let engine = Engine::mount(region, &quiet())?;
    let data = [0x5a; 2 * PAGE_BYTES as usize];
    for dir in 0..files / FILES_PER_DIR {
        let first = dir * FILES_PER_DIR;
        let dir = engine
            .mkdir(SYSTEM, ROOT_INO, format!("dir{dir}").as_bytes(), 0o755)?
            .ino;
        for file in 0..FILES_PER_DIR {
            let made = engine.mknod(SYSTEM, dir, format!("file{file}").as_bytes(), &FILE_NODE)?;
            let (bytes, has_log) = contents.of(first + file);
            if bytes == 0 {
                continue;
            }
            let open = engine.open(SYSTEM, made.ino, OpenMode::read_write())?;
            super::whole(open.write_at(SYSTEM, 0, &data[..bytes as usize])?, bytes as usize)?;
            // Within the page, and short: this write goes to a log.
            for entry in 0..if has_log { LOG_ENTRIES } else { 0 } {
                super::whole(
                    open.write_at(SYSTEM, 100 + entry, &[entry as u8; LOGGED_BYTES])?,
                    LOGGED_BYTES,
                )?;
            }
        }
    }
    let info = engine.info();
    if info.pages < pages || info.logged_pages != logs {
        let (found, found_logs) = (info.pages, info.logged_pages);
        let what = format!("{found} pages and {found_logs} page logs in the pool, {pages} and {logs} were written");
        return Err(Failure::new(FAILED, what));
    }
    work(&engine, u64::MAX)?;
    let space = engine.statfs(SYSTEM)?;
    Ok(((space.blocks - space.blocks_free) * 100 / space.blocks.max(1)) as u32)
}

fn work(engine: &Engine, round: u64) -> Result<(), Failure> {
    for n in 0..LAST_OPERATIONS / 2 {
        let name = format!("last-{round}-{n}");
        engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &FILE_NODE)?;
        engine.unlink(SYSTEM, ROOT_INO, name.as_bytes())?;
    }
    Ok(())
}
