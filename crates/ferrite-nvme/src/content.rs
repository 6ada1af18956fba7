//! Content of files: open handles, reading, writing, ranges.
//!
//! A small file's content is in its node or beside it: one transaction writes it. Anything longer is in a blob, in
//! place, and a write that makes it longer leaves size and times in the blob's own metadata, which becomes durable
//! after the data and in one piece (RUFS, section 2.2.1).
//!
//! A change with a token goes to the node instead, with its outcome, in one transaction, after the data: a repetition
//! finds the outcome, or data behind the end that no reader sees.
//!
//! Invariant: before a blob's metadata is ahead of the node, a record says so.

use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_vfs::buffers::Buffer;
use ferrite_vfs::{
    Attr, BadArgument, CloneRange, Ctx, FallocateMode, FsError, Ino, OpenFile, OpenMode, Outcome, Position, ReadDone,
    Result, SetAttr, Unsupported, WriteDone, WriteMode, Written, posix,
};

use crate::FILE_BYTES_MAX;
use crate::content_store::{self, Blob, truncate_to};
use crate::core::{Core, Step, TIME_STEP};
use crate::data;
use crate::format::key;
use crate::format::node::{Content, Node};
use crate::format::tail::Tail;
use crate::inode_ref::InodeRef;
use crate::quotas::{Owners, owners_of};
use crate::rights::{Left, Wanted, Xattrs};
use crate::table::State;

/// An open file.
#[derive(Debug, Clone)]
pub(crate) struct NvmeFile {
    pinned: InodeRef,
    mode: OpenMode,
}

impl NvmeFile {
    pub(crate) fn new(pinned: InodeRef, mode: OpenMode) -> NvmeFile {
        NvmeFile { pinned, mode }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.pinned.core()
    }

    pub(crate) fn pinned(&self) -> &InodeRef {
        &self.pinned
    }

    pub(crate) fn may_read(&self) -> bool {
        self.mode.read
    }

    pub(crate) fn may_write(&self) -> bool {
        self.mode.write
    }

    /// A read of a file with this state has happened; `no_atime` is that of its [`Ctx`].
    pub(crate) fn note_access(&self, state: &State, no_atime: bool) {
        if !no_atime
            && !self.mode.no_atime
            && !self.core().is_read_only
            && !state.node.is_kept_as_is()
            && !state.node.flags.no_atime
        {
            self.core().accessed(&self.pinned);
        }
    }

    pub(crate) fn read_bytes(&self, no_atime: bool, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if !self.mode.read {
            return Err(FsError::BadHandle);
        }
        let core = self.core();
        core.check_open()?;
        let state = self.pinned.read()?;
        let count = state.node.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..count];
        match &state.node.content {
            Content::Inline(_) | Content::Beside(_) if count > 0 => {
                let bytes = core.small(self.pinned.ino, &state.node)?;
                let from = bytes.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
                let have = count.min(bytes.len() - from);
                buf[..have].copy_from_slice(&bytes[from..from + have]);
                buf[have..].fill(0);
            }
            Content::Blob(_) if count > 0 => {
                let (ino, blob) = (self.pinned.ino, core.blob_of(self.pinned.ino, &state)?);
                let read = blob.read_at(buf, offset);
                read.map_err(|error| data::unreadable(ino, &**blob, offset..offset + count as u64, error))?;
            }
            _ => {}
        }
        self.note_access(&state, no_atime);
        Ok(count)
    }

    pub(crate) fn write_bytes(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        if !self.mode.write {
            return Err(FsError::BadHandle);
        }
        let core = self.core();
        if let Some(written) = core.overwrite(ctx, &self.pinned, mode, data)? {
            return Ok(written);
        }
        core.change(ctx, wrote, |step| {
            let mut step = Some(step);
            core.with_map_space(|| {
                let step = step.take().unwrap_or_else(|| core.step_of(ctx));
                core.write(ctx, step, &self.pinned, mode, data)
            })
        })
    }

    fn done(outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Done => Ok(()),
            _ => Err(FsError::Superseded),
        }
    }
}

/// The answer to a write, from its outcome.
pub(crate) fn wrote(outcome: Outcome) -> Result<Written> {
    match outcome {
        Outcome::Wrote { offset, len_bytes } => Ok(Written::new(offset, len_bytes as usize)),
        _ => Err(FsError::Superseded),
    }
}

