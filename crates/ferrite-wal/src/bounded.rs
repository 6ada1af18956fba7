//! A device whose answers are waited for only so long.
//!
//! A file on a mount of another machine answers when that machine does, and nothing ends a transfer that waits. So a
//! thread of its own has the device, with copies of what it writes. When an answer is late, the device counts as deaf
//! from then on: every later batch is an error at once, until the device has answered everything that it was asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use ferrite_blob::device::{Device, Op};
use ferrite_blob::{Error as BlobError, Result as BlobResult};
use ferrite_buffers::{Buffer, Pool};
use ferrite_checks::fault_injection::{Bug, is_seeded};

use crate::error::{Error, Result};
use crate::format::GROUP_BYTES_MAX;
use crate::memory::pool;

/// An operation that has its bytes.
enum Owned {
    Read { offset: u64, into: Buffer },
    Write { offset: u64, from: Buffer, durable: bool },
    Flush,
}

impl Owned {
    fn op(&mut self) -> Op<'_> {
        match self {
            Owned::Read { offset, into } => Op::Read { offset: *offset, into },
            Owned::Write { offset, from, durable } => Op::Write {
                offset: *offset,
                from,
                durable: *durable,
            },
            Owned::Flush => Op::Flush,
        }
    }
}

struct Job {
    ops: Vec<Owned>,
    answer: SyncSender<(Vec<Owned>, BlobResult<()>)>,
}

/// A batch that is under way.
pub(crate) struct Running {
    answer: Receiver<(Vec<Owned>, BlobResult<()>)>,
    until: Instant,
}

/// The device.
pub(crate) struct Bounded {
    device: Arc<dyn Device>,
    jobs: Sender<Job>,
    buffers: Pool,
    limit: Duration,
    is_deaf: AtomicBool,
    /// Batches that the device has not answered.
    under_way: Arc<AtomicUsize>,
}

/// The device has answered a batch, or never will.
struct Ends<'c>(&'c AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn carry_out(device: &dyn Device, jobs: &Receiver<Job>, under_way: &AtomicUsize) {
    while let Ok(mut job) = jobs.recv() {
        let mut batch: Vec<Op<'_>> = job.ops.iter_mut().map(Owned::op).collect();
        let ends = Ends(under_way);
        let done = device.run(&mut batch);
        drop(ends);
        // Nobody waits any more if it took too long.
        let _ = job.answer.send((job.ops, done));
    }
}

impl Bounded {
    /// Waits up to `limit` for each batch.
    ///
    /// # Errors
    /// [`Error::Failed`]: the machine has no thread or no memory for it.
    pub(crate) fn new(device: Arc<dyn Device>, limit: Duration) -> Result<Bounded> {
        let (jobs, todo) = channel();
        let under_way = Arc::new(AtomicUsize::new(0));
        let (of_thread, counted) = (Arc::clone(&device), Arc::clone(&under_way));
        std::thread::Builder::new()
            .name("ferrite-wal-far".into())
            .spawn(move || carry_out(&*of_thread, &todo, &counted))
            .map_err(|error| Error::Failed(format!("no thread for the log: {error}")))?;
        Ok(Bounded {
            device,
            jobs,
            buffers: pool(4 * GROUP_BYTES_MAX)?,
            limit,
            is_deaf: AtomicBool::new(false),
            under_way,
        })
    }

    /// Whether the device has answered everything, so that nothing is written any more that was asked for before.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0
    }

    fn failed(&self, action: &'static str, cause: impl ToString) -> BlobError {
        BlobError::Device {
            device: self.name().into(),
            action,
            cause: cause.to_string(),
        }
    }

    fn late(&self) -> BlobError {
        self.is_deaf.store(true, Ordering::Release);
        self.failed("a transfer", format!("no answer within {} s", self.limit.as_secs_f32()))
    }

    /// Begins the writes and flushes of a batch.
    ///
    /// # Errors
    /// The device is deaf.
    pub(crate) fn start_writes(&self, batch: &[Op<'_>]) -> BlobResult<Running> {
        let owned = batch.iter().filter(|op| !matches!(op, Op::Read { .. }));
        let ops = owned.map(|op| self.owned(op)).collect::<BlobResult<_>>()?;
        self.start(ops)
    }

    fn owned(&self, op: &Op<'_>) -> BlobResult<Owned> {
        // Late batches have the buffers.
        let buffer = |len: usize| self.buffers.get(len, self.limit).ok_or_else(|| self.late());
        match op {
            Op::Read { offset, into } => Ok(Owned::Read {
                offset: *offset,
                into: buffer(into.len())?,
            }),
            Op::Write { offset, from, durable } => {
                let mut owned = buffer(from.len())?;
                owned[..from.len()].copy_from_slice(from);
                Ok(Owned::Write {
                    offset: *offset,
                    from: owned,
                    durable: *durable && !is_seeded(Bug::MirrorVolatile),
                })
            }
            Op::Flush => Ok(Owned::Flush),
        }
    }

    fn start(&self, ops: Vec<Owned>) -> BlobResult<Running> {
        if self.is_deaf.load(Ordering::Acquire) && !self.is_idle() {
            return Err(self.failed("a transfer", "it did not answer before"));
        }
        let (answer, running) = sync_channel(1);
        self.is_deaf.store(false, Ordering::Release);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        if self.jobs.send(Job { ops, answer }).is_err() {
            drop(Ends(&self.under_way));
            return Err(self.failed("a transfer", "its thread has ended"));
        }
        Ok(Running {
            answer: running,
            until: Instant::now() + self.limit,
        })
    }

    fn answer(&self, running: &Running) -> BlobResult<Vec<Owned>> {
        let left = running.until.saturating_duration_since(Instant::now());
        let (ops, done) = running.answer.recv_timeout(left).map_err(|_| self.late())?;
        done.map(|()| ops)
    }

    /// Waits for what was started.
    ///
    /// # Errors
    /// It failed, or is late.
    pub(crate) fn finish(&self, running: &Running) -> BlobResult<()> {
        self.answer(running).map(drop)
    }
}

impl Device for Bounded {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        self.device.writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> BlobResult<()> {
        let ops = batch.iter().map(|op| self.owned(op)).collect::<BlobResult<_>>()?;
        let done = self.answer(&self.start(ops)?)?;
        for (op, done) in batch.iter_mut().zip(done) {
            if let (Op::Read { into, .. }, Owned::Read { into: found, .. }) = (op, done) {
                into.copy_from_slice(&found[..into.len()]);
            }
        }
        Ok(())
    }
}
