//! Ferrite as a library: a pool in this process, used as one uses [`std::fs`].
//!
//! ```
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data.pool");
//! let fs = ferrite::Fs::create(&path, 64 << 20)?; // or Fs::open for a pool that exists
//! fs.create_dir("/logs")?;
//! let mut log = fs.create_file("/logs/today")?;
//! log.write_all(b"each write is atomic and durable when it returns\n")?;
//!
//! let mut text = String::new();
//! fs.open_file("/logs/today")?.read_to_string(&mut text)?;
//! assert!(text.starts_with("each write"));
//! fs.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! What lives here: [`Fs`], [`File`], [`OpenOptions`] and what they return, over [`ferrite_vfs::Vfs`]. Errors are
//! [`std::io::Error`]s with the errno of the operation and the path in their text. A pool belongs to one process at a
//! time; several processes share one through a mount. In a forked child every call on what was opened before the fork
//! fails and says so, and dropping it does nothing.

mod file;
mod fs;
mod own;
mod tree;

pub use ferrite_fs::{AtimePolicy, MkfsOptions, MountOptions, PoolInfo};
pub use ferrite_vfs::{Cred, FallocateMode, FileKind, RenameMode};
pub use file::{File, OpenOptions};
pub use fs::{DirEntry, Fs, Metadata, ReadDir};
