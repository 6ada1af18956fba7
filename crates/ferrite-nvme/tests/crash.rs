//! Power loss under a whole pool: two data devices and a metadata store, each stopped at the same moment.
//!
//! Everything the engine does is recorded: writes and flushes of each device, commits of the metadata store.
//!
//! An image has everything that had returned by some moment, and any part of what was under way or not durable. After
//! opening it, the tree is that after the last operation that returned, or the one under way, or a write under way has
//! taken rights of its file and done nothing else; the check finds nothing; and the pool works, and keeps later
//! changes.
//!
//! The metadata is in a database, which keeps the batches that it has acknowledged and has the one under way whole or
//! not at all, or in RocksDB on a device of its own, which is recorded as the data devices are.

#[path = "crash/quotas.rs"]
mod quotas;

use std::sync::Arc;
use std::time::Duration;

use ferrite_blob::device::{Device, Log, Logged, Memory, Recorder, lose_power};
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::{
    Applied, Batch, MemoryRemote, MetaStore, Owned, OwnedOptions, Owner, Page, Remote, ShardStatus, Tenure, Values,
};
use ferrite_nvme::{NvmeFs, Options};
use ferrite_testkit::apply::{Runner, Stamp};
use ferrite_testkit::generate::{OpGenerator, Profile};
use ferrite_testkit::model::is_skipped;
use ferrite_testkit::ops::{Op, PAGE, Path, SNAPSHOTS, Target};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;
use ferrite_testkit::snapshot::Snapshot;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Cred, FileKind, FileSystem, FsError, Ino, NewNode, OpenFlags, OpenMode, QUOTA_XATTR, ROOT_INO, RenameMode, SYSTEM,
    SetAttr, Vfs, XattrMode,
};
use parking_lot::Mutex;

const DEVICES: usize = 2;
const DEVICE_BYTES: usize = 16 << 20;
/// Of the device with metadata.
#[cfg(feature = "rocksdb")]
const META_BYTES: usize = 24 << 20;
const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;
/// Operations of a run.
const STEPS: usize = 50;
/// Longest write that is one step.
const ATOMIC_BYTES: usize = 4096;

/// Marks of batches have numbers from here on; those below are of operations: each is about to begin, or has returned.
const BATCHES: u64 = 1 << 32;

/// The shard of the database.
const SHARD: u64 = 1;
/// Longer than a run.
const TTL: Duration = Duration::from_secs(3600);
/// So few that most reads ask the database.
const CACHE_BYTES: usize = 16 << 10;

/// Where the metadata of a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    Database,
    #[cfg(feature = "rocksdb")]
    Device,
}

/// A database in memory, which notes in the log when it has applied a batch.
struct RecordedRemote {
    database: MemoryRemote,
    log: Log,
    batches: Arc<Mutex<Vec<Batch>>>,
}

impl Remote for RecordedRemote {
    fn take(&self, shard: u64, owner: &Owner, ttl: Duration) -> ferrite_meta::Result<Tenure> {
        self.database.take(shard, owner, ttl)
    }

    fn renew(&self, tenure: &Tenure, ttl: Duration) -> ferrite_meta::Result<()> {
        self.database.renew(tenure, ttl)
    }

    fn apply(&self, tenure: &Tenure, seq: u64, batch: &Batch) -> ferrite_meta::Result<Applied> {
        let mut batches = self.batches.lock();
        self.log.mark_after(BATCHES + batches.len() as u64, || {
            let applied = self.database.apply(tenure, seq, batch)?;
            assert_eq!(applied, Applied::Now, "no answer was lost");
            Ok::<(), ferrite_meta::Error>(())
        })?;
        batches.push(batch.clone());
        Ok(Applied::Now)
    }

    fn get_many(&self, tenure: &Tenure, keys: &[&[u8]]) -> ferrite_meta::Result<Values> {
        self.database.get_many(tenure, keys)
    }

