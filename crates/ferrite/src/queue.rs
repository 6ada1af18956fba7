//! [`Queue`]: transfers that are submitted, and continue while their caller does something else.
//!
//! Invariants:
//!
//! * Each submitted transfer has one completion, even if an engine drops it: a [`Ticket`] makes one when it goes.
//! * Engines complete transfers on threads of their own, which must not wait. So nothing that may wait happens there: a
//!   completion takes the open file with it, which the thread that reaps it drops, and so perhaps closes.
//! * A queue is dropped when nothing is under way any more.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_buffers::{BUFFER_BYTES_MAX, Buffer, Pool};
use ferrite_checks::condvar::Condvar;
use ferrite_pm::fork::Origin;
use ferrite_vfs::{FsError, Position, Written};
use parking_lot::Mutex;

use crate::error::{Cause, Error, Result};
use crate::file::{File, Open, READ, WRITE};
use crate::fork_guard::ForkGuard;

/// Most transfers of a queue.
const DEPTH_MAX: usize = 1 << 16;
/// Memory for the transfers of a queue. The kernel allocates what is used.
const BUFFERS_BYTES: usize = 256 << 20;

/// Transfers under way, and those that have completed.
///
/// A program submits reads and writes, of one file or of many, each with a tag of its own, and reaps their completions
/// in the order in which they end. On servers and devices a submitted transfer continues after the call has returned,
/// and no thread waits for it; on memory it is made within the call ([`File::transfers_at_once`]). Any thread may
/// submit, and any may wait.
///
/// Transfers that are under way together have no order: what overlaps must be submitted after the completion of what it
/// depends on. A write is durable when it has completed, as one by [`std::os::unix::fs::FileExt::write_at`] is when it
/// returns. Dropping a queue waits for what is under way.
///
/// ```
/// # fn main() -> ferrite::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let fs = ferrite::Fs::create(dir.path().join("data.pool"), 64 << 20)?;
/// let file = ferrite::OpenOptions::new().read(true).write(true).create(true).open(&fs, "/file")?;
/// let queue = ferrite::Queue::new(32)?;
/// for number in 0..8 {
///     queue.submit_write(&file, number * 4096, &[number as u8; 4096], number)?;
/// }
/// while let Some(done) = queue.wait(None)? {
///     assert_eq!(done.result?, 4096);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Queue<T: Send + 'static = u64> {
    shared: ForkGuard<Arc<Shared<T>>>,
}

/// The end of a transfer.
#[non_exhaustive]
pub struct Completion<T> {
    /// The tag that it was submitted with.
    pub tag: T,
    /// Its bytes; fewer than asked for at the end of a file, or, for a long write, when space runs out.
    pub result: Result<usize>,
    /// The offset at which it began; for an append, the one that the file system chose. 0 after an error.
    pub offset: u64,
    buffer: Option<Buffer>,
    /// Dropped with this, where it may wait.
    _open: Option<Arc<Open>>,
}

impl<T> Completion<T> {
    /// The bytes that a read returned.
    pub fn data(&self) -> &[u8] {
        match (&self.result, &self.buffer) {
            (Ok(count), Some(buffer)) => &buffer[..(*count).min(buffer.len())],
            _ => &[],
        }
    }
}

struct Shared<T> {
    depth: usize,
    buffers: Pool,
    state: Mutex<State<T>>,
    /// A transfer has completed.
    changed: Condvar,
}

struct State<T> {
    under_way: usize,
    done: VecDeque<Completion<T>>,
}

impl<T> Shared<T> {
    fn complete(&self, completion: Completion<T>) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        state.done.push_back(completion);
        drop(state);
        self.changed.notify_all();
    }
}

/// The right and the duty to complete one transfer.
struct Ticket<T> {
    shared: Arc<Shared<T>>,
    /// Taken at the completion.
    of: Option<(T, Arc<Open>)>,
    action: &'static str,
}

