//! A connection in its handshake: a socket, and the few bytes that a handshake takes.
//!
//! Invariant: it lasts for [`LIMIT`] at most, whatever its client sends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::secure::AdmissionPolicy;
use crate::secure::handshake::{Admitted, FULL, Progress, Responder};

/// How long a handshake may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How much a refused client may send before it closes the connection.
const REFUSED_BYTES_MAX: usize = 4096;

pub(super) struct Unauthenticated {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    since: Instant,
    /// `None` after a refusal.
    responder: Option<Box<Responder>>,
    ignored_bytes: usize,
}

/// The state of the handshake after a turn.
pub(super) enum Turn {
    /// The handshake continues.
    More,
    /// The handshake is over, and so is the connection.
    Over,
    /// The handshake has succeeded.
    Admitted(Box<Admitted>),
}

/// Tells a client that the server is full. The client may close before it reads that; the server keeps nothing for it.
pub(super) fn refuse_full(mut stream: &TcpStream) {
    // A fresh socket has space for this.
    let _ = stream
        .set_nonblocking(true)
        .and_then(|()| stream.write(&FULL))
        .and_then(|_| stream.shutdown(Shutdown::Write));
}

impl Unauthenticated {
    pub(super) fn new(stream: TcpStream, address: SocketAddr) -> Unauthenticated {
        Unauthenticated {
            stream,
            address,
            since: Instant::now(),
            responder: Some(Box::default()),
            ignored_bytes: 0,
        }
    }

    /// Whether its time is over.
    pub(super) fn is_late(&self) -> bool {
        self.since.elapsed() >= LIMIT
    }

    /// Takes the bytes of the handshake, and nothing behind them.
    pub(super) fn turn(&mut self, policy: &AdmissionPolicy) -> Turn {
        loop {
            let Some(responder) = &mut self.responder else {
                return self.ignore();
            };
            let count = match (&self.stream).read(responder.buf()) {
                Ok(0) => return Turn::Over,
                Ok(count) => count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Turn::More,
                    io::ErrorKind::Interrupted => continue,
                    _ => return Turn::Over,
                },
            };
            let mut out = Vec::new();
            let progress = responder.received(count, policy, self.address.ip(), &mut out);
            // A connection on which nothing was sent takes so few bytes at once.
            if !out.is_empty() && (&self.stream).write(&out).ok() != Some(out.len()) {
                return Turn::Over;
            }
            match progress {
                Progress::More => {}
                Progress::Admitted(admitted) => return Turn::Admitted(admitted),
                Progress::Foreign => return Turn::Over,
                Progress::Refused => {
                    tracing::debug!("{} was refused: it does not have a key that is known", self.address);
                    // With unread bytes from the client, closing would destroy the reply in flight.
                    let _ = self.stream.shutdown(Shutdown::Write);
                    self.responder = None;
                }
            }
        }
    }

    fn ignore(&mut self) -> Turn {
        let mut buf = [0; 512];
        while self.ignored_bytes < REFUSED_BYTES_MAX {
            match (&self.stream).read(&mut buf) {
                Ok(0) => return Turn::Over,
                Ok(count) => self.ignored_bytes += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Turn::More,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Turn::Over,
            }
        }
        Turn::Over
    }
}
