//! Engines behind a server on a loopback address, for the tests of this crate.
#![allow(dead_code, reason = "not every test uses all of it")]

pub(crate) mod bystander;
pub(crate) mod child;
pub(crate) mod meddler;
pub(crate) mod proxy;
pub(crate) mod raw;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrite_client::{Client, ClientOptions, Fabric};
use ferrite_fs::{Engine, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_pm::{Access, Image, Region};
use ferrite_server::{ExportOptions, FabricOptions, Server, ServerOptions};
use ferrite_testkit::TestEngine;
use ferrite_transport::secure::{Encrypt, Encryption, Key};
use ferrite_vfs::FileSystem;
use ferrite_vfs::memfs::MemFs;
use tempfile::TempPath;

/// The options of tests: clients may be root, and nothing waits long.
pub(crate) fn export(name: &str) -> ExportOptions {
    ExportOptions::new(name).root_squash(false)
}

/// Where servers listen: adapters of fabrics have addresses of their own.
pub(crate) fn host() -> String {
    std::env::var("FERRITE_FABRIC_HOST").unwrap_or_else(|_| "127.0.0.1".into())
}

/// The provider of fabrics that all clients use, if any: except those of [`connect_tcp`], and those that encrypt, which
/// no fabric does.
fn provider_for_all() -> Option<String> {
    std::env::var("FERRITE_FABRIC_PROVIDER").ok()
}

/// The key that clients need at any address but loopback. All processes of a test have this one.
fn key_of_host() -> Option<Key> {
    std::env::var_os("FERRITE_FABRIC_HOST")?;
    Key::parse(&format!("ferrite-key-1:{}", "5a".repeat(32)))
}

/// The exports and options for clients that may be at any address and use a fabric, which encrypts nothing.
fn for_all(exports: Vec<ExportOptions>, options: &ServerOptions) -> (Vec<ExportOptions>, ServerOptions) {
    let open = |export: ExportOptions| match key_of_host() {
        Some(key) => export.keys(vec![key]).encryption(Encryption::Offered),
        None => export,
    };
    let options = match provider_for_all() {
        Some(_) => options.clone().fabric(Some(FabricOptions::default())),
        None => options.clone(),
    };
    (exports.into_iter().map(open).collect(), options)
}

/// Serves `fs` on a free port; returns the address, too.
pub(crate) fn serve(fs: Arc<dyn FileSystem>, exports: Vec<ExportOptions>, options: &ServerOptions) -> (Server, String) {
    let listener = TcpListener::bind((host(), 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (exports, options) = for_all(exports, options);
    (
        Server::start(vec![listener], vec![(fs, exports)], &options).unwrap(),
        address,
    )
}

/// The same on a socket that listens already.
pub(crate) fn serve_on(listener: TcpListener, fs: Arc<dyn FileSystem>, options: &ServerOptions) -> Server {
    let (exports, options) = for_all(vec![export("")], options);
    Server::start(vec![listener], vec![(fs, exports)], &options).unwrap()
}

/// The same on a given port, which an earlier server may just have closed.
pub(crate) fn serve_at(address: &str, fs: Arc<dyn FileSystem>, options: &ServerOptions) -> Server {
    let (exports, options) = for_all(vec![export("")], options);
    for _ in 0..500 {
        match TcpListener::bind(address) {
            Ok(listener) => return Server::start(vec![listener], vec![(fs, exports)], &options).unwrap(),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    panic!("{address} stays taken");
}

pub(crate) fn connect(address: &str) -> Client {
    match provider_for_all() {
        None => connect_with(address, key_of_host()),
        provider => connect_over(provider.as_deref(), address),
    }
}

pub(crate) fn connect_with(address: &str, key: Option<Key>) -> Client {
    let options = ClientOptions::default().timeout(Some(Duration::from_secs(60)));
    Client::connect(address, "", &options.key(key)).unwrap()
}

/// A client of the export with this name.
pub(crate) fn connect_export(address: &str, name: &str) -> Client {
    Client::connect(address, name, &options_over(provider_for_all().as_deref())).unwrap()
}

/// A client that stays on TCP whatever the others use: its test is about the bytes on the sockets, which a fabric
/// bypasses.
pub(crate) fn connect_tcp(address: &str) -> Client {
    connect_with(address, key_of_host())
}

/// A client that caches under leases, up to so many bytes.
pub(crate) fn connect_leased(address: &str, cache_bytes: usize) -> Client {
    let options = options_over(provider_for_all().as_deref()).cache_bytes(Some(cache_bytes));
    Client::connect(address, "", &options).unwrap()
}

/// The same, on TCP: see [`connect_tcp`].
pub(crate) fn connect_leased_tcp(address: &str, cache_bytes: usize) -> Client {
    let options = options_over(None).cache_bytes(Some(cache_bytes));
    Client::connect(address, "", &options).unwrap()
}

/// The same, over a provider of fabrics.
pub(crate) fn connect_over(provider: Option<&str>, address: &str) -> Client {
    Client::connect(address, "", &options_over(provider)).unwrap()
}

/// A client that refuses changes.
pub(crate) fn connect_read_only(address: &str) -> Client {
    let options = options_over(provider_for_all().as_deref()).read_only(true);
    Client::connect(address, "", &options).unwrap()
}

fn options_over(provider: Option<&str>) -> ClientOptions {
    let fabric = provider.map(|provider| Fabric {
        provider: Some(provider.to_owned()),
        ..Fabric::default()
    });
    let timeout = Some(Duration::from_secs(60));
    let options = ClientOptions::default().timeout(timeout).fabric(fabric);
    options.key(key_of_host()).encrypt(Encrypt::Off)
}

/// A server's options for clients that may use a fabric.
pub(crate) fn options_for(provider: Option<&str>) -> ServerOptions {
    ServerOptions::default().fabric(provider.map(|_| FabricOptions::default()))
}

/// The reference engine behind a server.
pub(crate) struct RemoteReference {
    client: Client,
    _server: Server,
}

impl RemoteReference {
    pub(crate) fn new() -> RemoteReference {
        RemoteReference::over(provider_for_all().as_deref())
    }

    /// With a cache of so many bytes.
    pub(crate) fn leased(cache_bytes: usize) -> RemoteReference {
        let (server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
        RemoteReference {
            client: connect_leased(&address, cache_bytes),
            _server: server,
        }
    }

    pub(crate) fn over(provider: Option<&str>) -> RemoteReference {
        let (server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options_for(provider));
        RemoteReference {
            client: connect_over(provider, &address),
            _server: server,
        }
    }
}

impl TestEngine for RemoteReference {
    fn fs(&self) -> &dyn FileSystem {
        &self.client
    }

    fn remount(&mut self) {}

    fn check(&self) {}
}

/// A pool in a file of its own, in memory.
pub(crate) fn make_pool(bytes: u64, inodes: u64) -> TempPath {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() {
        shm.to_path_buf()
    } else {
        std::env::temp_dir()
    };
    let path = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempfile_in(dir)
        .unwrap()
        .into_temp_path();
    // With holes: memory for all of it would be found and freed for each case.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(bytes).unwrap();
    drop(file);
    let region = Region::open(&path, Access::ReadWrite).unwrap();
    mkfs(&region, &MkfsOptions::default().inodes(inodes)).unwrap();
    path
}

pub(crate) fn mount(path: &Path) -> Engine {
    // A process that another test starts at this moment has the pool open until it runs its program.
    let mut tries = 0;
    let region = loop {
        match Region::open(path, Access::ReadWrite) {
            Ok(region) => break region,
            Err(error) => assert!(tries < 300, "{error}"),
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(10));
    };
    Engine::mount(region, &MountOptions::default().keep_orphans(true)).unwrap()
}

/// A pool behind a server.
pub(crate) struct RemotePool {
    // Each is None only while the pool is mounted again.
    client: Option<Client>,
    server: Option<Server>,
    engine: Option<Engine>,
    path: TempPath,
    key: Option<Key>,
    provider: Option<String>,
    cache_bytes: Option<usize>,
}

impl RemotePool {
    pub(crate) fn new(bytes: u64, inodes: u64) -> RemotePool {
        RemotePool::over(provider_for_all().as_deref(), bytes, inodes)
    }

    /// With a cache of so many bytes.
    pub(crate) fn leased(bytes: u64, inodes: u64, cache_bytes: usize) -> RemotePool {
        let mut pool = RemotePool::new(bytes, inodes);
        pool.cache_bytes = Some(cache_bytes);
        pool.remount();
        pool
    }

    /// With a key all traffic is encrypted.
    pub(crate) fn with_key(bytes: u64, inodes: u64, key: Option<Key>) -> RemotePool {
        RemotePool::with(None, bytes, inodes, key)
    }

    /// Over a fabric, if a provider is given.
    pub(crate) fn over(provider: Option<&str>, bytes: u64, inodes: u64) -> RemotePool {
        RemotePool::with(provider, bytes, inodes, None)
    }

    fn with(provider: Option<&str>, bytes: u64, inodes: u64, key: Option<Key>) -> RemotePool {
        let path = make_pool(bytes, inodes);
        let mut pool = RemotePool {
            client: None,
            server: None,
            engine: None,
            path,
            key,
            provider: provider.map(str::to_owned),
            cache_bytes: None,
        };
        pool.up();
        pool
    }

    fn provider(&self) -> Option<&str> {
        self.provider.as_deref()
    }

    fn up(&mut self) {
        let engine = mount(&self.path);
        let export = export("")
            .keys(self.key.iter().cloned().collect())
            .encryption(Encryption::Always);
        let (server, address) = serve(Arc::new(engine.clone()), vec![export], &options_for(self.provider()));
        self.client = Some(match (self.cache_bytes, self.provider()) {
            (Some(cache_bytes), _) => connect_leased(&address, cache_bytes),
            (None, None) => connect_with(&address, self.key.clone()),
            (None, provider) => connect_over(provider, &address),
        });
        self.server = Some(server);
        self.engine = Some(engine);
    }
}

impl TestEngine for RemotePool {
    fn fs(&self) -> &dyn FileSystem {
        self.client.as_ref().expect("connected")
    }

    fn remount(&mut self) {
        self.client = None;
        if let Some(server) = &mut self.server {
            server.stop();
        }
        if let Some(engine) = self.engine.take() {
            engine.unmount().unwrap();
        }
        self.server = None;
        self.up();
    }

    fn check(&self) {
        let report = self.engine.as_ref().expect("mounted").scrub(None).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        let image = Image::read(&self.path).unwrap();
        let report = fsck(Region::of_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}
