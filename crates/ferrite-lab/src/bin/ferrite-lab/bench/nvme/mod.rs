//! A pool on devices compared with the layers below it: io_uring itself, and single transactions of RocksDB; and with
//! ext4 on a device of the same kind.
//!
//! All devices are alike ([`place`]), so each side has one of its own. Both sides read and write the same places of as
//! many bytes, with memory that devices take as it is. At depth 16 one thread has 16 requests under way.

mod metadata;
mod place;
mod raw;

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_buffers::{Buffer, Pool};
use ferrite_lab::peers::{FILE_BYTES, Many, page};
use ferrite_nvme::{Config, DataPlace, MakeOptions, NvmeVolume, Options};
use ferrite_vfs::volume::Volume;
use ferrite_vfs::{FileSystem, NewFile, OpenFile, OpenMode, ROOT_INO, SYSTEM};
use rustix::fs::OFlags;

use super::contest::{Contest, timed};
use super::{Circumstances, Effort, Output, whole};
use crate::{FAILED, Failure, complain};
use place::{Ext4, Place};
use raw::Raw;

/// Names of the rows.
pub(crate) const NAMES: &[&str] = &[
    "nvme_read_4k",
    "nvme_write_4k",
    "nvme_read_4k_depth_16",
    "nvme_write_4k_depth_16",
    "nvme_read_4m",
    "nvme_write_4m",
    "nvme_read_4k_direct",
    "nvme_write_4k_sync",
    "nvme_write_4k_16_threads",
    "nvme_read_4k_checksums",
    "nvme_write_4k_checksums",
    "nvme_create",
    "nvme_unlink",
    "nvme_create_16_threads",
    "nvme_unlink_16_threads",
    "nvme_small_file",
    "nvme_stat",
];
/// Number of rows about content, which come first.
const CONTENT_NAMES: usize = 11;
const BLOCK_BYTES: usize = 4096;
const LARGE_BYTES: usize = 4 << 20;
const THREADS: usize = 16;

/// Writes bytes at an offset, on any thread.
type Write<'w> = &'w (dyn Fn(&[u8], u64) -> Result<(), Failure> + Sync);

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let place = Place::new()?;
    if !place.has_loops {
        complain(format_args!(
            "ferrite: measured in files, and ext4 left out: loop devices take root and util-linux"
        ));
    }
    let bench = Bench { effort, place: &place };
    bench.content(out)?;
    metadata::run(&bench, out)
}

/// State that all rows share.
struct Bench<'p> {
    effort: Effort,
    place: &'p Place,
}

/// An open pool; dropping this closes it.
struct Open {
    volume: NvmeVolume,
    fs: Arc<dyn FileSystem>,
}

impl Open {
    /// Makes a pool and opens it. Its pages count as written whole, as io_uring writes them.
    fn make(config: &Path, metadata: &Path, data: &Path, data_checksum: bool) -> Result<Open, Failure> {
        let mut described = Config::new(metadata, [data.to_owned()]);
        if let DataPlace::Devices(devices) = &mut described.data {
            devices.iter_mut().for_each(|device| device.whole_pages = Some(true));
        }
        if metadata.is_file() {
            // A device that is a file.
            (described.metadata.directory, described.metadata.device) = (None, Some(metadata.to_owned()));
        }
        std::fs::write(config, described.to_text())?;
        let mut options = MakeOptions::default();
        options.force = true;
        options.data_checksum = data_checksum;
        ferrite_nvme::make(config, &options)?;
        let volume = NvmeVolume::open(config, Options::default())?;
        let fs = volume.fs();
        Ok(Open { volume, fs })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.volume.close();
    }
}

