//! The client's record of its session: the names of inodes, and its pins, open files and locks, which it reclaims after
//! a restart of the server.

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::locks::{ByteRange, LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{FsError, Ino, OpenMode, Result};
use rustc_hash::FxHashMap;

use crate::lock_order;
use ferrite_proto::{Node, NodeAttr};

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
    /// Pins of the callers.
    count: u64,
    /// Pins that the server holds for this client.
    pins: u64,
}

/// An open file.
#[derive(Clone, Copy)]
pub(super) struct OpenedAs {
    pub(super) node: Node,
    pub(super) mode: OpenMode,
    pub(super) mac: u64,
    /// A lock on its inode was lost, or the inode is gone: it is stale for its owner from then on, whatever the server
    /// says.
    pub(super) is_stale: bool,
}

/// A step that gave or took locks.
#[derive(Clone, Copy)]
pub(super) enum LockStep {
    Locked(LockRequest),
    Unlocked(Unlock),
}

/// The locks of one owner on one inode as a state, not as a history: replaying the steps would briefly take ranges that
/// others hold by now.
#[derive(Default)]
struct Held {
    flock: Option<LockRequest>,
    /// They do not overlap.
    records: Vec<RecordLock>,
}

/// The owner and the inode of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LockKey {
    pub(super) client: u64,
    pub(super) ino: Ino,
    pub(super) owner: LockOwner,
}

#[derive(Default)]
pub(super) struct ReclaimState {
    root: Mutex<lock_order::Root, Option<Node>>,
    nodes: Mutex<lock_order::Nodes, Nodes>,
    pins: Mutex<lock_order::Pins, FxHashMap<Ino, Pinned>>,
    files: Mutex<lock_order::Files, FxHashMap<u64, OpenedAs>>,
    locks: Mutex<lock_order::Locks, FxHashMap<LockKey, (Node, Held)>>,
}

impl ReclaimState {
    pub(super) fn set_root(&self, node: Node) {
        *self.root.lock() = Some(node);
    }

    /// Whether the server keeps any state for this client.
    pub(super) fn has_any(&self) -> bool {
        !(self.pins.lock().is_empty() && self.files.lock().is_empty() && self.locks.lock().is_empty())
    }

    /// The name of an inode. `Stale` if the server has never named it, or so long ago that the client has forgotten.
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

    /// Records an inode that the server has named, and pinned if it says so.
    pub(super) fn learn(&self, node_attr: &NodeAttr) {
        self.learn_node(node_attr.node());
        if node_attr.is_pinned {
            self.pinned(node_attr.node());
        }
    }

    /// Records that the server has pinned an inode for a caller.
    pub(super) fn pinned(&self, node: Node) {
        let mut pins = self.pins.lock();
        let pinned = pins.entry(node.ino).or_insert(Pinned {
            node,
            count: 0,
            pins: 0,
        });
        pinned.count += 1;
        pinned.pins += 1;
    }

    /// Whether the client has pinned an inode, in which case this adds a pin.
    pub(super) fn pin_again(&self, ino: Ino, generation: u32) -> Option<Result<()>> {
        let mut pins = self.pins.lock();
        let pinned = pins.get_mut(&ino)?;
        if pinned.node.generation != generation {
            return Some(Err(FsError::Stale));
        }
        pinned.count += 1;
        Some(Ok(()))
    }

    /// Drops pins; returns how many the server must drop, if these were the last.
    pub(super) fn unpin(&self, ino: Ino, count: u64) -> Option<u64> {
        let mut pins = self.pins.lock();
        let pinned = pins.get_mut(&ino)?;
        pinned.count = pinned.count.saturating_sub(count);
        if pinned.count > 0 {
            return None;
        }
        pins.remove(&ino).map(|pinned| pinned.pins)
    }

    /// Records that after a restart the server has pinned an inode again, once for all callers, or could not.
    pub(super) fn pinned_again(&self, ino: Ino, is_pinned: bool) {
        if let Some(pinned) = self.pins.lock().get_mut(&ino) {
            pinned.pins = u64::from(is_pinned);
        }
    }

    pub(super) fn opened(&self, number: u64, opened: OpenedAs) {
        self.files.lock().insert(number, opened);
    }

    pub(super) fn closed(&self, number: u64) {
        self.files.lock().remove(&number);
    }

    /// Records that the server could not open a file again: its inode is gone.
    pub(super) fn file_is_gone(&self, number: u64) {
        if let Some(opened) = self.files.lock().get_mut(&number) {
            opened.is_stale = true;
        }
    }

    pub(super) fn is_stale(&self, number: u64) -> bool {
        self.files.lock().get(&number).is_some_and(|opened| opened.is_stale)
    }

