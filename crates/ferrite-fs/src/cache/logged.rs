//! Which pages have logs, so that a cleaner finds them without a scan (HDPM, the section on cleaning); and how many
//! logs were removed, by cause.
//!
//! Contents: [`Candidates`], lists in DRAM, and the counters [`Merges`]. A list may name a page twice, or a page that
//! has lost its log. No page that has a log is missing, except those that are [`Taken`] at the moment and those whose
//! logs are damaged ([`Candidates::leave_out`]).

use ferrite_checks::ranked::{Mutex, RwLock, RwLockReadGuard};
use ferrite_map::{Inum, Lblk, PageId};
use ferrite_pm::line_trace;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::lock_order;
use crate::thread::thread_number;

/// Whether a page has a log, or may be getting one.
pub(crate) type MayHaveLog<'a> = &'a dyn Fn(PageId) -> bool;

/// The cause of a log's removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A write that merged, because the log was long or the page complete.
    Write,
    /// A read that walked too many entries.
    Read,
    /// The cleaner, or an operation that found no space.
    LowSpace,
    /// The cleaner, while the pool was idle.
    Idle,
}

/// Merges so far, by cause.
#[derive(Default)]
pub(crate) struct Merges([CachePadded<AtomicU64>; 4]);

impl Merges {
    pub(crate) fn count(&self, cause: Cause) {
        line_trace::line("merges", &self.0[cause as usize]);
        self.0[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize].load(Ordering::Relaxed)
    }
}

const LISTS: usize = 16;
/// Pages in a chunk of a list. With chunks, no list is ever copied to grow.
pub(crate) const CHUNK: usize = 1024;
/// From this length on, a list is checked for pages that no longer have logs.
pub(crate) const LIST_LONG: usize = 1 << 16;

type ListLock = Mutex<lock_order::CandidateList, List>;

/// A queue in chunks.
#[derive(Default)]
struct List {
    chunks: VecDeque<Vec<PageId>>,
    len: usize,
    /// Length after the last pruning.
    pruned_len: usize,
}

impl List {
    fn push(&mut self, page: PageId) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push_back(Vec::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.push(page);
            self.len += 1;
        }
    }

    fn is_long(&self) -> bool {
        self.len >= LIST_LONG.max(2 * self.pruned_len)
    }

    /// The oldest chunk.
    fn take_chunk(&mut self) -> Option<Vec<PageId>> {
        let chunk = self.chunks.pop_front()?;
        self.len -= chunk.len();
        Some(chunk)
    }
}

/// If the list has grown long, drops pages that are listed twice or no longer have a log.
fn prune(list: &ListLock, may_have_log: MayHaveLog<'_>) {
    let old = {
        let mut list = list.lock();
        if !list.is_long() {
            return;
        }
        std::mem::take(&mut *list)
    };
    let mut pages = old.chunks.into_iter().flatten().collect::<Vec<_>>();
    pages.sort_unstable();
    pages.dedup();
    pages.retain(|&page| may_have_log(page));
    let mut list = list.lock();
    list.pruned_len = pages.len();
    pages.into_iter().for_each(|page| list.push(page));
}

/// Pages that got a log, in DRAM: one list per thread, 8 bytes per page. A page may have lost its log since, or be
/// listed twice.
pub(crate) struct Candidates {
    lists: Box<[CachePadded<ListLock>]>,
    /// Held shared while pages are away from their lists. [`Candidates::of`] only tries the exclusive lock.
    away: RwLock<lock_order::CandidatesAway, ()>,
    /// Some page with a damaged log is in no list.
    leaves_out: AtomicBool,
}

/// Pages that were taken from the lists. The holder puts back those that keep their logs, and then drops this.
pub(crate) struct Taken<'c> {
    pub(crate) pages: Vec<PageId>,
    _away: RwLockReadGuard<'c, ()>,
}

impl Candidates {
    pub(crate) fn new() -> Self {
        Candidates {
            lists: (0..LISTS).map(|_| CachePadded::default()).collect(),
            away: RwLock::new(()),
            leaves_out: AtomicBool::new(false),
        }
    }

