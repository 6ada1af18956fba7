//! Floor 4, a mounted pool: its state, and one change to it.
//!
//! Contents: [`core`], which all operations share; [`locks`], several inodes at once; [`tx`], one operation before its
//! commit. [`crate::retry`], above, handles operations that find no space.

mod buffers;
pub(crate) mod core;
mod dedup;
pub(crate) mod locks;
pub(crate) mod slots;
pub(crate) mod tx;
