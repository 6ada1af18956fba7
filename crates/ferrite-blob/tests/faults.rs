//! Devices that fail under a blob store: blobs in many pieces, superblocks, and the ring.
//!
//! A change that fails has happened or it has not; readers see one of the two at any time, and so does the next
//! opening, where nothing is lost and nothing leaks.

use std::sync::Arc;
use std::time::Duration;

use crate::common;
use crate::common::compare;
use crate::common::sparse::Sparse;
use ferrite_blob::device::{Device, Fault, Faulty, Memory, Slow, Target};
use ferrite_blob::{Blob, BlobStore, CLUSTER_BYTES, Error, FormatOptions, PAGE_BYTES};

const OPTIONS: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: false,
    shares_clusters: false,
};
/// More than one overflow page can name.
const PIECES: u64 = 273 + 341 + 20;
const FAULTS: [Fault; 3] = [Fault::Error, Fault::Short, Fault::Late];

fn open<D: Device + 'static>(device: &Arc<D>) -> BlobStore {
    BlobStore::open(Box::new(Arc::clone(device)), false).unwrap()
}

fn byte_of(cluster: u64) -> u8 {
    (cluster % 250) as u8 + 1
}

/// Every second cluster has a byte in front, and so has cluster `more`.
fn holds(blob: &Blob, pieces: u64, more: Option<u64>, what: &str) {
    for cluster in 0..2 * pieces + 2 {
        let mut byte = [0; 2];
        blob.read_at(&mut byte, cluster * CLUSTER_BYTES).expect(what);
        let is_there = (cluster % 2 == 0 && cluster < 2 * pieces) || more == Some(cluster);
        let want = if is_there { byte_of(cluster) } else { 0 };
        assert_eq!(byte, [want, 0], "{what}: cluster {cluster}");
    }
}

/// A blob in many pieces on a device, closed.
fn in_pieces(pieces: u64) -> (Sparse, ferrite_blob::BlobId) {
    let device = Arc::new(Sparse::new((pieces + 60) << 20));
    BlobStore::format(&*device, &OPTIONS).unwrap();
    let store = open(&device);
    let id = store.reserve(1).unwrap()[0];
    let blob = store.create(id, b"old").unwrap();
    for cluster in (0..2 * pieces).step_by(2) {
        blob.write_at(&[byte_of(cluster)], cluster * CLUSTER_BYTES, None)
            .unwrap();
    }
    store.close().unwrap();
    drop(blob);
    let device = device.copy();
    (device, id)
}

