//! Long reads, which travel in pieces: each sees one state of the file, whatever others do to it meanwhile, and also if
//! its pages are sent in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::proxy::{NetworkFaults, Proxy};
use crate::common::raw::Raw;
use crate::common::{RemotePool, RemoteReference, connect, connect_tcp, export, make_pool, mount, serve};
use ferrite_proto::{FileRequest, FsRequest, OpenedFile, Piece, Reader};
use ferrite_server::ServerOptions;
use ferrite_testkit::TestEngine;
use ferrite_testkit::rng::Rng;
use ferrite_transport::frame::DATA_BYTES_MAX;
use ferrite_transport::secure::Key;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    BadArgument, FallocateMode, FileSystem, FsError, NewFile, OpenFile, OpenFlags, OpenMode, ROOT_INO, SYSTEM, SetAttr,
};

const PAGE: usize = 4096;
const PAGES: usize = 1024;

fn new_file() -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    }
}

/// A page that records its index, and when it was written.
fn page(index: usize, round: u32) -> Vec<u8> {
    let word = (index as u64) << 32 | u64::from(round);
    word.to_le_bytes().repeat(PAGE / 8)
}

/// The round in which a page was written; fails if it is not one page of the file.
fn round_of(index: usize, content: &[u8]) -> u32 {
    let word = u64::from_le_bytes(*content.first_chunk().unwrap());
    assert!(
        content.chunks(8).all(|chunk| chunk == word.to_le_bytes()),
        "page {index} is of several writes"
    );
    assert_eq!((word >> 32) as usize, index, "another page's content");
    word as u32
}

/// Ends the writer, also if a reader fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Writes the first page, up to `others_max` others, and then the last one, each with the number of the round, until
/// stopped.
fn keep_changing(file: &dyn OpenFile, others_max: u64, pause_us_max: u64, stop: &AtomicBool) {
    let mut random = Rng::new(7);
    let mut round = 0;
    while !stop.load(Ordering::Acquire) {
        round += 1;
        let others: Vec<usize> = (0..random.below(others_max))
            .map(|_| 1 + random.below(PAGES as u64 - 2) as usize)
            .collect();
        for index in [0].into_iter().chain(others).chain([PAGES - 1]) {
            let at = (index * PAGE) as u64;
            assert_eq!(file.write_at(SYSTEM, at, &page(index, round)), Ok(PAGE));
        }
        // Some reads are not disturbed, some are in the middle.
        std::thread::sleep(Duration::from_micros(random.below(pause_us_max)));
    }
}

/// Reads until `ends`; returns how many reads found new data. Each finds the last page at most a round older than the
/// first, and never younger.
fn keep_reading(file: &dyn OpenFile, ends: Instant) -> usize {
    let mut content = vec![0; PAGES * PAGE];
    let (mut last_seen, mut changed) = (0, 0);
    while Instant::now() < ends {
        assert_eq!(file.read_at(SYSTEM, 0, &mut content), Ok(PAGES * PAGE));
        let pages = content.chunks(PAGE).enumerate();
        let rounds: Vec<u32> = pages.map(|(index, content)| round_of(index, content)).collect();
        let (first, last) = (rounds[0], rounds[PAGES - 1]);
        assert!(
            first == last || first == last + 1,
            "the first page is of round {first}, the last one of {last}: no state of the file"
        );
        assert!(rounds.iter().all(|&round| round <= first));
        assert!(first >= last_seen, "a state that was over");
        changed += usize::from(first > last_seen);
        last_seen = first;
    }
    changed
}

/// Several clients read while one changes.
fn one_state(writes: &dyn FileSystem, reads: &dyn FileSystem, seconds: u64) {
    one_state_of((writes, 20, 6000), (reads, 1), seconds);
}

