//! The inodes that a session's requests use: kept from being freed meanwhile, and checked if they are directories of a
//! partial export.
//!
//! Invariant: a directory is used only if it lies within the export, as far as renames have moved it by then
//! ([`crate::subtree`]). A directory is not checked twice at the same version of the border.

use ferrite_vfs::{FileKind, Ino, Result, SYSTEM};

use super::Session;
use crate::admission::Resource;
use ferrite_proto::Node;

/// Most checked inodes without a pin that are remembered.
const UNPINNED_MAX: usize = 1024;

/// An inode that a request uses.
pub(crate) struct Held<'s> {
    session: &'s Session,
    pub(crate) ino: Ino,
    by: By,
}

enum By {
    /// Nothing can free it.
    Root,
    Session,
    /// A pin for this request.
    Pin,
}

impl Session {
    /// Keeps `node` from being freed as long as the result lives.
    ///
    /// # Errors
    /// `Stale` if it does not belong to the export, or does not lie within it any more.
    pub(crate) fn hold(&self, node: Node) -> Result<Held<'_>> {
        let ino = self.export.meant(node)?;
        if ino == self.export.root() {
            return Ok(Held {
                session: self,
                ino,
                by: By::Root,
            });
        }
        let used = self.use_pinned(ino);
        let by = match used {
            Some(_) => By::Session,
            None => {
                self.export.fs().pin(SYSTEM, ino, node.generation)?;
                By::Pin
            }
        };
        let held = Held { session: self, ino, by };
        let subtree = &self.export.subtree;
        if !subtree.is_whole() && used != Some(subtree.version()) {
            self.look_at(ino, node.generation)?;
        }
        Ok(held)
    }

    /// Begins to use an inode that the session has pinned. Returns the version at which it was checked, 0 if it was
    /// not; `None` if the session has not pinned it.
    fn use_pinned(&self, ino: Ino) -> Option<u64> {
        match self.kept.lock().pins.get_mut(&ino) {
            Some(pinned) if pinned.pins > pinned.late => {
                pinned.users += 1;
                Some(pinned.looked_at)
            }
            _ => None,
        }
    }

    /// Checks where an inode lies that the caller keeps from being freed.
    fn look_at(&self, ino: Ino, generation: u32) -> Result<()> {
        let (subtree, fs) = (&self.export.subtree, self.export.fs());
        let key = (ino, generation);
        if self.kept.lock().unpinned.get(&key) == Some(&subtree.version()) {
            return Ok(());
        }
        let attr = fs.getattr(SYSTEM, ino)?;
        let version = match attr.kind {
            // A removed one is empty, or a removed snapshot, whose names nobody can change.
            FileKind::Directory if attr.nlink > 0 => {
                let is_known = |dir: Ino, version: u64| {
                    let kept = self.kept.lock();
                    kept.pins.get(&dir).is_some_and(|pinned| pinned.looked_at == version)
                };
                subtree.look(fs, ino, is_known)?
            }
            _ => subtree.version(),
        };
        let mut kept = self.kept.lock();
        match kept.pins.get_mut(&ino) {
            Some(pinned) => pinned.looked_at = version,
            None => {
                if kept.unpinned.len() >= UNPINNED_MAX {
                    kept.unpinned.clear();
                }
                kept.unpinned.insert(key, version);
            }
        }
        Ok(())
    }

    fn unuse(&self, ino: Ino) {
        let mut kept = self.kept.lock();
        let Some(pinned) = kept.pins.get_mut(&ino) else {
            return;
        };
        pinned.users -= 1;
        if pinned.users > 0 || pinned.late == 0 {
            return;
        }
        let count = std::mem::take(&mut pinned.late);
        pinned.pins -= count;
        let is_gone = pinned.pins == 0;
        if is_gone {
            kept.pins.remove(&ino);
        }
        drop(kept);
        if is_gone {
            self.budget.give_back(Resource::PinnedInodes, 1);
        }
        self.export.fs().forget(SYSTEM, ino, count);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        match self.by {
            By::Root => {}
            By::Session => self.session.unuse(self.ino),
            By::Pin => self.session.export.fs().unpin(SYSTEM, self.ino, 1),
        }
    }
}
