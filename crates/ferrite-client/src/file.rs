//! Files opened on a server.

use std::sync::Arc;

use ferrite_buffers::Buffer;
use ferrite_transport::frame::DATA_BYTES_MAX;
use ferrite_vfs::{
    Attr, CloneRange, Ctx, FallocateMode, FsError, Ino, OpenFile, OpenFileId, Position, ReadDone, Result, SetAttr,
    WriteDone, WriteMode, Written,
};

use super::cache::{Cache, Changed, READ_BYTES_MAX};
use super::deferred_sends::TRANSFER_BYTES_MAX;
use super::leased::may_take_effect_later;
use super::link::Link;
use super::message::Reply;
use super::pieces;
use super::protocol::Repeats;
use super::untrusted::{FileOffset, WriteReply, of_inode};
use ferrite_proto::{FileRequest, Node};

/// Writes are not cut into smaller parts, however little an engine promises.
const PART_BYTES_MIN: usize = 64 << 10;

/// An open file. Dropping it closes the server's file.
pub(super) struct RemoteFile {
    pub(super) link: Arc<Link>,
    pub(super) node: Node,
    pub(super) number: u64,
    pub(super) may_read: bool,
    /// The number of reconnects when it was opened. After another one the file may be stale, and the cache of its inode
    /// does not apply to it.
    pub(super) reconnects: u64,
}

impl RemoteFile {
    fn ask(&self, ctx: &Ctx, request: FileRequest) -> Result<Reply> {
        self.link.call(ctx, &request.into(), Repeats::Yes, &[], &mut [])
    }

    fn change(&self, ctx: &Ctx, request: FileRequest, data: &[u8]) -> Result<Reply> {
        let reply = self
            .link
            .change(ctx, &request.into(), Changed::One(self.node.ino), data);
        reply.map_err(|error| stale_if_lost(&self.link, self.number, error))
    }

    fn cache(&self) -> Option<&Cache> {
        let cache = self.link.leases.cache.as_ref()?;
        (self.reconnects == self.link.reconnects()).then_some(cache)
    }

    fn known_data(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        self.cache().filter(|_| self.may_read)?.read(self.node, offset, buf)
    }

    fn write_once(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        let request = FileRequest::Write {
            file: self.number,
            mode,
        };
        let reported: WriteReply = self.change(ctx, request, data)?.result()?;
        reported.of(mode, data.len())
    }
}

/// A change in flight when its session ended may have taken effect. On a file that is stale since then, the owner has
/// to know that; it would see [`FsError::Stale`] on the next call.
fn stale_if_lost(link: &Link, number: u64, error: FsError) -> FsError {
    match error {
        FsError::Disconnected if link.session.reclaim_state.is_stale(number) => FsError::Stale,
        error => error,
    }
}

impl OpenFile for RemoteFile {
    fn ino(&self) -> Ino {
        self.node.ino
    }

    fn id(&self) -> OpenFileId {
        OpenFileId {
            ino: self.node.ino,
            number: self.number,
        }
    }

    fn getattr(&self, ctx: &Ctx) -> Result<Attr> {
        let ask = || self.ask(ctx, FileRequest::FileGetattr { file: self.number });
        match self.cache() {
            Some(_) => self.link.attr(self.node, ask),
            None => of_inode(ask()?.result()?, self.node.ino),
        }
    }

    fn setattr(&self, ctx: &Ctx, set: &SetAttr) -> Result<Attr> {
        let request = FileRequest::FileSetattr {
            file: self.number,
            set: *set,
        };
        self.change(ctx, request, &[])?.result()
    }

    fn read_at(&self, ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if let Some(count) = self.known_data(offset, buf) {
            return Ok(count);
        }
        if buf.len() > pieces::LONG_BYTES
            && let Some(count) = self.link.read_in_pieces(ctx, self.number, offset, buf)?
        {
            self.link.was_read(self.node.ino);
            return Ok(count);
        }
        let mut done = 0;
        loop {
            let rest = &mut buf[done..];
            let len = rest.len().min(DATA_BYTES_MAX);
            let request = FileRequest::Read {
                file: self.number,
                offset: offset.saturating_add(done as u64),
                len_bytes: len as u32,
            };
            let start = self.link.leases.cache.as_ref().map(Cache::ask);
            let reply = self
                .link
                .call(ctx, &request.into(), Repeats::Yes, &[], &mut rest[..len])?;
            self.link.was_read(self.node.ino);
            reply.body()?;
            if let (Some(cache), Some(start), true) = (&self.link.leases.cache, start, reply.is_leased())
                && len <= READ_BYTES_MAX
            {
                let at = offset.saturating_add(done as u64);
                cache.keep_data(&start, self.node, at, &rest[..reply.taken_bytes()], len);
            }
            done += reply.taken_bytes();
            if reply.taken_bytes() < len || done == buf.len() {
                return Ok(done);
            }
        }
    }

