//! How much quotas count, for engines: [`QuotaTable`].
//!
//! Contents: the quotas of a file system, each with its limits and with what is in use. An inode names the quota of a
//! tree that counts it, by an id of the engine's; the directory that a quota belongs to also has its limits. A quota
//! lies in another one if its directory does, and what it counts, that one counts as well. The quota of a user counts
//! the inodes that the user owns, wherever they are.
//!
//! Invariants: the usage is the sum over the inodes that name the quota, or have the owner, and need be on no medium.
//! So each record that changes an inode changes it, no crash makes it wrong, and an engine can count anew. A change
//! reserves the usage of its record before the record is written ([`QuotaTable::charge`]), and gives it back if it is
//! not. Only users with a quota are counted; others cost a look at a set of bits, unless they share a bit with one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::ranked::{Mutex, Rank};
use serde::{Deserialize, Serialize};

use super::{QuotaLimits, UserQuota};
use crate::{FsError, Ino, Result};

/// Quotas within each other; engines refuse more.
pub const QUOTA_LEVELS_MAX: usize = 64;

/// Quotas that a report lists at most.
pub const QUOTAS_LISTED_MAX: usize = 1000;

/// Space and inodes in use, or the difference that a change makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUsage {
    /// In bytes; engines count whole pages of 4096.
    pub bytes: i64,
    /// Inodes.
    pub inodes: i64,
}

impl QuotaUsage {
    /// The sum with so many times another.
    #[must_use]
    pub fn plus(self, other: QuotaUsage, times: i64) -> QuotaUsage {
        QuotaUsage {
            bytes: self.bytes.saturating_add(other.bytes.saturating_mul(times)),
            inodes: self.inodes.saturating_add(other.inodes.saturating_mul(times)),
        }
    }
}

impl QuotaUsage {
    /// The part that it adds (`max`), or gives up (`min`).
    fn part(self, of_zero_and: impl Fn(i64, i64) -> i64) -> QuotaUsage {
        QuotaUsage {
            bytes: of_zero_and(self.bytes, 0),
            inodes: of_zero_and(self.inodes, 0),
        }
    }
}

/// A quota in a report, and how much of it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUse {
    /// The directory.
    pub inode: u64,
    /// The limits; 0 for none.
    pub limit_bytes: u64,
    /// See `limit_bytes`.
    pub limit_inodes: u64,
    /// How much is used.
    pub used_bytes: u64,
    /// See `used_bytes`.
    pub used_inodes: u64,
}

/// A quota: of a tree, by its id, or of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaAccount<Id> {
    /// An id that is `Default` is that of no quota.
    Tree(Id),
    /// The owner's number.
    User(u32),
}

/// Everything that counts an inode, as far as it has a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaOwners<Id> {
    /// The quota of a tree, unless it is `Default`.
    pub tree: Id,
    /// The owner, unless nothing counts what it owns, such as root.
    pub user: Option<u32>,
}

impl<Id: Copy + Default + Eq> QuotaOwners<Id> {
    /// Each of them.
    pub fn accounts(self) -> impl Iterator<Item = QuotaAccount<Id>> {
        let tree = (self.tree != Id::default()).then_some(QuotaAccount::Tree(self.tree));
        tree.into_iter().chain(self.user.map(QuotaAccount::User))
    }
}

/// The change of an inode by a record.
#[derive(Debug, Clone, Copy)]
pub struct QuotaChange<Id> {
    /// The inode.
    pub ino: Ino,
    /// The quotas that count it before, and how much they count; nothing for a free inode.
    pub before: (QuotaOwners<Id>, QuotaUsage),
    /// The same afterwards.
    pub after: (QuotaOwners<Id>, QuotaUsage),
    /// It is the directory of the quota that counts it.
    pub is_own: bool,
}

impl<Id: Copy> QuotaChange<Id> {
    /// The quota whose directory is removed.
    fn ends(&self) -> Option<Id> {
        (self.is_own && self.after.1 == QuotaUsage::default()).then_some(self.before.0.tree)
    }
}

