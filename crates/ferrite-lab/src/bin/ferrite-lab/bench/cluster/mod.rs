//! The NVMe engine with its metadata in PostgreSQL, compared with the same engine over RocksDB; with its content in
//! Ceph, compared with librados ([`rados`]); and mounted, compared with JuiceFS on the same database ([`juicefs`]), and
//! in the same bucket ([`bucket`]).
//!
//! Contents: the rows of the first comparison, and [`Side`], one of its pools. A PostgreSQL of this group's own, on
//! loopback, holds the metadata of one side; a directory in memory holds RocksDB of the other. Both keep content in
//! files in memory, of the same size, so that the rows compare the metadata alone.
//!
//! Invariants: both sides do the same operations, in turn, from as many threads. Neither waits for a disk where the
//! system's memory has space (`ferrite-test-clusters` says when), so a commit costs PostgreSQL its messages and its
//! work, and no `fsync` of a device.

mod bucket;
mod juicefs;
#[cfg(feature = "rados")]
mod rados;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_buffers::{Buffer, Pool};
use ferrite_lab::peers::{FILE_BYTES, page};
use ferrite_nvme::{Config, DataPlace, MakeOptions, NvmeVolume, Options};
use ferrite_test_clusters::{Postgres, PostgresOptions};
use ferrite_vfs::volume::Volume;
use ferrite_vfs::{FileSystem, Ino, OpenFile, ROOT_INO, RenameMode, SYSTEM};

use super::contest::{Contest, timed};
use super::nvme::{filled, in_threads, new_file, no_memory};
use super::operations::TmpfsDir;
use super::{Circumstances, Effort, Output, whole};
use crate::Failure;

/// Names of all rows.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names = [NAMES, juicefs::NAMES, bucket::NAMES].concat();
    #[cfg(feature = "rados")]
    names.extend(rados::NAMES);
    names
}

/// Names of the rows against RocksDB: each operation from one thread, and from [`THREADS`].
const NAMES: &[&str] = &[
    "cluster_create",
    "cluster_create_16_threads",
    "cluster_stat",
    "cluster_stat_16_threads",
    "cluster_rename",
    "cluster_rename_16_threads",
    "cluster_write_4k",
    "cluster_write_4k_16_threads",
    "cluster_read_4m",
    "cluster_read_4m_16_threads",
    "cluster_write_4m",
    "cluster_write_4m_16_threads",
];
const THREADS: usize = 16;
const BLOCK_BYTES: usize = 4096;
const LARGE_BYTES: usize = 4 << 20;
/// Files that are looked up.
const STAT_FILES: u64 = 1000;
/// Size of the file with a pool's content; the first write to a part takes its memory.
const DEVICE_BYTES: u64 = 4 << 30;

/// An operation, in the order of [`NAMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// A new, empty file.
    Create,
    /// A lookup of a name that both sides have in memory, with the attributes.
    Stat,
    /// Within a directory, of a file that this thread alone renames.
    Rename,
    /// In place, at a random page of a file; durable on return.
    Write4k,
    Read4m,
    /// In place; durable on return.
    Write4m,
}

impl Operation {
    const ALL: [Operation; 6] = [
        Operation::Create,
        Operation::Stat,
        Operation::Rename,
        Operation::Write4k,
        Operation::Read4m,
        Operation::Write4m,
    ];

    /// The most that the ratio should be.
    fn goal(self) -> &'static str {
        match self {
            Operation::Create => "goal at most 5",
            Operation::Stat => "goal at most 1.2",
            _ => "goal none",
        }
    }

    /// Bytes that one transfers.
    fn len(self) -> usize {
        match self {
            Operation::Write4k => BLOCK_BYTES,
            Operation::Read4m | Operation::Write4m => LARGE_BYTES,
            _ => 0,
        }
    }

    /// Operations of a thread in a round. Even, because [`Side::rename`] takes each file back.
    fn count(self, effort: Effort, threads: usize) -> u64 {
        let most = effort.operations as u64;
        let (whole_round, least) = match self {
            // The start of the threads must not count: a lookup is far shorter.
            Operation::Stat => (most * threads as u64, 2),
            Operation::Create | Operation::Rename => (most / 80 * threads.min(4) as u64, 4),
            Operation::Write4k => (most / 20, 4),
            Operation::Read4m | Operation::Write4m => (most / 500, 2),
        };
        (whole_round / threads as u64).max(least).next_multiple_of(2)
    }
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    if !names().iter().any(|name| out.wants(name)) {
        return Ok(());
    }
    let database = Postgres::start(&PostgresOptions::default())?;
    let dir = TmpfsDir::new()?;
    against_rocksdb(effort, out, &database, &dir.0)?;
    #[cfg(feature = "rados")]
    rados::run(effort, out, &database, &dir.0)?;
    juicefs::run(effort, out, &database, &dir.0)?;
    bucket::run(effort, out, &database, &dir.0)
}

