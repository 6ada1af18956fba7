//! Content whose changes are in a write-ahead log first.
//!
//! Protected: what was synced is there after a crash, with the log or without the bucket; without the log it is an
//! error and never older bytes; a log that comes back late changes nothing that was published or given up meanwhile;
//! space of the log is free once its changes are published.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_blob::device::{Device, Fault, Faulty, Memory, Target};
use ferrite_nvme::content_store::{
    Blob, BlobName, ChangeLog, ContentStore, Error, Guard, Place, SlicesContent, SlicesOptions, StagedElsewhere,
    UniqueIds,
};
use ferrite_testkit::rng::pattern;
use ferrite_testkit::{linear, posix};
use ferrite_vfs::{FileSystem, OpenMode, ROOT_INO, SYSTEM};
use ferrite_wal::{Opened, SIZE_MIN, Wal};

use super::bucket::{Fate, Request};
use super::{InS3, quick};
use crate::faults::pool::{open, put, read};

/// Nothing is published that nobody asks for.
pub(crate) fn slow() -> SlicesOptions {
    SlicesOptions {
        publish_after: Duration::from_secs(3600),
        publish_timeout: Duration::from_millis(1500),
        ..quick()
    }
}

/// A new log on a device.
pub(crate) fn formatted(device: impl Device + 'static, id: u8) -> Arc<dyn Device> {
    Wal::format(&device, [id; 16], [7; 16]).unwrap();
    Arc::new(device)
}

pub(crate) fn log_on(device: &Arc<dyn Device>) -> ChangeLog {
    ChangeLog::new(wal_on(device), "the log of a test".into(), true)
}

pub(crate) fn wal_on(device: &Arc<dyn Device>) -> Box<Wal> {
    match Wal::open(Arc::clone(device)).unwrap() {
        Opened::Log(wal) => wal,
        Opened::Blank => panic!("it is blank"),
    }
}

/// An owner of a pool, with a log or without.
pub(crate) struct Owner {
    pub(crate) content: SlicesContent,
    ids: UniqueIds,
}

pub(crate) fn owner(pool: &InS3, epoch: u64, log: Option<&Arc<dyn Device>>) -> Owner {
    let content = pool.content_with(log);
    let guard = Guard { shard: 0, epoch };
    content.take_over(guard).unwrap();
    Owner {
        content,
        ids: UniqueIds::new(guard),
    }
}

impl Owner {
    pub(crate) fn of(content: SlicesContent, ids: UniqueIds) -> Owner {
        Owner { content, ids }
    }

    pub(crate) fn ids(&self) -> &UniqueIds {
        &self.ids
    }

    pub(crate) fn create(&self) -> (Place, Arc<dyn Blob>) {
        let place = self.content.reserve(0, 1, &self.ids).unwrap()[0];
        (place, self.content.create(place).unwrap())
    }

