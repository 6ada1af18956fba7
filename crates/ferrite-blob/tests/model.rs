//! Random operations on a store, compared with their expected results, with reopenings in between.

use std::sync::Arc;

use crate::common::{Maker, Model, compare, is_full};
use ferrite_blob::device::Memory;
use ferrite_blob::{BlobStore, CLUSTER_BYTES, Error, FormatOptions, PAGE_BYTES};
use ferrite_testkit::seed_from_env;

const OPTIONS: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: false,
    shares_clusters: false,
};

/// A device full of arbitrary old content.
fn used_device(mib: u64) -> Memory {
    Memory::of(vec![0xee; (mib << 20) as usize])
}

fn run(seed: u64, steps: usize, tears: bool, checksums: bool, shares_clusters: bool) {
    let device = used_device(16);
    let device = Arc::new(if tears { device.tearing() } else { device });
    let options = FormatOptions {
        checksums,
        shares_clusters,
        ..OPTIONS
    };
    BlobStore::format(&*device, &options).unwrap();
    let open = || BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
    let mut store = open();
    let (mut maker, mut model) = (Maker::new(seed), Model::new());
    for number in 0..steps {
        let step = maker.next(&model, &store);
        let what = format!("FERRITE_SEED={seed}, step {number}: {step:?}");
        let what = &what[..what.len().min(300)];
        let result = step.run(&store);
        match is_full(&result) {
            true => {}
            false => {
                result.unwrap_or_else(|error| panic!("{what}: {error}"));
                step.apply(&mut model);
            }
        }
        if number % 5 == 0 {
            compare(&store, &model, what);
        }
        if number % 23 == 0 || (seed % 4 == 1 && number % 3 == 0) {
            // Closed cleanly, or just dropped.
            if number % 2 == 0 {
                store.clone().close().unwrap();
            }
            drop(store);
            store = open();
            compare(&store, &model, what);
        }
    }
}

#[test]
fn random_operations() {
    let seeds = match seed_from_env() {
        Some(seed) => seed..seed + 1,
        None => 0..24,
    };
    for seed in seeds {
        run(seed, 120, seed % 3 == 0, seed % 2 == 0, seed % 8 < 4);
    }
}

/// A blob in more pieces than its page names.
#[test]
fn many_pieces() {
    let byte_of = |cluster: u64| (cluster % 250) as u8 + 1;
    let store = BlobStore::memory(900);
    let ids = store.reserve(2).unwrap();
    let (one, other) = (store.create(ids[0], b"").unwrap(), store.create(ids[1], b"").unwrap());
    for cluster in 0..440 {
        for blob in [&one, &other] {
            blob.write_at(&[byte_of(cluster)], cluster * CLUSTER_BYTES, Some(b"m"))
                .unwrap();
        }
    }
    let check = |store: &BlobStore| {
        for id in &ids {
            let blob = store.blob(*id).unwrap();
            for cluster in 0..440 {
                let mut byte = [0; 2];
                blob.read_at(&mut byte, cluster * CLUSTER_BYTES).unwrap();
                assert_eq!(byte, [byte_of(cluster), 0], "{cluster}");
            }
        }
        assert!(store.check().unwrap().findings.is_empty());
    };
    check(&store);
    one.punch(3 * CLUSTER_BYTES, CLUSTER_BYTES, None).unwrap();
    one.write_at(&[4], 3 * CLUSTER_BYTES, None).unwrap();
    check(&store);
}

#[test]
fn a_full_store_refuses_and_keeps_what_it_has() {
    let store = BlobStore::memory(8);
    let free = store.space().free_clusters;
    let id = store.reserve(1).unwrap()[0];
    let blob = store.create(id, b"before").unwrap();
    blob.write_at(&[7; 100], 0, None).unwrap();
    let too_much = vec![1; ((free + 1) * CLUSTER_BYTES) as usize];
    assert_eq!(blob.write_at(&too_much, 50, Some(b"after")), Err(Error::NoSpace));
    assert_eq!(blob.reserve(0, (free + 1) * CLUSTER_BYTES, None), Err(Error::NoSpace));
    assert_eq!((blob.metadata(), blob.valid_len()), (b"before".to_vec(), 100));
    assert_eq!(store.space().free_clusters, free - 1);
    blob.reserve(0, free * CLUSTER_BYTES, None).unwrap();
    assert_eq!(store.space().free_clusters, 0);
    // Reserved space can be written.
    blob.write_at(&vec![3; (free * CLUSTER_BYTES) as usize], 0, None)
        .unwrap();
    store.delete(id).unwrap();
    assert_eq!(store.space().free_clusters, free);
    assert_eq!(blob.read_at(&mut [0], 0), Err(Error::NotFound));
    assert!(store.check().unwrap().findings.is_empty());
}

