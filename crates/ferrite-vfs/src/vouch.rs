//! What an engine vouches for though others change its files, too: for a while, and until it takes that back.
//!
//! Contents: [`Vouching`], for front ends that keep what they were told (a mount, whose kernel does). An engine
//! whose [`crate::Limits::trust`] says how long anything may be kept needs none of it.

use std::time::Duration;

use crate::{Attr, Ino};

/// Takes back what was told of an inode: its attributes and, of a directory, its names. True once nobody relies on it
/// any more. May block, but not on the engine without a bound.
pub type TakeBack = Box<dyn Fn(Ino) -> bool + Send + Sync>;

/// What an engine vouches for, from now on for so long; zero: not at all. As long as it vouches for something nobody
/// else changes that, unless what was told has been taken back first ([`Vouching::watch`]). What callers of this same
/// engine change is their own to know.
///
/// Nothing blocks.
pub trait Vouching: Send + Sync {
    /// For attributes that it has told, but for the access time.
    fn attr(&self, attr: &Attr) -> Duration;

    /// For what it has told of a name in a directory: which inode that stands for, or that there is none.
    fn name(&self, dir: Ino, name: &[u8], found: Option<Ino>) -> Duration;

    /// Has what was told taken back this way from now on. Nothing is vouched for before that. Only the first call
    /// counts.
    fn watch(&self, take_back: TakeBack);
}
