//! Content of the reference engine's files: pages in an ordered map, and open handles.

use std::collections::{BTreeMap, BTreeSet};

use super::{BLOCKS, MAX_FILE_BYTES, MemFs, Node};
use crate::{
    Attr, BadArgument, CloneRange, Ctx, FallocateMode, FileSystem, FsError, Ino, OpenFile, OpenMode, Outcome, Position,
    Result, SYSTEM, SetAttr, SpaceOf, Timestamp, WriteMode, Written, posix,
};

/// Size of a page, the unit of holes.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Pages that hold data, and pages that are only reserved. A page in neither is a hole.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    written: BTreeMap<u64, Box<[u8]>>,
    reserved: BTreeSet<u64>,
}

/// The part of a range that is on one page.
struct Piece {
    page: u64,
    /// Where in the page it starts.
    within: usize,
    /// Which bytes of the whole range it is.
    part: std::ops::Range<usize>,
}

/// A range page by page.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES) as usize;
        let start = done;
        done = len.min(done + PAGE_BYTES as usize - within);
        (start < done).then_some(Piece {
            page: at / PAGE_BYTES,
            within,
            part: start..done,
        })
    })
}

impl Content {
    /// Pages that take space.
    pub(super) fn pages(&self) -> u64 {
        (self.written.len() + self.reserved.len()) as u64
    }

    pub(super) fn drop_reserved(&mut self) {
        self.reserved.clear();
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        for Piece { page, within, part } in pieces(offset, buf.len()) {
            let to = &mut buf[part];
            match self.written.get(&page) {
                Some(content) => to.copy_from_slice(&content[within..within + to.len()]),
                None => to.fill(0),
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for Piece { page, within, part } in pieces(offset, data.len()) {
            self.reserved.remove(&page);
            let content = self
                .written
                .entry(page)
                .or_insert_with(|| vec![0; PAGE_BYTES as usize].into());
            content[within..within + part.len()].copy_from_slice(&data[part]);
        }
    }

    /// Drops everything from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        self.clear(size, MAX_FILE_BYTES.next_multiple_of(PAGE_BYTES) + PAGE_BYTES);
    }

    /// Zeroes a range and drops its whole pages.
    fn clear(&mut self, offset: u64, end: u64) {
        let (first, last) = (offset.div_ceil(PAGE_BYTES), end / PAGE_BYTES);
        if first < last {
            self.written.retain(|page, _| !(first..last).contains(page));
            self.reserved.retain(|page| !(first..last).contains(page));
        }
        for page in [offset / PAGE_BYTES, end / PAGE_BYTES] {
            if let Some(content) = self.written.get_mut(&page) {
                let start = page * PAGE_BYTES;
                let from = offset.clamp(start, start + PAGE_BYTES) - start;
                let to = end.clamp(start, start + PAGE_BYTES) - start;
                if from < to {
                    content[from as usize..to as usize].fill(0);
                }
            }
        }
    }

    /// The pages of a range, counted from its first; holes and reserved pages are absent.
    fn pages_of(&self, offset: u64, len: u64) -> BTreeMap<u64, Box<[u8]>> {
        let first = offset / PAGE_BYTES;
        let pages = self.written.range(first..(offset + len).div_ceil(PAGE_BYTES));
        pages.map(|(page, content)| (page - first, content.clone())).collect()
    }

    /// Replaces the pages of a range by those of [`Self::pages_of`].
    fn put_pages(&mut self, offset: u64, len: u64, pages: BTreeMap<u64, Box<[u8]>>) {
        let first = offset / PAGE_BYTES;
        self.clear(offset, (offset + len).next_multiple_of(PAGE_BYTES));
        self.written
            .extend(pages.into_iter().map(|(page, content)| (first + page, content)));
    }

    fn reserve(&mut self, offset: u64, end: u64) {
        for page in offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            if !self.written.contains_key(&page) {
                self.reserved.insert(page);
            }
        }
    }

    fn next_data(&self, offset: u64, size: u64) -> Option<u64> {
        let (&page, _) = self.written.range(offset / PAGE_BYTES..).next()?;
        Some(offset.max(page * PAGE_BYTES)).filter(|&at| at < size)
    }

    fn next_hole(&self, offset: u64, size: u64) -> u64 {
        let mut page = offset / PAGE_BYTES;
        while self.written.contains_key(&page) {
            page += 1;
        }
        offset.max(page * PAGE_BYTES).min(size)
    }
}

/// An open file of the reference engine.
pub(super) struct MemFile {
    fs: MemFs,
    ino: Ino,
    mode: OpenMode,
}

impl MemFile {
    /// A handle on an inode that was pinned for it.
    pub(super) fn new(fs: MemFs, ino: Ino, mode: OpenMode) -> Self {
        MemFile { fs, ino, mode }
    }

    fn with<T>(&self, allowed: bool, f: impl FnOnce(&mut Node, crate::Timestamp) -> Result<T>) -> Result<T> {
        if !allowed {
            return Err(FsError::BadHandle);
        }
        let mut state = self.fs.state();
        let now = state.now();
        f(state.node(self.ino)?, now)
    }