/// An error at each write of a change of a blob in pieces: its data, each of its overflow pages, its own page.
#[test]
fn a_blob_in_pieces_is_old_or_new_whichever_write_fails() {
    let (base, id) = in_pieces(PIECES);
    let new = 2 * PIECES;
    let change = |blob: &Blob, kind: u64| match kind {
        // At the end, in a hole in the middle, and one that releases a piece.
        0 => blob.write_at(&[byte_of(new)], new * CLUSTER_BYTES, Some(b"new")),
        1 => blob.write_at(&[byte_of(301)], 301 * CLUSTER_BYTES, Some(b"new")),
        _ => blob.punch(300 * CLUSTER_BYTES, CLUSTER_BYTES, Some(b"new")),
    };
    for kind in 0..3 {
        let check = |blob: &Blob, is_new: bool, what: &str| match (kind, is_new) {
            (_, false) => holds(blob, PIECES, None, what),
            (0, _) => holds(blob, PIECES, Some(new), what),
            (1, _) => holds(blob, PIECES, Some(301), what),
            _ => {
                let mut byte = [9];
                blob.read_at(&mut byte, 300 * CLUSTER_BYTES).expect(what);
                assert_eq!(byte, [0], "{what}");
            }
        };
        for fault in FAULTS {
            for after in 0.. {
                let what = format!("change {kind}, {fault:?} after {after} writes");
                let device = Arc::new(Faulty::new(base.copy()));
                let store = open(&device);
                let blob = store.blob(id).unwrap();
                let free = store.space().free_clusters;
                device.plan(
                    fault,
                    Target {
                        count: 1,
                        ..Target::writes_from(after)
                    },
                );
                let done = change(&blob, kind);
                device.mend();
                // Readers: the change has happened, or it has not, or that is unknown, and then the store has stopped.
                if store.is_running() {
                    check(&blob, done.is_ok(), &what);
                    let is_new = blob.metadata() == b"new";
                    assert_eq!(is_new, done.is_ok(), "{what}: metadata");
                    if done.is_err() {
                        assert_eq!(store.space().free_clusters, free, "{what}: space");
                        change(&blob, kind).unwrap_or_else(|error| panic!("{what}: again: {error}"));
                        check(&blob, true, &what);
                    }
                } else {
                    assert!(matches!(change(&blob, kind), Err(Error::Stopped(_))), "{what}");
                    let mut byte = [0];
                    blob.read_at(&mut byte, 2 * CLUSTER_BYTES).expect(&what);
                    assert_eq!(byte, [byte_of(2)], "{what}");
                }
                drop((blob, store));
                let store = open(&device);
                let report = store.check().unwrap();
                assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
                let blob = store.blob(id).unwrap();
                let is_new = blob.metadata() == b"new";
                assert!(is_new || done.is_err(), "{what}: acknowledged");
                check(&blob, is_new, &what);
                if done.is_ok() {
                    assert!(after >= 3, "{what}: there are two overflow pages, and its own");
                    break;
                }
            }
        }
    }
}

