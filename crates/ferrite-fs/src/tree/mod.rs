//! Floor 8, names and attributes: directories, and the operations on them.
//!
//! Contents: one file for each family of operations, [`dir`] for directory blocks, [`lookup`] for their shared code.
//! Called by the traits on the engine's floor, and by recovery to complete interrupted operations.
//!
//! Invariant: a function that changes something takes all its locks first, then checks again everything its decision
//! rests on, then commits one record. If something has changed in between, it restarts.

pub(crate) mod attr;
pub(crate) mod clone;
pub(crate) mod create;
pub(crate) mod dir;
pub(crate) mod held;
pub(crate) mod lookup;
pub(crate) mod open;
pub(crate) mod permission;
pub(crate) mod plus;
pub(crate) mod quota;
pub(crate) mod quota_counts;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod user_quota;
pub(crate) mod xattr;

#[cfg(test)]
mod tests;
