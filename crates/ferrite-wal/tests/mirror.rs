//! A log on two devices: loss of either, devices that are away, deaf or stale, or have another pool's log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrite_blob::Result as BlobResult;
use ferrite_blob::device::{Device, Fault, Faulty, Memory, Op, Target};
use ferrite_wal::{Error, Mirror, Opened, SIZE_MIN, Wal};

use crate::log::{contents, opened};

const OWNER: [u8; 16] = [2; 16];
const LIMIT: Duration = Duration::from_secs(60);

fn device() -> Arc<dyn Device> {
    Arc::new(Memory::new(SIZE_MIN))
}

fn both(near: &Arc<dyn Device>, far: &Arc<dyn Device>) -> Result<Arc<Mirror>, Error> {
    Mirror::open(Arc::clone(near), Arc::clone(far), OWNER, LIMIT).map(Arc::new)
}

/// A log on both, which are blank or the same.
fn wal_on(mirror: &Arc<Mirror>) -> Wal {
    opened(Arc::clone(mirror) as Arc<dyn Device>).unwrap()
}

fn append(wal: &Wal, record: &[u8]) -> Result<(), Error> {
    wal.append(&[record])?;
    wal.sync()
}

#[test]
fn either_device_has_all() {
    let (near, far) = (device(), device());
    let mirror = both(&near, &far).unwrap();
    Wal::format(&*mirror, [1; 16], OWNER).unwrap();
    let wal = wal_on(&mirror);
    wal.begin(7).unwrap();
    append(&wal, b"one").unwrap();
    // Long ones, over the end of the ring.
    for index in 0..12 {
        append(&wal, &vec![index; 3 << 20]).unwrap();
        wal.trim(wal.end()).unwrap();
    }
    append(&wal, b"two").unwrap();
    let found = contents(&wal);
    assert_eq!(found, [b"two"]);
    drop((wal, mirror));
    for device in [&near, &far] {
        let wal = opened(Arc::clone(device)).unwrap();
        assert_eq!((contents(&wal), wal.term().epoch), (found.clone(), 7));
    }
    // A new device in the place of either gets all of it.
    for (near, far) in [(&near, &device()), (&device(), &far)] {
        assert_eq!(contents(&wal_on(&both(near, far).unwrap())), found);
        for device in [near, far] {
            assert_eq!(contents(&opened(Arc::clone(device)).unwrap()), found);
        }
    }
}

/// A device that was away while an owner used the other one is made like that one, whichever it is.
#[test]
fn the_newer_copy_counts() {
    let (near, far) = (device(), device());
    Wal::format(&*both(&near, &far).unwrap(), [1; 16], OWNER).unwrap();
    for epoch in 1..6 {
        let used = if epoch % 2 == 0 { &near } else { &far };
        let wal = opened(Arc::clone(used)).unwrap();
        wal.begin(epoch).unwrap();
        append(&wal, &[epoch as u8; 9000]).unwrap();
        append(&wal, &[epoch as u8; 90]).unwrap();
        let found = contents(&wal);
        assert_eq!(found.len() as u64, 2 * epoch);
        let term = wal.term();
        drop(wal);
        let wal = wal_on(&both(&near, &far).unwrap());
        assert_eq!((contents(&wal), wal.term(), wal.term().epoch), (found, term, epoch));
    }
}

/// Of the same term, the copy counts that is sound and reaches farther: no damage of one device reaches the other.
#[test]
fn a_damaged_copy_is_mended_from_the_other() {
    for (is_near, at) in [(true, 0), (true, 2), (false, 0), (false, 2)] {
        let (near, far) = (device(), device());
        Wal::format(&*both(&near, &far).unwrap(), [1; 16], OWNER).unwrap();
        let wal = wal_on(&both(&near, &far).unwrap());
        wal.begin(1).unwrap();
        let positions = [0, 1, 2].map(|index| {
            let position = wal.append(&[&[index; 5000]]).unwrap();
            wal.sync().unwrap();
            position.group
        });
        drop(wal);
        let damaged = if is_near { &near } else { &far };
        let (offset, from, durable) = (8192 + positions[at], &[9; 4096][..], true);
        damaged.run(&mut [Op::Write { offset, from, durable }]).unwrap();
        let wal = wal_on(&both(&near, &far).unwrap());
        assert_eq!(contents(&wal).len(), 3, "near {is_near}, record {at}");
        append(&wal, b"more").unwrap();
        drop(wal);
        for device in [&near, &far] {
            assert_eq!(contents(&opened(Arc::clone(device)).unwrap()).len(), 4);
        }
    }
}

