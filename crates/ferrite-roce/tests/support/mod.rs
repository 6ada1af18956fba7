//! Two hosts and a network between them, all in one thread, and a memory that checks all calls.
//!
//! Invariant: everything follows from the seed.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use ferrite_roce::endpoint::{Connection, Endpoint, Taken};
use ferrite_roce::memory::{APPEND_AT, Delivery, Fault, Memory, Message, Part, RESERVE_AT, Received};
use ferrite_roce::requester::{self, Completion};
use ferrite_roce::responder;
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::{Flow, Ids};
use ferrite_roce::wire::{Psn, Qpn};
use ferrite_testkit::rng::Rng;

/// A file behind a key.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// Whether messages are assembled.
    pub(crate) is_whole: bool,
    /// Appends that were committed: their offsets and messages.
    pub(crate) committed: BTreeMap<u64, (Qpn, u64, u32)>,
    /// Reservations by FETCH_ADD.
    pub(crate) reserved: Vec<(u64, u64)>,
}

/// A SEND: the queue pair, its bytes, immediate data, a key to invalidate.
pub(crate) type Arrived = (Qpn, Vec<u8>, Option<u32>, Option<u32>);

/// A memory that checks the responder's guarantees.
#[derive(Debug)]
pub(crate) struct Array {
    /// By key.
    pub(crate) files: HashMap<u32, File>,
    /// Messages under way: where their bytes go, and how many have arrived.
    under_way: HashMap<(Qpn, u64), (u64, u32)>,
    /// Messages that ended.
    ended: HashMap<(Qpn, u64), &'static str>,
    /// SENDs.
    pub(crate) received: Vec<Arrived>,
    /// Immediate data of WRITEs.
    pub(crate) immediates: Vec<(Qpn, u32)>,
    /// Deferred calls, in percent.
    pub(crate) not_ready_percent: u64,
    /// Parts that were written.
    pub(crate) parts: u64,
    /// Messages abandoned, and how much of each had arrived.
    pub(crate) abandoned: Vec<(Message, u32)>,
    random: Rng,
}

impl Array {
    /// An empty memory.
    pub(crate) fn new(seed: u64) -> Array {
        Array {
            files: HashMap::new(),
            under_way: HashMap::new(),
            ended: HashMap::new(),
            received: Vec::new(),
            immediates: Vec::new(),
            not_ready_percent: 0,
            parts: 0,
            abandoned: Vec::new(),
            random: Rng::new(seed),
        }
    }

    fn may_be_put_off(&mut self) -> Result<(), Fault> {
        if self.random.chance(self.not_ready_percent) {
            return Err(Fault::NotReady {
                wait_ns: self.random.below(300_000),
            });
        }
        Ok(())
    }

    fn file(&mut self, key: u32) -> Result<&mut File, Fault> {
        self.files.get_mut(&key).ok_or(Fault::Access)
    }

    fn range(&mut self, key: u32, at: u64, len: u64) -> Result<&mut [u8], Fault> {
        let bytes = &mut self.file(key)?.bytes;
        let end = at.checked_add(len).ok_or(Fault::Access)?;
        if end > bytes.len() as u64 {
            return Err(Fault::Access);
        }
        Ok(&mut bytes[at as usize..end as usize])
    }

    /// Whether no message is incomplete.
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way.is_empty()
    }
}

impl Memory for Array {
    fn begin(&mut self, message: &Message) -> Result<Delivery, Fault> {
        assert!(message.len_bytes > 0);
        assert!(message.at.checked_add(u64::from(message.len_bytes)).is_some());
        self.may_be_put_off()?;
        let name = (message.qpn, message.number);
        assert!(!self.under_way.contains_key(&name), "{message:?} begins twice");
        assert!(!self.ended.contains_key(&name), "{message:?} begins after its end");
        let start = if message.is_append() {
            let file = self.file(message.key)?;
            let start = file.bytes.len() as u64;
            file.bytes.resize(file.bytes.len() + message.len_bytes as usize, 0);
            start
        } else {
            self.range(message.key, message.at, u64::from(message.len_bytes))?;
            message.at
        };
        self.under_way.insert(name, (start, 0));
        let is_whole = self.file(message.key)?.is_whole;
        Ok(if is_whole { Delivery::Whole } else { Delivery::Parts })
    }

