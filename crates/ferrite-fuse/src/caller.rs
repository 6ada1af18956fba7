//! The caller of a request, as the engine sees it.

use ferrite_vfs::{Cred, Ctx, Groups};

use crate::interrupts;

/// The context of a request by process `pid` of this user and group: the kernel has checked permissions, and keeps the
/// numbers it gets. It names one group of the caller; the others are looked up if a rule needs them.
pub(crate) fn ctx(pid: u32, uid: u32, gid: u32) -> Ctx {
    let groups = Groups::OfProcess { pid, list: groups_of };
    let cred = Cred {
        groups,
        ..Cred::new(uid, gid)
    };
    Ctx::trusted(cred).pinning().waiting(interrupts::waits(pid))
}

/// The supplementary groups of a process; empty if they cannot be determined.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let numbers = groups.unwrap_or_default().split_whitespace();
    numbers.filter_map(|group| group.parse().ok()).collect()
}
