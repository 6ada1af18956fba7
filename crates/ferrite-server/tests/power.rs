//! Servers whose machine goes down before they have synced acknowledged changes. The next one has an older image; here
//! that is an empty one.

use std::sync::Arc;

use crate::common::{connect, export, serve, serve_at};
use ferrite_server::{Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Ctx, FileSystem, FsError, Layer, Limits, NewFile, OpenMode, ROOT_INO, SYSTEM, Unsynced};

/// Its operations are durable after a sync.
struct Late(MemFs);

impl Layer for Late {
    fn below(&self) -> &dyn FileSystem {
        &self.0
    }

    fn sync_names(&self, ctx: &Ctx) -> Result<(), FsError> {
        ferrite_vfs::sync_names(self, ctx)
    }

    fn limits(&self) -> Limits {
        let mut limits = self.0.limits();
        limits.unsynced = Unsynced::Everything;
        limits
    }
}

fn image() -> Arc<dyn FileSystem> {
    Arc::new(Late(MemFs::new()))
}

fn restart(mut server: Server, address: &str, fs: &Arc<dyn FileSystem>) -> Server {
    server.stop();
    drop(server);
    serve_at(address, Arc::clone(fs), &ServerOptions::default())
}

/// No handle exists of a renamed or closed file, which would be stale.
#[test]
fn the_first_sync_after_a_loss_fails() {
    let fs = image();
    let (server, address) = serve(Arc::clone(&fs), vec![export("")], &ServerOptions::default());
    let client = connect(&address);
    let mkdir = |name: &str| {
        client.mkdir(SYSTEM, ROOT_INO, name.as_bytes(), 0o755).unwrap();
    };
    mkdir("kept");
    let server = restart(server, &address, &fs);
    client.sync(SYSTEM).unwrap();
    client.lookup(SYSTEM, ROOT_INO, b"kept").unwrap();

    let server = restart(server, &address, &image());
    client.sync(SYSTEM).unwrap();
    assert_eq!(client.lookup(SYSTEM, ROOT_INO, b"kept"), Err(FsError::NotFound));

    mkdir("lost");
    let server = restart(server, &address, &image());
    assert!(matches!(client.sync(SYSTEM), Err(FsError::Io(_))));
    client.sync(SYSTEM).unwrap();

    let write = || {
        let new = NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: false,
        };
        let opened = client.create(SYSTEM, ROOT_INO, b"file", &new).unwrap();
        opened.file.write_at(SYSTEM, 0, b"text").unwrap();
        opened.file
    };
    drop(write());
    let _server = restart(server, &address, &image());
    // Requests with the old root are refused.
    assert_eq!(client.lookup(SYSTEM, ROOT_INO, b"file"), Err(FsError::Stale));
    let file = write();
    assert!(matches!(file.fsync(SYSTEM), Err(FsError::Io(_))));
    file.fsync(SYSTEM).unwrap();
}
