//! A program that forks with a pool open: the child is refused, and the pool stays whole.

mod common;

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{create, fsck};
use ferrite::{
    Access, Cred, Dir, FallocateMode, File, FileKind, FileTimes, Fs, LockKind, NewNode, OpenOptions, Queue, Wait,
    XattrMode,
};
use ferrite_pm::fork::in_child;

/// A child keeps the locks that other threads held at the fork, for ever: the allocator frees its own, `parking_lot`
/// does not. Tests are threads of one process, so one runs at a time; where one forks beside threads of its own, the
/// child does nothing that waits, or they sleep ([`others_sleep`]).
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when all other threads have slept for a while, including those of a pool that was just opened. So they hold
/// no lock that others need for a moment.
fn others_sleep() {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let are_asleep = || {
        std::fs::read_dir("/proc/self/task").unwrap().flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // After the name, which is in brackets.
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            task.file_name() == *own || matches!(state, None | Some('S'))
        })
    };
    let start = Instant::now();
    let mut looks = 0;
    while looks < 5 {
        assert!(start.elapsed() < Duration::from_secs(60), "a thread never sleeps");
        std::thread::sleep(Duration::from_millis(5));
        looks = if are_asleep() { looks + 1 } else { 0 };
    }
}

/// Whether a call failed because it ran in a forked child; also if that was converted to an [`std::io::Error`].
fn is_refused<T>(result: Result<T, impl Into<std::io::Error>>) -> bool {
    let Err(error) = result else { return false };
    let error = error.into();
    error.kind() == ErrorKind::ResourceBusy && error.to_string().contains("forked")
}

/// Tries every call of a program; true if all were refused.
fn all_refused(fs: &Fs, file: &mut File) -> bool {
    let tried = [
        is_refused(fs.write("/new", "child")),
        is_refused(fs.read("/f")),
        is_refused(fs.create_dir("/d")),
        is_refused(fs.remove_file("/f")),
        is_refused(fs.rename("/f", "/g")),
        is_refused(fs.metadata("/f")),
        is_refused(fs.read_dir("/")),
        is_refused(fs.statfs()),
        is_refused(fs.as_user(Cred::new(1, 1)).read("/f")),
        fs.info().is_none(),
        is_refused(file.write(b"child")),
        is_refused(file.append(b"child")),
        is_refused(file.read(&mut [0; 8])),
        is_refused(file.set_len(0)),
        is_refused(file.seek(SeekFrom::End(0))),
        is_refused(file.allocate(FallocateMode::PunchHole, 0, 4096)),
        is_refused(file.copy_range(file, 0, 4096, 4096)),
        is_refused(file.metadata()),
        is_refused(file.sync_all()),
        is_refused(fs.clone().close()),
        is_refused(fs.open_dir("/")),
        is_refused(fs.truncate("/f", 0)),
        is_refused(fs.set_times("/f", FileTimes::now())),
        is_refused(fs.set_mode("/f", 0)),
        is_refused(fs.access("/f", Access::READ)),
        is_refused(fs.set_xattr("/f", "user.x", "child", XattrMode::Any)),
        is_refused(fs.list_xattrs("/f")),
        is_refused(file.read_at(&mut [0; 8], 0)),
        is_refused(file.write_at(b"child", 0)),
        is_refused(file.try_clone()),
        is_refused(file.set_times(FileTimes::now())),
        is_refused(file.set_mode(0)),
        is_refused(file.chown(Some(1), None)),
        is_refused(file.get_xattr("user.x")),
        is_refused(file.seek_data(0)),
    ];
    tried.iter().all(|&refused| refused)
}

/// The same for a directory handle, and for locks.
fn dir_and_locks_refused(dir: &Dir, file: &File) -> bool {
    let fifo = NewNode {
        kind: FileKind::Fifo,
        mode: 0o600,
        rdev: 0,
    };
    let tried = [
        is_refused(dir.entries()),
        is_refused(dir.read_dir(".")),
        is_refused(dir.dir_metadata()),
        is_refused(dir.open_dir("sub")),
        is_refused(dir.read("g")),
        is_refused(dir.write("new", "child")),
        is_refused(dir.create_dir("new")),
        is_refused(dir.mknod("new", &fifo)),
        is_refused(dir.rename("g", dir, "new")),
        is_refused(dir.hard_link("g", dir, "new")),
        is_refused(dir.remove_file("g")),
        is_refused(dir.as_user(Cred::new(1, 1)).remove_dir("sub")),
        is_refused(dir.clone().set_mode("g", 0)),
        is_refused(file.lock()),
        is_refused(file.try_lock_shared()),
        is_refused(file.unlock()),
        is_refused(file.lock_range(.., LockKind::Shared, Wait::Forever)),
        is_refused(file.unlock_range(..)),
        is_refused(file.conflicting_lock(.., LockKind::Shared)),
    ];
    tried.iter().all(|&refused| refused)
}

/// The same for a queue of the parent's, and for one of the child's own.
fn queue_refused(queue: Queue, file: &File) -> bool {
    let own = Queue::new(1).unwrap();
    let tried = [
        is_refused(queue.submit_read(file, 0, 8, 0)),
        is_refused(queue.submit_append(file, b"child", 0)),
        is_refused(queue.wait(None)),
        queue.is_empty(),
        is_refused(own.submit_write(file, 0, b"child", 0)),
        own.wait(None).unwrap().is_none(),
    ];
    // It has its parent's completions, which must not be dropped here.
    drop(queue);
    tried.iter().all(|&refused| refused)
}

/// A pool with `/f` in it, open.
fn open(path: &Path) -> (Fs, File) {
    let fs = create(path, 64 << 20);
    fs.write("/f", "parent").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&fs, "/f").unwrap();
    (fs, file)
}

