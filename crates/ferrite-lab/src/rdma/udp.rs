//! Round trips of single datagrams: to an adapter, and to a mere echo.
//!
//! Both ends poll for datagrams without sleeping, so that no comparison includes waking a thread. The echo lives for
//! one measurement: otherwise it would take a core from the other side.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrite_measure::{median, mix};
use ferrite_rnic::Peer;
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::{self, Flow, Ids};
use ferrite_roce::wire::packet::Repr;
use ferrite_roce::wire::{Opcode, Psn, Qpn, reth};

use super::{Served, failed};
use crate::error::LabError;

/// Headers and checksum of a WRITE of one packet: BTH, RETH, ICRC.
pub(super) const WRITE_HEADER_BYTES: usize = 32;
/// An acknowledgement: BTH, AETH, ICRC.
pub(super) const ACK_BYTES: usize = 20;
/// An answer that takes longer is lost.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The largest datagram, and more.
const BUF_BYTES: usize = 8 << 10;
/// The position of the syndrome, which distinguishes acknowledgements.
const SYNDROME_AT: usize = 12;
/// Syndromes above this are not acknowledgements.
const SYNDROME_ACK_MAX: u8 = 0x1f;

fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Polls for a datagram until `is_over`, or for as long as an answer may take.
fn receive(socket: &UdpSocket, buf: &mut [u8], is_over: &AtomicBool) -> io::Result<Option<usize>> {
    let began = Instant::now();
    loop {
        for _ in 0..1_000 {
            match socket.recv(buf) {
                Ok(len) => return Ok(Some(len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if is_over.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if began.elapsed() > TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Median nanoseconds of a round trip: a datagram as long as a WRITE of `payload_bytes`, and an answer as long as its
/// acknowledgement.
///
/// # Errors
/// No socket, or a missing answer.
pub fn raw_round_trip_ns(payload_bytes: usize, count: usize) -> Result<f64, LabError> {
    let (here, there) = (socket()?, socket()?);
    here.connect(there.local_addr()?)?;
    there.connect(here.local_addr()?)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> io::Result<()> {
            let mut buf = [0; BUF_BYTES];
            while receive(&there, &mut buf, &is_over)?.is_some() {
                there.send(&buf[..ACK_BYTES])?;
            }
            Ok(())
        });
        let data = vec![1; WRITE_HEADER_BYTES + payload_bytes];
        let times = (0..count).map(|_| round_trip(&here, &data, &mut [0; BUF_BYTES]).map(|(ns, _)| ns));
        let times = times.collect::<io::Result<Vec<f64>>>();
        is_over.store(true, Ordering::Relaxed);
        // A panic of the thread was reported when it happened.
        let echoed = echo.join().unwrap_or(Ok(()));
        let times = times?;
        echoed?;
        Ok(median(&times))
    })
}

/// Nanoseconds, and the length of the answer.
fn round_trip(socket: &UdpSocket, data: &[u8], buf: &mut [u8]) -> io::Result<(f64, usize)> {
    let began = Instant::now();
    socket.send(data)?;
    let len = receive(socket, buf, &AtomicBool::new(false))?.unwrap_or(0);
    Ok((began.elapsed().as_nanos() as f64, len))
}

/// A queue pair whose WRITEs are made before they are sent.
pub struct RawWrites<'s> {
    served: &'s Served,
    socket: UdpSocket,
    flow: Flow,
    qpn: Qpn,
    psn: Psn,
    number: u64,
}

impl<'s> RawWrites<'s> {
    /// Opens it.
    ///
    /// # Errors
    /// No socket, or too many queue pairs.
    pub fn new(served: &'s Served) -> Result<RawWrites<'s>, LabError> {
        let socket = socket()?;
        let server = served.address()?;
        socket.connect(server)?;
        let psn = Psn::new(1);
        let offer = Peer {
            address: socket.local_addr()?,
            qpn: 17,
            psn,
            mtu: Mtu::from_code(5).ok_or_else(|| failed("there is no such path MTU"))?,
            ids: Ids::Zero,
            local: None,
        };
        let queue_pair = served.open(&offer)?;
        Ok(RawWrites {
            served,
            flow: Flow {
                source: offer.address,
                destination: server,
            },
            socket,
            qpn: queue_pair.qpn,
            psn,
            number: 0,
        })
    }

    /// Median nanoseconds from sending a WRITE of `payload_bytes`, at a random place of the file, to its
    /// acknowledgement.
    ///
    /// # Errors
    /// A missing answer, or one that is not an acknowledgement.
    pub fn median_ns(&mut self, payload_bytes: usize, count: usize) -> Result<f64, LabError> {
        let data = vec![5; payload_bytes];
        let packets: Vec<Vec<u8>> = (0..count).map(|_| self.packet(&data)).collect();
        let mut buf = [0; BUF_BYTES];
        let mut times = Vec::with_capacity(count);
        for packet in &packets {
            let (ns, len) = round_trip(&self.socket, packet, &mut buf)?;
            if len != ACK_BYTES || buf[SYNDROME_AT] > SYNDROME_ACK_MAX {
                return Err(failed("a WRITE was not acknowledged"));
            }
            times.push(ns);
        }
        Ok(median(&times))
    }

    fn packet(&mut self, data: &[u8]) -> Vec<u8> {
        let places = self.served.file_bytes() / data.len() as u64;
        let mut packet = Repr::new(Opcode::WriteOnly, self.qpn, self.psn);
        packet.bth.ack_request = true;
        packet.headers.reth = Some(reth::Repr {
            address: mix(self.number) % places * data.len() as u64,
            key: self.served.key(),
            len_bytes: data.len() as u32,
        });
        packet.payload = data;
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        icrc::append(&self.flow, &mut bytes);
        self.number += 1;
        self.psn = self.psn.plus(1);
        bytes
    }
}

impl Drop for RawWrites<'_> {
    fn drop(&mut self) {
        self.served.close(self.qpn);
    }
}