/// A quota, and how much of it is used.
#[derive(Debug, Clone, Copy, Default)]
struct Counted<Id> {
    limits: QuotaLimits,
    used: QuotaUsage,
    enclosing: Id,
}

fn bit_of(uid: u32) -> u64 {
    1 << (uid % u64::BITS)
}

type Map<Id> = HashMap<QuotaAccount<Id>, Counted<Id>>;
type Sums<Id> = Vec<(QuotaAccount<Id>, QuotaUsage)>;

/// The quotas of a file system; see the head of this module. `R` is the rank of its lock, which no call holds for long.
pub struct QuotaTable<R: Rank, Id> {
    counted: Mutex<R, Map<Id>>,
    /// A bit for each user with a quota, by the last digits of the number.
    users: AtomicU64,
    /// Changes that have something reserved.
    charges: AtomicU64,
    /// Those that ever had.
    begun: AtomicU64,
}

impl<R: Rank, Id> Default for QuotaTable<R, Id> {
    fn default() -> Self {
        QuotaTable {
            counted: Mutex::new(HashMap::new()),
            users: AtomicU64::new(0),
            charges: AtomicU64::new(0),
            begun: AtomicU64::new(0),
        }
    }
}

/// The usage that a change has reserved: given back when it is dropped, unless its record was written. Usage that the
/// change gives up is there for others once it is.
#[must_use]
pub struct QuotaCharge<'q, R: Rank, Id: Copy + Default + Eq + Hash> {
    table: &'q QuotaTable<R, Id>,
    /// By the quota that counts it; those around that count it as well.
    sums: Sums<Id>,
}

impl<R: Rank, Id: Copy + Default + Eq + Hash> QuotaCharge<'_, R, Id> {
    /// The record is written.
    pub fn keep(mut self, changes: &[QuotaChange<Id>]) {
        let sums = std::mem::take(&mut self.sums);
        let given_up = sums.into_iter().map(|(id, usage)| (id, usage.part(i64::min)));
        let given_up: Vec<_> = given_up.filter(|(_, usage)| *usage != QuotaUsage::default()).collect();
        if !given_up.is_empty() {
            apply_all(&mut self.table.counted.lock(), &given_up, 1);
        }
        changes
            .iter()
            .filter_map(QuotaChange::ends)
            .for_each(|id| self.table.end(id));
    }
}

impl<R: Rank, Id: Copy + Default + Eq + Hash> Drop for QuotaCharge<'_, R, Id> {
    fn drop(&mut self) {
        if !self.sums.is_empty() {
            // The end of a quota has taken all that it counted from those around it.
            let sums = std::mem::take(&mut self.sums);
            let reserved: Vec<_> = sums.into_iter().map(|(id, usage)| (id, usage.part(i64::max))).collect();
            apply_all(&mut self.table.counted.lock(), &reserved, -1);
        }
        self.table.charges.fetch_sub(1, Ordering::Release);
    }
}

fn add<Id: Eq>(sums: &mut Sums<Id>, account: QuotaAccount<Id>, usage: QuotaUsage, times: i64) {
    match sums.iter_mut().find(|(found, _)| *found == account) {
        Some((_, sum)) => *sum = sum.plus(usage, times),
        None => sums.push((account, QuotaUsage::default().plus(usage, times))),
    }
}

/// Adds usage to all quotas that count what this one counts.
fn add_up<Id: Copy + Eq + Hash>(
    counted: &Map<Id>,
    sums: &mut Sums<Id>,
    account: QuotaAccount<Id>,
    usage: QuotaUsage,
    times: i64,
) {
    let mut at = account;
    for _ in 0..QUOTA_LEVELS_MAX {
        let Some(quota) = counted.get(&at) else { return };
        add(sums, at, usage, times);
        match at {
            QuotaAccount::Tree(_) => at = QuotaAccount::Tree(quota.enclosing),
            QuotaAccount::User(_) => return,
        }
    }
}

