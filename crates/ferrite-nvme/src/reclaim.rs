//! The housekeeper's thread, and its work.
//!
//! It stores the nodes of unpinned inodes whose blob or memory knows more, many in one transaction, deletes blobs that
//! nothing names any more, and frees inodes without a name that had to wait.
//!
//! Invariant: a thread that needs space may have blobs deleted while it holds an inode: the deletion waits for none.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ferrite_vfs::{FsError, Ino, Outcome, Result};

use crate::content_store::{Blob, Place};
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::Node;
use crate::housekeeper::MANY;
use crate::inode_ref::InodeRef;
use crate::table::{Inode, State};

/// How long work may wait for more of its kind.
const REST: Duration = Duration::from_millis(500);

/// Starts it. It ends when the engine is dropped or asks it to.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<()> {
    let weak = Arc::downgrade(core);
    let thread = std::thread::Builder::new()
        .name("ferrite-nvme-keep".into())
        .spawn(move || run(&weak))?;
    *core.housekeeper.thread.lock() = Some(thread);
    Ok(())
}

fn run(weak: &Weak<Core>) {
    loop {
        let Some(core) = weak.upgrade() else { return };
        {
            let mut queue = core.housekeeper.queue.lock();
            if queue.len() == 0 && !queue.is_stopping {
                // The engine may be dropped meanwhile, so this thread does not hold it for long.
                core.housekeeper.changed.wait_for(&mut queue, REST);
            }
            if queue.is_stopping {
                return;
            }
            if queue.len() > 0 && queue.len() < MANY {
                core.housekeeper.changed.wait_for(&mut queue, REST);
            }
            // An engine that is dropped leaves the rest to the next start, as a crash does.
            if queue.len() == 0 || queue.is_stopping {
                continue;
            }
        }
        core.settle_waiting();
        let reclaimed = {
            let _inside = core.freeze_barrier.enter();
            core.reclaim_some().inspect_err(|_| core.check_owned())
        };
        let Err(error) = reclaimed else { continue };
        tracing::warn!(%error, "housekeeping failed");
        // Failed work may be on the list again, and will fail again.
        let mut queue = core.housekeeper.queue.lock();
        let next = Instant::now() + REST;
        while !queue.is_stopping && !core.housekeeper.changed.wait_until(&mut queue, next).timed_out() {}
    }
}

impl Core {
    /// Does all work that is there now.
    ///
    /// # Errors
    /// Errors of the stores. The next start does what was not done.
    pub(crate) fn reclaim(self: &Arc<Core>) -> Result<()> {
        let stored = self.store_waiting();
        // Deletions find space in a store that is too full for nodes.
        self.delete_removed().and(stored)
    }

    /// Does a part of the work, so that a thread that keeps changes out need not wait for long.
    fn reclaim_some(self: &Arc<Core>) -> Result<()> {
        self.free_waiting();
        let stored = self.store_waiting();
        self.delete_some_removed().and(stored)
    }

    fn store_waiting(self: &Arc<Core>) -> Result<()> {
        self.settle_waiting();
        let _storing = self.housekeeper.storing.lock();
        let mut inodes = std::mem::take(&mut self.housekeeper.queue.lock().inodes);
        inodes.sort_unstable();
        inodes.dedup();
        let pinned: Vec<InodeRef> = inodes.into_iter().filter_map(|ino| self.pin(ino).ok()).collect();
        self.store_nodes(&pinned)
    }

    /// The same, with the inodes that wait to be freed, before all is checked; nothing while changes are held back.
    pub(crate) fn reclaim_for_check(self: &Arc<Core>) -> Result<()> {
        match self.freeze_barrier.try_enter() {
            Some(_inside) if !self.is_read_only => {
                self.free_waiting();
                self.reclaim()
            }
            _ => Ok(()),
        }
    }

    /// Frees the inodes without a name that had to wait. Its last pin frees one; it waits again if changes are held
    /// back again.
    pub(crate) fn free_waiting(self: &Arc<Core>) {
        // A check waits for those that the housekeeper is freeing.
        let _freeing = self.housekeeper.freeing.lock();
        let orphans = std::mem::take(&mut self.housekeeper.queue.lock().orphans);
        for ino in orphans {
            match self.pin(ino) {
                Ok(_) | Err(FsError::Stale) => {}
                Err(error) => tracing::warn!(ino, %error, "a file without a name is freed at the next start"),
            }
        }
    }

    /// Deletes the blobs that wait for it, and waits for those that are being deleted.
    pub(crate) fn delete_removed(&self) -> Result<()> {
        let _deleting = self.housekeeper.deleting.lock();
        let places = std::mem::take(&mut self.housekeeper.queue.lock().places);
        self.delete_blobs(&places)
    }

    /// Deletes some of them.
    pub(crate) fn delete_some_removed(&self) -> Result<()> {
        let _deleting = self.housekeeper.deleting.lock();
        let places: Vec<Place> = {
            let places = &mut self.housekeeper.queue.lock().places;
            let some = places.len().min(MANY);
            places.drain(..some).collect()
        };
        self.delete_blobs(&places)
    }

