//! Floor 10, the public face of the engine: making, mounting and unmounting a pool, and the traits of `ferrite-vfs`.
//!
//! The implementations of the traits check arguments and delegate; the operations themselves are in [`crate::file`]
//! and [`crate::tree`].

mod dedup;
mod deregister;
mod describe;
mod file;
mod finalizer;
mod flusher;
mod fs;
mod grow;
mod handle;
mod info;
mod mkfs;
mod mount;
mod region;
mod volume;

pub use grow::grow;
pub use handle::{Engine, identify, is_clean};
pub use mkfs::{create, create_telling, mkfs};
#[cfg(test)]
pub(crate) use mount::{finish_interrupted, mount};