    fn write(&mut self, message: &Message, part: &Part<'_>) -> Result<(), Fault> {
        self.may_be_put_off()?;
        self.parts += 1;
        assert!(part.is_last || part.immediate.is_none());
        if message.len_bytes > 0 {
            let name = (message.qpn, message.number);
            let &(start, arrived) = self.under_way.get(&name).expect("a message that has begun");
            assert_eq!(arrived, part.offset_bytes, "parts come in order, each once");
            let end = arrived + part.data.len() as u32;
            assert!(end <= message.len_bytes && part.is_last == (end == message.len_bytes));
            let place = self.range(message.key, start + u64::from(arrived), part.data.len() as u64)?;
            place.copy_from_slice(part.data);
            if part.is_last {
                self.under_way.remove(&name);
                self.ended.insert(name, "written");
                if message.is_append() {
                    let commit = (message.qpn, message.number, message.len_bytes);
                    let before = self.file(message.key)?.committed.insert(start, commit);
                    assert_eq!(before, None, "two appends at the same place");
                }
            } else {
                self.under_way.insert(name, (start, end));
            }
        }
        self.immediates.extend(part.immediate.map(|value| (message.qpn, value)));
        Ok(())
    }

    fn write_whole(&mut self, message: &Message, data: &[u8], immediate: Option<u32>) -> Result<(), Fault> {
        assert_eq!(data.len(), message.len_bytes as usize);
        let part = Part {
            offset_bytes: 0,
            data,
            is_last: true,
            immediate,
        };
        self.write(message, &part)
    }

    fn abandon(&mut self, message: &Message, arrived_bytes: u32) {
        let name = (message.qpn, message.number);
        let (_, arrived) = self.under_way.remove(&name).expect("only what began is abandoned");
        assert!(arrived == arrived_bytes || self.files[&message.key].is_whole);
        self.ended.insert(name, "abandoned");
        self.abandoned.push((*message, arrived_bytes));
    }

    fn may_read(&mut self, message: &Message) -> Result<(), Fault> {
        assert!(message.at.checked_add(u64::from(message.len_bytes)).is_some());
        self.may_be_put_off()?;
        self.range(message.key, message.at, u64::from(message.len_bytes))
            .map(drop)
    }

    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Result<(), Fault> {
        self.may_be_put_off()?;
        let from = self.range(message.key, message.at + u64::from(offset_bytes), into.len() as u64)?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn fetch_add(&mut self, _: Qpn, key: u32, at: u64, add: u64) -> Result<u64, Fault> {
        self.may_be_put_off()?;
        if at == RESERVE_AT {
            let file = self.file(key)?;
            let end = file.bytes.len() as u64;
            file.bytes.resize(file.bytes.len() + add as usize, 0);
            file.reserved.push((end, add));
            return Ok(end);
        }
        let word = self.range(key, at, 8)?;
        let before = u64::from_le_bytes(word.try_into().unwrap());
        word.copy_from_slice(&before.wrapping_add(add).to_le_bytes());
        Ok(before)
    }

    fn compare_swap(&mut self, _: Qpn, key: u32, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.may_be_put_off()?;
        let word = self.range(key, at, 8)?;
        let before = u64::from_le_bytes(word.try_into().unwrap());
        if before == compare {
            word.copy_from_slice(&swap.to_le_bytes());
        }
        Ok(before)
    }

    fn receive(&mut self, qpn: Qpn, received: &Received<'_>) -> Result<(), Fault> {
        self.may_be_put_off()?;
        let data = received.data.to_vec();
        self.received.push((qpn, data, received.immediate, received.invalidate));
        Ok(())
    }
}

/// The network's faults, in percent of the datagrams.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NetworkFaults {
    /// Lost.
    pub(crate) loss: u64,
    /// Arrive twice.
    pub(crate) duplication: u64,
    /// Arrive late.
    pub(crate) reordering: u64,
    /// Some bits are changed.
    pub(crate) corruption: u64,
}

/// The time that a datagram takes.
const LATENCY_NS: u64 = 5_000;

/// Two hosts.
pub(crate) struct Hosts<M = Array> {
    /// Both ends.
    pub(crate) ends: [Endpoint; 2],
    /// Their memories.
    pub(crate) memories: [M; 2],
    addresses: [SocketAddr; 2],
    /// The network's faults.
    pub(crate) network_faults: NetworkFaults,
    /// The time.
    pub(crate) now_ns: u64,
    /// By arrival time: destination, flow, bytes.
    under_way: BTreeMap<(u64, u64), (usize, Flow, Vec<u8>)>,
    sent: u64,
    /// Datagrams that were changed on their way.
    pub(crate) corrupted: u64,
    random: Rng,
    /// Management datagrams that arrived, at which end and from where.
    pub(crate) management: Vec<(usize, IpAddr, Vec<u8>)>,
}

impl Hosts {
    /// Two hosts that know nothing of each other.
    pub(crate) fn new(seed: u64, is_v6: bool) -> Hosts {
        Hosts::with([Array::new(seed ^ 1), Array::new(seed ^ 2)], seed, is_v6)
    }
}

