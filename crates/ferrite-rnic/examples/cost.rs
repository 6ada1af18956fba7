//! The cost of the adapter, beside raw UDP under the same conditions: round trips of 1 KiB, and 4 KiB writes per
//! second.
//!
//! `cargo run --release -p ferrite-rnic --example cost`

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferrite_rnic::{Initiator, InitiatorOptions, NoService, Options, Rnic};
use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part, Received};
use ferrite_roce::requester::Request;
use ferrite_roce::wire::icrc::{self, Flow};
use ferrite_roce::wire::packet::Repr;
use ferrite_roce::wire::{Opcode, Qpn, reth};

const BYTES: usize = 1 << 20;
const ROUNDS: usize = 20_000;

/// One file without locks: the measurement covers the adapter, not the file.
struct Array(Vec<u8>);

impl Array {
    fn at(&mut self, at: u64, len: usize) -> Result<&mut [u8], Fault> {
        let start = usize::try_from(at).map_err(|_| Fault::Access)?;
        let end = start.checked_add(len).ok_or(Fault::Access)?;
        self.0.get_mut(start..end).ok_or(Fault::Access)
    }
}

impl Memory for Array {
    fn begin(&mut self, message: &Message) -> Result<Delivery, Fault> {
        self.at(message.at, message.len_bytes as usize)?;
        Ok(Delivery::Parts)
    }

    fn write(&mut self, message: &Message, part: &Part<'_>) -> Result<(), Fault> {
        let at = message.at + u64::from(part.offset_bytes);
        self.at(at, part.data.len())?.copy_from_slice(part.data);
        Ok(())
    }

    fn write_whole(&mut self, _message: &Message, _data: &[u8], _immediate: Option<u32>) -> Result<(), Fault> {
        Err(Fault::Operational)
    }

    fn abandon(&mut self, _message: &Message, _arrived_bytes: u32) {}

    fn may_read(&mut self, message: &Message) -> Result<(), Fault> {
        self.at(message.at, message.len_bytes as usize).map(drop)
    }

    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(self.at(message.at + u64::from(offset_bytes), into.len())?);
        Ok(())
    }

    fn fetch_add(&mut self, _qpn: Qpn, _key: u32, _at: u64, _add: u64) -> Result<u64, Fault> {
        Err(Fault::Access)
    }

    fn compare_swap(&mut self, _qpn: Qpn, _key: u32, _at: u64, _compare: u64, _swap: u64) -> Result<u64, Fault> {
        Err(Fault::Access)
    }

    fn receive(&mut self, _qpn: Qpn, _received: &Received<'_>) -> Result<(), Fault> {
        Err(Fault::Access)
    }
}

fn receive(socket: &UdpSocket, buf: &mut [u8], is_over: &AtomicBool) -> Option<usize> {
    loop {
        match socket.recv(buf) {
            Ok(len) => return Some(len),
            Err(_) if is_over.load(Ordering::Relaxed) => return None,
            Err(_) => {}
        }
    }
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Round trips of a datagram this long and a response of 20 bytes. Both ends poll without sleeping.
fn raw(len: usize, any: &str) -> u64 {
    let [here, there] = [(); 2].map(|()| UdpSocket::bind(any).unwrap());
    here.connect(there.local_addr().unwrap()).unwrap();
    there.connect(here.local_addr().unwrap()).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let echo = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            there.set_nonblocking(true).unwrap();
            let mut buf = [0; 5_000];
            while receive(&there, &mut buf, &is_over).is_some() {
                there.send(&buf[..20]).unwrap();
            }
        }
    });
    here.set_nonblocking(true).unwrap();
    let (data, mut buf) = (vec![1; len], [0; 100]);
    let times = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        here.send(&data).unwrap();
        receive(&here, &mut buf, &is_over);
        began.elapsed().as_nanos() as u64
    });
    let result = median(times.collect());
    is_over.store(true, Ordering::Relaxed);
    echo.join().unwrap();
    result
}

