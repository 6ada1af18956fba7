//! Content whose changes are in a log on two devices.
//!
//! Protected: what was synced survives a crash with the loss of either device, while the bucket is away, also for
//! another owner; without one device `fsync` waits for the bucket, until both have the log again; a copy that lacks
//! changes is refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrite_blob::device::{Device, Fault, Faulty, Memory, Target};
use ferrite_nvme::content_store::{ChangeLog, ContentStore, Error, Guard, UniqueIds};
use ferrite_testkit::rng::pattern;
use ferrite_wal::{Mirror, SIZE_MIN, Wal};

use super::InS3;
use super::bucket::Fate;
use super::logged::{Owner, owner, slow, wal_on};

const POOL: [u8; 16] = [7; 16];
const LIMIT: Duration = Duration::from_secs(60);

/// Two devices, the second one of which may be away, and fail.
struct Devices {
    near: Arc<dyn Device>,
    far: Arc<Faulty<Memory>>,
    is_far_away: Arc<AtomicBool>,
    /// The second one, when it is opened again.
    next_far: Arc<Mutex<Arc<Faulty<Memory>>>>,
}

impl Devices {
    fn new() -> Devices {
        let far = Arc::new(Faulty::new(Memory::new(SIZE_MIN)));
        let devices = Devices {
            near: Arc::new(Memory::new(SIZE_MIN)),
            next_far: Arc::new(Mutex::new(Arc::clone(&far))),
            far,
            is_far_away: Arc::default(),
        };
        Wal::format(&*devices.mirror(), [1; 16], POOL).unwrap();
        devices
    }

    fn mirror(&self) -> Arc<Mirror> {
        Arc::new(Mirror::open(Arc::clone(&self.near), self.far(), POOL, LIMIT).unwrap())
    }

    fn far(&self) -> Arc<dyn Device> {
        Arc::clone(&self.far) as Arc<dyn Device>
    }

    fn log(&self) -> ChangeLog {
        let is_there = !self.is_far_away.load(Ordering::Acquire);
        let mirror = match is_there {
            true => self.mirror(),
            false => Arc::new(Mirror::alone(Arc::clone(&self.near), false, LIMIT).unwrap()),
        };
        let wal = wal_on(&(Arc::clone(&mirror) as Arc<dyn Device>));
        let (far, is_away) = (Arc::clone(&self.next_far), Arc::clone(&self.is_far_away));
        let reopen = move || match is_away.load(Ordering::Acquire) {
            true => Err("it is away".to_string()),
            false => Ok(Arc::clone(&*far.lock().unwrap()) as Arc<dyn Device>),
        };
        ChangeLog::new(wal, "both".into(), true).on_two(mirror, is_there, Arc::new(reopen))
    }

    fn owner(&self, pool: &InS3, epoch: u64) -> Owner {
        let content = pool.content_on(Some(self.log()));
        let guard = Guard { shard: 0, epoch };
        content.take_over(guard).unwrap();
        Owner::of(content, UniqueIds::new(guard))
    }

    fn set_away(&self, is_away: bool) {
        self.is_far_away.store(is_away, Ordering::Release);
    }
}

#[test]
fn either_device_is_enough_for_another_owner() {
    for keeps_near in [true, false] {
        let (pool, devices) = (InS3::new(slow()), Devices::new());
        pool.bucket.plan(|_| Fate::Lost);
        let first = devices.owner(&pool, 100);
        let (place, blob) = first.create();
        for step in 0..50 {
            blob.write_at(&pattern(step, 9000), u64::from(step) * 5000, None)
                .unwrap();
            blob.sync().unwrap();
        }
        assert_eq!(first.content.view().usage().requests.puts, 0);
        drop((blob, first));
        let left = if keeps_near {
            Arc::clone(&devices.near)
        } else {
            devices.far()
        };
        let second = owner(&pool, 101, Some(&left));
        assert_eq!(second.read(place, 49 * 5000).unwrap(), pattern(49, 9000)[..1000]);
        let blob = second.content.open(place).unwrap();
        blob.write_at(&[1; 1000], 0, None).unwrap();
        blob.sync().unwrap();
        drop((blob, second));
        // The other one lacks this owner's changes, and is made the same before it counts again.
        let other = if keeps_near {
            devices.far()
        } else {
            Arc::clone(&devices.near)
        };
        let stale = pool.content_with(Some(&other));
        let refused = stale.take_over(Guard { shard: 0, epoch: 102 });
        assert!(
            matches!(&refused, Err(Error::Failed(text)) if text.contains("older copy")),
            "{refused:?}"
        );
        drop(stale);
        let third = devices.owner(&pool, 103);
        assert_eq!(third.read(place, 0).unwrap(), [1; 1000]);
        pool.bucket.mend();
        third.content.close().unwrap();
        assert_eq!(owner(&pool, 104, None).read(place, 0).unwrap(), [1; 1000]);
    }
}