/// Changes the usage of quotas, those of them that are there.
fn apply<Id: Eq + Hash>(counted: &mut Map<Id>, sums: &[(QuotaAccount<Id>, QuotaUsage)], times: i64) {
    for (id, usage) in sums {
        if let Some(quota) = counted.get_mut(id) {
            quota.used = quota.used.plus(*usage, times);
        }
    }
}

/// Changes the usage of quotas, and of those that count what they count.
fn apply_all<Id: Copy + Eq + Hash>(counted: &mut Map<Id>, sums: &[(QuotaAccount<Id>, QuotaUsage)], times: i64) {
    let mut all = Vec::new();
    for &(id, usage) in sums {
        add_up(counted, &mut all, id, usage, 1);
    }
    apply(counted, &all, times);
}

/// Whether a quota has no space for this much more.
fn is_over<Id>(quota: &Counted<Id>, more: QuotaUsage) -> bool {
    let over = |limit: u64, used: i64, more: i64| {
        limit > 0 && more > 0 && u64::try_from(used.saturating_add(more)).unwrap_or(0) > limit
    };
    over(quota.limits.bytes, quota.used.bytes, more.bytes) || over(quota.limits.inodes, quota.used.inodes, more.inodes)
}

impl<R: Rank, Id: Copy + Default + Eq + Hash> QuotaTable<R, Id> {
    /// Reserves what the changes of a record will use.
    ///
    /// # Errors
    /// `OverQuota` if that is more than a limit lets be used, and `is_limited`. Nothing is reserved then.
    pub fn charge(&self, changes: &[QuotaChange<Id>], is_limited: bool) -> Result<QuotaCharge<'_, R, Id>> {
        let mut sums = Vec::new();
        for QuotaChange { before, after, .. } in changes {
            for (&(owners, usage), times) in [(before, -1), (after, 1)] {
                for account in owners.accounts() {
                    add(&mut sums, account, usage, times);
                }
            }
        }
        sums.retain(|(_, usage)| *usage != QuotaUsage::default());
        // In this order: `settled` reads them in the other.
        self.charges.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::AcqRel);
        let mut charge = QuotaCharge {
            table: self,
            sums: Vec::new(),
        };
        if sums.is_empty() {
            return Ok(charge);
        }
        let mut counted = self.counted.lock();
        let mut added = Vec::new();
        for &(id, usage) in &sums {
            add_up(&counted, &mut added, id, usage, 1);
        }
        let over =
            |(id, more): &(QuotaAccount<Id>, QuotaUsage)| counted.get(id).is_some_and(|quota| is_over(quota, *more));
        if is_limited && added.iter().any(over) {
            drop(counted);
            return Err(FsError::OverQuota);
        }
        let reserved: Vec<_> = sums.iter().map(|&(id, usage)| (id, usage.part(i64::max))).collect();
        apply_all(&mut counted, &reserved, 1);
        drop(counted);
        charge.sums = sums;
        Ok(charge)
    }

    /// How many changes have reserved anything so far; `None` while one has. If it is the same before and after the
    /// counted inodes were read, the counts were those all the time.
    pub fn settled(&self) -> Option<u64> {
        let so_far = self.begun.load(Ordering::Acquire);
        (self.charges.load(Ordering::Acquire) == 0).then_some(so_far)
    }

    /// How many quotas lie within each other where this one is one of them; without one, at most anywhere.
    pub fn depth_through(&self, id: Id) -> usize {
        let counted = self.counted.lock();
        let depth = |&from: &QuotaAccount<Id>| {
            let QuotaAccount::Tree(mut at) = from else { return 0 };
            let (mut depth, mut is_through) = (0, id == Id::default());
            while let Some(quota) = counted.get(&QuotaAccount::Tree(at))
                && depth <= QUOTA_LEVELS_MAX
            {
                is_through |= at == id;
                (at, depth) = (quota.enclosing, depth + 1);
            }
            if is_through { depth } else { 0 }
        };
        counted.keys().map(depth).max().unwrap_or(0)
    }

    /// A directory gets a quota, which has no limits yet. So far it counts what names it since an earlier quota of the
    /// directory. The caller keeps changes out.
    pub fn begin(&self, id: Id, enclosing: Id, used: QuotaUsage) {
        let mut counted = self.counted.lock();
        let new = Counted {
            enclosing,
            ..Counted::default()
        };
        counted.insert(QuotaAccount::Tree(id), new);
        apply_all(&mut counted, &[(QuotaAccount::Tree(id), used)], 1);
    }

    /// A directory has no quota any more. Files that are open without a name may still be counted by it; from now on
    /// nothing counts them, as after a mount.
    pub fn end(&self, id: Id) {
        let mut counted = self.counted.lock();
        let Some(quota) = counted.remove(&QuotaAccount::Tree(id)) else {
            return;
        };
        apply_all(&mut counted, &[(QuotaAccount::Tree(quota.enclosing), quota.used)], -1);
        // Its directory is gone, or the caller has moved all that can be reached from that.
        for inner in counted.values_mut().filter(|inner| inner.enclosing == id) {
            inner.enclosing = Id::default();
        }
    }

    /// Sets the limits of a quota.
    pub fn set_limits(&self, account: QuotaAccount<Id>, limits: QuotaLimits) {
        if let Some(quota) = self.counted.lock().get_mut(&account) {
            quota.limits = limits;
        }
    }

    /// Has a quota lie in another one. The caller keeps changes out.
    pub fn move_into(&self, id: Id, enclosing: Id) {
        let mut counted = self.counted.lock();
        let Some(quota) = counted.get(&QuotaAccount::Tree(id)).copied() else {
            return;
        };
        let mut sums = Vec::new();
        add_up(&counted, &mut sums, QuotaAccount::Tree(quota.enclosing), quota.used, -1);
        add_up(&counted, &mut sums, QuotaAccount::Tree(enclosing), quota.used, 1);
        apply(&mut counted, &sums, 1);
        if let Some(quota) = counted.get_mut(&QuotaAccount::Tree(id)) {
            quota.enclosing = enclosing;
        }
    }

    /// The limits of a quota, and how much of it is used; `None` if there is no such quota.
    pub fn find(&self, account: QuotaAccount<Id>) -> Option<(QuotaLimits, QuotaUsage)> {
        let counted = self.counted.lock();
        counted.get(&account).map(|quota| (quota.limits, quota.used))
    }

    /// Whether a quota may count what these own.
    pub fn counts(&self, owners: QuotaOwners<Id>) -> bool {
        owners.tree != Id::default() || owners.user.is_some_and(|uid| self.counts_user(uid))
    }

    /// Whether a quota counts what these own, and not that of a user with the same last digits.
    pub fn is_limiting(&self, owners: QuotaOwners<Id>) -> bool {
        let has_quota = |account| matches!(account, QuotaAccount::Tree(_)) || self.find(account).is_some();
        self.counts(owners) && owners.accounts().any(has_quota)
    }

    /// Whether a user may have a quota. Records that change an inode ask, so it costs a load; the answer changes only
    /// while callers keep changes out.
    pub fn counts_user(&self, uid: u32) -> bool {
        self.users.load(Ordering::Acquire) & bit_of(uid) != 0
    }

    /// Sets the bits anew.
    fn note_users(&self, counted: &Map<Id>) {
        let bit = |account: &QuotaAccount<Id>| match *account {
            QuotaAccount::User(uid) => bit_of(uid),
            QuotaAccount::Tree(_) => 0,
        };
        let bits = counted.keys().map(bit).fold(0, |bits, bit| bits | bit);
        self.users.store(bits, Ordering::Release);
    }

    /// Has a user be counted, without limits and from nothing. The caller keeps changes out, reads what the user owns,
    /// and tells it to [`Self::set_used`].
    pub fn begin_user(&self, uid: u32) {
        let mut counted = self.counted.lock();
        counted.insert(QuotaAccount::User(uid), Counted::default());
        self.note_users(&counted);
        // A check that counts meanwhile knows others.
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// Sets how much a user uses, as the inodes say, unless changes were made since [`Self::settled`] gave `settled`,
    /// which was before they were read. Returns whether it is set.
    pub fn set_used(&self, uid: u32, used: QuotaUsage, settled: u64) -> bool {
        let mut counted = self.counted.lock();
        // A change counts itself as begun before it takes this lock to reserve anything.
        let is_settled = self.settled() == Some(settled);
        if let Some(quota) = counted.get_mut(&QuotaAccount::User(uid)).filter(|_| is_settled) {
            quota.used = used;
        }
        is_settled
    }

    /// Has a user be counted no more.
    pub fn end_user(&self, uid: u32) {
        let mut counted = self.counted.lock();
        counted.remove(&QuotaAccount::User(uid));
        self.note_users(&counted);
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// The quotas of users, from this number on, by number.
    pub fn users(&self, from: u32) -> Vec<UserQuota> {
        let of = |(account, quota): (&QuotaAccount<Id>, &Counted<Id>)| match *account {
            QuotaAccount::User(uid) if uid >= from => Some(UserQuota::of(uid, quota.limits, quota.used)),
            _ => None,
        };
        let mut all: Vec<_> = self.counted.lock().iter().filter_map(of).collect();
        all.sort_unstable_by_key(|quota| quota.uid);
        all
    }

    /// All quotas of directories, by directory, up to [`QUOTAS_LISTED_MAX`]. `ino_of` gives the directory of an id.
    pub fn list(&self, ino_of: impl Fn(Id) -> Ino) -> Vec<QuotaUse> {
        let of = |(account, quota): (&QuotaAccount<Id>, &Counted<Id>)| match *account {
            QuotaAccount::User(_) => None,
            QuotaAccount::Tree(id) => Some(QuotaUse {
                inode: ino_of(id),
                limit_bytes: quota.limits.bytes,
                limit_inodes: quota.limits.inodes,
                used_bytes: quota.used.bytes.max(0).cast_unsigned(),
                used_inodes: quota.used.inodes.max(0).cast_unsigned(),
            }),
        };
        let mut all: Vec<_> = self.counted.lock().iter().filter_map(of).collect();
        all.sort_unstable_by_key(|quota| quota.inode);
        all.truncate(QUOTAS_LISTED_MAX);
        all
    }

    /// The quotas, each with the one that it lies in.
    pub fn all(&self) -> Vec<(QuotaAccount<Id>, Id)> {
        let counted = self.counted.lock();
        counted
            .iter()
            .map(|(&account, quota)| (account, quota.enclosing))
            .collect()
    }

    /// The quota that one lies in.
    pub fn enclosing(&self, id: Id) -> Id {
        let counted = self.counted.lock();
        counted
            .get(&QuotaAccount::Tree(id))
            .map_or(Id::default(), |quota| quota.enclosing)
    }

    /// Replaces all quotas by those of a mount: each with its limits and the one it lies in, and what the inodes that
    /// name it, or have the owner, use.
    pub fn load(&self, found: Vec<(QuotaAccount<Id>, QuotaLimits, Id)>, used: &HashMap<QuotaAccount<Id>, QuotaUsage>) {
        let with = |(account, limits, enclosing)| (account, limits, enclosing, QuotaUsage::default());
        self.restore(found.into_iter().map(with));
        let mut counted = self.counted.lock();
        let used: Vec<_> = used.iter().map(|(&account, &usage)| (account, usage)).collect();
        apply_all(&mut counted, &used, 1);
    }

    /// Replaces all quotas by those that an engine has kept: each with its limits, the one it lies in, and the usage
    /// that [`Self::find`] gave.
    pub fn restore(&self, kept: impl Iterator<Item = (QuotaAccount<Id>, QuotaLimits, Id, QuotaUsage)>) {
        let with = |(account, limits, enclosing, used)| {
            let new = Counted {
                limits,
                used,
                enclosing,
            };
            (account, new)
        };
        let kept: Map<Id> = kept.map(with).collect();
        let mut counted = self.counted.lock();
        *counted = kept;
        self.note_users(&counted);
    }
}
