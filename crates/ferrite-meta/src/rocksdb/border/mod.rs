//! The language border: all of the crate's `unsafe`, and all code that knows C++.
//!
//! Invariants: all Rust objects that C++ holds (a root, a reader, a writer, the receiver of notices) outlive the
//! database, which closes before it drops them; nothing unwinds from one side into the other.

mod db;
mod env;
mod ffi;

pub(crate) use db::{Db, DbError, Options, Place, Salvage, Txn};
