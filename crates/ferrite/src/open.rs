//! [`OpenOptions`], like those of `std::fs`.

use std::path::Path;

use ferrite_vfs::OpenFlags;

use crate::error::Result;
use crate::file::File;
use crate::fs::Fs;

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
    /// Options that allow nothing yet.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    switches! {
        /// Allow reads.
        read => read;
        /// Allow writes.
        write => write;
        /// Create the file if it is missing.
        create => create;
        /// Truncate the file.
        truncate => truncate;
        /// Refuse a symbolic link as the last component of the path (`ELOOP`).
        no_follow => no_follow;
        /// Do not update access times.
        no_atime => no_atime;
    }

    /// Create the file, and refuse an existing one.
    pub fn create_new(&mut self, on: bool) -> &mut Self {
        self.flags.create = on;
        self.flags.exclusive = on;
        self
    }

    /// Every write atomically appends to the end of the file.
    pub fn append(&mut self, on: bool) -> &mut Self {
        self.append = on;
        self
    }

    /// Permission bits of a new file [default: 0644].
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Opens `path` in `fs`. Creating and truncating the file are durable when this returns; they are two steps.
    ///
    /// # Errors
    /// Those of `open(2)`, with their error numbers. A named pipe, a socket or a device is `ENXIO`.
    pub fn open(&self, fs: &Fs, path: impl AsRef<Path>) -> Result<File> {
        let mut flags = self.flags;
        flags.write |= self.append;
        flags.mode = self.mode.unwrap_or(0o644);
        File::open(fs, path.as_ref(), &flags, self.append)
    }
}