    fn scan(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> ferrite_meta::Result<Page> {
        self.database.scan(tenure, from, to, limit)
    }

    fn status(&self, shard: u64) -> ferrite_meta::Result<ShardStatus> {
        self.database.status(shard)
    }
}

fn owner() -> Owner {
    Owner {
        name: "test".into(),
        address: String::new(),
    }
}

/// A store over a shard that has no owner.
fn owned(remote: impl Remote + 'static) -> Box<dyn MetaStore> {
    let mut options = OwnedOptions::default();
    options.ttl = TTL;
    options.renews = false;
    options.cache_bytes = CACHE_BYTES;
    Box::new(Owned::open(remote, SHARD, &owner(), options).unwrap())
}

/// The database after these batches, whose owner is dead and has no time left.
fn database_after(batches: &[Batch]) -> MemoryRemote {
    let database = MemoryRemote::new();
    let tenure = database.take(SHARD, &owner(), TTL).unwrap();
    for (seq, batch) in (tenure.seq + 1..).zip(batches) {
        database.apply(&tenure, seq, batch).unwrap();
    }
    database.move_epoch(SHARD);
    database
}

/// A run that was recorded.
struct Run {
    backend: Backend,
    /// The data devices, and the metadata's.
    bases: Vec<Vec<u8>>,
    log: Vec<Logged>,
    /// That the database has applied.
    batches: Vec<Batch>,
    /// Trees before each step, and after the last.
    trees: Vec<Snapshot>,
    ops: Vec<Op>,
    tears: bool,
    small_bytes_max: u64,
}

/// Times move in steps of milliseconds, which a loss of power may undo.
fn timeless(mut tree: Snapshot) -> Snapshot {
    for node in tree.0.values_mut() {
        node.attr.atime = None;
        node.attr.mtime = Stamp::Clock;
    }
    tree
}

/// The tree after a write has taken rights, and not yet written: setuid and setgid go first. `None` if it takes none.
fn without_rights(before: &Snapshot, after: &Snapshot) -> Option<Snapshot> {
    let mut between = before.clone();
    let mut takes = false;
    for (path, node) in &mut between.0 {
        if let Some(after) = after.0.get(path).filter(|after| after.attr.mode != node.attr.mode) {
            node.attr.mode = after.attr.mode;
            takes = true;
        }
    }
    takes.then_some(between)
}

/// Steps that are atomic: short writes, no holes in the middle of pages.
fn ops(profile: Profile, seed: u64) -> Vec<Op> {
    let mut generator = OpGenerator::new(profile, seed);
    // Cases that chance hardly ever produces.
    let mut ops = match seed % 4 {
        1 => changes_of_clones(),
        2 => writes_that_take_rights(),
        _ => Vec::new(),
    };
    while ops.len() < STEPS {
        match generator.next_op() {
            Op::Write { on, offset, len, fill } => ops.push(Op::Write {
                on,
                offset,
                len: len.min(ATOMIC_BYTES),
                fill,
            }),
            Op::Fallocate { .. } => {}
            op => ops.push(op),
        }
    }
    ops
}

/// Files that share a blob, one after the other changed and removed, and snapshots of their directory.
fn changes_of_clones() -> Vec<Op> {
    let path = |name: u8| Path(vec![0, name]);
    let at = |name: u8| Target::At(path(name));
    let write = |name: u8, page: u64, fill| Op::Write {
        on: at(name),
        offset: page * PAGE,
        len: ATOMIC_BYTES,
        fill,
    };
    let clone = |from: u8, to: u8| Op::CloneTree {
        from: path(from),
        to: path(to),
    };
    let mkdir = |path: Path| Op::Mkdir {
        path,
        mode: 0o755,
        user: 0,
    };
    let unlink = |name: u8| Op::Unlink { path: path(name) };
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let (snapshots, snapshot) = (Path(vec![0, SNAPSHOTS]), Path(vec![0, SNAPSHOTS, 1]));
    let size = SetAttr {
        size: Some(PAGE / 2),
        ..SetAttr::default()
    };
    vec![
        mkdir(Path(vec![0])),
        Op::Mknod {
            path: path(1),
            node,
            user: 0,
        },
        write(1, 0, 1),
        // Content of every length is in a blob.
        write(1, 9, 2),
        clone(1, 2),
        clone(2, 3),
        write(2, 0, 3),
        unlink(1),
        clone(3, 1),
        Op::Setattr { on: at(3), set: size },
        mkdir(snapshots),
        mkdir(snapshot.clone()),
        write(1, 1, 4),
        write(2, 9, 5),
        unlink(1),
        Op::Rmdir { path: snapshot },
        write(3, 0, 6),
        // A copy of a whole file, onto one that has a blob of its own.
        Op::Clone {
            source: at(2),
            source_offset: 0,
            on: at(3),
            offset: 0,
            len: 16 * PAGE,
        },
        write(2, 2, 7),
        unlink(2),
        write(3, 3, 8),
    ]
}

/// Writes in place to a file with setuid and setgid, by a user whose write clears them.
fn writes_that_take_rights() -> Vec<Op> {
    let path = || Path(vec![0]);
    let write = |page: u64, fill| Op::Write {
        on: Target::Slot(0),
        offset: page * PAGE,
        len: ATOMIC_BYTES,
        fill,
    };
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o777,
        rdev: 0,
    };
    let (mode, privileged) = (OpenMode::read_write(), false);
    let rights = || Op::Setattr {
        on: Target::At(path()),
        set: SetAttr {
            mode: Some(0o6777),
            ..SetAttr::default()
        },
    };
    // Over the end: the node loses its rights, and its blob gets the new size.
    let over = |at: u64| Op::Write {
        on: Target::Slot(0),
        offset: at,
        len: ATOMIC_BYTES,
        fill: 9,
    };
    let begin = [
        Op::Mknod {
            path: path(),
            node,
            user: 0,
        },
        Op::Open {
            path: path(),
            slot: 0,
            mode,
            privileged,
        },
        write(0, 1),
        write(1, 2),
    ];
    let again = (3..7).flat_map(|fill| [rights(), write(u64::from(fill % 2), fill)]);
    let end = [rights(), over(2 * PAGE - 100), rights(), over(3 * PAGE - 200)];
    begin.into_iter().chain(again).chain(end).collect()
}

