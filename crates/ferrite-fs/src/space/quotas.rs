//! Floor 2, quotas of directory trees: how much the inodes of each tree use, and how much they may.
//!
//! Contents: [`Quotas`]. An inode names the quota that counts it ([`QuotaId`], a word of the inode); the directory that
//! a quota belongs to also has its limits. A quota lies in another one if its directory does, and what it counts, that
//! one counts as well.
//!
//! Invariants: the usage is the sum over the inodes that name the quota, and is on no medium. So each record that
//! changes an inode changes it, no crash makes it wrong, and a mount counts anew. A transaction reserves the usage of
//! its record before the record is written ([`Quotas::charge`]), and gives it back if it is not.

use ferrite_checks::ranked::Mutex;
use ferrite_map::Inum;
use ferrite_vfs::{FsError, QuotaLimits, Result};
use rustc_hash::FxHashMap;

use crate::format::inode::{Inode, QuotaId};
use crate::format::layout::BLOCK_BYTES;
use crate::lock_order;
use crate::options::QuotaUse;

/// Quotas within each other; more are refused.
pub(crate) const LEVELS_MAX: usize = 64;

/// Quotas that `ferrite info` lists at most.
pub(crate) const LISTED_MAX: usize = 1000;

/// Pages and inodes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    pub(crate) pages: i64,
    pub(crate) inodes: i64,
}

impl Usage {
    /// The part of an inode; nothing for a free one.
    pub(crate) fn of(inode: &Inode) -> Usage {
        match inode.in_use() {
            true => Usage {
                pages: i64::from(inode.blocks()) + i64::from(inode.xattr_word() != 0),
                inodes: 1,
            },
            false => Usage::default(),
        }
    }

    pub(crate) fn plus(self, other: Usage, times: i64) -> Usage {
        Usage {
            pages: self.pages + times * other.pages,
            inodes: self.inodes + times * other.inodes,
        }
    }
}

/// The change of an inode by a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) ino: Inum,
    before: (QuotaId, Usage),
    after: (QuotaId, Usage),
    /// It is the directory of the quota that counts it.
    is_own: bool,
}

impl Change {
    pub(crate) fn new(ino: Inum, old: &Inode, new: &Inode) -> Change {
        Change {
            ino,
            before: (old.quota(), Usage::of(old)),
            after: (new.quota(), Usage::of(new)),
            is_own: old.has_own_quota(ino),
        }
    }

    /// The same record changes the inode once more.
    pub(crate) fn becomes(&mut self, new: &Inode) {
        self.after = (new.quota(), Usage::of(new));
    }

    /// The quota whose directory is removed.
    fn ends(&self) -> Option<QuotaId> {
        (self.is_own && self.after.1 == Usage::default()).then_some(self.before.0)
    }
}

/// A quota, and how much of it is used.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    limits: QuotaLimits,
    used: Usage,
    enclosing: QuotaId,
}

/// See the head of this module.
#[derive(Default)]
pub(crate) struct Quotas {
    counted: Mutex<lock_order::Quotas, FxHashMap<QuotaId, Counted>>,
}

/// The usage that a transaction has reserved: given back when it is dropped, unless its record was written.
#[must_use]
pub(crate) struct Charged<'q> {
    quotas: &'q Quotas,
    added: Vec<(QuotaId, Usage)>,
}

impl Charged<'_> {
    /// The record is written.
    pub(crate) fn keep(mut self, changes: &[Change]) {
        self.added.clear();
        changes
            .iter()
            .filter_map(Change::ends)
            .for_each(|id| self.quotas.end(id));
    }
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        if !self.added.is_empty() {
            let mut counted = self.quotas.counted.lock();
            for (id, usage) in self.added.drain(..) {
                if let Some(quota) = counted.get_mut(&id) {
                    quota.used = quota.used.plus(usage, -1);
                }
            }
        }
    }
}

fn add(sums: &mut Vec<(QuotaId, Usage)>, id: QuotaId, usage: Usage, times: i64) {
    match sums.iter_mut().find(|(found, _)| *found == id) {
        Some((_, sum)) => *sum = sum.plus(usage, times),
        None => sums.push((id, Usage::default().plus(usage, times))),
    }
}

/// Adds usage to all quotas that count what `id` counts.
fn add_up(
    counted: &FxHashMap<QuotaId, Counted>,
    sums: &mut Vec<(QuotaId, Usage)>,
    id: QuotaId,
    usage: Usage,
    times: i64,
) {
    let mut at = id;
    for _ in 0..LEVELS_MAX {
        let Some(quota) = counted.get(&at) else { return };
        add(sums, at, usage, times);
        at = quota.enclosing;
    }
}

/// Whether a quota has no space for this much more.
fn is_over(quota: &Counted, more: Usage) -> bool {
    let over = |limit: u64, used: i64, more: i64, unit: u64| {
        limit > 0 && more > 0 && u64::try_from(used + more).unwrap_or(0).saturating_mul(unit) > limit
    };
    over(quota.limits.bytes, quota.used.pages, more.pages, BLOCK_BYTES)
        || over(quota.limits.inodes, quota.used.inodes, more.inodes, 1)
}

