//! Attacks on the RDMA wire: bytes from a fuzzer as packets, as messages about connections, and as what a peer sends.
//!
//! Contents: one function a target ([`TARGETS`]), used by the libFuzzer program in `fuzz_targets/` and by the test
//! that replays the corpus on a stable compiler (`crates/ferrite-roce/tests/fuzz_corpus.rs`).
//!
//! A packet must be refused or mean one thing. A peer may end its own queue pair, and no more: memory is called in
//! order and in bounds, and what waits to be sent has a bound. ICRCs are made here, since no fuzzer finds them.

use std::collections::HashMap;
use std::net::SocketAddr;

use ferrite_roce::cm::{self, Event, Manager, Offer, Target};
use ferrite_roce::endpoint::{Connection, Endpoint, Taken};
use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part, Received};
use ferrite_roce::requester::{self, Request};
use ferrite_roce::responder;
use ferrite_roce::wire::cm::{Mtu, Repr as CmRepr};
use ferrite_roce::wire::icrc::{self, Flow, Ids};
use ferrite_roce::wire::packet::{Packet, Repr};
use ferrite_roce::wire::{Psn, Qpn, bth, mad};

/// A target: its name, and what it does with the fuzzer's bytes.
pub(crate) type Attack = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const TARGETS: [Attack; 1] = [("roce_packet", roce_packet)];

/// Bytes of the file behind the key.
const FILE_BYTES: usize = 4_096;
/// The only key.
const KEY: u32 = 1;
/// The most answers that may wait.
const REPLIES_MAX: usize = 1_200;

/// The first byte says what the others are.
pub(crate) fn roce_packet(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => packet_there_and_back(bytes),
        1 => message_there_and_back(bytes),
        2 => drop(session(bytes)),
        _ => connections(bytes),
    }
}

fn packet_there_and_back(bytes: &[u8]) {
    let Ok(view) = Packet::without_icrc(bytes) else {
        return;
    };
    assert!(view.payload().len() <= bytes.len());
    if let Ok(packet) = Repr::parse(&view) {
        let mut again = Vec::new();
        packet.emit(&mut again);
        assert_eq!(again.len(), packet.len_bytes());
        // Padding may have had more than its three bytes' worth of meaning: it is taken from the payload's length.
        let view = Packet::without_icrc(&again).expect("what is written is read");
        let second = Repr::parse(&view).expect("what is written is read");
        assert_eq!((second.headers, second.payload), (packet.headers, packet.payload));
    }
}

fn message_there_and_back(bytes: &[u8]) {
    let mut datagram = [0; mad::BYTES];
    let len = bytes.len().min(mad::BYTES);
    datagram[..len].copy_from_slice(&bytes[..len]);
    let view = mad::Packet::new_checked(&datagram).expect("of the right length");
    if let Ok((transaction, message)) = CmRepr::parse(&view) {
        let again = message.emit(transaction);
        let view = mad::Packet::new_checked(&again).expect("of the right length");
        assert_eq!(CmRepr::parse(&view), Ok((transaction, message)));
    }
}

/// A file and what is on its way to it.
#[derive(Default)]
struct OneFile {
    bytes: Vec<u8>,
    under_way: HashMap<(Qpn, u64), u32>,
    calls: u64,
}

impl OneFile {
    /// Now and then it is not ready, and says so before anything is done.
    fn check(&mut self, key: u32, at: u64, len: u64) -> Result<(), Fault> {
        self.calls += 1;
        if self.calls.is_multiple_of(13) {
            return Err(Fault::NotReady { wait_ns: 1 });
        }
        let end = at.checked_add(len).expect("the responder checks that");
        let is_inside = end <= self.bytes.len() as u64 || at == ferrite_roce::memory::APPEND_AT;
        if key == KEY && is_inside {
            Ok(())
        } else {
            Err(Fault::Access)
        }
    }
}

