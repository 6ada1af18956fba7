//! A log as its caller sees it: order, fullness, threads that share writes, devices that fail or hold something else.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_blob::device::{Device, Fault, Faulty, Memory, Target};
use ferrite_wal::{Error, Opened, Position, RECORD_BYTES_MAX, SIZE_MIN, Wal};

fn made(device: Arc<dyn Device>) -> Wal {
    Wal::format(&*device, [1; 16], [2; 16]).unwrap();
    opened(device).unwrap()
}

pub(crate) fn opened(device: Arc<dyn Device>) -> Result<Wal, Error> {
    match Wal::open(device)? {
        Opened::Log(wal) => Ok(*wal),
        Opened::Blank => Err(Error::Refused("blank".into())),
    }
}

pub(crate) fn contents(wal: &Wal) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let visit = |_, record: &[u8]| {
        found.push(record.to_vec());
        Ok::<(), Infallible>(())
    };
    wal.replay(visit).unwrap();
    found
}

#[test]
fn records_come_back_in_order() {
    let device: Arc<dyn Device> = Arc::new(Memory::new(SIZE_MIN));
    let wal = made(Arc::clone(&device));
    assert_eq!((wal.id(), wal.owner(), contents(&wal).len()), ([1; 16], [2; 16], 0));
    wal.append(&[b"one", b"", b" and"]).unwrap();
    let second = wal.append(&[b""]).unwrap();
    assert!(!wal.is_durable(second));
    wal.sync().unwrap();
    assert!(wal.is_durable(second));
    let third = wal.append(&[&vec![3; RECORD_BYTES_MAX]]).unwrap();
    wal.sync().unwrap();
    assert!(matches!(
        wal.append(&[&vec![3; RECORD_BYTES_MAX + 1]]),
        Err(Error::Refused(_))
    ));
    assert_eq!(wal.usage().groups, 2);
    wal.append(&[b"never durable"]).unwrap();
    drop(wal);
    let wal = opened(Arc::clone(&device)).unwrap();
    assert_eq!(contents(&wal), [b"one and".to_vec(), vec![], vec![3; RECORD_BYTES_MAX]]);
    wal.trim(third).unwrap();
    assert_eq!((wal.head().group, contents(&wal).len()), (third.group, 1));
    drop(wal);
    assert_eq!(contents(&opened(device).unwrap()).len(), 1);
}

/// Records are read by their positions, whether they are written or not, over the end of the ring, until they are
/// freed.
#[test]
fn records_are_read_until_they_are_freed() {
    let wal = made(Arc::new(Memory::new(SIZE_MIN)));
    let record = |index: u32| -> Vec<u8> { (0..700_000 + index).map(|at| (at * 7 + index) as u8).collect() };
    let mut positions = Vec::new();
    let read = |positions: &[Position], index: u32| {
        let mut found = vec![0; 700_000 - 5];
        let is_kept = wal.read(positions[index as usize], 5, &mut found).unwrap();
        (is_kept, found == record(index)[5..700_000])
    };
    for index in 0..100 {
        positions.push(wal.append(&[&record(index)]).unwrap());
        for back in 0..12.min(index) {
            assert_eq!(read(&positions, index - back), (true, true), "{index}, {back} back");
        }
        if index >= 12 {
            wal.trim(positions[index as usize - 10]).unwrap();
            assert!(!read(&positions, index - 12).0 || positions[index as usize - 12].group >= wal.head().group);
        }
    }
    assert_eq!(read(&positions, 0), (false, false));
}

