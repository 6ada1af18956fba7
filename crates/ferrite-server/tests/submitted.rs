//! Reads and writes whose callers do not wait: each is answered once, with the result that a call would have, also
//! while connections break, slots are few and completions make new requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::proxy::{NetworkFaults, Proxy};
use crate::common::{connect, connect_tcp, export, make_pool, mount, serve};
use ferrite_buffers::Pool;
use ferrite_checks::condvar::Condvar;
use ferrite_client::{Client, ClientOptions};
use ferrite_server::ServerOptions;
use ferrite_vfs::{FileSystem, FsError, NewFile, OpenFile, OpenMode, Position, ROOT_INO, SYSTEM};
use parking_lot::Mutex;

const PAGE: usize = 4096;

fn new_file(client: &Client) -> Arc<dyn OpenFile> {
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    client.create(SYSTEM, ROOT_INO, b"file", &new).unwrap().file
}

/// Counts completed operations, for a thread that waits until all are.
#[derive(Default)]
struct Count {
    done: Mutex<usize>,
    changed: Condvar,
}

impl Count {
    fn one_more(&self) {
        *self.done.lock() += 1;
        self.changed.notify_all();
    }

    fn wait_for(&self, count: usize) {
        let mut done = self.done.lock();
        while *done < count {
            let waited = self.changed.wait_for(&mut done, Duration::from_secs(30));
            assert!(!waited.timed_out(), "{} of {count} are done", *done);
        }
    }
}

fn fill(number: usize) -> u8 {
    (number * 7 + number / 256) as u8
}

/// Writes so many pages, and reads them back, all submitted at once.
pub(crate) fn write_and_read(file: &Arc<dyn OpenFile>, pages: usize) {
    let pool = Pool::new(pages * PAGE).unwrap();
    let count = Arc::new(Count::default());
    for number in 0..pages {
        let mut buffer = pool.take(PAGE).unwrap();
        buffer.fill(fill(number));
        let at = Position::At((number * PAGE) as u64);
        let count = Arc::clone(&count);
        let done = move |buffer: ferrite_buffers::Buffer, written: Result<ferrite_vfs::Written, FsError>| {
            assert_eq!(written.unwrap().len_bytes, PAGE);
            assert_eq!(buffer[0], fill(number), "it gets its own buffer back");
            count.one_more();
        };
        file.submit_write(SYSTEM, at.into(), buffer, Box::new(done));
    }
    count.wait_for(pages);
    let count = Arc::new(Count::default());
    for number in 0..pages {
        let (buffer, count) = (pool.take(PAGE).unwrap(), Arc::clone(&count));
        let done = move |buffer: ferrite_buffers::Buffer, read: Result<usize, FsError>| {
            assert_eq!(read, Ok(PAGE));
            assert!(buffer.iter().all(|&byte| byte == fill(number)), "page {number}");
            count.one_more();
        };
        file.submit_read(SYSTEM, (number * PAGE) as u64, buffer, Box::new(done));
    }
    count.wait_for(pages);
}

#[test]
fn many_are_under_way_at_once() {
    // 64 slots, of which a session gets 8: most writes wait for one.
    let path = make_pool(16 << 20, 1000);
    let (_server, address) = serve(Arc::new(mount(&path)), vec![export("")], &ServerOptions::default());
    let client = connect(&address);
    let file = new_file(&client);
    let before = client.requests();
    write_and_read(&file, 500);
    assert_eq!(client.requests() - before, 1000);
    // Calls continue beside them.
    std::thread::scope(|scope| {
        scope.spawn(|| write_and_read(&file, 300));
        for _ in 0..300 {
            client.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
            client.rmdir(SYSTEM, ROOT_INO, b"dir").unwrap();
        }
    });
}

#[test]
fn cuts_and_delays_are_not_noticed() {
    let path = make_pool(16 << 20, 1000);
    let (_server, address) = serve(Arc::new(mount(&path)), vec![export("")], &ServerOptions::default());
    let network = Proxy::new(&address, NetworkFaults::default(), 5);
    // The network cuts and delays sockets' bytes; cuts beside a fabric are in `fabric.rs`.
    let client = connect_tcp(&network.address);
    let file = new_file(&client);
    network.turn(NetworkFaults {
        cuts: 60,
        delays: 30,
        crumbs: 0,
    });
    // Each record once, at whatever offset.
    let records = 600;
    let (pool, count) = (Pool::new(records * PAGE).unwrap(), Arc::new(Count::default()));
    for number in 0..records {
        let mut buffer = pool.take(8).unwrap();
        buffer.copy_from_slice(&(number as u64).to_le_bytes());
        let count = Arc::clone(&count);
        file.submit_write(
            SYSTEM,
            Position::End.into(),
            buffer,
            Box::new(move |_, written| {
                assert_eq!(written.unwrap().len_bytes, 8);
                count.one_more();
            }),
        );
    }
    count.wait_for(records);
    network.turn(NetworkFaults::default());
    let mut content = vec![0; records * 8 + 1];
    assert_eq!(file.read_at(SYSTEM, 0, &mut content), Ok(records * 8));
    let mut found: Vec<u64> = content
        .chunks_exact(8)
        .map(|record| u64::from_le_bytes(record.try_into().unwrap()))
        .collect();
    found.sort_unstable();
    assert!(found.into_iter().eq(0..records as u64));
    assert!(network.cuts() > 0);
    write_and_read(&file, 200);
}

