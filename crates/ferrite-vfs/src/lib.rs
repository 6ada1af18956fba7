//! The one interface between front ends (library, mount) and engines.
//!
//! What lives here: the inode-level [`FileSystem`] trait and its types and errors; the POSIX rules ([`posix`]); path
//! walking with permission checks, once for all engines ([`Vfs`]); advisory locks ([`locks`]); traces of writes, for
//! any engine ([`trace`]); and an in-memory reference engine ([`memfs`]), which the tests use as their oracle.
//!
//! *Architecture invariant:* this crate depends on no front end, no engine and no medium; engines and the mount know
//! each other only through it.
//!
//! *Architecture invariant:* engines do not check permissions. [`Vfs`] does (for the library), or the kernel does (for
//! the mount, which passes `default_permissions`). Engines apply the *consequences* POSIX ties to an operation (setgid
//! inheritance, times, link counts) by calling the pure functions of [`posix`], so that these rules exist once.
#![forbid(unsafe_code)]

mod error;
mod fs;
pub mod locks;
pub mod memfs;
pub mod posix;
pub mod trace;
mod types;
mod vfs;

pub use error::{BadArgument, Corruption, FsError, Result, SpaceOf, Unsupported};
pub use fs::{FileSystem, OpenFile};
pub use types::*;
pub use vfs::{Dir, OpenFlags, Target, Vfs};