/// A copy that is cut off anywhere, onto a device that is blank or has an older one, is completed by the next opening,
/// and counts for nothing before.
#[test]
fn a_copy_that_was_cut_off_is_completed() {
    for is_blank in [true, false] {
        for writes in 0..12 {
            let near = device();
            let far = Arc::new(Faulty::new(Memory::new(SIZE_MIN)));
            let far_device = Arc::clone(&far) as Arc<dyn Device>;
            if !is_blank {
                Wal::format(&*both(&near, &far_device).unwrap(), [1; 16], OWNER).unwrap();
                append(&wal_on(&both(&near, &far_device).unwrap()), &[7; 9000]).unwrap();
            } else {
                Wal::format(&*near, [1; 16], OWNER).unwrap();
            }
            let wal = opened(Arc::clone(&near)).unwrap();
            wal.begin(1).unwrap();
            for index in 0..3 {
                append(&wal, &vec![index; 3 << 20]).unwrap();
            }
            let found = contents(&wal);
            drop(wal);
            far.plan(Fault::Gone, Target::writes_from(writes));
            let cut_off = both(&near, &far_device).is_err();
            far.mend();
            if cut_off {
                let alone = Wal::open(Arc::clone(&far_device)).map(|found| match found {
                    Opened::Log(wal) => wal.term() < opened(Arc::clone(&near)).unwrap().term(),
                    Opened::Blank => true,
                });
                assert!(alone == Ok(true) || contents(&opened(Arc::clone(&far_device)).unwrap()) == found);
            }
            assert_eq!(
                contents(&wal_on(&both(&near, &far_device).unwrap())),
                found,
                "{writes} writes"
            );
            assert_eq!(contents(&opened(far_device).unwrap()), found);
        }
    }
}

/// A group that one device has, and that nobody was promised, is on both in the end or on none.
#[test]
fn a_torn_end_is_the_same_on_both() {
    let near = Arc::new(Faulty::new(Memory::new(SIZE_MIN)));
    let far = device();
    let near_device = Arc::clone(&near) as Arc<dyn Device>;
    Wal::format(&*both(&near_device, &far).unwrap(), [1; 16], OWNER).unwrap();
    let wal = wal_on(&both(&near_device, &far).unwrap());
    append(&wal, b"one").unwrap();
    near.plan(Fault::Error, Target::writes_from(0));
    assert!(append(&wal, &[8; 5000]).is_err());
    near.mend();
    drop(wal);
    assert_eq!(
        contents(&opened(Arc::clone(&far)).unwrap()).len(),
        2,
        "the far one has it"
    );
    let wal = wal_on(&both(&near_device, &far).unwrap());
    append(&wal, b"two").unwrap();
    let found = contents(&wal);
    assert_eq!((found.len(), &*found[0], &*found[2]), (3, &b"one"[..], &b"two"[..]));
    drop(wal);
    for device in [&near_device, &far] {
        assert_eq!(contents(&opened(Arc::clone(device)).unwrap()), found);
    }
}

#[test]
fn devices_of_others_are_refused() {
    let refused = |near: &Arc<dyn Device>, far: &Arc<dyn Device>, what: &str| {
        let error = both(near, far).err().unwrap();
        let is_refusal = matches!(&error, Error::Refused(_) | Error::Conflict(_));
        assert!(is_refusal && error.to_string().contains(what), "{error}");
    };
    let (one, other, of_others, blank) = (device(), device(), device(), device());
    Wal::format(&*one, [1; 16], OWNER).unwrap();
    Wal::format(&*other, [3; 16], OWNER).unwrap();
    Wal::format(&*of_others, [1; 16], [9; 16]).unwrap();
    refused(&one, &other, "different logs");
    refused(&one, &of_others, "log of another pool");
    refused(&of_others, &blank, "log of another pool");
    let long: Arc<dyn Device> = Arc::new(Memory::new(SIZE_MIN + (8 << 20)));
    Wal::format(&*long, [1; 16], OWNER).unwrap();
    refused(&long, &blank, "the log needs");
    refused(&blank, &long, "the log needs");
    let foreign: Arc<dyn Device> = Arc::new(Memory::of(vec![5; SIZE_MIN as usize]));
    refused(&one, &foreign, "holds something that is no log");
    assert_eq!(contents(&opened(one).unwrap()).len(), 0, "it is as it was");
    // With the wrong device in the place of one that was away.
    let alone = Mirror::alone(device(), false, LIMIT).unwrap();
    Wal::format(&alone, [1; 16], OWNER).unwrap();
    for wrong in [other, of_others, foreign] {
        assert!(matches!(alone.prepare(wrong, OWNER), Err(Error::Refused(_))));
    }
}

