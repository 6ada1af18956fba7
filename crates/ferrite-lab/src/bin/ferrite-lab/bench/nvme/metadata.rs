//! Rows about names, with both backends of the metadata: a directory of the kernel, and a device of its own.
//!
//! The peer is RocksDB alone in a backend of the same kind: a transaction that puts the same values as a new file, and
//! waits until it is durable.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_blob::device::uring::{Options as Opening, Reactor, Uring, Waiting};
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::{Backend, MetaStore, Options, RocksStore};
use ferrite_nvme::MetaBlobs;
use ferrite_vfs::{FileSystem, Ino, ROOT_INO, SYSTEM, Start};

use super::place::{Device, Ext4};
use super::{Bench, CONTENT_NAMES, NAMES, Open, THREADS, in_threads, new_file};
use crate::bench::contest::{Contest, timed};
use crate::bench::{Output, whole};
use crate::{FAILED, Failure};

/// Most time for a `stat` of a path of depth 4.
const STAT_NS: f64 = 15_000.0;
/// A node and an edge, about.
const VALUES: [usize; 2] = [120, 20];
/// Bytes of a small file.
const SMALL_BYTES: usize = 8 << 10;

/// Where RocksDB's files are, on both sides.
struct Backends {
    name: &'static str,
    ours: PathBuf,
    theirs: RocksStore,
    devices: Vec<Device>,
    _mounts: Vec<Ext4>,
}

pub(super) fn run(bench: &Bench<'_>, out: &mut Output) -> Result<(), Failure> {
    if !NAMES[CONTENT_NAMES..].iter().any(|name| out.wants(name)) {
        return Ok(());
    }
    in_backend(bench, directories(bench)?, out)?;
    in_backend(bench, blobs(bench)?, out)
}

fn options() -> Options {
    Options {
        create: true,
        ..Options::default()
    }
}

fn of_store(error: impl std::fmt::Display) -> Failure {
    Failure::new(FAILED, error.to_string())
}

fn directories(bench: &Bench<'_>) -> Result<Backends, Failure> {
    let mut mounts = Vec::new();
    let mut dirs = Vec::new();
    for name in ["ours", "theirs"] {
        let mount = bench.place.ext4(name);
        let base = mount.as_ref().map_or(bench.place.dir(), |mount| &mount.dir);
        dirs.push(base.join(format!("{name}-rocksdb")));
        mounts.extend(mount);
    }
    let theirs = Backend::Directory(dirs[1].clone());
    Ok(Backends {
        name: "metadata in a directory",
        ours: dirs.swap_remove(0),
        theirs: RocksStore::open(theirs, &options()).map_err(of_store)?,
        devices: Vec::new(),
        _mounts: mounts,
    })
}

fn blobs(bench: &Bench<'_>) -> Result<Backends, Failure> {
    let devices = [
        bench.place.device("ours-backend")?,
        bench.place.device("theirs-backend")?,
    ];
    let reactor = Reactor::start(Waiting::Sleeping)?;
    let mut opening = Opening::default();
    opening.whole_pages = Some(true);
    let open = || Uring::open(&devices[1].path, &reactor, &opening).map_err(of_store);
    let identity = FormatOptions {
        store: [1; 16],
        pool: [1; 16],
        index: u16::MAX,
        checksums: false,
        shares_clusters: false,
    };
    BlobStore::format(&open()?, &identity).map_err(of_store)?;
    let blobs = MetaBlobs::open(Box::new(open()?)).map_err(of_store)?;
    let theirs = RocksStore::open(Backend::Blobs(Arc::new(blobs)), &options()).map_err(of_store)?;
    Ok(Backends {
        name: "metadata on a device",
        ours: devices[0].path.clone(),
        theirs,
        devices: devices.into(),
        _mounts: Vec::new(),
    })
}

/// Makes and removes files of a directory, each name once.
struct Files<'f> {
    fs: &'f dyn FileSystem,
    dir: Ino,
    next: AtomicU64,
}

impl Files<'_> {
    fn create(&self, name: u64) -> Result<(), Failure> {
        let name = format!("file-{name}");
        self.fs.create(SYSTEM, self.dir, name.as_bytes(), &new_file())?;
        Ok(())
    }

    fn create_with(&self, name: u64, content: &[u8]) -> Result<(), Failure> {
        let name = format!("file-{name}");
        let file = self.fs.create(SYSTEM, self.dir, name.as_bytes(), &new_file())?.file;
        whole(file.write_at(SYSTEM, 0, content)?, content.len())
    }

    fn unlink(&self, name: u64) -> Result<(), Failure> {
        Ok(self.fs.unlink(SYSTEM, self.dir, format!("file-{name}").as_bytes())?)
    }

    /// Creates and removes `count` files with `threads` threads; returns the nanoseconds of one creation and one
    /// removal.
    fn round(&self, threads: usize, count: u64) -> Result<[f64; 2], Failure> {
        let share = count / threads as u64 + 1;
        let first = self.next.fetch_add(share * threads as u64, Ordering::Relaxed);
        let all = |work: &(dyn Fn(u64) -> Result<(), Failure> + Sync)| {
            let begins = (0..threads as u64).map(|thread| first + thread * share).collect();
            timed(share * threads as u64, || {
                in_threads(begins, |_, from: u64| (from..from + share).try_for_each(work))
            })
        };
        Ok([all(&|name| self.create(name))?, all(&|name| self.unlink(name))?])
    }
}

