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
//! Built with the cargo feature `rocksdb` only: it needs a C++ compiler and RocksDB, which users of the library need
//! not have.

#[allow(unsafe_code)]
mod border;
mod files;

pub(crate) use border::{Db, DbError, Options, Place, Salvage, Txn};
pub(crate) use files::{FileError, Files, Reader, Writer};
