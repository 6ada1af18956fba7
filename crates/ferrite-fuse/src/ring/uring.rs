//! The memory shared with the kernel, and the io_uring that passes it to and fro. The only module of this crate with
//! `unsafe`.
//!
//! Contents: [`RingEntry`], its memory; [`Uring`], the ring of one queue; [`Wake`], which ends its wait.
//!
//! Invariant: an entry is with the kernel or with this process. [`Uring::register`] and [`Uring::commit`] take it away
//! from its holder, and [`Uring::wait`] returns it. Memory that the kernel may still write to is never freed: entries
//! that the kernel has when the ring is dropped stay mapped for good, which happens only if a mount ends before it is
//! unmounted.
#![allow(unsafe_code, reason = "the kernel reads and writes memory that it is told of once")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use memmap2::{MmapMut, MmapOptions, UncheckedAdvice};
use rustix::event::{EventfdFlags, eventfd};

use super::entry_header::EntryHeader;
use crate::message::abi::InHeader;
use crate::message::{Exchange, Parts};
use crate::service::Response;

/// In front of the payload: the header, and the two vectors that describe both to the kernel.
const HEADER_BYTES: usize = 4096;
/// Where the vectors are.
const VECTORS_AT: usize = 2048;
const _: () = assert!(size_of::<EntryHeader>() == 288 && size_of::<EntryHeader>() <= VECTORS_AT);
/// Bytes of a large request that a spare entry keeps after the reply.
const KEPT_BYTES: usize = 4096;

/// `FUSE_IO_URING_CMD_REGISTER`.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const COMMIT_AND_FETCH: u32 = 2;
/// Submissions at a time; more are submitted at once.
const SUBMISSIONS: u32 = 64;
/// The user data of the wait for [`Wake`], where entries have their index.
const WOKEN: u64 = u64::MAX;
/// Where `struct io_uring_sqe` has `len`.
const SQE_LEN_AT: usize = 24;
const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// One entry of a queue: a request, then its reply.
pub(crate) struct RingEntry {
    map: MmapMut,
    index: usize,
    /// Of the request; the reply overwrites it in the header.
    unique: u64,
    is_spare: bool,
}

impl RingEntry {
    /// Memory for an entry of `payload_bytes`, allocated as it is used.
    fn new(index: usize, payload_bytes: usize, is_spare: bool) -> io::Result<RingEntry> {
        let mut map = MmapOptions::new()
            .len(HEADER_BYTES + payload_bytes)
            .no_reserve_swap()
            .map_anon()?;
        let base = map.as_mut_ptr();
        let vectors = [(0, size_of::<EntryHeader>()), (HEADER_BYTES, payload_bytes)].map(|(at, len)| libc::iovec {
            // SAFETY: both lie in the mapping, whose length is the sum.
            iov_base: unsafe { base.add(at) }.cast(),
            iov_len: len,
        });
        // SAFETY: in the first page of the mapping, behind the header, and aligned.
        unsafe { base.add(VECTORS_AT).cast::<[libc::iovec; 2]>().write(vectors) };
        Ok(RingEntry {
            map,
            index,
            unique: 0,
            is_spare,
        })
    }

    /// The header of the request.
    pub(crate) fn header(&self) -> &EntryHeader {
        // SAFETY: the mapping begins with a page, any bytes of which are a header, and the kernel does not have it:
        // otherwise no code would hold the entry.
        unsafe { &*self.map.as_ptr().cast() }
    }
}

impl Exchange for RingEntry {
    fn request(&self) -> InHeader {
        self.header().request()
    }

    fn parts(&mut self) -> Parts<'_> {
        let (header, payload) = self.map.split_at_mut(HEADER_BYTES);
        // SAFETY: as for `header`; the payload does not overlap.
        let header: &EntryHeader = unsafe { &*header.as_ptr().cast() };
        let used = payload.len().min(header.payload_bytes as usize);
        Parts {
            op: header.op(),
            payload,
            used,
        }
    }

    fn respond(&mut self, outcome: Response<usize>) {
        let requested_bytes = self.header().payload_bytes as usize;
        let outcome = outcome
            .map(|len| len.min(self.map.len() - HEADER_BYTES))
            .map_err(|refused| refused.errno);
        let unique = self.unique;
        // SAFETY: as for `header`; it is borrowed mutably.
        let header: &mut EntryHeader = unsafe { &mut *self.map.as_mut_ptr().cast() };
        header.respond(unique, outcome);
        let is_short = outcome.is_ok_and(|len| len <= KEPT_BYTES) || outcome.is_err();
        if self.is_spare && is_short && requested_bytes > 16 * KEPT_BYTES {
            let (from, len) = (HEADER_BYTES + KEPT_BYTES, self.map.len() - HEADER_BYTES - KEPT_BYTES);
            // SAFETY: private memory without references into it; the dropped content is no longer needed.
            let _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, len) };
        }
    }

    /// The kernel needs its reply in the same entry.
    fn set_aside(self) -> RingEntry {
        self
    }
}

