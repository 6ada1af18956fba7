//! Locks over shm that a killed process has left locked.
//!
//! Contents: [`PeerLocks`]. A sender over shm takes a lock in the memory of the receiver, which takes it whenever it
//! looks for messages. libfabric waits for it without limit, and so for ever if the holder was killed. So a thread that
//! makes no progress checks whether its peer is alive.
//!
//! Invariant: a lock is freed only if the peer is dead, so that only this process still uses it. The layout is that of
//! libfabric 1.17; with any other version nothing is touched.
#![allow(unsafe_code, reason = "libfabric is a library in C")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;

use rustix::process::{Pid, getpid, test_kill_process};

use super::library_version;
use crate::stale_segments;

unsafe extern "C" {
    fn ferrite_ofi_watch(path: *const c_char) -> *mut c_void;
    fn ferrite_ofi_watched(page: *const c_void) -> c_int;
    fn ferrite_ofi_try_lock(page: *mut c_void) -> c_int;
    fn ferrite_ofi_unlock(page: *mut c_void);
    fn ferrite_ofi_unwatch(page: *mut c_void);
}

/// How many attempts to take a lock fail before it counts as held: they last some tens of microseconds, while a working
/// holder has it for about one.
const TRIES: usize = 1000;
/// The version whose layout is known.
const KNOWN: (u32, u32) = (1, 17);

/// The first page of an endpoint's memory.
pub(crate) struct Page(NonNull<c_void>);

// SAFETY: it is a mapping of this process, and every access to it is atomic.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// The page of the endpoint with this name, if it belongs to this process.
    pub(crate) fn of(name: &[u8], process: Pid) -> Option<Page> {
        if library_version() != KNOWN {
            return None;
        }
        let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
        // The name comes from the peer, and must not lead elsewhere.
        let name = name.strip_prefix("fi_shm://").filter(|name| !name.contains('/'))?;
        let path = Path::new(stale_segments::DIR).join(name);
        let path = CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
        // SAFETY: the text ends with a zero byte and outlives the call.
        let page = Page(NonNull::new(unsafe { ferrite_ofi_watch(path.as_ptr()) })?);
        // SAFETY: it was mapped just now.
        let found = unsafe { ferrite_ofi_watched(page.0.as_ptr()) };
        (found == process.as_raw_nonzero().get()).then_some(page)
    }

    /// Takes the lock, unless it is held.
    pub(crate) fn try_lock(&self) -> bool {
        // SAFETY: mapped as long as this lives; the lock is taken as every user of it takes it.
        unsafe { ferrite_ofi_try_lock(self.0.as_ptr()) == 0 }
    }

    /// Whether the lock is held all the time, for as long as many others could have had it: a contended lock is mostly
    /// held, too, but never as long.
    pub(super) fn is_locked(&self) -> bool {
        for _ in 0..TRIES {
            if self.try_lock() {
                self.unlock();
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }

    /// Frees the lock. Only its holder may call this, or anyone once the holder is dead.
    pub(super) fn unlock(&self) {
        // SAFETY: mapped as long as this lives. The holder does not use it any more (`PeerLocks::free_if_stale`,
        // `guard`), and a thread that waits for it continues alone.
        unsafe { ferrite_ofi_unlock(self.0.as_ptr()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and unmapped here alone.
        unsafe { ferrite_ofi_unwatch(self.0.as_ptr()) }
    }
}

/// The locks that an endpoint and its only peer take of each other.
pub(crate) struct PeerLocks {
    process: Pid,
    pages: [Page; 2],
}

impl PeerLocks {
    /// Of endpoints with these names; `None` if they are not Ferrite's, or not of processes of this host, or of this
    /// one.
    pub(crate) fn of(own: &[u8], peer: &[u8]) -> Option<PeerLocks> {
        let process = stale_segments::process_of(peer)?;
        if process == getpid() {
            return None;
        }
        let pages = [Page::of(own, getpid())?, Page::of(peer, process)?];
        Some(PeerLocks { process, pages })
    }

    /// Frees them if the peer is dead. For callers that have waited for a thread that may wait for one of them.
    pub(crate) fn free_if_stale(&self) {
        if is_dead(self.process) {
            tracing::debug!("process {:?} is dead; its locks are freed", self.process);
            self.pages.iter().for_each(Page::unlock);
        }
    }
}

pub(super) fn is_dead(process: Pid) -> bool {
    if test_kill_process(process) == Err(rustix::io::Errno::SRCH) {
        return true;
    }
    // Killed, but not yet reaped.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X')) && threads(process) <= 1
}

/// The number of threads of a process: its first one may have ended before the others.
fn threads(process: Pid) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    tasks.map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use ferrite_buffers::Pool;

    use super::*;
    use crate::ofi::{Endpoint, Provider, Reach};

    /// The endpoint of this process is a real one, and shows that the layout is what libfabric has.
    #[test]
    fn locks_of_the_dead_are_freed_and_of_nobody_else() {
        if !Provider::Shm.is_there() || library_version() != KNOWN {
            eprintln!("skipped: libfabric has no provider shm here, or is of another version");
            return;
        }
        let pool = Pool::new(1).expect("memory");
        let endpoint = Endpoint::open(Provider::Shm, None, 8, &pool, Reach::Local).expect("shm");
        let own = endpoint.name().expect("a name");
        let mut peer = Command::new("sleep").arg("100").spawn().expect("started");
        let namespace = stale_segments::begin().trim_end_matches(|digit: char| digit.is_ascii_digit());
        let name = format!("{namespace}{}:0:0", peer.id());
        let file = Path::new(stale_segments::DIR).join(&name);
        let mut page = vec![0; 4096];
        page[4..8].copy_from_slice(&peer.id().to_le_bytes());
        std::fs::write(&file, &page).expect("written");
        let is_locked = || std::fs::read(&file).expect("read")[24..28] == [0; 4];
        let locks = PeerLocks::of(&own, format!("fi_shm://{name}\0").as_bytes()).expect("known");
        locks.free_if_stale();
        assert!(is_locked(), "it is alive");
        peer.kill().expect("killed");
        // Dead, but not reaped.
        let began = std::time::Instant::now();
        while is_locked() {
            assert!(began.elapsed().as_secs() < 20, "it stays locked");
            locks.free_if_stale();
        }
        peer.wait().expect("ended");
        locks.free_if_stale();
        std::fs::remove_file(&file).expect("removed");
        assert!(PeerLocks::of(&own, &own).is_none(), "it is this very process");
        assert!(PeerLocks::of(&own, b"fi_shm://1:0:0").is_none(), "it is not ours");
    }
}