#[test]
fn small_blobs_share_clusters_and_longer_ones_have_whole_ones_behind_their_first() {
    const UNIT: u64 = 16 << 10;
    let device = Arc::new(used_device(16));
    let options = FormatOptions {
        shares_clusters: true,
        ..OPTIONS
    };
    BlobStore::format(&*device, &options).unwrap();
    let mut store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
    let empty = store.space();
    assert_eq!(
        (empty.unit_bytes, empty.free_bytes),
        (UNIT, empty.clusters * CLUSTER_BYTES)
    );
    let ids = store.reserve(40).unwrap();
    let data: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    for (number, &id) in ids.iter().enumerate() {
        let blob = store.create(id, b"").unwrap();
        blob.write_at(&data[number..], 0, None).unwrap();
        assert_eq!(blob.allocated_bytes(), 7 * UNIT);
    }
    let check = |store: &BlobStore, used: u64| {
        let space = store.space();
        assert_eq!(empty.free_bytes - space.free_bytes, used);
        for (number, &id) in ids.iter().enumerate().skip(1) {
            let mut found = vec![0; data.len()];
            store.blob(id).unwrap().read_at(&mut found, 0).unwrap();
            assert!(found[..data.len() - number] == data[number..], "{number}");
        }
        assert!(store.check().unwrap().findings.is_empty());
    };
    check(&store, 40 * 7 * UNIT);
    // 280 units are in five clusters, each of which has space for nine blobs.
    assert_eq!(empty.free_clusters - store.space().free_clusters, 5);
    // A growing blob continues beside others, and behind its first cluster in whole ones.
    let blob = store.blob(ids[0]).unwrap();
    for at in (100_000..CLUSTER_BYTES + 100_000).step_by(50_000) {
        blob.write_at(&[9; 50_000], at, None).unwrap();
    }
    assert_eq!(blob.allocated_bytes(), 2 * CLUSTER_BYTES);
    assert_eq!(blob.next_hole(0), 2 * CLUSTER_BYTES);
    check(&store, 39 * 7 * UNIT + 2 * CLUSTER_BYTES);
    // Holes: parts of the first cluster, and whole ones behind it.
    blob.punch(UNIT - 1, UNIT + 2, None).unwrap();
    assert_eq!((blob.next_hole(0), blob.next_data(UNIT)), (UNIT, Some(2 * UNIT)));
    blob.punch(CLUSTER_BYTES, UNIT, None).unwrap();
    assert_eq!(blob.next_hole(2 * UNIT), 2 * CLUSTER_BYTES);
    drop((blob, store));
    store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
    check(&store, 39 * 7 * UNIT + 2 * CLUSTER_BYTES - UNIT);
    let blob = store.blob(ids[0]).unwrap();
    let mut found = [1; 3];
    blob.read_at(&mut found, 2 * UNIT - 1).unwrap();
    assert_eq!(found[..2], [0, 0]);
    assert_ne!(found[2], 0);
    blob.truncate(UNIT + 1, None).unwrap();
    assert_eq!(blob.allocated_bytes(), UNIT);
    drop(blob);
    for &id in &ids {
        store.delete(id).unwrap();
    }
    assert_eq!(store.space(), empty);
}