/// Without a page for more pieces a blob takes no more and reports that, and everything else keeps working.
#[test]
fn a_blob_in_too_many_pieces_stops_nothing_else() {
    let device = Arc::new(Sparse::new(400 << 20));
    BlobStore::format(&*device, &OPTIONS).unwrap();
    // A store with a single overflow page (docs/format-blob.md).
    for page in [0, (400 << 20) / PAGE_BYTES as u64 - 1] {
        let mut pages = device.pages.lock();
        let superblock = pages.get_mut(&page).unwrap();
        superblock[68..72].copy_from_slice(&1_u32.to_le_bytes());
        superblock[8..12].fill(0);
        let crc = crc32c::crc32c(superblock);
        superblock[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    let store = open(&device);
    let id = store.reserve(1).unwrap()[0];
    let blob = store.create(id, b"old").unwrap();
    let pieces = 274;
    for cluster in (0..2 * pieces).step_by(2) {
        blob.write_at(&[byte_of(cluster)], cluster * CLUSTER_BYTES, None)
            .unwrap();
    }
    let free = store.space().free_clusters;
    // Over the end of one cluster into a hole, in the middle of a hole, at the end.
    for offset in [
        301 * CLUSTER_BYTES - 1,
        301 * CLUSTER_BYTES + 5000,
        2 * pieces * CLUSTER_BYTES,
    ] {
        assert_eq!(blob.write_at(&[1; 2], offset, Some(b"new")), Err(Error::TooManyPieces));
        assert!(store.is_running(), "one blob's pieces stop no other's");
        assert_eq!(blob.reserve(offset, 2, Some(b"new")), Err(Error::TooManyPieces));
    }
    assert_eq!((blob.metadata(), store.space().free_clusters), (b"old".to_vec(), free));
    blob.write_at(&[byte_of(0)], 0, Some(b"in place")).unwrap();
    let other = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
    other.write_at(&[1; 100], 0, None).unwrap();
    holds(&blob, pieces, None, "afterwards");
    // After a truncation it is in fewer, and can take others.
    blob.truncate(200 * CLUSTER_BYTES, None).unwrap();
    blob.write_at(&[byte_of(301)], 301 * CLUSTER_BYTES, None).unwrap();
    assert!(store.check().unwrap().findings.is_empty());
}

/// Each of the two superblocks, when numbers are taken and when the store is closed.
#[test]
fn a_superblock_that_cannot_be_written_loses_nothing() {
    for fault in FAULTS {
        for (after, closes) in [(0, false), (1, false), (0, true), (1, true)] {
            let what = format!("{fault:?} of superblock {after}, closing: {closes}");
            let memory = Memory::of(vec![0xee; 12 << 20]);
            BlobStore::format(&memory, &OPTIONS).unwrap();
            let device = Arc::new(Faulty::new(memory));
            let store = open(&device);
            let mut model = common::Model::new();
            let mut seen = Vec::new();
            if closes {
                let id = store.reserve(1).unwrap()[0];
                let blob = store.create(id, b"kept").unwrap();
                blob.write_at(&[7; 5000], 0, None).unwrap();
                seen.push(id);
                let known = common::Known {
                    data: vec![7; 5000],
                    metadata: b"kept".to_vec(),
                };
                model.insert(id, known);
            }
            let target = Target {
                count: 1,
                ..Target::writes_from(after)
            };
            device.plan(fault, target);
            match closes {
                true => assert!(store.clone().close().is_err(), "{what}"),
                false => {
                    assert!(store.reserve(1).is_err(), "{what}");
                    device.mend();
                    // The other one may be the only readable one.
                    assert!(matches!(store.reserve(1), Err(Error::Stopped(_))), "{what}");
                }
            }
            device.mend();
            drop(store);
            let store = open(&device);
            compare(&store, &model, &what);
            let id = store.reserve(1).unwrap()[0];
            assert!(!seen.contains(&id), "{what}: a number was given twice");
            store.create(id, b"").unwrap();
            store.close().unwrap();
        }
    }
}

/// An entry of the ring that the device reports as not written, though it was, is never carried out later.
#[test]
fn a_lost_answer_of_the_ring_changes_nothing_later() {
    for tears in [false, true] {
        let memory = Memory::new(12 << 20);
        let memory = if tears { memory.tearing() } else { memory };
        BlobStore::format(&memory, &OPTIONS).unwrap();
        let device = Arc::new(Faulty::new(memory));
        let store = open(&device);
        let id = store.reserve(1).unwrap()[0];
        let blob = store.create(id, b"").unwrap();
        blob.write_at(&[1; 6000], 0, Some(b"first")).unwrap();
        device.plan(
            Fault::Late,
            Target {
                count: 1,
                ..Target::writes_from(0)
            },
        );
        blob.write_at(&[2; 100], 50, Some(b"second")).unwrap_err();
        device.mend();
        // Accepting this would make that entry valid.
        let third = blob.set_metadata(b"third");
        drop((blob, store));
        let store = open(&device);
        let blob = store.blob(id).unwrap();
        let mut bytes = [0; 6000];
        blob.read_at(&mut bytes, 0).unwrap();
        let is_second = bytes[50..150] == [2; 100];
        let want: &[u8] = match (third.is_ok(), is_second) {
            (true, _) => b"third",
            (false, true) => b"second",
            (false, false) => b"first",
        };
        assert_eq!(blob.metadata(), want, "data and metadata go together");
        assert!(!(is_second && third.is_ok()), "what failed has happened after all");
    }
}

/// An error at each write while clusters become slots: nothing is lost, and they become slots the next time.
#[test]
fn slots_are_added_or_not_whichever_write_fails() {
    let mut failures = 0;
    for after in 0.. {
        let device = Arc::new(Faulty::new(Memory::of(vec![0xee; 8 << 20])));
        let options = FormatOptions {
            shares_clusters: true,
            ..OPTIONS
        };
        BlobStore::format(&*device, &options).unwrap();
        let store = open(&device);
        let slots = store.space().blobs_max as usize;
        for id in store.reserve(slots).unwrap() {
            store.create(id, b"there").unwrap();
        }
        let target = Target {
            reads: false,
            writes: true,
            range: 0..u64::MAX,
            after,
            count: 1,
        };
        device.plan(Fault::Error, target);
        let reserved = store.reserve(4);
        device.mend();
        let what = format!("write {after}: {reserved:?}");
        // Whatever failed, blobs are there; and if the store keeps running, so do its slots.
        assert_eq!(store.ids().unwrap().len(), slots, "{what}");
        if store.is_running() {
            assert_eq!(store.reserve(4).unwrap().len(), 4, "{what}");
        }
        drop(store);
        let store = open(&device);
        let report = store.check().unwrap();
        assert!(report.findings.is_empty(), "{what}: {report:?}");
        assert_eq!(store.ids().unwrap().len(), slots, "{what}");
        for id in store.reserve(4).unwrap() {
            store.create(id, b"new").unwrap().write_at(&[1; 5000], 0, None).unwrap();
        }
        assert!(store.space().blobs_max as usize > slots, "{what}");
        assert!(store.check().unwrap().findings.is_empty(), "{what}");
        store.close().unwrap();
        if reserved.is_ok() {
            break;
        }
        failures += 1;
    }
    assert!(failures >= 3, "zeros and both superblocks: {failures}");
}

/// On a device that tears pages, one thread writes much through the ring, and another has stored its pages there when
/// the store stops: those stay for the next opening, and no thread waits until they are written in place.
#[test]
fn a_store_that_stops_keeps_nobody_waiting_for_the_ring() {
    let faulty = Arc::new(Faulty::new(Memory::new(64 << 20).tearing()));
    BlobStore::format(&*faulty, &OPTIONS).unwrap();
    let slow = Slow::new(Arc::clone(&faulty), Duration::from_millis(2), 1000);
    let store = BlobStore::open(Box::new(slow), false).unwrap();
    let ids = store.reserve(2).unwrap();
    let large = store.create(ids[0], b"").unwrap();
    large.write_at(&[1; 4 << 20], 0, None).unwrap();
    let small = store.create(ids[1], b"").unwrap();
    small.write_at(&[1; 100], 0, None).unwrap();
    let (done, wait) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let written = large.overwrite_at(&[2; 4 << 20], 0, || {});
        let _ = done.send(written.is_err());
    });
    std::thread::sleep(Duration::from_millis(100));
    // The pages of its metadata, right behind the superblock.
    let slots = 4096..1 << 18;
    let target = Target {
        range: slots,
        count: 1,
        ..Target::writes_from(0)
    };
    faulty.plan(Fault::Error, target);
    assert!(small.write_at(&[3; 100], 50, Some(b"new")).is_err());
    faulty.mend();
    assert!(!store.is_running());
    let has_failed = wait.recv_timeout(Duration::from_secs(20));
    assert_eq!(
        has_failed,
        Ok(true),
        "it waits for an entry that nobody writes in place"
    );
    writer.join().unwrap();
}

/// Reserved numbers that were not used can be given back, however often, and do not make the store take space.
#[test]
fn numbers_that_are_given_back_cost_no_space() {
    let options = FormatOptions {
        shares_clusters: true,
        ..OPTIONS
    };
    let device = Arc::new(Memory::new(24 << 20));
    BlobStore::format(&*device, &options).unwrap();
    let store = open(&device);
    let free = store.space().free_bytes;
    let mut seen = std::collections::HashSet::new();
    for _ in 0..500 {
        let ids = store.reserve_some(16).unwrap();
        assert!(ids.iter().all(|id| seen.insert(*id)), "a number came again");
        let blob = store.create(ids[3], b"made").unwrap();
        // The blob's own number is left alone; the others can no longer be used.
        store.give_back(&ids);
        assert!(matches!(store.create(ids[0], b""), Err(Error::NotFound)));
        assert_eq!(blob.metadata(), b"made");
        store.delete(blob.id()).unwrap();
    }
    assert_eq!(store.space().free_bytes, free);
    store.close().unwrap();
    assert!(open(&device).check().unwrap().findings.is_empty());
}
