//! The access cache of a thread: keys and ranges, so that most packets use no state shared by threads except the file's
//! lock.
//!
//! Invariants: only successful lookups are cached, so unknown peers fill nothing. An entry is void when its key is
//! revoked, its queue pair detached, or the epoch of its file has moved; each is checked before use.

use std::sync::Arc;

use ferrite_roce::memory::Fault;
use ferrite_roce::wire::Qpn;
use ferrite_vfs::regions::Region;
use rustc_hash::FxHashMap;

use super::{CheckedKey, Keys};
use crate::file::FileMr;
use crate::key::Rights;
use crate::meter::Meter;
use crate::translation::{Guard, Place, RangeCache};

/// Keys cached at most.
const KEYS_MAX: usize = 4_096;

/// A file as one thread sees it.
struct Local {
    /// Identifies the file in the cache, since `epoch`. Entries of earlier epochs are never found again.
    tag: u32,
    epoch: u64,
    meter: Arc<Meter>,
}

/// The keys and ranges that a thread has looked up.
pub(crate) struct AccessCache {
    keys: Arc<Keys>,
    known: FxHashMap<(Qpn, u32), CheckedKey>,
    locals: FxHashMap<u64, Local>,
    cache: RangeCache,
    last_tag: u32,
}

/// The access to a file that a key gives a packet: a right to take guards and to call the engine, and this thread's
/// cache of translations.
pub(crate) struct FileAccess<'c> {
    checked: &'c CheckedKey,
    local: &'c mut Local,
    cache: &'c mut RangeCache,
    last_tag: &'c mut u32,
}

impl AccessCache {
    pub(crate) fn new(keys: Arc<Keys>) -> AccessCache {
        AccessCache {
            keys,
            known: FxHashMap::default(),
            locals: FxHashMap::default(),
            cache: RangeCache::new(),
            last_tag: 0,
        }
    }

    /// The access of a queue pair by a key.
    ///
    /// # Errors
    /// `Access` if it has none.
    pub(crate) fn find(&mut self, qpn: Qpn, key: u32) -> Result<FileAccess<'_>, Fault> {
        let name = (qpn, key);
        if !self.known.get(&name).is_some_and(CheckedKey::is_good) {
            self.prune();
            let checked = self.keys.look_up(qpn, key).ok_or(Fault::Access)?;
            self.known.insert(name, checked);
        }
        let checked = self.known.get(&name).ok_or(Fault::Access)?;
        let last_tag = &mut self.last_tag;
        let local = self.locals.entry(checked.file.number()).or_insert_with(|| Local {
            tag: next(last_tag, &mut self.cache),
            epoch: 0,
            meter: checked.file.meter(),
        });
        Ok(FileAccess {
            checked,
            local,
            cache: &mut self.cache,
            last_tag,
        })
    }

    /// Forgets void entries, and everything if too many remain.
    fn prune(&mut self) {
        self.known.retain(|_, checked| checked.is_good());
        if self.known.len() >= KEYS_MAX {
            self.known.clear();
        }
        self.locals.retain(|_, local| Arc::strong_count(&local.meter) > 1);
    }
}

impl<'c> FileAccess<'c> {
    /// The rights of the key.
    pub(crate) fn rights(&self) -> &'c Rights {
        &self.checked.key.holder.rights
    }

    /// The file.
    pub(crate) fn file(&self) -> &'c Arc<FileMr> {
        &self.checked.file
    }

    /// As [`FileMr::guard`].
    pub(crate) fn guard(&self) -> Result<Guard<'c>, Fault> {
        self.checked.file.guard(&self.checked.key)
    }

    /// As [`FileMr::call`].
    pub(crate) fn call<T>(&self, call: impl FnOnce(&dyn Region) -> ferrite_vfs::Result<T>) -> Result<T, Fault> {
        self.checked.file.call(&self.checked.key, call)
    }

    /// As [`FileMr::append`].
    pub(crate) fn append(&self, data: &[u8]) -> Result<u64, Fault> {
        self.checked.file.append(&self.checked.key, data)
    }

    /// Where a page lies: from the cache, or from the table.
    pub(crate) fn place(&mut self, guard: &Guard<'_>, page: u32) -> Place {
        let local = &mut *self.local;
        if local.epoch != guard.epoch() {
            local.epoch = guard.epoch();
            local.tag = next(self.last_tag, self.cache);
        }
        if let Some(placed) = self.cache.lookup(local.tag, page) {
            local.meter.cache_hits.add(1);
            return Place::Run(placed);
        }
        local.meter.cache_misses.add(1);
        let place = guard.place(page);
        if let Place::Run(placed) = place {
            self.cache.fill(local.tag, placed);
        }
        place
    }

    /// This thread's meter of the file.
    pub(crate) fn meter(&self) -> &Meter {
        &self.local.meter
    }
}

/// A tag that no entry of the cache has.
fn next(last: &mut u32, cache: &mut RangeCache) -> u32 {
    if *last == u32::MAX {
        *cache = RangeCache::new();
        *last = 0;
    }
    *last += 1;
    *last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translation::{Placed, Run};

    #[test]
    fn tags_that_come_again_find_nothing() {
        let mut cache = RangeCache::new();
        let placed = Placed {
            at: 0,
            run: Run { page: 5, pages: 1 },
        };
        let mut last = 0;
        let first = next(&mut last, &mut cache);
        cache.fill(first, placed);
        assert_eq!(cache.lookup(first, 0), Some(placed));
        last = u32::MAX;
        assert_eq!(next(&mut last, &mut cache), first);
        assert_eq!(cache.lookup(first, 0), None);
    }
}
