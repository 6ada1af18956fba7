//! libfabric: an endpoint, its completions, and one registered pool. The only module of this crate with `unsafe`.
//!
//! Contents: [`Endpoint`], which owns every buffer that a provider may read or write until it says that it is
//! done with it. The C half (`csrc/shim.c`) wraps the inline functions of libfabric's headers.
//!
//! Invariants: a buffer that the provider has is in `given`, and nothing else touches it before its completion. The
//! endpoint is closed before any of them is dropped. Only peers that have the key of the pool can reach it, and only if
//! it was registered for them ([`Reach::Remote`]).
#![allow(unsafe_code, reason = "libfabric is a library in C")]

mod guard;
mod lists;
mod provider;
mod stale_locks;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_buffers::{Buffer, Pool};

use crate::FabricError;
use crate::error::Trouble;
use crate::stale_segments;

pub(crate) use guard::Guard;
use lists::{LISTS, ShmPeer};
pub(crate) use provider::begin;
pub use provider::{Provider, library_version};
#[cfg(test)]
pub(crate) use stale_locks::Page;
pub(crate) use stale_locks::PeerLocks;

/// The shim's state.
#[repr(C)]
struct Raw {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawCompletion {
    context: u64,
    len: u64,
    error: i32,
    is_receive: i32,
}

unsafe extern "C" {
    fn ferrite_ofi_text(error: c_int) -> *const c_char;
    fn ferrite_ofi_open(
        provider: *const c_char,
        node: *const c_char,
        depth: usize,
        base: *mut c_void,
        len: usize,
        key: u64,
        is_remote: c_int,
        opened: *mut *mut Raw,
        step: *mut *const c_char,
    ) -> c_int;
    fn ferrite_ofi_close(it: *mut Raw);
    fn ferrite_ofi_key(it: *mut Raw) -> u64;
    fn ferrite_ofi_is_virtual(it: *mut Raw) -> c_int;
    fn ferrite_ofi_inject_size(it: *mut Raw) -> usize;
    fn ferrite_ofi_name(it: *mut Raw, name: *mut c_void, len: *mut usize) -> c_int;
    fn ferrite_ofi_insert(it: *mut Raw, name: *const c_void, peer: *mut u64) -> c_int;
    fn ferrite_ofi_remove(it: *mut Raw, peer: u64) -> c_int;
    fn ferrite_ofi_receive(it: *mut Raw, buffer: *mut c_void, len: usize, context: u64) -> isize;
    fn ferrite_ofi_send(it: *mut Raw, buffer: *const c_void, len: usize, peer: u64, context: u64) -> isize;
    fn ferrite_ofi_inject(it: *mut Raw, bytes: *const c_void, len: usize, peer: u64) -> isize;
    fn ferrite_ofi_read(
        it: *mut Raw,
        buffer: *mut c_void,
        len: usize,
        peer: u64,
        address: u64,
        key: u64,
        context: u64,
    ) -> isize;
    fn ferrite_ofi_write(
        it: *mut Raw,
        buffer: *const c_void,
        len: usize,
        peer: u64,
        address: u64,
        key: u64,
        context: u64,
    ) -> isize;
    fn ferrite_ofi_poll(it: *mut Raw, completions: *mut RawCompletion, most: usize) -> isize;
}

/// "Try again": queues are full, or a peer is being connected to.
const EAGAIN: isize = -11;
/// Completions taken at once, at most.
const COMPLETIONS: usize = 16;
/// So many empty polls in a row show that nothing is left: ofi_rxm takes one of its own completions at a poll, and
/// reports few of them.
const QUIET_POLLS: u32 = 256;
/// This bounds polling while peers keep sending.
const POLLS_MAX: u32 = 16 * QUIET_POLLS;
/// Longest name of an endpoint.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// Keys that this process has requested. Providers that choose their own ignore them.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// Peers over shm that are left, and not gone, at most: an endpoint has place for 256 in all.
const LEFT_MAX: usize = 64;
/// Polls after which an endpoint looks again whether peers that it has left are gone.
const POLLS_PER_LOOK: u32 = 256;

/// An endpoint without a user, which others of this process may still know.
struct Closing {
    raw: NonNull<Raw>,
    /// Over shm.
    name: Vec<u8>,
    /// Buffers that the provider may still read or write.
    _given: Vec<Option<Given>>,
    _pool: Pool,
}

// SAFETY: as for `Endpoint`.
unsafe impl Send for Closing {}

impl Closing {
    fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        // SAFETY: opened by `Endpoint::open`, left to the lists by its `drop`, and closed here alone. Closing ends
        // every operation, so that the provider no longer uses the buffers dropped after this.
        unsafe { ferrite_ofi_close(self.raw.as_ptr()) }
    }
}

