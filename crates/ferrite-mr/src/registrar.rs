//! The owner of all bound files of a server: it tracks who binds, who holds keys, and when a binding ends.
//!
//! Invariants:
//!
//! * A file is bound once, however many sessions have keys for it, and is unbound when the last key is gone.
//! * Binding and unbinding of a file exclude each other (`FileEntry::work`), and block nothing that packets need.
//! * No lock of this file is held by code that the engine calls.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use ferrite_roce::wire::Qpn;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{BadArgument, Ctx, FileSystem, FsError, Ino, Result, Unsupported, posix, walk};

use crate::background::Background;
use crate::file::{FileId, FileMr, FileStatus};
use crate::key::{Holder, KeyCheck, Rights, SessionId, may_keep};
use crate::lock_order;
use crate::memory::FileMemory;
use crate::permissions::Keys;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Options of a registrar.
#[derive(Clone)]
pub struct Options {
    /// Threads that request pages from engines.
    pub fault_threads: usize,
    /// Bytes of all messages that are being assembled. Longer messages are refused; others wait.
    pub assembled_bytes_max: u64,
    /// Which keys stay when a file's permissions change.
    pub check: Arc<KeyCheck>,
}

impl Default for Options {
    /// Two threads, 64 MiB, and the permission bits.
    fn default() -> Options {
        Options {
            fault_threads: 2,
            assembled_bytes_max: 64 << 20,
            check: Arc::new(may_keep),
        }
    }
}

/// A granted key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The filekey.
    pub key: u32,
    /// The file's size.
    pub size: u64,
    /// Runs that its pages lie in, as far as known.
    pub ranges: u64,
    /// The longest WRITE of a key with [`Rights::atomic_writes`].
    pub atomic_bytes_max: u64,
}

/// A bound file, for the server's administrator.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The file's engine.
    pub engine: Weak<dyn FileSystem>,
    /// The file.
    pub ino: Ino,
    /// How it is bound.
    pub binding: Binding,
    /// The holders of keys.
    pub holders: Vec<Holder>,
    /// Its counters.
    pub status: FileStatus,
}

struct FileEntry {
    engine: Weak<dyn FileSystem>,
    /// Held while the file is bound or unbound. True: this entry has been removed from the table.
    work: Mutex<lock_order::Work, bool>,
    bound: Mutex<lock_order::Bound, Option<(Arc<FileMr>, Binding)>>,
}

/// All bound files of a server.
pub struct Registrar {
    keys: Arc<Keys>,
    background: Arc<Background>,
    check: Arc<KeyCheck>,
    files: Mutex<lock_order::Slots, HashMap<FileId, Arc<FileEntry>>>,
    next_number: AtomicU64,
}

fn id_of(engine: &Arc<dyn FileSystem>, ino: Ino) -> FileId {
    let engine = Arc::as_ptr(engine).cast::<()>() as usize;
    FileId { engine, ino }
}

impl Registrar {
    /// A registrar without files.
    ///
    /// # Errors
    /// If no threads are available.
    pub fn new(options: Options) -> std::io::Result<Registrar> {
        Ok(Registrar {
            keys: Arc::new(Keys::new()),
            background: Arc::new(Background::new(options.fault_threads, options.assembled_bytes_max)?),
            check: options.check,
            files: Mutex::default(),
            next_number: AtomicU64::new(0),
        })
    }

    /// A memory for one more RNIC thread.
    pub fn memory(&self) -> FileMemory {
        FileMemory::new(Arc::clone(&self.keys), Arc::clone(&self.background))
    }