/// The same with a writer that changes up to so many pages and then pauses for up to so many microseconds, and so many
/// readers.
fn one_state_of(
    (writes, others_max, pause_us_max): (&dyn FileSystem, u64, u64),
    (reads, readers): (&dyn FileSystem, usize),
    seconds: u64,
) {
    let file = writes.create(SYSTEM, ROOT_INO, b"changing", &new_file()).unwrap().file;
    (0..PAGES).for_each(|index| assert_eq!(file.write_at(SYSTEM, (index * PAGE) as u64, &page(index, 0)), Ok(PAGE)));
    let ino = reads.lookup(SYSTEM, ROOT_INO, b"changing").unwrap().ino;
    let read = reads.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
    let stop = AtomicBool::new(false);
    let ends = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| keep_changing(&*file, others_max, pause_us_max, &stop));
        let readers: Vec<_> = (0..readers)
            .map(|_| scope.spawn(|| keep_reading(&*read, ends)))
            .collect();
        let changed: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(changed > 5, "only {changed} reads had anything to find");
    });
}

#[test]
fn long_reads_of_a_pool_see_one_state() {
    let pool = RemotePool::new(64 << 20, 100);
    one_state(pool.fs(), pool.fs(), 3);
    pool.check();
}

#[test]
fn encrypted_long_reads_see_one_state() {
    let pool = RemotePool::with_key(64 << 20, 100, Some(Key::generate().unwrap()));
    one_state(pool.fs(), pool.fs(), 2);
}

#[test]
fn long_reads_of_the_reference_see_one_state() {
    let reference = RemoteReference::new();
    one_state(reference.fs(), reference.fs(), 2);
}

/// When the sockets are full borrowed data is sent late, and its pages may have become others'.
#[test]
fn late_long_reads_see_one_state() {
    // Freed pages are soon written again.
    let path = make_pool(12 << 20, 100);
    let (_server, address) = serve(Arc::new(mount(&path)), vec![export("")], &ServerOptions::default());
    let delays = NetworkFaults {
        delays: 30,
        ..NetworkFaults::default()
    };
    let proxy = Proxy::new(&address, delays, 5);
    one_state_of(
        (&connect(&address), 1500, 300_000),
        (&connect_tcp(&proxy.address), 8),
        4,
    );
}

