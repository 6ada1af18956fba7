//! The tests of the test kit, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod calls;
mod faults;
mod faulty;
mod memfs;
mod remote;
mod replay;
mod traced;
