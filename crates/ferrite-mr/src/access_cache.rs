//! The access cache of a thread: keys and ranges, so that most packets use no state shared by threads except the file's
//! lock.
//!
//! Invariants: only successful lookups are cached, so unknown peers fill nothing. An entry is void when its key is
//! revoked, its queue pair detached, or the epoch of its file has moved; each is checked before use.

use std::sync::Arc;

use ferrite_roce::memory::Fault;
use ferrite_roce::wire::Qpn;
use rustc_hash::FxHashMap;

use crate::file::{Place, State};
use crate::keys::{Access, Keys};
use crate::meter::Meter;
use crate::range_cache::RangeCache;

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
    known: FxHashMap<(Qpn, u32), Access>,
    locals: FxHashMap<u64, Local>,
    cache: RangeCache,
    last_tag: u32,
}

/// A key that was found.
pub(crate) struct Found<'g> {
    pub(crate) access: &'g Access,
    local: &'g mut Local,
    cache: &'g mut RangeCache,
    last_tag: &'g mut u32,
}

impl AccessCache {
    pub(crate) fn new() -> AccessCache {
        AccessCache {
            known: FxHashMap::default(),
            locals: FxHashMap::default(),
            cache: RangeCache::new(),
            last_tag: 0,
        }
    }

    /// The rights of a queue pair with a key.
    ///
    /// # Errors
    /// `Access` if it has none.
    pub(crate) fn find(&mut self, keys: &Keys, qpn: Qpn, key: u32) -> Result<Found<'_>, Fault> {
        let name = (qpn, key);
        if !self.known.get(&name).is_some_and(Access::is_good) {
            self.prune();
            let access = keys.look_up(qpn, key).ok_or(Fault::Access)?;
            self.known.insert(name, access);
        }
        let access = self.known.get(&name).ok_or(Fault::Access)?;
        let last_tag = &mut self.last_tag;
        let local = self.locals.entry(access.file.number()).or_insert_with(|| Local {
            tag: next(last_tag, &mut self.cache),
            epoch: 0,
            meter: access.file.meter(),
        });
        Ok(Found {
            access,
            local,
            cache: &mut self.cache,
            last_tag,
        })
    }

    /// Forgets void entries, and everything if too many remain.
    fn prune(&mut self) {
        self.known.retain(|_, access| access.is_good());
        if self.known.len() >= KEYS_MAX {
            self.known.clear();
        }
        self.locals.retain(|_, local| Arc::strong_count(&local.meter) > 1);
    }
}

impl Found<'_> {
    /// Where a page lies: from the cache, or from the table.
    pub(crate) fn place(&mut self, state: &State, page: u32) -> Place {
        let local = &mut *self.local;
        if local.epoch != state.epoch() {
            local.epoch = state.epoch();
            local.tag = next(self.last_tag, self.cache);
        }
        if let Some(placed) = self.cache.lookup(local.tag, page) {
            local.meter.cache_hits.add(1);
            return Place::Run(placed);
        }
        local.meter.cache_misses.add(1);
        let place = state.place(page);
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
    use crate::run::{Placed, Run};

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