#[test]
fn a_forked_child_is_refused_and_the_pool_stays_whole() {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let (fs, file) = open(&path);
    let mut slot = Some((fs.clone(), file));
    for round in 0..5 {
        // Both sides write: the child in the middle of the parent's writes.
        let (fs, child) = (fs.clone(), &mut slot);
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                for n in 0..200 {
                    fs.write(format!("/{round}-{n}"), vec![n as u8; 5000]).unwrap();
                }
            });
            let told = in_child(|| {
                let (fs, mut file) = child.take().unwrap();
                let refused = all_refused(&fs, &mut file);
                // The last handles in the child: dropping them must not end anything of the parent's.
                drop((fs, file));
                refused
            });
            assert!(told.unwrap(), "the child used the pool");
            writer.join().unwrap();
        });
    }
    let (_, mut file) = slot.unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b" goes on").unwrap();
    for round in 0..5 {
        for n in 0..200 {
            assert_eq!(fs.read(format!("/{round}-{n}")).unwrap(), vec![n as u8; 5000]);
        }
    }
    drop(file);
    fs.close().unwrap();
    fsck(&path);
    let fs = Fs::open(&path).unwrap();
    assert_eq!(fs.read_to_string("/f").unwrap(), "parent goes on");
    assert!(!fs.exists("/new") && !fs.exists("/d"));
}

#[test]
fn handles_that_only_the_child_drops_free_nothing() {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let (fs, mut file) = open(&path);
    let listing = fs.read_dir("/").unwrap();
    // Only its handle keeps it alive: closing it frees it.
    fs.remove_file("/f").unwrap();
    let mut handles = Some((fs, file, listing));
    let ended = in_child(|| {
        let (fs, file, mut listing) = handles.take().unwrap();
        // The child owns the entries that were fetched before.
        let rest = listing.by_ref().find(|entry| entry.is_err());
        drop((fs, file));
        is_refused(rest.unwrap())
    });
    assert!(ended.unwrap());
    let fs;
    (fs, file, _) = handles.unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "parent");
    drop(file);
    fs.close().unwrap();
    fsck(&path);
}

#[test]
fn a_child_ends_no_directory_and_no_lock_of_its_parents() {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let (fs, file) = open(&path);
    fs.create_dir_all("/d/sub").unwrap();
    fs.write("/d/g", "parent").unwrap();
    let sub = fs.open_dir("/d/sub").unwrap();
    // Only its handle keeps it alive: closing it frees it.
    fs.remove_dir("/d/sub").unwrap();
    file.lock().unwrap();
    file.lock_range(0..10, LockKind::Exclusive, Wait::No).unwrap();
    let inodes_free = fs.statfs().unwrap().inodes_free;

    let mut handles = Some((fs.open_dir("/d").unwrap(), sub, file));
    // Another thread is in the table of locks and in the pool while the child tries.
    let waiter = OpenOptions::new().write(true).open(&fs, "/f").unwrap();
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            for _ in 0..2000 {
                assert!(waiter.try_lock().is_err());
                fs.write("/busy", "parent").unwrap();
            }
        });
        for _ in 0..5 {
            let refused = in_child(|| {
                let (dir, sub, file) = handles.take().unwrap();
                let refused = dir_and_locks_refused(&dir, &file) && is_refused(sub.entries());
                // The last handles in the child.
                drop((dir, sub, file));
                refused
            });
            assert!(refused.unwrap(), "the child used a handle");
        }
        busy.join().unwrap();
    });

    let (dir, sub, file) = handles.unwrap();
    let now_free = fs.statfs().unwrap().inodes_free;
    assert_eq!(now_free, inodes_free - 1, "`busy` was made, and nothing freed");
    assert_eq!(sub.entries().unwrap().count(), 0);
    assert_eq!(dir.read("g").unwrap(), b"parent");
    assert!(waiter.try_lock().is_err(), "the child gave no lock back");
    assert!(waiter.conflicting_lock(.., LockKind::Shared).unwrap().is_some());
    drop(file);
    waiter.try_lock().unwrap();
    drop((dir, sub, waiter));
    assert_eq!(fs.statfs().unwrap().inodes_free, now_free + 1);
    fs.close().unwrap();
    fsck(&path);
}

#[test]
fn a_child_may_have_a_pool_of_its_own_and_memory() {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (fs, _file) = open(&dir.path().join("pool"));
    let memory = Fs::memory();
    memory.write("/m", "shared").unwrap();
    let path = dir.path().join("child");
    others_sleep();
    let done = in_child(|| {
        let child = create(&path, 64 << 20);
        child.write("/c", "child").unwrap();
        let own = child.read_to_string("/c").unwrap() == "child";
        child.close().unwrap();
        memory.write("/m", "mine").unwrap();
        own && is_refused(fs.read("/f"))
    });
    assert!(done.unwrap());
    assert_eq!(memory.read_to_string("/m").unwrap(), "shared");
    let child = Fs::open(&path).unwrap();
    assert_eq!(child.read_to_string("/c").unwrap(), "child");
}

#[test]
fn a_child_does_not_have_its_parents_transfers() {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (_fs, file) = open(&dir.path().join("pool"));
    let queue = Queue::new(4).unwrap();
    queue.submit_read(&file, 0, 6, 7).unwrap();
    let mut slot = Some(queue);
    let told = in_child(|| queue_refused(slot.take().unwrap(), &file));
    assert!(told.unwrap(), "the child used the queue");
    let done = slot.unwrap().wait(None).unwrap().unwrap();
    assert_eq!((done.tag, done.data()), (7, &b"parent"[..]));
}
