//! Which pages have logs, so that a cleaner finds them without a scan (HDPM, the section on cleaning); and how many
//! logs were removed, by cause.
//!
//! What lives here: [`Candidates`], lists in DRAM, and the counters [`Folds`]. A list may name a page twice, or a page
//! that has lost its log. No page that has a log is missing.

use ferrite_map::PageId;
use ferrite_pm::touch;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::thread::thread_number;

/// Whether a page has a log now.
pub(crate) type HasLog<'a> = &'a dyn Fn(PageId) -> bool;

/// What removed a log.
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

/// Folds so far, by cause.
#[derive(Default)]
pub(crate) struct Folds([CachePadded<AtomicU64>; 4]);

impl Folds {
    pub(crate) fn count(&self, cause: Cause) {
        touch::line("folds", &self.0[cause as usize]);
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

/// A queue in chunks.
#[derive(Default)]
struct List {
    chunks: VecDeque<Vec<PageId>>,
    len: usize,
    /// Length after the last tidying.
    tidy_len: usize,
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
        self.len >= LIST_LONG.max(2 * self.tidy_len)
    }

    /// The oldest chunk.
    fn take_chunk(&mut self) -> Option<Vec<PageId>> {
        let chunk = self.chunks.pop_front()?;
        self.len -= chunk.len();
        Some(chunk)
    }
}

/// If the list has grown long, drops pages that are listed twice or no longer have a log. The newest stay as they are:
/// their first log may not be committed yet.
fn tidy(list: &Mutex<List>, has_log: HasLog<'_>) {
    let (old, newest) = {
        let mut list = list.lock();
        if !list.is_long() {
            return;
        }
        let mut old = std::mem::take(&mut *list);
        let newest = old.chunks.pop_back();
        (old, newest)
    };
    let mut pages = old.chunks.into_iter().flatten().collect::<Vec<_>>();
    pages.sort_unstable();
    pages.dedup();
    pages.retain(|&page| has_log(page));
    let mut list = list.lock();
    list.tidy_len = pages.len();
    pages
        .into_iter()
        .chain(newest.into_iter().flatten())
        .for_each(|page| list.push(page));
}

/// Pages that got a log, in DRAM: one list per thread, 8 bytes per page. A page may have lost its log since, or be
/// listed twice.
pub(crate) struct Candidates {
    lists: Box<[CachePadded<Mutex<List>>]>,
}

impl Candidates {
    pub(crate) fn new() -> Self {
        Candidates {
            lists: (0..LISTS).map(|_| CachePadded::default()).collect(),
        }
    }

    fn own_list(&self) -> &Mutex<List> {
        &self.lists[thread_number() as usize % LISTS]
    }

    /// Notes a page that gets its first segment. A list that has grown long is tidied first, whether or not anybody
    /// takes pages from it, so it never holds more than about twice the pages that have logs.
    pub(crate) fn add(&self, page: PageId, has_log: HasLog<'_>) {
        let list = self.own_list();
        touch::line("logged pages", list);
        let is_long = {
            let mut list = list.lock();
            list.push(page);
            list.is_long()
        };
        if is_long {
            tidy(list, has_log);
        }
    }

    /// Notes a page that was taken from a list, or that a mount found to have a log.
    pub(crate) fn put_back(&self, page: PageId) {
        self.own_list().lock().push(page);
    }

    /// Takes about `most` pages, the oldest of each list.
    pub(crate) fn take(&self, most: usize) -> Vec<PageId> {
        let mut taken = Vec::new();
        for list in &self.lists {
            while taken.len() < most
                && let Some(mut chunk) = list.lock().take_chunk()
            {
                taken.append(&mut chunk);
            }
        }
        taken
    }

    /// Pages noted.
    pub(crate) fn len(&self) -> usize {
        self.lists.iter().map(|list| list.lock().len).sum()
    }

    /// Drops pages that are listed twice or no longer have a log, once lists have grown long.
    pub(crate) fn tidy(&self, has_log: HasLog<'_>) {
        self.lists.iter().for_each(|list| tidy(list, has_log));
    }

    /// DRAM used, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let chunks: usize = self.lists.iter().map(|list| list.lock().chunks.len()).sum();
        (chunks * CHUNK * size_of::<PageId>()) as u64
    }
}
