//! Transfers without a waiting thread: they keep their buffers while their requests are under way.
//!
//! Invariants: a transfer is on the heap from [`begin`] until its last request has been reaped, and each request leads
//! to it. Only the thread with the ring's completion side looks at it meanwhile. A request that transferred a part
//! continues as another one.
#![allow(unsafe_code)]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use rustix::io::{Errno, ReadWriteFlags};

use super::Transfer;
use super::namespace::{Action, Address, Namespace};
use crate::Error;

/// Distinguishes requests of submitted transfers from others; addresses of requests are even.
const MARK: u64 = 1;

/// A part, and how much of it has been transferred.
struct InFlight {
    owner: *mut Submitted,
    index: usize,
    done_bytes: usize,
}

/// See the module's head.
pub(super) struct Submitted {
    transfer: Transfer,
    /// Of the device, for messages.
    name: Arc<str>,
    at: Address,
    /// The number of the buffer's pool in the ring.
    pool: Option<u16>,
    in_flight: Vec<InFlight>,
    left: usize,
    len_bytes: usize,
    cause: Option<String>,
}

// SAFETY: the pointers lead to itself, on the heap. A buffer and a completion may go to other threads.
unsafe impl Send for Submitted {}

/// The outcome of a request.
pub(super) enum Reaped {
    /// It continues with this one.
    Again(squeue::Entry128),
    /// Others of its transfer are under way.
    Part,
    /// The transfer has ended.
    Last(Box<Submitted>),
}

/// Requests of a transfer on a registered file, each of which must go to the ring exactly once.
pub(super) fn begin(at: Address, name: Arc<str>, pool: Option<u16>, mut transfer: Transfer) -> Vec<squeue::Entry128> {
    let len_bytes = transfer.buffer.len();
    let capacity = transfer.buffer.capacity();
    transfer.buffer.set_len(capacity);
    assert!(
        !transfer.parts.is_empty()
            && transfer
                .parts
                .iter()
                .all(|part| !part.bytes.is_empty() && part.bytes.end <= capacity),
        "a transfer beside its buffer"
    );
    let count = transfer.parts.len();
    let owner = Box::into_raw(Box::new(Submitted {
        transfer,
        name,
        at,
        pool,
        in_flight: Vec::new(),
        left: count,
        len_bytes,
        cause: None,
    }));
    // SAFETY: it has just been made, and no other thread knows it.
    let submitted = unsafe { &mut *owner };
    submitted.in_flight = (0..count)
        .map(|index| InFlight {
            owner,
            index,
            done_bytes: 0,
        })
        .collect();
    (0..count).map(|index| submitted.entry(index)).collect()
}

/// Whether a completion belongs to a submitted transfer.
pub(super) fn is_submitted(user_data: u64) -> bool {
    user_data & MARK != 0
}

/// Takes the result of a request.
///
/// # Safety
/// The request is one of [`begin`] or of [`Reaped::Again`], the kernel has ended it, and it has not been reaped before.
/// No other thread reaps meanwhile.
pub(super) unsafe fn reap(user_data: u64, result: i32) -> Reaped {
    let request = ptr::with_exposed_provenance::<InFlight>((user_data & !MARK) as usize);
    // SAFETY: the transfer, and so its requests, live until their last request has been reaped, and this one has not
    // been.
    let (owner, index) = unsafe { ((*request).owner, (*request).index) };
    // SAFETY: as above; only the reaping thread looks at it.
    let submitted = unsafe { &mut *owner };
    if let Some(entry) = submitted.take(index, result) {
        return Reaped::Again(entry);
    }
    submitted.left -= 1;
    match submitted.left {
        // SAFETY: it came from a box, and no request leads to it any more.
        0 => Reaped::Last(unsafe { Box::from_raw(owner) }),
        _ => Reaped::Part,
    }
}

impl Submitted {
    fn entry(&mut self, index: usize) -> squeue::Entry128 {
        let request = ptr::from_ref(&self.in_flight[index]).expose_provenance() as u64 | MARK;
        let done = self.in_flight[index].done_bytes;
        let part = &self.transfer.parts[index];
        let offset = part.offset + done as u64;
        let bytes = &mut self.transfer.buffer[part.bytes.start + done..part.bytes.end];
        let (at, len) = (bytes.as_mut_ptr(), bytes.len() as u32);
        let file = types::Fixed(self.at.file);
        if let Some(namespace) = self.at.namespace {
            let action = match self.transfer.writes {
                true => Action::Write { durable: true },
                false => Action::Read,
            };
            return namespace
                .entry(file, action, offset, (at, len), self.pool)
                .user_data(request);
        }
        let durable = ReadWriteFlags::DSYNC.bits() as i32;
        let entry = match (self.transfer.writes, self.pool) {
            (false, None) => opcode::Read::new(file, at, len).offset(offset).build(),
            (false, Some(pool)) => opcode::ReadFixed::new(file, at, len, pool).offset(offset).build(),
            (true, None) => opcode::Write::new(file, at, len)
                .offset(offset)
                .rw_flags(durable)
                .build(),
            (true, Some(pool)) => opcode::WriteFixed::new(file, at, len, pool)
                .offset(offset)
                .rw_flags(durable)
                .build(),
        };
        squeue::Entry128::from(entry).user_data(request)
    }

    /// Takes a part's result; `Some` if it has to continue.
    fn take(&mut self, index: usize, result: i32) -> Option<squeue::Entry128> {
        let len = self.transfer.parts[index].bytes.len();
        let result = match self.at.namespace {
            Some(_) => Namespace::result(result, len),
            None => result,
        };
        match usize::try_from(result) {
            Ok(0) => self.fail("it was cut short".into()),
            Ok(count) => {
                self.in_flight[index].done_bytes += count;
                if self.in_flight[index].done_bytes < len {
                    return Some(self.entry(index));
                }
            }
            Err(_) => match Errno::from_raw_os_error(-result) {
                Errno::INTR | Errno::AGAIN => return Some(self.entry(index)),
                _ => self.fail(io::Error::from_raw_os_error(-result).to_string()),
            },
        }
        None
    }

    fn fail(&mut self, cause: String) {
        self.cause.get_or_insert(cause);
    }

    /// Calls the submitter's completion.
    pub(super) fn call(self) {
        let Transfer {
            mut buffer,
            writes,
            done,
            ..
        } = self.transfer;
        buffer.set_len(self.len_bytes);
        let result = match self.cause {
            None => Ok(()),
            Some(cause) => Err(Error::Device {
                device: self.name.to_string(),
                action: if writes { "a write" } else { "a read" },
                cause,
            }),
        };
        // The thread serves other transfers, which must not wait for ever because one completion panics.
        if catch_unwind(AssertUnwindSafe(|| done(buffer, result))).is_err() {
            tracing::error!(device = %self.name, "a completion has panicked");
        }
    }
}
