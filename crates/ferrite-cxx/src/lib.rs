//! The borders between Rust and C++.
//!
//! | module | what lives there |
//! | --- | --- |
//! | `border` | types that cross each border, as in `include/ferrite/border.h`; panics end at it |
//! | `build` | for build scripts: [`Half`] compiles and links a crate's C++ half (cargo feature `build`) |
//!
//! *Architecture invariant:* it knows no library; each crate with a C++ half declares the functions of its own.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod border;
#[cfg(feature = "build")]
mod build;

pub use border::{Bytes, Failure, Kind, Sink, boxed, close, guarded, unboxed, visit};
#[cfg(feature = "build")]
pub use build::{Half, Library, Linkage, Needs};
