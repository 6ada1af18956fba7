//! Locks between open files: whole files as `flock(2)`, ranges as open-file-description locks.

use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::common::on_both;
use ferrite::{Cred, File, Fs, LockKind, OpenOptions, Wait};
use ferrite_vfs::memfs::MemFs;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

fn open(fs: &Fs, path: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(fs, path)
        .unwrap()
}

fn errno(result: ferrite::Result<()>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn a_lock_keeps_other_open_files_out() {
    on_both(|fs| {
        let (one, two) = (open(fs, "/f"), open(fs, "/f"));
        one.lock().unwrap();
        one.try_lock().unwrap();
        assert_eq!(errno(two.try_lock()), libc::EWOULDBLOCK);
        assert_eq!(errno(two.try_lock_shared()), libc::EWOULDBLOCK);
        // Neither the name nor the user matters, nor the clone.
        fs.hard_link("/f", "/g").unwrap();
        let other = fs.clone().as_user(Cred::new(0, 5));
        assert_eq!(errno(open(&other, "/g").try_lock()), libc::EWOULDBLOCK);
        let dir = fs.open_dir("/").unwrap();
        assert_eq!(errno(dir.open_file("g").unwrap().try_lock_shared()), libc::EWOULDBLOCK);
        open(fs, "/h").try_lock().unwrap();

        one.lock_shared().unwrap();
        two.try_lock_shared().unwrap();
        assert_eq!(errno(one.try_lock()), libc::EWOULDBLOCK);
        two.unlock().unwrap();
        one.try_lock().unwrap();
        one.unlock().unwrap();
        one.unlock().unwrap();
        two.try_lock().unwrap();
        fs.remove_file("/f").unwrap();
        fs.remove_file("/g").unwrap();
        fs.remove_file("/h").unwrap();
    });
}

#[test]
fn locks_go_with_the_last_handle_of_an_open_file() {
    on_both(|fs| {
        let (one, two) = (open(fs, "/f"), open(fs, "/f"));
        let clone = one.try_clone().unwrap();
        one.lock().unwrap();
        clone.lock_range(0..10, LockKind::Exclusive, Wait::No).unwrap();
        clone.try_lock().unwrap();
        drop(one);
        assert_eq!(errno(two.try_lock()), libc::EWOULDBLOCK);
        let held = two.conflicting_lock(.., LockKind::Shared).unwrap().unwrap();
        assert_eq!((held.range.start(), held.range.len_bytes()), (0, 10));
        assert_eq!((held.kind, held.pid), (LockKind::Exclusive, std::process::id()));
        drop(clone);
        two.try_lock().unwrap();
        assert_eq!(two.conflicting_lock(.., LockKind::Exclusive).unwrap(), None);
        // A file that was removed and made again is another one.
        fs.remove_file("/f").unwrap();
        open(fs, "/f").try_lock().unwrap();
    });
}

/// Locks belong to the engine, not to a value that uses it.
#[test]
fn two_users_of_one_engine_keep_each_other_out() {
    let engine = Arc::new(MemFs::new());
    let (one, two) = (Fs::over(engine.clone()), Fs::over(engine));
    let file = open(&one, "/f");
    file.lock().unwrap();
    file.lock_range(0..1, LockKind::Shared, Wait::No).unwrap();
    let other = open(&two, "/f");
    assert_eq!(errno(other.try_lock_shared()), libc::EWOULDBLOCK);
    assert!(other.conflicting_lock(.., LockKind::Exclusive).unwrap().is_some());
    drop(file);
    other.try_lock().unwrap();
}

#[test]
fn a_lock_is_waited_for() {
    on_both(|fs| {
        let (one, two) = (open(fs, "/f"), open(fs, "/f"));
        one.lock().unwrap();
        let start = Instant::now();
        let timeout = two.lock_with(LockKind::Exclusive, Wait::AtMost(SHORT));
        assert_eq!(errno(timeout), libc::EWOULDBLOCK);
        assert!(start.elapsed() >= SHORT);
        let (tell, told) = mpsc::channel();
        // On its own, so that a lock that never comes fails the test and does not stop it.
        std::thread::spawn(move || {
            two.lock().unwrap();
            tell.send(()).unwrap();
        });
        assert!(told.recv_timeout(SHORT).is_err(), "it waits");
        // Closing is unlocking.
        drop(one);
        told.recv_timeout(LONG).unwrap();
    });
}

#[test]
fn ranges_are_locked_apart() {
    on_both(|fs| {
        let (one, two) = (open(fs, "/f"), open(fs, "/f"));
        let (shared, exclusive) = (LockKind::Shared, LockKind::Exclusive);
        one.lock_range(0..10, exclusive, Wait::No).unwrap();
        two.lock_range(10..=19, exclusive, Wait::No).unwrap();
        assert_eq!(errno(two.lock_range(9..10, shared, Wait::No)), libc::EAGAIN);
        assert_eq!(errno(one.lock_range(19.., shared, Wait::No)), libc::EAGAIN);
        one.lock_range(20.., shared, Wait::No).unwrap();
        two.lock_range(u64::MAX / 2.., shared, Wait::No).unwrap();
        // Locks on the whole file do not conflict with it.
        two.try_lock().unwrap();
        // A part is unlocked, or converted.
        one.unlock_range(4..6).unwrap();
        two.lock_range(4..6, exclusive, Wait::No).unwrap();
        one.lock_range(0..4, shared, Wait::No).unwrap();
        two.lock_range(..4, shared, Wait::No).unwrap();
        let held = one.conflicting_lock(.., exclusive).unwrap().unwrap();
        assert_eq!((held.range.start(), held.kind), (0, shared));
        one.unlock_range(..).unwrap();
        two.unlock_range(..).unwrap();
        assert_eq!(one.conflicting_lock(.., exclusive).unwrap(), None);
        for empty in [5..5, Range { start: 6, end: 5 }, u64::MAX..u64::MAX] {
            assert_eq!(errno(one.lock_range(empty.clone(), exclusive, Wait::No)), libc::EINVAL);
            assert_eq!(errno(one.unlock_range(empty)), libc::EINVAL);
        }
        assert_eq!(errno(one.lock_range(1 << 63.., exclusive, Wait::No)), libc::EINVAL);
    });
}

#[test]
fn two_who_would_wait_for_each_other_are_told() {
    on_both(|fs| {
        let (one, two) = (open(fs, "/f"), open(fs, "/f"));
        one.lock_range(0..1, LockKind::Exclusive, Wait::No).unwrap();
        two.lock_range(1..2, LockKind::Exclusive, Wait::No).unwrap();
        std::thread::scope(|scope| {
            // The request that comes second is refused; the first gets its lock when the second's are gone.
            let wait = |file: File, at: u64| {
                let result = file.lock_range(at..at + 1, LockKind::Exclusive, Wait::AtMost(LONG));
                drop(file);
                result.map_err(|error| error.raw_os_error().unwrap())
            };
            let other = scope.spawn(move || wait(two, 0));
            let results = [wait(one, 1), other.join().unwrap()];
            assert!(
                results.contains(&Ok(())) && results.contains(&Err(libc::EDEADLK)),
                "{results:?}"
            );
        });
    });
}
