//! The thread of one CPU: it takes requests from its ring, and passes replies back.
//!
//! Contents: [`run`], the thread; [`Inbox`], through which other threads return entries with their replies.
//!
//! Invariants:
//! * The thread waits only for its ring: workers do work that may take time, and a request that has to wait (for a
//!   lock, for space, for a thaw) keeps its entry, but not the thread.
//! * However many entries are away, half as many as there were at first wait for requests: more are registered as
//!   needed, up to [`ENTRIES_MAX`]. If more requests wait than that, or more in one instant than entries wait for them,
//!   others of the same CPU have to wait, too.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::workers::Workers;
use fuser::Errno;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::PAYLOAD_BYTES;
use super::uring::{Event, RingEntry, Uring, Wake, ring};
use crate::lock_order;
use crate::message::{Exchange, kind};
use crate::serve::serve;
use crate::service::Service;

/// Entries of one queue.
const ENTRIES_MAX: usize = 4096;
/// How often a thread on a wrong CPU tries to get back, after its own was offline.
const PIN_EVERY: Duration = Duration::from_secs(1);
/// Pause after an error of the ring, before the next try.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// Where entries with replies from other threads wait for their thread.
pub(crate) struct Inbox {
    completed: Mutex<lock_order::Answered, Vec<RingEntry>>,
    wake: Arc<Wake>,
    owner: ThreadId,
    is_over: AtomicBool,
}

impl Inbox {
    fn give(&self, entry: RingEntry) {
        let mut completed = self.completed.lock();
        completed.push(entry);
        // The thread itself looks without a wake-up, and one call wakes it for all.
        let is_woken = completed.len() > 1 || std::thread::current().id() == self.owner;
        drop(completed);
        if !is_woken {
            self.wake.wake();
        }
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.wake.wake();
    }
}

/// The parameters of a thread.
pub(crate) struct Task {
    pub(crate) service: Arc<Service>,
    /// Threads for work that may take time; without them the engine never waits.
    pub(crate) workers: Option<Arc<Workers>>,
    pub(crate) cpu: u16,
    /// The only user allowed to send requests, if restricted.
    pub(crate) only: Option<u32>,
    /// Initial number of entries.
    pub(crate) depth: usize,
}

/// The thread. It reports on `reports` that it has a ring, takes the device's descriptor from `device`, reports that
/// the kernel has its entries, and then serves until the mount is gone.
pub(crate) fn run(task: &Task, reports: &Sender<io::Result<Arc<Inbox>>>, device: &Receiver<OwnedFd>) {
    let prepared = ring().and_then(|ring| Ok((ring, Arc::new(Wake::new()?))));
    let (ring, wake) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return drop(reports.send(Err(error))),
    };
    let inbox = Arc::new(Inbox {
        completed: Mutex::default(),
        wake: Arc::clone(&wake),
        owner: std::thread::current().id(),
        is_over: AtomicBool::new(false),
    });
    let _ = reports.send(Ok(Arc::clone(&inbox)));
    // The sender is dropped if the kernel refuses rings, or fuser could not mount.
    let Ok(device) = device.recv() else { return };
    let mut pinned = Pinned::new(task.cpu);
    let registered = Uring::new(ring, (device, task.cpu), wake, PAYLOAD_BYTES).and_then(|mut uring| {
        register(&mut uring, task.depth)?;
        Ok(uring)
    });
    let uring = match registered {
        Ok(uring) => uring,
        Err(error) => return drop(reports.send(Err(error))),
    };
    let mut queue = Queue {
        task,
        uring,
        inbox: Arc::clone(&inbox),
        is_gone: false,
    };
    let _ = reports.send(Ok(inbox));
    let mut events = Vec::new();
    while !queue.is_over() {
        if let Err(error) = queue.uring.wait(&mut events) {
            // No memory, perhaps; requests wait for this thread, so it must not give up.
            tracing::debug!(%error, "a ring of the mount");
            std::thread::sleep(RETRY_AFTER);
        }
        pinned.look();
        let mut left = events.len();
        for event in events.drain(..) {
            left -= 1;
            if let Err(error) = queue.take(event, left) {
                tracing::debug!(%error, "a ring of the mount");
            }
        }
    }
}

