//! Inodes in memory: those that are open, pinned or being changed, found by number (RUFS, section 2.3.2), and
//! directories that were a moment ago: a path walk does not read their nodes from the metadata store.
//!
//! Contents: the table and its entries. `inode_ref` pins entries, and decides what happens to an unpinned one.
//!
//! Invariants: an entry's pins change under the lock of its shard only. An entry with an unlocked state and no pins is
//! invisible, so the thread that takes its last pin may look at its state without waiting. The lock of a shard is held
//! for moments: no thread waits under it. An entry that rests, without pins, equals what the metadata store has: no
//! thread changes a node there without its entry, and a repair forgets them first.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ferrite_checks::ranked::{
    MappedRwLockReadGuard, MappedRwLockWriteGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use ferrite_vfs::{FsError, Ino, Result, Timestamp};

use crate::content_store::Blob;
use crate::format::node::Node;
use crate::lock_order;

const SHARDS: usize = 64;
/// Directories that rest in a shard: 4096 in all shards, of some hundred bytes each.
const RESTING_A_SHARD: usize = 64;

/// Times and the counter of changes, as they are now. They move while the inode is shared: those of a directory by
/// changes of its names, a file's time of access by reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) change: u64,
    /// The time of change that is stored, in the node or the blob.
    pub(crate) stored: Timestamp,
    /// The node does not know all of this.
    pub(crate) is_dirty: bool,
}

/// An inode, as its lock guards it. The node's times are those that are stored; [`Live`] has the present ones.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) node: Node,
    /// Nothing leads to it any more, and its number never comes again.
    pub(crate) is_gone: bool,
    /// A record says that the blob may know more than the node.
    pub(crate) is_ahead: bool,
    /// Its blob may know more, and could not be read when the pool was opened. It must not change: a change would make
    /// the node the newer of the two.
    pub(crate) is_behind: bool,
    /// Its extended attributes were read, and there is no capability among them.
    pub(crate) lacks_capability: bool,
    /// Its content, once it has been looked up.
    pub(crate) blob: OnceLock<Arc<dyn Blob>>,
}

impl State {
    pub(crate) fn new(node: Node, is_ahead: bool) -> State {
        State {
            node,
            is_gone: false,
            is_ahead,
            is_behind: false,
            lacks_capability: false,
            blob: OnceLock::new(),
        }
    }
}

/// An entry of the table.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    pub(crate) pins: AtomicU64,
    pub(crate) state: RwLock<lock_order::Inode, Option<State>>,
    pub(crate) live: Mutex<lock_order::Times, Live>,
    /// Held while a thread that shares the file stores times, so that others wait and find theirs stored.
    pub(crate) storing: Mutex<lock_order::StoringTimes, ()>,
    /// Its number is among those of its shard that may rest. Changes under the shard's lock.
    is_listed: AtomicBool,
}

/// The place of a directory among those that an operation locks: a parent is locked before its child, and unrelated
/// ones by number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turn {
    First,
    Second,
}

pub(crate) type Reading<'i> = MappedRwLockReadGuard<'i, State>;
pub(crate) type Writing<'i> = MappedRwLockWriteGuard<'i, State>;

impl Inode {
    /// An entry without state and pins.
    pub(crate) fn new(ino: Ino) -> Inode {
        let zero = Timestamp(0);
        Inode {
            ino,
            pins: AtomicU64::new(0),
            state: RwLock::new(None),
            live: Mutex::new(Live {
                atime: zero,
                mtime: zero,
                ctime: zero,
                change: 0,
                stored: zero,
                is_dirty: false,
            }),
            storing: Mutex::new(()),
            is_listed: AtomicBool::new(false),
        }
    }

    /// Whether it may stay unpinned: a directory with a name, all of which is stored.
    fn may_rest(&self) -> bool {
        self.pins.load(Ordering::Acquire) == 0
            && self.state.try_read(Some(self.ino)).as_deref().is_some_and(|state| {
                state.as_ref().is_some_and(|state| {
                    let is_named_dir = state.node.is_dir() && state.node.nlink > 0 && !state.is_gone;
                    is_named_dir && !state.is_ahead && !self.live().is_dirty
                })
            })
    }

