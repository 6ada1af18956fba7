//! A session's open inodes by mode: they decide which locks its clients may request.
//!
//! Invariant: an inode is in it as often as the session has it open, with the modes of these opens.

use ferrite_vfs::locks::LockKind;
use ferrite_vfs::{Ino, OpenMode};
use rustc_hash::FxHashMap;

use super::Session;

#[derive(Default)]
struct Opens {
    all: u32,
    for_writing: u32,
}

/// See the head of this module.
#[derive(Default)]
pub(super) struct Opened(FxHashMap<Ino, Opens>);

impl Opened {
    pub(super) fn add(&mut self, ino: Ino, mode: OpenMode) {
        let opens = self.0.entry(ino).or_default();
        opens.all += 1;
        opens.for_writing += u32::from(mode.write);
    }

    pub(super) fn remove(&mut self, ino: Ino, mode: OpenMode) {
        let Some(opens) = self.0.get_mut(&ino) else { return };
        opens.all -= 1;
        opens.for_writing -= u32::from(mode.write);
        if opens.all == 0 {
            self.0.remove(&ino);
        }
    }
}

impl Session {
    /// Whether it has the inode open so that its client's kernel may grant such a lock: for writing, or at all.
    pub(crate) fn may_lock(&self, ino: Ino, kind: LockKind) -> bool {
        let kept = self.kept.lock();
        kept.opened.0.get(&ino).is_some_and(|opens| match kind {
            LockKind::Shared => true,
            LockKind::Exclusive => opens.for_writing > 0,
        })
    }
}