/// The effect of a change of content on a node.
pub(crate) struct Change {
    pub(crate) node: Node,
    /// The extended attributes that are left after it.
    pub(crate) left: Left,
    /// It takes setuid, setgid or the capability, which the blob does not record.
    pub(crate) takes_rights: bool,
    /// It overwrites existing content.
    pub(crate) is_in_place: bool,
    /// Space that a blob needs, if the file has none yet.
    pub(crate) wanted_bytes: u64,
    /// The quotas that count the extended attributes that change.
    pub(crate) owners: Owners,
}

impl Core {
    /// The blob of a file.
    pub(crate) fn blob_of<'s>(&self, ino: Ino, state: &'s State) -> Result<&'s Arc<dyn Blob>> {
        if let Some(blob) = state.blob.get() {
            return Ok(blob);
        }
        let Content::Blob(place) = state.node.content else {
            return Err(FsError::damaged(ino, "it has no blob"));
        };
        let blob = self.content.open(place).map_err(|error| match error {
            content_store::Error::NotFound => FsError::damaged(ino, format!("its {place} is missing")),
            other => other.into(),
        })?;
        Ok(state.blob.get_or_init(|| blob))
    }

    pub(crate) fn change_of(
        &self,
        ctx: &Ctx,
        pinned: &InodeRef,
        state: &mut State,
        kill_priv: bool,
        size: u64,
    ) -> Change {
        let mut node = pinned.present(state);
        let now = self.now();
        (node.mtime, node.ctime, node.change) = (now, now, self.next_change());
        node.size = size;
        if kill_priv || ctx.kills_priv() {
            node.mode = posix::kill_priv_by(&ctx.cred, node.kind, node.mode, node.gid);
        }
        let left = self.without_capability(pinned.ino, state, &mut node);
        Change {
            takes_rights: node.mode != state.node.mode || left.is_less(),
            left,
            is_in_place: false,
            wanted_bytes: 0,
            owners: owners_of(&state.node),
            node,
        }
    }

    /// Makes sure that the next start reads the blob, too.
    pub(crate) fn go_ahead(&self, ino: Ino, state: &mut State) -> Result<()> {
        if !state.is_ahead {
            let mut step = self.own_step()?;
            if !is_seeded(Bug::NoAheadRecord) {
                step.txn.put(&key::ahead(ino), b"")?;
            }
            step.commit(|| Outcome::Done)?;
            state.is_ahead = true;
        }
        Ok(())
    }

    /// Stores that a change takes rights, by a step of its own.
    fn take_rights(&self, pinned: &InodeRef, state: &mut State, change: &Node, left: &Left) -> Result<()> {
        self.settle(state)?;
        let mut node = pinned.present(state);
        (node.mode, node.ctime, node.change) = (change.mode, change.ctime, change.change);
        node.has_xattrs = change.has_xattrs;
        let mut step = self.own_step()?;
        left.put(&mut step, pinned.ino, &state.node)?;
        step.put_node(pinned.ino, &node)?;
        step.commit(|| Outcome::Done)?;
        pinned.adopt(state, node);
        Ok(())
    }

    /// Restores what [`Self::take_rights`] took for a change that has not happened: the earlier node, and the extended
    /// attributes if some were removed meanwhile.
    fn give_rights_back(
        &self,
        pinned: &InodeRef,
        state: &mut State,
        (mut before, xattrs): (Node, Option<Xattrs>),
    ) -> Result<()> {
        before.change = self.next_change();
        let mut step = self.own_step()?;
        // A step that deletes has space reserved in a full store.
        step.txn.delete(&key::node(pinned.ino))?;
        if let Some(xattrs) = &xattrs {
            let had = (owners_of(&before), state.node.has_xattrs);
            self.put_xattrs(&mut step, pinned.ino, had, xattrs)?;
        }
        step.put_node(pinned.ino, &before)?;
        step.commit(|| Outcome::Done)?;
        pinned.adopt(state, before);
        Ok(())
    }

    /// Changes content in a blob by `work`, which writes the metadata that it receives, if any, in the same step. After
    /// [`FsError::NoSpace`] nothing has changed, if that holds for `work`.
    ///
    /// Content in place and its node are two steps. Rights that such a change takes go first: after a crash between the
    /// two, no file has the rights of its former content. Data behind the end becomes visible with the node.
    fn change_blob(
        &self,
        mut step: Step<'_>,
        pinned: &InodeRef,
        state: &mut State,
        mut change: Change,
        outcome: impl FnOnce() -> Outcome,
        work: impl FnOnce(&dyn Blob, Option<&[u8]>) -> content_store::Result<()>,
    ) -> Result<()> {
        let rights_first = change.takes_rights && change.is_in_place && !is_seeded(Bug::RightsLast);
        let in_step = step.has_token() || change.takes_rights && !rights_first;
        if in_step {
            // The commit comes after the content has changed, too late to be refused.
            step.admit()?;
        }
        if change.node.size > state.node.size {
            truncate_to(&**self.blob_of(pinned.ino, state)?, state.node.size)?;
        }
        let mut before = None;
        if rights_first {
            let xattrs = change.left.is_less().then(|| self.xattrs(pinned.ino, &state.node));
            before = Some((pinned.present(state), xattrs.transpose()?));
            self.take_rights(pinned, state, &change.node, &change.left)?;
            change.left = Left::default();
            // From here on the blob's metadata is later than the node.
            change.node.change = self.next_change();
        }
        let done = match in_step {
            true => self.change_with_node(step, pinned, state, change, outcome, work),
            false => {
                let reserved = std::mem::take(&mut step.reserved);
                drop(step);
                let done = self.change_ahead(pinned, state, &change.node, work);
                if done.is_ok() {
                    reserved.keep();
                }
                done
            }
        };
        if let (Err(FsError::NoSpace(_)), Some(before)) = (&done, before)
            && let Err(error) = self.give_rights_back(pinned, state, before)
        {
            tracing::warn!(ino = pinned.ino, %error, "a write that was refused has taken rights");
        }
        done
    }

    /// The change of content, and then the node with it, in one step.
    fn change_with_node(
        &self,
        mut step: Step<'_>,
        pinned: &InodeRef,
        state: &mut State,
        Change { mut node, left, .. }: Change,
        outcome: impl FnOnce() -> Outcome,
        work: impl FnOnce(&dyn Blob, Option<&[u8]>) -> content_store::Result<()>,
    ) -> Result<()> {
        let blob = Arc::clone(self.blob_of(pinned.ino, state)?);
        work(&*blob, None)?;
        // The step must not be durable before the content that it speaks of.
        blob.sync()?;
        node.allocated_bytes = blob.allocated_bytes();
        left.put(&mut step, pinned.ino, &state.node)?;
        step.put_node(pinned.ino, &node)?;
        step.commit(outcome)?;
        pinned.adopt(state, node);
        Ok(())
    }

    /// The change of content; the blob has the later size and times, if they are due.
    fn change_ahead(
        &self,
        pinned: &InodeRef,
        state: &mut State,
        node: &Node,
        work: impl FnOnce(&dyn Blob, Option<&[u8]>) -> content_store::Result<()>,
    ) -> Result<()> {
        let blob = Arc::clone(self.blob_of(pinned.ino, state)?);
        let is_due = node.ctime.0.abs_diff(pinned.live().stored.0) > TIME_STEP.as_nanos() as u64;
        if is_due || node.size != state.node.size {
            self.go_ahead(pinned.ino, state)?;
            if is_seeded(Bug::SizeFirst) {
                blob.set_tail(&Tail::of(pinned.ino, node).encode())?;
            }
            let done = work(&*blob, Some(&Tail::of(pinned.ino, node).encode()));
            if done.is_err() {
                // It may be there after all, or may come yet: the node is ahead of it when its record goes.
                let change = self.next_change();
                pinned.with_live(|live| (live.change, live.is_dirty) = (change, true));
            }
            done?;
        } else {
            work(&*blob, None)?;
        }
        pinned.with_live(|live| {
            (live.mtime, live.ctime, live.change) = (node.mtime, node.ctime, node.change);
            if is_due {
                live.stored = node.ctime;
            }
            live.is_dirty = true;
        });
        state.node.size = node.size;
        Ok(())
    }

    /// Gives an empty file a blob, which was made before. Content that is not durable at once can be written there
    /// without a wait: until it is durable, a crash leaves the file empty.
    fn move_empty(&self, pinned: &InodeRef, state: &mut State, wanted_bytes: u64) -> Result<()> {
        let (place, blob) = self.take_blob(wanted_bytes)?;
        let given = || -> Result<Node> {
            let mut node = pinned.present(state);
            blob.set_tail(&Tail::of(pinned.ino, &node).encode())?;
            blob.sync()?;
            let mut step = self.own_step()?;
            self.drop_small(&mut step, pinned.ino, &state.node.content)?;
            node.content = Content::Blob(place);
            step.put_node(pinned.ino, &node)?;
            step.txn.delete(&key::detached(place))?;
            step.commit(|| Outcome::Done)?;
            Ok(node)
        }();
        let node = given.inspect_err(|_| self.housekeeper.delete_later(place))?;
        self.count_small(Some(&state.node.content), Some(&node.content));
        state.blob = std::sync::OnceLock::from(blob);
        pinned.adopt(state, node);
        Ok(())
    }

    /// Moves a file's content from the metadata store to a blob, with `work` done to it, in one step.
    pub(crate) fn move_out(
        &self,
        mut step: Step<'_>,
        pinned: &InodeRef,
        state: &mut State,
        change: Change,
        outcome: impl FnOnce() -> Outcome,
        work: impl FnOnce(&dyn Blob) -> content_store::Result<()>,
    ) -> Result<()> {
        let Change {
            mut node,
            left,
            wanted_bytes,
            owners,
            ..
        } = change;
        let bytes = self.small(pinned.ino, &state.node)?;
        let (place, blob) = self.take_blob(wanted_bytes + bytes.len() as u64)?;
        let moved = || -> Result<()> {
            if !bytes.is_empty() {
                blob.write_at(&bytes, 0, None)?;
            }
            self.drop_small(&mut step, pinned.ino, &state.node.content)?;
            work(&*blob)?;
            blob.set_tail(&Tail::of(pinned.ino, &node).encode())?;
            blob.sync()?;
            node.content = Content::Blob(place);
            node.allocated_bytes = blob.allocated_bytes();
            left.put_for(&mut step, pinned.ino, (owners, state.node.has_xattrs))?;
            step.put_node(pinned.ino, &node)?;
            if !is_seeded(Bug::RecordStays) {
                step.txn.delete(&key::detached(place))?;
            }
            // The file keeps growing: the record is there then.
            if !is_seeded(Bug::NoAheadRecord) {
                step.txn.put(&key::ahead(pinned.ino), b"")?;
            }
            step.commit(outcome)
        }();
        if let Err(error) = moved {
            // Its record stands.
            self.note_failure(place.store, &error);
            self.housekeeper.delete_later(place);
            return Err(error);
        }
        self.count_small(Some(&state.node.content), Some(&node.content));
        state.blob = std::sync::OnceLock::from(blob);
        state.is_ahead = true;
        pinned.adopt(state, node);
        Ok(())
    }

    /// Changes content that is in the metadata store, in one step.
    fn change_small(
        &self,
        mut step: Step<'_>,
        pinned: &InodeRef,
        state: &mut State,
        change: Change,
        bytes: Vec<u8>,
        outcome: impl FnOnce() -> Outcome,
    ) -> Result<()> {
        let Change { mut node, left, .. } = change;
        left.put(&mut step, pinned.ino, &state.node)?;
        node.content = self.put_small(&mut step, pinned.ino, &state.node.content, bytes)?;
        step.put_node(pinned.ino, &node)?;
        step.commit(outcome)?;
        self.count_small(Some(&state.node.content), Some(&node.content));
        pinned.adopt(state, node);
        Ok(())
    }

    fn write(&self, ctx: &Ctx, mut step: Step<'_>, pinned: &InodeRef, mode: WriteMode, data: &[u8]) -> Result<Written> {
        let mut state = pinned.write()?;
        let offset = match mode.position {
            Position::At(offset) => offset,
            Position::End => state.node.size,
        };
        let written = Written::new(offset, data.len());
        let outcome = || Outcome::Wrote {
            offset,
            len_bytes: data.len() as u64,
        };
        if data.is_empty() {
            if step.has_token() {
                step.commit(outcome)?;
            }
            return Ok(written);
        }
        let end = offset.checked_add(data.len() as u64);
        let end = end.filter(|&end| end <= FILE_BYTES_MAX).ok_or(FsError::FileTooBig)?;
        if state.node.is_kept_as_is() {
            return Err(FsError::ReadOnly);
        }
        state.node.flags.check_write(offset, state.node.size)?;
        step.adds_to(pinned.ino);
        let size = state.node.size.max(end);
        step.count_size(pinned.ino, &state.node, size)?;
        self.own_blob(pinned, &mut state)?;
        let is_in_node = !matches!(state.node.content, Content::Blob(_));
        if !self.content_limits.is_durable_at_once && state.node.size == 0 && is_in_node && !self.is_small(end) {
            self.move_empty(pinned, &mut state, data.len() as u64)?;
        }
        let mut change = self.change_of(ctx, pinned, &mut state, mode.kill_priv, size);
        (change.wanted_bytes, change.is_in_place) = (data.len() as u64, offset < state.node.size);
        match &state.node.content {
            Content::Inline(_) | Content::Beside(_) if self.is_small(end.max(state.node.content.small_bytes())) => {
                let (from, to) = (offset as usize, end as usize);
                let is_whole = from == 0 && to as u64 >= state.node.size;
                let mut bytes = match is_whole {
                    true => Vec::new(),
                    false => self.small(pinned.ino, &state.node)?.into_owned(),
                };
                if bytes.len() < to {
                    bytes.resize(to, 0);
                }
                bytes[from..to].copy_from_slice(data);
                self.change_small(step, pinned, &mut state, change, bytes, outcome)?;
            }
            Content::Inline(_) | Content::Beside(_) => {
                self.move_out(step, pinned, &mut state, change, outcome, |blob| {
                    blob.write_at(data, offset, None)
                })?;
            }
            Content::Blob(_) => {
                self.change_blob(step, pinned, &mut state, change, outcome, |blob, tail| {
                    blob.write_at(data, offset, tail)
                })?;
            }
        }
        Ok(written)
    }

    fn fallocate(
        &self,
        ctx: &Ctx,
        mut step: Step<'_>,
        pinned: &InodeRef,
        mode: FallocateMode,
        (offset, len): (u64, u64),
    ) -> Result<()> {
        if len == 0 {
            return Err(FsError::Invalid(BadArgument::NoLength));
        }
        let end = offset.checked_add(len);
        let end = end.filter(|&end| end <= FILE_BYTES_MAX).ok_or(FsError::FileTooBig)?;
        let mut state = pinned.write()?;
        let keep_size = match mode {
            FallocateMode::PunchHole => true,
            FallocateMode::Allocate { keep_size } | FallocateMode::ZeroRange { keep_size } => keep_size,
        };
        let size = match keep_size {
            true => state.node.size,
            false => state.node.size.max(end),
        };
        if state.node.is_kept_as_is() {
            return Err(FsError::ReadOnly);
        }
        state.node.flags.check_fallocate(mode)?;
        step.adds_to(pinned.ino);
        let is_counted = self.quotas.is_limiting(owners_of(&state.node));
        if is_counted && mode != FallocateMode::PunchHole && end > size {
            return Err(FsError::NotSupported(Unsupported::ReservedSpace));
        }
        step.count_size(pinned.ino, &state.node, size)?;
        self.own_blob(pinned, &mut state)?;
        let mut change = self.change_of(ctx, pinned, &mut state, false, size);
        if mode != FallocateMode::PunchHole {
            change.wanted_bytes = len;
        }
        change.is_in_place = !matches!(mode, FallocateMode::Allocate { .. });
        let work = |blob: &dyn Blob, tail: Option<&[u8]>| match mode {
            FallocateMode::PunchHole => blob.punch(offset, len, tail),
            FallocateMode::Allocate { .. } => blob.reserve(offset, len, tail),
            FallocateMode::ZeroRange { .. } => blob.zero(offset, len, tail),
        };
        let outcome = || Outcome::Done;
        match &state.node.content {
            Content::Inline(_) | Content::Beside(_) if mode == FallocateMode::PunchHole => {
                let mut bytes = self.small(pinned.ino, &state.node)?.into_owned();
                let from = bytes.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
                let to = bytes.len().min(usize::try_from(end).unwrap_or(usize::MAX));
                match to == bytes.len() {
                    true => bytes.truncate(from),
                    false => bytes[from..to].fill(0),
                }
                self.change_small(step, pinned, &mut state, change, bytes, outcome)
            }
            Content::Inline(_) | Content::Beside(_) => {
                self.move_out(step, pinned, &mut state, change, outcome, |blob| work(blob, None))
            }
            Content::Blob(_) => self.change_blob(step, pinned, &mut state, change, outcome, work),
        }
    }
}

