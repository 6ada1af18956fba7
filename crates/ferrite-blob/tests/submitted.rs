//! Transfers without a waiting thread: beside others they are whole or absent, they end, and report errors.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrite_blob::device::Memory;
use ferrite_blob::device::uring::{Options, Reactor, Uring, Waiting};
use ferrite_blob::{Blob, BlobStore, CLUSTER_BYTES, Error, FormatOptions, PAGE_BYTES};
use ferrite_buffers::{Buffer, Pool};
use ferrite_testkit::rng::Rng;

const MIB: u64 = 1 << 20;
const FORMAT: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: false,
    shares_clusters: false,
};
/// The unit of the tests' writes.
const RECORD_BYTES: usize = 4 * PAGE_BYTES;
const LIMIT: Duration = Duration::from_secs(60);

struct Fixture {
    store: BlobStore,
    path: PathBuf,
    dir: tempfile::TempDir,
}

fn fixture(waiting: Waiting, whole_pages: bool) -> (Fixture, Arc<Reactor>) {
    let dir = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("device");
    Uring::create(&path, 32 * MIB).unwrap();
    let reactor = Reactor::start(waiting).unwrap();
    let mut options = Options::default();
    options.whole_pages = Some(whole_pages);
    let open = || Uring::open(&path, &reactor, &options).unwrap();
    BlobStore::format(&open(), &FORMAT).unwrap();
    let store = BlobStore::open(Box::new(open()), false).unwrap();
    (Fixture { store, path, dir }, reactor)
}

fn filled(store: &BlobStore, records: u64) -> Blob {
    let blob = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
    for record in 0..records {
        blob.write_at(&record_of(0), record * RECORD_BYTES as u64, None)
            .unwrap();
    }
    blob
}

fn record_of(tag: u64) -> Vec<u8> {
    tag.to_le_bytes().repeat(RECORD_BYTES / 8)
}

/// The tag of a record, which must be the same everywhere in it.
fn tag_of(record: &[u8]) -> u64 {
    let first = &record[..8];
    assert!(record.chunks(8).all(|word| word == first), "a record of two writes");
    u64::from_le_bytes(first.try_into().unwrap())
}

/// Some records; each transfer that ends begins another.
struct Stream {
    blob: Blob,
    pool: Pool,
    rng: Mutex<Rng>,
    left: AtomicU64,
    tags: Arc<AtomicU64>,
    /// Transfers that have to wait, and what is to do.
    refused: Sender<Option<(Buffer, u64, bool)>>,
    refusals: AtomicU64,
}

fn go_on(stream: &Arc<Stream>) {
    let left = stream
        .left
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
    if left.is_err() {
        stream.refused.send(None).unwrap();
        return;
    }
    let (record, writes) = {
        let mut rng = stream.rng.lock().unwrap();
        (rng.below(8), rng.below(2) == 0)
    };
    let mut buffer = stream.pool.take(RECORD_BYTES).unwrap();
    if writes {
        buffer.copy_from_slice(&record_of(stream.tags.fetch_add(1, Ordering::Relaxed)));
    }
    let at = record * RECORD_BYTES as u64;
    let ready = match writes {
        true => stream.blob.ready_to_write(at, buffer.len()),
        false => stream.blob.ready_to_read(&mut buffer, at),
    };
    let Some(ready) = ready else {
        stream.refusals.fetch_add(1, Ordering::Relaxed);
        return stream.refused.send(Some((buffer, at, writes))).unwrap();
    };
    let again = Arc::clone(stream);
    ready.begin(buffer, move |buffer, result| {
        result.unwrap();
        tag_of(&buffer);
        drop(buffer);
        go_on(&again);
    });
}