/// A device that fails has the bucket be waited for; nothing is lost with either, and the log is used again when both
/// are there.
#[test]
fn without_one_device_the_bucket_counts() {
    let (pool, devices) = (InS3::new(slow()), Devices::new());
    let first = devices.owner(&pool, 100);
    let (place, blob) = first.create();
    blob.write_at(&[1; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    let puts = || first.content.view().usage().requests.puts;
    assert_eq!(puts(), 0);
    devices.set_away(true);
    devices.far.plan(Fault::Gone, Target::writes_from(0));
    blob.write_at(&[2; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    assert_eq!((puts(), first.content.view().usage().is_log_passed), (1, true));
    // Nothing is promised while neither can have it.
    pool.bucket.plan(|_| Fate::Lost);
    blob.write_at(&[3; 9000], 0, None).unwrap();
    assert!(blob.sync().is_err());
    pool.bucket.mend();
    blob.sync().unwrap();
    devices.far.mend();
    devices.set_away(false);
    first.wait_for("both have the log again", |owner| {
        !owner.content.view().usage().is_log_passed
    });
    pool.bucket.plan(|_| Fate::Lost);
    blob.write_at(&[4; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    drop((blob, first));
    let second = owner(&pool, 101, Some(&devices.far()));
    pool.bucket.mend();
    assert_eq!(second.read(place, 0).unwrap(), [4; 1000]);
}

/// An opening without the second device makes the changes of the first one again, and promises none of them before the
/// bucket has them; the log is used once both are there.
#[test]
fn an_opening_without_the_second_device() {
    let (pool, devices) = (InS3::new(slow()), Devices::new());
    pool.bucket.plan(|_| Fate::Lost);
    let first = devices.owner(&pool, 100);
    let (place, blob) = first.create();
    blob.write_at(&[1; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    // This one arrives on the near device alone, and nobody is promised it.
    devices.far.plan(Fault::Gone, Target::writes_from(0));
    blob.write_at(&[2; 9000], 0, None).unwrap();
    assert!(blob.sync().is_err());
    drop((blob, first));
    devices.far.mend();
    devices.set_away(true);
    let second = devices.owner(&pool, 101);
    assert_eq!(second.read(place, 0).unwrap(), [2; 1000]);
    let blob = second.content.open(place).unwrap();
    assert!(!blob.is_synced() && blob.sync().is_err(), "one device is not enough");
    drop((blob, second));
    // It has appended nothing, so the copy that was away is as good.
    let third = owner(&pool, 102, Some(&devices.far()));
    assert_eq!(third.read(place, 0).unwrap(), [1; 1000]);
    drop(third);
    pool.bucket.mend();
    let fourth = owner(&pool, 103, Some(&devices.far()));
    fourth.content.close().unwrap();
    drop(fourth);
    devices.set_away(false);
    let fifth = devices.owner(&pool, 104);
    assert_eq!(fifth.read(place, 0).unwrap(), [1; 1000]);
    assert!(!fifth.content.view().usage().is_log_passed);
}

/// A near device that can be read alone is enough to open the pool; the bucket is waited for then.
#[test]
fn a_device_that_takes_no_writes_keeps_no_pool_closed() {
    let (pool, devices) = (InS3::new(slow()), Devices::new());
    let first = devices.owner(&pool, 100);
    let (place, blob) = first.create();
    blob.write_at(&[1; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    drop((blob, first));
    let log = devices.log();
    devices.far.plan(Fault::Gone, Target::writes_from(0));
    devices.set_away(true);
    let content = pool.content_on(Some(log));
    content.take_over(Guard { shard: 0, epoch: 101 }).unwrap();
    let mut bytes = [0; 1000];
    let blob = content.open(place).unwrap();
    blob.read_at(&mut bytes, 0).unwrap();
    blob.sync().unwrap();
    assert_eq!((bytes, pool.bucket.objects().len()), ([1; 1000], 1));
}

/// A device that was replaced while the pool was open is no copy any more, though the same owner used it.
#[test]
fn a_device_that_was_replaced_is_refused() {
    let (pool, mut devices) = (InS3::new(slow()), Devices::new());
    let first = devices.owner(&pool, 100);
    let (place, blob) = first.create();
    blob.write_at(&[1; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    devices.far.plan(Fault::Gone, Target::writes_from(0));
    blob.write_at(&[2; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    let another = Arc::new(Faulty::new(Memory::new(SIZE_MIN)));
    *devices.next_far.lock().unwrap() = Arc::clone(&another);
    first.wait_for("both have the log again", |owner| {
        !owner.content.view().usage().is_log_passed
    });
    pool.bucket.plan(|_| Fate::Lost);
    blob.write_at(&[3; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    drop((blob, first));
    devices.far.mend();
    let stale = pool.content_with(Some(&devices.far()));
    assert!(stale.take_over(Guard { shard: 0, epoch: 101 }).is_err());
    drop(stale);
    devices.far = another;
    let second = owner(&pool, 102, Some(&devices.far()));
    pool.bucket.mend();
    assert_eq!(second.read(place, 0).unwrap(), [3; 1000]);
}
