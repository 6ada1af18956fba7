//! Floor 4, a mounted pool: its state, and one change of it.
//!
//! What lives here: [`core`], which all operations share; [`locks`], several inodes at once; [`tx`], one operation in
//! the making. What an operation does when it finds no space stands above, in [`crate::retry`].

pub(crate) mod core;
pub(crate) mod locks;
pub(crate) mod tx;
