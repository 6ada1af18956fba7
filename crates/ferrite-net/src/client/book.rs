//! What the client remembers of its session: how to name inodes, and what it has pinned, open and locked, which it says
//! again when the server was restarted.

use ferrite_vfs::locks::{LockOwner, LockRequest, Unlock};
use ferrite_vfs::{FsError, Ino, OpenMode, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::wire::{Node, Told};

/// Names of inodes kept in each of two halves. When one is full the other, older one is forgotten; names in use move.
const NODES_MAX: usize = 1 << 18;

#[derive(Default)]
struct Nodes {
    young: FxHashMap<Ino, Node>,
    old: FxHashMap<Ino, Node>,
}

impl Nodes {
    fn learn(&mut self, node: Node) {
        if self.young.len() >= NODES_MAX && !self.young.contains_key(&node.ino) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(node.ino, node);
    }

    fn find(&mut self, ino: Ino) -> Option<Node> {
        if let Some(node) = self.young.get(&ino) {
            return Some(*node);
        }
        let node = self.old.remove(&ino)?;
        self.learn(node);
        Some(node)
    }
}

/// A pinned inode.
#[derive(Clone, Copy)]
struct Pinned {
    node: Node,
    /// Pins that our callers have.
    count: u64,
    /// Pins that the server has for us.
    granted: u64,
}

/// An open file.
#[derive(Clone, Copy)]
pub(super) struct OpenedAs {
    pub(super) node: Node,
    pub(super) mode: OpenMode,
    pub(super) seal: u64,
}

/// A step that gave or took locks.
#[derive(Clone, Copy)]
pub(super) enum LockStep {
    Locked(LockRequest),
    Unlocked(LockOwner, Unlock),
}

/// Whose lock on what.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LockKey {
    pub(super) client: u64,
    pub(super) ino: Ino,
    pub(super) owner: LockOwner,
}

#[derive(Default)]
pub(super) struct Book {
    root: Mutex<Option<Node>>,
    nodes: Mutex<Nodes>,
    pins: Mutex<FxHashMap<Ino, Pinned>>,
    files: Mutex<FxHashMap<u64, OpenedAs>>,
    locks: Mutex<FxHashMap<LockKey, (Node, Vec<LockStep>)>>,
}

/// Everything to say again.
pub(super) struct Claims {
    pub(super) pins: Vec<Node>,
    pub(super) files: Vec<(u64, OpenedAs)>,
    pub(super) locks: Vec<(LockKey, Node, Vec<LockStep>)>,
}

impl Book {
    pub(super) fn set_root(&self, node: Node) {
        *self.root.lock() = Some(node);
    }

    /// How to name an inode. `Stale` if the server has not named it, or so long ago that it is forgotten.
    pub(super) fn node(&self, ino: Ino) -> Result<Node> {
        if ino == ferrite_vfs::ROOT_INO {
            return self.root.lock().ok_or(FsError::Disconnected);
        }
        if let Some(node) = self.nodes.lock().find(ino) {
            return Ok(node);
        }
        let pins = self.pins.lock();
        pins.get(&ino).map(|pinned| pinned.node).ok_or(FsError::Stale)
    }

    pub(super) fn learn_node(&self, node: Node) {
        if node.ino != ferrite_vfs::ROOT_INO {
            self.nodes.lock().learn(node);
        }
    }

    /// The server has told of an inode, and has pinned it if there is a grant.
    pub(super) fn learn(&self, told: &Told) {
        self.learn_node(told.node());
        if told.is_pinned {
            self.pinned(told.node());
        }
    }

    /// The server has pinned an inode for a caller.
    pub(super) fn pinned(&self, node: Node) {
        let mut pins = self.pins.lock();
        let pinned = pins.entry(node.ino).or_insert(Pinned {
            node,
            count: 0,
            granted: 0,
        });
        pinned.count += 1;
        pinned.granted += 1;
    }

