//! An unreliable network: bytes pass through [`Proxy`], which cuts, delays, fragments or swallows them. Bytes that it
//! passes on are unchanged, in order and sent once, as with TCP.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrite_testkit::rng::Rng;

/// How bad the network is. Each number is how many of 1,000 pieces it affects.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NetworkFaults {
    /// The connection is cut, in the middle of the piece.
    pub(crate) cuts: u64,
    /// The piece comes some milliseconds late.
    pub(crate) delays: u64,
    /// The piece comes byte by byte.
    pub(crate) crumbs: u64,
}

struct Shared {
    target: String,
    network_faults: Mutex<NetworkFaults>,
    seed: AtomicU64,
    /// Nothing passes, and nothing is closed: the peer's host has lost its power.
    is_silent: AtomicBool,
    is_over: AtomicBool,
    cuts: AtomicU64,
    /// Both ends of each live connection, by number.
    streams: Mutex<HashMap<u64, [TcpStream; 2]>>,
}

/// A proxy on a loopback address in front of another address.
pub(crate) struct Proxy {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

/// How often a thread of a proxy wakes up to check.
const TICK: Duration = Duration::from_millis(20);

impl Proxy {
    pub(crate) fn new(target: &str, network_faults: NetworkFaults, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            network_faults: Mutex::new(network_faults),
            seed: AtomicU64::new(seed),
            is_silent: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            streams: Mutex::default(),
        });
        {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.accept(&listener));
        }
        Proxy { address, shared }
    }

    /// Sets the quality of the network.
    pub(crate) fn turn(&self, network_faults: NetworkFaults) {
        *self.shared.network_faults.lock().unwrap() = network_faults;
    }

    /// Blocks all traffic, until `silence(false)`.
    pub(crate) fn silence(&self, is_silent: bool) {
        self.shared.is_silent.store(is_silent, Ordering::Release);
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        self.shared.cut_all();
    }

    /// How many connections it has cut by chance.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.cut_all();
    }
}

impl Shared {
    fn cut_all(&self) {
        for stream in self.streams.lock().unwrap().drain().flat_map(|(_, ends)| ends) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut number = 0;
        while !self.is_over.load(Ordering::Acquire) {
            let Ok((client, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            // A target that is down closes new connections.
            let Ok(server) = TcpStream::connect(&self.target) else {
                continue;
            };
            number += 1;
            // Before a thread can end it.
            let ends = [&client, &server].map(|end| end.try_clone().unwrap());
            self.streams.lock().unwrap().insert(number, ends);
            for (from, to) in [(&client, &server), (&server, &client)] {
                from.set_nonblocking(false).unwrap();
                from.set_nodelay(true).unwrap();
                from.set_read_timeout(Some(TICK)).unwrap();
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let shared = Arc::clone(self);
                let random = Rng::new(self.seed.fetch_add(1, Ordering::Relaxed));
                std::thread::spawn(move || {
                    // The end of one direction ends both.
                    let _ = shared.pump(&from, &to, random);
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                    shared.streams.lock().unwrap().remove(&number);
                });
            }
        }
    }

    fn pump(&self, mut from: &TcpStream, mut to: &TcpStream, mut random: Rng) -> std::io::Result<()> {
        let mut buf = vec![0; 64 << 10];
        while !self.is_over.load(Ordering::Acquire) {
            let read = match from.read(&mut buf) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                read => read,
            };
            // An end that closes its connection is not heard either.
            while self.is_silent.load(Ordering::Acquire) && !self.is_over.load(Ordering::Acquire) {
                std::thread::sleep(TICK);
            }
            let piece = match read? {
                0 => return Ok(()),
                count => &buf[..count],
            };
            let network_faults = *self.network_faults.lock().unwrap();
            let mut meets = |share: u64| random.below(1000) < share;
            let (is_cut, is_late, crumbles) = (
                meets(network_faults.cuts),
                meets(network_faults.delays),
                meets(network_faults.crumbs),
            );
            if is_late {
                std::thread::sleep(Duration::from_millis(random.below(8)));
            }
            if is_cut {
                self.cuts.fetch_add(1, Ordering::Relaxed);
                return to.write_all(&piece[..random.below(piece.len() as u64 + 1) as usize]);
            }
            if crumbles {
                let (crumbs, rest) = piece.split_at(piece.len().min(100));
                crumbs.iter().try_for_each(|&byte| to.write_all(&[byte]))?;
                to.write_all(rest)?;
            } else {
                to.write_all(piece)?;
            }
        }
        Ok(())
    }
}
