//! Test suites that every engine runs: written from the contract ([`ferrite_vfs::FileSystem`], POSIX and the project's
//! design), never from an engine's code.
//!
//! Contents: operations as values ([`ops`]), random sequences of them ([`generate`]) and their application and checks
//! ([`apply`]); a whole tree as a value ([`snapshot`]); the comparison with the reference engine ([`model`]); a table
//! of POSIX cases ([`posix`]); checks of concurrent behaviour ([`linear`]); one simple operation done thousands of
//! times ([`loops`]); calls that must fail whole ([`whole`]); resource usage of a process ([`growth`]); and a network
//! in front of any engine ([`network`]).
//!
//! An engine's `tests/` folder implements [`TestEngine`] and [`loops::LoopEngine`] and calls
//! [`model::check_against_reference`], [`posix::run_all`], [`linear::run_all`] and [`loops::run`]; `tests/memfs.rs` of
//! this crate is the example.
//!
//! *Architecture invariant:* nothing here knows an engine, and nothing here may be relaxed to suit one. Where
//! the contract leaves a choice, the check accepts every choice, and its comment says so.
#![forbid(unsafe_code)]

pub mod acl;
pub mod apply;
pub mod generate;
pub mod growth;
pub mod linear;
pub mod loops;
pub mod model;
pub mod network;
pub mod ops;
pub mod posix;
pub mod rng;
pub mod snapshot;
pub mod whole;

use std::sync::atomic::{AtomicUsize, Ordering};

use ferrite_vfs::FileSystem;

/// An engine on some medium, for the suites.
pub trait TestEngine {
    /// The mounted file system.
    fn fs(&self) -> &dyn FileSystem;

    /// Unmounts cleanly and mounts again. The suites have closed every handle and released every pin. An engine that
    /// keeps nothing (the in-memory reference) does nothing.
    fn remount(&mut self);

    /// Checks every structure of the engine (its fsck); panics on findings.
    fn check(&self);
}

/// The seed to replay, if `FERRITE_SEED` is set (decimal, or hexadecimal after `0x`).
///
/// # Panics
/// When the variable is set to something else: a replay that silently ran another seed would mislead.
pub fn seed_from_env() -> Option<u64> {
    let text = std::env::var("FERRITE_SEED").ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("FERRITE_SEED={text}: want a decimal number, or 0x and hexadecimal digits")))
}

/// Calls `work` for each of `items`, two at a time: a long test that runs last would leave a core idle.
///
/// # Panics
/// If `work` does, after the other thread has finished its items.
pub fn two_at_a_time<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}