impl Bench<'_> {
    fn contest(&self, name: &'static str, against: &'static str, threads: usize) -> Contest {
        Contest {
            group: "nvme",
            name,
            against,
            rounds: self.effort.rounds,
            contents: None,
            circumstances: Circumstances {
                page_bytes: BLOCK_BYTES as u64,
                fill_percent: 2,
                cache: "none",
                threads: threads as u32,
                placement: self.place.describe().to_owned(),
            },
        }
    }

    /// Operations in a round, for an operation that takes `rarer` times as long as a small read.
    fn count(&self, rarer: usize) -> u64 {
        (self.effort.operations / 10 / rarer).max(16) as u64
    }

    /// Rows about one long file.
    fn content(&self, out: &mut Output) -> Result<(), Failure> {
        if !NAMES[..CONTENT_NAMES].iter().any(|name| out.wants(name)) {
            return Ok(());
        }
        let dir = self.place.dir();
        let (device, other) = (self.place.device("data")?, self.place.device("raw")?);
        let open = Open::make(&dir.join("pool.toml"), &dir.join("metadata"), &device.path, false)?;
        let file = filled(&*open.fs)?;
        let written = File::options().write(true).open(&other.path)?;
        let chunk = vec![1; 1 << 20];
        for at in (0..FILE_BYTES).step_by(chunk.len()) {
            written.write_all_at(&chunk, at)?;
        }
        written.sync_all()?;
        drop(written);
        let pool = Pool::new(2 * LARGE_BYTES).ok_or_else(no_memory)?;
        for (names, len, rarer) in [
            (["nvme_read_4k", "nvme_write_4k"], BLOCK_BYTES, 1),
            (["nvme_read_4m", "nvme_write_4m"], LARGE_BYTES, 50),
        ] {
            let mut raw = Raw::open(&other.path, FILE_BYTES, len)?;
            let mut buffer = pool.take(len).ok_or_else(no_memory)?;
            for (name, writes) in names.into_iter().zip([false, true]) {
                let count = self.count(rarer);
                let mut next = 0;
                let ours = &mut || timed(count, || each(count, || one(&*file, writes, &mut buffer, &mut next)));
                let theirs = &mut || timed(count, || raw.run(writes, 1, count));
                self.contest(name, "io_uring", 1).run(ours, theirs, out)?;
            }
        }
        let mut raw = Raw::open(&other.path, FILE_BYTES, BLOCK_BYTES)?;
        for (name, writes) in [("nvme_read_4k_depth_16", false), ("nvme_write_4k_depth_16", true)] {
            let count = self.count(1) * 4;
            let many = Many::new(&file, FILE_BYTES, writes, raw::DEPTH_MAX as u64)?;
            open.fs.know_buffers(many.pool());
            let ours = &mut || timed(count, || Ok(many.run(count)?));
            let theirs = &mut || timed(count, || raw.run(writes, raw::DEPTH_MAX, count));
            self.contest(name, "io_uring", 1).run(ours, theirs, out)?;
        }
        if let Some(ext4) = self.place.ext4("ext4") {
            self.against_ext4(&file, &ext4, out)?;
        }
        self.with_checksums(&*file, &pool, out)
    }

    /// The same file in a pool whose data has checksums.
    fn with_checksums(&self, without: &dyn OpenFile, pool: &Pool, out: &mut Output) -> Result<(), Failure> {
        let dir = self.place.dir();
        let device = self.place.device("summed")?;
        let open = Open::make(
            &dir.join("summed.toml"),
            &dir.join("summed-metadata"),
            &device.path,
            true,
        )?;
        let file = filled(&*open.fs)?;
        let mut buffer = pool.take(BLOCK_BYTES).ok_or_else(no_memory)?;
        let mut other = pool.take(BLOCK_BYTES).ok_or_else(no_memory)?;
        for (name, writes, rarer) in [
            ("nvme_read_4k_checksums", false, 1),
            ("nvme_write_4k_checksums", true, 4),
        ] {
            let count = self.count(rarer);
            let (mut next, mut their_next) = (0, 0);
            let ours = &mut || timed(count, || each(count, || one(&*file, writes, &mut buffer, &mut next)));
            let theirs = &mut || {
                timed(count, || {
                    each(count, || one(without, writes, &mut other, &mut their_next))
                })
            };
            self.contest(name, "without checksums", 1).run(ours, theirs, out)?;
        }
        Ok(())
    }

    fn against_ext4(&self, file: &Arc<dyn OpenFile>, ext4: &Ext4, out: &mut Output) -> Result<(), Failure> {
        let path = ext4.dir.join("data");
        let open = |flags: OFlags| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.custom_flags(flags.bits() as i32).open(&path)
        };
        let written = open(OFlags::empty())?;
        let chunk = vec![1; 1 << 20];
        for at in (0..FILE_BYTES).step_by(chunk.len()) {
            written.write_all_at(&chunk, at)?;
        }
        written.sync_all()?;
        let pool = Pool::new(2 * LARGE_BYTES).ok_or_else(no_memory)?;
        let buffer = || pool.take(BLOCK_BYTES).ok_or_else(no_memory);
        let (direct, sync) = (open(OFlags::DIRECT)?, open(OFlags::SYNC)?);
        let (mut mine, mut theirs, mut next, mut their_next) = (buffer()?, buffer()?, 0, 0);
        let count = self.count(1);
        self.contest("nvme_read_4k_direct", "ext4, O_DIRECT", 1).run(
            &mut || timed(count, || each(count, || one(&**file, false, &mut mine, &mut next))),
            &mut || {
                let mut read = || {
                    their_next += 1;
                    Ok(direct.read_exact_at(&mut theirs, page(their_next, FILE_BYTES))?)
                };
                timed(count, || each(count, &mut read))
            },
            out,
        )?;
        let count = self.count(4);
        self.contest("nvme_write_4k_sync", "ext4, O_SYNC", 1).run(
            &mut || timed(count, || each(count, || one(&**file, true, &mut mine, &mut next))),
            &mut || {
                let mut write = || {
                    their_next += 1;
                    Ok(sync.write_all_at(&theirs, page(their_next, FILE_BYTES))?)
                };
                timed(count, || each(count, &mut write))
            },
            out,
        )?;
        // Each thread has pages of its own.
        let rounds = AtomicU64::new(0);
        let share = count / THREADS as u64 + 1;
        let together = |write: Write<'_>| {
            let round = rounds.fetch_add(1, Ordering::Relaxed);
            let buffers = (0..THREADS).map(|_| buffer()).collect::<Result<Vec<_>, _>>()?;
            timed(share * THREADS as u64, || {
                in_threads(buffers, |thread, buffer| {
                    let at = |n| page(round << 32 | (thread as u64) << 24 | n, FILE_BYTES);
                    (0..share).try_for_each(|n| write(&buffer, at(n)))
                })
            })
        };
        self.contest("nvme_write_4k_16_threads", "ext4, O_SYNC", THREADS).run(
            &mut || together(&|data, at| whole(file.write_at(SYSTEM, at, data)?, data.len())),
            &mut || together(&|data, at| Ok(sync.write_all_at(data, at)?)),
            out,
        )
    }
}

