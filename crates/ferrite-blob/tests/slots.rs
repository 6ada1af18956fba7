//! More blobs than there are slots in front of the clusters: where the next ones go, and what happens when none are
//! left.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::sparse::Sparse;
use ferrite_blob::device::{Device, Memory, Op};
use ferrite_blob::{BlobStore, CLUSTER_BYTES, Error, FormatOptions, PAGE_BYTES};
use parking_lot::Mutex;

const OPTIONS: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: false,
    shares_clusters: true,
};
const UNIT: u64 = 16 << 10;

fn format<D: Device + 'static>(device: D, options: &FormatOptions) -> Arc<D> {
    let device = Arc::new(device);
    BlobStore::format(&*device, options).unwrap();
    device
}

fn open<D: Device + 'static>(device: &Arc<D>) -> BlobStore {
    BlobStore::open(Box::new(Arc::clone(device)), false).unwrap()
}

/// The superblock's version and its number of areas of slots.
fn version_and_areas(device: &dyn Device) -> [u32; 2] {
    #[repr(align(4096))]
    struct Page([u8; PAGE_BYTES]);
    let mut page = Page([0; PAGE_BYTES]);
    device
        .run(&mut [Op::Read {
            offset: 0,
            into: &mut page.0,
        }])
        .unwrap();
    [12, 96].map(|at| u32::from_le_bytes(page.0[at..at + 4].try_into().unwrap()))
}

/// An area on a device of 700 clusters is one cluster, and 256 of those would be 32,768 slots.
#[test]
fn slots_that_lie_in_a_row_are_one_area() {
    let device = format(Sparse::new(700 << 20), &OPTIONS);
    let store = open(&device);
    for _ in 0..36 {
        store.reserve(1000).unwrap();
    }
    let last = *store.reserve(1000).unwrap().last().unwrap();
    store.create(last, b"last").unwrap();
    let [version, areas] = version_and_areas(&*device);
    assert!(version == 3 && areas < 4, "version {version}, {areas} areas");
    drop(store);
    let store = open(&device);
    assert_eq!(store.blob(last).unwrap().metadata(), b"last");
    assert!(store.check().unwrap().findings.is_empty());
}

/// The free space is single clusters, so that each is an area: more than earlier programs knew.
#[test]
fn a_device_in_pieces_has_slots_for_its_blobs() {
    let device = format(Sparse::new(760 << 20), &OPTIONS);
    let store = open(&device);
    let clusters = store.space().free_clusters;
    let long = store.create(store.reserve(1).unwrap()[0], b"long").unwrap();
    long.reserve(0, clusters * CLUSTER_BYTES, None).unwrap();
    for cluster in (0..clusters).step_by(2) {
        long.punch(cluster * CLUSTER_BYTES, CLUSTER_BYTES, None).unwrap();
    }
    let mut ids = Vec::new();
    while ids.len() < 40_000 {
        ids.extend(store.reserve(1000).unwrap());
    }
    let last = *ids.last().unwrap();
    store
        .create(last, b"last")
        .unwrap()
        .write_at(&[7; 5000], 0, None)
        .unwrap();
    let [version, areas] = version_and_areas(&*device);
    assert!(version == 4 && areas > 256, "version {version}, {areas} areas");
    drop((store, long));
    let store = open(&device);
    let mut found = [0; 5000];
    store.blob(last).unwrap().read_at(&mut found, 0).unwrap();
    assert!(found == [7; 5000]);
    assert!(store.check().unwrap().findings.is_empty());
}