fn in_backend(bench: &Bench<'_>, backends: Backends, out: &mut Output) -> Result<(), Failure> {
    let data = bench.place.device("names-data")?;
    let config = bench
        .place
        .dir()
        .join(format!("{}.toml", backends.name.replace(' ', "-")));
    let open = Open::make(&config, &backends.ours, &data.path, false)?;
    let mut dir = ROOT_INO;
    for name in [&b"a"[..], b"b", b"c"] {
        dir = open.fs.mkdir(SYSTEM, dir, name, 0o755)?.ino;
    }
    let files = Files {
        fs: &*open.fs,
        dir,
        next: AtomicU64::new(0),
    };
    let contest = |name, against, threads| Contest {
        contents: Some(backends.name.into()),
        ..bench.contest(name, against, threads)
    };
    let count = bench.count(8);
    let mut number = 0_u64;
    let mut transactions = |values: &[usize]| {
        timed(count, || {
            (0..count).try_for_each(|_| {
                number += 1;
                let mut txn = backends.theirs.begin();
                for (kind, &len) in values.iter().enumerate() {
                    let key = [&[kind as u8][..], &number.to_be_bytes()].concat();
                    txn.put(&key, &vec![1; len]).map_err(of_store)?;
                }
                txn.commit().map_err(of_store)
            })
        })
    };
    for (index, names) in [
        ["nvme_create", "nvme_create_16_threads"],
        ["nvme_unlink", "nvme_unlink_16_threads"],
    ]
    .into_iter()
    .enumerate()
    {
        let ours = &mut || Ok(files.round(1, count)?[index]);
        contest(names[0], "one transaction", 1).run(ours, &mut || transactions(&VALUES), out)?;
        let many = &mut || Ok(files.round(THREADS, 4 * count)?[index]);
        let one = &mut || Ok(files.round(1, count)?[index]);
        contest(names[1], "one thread", THREADS).run(many, one, out)?;
    }
    let content = vec![7; SMALL_BYTES];
    let small = &mut || {
        let first = files.next.fetch_add(count, Ordering::Relaxed);
        let all = timed(count, || {
            (first..first + count).try_for_each(|name| files.create_with(name, &content))
        });
        (first..first + count).try_for_each(|name| files.unlink(name))?;
        all
    };
    let theirs = &mut || transactions(&[VALUES[0], VALUES[1], SMALL_BYTES]);
    contest("nvme_small_file", "one transaction", 1).run(small, theirs, out)?;
    stat(bench, &files, &backends, &data, out)
}

/// A path of depth 4, of a file among others; looking it up must not read a device.
fn stat(
    bench: &Bench<'_>,
    files: &Files<'_>,
    backends: &Backends,
    data: &Device,
    out: &mut Output,
) -> Result<(), Failure> {
    let names = 1000;
    (0..names).try_for_each(|name| files.create(1 << 40 | name))?;
    let mounted = backends._mounts.iter().map(|mount| &mount.device);
    let devices: Vec<&Device> = mounted.chain(&backends.devices).chain([data]).collect();
    let reads = || devices.iter().filter_map(|device| device.reads()).sum::<u64>();
    let start = Start {
        root: ROOT_INO,
        base: ROOT_INO,
    };
    let count = bench.count(1);
    let mut name = 0;
    let mut ours = || {
        timed(count, || {
            (0..count).try_for_each(|_| {
                name = (name + 1) % names;
                let path = format!("/a/b/c/file-{}", 1_u64 << 40 | name);
                files.fs.resolve(SYSTEM, &start, path.as_bytes(), true)?;
                Ok(())
            })
        })
    };
    ours()?;
    // The store compacts when it likes, and reads for that: of three runs, the one with the fewest reads shows the
    // paths' own.
    let mut fewest = u64::MAX;
    for _ in 0..3 {
        let before = reads();
        ours()?;
        fewest = fewest.min(reads() - before);
    }
    let contents = format!("{}; {fewest} device reads", backends.name);
    let contest = Contest {
        contents: Some(contents),
        ..bench.contest("nvme_stat", "15 us", 1)
    };
    contest.run(&mut ours, &mut || Ok(STAT_NS), out)
}