fn against_rocksdb(effort: Effort, out: &mut Output, database: &Postgres, dir: &Path) -> Result<(), Failure> {
    if !NAMES.iter().any(|name| out.wants(name)) {
        return Ok(());
    }
    let ours = Side::make(dir, "postgres", |config| on_database(config, database, "names"))?;
    let theirs = Side::make(dir, "rocksdb", |_| ())?;
    for (operation, names) in Operation::ALL.into_iter().zip(NAMES.chunks(2)) {
        for (&name, threads) in names.iter().zip([1, THREADS]) {
            if !out.wants(name) {
                continue;
            }
            let count = operation.count(effort, threads);
            let (mut mine, mut other) = (buffers(operation, threads)?, buffers(operation, threads)?);
            let ours = &mut || ours.round(operation, count, &mut mine);
            let theirs = &mut || theirs.round(operation, count, &mut other);
            contest(effort, name, "RocksDB", operation.goal(), threads).run(ours, theirs, out)?;
        }
    }
    Ok(())
}

fn contest(effort: Effort, name: &'static str, against: &'static str, goal: &str, threads: usize) -> Contest {
    Contest {
        group: "cluster",
        name,
        against,
        rounds: effort.rounds,
        contents: Some(goal.to_owned()),
        circumstances: Circumstances {
            page_bytes: BLOCK_BYTES as u64,
            fill_percent: 2,
            cache: "warm",
            threads: threads as u32,
            placement: "any".into(),
        },
    }
}

/// Moves a pool's metadata to the database, in a schema of its own.
fn on_database(config: &mut Config, database: &Postgres, volume: &str) {
    config.metadata.directory = None;
    config.metadata.postgres = Some(database.connection());
    config.metadata.volume = Some(volume.to_owned());
}

/// Makes a pool in `dir`, with its metadata in RocksDB and its content in a file unless `describe` says otherwise. Its
/// pages count as written whole. Returns the path of the file that describes it.
fn make_pool(dir: &Path, name: &str, describe: impl FnOnce(&mut Config)) -> Result<PathBuf, Failure> {
    let (data, config) = (dir.join(format!("{name}.data")), dir.join(format!("{name}.toml")));
    File::create(&data)?.set_len(DEVICE_BYTES)?;
    let mut described = Config::new(dir.join(format!("{name}.metadata")), [data]);
    if let DataPlace::Devices(devices) = &mut described.data {
        devices.iter_mut().for_each(|device| device.whole_pages = Some(true));
    }
    describe(&mut described);
    std::fs::write(&config, described.to_text())?;
    let mut options = MakeOptions::default();
    options.force = true;
    ferrite_nvme::make(&config, &options)?;
    Ok(config)
}

/// A buffer for each thread; operations on names get the shortest.
fn buffers(operation: Operation, threads: usize) -> Result<Vec<Buffer>, Failure> {
    let len = operation.len().max(BLOCK_BYTES);
    let pool = Pool::new(2 * len * threads).ok_or_else(no_memory)?;
    (0..threads).map(|_| pool.take(len).ok_or_else(no_memory)).collect()
}

/// An open pool; dropping this closes it.
struct Side {
    volume: NvmeVolume,
    fs: Arc<dyn FileSystem>,
    dir: Ino,
    file: Arc<dyn OpenFile>,
    /// The next new name, and the next place of a transfer.
    next: AtomicU64,
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.volume.close();
    }
}

