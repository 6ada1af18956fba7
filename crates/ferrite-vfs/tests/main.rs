//! The tests of what engines share, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod lock_completions;
mod lock_crowds;
mod locks;
mod paths;
mod permissions;
mod posix;
mod reference;
mod rooted;
mod sticky;
mod submit;
mod trace;