    pub(super) fn locked(&self, key: LockKey, node: Node, step: LockStep) {
        let mut locks = self.locks.lock();
        let (_, held) = locks.entry(key).or_insert_with(|| (node, Held::default()));
        held.take(step);
        if held.is_empty() {
            locks.remove(&key);
        }
    }

    pub(super) fn client_released(&self, client: u64) {
        self.locks.lock().retain(|key, _| key.client != client);
    }

    /// Forgets all locks on this inode and marks its open files stale, also for later restarts; returns their numbers.
    /// Locks that were already reclaimed end with the files.
    pub(super) fn locks_are_lost(&self, ino: Ino) -> Vec<u64> {
        self.locks.lock().retain(|key, _| key.ino != ino);
        let mut files = self.files.lock();
        let of_inode = files.iter_mut().filter(|(_, opened)| opened.node.ino == ino);
        of_inode
            .map(|(&number, opened)| {
                opened.is_stale = true;
                number
            })
            .collect()
    }

    /// All pinned inodes, to reclaim.
    pub(super) fn pins(&self) -> Vec<Node> {
        self.pins.lock().values().map(|pinned| pinned.node).collect()
    }

    /// All open files, to reclaim.
    pub(super) fn files(&self) -> Vec<(u64, OpenedAs)> {
        let files = self.files.lock();
        files.iter().map(|(&number, &opened)| (number, opened)).collect()
    }

    /// All locks, to reclaim.
    pub(super) fn locks(&self) -> Vec<(LockKey, Node, Vec<LockRequest>)> {
        let locks = self.locks.lock();
        let claim = |(&key, (node, held)): (&LockKey, &(Node, Held))| (key, *node, held.requests());
        locks.iter().map(claim).collect()
    }
}

impl Held {
    fn is_empty(&self) -> bool {
        self.flock.is_none() && self.records.is_empty()
    }

    fn take(&mut self, step: LockStep) {
        match step {
            LockStep::Locked(flock @ LockRequest::Flock(..)) => self.flock = Some(flock),
            LockStep::Locked(LockRequest::Record(lock)) => {
                self.cut(lock.range);
                self.records.push(lock);
            }
            LockStep::Unlocked(Unlock::Flock) => self.flock = None,
            LockStep::Unlocked(Unlock::Range(range)) => self.cut(range),
            LockStep::Unlocked(Unlock::All) => *self = Held::default(),
        }
    }

    /// Removes a range from the record locks.
    fn cut(&mut self, range: ByteRange) {
        let (from, to) = (range.start(), end(range));
        for lock in std::mem::take(&mut self.records) {
            let (start, end) = (lock.range.start(), end(lock.range));
            for (start, end) in [(start, end.min(from)), (start.max(to), end)] {
                let len_bytes = if end == u64::MAX { 0 } else { end.saturating_sub(start) };
                if start < end
                    && let Ok(range) = ByteRange::new(start, len_bytes)
                {
                    self.records.push(RecordLock { range, ..lock });
                }
            }
        }
    }

    fn requests(&self) -> Vec<LockRequest> {
        let records = self.records.iter().map(|&lock| LockRequest::Record(lock));
        self.flock.into_iter().chain(records).collect()
    }
}

/// One past the last byte of a range.
fn end(range: ByteRange) -> u64 {
    match range.len_bytes() {
        0 => u64::MAX,
        len_bytes => range.start() + len_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrite_vfs::locks::LockKind;

    fn lock(start: u64, len_bytes: u64, kind: LockKind) -> RecordLock {
        RecordLock {
            owner: LockOwner(1),
            pid: 0,
            kind,
            range: ByteRange::new(start, len_bytes).unwrap(),
        }
    }

    #[test]
    fn what_is_said_again_is_what_is_held() {
        let mut held = Held::default();
        held.take(LockStep::Locked(LockRequest::Record(lock(0, 0, LockKind::Exclusive))));
        held.take(LockStep::Locked(LockRequest::Record(lock(10, 10, LockKind::Shared))));
        held.take(LockStep::Unlocked(Unlock::Range(ByteRange::new(15, 10).unwrap())));
        let mut records = held.records.clone();
        records.sort_by_key(|lock| lock.range.start());
        let expected = [
            lock(0, 10, LockKind::Exclusive),
            lock(10, 5, LockKind::Shared),
            lock(25, 0, LockKind::Exclusive),
        ];
        assert_eq!(records, expected);
        held.take(LockStep::Locked(LockRequest::Flock(LockOwner(1), LockKind::Shared)));
        assert_eq!(held.requests().len(), 4);
        held.take(LockStep::Unlocked(Unlock::Range(ByteRange::ALL)));
        assert_eq!(held.requests().len(), 1);
        held.take(LockStep::Unlocked(Unlock::All));
        assert!(held.is_empty());
    }
}
