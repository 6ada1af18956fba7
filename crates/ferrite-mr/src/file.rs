//! A file as a memory region: the location of its pages, its keys, and the engine's half of it.
//!
//! Contents: [`FileMr`], the adapter of one bound file, which gives its guards ([`crate::translation::Guard`]). A guard
//! holds the file's lock shared; code that changes translation holds it exclusively.
//!
//! So a revocation waits for all guards of the file, not only for those in its range: a guard lasts for the copy of one
//! packet, and tracking ranges would cost every packet more than the wait costs a revocation. The lock is sharded:
//! threads that take guards share no cache line.
//!
//! Invariants:
//!
//! * Pages are touched under a guard only, and the engine is not called under one, except for the calls meant for
//!   guards.
//! * A revoked key, or a file that is no longer bound, gets no guard. Both are checked under the lock, so a thread that
//!   revokes and then takes the lock exclusively has waited for all accesses.
//! * Calls of the engine (append, reserve, atomic writes) are made under [`FileMr::call`], which a revocation by the
//!   server waits for as well. A revocation by the engine must not: it holds the file's lock, which such a call waits
//!   for.

use std::sync::Arc;

use ferrite_roce::memory::Fault;
use ferrite_vfs::regions::{Access, Adapter, PageRun, REGION_PAGE_BYTES, Region};
use ferrite_vfs::{Attr, FsError, Ino, Result};

use crate::appends::Appends;
use crate::faults::{Faults, Wanted, fault_of};
use crate::key::{Key, KeyCheck};
use crate::lock_order;
use crate::meter::{Counts, Meter};
use crate::sync::{AtomicU64, Mutex, Ordering, SharedLock, alone, lock, shared};
use crate::translation::{Guard, Run, Translations};

/// Pages requested at a time before any packet needs them.
const EXPLORED_PAGES: u32 = 4096;
/// A reader's fault brings all of such an aligned part of the file.
const NEAR_PAGES: u32 = 64;

/// A file of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    /// The engine's address in memory.
    pub(crate) engine: usize,
    pub(crate) ino: Ino,
}

/// A bound file, as its engine sees it.
pub struct FileMr {
    number: u64,
    id: FileId,
    /// The longest write that the engine makes in one step.
    atomic_bytes_max: u64,
    translations: SharedLock<lock_order::Translations, Translations>,
    /// Held shared during calls of the engine.
    calls: SharedLock<lock_order::Calls, ()>,
    keys: Mutex<lock_order::FileKeys, Vec<Arc<Key>>>,
    check: Arc<KeyCheck>,
    faults: Faults,
    appends: Appends,
    meters: Mutex<lock_order::Meters, Vec<Arc<Meter>>>,
    revocations: AtomicU64,
}

impl FileMr {
    /// A file that is being bound. `number` is unique.
    pub(crate) fn new(number: u64, id: FileId, atomic_bytes_max: u64, check: Arc<KeyCheck>) -> FileMr {
        FileMr {
            number,
            id,
            atomic_bytes_max,
            translations: SharedLock::new(Translations::default()),
            calls: SharedLock::new(()),
            keys: Mutex::default(),
            check,
            faults: Faults::default(),
            appends: Appends::default(),
            meters: Mutex::default(),
            revocations: AtomicU64::new(0),
        }
    }

    /// The engine has bound it. Until then there are no guards.
    pub(crate) fn bound(&self, region: Arc<dyn Region>) {
        let mut translations = alone(&self.translations);
        if !translations.has_ended {
            translations.region = Some(region);
        }
    }

    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Which file it is.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// The longest atomic write.
    pub(crate) fn atomic_bytes_max(&self) -> u64 {
        self.atomic_bytes_max
    }