    /// Gives `session` a key for a file, and binds the file if it is not bound yet. The key can be used when this
    /// returns. Blocks as [`ferrite_vfs::regions::Regions::bind`] does.
    ///
    /// With [`Ctx::check`] the caller needs the permissions that `rights` imply.
    ///
    /// # Errors
    /// As [`ferrite_vfs::regions::Regions::bind`]. `Invalid` for rights to change a file that this call binds for
    /// reading, `Busy` if an earlier one did; `NotSupported` if the engine has no regions.
    pub fn bind(
        &self,
        engine: &Arc<dyn FileSystem>,
        ctx: &Ctx,
        ino: Ino,
        binding: Binding,
        session: SessionId,
        rights: Rights,
    ) -> Result<Granted> {
        if rights.changes() && !binding.writable {
            return Err(FsError::Invalid(BadArgument::NotWritable));
        }
        // Another file that cannot be finalized does not concern this one. It stays bound.
        let _ = self.sweep();
        let id = id_of(engine, ino);
        let holder = Holder {
            session,
            rights,
            cred: ctx.check.then(|| ctx.cred.clone()),
        };
        loop {
            let entry = Arc::clone(lock(&self.files).entry(id).or_insert_with(|| {
                Arc::new(FileEntry {
                    engine: Arc::downgrade(engine),
                    work: Mutex::new(false),
                    bound: Mutex::default(),
                })
            }));
            let mut is_gone = lock(&entry.work);
            if *is_gone {
                continue;
            }
            let result = self
                .bound(&entry, engine, ctx, id, binding, rights)
                .and_then(|file| self.grant(&**engine, &file, holder));
            if result.is_err() {
                // Its error is the one to report.
                let _ = self.unbind_unused(id, &entry, &mut is_gone);
            }
            return result;
        }
    }

    /// The file of an entry, which this binds if necessary. The caller holds the entry's `work`.
    fn bound(
        &self,
        entry: &FileEntry,
        engine: &Arc<dyn FileSystem>,
        ctx: &Ctx,
        id: FileId,
        binding: Binding,
        rights: Rights,
    ) -> Result<Arc<FileMr>> {
        let bound = lock(&entry.bound).clone();
        if let Some((file, how)) = bound
            && !file.has_ended()
        {
            return match rights.changes() && !how.writable {
                true => Err(FsError::Busy),
                false => Ok(file),
            };
        }
        let regions = engine.regions().ok_or(FsError::NotSupported(Unsupported::Region))?;
        let number = self.next_number.fetch_add(1, Ordering::SeqCst);
        let atomic_bytes_max = engine.limits().atomic_write_bytes;
        let file = Arc::new(FileMr::new(number, id, atomic_bytes_max, Arc::clone(&self.check)));
        let region = regions.bind(ctx, id.ino, binding, Arc::clone(&file) as _)?;
        file.bound(region);
        self.background.explore(&file, 0);
        *lock(&entry.bound) = Some((Arc::clone(&file), binding));
        Ok(file)
    }

    /// A key for a bound file.
    fn grant(&self, engine: &dyn FileSystem, file: &Arc<FileMr>, holder: Holder) -> Result<Granted> {
        let key = self.keys.grant(file, holder)?;
        // Read once the file knows the key: an earlier change of permissions shows in these attributes, and a later one
        // has checked the key.
        let attr = file.region().ok_or(FsError::Stale).and_then(|region| region.attr());
        let allowed = attr.and_then(|attr| match &key.holder.cred {
            Some(cred) => posix::may_access(&walk::guarded(engine, attr, cred)?, cred, key.holder.rights.access()),
            None => Ok(()),
        });
        if let Err(error) = allowed {
            self.keys.revoke_one(key.holder.session, key.number);
            file.drain();
            return Err(error);
        }
        let status = file.status();
        Ok(Granted {
            key: key.number,
            size: file.size(),
            ranges: status.ranges,
            atomic_bytes_max: file.atomic_bytes_max(),
        })
    }

    /// Assigns a queue pair to `session`: from now on it may use the session's keys.
    pub fn attach(&self, session: SessionId, qpn: Qpn) {
        self.keys.attach(session, qpn);
    }

    /// Removes a queue pair from its session. Its own thread calls this, or has stopped serving it.
    pub fn detach(&self, qpn: Qpn) {
        self.keys.detach(qpn);
    }

