//! Many clients at a time.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::bystander::{Bystander, new_file};
use common::raw::Raw;
use common::{connect, export, make_pool, mount, serve};
use ferrite_net::server::ServerOptions;
use ferrite_net::wire::Request;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

#[test]
fn a_thousand_idle_sessions() {
    let fs = Arc::new(MemFs::new());
    let (server, address) = serve(fs, vec![export("")], &ServerOptions::default());
    let bystander = Bystander::at(&address, "");
    let mut idle: Vec<Raw> = (0..1000).map(|_| Raw::greeted(&address, "").0).collect();
    assert_eq!(server.sessions(), 1001);
    bystander.goes_on();
    for raw in &mut idle {
        raw.done::<()>(&Request::Ping {});
    }
    drop(idle);
    bystander.goes_on();
}

#[test]
fn sixty_four_clients_at_once() {
    let path = make_pool(64 << 20, 4000);
    let engine = mount(&path);
    let (server, address) = serve(
        Arc::new(engine.clone()),
        vec![export("")],
        &ServerOptions::default().threads(2),
    );
    let free = engine.statfs(SYSTEM).unwrap().inodes_free;
    // Over a fabric each thread of the server opens its endpoint for its first client. Endpoints of one process are
    // opened one at a time, and those of all clients here are of this process, which no client of a server is.
    drop([connect(&address), connect(&address)]);
    std::thread::scope(|scope| {
        for number in 0..64 {
            let address = &address;
            scope.spawn(move || {
                let client = connect(address);
                let dir = client
                    .mkdir(SYSTEM, ROOT_INO, format!("{number}").as_bytes(), 0o755)
                    .unwrap();
                for round in 0..20u8 {
                    let file = client.create(SYSTEM, dir.ino, b"file", &new_file(true)).unwrap().file;
                    file.write_at(SYSTEM, 0, &[round; 5000]).unwrap();
                    let mut back = [0; 5000];
                    assert_eq!(file.read_at(SYSTEM, 0, &mut back), Ok(5000));
                    assert_eq!(back, [round; 5000]);
                    client.unlink(SYSTEM, dir.ino, b"file").unwrap();
                }
                client.rmdir(SYSTEM, ROOT_INO, format!("{number}").as_bytes()).unwrap();
            });
        }
    });
    let began = Instant::now();
    while server.sessions() > 0 {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(engine.statfs(SYSTEM).unwrap().inodes_free, free);
}