    fn own_list(&self) -> &ListLock {
        &self.lists[thread_number() as usize % LISTS]
    }

    /// Notes a page that gets its first segment. A list that has grown long is pruned first, whether or not the cleaner
    /// takes pages from it, so it never holds more than about twice the pages that may have logs. Without
    /// `may_have_log`, or while [`Self::of`] reads the lists, that is left to the next one: the caller has a ring, and
    /// must not wait for them.
    pub(crate) fn add(&self, page: PageId, may_have_log: Option<MayHaveLog<'_>>) {
        let list = self.own_list();
        line_trace::line("logged pages", list);
        let mut locked = list.lock();
        if let Some(may_have_log) = may_have_log
            && locked.is_long()
            && let Some(away) = self.away.try_read(None)
        {
            drop(locked);
            prune(list, may_have_log);
            drop(away);
            locked = list.lock();
        }
        locked.push(page);
    }

    /// Notes a page that was taken from a list, or that a mount found to have a log.
    pub(crate) fn put_back(&self, page: PageId) {
        self.own_list().lock().push(page);
    }

    /// A page whose log cannot be read is not listed.
    pub(crate) fn leave_out(&self) {
        self.leaves_out.store(true, Ordering::Release);
    }

    /// Takes about `most` pages, the oldest of each list.
    pub(crate) fn take(&self, most: usize) -> Taken<'_> {
        let away = self.away.read();
        let mut pages = Vec::new();
        for list in &self.lists {
            while pages.len() < most
                && let Some(mut chunk) = list.lock().take_chunk()
            {
                pages.append(&mut chunk);
            }
        }
        Taken { pages, _away: away }
    }

    /// All pages of an inode that may have logs, in order; `None` if the lists do not name them all at the moment. The
    /// caller has the inode's lock, so that no page gets a log. Takes time in proportion to the lists.
    pub(crate) fn of(&self, ino: Inum) -> Option<Vec<Lblk>> {
        let _alone = self.away.try_write(None)?;
        if self.leaves_out.load(Ordering::Acquire) {
            return None;
        }
        let mut pages = Vec::new();
        for list in &self.lists {
            let list = list.lock();
            let own = list.chunks.iter().flatten().filter(|page| page.ino == ino);
            pages.extend(own.map(|page| page.lblk));
        }
        pages.sort_unstable();
        pages.dedup();
        Some(pages)
    }

    /// Pages noted.
    pub(crate) fn len(&self) -> usize {
        self.lists.iter().map(|list| list.lock().len).sum()
    }

    /// Drops pages that are listed twice or no longer have a log, once lists have grown long.
    pub(crate) fn prune(&self, may_have_log: MayHaveLog<'_>) {
        let _away = self.away.read();
        self.lists.iter().for_each(|list| prune(list, may_have_log));
    }

    /// DRAM used, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let chunks: usize = self.lists.iter().map(|list| list.lock().chunks.len()).sum();
        (chunks * CHUNK * size_of::<PageId>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user of the lists must not miss a page that the cleaner has taken or left out.
    #[test]
    fn the_pages_of_an_inode_are_told_only_if_all_are_listed() {
        let candidates = Candidates::new();
        let [one, two] = [1, 2].map(Inum::new);
        for raw in [7, 3, 7] {
            candidates.add(PageId::from_raw(1, raw), Some(&|_| true));
        }
        candidates.put_back(PageId::from_raw(2, 5));
        let pages = |raw: &[u32]| Some(raw.iter().map(|&lblk| Lblk::new(lblk)).collect::<Vec<_>>());
        assert_eq!(candidates.of(one), pages(&[3, 7]));
        assert_eq!(candidates.of(two), pages(&[5]));
        let taken = candidates.take(usize::MAX);
        assert_eq!(candidates.of(one), None);
        candidates.put_back(taken.pages[0]);
        assert_eq!(candidates.of(one), None, "others are still away");
        taken.pages[1..].iter().for_each(|&page| candidates.put_back(page));
        drop(taken);
        assert_eq!(candidates.of(one), pages(&[3, 7]));
        candidates.leave_out();
        assert_eq!(candidates.of(two), None);
    }
}
