//! Transfers of one file beside each other, submitted and waited for, on a file through io_uring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrite_blob::device::uring::{Options as Opening, Reactor, Uring, Waiting};
use ferrite_blob::device::{Device, Memory, Slow};
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::MemoryStore;
use ferrite_nvme::{NvmeFs, Options, assemble, format};
use ferrite_testkit::rng::Rng;
use ferrite_vfs::buffers::{Buffer, Pool};
use ferrite_vfs::{
    Ctx, DedupToken, FileSystem, FsError, NewFile, OpenFile, OpenMode, Position, ROOT_INO, Result, SYSTEM, SetAttr,
};

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
/// The unit of these tests' writes.
const RECORD_BYTES: usize = 2 * PAGE;
const LIMIT: Duration = Duration::from_secs(60);

fn pool_on(device: Box<dyn Device>) -> Arc<NvmeFs> {
    let identity = FormatOptions {
        store: [1; 16],
        pool: [7; 16],
        index: 0,
        checksums: false,
        shares_clusters: true,
    };
    BlobStore::format(&*device, &identity).unwrap();
    let meta = MemoryStore::new();
    format(&meta, [7; 16], [9; 16], 1).unwrap();
    let store = BlobStore::open(device, false).unwrap();
    let mut options = Options::default();
    options.small_bytes_max = 2048;
    Arc::new(assemble(Box::new(meta), vec![Some(store)], options).unwrap())
}

/// A pool in a file whose pages are trusted to be written whole.
fn pool() -> (tempfile::TempDir, Arc<NvmeFs>) {
    let dir = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("device");
    Uring::create(&path, 64 * MIB).unwrap();
    let mut options = Opening::default();
    options.whole_pages = Some(true);
    let reactor = Reactor::start(Waiting::Sleeping).unwrap();
    let device = Uring::open(&path, &reactor, &options).unwrap();
    (dir, pool_on(Box::new(device)))
}

fn open(fs: &NvmeFs, name: &[u8]) -> Arc<dyn OpenFile> {
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    fs.create(SYSTEM, ROOT_INO, name, &new).unwrap().file
}

fn record_of(tag: u64) -> Vec<u8> {
    tag.to_le_bytes().repeat(RECORD_BYTES / 8)
}

fn tag_of(record: &[u8]) -> u64 {
    let first = &record[..8];
    assert!(record.chunks(8).all(|word| word == first), "a record of two writes");
    u64::from_le_bytes(first.try_into().unwrap())
}

fn filled(fs: &NvmeFs, records: u64) -> Arc<dyn OpenFile> {
    let file = open(fs, b"f");
    for record in 0..records {
        file.write_at(SYSTEM, record * RECORD_BYTES as u64, &record_of(0))
            .unwrap();
    }
    file
}

/// Submits and waits.
fn write(file: &dyn OpenFile, ctx: &Ctx, at: u64, buffer: Buffer) -> Result<usize> {
    let (sender, ends) = mpsc::channel();
    let done = Box::new(move |_, result| sender.send(result).unwrap());
    file.submit_write(ctx, Position::At(at).into(), buffer, done);
    ends.recv_timeout(LIMIT).unwrap().map(|written| written.len_bytes)
}

fn read(file: &dyn OpenFile, at: u64, buffer: Buffer) -> (Buffer, Result<usize>) {
    let (sender, ends) = mpsc::channel();
    let done = Box::new(move |buffer, result| sender.send((buffer, result)).unwrap());
    file.submit_read(SYSTEM, at, buffer, done);
    ends.recv_timeout(LIMIT).unwrap()
}

/// Submitted writes, whose times are stored when they end, and clones, which wait for that, all end.
#[test]
fn submitted_writes_and_clones_do_not_wait_for_each_other() {
    let (_dir, fs) = pool();
    let file = open(&fs, b"f");
    let other = open(&fs, b"other");
    for file in [&file, &other] {
        file.write_at(SYSTEM, 0, &vec![1; 32 * PAGE]).unwrap();
    }
    let buffers = Pool::new(8 << 20).unwrap();
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..24 {
            let (file, buffers, stop) = (&file, &buffers, &stop);
            scope.spawn(move || {
                while stop.load(Ordering::Relaxed) == 0 {
                    let buffer = buffers.take(PAGE).unwrap();
                    assert_eq!(write(&**file, SYSTEM, thread * PAGE as u64, buffer).unwrap(), PAGE);
                }
            });
        }
        let start = Instant::now();
        for round in 0.. {
            if start.elapsed() > Duration::from_secs(2) {
                break;
            }
            let name = format!("clone{}", round % 3);
            let _ = fs.unlink(SYSTEM, ROOT_INO, name.as_bytes());
            fs.clone_tree(SYSTEM, other.ino(), ROOT_INO, name.as_bytes()).unwrap();
        }
        stop.store(1, Ordering::Relaxed);
    });
    fs.close().unwrap();
}