/// Protects what is kept: a full log takes nothing, and takes more as soon as something is freed.
#[test]
fn a_full_log_says_so_and_has_lost_nothing() {
    let wal = made(Arc::new(Memory::new(SIZE_MIN)));
    let record = vec![7; 1 << 20];
    let mut positions = Vec::new();
    let error = loop {
        match wal.append(&[&record]) {
            Ok(position) => positions.push(position),
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::Full);
    wal.sync().unwrap();
    assert!(positions.len() >= 12, "{}", positions.len());
    assert_eq!(contents(&wal).len(), positions.len());
    // Small ones still fit, up to the last page.
    while wal.append(&[b"small"]).is_ok() {
        wal.sync().unwrap();
    }
    let usage = wal.usage();
    assert_eq!(usage.used_bytes, usage.bytes);
    for round in 0..50 {
        let first = positions.remove(0);
        let next = positions.first().copied().unwrap_or_else(|| wal.end());
        assert!(next >= first);
        wal.trim(next).unwrap();
        while let Ok(position) = wal.append(&[&record]) {
            positions.push(position);
        }
        wal.sync().unwrap();
        assert!(!positions.is_empty(), "round {round}");
    }
    wal.trim(wal.end()).unwrap();
    assert_eq!((wal.usage().used_bytes, contents(&wal).len()), (0, 0));
}

/// Threads that wait at the same time share groups, and each has its record durable.
#[test]
fn threads_share_writes() {
    let device = Arc::new(ferrite_blob::device::Slow::new(
        Memory::new(SIZE_MIN),
        std::time::Duration::from_millis(2),
        1,
    ));
    let wal = made(device);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let position = wal.append(&[&number.to_le_bytes()]).unwrap();
                    wal.sync().unwrap();
                    assert!(wal.is_durable(position));
                }
            });
        }
    });
    let mut found: Vec<u64> = contents(&wal)
        .iter()
        .map(|record| u64::from_le_bytes(record[..].try_into().unwrap()))
        .collect();
    found.sort_unstable();
    assert_eq!(found, (0..400).collect::<Vec<_>>());
    assert!(wal.usage().groups < 300, "{:?}", wal.usage());
}

/// Protects callers: after a failure nothing more is said to be durable, and what was durable is there.
#[test]
fn a_device_that_fails_ends_the_log() {
    let device = Arc::new(Faulty::new(Memory::new(SIZE_MIN)));
    let wal = made(Arc::clone(&device) as Arc<dyn Device>);
    wal.append(&[b"first"]).unwrap();
    wal.sync().unwrap();
    wal.append(&[b"second"]).unwrap();
    device.plan(Fault::Error, Target::writes_from(0));
    assert!(matches!(wal.sync(), Err(Error::Failed(_))));
    device.mend();
    for error in [wal.append(&[b"third"]).map(drop), wal.sync(), wal.trim(wal.end())] {
        assert!(matches!(error, Err(Error::Failed(_)) | Ok(())), "{error:?}");
    }
    assert!(matches!(wal.append(&[b"third"]), Err(Error::Failed(_))));
    assert!(wal.failure().is_some());
    drop(wal);
    assert_eq!(contents(&opened(device).unwrap())[0], b"first");
}

#[test]
fn what_is_no_log_is_refused_and_damage_is_named() {
    assert!(matches!(Wal::open(Arc::new(Memory::new(SIZE_MIN))), Ok(Opened::Blank)));
    let other = opened(Arc::new(Memory::of(vec![1; SIZE_MIN as usize])));
    assert!(matches!(other, Err(Error::Refused(_))));
    assert!(matches!(opened(Arc::new(Memory::new(4096))), Err(Error::Refused(_))));
    let small = Wal::format(&Memory::new(SIZE_MIN - 4096), [1; 16], [2; 16]);
    assert!(matches!(small, Err(Error::Refused(_))));
    let memory = Arc::new(Memory::new(SIZE_MIN));
    let wal = made(Arc::clone(&memory) as Arc<dyn Device>);
    let mut positions = Vec::new();
    for number in 0..4_u8 {
        positions.push(wal.append(&[&[number; 9000]]).unwrap());
        wal.sync().unwrap();
    }
    drop(wal);
    let image = memory.image();
    let with = |at: usize| {
        let mut image = image.clone();
        image[at] ^= 1;
        opened(Arc::new(Memory::of(image)))
    };
    // The second group: what is behind it is whole.
    let damaged = with(8192 + positions[1].group as usize + 5000).map(drop).unwrap_err();
    assert!(
        matches!(&damaged, Error::Damaged(what) if what.contains("at byte")),
        "{damaged:?}"
    );
    // The last one may be torn.
    assert_eq!(contents(&with(8192 + positions[3].group as usize).unwrap()).len(), 3);
    // One of the superblocks is enough.
    for page in [0, 4096] {
        assert_eq!(contents(&with(page + 60).unwrap()).len(), 4);
    }
    let mut short = image.clone();
    short.truncate(SIZE_MIN as usize - 4096);
    assert!(matches!(opened(Arc::new(Memory::of(short))), Err(Error::Damaged(_))));
}
