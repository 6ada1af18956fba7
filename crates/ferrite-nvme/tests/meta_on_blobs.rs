//! Metadata on a blob store: it survives reopening, and power failures of the device.
use std::sync::Arc;

use ferrite_blob::device::{Device, Logged, Memory, Recorder, lose_power};
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::{Backend, MetaStore, Options, RocksStore};
use ferrite_nvme::MetaBlobs;
use ferrite_testkit::rng::Rng;

const DEVICE_BYTES: u64 = 128 << 20;
/// The unit that a power loss may tear.
const SECTOR_BYTES: usize = 512;

fn formatted(device: &dyn Device) {
    let options = FormatOptions {
        store: [1; 16],
        pool: [2; 16],
        index: 0,
        checksums: false,
        shares_clusters: false,
    };
    BlobStore::format(device, &options).unwrap();
}

fn open(device: impl Device + 'static) -> RocksStore {
    let options = Options {
        create: true,
        write_buffer_bytes: 128 << 10,
        reserve_bytes: 0,
        ..Options::default()
    };
    let blobs = MetaBlobs::open(Box::new(device)).unwrap();
    RocksStore::open(Backend::Blobs(Arc::new(blobs)), &options).unwrap()
}

fn put(store: &RocksStore, number: u32, value: &[u8]) {
    let mut txn = store.begin();
    txn.put(&number.to_be_bytes(), value).unwrap();
    txn.put(&[&[0xff], &number.to_be_bytes()[..]].concat(), value).unwrap();
    txn.commit().unwrap();
}

#[test]
fn metadata_is_there_after_opening_again() {
    let device = Arc::new(Memory::new(DEVICE_BYTES));
    formatted(&*device);
    for round in 0..3_u8 {
        let store = open(Arc::clone(&device));
        for number in 0..3000_u32 {
            if round > 0 {
                assert_eq!(store.get(&number.to_be_bytes()).unwrap(), Some(vec![round - 1; 200]));
            }
            put(&store, number, &[round; 200]);
        }
        store.compact().unwrap();
        store.close().unwrap();
    }
}

#[test]
fn acknowledged_transactions_survive_a_loss_of_power() {
    let device = Arc::new(Recorder::new(Memory::new(DEVICE_BYTES).tearing()));
    formatted(&*device);
    device.log().take();
    let before = device.device().image();
    let store = open(Arc::clone(&device));
    for number in 0..600 {
        put(&store, number % 100, &vec![number as u8; 1000]);
        device.log().mark(u64::from(number));
    }
    store.compact().unwrap();
    store.close().unwrap();
    let log = device.log().take();
    let given = std::env::var("FERRITE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    let images = if std::env::var_os("FERRITE_SOAK").is_some() {
        1000
    } else {
        25
    };
    let mut rng = Rng::new(seed);
    for round in 0..images {
        let cut = rng.below(log.len() as u64 + 1) as usize;
        let mark = |entry: &Logged| match entry {
            Logged::Mark(number) => Some(*number as u32),
            _ => None,
        };
        let done = log[..cut].iter().rev().find_map(mark).map_or(0, |number| number + 1);
        let mut images = [before.clone()];
        lose_power(&mut images, &log, cut, SECTOR_BYTES, &mut || rng.below(2) == 0);
        let [image] = images;
        let store = open(Memory::of(image).tearing());
        let what = format!("seed {seed}, round {round}: {done} acknowledged, {cut} writes");
        for key in 0..100_u32 {
            let last = (0..done).rev().find(|number| number % 100 == key);
            let there = store.get(&key.to_be_bytes()).unwrap();
            let is_next = key == done % 100 && there == Some(vec![done as u8; 1000]);
            assert!(
                there == last.map(|number| vec![number as u8; 1000]) || is_next,
                "{what}: {key}"
            );
            let twin = store.get(&[&[0xff], &key.to_be_bytes()[..]].concat()).unwrap();
            assert_eq!(there, twin, "{what}: a torn transaction");
        }
        put(&store, 7, b"afterwards");
    }
}
