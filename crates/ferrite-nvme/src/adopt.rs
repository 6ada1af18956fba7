//! Blobs that nothing names become files in `lost+found`: their content may be what is left of a file whose node was
//! lost, and a blob's own metadata knows inode, size and times of it.
//!
//! Invariants: it is part of a repair, so nothing else uses the engine. A blob gets its node and its name in one step;
//! before that it has neither, and the next repair finds it again. Owner and mode are unknown, so only root can access
//! such a file.

use ferrite_vfs::{FileKind, Ino, InodeFlags, Outcome, ROOT_INO, Result};
use std::sync::Arc;

use crate::FILE_BYTES_MAX;
use crate::check::Mend;
use crate::content_store::Place;
use crate::core::Core;
use crate::format::key;
use crate::format::node::{Content, Marks, Node};
use crate::format::pool::PoolRecord;
use crate::format::tail::Tail;
use crate::repair::node_of;

/// No inode has a number beyond this one: a larger number is damage.
const INO_MAX: Ino = 1 << 62;

impl Core {
    /// How a repair treats a blob that nothing names. An empty blob is deleted, and so is one whose metadata is partly
    /// unreadable.
    pub(crate) fn mend_nameless(&self, place: Place) -> Mend {
        let is_older = self.content.is_older(place);
        let holds = self.content.open(place).is_ok_and(|blob| blob.valid_len() > 0);
        match is_older || holds {
            true => Mend::Found(place),
            false => Mend::Detach(place),
        }
    }

    /// Makes a file of a blob.
    pub(crate) fn adopt_blob(self: &Arc<Core>, place: Place) -> Result<()> {
        let dir = self.lost_and_found()?;
        let was_older = self.content.accept_older(place)?;
        let blob = self.content.open(place)?;
        let tail = Tail::decode(&blob.tail()?).filter(|tail| tail.size <= FILE_BYTES_MAX);
        let ino = self.number_of(tail.as_ref())?;
        let now = self.now();
        let tail = tail.unwrap_or(Tail {
            ino,
            size: blob.valid_len().min(FILE_BYTES_MAX),
            atime: now,
            mtime: now,
            ctime: now,
            change: 0,
        });
        let node = Node {
            kind: FileKind::File,
            mode: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: tail.size,
            allocated_bytes: blob.allocated_bytes(),
            atime: tail.atime,
            mtime: tail.mtime,
            ctime: tail.ctime,
            btime: tail.mtime,
            change: tail.change.max(self.next_change()),
            parent: ROOT_INO,
            has_xattrs: false,
            is_nameless: false,
            marks: Marks::default(),
            quota: 0,
            flags: InodeFlags::NONE,
            content: Content::Blob(place),
        };
        // The blob records its inode before a node names it.
        blob.set_tail(&Tail::of(ino, &node).encode())?;
        let mut step = self.own_step()?;
        step.put_node(ino, &node)?;
        step.txn.delete(&key::detached(place))?;
        step.txn.delete(&key::ahead(ino))?;
        let name = if was_older {
            format!("damaged-{ino}")
        } else {
            format!("#{ino}")
        };
        self.put_lost(&mut step, dir, ino, name.as_bytes())?;
        step.commit(|| Outcome::Done)
    }

    /// The number that a blob's file had, if it is unused, or else a new one.
    fn number_of(&self, tail: Option<&Tail>) -> Result<Ino> {
        if let Some(tail) = tail
            && tail.ino > ROOT_INO
            && tail.ino < INO_MAX
            && self.meta.get(&key::node(tail.ino))?.is_none()
        {
            self.give_number(tail.ino)?;
            return Ok(tail.ino);
        }
        self.next_ino()
    }

    /// Makes sure that a number is never allocated again.
    pub(crate) fn give_number(&self, ino: Ino) -> Result<()> {
        let mut next = self.next_ino.lock();
        if ino < *next {
            return Ok(());
        }
        let mut pool = self.pool.lock();
        if ino >= pool.next_ino {
            let record = PoolRecord {
                next_ino: ino + 1,
                ..pool.clone()
            };
            self.put_pool(&record)?;
            *pool = record;
        }
        *next = ino + 1;
        Ok(())
    }

    /// Makes a node and its blob agree after the latest write is lost.
    pub(crate) fn agree(&self, ino: Ino) -> Result<()> {
        let mut step = self.own_step()?;
        let mut node = node_of(&mut step, ino)?;
        let Content::Blob(place) = node.content else {
            return Ok(());
        };
        let blob = self.content.open(place)?;
        node.allocated_bytes = blob.allocated_bytes();
        node.change = node.change.max(self.next_change());
        step.put_node(ino, &node)?;
        step.txn.delete(&key::ahead(ino))?;
        step.commit(|| Outcome::Done)?;
        Ok(blob.set_tail(&Tail::of(ino, &node).encode())?)
    }
}
