//! The adapter: threads that respond, and the interface for programs.
//!
//! Datagrams come to the thread of their queue pair without passing another one: each thread has its own socket at each
//! address, and a filter in the kernel picks the socket by the number of the destination queue pair
//! (`SO_ATTACH_REUSEPORT_CBPF`). So queue pairs share nothing, whatever ports their peers send from.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use ferrite_roce::endpoint::Connection;
use ferrite_roce::memory::Memory;
use ferrite_roce::requester::{Outcome, Request};
use ferrite_roce::wire::{QPN_MANAGEMENT, Qpn, UDP_PORT};
use ferrite_roce::{requester, responder};

use crate::command_queue::{Command, CommandQueue};
use crate::counters::Counters;
use crate::error::{Error, StartError};
use crate::path;
use crate::port::Port;
use crate::qpn::{QpnAllocator, random_psn};
use crate::service::{Options, Peer, QueuePair, Service};
use crate::shared::Shared;
use crate::worker::Worker;

/// Threads of an adapter, at most.
const THREADS_MAX: usize = 64;

/// An adapter in software. Dropping it ends its threads, and its queue pairs without notice to their peers.
pub struct Rnic {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Rnic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rnic")
            .field("addresses", &self.addresses)
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl Rnic {
    /// Starts an adapter. Each thread has the memory that `memory_of_thread` returns for its index.
    ///
    /// # Errors
    /// If an address or a thread is unavailable. Nothing is left running then.
    pub fn start<M: Memory + Send + 'static>(
        options: &Options,
        service: Arc<dyn Service>,
        mut memory_of_thread: impl FnMut(usize) -> M,
    ) -> Result<Rnic, StartError> {
        let count = options.threads.clamp(1, THREADS_MAX);
        if options.listen.is_empty() {
            return Err(StartError::NoAddress);
        }
        let mut ports_of: Vec<Vec<Port>> = (0..count).map(|_| Vec::new()).collect();
        let mut addresses = Vec::new();
        for &address in &options.listen {
            let ports = Port::listen(address, count as u32).map_err(|source| StartError::Listen { address, source })?;
            addresses.extend(ports.first().map(Port::local));
            for (of_thread, port) in ports_of.iter_mut().zip(ports) {
                of_thread.push(port);
            }
        }
        let command_queues = (0..count).map(|_| CommandQueue::new().map(Arc::new));
        let shared = Arc::new(Shared {
            qpns: QpnAllocator::new(options.queue_pairs_max),
            service,
            command_queues: command_queues.collect::<Result<_, _>>().map_err(StartError::Thread)?,
        });
        let mut rnic = Rnic {
            shared: Arc::clone(&shared),
            addresses,
            threads: Vec::new(),
        };
        for (index, ports) in ports_of.into_iter().enumerate() {
            let is_manager = QPN_MANAGEMENT as usize % count == index;
            let service_port = options.service_port.filter(|_| is_manager);
            let worker = Worker::new(
                ports,
                memory_of_thread(index),
                Arc::clone(&shared),
                index,
                options,
                service_port,
            );
            let thread = std::thread::Builder::new()
                .name(format!("rnic-{index}"))
                .spawn(move || worker.run())
                .map_err(StartError::Thread)?;
            rnic.threads.push(thread);
        }
        Ok(rnic)
    }

    /// Its listening addresses, with their actual ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Adds a queue pair for a peer that has one for this adapter. Packets may arrive once this returns. Blocks until
    /// the thread has it.
    ///
    /// # Errors
    /// `Socket` without a route, or an address that its packets could reach; `NoQueuePair` if there are too many.
    pub fn open_queue_pair(&self, peer: &Peer) -> Result<QueuePair, Error> {
        self.open(peer, |_| ())
    }

