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

use ferrite_fabric::secure::{Encryption, Key};
use ferrite_fs::{Engine, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_net::client::{Client, ClientOptions, Fabric};
use ferrite_net::server::{ExportOptions, FabricOptions, Server, ServerOptions};
use ferrite_pm::{Access, Region};
use ferrite_testkit::TestEngine;
use ferrite_vfs::FileSystem;
use ferrite_vfs::memfs::MemFs;
use tempfile::TempPath;

/// The options of tests: clients may be root, and nothing waits long.
pub(crate) fn export(name: &str) -> ExportOptions {
    ExportOptions::new(name).root_squash(false)
}

/// Serves `fs` on a free port; returns the address, too.
pub(crate) fn serve(fs: Arc<dyn FileSystem>, exports: Vec<ExportOptions>, options: &ServerOptions) -> (Server, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (
        Server::start(vec![listener], vec![(fs, exports)], options).unwrap(),
        address,
    )
}

/// The same on a given port, which an earlier server may just have given up.
pub(crate) fn serve_at(address: &str, fs: Arc<dyn FileSystem>, options: &ServerOptions) -> Server {
    for _ in 0..500 {
        match TcpListener::bind(address) {
            Ok(listener) => return Server::start(vec![listener], vec![(fs, vec![export("")])], options).unwrap(),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    panic!("{address} stays taken");
}

pub(crate) fn connect(address: &str) -> Client {
    connect_with(address, None)
}

pub(crate) fn connect_with(address: &str, key: Option<Key>) -> Client {
    let options = ClientOptions::default().patience(Some(Duration::from_secs(60)));
    Client::connect(address, "", &options.key(key)).unwrap()
}

/// The same, over a provider of fabrics.
pub(crate) fn connect_over(provider: Option<&str>, address: &str) -> Client {
    let fabric = provider.map(|provider| Fabric {
        provider: Some(provider.to_owned()),
        ..Fabric::default()
    });
    let patience = Some(Duration::from_secs(60));
    let options = ClientOptions::default().patience(patience).fabric(fabric);
    Client::connect(address, "", &options).unwrap()
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
        RemoteReference::over(None)
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
    mkfs(
        &Region::create(&path, bytes).unwrap(),
        &MkfsOptions::default().inodes(inodes),
    )
    .unwrap();
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
    provider: Option<&'static str>,
}

impl RemotePool {
    pub(crate) fn new(bytes: u64, inodes: u64) -> RemotePool {
        RemotePool::over(None, bytes, inodes)
    }

    /// With a key everything is encrypted.
    pub(crate) fn with_key(bytes: u64, inodes: u64, key: Option<Key>) -> RemotePool {
        RemotePool::with(None, bytes, inodes, key)
    }

    /// Over a fabric, if a provider is given.
    pub(crate) fn over(provider: Option<&'static str>, bytes: u64, inodes: u64) -> RemotePool {
        RemotePool::with(provider, bytes, inodes, None)
    }

    fn with(provider: Option<&'static str>, bytes: u64, inodes: u64, key: Option<Key>) -> RemotePool {
        let path = make_pool(bytes, inodes);
        let mut pool = RemotePool {
            client: None,
            server: None,
            engine: None,
            path,
            key,
            provider,
        };
        pool.up();
        pool
    }

    fn up(&mut self) {
        let engine = mount(&self.path);
        let export = export("")
            .keys(self.key.iter().cloned().collect())
            .encryption(Encryption::Always);
        let (server, address) = serve(Arc::new(engine.clone()), vec![export], &options_for(self.provider));
        self.client = Some(match self.provider {
            None => connect_with(&address, self.key.clone()),
            provider => connect_over(provider, &address),
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
        let image = std::fs::read(&self.path).unwrap();
        let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}
