//! An adapter behind a network that loses, repeats and reorders datagrams, both ways.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ferrite_proto::{BoundFileInfo, GrantedKey, QueuePairInfo, RdmaCounters, UdpPlace};
use ferrite_roce::wire::icrc::{self, Flow, Ids};
use ferrite_server::{KeyWanted, Keys, Rdma};
use ferrite_testkit::rng::Rng;
use ferrite_vfs::{FileSystem, Ino, Result};
use parking_lot::Mutex;

/// The sockets through which the server sees each client.
type Backs = Arc<Mutex<HashMap<SocketAddr, Arc<UdpSocket>>>>;

/// See the head of this module. A host in between, which clients take for the server.
pub(crate) struct LossyNetwork {
    inner: Arc<dyn Rdma>,
    percent: u64,
    seed: AtomicU64,
    front: Arc<UdpSocket>,
    backs: Backs,
    is_over: Arc<AtomicBool>,
}

impl LossyNetwork {
    pub(crate) fn over(inner: Arc<dyn Rdma>, percent: u64, seed: u64) -> LossyNetwork {
        let server = inner.places()[0];
        let lossy_network = LossyNetwork {
            inner,
            percent,
            seed: AtomicU64::new(seed),
            front: Arc::new(UdpSocket::bind((server.ip(), 0)).unwrap()),
            backs: Backs::default(),
            is_over: Arc::default(),
        };
        let backs = Arc::clone(&lossy_network.backs);
        let back_of = move |client: SocketAddr| Some((backs.lock().get(&client).cloned()?, server));
        lossy_network.way(Arc::clone(&lossy_network.front), back_of);
        lossy_network
    }

    /// Forwards datagrams that arrive at a socket, by the socket and to the address that `to` returns for their sender.
    fn way(
        &self,
        from: Arc<UdpSocket>,
        to: impl Fn(SocketAddr) -> Option<(Arc<UdpSocket>, SocketAddr)> + Send + 'static,
    ) {
        let way = Way {
            random: Rng::new(self.seed.fetch_add(1, Ordering::Relaxed)),
            percent: self.percent,
            from,
        };
        let is_over = Arc::clone(&self.is_over);
        std::thread::spawn(move || way.run(&is_over, to));
    }
}

impl Drop for LossyNetwork {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

struct Way {
    from: Arc<UdpSocket>,
    random: Rng,
    percent: u64,
}

type Parcel = (Vec<u8>, Arc<UdpSocket>, SocketAddr);

fn send(parcel: Option<Parcel>) {
    // A datagram without a receiver is lost.
    parcel.inspect(|(bytes, by, receiver)| drop(by.send_to(bytes, receiver)));
}

impl Way {
    fn run(mut self, is_over: &AtomicBool, to: impl Fn(SocketAddr) -> Option<(Arc<UdpSocket>, SocketAddr)>) {
        self.from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let here = self.from.local_addr().unwrap();
        let mut buf = [0; 9_000];
        let mut late: Option<Parcel> = None;
        while !is_over.load(Ordering::Relaxed) {
            let Ok((len, source)) = self.from.recv_from(&mut buf) else {
                send(late.take());
                continue;
            };
            let flow = Flow {
                source,
                destination: here,
            };
            let Some((by, receiver)) = to(source).filter(|_| icrc::verify(&flow, &buf[..len], Ids::Zero)) else {
                // From an unknown sender.
                continue;
            };
            // Addresses and ports are in the checksum.
            let there = Flow {
                source: by.local_addr().unwrap(),
                destination: receiver,
            };
            let mut bytes = buf[..len - icrc::BYTES].to_vec();
            icrc::append(&there, &mut bytes);
            if self.random.chance(self.percent) {
                continue;
            }
            let parcel = (bytes, by, receiver);
            if self.random.chance(self.percent) {
                send(Some(parcel.clone()));
            }
            if late.is_none() && self.random.chance(self.percent) {
                late = Some(parcel);
                continue;
            }
            send(Some(parcel));
            send(late.take());
        }
    }
}

impl Keys for LossyNetwork {
    fn release(&self, session: u64, key: u32) {
        self.inner.release(session, key);
    }

    fn end_session(&self, session: u64) {
        self.inner.end_session(session);
    }

    fn unbind(&self, fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<()> {
        self.inner.unbind(fs, ino)
    }

    fn files(&self, fs: &Arc<dyn FileSystem>) -> Vec<BoundFileInfo> {
        self.inner.files(fs)
    }
}

impl Rdma for LossyNetwork {
    fn places(&self) -> Vec<SocketAddr> {
        vec![self.front.local_addr().unwrap()]
    }

    fn open(&self, session: u64, client: &QueuePairInfo) -> Result<QueuePairInfo> {
        let client_at = client.place.0;
        let back = Arc::new(UdpSocket::bind((client_at.ip(), 0)).unwrap());
        self.backs.lock().insert(client_at, Arc::clone(&back));
        let seen = QueuePairInfo {
            place: UdpPlace(back.local_addr().unwrap()),
            ..*client
        };
        let front = Arc::clone(&self.front);
        self.way(back, move |_| Some((Arc::clone(&front), client_at)));
        Ok(QueuePairInfo {
            place: UdpPlace(self.front.local_addr().unwrap()),
            ..self.inner.open(session, &seen)?
        })
    }

    fn close(&self, session: u64, qpn: u32) {
        self.inner.close(session, qpn);
    }

    fn bind(&self, wanted: &KeyWanted<'_>) -> Result<GrantedKey> {
        self.inner.bind(wanted)
    }

    fn counters(&self) -> RdmaCounters {
        self.inner.counters()
    }
}