    /// As [`Rnic::open_queue_pair`]; it calls `prepare` with the number before any packet can arrive.
    ///
    /// # Errors
    /// As there; it is unknown then whether `prepare` was called.
    pub fn open(&self, peer: &Peer, prepare: impl FnOnce(Qpn)) -> Result<QueuePair, Error> {
        let failed = |source| Error::Socket {
            peer: peer.address,
            source,
        };
        let path = path::to(peer.address).map_err(failed)?;
        let local = match peer.local {
            Some(ip) => self.local_for(ip),
            None => self.local_for(path.local).or_else(|| self.beside(path.local)),
        };
        let address = local.ok_or_else(|| {
            let text = format!("RDMA does not listen on {}", path.local);
            failed(std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, text))
        })?;
        let mtu = peer.mtu.min(path.mtu);
        let qpn = self.shared.qpns.take().ok_or(Error::NoQueuePair)?;
        prepare(qpn);
        let psn = random_psn();
        let connection = Connection {
            local: address,
            peer: peer.address,
            ids: peer.ids,
            requester: requester::Config::new(peer.qpn, mtu, psn),
            responder: responder::Config::new(qpn, peer.qpn, mtu, peer.psn),
        };
        let (done, is_done) = mpsc::channel();
        self.shared.command_queue_of(qpn).post(Command::Open {
            connection: Box::new(connection),
            done: Box::new(move || {
                // The caller waits for it.
                let _ = done.send(());
            }),
        });
        if is_done.recv().is_err() {
            self.shared.qpns.give_back(qpn);
            return Err(Error::NoQueuePair);
        }
        Ok(QueuePair { address, qpn, psn, mtu })
    }

    /// Removes a queue pair. When this returns, none of its packets has any effect. A client of rdma_cm is notified. No
    /// effect if it does not exist.
    pub fn close(&self, qpn: Qpn) {
        let (done, is_done) = mpsc::channel();
        self.shared.command_queue_of(qpn).post(Command::Close {
            qpn,
            end: None,
            done: Some(done),
        });
        // An error means that the thread has ended, and the queue pair with it.
        let _ = is_done.recv();
        self.shared.command_queue_of_manager().post(Command::Gone { qpn });
    }

    /// Sends a request to the peer of a queue pair, as the peer sends them here: to write or read its memory, say.
    /// Blocks until that is done. An error ends the queue pair, except for `Full` and `TooLong`.
    ///
    /// # Errors
    /// Why it was not done. `Ended` also if the queue pair does not exist.
    pub fn ask(&self, qpn: Qpn, request: Request) -> Result<Outcome, Error> {
        let (done, answer) = mpsc::channel();
        self.shared.command_queue_of(qpn).post(Command::Ask {
            qpn,
            request: Box::new(request),
            done,
        });
        answer.recv().unwrap_or(Err(Error::Ended))
    }

    /// Its counters. Blocks until all threads have replied.
    pub fn counters(&self) -> Counters {
        let (done, counts) = mpsc::channel();
        for command_queue in &self.shared.command_queues {
            command_queue.post(Command::Count { done: done.clone() });
        }
        drop(done);
        let mut sum = Counters {
            queue_pairs: self.shared.qpns.count() as u64,
            ..Counters::default()
        };
        counts.into_iter().for_each(|one| sum += one);
        sum
    }

    /// A listening address of a host that also has `ip`: of several addresses in a network the route to a peer gives
    /// one, and the peer, which learns the local one, may as well use another.
    fn beside(&self, ip: IpAddr) -> Option<SocketAddr> {
        let is_alike = |one: &&SocketAddr| one.is_ipv4() == ip.is_ipv4() && one.ip().is_loopback() == ip.is_loopback();
        self.addresses.iter().find(is_alike).copied()
    }

    /// The listening address for packets to this local address.
    fn local_for(&self, ip: IpAddr) -> Option<SocketAddr> {
        let of = |is_right: &dyn Fn(IpAddr) -> bool| self.addresses.iter().find(|one| is_right(one.ip()));
        let exact = of(&|one| one == ip);
        let any = || of(&|one| one.is_unspecified() && one.is_ipv4() == ip.is_ipv4());
        exact.or_else(any).map(|one| SocketAddr::new(ip, one.port()))
    }
}

impl Drop for Rnic {
    fn drop(&mut self) {
        for command_queue in &self.shared.command_queues {
            command_queue.post(Command::Stop);
        }
        for thread in self.threads.drain(..) {
            // A panicked thread has reported that.
            let _ = thread.join();
        }
    }
}

/// The default address: all of both families, at RoCE's port.
pub fn everywhere() -> Vec<SocketAddr> {
    vec![
        SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), UDP_PORT),
        SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), UDP_PORT),
    ]
}