/// Transfers of threads that wait and of one that does not, of the same few records.
fn beside_each_other(waiting: Waiting, knows_buffers: bool) {
    let (fixture, _reactor) = fixture(waiting, true);
    let blob = filled(&fixture.store, 8);
    let pool = Pool::new(8 << 20).unwrap();
    if knows_buffers {
        fixture.store.know_buffers(&pool);
    }
    let tags = Arc::new(AtomicU64::new(1));
    let (refused, waits) = mpsc::channel();
    let stream = Arc::new(Stream {
        blob: blob.clone(),
        pool,
        rng: Mutex::new(Rng::new(7)),
        left: AtomicU64::new(4000),
        tags: Arc::clone(&tags),
        refused,
        refusals: AtomicU64::new(0),
    });
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (blob, tags) = (&blob, &tags);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..1000 {
                    let at = rng.below(8) * RECORD_BYTES as u64;
                    match rng.below(2) {
                        0 => blob
                            .write_at(&record_of(tags.fetch_add(1, Ordering::Relaxed)), at, None)
                            .unwrap(),
                        _ => {
                            let mut found = vec![0; RECORD_BYTES];
                            blob.read_at(&mut found, at).unwrap();
                            tag_of(&found);
                        }
                    }
                }
            });
        }
        for _ in 0..16 {
            go_on(&stream);
        }
        let mut ended = 0;
        while ended < 16 {
            match waits.recv_timeout(LIMIT).expect("a transfer that does not end") {
                None => ended += 1,
                Some((mut buffer, at, writes)) => {
                    match writes {
                        true => blob.write_at(&buffer, at, None).unwrap(),
                        false => blob.read_at(&mut buffer, at).unwrap(),
                    }
                    tag_of(&buffer);
                    drop(buffer);
                    go_on(&stream);
                }
            }
        }
    });
    // Some met, so their turns kept them apart; most did not.
    let refusals = stream.refusals.load(Ordering::Relaxed);
    assert!(refusals > 0 && refusals < 3900, "{refusals}");
    assert!(fixture.store.check().unwrap().findings.is_empty());
}

#[test]
fn transfers_beside_each_other_are_whole() {
    beside_each_other(Waiting::Sleeping, false);
}

#[test]
fn transfers_of_a_busy_reactor_and_known_buffers_are_whole() {
    beside_each_other(Waiting::Busy(Duration::from_micros(50)), true);
}

/// Submits and waits for the end.
fn read(blob: &Blob, mut buffer: Buffer, at: u64) -> (Buffer, ferrite_blob::Result<()>) {
    let (sender, ends) = mpsc::channel();
    let ready = blob.ready_to_read(&mut buffer, at).unwrap();
    ready.begin(buffer, move |buffer, result| sender.send((buffer, result)).unwrap());
    ends.recv_timeout(LIMIT).unwrap()
}

#[test]
fn holes_and_what_is_behind_the_end_are_zeros() {
    let (fixture, _reactor) = fixture(Waiting::Sleeping, true);
    let pool = Pool::new(8 << 20).unwrap();
    let blob = fixture.store.create(fixture.store.reserve(1).unwrap()[0], b"").unwrap();
    blob.write_at(&[1; 100], 0, None).unwrap();
    blob.write_at(&[2; 5000], 2 * CLUSTER_BYTES, None).unwrap();
    let mut buffer = pool.take(3 * CLUSTER_BYTES as usize).unwrap();
    buffer.fill(9);
    let (buffer, result) = read(&blob, buffer, 0);
    result.unwrap();
    let mut expected = vec![9; 3 * CLUSTER_BYTES as usize];
    blob.read_at(&mut expected, 0).unwrap();
    assert!(buffer[..] == expected[..] && expected[CLUSTER_BYTES as usize] == 0 && expected[99] == 1);
    // A length that is not a whole number of pages.
    let mut short = pool.take(PAGE_BYTES).unwrap();
    short.set_len(77);
    let (short, result) = read(&blob, short, 2 * CLUSTER_BYTES + PAGE_BYTES as u64);
    result.unwrap();
    assert!(short.len() == 77 && short.iter().all(|&byte| byte == 2));
}