impl<T> Ticket<T> {
    /// `result` has the transfer's offset and length.
    fn complete(mut self, result: ferrite_vfs::Result<Written>, buffer: Option<Buffer>) {
        self.end(result, buffer);
    }

    fn end(&mut self, result: ferrite_vfs::Result<Written>, buffer: Option<Buffer>) {
        let Some((tag, open)) = self.of.take() else { return };
        let (offset, result) = match result {
            Ok(done) => (done.offset, Ok(done.len_bytes)),
            Err(error) => (0, Err(Error::new(self.action, open.path(), error))),
        };
        self.shared.complete(Completion {
            tag,
            result,
            offset,
            buffer,
            _open: Some(open),
        });
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        self.end(Err(FsError::Disconnected), None);
    }
}

impl<T: Send + 'static> Queue<T> {
    /// A queue for at most `depth` transfers, counted from their submission until they are reaped; 65,536 at most.
    ///
    /// # Errors
    /// `EINVAL` for another depth; `ENOMEM`.
    pub fn new(depth: usize) -> Result<Queue<T>> {
        let failed = |cause| Error::new("make", "a queue of transfers", cause);
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(failed(Cause::Depth { max: DEPTH_MAX }));
        }
        let no_memory = || {
            failed(Cause::NoMemory {
                len_bytes: BUFFERS_BYTES as u64,
            })
        };
        let shared = Shared {
            depth,
            buffers: Pool::new(BUFFERS_BYTES).ok_or_else(no_memory)?,
            state: Mutex::new(State {
                under_way: 0,
                done: VecDeque::new(),
            }),
            changed: Condvar::new(),
        };
        let origin = Origin::here().map_err(|_| no_memory())?;
        Ok(Queue {
            shared: ForkGuard::new(Arc::new(shared), Some(origin)),
        })
    }

    fn shared(&self) -> Result<&Arc<Shared<T>>> {
        let forked = |cause| Error::new("use", "a queue of transfers", cause);
        self.shared.get().map_err(forked)
    }

    /// Reserves a place for a transfer. Nothing can refuse it afterwards but the file system.
    fn reserve(&self, file: &File, action: &'static str, tag: T) -> Result<Ticket<T>> {
        let shared = self.shared()?;
        let open = file.open_file(action)?;
        let mut state = shared.state.lock();
        if state.under_way + state.done.len() >= shared.depth {
            return Err(file.error(action, Cause::QueueFull { depth: shared.depth }));
        }
        state.under_way += 1;
        Ok(Ticket {
            shared: Arc::clone(shared),
            of: Some((tag, Arc::clone(open))),
            action,
        })
    }

    fn buffer(&self, file: &File, action: &'static str, len_bytes: usize) -> Result<Buffer> {
        let shared = self.shared()?;
        if len_bytes > BUFFER_BYTES_MAX {
            return Err(file.error(action, Cause::TransferTooLong { max: BUFFER_BYTES_MAX }));
        }
        // The shortest is a page.
        let buffer = shared.buffers.take(len_bytes.max(1));
        let mut buffer = buffer.ok_or_else(|| file.error(action, Cause::QueueFull { depth: shared.depth }))?;
        buffer.set_len(len_bytes);
        Ok(buffer)
    }

    /// Submits a read of at most `len_bytes`; [`Completion::data`] has them.
    ///
    /// # Errors
    /// `EAGAIN` if the queue is full: completions have to be reaped first. `EINVAL` for more than 4 MiB. Errors of the
    /// file system come with the completion.
    pub fn submit_read(&self, file: &File, offset: u64, len_bytes: usize, tag: T) -> Result<()> {
        let buffer = self.buffer(file, READ, len_bytes)?;
        let ticket = self.reserve(file, READ, tag)?;
        let open = file.open_file(READ)?;
        let done = move |buffer, read: ferrite_vfs::Result<usize>| {
            ticket.complete(read.map(|count| Written::new(offset, count)), Some(buffer));
        };
        open.file.submit_read(open.ctx(), offset, buffer, Box::new(done));
        Ok(())
    }

    /// Reads within the call, into memory of the caller's, and adds the completion. Where [`File::transfers_at_once`],
    /// this is a submitted read without a copy.
    ///
    /// # Errors
    /// `EAGAIN` if the queue is full.
    pub fn read_into(&self, file: &File, offset: u64, buffer: &mut [u8], tag: T) -> Result<()> {
        let ticket = self.reserve(file, READ, tag)?;
        let open = file.open_file(READ)?;
        let read = open.file.read_at(open.ctx(), offset, buffer);
        ticket.complete(read.map(|count| Written::new(offset, count)), None);
        Ok(())
    }

    /// Submits a write. `data` may change when this returns.
    ///
    /// # Errors
    /// As [`Self::submit_read`].
    pub fn submit_write(&self, file: &File, offset: u64, data: &[u8], tag: T) -> Result<()> {
        self.submit_data(file, Position::At(offset), data, tag)
    }

    /// Submits an append; [`Completion::offset`] says where the data went.
    ///
    /// # Errors
    /// As [`Self::submit_read`].
    pub fn submit_append(&self, file: &File, data: &[u8], tag: T) -> Result<()> {
        self.submit_data(file, Position::End, data, tag)
    }

    fn submit_data(&self, file: &File, to: Position, data: &[u8], tag: T) -> Result<()> {
        let buffer = match file.transfers_at_once() {
            false => Some(self.buffer(file, WRITE, data.len())?),
            // No copy is needed of what is written before this returns.
            true => None,
        };
        let ticket = self.reserve(file, WRITE, tag)?;
        let open = file.open_file(WRITE)?;
        match buffer {
            None => ticket.complete(open.file.write(open.ctx(), to.into(), data), None),
            Some(mut buffer) => {
                buffer.copy_from_slice(data);
                let done = move |_, written| ticket.complete(written, None);
                open.file.submit_write(open.ctx(), to.into(), buffer, Box::new(done));
            }
        }
        Ok(())
    }

    /// The next completion. Blocks until there is one, for at most `timeout`. `None` at its end, or if nothing is under
    /// way.
    ///
    /// # Errors
    /// Only in a forked child, which does not have its parent's transfers.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Completion<T>>> {
        Ok(self.wait_for(NonZeroUsize::MIN, NonZeroUsize::MIN, timeout)?.pop())
    }

    /// From `min` to `max` completions. Blocks until there are `min`, or no more are under way, or `timeout` is over.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_for(
        &self,
        min: NonZeroUsize,
        max: NonZeroUsize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Completion<T>>> {
        let shared = self.shared()?;
        let ends = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = shared.state.lock();
        // Another thread may reap what this one waits for.
        while state.under_way > 0 && state.done.len() < min.get() {
            match ends {
                Some(ends) if shared.changed.wait_until(&mut state, ends).timed_out() => break,
                Some(_) => {}
                None => shared.changed.wait(&mut state),
            }
        }
        let count = state.done.len().min(max.get());
        Ok(state.done.drain(..count).collect())
    }

    /// Transfers that are under way, and completions that were not reaped. 0 in a forked child.
    pub fn len(&self) -> usize {
        let Ok(shared) = self.shared.get() else { return 0 };
        let state = shared.state.lock();
        state.under_way + state.done.len()
    }

    /// Whether there are neither.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Send + 'static> Drop for Queue<T> {
    fn drop(&mut self) {
        let Ok(shared) = self.shared.get() else { return };
        let mut state = shared.state.lock();
        while state.under_way > 0 {
            shared.changed.wait(&mut state);
        }
        let done = std::mem::take(&mut state.done);
        drop(state);
        // Their files may be closed with them, which may wait.
        drop(done);
    }
}

impl<T: Send + 'static> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.shared.peek().depth;
        f.debug_struct("Queue").field("depth", &depth).finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("tag", &self.tag)
            .field("result", &self.result)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
