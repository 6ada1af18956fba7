//! A filekey: a right to remote access to a file, with its holder.
//!
//! Invariant: a revoked key stays revoked. Its number is not reused while this one is in the table of keys.

use std::fmt;

use ferrite_vfs::posix::{self, Access, Guarded};
use ferrite_vfs::{Attr, Cred};

use crate::sync::{AtomicBool, Ordering};

/// A session: it is granted keys, and its queue pairs may use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// The rights of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Rights {
    /// READs.
    pub read: bool,
    /// WRITEs below the end and, with [`Self::read`], atomics.
    pub write: bool,
    /// Appends and reservations.
    pub append: bool,
    /// WRITEs are whole or not at all, as local ones are, up to [`ferrite_vfs::Limits::atomic_write_bytes`]. Longer
    /// ones are refused.
    pub atomic_writes: bool,
}

impl Rights {
    /// Read only.
    pub const READ: Rights = Rights {
        read: true,
        write: false,
        append: false,
        atomic_writes: false,
    };
    /// Everything, in place.
    pub const ALL: Rights = Rights {
        read: true,
        write: true,
        append: true,
        atomic_writes: false,
    };

    /// Whether the file changes.
    pub fn changes(&self) -> bool {
        self.write || self.append
    }

    /// The permissions that a user needs for them.
    pub fn access(&self) -> Access {
        Access {
            read: self.read,
            write: self.changes(),
            exec: false,
        }
    }
}

/// The holder of a key.
#[derive(Debug, Clone)]
pub struct Holder {
    /// The session.
    pub session: SessionId,
    /// The rights of the key.
    pub rights: Rights,
    /// The user that permissions are checked for; `None`: they are waived.
    pub cred: Option<Cred>,
}

/// Decides whether a holder keeps its key when permissions or the owner of a file have changed. Called under the file's
/// lock: it must not call the engine.
pub type KeyCheck = dyn Fn(&Holder, &Attr) -> bool + Send + Sync;

/// The default [`KeyCheck`]: the permission bits. A file's access control list was asked when the key was given, and
/// does not change as long as the file is bound; a mask that a chmod lowers is among the bits.
pub fn may_keep(holder: &Holder, attr: &Attr) -> bool {
    match &holder.cred {
        None => true,
        Some(cred) => posix::may_access(&Guarded::by_mode(*attr), cred, holder.rights.access()).is_ok(),
    }
}

/// A key.
pub(crate) struct Key {
    pub(crate) number: u32,
    pub(crate) holder: Holder,
    is_revoked: AtomicBool,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Anyone who knows the number can write: it must not appear in logs.
        f.debug_struct("Key")
            .field("holder", &self.holder)
            .finish_non_exhaustive()
    }
}

impl Key {
    pub(crate) fn new(number: u32, holder: Holder) -> Key {
        Key {
            number,
            holder,
            is_revoked: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::SeqCst)
    }

    /// Refuses guards from now on. [`crate::file::FileMr`] waits for the existing ones.
    pub(crate) fn revoke(&self) {
        self.is_revoked.store(true, Ordering::SeqCst);
    }
}