    pub(crate) fn read(&self, place: Place, at: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; 1000];
        self.content.open(place)?.read_at(&mut bytes, at)?;
        Ok(bytes)
    }

    fn staged_elsewhere(&self) -> Vec<StagedElsewhere> {
        let view = self.content.view();
        view.staged_elsewhere(view.log_id()).unwrap()
    }

    /// Gives up what others have staged, of one blob.
    fn give_up(&self) {
        let staged = self.staged_elsewhere();
        assert_eq!(staged.len(), 1);
        let blob = self.content.view().give_up(staged[0].place).unwrap();
        blob.set_tail(b"tail").unwrap();
        self.content.sync().unwrap();
        assert_eq!(self.staged_elsewhere(), []);
        self.content.view().forget_staged().unwrap();
    }

    pub(crate) fn used_log_bytes(&self) -> u64 {
        self.content.view().usage().log.unwrap().used_bytes
    }

    pub(crate) fn wait_for(&self, what: &str, mut is_so: impl FnMut(&Owner) -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !is_so(self) {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn pool_and_log() -> (InS3, Arc<dyn Device>) {
    (InS3::new(slow()), formatted(Memory::new(SIZE_MIN), 1))
}

fn put_and_sync(pool: &InS3, name: &str, data: &[u8]) {
    put(pool.engine(), name, 0, data).unwrap();
    let file = open(pool.engine(), name, OpenMode::read_write()).unwrap();
    file.fsync(SYSTEM).unwrap();
}

#[test]
fn posix_rules() {
    posix::run_all(|| InS3::mounted_with_log(2048));
}

#[test]
fn concurrent_histories() {
    linear::run_all(|| InS3::mounted_with_log(2048), 1);
}

/// `fsync` returns while the bucket is away, and its content is there after a crash, first from the log, and then from
/// the bucket, in which it is once.
#[test]
fn synced_content_needs_no_bucket() {
    let mut pool = InS3::logged(slow());
    put_and_sync(&pool, "f", &pattern(1, 100_000));
    pool.bucket.plan(|_| Fate::Lost);
    for number in 0..20 {
        let name = format!("f{number}");
        put_and_sync(&pool, &name, &pattern(number, 50_000));
    }
    assert_eq!(pool.bucket.objects().len(), 0);
    for _ in 0..2 {
        pool.crash();
        for number in 0..20 {
            let name = format!("f{number}");
            assert!(read(pool.engine(), &name).unwrap() == pattern(number, 50_000), "{name}");
        }
        assert!(read(pool.engine(), "f").unwrap() == pattern(1, 100_000));
    }
    pool.bucket.mend();
    pool.engine().sync(SYSTEM).unwrap();
    assert_eq!(pool.bucket.objects().len(), 21);
    pool.close();
    pool.open();
    assert_eq!(pool.view().usage().log.unwrap().used_bytes, 0);
    assert!(read(pool.engine(), "f7").unwrap() == pattern(7, 50_000));
    pool.engine().unlink(SYSTEM, ROOT_INO, b"f7").unwrap();
    pool.check_bucket();
}

/// An opening without the log leaves the sizes of files to the one that has it. Without it, a file is refused that is
/// empty only as far as it knows.
#[test]
fn an_opening_without_the_log_forgets_nothing() {
    let mut pool = InS3::logged(slow());
    put_and_sync(&pool, "grows", &pattern(1, 100_000));
    let grows = open(pool.engine(), "grows", OpenMode::read_write()).unwrap();
    grows.write_at(SYSTEM, 100_000, &pattern(2, 50_000)).unwrap();
    pool.engine().sync(SYSTEM).unwrap();
    pool.bucket.plan(|_| Fate::Lost);
    grows.write_at(SYSTEM, 150_000, &pattern(3, 50_000)).unwrap();
    grows.fsync(SYSTEM).unwrap();
    put(pool.engine(), "far", 100 << 20, b"far").unwrap();
    open(pool.engine(), "far", OpenMode::read_write())
        .unwrap()
        .fsync(SYSTEM)
        .unwrap();
    drop(grows);
    let log = pool.log.clone();
    for _ in 0..2 {
        pool.log = None;
        pool.crash();
        pool.bucket.mend();
        assert!(read(pool.engine(), "grows").is_err() && read(pool.engine(), "far").is_err());
        let report = pool.engine().check().unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        pool.close();
        pool.log.clone_from(&log);
        pool.open();
        let bytes = read(pool.engine(), "grows").unwrap();
        assert_eq!(bytes.len(), 200_000);
        assert!(bytes[150_000..] == pattern(3, 50_000) && bytes[..100_000] == pattern(1, 100_000));
        let far = read(pool.engine(), "far").unwrap();
        assert_eq!((far.len(), &far[100 << 20..]), ((100 << 20) + 3, &b"far"[..]));
        pool.bucket.plan(|_| Fate::Lost);
    }
}

/// A file that is synced again and again is one object in the end, and its mark is stored once.
#[test]
fn many_syncs_are_one_object() {
    let (pool, log) = pool_and_log();
    let owner = owner(&pool, 100, Some(&log));
    let (place, blob) = owner.create();
    for step in 0..200_u32 {
        blob.write_at(&pattern(step, 4096), u64::from(step) * 4096, Some(&step.to_le_bytes()))
            .unwrap();
        blob.sync().unwrap();
        assert!(blob.is_synced());
    }
    let usage = owner.content.view().usage();
    assert_eq!((usage.requests.puts, usage.log.unwrap().groups), (0, 200));
    owner.content.sync().unwrap();
    assert_eq!(pool.bucket.objects().len(), 1);
    assert_eq!(owner.read(place, 4096 * 150).unwrap(), pattern(150, 4096)[..1000]);
    owner.wait_for("the log is not emptied", |owner| owner.used_log_bytes() == 0);
    assert_eq!(owner.staged_elsewhere(), []);
}

/// Without the log, bytes that it has are errors, and so are changes of their file; everything else works. With the
/// log again they are there.
#[test]
fn without_its_log_content_is_an_error_and_never_older() {
    let (pool, log) = pool_and_log();
    let first = owner(&pool, 100, Some(&log));
    let (place, blob) = first.create();
    let (other_place, other) = first.create();
    let far = 100 << 20;
    blob.write_at(&[1; 5000], 0, None).unwrap();
    blob.write_at(&[1; 5000], far, None).unwrap();
    other.write_at(&[1; 5000], 0, None).unwrap();
    first.content.sync().unwrap();
    pool.bucket.plan(|_| Fate::Lost);
    blob.write_at(&[2; 3000], 0, Some(b"tail")).unwrap();
    blob.sync().unwrap();
    drop((blob, other, first));
    pool.bucket.mend();
    for log in [None, Some(formatted(Memory::new(SIZE_MIN), 2))] {
        let second = owner(&pool, 101, log.as_ref());
        for at in [0, 4000, 50_000] {
            let error = second.read(place, at).unwrap_err().to_string();
            assert!(error.contains("the log of a test"), "{error}");
        }
        assert_eq!(second.read(place, far).unwrap(), [1; 1000]);
        assert_eq!(second.read(other_place, 0).unwrap(), [1; 1000]);
        let blob = second.content.open(place).unwrap();
        for refused in [
            blob.write_at(b"x", far, None),
            blob.truncate(0, None),
            blob.set_tail(b"x"),
        ] {
            assert!(matches!(refused, Err(Error::Failed(_))), "{refused:?}");
        }
        // Nobody takes them for a hole, and copies that.
        assert!(blob.next_data(0).is_err() && blob.next_hole(0).is_err() && blob.valid_len() >= 64 << 20);
        // The bucket has everything as it was stored.
        assert!(blob.damaged(0, 1000).unwrap().wrong.is_empty());
        let staged = second.staged_elsewhere();
        assert_eq!(
            (staged.len(), staged[0].place, &*staged[0].log),
            (1, place, "the log of a test")
        );
        assert_eq!(
            staged[0].bytes,
            [std::ops::Range {
                start: 0,
                end: 64 << 20
            }]
        );
        drop(blob);
        second.content.close().unwrap();
    }
    let third = owner(&pool, 102, Some(&log));
    assert_eq!(third.read(place, 0).unwrap(), [2; 1000]);
    let blob = third.content.open(place).unwrap();
    assert_eq!(blob.tail().unwrap(), b"tail");
    assert_eq!(third.staged_elsewhere(), []);
    blob.sync().unwrap();
    third.content.close().unwrap();
    assert_eq!(owner(&pool, 103, None).read(place, 0).unwrap(), [2; 1000]);
}

/// A crash may cut a call off, whose first records are in the log. They do not count, nor do they with the next call.
#[test]
fn calls_that_were_cut_off_do_not_count() {
    let (pool, log) = pool_and_log();
    let first = owner(&pool, 100, Some(&log));
    let (place, blob) = first.create();
    blob.write_at(&[1; 5000], 0, None).unwrap();
    blob.sync().unwrap();
    drop((blob, first));
    let BlobName::Unique(id) = place.name else {
        panic!("{place}")
    };
    // The first record of a write.
    let mut record = vec![1, 1];
    for number in [id.shard, id.epoch, id.number, 2000, 0] {
        record.extend_from_slice(&number.to_le_bytes());
    }
    record.extend_from_slice(&[9; 100]);
    let wal = wal_on(&log);
    wal.append(&[&record]).unwrap();
    wal.sync().unwrap();
    drop(wal);
    for epoch in 101..104_u64 {
        let next = owner(&pool, epoch, Some(&log));
        assert_eq!(next.read(place, 1500).unwrap(), [1; 1000]);
        let blob = next.content.open(place).unwrap();
        blob.write_at(&[epoch as u8; 10], epoch, None).unwrap();
        blob.sync().unwrap();
    }
    let next = owner(&pool, 104, Some(&log));
    let bytes = next.read(place, 0).unwrap();
    assert_eq!(bytes[100..104], [1, 101, 102, 103]);
    assert_eq!(bytes[113..], [1; 887]);
}

/// Changes that were given up stay given up, also when the log comes back; a blob that was removed meanwhile stays
/// removed.
#[test]
fn a_log_that_comes_back_late_changes_nothing() {
    let (pool, log) = pool_and_log();
    let first = owner(&pool, 100, Some(&log));
    let places = [(); 2].map(|()| {
        let (place, blob) = first.create();
        blob.write_at(&[1; 5000], 0, None).unwrap();
        blob.sync().unwrap();
        place
    });
    first.content.sync().unwrap();
    pool.bucket.plan(|_| Fate::Lost);
    for place in places {
        let blob = first.content.open(place).unwrap();
        blob.write_at(&[2; 5000], 0, None).unwrap();
        blob.sync().unwrap();
    }
    drop(first);
    pool.bucket.mend();
    let second = owner(&pool, 101, None);
    second.content.delete(places[1]).unwrap();
    second.give_up();
    assert_eq!(second.read(places[0], 0).unwrap(), [1; 1000]);
    let blob = second.content.open(places[0]).unwrap();
    blob.write_at(&[3; 2000], 0, None).unwrap();
    blob.sync().unwrap();
    drop(blob);
    second.content.close().unwrap();
    let third = owner(&pool, 102, Some(&log));
    assert_eq!(third.read(places[0], 0).unwrap(), [3; 1000]);
    assert_eq!(third.read(places[1], 0), Err(Error::NotFound));
    // Records of the earlier time are in the log still, before those of this one.
    let blob = third.content.open(places[0]).unwrap();
    blob.write_at(&[4; 1000], 1000, None).unwrap();
    blob.sync().unwrap();
    drop((blob, third));
    let fourth = owner(&pool, 103, Some(&log));
    assert_eq!(fourth.read(places[0], 0).unwrap(), [3; 1000]);
    assert_eq!(fourth.read(places[0], 1000).unwrap(), [4; 1000]);
}

/// Changes that are synced while an earlier publication waits for its object survive, whatever becomes of it.
#[test]
fn changes_during_a_publication_are_kept() {
    for ends_well in [true, false] {
        let (pool, log) = pool_and_log();
        let first = owner(&pool, 100, Some(&log));
        let (place, blob) = first.create();
        blob.write_at(&[1; 9000], 0, None).unwrap();
        blob.sync().unwrap();
        pool.bucket.plan(|_| Fate::Held);
        std::thread::scope(|scope| {
            let publication = scope.spawn(|| first.content.sync());
            first.wait_for("its object is not sent", |owner| {
                owner.content.view().usage().requests.puts > 0
            });
            blob.write_at(&[2; 3000], 0, Some(b"second")).unwrap();
            blob.sync().unwrap();
            blob.write_at(&[3; 3000], 3000, None).unwrap();
            match ends_well {
                true => {
                    pool.bucket.mend();
                    publication.join().unwrap().unwrap();
                }
                false => assert!(publication.join().unwrap().is_err()),
            }
        });
        pool.bucket.plan(|_| Fate::Lost);
        blob.sync().unwrap();
        drop((blob, first));
        let held = owner(&pool, 101, None).read(place, 0);
        assert!(held.is_err(), "{ends_well}");
        pool.bucket.mend();
        let second = owner(&pool, 102, Some(&log));
        let bytes = [0, 3000, 6000].map(|at| second.read(place, at).unwrap()[0]);
        assert_eq!(bytes, [2, 3, 1], "{ends_well}");
        assert_eq!(second.content.open(place).unwrap().tail().unwrap(), b"second");
    }
}

/// A write that is too long for the log loses nothing: `fsync` waits for the bucket, and fails without it; later the
/// log is used again.
#[test]
fn long_writes_pass_the_log() {
    let (pool, log) = pool_and_log();
    let owner = owner(&pool, 100, Some(&log));
    let (place, blob) = owner.create();
    blob.write_at(&[7; 6 << 20], 0, None).unwrap();
    pool.bucket.plan(|_| Fate::Lost);
    assert!(blob.sync().is_err() && !blob.is_synced());
    pool.bucket.mend();
    while blob.sync().is_err() {}
    pool.bucket.plan(|request| match request {
        Request::Put => Fate::Lost,
        _ => Fate::Done,
    });
    blob.write_at(&[8; 1000], 0, None).unwrap();
    blob.sync().unwrap();
    assert_eq!(owner.read(place, 0).unwrap(), [8; 1000]);
}

/// A log whose device fails is used no more, and what it had is published.
#[test]
fn a_log_that_fails_is_passed_by() {
    let pool = InS3::new(slow());
    let device = Arc::new(Faulty::new(Memory::new(SIZE_MIN)));
    let log = formatted(Arc::clone(&device), 1);
    let first = owner(&pool, 100, Some(&log));
    let (place, blob) = first.create();
    blob.write_at(&[1; 5000], 0, None).unwrap();
    blob.sync().unwrap();
    device.plan(Fault::Error, Target::writes_from(0));
    blob.write_at(&[2; 5000], 0, None).unwrap();
    blob.sync().unwrap();
    assert_eq!(pool.bucket.objects().len(), 1);
    blob.write_at(&[3; 500], 0, None).unwrap();
    blob.sync().unwrap();
    drop((blob, first));
    device.mend();
    for log in [None, Some(&log)] {
        let next = owner(&pool, if log.is_some() { 102 } else { 101 }, log);
        assert_eq!(next.read(place, 0).unwrap()[..501], [&[3; 500][..], &[2]].concat());
    }
}

/// A log that is used no more is emptied.
#[test]
fn a_log_that_is_used_no_more_is_emptied() {
    let (pool, log) = pool_and_log();
    let first = owner(&pool, 100, Some(&log));
    let (place, blob) = first.create();
    blob.write_at(&[1; 5000], 0, None).unwrap();
    blob.sync().unwrap();
    drop((blob, first));
    let unused = ChangeLog::new(wal_on(&log), "a log that is emptied".into(), false);
    let content = pool.content_on(Some(unused));
    let guard = Guard { shard: 0, epoch: 101 };
    content.take_over(guard).unwrap();
    let second = Owner {
        content,
        ids: UniqueIds::new(guard),
    };
    second.wait_for("the log is not emptied", |owner| owner.used_log_bytes() == 0);
    assert_eq!(pool.bucket.objects().len(), 1);
    let blob = second.content.open(place).unwrap();
    blob.write_at(&[2; 5000], 0, None).unwrap();
    blob.sync().unwrap();
    assert_eq!((pool.bucket.objects().len(), second.used_log_bytes()), (2, 0));
}

/// A log as it was before is refused. Records that a mark names and the log does not have are damage: their bytes are
/// errors from then on.
#[test]
fn a_log_that_has_lost_records_is_noticed() {
    let (pool, log) = pool_and_log();
    let first = owner(&pool, 100, Some(&log));
    let (place, blob) = first.create();
    blob.write_at(&[1; 5000], 0, None).unwrap();
    first.content.sync().unwrap();
    blob.write_at(&[2; 5000], 0, None).unwrap();
    blob.sync().unwrap();
    drop((blob, first));
    // The same log, as it was before.
    let older = formatted(Memory::new(SIZE_MIN), 1);
    let stale = pool.content_with(Some(&older));
    assert!(stale.take_over(Guard { shard: 0, epoch: 101 }).is_err());
    drop(stale);
    // One that only lacks the records.
    wal_on(&older).begin(100).unwrap();
    for epoch in [101, 102] {
        let next = owner(&pool, epoch, Some(&older));
        assert!(next.read(place, 0).is_err());
        assert_eq!(next.staged_elsewhere().len(), 1);
    }
    let next = owner(&pool, 103, Some(&older));
    next.give_up();
    assert_eq!(next.read(place, 0).unwrap(), [1; 1000]);
}