    /// Whether an inode is pinned by us, in which case it has one more pin now.
    pub(super) fn pin_again(&self, ino: Ino, generation: u32) -> Option<Result<()>> {
        let mut pins = self.pins.lock();
        let pinned = pins.get_mut(&ino)?;
        if pinned.node.generation != generation {
            return Some(Err(FsError::Stale));
        }
        pinned.count += 1;
        Some(Ok(()))
    }

    /// Drops pins; returns how many the server is to drop, if these were the last.
    pub(super) fn unpin(&self, ino: Ino, count: u64) -> Option<u64> {
        let mut pins = self.pins.lock();
        let pinned = pins.get_mut(&ino)?;
        pinned.count = pinned.count.saturating_sub(count);
        if pinned.count > 0 {
            return None;
        }
        pins.remove(&ino).map(|pinned| pinned.granted)
    }

    /// After a restart the server has pinned an inode again, once for all callers, or could not.
    pub(super) fn pinned_again(&self, ino: Ino, is_pinned: bool) {
        if let Some(pinned) = self.pins.lock().get_mut(&ino) {
            pinned.granted = u64::from(is_pinned);
        }
    }

    pub(super) fn opened(&self, number: u64, opened: OpenedAs) {
        self.files.lock().insert(number, opened);
    }

    pub(super) fn closed(&self, number: u64) {
        self.files.lock().remove(&number);
    }

    pub(super) fn locked(&self, key: LockKey, node: Node, step: LockStep) {
        let mut locks = self.locks.lock();
        if let LockStep::Unlocked(_, Unlock::All) = step {
            locks.remove(&key);
            return;
        }
        let (_, steps) = locks.entry(key).or_insert_with(|| (node, Vec::new()));
        if let LockStep::Unlocked(_, what) = step {
            // What is entirely released needs no step.
            let is_gone = |step: &LockStep| match (step, what) {
                (LockStep::Locked(LockRequest::Flock(..)), Unlock::Flock) => true,
                (LockStep::Locked(LockRequest::Record(lock)), Unlock::Range(range)) => covers(range, lock.range),
                (LockStep::Unlocked(_, Unlock::Range(earlier)), Unlock::Range(range)) => covers(range, *earlier),
                _ => false,
            };
            steps.retain(|step| !is_gone(step));
            let is_needed = |step: &LockStep| matches!(step, LockStep::Locked(LockRequest::Record(_)));
            if matches!(what, Unlock::Flock) || !steps.iter().any(is_needed) {
                if steps.is_empty() {
                    locks.remove(&key);
                }
                return;
            }
        }
        if let LockStep::Locked(request) = step {
            let is_replaced = |step: &LockStep| match (step, request) {
                (LockStep::Locked(LockRequest::Flock(..)), LockRequest::Flock(..)) => true,
                (LockStep::Locked(LockRequest::Record(old)), LockRequest::Record(new)) => covers(new.range, old.range),
                (LockStep::Unlocked(_, Unlock::Range(old)), LockRequest::Record(new)) => covers(new.range, *old),
                _ => false,
            };
            steps.retain(|step| !is_replaced(step));
        }
        steps.push(step);
    }

    pub(super) fn client_released(&self, client: u64) {
        self.locks.lock().retain(|key, _| key.client != client);
    }

    pub(super) fn claims(&self) -> Claims {
        Claims {
            pins: self.pins.lock().values().map(|pinned| pinned.node).collect(),
            files: self
                .files
                .lock()
                .iter()
                .map(|(&number, &opened)| (number, opened))
                .collect(),
            locks: self
                .locks
                .lock()
                .iter()
                .map(|(&key, (node, steps))| (key, *node, steps.clone()))
                .collect(),
        }
    }
}

/// Whether every byte of `inner` is one of `outer`.
fn covers(outer: ferrite_vfs::locks::ByteRange, inner: ferrite_vfs::locks::ByteRange) -> bool {
    let end = |range: ferrite_vfs::locks::ByteRange| match range.len_bytes() {
        0 => u64::MAX,
        len_bytes => range.start() + len_bytes,
    };
    outer.start() <= inner.start() && end(outer) >= end(inner)
}