    /// Stores the nodes of inodes that are behind, by number, which is the order of their keys. If another thread is
    /// changing one of them now, the next thread to unpin it stores it.
    pub(crate) fn store_nodes(&self, inodes: &[InodeRef]) -> Result<()> {
        for inode in inodes {
            if let Err(error) = self.settle_unlocked(inode) {
                tracing::debug!(ino = inode.ino, %error, "content is not durable yet");
            }
        }
        for some in inodes.chunks(MANY) {
            let mut step = self.own_step()?;
            let mut stored = Vec::new();
            for inode in some {
                let Some(state) = inode.try_write() else { continue };
                if !(state.is_ahead || inode.live().is_dirty) {
                    continue;
                }
                // The node must not be durable before the content that it speaks of. Later changes are
                // stored later.
                let is_synced = |blob: &Arc<dyn Blob>| self.content_limits.is_durable_at_once || blob.is_synced();
                if !state.blob.get().is_none_or(is_synced) {
                    self.check_owned();
                    continue;
                }
                let node = put_present(&mut step, inode, &state)?;
                stored.push((inode, state, node));
            }
            if stored.is_empty() {
                continue;
            }
            step.commit(|| Outcome::Done)?;
            // A check that counts for quotas meanwhile has read earlier nodes.
            self.next_change();
            for (inode, mut state, node) in stored {
                state.is_ahead = false;
                inode.adopt(&mut state, node);
            }
        }
        Ok(())
    }

    /// Makes the content durable of which a node that is about to be stored speaks: its size may be ahead of it. Waits
    /// for stores alone that are not durable at once.
    pub(crate) fn settle(&self, state: &State) -> Result<()> {
        match state.blob.get() {
            Some(blob) if !self.content_limits.is_durable_at_once => Ok(blob.sync()?),
            _ => Ok(()),
        }
    }

    /// The same for an inode of which the caller has no lock: nobody waits for this one meanwhile.
    fn settle_unlocked(&self, inode: &Inode) -> Result<()> {
        let blob = inode.try_read().and_then(|state| state.blob.get().cloned());
        match blob {
            Some(blob) if !self.content_limits.is_durable_at_once => Ok(blob.sync()?),
            _ => Ok(()),
        }
    }

    /// An inode as memory has it, without a pin: a file that is removed meanwhile goes at once.
    fn in_memory(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.table.shard(ino).lock().inodes.get(&ino).cloned()
    }

    /// Makes the content of inodes that wait for the housekeeper durable, before it keeps anybody waiting.
    fn settle_waiting(&self) {
        if self.content_limits.is_durable_at_once {
            return;
        }
        let inodes = self.housekeeper.queue.lock().inodes.clone();
        for inode in inodes.into_iter().filter_map(|ino| self.in_memory(ino)) {
            if let Err(error) = self.settle_unlocked(&inode) {
                tracing::debug!(ino = inode.ino, %error, "content is not durable yet");
            }
        }
    }

    /// Makes all content durable before changes are held back: nobody waits for it then. A failure shows again where it
    /// counts.
    pub(crate) fn settle_all(&self) {
        if !self.content_limits.is_durable_at_once
            && let Err(error) = self.content.sync()
        {
            tracing::debug!(%error, "some content is not durable yet");
        }
    }

    /// [`Self::settle`] for the file that a name leads to, before any key is locked. `if_linked`: only if it has other
    /// names.
    pub(crate) fn settle_name(&self, parent: Ino, name: &[u8], if_linked: bool) -> Result<()> {
        if self.content_limits.is_durable_at_once {
            return Ok(());
        }
        // Whatever is wrong with the name, the change itself finds it.
        let Ok(Some(edge)) = self.find(parent, name) else {
            return Ok(());
        };
        self.settle_inode(edge.ino, if_linked)
    }

    /// The same for an inode. One that memory does not have is stored.
    pub(crate) fn settle_inode(&self, ino: Ino, if_linked: bool) -> Result<()> {
        let Some(inode) = self.in_memory(ino).filter(|_| !self.content_limits.is_durable_at_once) else {
            return Ok(());
        };
        let blob = match inode.read() {
            Ok(state) if !if_linked || state.node.nlink > 1 => state.blob.get().cloned(),
            _ => None,
        };
        blob.map_or(Ok(()), |blob| Ok(blob.sync()?))
    }

    /// Stores the node of an inode that is behind, whose state the caller has exclusively.
    pub(crate) fn store_node(&self, inode: &Inode, state: &mut State) -> Result<()> {
        if state.is_ahead || inode.live().is_dirty {
            if let Some(blob) = state.blob.get() {
                blob.sync()?;
            }
            let mut step = self.own_step()?;
            let node = put_present(&mut step, inode, state)?;
            step.commit(|| Outcome::Done)?;
            self.next_change();
            state.is_ahead = false;
            inode.adopt(state, node);
        }
        Ok(())
    }
}

/// Puts a node that is behind into the step as it is now, and that its blob, which is durable, is no longer ahead.
fn put_present(step: &mut Step<'_>, inode: &Inode, state: &State) -> Result<Node> {
    let node = inode.present(state);
    step.put_node(inode.ino, &node)?;
    // Also without such a record: a step that deletes has space reserved in a full store.
    step.txn.delete(&key::ahead(inode.ino))?;
    Ok(node)
}