/// The same with prepared packets, answered by the adapter: the cost of the responder.
fn responder(len: usize, rnic: &Rnic) -> u64 {
    let server = rnic.addresses()[0];
    let any = SocketAddr::new(server.ip(), 0);
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(server).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut offer = Initiator::new(server, InitiatorOptions::default()).unwrap().offer();
    offer.address = socket.local_addr().unwrap();
    let queue_pair = rnic.open_queue_pair(&offer).unwrap();
    let flow = Flow {
        source: offer.address,
        destination: server,
    };
    let data = vec![1; len];
    let packets: Vec<Vec<u8>> = (0..ROUNDS as u32)
        .map(|index| {
            let mut packet = Repr::new(Opcode::WriteOnly, queue_pair.qpn, offer.psn.plus(index));
            packet.bth.ack_request = true;
            packet.headers.reth = Some(reth::Repr {
                address: 0,
                key: 1,
                len_bytes: len as u32,
            });
            packet.payload = &data;
            let mut bytes = Vec::new();
            packet.emit(&mut bytes);
            icrc::append(&flow, &mut bytes);
            bytes
        })
        .collect();
    let is_over = AtomicBool::new(false);
    let mut buf = [0; 100];
    let times = packets.iter().map(|packet| {
        let began = Instant::now();
        socket.send(packet).unwrap();
        receive(&socket, &mut buf, &is_over);
        began.elapsed().as_nanos() as u64
    });
    let result = median(times.collect());
    rnic.close(queue_pair.qpn);
    result
}

fn connect(rnic: &Rnic) -> Initiator {
    let options = InitiatorOptions {
        busy_poll: Duration::from_millis(1),
        ..InitiatorOptions::default()
    };
    let mut initiator = Initiator::new(rnic.addresses()[0], options).unwrap();
    let queue_pair = rnic.open_queue_pair(&initiator.offer()).unwrap();
    initiator.connect(&queue_pair);
    initiator
}

fn write(data: &[u8], at: u64) -> Request {
    Request::Write {
        key: 1,
        at,
        data: data.to_vec(),
        immediate: None,
    }
}

/// Writes of 4 KiB per second, 64 under way.
fn pipelined(rnic: &Rnic) -> f64 {
    let mut initiator = connect(rnic);
    let data = vec![7; 4_096];
    let mut under_way = std::collections::VecDeque::new();
    let (began, mut count) = (Instant::now(), 0_u64);
    while began.elapsed() < Duration::from_secs(2) {
        for _ in 0..64 {
            under_way.push_back(initiator.post(write(&data, count % 200 * 4_096)).unwrap());
            count += 1;
        }
        while under_way.len() > 64 {
            let ticket = under_way.pop_front().unwrap();
            initiator.wait(ticket).unwrap();
        }
    }
    for ticket in under_way {
        initiator.wait(ticket).unwrap();
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    println!("  {:?}", initiator.counters());
    rate
}

fn main() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let options = Options {
            listen: vec![any.parse().unwrap()],
            busy_poll: Duration::from_millis(1),
            ..Options::default()
        };
        let rnic = Rnic::start(&options, Arc::new(NoService), |_| Array(vec![0; BYTES])).unwrap();
        println!("{any}");
        for len in [64, 1_024, 4_096] {
            let raw_ns = raw(len + 32, any);
            let responder_ns = responder(len, &rnic);
            let mut initiator = connect(&rnic);
            let data = vec![3; len];
            let times = (0..ROUNDS).map(|_| {
                let began = Instant::now();
                initiator.write(1, 0, &data).unwrap();
                began.elapsed().as_nanos() as u64
            });
            let verb_ns = median(times.collect());
            println!(
                "  {len} bytes: raw UDP {raw_ns} ns, responder {responder_ns} ns (+{}), WRITE {verb_ns} ns",
                responder_ns as i64 - raw_ns as i64
            );
        }
        println!("  {:.0} writes of 4 KiB a second", pipelined(&rnic));
        println!("  {:?}", rnic.counters());
    }
}
