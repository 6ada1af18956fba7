//! Callers that give up while their request waits for a server.
//!
//! Contents: [`waits`], by which an engine learns whether a caller still wants its reply. The kernel reports that the
//! caller has a signal (`FUSE_INTERRUPT`), but not which, and the reply may be `EINTR` only for some. So the mount
//! reads the caller's signals from `/proc`, only while its call waits.
//!
//! A wait ends with a signal that ends the process, and with SIGINT, SIGQUIT, SIGTERM and SIGHUP also if the program
//! handles them. Other signals that a program handles do not end it: timers and profilers send them all the time, and
//! few programs expect `EINTR` of a file system. An exiting thread does not want the reply to a `close` either.

use ferrite_vfs::{WaitingCaller, Waits};

/// How long the request of a thread may wait. The kernel's own requests have no thread, and wait as long as it takes.
pub(crate) fn waits(thread: u32) -> Waits {
    let caller = WaitingCaller { id: thread, gives_up };
    Waits {
        within: None,
        caller: (thread != 0).then_some(caller),
    }
}

/// Whether a thread that sleeps until its request is answered should end. Of a thread's files in `/proc`, `status`
/// takes no lock that a thread may hold while it waits for this mount; `stat` does, and would wait for ever.
fn gives_up(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    has_ending_signal(&status) || is_exiting(&status)
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signals that do nothing, or stop the process, unless a program handles them.
const HARMLESS: u64 = bit(libc::SIGCHLD)
    | bit(libc::SIGCONT)
    | bit(libc::SIGURG)
    | bit(libc::SIGWINCH)
    | bit(libc::SIGSTOP)
    | bit(libc::SIGTSTP)
    | bit(libc::SIGTTIN)
    | bit(libc::SIGTTOU);
/// Signals by which users and services request that a program end.
const REQUESTS: u64 = bit(libc::SIGINT) | bit(libc::SIGQUIT) | bit(libc::SIGTERM) | bit(libc::SIGHUP);

fn has_ending_signal(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
    };
    let masks = ["SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:"].map(mask);
    let [Some(own), Some(shared), Some(blocked), Some(ignored), Some(caught)] = masks else {
        return false;
    };
    let pending = (own | shared) & !blocked & !ignored;
    pending & REQUESTS != 0 || pending & !caught & !HARMLESS != 0
}

/// An exiting thread has no memory left when it closes its files.
fn is_exiting(status: &str) -> bool {
    !status.is_empty() && !status.contains("\nVmSize:")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(own: u64, shared: u64, blocked: u64, ignored: u64, caught: u64) -> String {
        format!(
            "Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n\
             SigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn signals_that_end_a_program_end_its_wait() {
        let (int, alarm, kill) = (bit(libc::SIGINT), bit(libc::SIGALRM), bit(libc::SIGKILL));
        for (own, shared, blocked, ignored, caught, ends) in [
            (0, 0, 0, 0, 0, false),
            (0, int, 0, 0, 0, true),
            (int, 0, 0, 0, int, true),
            (int, 0, int, 0, int, false),
            (int, 0, 0, int, 0, false),
            (kill, 0, 0, 0, 0, true),
            (0, alarm, 0, 0, 0, true),
            (0, alarm, 0, 0, alarm, false),
            (HARMLESS, HARMLESS, 0, 0, 0, false),
            (bit(libc::SIGCHLD), 0, 0, 0, bit(libc::SIGCHLD), false),
            (0, 1 << 40, 0, 0, 0, true),
        ] {
            let text = status(own, shared, blocked, ignored, caught);
            assert_eq!(has_ending_signal(&text), ends, "{text}");
        }
        assert!(!has_ending_signal("") && !has_ending_signal("SigPnd:\tzz\n"));
    }

    #[test]
    fn a_thread_that_exits_has_no_memory() {
        assert!(is_exiting("Name:\tx\nState:\tD\nThreads:\t1\n"));
        assert!(!is_exiting("") && !is_exiting("Name:\tx\nVmPeak:\t9 kB\nVmSize:\t9 kB\n"));
        assert!(!gives_up(std::process::id()), "this one lives, and has no signal");
    }

    #[test]
    fn the_kernel_itself_never_gives_up() {
        assert!(waits(0).caller.is_none() && waits(7).caller.is_some_and(|caller| caller.id == 7));
    }
}
