//! How long a mount after a crash takes, and a full fsck, by the number of files.

use std::path::Path;
use std::time::Instant;

use ferrite_fs::{Engine, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_pm::{Access, Region};
use ferrite_vfs::{Cred, FileKind, FileSystem, NewNode, ROOT_INO};

use super::{Circumstances, Effort, Output, Row, median};
use crate::cli::{FAILED, Failure};

const FILES_PER_DIR: u64 = 1000;
/// Operations right before each crash, so that there is something to replay.
const LAST_OPERATIONS: u64 = 2000;
/// What a mount and an fsck may take, a file.
const MOUNT_NS_PER_FILE: f64 = 1_000.0;
const FSCK_NS_PER_FILE: f64 = 10_000.0;

const SIZES: [(u64, &str, &str); 3] = [
    (10_000, "mount_10k_files", "fsck_10k_files"),
    (100_000, "mount_100k_files", "fsck_100k_files"),
    (1_000_000, "mount_1m_files", "fsck_1m_files"),
];

/// What is measured here.
pub(crate) fn names() -> Vec<&'static str> {
    SIZES.iter().flat_map(|(_, mount, fsck)| [*mount, *fsck]).collect()
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let memory = Path::new("/dev/shm");
    let dir = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let dir = dir.map_err(|error| Failure::new(FAILED, format!("no folder for a pool: {error}")))?;
    let rounds = effort.rounds.min(5);
    for (files, mount_name, fsck_name) in SIZES {
        if files > 100_000 && effort.operations < 10_000 {
            continue;
        }
        if !out.wants(mount_name) && !out.wants(fsck_name) {
            continue;
        }
        let path = dir.path().join(files.to_string());
        fill(&path, files)?;
        let (mut mounts, mut checks) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let start = Instant::now();
            let engine = Engine::mount(Region::open(&path, Access::ReadWrite)?, &quiet())?;
            mounts.push(start.elapsed().as_nanos() as f64);
            work(&engine, round as u64)?;
            // Dropped as it is, as if the process had been killed.
            drop(engine);
            let start = Instant::now();
            let report = fsck(Region::open(&path, Access::ReadOnlyPrivate)?, &mut |_, _, _| {})?;
            checks.push(start.elapsed().as_nanos() as f64);
            if !report.findings.is_empty() || report.entries < files {
                return Err(Failure::new(FAILED, "the pool is not what was put in it"));
            }
        }
        std::fs::remove_file(&path).map_err(|error| Failure::new(FAILED, error.to_string()))?;
        let mut row = |name, against, mut took: Vec<f64>, ns_per_file: f64| {
            if !out.wants(name) {
                return Ok(());
            }
            let median_ns = median(&mut took);
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
                circumstances: Circumstances {
                    page_bytes: 4096,
                    fill_percent: 0,
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
    MountOptions {
        cleaner: false,
        ..MountOptions::default()
    }
}

const NODE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

fn fill(path: &Path, files: u64) -> Result<(), Failure> {
    let region = Region::create(path, (files * 512 + (64 << 20)).next_multiple_of(2 << 20))?;
    let options = MkfsOptions {
        inodes: Some(files + files / FILES_PER_DIR + LAST_OPERATIONS + 64),
        ..super::options()
    };
    mkfs(&region, &options)?;
    let engine = Engine::mount(region, &quiet())?;
    let root = Cred::root();
    for dir in 0..files / FILES_PER_DIR {
        let dir = engine
            .mkdir(&root, ROOT_INO, format!("dir{dir}").as_bytes(), 0o755)?
            .ino;
        for file in 0..FILES_PER_DIR {
            engine.mknod(&root, dir, format!("file{file}").as_bytes(), &NODE)?;
        }
    }
    work(&engine, u64::MAX)
}

fn work(engine: &Engine, round: u64) -> Result<(), Failure> {
    for n in 0..LAST_OPERATIONS / 2 {
        let name = format!("last-{round}-{n}");
        engine.mknod(&Cred::root(), ROOT_INO, name.as_bytes(), &NODE)?;
        engine.unlink(ROOT_INO, name.as_bytes())?;
    }
    Ok(())
}
