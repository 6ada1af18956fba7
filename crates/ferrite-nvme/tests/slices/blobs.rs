//! Blobs without an engine.

use std::hash::{Hash, Hasher};

use ferrite_nvme::content_store::{
    Blob, BlobName, ContentStore, Error, Guard, Place, SlicesContent, UniqueId, UniqueIds,
};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;

use super::bucket::{Fate, Request};
use super::{InS3, quick};
use crate::faults::pool::check_holes;

fn owner(pool: &InS3, epoch: u64) -> (SlicesContent, UniqueIds) {
    let content = pool.content_with(pool.log.as_ref());
    let guard = Guard { shard: 0, epoch };
    content.take_over(guard).unwrap();
    (content, UniqueIds::new(guard))
}

fn bytes_of(blob: &dyn Blob, len: usize) -> Vec<u8> {
    let mut bytes = vec![1; len];
    blob.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Random changes and publications of a blob of three blocks, against a vector; another owner finds it as of a moment,
/// of the last sync or later.
#[test]
fn a_blob_is_what_was_written() {
    let first = seed_from_env().unwrap_or(0);
    for seed in first..first + 6 {
        random_changes(seed, InS3::new(quick()), true);
    }
}

/// The same with a log, and a bucket that stores nothing most of the time.
#[test]
fn a_logged_blob_is_what_was_written() {
    let first = seed_from_env().unwrap_or(0);
    for seed in first..first + 6 {
        let mut pool = InS3::logged(quick());
        pool.set_buffer(32 << 20);
        random_changes(seed, pool, false);
    }
}

fn moment(content: &[u8], tail: &[u8]) -> u64 {
    let mut hash = std::hash::DefaultHasher::new();
    (content, tail).hash(&mut hash);
    hash.finish()
}

fn random_changes(seed: u64, pool: InS3, has_bucket: bool) {
    const LEN: u64 = 9 << 20;
    let mut rng = Rng::new(seed);
    let (mut epoch, mut owner_now) = (100, owner(&pool, 100));
    let place = owner_now.0.reserve(0, 1, &owner_now.1).unwrap()[0];
    let mut blob = owner_now.0.create(place).unwrap();
    let (mut want, mut tail) = (vec![0; LEN as usize], Vec::new());
    // Moments at which a crash may leave it, and the states of which a copy is kept.
    let mut moments = vec![moment(&want, &tail)];
    for step in 0..120_u64 {
        if !has_bucket {
            match rng.below(4) {
                0 => pool.bucket.mend(),
                _ => pool.bucket.plan(|request| match request {
                    Request::Put => Fate::Lost,
                    _ => Fate::Done,
                }),
            }
        }
        let what = format!("seed {seed}, step {step}");
        let offset = rng.below(LEN);
        let most = [100, 5000, 300_000, LEN][rng.below(4) as usize].min(LEN - offset);
        let len = rng.below(most) + 1;
        let range = offset as usize..(offset + len) as usize;
        let new_tail = (rng.below(2) == 0).then(|| step.to_le_bytes());
        let with = new_tail.as_ref().map(|tail| &tail[..]);
        let mut keeps_tail = false;
        match rng.below(10) {
            0 => {
                blob.truncate(offset, with).unwrap();
                want[range.start..].fill(0);
            }
            1 => {
                blob.punch(offset, len, with).unwrap();
                want[range].fill(0);
            }
            2 => {
                blob.zero(offset, len, with).unwrap();
                want[range].fill(0);
            }
            3 | 4 => {
                while let Err(error) = blob.sync() {
                    assert!(!has_bucket, "{error}");
                    pool.bucket.mend();
                }
                keeps_tail = true;
                moments.clear();
            }
            5 => {
                keeps_tail = true;
                let is_orderly = rng.below(2) == 0;
                if is_orderly {
                    pool.bucket.mend();
                    owner_now.0.close().unwrap();
                    moments = vec![moment(&want, &tail)];
                }
                drop(blob);
                drop(owner_now);
                epoch += 1;
                owner_now = owner(&pool, epoch);
                blob = owner_now.0.open(place).unwrap();
                // Later changes may be there, up to any moment.
                (want, tail) = (bytes_of(&*blob, LEN as usize), blob.tail().unwrap());
                assert!(moments.contains(&moment(&want, &tail)), "{what}");
            }
            _ => {
                let data = pattern(step as u32, len as usize);
                // A log that is full makes writers wait for the bucket.
                while let Err(error) = blob.write_at(&data, offset, with) {
                    assert!(!has_bucket && error == Error::NoSpace, "{error}");
                    pool.bucket.mend();
                }
                want[range].copy_from_slice(&data);
            }
        }
        if let (Some(new), false) = (new_tail, keeps_tail) {
            tail = new.to_vec();
        }
        moments.push(moment(&want, &tail));
        assert!(blob.tail().unwrap() == tail, "{what}");
        let written = want.iter().rposition(|&byte| byte != 0).map_or(0, |at| at as u64 + 1);
        assert!(blob.valid_len() >= written, "{what}");
        assert!(bytes_of(&*blob, LEN as usize) == want, "{what}");
        check_holes(&*blob, &want, &what);
        let (at, some) = (rng.below(LEN) as usize, rng.below(9000) as usize);
        let some = some.min(want.len() - at);
        let mut part = vec![1; some];
        blob.read_at(&mut part, at as u64).unwrap();
        assert!(part == want[at..at + some], "{what}");
    }
    pool.bucket.mend();
    owner_now.0.delete(place).unwrap();
    for error in [
        owner_now.0.delete(place),
        owner_now.0.open(place).map(drop),
        blob.write_at(b"x", 9000, None),
        blob.sync(),
    ] {
        assert_eq!(error, Err(Error::NotFound));
    }
    drop(blob);
    owner_now.0.close().unwrap();
    drop(owner_now);
    // A request that an earlier owner repeats may still arrive, for there is no time of grace here.
    if has_bucket {
        pool.check_bucket();
        assert_eq!(pool.bucket.objects().len(), 0, "seed {seed}");
    }
}

/// A client that has taken nothing over reads, and changes nothing.
#[test]
fn a_reader_changes_nothing() {
    let pool = InS3::new(quick());
    let (store, ids) = owner(&pool, 100);
    let place = store.reserve(0, 1, &ids).unwrap()[0];
    let blob = store.create(place).unwrap();
    assert_eq!(store.create(place).map(drop), Err(Error::Exists));
    blob.write_at(b"content", 5, Some(b"tail")).unwrap();
    blob.sync().unwrap();
    let reader = pool.content();
    let read = reader.open(place).unwrap();
    assert_eq!(bytes_of(&*read, 12), b"\0\0\0\0\0content");
    assert_eq!((read.tail().unwrap(), read.valid_len()), (b"tail".to_vec(), 12));
    for refused in [
        read.write_at(b"x", 0, None),
        read.set_tail(b"x"),
        read.truncate(0, None),
        reader.delete(place),
        reader.create(place).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::Failed(_))), "{refused:?}");
    }
    let elsewhere = Place {
        store: 1,
        name: BlobName::Unique(UniqueId {
            shard: 0,
            epoch: 1,
            number: 1,
        }),
    };
    assert!(matches!(store.open(elsewhere), Err(Error::Damaged(_))));
    assert!(matches!(store.space(1), Err(Error::Damaged(_))));
}

