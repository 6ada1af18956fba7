//! Ferrite for programs in C: libferrite.
//!
//! | module | contents |
//! | --- | --- |
//! | `border` | pointers and lengths of C, as types of Rust: nearly all `unsafe` code |
//! | `errno` | the number of the last error, where C looks for it |
//! | `failure` | errors as `errno` and a text; panics stay inside |
//! | `volume` | volumes: open, make, close, their space |
//! | `file` | open files: transfers, sizes, locks |
//! | `queue` | submitted transfers and their completions |
//! | `names` | names and directories |
//! | `attributes` | attributes and extended attributes |
//!
//! # What all functions share
//!
//! * A function that fails returns -1, or NULL, and sets `errno`. `ferrite_error` returns a text for it. A function
//!   that fails has changed nothing, unless it says otherwise.
//! * Any thread may call any function, with any handle. A handle must not be used while or after another thread closes
//!   it.
//! * Names are bytes that end with a zero, of at most 65,535 bytes. A pointer that must not be NULL and is, is refused
//!   with `EFAULT`.
//! * Structs begin with their size, which the caller sets: `ferrite_stat st = { sizeof st };`. The library fills no
//!   more than that, so that structs can grow.
//! * After `fork`, the child cannot use what its parent opened: functions fail with `EBUSY`. It may close handles,
//!   which frees nothing of the parent's.
//! * A change is atomic. It is durable when the function returns, if the volume was opened with `durability=strict`,
//!   the default; see the manual.
//!
//! *Architecture invariant:* only the public crate `ferrite` is below. Nothing in Rust uses this crate.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "names for C")]
pub mod attributes;
#[expect(unsafe_code, reason = "pointers of C")]
mod border;
#[expect(unsafe_code, reason = "a variable of C")]
mod errno;
#[expect(unsafe_code, reason = "names for C")]
pub mod failure;
#[expect(unsafe_code, reason = "names for C")]
pub mod file;
#[expect(unsafe_code, reason = "names for C")]
pub mod names;
#[expect(unsafe_code, reason = "names for C")]
pub mod queue;
#[expect(unsafe_code, reason = "names for C")]
pub mod volume;
