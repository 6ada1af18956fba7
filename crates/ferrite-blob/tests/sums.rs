//! Checksums of data: bytes that a device changes, loses or puts elsewhere are an error of the read, and of that page
//! only.

use std::ops::Range;
use std::sync::Arc;

use ferrite_blob::device::{Fault, Faulty, Memory, Target};
use ferrite_blob::{Blob, BlobStore, CLUSTER_BYTES, DataDamage, Error, FormatOptions, PAGE_BYTES};
use ferrite_testkit::rng::pattern;

const OPTIONS: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: true,
    shares_clusters: false,
};
const PAGE: u64 = PAGE_BYTES as u64;

/// Bytes of pages by number, none beside another.
fn pages(numbers: &[u64]) -> Vec<Range<u64>> {
    numbers.iter().map(|page| page * PAGE..(page + 1) * PAGE).collect()
}

fn device() -> Arc<Faulty<Memory>> {
    let device = Faulty::new(Memory::of(vec![0xee; 16 << 20]));
    BlobStore::format(&device, &OPTIONS).unwrap();
    Arc::new(device)
}

fn open(device: &Arc<Faulty<Memory>>) -> BlobStore {
    BlobStore::open(Box::new(Arc::clone(device)), false).unwrap()
}

fn blob(store: &BlobStore, content: &[u8]) -> Blob {
    let blob = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
    blob.write_at(content, 0, None).unwrap();
    blob
}

/// Where these bytes lie in an image.
fn place_of(image: &[u8], content: &[u8]) -> usize {
    let pages = image.chunks(PAGE_BYTES).position(|page| page == content);
    pages.expect("it is in the image") * PAGE_BYTES
}

fn is_damaged(result: ferrite_blob::Result<()>) -> bool {
    matches!(&result, Err(error @ Error::Damaged(_)) if error.to_string().contains("wrong checksum"))
}

/// An image with a change, opened.
fn changed(image: &[u8], change: impl FnOnce(&mut [u8])) -> BlobStore {
    let mut image = image.to_vec();
    change(&mut image);
    BlobStore::open(Box::new(Memory::of(image)), false).unwrap()
}

#[test]
fn a_page_that_changed_is_an_error_until_it_is_written() {
    let device = device();
    let store = open(&device);
    let content = pattern(5, 4 * PAGE_BYTES);
    let id = blob(&store, &content).id();
    store.close().unwrap();
    let image = device.device().image();
    let at = place_of(&image, &content[PAGE_BYTES..2 * PAGE_BYTES]);
    for byte in [0, 1, 100, PAGE_BYTES - 1] {
        let store = changed(&image, |image| image[at + byte] ^= 1);
        let blob = store.blob(id).unwrap();
        let (mut all, mut page) = (vec![0; 4 * PAGE_BYTES], vec![0; PAGE_BYTES]);
        assert!(is_damaged(blob.read_at(&mut all, 0)));
        assert!(is_damaged(blob.read_at(&mut all[..1], PAGE)));
        assert_eq!(blob.damaged(0, CLUSTER_BYTES).unwrap().wrong, pages(&[1]));
        // Its neighbours are unchanged.
        blob.read_at(&mut page, 0).unwrap();
        blob.read_at(&mut all[2 * PAGE_BYTES..], 2 * PAGE).unwrap();
        assert!(page == content[..PAGE_BYTES] && all[2 * PAGE_BYTES..] == content[2 * PAGE_BYTES..]);
        // The rest of a page that is written in part cannot be trusted.
        assert!(is_damaged(blob.write_at(b"x", PAGE + 7, None)));
        assert!(store.is_running());
        blob.write_at(&content[PAGE_BYTES..2 * PAGE_BYTES], PAGE, None).unwrap();
        blob.read_at(&mut all, 0).unwrap();
        assert!(all == content && blob.damaged(0, CLUSTER_BYTES).unwrap() == DataDamage::default());
        store.delete(id).unwrap();
    }
}

#[test]
fn what_is_accepted_is_read_as_it_is() {
    let device = device();
    let store = open(&device);
    let content = pattern(5, 3 * PAGE_BYTES);
    let id = blob(&store, &content).id();
    store.close().unwrap();
    let mut image = device.device().image();
    let at = place_of(&image, &content[PAGE_BYTES..2 * PAGE_BYTES]);
    image[at] ^= 1;
    let memory = Arc::new(Memory::of(image));
    for round in 0..2 {
        let store = BlobStore::open(Box::new(Arc::clone(&memory)), false).unwrap();
        let blob = store.blob(id).unwrap();
        if round == 0 {
            let damaged = blob.damaged(0, CLUSTER_BYTES).unwrap().wrong;
            blob.accept(damaged[0].clone()).unwrap();
        }
        let mut all = vec![0; 3 * PAGE_BYTES];
        blob.read_at(&mut all, 0).unwrap();
        let wrong: Vec<usize> = (0..all.len()).filter(|&at| all[at] != content[at]).collect();
        assert_eq!(wrong, [PAGE_BYTES]);
    }
}

