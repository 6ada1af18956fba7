//! Where a file may have pages, kept in DRAM, so that a truncation or a search of a sparse file costs its mapped pages,
//! not its holes.
//!
//! A mapping that is one global table cannot list the pages of a file ([`ferrite_map::FileMap::walk_worth`]); trees
//! can, and for them nothing is kept here. Contents: [`MappedRanges`], one in each
//! [`crate::cache::inodes::InodeMem`], and the [`Budget`] that all share.
//!
//! Mapped ranges cover **all** pages of their inode, and may cover more: a covered stretch without pages costs lookups,
//! but a page outside would be lost to truncation.
//!
//! For most files it is one number, the page after the last; this takes no extra memory. Only a file whose pages are
//! far apart has a list of runs, at most [`RUNS_MAX`]. Beyond that, or beyond the budget, coarser runs cover the pages,
//! at worst that one number.
//!
//! Why no page is ever missing:
//! * The summary of an inode that comes into DRAM covers everything; that of a new inode, which maps nothing, covers
//!   nothing.
//! * Operations map pages only through [`crate::pool::tx::Tx::insert_page`], and the commit widens the summary before
//!   it sets any word. The commit has the inode, locked exclusively, since each new page changes the count in it. A
//!   transaction that is dropped, or whose commit fails, leaves the summary as it was, or too wide.
//! * Nothing else maps pages while operations run: replay, repair and mkfs have finished before. A mapping that moves
//!   its entries, or a merge that swings a word, leaves keys unchanged.
//! * It is narrowed in two ways only. [`MappedRanges::clear`]: a commit, after its words are set, leaves out the pages
//!   that its own record has unmapped. [`MappedRanges::learn`]: narrows it to the pages found mapped. The caller holds
//!   the inode's lock, at least shared, and either has examined the whole stretch under it, or has seen since that the
//!   inode's version did not change.
//! * Each of these is a single step to readers. A reader without the inode's lock checks its version afterwards, as
//!   always.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::ranked::Mutex;
use ferrite_map::{Lblk, PageRange};

use crate::format::layout::LBLK_END;
use crate::lock_order;

/// Runs with at most this many pages between them are kept as one: examining those pages costs little more than finding
/// the next run.
const GAP: u64 = 32;
/// Most runs of one file.
const RUNS_MAX: usize = 4096;
/// Runs for which a list has memory at least.
const RUNS_MIN: usize = 8;
/// DRAM of a run with its share of the tree's nodes; below, that of a list without runs.
const RUN_BYTES: u64 = 32;
const LIST_BYTES: u64 = 256;
/// DRAM for all lists: one byte for this many bytes of the pool, but not less than the minimum.
const POOL_SHARE: u64 = 1 << 14;
const BUDGET_MIN_BYTES: u64 = 1 << 20;
/// In place of a number of pages: there is a list.
const LISTED: u64 = u64::MAX;

/// The limit of memory for all lists of a pool, and its use.
pub(crate) struct Budget {
    used_bytes: AtomicU64,
    most_bytes: u64,
}

impl Budget {
    pub(crate) fn new(pool_bytes: u64) -> Arc<Budget> {
        Self::with_bytes((pool_bytes / POOL_SHARE).max(BUDGET_MIN_BYTES))
    }

    fn with_bytes(most_bytes: u64) -> Arc<Budget> {
        Arc::new(Budget {
            used_bytes: AtomicU64::new(0),
            most_bytes,
        })
    }

