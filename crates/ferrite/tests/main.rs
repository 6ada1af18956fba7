//! The tests of the library, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod attributes;
mod borrowed;
mod calls;
mod common;
mod directories;
mod errors;
mod file_locks;
mod library;
mod options;
mod posix;
mod posix_library;
mod public_names;
mod queue;
#[cfg(feature = "net")]
mod servers;
