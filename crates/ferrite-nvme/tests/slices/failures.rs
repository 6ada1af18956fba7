//! Requests that fail, objects that are damaged, and owners that are replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_testkit::rng::pattern;
use ferrite_vfs::{FileSystem, NewFile, OpenFile, OpenMode, ROOT_INO, SYSTEM};

use super::bucket::{Fate, Request};
use super::{InS3, quick};
use crate::faults::pool::{put, read};

fn create(fs: &dyn FileSystem, name: &str) -> Arc<dyn OpenFile> {
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    fs.create(SYSTEM, ROOT_INO, name.as_bytes(), &new).unwrap().file
}

/// Whatever becomes of requests, a file that was synced is there, and one that was not is there as of a moment.
#[test]
fn requests_that_fail_lose_nothing() {
    for fate in [Fate::Lost, Fate::AnswerLost] {
        let mut pool = InS3::new(quick());
        let mut count = 0;
        // Each request but every third fails.
        pool.bucket.plan(move |_| {
            count += 1;
            if count % 3 == 0 { Fate::Done } else { fate }
        });
        for number in 0..4 {
            let data = pattern(number, 5_000_000);
            let file = create(pool.engine(), &format!("f{number}"));
            while file.write_at(SYSTEM, 0, &data).is_err() {}
            while file.fsync(SYSTEM).is_err() {}
        }
        pool.bucket.mend();
        pool.crash();
        for number in 0..4 {
            assert!(
                read(pool.engine(), &format!("f{number}")).unwrap() == pattern(number, 5_000_000),
                "{fate:?}"
            );
        }
        pool.check_bucket();
    }
}

/// A service that refuses is named with its mend; `fsync` says so at once, and succeeds when it was mended.
#[test]
fn a_refusal_is_reported_and_mended() {
    let pool = InS3::new(quick());
    let file = create(pool.engine(), "f");
    file.write_at(SYSTEM, 0, &pattern(1, 3000)).unwrap();
    pool.bucket.plan(|_| Fate::Refused);
    file.write_at(SYSTEM, 3000, &pattern(2, 100_000)).unwrap();
    let error = file.fsync(SYSTEM).unwrap_err().to_string();
    assert!(
        error.contains("does not know the access key") && error.contains("s3://test"),
        "{error}"
    );
    assert!(pool.view().failure().is_some());
    let mut bytes = vec![0; 100_000];
    file.read_at(SYSTEM, 3000, &mut bytes).unwrap();
    assert!(bytes == pattern(2, 100_000), "it is in memory");
    pool.bucket.mend();
    while file.fsync(SYSTEM).is_err() {}
    assert_eq!(pool.view().failure(), None);
    assert_eq!(pool.view().usage().buffered_bytes, 0);
}

/// An object whose answer was lost again and again is found as it was stored, also if it is encrypted.
#[test]
fn lost_answers_are_no_failures() {
    for pool in [InS3::new(quick()), InS3::logged(quick())] {
        let file = create(pool.engine(), "f");
        file.write_at(SYSTEM, 0, &pattern(1, 100_000)).unwrap();
        let mut puts = 0;
        pool.bucket.plan(move |request| {
            puts += u32::from(request == Request::Put);
            match request {
                Request::Put if puts == 1 => Fate::AnswerLost,
                Request::Put if puts < 5 => Fate::Lost,
                _ => Fate::Done,
            }
        });
        let until = Instant::now() + Duration::from_secs(30);
        while pool.engine().sync(SYSTEM).is_err() {
            assert!(Instant::now() < until, "{:?}", pool.view().failure());
        }
        assert!(pool.bucket.objects().len() == 1 && pool.view().failure().is_none());
    }
}

/// A writer waits when the bucket takes nothing, and is refused after a while; memory has a bound.
#[test]
fn memory_is_bounded_while_the_bucket_is_away() {
    let pool = InS3::new(quick());
    let file = create(pool.engine(), "f");
    file.write_at(SYSTEM, 0, &[1; 3000]).unwrap();
    pool.bucket.plan(|_| Fate::Lost);
    let mut at = 3000;
    let error = loop {
        match file.write_at(SYSTEM, at, &vec![2; 1 << 20]) {
            Ok(count) => at += count as u64,
            Err(error) => break error,
        }
        assert!(at < 30 << 20, "it takes more and more memory");
    };
    assert!(error.to_string().contains("lost"), "{error}");
    pool.bucket.mend();
    while file.fsync(SYSTEM).is_err() {}
    let size = file.getattr(SYSTEM).unwrap().size;
    assert!(size >= at, "{size}");
}