#[test]
fn what_would_have_to_wait_is_given_back() {
    let pool = Pool::new(8 << 20).unwrap();
    let refuses = |blob: &Blob, at: u64, writes: bool| match writes {
        true => blob.ready_to_write(at, PAGE_BYTES).is_none(),
        false => blob.ready_to_read(&mut pool.take(PAGE_BYTES).unwrap(), at).is_none(),
    };
    let (tearing, _reactor) = fixture(Waiting::Sleeping, false);
    // Pages that tear go through the ring.
    assert!(refuses(&filled(&tearing.store, 1), 0, true));
    let (whole, _reactor) = fixture(Waiting::Sleeping, true);
    let blob = filled(&whole.store, 1);
    // In the middle of pages, behind the end, past a page of which the ring has an older content.
    assert!(refuses(&blob, 100, true) && refuses(&blob, 100, false) && refuses(&blob, RECORD_BYTES as u64, true));
    blob.write_at(&[1; 100], PAGE_BYTES as u64 - 50, None).unwrap();
    assert!(refuses(&blob, 0, true) && refuses(&blob, PAGE_BYTES as u64, true));
    whole.store.delete(blob.id()).unwrap();
    assert!(refuses(&blob, 0, true) && refuses(&blob, 0, false));
    // A device without submission.
    let memory = Memory::new(32 * MIB);
    BlobStore::format(&memory, &FORMAT).unwrap();
    let store = BlobStore::open(Box::new(memory), false).unwrap();
    assert!(refuses(&filled(&store, 1), 0, false));
}

#[test]
fn a_transfer_keeps_the_blob_from_being_cut_and_the_device_from_going() {
    let (fixture, reactor) = fixture(Waiting::Sleeping, true);
    let pool = Pool::new(8 << 20).unwrap();
    let blob = filled(&fixture.store, 200);
    for round in 0..50 {
        let mut buffer = pool.take(200 * RECORD_BYTES).unwrap();
        let (sender, ends) = mpsc::channel();
        let ready = blob.ready_to_read(&mut buffer, 0).unwrap();
        ready.begin(buffer, move |buffer, result| {
            sender.send((tag_of(&buffer[..RECORD_BYTES]), result)).unwrap();
        });
        blob.truncate(0, None).unwrap();
        let (tag, result) = ends.recv_timeout(LIMIT).unwrap();
        result.unwrap();
        assert_eq!(tag, round);
        for record in 0..200 {
            blob.write_at(&record_of(round + 1), record * RECORD_BYTES as u64, None)
                .unwrap();
        }
    }
    // All references to the store go while transfers are under way.
    let (sender, ends) = mpsc::channel();
    for record in 0..100 {
        let sender = sender.clone();
        let ready = blob.ready_to_write(record * RECORD_BYTES as u64, RECORD_BYTES).unwrap();
        ready.begin(pool.take(RECORD_BYTES).unwrap(), move |_, result| {
            sender.send(result).unwrap()
        });
    }
    drop((blob, fixture.store, reactor));
    for _ in 0..100 {
        ends.recv_timeout(LIMIT).unwrap().unwrap();
    }
    drop(fixture.dir);
}

#[test]
fn what_goes_wrong_is_told_and_hurts_nobody_else() {
    let (fixture, _reactor) = fixture(Waiting::Sleeping, true);
    let pool = Pool::new(8 << 20).unwrap();
    let blob = filled(&fixture.store, 40);
    // A completion that waits for the device would wait for itself; one that panics harms no other.
    let (sender, ends) = mpsc::channel();
    let own = blob.clone();
    let mut buffer = pool.take(PAGE_BYTES).unwrap();
    let ready = blob.ready_to_read(&mut buffer, 0).unwrap();
    ready.begin(buffer, move |_, _| {
        sender.send(own.read_at(&mut [0; 10], 0)).unwrap();
        panic!("on purpose");
    });
    assert!(matches!(ends.recv_timeout(LIMIT).unwrap(), Err(Error::Device { .. })));
    read(&blob, pool.take(PAGE_BYTES).unwrap(), 0).1.unwrap();
    // The file is cut short.
    let file = std::fs::File::options().write(true).open(&fixture.path).unwrap();
    file.set_len(MIB).unwrap();
    let (buffer, result) = read(&blob, pool.take(PAGE_BYTES).unwrap(), 0);
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("cut short") && error.contains(fixture.path.to_str().unwrap()),
        "{error}"
    );
    assert_eq!(buffer.len(), PAGE_BYTES);
}
