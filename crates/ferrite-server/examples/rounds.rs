//! The cost of operations on a server in the same process, over TCP and over a provider of fabrics:
//! `cargo run -p ferrite-server --features fabric --example rounds -- shm`. A second argument is this host's address
//! to use, a third the number of operations. The engine is in memory, so that the transport is most of the cost.
//! `ferrite-lab bench net` measures TCP with more care.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_client::secure::{Encrypt, Encryption, Key};
use ferrite_client::{Client, ClientOptions, Fabric};
use ferrite_server::{ExportOptions, FabricOptions, Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, NewFile, OpenMode, ROOT_INO, SYSTEM};

const LARGE_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let provider = arguments.next().unwrap_or_else(|| "shm".into());
    let host = arguments.next().unwrap_or_else(|| "127.0.0.1".into());
    let rounds = arguments.next().map_or(Ok(2000), |text| text.parse::<u32>())?.max(16);

    let key = Key::generate()?;
    let listener = TcpListener::bind((&*host, 0))?;
    let address = listener.local_addr()?.to_string();
    let export = ExportOptions::new("")
        .root_squash(false)
        .keys(vec![key.clone()])
        .encryption(Encryption::Offered);
    let options = ServerOptions::default().fabric(Some(FabricOptions::default()));
    let _server = Server::start(vec![listener], vec![(Arc::new(MemFs::new()), vec![export])], &options)?;

    let fabric = Fabric {
        provider: Some(provider.clone()),
        ..Fabric::default()
    };
    for (way, fabric) in [("tcp", None), (&*provider, Some(fabric))] {
        let name = if fabric.is_some() {
            format!("fabric, {way}")
        } else {
            way.into()
        };
        let options = ClientOptions::default()
            .key(Some(key.clone()))
            .encrypt(Encrypt::Off)
            .fabric(fabric);
        measure(&name, &Client::connect(&address, "", &options)?, rounds)?;
    }
    Ok(())
}

fn measure(way: &str, fs: &dyn FileSystem, rounds: u32) -> Result<(), Box<dyn std::error::Error>> {
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let file = fs.create(SYSTEM, ROOT_INO, way.as_bytes(), &new)?.file;
    let mut small = [1; 4096];
    let mut large = vec![2; LARGE_BYTES];
    file.write_at(SYSTEM, 0, &large)?;
    let report = |what: &str, rounds: u32, taken: Duration| println!("{way}, {what}: {:.0?} each", taken / rounds);

    let began = Instant::now();
    for round in 0..rounds {
        file.read_at(SYSTEM, u64::from(round % 256) * 4096, &mut small)?;
    }
    report("4 KiB read", rounds, began.elapsed());
    let began = Instant::now();
    for round in 0..rounds {
        file.write_at(SYSTEM, u64::from(round % 256) * 4096, &small)?;
    }
    report("4 KiB written", rounds, began.elapsed());
    let few = rounds / 16;
    let began = Instant::now();
    for _ in 0..few {
        file.read_at(SYSTEM, 0, &mut large)?;
    }
    report("1 MiB read", few, began.elapsed());
    let began = Instant::now();
    for _ in 0..few {
        file.write_at(SYSTEM, 0, &large)?;
    }
    report("1 MiB written", few, began.elapsed());
    Ok(())
}
