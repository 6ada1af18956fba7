//! The context that every call of [`crate::FileSystem`] and [`crate::OpenFile`] carries: the caller, and how it asks.
//!
//! Invariant: making a [`Ctx`] allocates nothing, and passing one costs an engine nothing as long as it asks for
//! nothing. A mount makes one for each request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{DedupToken, Waits};

/// The supplementary groups of a caller.
#[derive(Clone, Default)]
pub enum Groups {
    /// No groups.
    #[default]
    None,
    /// These.
    List(Arc<[u32]>),
    /// Those of a process, looked up only when a rule needs them. A kernel's request names one group and the process,
    /// and few rules ask for more.
    OfProcess {
        /// The process.
        pid: u32,
        /// Returns its groups; empty if the process is gone.
        list: fn(pid: u32) -> Vec<u32>,
    },
}

impl Groups {
    /// Whether `gid` is one of them.
    pub fn contain(&self, gid: u32) -> bool {
        match self {
            Groups::None => false,
            Groups::List(list) => list.contains(&gid),
            Groups::OfProcess { pid, list } => list(*pid).contains(&gid),
        }
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Groups::None => f.write_str("none"),
            Groups::List(list) => list.fmt(f),
            Groups::OfProcess { pid, .. } => write!(f, "of process {pid}"),
        }
    }
}

/// The caller of an operation. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cred {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl Cred {
    /// A user with one group.
    pub const fn new(uid: u32, gid: u32) -> Self {
        Cred {
            uid,
            gid,
            groups: Groups::None,
        }
    }

    /// The same user with these supplementary groups.
    pub fn with_groups(self, groups: &[u32]) -> Self {
        Cred {
            groups: Groups::List(Arc::from(groups)),
            ..self
        }
    }

    /// The superuser.
    pub const fn root() -> Self {
        Cred::new(0, 0)
    }

    /// Whether permission checks are waived.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is in `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contain(gid)
    }
}

/// A client of the engine as the holder of locks: whatever stands between a user and an engine, for example a mount or
/// a connection. It numbers lock owners itself; when it leaves, [`crate::FileSystem::release_client`] drops all its
/// locks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// This process itself.
    pub const LOCAL: ClientId = ClientId(0);

    /// An id that nothing else in this process has.
    pub fn fresh() -> ClientId {
        static LAST: AtomicU64 = AtomicU64::new(ClientId::LOCAL.0);
        ClientId(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The context of a call.
#[derive(Debug, Clone)]
pub struct Ctx {
    /// The caller. It owns the files it creates, and the rules about setuid and setgid look up its groups.
    pub cred: Cred,
    /// The engine checks the caller's permissions, under the locks it takes anyway: nothing can change between a check
    /// and what it allowed. Off for callers that have checked, as a kernel does for its mounts.
    pub check: bool,
    /// A call that takes a name and returns attributes pins that inode, as [`crate::FileSystem::pin`] does (except the
    /// root, which is never freed), before anything can remove the name again.
    pub pins: bool,
    /// The call moves no access time, whoever owns the file. For front ends that decide this for all callers, as a
    /// read-only export does; an owner asks with [`crate::OpenMode::no_atime`].
    pub no_atime: bool,
    /// The requested change happens once, however often the caller repeats the call with this token.
    pub token: Option<DedupToken>,
    /// The client whose locks the call concerns.
    pub client: ClientId,
    /// How long the call may wait for something unreachable.
    pub waits: Waits,
    /// The bits that a new inode does not get of the mode in the call, unless its directory has a default access
    /// control list. 0 for callers that have applied their mask.
    pub umask: u32,
}

/// An operation by the program itself: as root, unchecked.
pub const SYSTEM: &Ctx = &Ctx {
    cred: Cred::root(),
    check: false,
    pins: false,
    no_atime: false,
    token: None,
    client: ClientId::LOCAL,
    waits: Waits::FOREVER,
    umask: 0,
};

impl Ctx {
    /// A caller whose permissions the engine checks.
    pub const fn checked(cred: Cred) -> Ctx {
        Ctx {
            cred,
            check: true,
            pins: false,
            no_atime: false,
            token: None,
            client: ClientId::LOCAL,
            waits: Waits::FOREVER,
            umask: 0,
        }
    }

    /// A caller whose permissions were checked already.
    pub const fn trusted(cred: Cred) -> Ctx {
        Ctx {
            cred,
            check: false,
            pins: false,
            no_atime: false,
            token: None,
            client: ClientId::LOCAL,
            waits: Waits::FOREVER,
            umask: 0,
        }
    }

    /// The same, of another client.
    pub fn of_client(self, client: ClientId) -> Ctx {
        Ctx { client, ..self }
    }

    /// The same, but it waits no longer than this for something unreachable.
    pub fn waiting(self, waits: Waits) -> Ctx {
        Ctx { waits, ..self }
    }

    /// The same, with [`Self::pins`].
    pub fn pinning(self) -> Ctx {
        Ctx { pins: true, ..self }
    }

    /// The same, for a change that carries this token.
    pub fn token(self, token: DedupToken) -> Ctx {
        Ctx {
            token: Some(token),
            ..self
        }
    }

    /// Whether a change of content by this caller clears setuid and setgid.
    pub fn kills_priv(&self) -> bool {
        self.check && !self.cred.is_root()
    }
}
