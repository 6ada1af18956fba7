//! The proof that a close leaves: a page of metadata that is damaged, blank or old after it does not pass for the state
//! that was closed, and one that a crash has torn does.

use std::sync::Arc;

use ferrite_blob::device::{Device, Memory, Op};
use ferrite_blob::{BlobStore, Error, FormatOptions, PAGE_BYTES, Result};

const OPTIONS: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: false,
    shares_clusters: true,
};
const OLD: usize = 40_000;
const NEW: usize = 90_000;

fn open(image: &[u8], read_only: bool) -> BlobStore {
    BlobStore::open(Box::new(Memory::of(image.to_vec())), read_only).unwrap()
}

/// A store of blobs that grew in two steps: its device after a close, and after a crash.
fn filled(count: usize) -> (Vec<u8>, Vec<u8>) {
    let device = Arc::new(Memory::new(16 << 20));
    BlobStore::format(&*device, &OPTIONS).unwrap();
    let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
    for id in store.reserve(count).unwrap() {
        let blob = store.create(id, b"meta").unwrap();
        blob.write_at(&[1; OLD], 0, None).unwrap();
        blob.write_at(&[2; NEW - OLD], OLD as u64, None).unwrap();
    }
    let crashed = device.image();
    store.close().unwrap();
    (device.image(), crashed)
}

/// The pages of a slot, the newer one first.
fn pages(image: &[u8], slot: usize) -> [usize; 2] {
    let generation = |page: &usize| u64::from_le_bytes(image[page * PAGE_BYTES + 24..][..8].try_into().unwrap());
    let mut pages = [1 + 2 * slot, 2 + 2 * slot];
    pages.sort_by_key(|page| std::cmp::Reverse(generation(page)));
    pages.map(|page| page * PAGE_BYTES)
}

fn is_damaged<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Damaged(_)))
}

/// Ways in which a device can lose the newer page of a slot.
fn losses(image: &[u8], slot: usize) -> Vec<(&'static str, Vec<u8>)> {
    let [newer, _] = pages(image, slot);
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut image = image.to_vec();
        change(&mut image[newer..newer + PAGE_BYTES]);
        image
    };
    vec![
        ("a bit", with(&|page| page[3000] ^= 1)),
        ("a sector of zeros", with(&|page| page[..512].fill(0))),
        ("blank", with(&|page| page.fill(0))),
        // The page's earlier content: the device has lost the last write of this page.
        (
            "old",
            with(&|page| {
                page[24..32].copy_from_slice(&1_u64.to_le_bytes());
                page[40..44].fill(0);
                page[32..40].fill(0);
                page[8..12].fill(0);
                let crc = crc32c::crc32c(page);
                page[8..12].copy_from_slice(&crc.to_le_bytes());
            }),
        ),
    ]
}

#[test]
fn the_newer_page_of_a_slot_is_missed_after_a_close() {
    let (closed, _) = filled(3);
    for (what, image) in losses(&closed, 1) {
        // A read-only opening names it and changes nothing.
        let look = open(&image, true);
        let ids = look.ids().unwrap();
        assert_eq!(look.older(), [ids[1]], "{what}");
        assert!(
            look.damage().iter().any(|text| text.contains("slot 1")),
            "{what}: {:?}",
            look.damage()
        );
        assert!(is_damaged(look.blob(ids[1])), "{what}");
        assert!(look.blob(ids[0]).is_ok() && look.blob(ids[2]).is_ok());
        // Neither a crash nor a close makes it right.
        let device = Arc::new(Memory::of(image));
        let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
        assert_eq!(store.older(), [ids[1]], "{what}");
        assert!(
            is_damaged(open(&device.image(), false).blob(ids[1])),
            "{what}: after a crash"
        );
        store
            .blob(ids[0])
            .unwrap()
            .write_at(&[9; 100], NEW as u64, None)
            .unwrap();
        store.close().unwrap();
        let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
        assert!(is_damaged(store.blob(ids[1])), "{what}: after a close");
        assert!(store.mend().is_ok_and(|mended| mended.is_empty()) && !store.older().is_empty());
        // The content of the older state is there once a caller accepts it.
        store.accept_older(ids[1]).unwrap();
        let mut found = vec![7; NEW];
        store.blob(ids[1]).unwrap().read_at(&mut found, 0).unwrap();
        assert!(
            found[..OLD].iter().all(|&byte| byte == 1) && found[OLD..].iter().all(|&byte| byte == 0),
            "{what}"
        );
        store.close().unwrap();
        let store = open(&device.image(), false);
        assert!(
            store.damage().is_empty() && store.older().is_empty() && store.blob(ids[1]).is_ok(),
            "{what}"
        );
        assert_eq!(store.check().unwrap().findings, [""; 0], "{what}");
    }
}

#[test]
fn several_slots_that_are_damaged_are_told_apart() {
    let (closed, _) = filled(6);
    let mut image = closed;
    for (slot, which) in [(0, 0), (2, 1), (3, 0), (5, 1)] {
        let page = pages(&image, slot)[which];
        image[page + 2000] ^= 4;
    }
    let store = open(&image, false);
    let ids = store.ids().unwrap();
    assert_eq!(store.older(), [ids[0], ids[3]]);
    let said = store.damage().concat();
    assert!(
        said.contains("slot 2: the older") && said.contains("slot 5: the older"),
        "{said}"
    );
    assert!(store.blob(ids[2]).is_ok() && store.blob(ids[5]).is_ok());
    assert_eq!(store.mend().unwrap().len(), 2);
}

