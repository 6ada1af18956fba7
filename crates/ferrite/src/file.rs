//! [`File`] and [`OpenOptions`], as those of `std::fs`.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite_vfs::{FallocateMode, FsError, OpenFile, OpenFlags, SetAttr, SpaceOf, posix};

use crate::fs::{Fs, Metadata, error_at};
use crate::own::Own;

/// How to open a file.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    flags: OpenFlags,
    append: bool,
    mode: Option<u32>,
}

macro_rules! switches {
    ($($(#[$doc:meta])* $name:ident => $field:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, on: bool) -> &mut Self {
            self.flags.$field = on;
            self
        }
    )*};
}

impl OpenOptions {
    /// Nothing allowed yet.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    switches! {
        /// Allow reads.
        read => read;
        /// Allow writes.
        write => write;
        /// Make the file if it is missing.
        create => create;
        /// Cut the file to nothing.
        truncate => truncate;
        /// Leave access times alone.
        no_atime => no_atime;
    }

    /// Make the file, and refuse one that exists.
    pub fn create_new(&mut self, on: bool) -> &mut Self {
        self.flags.create = on;
        self.flags.exclusive = on;
        self
    }

    /// Every write goes to the end of the file, found and moved in the same atomic step.
    pub fn append(&mut self, on: bool) -> &mut Self {
        self.append = on;
        self
    }

    /// Permission bits of a new file [default: 0644].
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Opens `path` in `fs`.
    pub fn open(&self, fs: &Fs, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        let mut flags = self.flags;
        flags.write |= self.append;
        flags.mode = self.mode.unwrap_or(0o644);
        Ok(File {
            fs: fs.clone(),
            file: fs.hand_out(path, |vfs, path| vfs.open(path, &flags))?,
            path: path.to_path_buf(),
            append: self.append,
            writable: flags.write,
            position: 0,
        })
    }
}

/// An open file with a position. Writes are atomic and durable when they return; there is nothing to flush.
pub struct File {
    fs: Fs,
    file: Own<Arc<dyn OpenFile>>,
    path: PathBuf,
    append: bool,
    writable: bool,
    position: u64,
}

impl File {
    fn check<T>(&self, result: ferrite_vfs::Result<T>) -> io::Result<T> {
        result.map_err(error_at(&self.path))
    }

    fn run<T>(&self, f: impl FnOnce(&dyn OpenFile) -> ferrite_vfs::Result<T>) -> io::Result<T> {
        self.check(f(&**self.file.get()?))
    }

    /// Its attributes.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.run(|file| file.getattr()).map(Metadata)
    }

    /// Cuts the file, or extends it by a hole. The handle must be open for writing, as with `ftruncate(2)`.
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        if !self.writable {
            return self.check(Err(FsError::Invalid("the file is not open for writing")));
        }
        let file = self.file.get()?;
        self.fs.at(&self.path, |vfs, _| {
            let set = SetAttr {
                size: Some(size),
                kill_priv: !vfs.cred().is_root(),
                by_stranger: posix::is_stranger(&file.getattr()?, vfs.cred()),
                ..SetAttr::default()
            };
            vfs.fs().setattr(file.ino(), &set).map(drop)
        })
    }

    /// Appends atomically; returns where the data went.
    pub fn append(&self, data: &[u8]) -> io::Result<u64> {
        match self.run(|file| file.append(data))? {
            (offset, count) if count == data.len() => Ok(offset),
            _ => self.check(Err(FsError::NoSpace(SpaceOf::Blocks))),
        }
    }

    /// Reserves, punches or zeroes a range.
    pub fn allocate(&self, mode: FallocateMode, offset: u64, len: u64) -> io::Result<()> {
        self.run(|file| file.fallocate(mode, offset, len))
    }

    /// Says whether all is durable: it is, unless the medium failed.
    pub fn sync_all(&self) -> io::Result<()> {
        self.run(|file| file.fsync())
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(buf, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.append {
            let (offset, count) = self.run(|file| file.append(data))?;
            self.position = offset + count as u64;
            return Ok(count);
        }
        let count = self.write_at(data, self.position)?;
        self.position += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, delta) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(delta) => (self.position, delta),
            SeekFrom::End(delta) => (self.metadata()?.len(), delta),
        };
        let target = base.checked_add_signed(delta);
        self.position = self.check(target.ok_or(FsError::Invalid("a position before the start")))?;
        Ok(self.position)
    }
}

impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.run(|file| file.read_at(offset, buf))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.run(|file| file.write_at(offset, data))
    }
}