/// Threads that overwrite one file do not wait for each other's device.
#[test]
fn overwrites_of_one_file_are_under_way_together() {
    const LATENCY: Duration = Duration::from_millis(50);
    let fs = pool_on(Box::new(Slow::new(Memory::new(64 * MIB), LATENCY, 8)));
    let file = open(&fs, b"f");
    file.write_at(SYSTEM, 0, &vec![1; 16 * PAGE]).unwrap();
    let together = |file: &Arc<dyn OpenFile>| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || file.write_at(SYSTEM, thread * 2 * PAGE as u64, &vec![2; PAGE]).unwrap());
            }
        });
        began.elapsed()
    };
    // Done serially they would take eight latencies, and as many for the times, which are due each time.
    let best = (0..5).map(|_| together(&file)).min().unwrap();
    assert!(best < 6 * LATENCY, "{best:?}");
    fs.close().unwrap();
}

/// Submitted transfers of some records.
struct Stream {
    file: Arc<dyn OpenFile>,
    pool: Pool,
    rng: Mutex<Rng>,
    left: AtomicU64,
    tags: Arc<AtomicU64>,
    ended: Sender<()>,
}

fn go_on(stream: &Arc<Stream>) {
    let left = &stream.left;
    let next = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
    if next.is_err() {
        return stream.ended.send(()).unwrap();
    }
    let (record, writes) = {
        let mut rng = stream.rng.lock().unwrap();
        (rng.below(8), rng.below(2) == 0)
    };
    let mut buffer = stream.pool.take(RECORD_BYTES).unwrap();
    let at = record * RECORD_BYTES as u64;
    let again = Arc::clone(stream);
    if writes {
        buffer.copy_from_slice(&record_of(stream.tags.fetch_add(1, Ordering::Relaxed)));
        let done = Box::new(move |_, result: Result<ferrite_vfs::Written>| {
            assert_eq!(result.unwrap().len_bytes, RECORD_BYTES);
            go_on(&again);
        });
        stream.file.submit_write(SYSTEM, Position::At(at).into(), buffer, done);
    } else {
        let done = Box::new(move |buffer: Buffer, result: Result<usize>| {
            assert_eq!(result.unwrap(), RECORD_BYTES);
            tag_of(&buffer);
            drop(buffer);
            go_on(&again);
        });
        stream.file.submit_read(SYSTEM, at, buffer, done);
    }
}

fn wait_for(ends: &Receiver<()>, count: usize) {
    for _ in 0..count {
        ends.recv_timeout(LIMIT).expect("a transfer that does not end");
    }
}

/// Beside threads that read, overwrite, append, and change attributes.
#[test]
fn submitted_transfers_are_whole_beside_everything_else() {
    let (_dir, fs) = pool();
    let file = filled(&fs, 8);
    let tags = Arc::new(AtomicU64::new(1));
    let (ended, ends) = mpsc::channel();
    let pool = Pool::new(8 << 20).unwrap();
    fs.know_buffers(&pool);
    let stream = Arc::new(Stream {
        file: Arc::clone(&file),
        pool,
        rng: Mutex::new(Rng::new(3)),
        left: AtomicU64::new(3000),
        tags: Arc::clone(&tags),
        ended,
    });
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (file, tags) = (&file, &tags);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let mut last = file.getattr(SYSTEM).unwrap();
                for _ in 0..400 {
                    let at = rng.below(8) * RECORD_BYTES as u64;
                    match rng.below(8) {
                        0..3 => {
                            let tag = tags.fetch_add(1, Ordering::Relaxed);
                            file.write_at(SYSTEM, at, &record_of(tag)).unwrap();
                        }
                        3..6 => {
                            let mut found = vec![0; RECORD_BYTES];
                            assert_eq!(file.read_at(SYSTEM, at, &mut found).unwrap(), RECORD_BYTES);
                            tag_of(&found);
                        }
                        6 => drop(file.append(SYSTEM, &[1; 100]).unwrap()),
                        _ => {
                            let set = SetAttr {
                                mode: Some(0o600),
                                ..SetAttr::default()
                            };
                            file.setattr(SYSTEM, &set).unwrap();
                        }
                    }
                    let now = file.getattr(SYSTEM).unwrap();
                    assert!(now.change >= last.change && now.mtime >= last.mtime, "times go back");
                    last = now;
                }
            });
        }
        for _ in 0..16 {
            go_on(&stream);
        }
        wait_for(&ends, 16);
    });
    drop((stream, file));
    assert_eq!(fs.check().unwrap().findings, []);
    fs.close().unwrap();
}