/// The last space of a store is in parts, and is allocated in parts, also to long blobs.
#[test]
fn what_is_free_can_be_had() {
    let device = Arc::new(used_device(16));
    let options = FormatOptions {
        shares_clusters: true,
        ..OPTIONS
    };
    BlobStore::format(&*device, &options).unwrap();
    let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
    let mut ids = Vec::new();
    loop {
        let id = store.reserve(1).unwrap()[0];
        let blob = store.create(id, b"").unwrap();
        match blob.write_at(&[1; 48 << 10], 0, None) {
            Ok(()) => ids.push(id),
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    for id in ids.iter().step_by(2) {
        store.delete(*id).unwrap();
    }
    let space = store.space();
    assert_eq!(space.free_clusters, 0);
    assert!(ids.len() > 200 && space.blobs_max > 200, "slots in clusters");
    let long = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
    let data: Vec<u8> = (0..2 * CLUSTER_BYTES + 5).map(|at| (at % 249) as u8).collect();
    long.write_at(&data, 0, None).unwrap();
    assert_eq!(space.free_bytes - store.space().free_bytes, 3 * CLUSTER_BYTES);
    let mut found = vec![0; data.len()];
    long.read_at(&mut found, 0).unwrap();
    assert!(found == data);
    // In many pieces: zeroed, cut, made anew.
    long.punch(5000, 2 * CLUSTER_BYTES - 9000, None).unwrap();
    long.read_at(&mut found, 0).unwrap();
    let hole = 5000..(2 * CLUSTER_BYTES - 4000) as usize;
    assert!(found[hole.clone()].iter().all(|&byte| byte == 0));
    assert!(found[..5000] == data[..5000] && found[hole.end..] == data[hole.end..]);
    long.truncate(100, None).unwrap();
    long.write_at(&[7], 2 * CLUSTER_BYTES, None).unwrap();
    long.read_at(&mut found, 0).unwrap();
    assert!(found[100..2 << 20].iter().all(|&byte| byte == 0) && found[2 << 20] == 7);
    assert!(store.check().unwrap().findings.is_empty());
}

#[test]
fn numbers_are_never_given_twice() {
    let device = Arc::new(used_device(8));
    BlobStore::format(&*device, &OPTIONS).unwrap();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..5 {
        let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
        for _ in 0..3 {
            let ids = store.reserve(4).unwrap();
            for &id in &ids {
                assert!(seen.insert(id), "{id:?} was given before");
                assert_eq!(store.create(id, b"").unwrap().id(), id);
                assert_eq!(store.create(id, b"").map(drop), Err(Error::Exists));
            }
            for &id in &ids[1..] {
                store.delete(id).unwrap();
                assert_eq!(store.delete(id), Err(Error::NotFound));
                assert_eq!(store.create(id, b"").map(drop), Err(Error::NotFound));
            }
        }
    }
}

#[test]
fn devices_that_are_no_stores_are_refused_by_name() {
    let nothing = BlobStore::open(Box::new(Memory::new(8 << 20)), false)
        .unwrap_err()
        .to_string();
    assert!(nothing.contains("no data store"), "{nothing}");
    let small = BlobStore::format(&Memory::new(1 << 20), &OPTIONS)
        .unwrap_err()
        .to_string();
    assert!(small.contains("too few"), "{small}");
    let device = used_device(8);
    BlobStore::format(&device, &OPTIONS).unwrap();
    let identity = BlobStore::identify(&device).unwrap().unwrap();
    assert_eq!((identity.pool, identity.index, identity.is_clean), ([2; 16], 0, true));
    let mut image = device.image();
    image.truncate(7 << 20);
    let shrunk = BlobStore::open(Box::new(Memory::of(image)), false)
        .unwrap_err()
        .to_string();
    assert!(shrunk.contains("was made for"), "{shrunk}");
    // One superblock is enough, whichever it is.
    for page in [0, device.image().len() / PAGE_BYTES - 1] {
        let mut image = device.image();
        image[page * PAGE_BYTES..][..PAGE_BYTES].fill(0x55);
        assert!(BlobStore::open(Box::new(Memory::of(image)), false).is_ok());
    }
}

/// Threads that write other pages of the same blob, whole and in part, lose nothing of each other.
#[test]
fn writers_of_one_blob_do_not_disturb_each_other() {
    for (tears, checksums) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = if tears {
            used_device(8).tearing()
        } else {
            used_device(8)
        };
        let device = Arc::new(device);
        BlobStore::format(&*device, &FormatOptions { checksums, ..OPTIONS }).unwrap();
        let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
        let blob = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
        blob.write_at(&[0; 64 << 10], 0, None).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let blob = &blob;
                scope.spawn(move || {
                    for round in 0..200_u64 {
                        // 1,000 bytes of each page are this thread's.
                        let page = round % 16;
                        blob.write_at(&[thread as u8 + 1; 1000], page * 4096 + thread * 1000, None)
                            .unwrap();
                    }
                });
            }
        });
        let mut all = vec![0; 64 << 10];
        blob.read_at(&mut all, 0).unwrap();
        for page in all.chunks(4096) {
            for thread in 0..4 {
                assert!(
                    page[thread * 1000..][..1000]
                        .iter()
                        .all(|&byte| byte == thread as u8 + 1)
                );
            }
            assert!(page[4000..].iter().all(|&byte| byte == 0));
        }
    }
}
