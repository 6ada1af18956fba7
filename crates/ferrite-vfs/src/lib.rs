//! The one interface between front ends (library, mount) and engines.
//!
//! Contents: the inode-level [`FileSystem`] trait and its types and errors; the POSIX rules ([`posix`]); path walking
//! with permission checks, once for all engines ([`Vfs`]); the administrator's side of an engine ([`volume`]); advisory
//! locks, and the table in which engines keep them ([`locks`]); tokens of changes that happen once ([`dedup`]); traces
//! of writes, for any engine ([`trace`]); and cache leases of engines with other users ([`CacheLeases`]).
//!
//! Besides: files as memory regions ([`regions`]); names in messages ([`Shown`]); threads for blocking work
//! ([`workers`]); how long operations took ([`latency`]); how long calls may wait for unreachable servers ([`Waits`]);
//! and an in-memory reference engine ([`memfs`]), which the tests use as their oracle.
//!
//! *Architecture invariant:* this crate depends on no front end, no engine and no medium; engines and the mount know
//! each other only through it.
//!
//! *Architecture invariant:* every rule of permissions, and every consequence that POSIX ties to an operation (setgid
//! inheritance, times, link counts), is a pure function of [`posix`], and exists once. Engines call them under their
//! own locks, those for permissions if the call's [`Ctx`] asks. A kernel checks for its mounts itself.
#![forbid(unsafe_code)]

pub mod acl;
mod cache_lease;
mod clone;
mod copy;
mod ctx;
pub mod dedup;
mod error;
mod flags;
mod fs;
pub mod latency;
mod layer;
pub mod locks;
pub mod memfs;
mod mode;
pub mod posix;
mod quota;
mod random;
pub mod regions;
mod shown;
mod snapshot_space;
mod text;
pub mod trace;
mod types;
mod vfs;
pub mod volume;
mod waits;
pub mod workers;

pub use cache_lease::{CacheLeases, RecallHandler};
pub use clone::{CLONE_UNIT_BYTES, CloneRange, OpenFileId};
pub use copy::{copy_data, copy_range};
pub use ctx::{ClientId, Cred, Ctx, Groups, SYSTEM};
pub use dedup::{DedupToken, Outcome};
pub use error::{BadArgument, Corruption, ErrorCode, FileBytes, FsError, Result, SessionsOf, SpaceOf, Unsupported};
pub use ferrite_buffers as buffers;
pub use flags::{FLAGS_XATTR, InodeFlags, NameChange};
pub use fs::{FileSystem, OpenFile, ReadDone, WriteDone, sync_names, walk};
pub use layer::{FileLayer, Layer, Shared};
pub use quota::{
    QUOTA_LEVELS_MAX, QUOTA_XATTR, QUOTAS_LISTED_MAX, Quota, QuotaAccount, QuotaAttribute, QuotaChange, QuotaCharge,
    QuotaLimits, QuotaOwners, QuotaTable, QuotaUsage, QuotaUse, USER_QUOTAS_MAX, UserQuota, UserQuotas,
    check_attribute_name,
};
pub use random::random;
pub use shown::Shown;
pub use snapshot_space::{SNAPSHOT_XATTR, SnapshotSpace, SnapshotWalk};
pub use types::*;
pub use vfs::{Dir, Target, Vfs};
pub use waits::{WaitingCaller, Waits};