#[test]
fn what_is_submitted_does_what_a_call_does() {
    let (_dir, fs) = pool();
    let pool = Pool::new(8 << 20).unwrap();
    let file = open(&fs, b"f");
    let buffer = |fill: u8, len: usize| {
        let mut buffer = pool.take(len).unwrap();
        buffer.fill(fill);
        buffer
    };
    // Content in the node, then in a blob; past the end; in the middle of pages; of no length.
    for (at, len) in [
        (0, 100),
        (50, 9000),
        (3 * PAGE, PAGE),
        (PAGE, PAGE),
        (77, 5000),
        (5 * PAGE, 0),
    ] {
        let before = file.getattr(SYSTEM).unwrap();
        assert_eq!(
            write(&*file, SYSTEM, at as u64, buffer(at as u8 | 1, len)).unwrap(),
            len
        );
        let after = file.getattr(SYSTEM).unwrap();
        assert!(len == 0 || after.change > before.change, "{at}: the counter stands");
        assert_eq!(
            after.size,
            before.size.max(if len == 0 { 0 } else { (at + len) as u64 })
        );
        let (found, result) = read(&*file, at as u64, buffer(0, PAGE.max(len)));
        let count = result.unwrap();
        assert_eq!(
            count as u64,
            after.size.saturating_sub(at as u64).min(PAGE.max(len) as u64)
        );
        assert!(found[..len].iter().all(|&byte| byte == at as u8 | 1) && found.len() == PAGE.max(len));
    }
    assert_eq!(read(&*file, 1 << 30, buffer(0, PAGE)).1.unwrap(), 0);
    // A token is kept on either path.
    let token = DedupToken { slot: 3, seq: 1 };
    let ctx = SYSTEM.clone().token(token);
    assert_eq!(write(&*file, &ctx, 0, buffer(8, PAGE)).unwrap(), PAGE);
    file.write_at(SYSTEM, 0, &[9; PAGE]).unwrap();
    assert_eq!(write(&*file, &ctx, 0, buffer(8, PAGE)).unwrap(), PAGE);
    assert!(read(&*file, 0, buffer(0, PAGE)).0.iter().all(|&byte| byte == 9));
    // A caller without the right to write is refused.
    let ino = file.ino();
    let only = |read, write| {
        let mode = OpenMode {
            read,
            write,
            ..OpenMode::default()
        };
        fs.open(SYSTEM, ino, mode).unwrap()
    };
    let refused = |result: Result<usize>| matches!(result, Err(FsError::BadHandle));
    assert!(refused(write(&*only(true, false), SYSTEM, 0, buffer(1, PAGE))));
    assert!(refused(read(&*only(false, true), 0, buffer(1, PAGE)).1));
    fs.close().unwrap();
    assert!(read(&*file, 0, buffer(1, PAGE)).1.is_err() && write(&*file, SYSTEM, 0, buffer(1, PAGE)).is_err());
}

