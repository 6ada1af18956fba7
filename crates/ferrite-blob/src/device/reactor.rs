//! The reactor: one io_uring for one or several devices, and a thread that serves it.
//!
//! Requests come through a lock-free queue; a thread that finds the ring's submission side free puts everything queued
//! into it. On machines with few cores a hand-over between two threads costs more than the transfer, so a thread that
//! waits for its own requests reaps completions itself if no other does, including those of other threads. The
//! reactor's own thread reaps while requests are under way that no other thread reaps.
//!
//! *No thread waits for ever.* A request is counted in `in_flight` before it is queued, and leaves the count when it is
//! reaped.
//! - *Nothing stays in the queue.* A thread that has queued something tries for the submission side. If another has it,
//!   that thread looks into the queue after releasing it, which is after the failed try, so it sees what was queued
//!   before it.
//! - *Nothing stays unreaped.* A thread that waits tries for the completion side. If another has it, that thread looks
//!   at `in_flight` after releasing it, which is after the failed try, and wakes the reactor's thread if it is not
//!   zero. The reactor's thread looks again itself. Waking leaves a mark that the next sleep sees.
//! - *A sleeping thread is woken.* A batch counts its requests; the thread that reaps the last one wakes the thread
//!   that waits for it.
//! - *Submitted transfers end.* No thread waits for a submitted transfer ([`submitted`](super::submitted)), so a thread
//!   that submits one, or reaps the last request of one, wakes the reactor's thread. That thread reaps as long as
//!   requests are under way, and it alone calls completions, with none of the locks here held but that of the
//!   completion side, which nothing else waits for while it has work. A completion may submit; it must not wait for a
//!   device.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use ferrite_buffers::Pool;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::{Mutex, RwLock};

use super::namespace::{Action, Address, Namespace};
use super::submitted::{self, Reaped, Submitted};
use super::{Op, Transfer};

/// Requests that the ring holds before they are given to the kernel.
const ENTRIES: u32 = 512;
/// Completions that it holds.
const COMPLETIONS: u32 = 4096;
/// Devices of a reactor.
const DEVICES_MAX: u32 = 64;

/// Pools of buffers that a reactor knows.
const POOLS_MAX: u32 = 4;

/// How a reactor waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waiting {
    /// In the kernel.
    #[default]
    Sleeping,
    /// It polls for this long first. Needs a dedicated core.
    Busy(Duration),
}

/// A ring whose entries have space for commands of devices.
type Ring = IoUring<squeue::Entry128, cqueue::Entry32>;

/// A request in the queue.
struct Request(squeue::Entry128);

// SAFETY: an entry is plain data; the batch keeps what it points to, and is not dropped before the request has been
// reaped.
unsafe impl Send for Request {}

/// Requests that one thread waits for.
struct Batch {
    left: AtomicU32,
    waiter: Thread,
}

/// One request of a batch, found by its completion.
struct InFlight {
    batch: *const Batch,
    result: AtomicI32,
}

struct Shared {
    ring: Ring,
    queue: SegQueue<Request>,
    submitting: Mutex<()>,
    reaping: Mutex<()>,
    in_flight: AtomicU32,
    /// Transfers all of whose requests have been reaped.
    ended: SegQueue<Box<Submitted>>,
    /// Areas of memory registered with the ring; their numbers are their places here.
    pools: RwLock<Vec<Pool>>,
    /// Numbers of files that are registered.
    devices: Mutex<BTreeSet<u32>>,
    waiting: Waiting,
    is_stopping: AtomicBool,
    thread: OnceLock<Thread>,
}

