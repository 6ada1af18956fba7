//! RocksDB's pessimistic transactions, on a directory of the machine or on files behind a trait.
//!
//! | module | contents |
//! | --- | --- |
//! | `files` | [`Files`], the file system that RocksDB needs |
//! | `border` | the language border: `db` the safe interface ([`Db`], [`Txn`]), `env` RocksDB's files over [`Files`], `ffi` the interface of Rust and C++ |
//! | `border/*.cc` | the C++ side: a database as functions, and a `rocksdb::FileSystem` that calls `env` |
//!
//! *Architecture invariant:* `unsafe` is for the language border and nowhere else; nothing unwinds across it.
//!
//! *Architecture invariant:* `ferrite-meta` alone uses this crate, and only with its cargo feature `rocksdb`: it needs
//! a C++ compiler and RocksDB, which users of the library need not have.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod border;
mod files;

pub use border::{Db, DbError, Options, Place, Salvage, Statistics, Txn};
pub use files::{FileError, Files, Reader, Writer};
