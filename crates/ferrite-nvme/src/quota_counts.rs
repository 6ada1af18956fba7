//! Counting for quotas: the reservations that steps make, and the counts of an opening.
//!
//! Invariants: each step that makes, removes or resizes an inode, or changes its extended attributes, reserves that
//! before it has any effect, and gives it back unless it is committed. The counts are in memory; a clean close keeps
//! them (`Q`, and the attributes with the quotas of users), and an opening after a crash counts anew.

use std::sync::Arc;

use ferrite_vfs::{FsError, Ino, Outcome, QuotaUsage, ROOT_INO, Result};

use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::Node;
use crate::format::quota::QuotaRecord;
use crate::housekeeper::MANY;
use crate::inode_ref::InodeRef;
use crate::quotas::{Account, Change, Owners, Tally, in_pages, owners_of, usage_of, usage_of_xattrs};

fn gives_up(change: &Change) -> bool {
    let (before, after) = (change.before.1, change.after.1);
    before.bytes > after.bytes || before.inodes > after.inodes
}

impl Step<'_> {
    fn reserve(&mut self, change: Change) -> Result<()> {
        let quotas = &self.core().quotas;
        if quotas.counts(change.before.0) || quotas.counts(change.after.0) {
            // Whatever an earlier change of the step gives up is there for this one.
            let mut changes = match self.reserved.0.pop_if(|(_, changes)| changes.iter().any(gives_up)) {
                Some((charge, changes)) => {
                    drop(charge);
                    changes
                }
                None => Vec::new(),
            };
            changes.push(change);
            let charge = self.core().quotas.charge(&changes, self.is_limited)?;
            self.reserved.0.push((charge, changes));
        }
        Ok(())
    }

    /// The step makes an inode, which has no extended attributes yet.
    pub(crate) fn count_new(&mut self, ino: Ino, node: &Node) -> Result<()> {
        self.reserve(Change {
            ino,
            before: (owners_of(node), QuotaUsage::default()),
            after: (owners_of(node), usage_of(node)),
            is_own: false,
        })
    }

    /// The step removes an inode whose extended attributes take so many bytes.
    pub(crate) fn count_gone(&mut self, ino: Ino, node: &Node, xattr_bytes: u64) -> Result<()> {
        self.reserve(Change {
            ino,
            before: (owners_of(node), usage_of(node).plus(usage_of_xattrs(xattr_bytes), 1)),
            after: (owners_of(node), QuotaUsage::default()),
            is_own: node.has_own_quota(ino),
        })
    }

    /// The step gives a file another size.
    pub(crate) fn count_size(&mut self, ino: Ino, node: &Node, size: u64) -> Result<()> {
        let bytes = in_pages(size);
        let after = QuotaUsage { bytes, inodes: 1 };
        self.reserve(Change {
            ino,
            before: (owners_of(node), usage_of(node)),
            after: (owners_of(node), after),
            is_own: false,
        })
    }

    /// The step changes the bytes of the extended attributes of an inode that these quotas count.
    pub(crate) fn count_xattrs(&mut self, ino: Ino, owners: Owners, before: u64, after: u64) -> Result<()> {
        self.reserve(Change {
            ino,
            before: (owners, usage_of_xattrs(before)),
            after: (owners, usage_of_xattrs(after)),
            is_own: false,
        })
    }

    /// The step has other quotas count an inode.
    pub(crate) fn count_move(&mut self, ino: Ino, node: &Node, to: Owners) -> Result<()> {
        self.count_change(
            ino,
            (owners_of(node), usage_of(node)),
            (to, usage_of(node)),
            node.has_xattrs,
        )
    }

    /// The step gives an inode another owner or size, as `after` has them. Returns what counts it from then on, and
    /// other changes of the step.
    pub(crate) fn count_attributes(&mut self, ino: Ino, before: &Node, after: &Node) -> Result<Owners> {
        let to = owners_of(after);
        self.count_change(
            ino,
            (owners_of(before), usage_of(before)),
            (to, usage_of(after)),
            before.has_xattrs,
        )?;
        Ok(to)
    }

    /// The step changes what counts an inode, or how much without its extended attributes.
    fn count_change(
        &mut self,
        ino: Ino,
        before: (Owners, QuotaUsage),
        after: (Owners, QuotaUsage),
        has_xattrs: bool,
    ) -> Result<()> {
        if before == after {
            return Ok(());
        }
        let core = self.core();
        let is_moved = before.0 != after.0 && (core.quotas.counts(before.0) || core.quotas.counts(after.0));
        let xattrs = usage_of_xattrs(core.xattr_bytes(ino, is_moved && has_xattrs)?);
        self.reserve(Change {
            ino,
            before: (before.0, before.1.plus(xattrs, 1)),
            after: (after.0, after.1.plus(xattrs, 1)),
            is_own: false,
        })
    }
}

impl Core {
    /// How many bytes the record of an inode's extended attributes has, if a quota counts them, and it has any.
    pub(crate) fn xattr_bytes(&self, ino: Ino, is_wanted: bool) -> Result<u64> {
        if !is_wanted {
            return Ok(0);
        }
        let value = self.meta.get(&key::xattrs(ino))?;
        Ok(value.map_or(0, |value| value.len() as u64))
    }

