//! The other end of `ib_write_lat`, which writes back the number that it receives:
//!
//! `cargo run -p ferrite-server --features rdma --example responder -- POOL ADDRESS PORT BYTES ROUNDS`
//!
//! Makes a pool and a file in it, offers the file by RDMA at ADDRESS, and waits at TCP port PORT for
//! `ib_write_lat -s BYTES -n ROUNDS -p PORT ADDRESS`.
//!
//! In each round it writes a number into the client's memory, by the client's own queue pair, and waits until the
//! client's WRITE has put the same number into the file, which it reads as a file. A file server makes no requests to
//! its clients, so this is a program with an adapter of its own, and not `ferrite serve`.

mod exchange;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_fs::{Engine, MkfsOptions, MountOptions, mkfs};
use ferrite_pm::{Access, Region};
use ferrite_proto::{QueuePairInfo, UdpPlace};
use ferrite_rnic::Options;
use ferrite_roce::requester::Request;
use ferrite_roce::wire::UDP_PORT;
use ferrite_server::rdma::{Adapter, BoundFiles};
use ferrite_server::{KeyWanted, Keys, Rdma};
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{FileSystem, Ino, NewFile, OpenFile, OpenMode, Position, ROOT_INO, SYSTEM};

use exchange::{Broker, Line, Result};

const POOL_BYTES: u64 = 64 << 20;
const FILE_BYTES: usize = 16 << 20;
/// The client is dead if it takes longer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The only session.
const SESSION: u64 = 1;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pool, address, port, bytes, rounds] = &arguments[..] else {
        eprintln!("responder POOL ADDRESS PORT BYTES ROUNDS");
        return ExitCode::from(2);
    };
    match reply(pool, address, port, bytes, rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("responder: {error}");
            ExitCode::FAILURE
        }
    }
}

fn reply(pool: &str, address: &str, port: &str, bytes: &str, rounds: &str) -> Result<()> {
    let ip: IpAddr = address.parse()?;
    mkfs(&Region::create(Path::new(pool), POOL_BYTES)?, &MkfsOptions::default())?;
    let engine = Engine::mount(
        Region::open(Path::new(pool), Access::ReadWrite)?,
        &MountOptions::default(),
    )?;
    let fs: Arc<dyn FileSystem> = Arc::new(engine);
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let made = fs.create(SYSTEM, ROOT_INO, b"shared", &new)?;
    made.file.write(SYSTEM, Position::At(0).into(), &vec![0; FILE_BYTES])?;
    let options = Options {
        listen: vec![SocketAddr::new(ip, UDP_PORT)],
        ..Options::default()
    };
    let adapter = Arc::new(Adapter::start(&options, Arc::new(BoundFiles::new()?))?);
    let (bytes, rounds) = (bytes.parse()?, rounds.parse()?);
    exchange::listen(&exchange::port(port)?, || Player {
        game: Game {
            adapter: Arc::clone(&adapter),
            fs: Arc::clone(&fs),
            file: Arc::clone(&made.file),
            ino: made.attr.ino,
            ip,
            bytes,
            rounds,
        },
        plays: None,
    })
}

/// On a file of its own pool.
#[derive(Clone)]
struct Game {
    adapter: Arc<Adapter<BoundFiles>>,
    fs: Arc<dyn FileSystem>,
    file: Arc<dyn OpenFile>,
    ino: Ino,
    ip: IpAddr,
    bytes: usize,
    rounds: u64,
}

impl Game {
    /// Plays, and returns the number of rounds. The responder begins, as a server of `ib_write_lat` does.
    fn play(&self, ours: &Line, theirs: &Line) -> Result<u64> {
        let last = self.bytes as u64 - 1;
        for round in 1..=self.rounds {
            let number = round as u8;
            let mut data = vec![0; self.bytes];
            data[last as usize] = number;
            let put = Request::Write {
                key: theirs.key,
                at: theirs.at,
                data,
                immediate: None,
            };
            self.adapter.ask(ours.qpn, put)?;
            let began = Instant::now();
            let mut seen = [number.wrapping_sub(1)];
            while seen[0] != number {
                self.file.read_at(SYSTEM, last, &mut seen)?;
                if began.elapsed() > TIMEOUT {
                    return Err(format!("{} instead of {number} in round {round}", seen[0]).into());
                }
            }
        }
        Ok(self.rounds)
    }
}

/// Plays in a thread of its own: a program that is slow to begin sends more, and waits for a reply.
struct Player {
    game: Game,
    plays: Option<JoinHandle<()>>,
}

impl Broker for Player {
    fn mtu(&mut self, wanted: u8) -> Result<u8> {
        Ok(wanted)
    }

    fn connect(&mut self, theirs: &Line, mtu: u8) -> Result<Line> {
        let opened = self.game.adapter.open(
            SESSION,
            &QueuePairInfo {
                place: UdpPlace(SocketAddr::new(theirs.ip, UDP_PORT)),
                qpn: theirs.qpn,
                psn: theirs.psn,
                mtu,
            },
        )?;
        let binding = Binding {
            writable: true,
            defragment: false,
            whole: false,
        };
        let granted = self.game.adapter.bind(&KeyWanted {
            session: SESSION,
            fs: &self.game.fs,
            ctx: SYSTEM,
            ino: self.game.ino,
            binding,
            atomic: false,
        })?;
        Ok(Line {
            qpn: opened.qpn,
            psn: opened.psn,
            key: granted.key,
            at: 0,
            ip: self.game.ip,
        })
    }

    fn begin(&mut self, pairs: &[(Line, Line)]) {
        if let [(theirs, ours), ..] = *pairs {
            let game = self.game.clone();
            self.plays = Some(std::thread::spawn(move || match game.play(&ours, &theirs) {
                Ok(rounds) => println!("answered {rounds} rounds"),
                Err(error) => eprintln!("responder: {error}"),
            }));
        }
    }

    fn end(&mut self, _pairs: &[(Line, Line)]) {
        if self.plays.take().is_some_and(|plays| plays.join().is_err()) {
            eprintln!("responder: the player panicked");
        }
        self.game.adapter.end_session(SESSION);
        if let Err(error) = self
            .game
            .file
            .write(SYSTEM, Position::At(0).into(), &vec![0; self.game.bytes])
        {
            eprintln!("responder: {error}");
        }
    }
}