#[test]
fn writes_that_a_device_has_lost_are_told_if_nothing_names_them() {
    let (closed, _) = filled(4);
    let mut image = closed;
    for slot in [0, 2] {
        let page = pages(&image, slot)[0];
        image[page..page + PAGE_BYTES].fill(0);
    }
    let device = Arc::new(Memory::of(image));
    for round in 0..3 {
        let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
        assert!(store.damage().concat().contains("nothing tells which"), "round {round}");
        if round == 1 {
            // Not closed: the damage is remembered all the same.
            continue;
        }
        if round == 2 {
            assert_eq!(store.mend().unwrap().len(), 1);
        }
        store.close().unwrap();
    }
    assert!(open(&device.image(), true).damage().is_empty());
}

#[test]
fn a_page_that_a_crash_has_torn_is_no_damage_then_or_later() {
    let (_, crashed) = filled(3);
    let mut image = crashed;
    let [newer, _] = pages(&image, 1);
    image[newer + 512..newer + PAGE_BYTES].fill(0x77);
    let device = Arc::new(Memory::of(image));
    for round in 0..2 {
        let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
        assert!(store.damage().is_empty() && store.older().is_empty(), "round {round}");
        assert!(store.blob(store.ids().unwrap()[1]).is_ok());
        store.close().unwrap();
    }
}

#[test]
fn a_store_without_a_digest_opens_as_it_did() {
    let (closed, _) = filled(2);
    let mut image = closed;
    let last = image.len() - PAGE_BYTES;
    for at in [0, last] {
        let page = &mut image[at..at + PAGE_BYTES];
        page[51..56].fill(0);
        page[8..12].fill(0);
        let crc = crc32c::crc32c(page);
        page[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    let newer = pages(&image, 0)[0];
    image[newer + 3000] ^= 1;
    let store = open(&image, false);
    assert!(store.damage().is_empty() && store.blob(store.ids().unwrap()[0]).is_ok());
}

#[test]
fn damage_of_either_superblock_is_named_and_mended_by_an_opening() {
    let (closed, _) = filled(1);
    for (name, at) in [("first", 0), ("last", closed.len() - PAGE_BYTES)] {
        let mut image = closed.clone();
        image[at + 1000] ^= 1;
        let said = open(&image, true).damage();
        assert!(said.len() == 1 && said[0].contains(name), "{said:?}");
        let device = Arc::new(Memory::of(image));
        BlobStore::open(Box::new(Arc::clone(&device)), false)
            .unwrap()
            .close()
            .unwrap();
        assert!(open(&device.image(), true).damage().is_empty(), "{name}");
    }
}

/// An entry of the ring says that those before it are in place. If it is damaged after a close, they must not overwrite
/// later content.
#[test]
fn a_damaged_ring_takes_nothing_back_after_a_close() {
    let device = Arc::new(Memory::new(16 << 20).tearing());
    BlobStore::format(&*device, &OPTIONS).unwrap();
    let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
    let id = store.reserve(1).unwrap()[0];
    let blob = store.create(id, b"").unwrap();
    blob.write_at(&[1; PAGE_BYTES], 0, None).unwrap();
    for byte in 2..10 {
        blob.write_at(&[byte; PAGE_BYTES], 0, None).unwrap();
    }
    drop(blob);
    store.close().unwrap();
    let mut image = device.image();
    let entries: Vec<usize> = (0..image.len())
        .step_by(PAGE_BYTES)
        .filter(|&at| image[at..at + 4] == *b"BlRg")
        .collect();
    let number = |at: &usize| u64::from_le_bytes(image[at + 16..][..8].try_into().unwrap());
    let last = entries.iter().copied().max_by_key(number).unwrap();
    assert!(entries.len() > 8, "the ring was used");
    image[last + 100] ^= 1;
    let store = BlobStore::open(Box::new(Memory::of(image).tearing()), false).unwrap();
    let mut found = vec![0; PAGE_BYTES];
    store.blob(id).unwrap().read_at(&mut found, 0).unwrap();
    assert!(found == [9; PAGE_BYTES], "{}", found[0]);
}

/// The file behind a device is cut off, and gets its length back.
#[test]
fn a_device_that_was_cut_off_while_in_use_is_not_closed_as_sound() {
    let device = Arc::new(Memory::new(16 << 20));
    BlobStore::format(&*device, &OPTIONS).unwrap();
    let store = BlobStore::open(Box::new(Arc::clone(&device)), false).unwrap();
    let id = store.reserve(1).unwrap()[0];
    store.create(id, b"").unwrap().write_at(&[1; NEW], 0, None).unwrap();
    let end = device.len_bytes() - (4 << 20);
    device
        .run(&mut [Op::Write {
            offset: end,
            from: &vec![0; 4 << 20],
            durable: true,
        }])
        .unwrap();
    let said = store.close();
    assert!(
        matches!(&said, Err(Error::Damaged(text)) if text.contains("truncated")),
        "{said:?}"
    );
    let look = open(&device.image(), true);
    assert!(!look.damage().is_empty());
    assert!(!BlobStore::identify(&*device).unwrap().unwrap().is_clean);
}