/// Holes, preallocated pages, pages with logs and an end inside a page. Over TCP: a fabric places data at its
/// destination, and long reads over it are one request.
#[test]
fn content_without_pages_to_borrow_is_read_all_the_same() {
    let path = make_pool(64 << 20, 100);
    let engine = mount(&path);
    let (_server, address) = serve(Arc::new(engine.clone()), vec![export("")], &ServerOptions::default());
    let client = connect_tcp(&address);
    let file = client.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap().file;
    let len = 3 * (1 << 20) + 1234;
    let mut expected = vec![0; len];
    let mut write = |at: usize, data: &[u8]| {
        assert_eq!(file.write_at(SYSTEM, at as u64, data), Ok(data.len()));
        expected[at..at + data.len()].copy_from_slice(data);
    };
    write(100 * PAGE, &page(100, 1));
    write(100 * PAGE + 50, &[1; 40]);
    write(300 * PAGE + 5, &[2; 3 * PAGE]);
    write(len - 10, &[3; 10]);
    file.fallocate(
        SYSTEM,
        FallocateMode::Allocate { keep_size: true },
        500 * PAGE as u64,
        20 * PAGE as u64,
    )
    .unwrap();
    for offset in [0, 1, 8, 4095, 99 * PAGE + 8, len - (1 << 20), len - 600_001] {
        for wanted in [600_000, 1 << 20, 4 << 20] {
            let mut content = vec![9; wanted];
            let count = (len - offset).min(wanted);
            let before = client.requests();
            assert_eq!(file.read_at(SYSTEM, offset as u64, &mut content), Ok(count), "{offset}");
            assert!(
                content[..count] == expected[offset..offset + count],
                "{offset} {wanted}"
            );
            assert!(content[count..].iter().all(|&byte| byte == 9), "{offset} {wanted}");
            assert!(client.requests() > before + 2, "a long read is one of several requests");
        }
    }
    file.setattr(
        SYSTEM,
        &SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert_eq!(file.read_at(SYSTEM, 0, &mut vec![0; 1 << 20]), Ok(0));
}

/// A client does not take its requested data, until the borrowed pages belong to another. Both are on TCP: the thread
/// that has filled one's socket answers the other.
#[test]
fn what_is_sent_late_is_what_was_asked_for() {
    let path = make_pool(12 << 20, 100);
    let (_server, address) = serve(Arc::new(mount(&path)), vec![export("")], &ServerOptions::default());
    let client = connect_tcp(&address);
    let file = client.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap().file;
    let write_all = |round| {
        (0..PAGES).for_each(|index| {
            assert_eq!(
                file.write_at(SYSTEM, (index * PAGE) as u64, &page(index, round)),
                Ok(PAGE)
            )
        });
    };
    write_all(1);
    // The first read sets the access time, to a later one than that of the last change.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(file.read_at(SYSTEM, 0, &mut [0; 8]), Ok(8));
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let open = FsRequest::OpenPath {
        root: welcome.root,
        base: welcome.root,
        path: b"file",
        flags: OpenFlags {
            read: true,
            ..OpenFlags::default()
        },
        file: 5,
    };
    raw.ask(&open).unwrap().unwrap();
    let ask = |len_bytes| FileRequest::ReadPiece {
        file: 5,
        offset: 0,
        len_bytes,
    };
    // Not so much that the socket would learn to take more at once.
    let (body, data) = raw.ask(&ask(PAGE as u32)).unwrap().unwrap();
    let reported: Piece = Reader::new(&body).last().unwrap();
    assert!(reported.version.is_some());
    assert_eq!(round_of(0, &data), 1);
    let body = raw.body(&ask((PAGES * PAGE) as u32));
    assert!(raw.send(&body, &[]));
    // It is answered before the rest is written.
    assert_eq!(
        client.lookup(SYSTEM, ROOT_INO, b"file").unwrap().size,
        (PAGES * PAGE) as u64
    );
    // The pool has no space for both: others' writes go where the file was.
    let empty = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    file.setattr(SYSTEM, &empty).unwrap();
    let secret = client.create(SYSTEM, ROOT_INO, b"secret", &new_file()).unwrap().file;
    (0..PAGES).for_each(|index| {
        assert_eq!(
            secret.write_at(SYSTEM, (index * PAGE) as u64, &page(index, 2)),
            Ok(PAGE)
        )
    });
    let (_, came) = raw.receive().unwrap();
    let (body, data) = came.unwrap();
    assert_eq!(Reader::new(&body).last::<Piece>().unwrap(), reported);
    let is_as_it_was = data == (0..PAGES).flat_map(|index| page(index, 1)).collect::<Vec<u8>>();
    assert!(is_as_it_was, "another file's content was sent");
    let (body, data) = raw.ask(&ask(PAGE as u32)).unwrap().unwrap();
    let reported_now: Piece = Reader::new(&body).last().unwrap();
    assert!(data.is_empty() && reported_now.version != reported.version);
}

/// Requests that a client need not make.
#[test]
fn pieces_of_other_lengths_and_files_are_refused() {
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let create = FsRequest::Create {
        parent: welcome.root,
        name: b"file",
        new: new_file(),
        file: 77,
    };
    let (body, _) = raw.ask(&create).unwrap().unwrap();
    let _: OpenedFile = Reader::new(&body).last().unwrap();
    let mut piece = |file, offset, len_bytes| {
        raw.ask(&FileRequest::ReadPiece {
            file,
            offset,
            len_bytes,
        })
        .unwrap()
    };
    let too_long = FsError::Invalid(BadArgument::NoLength);
    assert_eq!(piece(77, 0, DATA_BYTES_MAX as u32 + 1), Err(too_long));
    assert_eq!(piece(78, 0, 10), Err(FsError::Stale));
    for (offset, len_bytes) in [(0, 0), (0, 10), (u64::MAX, DATA_BYTES_MAX as u32)] {
        let (body, data) = piece(77, offset, len_bytes).unwrap();
        let reported: Piece = Reader::new(&body).last().unwrap();
        assert!(reported.version.is_some() && data.is_empty());
    }
}
