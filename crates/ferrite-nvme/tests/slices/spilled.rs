//! Content that waits for the bucket in the log instead of memory.
//!
//! Protected: the log, and not memory, bounds what waits; what waits there is read as it was written, through changes,
//! publications and crashes; a log that is full makes writers wait, and then refuses them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrite_blob::device::{Device, Memory, Op};
use ferrite_nvme::content_store::{Blob, ContentStore, Error};
use ferrite_testkit::rng::{Rng, pattern};

use super::InS3;
use super::bucket::{Fate, Request};
use super::logged::{Owner, formatted, owner, slow};

const MIB: usize = 1 << 20;
const BUFFER_BYTES: u64 = 8 << 20;

fn pool_with_log(bytes: u64) -> (InS3, Arc<dyn Device>) {
    let mut pool = InS3::new(slow());
    pool.set_buffer(BUFFER_BYTES);
    (pool, formatted(Memory::new(bytes), 1))
}

fn seed() -> u64 {
    let seed = ferrite_testkit::seed_from_env().unwrap_or(7);
    println!("seed {seed}");
    seed
}

fn check(blob: &dyn Blob, model: &[u8]) {
    let mut found = vec![0; model.len()];
    blob.read_at(&mut found, 0).unwrap();
    let wrong = found.iter().zip(model).position(|(one, other)| one != other);
    assert_eq!(wrong, None, "a byte is wrong");
}

/// Random writes of up to 1 MiB, holes, and now and then many small ones in one block.
fn change(blob: &dyn Blob, model: &mut [u8], rng: &mut Rng, step: u32) {
    let at = rng.below((model.len() - MIB) as u64) as usize;
    let len = 1 + rng.below(MIB as u64) as usize;
    match rng.below(12) {
        0 => {
            blob.punch(at as u64, len as u64, None).unwrap();
            model[at..at + len].fill(0);
        }
        1 => {
            for (index, part) in pattern(step, len.min(300_000)).chunks(200).enumerate() {
                blob.write_at(part, (at + index * 200) as u64, None).unwrap();
                model[at + index * 200..][..part.len()].copy_from_slice(part);
            }
        }
        _ => {
            let data = pattern(step, len);
            blob.write_at(&data, at as u64, None).unwrap();
            model[at..at + len].copy_from_slice(&data);
        }
    }
}

/// Protects what users wrote while the bucket was away: many times what memory has.
#[test]
fn the_log_bounds_what_waits_for_the_bucket() {
    let (mut pool, log) = pool_with_log(256 << 20);
    pool.set_publish_timeout(Duration::from_secs(10));
    let seed = seed();
    let mut rng = Rng::new(seed);
    let first = owner(&pool, 100, Some(&log));
    let files: Vec<_> = (0..2).map(|_| first.create()).collect();
    let mut models = [(); 2].map(|()| vec![0; 40 * MIB]);
    pool.bucket.plan(|_| Fate::Lost);
    let mut spilled_max = 0;
    for step in 1..120 {
        let of = rng.below(2) as usize;
        change(&*files[of].1, &mut models[of], &mut rng, step);
        let usage = first.content.view().usage();
        spilled_max = spilled_max.max(usage.spilled_bytes);
        assert!(usage.buffered_bytes <= BUFFER_BYTES + (8 << 20), "{usage:?}");
        if step % 30 == 0 {
            check(&*files[of].1, &models[of]);
            files[of].1.sync().unwrap();
        }
    }
    assert!(spilled_max > 16 << 20, "{spilled_max} bytes left memory");
    for ((_, blob), model) in files.iter().zip(&models) {
        check(&**blob, model);
        blob.sync().unwrap();
    }
    let places: Vec<_> = files.iter().map(|(place, _)| *place).collect();
    drop((files, first));
    pool.bucket.mend();
    let next = owner(&pool, 101, Some(&log));
    for (place, model) in places.iter().zip(&models) {
        check(&*next.content.open(*place).unwrap(), model);
    }
    next.content.sync().unwrap();
    next.wait_for("something still waits", |owner| {
        owner.content.view().usage().spilled_bytes == 0
    });
    next.wait_for("the log is not emptied", |owner| owner.used_log_bytes() == 0);
    for (place, model) in places.iter().zip(&models) {
        check(&*next.content.open(*place).unwrap(), model);
    }
}

