//! Bounds on the resources of clients, and their accounting.
//!
//! Contents: [`Bounds`], which the administrator sets; [`Admission`], which counts sessions by export, key and source;
//! [`Account`], the party that a resource is charged to, and [`Budget`], an account's resources besides sessions.
//!
//! Invariants: a session is counted from before any connection can find it until it has ended ([`Place`]). All state of
//! a session that grows with its client's requests is bounded for the session where it is kept, and for the account
//! here ([`Resource`]): one client with many sessions gets no more than a few with one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ferrite_checks::ranked::Mutex;
use ferrite_transport::secure::KeyId;
use ferrite_transport::source::Source;
use ferrite_vfs::{FsError, Result, SessionsOf};

use rustc_hash::FxHashMap;

use crate::lock_order;

/// Bounds on clients' use of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Bounds {
    /// Most sessions of clients with one key, at all exports.
    pub sessions_per_key: usize,
    /// Most sessions of clients at one address, at all exports. All loopback addresses count as one, and so does a
    /// network of 64 bits of IPv6.
    pub sessions_per_address: usize,
    /// Most of each resource for clients with one key, or without any, at one address; by [`Resource`].
    pub resources: [usize; RESOURCES],
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            sessions_per_key: 4096,
            sessions_per_address: 2048,
            resources: Resource::ALL.map(Resource::usual_max),
        }
    }
}

/// Per-client state of the server, besides sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Open files.
    OpenFiles,
    /// Pinned inodes. With more, answers come without a pin.
    PinnedInodes,
    /// Owners of locks that clients serve.
    LockOwners,
    /// RDMA queue pairs.
    QueuePairs,
    /// RDMA keys of files.
    Keys,
}

const RESOURCES: usize = 5;

impl Resource {
    /// All of them, in the order of [`Bounds::resources`].
    pub const ALL: [Resource; RESOURCES] = [
        Resource::OpenFiles,
        Resource::PinnedInodes,
        Resource::LockOwners,
        Resource::QueuePairs,
        Resource::Keys,
    ];

    /// The values of [`Bounds::default`]: a few times the limits of one session.
    const fn usual_max(self) -> usize {
        match self {
            Resource::OpenFiles | Resource::LockOwners => 1 << 18,
            Resource::PinnedInodes => 1 << 22,
            Resource::QueuePairs => 1 << 8,
            Resource::Keys => 1 << 14,
        }
    }
}

/// The party that a resource is charged to: a key at a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Account {
    pub(super) key: Option<KeyId>,
    pub(super) source: Source,
}

/// The resources of an account's sessions.
#[derive(Debug)]
pub(super) struct Budget {
    most: [usize; RESOURCES],
    used: [AtomicUsize; RESOURCES],
}

impl Budget {
    fn new(most: [usize; RESOURCES]) -> Budget {
        Budget {
            most,
            used: Default::default(),
        }
    }

    /// Counts one more; false if the limit is reached.
    pub(super) fn take(&self, resource: Resource) -> bool {
        let (used, most) = (&self.used[resource as usize], self.most[resource as usize]);
        let is_within = used.fetch_add(1, Ordering::Relaxed) < most;
        if !is_within {
            used.fetch_sub(1, Ordering::Relaxed);
        }
        is_within
    }

    /// Returns so many.
    pub(super) fn give_back(&self, resource: Resource, count: usize) {
        self.used[resource as usize].fetch_sub(count, Ordering::Relaxed);
    }

    /// Counts one more until the result is dropped; `None` if the limit is reached.
    pub(super) fn charge(self: &Arc<Self>, resource: Resource) -> Option<Charge> {
        self.take(resource).then(|| Charge {
            budget: Arc::clone(self),
            resource,
        })
    }

    /// The current count.
    #[cfg(test)]
    fn used(&self, resource: Resource) -> usize {
        self.used[resource as usize].load(Ordering::Relaxed)
    }
}

/// Counts one of a resource, until it is dropped.
pub(super) struct Charge {
    budget: Arc<Budget>,
    resource: Resource,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.resource, 1);
    }
}