/// See the module's head. Dropping it ends its thread; no device may be using it then, which devices ensure.
pub struct Reactor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Reactor {
    /// Starts one.
    ///
    /// # Errors
    /// The kernel has no io_uring, or refuses it; no thread can be started.
    pub fn start(waiting: Waiting) -> io::Result<Arc<Reactor>> {
        let ring = Ring::builder().setup_cqsize(COMPLETIONS).build(ENTRIES)?;
        ring.submitter().register_files_sparse(DEVICES_MAX)?;
        if let Err(error) = ring.submitter().register_buffers_sparse(POOLS_MAX) {
            tracing::debug!(%error, "a ring without registered buffers");
        }
        let shared = Arc::new(Shared {
            ring,
            queue: SegQueue::new(),
            submitting: Mutex::new(()),
            reaping: Mutex::new(()),
            in_flight: AtomicU32::new(0),
            ended: SegQueue::new(),
            pools: RwLock::default(),
            devices: Mutex::default(),
            waiting,
            is_stopping: AtomicBool::new(false),
            thread: OnceLock::new(),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("ferrite-reactor".into())
            .spawn(move || own.work())?;
        let _ = shared.thread.set(thread.thread().clone());
        Ok(Arc::new(Reactor {
            shared,
            thread: Some(thread),
        }))
    }

    /// Registers a file; returns its number here. The file must stay open as long as it is used.
    pub(super) fn attach(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let mut devices = self.shared.devices.lock();
        let number = (0..DEVICES_MAX).find(|number| !devices.contains(number));
        let number = number.ok_or_else(|| io::Error::other(format!("a reactor has at most {DEVICES_MAX} devices")))?;
        self.shared
            .ring
            .submitter()
            .register_files_update(number, &[file.as_raw_fd()])?;
        devices.insert(number);
        Ok(number)
    }

    /// Unregisters a file: the ring kept it open.
    pub(super) fn detach(&self, number: u32) {
        let mut devices = self.shared.devices.lock();
        if let Err(error) = self.shared.ring.submitter().register_files_update(number, &[-1]) {
            // It stays open until the reactor ends, and its number stays taken.
            tracing::warn!(%error, "a device cannot be taken from its ring");
            return;
        }
        devices.remove(&number);
    }

    /// Registers the memory of a pool with the ring; it stays registered, and in use, until the reactor ends. Transfers
    /// of its buffers then need no page-table walk. No change if the ring has no space, or memory must not be locked.
    pub(super) fn know_buffers(&self, pool: &Pool) {
        let mut pools = self.shared.pools.write();
        if pools.iter().any(|known| known.is(pool)) || pools.len() >= POOLS_MAX as usize {
            return;
        }
        let area = libc::iovec {
            iov_base: pool.base().cast_mut().cast(),
            iov_len: pool.len_bytes(),
        };
        // SAFETY: the area stays as long as the pool, a clone of which is kept with the ring. The kernel writes to it
        // only as transfers into its buffers request.
        let told = unsafe {
            self.shared
                .ring
                .submitter()
                .register_buffers_update(pools.len() as u32, &[area], None)
        };
        match told {
            Ok(()) => pools.push(pool.clone()),
            Err(error) => tracing::debug!(%error, "a pool of buffers stays unknown to a ring"),
        }
    }

    /// Begins a transfer on a registered file. Does not block; it runs callbacks on the reactor's thread.
    pub(super) fn submit(&self, at: Address, name: Arc<str>, transfer: Transfer) {
        let shared = &self.shared;
        let pool = shared.pools.read().iter().position(|pool| pool.has(&transfer.buffer));
        let entries = submitted::begin(at, name, pool.map(|pool| pool as u16), transfer);
        shared.in_flight.fetch_add(entries.len() as u32, Ordering::AcqRel);
        for entry in entries {
            shared.queue.push(Request(entry));
        }
        // The reactor's own thread returns to the queue anyway.
        if !shared.is_own_thread() {
            shared.submit_queued(true);
            shared.wake();
        }
    }

    /// Carries out all operations on a registered file, and returns how many bytes each transferred, or its error.
    /// Blocks until the last one has ended. Completions must not call it: it refuses.
    pub(super) fn run(&self, at: Address, batch: &mut [Op<'_>]) -> Vec<i32> {
        if self.shared.is_own_thread() {
            tracing::error!("a completion waits for a device");
            return vec![-rustix::io::Errno::DEADLK.raw_os_error(); batch.len()];
        }
        let requests = Batch {
            left: AtomicU32::new(batch.len() as u32),
            waiter: std::thread::current(),
        };
        let in_flight: Vec<InFlight> = batch
            .iter()
            .map(|_| InFlight {
                batch: ptr::from_ref(&requests),
                result: AtomicI32::new(0),
            })
            .collect();
        let shared = &self.shared;
        shared.in_flight.fetch_add(in_flight.len() as u32, Ordering::AcqRel);
        for (op, request) in batch.iter_mut().zip(&in_flight) {
            let entry = entry_of(at, op).user_data(ptr::from_ref(request).expose_provenance() as u64);
            shared.queue.push(Request(entry));
        }
        shared.wait_for(&requests);
        // All have been reaped: no thread has an address of batch, requests or buffers any more.
        let results = in_flight.iter().map(|request| request.result.load(Ordering::Acquire));
        match at.namespace {
            None => results.collect(),
            Some(_) => {
                let lens = batch
                    .iter()
                    .map(|op| op.range().map_or(0, |range| range.end - range.start));
                let both = results.zip(lens);
                both.map(|(result, len)| Namespace::result(result, len as usize))
                    .collect()
            }
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A completion may have held the last reference to it; the thread ends when that has returned.
            if !self.shared.is_own_thread() {
                let _ = thread.join();
            }
        }
    }
}

fn entry_of(at: Address, op: &mut Op<'_>) -> squeue::Entry128 {
    let file = types::Fixed(at.file);
    if let Some(namespace) = at.namespace {
        let (action, offset, memory) = match op {
            Op::Read { offset, into } => (Action::Read, *offset, (into.as_mut_ptr(), into.len() as u32)),
            // The device only reads it.
            Op::Write { offset, from, durable } => {
                let memory = (from.as_ptr().cast_mut(), from.len() as u32);
                (Action::Write { durable: *durable }, *offset, memory)
            }
            Op::Flush => (Action::Flush, 0, (ptr::null_mut(), 0)),
        };
        return namespace.entry(file, action, offset, memory, None);
    }
    let entry = match op {
        Op::Read { offset, into } => opcode::Read::new(file, into.as_mut_ptr(), into.len() as u32)
            .offset(*offset)
            .build(),
        Op::Write { offset, from, durable } => {
            let flags = if *durable {
                rustix::io::ReadWriteFlags::DSYNC.bits()
            } else {
                0
            };
            opcode::Write::new(file, from.as_ptr(), from.len() as u32)
                .offset(*offset)
                .rw_flags(flags as i32)
                .build()
        }
        Op::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
    };
    entry.into()
}

impl Shared {
    /// Puts the queue into the ring, and gives it to the kernel unless the caller does that itself.
    fn submit_queued(&self, gives: bool) {
        while !self.queue.is_empty() {
            let Some(guard) = self.submitting.try_lock() else {
                return;
            };
            // SAFETY: no other thread has the submission side, whose lock is held.
            let mut submission = unsafe { self.ring.submission_shared() };
            while !submission.is_full() {
                let Some(Request(entry)) = self.queue.pop() else { break };
                // SAFETY: buffers and request live until the request is reaped: `Reactor::run` does not return before.
                // There is space for it, so it cannot be refused.
                let _ = unsafe { submission.push(&entry) };
            }
            let is_full = submission.is_full();
            drop(submission);
            drop(guard);
            if gives || is_full {
                self.enter(0);
            }
        }
    }

    /// Gives the ring's entries to the kernel, and waits for this many completions.
    fn enter(&self, wanted: usize) {
        let error = match self.ring.submitter().submit_and_wait(wanted) {
            Ok(_) => return,
            Err(error) => error,
        };
        match error.raw_os_error() {
            // Interrupted, or completions have to be reaped first: the caller's loop retries.
            Some(libc_eintr) if libc_eintr == rustix::io::Errno::INTR.raw_os_error() => {}
            Some(busy) if busy == rustix::io::Errno::BUSY.raw_os_error() => {}
            _ => {
                // Requests under way keep buffers that cannot be given back: the only choice is to retry.
                tracing::error!(%error, "io_uring refuses");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Hands out finished requests. The caller has the completion side.
    fn reap(&self) {
        // SAFETY: no other thread has the completion side, whose lock the caller holds.
        let completions = unsafe { self.ring.completion_shared() };
        for completion in completions {
            if submitted::is_submitted(completion.user_data()) {
                // SAFETY: the kernel has ended the request, and the completion side is the caller's.
                match unsafe { submitted::reap(completion.user_data(), completion.result()) } {
                    Reaped::Again(entry) => {
                        self.queue.push(Request(entry));
                        continue;
                    }
                    Reaped::Part => {}
                    Reaped::Last(transfer) => self.ended.push(transfer),
                }
                self.in_flight.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let request = ptr::with_exposed_provenance::<InFlight>(completion.user_data() as usize);
            // SAFETY: the request lives until its batch's count is zero, and it has been counted down for all requests
            // but those that are not reaped, of which this is one.
            let request = unsafe { &*request };
            request.result.store(completion.result(), Ordering::Release);
            // SAFETY: as for the request.
            let batch = unsafe { &*request.batch };
            let waiter = batch.waiter.clone();
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            if batch.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                // From here on the batch may be gone.
                waiter.unpark();
            }
        }
    }

    /// Reaps until `is_done`. The caller has the completion side.
    fn drive(&self, is_done: impl Fn() -> bool) {
        let mut since = None;
        let is_own_thread = self.is_own_thread();
        loop {
            self.reap();
            if !self.ended.is_empty() {
                match is_own_thread {
                    true => self.call_ended(),
                    false => self.wake(),
                }
            }
            self.submit_queued(false);
            if is_done() {
                // Requests put into the ring meanwhile must not wait for the next thread that comes.
                self.submit_queued(true);
                return;
            }
            if let Waiting::Busy(limit) = self.waiting
                && since.get_or_insert_with(Instant::now).elapsed() < limit
            {
                self.enter(0);
                std::hint::spin_loop();
                continue;
            }
            since = None;
            self.enter(1);
        }
    }

    fn wait_for(&self, batch: &Batch) {
        let is_done = || batch.left.load(Ordering::Acquire) == 0;
        while !is_done() {
            match self.reaping.try_lock() {
                Some(guard) => {
                    self.drive(is_done);
                    drop(guard);
                    self.hand_over();
                    return;
                }
                None => {
                    self.submit_queued(true);
                    if !is_done() {
                        std::thread::park();
                    }
                }
            }
        }
    }

    /// The completion side is free: some thread must hold it as long as requests are under way.
    fn hand_over(&self) {
        if self.has_work() {
            self.wake();
        }
    }

    fn has_work(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0 || !self.ended.is_empty()
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn is_own_thread(&self) -> bool {
        self.thread
            .get()
            .is_some_and(|thread| thread.id() == std::thread::current().id())
    }

    /// Calls completions. Only the reactor's thread does, so that no completion runs under another thread's locks.
    fn call_ended(&self) {
        while let Some(transfer) = self.ended.pop() {
            transfer.call();
        }
    }

    fn work(&self) {
        loop {
            self.call_ended();
            // The holder of the completion side wakes this thread when it releases it.
            if self.in_flight.load(Ordering::Acquire) > 0
                && let Some(_reaping) = self.reaping.try_lock()
            {
                self.drive(|| self.in_flight.load(Ordering::Acquire) == 0);
                continue;
            }
            if !self.ended.is_empty() {
                continue;
            }
            if self.in_flight.load(Ordering::Acquire) == 0 && self.is_stopping.load(Ordering::Acquire) {
                return;
            }
            std::thread::park();
        }
    }
}
