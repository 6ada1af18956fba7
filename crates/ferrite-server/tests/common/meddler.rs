//! A man in the middle: [`Meddler`] can change traffic between client and server; it knows the form of handshake and
//! records, and has no key.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrite_transport::secure::handshake::{MESSAGE_BYTES, PREAMBLE_BYTES, VERDICT_BYTES};

/// The sender of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// A manipulation of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trick {
    /// Flips one bit of it, at this byte of its ciphertext, modulo its length.
    Flip(usize),
    /// Sends it twice.
    Replay,
    /// Drops it.
    Drop,
    /// Sends it after the next one.
    Swap,
    /// Truncates it by a byte, with a matching length.
    Shorten,
}

struct Shared {
    target: String,
    /// A manipulation, and its record of a connection, once.
    plan: Mutex<Option<(Side, Trick, usize)>>,
    /// The connection on which it was done.
    played_on: Mutex<Option<usize>>,
    /// The manipulation of the bytes that open a connection.
    opening: Mutex<Option<(Side, usize, u8)>>,
    /// All that clients have sent, by connection.
    heard: Mutex<Vec<Vec<u8>>>,
    knows_records: bool,
    is_over: AtomicBool,
}

/// A proxy on a loopback address in front of a server.
pub(crate) struct Meddler {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

impl Meddler {
    pub(crate) fn new(target: &str) -> Meddler {
        Meddler::start(target, true)
    }

    /// A passive listener. The bytes after the handshake need not be records.
    pub(crate) fn listening(target: &str) -> Meddler {
        Meddler::start(target, false)
    }

    fn start(target: &str, knows_records: bool) -> Meddler {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            plan: Mutex::default(),
            played_on: Mutex::default(),
            opening: Mutex::default(),
            heard: Mutex::default(),
            knows_records,
            is_over: AtomicBool::new(false),
        });
        {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.accept(&listener));
        }
        Meddler { address, shared }
    }

    /// Does this to the `nth` record of a side, once.
    pub(crate) fn plan(&self, side: Side, trick: Trick, nth: usize) {
        *self.shared.played_on.lock().unwrap() = None;
        *self.shared.plan.lock().unwrap() = Some((side, trick, nth));
    }

    /// Whether the plan was carried out, and the client has reconnected.
    pub(crate) fn is_done(&self) -> bool {
        let played_on = *self.shared.played_on.lock().unwrap();
        let is_planned = self.shared.plan.lock().unwrap().is_some();
        let connections = self.shared.heard.lock().unwrap().len();
        !is_planned && played_on.is_some_and(|number| number + 1 < connections)
    }

    /// From now on flips these bits in a byte of a side's opening; or none again.
    pub(crate) fn rewrite(&self, what: Option<(Side, usize, u8)>) {
        *self.shared.opening.lock().unwrap() = what;
    }

    /// The bytes that the clients have sent, by connection.
    pub(crate) fn heard(&self) -> Vec<Vec<u8>> {
        self.shared.heard.lock().unwrap().clone()
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.is_over.load(Ordering::Acquire) {
            let Ok((client, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let Ok(server) = TcpStream::connect(&self.target) else {
                continue;
            };
            client.set_nonblocking(false).unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let number = {
                let mut heard = self.heard.lock().unwrap();
                heard.push(Vec::new());
                heard.len() - 1
            };
            for (side, from, to) in [(Side::Client, &client, &server), (Side::Server, &server, &client)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let shared = Arc::clone(self);
                std::thread::spawn(move || {
                    let _ = shared.pump(side, number, &from, &to);
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    }

    fn pump(&self, side: Side, number: usize, mut from: &TcpStream, mut to: &TcpStream) -> std::io::Result<()> {
        let mut opening = vec![
            0;
            MESSAGE_BYTES
                + match side {
                    Side::Client => PREAMBLE_BYTES,
                    Side::Server => VERDICT_BYTES,
                }
        ];
        // A verdict may be everything that comes.
        let mut filled = 0;
        while filled < opening.len() {
            let count = from.read(&mut opening[filled..])?;
            if count == 0 {
                return Ok(());
            }
            let piece = &mut opening[filled..filled + count];
            if let Some((meant, at, bits)) = *self.opening.lock().unwrap()
                && meant == side
                && (filled..filled + count).contains(&at)
            {
                piece[at - filled] ^= bits;
            }
            self.hear(side, number, piece);
            to.write_all(piece)?;
            filled += count;
        }
        if !self.knows_records {
            let mut buf = vec![0; 64 << 10];
            loop {
                let count = from.read(&mut buf)?;
                if count == 0 {
                    return Ok(());
                }
                self.hear(side, number, &buf[..count]);
                to.write_all(&buf[..count])?;
            }
        }
        let mut nth = 0;
        let mut kept: Option<Vec<u8>> = None;
        loop {
            let mut record = vec![0; 2];
            from.read_exact(&mut record)?;
            let len_bytes = usize::from(u16::from_le_bytes([record[0], record[1]]));
            record.resize(2 + len_bytes, 0);
            from.read_exact(&mut record[2..])?;
            self.hear(side, number, &record);
            nth += 1;
            let trick = {
                let mut plan = self.plan.lock().unwrap();
                match *plan {
                    Some((meant, trick, at)) if meant == side && at == nth => {
                        *plan = None;
                        *self.played_on.lock().unwrap() = Some(number);
                        Some(trick)
                    }
                    _ => None,
                }
            };
            match trick {
                None => {}
                Some(Trick::Flip(at)) => record[2 + at % len_bytes] ^= 1 << (at % 8),
                Some(Trick::Replay) => to.write_all(&record)?,
                Some(Trick::Drop) => continue,
                Some(Trick::Swap) => {
                    kept = Some(record);
                    continue;
                }
                Some(Trick::Shorten) => {
                    record.pop();
                    let len_bytes = (len_bytes - 1) as u16;
                    record[..2].copy_from_slice(&len_bytes.to_le_bytes());
                }
            }
            to.write_all(&record)?;
            if let Some(earlier) = kept.take() {
                to.write_all(&earlier)?;
            }
        }
    }

    fn hear(&self, side: Side, number: usize, piece: &[u8]) {
        if side == Side::Client {
            self.heard.lock().unwrap()[number].extend_from_slice(piece);
        }
    }
}
