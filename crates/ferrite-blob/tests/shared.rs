//! Blobs that share units: what one of them changes is its own, space is taken once and comes back with the last, and
//! damage does not pass for sharing. `random_operations` and the images of lost power share blobs, too.

use std::sync::Arc;

use crate::common::image::{piece, set_pieces};
use crate::common::sparse::Sparse;
use ferrite_blob::device::{Device, Fault, Faulty, Memory, Target};
use ferrite_blob::{Blob, BlobStore, CLUSTER_BYTES, Error, FormatOptions, PAGE_BYTES};
use ferrite_testkit::rng::{Rng, pattern};

const OPTIONS: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: true,
    shares_clusters: true,
};
const UNIT: u64 = 16 << 10;

fn open<D: Device + 'static>(device: &Arc<D>) -> BlobStore {
    BlobStore::open(Box::new(Arc::clone(device)), false).unwrap()
}

fn device(mib: u64) -> Arc<Memory> {
    let device = Arc::new(Memory::of(vec![0xee; (mib << 20) as usize]));
    BlobStore::format(&*device, &OPTIONS).unwrap();
    device
}

fn make(store: &BlobStore, data: &[u8]) -> Blob {
    let blob = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
    blob.write_at(data, 0, None).unwrap();
    blob
}

/// A blob that shares all that another has.
fn copy_of(store: &BlobStore, from: &Blob) -> Blob {
    let blob = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
    assert!(blob.share_from(from, u64::MAX).unwrap());
    blob
}

fn content(blob: &Blob) -> Vec<u8> {
    let mut found = vec![0xaa; blob.valid_len() as usize];
    blob.read_at(&mut found, 0).unwrap();
    found
}

/// No `assert_eq` on megabytes.
fn holds(blob: &Blob, expected: &[u8], what: &str) {
    assert!(content(blob) == expected, "{what}: another content");
}

fn is_sound(store: &BlobStore, what: &str) {
    let report = store.check().unwrap();
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
}

#[test]
fn a_copy_takes_space_for_what_changes() {
    let device = device(64);
    let mut store = open(&device);
    let empty = store.space().free_bytes;
    let mut data = pattern(1, 20 << 20);
    let first = make(&store, &data);
    let full = store.space().free_bytes;
    let second = copy_of(&store, &first);
    assert_eq!(store.space().free_bytes, full, "nothing moves");
    assert_eq!(second.allocated_bytes(), first.allocated_bytes());
    holds(&second, &data, "the copy");
    // A page in the middle, in either of them: a unit each; the same place again, in place.
    second.write_at(&[7; PAGE_BYTES], 5 << 20, None).unwrap();
    assert_eq!(store.space().free_bytes, full - UNIT);
    second.write_at(&[8; PAGE_BYTES], 5 << 20, None).unwrap();
    first.write_at(&[9; 10], (9 << 20) + 5, Some(b"metadata")).unwrap();
    assert_eq!(store.space().free_bytes, full - 2 * UNIT);
    let mut changed = data.clone();
    changed[5 << 20..][..PAGE_BYTES].fill(8);
    data[(9 << 20) + 5..][..10].fill(9);
    // A third one, from the changed one; and a part of that.
    let third = copy_of(&store, &second);
    let part = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
    assert!(part.share_from(&third, (3 << 20) + 100).unwrap());
    assert_eq!(store.space().free_bytes, full - 2 * UNIT);
    let ids = [&first, &second, &third, &part].map(Blob::id);
    drop((first, second, third, part));
    for closes in [false, true] {
        if closes {
            store.clone().close().unwrap();
        }
        drop(store);
        store = open(&device);
        is_sound(&store, "after an opening");
        assert_eq!(store.space().free_bytes, full - 2 * UNIT, "closed {closes}");
        let contents = [&data[..], &changed, &changed, &changed[..(3 << 20) + 100]];
        for (id, expected) in ids.into_iter().zip(contents) {
            holds(&store.blob(id).unwrap(), expected, "after an opening");
        }
    }
    // Growing, cutting and zeroing change what is shared for nobody else.
    let part = store.blob(ids[3]).unwrap();
    part.write_at(&[1; 10], (3 << 20) + 1000, None).unwrap();
    let third = store.blob(ids[2]).unwrap();
    third.punch(100, 2 << 20, None).unwrap();
    third.zero((4 << 20) + 1, 3 << 20, None).unwrap();
    third.truncate((10 << 20) + 1, None).unwrap();
    let mut zeroed = changed[..(10 << 20) + 1].to_vec();
    zeroed[100..(2 << 20) + 100].fill(0);
    zeroed[(4 << 20) + 1..(7 << 20) + 1].fill(0);
    let grown = [&changed[..(3 << 20) + 100], &[0; 900], &[1; 10]].concat();
    for (id, expected) in ids.into_iter().zip([&data[..], &changed, &zeroed, &grown]) {
        holds(&store.blob(id).unwrap(), expected, "each has its own");
    }
    is_sound(&store, "changed");
    // The last one to go gives the space back.
    for id in ids {
        store.delete(id).unwrap();
        is_sound(&store, "deleted");
    }
    assert_eq!(store.space().free_bytes, empty);
}

