//! The tests of the engine of devices, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod clones;
mod common;
mod content;
mod damage;
mod faults;
mod lookups;
#[cfg(feature = "rocksdb")]
mod meta_on_blobs;
mod ownership;
#[cfg(feature = "postgres")]
mod postgres;
mod quotas;
mod rare;
#[cfg(feature = "rocksdb")]
mod settings;
#[cfg(feature = "s3")]
mod slices;
mod small;
mod suites;
mod transfers;
#[cfg(feature = "rocksdb")]
mod tree;
mod whole;
