//! The holder of the lock on a file, for messages and for processes that wait: for the pools of every engine.
//!
//! Invariant: everything here is read from `/proc`, and may be stale when it returns. It decides nothing but how long
//! to wait and what to report.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// The process that holds the lock on `file`, as `/proc/locks` has it.
pub fn of_lock(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let dev = metadata.dev();
    let id = format!(
        "{:02x}:{:02x}:{}",
        rustix::fs::major(dev),
        rustix::fs::minor(dev),
        metadata.ino()
    );
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let line = locks
        .lines()
        .find(|line| line.split_whitespace().any(|field| field == id))?;
    line.split_whitespace().nth(4)?.parse().ok()
}

/// Whether the process is exiting, or gone since `/proc/locks` was read.
pub fn is_exiting(pid: u32) -> bool {
    const PF_EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // After the name, which may hold anything but ends at the last parenthesis: state, five numbers, flags.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let dead = matches!(fields.next(), Some("Z" | "X"));
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    dead || flags & PF_EXITING != 0
}

/// A process as messages name it: by its number, and its name, if that is visible.
pub fn describe(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("process {pid}"),
        name => format!("process {pid} ({name})"),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::fs::FlockOperation;

    use super::*;

    /// Protects the refusal that names a process, and the wait for one that was killed.
    #[test]
    fn who_locks_is_named_and_who_is_gone_is_ending() {
        let file = File::from(rustix::fs::memfd_create("lock", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(of_lock(&file), None);
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let own = std::process::id();
        assert_eq!(of_lock(&file), Some(own));
        assert!(!is_exiting(own));
        assert!(describe(own).starts_with(&format!("process {own} (")));
        let mut child = Command::new("true").stdout(Stdio::null()).spawn().unwrap();
        let start = std::time::Instant::now();
        while !is_exiting(child.id()) {
            assert!(start.elapsed().as_secs() < 10, "it is a zombie by now");
        }
        child.wait().unwrap();
    }
}
