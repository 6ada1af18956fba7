//! A torn write of an entry never costs a later entry of a page while an earlier one counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferrite_checks::condvar::Condvar;
use parking_lot::Mutex;

use super::*;
use crate::device::Memory;

const PAGES: u64 = 4096;
/// A page that is written twice, and one for everything else.
const PAGE: u64 = 4000;
const OTHERS: u64 = 3000;

/// Writes to the ring do not arrive while it is shut, and end with an error when the test does.
struct Shut {
    memory: Memory,
    is_shut: Mutex<bool>,
    /// Waiting writes, by their place.
    waiting: Mutex<BTreeMap<u64, Vec<u8>>>,
    opened: Condvar,
}

impl Device for Shut {
    fn name(&self) -> &str {
        "shut"
    }

    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        false
    }

    fn run(&self, batch: &mut [Op<'_>]) -> Result<()> {
        let mut is_shut = self.is_shut.lock();
        if *is_shut && let [Op::Write { offset, from, .. }] = batch {
            self.waiting.lock().insert(*offset, from.to_vec());
            while *is_shut {
                self.opened.wait(&mut is_shut);
            }
            return Err(Error::Stopped("the test is over".into()));
        }
        drop(is_shut);
        self.memory.run(batch)
    }
}

fn torn<'w>(targets: &'w [u64], data: &'w [u8]) -> Torn<'w> {
    Torn {
        id: BlobId::of(1, 1),
        generation: 1,
        targets,
        data,
    }
}

/// The last content that a replay writes to a page.
fn replayed(device: &dyn Device, layout: &Layout, page: u64) -> Option<u8> {
    let (pending, _) = pending(device, layout, &mut |_| true).unwrap();
    let of_page = pending.iter().rev().find(|(target, _)| *target == page);
    of_page.map(|(_, data)| data[0])
}

/// One slow entry holds back what all others may say. When it has ended, several are written at once, and power is
/// lost: of each, only the pages arrive, over another entry's, and its head does not.
#[test]
fn entries_that_are_torn_together_leave_no_older_page_behind() {
    let layout = Layout::of(PAGES, false, false).unwrap();
    let device = Arc::new(Shut {
        memory: Memory::new(PAGES * PAGE_BYTES as u64),
        is_shut: Mutex::new(false),
        waiting: Mutex::default(),
        opened: Condvar::new(),
    });
    let ring = Arc::new(Ring::new(replay(&*device, &layout, &mut |_| true).unwrap()));
    let write = |target: u64, byte: u8| {
        let data = [byte; PAGE_BYTES];
        ring.write(&*device, &layout, &torn(&[target], &data)).unwrap();
    };
    let slow = ring
        .prepare(&*device, &layout, &torn(&[OTHERS], &[1; PAGE_BYTES]))
        .unwrap();
    write(PAGE, 1);
    write(PAGE, 2);
    for byte in 3..RING_ENTRIES as u8 - 1 {
        write(OTHERS + u64::from(byte), byte);
    }
    assert_eq!(replayed(&*device, &layout, PAGE), Some(2));
    ring.apply(&*device, slow).unwrap();
    *device.is_shut.lock() = true;
    let threads: Vec<_> = (0..5)
        .map(|at| {
            let (ring, device, layout) = (Arc::clone(&ring), Arc::clone(&device), layout);
            std::thread::spawn(move || {
                let data = [100; PAGE_BYTES];
                assert!(
                    ring.write(&*device, &layout, &torn(&[OTHERS + 100 + at], &data))
                        .is_err()
                );
            })
        })
        .collect();
    // At the latest when nothing more comes, all that may go ahead have done so.
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = device.waiting.lock().len();
        if now == before && now > 0 {
            break;
        }
        before = now;
    }
    let waiting: Vec<(u64, Vec<u8>)> = device.waiting.lock().clone().into_iter().collect();
    for arrived in 0..1_u32 << waiting.len() {
        let after = Memory::of(device.memory.image());
        for (index, (offset, bytes)) in waiting.iter().enumerate() {
            if arrived & 1 << index != 0 {
                let pages = &bytes[PAGE_BYTES..];
                let offset = offset + PAGE_BYTES as u64;
                let mut op = [Op::Write {
                    offset,
                    from: pages,
                    durable: true,
                }];
                after.run(&mut op).unwrap();
            }
        }
        let found = replayed(&after, &layout, PAGE);
        assert!(
            matches!(found, None | Some(2)),
            "{arrived:b}: {found:?} is older than 2"
        );
    }
    *device.is_shut.lock() = false;
    device.opened.notify_all();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Whatever the number of writers, and however long one takes, the ring goes round.
#[test]
fn many_writers_go_round_the_ring() {
    let layout = Layout::of(PAGES, false, false).unwrap();
    let device = Arc::new(Memory::new(PAGES * PAGE_BYTES as u64).tearing());
    let ring = Arc::new(Ring::new(replay(&*device, &layout, &mut |_| true).unwrap()));
    let threads: Vec<_> = (0..100_u64)
        .map(|thread| {
            let (ring, device, layout) = (Arc::clone(&ring), Arc::clone(&device), layout);
            std::thread::spawn(move || {
                for byte in 0..30 {
                    let data = [byte; PAGE_BYTES];
                    let entry = ring
                        .prepare(&*device, &layout, &torn(&[OTHERS + thread], &data))
                        .unwrap();
                    if byte % 10 == 0 {
                        std::thread::sleep(Duration::from_millis(thread % 7));
                    }
                    ring.apply(&*device, entry).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let image = device.image();
    for thread in 0..100 {
        assert_eq!(image[(OTHERS + thread) as usize * PAGE_BYTES], 29);
    }
}
