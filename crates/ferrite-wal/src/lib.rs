//! A write-ahead log in a ring on a device: a block device or a file, as `ferrite-blob` opens them.
//!
//! | module | contents |
//! | --- | --- |
//! | `format` | the bytes: two superblocks, and groups of records |
//! | `log` | [`Wal`]: making and opening one, appending, making durable, freeing |
//! | `replay` | finding the end, and reading what is there |
//! | `mirror` | [`Mirror`]: two devices with the same log |
//! | `bounded` | a device whose answers are waited for only so long |
//! | `memory` | buffers, aligned as devices want them |
//! | `error` | [`Error`] |
//!
//! Records are bytes, which mean something to the caller. They are gathered in *groups*: a group is what one write to
//! the device has, durable when it returns, so threads that wait for their records share a write. A *position* grows
//! for ever; its remainder is its place in the ring. Everything from the *head* to the end is kept; the caller moves
//! the head.
//!
//! **Crashes.** One group is written at a time, each after the one before it is durable. So a crash leaves all groups
//! but perhaps the last one, which is whole or torn; a torn one is where the log ends. A group that does not fit to
//! its checksum with a whole one behind it is damage, and is an error. Space is reused only after a superblock is
//! durable whose head is behind it; the two superblocks are written in turn.
//!
//! **Forged groups.** Records contain bytes of users. A group is known by the log's random id, which no user sees,
//! besides its position and checksum: so the remains of a long group, behind the end, do not pass for groups.
//!
//! *Architecture invariant:* this crate knows no files and no content stores.
#![forbid(unsafe_code)]

mod bounded;
mod error;
mod format;
mod lock_order;
mod log;
mod memory;
mod mirror;
mod replay;

pub use error::{Error, Result};
pub use format::{GROUP_BYTES_MAX, Position, RECORD_BYTES_MAX, SIZE_MIN, Term};
pub use log::{Opened, Usage, Wal};
pub use mirror::{Joining, Mirror};