#[derive(Default)]
struct Counts {
    by_key: FxHashMap<KeyId, usize>,
    by_source: FxHashMap<Source, usize>,
    /// Each with its number of sessions.
    accounts: FxHashMap<Account, (usize, Arc<Budget>)>,
}

/// See the head of this module.
pub(super) struct Admission {
    bounds: Bounds,
    counts: Mutex<lock_order::Admission, Counts>,
}

/// Sessions of an export, which change under the lock of [`Admission`].
#[derive(Debug)]
pub(super) struct Attendance {
    most: usize,
    now: AtomicUsize,
    /// Refused sessions.
    pub(super) refused: AtomicU64,
}

/// Counts a session, until it is dropped.
pub(super) struct Place {
    admission: Arc<Admission>,
    attendance: Arc<Attendance>,
    account: Account,
    pub(super) budget: Arc<Budget>,
}

impl Attendance {
    /// Of an export with this limit.
    pub(super) fn new(most: usize) -> Arc<Attendance> {
        Arc::new(Attendance {
            most,
            now: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
        })
    }
}

impl Admission {
    pub(super) fn new(bounds: Bounds) -> Arc<Admission> {
        Arc::new(Admission {
            bounds,
            counts: Mutex::default(),
        })
    }

    /// A place for one more session.
    ///
    /// # Errors
    /// If the export, the key or the source has reached its limit.
    pub(super) fn admit(self: &Arc<Self>, attendance: &Arc<Attendance>, account: Account) -> Result<Place> {
        let mut counts = self.counts.lock();
        let of_key = account.key.and_then(|key| counts.by_key.get(&key)).copied();
        let of_source = counts.by_source.get(&account.source).copied().unwrap_or(0);
        let now = attendance.now.load(Ordering::Relaxed);
        let full = match () {
            () if of_source >= self.bounds.sessions_per_address => Some(SessionsOf::Address),
            () if of_key.unwrap_or(0) >= self.bounds.sessions_per_key => Some(SessionsOf::Key),
            () if now >= attendance.most => Some(SessionsOf::Export),
            () => None,
        };
        if let Some(full) = full {
            attendance.refused.fetch_add(1, Ordering::Relaxed);
            return Err(FsError::TooManySessions(full));
        }
        attendance.now.store(now + 1, Ordering::Relaxed);
        if let Some(key) = account.key {
            *counts.by_key.entry(key).or_default() += 1;
        }
        *counts.by_source.entry(account.source).or_default() += 1;
        let resources = self.bounds.resources;
        let of_account = counts.accounts.entry(account);
        let (sessions, budget) = of_account.or_insert_with(|| (0, Arc::new(Budget::new(resources))));
        *sessions += 1;
        let budget = Arc::clone(budget);
        drop(counts);
        Ok(Place {
            admission: Arc::clone(self),
            attendance: Arc::clone(attendance),
            account,
            budget,
        })
    }
}

impl Place {
    pub(super) fn account(&self) -> Account {
        self.account
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.admission.counts.lock();
        self.attendance.now.fetch_sub(1, Ordering::Relaxed);
        if let Some(key) = self.account.key {
            count_down(&mut counts.by_key, key);
        }
        count_down(&mut counts.by_source, self.account.source);
        if let Some((sessions, _)) = counts.accounts.get_mut(&self.account) {
            *sessions -= 1;
            if *sessions == 0 {
                counts.accounts.remove(&self.account);
            }
        }
    }
}

/// Zero counts take no memory.
fn count_down<K: std::hash::Hash + Eq>(counts: &mut FxHashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_has_a_bound_and_comes_back() {
        let budget = Budget::new([3; RESOURCES]);
        for (n, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(resource as usize, n, "the order of the bounds");
            assert!((0..3).all(|_| budget.take(resource)) && !budget.take(resource));
            budget.give_back(resource, 2);
            assert!(budget.take(resource) && budget.take(resource) && !budget.take(resource));
            budget.give_back(resource, 3);
            let budget = Arc::new(Budget::new([1; RESOURCES]));
            let charge = budget.charge(resource).expect("there is none yet");
            assert!(budget.charge(resource).is_none());
            drop(charge);
            assert_eq!(budget.used(resource), 0);
        }
    }
}