impl Quotas {
    /// Reserves what the changes of a record will use.
    ///
    /// # Errors
    /// `OverQuota` if that is more than a limit lets be used, and `is_limited`. Nothing is reserved then.
    pub(crate) fn charge(&self, changes: &[Change], is_limited: bool) -> Result<Charged<'_>> {
        let mut sums = Vec::new();
        for Change { before, after, .. } in changes {
            for (&(id, usage), times) in [(before, -1), (after, 1)] {
                if id != QuotaId::NONE {
                    add(&mut sums, id, usage, times);
                }
            }
        }
        sums.retain(|(_, usage)| *usage != Usage::default());
        if sums.is_empty() {
            return Ok(Charged {
                quotas: self,
                added: sums,
            });
        }
        let mut counted = self.counted.lock();
        let mut added = Vec::new();
        for (id, usage) in sums {
            add_up(&counted, &mut added, id, usage, 1);
        }
        let over = |(id, more): &(QuotaId, Usage)| counted.get(id).is_some_and(|quota| is_over(quota, *more));
        if is_limited && added.iter().any(over) {
            return Err(FsError::OverQuota);
        }
        for (id, usage) in &added {
            if let Some(quota) = counted.get_mut(id) {
                quota.used = quota.used.plus(*usage, 1);
            }
        }
        drop(counted);
        Ok(Charged { quotas: self, added })
    }

    /// A directory gets a quota, which has no limits yet. So far it counts what names it since an earlier quota of the
    /// directory. The caller keeps changes out.
    pub(crate) fn begin(&self, id: QuotaId, enclosing: QuotaId, used: Usage) {
        let mut counted = self.counted.lock();
        let limits = QuotaLimits::default();
        counted.insert(
            id,
            Counted {
                limits,
                used: Usage::default(),
                enclosing,
            },
        );
        let mut sums = Vec::new();
        add_up(&counted, &mut sums, id, used, 1);
        for (id, usage) in sums {
            if let Some(quota) = counted.get_mut(&id) {
                quota.used = quota.used.plus(usage, 1);
            }
        }
    }

    /// A directory has no quota any more. Files that are open without a name may still be counted by it; from now on
    /// nothing counts them, as after a mount.
    pub(crate) fn end(&self, id: QuotaId) {
        let mut counted = self.counted.lock();
        let Some(quota) = counted.remove(&id) else { return };
        let mut sums = Vec::new();
        add_up(&counted, &mut sums, quota.enclosing, quota.used, -1);
        for (id, usage) in sums {
            if let Some(quota) = counted.get_mut(&id) {
                quota.used = quota.used.plus(usage, 1);
            }
        }
    }

    pub(crate) fn set_limits(&self, id: QuotaId, limits: QuotaLimits) {
        if let Some(quota) = self.counted.lock().get_mut(&id) {
            quota.limits = limits;
        }
    }

    /// Has a quota lie in another one. The caller keeps changes out.
    pub(crate) fn move_into(&self, id: QuotaId, enclosing: QuotaId) {
        let mut counted = self.counted.lock();
        let Some(quota) = counted.get(&id).copied() else { return };
        let mut sums = Vec::new();
        add_up(&counted, &mut sums, quota.enclosing, quota.used, -1);
        add_up(&counted, &mut sums, enclosing, quota.used, 1);
        for (id, usage) in sums {
            if let Some(quota) = counted.get_mut(&id) {
                quota.used = quota.used.plus(usage, 1);
            }
        }
        if let Some(quota) = counted.get_mut(&id) {
            quota.enclosing = enclosing;
        }
    }

    /// The limits of a quota, and how much of it is used; `None` if there is no such quota.
    pub(crate) fn find(&self, id: QuotaId) -> Option<(QuotaLimits, Usage)> {
        let counted = self.counted.lock();
        counted.get(&id).map(|quota| (quota.limits, quota.used))
    }

    /// All quotas, by directory, up to [`LISTED_MAX`].
    pub(crate) fn list(&self) -> Vec<QuotaUse> {
        let positive = |count: i64| u64::try_from(count).unwrap_or(0);
        let of = |(id, quota): (&QuotaId, &Counted)| QuotaUse {
            inode: u64::from(id.ino()),
            limit_bytes: quota.limits.bytes,
            limit_inodes: quota.limits.inodes,
            used_bytes: positive(quota.used.pages) * BLOCK_BYTES,
            used_inodes: positive(quota.used.inodes),
        };
        let mut all: Vec<_> = self.counted.lock().iter().map(of).collect();
        all.sort_unstable_by_key(|quota| quota.inode);
        all.truncate(LISTED_MAX);
        all
    }

    pub(crate) fn enclosing(&self, id: QuotaId) -> QuotaId {
        let counted = self.counted.lock();
        counted.get(&id).map_or(QuotaId::NONE, |quota| quota.enclosing)
    }

    /// How many quotas this one lies in.
    pub(crate) fn level(&self, id: QuotaId) -> usize {
        let counted = self.counted.lock();
        let (mut at, mut level) = (id, 0);
        while let Some(quota) = counted.get(&at)
            && level <= LEVELS_MAX
        {
            (at, level) = (quota.enclosing, level + 1);
        }
        level
    }

    /// Replaces all quotas by those of a mount: each with its limits and the one it lies in, and what the inodes that
    /// name it use.
    pub(crate) fn load(&self, found: Vec<(QuotaId, QuotaLimits, QuotaId)>, used: &FxHashMap<QuotaId, Usage>) {
        let mut counted = FxHashMap::default();
        for (id, limits, enclosing) in found {
            let used = Usage::default();
            counted.insert(
                id,
                Counted {
                    limits,
                    used,
                    enclosing,
                },
            );
        }
        let mut sums = Vec::new();
        for (&id, &usage) in used {
            add_up(&counted, &mut sums, id, usage, 1);
        }
        for (id, usage) in sums {
            if let Some(quota) = counted.get_mut(&id) {
                quota.used = usage;
            }
        }
        *self.counted.lock() = counted;
    }
}
