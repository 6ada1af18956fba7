//! Reads, and overwrites in place, of files that other callers use at the same time; and those that no thread waits
//! for.
//!
//! An overwrite that changes neither size nor rights shares its file with reads and others of its kind: the blob makes
//! those of the same pages take turns. Anything else has the file exclusively (`content`). Times that are due are
//! stored after the content, by one thread for all that wait.
//!
//! A submitted call begins at once if the content is on a device, and it only has to wait for that; otherwise a thread
//! of the engine runs it. Completions run on a device's thread, which must not wait: work that may wait is left to the
//! engine's threads.
//!
//! Invariant: times and the counter of changes move once no reader uses the pages that an overwrite is about to change.
//! So a reader that knows the new counter and reads those pages waits for the new content, and a reader of old content
//! finds that the counter has moved: everything read with one value of it is of one state.

use std::sync::Arc;

use ferrite_vfs::buffers::Buffer;
use ferrite_vfs::{Ctx, FsError, Position, ReadDone, Result, WriteDone, WriteMode, Written, posix};

use crate::content::NvmeFile;
use crate::content_store::{self, Blob};
use crate::core::{Core, TIME_STEP};
use crate::format::node::Content;
use crate::format::tail::Tail;
use crate::inode_ref::InodeRef;
use crate::table::{Inode, State};

impl Core {
    /// Where an overwrite that may share its file goes.
    fn shared_at(&self, ctx: &Ctx, state: &State, mode: WriteMode, len: usize) -> Option<u64> {
        let Position::At(offset) = mode.position else {
            return None;
        };
        let node = &state.node;
        let may_change = node.flags.check_write(offset, node.size).is_ok();
        let is_own = matches!(node.content, Content::Blob(_)) && !node.marks.is_shared && may_change;
        let is_there = is_own && offset.checked_add(len as u64)? <= node.size;
        let keeps_rights = || {
            if node.has_xattrs && !state.lacks_capability {
                return false;
            }
            let kills = mode.kill_priv || ctx.kills_priv();
            !kills || posix::kill_priv_by(&ctx.cred, node.kind, node.mode, node.gid) == node.mode
        };
        // Without the record that it is ahead, times could not be stored in the blob.
        let may_share = self.content_limits.overwrites_in_place && ctx.token.is_none() && len > 0;
        (may_share && is_there && state.is_ahead && keeps_rights()).then_some(offset)
    }

    /// Called when no reader uses the bytes about to change, and before they change.
    fn overwriting(&self, inode: &Inode) {
        inode.with_live(|live| {
            // A time that a program set may be later.
            let now = self.now();
            (live.mtime, live.ctime, live.change) = (now, now, self.next_change());
            live.is_dirty = true;
        });
    }

    /// Overwrites content in place, if the file can be shared meanwhile. Durable when it returns.
    pub(crate) fn overwrite(
        &self,
        ctx: &Ctx,
        pinned: &InodeRef,
        mode: WriteMode,
        data: &[u8],
    ) -> Result<Option<Written>> {
        let _inside = self.freeze_barrier.enter();
        self.check_writable()?;
        let state = pinned.read()?;
        let Some(offset) = self.shared_at(ctx, &state, mode, data.len()) else {
            return Ok(None);
        };
        let blob = self.blob_of(pinned.ino, &state)?;
        let overwritten = blob.overwrite_at(data, offset, &mut || self.overwriting(pinned));
        if !overwritten.inspect_err(|_| self.check_owned())? {
            // A hole, or behind everything ever written.
            return Ok(None);
        }
        if are_times_due(pinned) {
            let _storing = pinned.storing.lock();
            // Another thread may have stored them meanwhile.
            if are_times_due(pinned) {
                store_times(pinned, &state, &**blob)?;
            }
        }
        Ok(Some(Written::new(offset, data.len())))
    }

    /// Stores times that are due, of a file that is not locked. May wait.
    fn store_due_times(&self, pinned: &InodeRef) -> Result<()> {
        let mut state = match pinned.write() {
            // Nothing leads to it any more.
            Err(FsError::Stale) => return Ok(()),
            other => other?,
        };
        if are_times_due(pinned) && matches!(state.node.content, Content::Blob(_)) {
            self.go_ahead(pinned.ino, &mut state)?;
            store_times(pinned, &state, &**self.blob_of(pinned.ino, &state)?)?;
        }
        Ok(())
    }

    /// The time of access moves, if it has to.
    pub(crate) fn accessed(&self, inode: &Inode) {
        let now = self.now();
        inode.with_live(|live| {
            if posix::relatime_due(live.atime, live.mtime, live.ctime, now) {
                live.atime = now;
                live.is_dirty = true;
            }
        });
    }
}

