//! [`OpenOptions`], like those of `std::fs`.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ferrite_vfs::OpenFlags;

use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::fs::Fs;

/// Flags of `open(2)` that ask for what holds anyway: no program started later inherits a file of this library, and
/// each write is durable when it returns.
const FLAGS_THAT_HOLD: i32 = libc::O_CLOEXEC | libc::O_LARGEFILE | libc::O_DSYNC | libc::O_SYNC | libc::O_NOCTTY;

/// How to open a file. [`OpenOptionsExt`] sets the permission bits of a new file [default: 0644], and flags of
/// `open(2)`: `O_NOFOLLOW`, `O_NOATIME`, `O_TMPFILE` (with `O_EXCL`, the file never gets a name), and those whose wish
/// is always met (`O_CLOEXEC`, `O_SYNC`, `O_DSYNC`).
///
/// ```
/// use std::os::unix::fs::OpenOptionsExt;
///
/// # fn main() -> ferrite::Result<()> {
/// let fs = ferrite::Fs::memory();
/// let file = ferrite::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fs, "/secret")?;
/// # let _ = file;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    flags: OpenFlags,
    append: bool,
    mode: Option<u32>,
    custom_flags: i32,
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

    /// Opens `path` in `fs`. Creating and truncating the file are durable when this returns; they are two steps.
    ///
    /// # Errors
    /// Those of `open(2)`, with their error numbers. A named pipe, a socket or a device is `ENXIO`; a custom flag
    /// without effect here is `EINVAL`.
    pub fn open(&self, fs: &Fs, path: impl AsRef<Path>) -> Result<File> {
        let mut known = libc::O_NOFOLLOW | libc::O_NOATIME | libc::O_ACCMODE | FLAGS_THAT_HOLD;
        let is_nameless = self.custom_flags & libc::O_TMPFILE == libc::O_TMPFILE;
        if is_nameless {
            known |= libc::O_TMPFILE | libc::O_EXCL;
        }
        let flags = self.custom_flags & !known;
        if flags != 0 {
            return Err(Error::new("open", fs.prefix().join(path), Cause::OpenFlags { flags }));
        }
        let mut flags = self.flags;
        flags.no_follow |= self.custom_flags & libc::O_NOFOLLOW != 0;
        flags.no_atime |= self.custom_flags & libc::O_NOATIME != 0;
        flags.write |= self.append;
        flags.mode = self.mode.unwrap_or(0o644);
        if is_nameless {
            let is_final = self.custom_flags & libc::O_EXCL != 0;
            return File::nameless(fs, path.as_ref(), &flags, self.append, is_final);
        }
        File::open(fs, path.as_ref(), &flags, self.append)
    }
}

impl OpenOptionsExt for OpenOptions {
    fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }
}