/// The length from which files of a run have blobs.
fn small_bytes_max(seed: u64) -> u64 {
    [2048, 2048, 6000, Options::default().small_bytes_max][seed as usize / Profile::ALL.len() % 4]
}

fn assemble(
    meta: Box<dyn MetaStore>,
    devices: Vec<Box<dyn Device>>,
    small_bytes_max: u64,
) -> ferrite_vfs::Result<NvmeFs> {
    let stores = devices
        .into_iter()
        .map(|device| BlobStore::open(device, false).map(Some))
        .collect::<Result<Vec<_>, _>>()?;
    let mut options = Options::default();
    options.small_bytes_max = small_bytes_max;
    ferrite_nvme::assemble(meta, stores, options)
}

fn memory(bytes: Vec<u8>, tears: bool) -> Memory {
    match tears {
        true => Memory::of(bytes).tearing(),
        false => Memory::of(bytes),
    }
}

/// A device that a store was made on.
fn formatted(number: u16, bytes: usize, tears: bool, (checksums, shares_clusters): (bool, bool)) -> Memory {
    let device = memory(vec![0xee; bytes], tears);
    let options = FormatOptions {
        store: [number as u8; 16],
        pool: [7; 16],
        index: number,
        checksums,
        shares_clusters,
    };
    BlobStore::format(&device, &options).unwrap();
    device
}