/// The endpoints that may reach the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only this endpoint.
    Local,
    /// Also peers that have its key. They may change any byte of it at any time: it must hold nothing but data in
    /// flight.
    Remote,
}

/// A peer in the endpoint's table of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerId(u64);

/// The kind of a completed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Received,
    Sent,
    Read,
    Written,
}

/// An operation that is done, or has failed.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) kind: Kind,
    /// The caller's tag of the operation.
    pub(crate) tag: u64,
    /// The buffer. A received one is as long as the message.
    pub(crate) buffer: Buffer,
    pub(crate) is_ok: bool,
}

/// Memory of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u64,
}

struct Given {
    kind: Kind,
    tag: u64,
    /// `None`: the peer is gone, and its reply is not waited for ([`Endpoint::let_go`]).
    buffer: Option<Buffer>,
}

/// See the head of this module.
pub(crate) struct Endpoint {
    raw: NonNull<Raw>,
    provider: Provider,
    pool: Pool,
    /// By context.
    given: Vec<Option<Given>>,
    free: Vec<u32>,
    /// Completions that [`Self::drain`] found.
    drained: Vec<Completion>,
    /// Peers over shm.
    known: Vec<ShmPeer>,
    /// Polls until it looks whether peers that it has left are gone.
    polls_to_look: u32,
    inject_bytes: usize,
    /// The read that was posted last.
    reading: Option<u64>,
}

// SAFETY: libfabric's objects may be used by any thread (they were opened with FI_THREAD_SAFE), and everything else is
// `Send`. It is not `Sync`: all calls take it exclusively.
unsafe impl Send for Endpoint {}

fn text(error: c_int) -> String {
    // SAFETY: it returns a text that ends with a zero byte and is never changed, whatever the number.
    let text = unsafe { CStr::from_ptr(ferrite_ofi_text(error)) };
    text.to_string_lossy().into_owned()
}

fn failed(provider: Provider, step: &str, error: isize) -> FabricError {
    let error = error as c_int;
    FabricError::Provider {
        provider: provider.name(),
        step: step.to_owned(),
        trouble: Trouble::of(provider.name(), step, -error),
        text: text(error),
    }
}

