//! The space that snapshots alone hold ([`ferrite_vfs::SNAPSHOT_XATTR`]): of one snapshot, or of all of a directory.
//!
//! A walk counts how many files in them name each shared blob. If no others do, the blob comes back with them, as do
//! blobs that are not shared. Files with the metadata count whole pages, as they do for quotas. Changes are made
//! meanwhile, so the sum is of no single moment; a store that shares parts of blobs takes less than this. There is one
//! walk at a time: it may be long, and takes memory for each shared blob.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ferrite_vfs::{Ctx, FileKind, FsError, Ino, Result, SnapshotSpace, SnapshotWalk};

use super::missing;
use crate::content_store::Place;
use crate::core::Core;
use crate::format::key;
use crate::format::node::{Content, Node};
use crate::inode_ref::InodeRef;
use crate::quotas::{in_pages, usage_of_xattrs};
use crate::sharing::decode_sharers;

/// The inodes and the space that a walk has found.
#[derive(Default)]
struct Found {
    inodes: u64,
    /// Of what nothing shares.
    bytes: u64,
    /// How many files name each shared blob, and its bytes.
    shared: HashMap<Place, (u64, u64)>,
    /// Files with several names.
    seen: HashSet<Ino>,
}

impl Found {
    /// Adds an inode that was found by a name, whose extended attributes take so many bytes.
    fn add(&mut self, ino: Ino, node: &Node, xattr_bytes: u64) {
        if node.nlink > 1 && !node.is_dir() && !self.seen.insert(ino) {
            return;
        }
        self.inodes += 1;
        self.bytes += usage_of_xattrs(xattr_bytes).bytes.cast_unsigned();
        match node.content {
            Content::Blob(place) if node.marks.is_shared => {
                let (files, bytes) = self.shared.entry(place).or_default();
                *files += 1;
                *bytes = (*bytes).max(node.allocated_bytes);
            }
            Content::Blob(_) => self.bytes += node.allocated_bytes,
            Content::Inline(_) | Content::Beside(_) if node.kind == FileKind::File => {
                self.bytes += in_pages(node.size).cast_unsigned();
            }
            Content::Inline(_) | Content::Beside(_) => {}
        }
    }
}

impl Core {
    /// The space that a snapshot holds alone, or a directory of snapshots, as the attribute gives it. Takes some time
    /// for each file.
    ///
    /// # Errors
    /// `NoAttribute` of another inode; `NotPermitted` unless the caller may take snapshots there; `Busy` while another
    /// walk is in progress.
    pub(crate) fn snapshot_text(self: &Arc<Core>, ctx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let top = self.pin(ino).map_err(missing)?;
        let (holds_snapshots, uid) = self.snapshot_top(&top)?;
        if ctx.check && !ctx.cred.is_root() && ctx.cred.uid != uid {
            return Err(FsError::NotPermitted);
        }
        let _walking = SnapshotWalk::begin(&self.walks_snapshots)?;
        let mut found = Found::default();
        if !holds_snapshots {
            self.add_found(&top, &mut found)?;
        }
        self.walk_below(ino, |_, entries, dirs| {
            if self.housekeeper.is_stopping() {
                return Err(FsError::Io("the pool is being closed".into()));
            }
            for entry in entries {
                let inode = self.pin(entry.edge.ino);
                match inode.and_then(|inode| self.add_found(&inode, &mut found)) {
                    Ok(true) => dirs.push(entry.edge.ino),
                    // It was removed meanwhile.
                    Ok(false) | Err(FsError::NotFound | FsError::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        for (place, (files, bytes)) in found.shared {
            let sharers = self.meta.get(&key::sharers(place))?;
            if sharers.and_then(|value| decode_sharers(&value)).unwrap_or(0) <= files {
                found.bytes += bytes;
            }
        }
        let space = SnapshotSpace {
            bytes: found.bytes,
            inodes: found.inodes,
        };
        Ok(space.to_string().into_bytes())
    }

    /// Whether a directory has snapshots, instead of being one, and the owner.
    fn snapshot_top(self: &Arc<Core>, top: &InodeRef) -> Result<(bool, u32)> {
        let (marks, parent, is_dir, uid) = {
            let node = &top.read()?.node;
            (node.marks, node.parent, node.is_dir(), node.uid)
        };
        let is_snapshot = || -> Result<bool> {
            Ok(is_dir && marks.in_snapshot && self.pin(parent)?.read()?.node.marks.holds_snapshots)
        };
        match marks.holds_snapshots || is_snapshot()? {
            true => Ok((marks.holds_snapshots, uid)),
            false => Err(FsError::NoAttribute),
        }
    }

    /// Adds an inode; returns whether it is a directory.
    fn add_found(&self, inode: &InodeRef, found: &mut Found) -> Result<bool> {
        let state = inode.read()?;
        let xattrs = match state.node.has_xattrs {
            true => self.meta.get(&key::xattrs(inode.ino))?,
            false => None,
        };
        found.add(inode.ino, &state.node, xattrs.map_or(0, |value| value.len() as u64));
        Ok(state.node.is_dir())
    }
}
