//! Faults on a mapping (a truncated file, a failing medium) become a poisoned region instead of a dead process.
//!
//! What lives here: a process-wide `SIGBUS` handler and the table of regions it knows. For an address inside a
//! region it maps zeros over the faulting page and marks the region; the access is repeated and sees zeros, and
//! every operation checks the mark before it commits or answers. Unwinding out of the handler would be
//! undefined, and is not done. Other addresses go to the handler that was there before.
//!
//! Invariant: the handler uses atomics and system calls only, all of them async-signal-safe.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

const REGIONS: usize = 1024;

struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    page_bytes: AtomicUsize,
    poisoned: AtomicBool,
    /// 0 free, 1 in use.
    used: AtomicU8,
}

static TABLE: [Entry; REGIONS] = [const {
    Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page_bytes: AtomicUsize::new(4096),
        poisoned: AtomicBool::new(false),
        used: AtomicU8::new(0),
    }
}; REGIONS];
static REGISTERING: Mutex<()> = Mutex::new(());
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A region's place in the table; gives it back when dropped.
pub(crate) struct Guard {
    entry: Option<&'static Entry>,
}

impl Guard {
    /// Registers a mapping. With the table full the region works, but a fault ends the process as usual.
    pub(crate) fn new(start: *const u8, len_bytes: u64, page_bytes: u64) -> Guard {
        install();
        let _one_at_a_time = REGISTERING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let entry = TABLE.iter().find(|entry| entry.used.load(Ordering::Relaxed) == 0);
        if let Some(entry) = entry {
            entry.used.store(1, Ordering::Relaxed);
            entry.poisoned.store(false, Ordering::Relaxed);
            entry.page_bytes.store(page_bytes.max(4096) as usize, Ordering::Relaxed);
            entry.start.store(start as usize, Ordering::Relaxed);
            // Last: an entry counts for the handler when its end is set.
            entry.end.store(start as usize + len_bytes as usize, Ordering::Release);
        }
        Guard { entry }
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

fn install() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: an all-zero sigaction is a valid value of this C struct.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: both point to valid sigactions, and `handle` has the signature that SA_SIGINFO asks for.
        unsafe {
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, &mut previous);
        }
        previous
    });
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and SIGBUS sets its address.
    let address = unsafe { (*info).si_addr() } as usize;
    let found = TABLE.iter().find(|entry| {
        let end = entry.end.load(Ordering::Acquire);
        address < end && address >= entry.start.load(Ordering::Relaxed)
    });
    if let Some(entry) = found {
        let page_bytes = entry.page_bytes.load(Ordering::Relaxed);
        let page = address / page_bytes * page_bytes;
        // SAFETY: the page lies in a mapping that the region owns, so replacing it affects nobody else.
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
    chain(signal, info, context);
}

/// Lets the handler that was installed before ours have the signal.
fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(previous) = PREVIOUS.get() else { return };
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