#[test]
fn a_full_store_takes_changes_of_what_is_shared_as_far_as_it_has_space() {
    let store = open(&device(16));
    let data = pattern(2, 2 << 20);
    let first = make(&store, &data);
    let second = copy_of(&store, &first);
    // Reserved: writes need no further space.
    second.reserve(0, 1 << 20, None).unwrap();
    let filler = make(&store, b"");
    let mut at = 0;
    while filler.write_at(&[7; UNIT as usize], at, None) != Err(Error::NoSpace) {
        at += UNIT;
    }
    second.write_at(&[5; 1 << 20], 0, None).unwrap();
    let expected = [&[5; 1 << 20][..], &data[1 << 20..]].concat();
    let offset = (1 << 20) + 5;
    let refusals = [
        second.write_at(&[6; 100], offset, Some(b"new")),
        second.write_at(&vec![6; 1 << 20], offset, None),
        second.reserve(offset, 100, Some(b"new")),
        second.zero(offset, 100, Some(b"new")),
        second.punch(offset, 100, Some(b"new")),
    ];
    assert!(
        refusals.iter().all(|refused| *refused == Err(Error::NoSpace)),
        "{refusals:?}"
    );
    assert_eq!(second.metadata(), b"");
    holds(&second, &expected, "refused");
    holds(&first, &data, "refused");
    is_sound(&store, "full");
    // Cutting needs none, nor does a change of bytes that the other has no more.
    second.truncate(offset, None).unwrap();
    first.truncate(0, None).unwrap();
    second.write_at(&[6; 10], 1 << 20, None).unwrap();
    holds(
        &second,
        &[&expected[..1 << 20], &[6; 10][..]].concat()[..],
        "after that",
    );
    is_sound(&store, "after that");
}

/// Whichever write fails of those that share units or end the sharing: old or new, for this opening and the next.
#[test]
fn sharing_is_old_or_new_whichever_write_fails() {
    let data = pattern(3, 3 << 20);
    let base = device(16);
    let store = open(&base);
    let (first, second) = (make(&store, &data), make(&store, b""));
    let ids = [first.id(), second.id()];
    store.close().unwrap();
    drop((first, second));
    let unshared = base.image();
    let store = open(&base);
    assert!(
        store
            .blob(ids[1])
            .unwrap()
            .share_from(&store.blob(ids[0]).unwrap(), u64::MAX)
            .unwrap()
    );
    store.close().unwrap();
    let shared = base.image();
    let store = open(&base);
    let mut changed = data.clone();
    changed[1 << 20..][..100].fill(4);
    // A small write of bytes that are shared in a part, where one unit is the blob's own.
    let (edge, own) = ((1 << 20) + UNIT, vec![6; UNIT as usize]);
    store.blob(ids[1]).unwrap().write_at(&own, edge, None).unwrap();
    store.close().unwrap();
    let mixed = base.image();
    let mut before = data.clone();
    before[edge as usize..][..UNIT as usize].fill(6);
    let mut across = before.clone();
    across[edge as usize - 2000..][..PAGE_BYTES].fill(4);
    for change in 0..3 {
        for fault in [Fault::Error, Fault::Short, Fault::Late] {
            for after in 0.. {
                let what = format!("change {change}, {fault:?} after {after} writes");
                let image = [&unshared, &shared, &mixed][change];
                let device = Arc::new(Faulty::new(Memory::of(image.clone())));
                let store = open(&device);
                let [first, second] = ids.map(|id| store.blob(id).unwrap());
                device.plan(
                    fault,
                    Target {
                        count: 1,
                        ..Target::writes_from(after)
                    },
                );
                let done = match change {
                    1 => second.write_at(&[4; 100], 1 << 20, Some(b"new")),
                    2 => second.write_at(&[4; PAGE_BYTES], edge - 2000, Some(b"new")),
                    _ => second.share_from(&first, u64::MAX).map(|shared| assert!(shared)),
                };
                device.mend();
                holds(&first, &data, &what);
                let (old, new) = match change {
                    1 => (&data[..], &changed[..]),
                    2 => (&before[..], &across[..]),
                    _ => (&[][..], &data[..]),
                };
                if done.is_ok() || store.is_running() {
                    holds(&second, if done.is_ok() { new } else { old }, &what);
                }
                if store.is_running() {
                    is_sound(&store, &what);
                }
                drop((first, second, store));
                let store = open(&device);
                is_sound(&store, &what);
                holds(&store.blob(ids[0]).unwrap(), &data, &what);
                let found = content(&store.blob(ids[1]).unwrap());
                assert!(found == new || done.is_err() && found == old, "{what}");
                if done.is_ok() {
                    assert!(after >= 2, "{what}");
                    break;
                }
            }
        }
    }
}

