//! Suites that every engine must pass, over a real connection to a pool on devices: the server answers its reads when
//! the device calls back, threads that may wait make its changes, and its tokens are kept with the changes.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use ferrite_blob::device::uring::{Options as Opening, Reactor, Uring, Waiting};
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_client::Client;
use ferrite_meta::{MemoryStore, MetaStore, Transaction};
use ferrite_nvme::{NvmeFs, Options, assemble, format};
use ferrite_server::{Server, ServerOptions};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::{TestEngine, linear, posix};
use ferrite_vfs::buffers::{Buffer, Pool};
use ferrite_vfs::{FileSystem, NewFile, OpenMode, Position, ROOT_INO, Result, SYSTEM, Written};

use crate::common::{connect, export, serve};

const DEVICE_BYTES: u64 = 160 << 20;

/// A metadata store that outlives the engine.
#[derive(Clone)]
struct Shared(Arc<MemoryStore>);

impl MetaStore for Shared {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        self.0.begin()
    }

    fn get(&self, key: &[u8]) -> ferrite_meta::Result<Option<Vec<u8>>> {
        self.0.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> ferrite_meta::Result<()> {
        self.0.scan(from, to, visit)
    }

    fn sync(&self) -> ferrite_meta::Result<()> {
        self.0.sync()
    }
}

/// A pool with a data device, which is a file through io_uring, behind a server.
struct RemoteDevices {
    // Each is None only while the pool is opened again.
    client: Option<Client>,
    server: Option<Server>,
    engine: Option<Arc<NvmeFs>>,
    meta: Shared,
    path: PathBuf,
    whole_pages: bool,
    _dir: tempfile::TempDir,
}

impl RemoteDevices {
    /// `whole_pages`: the test assumes that the device writes pages whole, so that they need no ring.
    fn new(whole_pages: bool) -> RemoteDevices {
        let dir = tempfile::Builder::new()
            .prefix("ferrite-test-")
            .tempdir_in("/dev/shm")
            .unwrap();
        let path = dir.path().join("device");
        Uring::create(&path, DEVICE_BYTES).unwrap();
        let meta = Shared(Arc::new(MemoryStore::new()));
        format(&meta, [7; 16], [9; 16], 1).unwrap();
        let mut pool = RemoteDevices {
            client: None,
            server: None,
            engine: None,
            meta,
            path,
            whole_pages,
            _dir: dir,
        };
        let identity = FormatOptions {
            store: [1; 16],
            pool: [7; 16],
            index: 0,
            checksums: false,
            shares_clusters: true,
        };
        BlobStore::format(&pool.device(), &identity).unwrap();
        pool.up();
        pool
    }

    fn device(&self) -> Uring {
        let mut options = Opening::default();
        options.whole_pages = Some(self.whole_pages);
        Uring::open(&self.path, &Reactor::start(Waiting::Sleeping).unwrap(), &options).unwrap()
    }

    fn up(&mut self) {
        let store = BlobStore::open(Box::new(self.device()), false).unwrap();
        let mut options = Options::default();
        options.keep_orphans = true;
        let engine = assemble(Box::new(self.meta.clone()), vec![Some(store)], options).unwrap();
        let engine = Arc::new(engine);
        let fs: Arc<dyn FileSystem> = Arc::clone(&engine) as _;
        let (server, address) = serve(fs, vec![export("")], &ServerOptions::default());
        self.client = Some(connect(&address));
        self.server = Some(server);
        self.engine = Some(engine);
    }
}

impl TestEngine for RemoteDevices {
    fn fs(&self) -> &dyn FileSystem {
        self.client.as_ref().expect("connected")
    }

    fn remount(&mut self) {
        self.client = None;
        if let Some(server) = &mut self.server {
            server.stop();
        }
        self.server = None;
        if let Some(engine) = self.engine.take() {
            engine.close().unwrap();
        }
        self.up();
    }

    fn check(&self) {
        let report = self.engine.as_ref().expect("open").check().unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

fn make(whole_pages: bool) -> Box<dyn TestEngine> {
    Box::new(RemoteDevices::new(whole_pages))
}

#[test]
fn posix_rules() {
    posix::run_all(|| make(true));
}

#[test]
fn concurrent_histories() {
    linear::run_all(|| make(true), 1);
}

#[test]
fn random_operations() {
    let seeds = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 100,
        None => 4,
    };
    for profile in Profile::ALL {
        for seed in 0..seeds {
            check_against_reference(|| make(seed % 2 == 0), profile, seed, 200);
        }
    }
}

/// Many reads of a client in flight, beside overwrites of the same pages: each sees one state, and they end, also those
/// in flight when the server stops.
#[test]
fn submitted_reads_see_whole_writes_and_end() {
    // The size of one atomic step here.
    const RECORD_BYTES: usize = 4 << 10;
    let mut pool = RemoteDevices::new(true);
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let client = pool.client.take().unwrap();
    assert!(client.limits().atomic_write_bytes >= RECORD_BYTES as u64);
    let file = client.create(SYSTEM, ROOT_INO, b"f", &new).unwrap().file;
    for record in 0..8 {
        file.write_at(SYSTEM, record * RECORD_BYTES as u64, &[0; RECORD_BYTES])
            .unwrap();
    }
    let buffers = Pool::new(8 << 20).unwrap();
    let (sender, ends) = std::sync::mpsc::channel();
    let mut rng = Rng::new(5);
    let mut under_way = 0;
    for round in 0..400_u64 {
        let at = rng.below(8) * RECORD_BYTES as u64;
        for _ in 0..4 {
            let sender = sender.clone();
            let done = Box::new(move |buffer: Buffer, read: Result<usize>| {
                let same = buffer.iter().all(|&byte| byte == buffer[0]);
                sender.send((read, same)).unwrap();
            });
            file.submit_read(SYSTEM, at, buffers.take(RECORD_BYTES).unwrap(), done);
            under_way += 1;
        }
        let mut buffer = buffers.take(RECORD_BYTES).unwrap();
        buffer.fill(round as u8);
        let sender = sender.clone();
        let done = Box::new(move |_: Buffer, written: Result<Written>| {
            sender.send((written.map(|written| written.len_bytes), true)).unwrap();
        });
        file.submit_write(SYSTEM, Position::At(at).into(), buffer, done);
        under_way += 1;
        while under_way > 32 {
            let (result, same) = ends.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
            assert_eq!(result.unwrap(), RECORD_BYTES);
            assert!(same, "a read of two writes");
            under_way -= 1;
        }
    }
    // Requests in flight now may fail, but end.
    if let Some(server) = &mut pool.server {
        server.stop();
    }
    drop((file, client));
    for _ in 0..under_way {
        let _ = ends.recv_timeout(std::time::Duration::from_secs(60)).expect("it ends");
    }
    pool.remount();
    pool.check();
}
