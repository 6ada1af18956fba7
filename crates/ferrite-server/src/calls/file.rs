//! Replies to calls of open files.
//!
//! A short read goes into the queue of replies at once. A longer one has a buffer, from which it is sent, or no copy at
//! all if the engine lends its pages. Without a buffer nothing happens, and the request is repeated.

use std::sync::Arc;

use ferrite_buffers::Buffer;
use ferrite_buffers::borrowed::Borrowed;
use ferrite_transport::frame::{DATA_BYTES_MAX, INLINE_BYTES_MAX};
use ferrite_transport::reactor::Served;
use ferrite_transport::send_queue::{Frame, SendQueue};
use ferrite_vfs::{Attr, BadArgument, CloneRange, FallocateMode, FsError, OpenFile, Result, SetAttr, WriteMode};

use super::RequestHandler;
use crate::reply::{Reply, begin_reply, put, put_reply};
use ferrite_proto::{Encode, FileRequest, Piece};

impl RequestHandler<'_> {
    /// Answers a call of an open file; `data` came with the request.
    pub(crate) fn answer_file(&self, request: FileRequest, data: &[u8], out: &mut SendQueue) -> Served {
        let id = self.id;
        if let Err(error) = self.permit(request.is_change()) {
            put::<()>(out, id, Err(error));
            return Served::Yes;
        }
        match request {
            FileRequest::FileGetattr { file } => put_reply(out, id, self.file_getattr(file)),
            FileRequest::FileSetattr { file, set } => put(out, id, self.file_setattr(file, &set)),
            FileRequest::Read {
                file,
                offset,
                len_bytes,
            } => return self.served(|out| self.read(file, offset, len_bytes as usize, out), out),
            FileRequest::ReadPiece {
                file,
                offset,
                len_bytes,
            } => return self.served(|out| self.read_piece(file, offset, len_bytes as usize, out), out),
            FileRequest::Write { file, mode } => put(out, id, self.write(file, mode, data)),
            FileRequest::Fallocate {
                file,
                mode,
                offset,
                len_bytes,
            } => put(out, id, self.fallocate(file, mode, offset, len_bytes)),
            FileRequest::CloneRange {
                file,
                source,
                source_offset,
                offset,
                len_bytes,
            } => put(
                out,
                id,
                self.clone_range(file, (source, source_offset), (offset, len_bytes)),
            ),
            FileRequest::SeekData { file, offset } => put(out, id, self.seek_data(file, offset)),
            FileRequest::SeekHole { file, offset } => put(out, id, self.seek_hole(file, offset)),
            FileRequest::Fsync { file } => put(out, id, self.fsync(file)),
            FileRequest::Close { files } => put(out, id, self.close(&files)),
        }
        Served::Yes
    }

    /// Runs `reply`, which appends the reply unless it fails or finds no buffer.
    fn served(&self, reply: impl FnOnce(&mut SendQueue) -> Result<Served>, out: &mut SendQueue) -> Served {
        reply(out).unwrap_or_else(|error| {
            put::<()>(out, self.id, Err(error));
            Served::Yes
        })
    }

    fn file(&self, number: u64) -> Result<Arc<dyn OpenFile>> {
        self.session.file(number)
    }

    fn file_getattr(&self, file: u64) -> Reply<Attr> {
        let file = self.file(file);
        let is_leased = file.as_ref().is_ok_and(|file| self.session.lease(file.ino()));
        self.attr_reply(file.and_then(|file| file.getattr(&self.ctx)), is_leased)
    }

    fn file_setattr(&self, file: u64, set: &SetAttr) -> Result<Attr> {
        let file = self.file(file)?;
        let attr = file.setattr(&self.ctx, set)?;
        self.settle(&*file)?;
        Ok(self.shown(attr))
    }

    /// The position and the length of the written data.
    fn write(&self, file: u64, mode: WriteMode, data: &[u8]) -> Result<(u64, u64)> {
        let file = self.file(file)?;
        let written = file.write(&self.ctx, mode, data)?;
        self.settle(&*file)?;
        Ok((written.offset, written.len_bytes as u64))
    }

    fn fallocate(&self, file: u64, mode: FallocateMode, offset: u64, len_bytes: u64) -> Result<()> {
        let file = self.file(file)?;
        file.fallocate(&self.ctx, mode, offset, len_bytes)?;
        self.settle(&*file)
    }

    /// The position and the length of what was cloned.
    fn clone_range(
        &self,
        file: u64,
        (source, source_offset): (u64, u64),
        (offset, len_bytes): (u64, u64),
    ) -> Result<(u64, u64)> {
        let source = self.file(source)?;
        // Refused unless it is open for reading.
        source.read_at(&self.ctx, 0, &mut [])?;
        let range = CloneRange {
            source: source.id(),
            source_offset,
            offset,
            len_bytes,
        };
        let file = self.file(file)?;
        let cloned = file.clone_range(&self.ctx, &range)?;
        self.settle(&*file)?;
        Ok((cloned.offset, cloned.len_bytes as u64))
    }

    fn seek_data(&self, file: u64, offset: u64) -> Result<u64> {
        self.file(file)?.seek_data(&self.ctx, offset)
    }

    fn seek_hole(&self, file: u64, offset: u64) -> Result<u64> {
        self.file(file)?.seek_hole(&self.ctx, offset)
    }

    fn fsync(&self, file: u64) -> Result<()> {
        self.file(file)?.fsync(&self.ctx)
    }

    fn close(&self, files: &[u64]) -> Result<()> {
        self.session.close_files(files);
        Ok(())
    }

    /// The file of a read, unless that is too long.
    fn readable(&self, number: u64, len: usize) -> Result<Arc<dyn OpenFile>> {
        match len > DATA_BYTES_MAX {
            true => Err(FsError::Invalid(BadArgument::NoLength)),
            false => self.file(number),
        }
    }

    /// Has no effect without a buffer.
    fn read(&self, number: u64, offset: u64, len: usize, out: &mut SendQueue) -> Result<Served> {
        let file = self.readable(number, len)?;
        if len <= INLINE_BYTES_MAX {
            let frame = begin_reply(out, self.id, self.session.lease(file.ino()));
            frame.try_finish_with(len, |buf| file.read_at(&self.ctx, offset, buf))?;
            return Ok(Served::Yes);
        }
        let Some(mut buffer) = self.pool.take(len) else {
            return Ok(Served::Starved);
        };
        let is_leased = self.session.lease(file.ino());
        let count = file.read_at(&self.ctx, offset, &mut buffer)?;
        buffer.set_len(count);
        begin_reply(out, self.id, is_leased).finish_from(buffer);
        Ok(Served::Yes)
    }

    /// Reads a part of a longer read that the client splits. Parts of one version are of one state.
    fn read_piece(&self, number: u64, offset: u64, len: usize, out: &mut SendQueue) -> Result<Served> {
        let file = self.readable(number, len)?;
        let Some(mut buffer) = self.pool.take(len) else {
            return Ok(Served::Starved);
        };
        if out.is_zero_copy() {
            match self.lend_piece(&*file, offset, buffer, out) {
                None => return Ok(Served::Yes),
                Some(unused) => buffer = unused,
            }
        }
        let (count, version) = file.read_versioned(&self.ctx, offset, &mut buffer)?;
        buffer.set_len(count);
        begin_piece(out, self.id, version).finish_from(buffer);
        Ok(Served::Yes)
    }

    /// Sends as much as `buffer` holds from the pages of the engine. Returns the buffer if that did not begin; else it
    /// keeps the data if the pages have to be given back before it is sent.
    fn lend_piece(&self, file: &dyn OpenFile, offset: u64, buffer: Buffer, out: &mut SendQueue) -> Option<Buffer> {
        let len = buffer.len();
        let mut rest = Some(buffer);
        let mut take = |borrowed: &Borrowed, version| {
            if let Some(rest) = rest.take() {
                begin_piece(out, self.id, Some(version)).finish_borrowed(borrowed, rest);
            }
        };
        let borrowed = file.read_borrowed(&self.ctx, offset, len, &mut take);
        // The reply has begun, and lacks data that it announces: it must not arrive.
        if let (Err(error), None) = (&borrowed, &rest) {
            tracing::error!("a read from borrowed pages failed: {error}");
            if let Some(link) = &*self.session.recipient.link.lock() {
                link.close();
            }
        }
        rest
    }
}

/// Begins the reply with a piece of this version; its data follows.
fn begin_piece(out: &mut SendQueue, id: u64, version: Option<u64>) -> Frame<'_> {
    let mut frame = begin_reply(out, id, false);
    Piece { version }.put(frame.body());
    frame
}