    /// DRAM used, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let within = |used: u64| Some(used + bytes).filter(|&used| used <= self.most_bytes);
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    fn give(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Disjoint stretches of pages: first page, and the page after the last. A general set of ranges does not serve: these
/// join across short gaps and become coarser to stay within a bound.
#[derive(Debug, Default, PartialEq, Eq)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    /// The runs that make up `0..reach`.
    fn up_to(reach: u64) -> Runs {
        Runs((reach > 0).then_some((0, reach)).into_iter().collect())
    }

    /// Covers `first..end`, and the adjoining gaps if they are short.
    fn add(&mut self, mut first: u64, mut end: u64) {
        if let Some((&before, &stop)) = self.0.range(..=first).next_back()
            && stop + GAP >= first
        {
            if stop >= end {
                return;
            }
            first = before;
        }
        while let Some((&start, &stop)) = self.0.range(first..=end + GAP).next() {
            self.0.remove(&start);
            end = end.max(stop);
        }
        self.0.insert(first, end);
        if self.0.len() > RUNS_MAX {
            self.coarsen();
        }
    }

    /// No longer covers `first..end`.
    fn remove(&mut self, first: u64, end: u64) {
        if let Some((&before, &stop)) = self.0.range(..first).next_back()
            && stop > first
        {
            self.0.insert(before, first);
            if stop > end {
                self.0.insert(end, stop);
            }
        }
        while let Some((&start, &stop)) = self.0.range(first..end).next() {
            self.0.remove(&start);
            if stop > end {
                self.0.insert(end, stop);
            }
        }
    }

    /// Fills the shorter half of the gaps.
    fn coarsen(&mut self) {
        let gap = |(a, b): ((&u64, &u64), (&u64, &u64))| b.0 - a.1;
        let mut gaps: Vec<u64> = self.0.iter().zip(self.0.iter().skip(1)).map(gap).collect();
        let Some(middle) = gaps.len().checked_sub(1).map(|last| last / 2) else {
            return;
        };
        let longest = *gaps.select_nth_unstable(middle).1;
        let mut coarse: Vec<PageRange> = Vec::new();
        for (&first, &end) in &self.0 {
            match coarse.last_mut() {
                Some(last) if first - last.end <= longest => last.end = end,
                _ => coarse.push(PageRange::new(first, end)),
            }
        }
        self.0 = coarse.into_iter().map(|run| (run.first, run.end)).collect();
    }

    /// The page after the last run.
    fn reach(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, &end)| end)
    }

    /// Whether a list would hold more than the reach of the runs.
    fn is_worth_a_list(&self) -> bool {
        self.0.len() > 1 || self.0.first_key_value().is_some_and(|(&first, _)| first > GAP)
    }
}

/// Runs, with the budget that pays for their memory.
struct List {
    runs: Runs,
    /// Runs that are paid for.
    paid: usize,
    budget: Arc<Budget>,
}

impl List {
    fn bytes(runs: usize) -> u64 {
        match runs {
            0 => 0,
            runs => LIST_BYTES + runs as u64 * RUN_BYTES,
        }
    }

    /// Takes memory for `len` runs from the budget, or returns what they do not need.
    fn pay(&mut self, len: usize) -> bool {
        let wanted = len.next_power_of_two().max(RUNS_MIN);
        let (paid, due) = (Self::bytes(self.paid), Self::bytes(wanted));
        if due > paid && !self.budget.take(due - paid) {
            return false;
        }
        // Not at once, or a list whose length alternates by one would do so every time.
        if due > paid || wanted * 4 <= self.paid {
            self.budget.give(paid.saturating_sub(due));
            self.paid = wanted;
        }
        true
    }

    /// Makes the runs as coarse as the budget requires; false if a list is of no use then.
    fn settle(&mut self) -> bool {
        while self.runs.is_worth_a_list() {
            if self.pay(self.runs.0.len()) {
                return true;
            }
            if self.runs.0.len() == 1 {
                return false;
            }
            self.runs.coarsen();
        }
        false
    }
}

impl Drop for List {
    fn drop(&mut self) {
        self.budget.give(Self::bytes(self.paid));
    }
}

/// Where an inode may have pages; see the module's head.
pub(crate) struct MappedRanges {
    /// No page is at or after this one; [`LISTED`] if there is a list. Read without the list's lock only while holding
    /// the inode's lock.
    reach: AtomicU64,
    list: Mutex<lock_order::MappedRangeList, Option<Box<List>>>,
}

