//! Content of files that have no blob: in their nodes, or beside them, under a key of its own.
//!
//! A node that is read for a path, a listing or its attributes should not bring content along, so what is longer than
//! [`INLINE_BYTES_MAX`] lies under the key `S`. The node records its length and its checksum.
//!
//! Invariants: node and content change in one transaction, under the inode's lock. Content shorter than its file is
//! followed by zeros up to the file's size; it is never longer. None of it stays in memory: the metadata store has
//! caches.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_vfs::{FsError, Ino, Outcome, Result};

use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::{Beside, Content, INLINE_BYTES_MAX, Node};

/// Files up to this length have no blob, while the metadata store has space.
pub(crate) const SMALL_BYTES_MAX: u64 = 32 << 10;

impl Core {
    /// Whether content of this length can lie outside a blob.
    pub(crate) fn is_small(&self, end: u64) -> bool {
        end <= INLINE_BYTES_MAX as u64 || (end <= self.small_bytes_max && self.meta.has_space_to_spare())
    }

    /// The content of a node without a blob.
    ///
    /// # Errors
    /// Errors of the store; `Damaged` if it does not match the node.
    pub(crate) fn small<'n>(&self, ino: Ino, node: &'n Node) -> Result<Cow<'n, [u8]>> {
        match &node.content {
            Content::Inline(bytes) => Ok(Cow::Borrowed(bytes)),
            Content::Beside(beside) => {
                let damaged = |what: &str| FsError::damaged_bytes(ino, 0, beside.len_bytes.into(), what);
                let bytes = self.meta.get(&key::small(ino))?;
                let bytes = bytes.ok_or_else(|| damaged("its content is missing"))?;
                match Beside::of(&bytes) == *beside {
                    true => Ok(Cow::Owned(bytes)),
                    false => Err(damaged("the wrong checksum")),
                }
            }
            Content::Blob(_) => Ok(Cow::Borrowed(&[])),
        }
    }

    /// Puts content in place of `old`, and returns the node's record of it. The caller puts the node in the same step.
    pub(crate) fn put_small(&self, step: &mut Step<'_>, ino: Ino, old: &Content, bytes: Vec<u8>) -> Result<Content> {
        if bytes.len() <= INLINE_BYTES_MAX {
            self.drop_small(step, ino, old)?;
            return Ok(Content::Inline(bytes));
        }
        if is_seeded(Bug::ContentFirst) {
            let mut own = self.own_step()?;
            own.txn.put(&key::small(ino), &bytes)?;
            own.commit(|| Outcome::Done)?;
        } else {
            if matches!(old, Content::Beside(beside) if bytes.len() <= beside.len_bytes as usize) {
                // A full store accepts a step that takes no space.
                step.txn.delete(&key::small(ino))?;
            }
            step.txn.put(&key::small(ino), &bytes)?;
        }
        Ok(Content::Beside(Beside::of(&bytes)))
    }

    /// Removes the part of `content` that lies beside its node. The caller puts the node, or removes it, in the same
    /// step.
    pub(crate) fn drop_small(&self, step: &mut Step<'_>, ino: Ino, content: &Content) -> Result<()> {
        if matches!(content, Content::Beside(_)) && !is_seeded(Bug::ContentStays) {
            step.txn.delete(&key::small(ino))?;
        }
        Ok(())
    }

    /// Accounts for content beside nodes. The step that changed it has been committed.
    pub(crate) fn count_small(&self, old: Option<&Content>, new: Option<&Content>) {
        let bytes = |content: Option<&Content>| match content {
            Some(Content::Beside(beside)) => Some(u64::from(beside.len_bytes)),
            _ => None,
        };
        let (old, new) = (bytes(old), bytes(new));
        let change = |count: &std::sync::atomic::AtomicU64, old: u64, new: u64| {
            count.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
        };
        change(&self.small_files, old.is_some().into(), new.is_some().into());
        change(&self.small_bytes, old.unwrap_or(0), new.unwrap_or(0));
    }
}
