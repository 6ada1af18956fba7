//! Copies of whole files that move no data: the file gets the blob of its source, which both then share.
//!
//! Any other range is for the caller to copy: a blob is shared as a whole ([`crate::sharing`]).

use std::sync::{Arc, OnceLock};

use ferrite_vfs::{CloneRange, Ctx, FsError, Ino, Outcome, Result, Unsupported, Written};

use crate::FILE_BYTES_MAX;
use crate::content::{Change, wrote};
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::{Content, Node};
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

/// The length of a range, if it is empty, or all of the source and replaces all of the file.
///
/// # Errors
/// Those of [`CloneRange::len_in`]; `NotSupported` for a part.
fn whole_len(range: &CloneRange, ino: Ino, from: &Node, size: u64) -> Result<u64> {
    let len = range.len_in(ino, from.size, size, FILE_BYTES_MAX)?;
    let begins = range.source_offset == 0 && range.offset == 0 && range.source.ino != ino;
    let is_whole = begins && len == from.size && len >= size && matches!(from.content, Content::Blob(_));
    match len == 0 || is_whole {
        true => Ok(len),
        false => Err(FsError::NotSupported(Unsupported::Clone)),
    }
}

impl Core {
    /// See [`ferrite_vfs::OpenFile::clone_range`]. Blocks on the locks of both files.
    pub(crate) fn clone_range(self: &Arc<Core>, ctx: &Ctx, file: &InodeRef, range: &CloneRange) -> Result<Written> {
        let source = self.pin(range.source.ino)?;
        // Callers try each part of a file that they copy: that takes no step, and no token keeps that it was refused.
        let size = file.read()?.node.size;
        if whole_len(range, file.ino, &source.read()?.node, size)? == 0 {
            return Ok(Written::new(range.offset, 0));
        }
        self.change(ctx, wrote, |mut step| {
            let (mut state, mut from) = lock(file, &source)?;
            let len = whole_len(range, file.ino, &from.node, state.node.size)?;
            if len > 0 {
                state.node.flags.check_write(range.offset, state.node.size)?;
                step.adds_to(file.ino);
                self.store_node(&source, &mut from)?;
                let change = self.change_of(ctx, file, &mut state, false, len);
                self.give_blob(step, (file, &mut state), (&source, &mut from), change)?;
            }
            Ok(Written::new(range.offset, len as usize))
        })
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
        self.settle(from)?;
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
        step.count_size(file.ino, &state.node, node.size)?;
        let freed = self.drop_blob(&mut step, file.ino, &state.node)?;
        self.drop_small(&mut step, file.ino, &state.node.content)?;
        if state.is_ahead {
            step.txn.delete(&key::ahead(file.ino))?;
        }
        self.share(&mut step, source.ino, &from.node, place)?;
        let was_shared = std::mem::replace(&mut shared.marks.is_shared, true);
        if !was_shared {
            // The source stays as it is for callers, whatever its flags are.
            step.txn.put(&key::node(source.ino), &shared.encode())?;
        }
        node.content = Content::Blob(place);
        node.allocated_bytes = shared.allocated_bytes;
        node.marks.is_shared = true;
        left.put(&mut step, file.ino, &state.node)?;
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
