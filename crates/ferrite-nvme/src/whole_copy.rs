//! Copies of whole files that move no data: the file gets the blob of its source, which both then share.
//!
//! Any other range is for the caller to copy: a blob is shared as a whole ([`crate::sharing`]).

use std::sync::{Arc, OnceLock};

use ferrite_vfs::{CloneRange, Ctx, FsError, Outcome, Result, Unsupported, Written};

use crate::FILE_BYTES_MAX;
use crate::content::Change;
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::Content;
use crate::inode_ref::InodeRef;
use crate::table::{State, Writing};

/// Locks two files, in the order of their numbers.
fn lock<'i>(file: &'i InodeRef, source: &'i InodeRef) -> Result<(Writing<'i>, Writing<'i>)> {
    if file.ino < source.ino {
        let state = file.write()?;
        return Ok((state, source.write()?));
    }
    let from = source.write()?;
    Ok((file.write()?, from))
}

/// Whether a range of so many bytes is all of the source, and replaces all of the file.
fn is_whole(range: &CloneRange, len: u64, from: &State, state: &State) -> bool {
    let begins = range.source_offset == 0 && range.offset == 0;
    begins && len == from.node.size && len >= state.node.size && matches!(from.node.content, Content::Blob(_))
}

impl Core {
    /// Refuses at once, and without a change of the metadata, what [`Self::clone_range`] would refuse: callers try each
    /// part of a file that they copy.
    pub(crate) fn check_clone_range(self: &Arc<Core>, file: &InodeRef, range: &CloneRange) -> Result<()> {
        let source = self.pin(range.source.ino)?;
        let size = file.read()?.node.size;
        let from = source.read()?;
        let len = range.len_in(file.ino, from.node.size, size, FILE_BYTES_MAX)?;
        let may_be = range.source_offset == 0 && range.offset == 0 && len == from.node.size && len >= size;
        match len == 0 || may_be && source.ino != file.ino {
            true => Ok(()),
            false => Err(FsError::NotSupported(Unsupported::Clone)),
        }
    }

    /// See [`ferrite_vfs::OpenFile::clone_range`]. Blocks on the locks of both files.
    pub(crate) fn clone_range(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        file: &InodeRef,
        range: &CloneRange,
    ) -> Result<Written> {
        let refused = Err(FsError::NotSupported(Unsupported::Clone));
        let len_in = |source: &State, state: &State| {
            let (from, size) = (source.node.size, state.node.size);
            range.len_in(file.ino, from, size, FILE_BYTES_MAX)
        };
        let source = self.pin(range.source.ino)?;
        if source.ino == file.ino {
            let state = file.read()?;
            return match len_in(&state, &state)? {
                0 => Ok(Written::new(range.offset, 0)),
                _ => refused,
            };
        }
        let (mut state, mut from) = lock(file, &source)?;
        let len = len_in(&from, &state)?;
        if len == 0 {
            return Ok(Written::new(range.offset, 0));
        }
        if !is_whole(range, len, &from, &state) {
            return refused;
        }
        self.store_node(&source, &mut from)?;
        let change = self.change_of(ctx, file, &mut state, false, len);
        self.give_blob(step, (file, &mut state), (&source, &mut from), change)?;
        Ok(Written::new(0, len as usize))
    }

    /// Makes a file name the blob of another, instead of what it has, in one step.
    fn give_blob(
        &self,
        mut step: Step<'_>,
        (file, state): (&InodeRef, &mut State),
        (source, from): (&InodeRef, &mut State),
        change: Change,
    ) -> Result<()> {
        let Change { mut node, left, .. } = change;
        let mut shared = source.present(from);
        let Content::Blob(place) = shared.content else {
            return Err(FsError::damaged(source.ino, "it has no blob"));
        };
        let both = [&state.node, &from.node]
            .into_iter()
            .filter(|node| node.marks.is_shared);
        let places = both.filter_map(|node| match node.content {
            Content::Blob(place) => Some(place),
            _ => None,
        });
        self.lock_sharers(&mut step, places)?;
        let freed = self.drop_blob(&mut step, file.ino, &state.node)?;
        self.drop_small(&mut step, file.ino, &state.node.content)?;
        if state.is_ahead {
            step.txn.delete(&key::ahead(file.ino))?;
        }
        self.share(&mut step, source.ino, &from.node, place)?;
        let was_shared = std::mem::replace(&mut shared.marks.is_shared, true);
        if !was_shared {
            step.put_node(source.ino, &shared)?;
        }
        node.content = Content::Blob(place);
        node.allocated_bytes = shared.allocated_bytes;
        node.marks.is_shared = true;
        left.put(&mut step, file.ino)?;
        step.put_node(file.ino, &node)?;
        let len_bytes = node.size;
        step.commit(|| Outcome::Wrote { offset: 0, len_bytes })?;
        if !was_shared {
            source.adopt(from, shared);
        }
        self.count_small(Some(&state.node.content), Some(&node.content));
        state.blob = OnceLock::new();
        state.is_ahead = false;
        file.adopt(state, node);
        freed.into_iter().for_each(|place| self.housekeeper.delete_later(place));
        Ok(())
    }
}
