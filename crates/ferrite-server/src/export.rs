//! Exports: subtrees of engines that clients can connect to.
//!
//! Contents: [`Store`], an engine with the server's state for it; [`Export`], a subtree of one under a name, and its
//! rules of access.
//!
//! Invariant: the server never names an inode outside of the subtree to a client: walks begin at the root of the export
//! and cannot leave it, and other inodes are accepted only with this export's MAC.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ferrite_transport::secure::{Encryption, Key, KeyId};
use ferrite_vfs::volume::Ownership;
use ferrite_vfs::{
    Attr, Cred, Ctx, FileSystem, FsError, Ino, Limits, QUOTA_XATTR, Quota, QuotaLimits, ROOT_INO, Result, SYSTEM,
    Start, XattrMode,
};

use super::admission::Attendance;
use super::handle_mac::{HandleAuthenticator, MacScope};
use super::leases::Leases;
use super::meter::{Comings, Meter};
use super::state::State;
use super::subtree::{Borders, Subtree};
use ferrite_proto::{Caller, Node};

/// The user and group of squashed callers by default.
pub const NOBODY: u32 = 65_534;

/// The part of an engine to export, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExportOptions {
    /// Its name, which clients give. Empty for an export that needs no name.
    pub name: String,
    /// The directory of the engine that is its root.
    pub path: Vec<u8>,
    /// Changes are refused, and reads do not move access times.
    pub read_only: bool,
    /// A caller that is root becomes [`NOBODY`], and so does the group with the number 0. Unless it is off, the server
    /// believes clients' claims about their callers' identity, but checks permissions itself.
    pub root_squash: bool,
    /// Only clients with one of these keys see it. Without keys, only clients on this host do, and need none.
    pub keys: Vec<Key>,
    /// Clients may cache under leases; `None`: unless the export is read-only. A client that answers no recall delays
    /// changes occasionally, also those by clients that may write files that it can only read.
    pub leases: Option<bool>,
    /// Most sessions at it.
    pub sessions_max: usize,
    /// A different number than before invalidates all handles that clients have.
    pub handle_epoch: u64,
    /// Whether clients with a key must encrypt. If several exports share a key, the strictest rule holds for it.
    pub encryption: Encryption,
    /// The quota that its root gets before clients are admitted, unless the export is read-only.
    pub quota: ExportQuota,
}

/// Limits that the root of an export gets; see [`QuotaLimits`]. `None` leaves what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportQuota {
    /// Of bytes.
    pub bytes: Option<u64>,
    /// Of inodes.
    pub inodes: Option<u64>,
}

impl ExportOptions {
    /// The whole of an engine under a name, for reading and writing, with root squashed, without a key.
    pub fn new(name: impl Into<String>) -> ExportOptions {
        ExportOptions {
            name: name.into(),
            path: b"/".to_vec(),
            read_only: false,
            root_squash: true,
            keys: Vec::new(),
            leases: None,
            sessions_max: 8192,
            handle_epoch: 0,
            encryption: Encryption::default(),
            quota: ExportQuota::default(),
        }
    }

    /// Sets [`Self::sessions_max`].
    #[must_use]
    pub fn sessions_max(self, sessions_max: usize) -> Self {
        ExportOptions { sessions_max, ..self }
    }

    /// Sets [`Self::handle_epoch`].
    #[must_use]
    pub fn handle_epoch(self, handle_epoch: u64) -> Self {
        ExportOptions { handle_epoch, ..self }
    }

    /// Sets [`Self::path`].
    #[must_use]
    pub fn path(self, path: impl Into<Vec<u8>>) -> Self {
        ExportOptions {
            path: path.into(),
            ..self
        }
    }

    /// Sets [`Self::read_only`].
    #[must_use]
    pub fn read_only(self, read_only: bool) -> Self {
        ExportOptions { read_only, ..self }
    }

    /// Sets [`Self::leases`].
    #[must_use]
    pub fn leases(self, leases: Option<bool>) -> Self {
        ExportOptions { leases, ..self }
    }

    /// Whether clients get leases.
    pub fn gives_leases(&self) -> bool {
        self.leases.unwrap_or(!self.read_only)
    }

    /// Sets [`Self::root_squash`].
    #[must_use]
    pub fn root_squash(self, root_squash: bool) -> Self {
        ExportOptions { root_squash, ..self }
    }

    /// Sets [`Self::keys`].
    #[must_use]
    pub fn keys(self, keys: Vec<Key>) -> Self {
        ExportOptions { keys, ..self }
    }

    /// Sets [`Self::encryption`].
    #[must_use]
    pub fn encryption(self, encryption: Encryption) -> Self {
        ExportOptions { encryption, ..self }
    }

    /// Sets [`Self::quota`].
    #[must_use]
    pub fn quota(self, quota: ExportQuota) -> Self {
        ExportOptions { quota, ..self }
    }

    /// Whether a client that has proved to have this key, or has none, may know of the export.
    pub(super) fn is_open_to(&self, key: Option<KeyId>) -> bool {
        match key {
            None => self.keys.is_empty(),
            Some(key) => self.keys.iter().any(|known| known.id() == key),
        }
    }
}