/// Everything that refers to a file, or to the pool, is dropped while transfers are under way: they end, and are
/// durable.
#[test]
fn transfers_outlive_their_file_and_their_pool() {
    let (_dir, fs) = pool();
    let pool = Pool::new(8 << 20).unwrap();
    for round in 0..30_u8 {
        let name = format!("f{round}");
        let file = open(&fs, name.as_bytes());
        file.write_at(SYSTEM, 0, &vec![round; 32 * RECORD_BYTES]).unwrap();
        let ino = file.ino();
        let (sender, ends) = mpsc::channel();
        for record in 0..32 {
            let mut buffer = pool.take(RECORD_BYTES).unwrap();
            buffer.fill(round + 100);
            let sender = sender.clone();
            let done = Box::new(move |_, result: Result<ferrite_vfs::Written>| {
                result.unwrap();
                sender.send(()).unwrap();
            });
            file.submit_write(SYSTEM, Position::At(record * RECORD_BYTES as u64).into(), buffer, done);
        }
        if round % 2 == 0 {
            fs.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
        }
        drop(file);
        wait_for(&ends, 32);
        if round % 2 == 1 {
            let mode = OpenMode {
                read: true,
                ..OpenMode::default()
            };
            let file = fs.open(SYSTEM, ino, mode).unwrap();
            let mut found = vec![0; 32 * RECORD_BYTES];
            file.read_at(SYSTEM, 0, &mut found).unwrap();
            assert!(found.iter().all(|&byte| byte == round + 100));
        }
    }
    let file = filled(&fs, 32);
    let (sender, ends) = mpsc::channel();
    for record in 0..32 {
        let sender = sender.clone();
        let done = Box::new(move |_, _| sender.send(()).unwrap());
        let at = Position::At(record * RECORD_BYTES as u64);
        file.submit_write(SYSTEM, at.into(), pool.take(RECORD_BYTES).unwrap(), done);
    }
    drop((file, fs));
    wait_for(&ends, 32);
}

/// A file that is extended has its space, unless it is meant to be sparse.
#[test]
fn a_file_that_is_made_longer_gets_its_space() {
    let (_dir, fs) = pool();
    let set = |size: u64| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let file = open(&fs, b"f");
    for size in [3 * MIB, 5 * MIB - 1] {
        let attr = file.setattr(SYSTEM, &set(size)).unwrap();
        assert_eq!((attr.size, attr.blocks * 512), (size, size.next_multiple_of(MIB)));
    }
    let mut found = vec![1; PAGE];
    assert_eq!(file.read_at(SYSTEM, 4 * MIB, &mut found).unwrap(), PAGE);
    assert_eq!(found, [0; PAGE]);
    // Another file's use of space does not take that away.
    let other = open(&fs, b"other");
    let mut at = 0;
    while other.write_at(SYSTEM, at, &vec![1; MIB as usize]).is_ok() {
        at += MIB;
    }
    file.write_at(SYSTEM, MIB, &vec![2; 4 * MIB as usize - 1]).unwrap();
    assert!(matches!(file.write_at(SYSTEM, 6 * MIB, &[1]), Err(FsError::NoSpace(_))));
    fs.unlink(SYSTEM, ROOT_INO, b"other").unwrap();
    drop(other);
    fs.sync(SYSTEM).unwrap();
    let sparse = open(&fs, b"sparse");
    let attr = sparse.setattr(SYSTEM, &set(1 << 40)).unwrap();
    assert_eq!((attr.size, attr.blocks * 512), (1 << 40, 0));
    assert_eq!(fs.check().unwrap().findings, []);
}

/// Two reads with one value of the counter are of one state, whichever way the file is overwritten meanwhile.
#[test]
fn the_counter_tells_states_apart() {
    let (_dir, fs) = pool();
    let pool = Pool::new(8 << 20).unwrap();
    let file = open(&fs, b"f");
    file.write_at(SYSTEM, 0, &record_of(0)).unwrap();
    let ends_at = Instant::now() + Duration::from_secs(2);
    let same = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut tag = 0;
            while Instant::now() < ends_at {
                tag += 1;
                if tag % 2 == 0 {
                    file.write_at(SYSTEM, 0, &record_of(tag)).unwrap();
                    continue;
                }
                let mut buffer = pool.take(RECORD_BYTES).unwrap();
                buffer.copy_from_slice(&record_of(tag));
                write(&*file, SYSTEM, 0, buffer).unwrap();
            }
        });
        let (mut first, mut second) = (vec![0; PAGE], vec![0; PAGE]);
        let mut same = 0;
        while Instant::now() < ends_at {
            let (_, before) = file.read_versioned(SYSTEM, 0, &mut first).unwrap();
            let (_, after) = file.read_versioned(SYSTEM, PAGE as u64, &mut second).unwrap();
            if before.is_some() && before == after {
                same += 1;
                assert_eq!(first, second, "two states with one counter");
            }
        }
        same
    });
    assert!(same > 0, "no two reads were of one state");
}