impl<M: Memory> Hosts<M> {
    /// The same with memories of another kind.
    pub(crate) fn with(memories: [M; 2], seed: u64, is_v6: bool) -> Hosts<M> {
        let addresses = if is_v6 {
            ["[fd00::1]:4791", "[fd00::2]:4791"]
        } else {
            ["10.0.0.1:4791", "10.0.0.2:4791"]
        };
        Hosts {
            ends: [Endpoint::new(Ids::Zero, 100), Endpoint::new(Ids::Zero, 0xff_fff0)],
            memories,
            addresses: addresses.map(|address| address.parse().unwrap()),
            network_faults: NetworkFaults::default(),
            now_ns: 1,
            under_way: BTreeMap::new(),
            sent: 0,
            corrupted: 0,
            random: Rng::new(seed),
            management: Vec::new(),
        }
    }

    /// The address of an end.
    pub(crate) fn address(&self, end: usize) -> SocketAddr {
        self.addresses[end]
    }

    /// A pair of queue pairs, one at each end.
    pub(crate) fn connect(&mut self, mtu: Mtu, psns: [u32; 2]) -> [Qpn; 2] {
        let numbers = [self.ends[0].allocate(), self.ends[1].allocate()];
        for end in 0..2 {
            let (qpn, peer) = (numbers[end], numbers[1 - end]);
            let mut requester = requester::Config::new(peer, mtu, Psn::new(psns[end]));
            requester.timeout_ns = 200_000;
            requester.retry_count = 100;
            requester.window_packets = 32;
            requester.depth = 4;
            let mut responder = responder::Config::new(qpn, peer, mtu, Psn::new(psns[1 - end]));
            responder.resources = 4;
            let connected = self.ends[end].connect(Connection {
                local: self.addresses[end],
                peer: self.addresses[1 - end],
                ids: Ids::Any,
                requester,
                responder,
            });
            connected.expect("a number of its own");
        }
        numbers
    }

    /// Sends bytes through the network, with its faults.
    pub(crate) fn send(&mut self, from: usize, flow: Flow, bytes: &[u8]) {
        let copies = 1 + u64::from(self.random.chance(self.network_faults.duplication));
        for _ in 0..copies {
            if self.random.chance(self.network_faults.loss) {
                continue;
            }
            let mut bytes = bytes.to_vec();
            if self.random.chance(self.network_faults.corruption) {
                for _ in 0..=self.random.below(3) {
                    let at = self.random.below(bytes.len() as u64) as usize;
                    // Byte 4 of the base header is not covered.
                    if at != 4 {
                        bytes[at] ^= 1 << self.random.below(8);
                    }
                }
                self.corrupted += 1;
            }
            let late = self.random.chance(self.network_faults.reordering);
            let delay = LATENCY_NS + if late { self.random.below(40_000) } else { 0 };
            self.sent += 1;
            self.under_way
                .insert((self.now_ns + delay, self.sent), (1 - from, flow, bytes));
        }
    }

    /// Sends everything that is ready.
    fn transmit(&mut self) {
        let mut bytes = Vec::new();
        for end in 0..2 {
            // A burst, or one end would never let time advance.
            for _ in 0..64 {
                let Some(flow) = self.ends[end].poll_transmit(self.now_ns, &mut self.memories[end], &mut bytes) else {
                    break;
                };
                self.send(end, flow, &bytes);
            }
        }
    }

    /// The next event: an arrival or a timeout. False if none is left.
    pub(crate) fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.under_way.first_key_value().map(|(&(at_ns, _), _)| at_ns);
        let timeout = self.ends.iter().filter_map(Endpoint::poll_timeout_ns).min();
        let Some(next_ns) = arrival.into_iter().chain(timeout).min() else {
            return false;
        };
        self.now_ns = self.now_ns.max(next_ns);
        while let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= self.now_ns
        {
            let (end, flow, bytes) = entry.remove();
            self.arrive(end, &flow, &bytes);
        }
        for end in &mut self.ends {
            end.handle_timeout(self.now_ns);
        }
        true
    }

    /// A datagram arrives.
    pub(crate) fn arrive(&mut self, end: usize, flow: &Flow, bytes: &[u8]) {
        let taken = self.ends[end].receive(self.now_ns, flow, bytes, &mut self.memories[end]);
        if let Ok(Taken::Management { datagram }) = taken {
            self.management.push((end, flow.source.ip(), datagram.to_vec()));
        }
    }

    /// Runs until a queue pair has finished `count` works.
    pub(crate) fn run(&mut self, end: usize, qpn: Qpn, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        for _ in 0..20_000_000 {
            done.extend(std::iter::from_fn(|| self.ends[end].poll_completion(qpn)));
            if done.len() >= count {
                return done;
            }
            assert!(
                self.step(),
                "nothing happens any more, {} of {count} are done",
                done.len()
            );
        }
        panic!("{} of {count} are done", done.len());
    }
}

/// The address of an append, for tests that need no other name of the crate.
pub(crate) const APPEND: u64 = APPEND_AT;
/// The address of a reservation.
pub(crate) const RESERVE: u64 = RESERVE_AT;
