//! Commands to the threads of an adapter, and how they are woken.
//!
//! Invariants: a command is done, or dropped with its reply channel if the thread has ended; a caller that waits for
//! the reply then learns that. No command waits for another thread.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use ferrite_roce::cm;
use ferrite_roce::endpoint::Connection;
use ferrite_roce::requester::{Outcome, Request};
use ferrite_roce::wire::Qpn;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::counters::Counters;
use crate::error::Error;
use crate::service::End;

/// A command for a thread.
pub(crate) enum Command {
    /// Adds a queue pair, and reports that.
    Open {
        connection: Box<Connection>,
        done: Box<dyn FnOnce() + Send>,
    },
    /// Removes a queue pair; reports `end` to the service.
    Close {
        qpn: Qpn,
        end: Option<End>,
        done: Option<Sender<()>>,
    },
    /// Sends a request to the peer of a queue pair.
    Ask {
        qpn: Qpn,
        request: Box<Request>,
        done: Sender<Result<Outcome, Error>>,
    },
    /// To the thread with the manager: the queue pair of a request is open.
    Accept { id: cm::Id },
    /// To the thread with the manager: a queue pair ended.
    Gone { qpn: Qpn },
    /// Returns the counters.
    Count { done: Sender<Counters> },
    /// Ends the thread.
    Stop,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Command::Open { .. } => "Open",
            Command::Close { .. } => "Close",
            Command::Ask { .. } => "Ask",
            Command::Accept { .. } => "Accept",
            Command::Gone { .. } => "Gone",
            Command::Count { .. } => "Count",
            Command::Stop => "Stop",
        })
    }
}

#[derive(Debug, Default)]
struct Letters {
    commands: Vec<Command>,
    is_closed: bool,
}

/// Commands queued for a thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    has_some: AtomicBool,
    bell: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            letters: Mutex::default(),
            has_some: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Hands over a command. If the thread has ended it is dropped.
    pub(crate) fn post(&self, command: Command) {
        let mut letters = self.letters.lock();
        if letters.is_closed {
            return;
        }
        letters.commands.push(command);
        drop(letters);
        // A bell that cannot be rung has rung already.
        if !self.has_some.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    /// The queued commands, in order.
    pub(crate) fn take(&self) -> Vec<Command> {
        if !self.has_some() || !self.has_some.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut self.letters.lock().commands)
    }

    /// Drops queued commands, and later ones.
    pub(crate) fn close(&self) {
        let mut letters = self.letters.lock();
        letters.is_closed = true;
        let dropped = std::mem::take(&mut letters.commands);
        drop(letters);
        drop(dropped);
    }

    /// Readable when a command is queued.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
