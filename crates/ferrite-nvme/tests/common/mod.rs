//! Pools in memory for the engine's tests.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrite_blob::device::Memory as MemoryDevice;
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::{MemoryRemote, MemoryStore, MetaStore, Owned, OwnedOptions, Owner, Remote, Transaction};
use ferrite_nvme::{NvmeFs, Options};
use ferrite_testkit::TestEngine;
use ferrite_vfs::FileSystem;

/// A metadata store that outlives the engine, and whether it reports that it has little space left.
#[derive(Clone)]
pub(crate) struct Shared(Arc<dyn MetaStore>, Arc<AtomicBool>);

/// Where a pool of a test has its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Memory,
    /// A database in memory, whose owner has a cache that is too small for most of it.
    Database,
    #[cfg(feature = "rocksdb")]
    Directory,
    #[cfg(feature = "rocksdb")]
    Blobs,
}

impl Backend {
    /// Whether content has checksums in pools with it: the suites run on pools of both kinds.
    fn has_checksums(self) -> bool {
        #[cfg(feature = "rocksdb")]
        let has = self == Backend::Directory;
        #[cfg(not(feature = "rocksdb"))]
        let has = false;
        has
    }

    /// Whether small files share clusters, as in pools that are made today.
    pub(crate) fn shares_clusters(self) -> bool {
        #[cfg(feature = "rocksdb")]
        let shares = self != Backend::Blobs;
        #[cfg(not(feature = "rocksdb"))]
        let shares = true;
        shares
    }
}

/// All of them.
pub(crate) const BACKENDS: &[Backend] = &[
    Backend::Memory,
    Backend::Database,
    #[cfg(feature = "rocksdb")]
    Backend::Directory,
    #[cfg(feature = "rocksdb")]
    Backend::Blobs,
];

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

    fn statistics(&self) -> ferrite_meta::Statistics {
        self.0.statistics()
    }

    fn give_up(&self) {
        self.0.give_up();
    }

    fn may_answer(&self) -> ferrite_meta::Result<()> {
        self.0.may_answer()
    }

    fn know_empty(&self, from: &[u8], to: &[u8]) {
        self.0.know_empty(from, to);
    }

    fn has_space_to_spare(&self) -> bool {
        !self.1.load(Ordering::Relaxed) && self.0.has_space_to_spare()
    }
}

pub(crate) fn shared(store: impl MetaStore + 'static) -> Shared {
    shared_with(Arc::new(store))
}

pub(crate) fn shared_with(store: Arc<dyn MetaStore>) -> Shared {
    Shared(store, Arc::default())
}

/// Where metadata is, in a way that lasts while the pool is closed.
enum Lasting {
    Database(Arc<dyn Remote>),
    #[cfg(feature = "rocksdb")]
    Directory(tempfile::TempDir),
    #[cfg(feature = "rocksdb")]
    Blobs(Arc<MemoryDevice>),
}

/// Small enough for most reads to ask the database, in pools of some hundred files.
const DATABASE_CACHE_BYTES: usize = 16 << 10;

fn owned(database: &Arc<dyn Remote>) -> Shared {
    let owner = Owner {
        name: "test".into(),
        address: String::new(),
    };
    let mut options = OwnedOptions::default();
    options.cache_bytes = DATABASE_CACHE_BYTES;
    shared(Owned::open(Arc::clone(database), 1, &owner, options).unwrap())
}

impl Lasting {
    fn open(&self, create: bool) -> Shared {
        match self {
            Lasting::Database(database) => owned(database),
            #[cfg(feature = "rocksdb")]
            _ => self.open_rocksdb(create),
        }
    }

    #[cfg(feature = "rocksdb")]
    fn open_rocksdb(&self, create: bool) -> Shared {
        let options = ferrite_meta::Options {
            create,
            reserve_bytes: 0,
            ..ferrite_meta::Options::default()
        };
        let backend = match self {
            Lasting::Directory(dir) => ferrite_meta::Backend::Directory(dir.path().join("meta")),
            Lasting::Blobs(device) => {
                let blobs = ferrite_nvme::MetaBlobs::open(Box::new(Arc::clone(device))).unwrap();
                ferrite_meta::Backend::Blobs(Arc::new(blobs))
            }
            Lasting::Database(database) => return owned(database),
        };
        shared(ferrite_meta::RocksStore::open(backend, &options).unwrap())
    }
}

/// A pool whose data stores are in memory.
pub(crate) struct Memory {
    meta: Shared,
    lasting: Option<Lasting>,
    devices: Vec<Arc<MemoryDevice>>,
    hash_bits: u32,
    small_bytes_max: u64,
    engine: Option<NvmeFs>,
}

impl Memory {
    pub(crate) fn new(stores: usize, clusters: u64, hash_bits: u32) -> Memory {
        Memory::at(Backend::Memory, stores, clusters, hash_bits)
    }

    /// A pool with its metadata in shard 1 of a database, which has one and nothing in it.
    pub(crate) fn on_database(database: Arc<dyn Remote>, stores: usize, clusters: u64, hash_bits: u32) -> Memory {
        let lasting = Some(Lasting::Database(database));
        Memory::made(Backend::Database, lasting, stores, clusters, hash_bits)
    }