    /// A change that writes, with its token.
    fn once(&self, ctx: &Ctx, change: impl FnOnce() -> Result<Written>) -> Result<Written> {
        let keep = |written: &Written| Outcome::Wrote {
            offset: written.offset,
            len_bytes: written.len_bytes as u64,
        };
        self.fs.dedup(ctx, change, keep, |outcome| match outcome {
            Outcome::Wrote { offset, len_bytes } => Ok(Written::new(offset, len_bytes as usize)),
            _ => Err(FsError::Superseded),
        })
    }

    /// Updates the attributes for a change of the content.
    fn stamp(ctx: &Ctx, node: &mut Node, now: Timestamp, kill_priv: bool) {
        node.changed(now);
        node.take_capability();
        if kill_priv || ctx.kills_priv() {
            node.kill_priv(&ctx.cred, node.attr.gid);
        }
    }
}

impl OpenFile for MemFile {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn getattr(&self, ctx: &Ctx) -> Result<Attr> {
        self.fs.getattr(ctx, self.ino)
    }

    fn setattr(&self, ctx: &Ctx, set: &SetAttr) -> Result<Attr> {
        self.fs.dedup_attr(ctx, || {
            if set.size.is_some() && !self.mode.write {
                return Err(FsError::Invalid(BadArgument::NotWritable));
            }
            self.fs.state().setattr(ctx, self.ino, set, true)
        })
    }

    fn read_at(&self, ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with(self.mode.read, |node, now| {
            let count = node.attr.size.saturating_sub(offset).min(buf.len() as u64) as usize;
            node.content.read(offset, &mut buf[..count]);
            let no_atime = self.mode.no_atime || ctx.no_atime || node.is_read_only() || node.flags.no_atime;
            let attr = &mut node.attr;
            if !no_atime && posix::relatime_due(attr.atime, attr.mtime, attr.ctime, now) {
                attr.atime = now;
            }
            Ok(count)
        })
    }

    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        let change = || {
            self.with(self.mode.write, |node, now| {
                let offset = match mode.position {
                    Position::At(offset) => offset,
                    Position::End => node.attr.size,
                };
                if data.is_empty() {
                    return Ok(Written::new(offset, 0));
                }
                let end = offset
                    .checked_add(data.len() as u64)
                    .filter(|&end| end <= MAX_FILE_BYTES);
                let end = end.ok_or(FsError::FileTooBig)?;
                node.flags.check_write(offset, node.attr.size)?;
                node.content.write(offset, data);
                node.attr.size = node.attr.size.max(end);
                Self::stamp(ctx, node, now, mode.kill_priv);
                Ok(Written::new(offset, data.len()))
            })
        };
        self.once(ctx, change)
    }

    fn clone_range(&self, ctx: &Ctx, range: &CloneRange) -> Result<Written> {
        self.once(ctx, || {
            if !self.mode.write {
                return Err(FsError::BadHandle);
            }
            let mut state = self.fs.state();
            let now = state.now();
            let size = state.node(self.ino)?.attr.size;
            let source = state.node(range.source.ino)?;
            let len = range.len_in(self.ino, source.attr.size, size, MAX_FILE_BYTES)?;
            let pages = source.content.pages_of(range.source_offset, len);
            if len > 0 {
                let node = state.node(self.ino)?;
                node.flags.check_write(range.offset, size)?;
                node.content.put_pages(range.offset, len, pages);
                node.attr.size = size.max(range.offset + len);
                Self::stamp(ctx, node, now, false);
            }
            Ok(Written::new(range.offset, len as usize))
        })
    }

    fn fallocate(&self, ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.fs.dedup_done(ctx, || {
            self.with(self.mode.write, |node, now| {
                if len == 0 {
                    return Err(FsError::Invalid(BadArgument::NoLength));
                }
                let end = offset
                    .checked_add(len)
                    .filter(|&end| end <= MAX_FILE_BYTES)
                    .ok_or(FsError::FileTooBig)?;
                if mode != FallocateMode::PunchHole && len / PAGE_BYTES > BLOCKS {
                    return Err(FsError::NoSpace(SpaceOf::Blocks));
                }
                node.flags.check_fallocate(mode)?;
                let keep_size = match mode {
                    FallocateMode::PunchHole => {
                        node.content.clear(offset, end);
                        true
                    }
                    FallocateMode::ZeroRange { keep_size } => {
                        node.content.clear(offset, end);
                        node.content.reserve(offset, end);
                        keep_size
                    }
                    FallocateMode::Allocate { keep_size } => {
                        node.content.reserve(offset, end);
                        keep_size
                    }
                };
                if !keep_size {
                    node.attr.size = node.attr.size.max(end);
                }
                Self::stamp(ctx, node, now, false);
                Ok(())
            })
        })
    }

    fn seek_data(&self, _: &Ctx, offset: u64) -> Result<u64> {
        self.with(true, |node, _| {
            node.content
                .next_data(offset, node.attr.size)
                .ok_or(FsError::NoSuchAddress)
        })
    }

    fn seek_hole(&self, _: &Ctx, offset: u64) -> Result<u64> {
        self.with(true, |node, _| {
            if offset >= node.attr.size {
                return Err(FsError::NoSuchAddress);
            }
            Ok(node.content.next_hole(offset, node.attr.size))
        })
    }

    fn fsync(&self, _: &Ctx) -> Result<()> {
        Ok(())
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.fs.unpin(SYSTEM, self.ino, 1);
    }
}