/// Ends a wait.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        // It fails if the count is full, which also wakes the thread.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// An event that ends a wait.
pub(crate) enum Event {
    /// A request arrived.
    Requested(RingEntry),
    /// A thread called [`Wake::wake`].
    Woken,
    /// The kernel takes no more from this entry.
    Ended(io::Error),
}

/// The ring of one queue. Only the thread that made it uses it.
pub(crate) struct Uring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: OwnedFd,
    queue: u16,
    wake: Arc<Wake>,
    payload_bytes: usize,
    /// By index, the entries that are with the kernel.
    entries: Vec<Option<RingEntry>>,
    with_kernel: usize,
}

/// A ring without a queue yet.
pub(crate) fn ring() -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
    IoUring::builder()
        .setup_single_issuer()
        // The kernel does its work for a request when this thread waits, not at any time.
        .setup_defer_taskrun()
        .build(SUBMISSIONS)
}

impl Uring {
    pub(crate) fn new(
        ring: IoUring<squeue::Entry128, cqueue::Entry>,
        (device, queue): (OwnedFd, u16),
        wake: Arc<Wake>,
        payload_bytes: usize,
    ) -> io::Result<Uring> {
        let mut uring = Uring {
            ring,
            device,
            queue,
            wake,
            payload_bytes,
            entries: Vec::new(),
            with_kernel: 0,
        };
        uring.watch_wake()?;
        Ok(uring)
    }

    /// Number of entries, wherever they are.
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Number of entries that wait for requests.
    pub(crate) fn waiting(&self) -> usize {
        self.with_kernel
    }

    fn push(&mut self, sqe: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the descriptors are open as long as the ring, and memory that an SQE names is that of an entry which
        // is kept in `entries`, or leaked, until the SQE completes.
        while unsafe { self.ring.submission().push(sqe) }.is_err() {
            self.submit()?;
        }
        Ok(())
    }

    fn watch_wake(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(self.wake.0.as_raw_fd()), libc::POLLIN as u32);
        self.push(&poll.build().user_data(WOKEN).into())
    }

    /// Gives the kernel one more entry to put requests into. An [`Event::Ended`] reports a refusal.
    pub(crate) fn register(&mut self, is_spare: bool) -> io::Result<()> {
        let entry = RingEntry::new(self.entries.len(), self.payload_bytes, is_spare)?;
        self.entries.push(None);
        // SAFETY: the vectors are in the entry's mapping.
        let vectors = unsafe { entry.map.as_ptr().add(VECTORS_AT) } as u64;
        self.give(entry, REGISTER, Some(vectors), 0)
    }

    /// Passes a reply on, and gives the entry back for the next request.
    pub(crate) fn commit(&mut self, entry: RingEntry) -> io::Result<()> {
        let commit_id = entry.header().commit_id;
        self.give(entry, COMMIT_AND_FETCH, None, commit_id)
    }

    fn give(&mut self, entry: RingEntry, command: u32, vectors: Option<u64>, commit_id: u64) -> io::Result<()> {
        // `struct fuse_uring_cmd_req`: flags, the request, the queue.
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let sqe = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), command)
            .cmd(request)
            .addr(vectors);
        let mut sqe = sqe.build().user_data(entry.index as u64);
        if vectors.is_some() {
            // The crate's type has no field for it.
            // SAFETY: an SQE is a `struct io_uring_sqe`, 128 bytes, with `len` at this place.
            unsafe { (&raw mut sqe).cast::<u8>().add(SQE_LEN_AT).cast::<u32>().write(2) };
        }
        let index = entry.index;
        self.entries[index] = Some(entry);
        self.with_kernel += 1;
        self.push(&sqe)
    }

    /// Submits the queued entries.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }

    /// Submits the queued entries, and waits for an event, which is added to `events`. May add nothing.
    pub(crate) fn wait(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.reap(events);
        Ok(())
    }

    /// The events so far.
    pub(crate) fn reap(&mut self, events: &mut Vec<Event>) {
        let mut woken = false;
        for done in self.ring.completion() {
            if done.user_data() == WOKEN {
                woken = true;
                continue;
            }
            let entry = usize::try_from(done.user_data()).ok();
            let Some(mut entry) = entry.and_then(|index| self.entries.get_mut(index)?.take()) else {
                continue;
            };
            self.with_kernel -= 1;
            events.push(match done.result() {
                error if error < 0 => Event::Ended(io::Error::from_raw_os_error(-error)),
                _ => {
                    entry.unique = entry.header().request().unique;
                    Event::Requested(entry)
                }
            });
        }
        if woken {
            self.wake.clear();
            events.push(Event::Woken);
            // Without it, replies from other threads would wait for the next request; the queue is never that full.
            let _ = self.watch_wake();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        for entry in self.entries.drain(..).flatten() {
            // The kernel releases it some time after the ring is closed.
            std::mem::forget(entry);
        }
    }
}
