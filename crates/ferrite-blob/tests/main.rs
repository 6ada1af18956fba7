//! The tests of blobs on devices, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod common;
mod faults;
mod model;
mod proof;
mod shared;
mod slots;
mod submitted;
mod sums;
mod untangle;
mod uring;
