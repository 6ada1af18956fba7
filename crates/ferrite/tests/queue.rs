//! Submitted transfers, on pools and on servers.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(feature = "net")]
use ferrite::VolumeOptions;
use ferrite::{File, Fs, OpenOptions, Queue};

use crate::common::create;

const PAGE: usize = 4096;

fn open(fs: &Fs, path: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.open(fs, path).unwrap()
}

fn page(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE / 8)
}

/// Reaps all that is under way.
fn reaped(queue: &Queue) -> Vec<ferrite::Completion<u64>> {
    std::iter::from_fn(|| queue.wait(Some(Duration::from_secs(60))).unwrap()).collect()
}

fn pool() -> (tempfile::TempDir, Fs) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let fs = create(&dir.path().join("pool"), 64 << 20);
    (dir, fs)
}

#[cfg(feature = "net")]
fn server() -> (ferrite_server::Server, Fs) {
    use ferrite_server::{ExportOptions, Server, ServerOptions};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}/", listener.local_addr().unwrap());
    let export = ExportOptions::new("").root_squash(false);
    let engine = std::sync::Arc::new(ferrite_vfs::memfs::MemFs::new());
    let server = Server::start(vec![listener], vec![(engine, vec![export])], &ServerOptions::default()).unwrap();
    let fs = Fs::open_volume_with(address, VolumeOptions::parse([("timeout_ms", "2000")]).unwrap()).unwrap();
    (server, fs)
}

/// Runs `test` on a pool, where transfers are made at once, and on a server, where they are not.
fn on_both(test: impl Fn(&Fs)) {
    let (_dir, fs) = pool();
    assert!(open(&fs, "/kind").transfers_at_once());
    test(&fs);
    #[cfg(feature = "net")]
    {
        let (_server, fs) = server();
        assert!(!open(&fs, "/kind").transfers_at_once());
        test(&fs);
    }
}

#[test]
fn what_is_submitted_is_done_once_and_completes_once() {
    on_both(|fs| {
        let (file, queue) = (open(fs, "/file"), Queue::new(64).unwrap());
        for number in 0..64 {
            queue
                .submit_write(&file, number * PAGE as u64, &page(number), number)
                .unwrap();
        }
        let mut tags: Vec<u64> = reaped(&queue)
            .into_iter()
            .map(|done| {
                assert_eq!(done.result.unwrap(), PAGE);
                assert_eq!(done.offset, done.tag * PAGE as u64);
                done.tag
            })
            .collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..64).collect::<Vec<u64>>());
        for number in 0..64 {
            queue.submit_read(&file, number * PAGE as u64, PAGE, number).unwrap();
        }
        for done in reaped(&queue) {
            assert!(done.data() == page(done.tag), "page {}", done.tag);
        }
        // At the end of the file, and behind it.
        queue.submit_read(&file, 64 * PAGE as u64 - 10, PAGE, 0).unwrap();
        queue.submit_read(&file, 65 * PAGE as u64, PAGE, 1).unwrap();
        queue.submit_read(&file, 0, 0, 2).unwrap();
        queue.submit_write(&file, 0, &[], 3).unwrap();
        let mut done = reaped(&queue);
        done.sort_by_key(|done| done.tag);
        let counts: Vec<usize> = done.iter().map(|done| *done.result.as_ref().unwrap()).collect();
        assert_eq!(counts, [10, 0, 0, 0]);
        assert_eq!(done[0].data(), &page(63)[PAGE - 10..]);
        assert!(queue.is_empty() && queue.wait(None).unwrap().is_none());
    });
}

#[test]
fn appends_say_where_they_went() {
    on_both(|fs| {
        let (file, queue) = (open(fs, "/log"), Queue::new(100).unwrap());
        for number in 0..100 {
            queue.submit_append(&file, &[number as u8; 100], number).unwrap();
        }
        let mut offsets: Vec<u64> = reaped(&queue)
            .into_iter()
            .map(|done| (done.result.unwrap(), done.offset).1)
            .collect();
        offsets.sort_unstable();
        assert_eq!(offsets, (0..100).map(|number| number * 100).collect::<Vec<u64>>());
    });
}