    /// Writes in parts if a message, or one step of the engine, cannot hold all data; at the end of the file, only the
    /// first part.
    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        // With a token the engine accepts only as much as it writes whole. Data beyond that would be sent in vain.
        let whole_bytes = usize::try_from(self.link.promises().whole_write_bytes).unwrap_or(usize::MAX);
        let part_bytes = whole_bytes.clamp(PART_BYTES_MIN, DATA_BYTES_MAX);
        let (first, mut rest) = data.split_at(data.len().min(part_bytes));
        let mut all = self.write_once(ctx, mode, first)?;
        if mode.position == Position::End || all.len_bytes < first.len() {
            return Ok(all);
        }
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(part_bytes));
            let mode = WriteMode {
                position: Position::At(all.end()),
                ..mode
            };
            match self.write_once(ctx, mode, part) {
                Ok(written) => {
                    all.len_bytes += written.len_bytes;
                    if written.len_bytes < part.len() {
                        return Ok(all);
                    }
                }
                // The parts so far are written; the caller meets the error when it continues.
                Err(_) => return Ok(all),
            }
            rest = after;
        }
        Ok(all)
    }

    fn submit_read(&self, ctx: &Ctx, offset: u64, mut buffer: Buffer, done: ReadDone) {
        if let Some(count) = self.known_data(offset, &mut buffer) {
            return done(buffer, Ok(count));
        }
        if buffer.len() > TRANSFER_BYTES_MAX {
            let read = self.read_at(ctx, offset, &mut buffer);
            return done(buffer, read);
        }
        let request = FileRequest::Read {
            file: self.number,
            offset,
            len_bytes: buffer.len() as u32,
        };
        let start = self.link.leases.cache.as_ref().map(Cache::ask);
        let (link, node) = (start.is_some().then(|| Arc::downgrade(&self.link)), self.node);
        let then = move |reply: Result<Reply>, buffer: Option<Buffer>| {
            let link = link.and_then(|link| link.upgrade());
            let cache = link.as_ref().and_then(|link| link.leases.cache.as_ref());
            if let Some(cache) = cache {
                cache.was_read(node.ino);
            }
            let read = reply.and_then(|reply| {
                reply.body()?;
                if let (Some(cache), Some(start), Some(buffer)) = (cache, start, &buffer)
                    && reply.is_leased()
                {
                    cache.keep_data(&start, node, offset, &buffer[..reply.taken_bytes()], buffer.len());
                }
                Ok(reply.taken_bytes())
            });
            if let Some(buffer) = buffer {
                done(buffer, read);
            }
        };
        self.link.submit(ctx, request.into(), buffer, Box::new(then));
    }

    fn submit_write(&self, ctx: &Ctx, mode: WriteMode, buffer: Buffer, done: WriteDone) {
        let promised = self.link.promises().whole_write_bytes;
        if buffer.len() > TRANSFER_BYTES_MAX || buffer.len() as u64 > promised {
            let written = self.write(ctx, mode, &buffer);
            return done(buffer, written);
        }
        let request = FileRequest::Write {
            file: self.number,
            mode,
        };
        let (changed, has_cache) = (Changed::One(self.node.ino), self.link.leases.cache.is_some());
        let may_be_lost = !self.link.promises().is_durable_at_once;
        let unsynced = &self.link.session.unsynced;
        let unsynced = may_be_lost.then(|| (unsynced.epoch(), Arc::clone(unsynced)));
        if let Some(cache) = &self.link.leases.cache {
            cache.begin_change(changed);
        }
        let (link, number) = (Arc::downgrade(&self.link), self.number);
        let then = move |reply: Result<Reply>, buffer: Option<Buffer>| {
            if has_cache
                && let Some(link) = link.upgrade()
                && let Some(cache) = &link.leases.cache
                && !may_take_effect_later(&reply)
            {
                cache.has_changed(changed);
            }
            let reply = reply.map_err(|error| match link.upgrade() {
                Some(link) => stale_if_lost(&link, number, error),
                None => error,
            });
            let written = reply.and_then(|reply| reply.result::<WriteReply>());
            if let (Some((epoch, unsynced)), Ok(_)) = (unsynced, &written) {
                unsynced.changed(epoch);
            }
            if let Some(buffer) = buffer {
                let written = written.and_then(|reported| reported.of(mode, buffer.len()));
                done(buffer, written);
            }
        };
        self.link.submit(ctx, request.into(), buffer, Box::new(then));
    }

    fn fallocate(&self, ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        let request = FileRequest::Fallocate {
            file: self.number,
            mode,
            offset,
            len_bytes: len,
        };
        self.change(ctx, request, &[])?.result()
    }

    fn clone_range(&self, ctx: &Ctx, range: &CloneRange) -> Result<Written> {
        let request = FileRequest::CloneRange {
            file: self.number,
            source: range.source.number,
            source_offset: range.source_offset,
            offset: range.offset,
            len_bytes: range.len_bytes,
        };
        let reported: WriteReply = self.change(ctx, request, &[])?.result()?;
        let mode = WriteMode::from(Position::At(range.offset));
        reported.of(mode, usize::try_from(range.len_bytes).unwrap_or(usize::MAX))
    }

    fn seek_data(&self, ctx: &Ctx, offset: u64) -> Result<u64> {
        let request = FileRequest::SeekData {
            file: self.number,
            offset,
        };
        self.ask(ctx, request)?.result::<FileOffset>()?.from(offset)
    }

    fn seek_hole(&self, ctx: &Ctx, offset: u64) -> Result<u64> {
        let request = FileRequest::SeekHole {
            file: self.number,
            offset,
        };
        self.ask(ctx, request)?.result::<FileOffset>()?.from(offset)
    }

    fn fsync(&self, ctx: &Ctx) -> Result<()> {
        let sync = || self.ask(ctx, FileRequest::Fsync { file: self.number })?.result();
        self.link.session.unsynced.sync(sync)
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        self.link.session.reclaim_state.closed(self.number);
        self.link.post(FileRequest::Close {
            files: vec![self.number],
        });
    }
}
