//! A UDP socket that carries RoCE, with buffers for both directions.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ferrite_roce::wire::icrc::Flow;
use rustix::event::{PollFd, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, ipproto, socket_with, sockopt};

use crate::batch::{self, ReceiveBatch, SendBatch};

/// Requested size of a socket's buffers; the kernel may be configured to give less.
const SOCKET_BYTES: usize = 4 << 20;
/// Polls in a row while waiting: a datagram that arrives between rounds is seen later.
const POLLS: usize = 4;

/// Counters of a socket.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PortCounters {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Datagrams that the kernel did not send.
    pub(crate) failed: u64,
}

/// A socket.
#[derive(Debug)]
pub(crate) struct Port {
    socket: Arc<OwnedFd>,
    local: SocketAddr,
    is_connected: bool,
    receive_batch: ReceiveBatch,
    /// Datagrams of the receive_batch that were not yet taken.
    arrived: usize,
    send_batch: SendBatch,
    counters: PortCounters,
    /// How often the kernel has reported since the last datagram that no process listens there.
    refusals: u32,
}

/// A socket at an address; with `in_group`, together with others.
fn open(address: SocketAddr, in_group: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(ipproto::UDP))?;
    if in_group {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES)?;
    sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES)?;
    batch::as_roce(socket.as_fd(), address.is_ipv4(), address.ip().is_unspecified())?;
    bind(&socket, &address)?;
    Ok(socket)
}

impl Port {
    fn new(socket: OwnedFd, is_connected: bool) -> io::Result<Port> {
        let local = SocketAddr::try_from(getsockname(&socket)?).map_err(io::Error::other)?;
        Ok(Port {
            socket: Arc::new(socket),
            local,
            is_connected,
            receive_batch: ReceiveBatch::new(),
            arrived: 0,
            send_batch: SendBatch::new(),
            counters: PortCounters::default(),
            refusals: 0,
        })
    }

    /// `count` sockets at one address. Each gets the datagrams for queue pairs whose number, modulo `count`, is its
    /// index.
    pub(crate) fn listen(address: SocketAddr, count: u32) -> io::Result<Vec<Port>> {
        let alone = open(address, false)?;
        if count == 1 {
            return Ok(vec![Port::new(alone, false)?]);
        }
        // No other process has the address, or this would have failed. Another could join a group silently.
        let address = SocketAddr::try_from(getsockname(&alone)?).map_err(io::Error::other)?;
        drop(alone);
        let mut ports = Vec::new();
        for index in 0..count {
            let socket = open(address, true)?;
            if index == 0 {
                batch::divide_by_queue_pair(socket.as_fd(), count)?;
            }
            ports.push(Port::new(socket, false)?);
        }
        Ok(ports)
    }

    /// A socket that talks to this peer alone, from any port.
    pub(crate) fn to(local: SocketAddr, peer: SocketAddr) -> io::Result<Port> {
        let socket = open(local, false)?;
        connect(&socket, &peer)?;
        Port::new(socket, true)
    }

    /// The local address; unspecified if it listens on all.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    pub(crate) fn counters(&self) -> PortCounters {
        self.counters
    }

    pub(crate) fn refusals(&self) -> u32 {
        self.refusals
    }

    /// Whether packets from this address leave through this socket.
    pub(crate) fn is_from(&self, source: SocketAddr) -> bool {
        let ip = self.local.ip();
        self.local.port() == source.port()
            && (ip == source.ip() || ip.is_unspecified() && ip.is_ipv4() == source.is_ipv4())
    }

    /// Polls for datagrams, unless some were not taken yet. Returns whether there are any.
    pub(crate) fn poll(&mut self) -> bool {
        if self.arrived == 0 {
            match self.receive_batch.receive(self.socket.as_fd()) {
                Ok(count) => {
                    self.arrived = count;
                    self.counters.received += count as u64;
                    if count > 0 {
                        self.refusals = 0;
                    }
                }
                Err(error) => self.note(&error),
            }
        }
        self.arrived > 0
    }

    /// Polls several times, until there are some.
    pub(crate) fn poll_a_while(&mut self) -> bool {
        (0..POLLS).any(|_| self.poll())
    }

    /// Whether datagrams were received, and not yet taken.
    pub(crate) fn has_arrived(&self) -> bool {
        self.arrived > 0
    }

    /// Passes each received datagram to `take`.
    pub(crate) fn take(&mut self, mut take: impl FnMut(&Flow, &[u8])) {
        for index in 0..std::mem::take(&mut self.arrived) {
            let (source, to, datagram) = self.receive_batch.get(index);
            let ip = to.unwrap_or(self.local.ip());
            let flow = Flow {
                source,
                destination: SocketAddr::new(ip, self.local.port()),
            };
            take(&flow, datagram);
        }
    }

    /// Whether there is space for another datagram.
    pub(crate) fn has_space(&self) -> bool {
        !self.send_batch.is_full()
    }

    /// Whether datagrams are queued for the kernel.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.send_batch.is_empty()
    }

    /// Queues a datagram, to be sent with [`Port::flush`] at the latest. There must be space.
    pub(crate) fn push(&mut self, flow: Flow, datagram: &mut Vec<u8>) {
        self.send_batch.push(flow, datagram);
    }

    /// Sends queued datagrams, as many as the kernel takes.
    pub(crate) fn flush(&mut self) {
        while !self.send_batch.is_empty() {
            let names_source = self.local.ip().is_unspecified();
            match self
                .send_batch
                .send(self.socket.as_fd(), names_source, self.is_connected)
            {
                Ok(0) => return,
                Ok(count) => self.counters.sent += count as u64,
                // It is lost, as any datagram may be.
                Err(error) => {
                    self.counters.failed += 1;
                    self.note(&error);
                }
            }
        }
    }

    fn note(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            self.refusals += 1;
        } else {
            tracing::debug!(local = %self.local, %error, "a datagram was not carried");
        }
    }
}

/// Sleeps until a descriptor is ready, or for `most_ns`; returns whether one was.
pub(crate) fn sleep(fds: &mut [PollFd<'_>], most_ns: Option<u64>) -> bool {
    let most = most_ns.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    poll(fds, most.as_ref()).is_ok_and(|count| count > 0)
}
