//! Blobs that name another's units, as only damage can make them: neither harms the other, and they can be separated.

use std::sync::Arc;

use crate::common::image::{head, piece, set_pieces};
use ferrite_blob::device::Memory;
use ferrite_blob::{BlobStore, CLUSTER_BYTES, Error, FormatOptions, PAGE_BYTES};

const LEN: usize = 90_000;

/// A closed store with three blobs, of ones, twos and threes, of which the second gets these pieces and the first's.
fn tangled(mib: u64, options: &FormatOptions, others: &[[u32; 3]]) -> Arc<Memory> {
    let device = Arc::new(Memory::new(mib << 20));
    BlobStore::format(&*device, options).unwrap();
    let store = open(&device);
    for (byte, id) in (1..).zip(store.reserve(3).unwrap()) {
        store.create(id, b"").unwrap().write_at(&[byte; LEN], 0, None).unwrap();
    }
    store.close().unwrap();
    let mut image = device.image();
    let pieces = [&[piece(&image, 0)], others].concat();
    set_pieces(&mut image, 1, &pieces);
    Arc::new(Memory::of(image))
}

fn open(device: &Arc<Memory>) -> BlobStore {
    BlobStore::open(Box::new(Arc::clone(device)), false).unwrap()
}

fn read(store: &BlobStore, nth: usize) -> Vec<u8> {
    let mut found = vec![0; LEN];
    let id = store.ids().unwrap()[nth];
    store.blob(id).unwrap().read_at(&mut found, 0).unwrap();
    found
}

fn options(checksums: bool, shares_clusters: bool) -> FormatOptions {
    FormatOptions {
        store: [1; 16],
        pool: [2; 16],
        index: 0,
        checksums,
        shares_clusters,
    }
}

#[test]
fn two_blobs_of_one_place_come_apart() {
    for (checksums, shares) in [(false, false), (false, true), (true, false), (true, true)] {
        let what = format!("checksums {checksums}, shares {shares}");
        // Something behind the end of the device, too.
        let others = [
            [1000, u32::MAX - 5, 3],
            [2000, u32::MAX - 5, 100],
            [u32::MAX - 1, u32::MAX - 5, 50],
        ];
        let device = tangled(16, &options(checksums, shares), &others);
        let store = open(&device);
        let ids = store.ids().unwrap();
        assert_eq!(store.tangled(), [ids[1]], "{what}");
        assert!(store.damage()[0].contains("another's"), "{what}");
        // A blob that releases it takes nothing from the other.
        let free = store.space().free_bytes;
        store.blob(ids[1]).unwrap().truncate(50_000, None).unwrap();
        assert_eq!(store.space().free_bytes, free, "{what}");
        assert_eq!(store.tangled(), [ids[1]], "{what}");
        store.untangle(ids[1]).unwrap();
        assert!(store.damage().is_empty() && store.tangled().is_empty(), "{what}");
        let (first, second) = (vec![1; LEN], [vec![1; 50_000], vec![0; LEN - 50_000]].concat());
        assert!(read(&store, 0) == first && read(&store, 1) == second, "{what}");
        store.close().unwrap();
        let store = open(&device);
        let report = store.check().unwrap();
        assert!(report.findings.is_empty(), "{what}: {report:?}");
        assert!(read(&store, 1) == second && read(&store, 2) == vec![3; LEN], "{what}");
        store.blob(ids[1]).unwrap().write_at(&[9; LEN], 0, None).unwrap();
        assert!(read(&store, 0) == first && read(&store, 1) == vec![9; LEN], "{what}");
        store.close().unwrap();
    }
}

#[test]
fn a_tangled_blob_that_is_deleted_takes_nothing_along() {
    let store = open(&tangled(8, &options(false, true), &[]));
    let ids = store.ids().unwrap();
    store.delete(ids[1]).unwrap();
    assert!(store.damage().is_empty() && store.check().unwrap().findings.is_empty());
    // All free space is written; the first blob keeps its content.
    let other = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
    let mut at = 0;
    while other.write_at(&[7; 16 << 10], at, None) != Err(Error::NoSpace) {
        at += 16 << 10;
    }
    assert!(at > 2 * CLUSTER_BYTES);
    let mut found = vec![0; LEN];
    store.blob(ids[0]).unwrap().read_at(&mut found, 0).unwrap();
    assert!(found == vec![1; LEN]);
}

/// The newer page of a slot rots, and the older one names units that belong to another blob since: that one keeps them.
#[test]
fn who_has_only_an_older_page_loses() {
    let device = Arc::new(Memory::new(16 << 20));
    BlobStore::format(&*device, &options(false, true)).unwrap();
    let store = open(&device);
    let ids = store.reserve(3).unwrap();
    let third = store.create(ids[2], b"").unwrap();
    third.write_at(&[3; LEN], 0, None).unwrap();
    let first = store.create(ids[0], b"").unwrap();
    first.write_at(&[1; LEN], 0, None).unwrap();
    first.truncate(0, None).unwrap();
    let second = store.create(ids[1], b"").unwrap();
    // All free space, so also what the first one had.
    let mut at = 0;
    while second.write_at(&[2; 16 << 10], at, None) != Err(Error::NoSpace) {
        at += 16 << 10;
    }
    drop((first, second, third));
    // Space for copies.
    store.delete(ids[2]).unwrap();
    store.close().unwrap();
    let mut image = device.image();
    let newer = head(&image, 0);
    image[newer + 2000] ^= 1;
    let device = Arc::new(Memory::of(image));
    let store = open(&device);
    assert_eq!(store.tangled(), [ids[0]], "the one that is stale");
    // The older state does not count as the present one before a repair has said so.
    assert_eq!(store.older(), [ids[0]]);
    assert!(is_damaged(store.blob(ids[0]).map(drop)));
    store.accept_older(ids[0]).unwrap();
    store.untangle(ids[0]).unwrap();
    let mut found = vec![0; at as usize];
    store.blob(ids[1]).unwrap().read_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|&byte| byte == 2));
    store.close().unwrap();
}

