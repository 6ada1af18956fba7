//! How much quotas count, for engines: [`QuotaTable`].
//!
//! Contents: the quotas of a file system, each with its limits and with what is in use. An inode names the quota that
//! counts it, by an id of the engine's; the directory that a quota belongs to also has its limits. A quota lies in
//! another one if its directory does, and what it counts, that one counts as well.
//!
//! Invariants: the usage is the sum over the inodes that name the quota, and need be on no medium. So each record that
//! changes an inode changes it, no crash makes it wrong, and an engine can count anew. A change reserves the usage of
//! its record before the record is written ([`QuotaTable::charge`]), and gives it back if it is not.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::ranked::{Mutex, Rank};
use serde::{Deserialize, Serialize};

use super::QuotaLimits;
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

/// The change of an inode by a record. An id that is `Default` is that of no quota.
#[derive(Debug, Clone, Copy)]
pub struct QuotaChange<Id> {
    /// The inode.
    pub ino: Ino,
    /// The quota that counts it before, and what it counts; nothing for a free inode.
    pub before: (Id, QuotaUsage),
    /// The same afterwards.
    pub after: (Id, QuotaUsage),
    /// It is the directory of the quota that counts it.
    pub is_own: bool,
}

impl<Id: Copy> QuotaChange<Id> {
    /// The quota whose directory is removed.
    fn ends(&self) -> Option<Id> {
        (self.is_own && self.after.1 == QuotaUsage::default()).then_some(self.before.0)
    }
}

/// A quota, and how much of it is used.
#[derive(Debug, Clone, Copy, Default)]
struct Counted<Id> {
    limits: QuotaLimits,
    used: QuotaUsage,
    enclosing: Id,
}

type Map<Id> = HashMap<Id, Counted<Id>>;

/// The quotas of a file system; see the head of this module. `R` is the rank of its lock, which no call holds for long.
pub struct QuotaTable<R: Rank, Id> {
    counted: Mutex<R, Map<Id>>,
    /// Changes that have something reserved.
    charges: AtomicU64,
    /// Those that ever had.
    begun: AtomicU64,
}

