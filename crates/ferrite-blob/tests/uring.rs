//! Files through io_uring: reads return the data written, by many threads at once, and no thread waits for ever.

use std::sync::Arc;
use std::time::Duration;

use ferrite_blob::device::uring::{Options, Reactor, Uring, Waiting};
use ferrite_blob::device::{Device, Op};
use ferrite_blob::{BlobStore, CLUSTER_BYTES, FormatOptions, PAGE_BYTES};
use ferrite_testkit::rng::Rng;

const MIB: u64 = 1 << 20;
const OPTIONS: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: false,
    shares_clusters: false,
};

fn file(dir: &tempfile::TempDir, name: &str, mib: u64) -> std::path::PathBuf {
    let path = dir.path().join(name);
    Uring::create(&path, mib * MIB).unwrap();
    path
}

/// Each thread has its own pages, in one of two devices of one reactor, and finds its last write there.
fn many_threads(waiting: Waiting) {
    let dir = tempfile::tempdir().unwrap();
    let reactor = Reactor::start(waiting).unwrap();
    let devices = ["a", "b"].map(|name| Uring::open(&file(&dir, name, 8), &reactor, &Options::default()).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let device = &devices[thread as usize % 2];
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let mut last = [0_u8; 16];
                for round in 0..300 {
                    let page = rng.below(16);
                    let at = (thread * 16 + page) * PAGE_BYTES as u64;
                    let mut buf = vec![0; PAGE_BYTES * 2];
                    if rng.below(2) == 0 {
                        last[page as usize] = round as u8;
                        let data = vec![round as u8; PAGE_BYTES];
                        let write = Op::Write {
                            offset: at,
                            from: &data,
                            durable: rng.below(4) == 0,
                        };
                        run_aligned(device, write);
                    }
                    read_aligned(device, at, &mut buf[..PAGE_BYTES]);
                    assert!(buf[..PAGE_BYTES].iter().all(|&byte| byte == last[page as usize]));
                }
            });
        }
    });
}

/// Direct transfers want aligned memory; stores ensure that, this test does it by hand.
fn run_aligned(device: &Uring, op: Op<'_>) {
    if let Op::Write { offset, from, durable } = op {
        let mut memory = vec![0; from.len() + PAGE_BYTES];
        let skip = memory.as_ptr().align_offset(PAGE_BYTES);
        memory[skip..skip + from.len()].copy_from_slice(from);
        let from = &memory[skip..skip + from.len()];
        device.run(&mut [Op::Write { offset, from, durable }]).unwrap();
    }
}

fn read_aligned(device: &Uring, offset: u64, into: &mut [u8]) {
    let mut memory = vec![0; into.len() + PAGE_BYTES];
    let skip = memory.as_ptr().align_offset(PAGE_BYTES);
    let aligned = &mut memory[skip..skip + into.len()];
    device.run(&mut [Op::Read { offset, into: aligned }]).unwrap();
    into.copy_from_slice(aligned);
}

#[test]
fn many_threads_on_two_devices() {
    many_threads(Waiting::Sleeping);
}

#[test]
fn many_threads_on_a_busy_reactor() {
    many_threads(Waiting::Busy(Duration::from_micros(50)));
}

/// More operations in one batch than the ring holds.
#[test]
fn a_batch_may_be_longer_than_the_ring() {
    let dir = tempfile::tempdir().unwrap();
    let reactor = Reactor::start(Waiting::Sleeping).unwrap();
    let device = Uring::open(&file(&dir, "a", 8), &reactor, &Options::default()).unwrap();
    let mut memory = vec![0_u8; 1500 * PAGE_BYTES + PAGE_BYTES];
    let skip = memory.as_ptr().align_offset(PAGE_BYTES);
    let pages = memory[skip..].chunks_exact_mut(PAGE_BYTES).take(1500);
    let mut batch: Vec<Op<'_>> = pages
        .enumerate()
        .map(|(page, into)| {
            into.fill(1);
            let offset = page as u64 * PAGE_BYTES as u64;
            Op::Read { offset, into }
        })
        .collect();
    device.run(&mut batch).unwrap();
    drop(batch);
    assert!(memory[skip..skip + 1500 * PAGE_BYTES].iter().all(|&byte| byte == 0));
}

#[test]
fn a_store_in_a_file_is_there_after_opening_again_and_is_one_processs() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "store", 16);
    let reactor = Reactor::start(Waiting::Sleeping).unwrap();
    let open = || Uring::open(&path, &reactor, &Options::default());
    BlobStore::format(&open().unwrap(), &OPTIONS).unwrap();
    let store = BlobStore::open(Box::new(open().unwrap()), false).unwrap();
    let again = open().map(drop).unwrap_err().to_string();
    assert!(again.contains("another process"), "{again}");
    let id = store.reserve(1).unwrap()[0];
    let blob = store.create(id, b"meta").unwrap();
    let data: Vec<u8> = (0..CLUSTER_BYTES * 2 + 777).map(|at| (at % 251) as u8).collect();
    blob.write_at(&data, 12_345, Some(b"more")).unwrap();
    drop(blob);
    store.close().unwrap();
    let store = BlobStore::open(Box::new(open().unwrap()), false).unwrap();
    let blob = store.blob(id).unwrap();
    let mut found = vec![1; data.len() + 12_345];
    blob.read_at(&mut found, 0).unwrap();
    assert!(found[..12_345].iter().all(|&byte| byte == 0) && found[12_345..] == data);
    assert_eq!(blob.metadata(), b"more");
    assert!(store.check().unwrap().findings.is_empty());
}

#[test]
fn what_is_no_device_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let reactor = Reactor::start(Waiting::Sleeping).unwrap();
    for (path, why) in [
        (dir.path().to_path_buf(), "neither a file"),
        (dir.path().join("none"), "No such file"),
        ("/dev/null".into(), "neither a file"),
    ] {
        let said = Uring::open(&path, &reactor, &Options::default())
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(
            said.contains(why) && said.contains(&path.display().to_string()),
            "{said}"
        );
    }
    let path = file(&dir, "small", 1);
    let device = Uring::open(&path, &reactor, &Options::default()).unwrap();
    let mut page = vec![0; 2 * PAGE_BYTES];
    let skip = page.as_ptr().align_offset(PAGE_BYTES);
    let behind = Op::Read {
        offset: MIB,
        into: &mut page[skip..skip + PAGE_BYTES],
    };
    let error = device.run(&mut [behind]).unwrap_err().to_string();
    assert!(error.contains("small") && error.contains("read"), "{error}");
    let _: Arc<dyn Device> = Arc::new(device);
}
