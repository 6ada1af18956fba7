//! [`Traced`]: an engine whose writes are recorded.
//!
//! It records calls that succeeded, after they are done: writes, appends, new sizes, files created, and files opened
//! for writing for the first time. It does not record `fallocate`, which writes no data. Every call is passed to the
//! engine unchanged.

use std::sync::Arc;

use super::{Event, TraceWriter};
use crate::{
    Attr, Ctx, FileKind, FileLayer, FileSystem, Ino, Layer, Limits, NewFile, NewNode, OpenFile, OpenFlags, OpenMode,
    Opened, Result, SetAttr, Start, WriteMode, Written, walk,
};

/// An engine, recorded.
pub struct Traced<F> {
    inner: F,
    writer: Arc<TraceWriter>,
}

impl<F: FileSystem> Traced<F> {
    /// Passes everything to `inner` and records it with `writer`.
    pub fn new(inner: F, writer: Arc<TraceWriter>) -> Traced<F> {
        Traced { inner, writer }
    }
}

struct TracedFile {
    inner: Arc<dyn OpenFile>,
    writer: Arc<TraceWriter>,
}

impl TracedFile {
    fn wrote(&self, offset_bytes: u64, len_bytes: usize) {
        if len_bytes > 0 {
            self.writer.record(Event::Write {
                ino: self.inner.ino(),
                offset_bytes,
                len_bytes: len_bytes as u64,
            });
        }
    }
}

impl<F: FileSystem> Traced<F> {
    fn opened(&self, inner: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(TracedFile {
            inner,
            writer: Arc::clone(&self.writer),
        })
    }
}

impl<F: FileSystem> Layer for Traced<F> {
    fn below(&self) -> &dyn FileSystem {
        &self.inner
    }

    fn limits(&self) -> Limits {
        let mut limits = self.below().limits();
        // Submitted writes become calls here, so that they are recorded.
        limits.submits = false;
        limits
    }

    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let Some(len_bytes) = set.size else {
            return self.inner.setattr(ctx, ino, set);
        };
        let before = self.inner.getattr(ctx, ino)?;
        let attr = self.inner.setattr(ctx, ino, set)?;
        self.writer.introduce(ino, before.size);
        self.writer.record(Event::Truncate { ino, len_bytes });
        Ok(attr)
    }

    fn mknod(&self, ctx: &Ctx, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let attr = self.inner.mknod(ctx, parent, name, node)?;
        if node.kind == FileKind::File {
            // The number may have been another file's before.
            self.writer.record(Event::File {
                ino: attr.ino,
                len_bytes: 0,
            });
        }
        Ok(attr)
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let untruncated = OpenMode {
            truncate: false,
            ..mode
        };
        // A file that this truncates is introduced with the size it had.
        let before = match mode.truncate {
            true => Some(self.inner.open(ctx, ino, untruncated)?.getattr(ctx)?.size),
            false => None,
        };
        let inner = self.inner.open(ctx, ino, mode)?;
        if let Some(size) = before {
            self.writer.introduce(ino, size);
            self.writer.record(Event::Truncate { ino, len_bytes: 0 });
        } else if mode.write {
            // The size is read before the event is recorded: any writer since then has introduced the file.
            self.writer.introduce(ino, inner.getattr(ctx)?.size);
        }
        Ok(self.opened(inner))
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        let opened = self.inner.create(ctx, parent, name, new)?;
        let ino = opened.attr.ino;
        match opened.created {
            true => self.writer.record(Event::File { ino, len_bytes: 0 }),
            false if new.open.changes() => self.writer.introduce(ino, opened.attr.size),
            false => {}
        }
        if new.open.truncate && !opened.created {
            self.writer.record(Event::Truncate { ino, len_bytes: 0 });
        }
        Ok(Opened {
            file: self.opened(opened.file),
            ..opened
        })
    }

    fn open_path(&self, ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<Opened> {
        // Uses the calls above, so that these record the changes.
        walk::open(self, ctx, start, path, flags)
    }
}

impl FileLayer for TracedFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.inner
    }

    fn setattr(&self, ctx: &Ctx, set: &SetAttr) -> Result<Attr> {
        let attr = self.inner.setattr(ctx, set)?;
        if let Some(len_bytes) = set.size {
            self.writer.record(Event::Truncate {
                ino: self.inner.ino(),
                len_bytes,
            });
        }
        Ok(attr)
    }

    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        let written = self.inner.write(ctx, mode, data)?;
        self.wrote(written.offset, written.len_bytes);
        Ok(written)
    }
}