/// Files that wait for memory do not wait for each other.
#[test]
fn many_writers_share_the_memory() {
    let pool = InS3::new(quick());
    let fs = pool.engine();
    std::thread::scope(|scope| {
        for writer in 0..6_u32 {
            scope.spawn(move || {
                let file = create(fs, &format!("w{writer}"));
                for step in 0..24_u32 {
                    let data = pattern(writer * 100 + step, 700_000);
                    file.write_at(SYSTEM, u64::from(step) * 700_000, &data).unwrap();
                }
            });
        }
    });
    fs.sync(SYSTEM).unwrap();
    for writer in 0..6_u32 {
        let want: Vec<u8> = (0..24).flat_map(|step| pattern(writer * 100 + step, 700_000)).collect();
        assert!(read(fs, &format!("w{writer}")).unwrap() == want);
    }
}

/// An object that arrives late, after another owner has come, is one that nothing names, and goes.
#[test]
fn nothing_of_an_earlier_owner_counts() {
    let pool = InS3::new(quick());
    let old = pool.engine();
    put(old, "f", 0, &pattern(1, 100_000)).unwrap();
    old.sync(SYSTEM).unwrap();
    let is_held = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&is_held);
    pool.bucket.plan(move |request| match request {
        Request::Put if held.load(Ordering::SeqCst) => Fate::Held,
        _ => Fate::Done,
    });
    std::thread::scope(|scope| {
        let late = scope.spawn(|| put(old, "f", 0, &pattern(2, 100_000)).and_then(|()| old.sync(SYSTEM)));
        std::thread::sleep(Duration::from_millis(100));
        let (new, view) = pool.another();
        assert!(read(&new, "f").unwrap() == pattern(1, 100_000));
        is_held.store(false, Ordering::SeqCst);
        pool.bucket.mend();
        // In memory nobody fences the old owner's metadata: it is as good as dead here.
        let _ = late.join().unwrap();
        drop(new);
        drop(view);
    });
}

/// Damage and absence are errors that name the object; never zeros, never other bytes.
#[test]
fn damaged_and_missing_objects_are_errors() {
    for is_missing in [false, true] {
        let mut pool = InS3::new(quick());
        put(pool.engine(), "f", 0, &pattern(1, 100_000)).unwrap();
        put(pool.engine(), "g", 0, &pattern(2, 100_000)).unwrap();
        pool.engine().sync(SYSTEM).unwrap();
        pool.crash();
        pool.check_bucket();
        let objects = pool.bucket.objects();
        let (name, mut bytes) = objects[0].clone();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        pool.bucket.replace(&name, (!is_missing).then_some(bytes));
        let results = ["f", "g"].map(|name| read(pool.engine(), name));
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        let error = results.into_iter().find_map(Result::err).unwrap().to_string();
        assert!(error.contains("s3://test/slices/"), "{error}");
        let report = pool.engine().check_with_data(None, &mut |_, _| {}).unwrap();
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        let compared = pool.view().compare(false).unwrap();
        assert_eq!(compared.damaged.len(), usize::from(is_missing), "{compared:?}");
        pool.engine().repair_with_data(&mut |_, _| {}).unwrap();
    }
}

/// Objects that nothing knows are found, and a repair removes them and nothing else.
#[test]
fn leaked_objects_are_found_and_removed() {
    let pool = InS3::new(quick());
    put(pool.engine(), "f", 0, &pattern(1, 100_000)).unwrap();
    pool.engine().sync(SYSTEM).unwrap();
    pool.check_bucket();
    let (name, bytes) = pool.bucket.objects()[0].clone();
    let folder = name.rsplit_once('/').unwrap().0.rsplit_once('/').unwrap().0.to_owned();
    let leaked = format!("{folder}/{:016x}/{:016x}", 0, 5);
    pool.bucket.replace(&leaked, Some(bytes));
    let found = pool.view().compare(false).unwrap();
    assert_eq!((found.leaked.0, found.live.0, found.buried), (1, 1, 0), "{found:?}");
    assert_eq!(pool.view().compare(true).unwrap().buried, 1);
    pool.check_bucket();
    assert!(read(pool.engine(), "f").unwrap() == pattern(1, 100_000));
}

