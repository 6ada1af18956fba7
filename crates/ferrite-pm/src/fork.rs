//! Whether this process is still the one that opened something, or a forked child of it.
//!
//! A pool's mapping is shared with a forked child, but its locks, its threads and its state in DRAM are not: anything
//! the child did to the pool would destroy it. So code that hands out access to a pool keeps its [`Origin`] and checks
//! it before each use.
//!
//! Invariant: [`Origin::is_here`] costs one load of a word that only a forked child stores to. Children that call
//! `exec` at once are not its concern, nor are those of `vfork` and `posix_spawn`, which the C library does not
//! announce.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between the first process of the program and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The process in which something was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin(u64);

impl Origin {
    /// This process. Fails if the C library has no memory to register the fork handler.
    pub fn here() -> io::Result<Origin> {
        static WATCH: OnceLock<i32> = OnceLock::new();
        // SAFETY: the handler is a function of this program, which is never unloaded while it runs; it stores to an
        // atomic, which may be done in a child of a process with threads.
        let error = *WATCH.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) });
        match error {
            0 => Ok(Origin(GENERATION.load(Ordering::Relaxed))),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Whether this is the process that it was made in, and not a child.
    #[inline]
    pub fn is_here(self) -> bool {
        // The only store is made before the child's only thread runs on.
        self.0 == GENERATION.load(Ordering::Relaxed)
    }
}

/// The C library calls it in each child of a `fork`.
extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// How long a child of a test may take, in seconds.
const CHILD_ENDS_WITHIN_S: u32 = 30;

/// Forks, and returns whether `f` returned true in the child, which then ends silently. For tests: a lock that another
/// thread holds at the fork is never released in the child; if the child waits for one it is killed, which counts as
/// false.
#[doc(hidden)]
pub fn in_child(f: impl FnOnce() -> bool) -> io::Result<bool> {
    // SAFETY: the child has a copy of this thread and no other thread. Locks of other threads stay locked there, which
    // may keep it waiting, but breaks nothing; the C library takes care of its own locks. It ends below, and never
    // returns into the caller.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: a call without memory arguments; the signal's default is to end this process.
            unsafe { libc::alarm(CHILD_ENDS_WITHIN_S) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false);
            // SAFETY: ends the process at once; destructors and buffers are the parent's.
            unsafe { libc::_exit(i32::from(!done)) }
        }
        child => {
            let child = rustix::process::Pid::from_raw(child).ok_or(io::ErrorKind::Other)?;
            let ended = rustix::io::retry_on_intr(|| {
                rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
            })?;
            Ok(ended.is_some_and(|(_, status)| status.exit_status() == Some(0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let origin = Origin::here().unwrap();
        assert!(origin.is_here());
        let told = in_child(|| {
            let own = Origin::here().unwrap();
            // A grandchild is neither.
            let next = in_child(|| !own.is_here() && !origin.is_here());
            !origin.is_here() && own.is_here() && own != origin && next.unwrap()
        });
        assert!(told.unwrap());
        assert!(
            origin.is_here() && origin == Origin::here().unwrap(),
            "the parent is what it was"
        );
        assert!(!in_child(|| panic!("as a failed assertion")).unwrap());
    }
}