impl MappedRanges {
    /// For an inode of which nothing is known.
    pub(crate) fn everywhere() -> MappedRanges {
        Self::up_to(LBLK_END)
    }

    /// For an inode that maps nothing.
    pub(crate) fn nowhere() -> MappedRanges {
        Self::up_to(0)
    }

    fn up_to(reach: u64) -> MappedRanges {
        MappedRanges {
            reach: AtomicU64::new(reach),
            list: Mutex::new(None),
        }
    }

    /// Covers `first..end`, which are about to be mapped. The caller has the inode's lock exclusively.
    #[inline]
    pub(crate) fn widen(&self, first: u64, end: u64, budget: &Arc<Budget>) {
        let reach = self.reach.load(Ordering::Relaxed);
        if reach != LISTED && first <= reach + GAP {
            if end > reach {
                self.reach.store(end, Ordering::Relaxed);
            }
        } else {
            self.change(budget, |runs| runs.add(first, end));
        }
    }

    /// Leaves out `first..end`: nothing is mapped there any more, and readers without the inode's lock find its
    /// version changed.
    pub(crate) fn clear(&self, first: u64, end: u64, budget: &Arc<Budget>) {
        let reach = self.reach.load(Ordering::Relaxed);
        if reach == LISTED {
            self.change(budget, |runs| runs.remove(first, end));
        } else if first < reach && end >= reach {
            self.reach.store(first, Ordering::Relaxed);
        }
    }

    /// Exactly these pages, in ascending order, are mapped within `range`.
    pub(crate) fn learn(&self, range: PageRange, pages: &[Lblk], budget: &Arc<Budget>) {
        self.change(budget, |runs| {
            runs.remove(range.first, range.end);
            let mut pages = pages.iter().map(|&lblk| u64::from(lblk)).peekable();
            while let Some(start) = pages.next() {
                let mut stop = start + 1;
                while let Some(next) = pages.next_if(|&next| next <= stop + GAP) {
                    stop = next + 1;
                }
                runs.add(start, stop);
            }
        });
    }

    #[cold]
    fn change(&self, budget: &Arc<Budget>, change: impl FnOnce(&mut Runs)) {
        let mut place = self.list.lock();
        let mut list = place.take().unwrap_or_else(|| {
            Box::new(List {
                runs: Runs::up_to(self.reach.load(Ordering::Relaxed)),
                paid: 0,
                budget: Arc::clone(budget),
            })
        });
        change(&mut list.runs);
        let reach = list.runs.reach();
        let is_kept = list.settle();
        *place = is_kept.then_some(list);
        self.reach
            .store(if is_kept { LISTED } else { reach }, Ordering::Relaxed);
    }

    /// The first stretch in `at..end` that may have pages.
    pub(crate) fn next_run(&self, at: u64, end: u64) -> Option<PageRange> {
        let list = self.list.lock();
        let (first, stop) = match &*list {
            None => (0, self.reach.load(Ordering::Relaxed)),
            Some(list) => {
                let runs = &list.runs.0;
                let around = runs.range(..=at).next_back().filter(|&(_, &stop)| stop > at);
                let (&first, &stop) = around.or_else(|| runs.range(at..).next())?;
                (first, stop)
            }
        };
        let run = PageRange::new(first.max(at), stop.min(end));
        (!run.is_empty()).then_some(run)
    }

    /// Number of covered pages in `first..end`, or some number above `most`.
    pub(crate) fn covered(&self, first: u64, end: u64, most: u64) -> u64 {
        let mut sum = 0;
        let mut at = first;
        while sum <= most
            && let Some(run) = self.next_run(at, end)
        {
            sum += run.pages();
            at = run.end;
        }
        sum
    }
}

#[cfg(test)]
mod tests;