impl OpenFile for NvmeFile {
    fn ino(&self) -> Ino {
        self.pinned.ino
    }

    fn getattr(&self, _: &Ctx) -> Result<Attr> {
        let state = self.pinned.read()?;
        Ok(self.core().attr(&self.pinned, &state))
    }

    fn setattr(&self, ctx: &Ctx, set: &SetAttr) -> Result<Attr> {
        if set.size.is_some() && !self.mode.write {
            return Err(FsError::Invalid(BadArgument::NotWritable));
        }
        let core = self.core();
        core.change(
            ctx,
            |outcome| match outcome {
                Outcome::Attr(attr) => Ok(attr),
                _ => Err(FsError::Superseded),
            },
            |step| core.setattr(ctx, step, &self.pinned, &Wanted::of(set, true), Outcome::Attr),
        )
    }

    fn read_at(&self, ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_bytes(ctx.no_atime, offset, buf)
    }

    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        self.write_bytes(ctx, mode, data)
    }

    fn submit_read(&self, ctx: &Ctx, offset: u64, buffer: Buffer, done: ReadDone) {
        self.begin_read(ctx.no_atime, offset, buffer, done);
    }

    fn submit_write(&self, ctx: &Ctx, mode: WriteMode, buffer: Buffer, done: WriteDone) {
        self.begin_write(ctx, mode, buffer, done);
    }

    fn fallocate(&self, ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        if !self.mode.write {
            return Err(FsError::BadHandle);
        }
        let core = self.core();
        core.change(ctx, NvmeFile::done, |step| {
            let mut step = Some(step);
            core.with_map_space(|| {
                let step = step.take().unwrap_or_else(|| core.step_of(ctx));
                core.fallocate(ctx, step, &self.pinned, mode, (offset, len))
            })
        })
    }

    fn clone_range(&self, ctx: &Ctx, range: &CloneRange) -> Result<Written> {
        if !self.mode.write {
            return Err(FsError::BadHandle);
        }
        self.core().clone_range(ctx, &self.pinned, range)
    }

    fn seek_data(&self, _: &Ctx, offset: u64) -> Result<u64> {
        let state = self.pinned.read()?;
        let found = match &state.node.content {
            Content::Inline(bytes) => Some(offset).filter(|&offset| offset < bytes.len() as u64),
            Content::Beside(beside) => Some(offset).filter(|&offset| offset < beside.len_bytes.into()),
            Content::Blob(_) => self.core().blob_of(self.pinned.ino, &state)?.next_data(offset)?,
        };
        found.filter(|&at| at < state.node.size).ok_or(FsError::NoSuchAddress)
    }

    fn seek_hole(&self, _: &Ctx, offset: u64) -> Result<u64> {
        let state = self.pinned.read()?;
        let size = state.node.size;
        if offset >= size {
            return Err(FsError::NoSuchAddress);
        }
        let found = match &state.node.content {
            Content::Inline(bytes) => offset.max(bytes.len() as u64),
            Content::Beside(beside) => offset.max(beside.len_bytes.into()),
            Content::Blob(_) => self.core().blob_of(self.pinned.ino, &state)?.next_hole(offset)?,
        };
        Ok(found.min(size))
    }

    fn fsync(&self, _: &Ctx) -> Result<()> {
        let core = self.core();
        core.check_open()?;
        if core.content_limits.is_durable_at_once || core.is_read_only {
            return Ok(());
        }
        let state = self.pinned.read()?;
        match &state.node.content {
            Content::Blob(_) => Ok(core.blob_of(self.pinned.ino, &state)?.sync()?),
            Content::Inline(_) | Content::Beside(_) => Ok(()),
        }
    }
}
