//! Mounts any [`FileSystem`] through FUSE.
//!
//! | module | contents |
//! | --- | --- |
//! | `options` | [`FuseOptions`]: options of a mount |
//! | `mount` | [`mount`], [`Mounted`]: the session and its end |
//! | `service` | one FUSE request = one call of the engine, whatever the transport |
//! | `session` | what kernel and mount agree on at first |
//! | `message` | requests decoded, replies encoded |
//! | `serve` | a request becomes its reply, on either transport |
//! | `classic` | the classic transport: `/dev/fuse` |
//! | `busy_poll` | readers that look for a request before they sleep |
//! | `load` | how busy the machine is |
//! | `ring` | FUSE over io_uring: requests served on the CPU of their caller |
//! | `caller` | the caller of a request |
//! | `convert` | attributes and errors, from the engine's to the kernel's |
//! | `freeze_barrier` | holding changes back while the pool is copied: [`FreezeBarrier`] |
//! | `interrupts` | callers that give up while their request waits for a server |
//! | `handles` | open files by the numbers the kernel knows |
//! | `attr_validity` | how long the kernel may keep attributes |
//! | `locks` | record locks that the engine keeps |
//! | `meter` | counters of requests: [`Meter`] |
//! | `notify` | notifying the kernel of changes by others: [`Notifications`] |
//! | `retries` | a thread that retries changes that failed |
//! | `space` | changes that find no space, and are retried |
//! | `spare` | threads for requests that would occupy the last reader |
//! | `leased` | entries that the kernel keeps until the engine recalls them |
//!
//! Decisions, with reasons:
//! * Requests run on the thread that read them: waking another costs more than the work. With rings that thread also
//!   runs on the caller's CPU ([`Rings`]).
//! * fuser mounts, replies to `INIT`, and notifies the kernel. It serves no requests: fuser 0.18 knows neither `STATX`
//!   nor `TMPFILE`, rejects `INTERRUPT`, and does not say whether a lock is one of `flock`. Its types for requests and
//!   replies cannot be made outside of it either, which rings need. So both transports share our decoder and encoder.
//! * The kernel checks permissions (`default_permissions`); it knows the caller's groups, this crate does not.
//! * Names, attributes and pages stay cached in the kernel for a day if the engine guarantees that no one else changes
//!   anything. If its replies must not be trusted at all, nothing is cached, and files are read directly. If it gives
//!   leases on them, which it recalls, names and attributes are cached, for a second or two at a time.
//! * Users that move much data may bypass the kernel's copies ([`FuseOptions::direct_io`]).
//! * Writes are passed through, not cached: a completed `write` is durable. Dirty pages of shared mappings arrive as
//!   writes when the kernel flushes them (`msync`, `munmap`, memory pressure).
//! * setuid and setgid are cleared here (`HANDLE_KILLPRIV_V2`); otherwise the kernel would ask for an attribute before
//!   each write. The engine clears file capabilities. The kernel keeps no attributes of files that have setuid or
//!   setgid, since the reply to a direct write does not show that they are gone.
//! * The kernel keeps `flock` and `fcntl` locks: all users of a mount share one kernel. If the engine has other users,
//!   [`FuseOptions::engine_locks`] makes it keep those of `fcntl`.
//!
//! *Architecture invariant:* this crate knows no engine.
#![deny(unsafe_code)]

mod attr_validity;
mod busy_poll;
mod caller;
mod classic;
mod convert;
mod freeze_barrier;
mod handles;
mod interrupts;
mod leased;
mod load;
mod lock_order;
mod locks;
mod message;
mod meter;
mod mount;
mod notify;
mod options;
mod retries;
mod ring;
mod serve;
mod service;
mod session;
mod space;
mod spare;

#[cfg(doc)]
use ferrite_vfs::FileSystem;
pub use freeze_barrier::FreezeBarrier;
pub use meter::{Meter, RequestCounts};
pub use mount::{FuseError, Mounted, Unmounter, Way, mount, remount};
pub use notify::Notifications;
pub use options::{FuseOptions, Rings};
pub use ring::rings_offered;
pub use service::{CLONE_XATTR, clone_request};