    /// Its state, shared. `Stale` if it is gone.
    pub(crate) fn read(&self) -> Result<Reading<'_>> {
        Inode::readable(self.state.read_ordered(self.ino))
    }

    /// The same of a directory whose names the caller uses: it comes before the inodes that they lead to, whatever
    /// their numbers.
    pub(crate) fn read_dir(&self, turn: Turn) -> Result<Reading<'_>> {
        Inode::readable(self.state.read_as::<lock_order::Directory>(turn as u64))
    }

    fn readable(guard: RwLockReadGuard<'_, Option<State>>) -> Result<Reading<'_>> {
        match guard.as_ref().is_some_and(|state| !state.is_gone) {
            true => RwLockReadGuard::try_map(guard, Option::as_ref).map_err(|_| FsError::Stale),
            false => Err(FsError::Stale),
        }
    }

    /// Its state, shared, unless it is gone, or another thread has it exclusively or waits for that.
    pub(crate) fn try_read(&self) -> Option<Reading<'_>> {
        let guard = self.state.try_read(Some(self.ino))?;
        match guard.as_ref().is_some_and(|state| !state.is_gone) {
            true => RwLockReadGuard::try_map(guard, Option::as_ref).ok(),
            false => None,
        }
    }

    /// Its state, exclusively. `Stale` if it is gone; `Io` if it must not change.
    pub(crate) fn write(&self) -> Result<Writing<'_>> {
        Inode::alive(self.state.write_ordered(self.ino))
    }

    /// The same of a directory whose names the caller changes, see [`Self::read_dir`].
    pub(crate) fn write_dir(&self, turn: Turn) -> Result<Writing<'_>> {
        Inode::alive(self.state.write_as::<lock_order::Directory>(turn as u64))
    }
    /// The same, unless another thread has it.
    pub(crate) fn try_write(&self) -> Option<Writing<'_>> {
        Inode::alive(self.state.try_write(Some(self.ino))?).ok()
    }

    fn alive(guard: RwLockWriteGuard<'_, Option<State>>) -> Result<Writing<'_>> {
        if guard.as_ref().is_some_and(|state| state.is_behind) {
            return Err(FsError::Io(
                "its data device was not available when the pool was opened, and may know a later state of it".into(),
            ));
        }
        match guard.as_ref().is_some_and(|state| !state.is_gone) {
            true => RwLockWriteGuard::try_map(guard, Option::as_mut).map_err(|_| FsError::Stale),
            false => Err(FsError::Stale),
        }
    }

    /// Whether it has pins other than the caller's one.
    pub(crate) fn has_others(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 1
    }

    pub(crate) fn live(&self) -> Live {
        *self.live.lock()
    }

    /// Changes times.
    pub(crate) fn with_live<T>(&self, change: impl FnOnce(&mut Live) -> T) -> T {
        change(&mut self.live.lock())
    }

    /// The node with the present times.
    pub(crate) fn present(&self, state: &State) -> Node {
        let live = self.live();
        Node {
            atime: live.atime,
            mtime: live.mtime,
            ctime: live.ctime,
            change: live.change,
            allocated_bytes: state
                .blob
                .get()
                .map_or(state.node.allocated_bytes, |blob| blob.allocated_bytes()),
            ..state.node.clone()
        }
    }

    /// Adopts a node that has been stored.
    pub(crate) fn adopt(&self, state: &mut State, node: Node) {
        self.with_live(|live| {
            live.atime = node.atime;
            live.mtime = node.mtime;
            live.ctime = node.ctime;
            live.change = live.change.max(node.change);
            live.stored = node.ctime;
            live.is_dirty = false;
        });
        state.node = node;
    }
}

/// A part of the table.
#[derive(Default)]
pub(crate) struct Shard {
    pub(crate) inodes: HashMap<Ino, Arc<Inode>>,
    /// Numbers of directories that rest, or did when they were listed; the oldest is in front.
    resting: VecDeque<Ino>,
}

impl Shard {
    /// Releases an inode without pins and with nothing to store: it is forgotten, or rests.
    pub(crate) fn release(&mut self, inode: &Inode) {
        if !inode.may_rest() {
            self.inodes.remove(&inode.ino);
            return;
        }
        if !inode.is_listed.swap(true, Ordering::Relaxed) {
            self.resting.push_back(inode.ino);
        }
        if self.resting.len() > RESTING_A_SHARD {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some(ino) = self.resting.pop_front() else { return };
        if let Some(inode) = self.inodes.get(&ino) {
            inode.is_listed.store(false, Ordering::Relaxed);
            if inode.may_rest() {
                self.inodes.remove(&ino);
            }
        }
    }
}

/// The table.
pub(crate) struct Table {
    pub(crate) shards: Vec<Mutex<lock_order::TableShard, Shard>>,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    pub(crate) fn shard(&self, ino: Ino) -> &Mutex<lock_order::TableShard, Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Forgets the directories that rest.
    pub(crate) fn forget_resting(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            while !shard.resting.is_empty() {
                shard.forget_first();
            }
        }
    }
}

impl Inode {
    pub(crate) fn init(&self, state: &mut Option<State>, node: Node, is_ahead: bool) {
        self.with_live(|live| {
            *live = Live {
                atime: node.atime,
                mtime: node.mtime,
                ctime: node.ctime,
                change: node.change,
                stored: node.ctime,
                is_dirty: false,
            };
        });
        *state = Some(State::new(node, is_ahead));
    }
}