/// Times that moved by little are stored with those that move later (RUFS, section 2.4).
fn are_times_due(inode: &Inode) -> bool {
    let live = inode.live();
    live.ctime.0.abs_diff(live.stored.0) > TIME_STEP.as_nanos() as u64
}

/// Stores the present times in a blob that may be ahead of its node.
fn store_times(inode: &Inode, state: &State, blob: &dyn Blob) -> Result<()> {
    let node = inode.present(state);
    blob.set_tail(&Tail::of(inode.ino, &node).encode())?;
    inode.with_live(|live| live.stored = node.ctime);
    Ok(())
}

/// An error of a transfer that was submitted to a local store.
fn of_blob(error: ferrite_blob::Error) -> FsError {
    content_store::Error::from(error).into()
}

impl NvmeFile {
    pub(crate) fn begin_read(&self, no_atime: bool, offset: u64, buffer: Buffer, done: ReadDone) {
        if let Some((mut buffer, done)) = self.try_read(no_atime, offset, buffer, done) {
            let file = self.clone();
            self.core().workers.add(move || {
                let read = file.read_bytes(no_atime, offset, &mut buffer);
                drop(file);
                done(buffer, read);
            });
        }
    }

    /// Begins a read, or returns its arguments.
    fn try_read(&self, no_atime: bool, offset: u64, mut buffer: Buffer, done: ReadDone) -> Option<(Buffer, ReadDone)> {
        let Some(state) = self.pinned().try_read() else {
            return Some((buffer, done));
        };
        let len = buffer.len();
        let count = state.node.size.saturating_sub(offset).min(len as u64) as usize;
        if !self.may_read() || self.core().is_closed() || count == 0 || !matches!(state.node.content, Content::Blob(_))
        {
            return Some((buffer, done));
        }
        buffer.set_len(count);
        let Some(ready) = state
            .blob
            .get()
            .and_then(|blob| blob.local()?.ready_to_read(&mut buffer, offset))
        else {
            buffer.set_len(len);
            return Some((buffer, done));
        };
        self.note_access(&state, no_atime);
        ready.begin(buffer, move |mut buffer, result| {
            buffer.set_len(len);
            done(buffer, result.map(|()| count).map_err(of_blob));
        });
        None
    }

    pub(crate) fn begin_write(&self, ctx: &Ctx, mode: WriteMode, buffer: Buffer, done: WriteDone) {
        if let Some((buffer, done)) = self.try_write(ctx, mode, buffer, done) {
            let (file, ctx) = (self.clone(), ctx.clone());
            self.core().workers.add(move || {
                let written = file.write_bytes(&ctx, mode, &buffer);
                drop(file);
                done(buffer, written);
            });
        }
    }

    /// Begins a write, or returns its arguments.
    fn try_write(&self, ctx: &Ctx, mode: WriteMode, buffer: Buffer, done: WriteDone) -> Option<(Buffer, WriteDone)> {
        let core = self.core();
        let (Some(inside), Some(state)) = (core.freeze_barrier.try_enter(), self.pinned().try_read()) else {
            return Some((buffer, done));
        };
        let len = buffer.len();
        let at = match self.may_write() && core.check_writable().is_ok() {
            true => core.shared_at(ctx, &state, mode, len),
            false => None,
        };
        let ready = at.and_then(|offset| Some((state.blob.get()?.local()?.ready_to_write(offset, len)?, offset)));
        let Some((ready, offset)) = ready else {
            return Some((buffer, done));
        };
        let pinned = self.pinned().clone();
        core.overwriting(&pinned);
        ready.begin(buffer, move |buffer, result| {
            let written = result.map(|()| Written::new(offset, len)).map_err(of_blob);
            if written.is_err() || !are_times_due(&pinned) {
                drop(inside);
                pinned.drop_elsewhere();
                return done(buffer, written);
            }
            // Not where threads may wait for the barrier that this is inside of.
            let finishers = pinned.core().finishers.queue();
            finishers.add(move || {
                let stored = pinned.core().store_due_times(&pinned);
                drop((inside, pinned));
                done(buffer, stored.and(written));
            });
        });
        None
    }
}

impl InodeRef {
    /// Gives the pin back without waiting: a thread of the engine releases the last one.
    fn drop_elsewhere(self) {
        if Arc::strong_count(self.core()) > 1 && self.core().release_unless_last(&self) {
            return self.leave();
        }
        // This thread may be that of a device, which whoever drops the last part of the engine waits for: it must not
        // become the one that waits for the workers.
        let workers = self.core().workers.queue();
        workers.add(move || drop(self));
    }
}