/// The next read or write of a file, of a whole buffer.
fn one(file: &dyn OpenFile, writes: bool, buffer: &mut Buffer, next: &mut u64) -> Result<(), Failure> {
    *next += 1;
    let len = buffer.len();
    let at = match len {
        BLOCK_BYTES => page(*next, FILE_BYTES),
        _ => *next * len as u64 % FILE_BYTES,
    };
    match writes {
        true => whole(file.write_at(SYSTEM, at, buffer)?, len),
        false => whole(file.read_at(SYSTEM, at, buffer)?, len),
    }
}

fn each(count: u64, mut one: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    (0..count).try_for_each(|_| one())
}

/// Runs threads with a thing each, and returns when all have ended. A single one runs on the caller's thread, as the
/// peer does: a fresh thread waits up to twice as long for a device here.
pub(super) fn in_threads<T: Send>(
    things: Vec<T>,
    work: impl Fn(usize, T) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    if things.len() == 1 {
        return things.into_iter().try_for_each(|thing| work(0, thing));
    }
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = things
            .into_iter()
            .enumerate()
            .map(|(index, thing)| scope.spawn(move || work(index, thing)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| Failure::new(FAILED, "a thread has panicked"))?
        })
    })
}

pub(super) fn no_memory() -> Failure {
    Failure::new(FAILED, "no memory for buffers")
}

pub(super) fn new_file() -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    }
}

/// A file with content.
pub(super) fn filled(fs: &dyn FileSystem) -> Result<Arc<dyn OpenFile>, Failure> {
    let file = fs.create(SYSTEM, ROOT_INO, b"data", &new_file())?.file;
    let chunk = vec![1; 1 << 20];
    for at in (0..FILE_BYTES).step_by(chunk.len()) {
        whole(file.write_at(SYSTEM, at, &chunk)?, chunk.len())?;
    }
    Ok(file)
}