/// Every cluster has a blob that leaves some of it: that is space for slots, and for the content of their blobs.
#[test]
fn the_last_slots_are_in_parts_of_clusters() {
    for checksums in [false, true] {
        let device = format(
            Memory::of(vec![0xee; 16 << 20]),
            &FormatOptions { checksums, ..OPTIONS },
        );
        let store = open(&device);
        while store.space().free_clusters > 0 {
            let blob = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
            blob.write_at(&[1; 40 * UNIT as usize], 0, None).unwrap();
        }
        let slots = store.space().blobs_max;
        let mut ids = Vec::new();
        let end = loop {
            let id = match store.reserve(1) {
                Ok(id) => id[0],
                Err(error) => break error,
            };
            let blob = store.create(id, b"").unwrap();
            match blob.write_at(&[ids.len() as u8; 5000], 0, None) {
                Ok(()) => ids.push(id),
                Err(error) => break error,
            }
        };
        assert_eq!(end, Error::NoSpace);
        let space = store.space();
        assert!(space.blobs_max > slots && space.free_bytes < 8 * UNIT, "{space:?}");
        assert!(ids.len() as u64 > slots, "{} blobs", ids.len());
        assert_eq!(version_and_areas(&*device)[0], 4);
        drop(store);
        let store = open(&device);
        assert!(store.check().unwrap().findings.is_empty());
        assert_eq!(store.space(), space);
        for (number, &id) in ids.iter().enumerate() {
            let mut found = [0; 5000];
            store.blob(id).unwrap().read_at(&mut found, 0).unwrap();
            assert!(found == [number as u8; 5000], "{number}");
            store.delete(id).unwrap();
        }
        assert!(store.check().unwrap().findings.is_empty());
        store.close().unwrap();
    }
}

/// A caller that asks for many gets what is left, and the last space is not spent on unneeded slots.
#[test]
fn a_slot_that_was_given_back_is_enough() {
    let device = format(Memory::new(16 << 20), &OPTIONS);
    let store = open(&device);
    let slots = store.space().blobs_max as usize;
    let ids = store.reserve(slots).unwrap();
    for &id in &ids {
        store.create(id, b"").unwrap().write_at(&[1; 5000], 0, None).unwrap();
    }
    store.delete(ids[3]).unwrap();
    let space = store.space();
    assert_eq!(store.reserve_some(16).unwrap().len(), 1);
    assert_eq!(store.space().free_bytes, space.free_bytes);
    // Then none are left, and it takes space for more.
    assert_eq!(store.reserve_some(16).unwrap().len(), 16);
    assert!(store.space().free_bytes < space.free_bytes);
}

/// A device that reports writes of zeros of a cluster, and waits before it does them.
struct StalledDevice {
    memory: Memory,
    begun: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Device for StalledDevice {
    fn name(&self) -> &str {
        "stalled device"
    }

    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        true
    }

    fn run(&self, batch: &mut [Op<'_>]) -> ferrite_blob::Result<()> {
        let is_zeros = |op: &Op<'_>| match op {
            Op::Write { from, .. } => from.len() as u64 == CLUSTER_BYTES && from.iter().all(|&byte| byte == 0),
            _ => false,
        };
        if batch.iter().any(is_zeros)
            && let Some((begun, go_on)) = self.begun.lock().take()
        {
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }
        self.memory.run(batch)
    }
}

#[test]
fn nobody_else_waits_while_slots_are_zeroed() {
    let device = format(
        StalledDevice {
            memory: Memory::new(16 << 20),
            begun: Mutex::new(None),
        },
        &OPTIONS,
    );
    let store = open(&device);
    let slots = store.space().blobs_max as usize;
    let ids = store.reserve(slots).unwrap();
    let blob = store.create(ids[0], b"").unwrap();
    store.create(ids[1], b"").unwrap();
    let (begun, has_begun) = channel();
    let (go_on, may_go_on) = channel();
    *device.begun.lock() = Some((begun, may_go_on));
    std::thread::scope(|scope| {
        let store = &store;
        let (first, second) = (
            scope.spawn(move || store.reserve(1).unwrap()),
            scope.spawn(move || store.reserve(2).unwrap()),
        );
        has_begun.recv().unwrap();
        let (done, is_done) = channel();
        let others = scope.spawn(move || {
            blob.write_at(&[1; 100_000], 0, None).unwrap();
            store.delete(ids[1]).unwrap();
            done.send(store.reserve(1).unwrap()[0]).unwrap();
        });
        let others_done = is_done.recv_timeout(Duration::from_secs(10));
        go_on.send(()).unwrap();
        others.join().unwrap();
        let all = [
            first.join().unwrap(),
            second.join().unwrap(),
            vec![others_done.unwrap()],
        ]
        .concat();
        assert!((0..4).all(|one| !all[..one].contains(&all[one])), "{all:?}");
    });
    assert!(store.check().unwrap().findings.is_empty());
}