    /// Takes a guard. Waits for revocations under way, which wait for guards.
    ///
    /// # Errors
    /// `Access` if the key is revoked.
    pub(crate) fn guard(&self, key: &Key) -> std::result::Result<Guard<'_>, Fault> {
        let translations = shared(&self.translations);
        if key.is_revoked() {
            return Err(Fault::Access);
        }
        Ok(Guard::new(translations))
    }

    /// Calls the engine for the holder of `key`. The caller holds no guard.
    ///
    /// # Errors
    /// `Access` if the key is revoked, or the binding has ended; errors of the engine.
    pub(crate) fn call<T>(
        &self,
        key: &Key,
        call: impl FnOnce(&dyn Region) -> Result<T>,
    ) -> std::result::Result<T, Fault> {
        let _call = shared(&self.calls);
        let region = self.guard(key)?.into_region()?;
        call(&*region).map_err(|error| fault_of(&error))
    }

    /// Appends for the holder of `key`, maybe together with others.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn append(&self, key: &Key, data: &[u8]) -> std::result::Result<u64, Fault> {
        self.call(key, |region| self.appends.append(data, &|parts| region.append(parts)))
    }

    /// The faults under way.
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Requests pages from the engine. Blocks on the file's lock; the caller holds no guard.
    pub(crate) fn serve(&self, wanted: &Wanted) {
        let region = shared(&self.translations).region.clone();
        let ask = |first: u32, end: u32| match &region {
            Some(region) => region.fault(first, end.saturating_sub(first), wanted.access),
            None => Err(FsError::Stale),
        };
        let result = match wanted.access {
            // A reader most often continues nearby, and looking up neighbours costs less than another fault.
            Access::Read => {
                let end = wanted.end.checked_next_multiple_of(NEAR_PAGES).unwrap_or(wanted.end);
                ask(wanted.first / NEAR_PAGES * NEAR_PAGES, end)
            }
            Access::Write => ask(wanted.first, wanted.end),
        };
        self.faults.done(wanted, result);
    }

    /// The next pages from page `from` on to request before any packet needs them: first and end. `None` when all are
    /// known, or the binding has ended.
    pub(crate) fn unknown(&self, from: u32) -> Option<(u32, u32)> {
        let translations = shared(&self.translations);
        translations.region.as_ref()?;
        let pages = translations.size.load(Ordering::SeqCst).div_ceil(REGION_PAGE_BYTES);
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let first = translations.next_unknown(from);
        (first < pages).then(|| (first, pages.min(first.saturating_add(EXPLORED_PAGES))))
    }

    /// Requests pages from the engine that no packet waits for; false if it does not answer now. Blocks on the file's
    /// lock; the caller holds no guard.
    pub(crate) fn explore(&self, (first, end): (u32, u32)) -> bool {
        let region = shared(&self.translations).region.clone();
        region.is_some_and(|region| region.fault(first, end - first, Access::Read).is_ok())
    }

    /// A new key.
    pub(crate) fn add_key(&self, key: Arc<Key>) {
        let mut keys = lock(&self.keys);
        // The engine may have looked at the others in the meantime: the caller that adds this one checks it afterwards.
        keys.push(key);
    }

    /// Forgets revoked keys, and returns whether others remain.
    pub(crate) fn has_keys(&self) -> bool {
        let mut keys = lock(&self.keys);
        keys.retain(|key| !key.is_revoked());
        !keys.is_empty()
    }

    /// The keys, revoked ones included.
    pub(crate) fn keys(&self) -> Vec<Arc<Key>> {
        lock(&self.keys).clone()
    }

    /// Waits for all guards and engine calls that were under way when this was called. After keys were revoked no
    /// access by them is under way then. Must not be called from the engine.
    pub(crate) fn drain(&self) {
        drop(alone(&self.calls));
        drop(alone(&self.translations));
    }

    /// A meter for one more thread.
    pub(crate) fn meter(&self) -> Arc<Meter> {
        let meter = Arc::new(Meter::default());
        lock(&self.meters).push(Arc::clone(&meter));
        meter
    }

    /// The engine's half; `None` when the binding has ended.
    pub(crate) fn region(&self) -> Option<Arc<dyn Region>> {
        shared(&self.translations).region.clone()
    }

    /// Whether the engine has ended the binding.
    pub(crate) fn has_ended(&self) -> bool {
        shared(&self.translations).has_ended
    }

    /// Its size.
    pub(crate) fn size(&self) -> u64 {
        shared(&self.translations).size.load(Ordering::SeqCst)
    }

    /// Its status.
    pub(crate) fn status(&self) -> FileStatus {
        let by_thread: Vec<Counts> = lock(&self.meters).iter().map(|meter| meter.read()).collect();
        let mut total = Counts::default();
        by_thread.iter().for_each(|counts| total += *counts);
        let translations = shared(&self.translations);
        FileStatus {
            size: translations.size.load(Ordering::SeqCst),
            ranges: translations.pages.len() as u64,
            holes: translations.holes.len() as u64,
            revocations: self.revocations.load(Ordering::SeqCst),
            faults: self.faults.under_way(),
            total,
            by_thread,
        }
    }
}

