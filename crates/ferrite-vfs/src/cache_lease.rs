//! Cache leases of an engine whose files others change too: valid for a while, until the engine recalls them.
//!
//! Contents: [`CacheLeases`], for front ends that cache replies (a mount, whose kernel does). An engine whose
//! [`crate::Limits::validity`] bounds the age of cached replies does not need it.

use std::time::Duration;

use crate::{Attr, Ino};

/// Recalls the cached attributes of an inode and, of a directory, its names. True once no cache relies on them any
/// more. May block, but not on the engine without a bound.
pub type RecallHandler = Box<dyn Fn(Ino) -> bool + Send + Sync>;

/// The leases of an engine, as durations from now on; zero: no lease. While a lease lasts, no other client changes its
/// object unless the engine has recalled the lease first ([`CacheLeases::watch`]). Callers of this same engine must
/// track their own changes.
///
/// No method blocks.
pub trait CacheLeases: Send + Sync {
    /// The lease on attributes that it has returned, except the access time.
    fn attr(&self, attr: &Attr) -> Duration;

    /// The lease on the result of a lookup: the inode of a name in a directory, or its absence.
    fn name(&self, dir: Ino, name: &[u8], found: Option<Ino>) -> Duration;

    /// Sets the callback for recalls. The engine grants no lease before. Only the first call counts.
    fn watch(&self, handler: RecallHandler);
}