/// Large and sparse files: full blocks go to the bucket at once, and a file that begins far behind is short.
#[test]
fn long_and_sparse_blobs() {
    let pool = InS3::new(quick());
    let (store, ids) = owner(&pool, 100);
    let place = store.reserve(0, 1, &ids).unwrap()[0];
    let blob = store.create(place).unwrap();
    let data = pattern(1, 40 << 20);
    blob.write_at(&data, 1000, Some(b"tail")).unwrap();
    let usage = store.view().usage();
    assert!(usage.buffered_bytes <= 12 << 20, "{usage:?}");
    assert!(bytes_of(&*blob, (40 << 20) + 1000)[1000..] == data);
    let far = 1 << 44;
    blob.write_at(b"far", far, None).unwrap();
    assert_eq!(blob.next_data(41 << 20).unwrap(), Some(far));
    blob.sync().unwrap();
    assert_eq!(blob.allocated_bytes(), (40 << 20) + 3);
    assert_eq!(store.view().usage().live_bytes, (40 << 20) + 3);
    assert_eq!(store.view().usage().buffered_bytes, 0);
    // Eleven blocks, and one far away. A block is cut where memory was short just then.
    let objects = pool.bucket.objects().len();
    assert!((12..=36).contains(&objects), "{objects} objects");
    blob.truncate(5000, None).unwrap();
    blob.sync().unwrap();
    assert_eq!(blob.allocated_bytes(), 4000);
    assert_eq!(blob.write_at(b"x", u64::MAX - 1, None), Err(Error::NoSpace));
    assert_eq!(blob.reserve(0, 1 << 52, None), Err(Error::NoSpace));
}