impl<R: Rank, Id> Default for QuotaTable<R, Id> {
    fn default() -> Self {
        QuotaTable {
            counted: Mutex::new(HashMap::new()),
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
    sums: Vec<(Id, QuotaUsage)>,
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

fn add<Id: Eq>(sums: &mut Vec<(Id, QuotaUsage)>, id: Id, usage: QuotaUsage, times: i64) {
    match sums.iter_mut().find(|(found, _)| *found == id) {
        Some((_, sum)) => *sum = sum.plus(usage, times),
        None => sums.push((id, QuotaUsage::default().plus(usage, times))),
    }
}

/// Adds usage to all quotas that count what `id` counts.
fn add_up<Id: Copy + Eq + Hash>(
    counted: &Map<Id>,
    sums: &mut Vec<(Id, QuotaUsage)>,
    id: Id,
    usage: QuotaUsage,
    times: i64,
) {
    let mut at = id;
    for _ in 0..QUOTA_LEVELS_MAX {
        let Some(quota) = counted.get(&at) else { return };
        add(sums, at, usage, times);
        at = quota.enclosing;
    }
}

/// Changes the usage of quotas, those of them that are there.
fn apply<Id: Eq + Hash>(counted: &mut Map<Id>, sums: &[(Id, QuotaUsage)], times: i64) {
    for (id, usage) in sums {
        if let Some(quota) = counted.get_mut(id) {
            quota.used = quota.used.plus(*usage, times);
        }
    }
}

/// Changes the usage of quotas, and of those that count what they count.
fn apply_all<Id: Copy + Eq + Hash>(counted: &mut Map<Id>, sums: &[(Id, QuotaUsage)], times: i64) {
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
            for (&(id, usage), times) in [(before, -1), (after, 1)] {
                if id != Id::default() {
                    add(&mut sums, id, usage, times);
                }
            }
        }
        sums.retain(|(_, usage)| *usage != QuotaUsage::default());
        self.begun.fetch_add(1, Ordering::AcqRel);
        self.charges.fetch_add(1, Ordering::AcqRel);
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
        let over = |(id, more): &(Id, QuotaUsage)| counted.get(id).is_some_and(|quota| is_over(quota, *more));
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
        let depth = |&from: &Id| {
            let (mut at, mut depth, mut is_through) = (from, 0, id == Id::default());
            while let Some(quota) = counted.get(&at)
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
        counted.insert(id, new);
        let mut sums = Vec::new();
        add_up(&counted, &mut sums, id, used, 1);
        apply(&mut counted, &sums, 1);
    }

    /// A directory has no quota any more. Files that are open without a name may still be counted by it; from now on
    /// nothing counts them, as after a mount.
    pub fn end(&self, id: Id) {
        let mut counted = self.counted.lock();
        let Some(quota) = counted.remove(&id) else { return };
        let mut sums = Vec::new();
        add_up(&counted, &mut sums, quota.enclosing, quota.used, -1);
        apply(&mut counted, &sums, 1);
        // Its directory is gone, or the caller has moved all that can be reached from that.
        for inner in counted.values_mut().filter(|inner| inner.enclosing == id) {
            inner.enclosing = Id::default();
        }
    }

    /// Sets the limits of a quota.
    pub fn set_limits(&self, id: Id, limits: QuotaLimits) {
        if let Some(quota) = self.counted.lock().get_mut(&id) {
            quota.limits = limits;
        }
    }

    /// Has a quota lie in another one. The caller keeps changes out.
    pub fn move_into(&self, id: Id, enclosing: Id) {
        let mut counted = self.counted.lock();
        let Some(quota) = counted.get(&id).copied() else { return };
        let mut sums = Vec::new();
        add_up(&counted, &mut sums, quota.enclosing, quota.used, -1);
        add_up(&counted, &mut sums, enclosing, quota.used, 1);
        apply(&mut counted, &sums, 1);
        if let Some(quota) = counted.get_mut(&id) {
            quota.enclosing = enclosing;
        }
    }

    /// The limits of a quota, and how much of it is used; `None` if there is no such quota.
    pub fn find(&self, id: Id) -> Option<(QuotaLimits, QuotaUsage)> {
        let counted = self.counted.lock();
        counted.get(&id).map(|quota| (quota.limits, quota.used))
    }

    /// All quotas, by directory, up to [`QUOTAS_LISTED_MAX`]. `ino_of` gives the directory of an id.
    pub fn list(&self, ino_of: impl Fn(Id) -> Ino) -> Vec<QuotaUse> {
        let positive = |count: i64| u64::try_from(count).unwrap_or(0);
        let of = |(&id, quota): (&Id, &Counted<Id>)| QuotaUse {
            inode: ino_of(id),
            limit_bytes: quota.limits.bytes,
            limit_inodes: quota.limits.inodes,
            used_bytes: positive(quota.used.bytes),
            used_inodes: positive(quota.used.inodes),
        };
        let mut all: Vec<_> = self.counted.lock().iter().map(of).collect();
        all.sort_unstable_by_key(|quota| quota.inode);
        all.truncate(QUOTAS_LISTED_MAX);
        all
    }

    /// The quotas, each with the one that it lies in.
    pub fn all(&self) -> Vec<(Id, Id)> {
        let counted = self.counted.lock();
        counted.iter().map(|(&id, quota)| (id, quota.enclosing)).collect()
    }

    /// The quota that one lies in.
    pub fn enclosing(&self, id: Id) -> Id {
        let counted = self.counted.lock();
        counted.get(&id).map_or(Id::default(), |quota| quota.enclosing)
    }

    /// Replaces all quotas by those of a mount: each with its limits and the one it lies in, and what the inodes that
    /// name it use.
    pub fn load(&self, found: Vec<(Id, QuotaLimits, Id)>, used: &HashMap<Id, QuotaUsage>) {
        let with = |(id, limits, enclosing)| {
            let used = QuotaUsage::default();
            let new = Counted {
                limits,
                used,
                enclosing,
            };
            (id, new)
        };
        let mut counted: Map<Id> = found.into_iter().map(with).collect();
        let mut sums = Vec::new();
        for (&id, &usage) in used {
            add_up(&counted, &mut sums, id, usage, 1);
        }
        apply(&mut counted, &sums, 1);
        *self.counted.lock() = counted;
    }

    /// Replaces all quotas by those that an engine has kept: each with its limits, the one it lies in, and the usage
    /// that [`Self::find`] gave.
    pub fn restore(&self, kept: impl Iterator<Item = (Id, QuotaLimits, Id, QuotaUsage)>) {
        let with = |(id, limits, enclosing, used)| {
            let new = Counted {
                limits,
                used,
                enclosing,
            };
            (id, new)
        };
        *self.counted.lock() = kept.map(with).collect();
    }
}
