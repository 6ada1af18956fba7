//! Keeping inodes in memory: pins, and what happens with the last one.
//!
//! Invariant: the last pin of an inode without a name frees it; that of an inode whose node is behind leaves it to the
//! housekeeper; that of any other forgets it. Dropping a pin may wait for a device.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_vfs::{Attr, FsError, Ino, Result};

use crate::core::Core;
use crate::format::key;
use crate::format::node::Node;
use crate::table::{Inode, State};

/// A pin on an entry. Dropping it may free the inode, which waits for a device.
#[derive(Debug)]
pub(crate) struct InodeRef {
    core: Arc<Core>,
    inode: Arc<Inode>,
    /// The pin is the caller's.
    is_left: bool,
}

impl Deref for InodeRef {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> InodeRef {
        let _shard = self.core.table.shard(self.inode.ino).lock();
        self.inode.pins.fetch_add(1, Ordering::AcqRel);
        InodeRef {
            core: Arc::clone(&self.core),
            inode: Arc::clone(&self.inode),
            is_left: false,
        }
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        if !self.is_left {
            self.core.release(&self.inode, 1);
        }
    }
}

impl InodeRef {
    /// Leaves the pin to the caller of an operation, which gives it back with `unpin`.
    pub(crate) fn leave(mut self) {
        self.is_left = true;
    }

    /// The core.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Core {
    /// An inode by number; `Stale` if it does not exist.
    pub(crate) fn pin(self: &Arc<Core>, ino: Ino) -> Result<InodeRef> {
        let pinned = self.entry(ino);
        if pinned.state.read_ordered(ino).is_some() {
            return Ok(pinned);
        }
        let mut state = pinned.state.write_ordered(ino);
        if state.is_none() {
            let node = self.unfinished.read(ino, || {
                let value = self.meta.get(&key::node(ino))?.ok_or(FsError::Stale)?;
                Node::decode(&value).ok_or_else(|| FsError::damaged(ino, "its node cannot be read"))
            })?;
            pinned.init(&mut state, node, false);
            if let Some(state) = state.as_mut() {
                state.is_behind = self.behind.lock().contains(&ino);
            }
        }
        drop(state);
        Ok(pinned)
    }

    /// The entry of a number, with or without a state.
    pub(crate) fn entry(self: &Arc<Core>, ino: Ino) -> InodeRef {
        let mut shard = self.table.shard(ino).lock();
        let inode = shard.inodes.entry(ino).or_insert_with(|| Arc::new(Inode::new(ino)));
        inode.pins.fetch_add(1, Ordering::AcqRel);
        InodeRef {
            core: Arc::clone(self),
            inode: Arc::clone(inode),
            is_left: false,
        }
    }

    /// All inodes that are in memory.
    pub(crate) fn all_pinned(self: &Arc<Core>) -> Vec<InodeRef> {
        let inos: Vec<Ino> = self
            .table
            .shards
            .iter()
            .flat_map(|shard| shard.lock().inodes.keys().copied().collect::<Vec<_>>())
            .collect();
        inos.into_iter().map(|ino| self.entry(ino)).collect()
    }

    /// Gives pins back. With the last one an inode without a name is freed, one whose node is behind is left to the
    /// housekeeper, and any other is forgotten, or rests.
    pub(crate) fn release(self: &Arc<Core>, inode: &Arc<Inode>, count: u64) {
        let mut shard = self.table.shard(inode.ino).lock();
        // Each pin that is given back was taken; a front end that gives back more must not free the pins of other
        // callers.
        let before = inode.pins.load(Ordering::Acquire);
        let left = before.saturating_sub(count);
        inode.pins.store(left, Ordering::Release);
        if left > 0 || before == 0 {
            return;
        }
        let is_orphan = match inode.state.try_read(Some(inode.ino)).as_deref() {
            Some(Some(state)) if !state.is_gone => {
                let live = inode.live();
                // A time of access that can no longer be stored is dropped. The counter of changes never goes back.
                let is_kept = live.change != state.node.change || self.check_writable().is_ok();
                if state.node.nlink > 0 && (state.is_ahead || live.is_dirty && is_kept) {
                    self.housekeeper.store_later(inode.ino);
                    return;
                }
                state.node.nlink == 0
            }
            _ => false,
        };
        let may_change = is_orphan && !self.is_closed() && !self.is_read_only;
        let Some(_inside) = may_change.then(|| self.freeze_barrier.try_enter()).flatten() else {
            match may_change {
                // While changes are held back, it waits.
                true => self.housekeeper.free_later(inode.ino),
                false => shard.release(inode),
            }
            return;
        };
        inode.pins.store(1, Ordering::Release);
        drop(shard);
        let freed = self.free(inode);
        if let Err(error) = &freed {
            tracing::warn!(ino = inode.ino, %error, "a file without a name is freed at the next start");
        }
        let mut shard = self.table.shard(inode.ino).lock();
        if inode.pins.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        match freed {
            Ok(false) => self.housekeeper.free_later(inode.ino),
            _ => drop(shard.inodes.remove(&inode.ino)),
        }
    }

    /// Gives a pin back unless it is the last. Never waits.
    pub(crate) fn release_unless_last(&self, inode: &Inode) -> bool {
        let _shard = self.table.shard(inode.ino).lock();
        let has_others = inode.has_others();
        if has_others {
            inode.pins.fetch_sub(1, Ordering::AcqRel);
        }
        has_others
    }

    /// Gives back pins that a caller was left with.
    pub(crate) fn unpin(self: &Arc<Core>, ino: Ino, count: u64) {
        let inode = self.table.shard(ino).lock().inodes.get(&ino).cloned();
        if let Some(inode) = inode {
            self.release(&inode, count);
        }
    }

    /// Attributes as they are now.
    pub(crate) fn attr(&self, inode: &Inode, state: &State) -> Attr {
        let mut attr = inode.present(state).attr(inode.ino);
        attr.change = attr.change.max(self.change_floor);
        attr
    }
}