#[cfg(feature = "rocksdb")]
fn on_device(device: impl Device + 'static, create: bool) -> Box<dyn MetaStore> {
    let options = ferrite_meta::Options {
        create,
        write_buffer_bytes: 64 << 10,
        reserve_bytes: 0,
        ..ferrite_meta::Options::default()
    };
    let blobs = ferrite_nvme::MetaBlobs::open(Box::new(device)).unwrap();
    Box::new(ferrite_meta::RocksStore::open(ferrite_meta::Backend::Blobs(Arc::new(blobs)), &options).unwrap())
}

fn record(backend: Backend, profile: Profile, seed: u64) -> Run {
    let tears = seed.is_multiple_of(2);
    let log = Log::default();
    let (mut bases, mut devices) = (Vec::new(), Vec::<Box<dyn Device>>::new());
    for number in 0..DEVICES {
        let device = formatted(
            number as u16,
            DEVICE_BYTES,
            tears,
            (seed % 4 < 2, !seed.is_multiple_of(5)),
        );
        bases.push(device.image());
        devices.push(Box::new(Recorder::joining(device, &log)));
    }
    let batches = Arc::default();
    let meta: Box<dyn MetaStore> = match backend {
        Backend::Database => owned(RecordedRemote {
            database: MemoryRemote::new(),
            log: log.clone(),
            batches: Arc::clone(&batches),
        }),
        #[cfg(feature = "rocksdb")]
        Backend::Device => {
            let device = formatted(u16::MAX, META_BYTES, tears, (false, false));
            bases.push(device.image());
            on_device(Recorder::joining(device, &log), true)
        }
    };
    ferrite_nvme::format(&*meta, [7; 16], [9; 16], DEVICES as u16).unwrap();
    // A power loss before this mark happens while the pool is being made.
    log.mark(0);
    let engine = assemble(meta, devices, small_bytes_max(seed)).unwrap();
    if seed % 3 == 1 {
        // The check then compares what each change counts with what is there.
        set_quota(&engine, ROOT_INO, b"").unwrap();
    }
    let reference = MemFs::new();
    let (mut subject, mut oracle) = (Runner::new(&engine), Runner::new(&reference));
    subject.settle_root();
    oracle.settle_root();
    let ops = ops(profile, seed);
    let mut trees = vec![timeless(Snapshot::capture(&reference).unwrap())];
    for (number, op) in ops.iter().enumerate() {
        log.mark(number as u64 * 2);
        let outcome = subject.apply(op).unwrap();
        log.mark(number as u64 * 2 + 1);
        if !is_skipped(op, &outcome) {
            oracle.apply(op).unwrap();
        }
        trees.push(timeless(Snapshot::capture(&reference).unwrap()));
    }
    let batches = batches.lock().clone();
    Run {
        backend,
        bases,
        log: log.take(),
        batches,
        trees,
        ops,
        tears,
        small_bytes_max: small_bytes_max(seed),
    }
}

/// Devices and metadata that can be opened again and again.
struct Image {
    backend: Backend,
    devices: Vec<Arc<Memory>>,
    database: Arc<MemoryRemote>,
    small_bytes_max: u64,
}

impl Image {
    fn open(&self) -> ferrite_vfs::Result<NvmeFs> {
        let boxed = |device: &Arc<Memory>| Box::new(Arc::clone(device)) as Box<dyn Device>;
        let data = self.devices[..DEVICES].iter().map(boxed).collect();
        let meta: Box<dyn MetaStore> = match self.backend {
            Backend::Database => owned(Arc::clone(&self.database)),
            #[cfg(feature = "rocksdb")]
            Backend::Device => on_device(Arc::clone(&self.devices[DEVICES]), false),
        };
        assemble(meta, data, self.small_bytes_max)
    }
}