    /// The inodes that name the quota of a directory, the directory itself aside. Reads all nodes.
    pub(crate) fn inodes_naming(self: &Arc<Core>, quota: Ino) -> Result<Vec<InodeRef>> {
        let mut inos = Vec::new();
        self.each(b'N', |key, value| {
            let names_it = Node::decode(value).is_some_and(|node| node.quota == quota);
            inos.extend(key::ino_of(key).filter(|&ino| names_it && ino != quota));
        })?;
        let mut left = Vec::new();
        for ino in inos {
            match self.pin(ino) {
                Ok(inode) => left.push(inode),
                // It is being removed, and counts no more.
                Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(left)
    }

    /// How much these inodes use, as they are now.
    pub(crate) fn usage_of_all(&self, inodes: &[InodeRef]) -> Result<QuotaUsage> {
        let mut sum = QuotaUsage::default();
        for inode in inodes {
            let state = inode.read()?;
            let xattrs = self.xattr_bytes(inode.ino, state.node.has_xattrs)?;
            sum = sum.plus(usage_of(&state.node), 1).plus(usage_of_xattrs(xattrs), 1);
        }
        Ok(sum)
    }

    /// Whether the counts of the last close hold for an opening: it was clean, and left no work that changes what
    /// quotas count, nor inodes whose quotas are hard to place. Asked before that work is done.
    pub(crate) fn keeps_counts(&self, was_clean: bool) -> Result<bool> {
        let has_quotas = self.has_any(b'Q')? || !self.kept_user_quotas()?.0.is_empty();
        Ok(was_clean && !(has_quotas && (self.has_any(b'D')? || self.has_any(b'O')?)))
    }

    /// Reads the quotas, with their usage as the last close left it if that `is_kept`; otherwise counts.
    pub(crate) fn load_quotas(&self, is_kept: bool) -> Result<()> {
        let mut records = Vec::new();
        self.each(b'Q', |key, value| {
            if let Some(dir) = key::ino_of(key) {
                // A check finds one that cannot be read; until then it limits nothing.
                records.push((dir, QuotaRecord::decode(value).unwrap_or_default()));
            }
        })?;
        records.retain(|(_, record)| !record.has_ended);
        let mut found = Vec::new();
        for (dir, record) in records {
            found.push((Account::Tree(dir), record.limits, self.quota_around(dir)?, record.used));
        }
        let users = self.kept_user_quotas()?.0;
        found.extend(
            users
                .values()
                .map(|quota| (Account::User(quota.uid), quota.limits(), 0, quota.used())),
        );
        if is_kept || found.is_empty() {
            self.quotas.restore(found.into_iter());
            return Ok(());
        }
        let mut tally = Tally::of(users.into_keys());
        self.tally_records(&mut tally, |_| true)?;
        let limits = found.into_iter().map(|(dir, limits, around, _)| (dir, limits, around));
        self.quotas.load(limits.collect(), &tally.used);
        Ok(())
    }

    /// Adds up what the records say of these inodes.
    pub(crate) fn tally_records(&self, tally: &mut Tally, is_wanted: impl Fn(Ino) -> bool) -> Result<()> {
        self.each(b'N', |key, value| {
            let ino = key::ino_of(key).filter(|&ino| is_wanted(ino));
            if let (Some(ino), Some(node)) = (ino, Node::decode(value)) {
                tally.node(ino, &node);
            }
        })?;
        self.each(b'A', |key, value| {
            if let Some(ino) = key::ino_of(key) {
                tally.xattrs(ino, value.len() as u64);
            }
        })
    }

    /// Removes the records of quotas that ended, and whose directories are gone.
    pub(crate) fn drop_ended_quotas(&self) -> Result<()> {
        let mut ended = Vec::new();
        self.each(b'Q', |key, value| {
            if QuotaRecord::decode(value).is_some_and(|record| record.has_ended) {
                ended.extend(key::ino_of(key));
            }
        })?;
        for dir in ended {
            if self.meta.get(&key::node(dir))?.is_none() {
                let mut step = self.own_step()?;
                step.txn.delete(&key::quota(dir))?;
                step.commit(|| Outcome::Done)?;
            }
        }
        Ok(())
    }

    /// The quota that a directory with one of its own lies in.
    fn quota_around(&self, dir: Ino) -> Result<Ino> {
        let node = |ino: Ino| -> Result<Option<Node>> {
            let value = self.meta.get(&key::node(ino))?;
            Ok(value.and_then(|value| Node::decode(&value)))
        };
        let parent = node(dir)?.map_or(ROOT_INO, |node| node.parent);
        match dir == ROOT_INO {
            true => Ok(0),
            false => Ok(node(parent)?.map_or(0, |parent| parent.quota)),
        }
    }

    /// Keeps the usage of quotas for the next opening. Nothing changes before the pool is closed.
    pub(crate) fn keep_quotas(self: &Arc<Core>) -> Result<()> {
        self.keep_user_counts()?;
        for some in self.quotas.all().chunks(MANY) {
            let mut step = self.own_step()?;
            for &(account, _) in some {
                if let (Account::Tree(dir), Some((limits, used))) = (account, self.quotas.find(account)) {
                    // A step that deletes has space reserved in a full store, which must be closed, too.
                    step.txn.delete(&key::quota(dir))?;
                    step.txn
                        .put(&key::quota(dir), &QuotaRecord::of(limits, used).encode())?;
                }
            }
            step.commit(|| Outcome::Done)?;
        }
        Ok(())
    }
}
