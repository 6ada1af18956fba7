//! Supplementary groups of processes, cached for a moment.
//!
//! A kernel's mount names the calling process, not its groups, and looking them up takes longer than a request.

use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use rustc_hash::FxHashMap;

use crate::lock_order;

/// A process that changes its groups appears to have the old ones for so long.
const VALIDITY: Duration = Duration::from_secs(1);
/// Most processes cached.
const PROCESSES_MAX: usize = 1024;

/// See the head of this module.
#[derive(Default)]
pub(super) struct GroupCache {
    known: Mutex<lock_order::Groups, FxHashMap<u32, (Instant, Vec<u32>)>>,
}

impl GroupCache {
    /// The groups of a process, looked up with `list` unless they are cached.
    pub(super) fn of(&self, pid: u32, list: fn(u32) -> Vec<u32>) -> Vec<u32> {
        let now = Instant::now();
        if let Some((since, groups)) = self.known.lock().get(&pid)
            && now.duration_since(*since) < VALIDITY
        {
            return groups.clone();
        }
        let groups = list(pid);
        let mut known = self.known.lock();
        if known.len() >= PROCESSES_MAX {
            known.retain(|_, (since, _)| now.duration_since(*since) < VALIDITY);
        }
        if known.len() < PROCESSES_MAX {
            known.insert(pid, (now, groups.clone()));
        }
        groups
    }
}