/// The image if power is lost after `cut` events, and how many steps had returned. `None`: not even a pool. The next
/// event, if it is a batch of metadata, has reached the database or not.
fn image(run: &Run, cut: usize, has_next: bool, rng: &mut Rng) -> Option<(Image, usize)> {
    let mut images = run.bases.clone();
    let grain = if run.tears { SECTOR_BYTES } else { PAGE_BYTES };
    let style = rng.below(4);
    lose_power(&mut images, &run.log, cut, grain, &mut || match style {
        0 => false,
        1 => true,
        _ => rng.below(2) == 0,
    });
    let (mut batches, mut returned) = (0, None);
    for (at, entry) in run.log.iter().take(cut + usize::from(has_next)).enumerate() {
        match entry {
            Logged::Mark(mark) if *mark >= BATCHES => batches = (mark - BATCHES) as usize + 1,
            Logged::Mark(mark) if at < cut => returned = Some((*mark as usize).div_ceil(2)),
            _ => {}
        }
    }
    let tears = run.tears;
    let image = Image {
        backend: run.backend,
        devices: images.into_iter().map(|image| Arc::new(memory(image, tears))).collect(),
        database: Arc::new(database_after(&run.batches[..batches])),
        small_bytes_max: run.small_bytes_max,
    };
    Some((image, returned?))
}

/// With a batch under way, both are checked: that the database has it, and that it has not.
fn check_images(run: &Run, cut: usize, rng: &mut Rng, what: &str) {
    let is_batch = matches!(run.log.get(cut), Some(Logged::Mark(mark)) if *mark >= BATCHES);
    check_image(run, cut, false, rng, what);
    if is_batch {
        check_image(run, cut, true, rng, &format!("{what}, with the batch under way"));
    }
}

fn check_image(run: &Run, cut: usize, has_next: bool, rng: &mut Rng, what: &str) {
    let Some((image, returned)) = image(run, cut, has_next, rng) else {
        return;
    };
    let engine = image.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    sound(&engine, what);
    let found = timeless(Snapshot::capture(&engine).unwrap_or_else(|error| panic!("{what}: {error}")));
    let before = found.difference(&run.trees[returned], ["found", "before"]);
    let after = match run.trees.get(returned + 1) {
        Some(tree) => found.difference(tree, ["found", "after"]),
        None => before.clone(),
    };
    let op = run.ops.get(returned);
    let between = match (op, run.trees.get(returned + 1)) {
        (Some(Op::Write { .. }), Some(after)) => without_rights(&run.trees[returned], after),
        _ => None,
    };
    let is_between = between.is_some_and(|between| found.difference(&between, ["found", "between"]).is_none());
    if let (Some(before), Some(after), false) = (before, after, is_between) {
        panic!("{what}, {op:?} under way:\nfound and before: {before}\nfound and after: {after}");
    }
    works(engine, &image, &found, what);
}

fn sound(engine: &NvmeFs, what: &str) {
    let report = engine.check().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
    assert_eq!(report.orphans, 0, "{what}: orphans are freed");
}

