//! How other threads reach the thread that owns a connection.
//!
//! Contents: [`Link`], a connection as other threads see it, with the messages that they send; [`Waker`], which
//! notifies a thread that waits for sockets of such messages, and of connections that another thread has accepted for
//! it. Used by `reactor` only.
//!
//! Invariant: a thread that puts something into an inbox rings afterwards, and the owner stops the ringing before it
//! polls. So nothing stays in an inbox unseen.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrite_checks::ranked::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::lock_order;
use crate::send_queue::SendQueue;

/// See the head of this module.
pub(crate) struct Waker {
    event: OwnedFd,
    inbox: Mutex<lock_order::Inbox, Inbox>,
    /// Something was put into the inbox since the thread looked.
    rung: AtomicBool,
}

/// The messages and the connections for a thread.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Connections that the thread owns from now on.
    pub(crate) accepted: Vec<(TcpStream, SocketAddr)>,
    /// Connections with messages to send, or to be closed.
    pub(crate) pending: Vec<u64>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker {
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            inbox: Mutex::default(),
            rung: AtomicBool::new(false),
        })
    }

    /// The descriptor to wait for.
    pub(crate) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Gives the thread a connection.
    pub(crate) fn hand_over(&self, stream: TcpStream, address: SocketAddr) {
        self.inbox.lock().accepted.push((stream, address));
        self.ring();
    }

    /// Takes the content.
    pub(crate) fn take(&self) -> Inbox {
        // Before the inbox is emptied: what is put into it later rings again.
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        self.rung.store(false, Ordering::Release);
        std::mem::take(&mut *self.inbox.lock())
    }

    /// Wakes the thread.
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // It fails only if the counter is full, and then the thread wakes as well.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

struct LinkState {
    number: u64,
    waker: Arc<Waker>,
    pending: Mutex<lock_order::Mailbox, SendQueue>,
    is_closed: AtomicBool,
    /// How often a caller has asked whether everything that the client has sent is read.
    requested: AtomicU64,
    /// The last such question that was answered: at some moment after it, nothing was left unread.
    drained: AtomicU64,
}

/// A connection as other threads see it, to answer through it, and to close it.
#[derive(Clone)]
pub struct Link(Arc<LinkState>);

impl Link {
    pub(crate) fn new(number: u64, waker: &Arc<Waker>) -> Link {
        Link(Arc::new(LinkState {
            number,
            waker: Arc::clone(waker),
            pending: Mutex::default(),
            is_closed: AtomicBool::new(false),
            requested: AtomicU64::new(0),
            drained: AtomicU64::new(0),
        }))
    }

    /// Whether both belong to one connection.
    pub fn is_same(&self, other: &Link) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Makes the connection's thread read everything that the client has sent. Returns the number to pass to
    /// [`Self::is_drained`].
    pub fn drain(&self) -> u64 {
        let number = self.0.requested.fetch_add(1, Ordering::AcqRel) + 1;
        self.ring();
        number
    }

    /// Whether, at some moment after the call of [`Self::drain`] that returned `number`, nothing that the client has
    /// sent was unread or unserved, unless the client keeps the server from reading.
    pub fn is_drained(&self, number: u64) -> bool {
        self.0.drained.load(Ordering::Acquire) >= number
    }

    /// The number of the last call of [`Self::drain`] that waits for a reply.
    pub(crate) fn is_to_drain(&self) -> Option<u64> {
        let requested = self.0.requested.load(Ordering::Acquire);
        (requested > self.0.drained.load(Ordering::Relaxed)).then_some(requested)
    }

    /// Records that the drain which [`Self::is_to_drain`] returned is done.
    pub(crate) fn mark_drained(&self, number: u64) {
        self.0.drained.store(number, Ordering::Release);
    }

    /// Moves these messages to the queue that is sent.
    pub(crate) fn take_pending(&self, out: &mut SendQueue) {
        out.append(&mut self.0.pending.lock());
    }

    /// Marks that the connection is gone.
    pub(crate) fn mark_closed(&self) {
        self.0.is_closed.store(true, Ordering::Release);
    }

    /// Sends what `write` puts into the queue, unless the connection is gone. Does not block.
    pub fn send(&self, write: impl FnOnce(&mut SendQueue)) {
        if self.is_closed() {
            return;
        }
        write(&mut self.0.pending.lock());
        self.ring();
    }

    /// Closes the connection soon.
    pub fn close(&self) {
        self.mark_closed();
        self.ring();
    }

    /// Whether it is closed, or about to be.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    fn ring(&self) {
        self.0.waker.inbox.lock().pending.push(self.0.number);
        self.0.waker.ring();
    }
}