/// One operation of a [`round`].
struct Turn {
    thread: usize,
    /// How many operations of its thread came before.
    of_thread: u64,
    /// A number that no other operation of the side has.
    number: u64,
}

/// Has a thread for each buffer do `count` operations; returns the nanoseconds of one. `next` is the first number that
/// is free.
fn round(
    next: &AtomicU64,
    count: u64,
    buffers: &mut [Buffer],
    work: impl Fn(Turn, &mut Buffer) -> Result<(), Failure> + Sync,
) -> Result<f64, Failure> {
    let all = count * buffers.len() as u64;
    let first = next.fetch_add(all, Ordering::Relaxed);
    let buffers: Vec<&mut Buffer> = buffers.iter_mut().collect();
    timed(all, || {
        in_threads(buffers, |thread, buffer| {
            let from = first + thread as u64 * count;
            (0..count).try_for_each(|of_thread| {
                let number = from + of_thread;
                work(
                    Turn {
                        thread,
                        of_thread,
                        number,
                    },
                    buffer,
                )
            })
        })
    })
}

impl Side {
    /// Makes a pool ([`make_pool`]), opens it, and makes the files that the rows need.
    fn make(dir: &Path, name: &str, describe: impl FnOnce(&mut Config)) -> Result<Side, Failure> {
        let config = make_pool(dir, name, describe)?;
        let volume = NvmeVolume::open(&config, Options::default())?;
        let fs = volume.fs();
        let file = filled(&*fs)?;
        let dir = fs.mkdir(SYSTEM, ROOT_INO, b"names", 0o755)?.ino;
        for name in 0..STAT_FILES {
            fs.create(SYSTEM, dir, stat_name(name).as_bytes(), &new_file())?;
        }
        for thread in 0..THREADS {
            fs.create(SYSTEM, dir, rename_name(thread, false).as_bytes(), &new_file())?;
        }
        Ok(Side {
            volume,
            fs,
            dir,
            file,
            next: AtomicU64::new(0),
        })
    }

    /// Has a thread for each buffer do `count` operations; returns the nanoseconds of one.
    fn round(&self, operation: Operation, count: u64, buffers: &mut [Buffer]) -> Result<f64, Failure> {
        round(&self.next, count, buffers, |turn, buffer| match operation {
            Operation::Create => self.create(turn.number),
            Operation::Stat => self.stat(turn.number),
            Operation::Rename => self.rename(turn.thread, turn.of_thread % 2 == 1),
            Operation::Write4k => self.write(page(turn.number, FILE_BYTES), buffer),
            Operation::Write4m => self.write(large(turn.number), buffer),
            Operation::Read4m => {
                let len = buffer.len();
                whole(self.file.read_at(SYSTEM, large(turn.number), buffer)?, len)
            }
        })
    }

    fn create(&self, number: u64) -> Result<(), Failure> {
        let name = format!("file-{number}");
        self.fs.create(SYSTEM, self.dir, name.as_bytes(), &new_file())?;
        Ok(())
    }

    fn stat(&self, number: u64) -> Result<(), Failure> {
        let name = stat_name(number % STAT_FILES);
        self.fs.lookup(SYSTEM, self.dir, name.as_bytes())?;
        Ok(())
    }

    /// Gives this thread's file its other name, or the first name `back`.
    fn rename(&self, thread: usize, back: bool) -> Result<(), Failure> {
        let (old, new) = (rename_name(thread, back), rename_name(thread, !back));
        let (old, new) = (old.as_bytes(), new.as_bytes());
        Ok(self
            .fs
            .rename(SYSTEM, self.dir, old, self.dir, new, RenameMode::Replace)?)
    }

    fn write(&self, at: u64, buffer: &Buffer) -> Result<(), Failure> {
        whole(self.file.write_at(SYSTEM, at, buffer)?, buffer.len())
    }
}

fn stat_name(number: u64) -> String {
    format!("stat-{number}")
}

fn rename_name(thread: usize, is_second: bool) -> String {
    format!("{}-{thread}", if is_second { "second" } else { "first" })
}

/// Offset of a transfer of [`LARGE_BYTES`].
fn large(number: u64) -> u64 {
    number * LARGE_BYTES as u64 % FILE_BYTES
}