impl Memory for OneFile {
    fn begin(&mut self, message: &Message) -> Result<Delivery, Fault> {
        self.check(message.key, message.at, u64::from(message.len_bytes))?;
        let before = self.under_way.insert((message.qpn, message.number), 0);
        assert_eq!(before, None, "a message begins once");
        Ok(if message.at.is_multiple_of(2) {
            Delivery::Parts
        } else {
            Delivery::Whole
        })
    }

    fn write(&mut self, message: &Message, part: &Part<'_>) -> Result<(), Fault> {
        self.check(message.key, message.at, 0)?;
        if message.len_bytes == 0 {
            return Ok(());
        }
        let name = (message.qpn, message.number);
        let arrived = self.under_way.get_mut(&name).expect("a message that has begun");
        assert_eq!(*arrived, part.offset_bytes, "parts come in order");
        *arrived += part.data.len() as u32;
        assert!(*arrived <= message.len_bytes);
        assert_eq!(part.is_last, *arrived == message.len_bytes);
        if part.is_last {
            self.under_way.remove(&name);
        }
        Ok(())
    }

    fn write_whole(&mut self, message: &Message, data: &[u8], immediate: Option<u32>) -> Result<(), Fault> {
        let part = Part {
            offset_bytes: 0,
            data,
            is_last: true,
            immediate,
        };
        self.write(message, &part)
    }

    fn abandon(&mut self, message: &Message, arrived_bytes: u32) {
        assert!(arrived_bytes < message.len_bytes);
        let name = (message.qpn, message.number);
        self.under_way.remove(&name).expect("a message that has begun");
    }

    fn may_read(&mut self, message: &Message) -> Result<(), Fault> {
        self.check(message.key, message.at, u64::from(message.len_bytes))
    }

    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Result<(), Fault> {
        assert!(u64::from(offset_bytes) + into.len() as u64 <= u64::from(message.len_bytes));
        self.check(message.key, message.at + u64::from(offset_bytes), into.len() as u64)
    }

    fn fetch_add(&mut self, _: Qpn, key: u32, at: u64, add: u64) -> Result<u64, Fault> {
        self.check(key, at, 8)?;
        Ok(add)
    }

    fn compare_swap(&mut self, _: Qpn, key: u32, at: u64, compare: u64, _: u64) -> Result<u64, Fault> {
        self.check(key, at, 8)?;
        Ok(compare)
    }

    fn receive(&mut self, _: Qpn, _: &Received<'_>) -> Result<(), Fault> {
        self.check(KEY, 0, 0)
    }
}

fn addresses() -> [SocketAddr; 2] {
    [
        SocketAddr::from(([10, 0, 0, 1], 4791)),
        SocketAddr::from(([10, 0, 0, 2], 4791)),
    ]
}

