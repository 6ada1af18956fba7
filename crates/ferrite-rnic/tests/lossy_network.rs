//! Verbs through a network that loses, repeats, reorders and damages 5 % of the datagrams each, both ways.
//!
//! Guarantees under test: everything completes, and nothing is done twice, half, or in the wrong place.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ferrite_rnic::{Initiator, InitiatorOptions, Rnic};
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::{self, Flow, Ids};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;

use crate::support::{Files, KEY, LOOPBACKS, connect, start};

/// Of the datagrams.
const PERCENT: u64 = 5;

/// A host in between. Addresses and ports are covered by the ICRC, so it computes that of correct packets anew, and
/// then damages or drops some.
struct Proxy {
    /// The server's address as the client sees it.
    front: SocketAddr,
    /// The client's address as the server sees it.
    back: SocketAddr,
    is_over: Arc<AtomicBool>,
    damaged: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    fn start(any: &str, server: SocketAddr, client: SocketAddr, seed: u64, front: UdpSocket) -> Proxy {
        let back = UdpSocket::bind(any).unwrap();
        let sockets = [Arc::new(front), Arc::new(back)];
        let [front, back] = [0, 1].map(|index| sockets[index].local_addr().unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let damaged = Arc::new(AtomicU64::new(0));
        let ways = [(0, 1, server), (1, 0, client)];
        let threads = ways.into_iter().map(|(from, to, receiver)| {
            let way = Way {
                from: Arc::clone(&sockets[from]),
                to: Arc::clone(&sockets[to]),
                receiver,
                random: Rng::new(seed + from as u64),
                damaged: Arc::clone(&damaged),
            };
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || way.run(&is_over))
        });
        Proxy {
            front,
            back,
            threads: threads.collect(),
            is_over,
            damaged,
        }
    }

    fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.damaged.load(Ordering::Relaxed)
    }
}

struct Way {
    from: Arc<UdpSocket>,
    to: Arc<UdpSocket>,
    receiver: SocketAddr,
    random: Rng,
    damaged: Arc<AtomicU64>,
}

impl Way {
    fn run(mut self, is_over: &AtomicBool) {
        self.from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let here = self.from.local_addr().unwrap();
        let there = Flow {
            source: self.to.local_addr().unwrap(),
            destination: self.receiver,
        };
        let mut buf = [0; 9_000];
        let mut late: Option<Vec<u8>> = None;
        while !is_over.load(Ordering::Relaxed) {
            let Ok((len, source)) = self.from.recv_from(&mut buf) else {
                // A packet that waits for the next one must not wait for ever.
                self.send(late.take());
                continue;
            };
            let flow = Flow {
                source,
                destination: here,
            };
            assert!(
                icrc::verify(&flow, &buf[..len], Ids::Zero),
                "a socket of ours changed a packet"
            );
            let mut bytes = buf[..len - icrc::BYTES].to_vec();
            icrc::append(&there, &mut bytes);
            if self.random.chance(PERCENT) {
                let at = self.random.below(bytes.len() as u64) as usize;
                // Byte 4 of the base header is not covered.
                bytes[at] ^= if at == 4 { 0 } else { 1 << self.random.below(8) };
                self.damaged.fetch_add(1, Ordering::Relaxed);
            }
            if self.random.chance(PERCENT) {
                continue;
            }
            if self.random.chance(PERCENT) {
                self.send(Some(bytes.clone()));
            }
            if late.is_none() && self.random.chance(PERCENT) {
                late = Some(bytes);
                continue;
            }
            self.send(Some(bytes));
            self.send(late.take());
        }
    }

    fn send(&self, bytes: Option<Vec<u8>>) {
        // A datagram without a receiver is lost.
        bytes.inspect(|bytes| drop(self.to.send_to(bytes, self.receiver)));
    }
}

fn through(any: &str, rnic: &Rnic, mtu: Mtu, seed: u64) -> (Initiator, Proxy) {
    let options = InitiatorOptions {
        mtu: Some(mtu),
        retry_after: Duration::from_millis(4),
        retries: 5_000,
        window_packets: 32,
        ..InitiatorOptions::default()
    };
    let front = UdpSocket::bind(any).unwrap();
    let mut initiator = Initiator::new(front.local_addr().unwrap(), options).unwrap();
    let mut offer = initiator.offer();
    let proxy = Proxy::start(any, rnic.addresses()[0], offer.address, seed, front);
    assert_eq!(initiator.server(), proxy.front);
    offer.address = proxy.back;
    let queue_pair = rnic.open_queue_pair(&offer).unwrap();
    initiator.connect(&queue_pair);
    (initiator, proxy)
}

#[test]
fn everything_completes_once_on_a_lossy_network() {
    let seed = seed_from_env().unwrap_or(1);
    println!("FERRITE_SEED={seed}");
    let mut damaged = 0;
    for any in LOOPBACKS {
        for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
            let files = Files::with(400_000);
            let rnic = start(any, 2, &files);
            let (mut initiator, proxy) = through(any, &rnic, mtu, seed);
            verbs_on_a_lossy_network(&mut initiator, &files);
            let counters = initiator.counters();
            assert!(counters.sent_again > 0, "{counters:?}");
            damaged += proxy.end();
            assert!(rnic.counters().duplicates > 0);
            // A client on the direct path meets none of that.
            let (mut direct, _) = connect(&rnic, rnic.addresses()[0], InitiatorOptions::default());
            direct.write(KEY, 0, b"fine").unwrap();
        }
    }
    assert!(damaged > 0);
}

fn verbs_on_a_lossy_network(initiator: &mut Initiator, files: &Files) {
    let data = pattern(1, 300_000);
    initiator.write(KEY, 64, &data).unwrap();
    assert!(files.bytes()[64..64 + data.len()] == data[..]);
    let mut read = vec![0; data.len()];
    initiator.read(KEY, 64, &mut read).unwrap();
    assert!(read == data);
    for index in 0..100_u64 {
        assert_eq!(initiator.fetch_add(KEY, 0, 1).unwrap(), index);
    }
    let end = files.bytes().len();
    for index in 0..30_u8 {
        initiator.append(KEY, &[index; 3_000]).unwrap();
    }
    let wanted: Vec<u8> = (0..30_u8).flat_map(|index| [index; 3_000]).collect();
    assert!(
        files.bytes()[end..] == wanted[..],
        "an append came twice, or in another order"
    );
}