impl Endpoint {
    /// Opens an endpoint for `depth` messages each way, and registers a pool. `node` is an address of this host, for
    /// providers that have addresses.
    pub(crate) fn open(
        provider: Provider,
        node: Option<&str>,
        depth: usize,
        pool: &Pool,
        reach: Reach,
    ) -> Result<Endpoint, FabricError> {
        let node = match provider {
            Provider::Shm => Some(stale_segments::begin().to_owned()),
            _ => node.map(str::to_owned),
        };
        let node = node.and_then(|node| CString::new(node).ok());
        let alone = LISTS.lock();
        let mut raw = std::ptr::null_mut();
        let mut step = c"beginning".as_ptr();
        let is_remote = c_int::from(reach == Reach::Remote);
        // SAFETY: the texts end with zero bytes and outlive the call, which copies them; the region is the pool's area,
        // which stays in place as long as `pool` in the new value lives, and that is longer than the registration
        // (`drop`). The last two point to local variables.
        let result = unsafe {
            ferrite_ofi_open(
                provider.of_library().as_ptr(),
                node.as_ref().map_or(std::ptr::null(), |node| node.as_ptr()),
                depth,
                pool.base().cast_mut().cast(),
                pool.len_bytes(),
                NEXT_KEY.fetch_add(1, Ordering::Relaxed),
                is_remote,
                &raw mut raw,
                &raw mut step,
            )
        };
        let Some(raw) = NonNull::new(raw).filter(|_| result == 0) else {
            // SAFETY: the shim sets it to texts of its own, which end with zero bytes and last for ever.
            let step = unsafe { CStr::from_ptr(step) }.to_string_lossy();
            return Err(failed(provider, &step, result as isize));
        };
        drop(alone);
        // SAFETY: opened above.
        let inject_bytes = unsafe { ferrite_ofi_inject_size(raw.as_ptr()) };
        let endpoint = Endpoint {
            raw,
            provider,
            pool: pool.clone(),
            given: Vec::new(),
            free: Vec::new(),
            drained: Vec::new(),
            known: Vec::new(),
            polls_to_look: POLLS_PER_LOOK,
            inject_bytes,
            reading: None,
        };
        if provider == Provider::Shm {
            let name = endpoint.name()?;
            LISTS.lock().opened(&name);
        }
        Ok(endpoint)
    }

    pub(crate) fn provider(&self) -> Provider {
        self.provider
    }