/// Publications, changes and reads while slices leave memory and come back from the log.
#[test]
fn content_leaves_memory_while_it_is_published() {
    let (mut pool, log) = pool_with_log(64 << 20);
    // Each object needs some attempts, with pauses.
    pool.set_publish_timeout(Duration::from_secs(30));
    let owner = owner(&pool, 100, Some(&log));
    let (_, blob) = owner.create();
    let mut rng = Rng::new(seed());
    let mut model = vec![0; 24 * MIB];
    let mut attempts = 0;
    pool.bucket.plan(move |request| {
        attempts += u64::from(request == Request::Put);
        match request == Request::Put && attempts % 3 > 0 {
            true => Fate::Lost,
            false => Fate::Done,
        }
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // The bucket fails often; the next one has the rest.
                let _ = owner.content.sync();
            }
        });
        let changed = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for step in 1..60 {
                change(&*blob, &mut model, &mut rng, step);
                if step % 10 == 0 {
                    check(&*blob, &model);
                }
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        changed.unwrap();
    });
    pool.bucket.mend();
    check(&*blob, &model);
    while owner.content.sync().is_err() {}
    // Slices that were overwritten are on their way all the same.
    owner.wait_for("something still waits", |owner| {
        owner.content.view().usage().spilled_bytes == 0
    });
    check(&*blob, &model);
}

fn fill(blob: &dyn Blob, mut at: u64) -> (u64, Error) {
    loop {
        match blob.write_at(&[7; MIB], at, None) {
            Ok(()) => at += MIB as u64,
            Err(error) => return (at, error),
        }
    }
}

/// A full log makes writers wait for the bucket, and refuses them if it takes nothing; `fsync` succeeds all the same.
#[test]
fn a_full_log_makes_writers_wait() {
    let (mut pool, log) = pool_with_log(32 << 20);
    pool.set_publish_timeout(Duration::from_secs(2));
    let owner = owner(&pool, 100, Some(&log));
    let (_, blob) = owner.create();
    pool.bucket.plan(|_| Fate::Lost);
    let (end, error) = fill(&*blob, 0);
    assert_eq!(error, Error::NoSpace);
    assert!((24 << 20..32 << 20).contains(&end), "{end}");
    blob.sync().unwrap();
    // Something else may still change.
    blob.truncate(end - 1000, None).unwrap();
    blob.sync().unwrap();
    let bucket = Arc::clone(&pool.bucket);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        bucket.mend();
    });
    let begun = Instant::now();
    for part in 0..40 {
        // Requests are repeated after a pause, which may be longer than writers wait here.
        while let Err(error) = blob.write_at(&[8; MIB], part << 20, None) {
            assert!(
                error == Error::NoSpace && begun.elapsed() < Duration::from_secs(30),
                "{error}"
            );
        }
    }
    assert!(begun.elapsed() >= Duration::from_millis(90));
    check(&*blob, &[8; 40 << 20]);
}

/// A file whose bytes the log has lost keeps the log full, and costs others neither their turn nor their content.
#[test]
fn an_unreadable_slice_does_not_stop_others() {
    let (mut pool, log) = pool_with_log(32 << 20);
    pool.set_publish_timeout(Duration::from_secs(2));
    let owner = owner(&pool, 100, Some(&log));
    let [lost, other] = [(); 2].map(|()| owner.create().1);
    pool.bucket.plan(|request| match request {
        Request::Put => Fate::Lost,
        _ => Fate::Done,
    });
    for part in 0..16 {
        lost.write_at(&pattern(1, MIB), part << 20, None).unwrap();
    }
    lost.sync().unwrap();
    assert!(owner.content.view().usage().spilled_bytes > 0);
    let mut ring = vec![0; (32 << 20) - 8192];
    let into = &mut ring[..];
    log.run(&mut [Op::Read { offset: 8192, into }]).unwrap();
    ring.chunks_mut(4096).for_each(|page| page[100] ^= 1);
    let (offset, from, durable) = (8192, &ring[..], true);
    log.run(&mut [Op::Write { offset, from, durable }]).unwrap();
    // Requests that have the bytes already end before.
    std::thread::sleep(Duration::from_secs(3));
    pool.bucket.mend();
    let begun = Instant::now();
    let want = pattern(2, 64 * MIB);
    for (part, data) in want.chunks(MIB).enumerate() {
        other.write_at(data, (part as u64) << 20, None).unwrap();
        if part % 8 == 0 {
            other.sync().unwrap();
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    check(&*other, &want);
    let error = owner.content.sync().unwrap_err().to_string();
    assert!(error.contains("has changed"), "{error}");
}

/// A removed file gives the log back, though its slices were on their way.
#[test]
fn removed_files_leave_the_log() {
    let (mut pool, log) = pool_with_log(32 << 20);
    pool.set_publish_timeout(Duration::from_secs(10));
    let owner: Owner = owner(&pool, 100, Some(&log));
    pool.bucket.plan(|_| Fate::Lost);
    for _ in 0..4 {
        let (place, blob) = owner.create();
        for part in 0..20 {
            blob.write_at(&[7; MIB], part << 20, None).unwrap();
        }
        assert!(owner.content.view().usage().spilled_bytes > 0);
        drop(blob);
        owner.content.delete(place).unwrap();
        // All but the group that nobody has made durable.
        owner.wait_for("the log is not emptied", |owner| owner.used_log_bytes() < 5 << 20);
    }
    owner.wait_for("something still waits", |owner| {
        owner.content.view().usage().spilled_bytes == 0
    });
}
