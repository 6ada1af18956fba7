//! Connects a file of a server to programs that exchange keys as perftest does (`ib_write_bw`, `ib_read_lat`, …):
//!
//! `cargo run -p ferrite-server --features rdma --example broker -- SERVER EXPORT KEY FILE PORT`
//!
//! SERVER is HOST:PORT, KEY a file with the export's key (`-`: no key), FILE a path in the export, PORT the port for
//! perftest's clients: `ib_write_bw -p PORT 127.0.0.1`. Their RDMA traffic goes to the server itself. This program only
//! speaks the server's side of the exchange, and requests queue pairs and a key from the server.
//!
//! It runs on the host of those clients, because a server opens queue pairs only to the address of the requester.
//! Address 0 of the remote memory is the beginning of the file. Access behind its end is refused, so it must be large
//! enough: twice a message, and 8 KiB at least.

mod exchange;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use ferrite_client::secure::Key;
use ferrite_client::{Client, ClientOptions};
use ferrite_proto::{QueuePairInfo, UdpPlace};
use ferrite_roce::wire::UDP_PORT;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{FileSystem, Ino, ROOT_INO, SYSTEM};

use exchange::{Broker, Line, Result};

const WRITABLE: Binding = Binding {
    writable: true,
    defragment: false,
    whole: false,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, export, key, file, port] = &arguments[..] else {
        eprintln!("broker SERVER EXPORT KEY FILE PORT; KEY is a file, or -");
        return ExitCode::from(2);
    };
    match run(server, export, key, file, port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("broker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(server: &str, export: &str, key: &str, file: &str, port: &str) -> Result<()> {
    let key = match key {
        "-" => None,
        path => Some(Key::read(Path::new(path))?),
    };
    let client = Arc::new(Client::connect(server, export, &ClientOptions::default().key(key))?);
    let mut ino = ROOT_INO;
    for name in file.split('/').filter(|name| !name.is_empty()) {
        ino = client.lookup(SYSTEM, ino, name.as_bytes())?.ino;
    }
    exchange::listen(&exchange::port(port)?, || OfServer {
        client: Arc::clone(&client),
        ino,
        key: None,
    })
}

/// A file of a server.
struct OfServer {
    client: Arc<Client>,
    ino: Ino,
    key: Option<u32>,
}

impl Broker for OfServer {
    fn mtu(&mut self, wanted: u8) -> Result<u8> {
        let places = self.client.rdma_places()?;
        let place = places.first().ok_or("the server offers no RDMA (serve --rdma)")?;
        Ok(wanted.min(ferrite_rnic::path::to(*place)?.mtu.code()))
    }

    fn connect(&mut self, theirs: &Line, mtu: u8) -> Result<Line> {
        let opened = self.client.open_queue_pair(&QueuePairInfo {
            place: UdpPlace(SocketAddr::new(theirs.ip, UDP_PORT)),
            qpn: theirs.qpn,
            psn: theirs.psn,
            mtu,
        })?;
        let key = match self.key {
            Some(key) => key,
            None => self.client.bind(SYSTEM, self.ino, WRITABLE, false)?.key,
        };
        self.key = Some(key);
        let ip = opened.place.0.ip();
        println!("queue pair {:#08x} at {ip}, path MTU {}", opened.qpn, 128 << opened.mtu);
        Ok(Line {
            qpn: opened.qpn,
            psn: opened.psn,
            key,
            at: 0,
            ip,
        })
    }

    fn end(&mut self, pairs: &[(Line, Line)]) {
        let closed = pairs.iter().map(|(_, ours)| self.client.close_queue_pair(ours.qpn));
        let released = self.key.map(|key| self.client.release_key(key));
        for error in closed.chain(released).filter_map(std::result::Result::err) {
            eprintln!("broker: {error}");
        }
    }
}