/// A device that answers when it is let.
struct Gated {
    memory: Memory,
    is_closed: AtomicBool,
}

impl Device for Gated {
    fn name(&self) -> &str {
        "far away"
    }

    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        self.memory.writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> BlobResult<()> {
        while self.is_closed.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.memory.run(batch)
    }
}

/// A far device that does not answer fails the log in time, and takes part again once it has answered: from a new
/// beginning, also if it lacks what came before.
#[test]
fn a_deaf_device_ends_no_wait_and_comes_back() {
    let near = device();
    let far = Arc::new(Gated {
        memory: Memory::new(SIZE_MIN),
        is_closed: AtomicBool::new(false),
    });
    let far_device = Arc::clone(&far) as Arc<dyn Device>;
    Wal::format(&*both(&near, &far_device).unwrap(), [1; 16], OWNER).unwrap();
    let limit = Duration::from_millis(300);
    let mirror = Arc::new(Mirror::open(Arc::clone(&near), Arc::clone(&far_device), OWNER, limit).unwrap());
    let wal = wal_on(&mirror);
    wal.begin(1).unwrap();
    append(&wal, b"one").unwrap();
    far.is_closed.store(true, Ordering::Release);
    let start = Instant::now();
    let error = append(&wal, &vec![2; 100_000]).unwrap_err();
    assert!(
        error.to_string().contains("far away: a transfer failed: no answer"),
        "{error}"
    );
    assert!(append(&wal, b"three").is_err() && wal.restart(1).is_err());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(contents(&wal), [b"one"], "reads need the near one alone");
    assert!(!mirror.part(), "its write may still arrive");
    far.is_closed.store(false, Ordering::Release);
    let until = Instant::now() + Duration::from_secs(20);
    while !mirror.part() {
        assert!(Instant::now() < until, "its thread does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    let another = device();
    for far in [&far_device, &another] {
        mirror.join(mirror.prepare(Arc::clone(far), OWNER).unwrap());
        let term = wal.restart(2).unwrap();
        append(&wal, b"four").unwrap();
        assert_eq!((contents(&wal), wal.term()), (vec![b"four".to_vec()], term));
        for device in [&near, far] {
            assert_eq!(contents(&opened(Arc::clone(device)).unwrap()), [b"four"]);
        }
        assert!(mirror.part());
    }
    // The one that was parted with lacks a term.
    assert!(opened(far_device).unwrap().term() < opened(near).unwrap().term());
}

/// Reads of a near device that fails are of the far one.
#[test]
fn reads_survive_the_near_device() {
    let near = Arc::new(Faulty::new(Memory::new(SIZE_MIN)));
    let near_device = Arc::clone(&near) as Arc<dyn Device>;
    let far = device();
    Wal::format(&*both(&near_device, &far).unwrap(), [1; 16], OWNER).unwrap();
    let wal = wal_on(&both(&near_device, &far).unwrap());
    append(&wal, b"one").unwrap();
    let reads = Target {
        reads: true,
        writes: false,
        ..Target::writes_from(0)
    };
    near.plan(Fault::Error, reads);
    assert_eq!(contents(&wal), [b"one"]);
}

#[test]
fn an_erased_device_is_blank() {
    let device = device();
    Wal::format(&*device, [1; 16], OWNER).unwrap();
    assert_eq!(Wal::id_on(&*device), Ok(Some([1; 16])));
    Wal::erase(&*device).unwrap();
    assert_eq!(Wal::id_on(&*device), Ok(None));
}
