//! Checks that run inside the product in debug builds, and cost nothing in release builds.
//!
//! Contents: [`ranked`], locks that panic when a thread takes them out of order.
//!
//! Every crate may use this one, which uses none of them.
#![forbid(unsafe_code)]

pub mod ranked;