fn is_damaged(result: ferrite_blob::Result<()>) -> bool {
    matches!(result, Err(Error::Damaged(_)))
}

/// It is unknown whose content is there, so no blob writes over it before a repair.
#[test]
fn what_two_blobs_claim_cannot_be_written_until_they_come_apart() {
    for (checksums, shares) in [(false, false), (false, true), (true, true)] {
        let what = format!("checksums {checksums}, shares {shares}");
        let device = tangled(16, &options(checksums, shares), &[]);
        let store = open(&device);
        let ids = store.ids().unwrap();
        let blobs: Vec<_> = ids.iter().map(|&id| store.blob(id).unwrap()).collect();
        for blob in &blobs[..2] {
            assert!(is_damaged(blob.write_at(&[9; 100], 0, None)), "{what}");
            assert!(is_damaged(blob.write_at(&[9; 4096], 4096, Some(b"m"))), "{what}");
            assert!(
                is_damaged(blob.overwrite_at(&[9; 4096], 4096, || {}).map(drop)),
                "{what}"
            );
            assert!(is_damaged(blob.punch(100, 5000, None)), "{what}");
            // The gap behind the old end is in a unit of both.
            assert!(is_damaged(blob.write_at(&[9], LEN as u64 + 5000, None)), "{what}");
        }
        assert!(is_damaged(blobs[1].write_at(&[9], 9 * CLUSTER_BYTES, None)), "{what}");
        assert!(is_damaged(blobs[1].reserve(9 * CLUSTER_BYTES, 1, None)), "{what}");
        assert_eq!(
            (read(&store, 0), read(&store, 1)),
            (vec![1; LEN], vec![1; LEN]),
            "{what}"
        );
        // Changes that touch no content keep working, and so do other blobs.
        blobs[1].set_metadata(b"times").unwrap();
        blobs[0].reserve(9 * CLUSTER_BYTES, 1, None).unwrap();
        blobs[2].write_at(&[8; LEN], 0, None).unwrap();
        assert!(store.is_running(), "{what}");
        store.untangle(ids[1]).unwrap();
        blobs[0].write_at(&[4; LEN], 0, None).unwrap();
        blobs[1].write_at(&[5; LEN], 0, Some(b"m")).unwrap();
        let found = [0, 1, 2].map(|nth| read(&store, nth)[5]);
        assert_eq!(found, [4, 5, 8], "{what}");
        assert!(store.check().unwrap().findings.is_empty(), "{what}");
    }
}

/// The first page with this content.
fn page_of(image: &[u8], byte: u8) -> usize {
    let is_it = |page: &[u8]| page.iter().all(|&found| found == byte);
    image.chunks(PAGE_BYTES).position(is_it).unwrap()
}

#[test]
fn the_ring_writes_nothing_over_what_two_blobs_claim() {
    // The last writer before power was lost, and whether there is damage.
    for (writer, is_tangled, want) in [(0, false, 9), (0, true, 1), (1, true, 1)] {
        for read_only in [true, false] {
            let device = Arc::new(Memory::new(16 << 20).tearing());
            BlobStore::format(&*device, &options(false, true)).unwrap();
            let store = open(&device);
            let ids = store.reserve(3).unwrap();
            for (byte, &id) in (1..).zip(&ids) {
                store.create(id, b"").unwrap().write_at(&[byte; LEN], 0, None).unwrap();
            }
            let mut image = device.image();
            let (target, old) = (page_of(&image, 1), page_of(&image, writer as u8 + 1));
            let before = image[target * PAGE_BYTES..][..PAGE_BYTES].to_vec();
            let blob = store.blob(ids[writer]).unwrap();
            blob.write_at(&[9; PAGE_BYTES], 0, None).unwrap();
            image = device.image();
            // It is in the ring, and was not written in place.
            image[target * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&before);
            let is_entry = |page: &&mut [u8]| page.starts_with(b"BlRg") && page[48..56] == (old as u64).to_le_bytes();
            let entry = image.chunks_mut(PAGE_BYTES).find(is_entry).unwrap();
            entry[48..56].copy_from_slice(&(target as u64).to_le_bytes());
            entry[8..12].fill(0);
            let crc = crc32c::crc32c(entry);
            entry[8..12].copy_from_slice(&crc.to_le_bytes());
            if is_tangled {
                let pieces = [piece(&image, 0)];
                set_pieces(&mut image, 1, &pieces);
            }
            let store = BlobStore::open(Box::new(Memory::of(image)), read_only).unwrap();
            assert_eq!(store.tangled().len(), usize::from(is_tangled));
            let what = format!("written by {writer}, tangled {is_tangled}, read only {read_only}");
            assert_eq!(read(&store, 0)[0], want, "{what}");
            assert!(read(&store, 0)[PAGE_BYTES..] == [1; LEN][PAGE_BYTES..], "{what}");
        }
    }
}
