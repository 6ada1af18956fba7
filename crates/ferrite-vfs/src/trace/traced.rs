//! [`Traced`]: an engine whose writes are recorded.
//!
//! Recorded is what succeeded, after it was done: writes, appends, new sizes, files created, and files opened for
//! writing for the first time. `fallocate` is not: it writes no data. Every call is passed to the engine unchanged.

use std::sync::Arc;

use super::{Event, TraceWriter};
use crate::{
    Attr, Cred, DirEntry, FallocateMode, FileKind, FileSystem, Ino, NewNode, OpenFile, OpenMode, RenameMode, Result,
    SetAttr, StatFs, XattrMode,
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

/// Methods that only call the engine.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> $result {
            self.inner.$name($($argument),*)
        })*
    };
}

impl<F: FileSystem> FileSystem for Traced<F> {
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let Some(len_bytes) = set.size else {
            return self.inner.setattr(ino, set);
        };
        let before = self.inner.getattr(ino)?;
        let attr = self.inner.setattr(ino, set)?;
        self.writer.introduce(ino, before.size);
        self.writer.record(Event::Truncate { ino, len_bytes });
        Ok(attr)
    }

    fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let attr = self.inner.mknod(cred, parent, name, node)?;
        if node.kind == FileKind::File {
            // The number may have been another file's before.
            self.writer.record(Event::File {
                ino: attr.ino,
                len_bytes: 0,
            });
        }
        Ok(attr)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let inner = self.inner.open(ino, mode)?;
        if mode.write {
            // The size is read before the event is recorded: any writer since then has introduced the file.
            self.writer.introduce(ino, inner.getattr()?.size);
        }
        Ok(Arc::new(TracedFile {
            inner,
            writer: Arc::clone(&self.writer),
        }))
    }

    passed_on! {
        statfs() -> Result<StatFs>;
        lookup(parent: Ino, name: &[u8]) -> Result<Attr>;
        parent(dir: Ino) -> Result<Ino>;
        getattr(ino: Ino) -> Result<Attr>;
        pin(ino: Ino, generation: u32) -> Result<()>;
        unpin(ino: Ino, count: u64) -> ();
        forget(ino: Ino, count: u64) -> ();
        readlink(ino: Ino) -> Result<Vec<u8>>;
        mkdir(cred: &Cred, parent: Ino, name: &[u8], mode: u32) -> Result<Attr>;
        symlink(cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;
        link(ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
        unlink(parent: Ino, name: &[u8]) -> Result<()>;
        rmdir(parent: Ino, name: &[u8]) -> Result<()>;
        rename(parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
        readdir(dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;
        getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        setxattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        listxattr(ino: Ino) -> Result<Vec<Vec<u8>>>;
        removexattr(ino: Ino, name: &[u8]) -> Result<()>;
        sync() -> Result<()>;
    }
}

impl OpenFile for TracedFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let count = self.inner.write_at(offset, data)?;
        self.wrote(offset, count);
        Ok(count)
    }

    fn append(&self, data: &[u8]) -> Result<(u64, usize)> {
        let (offset, count) = self.inner.append(data)?;
        self.wrote(offset, count);
        Ok((offset, count))
    }

    passed_on! {
        ino() -> Ino;
        getattr() -> Result<Attr>;
        read_at(offset: u64, buf: &mut [u8]) -> Result<usize>;
        fallocate(mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
        seek_data(offset: u64) -> Result<u64>;
        seek_hole(offset: u64) -> Result<u64>;
        fsync() -> Result<()>;
    }
}
