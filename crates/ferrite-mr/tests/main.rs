//! The tests of files as memory regions, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod cost;
mod double;
mod memory;
mod model;
mod stopped;
#[path = "../../ferrite-roce/tests/support/mod.rs"]
mod support;
mod together;
mod wire;