/// Many small writes to one block end in few extents, and what they replaced goes.
#[test]
fn crowded_blocks_are_written_anew() {
    let pool = InS3::new(quick());
    let (store, ids) = owner(&pool, 100);
    let place = store.reserve(0, 1, &ids).unwrap()[0];
    let blob = store.create(place).unwrap();
    let mut want = pattern(1, 4 << 20);
    blob.write_at(&want, 0, None).unwrap();
    let mut rng = Rng::new(1);
    for step in 0..200_u32 {
        let (at, data) = (rng.below(4 << 20) as usize, pattern(step, 3000));
        let data = &data[..data.len().min(want.len() - at)];
        blob.write_at(data, at as u64, None).unwrap();
        want[at..at + data.len()].copy_from_slice(data);
        blob.sync().unwrap();
    }
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let bytes = || {
        pool.bucket
            .objects()
            .iter()
            .map(|(_, object)| object.len())
            .sum::<usize>()
    };
    while store.view().usage().rewritten_blocks == 0 || bytes() > (4 << 20) * 5 / 4 {
        assert!(std::time::Instant::now() < until, "{} bytes in the bucket", bytes());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(bytes_of(&*blob, want.len()) == want);
    let reader = pool.content();
    assert!(bytes_of(&*reader.open(place).unwrap(), want.len()) == want);
}

/// A block with many holes has many extents whatever is done, and is left alone.
#[test]
fn sparse_blocks_are_not_written_anew_for_ever() {
    let pool = InS3::new(quick());
    let (store, ids) = owner(&pool, 100);
    let place = store.reserve(0, 1, &ids).unwrap()[0];
    let blob = store.create(place).unwrap();
    for part in 0..60 {
        blob.write_at(&[7; 4096], part * (64 << 10), None).unwrap();
    }
    blob.sync().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let usage = store.view().usage();
    assert_eq!((usage.rewritten_blocks, usage.requests.puts), (0, 1), "{usage:?}");
    // A piece of memory for each part, and not a block.
    blob.write_at(&[8; 4096], 100 << 20, None).unwrap();
    assert_eq!(store.view().usage().buffered_bytes, 64 << 10);
}

/// A publication that is too large for one transaction of a database is several.
#[test]
fn large_changes_are_published_in_steps() {
    let pool = InS3::new(quick());
    let (store, ids) = owner(&pool, 100);
    let place = store.reserve(0, 1, &ids).unwrap()[0];
    let blob = store.create(place).unwrap();
    // A block each, many more than a transaction has rows.
    for block in 0..4000_u64 {
        blob.write_at(&block.to_le_bytes(), block << 22, None).unwrap();
    }
    blob.set_tail(b"tail").unwrap();
    blob.sync().unwrap();
    let reader = pool.content();
    let read = reader.open(place).unwrap();
    for block in [0, 1, 1999, 3999_u64] {
        let mut bytes = [0; 8];
        read.read_at(&mut bytes, block << 22).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), block);
    }
    blob.truncate(10, None).unwrap();
    blob.sync().unwrap();
    assert_eq!(store.view().usage().live_bytes, 8);
    drop((reader, read));
    store.delete(place).unwrap();
    drop(blob);
    store.close().unwrap();
    assert_eq!(store.view().compare(false).unwrap().leaked, (0, 0));
}

/// A row has a place for each extent, so bytes that lie close to each other become one.
#[test]
fn tiny_parts_of_a_block_share_extents() {
    let pool = InS3::new(quick());
    let (store, ids) = owner(&pool, 100);
    let place = store.reserve(0, 1, &ids).unwrap()[0];
    let blob = store.create(place).unwrap();
    let mut want = vec![0; 3 << 20];
    for at in (7..want.len()).step_by(300) {
        blob.write_at(b"x", at as u64, None).unwrap();
        want[at] = b'x';
    }
    let end = want.iter().rposition(|&byte| byte == b'x').unwrap() + 1;
    want.truncate(end);
    blob.sync().unwrap();
    assert!(bytes_of(&*blob, want.len()) == want);
    assert_eq!(blob.valid_len(), end as u64);
    let mut longest = 0;
    let visit = &mut |_: &[u8], row: &[u8]| {
        longest = longest.max(row.len());
        std::ops::ControlFlow::Continue(())
    };
    pool.meta.scan(b"L", b"M", visit).unwrap();
    assert!(longest < 1000 * 32, "{longest} bytes");
    let reader = pool.content();
    let read = reader.open(place).unwrap();
    assert!(bytes_of(&*read, want.len()) == want && read.valid_len() == end as u64);
}

/// A blob whose publication is under way is not durable yet.
#[test]
fn a_publication_under_way_is_not_durable() {
    let pool = InS3::new(quick());
    let (store, ids) = owner(&pool, 100);
    let place = store.reserve(0, 1, &ids).unwrap()[0];
    let blob = store.create(place).unwrap();
    blob.sync().unwrap();
    assert!(blob.is_synced());
    pool.bucket.plan(|_| Fate::Held);
    blob.write_at(&[1; 5000], 0, None).unwrap();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| blob.sync());
        for _ in 0..50 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            assert!(!blob.is_synced(), "its object is held");
        }
        pool.bucket.mend();
        sync.join().unwrap().unwrap();
    });
    assert!(blob.is_synced());
}