    /// The name by which peers reach it.
    pub(crate) fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; NAME_BYTES_MAX];
        let mut len = name.len();
        // SAFETY: `name` has `len` bytes, and the endpoint is open.
        let result = unsafe { ferrite_ofi_name(self.raw.as_ptr(), name.as_mut_ptr().cast(), &raw mut len) };
        if result != 0 || len > name.len() {
            return Err(failed(self.provider, "asking for its own address", result as isize));
        }
        name.truncate(len);
        Ok(name)
    }

    /// Where peers find the pool, if it was registered for them.
    pub(crate) fn region(&self) -> Remote {
        // SAFETY: the endpoint is open.
        let (key, is_virtual) = unsafe {
            (
                ferrite_ofi_key(self.raw.as_ptr()),
                ferrite_ofi_is_virtual(self.raw.as_ptr()) != 0,
            )
        };
        let address = if is_virtual { self.pool.base().addr() as u64 } else { 0 };
        Remote { address, key }
    }

    /// Adds a peer by its name.
    pub(crate) fn insert(&mut self, name: &[u8]) -> Result<PeerId, FabricError> {
        // Providers read a name of their own length, whatever the length of this one. Zeros end all those that are
        // texts.
        let mut buf = [0; NAME_BYTES_MAX + 1];
        let Some(start) = buf[..NAME_BYTES_MAX].get_mut(..name.len()) else {
            return Err(FabricError::Foreign);
        };
        start.copy_from_slice(name);
        self.release_gone();
        if let Some(known) = self.known.iter_mut().find(|known| known.name == name) {
            // Twice at a time, one of them would be forgotten with the other.
            return match std::mem::take(&mut known.is_left) {
                true => Ok(known.id),
                false => Err(FabricError::Closed),
            };
        }
        // Only shm has lists of peers that endpoints share. Elsewhere the lock would make this wait for all endpoints
        // that are being opened, which takes long.
        let mut lists = (self.provider == Provider::Shm).then(|| LISTS.lock());
        if lists.as_ref().is_some_and(|lists| !lists.may_be_introduced(name)) {
            return Err(FabricError::Closed);
        }
        let mut peer = 0;
        // SAFETY: no provider in use has longer names than `buf`, and texts end in it. The endpoint is open.
        let result = unsafe { ferrite_ofi_insert(self.raw.as_ptr(), buf.as_ptr().cast(), &raw mut peer) };
        match result {
            0 => {
                if let Some(lists) = &mut lists {
                    lists.introduced(name);
                    self.known.push(ShmPeer {
                        id: PeerId(peer),
                        name: name.to_vec(),
                        is_left: false,
                    });
                }
                Ok(PeerId(peer))
            }
            error => Err(failed(
                self.provider,
                "reaching the other side's endpoint",
                error as isize,
            )),
        }
    }

    /// Forgets a peer; over shm, once it is gone.
    pub(crate) fn remove(&mut self, peer: PeerId) {
        // As in `insert`.
        if self.provider != Provider::Shm {
            self.drain();
            return self.take_out(peer);
        }
        for known in self.known.iter_mut().filter(|known| known.id == peer) {
            known.is_left = true;
        }
        self.release_gone();
        let left = self.known.iter().filter(|known| known.is_left);
        if left.count() > LEFT_MAX {
            // Others need their places. The oldest one will hardly send its first message now.
            let oldest = self.known.iter().find(|known| known.is_left).map(|known| known.id);
            self.release(oldest.into_iter().collect());
        }
    }

    /// Forgets the peers over shm that it has left and that are gone.
    fn release_gone(&mut self) {
        self.polls_to_look = POLLS_PER_LOOK;
        if !self.known.iter().any(|known| known.is_left) {
            return;
        }
        let gone: Vec<PeerId> = {
            let lists = LISTS.lock();
            let left = self.known.iter().filter(|known| known.is_left);
            left.filter(|known| lists.is_gone(&known.name))
                .map(|known| known.id)
                .collect()
        };
        if !gone.is_empty() {
            self.release(gone);
        }
    }

    /// Forgets peers over shm, after it has taken what they have sent.
    fn release(&mut self, peers: Vec<PeerId>) {
        let mut drained = std::mem::take(&mut self.drained);
        // If it fails, the caller's next poll does, too.
        let _ = self.poll_until_quiet(&mut drained);
        self.drained = drained;
        let mut lists = LISTS.lock();
        for peer in peers {
            self.remove_from(&mut lists, peer);
        }
        lists.sweep();
    }

    fn take_out(&mut self, peer: PeerId) {
        // SAFETY: the endpoint is open; removing an unknown peer is an error and nothing worse.
        let result = unsafe { ferrite_ofi_remove(self.raw.as_ptr(), peer.0) };
        if result != 0 {
            tracing::debug!("forgetting a peer: {}", text(result));
        }
    }

    fn remove_from(&mut self, lists: &mut lists::Lists, peer: PeerId) {
        self.take_out(peer);
        if let Some(index) = self.known.iter().position(|known| known.id == peer) {
            lists.forget(&self.known.remove(index).name);
        }
    }

    /// Longest message that [`Self::inject`] takes.
    pub(crate) fn inject_bytes(&self) -> usize {
        self.inject_bytes
    }

    /// Operations in flight, without receives.
    pub(crate) fn busy(&self) -> usize {
        let busy = self.given.iter().flatten();
        busy.filter(|given| given.kind != Kind::Received).count()
    }

    fn enter(&mut self, kind: Kind, tag: u64, buffer: Buffer) -> u32 {
        let given = Some(Given {
            kind,
            tag,
            buffer: Some(buffer),
        });
        match self.free.pop() {
            Some(at) => {
                self.given[at as usize] = given;
                at
            }
            None => {
                self.given.push(given);
                self.given.len() as u32 - 1
            }
        }
    }

    fn leave(&mut self, context: u64) -> Option<Given> {
        // Zero is the context of injected messages.
        let at = context.checked_sub(1)?;
        let given = self.given.get_mut(at as usize)?.take()?;
        self.free.push(at as u32);
        Some(given)
    }

    /// Gives the provider a buffer of this pool for an operation. A busy provider returns it.
    fn give(
        &mut self,
        (kind, tag, buffer): (Kind, u64, Buffer),
        step: &str,
        operate: impl FnOnce(*mut Raw, *mut c_void, usize, u64) -> isize,
    ) -> Result<Option<Buffer>, FabricError> {
        assert!(self.pool.has(&buffer), "a buffer of another pool");
        let (address, len) = (self.pool.base().cast_mut().wrapping_add(buffer.offset()), buffer.len());
        let context = u64::from(self.enter(kind, tag, buffer)) + 1;
        match operate(self.raw.as_ptr(), address.cast(), len, context) {
            0 => Ok(None),
            error => {
                let given = self.leave(context);
                match error {
                    EAGAIN => Ok(given.and_then(|given| given.buffer)),
                    _ => Err(failed(self.provider, step, error)),
                }
            }
        }
    }

    /// Posts a receive buffer for a future message.
    pub(crate) fn receive(&mut self, buffer: Buffer) -> Result<Option<Buffer>, FabricError> {
        self.give(
            (Kind::Received, 0, buffer),
            "receiving",
            |raw, address, len, context| {
                // SAFETY: the bytes belong to the buffer that `given` now owns, until the completion with this context.
                unsafe { ferrite_ofi_receive(raw, address, len, context) }
            },
        )
    }

    /// Sends the content of a buffer as one message. `Some` returns the buffer: the provider is busy.
    pub(crate) fn send(&mut self, peer: PeerId, buffer: Buffer, tag: u64) -> Result<Option<Buffer>, FabricError> {
        self.give((Kind::Sent, tag, buffer), "sending", |raw, address, len, context| {
            // SAFETY: as in `receive`.
            unsafe { ferrite_ofi_send(raw, address, len, peer.0, context) }
        })
    }

    /// Sends a short message, which is copied. False if the provider is busy.
    pub(crate) fn inject(&mut self, peer: PeerId, bytes: &[u8]) -> Result<bool, FabricError> {
        // SAFETY: the bytes are copied before the call returns.
        let sent = unsafe { ferrite_ofi_inject(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len(), peer.0) };
        match sent {
            0 => Ok(true),
            EAGAIN => Ok(false),
            error => Err(failed(self.provider, "sending", error)),
        }
    }

    /// Fills a buffer from the memory of a peer.
    pub(crate) fn read(
        &mut self,
        peer: PeerId,
        buffer: Buffer,
        from: Remote,
        tag: u64,
    ) -> Result<Option<Buffer>, FabricError> {
        let mut reading = 0;
        let given = self.give((Kind::Read, tag, buffer), "reading", |raw, address, len, context| {
            reading = context;
            // SAFETY: as in `receive`. If the peer may not give this memory, the read fails there.
            unsafe { ferrite_ofi_read(raw, address, len, peer.0, from.address, from.key, context) }
        })?;
        if given.is_none() && self.provider == Provider::Shm {
            // Usually the read is already done. libfabric 1.17 does not say which one has failed, so poll now.
            self.reading = Some(reading);
            let mut drained = std::mem::take(&mut self.drained);
            let polled = self.poll_until_quiet(&mut drained);
            (self.drained, self.reading) = (drained, None);
            polled?;
        }
        Ok(given)
    }

    fn poll_until_quiet(&mut self, done: &mut Vec<Completion>) -> Result<(), FabricError> {
        while self.poll_once(done)? {}
        Ok(())
    }

    /// Returns the buffer of a read or write whose peer was removed, and whose completion may never come. Providers
    /// with connections have closed the one to this peer. Over shm the peer itself copies the data of a write, and data
    /// that it copies after this is of no use to it; a read that is not done yet stays. True if the buffer was
    /// returned.
    pub(crate) fn let_go(&mut self, tag: u64) -> bool {
        let mut given = self.given.iter_mut().flatten();
        let is_closed = self.provider != Provider::Shm;
        let may_go = |kind| kind == Kind::Written || (kind == Kind::Read && is_closed);
        let found = given.find(|given| may_go(given.kind) && given.tag == tag);
        match found {
            // The operation keeps its number, so that no other one gets a completion that comes after all.
            Some(given) => given.buffer.take().is_some(),
            None => false,
        }
    }

    /// Writes the content of a buffer to the memory of a peer.
    pub(crate) fn write(
        &mut self,
        peer: PeerId,
        buffer: Buffer,
        to: Remote,
        tag: u64,
    ) -> Result<Option<Buffer>, FabricError> {
        self.give((Kind::Written, tag, buffer), "writing", |raw, address, len, context| {
            // SAFETY: as in `receive`.
            unsafe { ferrite_ofi_write(raw, address, len, peer.0, to.address, to.key, context) }
        })
    }

    /// Takes all completions before a peer is forgotten. libfabric 1.17 (ofi_rxm) first closes the connection to the
    /// peer, and then looks at the completions that are left; for each message among them it uses memory that it has
    /// just freed.
    fn drain(&mut self) {
        if self.provider == Provider::Shm {
            return;
        }
        let mut drained = std::mem::take(&mut self.drained);
        let mut quiet = 0;
        for _ in 0..POLLS_MAX {
            match self.poll_once(&mut drained) {
                Ok(true) => quiet = 0,
                Ok(false) if quiet < QUIET_POLLS => quiet += 1,
                _ => break,
            }
        }
        self.drained = drained;
    }

    /// Drives the provider, and appends completed operations. True if there were any. Does not block.
    pub(crate) fn poll(&mut self, done: &mut Vec<Completion>) -> Result<bool, FabricError> {
        if !self.known.is_empty() {
            self.polls_to_look -= 1;
            if self.polls_to_look == 0 {
                self.release_gone();
            }
        }
        let had_drained = !self.drained.is_empty();
        done.append(&mut self.drained);
        Ok(self.poll_once(done)? || had_drained)
    }

    fn poll_once(&mut self, done: &mut Vec<Completion>) -> Result<bool, FabricError> {
        let mut entries = [RawCompletion::default(); COMPLETIONS];
        // SAFETY: `entries` holds that many, and the endpoint is open.
        let count = unsafe { ferrite_ofi_poll(self.raw.as_ptr(), entries.as_mut_ptr(), COMPLETIONS) };
        let Ok(count) = usize::try_from(count) else {
            return Err(failed(self.provider, "looking for completions", count));
        };
        for entry in &entries[..count] {
            let is_ok = entry.error == 0;
            let context = match self.reading {
                Some(reading) if !is_ok && entry.context == 0 => reading,
                _ => entry.context,
            };
            let Some(Given {
                kind,
                tag,
                buffer: Some(mut buffer),
            }) = self.leave(context)
            else {
                // Of an injected message, or for a peer that is gone: no thread waits for it.
                continue;
            };
            if !is_ok {
                tracing::debug!("{kind:?} failed: {}", text(entry.error));
            }
            if kind == Kind::Received {
                buffer.set_len((entry.len as usize).min(buffer.capacity()));
            }
            done.push(Completion {
                kind,
                tag,
                buffer,
                is_ok,
            });
        }
        Ok(count > 0)
    }
}

impl Drop for Endpoint {
    /// Closes it, or leaves it to the last endpoint of this process that knows it.
    fn drop(&mut self) {
        self.drain();
        let name = match self.provider {
            Provider::Shm => self.name().unwrap_or_default(),
            _ => Vec::new(),
        };
        let mut lists = LISTS.lock();
        while let Some(peer) = self.known.last().map(|known| known.id) {
            self.remove_from(&mut lists, peer);
        }
        lists.close(Closing {
            raw: self.raw,
            name,
            _given: std::mem::take(&mut self.given),
            _pool: self.pool.clone(),
        });
        lists.sweep();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({}, {} under way)", self.provider.name(), self.busy())
    }
}
