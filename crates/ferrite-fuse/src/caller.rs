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

/// Number of the capability to administer a system (`CAP_SYS_ADMIN`).
const SYS_ADMIN: u32 = 21;

/// Whether the caller may do what administrators do: in a container root alone may not. A process that this one cannot
/// see may not either.
pub(crate) fn may_administer(ctx: &Ctx) -> bool {
    match ctx.cred.groups {
        Groups::OfProcess { pid, .. } => is_in_own_namespace(pid) && has_capability(pid, SYS_ADMIN),
        _ => true,
    }
}

/// Whether its capabilities are those of the namespace of users in which this process is.
fn is_in_own_namespace(pid: u32) -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let own = of("self");
    own.is_some() && of(&pid.to_string()) == own
}

fn has_capability(pid: u32, number: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> number & 1 == 1)
}

/// The supplementary groups of a process; empty if they cannot be determined.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let numbers = groups.unwrap_or_default().split_whitespace();
    numbers.filter_map(|group| group.parse().ok()).collect()
}