/// At once, and after closing: the older content was right once, and no longer is.
#[test]
fn writes_that_are_lost_or_go_elsewhere_are_found() {
    // To a page of the same blob, and to places that no blob has.
    for by in [2 * PAGE, 3 << 20, 8 << 20] {
        for closes in [false, true] {
            let device = device();
            let store = open(&device);
            let content = pattern(5, 4 * PAGE_BYTES);
            let id = blob(&store, &content).id();
            let image = device.device().image();
            let at = place_of(&image, &content[PAGE_BYTES..2 * PAGE_BYTES]) as u64;
            let target = Target {
                reads: false,
                writes: true,
                range: at..at + PAGE,
                after: 0,
                count: 1,
            };
            device.plan(Fault::Misdirected(by), target);
            let what = format!("by {by}, closes {closes}");
            store
                .blob(id)
                .unwrap()
                .write_at(&pattern(6, PAGE_BYTES), PAGE, None)
                .unwrap();
            device.mend();
            let store = match closes {
                false => store,
                true => {
                    store.close().unwrap();
                    open(&device)
                }
            };
            let blob = store.blob(id).unwrap();
            assert!(is_damaged(blob.read_at(&mut [0; 10], PAGE)), "{what}");
            let damaged = blob.damaged(0, CLUSTER_BYTES).unwrap().wrong;
            match by == 2 * PAGE {
                true => assert_eq!(damaged, pages(&[1, 3]), "{what}"),
                false => assert_eq!(damaged, pages(&[1]), "{what}"),
            }
        }
    }
}

/// Programs that do not know checksums would not maintain them, so the version differs; it does not where there are
/// none.
#[test]
fn a_store_says_whether_it_has_them() {
    let device = device();
    assert!(BlobStore::identify(&device).unwrap().unwrap().has_checksums);
    assert_eq!(device.device().image()[12], 2);
    let plain = Memory::new(16 << 20);
    let options = FormatOptions {
        checksums: false,
        shares_clusters: false,
        ..OPTIONS
    };
    BlobStore::format(&plain, &options).unwrap();
    assert_eq!(plain.image()[12], 1);
    let store = BlobStore::open(Box::new(plain), false).unwrap();
    assert!(!store.has_checksums());
    let blob = blob(&store, b"abc");
    assert!(blob.damaged(0, CLUSTER_BYTES).unwrap() == DataDamage::default());
}

/// A page of unknown content may be written, even if it is unreadable; and content that a device may still lose does
/// not count as present.
#[test]
fn a_write_that_failed_may_be_made_again() {
    for fault in [Fault::Error, Fault::Short, Fault::Late] {
        let device = device();
        let store = open(&device);
        let content = pattern(5, 4 * PAGE_BYTES);
        let id = blob(&store, &content).id();
        let at = place_of(&device.device().image(), &content[PAGE_BYTES..2 * PAGE_BYTES]) as u64;
        let about = |reads, writes, count| Target {
            reads,
            writes,
            range: at..at + PAGE,
            after: 0,
            count,
        };
        let blob = store.blob(id).unwrap();
        device.plan(fault, about(false, true, 1));
        assert!(blob.write_at(&pattern(6, PAGE_BYTES), PAGE, None).is_err());
        let mut page = vec![0; PAGE_BYTES];
        // Half a page is neither the one nor the other.
        let read = blob.read_at(&mut page, PAGE);
        assert_eq!(is_damaged(read), fault == Fault::Short, "{fault:?}");
        // From now on it is unreadable.
        device.plan(Fault::Error, about(true, false, u64::MAX));
        assert_eq!(
            blob.damaged(0, CLUSTER_BYTES).unwrap().unreadable,
            pages(&[1]),
            "{fault:?}"
        );
        blob.write_at(&pattern(7, PAGE_BYTES), PAGE, None).unwrap();
        device.mend();
        blob.read_at(&mut page, PAGE).unwrap();
        assert!(page == pattern(7, PAGE_BYTES), "{fault:?}");
        drop((blob, store));
        let store = open(&device);
        store.blob(id).unwrap().read_at(&mut page, PAGE).unwrap();
        assert!(page == pattern(7, PAGE_BYTES), "{fault:?}");
    }
}
