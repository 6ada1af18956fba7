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
struct Queued {
    commands: Vec<Command>,
    is_closed: bool,
}

/// Commands queued for a thread.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    queued: Mutex<Queued>,
    has_some: AtomicBool,
    doorbell: OwnedFd,
}

impl CommandQueue {
    pub(crate) fn new() -> io::Result<CommandQueue> {
        Ok(CommandQueue {
            queued: Mutex::default(),
            has_some: AtomicBool::new(false),
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Hands over a command. If the thread has ended it is dropped.
    pub(crate) fn post(&self, command: Command) {
        let mut queued = self.queued.lock();
        if queued.is_closed {
            return;
        }
        queued.commands.push(command);
        drop(queued);
        // A doorbell that cannot be rung has been rung already.
        if !self.has_some.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
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
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        std::mem::take(&mut self.queued.lock().commands)
    }

    /// Drops queued commands, and later ones.
    pub(crate) fn close(&self) {
        let mut queued = self.queued.lock();
        queued.is_closed = true;
        let dropped = std::mem::take(&mut queued.commands);
        drop(queued);
        drop(dropped);
    }

    /// Readable when a command is queued.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