    pub(crate) fn at(backend: Backend, stores: usize, clusters: u64, hash_bits: u32) -> Memory {
        let lasting = match backend {
            Backend::Memory => None,
            Backend::Database => Some(Lasting::Database(Arc::new(MemoryRemote::new()))),
            #[cfg(feature = "rocksdb")]
            Backend::Directory => {
                let dir = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
                Some(Lasting::Directory(dir))
            }
            #[cfg(feature = "rocksdb")]
            Backend::Blobs => {
                let device = MemoryDevice::new(256 << 20);
                let options = FormatOptions {
                    store: [99; 16],
                    pool: [7; 16],
                    index: 0,
                    checksums: false,
                    shares_clusters: false,
                };
                BlobStore::format(&device, &options).unwrap();
                Some(Lasting::Blobs(Arc::new(device)))
            }
        };
        Memory::made(backend, lasting, stores, clusters, hash_bits)
    }

    fn made(backend: Backend, lasting: Option<Lasting>, stores: usize, clusters: u64, hash_bits: u32) -> Memory {
        let meta = match &lasting {
            None => shared(MemoryStore::new()),
            Some(lasting) => lasting.open(true),
        };
        ferrite_nvme::format(&meta, [7; 16], [9; 16], stores as u16).unwrap();
        let devices = (0..stores)
            .map(|index| {
                let device = MemoryDevice::new((clusters + 4 + clusters / 32) << 20);
                let options = FormatOptions {
                    store: [index as u8; 16],
                    pool: [7; 16],
                    index: index as u16,
                    checksums: backend.has_checksums(),
                    shares_clusters: backend.shares_clusters(),
                };
                BlobStore::format(&device, &options).unwrap();
                Arc::new(device)
            })
            .collect();
        let mut pool = Memory {
            meta,
            lasting,
            devices,
            hash_bits,
            small_bytes_max: Options::default().small_bytes_max,
            engine: None,
        };
        pool.open();
        pool
    }

    /// The same pool, in which files get blobs from another length on.
    pub(crate) fn with_small_files(mut self, small_bytes_max: u64) -> Memory {
        self.small_bytes_max = small_bytes_max;
        self.close();
        self.open();
        self
    }

    pub(crate) fn open(&mut self) {
        self.open_with(Options::default());
    }

    pub(crate) fn open_read_only(&mut self) {
        let mut options = Options::default();
        options.read_only = true;
        self.open_with(options);
    }

    fn open_with(&mut self, mut options: Options) {
        if let Some(lasting) = &self.lasting {
            // It is opened anew, as by another process.
            self.meta = shared(MemoryStore::new());
            self.meta = lasting.open(false);
        }
        options.hash_bits = self.hash_bits;
        options.small_bytes_max = self.small_bytes_max;
        let stores = self.stores().into_iter().map(Some).collect();
        self.engine = Some(ferrite_nvme::assemble(Box::new(self.meta.clone()), stores, options).unwrap());
    }

    pub(crate) fn close(&mut self) {
        self.engine.take().expect("open").close().unwrap();
    }

    /// Ends the engine without closing it, and opens the pool again.
    pub(crate) fn crash(&mut self) {
        drop(self.engine.take());
        // The housekeeper may hold it for a moment.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while Arc::strong_count(&self.meta.0) > 1 {
            assert!(std::time::Instant::now() < until, "somebody keeps the engine");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.open();
    }

    /// Where the metadata is, if it is in a directory.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn meta_dir(&self) -> Option<std::path::PathBuf> {
        match &self.lasting {
            Some(Lasting::Directory(dir)) => Some(dir.path().join("meta")),
            _ => None,
        }
    }

    /// Drops the engine as it is, and what was opened for it.
    pub(crate) fn abandon(&mut self) {
        self.engine = None;
        self.meta = shared(MemoryStore::new());
    }

    /// No thread of an engine is left in this process.
    pub(crate) fn engine_is_gone(&self) -> bool {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        !tasks.map(name).any(|name| name.starts_with("ferrite-nvme"))
    }

    pub(crate) fn engine(&self) -> &NvmeFs {
        self.engine.as_ref().expect("open")
    }

    pub(crate) fn shared(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.engine().clone())
    }

    /// The metadata store has little space left, or enough again.
    pub(crate) fn set_scarce(&self, is_scarce: bool) {
        self.meta.1.store(is_scarce, Ordering::Relaxed);
    }

    pub(crate) fn meta(&self) -> &dyn MetaStore {
        &self.meta
    }

    /// The device of a data store.
    pub(crate) fn device(&self, index: usize) -> &MemoryDevice {
        &self.devices[index]
    }

    /// Replaces a device, while the pool is closed.
    pub(crate) fn replace_device(&mut self, index: usize, image: Vec<u8>) {
        self.devices[index] = Arc::new(MemoryDevice::of(image));
    }

    /// The data stores of a pool that is closed.
    pub(crate) fn stores(&self) -> Vec<BlobStore> {
        let open = |device: &Arc<MemoryDevice>| BlobStore::open(Box::new(Arc::clone(device)), false).unwrap();
        self.devices.iter().map(open).collect()
    }
}

impl TestEngine for Memory {
    fn fs(&self) -> &dyn FileSystem {
        self.engine.as_ref().expect("open")
    }

    fn remount(&mut self) {
        self.close();
        self.open();
    }

    fn check(&self) {
        let report = self.engine.as_ref().expect("open").check().unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}
