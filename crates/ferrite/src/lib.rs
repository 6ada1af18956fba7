//! Ferrite as a library: a pool in this process, with an interface like [`std::fs`].
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
//! Contents: [`Fs`], [`File`], [`Dir`], [`OpenOptions`], [`Queue`] and their argument and result types, over
//! [`ferrite_vfs::Vfs`].
//! Names, types and traits are those of the standard library where it has them: [`Metadata`], [`FileType`],
//! [`DirEntry`] and [`OpenOptions`] implement the extension traits of [`std::os::unix::fs`], and [`File`] those of
//! [`std::io`], so that code for [`std::fs`] moves over with few changes.
//! An [`Error`] says which operation failed, on which path, and why; `?` converts it to a [`std::io::Error`] with the
//! errno. A pool belongs to one process at a time; several processes share one through a mount. In a forked child every
//! call on a handle opened before the fork fails with an error that says so, and dropping the handle does nothing.
//!
//! The mapping, which finds the pages of files, is chosen when a pool is created:
//!
//! ```
//! # fn main() -> ferrite::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("data.pool");
//! let options = ferrite::MkfsOptions::default().mapping(ferrite::Mapping::Leaf);
//! let fs = ferrite::Fs::create_with(&path, 64 << 20, &options)?;
//! assert_eq!(fs.info().unwrap().mapping, ferrite::Mapping::Leaf);
//! # Ok(())
//! # }
//! ```
//! Cargo features add what a pool in this process does not need: `net` opens exports of servers (`tcp://`), `fabric`
//! those reached over libfabric, `nvme` pools on devices, and `log` is an append-only log in a file.
#![forbid(unsafe_code)]

mod attributes;
mod borrow;
#[cfg(feature = "net")]
mod client;
mod dir;
mod error;
mod file;
mod fork_guard;
mod fs;
mod info;
mod listing;
mod locks;
#[cfg(feature = "log")]
pub mod log;
mod metadata;
mod names;
mod open;
mod options;
mod pool;
mod queue;
mod tree;
pub mod volume;

pub use borrow::Borrowed;
#[cfg(feature = "net")]
pub use client::{ClientOptions, Encrypt, Key};
pub use dir::Dir;
pub use error::{Cause, Error, OperationError, Result};
pub use file::File;
pub use fs::Fs;
pub use info::{DramUse, LastScrub, LogMerges, PoolInfo, RuntimeFinding};
pub use listing::{DirEntry, ReadDir};
pub use metadata::{FileTimes, FileType, Metadata};
pub use open::OpenOptions;
pub use options::VolumeOptions;

pub use pool::{AtimePolicy, Durability, Mapping, MkfsOptions, MountOptions};
pub use queue::{Completion, Queue};

// Types in the signatures above. None belongs to an engine.
pub use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, RecordLock, Wait};
pub use ferrite_vfs::posix::Access;
pub use ferrite_vfs::{Cred, FallocateMode, FileKind, Groups, NewNode, RenameMode, SpaceOf, StatFs, XattrMode};
