//! All filekeys of a server, and which queue pair is whose.
//!
//! Invariants: a key is good on queue pairs of its session only. Numbers are the system's randomness, so that who has
//! not been given one has one chance in four billion for each try, and a wrong try ends its connection.
//!
//! A thread remembers what it looked up; that a key was revoked or a queue pair detached shows in the entry itself.

use std::collections::HashMap;
use std::sync::Arc;

use ferrite_roce::wire::Qpn;
use ferrite_vfs::Result;

use crate::file::FileMr;
use crate::key::{Holder, Key, SessionId};
use crate::sync::{AtomicBool, Ordering, SharedLock, alone, shared};

/// A queue pair of a session.
#[derive(Debug)]
pub(crate) struct Attachment {
    session: SessionId,
    is_over: AtomicBool,
}

/// A key on a queue pair that may use it.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) key: Arc<Key>,
    pub(crate) file: Arc<FileMr>,
    attachment: Arc<Attachment>,
}

impl Grant {
    /// Whether it may be used as far as is known without a guard.
    pub(crate) fn is_good(&self) -> bool {
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
    table: SharedLock<Table>,
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
    /// If the system has no randomness.
    pub(crate) fn grant(&self, file: &Arc<FileMr>, holder: Holder) -> Result<Arc<Key>> {
        loop {
            let number = u32::from_ne_bytes(ferrite_vfs::random()?);
            let mut table = alone(&self.table);
            // Zero is what forgetful programs send.
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

    /// What a queue pair may do with a key.
    pub(crate) fn look_up(&self, qpn: Qpn, key: u32) -> Option<Grant> {
        let table = shared(&self.table);
        let attachment = table.attached.get(&qpn)?;
        let (key, file) = table.keys.get(&key)?;
        let grant = Grant {
            key: Arc::clone(key),
            file: Arc::clone(file),
            attachment: Arc::clone(attachment),
        };
        (attachment.session == key.holder.session && grant.is_good()).then_some(grant)
    }

    /// A queue pair belongs to a session now, in place of whose it was.
    pub(crate) fn attach(&self, session: SessionId, qpn: Qpn) {
        let attachment = Arc::new(Attachment {
            session,
            is_over: AtomicBool::new(false),
        });
        if let Some(before) = alone(&self.table).attached.insert(qpn, attachment) {
            before.is_over.store(true, Ordering::SeqCst);
        }
    }

    /// A queue pair belongs to nobody any more.
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

    /// Revokes and removes the keys that `which` picks. Gives their files, each once. The caller drains them.
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

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        shared(&self.table).keys.len()
    }
}