#[test]
fn a_full_queue_refuses_and_does_nothing() {
    on_both(|fs| {
        let (file, queue) = (open(fs, "/file"), Queue::new(2).unwrap());
        queue.submit_write(&file, 0, b"a", 0).unwrap();
        queue.submit_write(&file, 1, b"b", 1).unwrap();
        let mut byte = [0];
        for refused in [
            queue.submit_write(&file, 2, b"c", 2),
            queue.submit_append(&file, b"c", 2),
            queue.submit_read(&file, 0, 1, 2),
            queue.read_into(&file, 0, &mut byte, 2),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
            assert!(
                error.to_string().contains("/file: the queue is full (2 transfers"),
                "{error}"
            );
        }
        assert_eq!(queue.len(), 2);
        assert_eq!(reaped(&queue).len(), 2);
        assert_eq!(fs.read("/file").unwrap(), b"ab");
    });
}

/// Errors of the file system come with the completion, and name the file.
#[test]
fn errors_complete_as_well() {
    on_both(|fs| {
        open(fs, "/file");
        let (file, queue) = (fs.open_file("/file").unwrap(), Queue::new(8).unwrap());
        queue.submit_write(&file, 0, b"x", 1).unwrap();
        let error = queue.wait(None).unwrap().unwrap().result.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        assert!(error.to_string().contains("/file"), "{error}");
        let long = vec![0; (4 << 20) + 1];
        let is_refused = queue.submit_write(&open(fs, "/file"), 0, &long, 1);
        assert_eq!(is_refused.is_err(), !file.transfers_at_once());
    });
    for depth in [0, (1 << 16) + 1] {
        assert_eq!(Queue::<u64>::new(depth).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}

/// A file that is closed meanwhile stays until its transfers have completed.
#[test]
fn a_file_may_be_closed_while_its_transfers_are_under_way() {
    on_both(|fs| {
        let queue = Queue::new(32).unwrap();
        for number in 0..32 {
            queue
                .submit_write(&open(fs, "/file"), number * PAGE as u64, &page(number), number)
                .unwrap();
        }
        assert!(reaped(&queue).into_iter().all(|done| done.result.is_ok()));
        assert_eq!(fs.metadata("/file").unwrap().len(), 32 * PAGE as u64);
        // A queue that is dropped waits for them, too.
        for number in 0..32 {
            queue.submit_append(&open(fs, "/file"), &page(number), number).unwrap();
        }
        drop(queue);
        assert_eq!(fs.metadata("/file").unwrap().len(), 64 * PAGE as u64);
    });
}

#[test]
fn threads_share_a_queue() {
    const EACH: u64 = 500;
    on_both(|fs| {
        let (file, queue) = (open(fs, "/file"), Queue::new(16).unwrap());
        let (seen, sum) = (AtomicU64::new(0), AtomicU64::new(0));
        let (file, queue, seen, sum) = (&file, &queue, &seen, &sum);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for number in thread * EACH..(thread + 1) * EACH {
                        while let Err(error) = queue.submit_write(file, number * 8, &number.to_le_bytes(), number) {
                            assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(move || {
                    let many = NonZeroUsize::new(8).unwrap();
                    while seen.load(Ordering::Relaxed) < 4 * EACH {
                        let timeout = Some(Duration::from_millis(10));
                        for done in queue.wait_for(many, many, timeout).unwrap() {
                            assert_eq!(done.result.unwrap(), 8);
                            sum.fetch_add(done.tag, Ordering::Relaxed);
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let all = 4 * EACH;
        assert_eq!(
            (seen.load(Ordering::Relaxed), sum.load(Ordering::Relaxed)),
            (all, all * (all - 1) / 2)
        );
        let content = fs.read("/file").unwrap();
        let numbers = content
            .chunks(8)
            .map(|number| u64::from_le_bytes(number.try_into().unwrap()));
        assert!(numbers.eq(0..all));
    });
}

/// Nothing is under way for longer than the timeout of the volume.
#[cfg(feature = "net")]
#[test]
fn transfers_to_a_server_that_is_gone_complete_with_an_error() {
    let (mut server, fs) = server();
    let (file, queue) = (open(&fs, "/file"), Queue::new(32).unwrap());
    server.stop();
    let start = Instant::now();
    for number in 0..32 {
        queue.submit_write(&file, number * 8, &[1; 8], number).unwrap();
    }
    let done = reaped(&queue);
    assert_eq!(done.len(), 32);
    assert!(done.iter().all(|done| done.result.is_err()));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}