/// An engine, and the server's state for it.
pub(super) struct Store {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) state: State,
    /// The borders of its exports.
    pub(super) borders: Borders,
    pub(super) leases: Arc<Leases>,
    pub(super) limits: Limits,
    /// The right to answer for a volume that servers hand to each other.
    pub(super) ownership: Option<Arc<dyn Ownership>>,
    /// Unsettled requests for locks. A call that releases a lock may have to reply to all of them.
    pub(super) unsettled_locks: AtomicUsize,
    /// Its index among the server's stores.
    pub(super) number: usize,
}

impl Store {
    /// Whether an answer may be sent that is made of what was read before.
    pub(super) fn may_answer(&self) -> bool {
        self.ownership.as_ref().is_none_or(|ownership| ownership.may_answer())
    }
}

/// Gives a directory a quota with these limits, unless it has that: setting one takes a while for each file.
fn limit(fs: &dyn FileSystem, dir: Ino, wanted: ExportQuota) -> Result<()> {
    let found = match fs.getxattr(SYSTEM, dir, QUOTA_XATTR) {
        Ok(text) => Quota::parse(&text),
        Err(FsError::NoAttribute) => None,
        Err(error) => return Err(error),
    };
    // It may be that of a directory above.
    let own = found.filter(|quota| quota.root == dir).map(|quota| quota.limits);
    let now = own.unwrap_or_default();
    let limits = QuotaLimits {
        bytes: wanted.bytes.unwrap_or(now.bytes),
        inodes: wanted.inodes.unwrap_or(now.inodes),
    };
    match own == Some(limits) {
        true => Ok(()),
        false => fs.setxattr(SYSTEM, dir, QUOTA_XATTR, limits.to_string().as_bytes(), XattrMode::Any),
    }
}

/// A subtree under a name.
pub(super) struct Export {
    pub(super) store: Arc<Store>,
    pub(super) options: ExportOptions,
    /// Its root in the engine, pinned as long as the server runs.
    root: Ino,
    root_generation: u32,
    pub(super) authenticator: HandleAuthenticator,
    pub(super) subtree: Arc<Subtree>,
    /// The counters of ended sessions.
    pub(super) past: Meter,
    pub(super) comings: Comings,
    pub(super) attendance: Arc<Attendance>,
}

impl Export {
    /// Opens an export: finds its root.
    pub(super) fn open(store: &Arc<Store>, options: ExportOptions) -> Result<Export> {
        let ctx = &SYSTEM.clone().pinning();
        let attr = store.fs.resolve(ctx, &Start::default(), &options.path, true)?;
        if attr.kind != ferrite_vfs::FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if options.quota != ExportQuota::default() && !options.read_only {
            limit(&*store.fs, attr.ino, options.quota)?;
        }
        let sealed = MacScope {
            name: &options.name,
            root: attr.ino,
            root_generation: attr.generation,
            epoch: options.handle_epoch,
        };
        Ok(Export {
            authenticator: HandleAuthenticator::new(store.state.secret(), sealed),
            subtree: store.borders.add(attr.ino),
            attendance: Attendance::new(options.sessions_max),
            store: Arc::clone(store),
            options,
            root: attr.ino,
            root_generation: attr.generation,
            past: Meter::default(),
            comings: Comings::default(),
        })
    }

    pub(super) fn fs(&self) -> &dyn FileSystem {
        &*self.store.fs
    }

    pub(super) fn root(&self) -> Ino {
        self.root
    }

    /// The client's name of an inode of the engine.
    pub(super) fn node(&self, ino: Ino, generation: u32) -> Node {
        self.authenticator.node(self.shown(ino), generation)
    }

    pub(super) fn root_node(&self) -> Node {
        self.node(self.root, self.root_generation)
    }

    /// The number of an inode as clients see it: the root has 1, as every engine's root.
    pub(super) fn shown(&self, ino: Ino) -> Ino {
        if ino == self.root { ROOT_INO } else { ino }
    }

    /// The inode that a client names, if it may.
    pub(super) fn meant(&self, node: Node) -> Result<Ino> {
        if self.authenticator.node(node.ino, node.generation) != node {
            return Err(FsError::Stale);
        }
        Ok(if node.ino == ROOT_INO { self.root } else { node.ino })
    }

    /// Attributes as clients see them.
    pub(super) fn shown_attr(&self, attr: Attr) -> Attr {
        Attr {
            ino: self.shown(attr.ino),
            ..attr
        }
    }

    /// The context of a call on behalf of a client's caller.
    pub(super) fn ctx(&self, caller: Caller, check: bool, pins: bool) -> Ctx {
        let Caller {
            uid,
            mut gid,
            mut groups,
        } = caller;
        if self.options.root_squash {
            // Files of root are often open to its group.
            let squash = |group: &mut u32| *group = if *group == 0 { NOBODY } else { *group };
            squash(&mut gid);
            groups.iter_mut().for_each(squash);
        }
        let cred = match self.options.root_squash && uid == 0 {
            true => Cred::new(NOBODY, NOBODY),
            false if groups.is_empty() => Cred::new(uid, gid),
            false => Cred::new(uid, gid).with_groups(&groups),
        };
        Ctx {
            pins,
            no_atime: self.options.read_only,
            // A client that may act as root gains nothing from skipped checks.
            ..match check || self.options.root_squash {
                true => Ctx::checked(cred),
                false => Ctx::trusted(cred),
            }
        }
    }
}