/// Pieces of up to 510 bytes: half their length, opcode, distance from an expected number, then what follows the base
/// header. Says how often memory was called.
pub(crate) fn session(bytes: &[u8]) -> u64 {
    let [peer, local] = addresses();
    let flow = Flow {
        source: peer,
        destination: local,
    };
    let mut memory = OneFile {
        bytes: vec![0; FILE_BYTES],
        ..OneFile::default()
    };
    let mut endpoint = Endpoint::new(Ids::Any, 1);
    let qpn = endpoint.allocate();
    let connected = endpoint.connect(Connection {
        local,
        peer,
        ids: Ids::Any,
        requester: requester::Config::new(7, Mtu::B256, Psn::new(0xff_fffe)),
        responder: responder::Config::new(qpn, 7, Mtu::B256, Psn::new(0xff_fffe)),
    });
    connected.expect("a number of its own");
    for id in 0..4 {
        let read = Request::Read {
            key: KEY,
            at: 0,
            len_bytes: 300 * id as u32,
        };
        endpoint.post(qpn, id, read).expect("there is space");
    }
    let (mut rest, mut psn, mut now_ns) = (bytes, Psn::new(0xff_fffd), 1);
    let mut out = Vec::new();
    while let Some((&[len, opcode, distance], behind)) = rest.split_first_chunk::<3>() {
        let (content, behind) = behind.split_at((2 * usize::from(len)).min(behind.len()));
        rest = behind;
        let mut packet = vec![
            opcode & 0x7f,
            (opcode >> 3 & 0x10) | 0x40,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
            distance & 0x80,
        ];
        packet[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        // Mostly the next number; the way back and forth is short.
        psn = psn.plus(u32::from(distance & 7)).plus(0xff_ffff);
        packet.extend(&psn.value().to_be_bytes()[1..]);
        assert_eq!(packet.len(), bth::BYTES);
        packet.extend(content);
        packet.resize(packet.len().next_multiple_of(4), 0);
        icrc::append(&flow, &mut packet);
        let taken = endpoint.receive(now_ns, &flow, &packet, &mut memory);
        assert!(!matches!(taken, Ok(Taken::Management { .. })));
        now_ns += 1_000_000;
        endpoint.handle_timeout(now_ns);
        if distance & 0x40 == 0 {
            let mut replies = 0;
            while endpoint.poll_transmit(now_ns, &mut memory, &mut out).is_some() {
                let reversed = Flow {
                    source: local,
                    destination: peer,
                };
                assert!(icrc::verify(&reversed, &out, Ids::Zero));
                Repr::parse(&Packet::new_checked(&out).expect("a packet")).expect("a packet");
                replies += 1;
                assert!(replies < REPLIES_MAX, "replies without end");
            }
        }
    }
    endpoint.remove(qpn, &mut memory);
    assert!(memory.under_way.is_empty(), "memory waits for the rest of a message");
    memory.calls
}

/// A manager with a request of its own hears messages: length, attribute, names, content.
fn connections(bytes: &[u8]) {
    let [peer, local] = addresses();
    let mut manager = Manager::new(cm::Config {
        connections_max: 4,
        ..cm::Config::default()
    });
    manager.listen(0);
    let offer = Offer {
        qpn: 5,
        psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        private: b"",
    };
    let target = Target {
        local,
        peer: peer.ip(),
        port: 1,
        mtu: Mtu::B1024,
        retry_count: 7,
        ack_timeout: 14,
    };
    manager.connect(1, &target, &offer).expect("there is space");
    let (mut rest, mut now_ns) = (bytes, 1);
    while let Some((&[len, attribute, theirs, ours], behind)) = rest.split_first_chunk::<4>() {
        let (content, behind) = behind.split_at(usize::from(len % 64).min(behind.len()));
        rest = behind;
        let mut datagram = [0; mad::BYTES];
        datagram[..4].copy_from_slice(&[1, 7, 2, 3]);
        datagram[15] = theirs & 1;
        datagram[17] = 0x10 + attribute % 8;
        datagram[27] = theirs;
        datagram[31] = ours;
        // The service of port 0, and a path MTU, where a REQ has them.
        datagram[24 + 8 + 4..24 + 8 + 6].copy_from_slice(&[1, 6]);
        datagram[24 + 50] = 3 << 4;
        datagram[24 + 84..24 + 84 + content.len()].copy_from_slice(content);
        let _ = manager.handle(now_ns, local, peer.ip(), &datagram);
        while let Some(event) = manager.poll_event() {
            match event {
                Event::Requested { id, .. } if theirs & 2 == 0 => {
                    manager.accept(now_ns, id, &offer).expect("it was requested");
                }
                Event::Requested { id, .. } => {
                    let refused = manager.reject(now_ns, id, ferrite_roce::wire::cm::Reason::BY_PROGRAM, b"");
                    refused.expect("it was requested");
                }
                Event::Established { id } | Event::Connected { id, .. } if attribute & 0x80 != 0 => {
                    manager.disconnect(now_ns, id).expect("it is established");
                }
                _ => {}
            }
        }
        now_ns += u64::from(attribute) * 20_000_000;
        manager.handle_timeout(now_ns);
        let mut sent = 0;
        while manager.poll_transmit().is_some() {
            sent += 1;
        }
        assert!(sent < 100, "{sent} datagrams for one");
        assert!(manager.len() <= 4);
    }
    // Nothing is remembered for ever.
    for _ in 0..100 {
        let Some(at_ns) = manager.poll_timeout_ns() else {
            break;
        };
        manager.handle_timeout(at_ns);
    }
}