    /// Revokes a key. When this returns no access by it is under way. Unbinds the file if it was the last.
    ///
    /// # Errors
    /// `NotFound` if the session has no such key; errors of [`ferrite_vfs::regions::Region::unbind`], the key being
    /// revoked.
    pub fn release(&self, session: SessionId, key: u32) -> Result<()> {
        let file = self.keys.revoke_one(session, key).ok_or(FsError::NotFound)?;
        self.settle(vec![file])
    }

    /// Revokes all keys and detaches all queue pairs of a session, as [`Self::release`] does.
    ///
    /// # Errors
    /// As [`Self::release`]: the first error; all keys are revoked.
    pub fn end_session(&self, session: SessionId) -> Result<()> {
        self.keys.detach_all(session);
        let files = self.keys.revoke(|key, _| key.holder.session == session);
        self.settle(files)
    }

    /// Revokes all keys of a file and unbinds it.
    ///
    /// # Errors
    /// `NotFound` if it is not bound; as [`Self::release`].
    pub fn unbind_file(&self, engine: &Arc<dyn FileSystem>, ino: Ino) -> Result<()> {
        let id = id_of(engine, ino);
        if !lock(&self.files).contains_key(&id) {
            return Err(FsError::NotFound);
        }
        let files = self.keys.revoke(|_, file| file.id() == id);
        self.settle(files)
    }

    /// Revokes all keys and unbinds all files, before engines are closed.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn unbind_all(&self) -> Result<()> {
        let files = self.keys.revoke(|_, _| true);
        self.settle(files)
    }

    /// Forgets keys that a change of permissions or the engine has revoked, and unbinds files without others. Binding
    /// calls this, too.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn sweep(&self) -> Result<()> {
        let files = self.keys.revoke(|key, _| key.is_revoked());
        self.settle(files)
    }

    /// All bound files.
    pub fn list(&self) -> Vec<Listed> {
        let entries: Vec<(FileId, Arc<FileEntry>)> = lock(&self.files)
            .iter()
            .map(|(id, entry)| (*id, Arc::clone(entry)))
            .collect();
        let mut listed = Vec::new();
        for (id, entry) in entries {
            let Some((file, binding)) = lock(&entry.bound).clone() else {
                continue;
            };
            if file.has_ended() {
                continue;
            }
            let keys = file.keys();
            let live = keys.iter().filter(|key| !key.is_revoked());
            listed.push(Listed {
                engine: Weak::clone(&entry.engine),
                ino: id.ino,
                binding,
                holders: live.map(|key| key.holder.clone()).collect(),
                status: file.status(),
            });
        }
        listed.sort_by_key(|one| one.ino);
        listed
    }

    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Bytes of messages that are being assembled.
    pub fn assembled_bytes(&self) -> u64 {
        self.background.assembled_bytes()
    }

    /// Waits for accesses with revoked keys, and unbinds files without others.
    fn settle(&self, files: Vec<Arc<FileMr>>) -> Result<()> {
        let mut result = Ok(());
        for file in files {
            file.drain();
            let entry = lock(&self.files).get(&file.id()).cloned();
            let Some(entry) = entry else {
                continue;
            };
            let mut is_gone = lock(&entry.work);
            result = result.and(self.unbind_unused(file.id(), &entry, &mut is_gone));
        }
        result
    }

    /// Unbinds the file of an entry that has no keys, and removes the entry. The caller holds its `work`.
    fn unbind_unused(&self, id: FileId, entry: &FileEntry, is_gone: &mut bool) -> Result<()> {
        if *is_gone {
            return Ok(());
        }
        let bound = lock(&entry.bound).clone();
        let mut result = Ok(());
        if let Some((file, _)) = bound {
            if file.has_keys() {
                return Ok(());
            }
            if let Some(region) = file.region() {
                result = region.unbind();
            }
            *lock(&entry.bound) = None;
        }
        *is_gone = true;
        lock(&self.files).remove(&id);
        result
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        // No caller is left to report to. A file that could not be finalized is finalized after the next start.
        let _ = self.unbind_all();
    }
}
