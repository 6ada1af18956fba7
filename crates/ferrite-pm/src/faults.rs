//! Faults on a mapping (a truncated file, a failing medium) poison the region instead of killing the process; stores to
//! a private view are redirected to a copy.
//!
//! Contents: process-wide handlers of `SIGBUS` and `SIGSEGV`, and the table of regions they know.
//!
//! At a `SIGBUS` inside a region zeros are mapped over the faulting page and the region is marked; the access is
//! repeated and sees zeros, and every operation checks the mark before it commits or replies. At a `SIGSEGV` inside a
//! view of device DAX the chunk is copied (`copies.rs`). Unwinding out of a handler would be undefined, and is not
//! done. Other addresses go to the previously installed handler.
//!
//! Invariant: the handlers use atomics and system calls only, all of them async-signal-safe.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::copies::Copies;

const REGIONS: usize = 1024;

struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    page_bytes: AtomicUsize,
    poisoned: AtomicBool,
    /// The copied chunks of a private view; null for other regions.
    copies: AtomicPtr<Copies>,
    /// 0 free, 1 in use.
    used: AtomicU8,
}

static TABLE: [Entry; REGIONS] = [const {
    Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page_bytes: AtomicUsize::new(4096),
        poisoned: AtomicBool::new(false),
        copies: AtomicPtr::new(ptr::null_mut()),
        used: AtomicU8::new(0),
    }
}; REGIONS];
static REGISTERING: Mutex<()> = Mutex::new(());
static BEFORE_BUS: OnceLock<libc::sigaction> = OnceLock::new();
static BEFORE_SEGV: OnceLock<libc::sigaction> = OnceLock::new();

/// A region's place in the table; released when dropped.
pub(crate) struct Guard {
    entry: Option<&'static Entry>,
    /// The data that the entry points to.
    #[allow(dead_code, reason = "it is there to be kept")]
    copies: Option<Arc<Copies>>,
}

impl Guard {
    /// Registers a mapping; a read-only one whose chunks are copied on a store comes with `copies`. If the table is
    /// full the region works, but a fault ends the process as usual.
    pub(crate) fn new(start: *const u8, len_bytes: u64, page_bytes: u64, copies: Option<Copies>) -> Guard {
        install(libc::SIGBUS, &BEFORE_BUS, handle_bus);
        if copies.is_some() {
            install(libc::SIGSEGV, &BEFORE_SEGV, handle_segv);
        }
        let copies = copies.map(Arc::new);
        let _one_at_a_time = REGISTERING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let entry = TABLE.iter().find(|entry| entry.used.load(Ordering::Relaxed) == 0);
        if let Some(entry) = entry {
            entry.used.store(1, Ordering::Relaxed);
            entry.poisoned.store(false, Ordering::Relaxed);
            entry.page_bytes.store(page_bytes.max(4096) as usize, Ordering::Relaxed);
            let pointer = copies.as_ref().map_or(ptr::null(), Arc::as_ptr).cast_mut();
            entry.copies.store(pointer, Ordering::Relaxed);
            entry.start.store(start as usize, Ordering::Relaxed);
            // Last: handlers ignore an entry until its end is set.
            entry.end.store(start as usize + len_bytes as usize, Ordering::Release);
        }
        Guard { entry, copies }
    }

    #[cfg(test)]
    pub(crate) fn copies(&self) -> Option<&Copies> {
        self.copies.as_deref()
    }

    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.entry.is_some_and(|entry| entry.poisoned.load(Ordering::Acquire))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            entry.end.store(0, Ordering::Release);
            entry.used.store(0, Ordering::Release);
        }
    }
}

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

fn install(signal: libc::c_int, before: &OnceLock<libc::sigaction>, handler: Handler) {
    before.get_or_init(|| {
        // SAFETY: an all-zero sigaction is a valid value of this C struct.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: both point to valid sigactions, and the handler has the signature that SA_SIGINFO asks for.
        unsafe {
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, &mut previous);
        }
        previous
    });
}

/// The region that an address lies in.
fn find(address: usize) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| {
        let end = entry.end.load(Ordering::Acquire);
        address < end && address >= entry.start.load(Ordering::Relaxed)
    })
}

extern "C" fn handle_segv(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and SIGSEGV sets its address.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some(entry) = find(address) {
        // SAFETY: an entry with an end has a guard, which keeps alive what the pointer leads to: a thread that faults
        // there borrows the region that owns the guard, and its mapping.
        let copied = unsafe {
            entry.copies.load(Ordering::Relaxed).as_ref().is_some_and(|copies| {
                let (start, end) = (entry.start.load(Ordering::Relaxed), entry.end.load(Ordering::Relaxed));
                copies.make(start, end, address)
            })
        };
        if copied {
            return;
        }
    }
    chain(&BEFORE_SEGV, signal, info, context);
}

extern "C" fn handle_bus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and SIGBUS sets its address.
    let address = unsafe { (*info).si_addr() } as usize;
    let found = find(address);
    if let Some(entry) = found {
        let page_bytes = entry.page_bytes.load(Ordering::Relaxed);
        let page = address / page_bytes * page_bytes;
        // SAFETY: the page lies in a mapping that the region owns, so replacing it affects no other code.
        let mapped = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                page_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped != libc::MAP_FAILED {
            entry.poisoned.store(true, Ordering::Release);
            return;
        }
    }
    chain(&BEFORE_BUS, signal, info, context);
}

/// Passes the signal to the handler that was installed before ours.
fn chain(
    before: &OnceLock<libc::sigaction>,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let Some(previous) = before.get() else { return };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores the default; the fault then repeats and ends the process, as it would have.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the previous owner registered this address with this signature.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO the registered address takes the signal number alone.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