/// A bound file, for statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStatus {
    /// Its size.
    pub size: u64,
    /// Runs that its pages lie in, as far as known.
    pub ranges: u64,
    /// Runs of holes.
    pub holes: u64,
    /// Revocations by the engine.
    pub revocations: u64,
    /// Range faults under way.
    pub faults: u64,
    /// Counts of all queue pairs.
    pub total: Counts,
    /// The same by thread.
    pub by_thread: Vec<Counts>,
}

impl Adapter for FileMr {
    fn revoke(&self, first: u32, end: u32) {
        self.revocations.fetch_add(1, Ordering::SeqCst);
        alone(&self.translations).forget(first, end);
    }

    fn publish(&self, runs: &[PageRun]) {
        let mut translations = alone(&self.translations);
        for run in runs {
            let end = run.at.saturating_add(run.pages);
            if translations.knows(run) {
                continue;
            }
            translations.forget(run.at, end);
            let pages = run.pages;
            // A run that no file can have is ignored: its pages are requested again.
            let _ = match run.page {
                Some(page) => translations.pages.insert(run.at, Run { page, pages }),
                None => translations.holes.insert(run.at, Run { page: run.at, pages }),
            };
        }
    }

    fn resize(&self, size: u64) {
        let translations = shared(&self.translations);
        if size >= translations.size.load(Ordering::SeqCst) {
            return translations.size.store(size, Ordering::SeqCst);
        }
        drop(translations);
        // The holder of a guard may be behind the new end.
        alone(&self.translations).size.store(size, Ordering::SeqCst);
    }

    fn attributes_changed(&self, attr: &Attr) {
        let mut is_any = false;
        for key in lock(&self.keys).iter() {
            if !key.is_revoked() && !(self.check)(&key.holder, attr) {
                key.revoke();
                is_any = true;
            }
        }
        if is_any {
            drop(alone(&self.translations));
        }
    }

    fn unbound(&self) {
        lock(&self.keys).iter().for_each(|key| key.revoke());
        let mut translations = alone(&self.translations);
        let epoch = translations.epoch + 1;
        let ended = std::mem::take(&mut *translations);
        translations.epoch = epoch;
        translations.has_ended = true;
        drop(translations);
        // The engine's half is dropped without the lock.
        drop(ended);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::key::{Holder, Rights, SessionId, may_keep};

    /// A packet may have found its key good, and have waited for its guard since.
    #[test]
    fn a_key_that_is_revoked_gets_no_guard() {
        let id = FileId { engine: 0, ino: 1 };
        let file = FileMr::new(0, id, 0, Arc::new(may_keep));
        let holder = Holder {
            session: SessionId(1),
            rights: Rights::ALL,
            cred: None,
        };
        let key = Arc::new(Key::new(1, holder));
        file.add_key(Arc::clone(&key));
        assert!(file.guard(&key).is_ok());
        key.revoke();
        assert_eq!(file.guard(&key).err(), Some(Fault::Access));
        assert_eq!(file.append(&key, b"late"), Err(Fault::Access));
        assert!(!file.has_keys());
    }
}
