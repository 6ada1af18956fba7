//! The language border: all of the crate's `unsafe`, and all that knows C++.
//!
//! Invariants: what C++ holds of Rust (a root, a reader, a writer, the one who is told) outlives the database, which
//! closes before it lets go of them; nothing unwinds from one side into the other.

mod db;
mod env;
mod ffi;

pub use db::{Db, DbError, Options, Place, Salvage, Statistics, Txn};
