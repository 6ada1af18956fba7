//! Permissions: which queue pair may use which filekey.
//!
//! Contents: [`Keys`], all filekeys of a server and the sessions of its queue pairs; [`AccessCache`], the lookups of
//! one thread, and the [`FileAccess`] that it gives a packet.
//!
//! Invariants: a key is valid on queue pairs of its session only. Numbers come from the kernel's random generator, so
//! an attacker has one chance in four billion per try, and a wrong try ends its connection.
//!
//! A thread remembers its lookups; the entry itself shows that a key was revoked or a queue pair detached.

mod access;

use std::collections::HashMap;
use std::sync::Arc;

use ferrite_roce::wire::Qpn;
use ferrite_vfs::Result;

use crate::file::FileMr;
use crate::key::{Holder, Key, SessionId};
use crate::lock_order;
use crate::sync::{AtomicBool, Ordering, SharedLock, alone, shared};

pub(crate) use self::access::{AccessCache, FileAccess};

/// A queue pair of a session.
#[derive(Debug)]
pub(crate) struct Attachment {
    session: SessionId,
    is_over: AtomicBool,
}

/// A key on a queue pair that may use it.
#[derive(Clone)]
struct CheckedKey {
    key: Arc<Key>,
    file: Arc<FileMr>,
    attachment: Arc<Attachment>,
}

impl CheckedKey {
    /// Whether it may be used, as far as can be known without a guard.
    fn is_good(&self) -> bool {
        !self.attachment.is_over.load(Ordering::SeqCst) && !self.key.is_revoked()
    }
}

#[derive(Default)]
struct Table {
    keys: HashMap<u32, (Arc<Key>, Arc<FileMr>)>,
    attached: HashMap<Qpn, Arc<Attachment>>,
}

/// All keys.
pub(crate) struct Keys {
    table: SharedLock<lock_order::KeyTable, Table>,
}

impl Keys {
    pub(crate) fn new() -> Keys {
        Keys {
            table: SharedLock::new(Table::default()),
        }
    }

    /// A new key for a file.
    ///
    /// # Errors
    /// If the kernel provides no randomness.
    pub(crate) fn grant(&self, file: &Arc<FileMr>, holder: Holder) -> Result<Arc<Key>> {
        loop {
            let number = u32::from_ne_bytes(ferrite_vfs::random()?);
            let mut table = alone(&self.table);
            // Uninitialised programs send zero.
            if number == 0 || table.keys.contains_key(&number) {
                continue;
            }
            let key = Arc::new(Key::new(number, holder));
            table.keys.insert(number, (Arc::clone(&key), Arc::clone(file)));
            drop(table);
            file.add_key(Arc::clone(&key));
            return Ok(key);
        }
    }

    /// The rights of a queue pair with a key.
    fn look_up(&self, qpn: Qpn, key: u32) -> Option<CheckedKey> {
        let table = shared(&self.table);
        let attachment = table.attached.get(&qpn)?;
        let (key, file) = table.keys.get(&key)?;
        let checked = CheckedKey {
            key: Arc::clone(key),
            file: Arc::clone(file),
            attachment: Arc::clone(attachment),
        };
        (attachment.session == key.holder.session && checked.is_good()).then_some(checked)
    }

    /// Assigns a queue pair to a session, taking it from its previous one.
    pub(crate) fn attach(&self, session: SessionId, qpn: Qpn) {
        let attachment = Arc::new(Attachment {
            session,
            is_over: AtomicBool::new(false),
        });
        if let Some(before) = alone(&self.table).attached.insert(qpn, attachment) {
            before.is_over.store(true, Ordering::SeqCst);
        }
    }

    /// Removes a queue pair from its session.
    pub(crate) fn detach(&self, qpn: Qpn) {
        if let Some(before) = alone(&self.table).attached.remove(&qpn) {
            before.is_over.store(true, Ordering::SeqCst);
        }
    }

    /// Detaches all queue pairs of a session.
    pub(crate) fn detach_all(&self, session: SessionId) {
        alone(&self.table).attached.retain(|_, attachment| {
            let is_its = attachment.session == session;
            if is_its {
                attachment.is_over.store(true, Ordering::SeqCst);
            }
            !is_its
        });
    }

    /// Revokes and removes the keys that `which` picks. Returns their files, each once. The caller drains them.
    pub(crate) fn revoke(&self, which: impl Fn(&Key, &FileMr) -> bool) -> Vec<Arc<FileMr>> {
        let mut files: HashMap<u64, Arc<FileMr>> = HashMap::new();
        alone(&self.table).keys.retain(|_, (key, file)| {
            let is_meant = which(key, file);
            if is_meant {
                key.revoke();
                files.entry(file.number()).or_insert_with(|| Arc::clone(file));
            }
            !is_meant
        });
        files.into_values().collect()
    }

    /// The same for one key.
    pub(crate) fn revoke_one(&self, session: SessionId, number: u32) -> Option<Arc<FileMr>> {
        let mut table = alone(&self.table);
        if table.keys.get(&number)?.0.holder.session != session {
            return None;
        }
        let (key, file) = table.keys.remove(&number)?;
        key.revoke();
        Some(file)
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        shared(&self.table).keys.len()
    }
}