/// Registers the first entries, and checks that the kernel took them.
fn register(uring: &mut Uring, depth: usize) -> io::Result<()> {
    for _ in 0..depth {
        uring.register(false)?;
    }
    uring.submit()?;
    let mut events = Vec::new();
    uring.reap(&mut events);
    for event in events {
        if let Event::Ended(error) = event {
            return Err(error);
        }
    }
    Ok(())
}

struct Queue<'t> {
    task: &'t Task,
    uring: Uring,
    inbox: Arc<Inbox>,
    /// The kernel has ended the connection.
    is_gone: bool,
}

impl Queue<'_> {
    fn is_over(&self) -> bool {
        self.inbox.is_over.load(Ordering::Acquire) || (self.is_gone && self.uring.waiting() == 0)
    }

    /// Handles an event, after which `left` others wait.
    fn take(&mut self, event: Event, left: usize) -> io::Result<()> {
        match event {
            Event::Requested(entry) => match self.serve(entry) {
                Some(entry) => self.uring.commit(entry)?,
                None => {
                    let spare = self.task.depth / 2;
                    if self.uring.waiting() + left < spare && self.uring.entries() < ENTRIES_MAX && !self.is_gone {
                        self.uring.register(true)?;
                    }
                }
            },
            Event::Woken => {}
            Event::Ended(error) => self.ended(&error)?,
        }
        // A request may have answered others: an unlock does.
        self.empty_inbox()?;
        match left {
            // The next wait passes it on.
            0 => Ok(()),
            // The reply need not wait for the other requests.
            _ => self.uring.submit(),
        }
    }

    fn serve(&self, mut entry: RingEntry) -> Option<RingEntry> {
        let requested = entry.request();
        if self.task.only.is_some_and(|only| only != requested.uid) && kind::is_users(requested.opcode) {
            entry.respond(Err(Errno::EACCES.into()));
            return Some(entry);
        }
        let inbox = Arc::clone(&self.inbox);
        let (spare, workers) = (self.task.service.spare(), &self.task.workers);
        // Where all threads wait for a server, requests that need none must not wait for them.
        let is_at_hand = spare.is_some_and(|spare| kind::is_answered_in_any_case(&requested) && spare.is_full());
        if spare.is_none() && workers.is_none() || is_at_hand || !kind::asks_engine(requested.opcode) {
            return serve(&self.task.service, entry, move |entry| inbox.give(entry));
        }
        let service = Arc::clone(&self.task.service);
        // The number of entries bounds these.
        let work = move || {
            let later = Arc::clone(&inbox);
            if let Some(entry) = serve(&service, entry, move |entry| later.give(entry)) {
                inbox.give(entry);
            }
        };
        match (spare, workers) {
            (Some(spare), _) => spare.pass_on(work),
            (None, Some(workers)) => workers.add(work),
            (None, None) => work(),
        }
        None
    }

    fn empty_inbox(&mut self) -> io::Result<()> {
        let completed = std::mem::take(&mut *self.inbox.completed.lock());
        completed.into_iter().try_for_each(|entry| self.uring.commit(entry))
    }

    fn ended(&mut self, error: &io::Error) -> io::Result<()> {
        let number = error.raw_os_error().unwrap_or_default();
        if [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::ECANCELED].contains(&number) {
            self.is_gone = true;
            return Ok(());
        }
        // Another entry takes its place: without any, requests of this CPU would wait forever.
        tracing::warn!(%error, "the kernel gave a request of the mount up");
        match self.uring.entries() < ENTRIES_MAX {
            true => self.uring.register(false),
            false => Ok(()),
        }
    }
}

/// Keeps the thread on its CPU.
struct Pinned {
    cpu: usize,
    tried: Instant,
}

impl Pinned {
    fn new(cpu: u16) -> Pinned {
        let pinned = Pinned {
            cpu: usize::from(cpu),
            tried: Instant::now(),
        };
        pinned.pin();
        pinned
    }

    /// An offline or forbidden CPU is served from another.
    fn pin(&self) {
        let mut cpus = CpuSet::new();
        if self.cpu < CpuSet::MAX_CPU {
            cpus.set(self.cpu);
            let _ = sched_setaffinity(None, &cpus);
        }
    }

    /// A CPU that went offline pushed its threads away for good: this moves the thread back.
    fn look(&mut self) {
        if sched_getcpu() != self.cpu && self.tried.elapsed() > PIN_EVERY {
            self.tried = Instant::now();
            self.pin();
        }
    }
}
