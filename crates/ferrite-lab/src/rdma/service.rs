//! A server with RDMA and a client of it, in this process: a file by verbs, by requests, and by direct calls on the
//! server's host.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use ferrite_client::rdma::{How, RemoteFile, RemoteOptions};
use ferrite_client::{Client, ClientOptions};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_server::rdma::{Adapter, BoundFiles};
use ferrite_server::{ExportOptions, Server, ServerOptions};
use ferrite_vfs::{FileSystem, OpenFile, OpenMode, ROOT_INO, SYSTEM};

use super::{failed, layout};
use crate::engine::engine_in_memory;
use crate::error::LabError;

/// See the module's head.
pub struct Service {
    // In this order: the client, its server, and the engine that is served.
    client: Arc<Client>,
    _server: Server,
    engine: Engine,
}

impl Service {
    /// Serves a pool of `pool_bytes` on the loopback address.
    ///
    /// # Errors
    /// Too little memory; no socket or thread.
    pub fn new(mapping: Mapping, pool_bytes: u64) -> Result<Service, LabError> {
        let mkfs = MkfsOptions::default().mapping(mapping).seed(1);
        let engine = engine_in_memory(pool_bytes, &mkfs, &MountOptions::default())?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let exports = vec![ExportOptions::new("").root_squash(false)];
        let served: Arc<dyn FileSystem> = Arc::new(engine.clone());
        let options = ferrite_rnic::Options {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            ..ferrite_rnic::Options::default()
        };
        let adapter = Adapter::start(&options, Arc::new(BoundFiles::new()?)).map_err(failed)?;
        let options = ServerOptions::default().rdma(Some(Arc::new(adapter)));
        let server = Server::start(vec![listener], vec![(served, exports)], &options)?;
        let with_timeout = ClientOptions::default().timeout(Some(Duration::from_secs(20)));
        Ok(Service {
            client: Arc::new(Client::connect(&address, "", &with_timeout)?),
            _server: server,
            engine,
        })
    }

    /// A new file of `bytes`, by verbs and by requests.
    ///
    /// # Errors
    /// The engine's; verbs are unavailable.
    pub fn remote(&self, name: &str, bytes: u64) -> Result<[RemoteFile; 2], LabError> {
        layout::written(&self.engine, name, bytes)?;
        let ino = self.client.lookup(SYSTEM, ROOT_INO, name.as_bytes())?.ino;
        let open = |options| RemoteFile::open(&self.client, SYSTEM, ino, options).map_err(failed);
        let by_verbs = open(RemoteOptions::default())?;
        match by_verbs.how() {
            How::Verbs { .. } => Ok([by_verbs, open(RemoteOptions::default().only_requests(true))?]),
            other => Err(failed(other)),
        }
    }

    /// A new unbound file, in the engine itself.
    ///
    /// # Errors
    /// The engine's.
    pub fn local(&self, name: &str, bytes: u64) -> Result<Arc<dyn OpenFile>, LabError> {
        let ino = layout::written(&self.engine, name, bytes)?;
        Ok(self.engine.open(SYSTEM, ino, OpenMode::read_write())?)
    }
}