/// A completion submits the next, and calls, on the receiving thread.
#[test]
fn completions_ask_for_more() {
    let path = make_pool(16 << 20, 1000);
    let (_server, address) = serve(Arc::new(mount(&path)), vec![export("")], &ServerOptions::default());
    let client = Arc::new(connect(&address));
    let file = new_file(&client);
    let (left, count) = (Arc::new(AtomicUsize::new(400)), Arc::new(Count::default()));
    fn next(client: &Arc<Client>, file: &Arc<dyn OpenFile>, pool: &Pool, left: &Arc<AtomicUsize>, count: &Arc<Count>) {
        let number = left.fetch_sub(1, Ordering::SeqCst);
        if number == 0 || number > 400 {
            left.store(0, Ordering::SeqCst);
            return count.one_more();
        }
        let (client, again, pool, left, count) = (
            Arc::clone(client),
            Arc::clone(file),
            pool.clone(),
            Arc::clone(left),
            Arc::clone(count),
        );
        let buffer = pool.take(PAGE).unwrap();
        let done = move |_, written: Result<ferrite_vfs::Written, FsError>| {
            written.unwrap();
            if number.is_multiple_of(10) {
                assert_eq!(client.getattr(SYSTEM, ROOT_INO).unwrap().ino, ROOT_INO);
                client.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
                client.rmdir(SYSTEM, ROOT_INO, b"dir").unwrap();
            }
            next(&client, &again, &pool, &left, &count);
        };
        file.submit_write(SYSTEM, Position::At(0).into(), buffer, Box::new(done));
    }
    let pool = Pool::new(4 << 20).unwrap();
    next(&client, &file, &pool, &left, &count);
    count.wait_for(1);
}

fn is_found_gone(client: &Client) {
    let began = Instant::now();
    while client.is_encrypted().is_some() {
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "the connection counts as good"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The server hangs with the connection open while the client asks for slots for submitted writes. Once the thread that
/// finds such servers gone waited for the slots itself, and all waited for ever.
#[test]
fn a_server_that_hangs_when_slots_are_asked_for_is_found_gone() {
    let path = make_pool(16 << 20, 1000);
    let options = ServerOptions::default().lease(Duration::from_secs(1));
    let engine = mount(&path);
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    drop(engine.create(SYSTEM, ROOT_INO, b"file", &new).unwrap());
    let (_server, address) = serve(Arc::new(engine), vec![export("")], &options);
    let network = Proxy::new(&address, NetworkFaults::default(), 5);
    let client = Client::connect(&network.address, "", &ClientOptions::default()).unwrap();
    // It has changed nothing yet, so it has no slots.
    let ino = client.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
    let file = client.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    network.silence(true);
    let pool = Pool::new(1 << 20).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    for _ in 0..10 {
        let (buffer, sender) = (pool.take(8).unwrap(), sender.clone());
        let done = move |_, written: Result<ferrite_vfs::Written, FsError>| drop(sender.send(written.map(drop)));
        file.submit_write(SYSTEM, Position::End.into(), buffer, Box::new(done));
    }
    is_found_gone(&client);
    network.silence(false);
    for _ in 0..10 {
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    }
    assert_eq!(client.getattr(SYSTEM, ino).unwrap().size, 80);
}

/// The same while a completion, which the client's own thread calls, waits for a reply.
#[test]
fn a_server_that_hangs_when_a_completion_calls_is_found_gone() {
    let path = make_pool(16 << 20, 1000);
    let options = ServerOptions::default().lease(Duration::from_secs(1));
    let (_server, address) = serve(Arc::new(mount(&path)), vec![export("")], &options);
    let network = Arc::new(Proxy::new(&address, NetworkFaults::default(), 5));
    let client = Arc::new(Client::connect(&network.address, "", &ClientOptions::default()).unwrap());
    let file = new_file(&client);
    let pool = Pool::new(1 << 20).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = {
        let (network, client) = (Arc::clone(&network), Arc::clone(&client));
        move |_, written: Result<ferrite_vfs::Written, FsError>| {
            network.silence(true);
            sender.send(written.map(drop)).unwrap();
            sender.send(client.getattr(SYSTEM, ROOT_INO).map(drop)).unwrap();
        }
    };
    file.submit_write(SYSTEM, Position::End.into(), pool.take(8).unwrap(), Box::new(done));
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    is_found_gone(&client);
    network.silence(false);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
}

#[test]
fn a_timeout_is_reported_in_time_and_a_close_at_once() {
    let path = make_pool(16 << 20, 1000);
    let (server, address) = serve(Arc::new(mount(&path)), vec![export("")], &ServerOptions::default());
    let network = Proxy::new(&address, NetworkFaults::default(), 5);
    let options = ClientOptions::default().timeout(Some(Duration::from_millis(300)));
    let client = Client::connect(&network.address, "", &options).unwrap();
    let without_timeout = connect_tcp(&network.address);
    let files = [new_file(&client), {
        let ino = without_timeout.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
        without_timeout.open(SYSTEM, ino, OpenMode::read_write()).unwrap()
    }];
    network.silence(true);
    let pool = Pool::new(4 << 20).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let began = Instant::now();
    for file in &files {
        for _ in 0..20 {
            let sender = sender.clone();
            file.submit_write(
                SYSTEM,
                Position::At(0).into(),
                pool.take(PAGE).unwrap(),
                Box::new(move |_, written| sender.send(written.map(drop)).unwrap()),
            );
        }
    }
    for _ in 0..20 {
        assert_eq!(
            receiver.recv_timeout(Duration::from_secs(5)),
            Ok(Err(FsError::TimedOut))
        );
    }
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(receiver.try_recv().is_err(), "the other waits");
    without_timeout.close();
    for _ in 0..20 {
        let outcome = receiver.recv_timeout(Duration::from_secs(5));
        assert_eq!(outcome, Ok(Err(FsError::Disconnected)));
    }
    assert_eq!(pool.free_bytes(), pool.len_bytes());
    drop(server);
}
