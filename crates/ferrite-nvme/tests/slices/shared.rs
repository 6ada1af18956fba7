//! Blobs that name the slices of other blobs.
//!
//! Protected: sharing moves no bytes; a change of one blob changes no other; an object stays as long as any blob names
//! it, and goes after the last one, whatever failed or was cut off in between; wrong numbers are found and mended.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_blob::device::Memory;
use ferrite_meta::{Lock, MetaStore, Result as MetaResult, Transaction};
use ferrite_nvme::content_store::{Blob, ChangeLog, ContentStore, Guard, Place, SlicesContent, SlicesParts, UniqueIds};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;
use ferrite_vfs::{CloneRange, FileSystem, OpenMode, SYSTEM};
use ferrite_wal::SIZE_MIN;

use super::bucket::Fate;
use super::logged::{Owner, formatted, log_on, owner, slow};
use super::{InS3, quick};
use crate::faults::pool::{open, put, read};

fn bytes_of(blob: &dyn Blob, len: usize) -> Vec<u8> {
    let mut bytes = vec![1; len];
    blob.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Waits until there are so many objects, each of which a blob names.
fn check_bucket(owner: &Owner, objects: usize) {
    let settled = |owner: &Owner| {
        let found = owner.content.view().compare(false).unwrap();
        assert_eq!(
            (found.leaked, found.miscounted, &found.damaged),
            ((0, 0), 0, &Vec::new())
        );
        found.dead.0 == 0 && found.pending.0 == 0 && found.live.0 == objects as u64
    };
    owner.wait_for(&format!("there are not {objects} objects"), settled);
}

/// A blob over three chunks, with a hole and an overwritten part.
fn large(owner: &Owner) -> (Place, Arc<dyn Blob>, Vec<u8>) {
    let (place, blob) = owner.create();
    let mut want = vec![0; 130 << 20];
    for (at, len, seed) in [
        (0, 9 << 20, 1),
        (70 << 20, 1 << 20, 2),
        (129 << 20, 1 << 20, 3),
        (100, 5000, 4),
    ] {
        let data = pattern(seed, len);
        blob.write_at(&data, at as u64, Some(b"tail")).unwrap();
        want[at..at + len].copy_from_slice(&data);
        blob.sync().unwrap();
    }
    (place, blob, want)
}

#[test]
fn sharing_moves_no_bytes_and_no_change_shows_elsewhere() {
    let pool = InS3::new(quick());
    let first = owner(&pool, 100, None);
    let (place, original, want) = large(&first);
    let requests = || first.content.view().usage().requests;
    let before = requests();
    let objects = pool.bucket.objects().len();
    let (_, copy) = first.create();
    assert!(copy.share_from(&*original, want.len() as u64).unwrap());
    assert_eq!((requests().puts, requests().gets), (before.puts, before.gets));
    assert!(bytes_of(&*copy, want.len()) == want);
    assert_eq!((copy.valid_len(), copy.tail().unwrap()), (want.len() as u64, vec![]));
    // A shorter one; a copy of a copy.
    let (_, short) = first.create();
    assert!(short.share_from(&*original, 70 << 20).unwrap());
    assert_eq!(short.valid_len(), 70 << 20);
    let (third_place, third) = first.create();
    assert!(third.share_from(&*copy, want.len() as u64).unwrap());
    copy.write_at(&[9; 5000], 50, Some(b"copy")).unwrap();
    copy.sync().unwrap();
    assert!(requests().sent_bytes - before.sent_bytes < 20_000);
    assert!(bytes_of(&*original, want.len()) == want && bytes_of(&*third, want.len()) == want);
    let mut changed = want.clone();
    changed[50..5050].fill(9);
    assert!(bytes_of(&*copy, want.len()) == changed);
    check_bucket(&first, objects + 1);
    // The original goes; the others stay as they are, also for the next owner.
    drop(original);
    first.content.delete(place).unwrap();
    short.sync().unwrap();
    check_bucket(&first, objects + 1);
    drop((copy, short, third));
    first.content.close().unwrap();
    drop(first);
    let second = owner(&pool, 101, None);
    let third = second.content.open(third_place).unwrap();
    assert!(bytes_of(&*third, want.len()) == want);
    third.truncate(0, None).unwrap();
    third.sync().unwrap();
    second.content.delete(third_place).unwrap();
    check_bucket(&second, objects + 1);
}

/// A blob that cannot be published is copied otherwise, so nothing waits for a bucket that is away for longer than a
/// publication does.
#[test]
fn what_is_not_in_the_bucket_is_not_shared() {
    let pool = InS3::new(slow());
    let first = owner(&pool, 100, None);
    pool.bucket.plan(|_| Fate::Lost);
    let (_, blob) = first.create();
    blob.write_at(&[1; 9000], 0, None).unwrap();
    let (_, copy) = first.create();
    assert!(!copy.share_from(&*blob, 9000).unwrap());
    assert_eq!((copy.valid_len(), bytes_of(&*copy, 9000)), (0, vec![0; 9000]));
    pool.bucket.mend();
    assert!(copy.share_from(&*blob, 9000).unwrap());
    // Only one that is new.
    copy.write_at(&[2; 10], 0, None).unwrap();
    assert!(!copy.share_from(&*blob, 9000).unwrap());
    assert_eq!(bytes_of(&*copy, 9000)[..11], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
}

/// A metadata store whose commits fail after a number of them: all, or one alone.
struct Failing {
    inner: Arc<dyn MetaStore>,
    left: Arc<AtomicU64>,
}

/// Of the number of commits: only the next one fails.
const ONE: u64 = 1 << 40;

struct FailingTransaction<'f> {
    inner: Box<dyn Transaction + 'f>,
    left: &'f AtomicU64,
}

type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

impl MetaStore for Failing {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        Box::new(FailingTransaction {
            inner: self.inner.begin(),
            left: &self.left,
        })
    }

    fn get(&self, key: &[u8]) -> MetaResult<Option<Vec<u8>>> {
        self.inner.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> MetaResult<()> {
        self.inner.scan(from, to, visit)
    }

    fn sync(&self) -> MetaResult<()> {
        self.inner.sync()
    }
}

impl Transaction for FailingTransaction<'_> {
    fn get(&self, key: &[u8]) -> MetaResult<Option<Vec<u8>>> {
        self.inner.get(key)
    }

    fn get_for_update(&mut self, key: &[u8], lock: Lock) -> MetaResult<Option<Vec<u8>>> {
        self.inner.get_for_update(key, lock)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> MetaResult<()> {
        self.inner.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> MetaResult<()> {
        self.inner.delete(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> MetaResult<()> {
        self.inner.scan(from, to, visit)
    }

    fn savepoint(&mut self) {
        self.inner.savepoint();
    }

    fn rollback_to_savepoint(&mut self) -> MetaResult<()> {
        self.inner.rollback_to_savepoint()
    }

    fn commit(self: Box<Self>) -> MetaResult<()> {
        let more = |left: u64| match left {
            ONE => Some(u64::MAX),
            left => left.checked_sub(1),
        };
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more) {
            Ok(ONE) => Err(ferrite_meta::Error::Busy),
            Ok(_) => self.inner.commit(),
            Err(_) => Err(ferrite_meta::Error::Io("the power is off".into())),
        }
    }
}

/// An owner whose commits fail from some number on, if `left` has one.
fn failing_owner(pool: &InS3, epoch: u64, left: &Arc<AtomicU64>) -> Owner {
    failing_owner_with(pool, epoch, left, None)
}

/// The same with a log.
fn failing_owner_with(pool: &InS3, epoch: u64, left: &Arc<AtomicU64>, log: Option<ChangeLog>) -> Owner {
    let meta = Arc::new(Failing {
        inner: Arc::clone(&pool.meta),
        left: Arc::clone(left),
    });
    let parts = SlicesParts {
        codec: pool.codec.clone(),
        log,
        ..SlicesParts::default()
    };
    let content = SlicesContent::with(pool.bucket.client(), meta, [7; 16], pool.options, parts).unwrap();
    let guard = Guard { shard: 0, epoch };
    content.take_over(guard).unwrap();
    Owner::of(content, UniqueIds::new(guard))
}

/// Some blobs that are shared, changed and deleted at random; the power goes off at any commit, and the blob that was
/// being made is deleted then, as its owner would.
#[test]
fn no_crash_loses_a_slice_or_leaves_one() {
    let first = seed_from_env().unwrap_or(0);
    for seed in first..first + 4 {
        random_sharing(seed);
    }
}

struct Known {
    place: Place,
    /// As of the last sync.
    bytes: Vec<u8>,
}

const LEN: usize = 9 << 20;

fn random_sharing(seed: u64) {
    let mut rng = Rng::new(seed);
    let pool = InS3::new(quick());
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let mut known: Vec<Known> = Vec::new();
    for epoch in 100..112 {
        left.store(u64::MAX, Ordering::SeqCst);
        let now = failing_owner(&pool, epoch, &left);
        for one in &known {
            let blob = now.content.open(one.place).unwrap();
            assert!(bytes_of(&*blob, LEN) == one.bytes, "seed {seed}, epoch {epoch}");
        }
        for _ in 0..8 {
            change(&now, &mut known, &mut rng);
        }
        check_numbers(&now);
        // One operation that the crash cuts off.
        left.store(rng.below(6), Ordering::SeqCst);
        let unsure = cut_off(&now, &mut known, &mut rng);
        drop(now);
        left.store(u64::MAX, Ordering::SeqCst);
        let next = failing_owner(&pool, epoch, &left);
        for place in unsure {
            let deleted = next.content.delete(place);
            assert!(deleted.is_ok() || deleted.is_err_and(|error| error.is_not_found()));
        }
        check_numbers(&next);
    }
    left.store(u64::MAX, Ordering::SeqCst);
    let last = failing_owner(&pool, 200, &left);
    for one in known {
        last.content.delete(one.place).unwrap();
    }
    check_bucket(&last, 0);
}

fn check_numbers(owner: &Owner) {
    assert_eq!(owner.content.view().compare(false).unwrap().miscounted, 0);
}

fn change(owner: &Owner, known: &mut Vec<Known>, rng: &mut Rng) {
    let at = rng.below(known.len().max(1) as u64) as usize;
    match rng.below(8) {
        0 if !known.is_empty() => {
            owner.content.delete(known.swap_remove(at).place).unwrap();
        }
        1..4 if !known.is_empty() => {
            let (place, blob) = owner.create();
            let from = owner.content.open(known[at].place).unwrap();
            assert!(blob.share_from(&*from, LEN as u64).unwrap());
            let bytes = known[at].bytes.clone();
            known.push(Known { place, bytes });
        }
        4..7 if !known.is_empty() => {
            let one = &mut known[at];
            let blob = owner.content.open(one.place).unwrap();
            let offset = rng.below(LEN as u64) as usize;
            let len = (rng.below(6 << 20) as usize + 1).min(LEN - offset);
            let data = pattern(rng.below(1000) as u32, len);
            blob.write_at(&data, offset as u64, None).unwrap();
            one.bytes[offset..offset + len].copy_from_slice(&data);
            blob.sync().unwrap();
        }
        _ => {
            let (place, blob) = owner.create();
            let bytes = pattern(rng.below(1000) as u32, LEN);
            blob.write_at(&bytes, 0, None).unwrap();
            blob.sync().unwrap();
            known.push(Known { place, bytes });
        }
    }
}

/// Shares or deletes while commits begin to fail. Returns the blobs that are to be deleted then.
fn cut_off(owner: &Owner, known: &mut Vec<Known>, rng: &mut Rng) -> Vec<Place> {
    if known.is_empty() {
        return Vec::new();
    }
    let at = rng.below(known.len() as u64) as usize;
    if rng.below(3) == 0 {
        let place = known.swap_remove(at).place;
        let _ = owner.content.delete(place);
        return vec![place];
    }
    let made = owner.content.reserve(0, 1, owner.ids()).map(|places| {
        let blob = owner.content.create(places[0]);
        let from = owner.content.open(known[at].place).unwrap();
        let shared = blob.and_then(|blob| blob.share_from(&*from, LEN as u64));
        drop(from);
        // The same process deletes it, if it still can.
        if shared.is_err() && rng.below(2) == 0 {
            let _ = owner.content.delete(places[0]);
        }
        places[0]
    });
    made.into_iter().collect()
}

/// A step that fails is made again, by the same process or the next one, and takes no name from a slice twice.
#[test]
fn steps_that_are_made_again_change_no_number_twice() {
    // Publications and deletions of several steps.
    let mut failures = [0; 2];
    for fails_at in 0..3 {
        for deletes in [false, true] {
            let pool = InS3::new(slow());
            let left = Arc::new(AtomicU64::new(u64::MAX));
            let first = failing_owner(&pool, 100, &left);
            let (place, blob) = first.create();
            // So many slices that a change of all is several transactions.
            let want: Vec<_> = (0..3100_u64).map(|block| (block << 22, [block as u8 | 1; 8])).collect();
            for (at, data) in &want {
                blob.write_at(data, *at, None).unwrap();
            }
            blob.sync().unwrap();
            let (copy_place, copy) = first.create();
            assert!(copy.share_from(&*blob, blob.valid_len()).unwrap());
            copy.write_at(&[9; 10], 5, None).unwrap();
            left.store(ONE + fails_at, Ordering::SeqCst);
            let mut failed = 0;
            if deletes {
                while let Err(error) = first.content.delete(copy_place) {
                    assert!(!error.is_not_found(), "{error}");
                    // Nothing of it is published meanwhile.
                    assert!(copy.sync().is_err());
                    failed += 1;
                }
            } else {
                copy.truncate(0, None).unwrap();
                while copy.sync().is_err() {
                    failed += 1;
                }
            }
            assert!(failed <= 1);
            failures[usize::from(deletes)] += failed;
            left.store(u64::MAX, Ordering::SeqCst);
            check_numbers(&first);
            drop((copy, blob));
            first.content.close().unwrap();
            drop(first);
            let second = owner(&pool, 101, None);
            let found = second.content.view().compare(false).unwrap();
            assert_eq!((found.leaked.0, found.miscounted, &found.damaged), (0, 0, &Vec::new()));
            let blob = second.content.open(place).unwrap();
            for (at, data) in &want {
                let mut bytes = [0; 8];
                blob.read_at(&mut bytes, *at).unwrap();
                assert_eq!(bytes, *data, "fails at {fails_at}, deletes {deletes}");
            }
        }
    }
    assert!(failures.iter().all(|&count| count > 1), "{failures:?}");
}

/// A deletion that fails keeps neither the log nor memory for a file that nobody has any more.
#[test]
fn a_deletion_that_fails_frees_the_log() {
    for fails_at in 0..2 {
        let pool = InS3::new(slow());
        let left = Arc::new(AtomicU64::new(u64::MAX));
        let log = log_on(&formatted(Memory::new(SIZE_MIN), 1));
        let owner = failing_owner_with(&pool, 100, &left, Some(log));
        let (place, blob) = owner.create();
        blob.write_at(&[1; 9000], 0, None).unwrap();
        owner.content.sync().unwrap();
        blob.write_at(&[2; 9000], 0, None).unwrap();
        blob.sync().unwrap();
        assert!(owner.used_log_bytes() > 0);
        left.store(ONE + fails_at, Ordering::SeqCst);
        assert!(owner.content.delete(place).is_err());
        owner.wait_for("the log is kept", |owner| owner.used_log_bytes() == 0);
        assert_eq!(owner.content.view().usage().buffered_bytes, 0);
        assert!(blob.sync().is_err() && blob.write_at(&[3; 10], 0, None).is_err());
        owner.content.delete(place).unwrap();
        drop(blob);
        check_bucket(&owner, 0);
    }
}

/// Numbers that are wrong are found, and mended before any object goes too early.
#[test]
fn wrong_numbers_are_found_and_mended() {
    let pool = InS3::new(quick());
    let first = owner(&pool, 100, None);
    let (place, blob) = first.create();
    blob.write_at(&[1; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    let (copy_place, copy) = first.create();
    assert!(copy.share_from(&*blob, 9000).unwrap());
    let mut numbers = Vec::new();
    let collect = &mut |key: &[u8], value: &[u8]| {
        numbers.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    pool.meta.scan(b"ZC", b"ZD", collect).unwrap();
    assert_eq!(numbers.len(), 1);
    for wrong in [None, Some(7_u64.to_le_bytes().to_vec()), Some(vec![1])] {
        let mut txn = pool.meta.begin();
        match &wrong {
            Some(value) => txn.put(&numbers[0].0, value).unwrap(),
            None => txn.delete(&numbers[0].0).unwrap(),
        }
        txn.commit().unwrap();
        let view = first.content.view();
        assert_eq!(view.compare(false).unwrap().miscounted, 1, "{wrong:?}");
        assert_eq!(view.compare(true).unwrap().miscounted, 1);
        assert_eq!(view.compare(false).unwrap().miscounted, 0);
    }
    drop(blob);
    first.content.delete(place).unwrap();
    check_bucket(&first, 1);
    assert_eq!(bytes_of(&*copy, 9000), [1; 9000]);
    drop(copy);
    first.content.delete(copy_place).unwrap();
    check_bucket(&first, 0);
}

/// A clone of a file in S3 costs no object, and its first change one of what was written.
#[test]
fn the_first_change_of_a_clone_sends_what_was_written() {
    for mut pool in [InS3::new(quick()), InS3::logged(quick())] {
        put(pool.engine(), "f", 0, &pattern(1, 30 << 20)).unwrap();
        put(pool.engine(), "g", 0, b"").unwrap();
        pool.engine().sync(SYSTEM).unwrap();
        let sent = |pool: &InS3| pool.view().usage().requests;
        let before = sent(&pool);
        let source = open(pool.engine(), "f", OpenMode::read_only()).unwrap();
        let clone = open(pool.engine(), "g", OpenMode::read_write()).unwrap();
        let range = CloneRange {
            source: source.id(),
            source_offset: 0,
            offset: 0,
            len_bytes: 30 << 20,
        };
        clone.clone_range(SYSTEM, &range).unwrap();
        clone.write_at(SYSTEM, 10 << 20, &[7; 5000]).unwrap();
        clone.fsync(SYSTEM).unwrap();
        drop((source, clone));
        pool.engine().sync(SYSTEM).unwrap();
        let after = sent(&pool);
        assert!(
            after.sent_bytes - before.sent_bytes < 50_000 && after.gets == before.gets,
            "{before:?}, {after:?}"
        );
        for _ in 0..2 {
            assert!(read(pool.engine(), "f").unwrap() == pattern(1, 30 << 20));
            let cloned = read(pool.engine(), "g").unwrap();
            assert!(cloned[10 << 20..][..5000] == [7; 5000] && cloned[..10 << 20] == pattern(1, 30 << 20)[..10 << 20]);
            pool.crash();
        }
        pool.check_bucket();
    }
}
