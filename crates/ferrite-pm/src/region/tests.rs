//! Private views of a device, and accesses that are refused.

use std::fs::{self, File};

use super::*;
use crate::medium::Detected;

const CHUNK: u64 = 2 << 20;

/// A file in DRAM, of several chunks of words that all differ except for a chunk of zeros, and a region that treats
/// it as device DAX.
struct Device {
    path: PathBuf,
    content: Vec<u8>,
}

impl Device {
    fn new(name: &str, chunks: u64) -> Device {
        let path = PathBuf::from(format!("/dev/shm/ferrite-pm-{name}-{}", std::process::id()));
        let word = |index: u64| if index * 8 / CHUNK == 1 { 0 } else { index | 1 << 40 };
        let content: Vec<u8> = (0..chunks * CHUNK / 8)
            .flat_map(|index| word(index).to_le_bytes())
            .collect();
        fs::write(&path, &content).unwrap();
        Device { path, content }
    }

    fn look(&self) -> Region {
        let found = Detected {
            medium: Medium::Dax,
            len_bytes: self.content.len() as u64,
            page_bytes: CHUNK,
            is_device: true,
        };
        let file = File::open(&self.path).unwrap();
        let access = Access::ReadOnlyPrivate;
        Region::new(
            MappedMemory::of_file(&self.path, file, &found, access).unwrap(),
            Some(&self.path),
            access,
        )
    }

    fn word(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.content[offset as usize..][..8].try_into().unwrap())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn copied(region: &Region) -> usize {
    region.faults.copies().unwrap().count()
}

#[test]
fn inspecting_a_device_copies_what_is_stored_to_and_nothing_else() {
    let device = Device::new("look", 4);
    let (region, other) = (device.look(), device.look());
    assert!((region.mapping.base() as u64).is_multiple_of(CHUNK));
    let mut found = vec![0; device.content.len()];
    region.read(0, &mut found);
    assert!(found == device.content);
    assert_eq!(copied(&region), 0, "looking copies nothing");

    for offset in [CHUNK - 8, CHUNK + 4096, 3 * CHUNK] {
        region.store(offset, 7);
        found[offset as usize..][..8].copy_from_slice(&7u64.to_le_bytes());
    }
    region.write_back(CHUNK - 8, 8);
    region.stream(3 * CHUNK + 4096, &[9; 5000]);
    found[3 * CHUNK as usize + 4096..][..5000].fill(9);
    region.fence().unwrap();
    assert_eq!(copied(&region), 3);
    let mut now = vec![0; found.len()];
    region.read(0, &mut now);
    assert!(now == found, "all else is as it was");
    assert_eq!(other.load(3 * CHUNK), device.word(3 * CHUNK), "each view is its own");
    drop(region);
    assert!(fs::read(&device.path).unwrap() == device.content);
}

#[test]
#[should_panic(expected = "access to")]
fn more_words_than_there_are_addresses_are_refused() {
    let region = Region::anonymous(4096).unwrap();
    let _ = region.words(0, usize::MAX / 8 + 2);
}

#[test]
fn stores_of_many_threads_into_a_view_all_count() {
    const THREADS: u64 = 8;
    let device = Device::new("threads", 4);
    for _ in 0..20 {
        let region = device.look();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (region, device) = (&region, &device);
                scope.spawn(move || {
                    for offset in (0..4 * CHUNK).step_by(64 << 10) {
                        region.store(offset + thread * 8, thread);
                        let untouched = offset + 4096 + thread * 8;
                        assert_eq!(region.load(untouched), device.word(untouched));
                    }
                });
            }
        });
        for offset in (0..4 * CHUNK).step_by(64 << 10) {
            for thread in 0..THREADS {
                assert_eq!(region.load(offset + thread * 8), thread);
            }
        }
    }
}

#[test]
fn a_device_that_fails_under_a_copy_poisons_the_view() {
    let device = Device::new("poison", 2);
    let region = device.look();
    fs::OpenOptions::new()
        .write(true)
        .open(&device.path)
        .unwrap()
        .set_len(CHUNK)
        .unwrap();
    region.store(CHUNK + 8, 5);
    assert!(matches!(region.check(), Err(PmError::Poisoned(_))));
    assert_eq!((region.load(CHUNK + 8), region.load(CHUNK)), (5, 0));
    assert_eq!(region.load(8), device.word(8));
}
