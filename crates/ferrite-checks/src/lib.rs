//! Locks, and checks that run inside the product in debug builds and tests, and cost nothing in release builds.
//!
//! Contents: [`ranked`], locks that panic when a thread takes them out of order; [`condvar`], conditions to wait for;
//! [`fault_injection`], bugs that tests switch on.
//!
//! Every crate may use this one, which uses none of them.
#![forbid(unsafe_code)]

pub mod condvar;
pub mod fault_injection;
pub mod ranked;