/// A recovered pool works as any pool does, and keeps its changes: files are made, written, read, renamed and removed
/// beside the existing ones, which stay as they were.
fn works(engine: NvmeFs, image: &Image, found: &Snapshot, what: &str) {
    let writing = OpenFlags {
        read: true,
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    let vfs = |engine: &NvmeFs| Vfs::new(Arc::new(engine.clone()), Cred::root());
    let read = |engine: &NvmeFs, path: &[u8]| {
        let file = vfs(engine).open(path, &writing).expect(what);
        let mut bytes = vec![0; file.getattr(SYSTEM).expect(what).size as usize];
        file.read_at(SYSTEM, 0, &mut bytes).expect(what);
        bytes
    };
    let user = vfs(&engine);
    user.mkdir(b"/after a crash", 0o755).expect(what);
    let data = pattern(99, 9000);
    let file = user.open(b"/after a crash/small", &writing).expect(what);
    file.write_at(SYSTEM, 0, &data[..100]).expect(what);
    drop(file);
    let file = user.open(b"/after a crash/large", &writing).expect(what);
    let is_full = match file.write_at(SYSTEM, 0, &data[..5000]) {
        Err(FsError::NoSpace(_)) => true,
        done => {
            done.expect(what);
            file.write_at(SYSTEM, 4000, &data[4000..]).expect(what);
            false
        }
    };
    drop(file);
    let large = if is_full { &[][..] } else { &data };
    user.rename(b"/after a crash/large", b"/after a crash/renamed", RenameMode::Replace)
        .expect(what);
    user.unlink(b"/after a crash/small").expect(what);
    assert!(
        read(&engine, b"/after a crash/renamed") == large,
        "{what}: what was written"
    );
    drop(user);
    sound(&engine, what);
    // Blobs that were made in advance are known, and go when it is closed.
    engine.close().expect(what);
    drop(engine);
    let engine = image
        .open()
        .unwrap_or_else(|error| panic!("{what}: opened again: {error}"));
    assert!(
        read(&engine, b"/after a crash/renamed") == large,
        "{what}: opened again"
    );
    let user = vfs(&engine);
    user.unlink(b"/after a crash/renamed").expect(what);
    user.rmdir(b"/after a crash").expect(what);
    drop(user);
    sound(&engine, what);
    let tree = timeless(Snapshot::capture(&engine).expect(what));
    assert_eq!(tree.difference(found, ["now", "after the crash"]), None, "{what}");
    engine.close().expect(what);
}

fn set_quota(engine: &NvmeFs, dir: Ino, limits: &[u8]) -> ferrite_vfs::Result<()> {
    engine.setxattr(SYSTEM, dir, QUOTA_XATTR, limits, XattrMode::Any)
}

fn explore(backend: Backend, profile: Profile, seed: u64, images: u64) {
    let run = record(backend, profile, seed);
    let marks = run.log.iter().enumerate();
    let marks: Vec<usize> = marks
        .filter_map(|(at, entry)| matches!(entry, Logged::Mark(_)).then_some(at))
        .collect();
    let mut rng = Rng::new(seed ^ 0xd1ce);
    for number in 0..images {
        // At any moment, or just before a commit or the end of a step: there the order matters.
        let cut = match number % 2 {
            1 if !marks.is_empty() => *rng.pick(&marks),
            _ => rng.below(run.log.len() as u64 + 1) as usize,
        };
        let what = format!("{backend:?}, {profile:?}, FERRITE_SEED={seed}, image {number}, cut {cut}");
        check_images(&run, cut, &mut rng, &what);
    }
}

/// `FERRITE_SOAK` makes it 100,000.
#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn images_of_lost_power() {
    let (seeds, images) = match (seed_from_env(), std::env::var_os("FERRITE_SOAK")) {
        (Some(seed), _) => (seed..seed + 1, 200),
        (None, Some(_)) => (0..168, 100),
        (None, None) => (0..14, 24),
    };
    for profile in Profile::ALL {
        for seed in seeds.clone() {
            explore(Backend::Database, profile, seed, images);
        }
    }
}

/// The log of RocksDB and its tables are on a third device.
#[cfg(feature = "rocksdb")]
#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn images_of_lost_power_with_metadata_on_a_device() {
    let (seeds, images) = match (seed_from_env(), std::env::var_os("FERRITE_SOAK")) {
        (Some(seed), _) => (seed..seed + 1, 40),
        (None, Some(_)) => (0..40, 20),
        (None, None) => (0..2, 8),
    };
    for profile in Profile::ALL {
        for seed in seeds.clone() {
            explore(Backend::Device, profile, seed, images);
        }
    }
}

#[cfg(feature = "seeded-bugs")]
#[test]
fn every_seeded_bug_is_found() {
    use ferrite_checks::fault_injection::{Bug, seed};
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::of("ferrite-nvme") {
        seed(Some(bug));
        let finds = |seed: u64| {
            let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
            std::panic::catch_unwind(|| explore(Backend::Database, profile, seed, 40)).is_err()
        };
        if !(0..120).any(finds) {
            missed.push(bug);
        }
    }
    seed(None);
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "not found: {missed:?}");
}
