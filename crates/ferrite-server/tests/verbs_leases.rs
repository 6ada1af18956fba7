//! Leases on files with writable keys: no client gets one as long as one key is left, whoever returns another.

use std::sync::Arc;

use crate::common::{connect, connect_leased, export, serve};
use crate::double::Double;
use ferrite_client::Client;
use ferrite_client::rdma::{RemoteFile, RemoteOptions};
use ferrite_rnic::Options;
use ferrite_server::ServerOptions;
use ferrite_server::rdma::Adapter;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, NewFile, OpenMode, Position, ROOT_INO, SYSTEM};

fn writable(client: &Arc<Client>) -> RemoteFile {
    let ino = client.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
    RemoteFile::open(client, SYSTEM, ino, RemoteOptions::default()).unwrap()
}

#[test]
fn the_last_writable_key_of_a_file_brings_its_leases_back() {
    let options = Options {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        ..Options::default()
    };
    let adapter = Adapter::start(&options, Arc::new(Double::default())).unwrap();
    let served = ServerOptions::default().rdma(Some(Arc::new(adapter)));
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &served);
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let clients: Vec<Arc<Client>> = (0..4).map(|_| Arc::new(connect(&address))).collect();
    let made = clients[0].create(SYSTEM, ROOT_INO, b"file", &new).unwrap();
    made.file.write(SYSTEM, Position::At(0).into(), b"text").unwrap();
    let cached = connect_leased(&address, 1 << 20);
    let ino = cached.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
    let reader = cached.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
    let keeps = || {
        let before = cached.cache_activity().unwrap().hits;
        for _ in 0..3 {
            assert_eq!(reader.read_at(SYSTEM, 0, &mut [0; 16]).unwrap(), 4);
            assert_eq!(reader.getattr(SYSTEM).unwrap().size, 4);
        }
        cached.cache_activity().unwrap().hits > before
    };
    assert!(keeps());
    let mut files: Vec<RemoteFile> = clients.iter().map(writable).collect();
    let last = files.pop().unwrap();
    assert!(!keeps());
    // One returns its key, one ends its session, one has its key no more.
    let [first, second, third] = <[RemoteFile; 3]>::try_from(files).unwrap_or_else(|_| unreachable!());
    first.close().unwrap();
    assert!(!keeps(), "another session has a writable key");
    drop((second, made.file));
    let mut clients = clients;
    drop(clients.remove(1));
    assert!(!keeps(), "another session has a writable key");
    drop(third);
    assert!(!keeps(), "another session has a writable key");
    last.write(0, b"TEXT").unwrap();
    let mut buf = [0; 16];
    assert_eq!(reader.read_at(SYSTEM, 0, &mut buf).unwrap(), 4);
    assert_eq!(&buf[..4], b"TEXT");
    last.close().unwrap();
    assert!(keeps(), "leases are given again");
}