/// A long blob that changes everywhere, and a store that has no page left for more pieces.
#[test]
fn changes_everywhere_end_in_no_lack_of_pieces() {
    const MIB: u64 = 700;
    let device = Arc::new(Sparse::new(MIB << 20));
    BlobStore::format(&*device, &OPTIONS).unwrap();
    // A store with a single overflow page (docs/format-blob.md).
    for page in [0, (MIB << 20) / PAGE_BYTES as u64 - 1] {
        let mut pages = device.pages.lock();
        let superblock = pages.get_mut(&page).unwrap();
        superblock[68..72].copy_from_slice(&1_u32.to_le_bytes());
        superblock[8..12].fill(0);
        let crc = crc32c::crc32c(superblock);
        superblock[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    let store = open(&device);
    let units = (200 << 20) / UNIT;
    let first = make(&store, b"");
    first.reserve(0, 200 << 20, None).unwrap();
    for unit in 0..units {
        first.write_at(&[unit as u8; 100], unit * UNIT, None).unwrap();
    }
    let second = copy_of(&store, &first);
    let free = store.space().free_bytes;
    // All over it: many more pieces than fit.
    let changed: std::collections::BTreeSet<u64> = (0..1000).map(|number| number * 4241 % units).collect();
    let mut most = 0;
    for (number, unit) in (0..1000).map(|number| number * 4241 % units).enumerate() {
        second
            .write_at(&[!(unit as u8); 50], unit * UNIT + 10, Some(b"m"))
            .unwrap();
        let taken = free - store.space().free_bytes;
        most = most.max(taken);
        assert!(taken <= 200 << 20, "{taken} bytes after {number}");
    }
    // A change copies 16 KiB; where there were too many pieces, all around it was copied.
    assert!(most > 1000 * (64 << 10), "{most} bytes");
    for unit in 0..units {
        let mut found = [0; 100];
        second.read_at(&mut found, unit * UNIT).unwrap();
        let mut expected = [unit as u8; 100];
        if changed.contains(&unit) {
            expected[10..60].fill(!(unit as u8));
        }
        assert_eq!(found, expected, "unit {unit}");
        first.read_at(&mut found, unit * UNIT).unwrap();
        assert_eq!(found, [unit as u8; 100], "unit {unit} of the other");
    }
    is_sound(&store, "afterwards");
}

#[test]
fn what_cannot_be_shared_is_said_and_changes_nothing() {
    let (store, other) = (open(&device(16)), open(&device(16)));
    let data = pattern(4, 100_000);
    let (first, full) = (make(&store, &data), make(&store, b"x"));
    let free = store.space().free_bytes;
    assert!(!full.share_from(&first, u64::MAX).unwrap(), "it is not empty");
    assert!(!first.share_from(&first, u64::MAX).unwrap());
    let empty = make(&store, b"");
    assert!(
        !empty.share_from(&make(&other, &data), u64::MAX).unwrap(),
        "of another store"
    );
    assert_eq!(store.space().free_bytes, free);
    // Nothing, a hole, and an end in it.
    assert!(empty.share_from(&make(&store, b""), u64::MAX).unwrap());
    assert_eq!(empty.valid_len(), 0);
    let sparse = make(&store, b"begin");
    sparse.write_at(b"end", 5 << 20, None).unwrap();
    assert!(empty.share_from(&sparse, 3 << 20).unwrap());
    assert_eq!((empty.valid_len(), empty.allocated_bytes()), (3 << 20, UNIT));
    empty.write_at(b"E", 2 << 20, None).unwrap();
    let mut found = [9; 5];
    sparse.read_at(&mut found, 2 << 20).unwrap();
    assert_eq!(found, [0; 5]);
    // A deleted one.
    let gone = make(&store, b"gone");
    store.delete(gone.id()).unwrap();
    assert_eq!(make(&store, b"").share_from(&gone, u64::MAX), Err(Error::NotFound));
    is_sound(&store, "afterwards");
}

/// Only blobs of one group share: another one that names their units is damaged, whichever was read first.
#[test]
fn damage_does_not_pass_for_sharing() {
    for victim in [0, 2] {
        let device = device(16);
        let store = open(&device);
        let blobs: Vec<Blob> = (1..4).map(|byte| make(&store, &[byte; 90_000])).collect();
        let fourth = copy_of(&store, &blobs[1]);
        let ids = [blobs[victim].id(), blobs[1].id(), fourth.id()];
        drop((blobs, fourth));
        store.close().unwrap();
        let mut image = device.image();
        let named = piece(&image, 1);
        set_pieces(&mut image, victim, &[named]);
        let device = Arc::new(Memory::of(image));
        let store = open(&device);
        // A sound one can still be copied, or that is refused.
        let copy = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
        let sound = store
            .blob(*ids.iter().find(|id| !store.tangled().contains(id)).unwrap())
            .unwrap();
        if copy.share_from(&sound, u64::MAX).unwrap() {
            holds(&copy, &content(&sound), "a copy beside damage");
        }
        store.delete(copy.id()).unwrap();
        // The one that was read later is named; repairs give each that is named a copy.
        let tangled = store.tangled();
        assert!(!tangled.is_empty() && tangled.len() < 3, "{victim}: {tangled:?}");
        for id in tangled {
            assert!(store.blob(id).unwrap().write_at(&[9; 10], 0, None).is_err());
            store.untangle(id).unwrap();
        }
        assert!(store.tangled().is_empty());
        store.close().unwrap();
        let store = open(&device);
        is_sound(&store, "untangled");
        store.blob(ids[0]).unwrap().write_at(&[9; 90_000], 0, None).unwrap();
        for id in &ids[1..] {
            holds(&store.blob(*id).unwrap(), &[2; 90_000], "the others keep theirs");
        }
    }
}

/// A blob is written in place while it is copied again and again: each copy stays as it was made.
#[test]
fn copies_of_a_busy_blob_stay_as_they_are() {
    let store = open(&device(32));
    let base = make(&store, &pattern(5, 1 << 20));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (base, done) = (&base, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let bytes = vec![rng.below(256) as u8; PAGE_BYTES * (1 + rng.below(8) as usize)];
                    let page = rng.below(240);
                    base.write_at(&bytes, page * PAGE_BYTES as u64, None).unwrap();
                }
            });
        }
        let copiers: Vec<_> = (0..2_u64)
            .map(|thread| {
                let (store, base) = (&store, &base);
                scope.spawn(move || {
                    let mut rng = Rng::new(100 + thread);
                    for round in 0..60 {
                        let copy = copy_of(store, base);
                        let mut expected = content(&copy);
                        for _ in 0..5 {
                            let (at, len) = (rng.below(1 << 20) as usize, 1 + rng.below(20_000) as usize);
                            let len = len.min((1 << 20) - at);
                            let bytes = vec![rng.below(256) as u8; len];
                            copy.write_at(&bytes, at as u64, None).unwrap();
                            expected[at..at + len].copy_from_slice(&bytes);
                        }
                        holds(&copy, &expected, &format!("thread {thread}, round {round}"));
                        store.delete(copy.id()).unwrap();
                    }
                })
            })
            .collect();
        copiers.into_iter().for_each(|copier| copier.join().unwrap());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    is_sound(&store, "afterwards");
    assert_eq!(base.allocated_bytes(), CLUSTER_BYTES);
}