/// Objects of dead slices stay as long as it was said: a backup of the metadata may name them.
#[test]
fn dead_slices_are_kept_for_their_time() {
    let mut options = quick();
    options.keep = Duration::from_secs(3600);
    let pool = InS3::new(options);
    put(pool.engine(), "f", 0, &pattern(1, 100_000)).unwrap();
    pool.engine().sync(SYSTEM).unwrap();
    put(pool.engine(), "f", 0, &pattern(2, 100_000)).unwrap();
    pool.engine().sync(SYSTEM).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    let found = pool.view().compare(false).unwrap();
    assert!(
        found.dead.0 >= 1 && found.live.0 == 1 && found.leaked.0 == 0,
        "{found:?}"
    );
}

/// Readers in order have later slices fetched before they ask, and each slice is fetched once.
#[test]
fn readers_in_order_are_served_ahead() {
    let mut options = quick();
    options.cache_bytes = 256 << 20;
    let mut pool = InS3::new(options);
    let want = pattern(1, 40 << 20);
    put(pool.engine(), "f", 0, &want).unwrap();
    pool.engine().sync(SYSTEM).unwrap();
    pool.crash();
    let gets = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&gets);
    pool.bucket.plan(move |request| {
        counter.fetch_add(u64::from(request == Request::Get), Ordering::SeqCst);
        Fate::Done
    });
    assert!(read(pool.engine(), "f").unwrap() == want);
    let compared = pool.view().compare(false).unwrap();
    assert_eq!(gets.load(Ordering::SeqCst), compared.live.0);
}

/// Bytes that a truncation has cut off are not there after a crash, and neither are zeros for bytes that were written.
#[test]
fn sizes_are_never_ahead_of_content() {
    use ferrite_vfs::SetAttr;
    let mut options = quick();
    options.publish_after = Duration::from_secs(3600);
    let mut pool = InS3::new(options);
    let sized = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let long = pattern(1, 1 << 20);
    put(pool.engine(), "shrunk", 0, &long).unwrap();
    put(pool.engine(), "grown", 0, &long[..5000]).unwrap();
    pool.engine().sync(SYSTEM).unwrap();
    let shrunk = pool.engine().lookup(SYSTEM, ROOT_INO, b"shrunk").unwrap().ino;
    for size in [4096, 500_000] {
        pool.engine().setattr(SYSTEM, shrunk, &sized(size)).unwrap();
    }
    // As `cp -p` does, and programs that replace a file by another.
    put(pool.engine(), "grown", 5000, &long[5000..]).unwrap();
    let grown = pool.engine().lookup(SYSTEM, ROOT_INO, b"grown").unwrap().ino;
    let mode = SetAttr {
        mode: Some(0o640),
        ..SetAttr::default()
    };
    pool.engine().setattr(SYSTEM, grown, &mode).unwrap();
    put(pool.engine(), "new", 0, &long).unwrap();
    pool.engine()
        .rename(
            SYSTEM,
            ROOT_INO,
            b"new",
            ROOT_INO,
            b"renamed",
            ferrite_vfs::RenameMode::Replace,
        )
        .unwrap();
    pool.crash();
    let found = read(pool.engine(), "shrunk").unwrap();
    assert!(
        found.len() == 500_000 && found[..4096] == long[..4096],
        "{}",
        found.len()
    );
    assert!(
        found[4096..].iter().all(|&byte| byte == 0),
        "bytes that were cut off are back"
    );
    assert!(read(pool.engine(), "grown").unwrap() == long);
    assert!(read(pool.engine(), "renamed").unwrap() == long);
}

/// Files that are removed while they are sent give their memory back.
#[test]
fn removed_files_give_their_memory_back() {
    let pool = InS3::new(quick());
    for round in 0..12 {
        let name = format!("f{round}");
        put(pool.engine(), &name, 0, &pattern(round, 6 << 20)).unwrap();
        pool.engine().unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
    }
    pool.engine().sync(SYSTEM).unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while pool.view().usage().buffered_bytes > 0 {
        assert!(std::time::Instant::now() < until, "{:?}", pool.view().usage());
        std::thread::sleep(Duration::from_millis(10));
    }
    pool.check_bucket();
}

/// Protects users of a server: they see how much the bucket lacks, and that it has everything in the end.
#[test]
fn the_backlog_is_what_the_bucket_lacks() {
    let pool = InS3::new(quick());
    let bytes = || pool.engine().backlog().unwrap().bytes;
    assert_eq!(bytes(), 0);
    pool.bucket.plan(|_| Fate::Lost);
    put(pool.engine(), "f", 0, &[7; 100_000]).unwrap();
    assert!(bytes() >= 100_000, "{}", bytes());
    pool.bucket.mend();
    pool.engine().sync(SYSTEM).unwrap();
    assert_eq!(bytes(), 0);
}
