//! Runs: consecutive pages of a file in consecutive blocks. One entry, the head, describes the whole run.
//!
//! Contents: the meaning of a range word ([`Range`]), a run as a reader sees it ([`Run`]), and how changes keep
//! ranges true ([`join`], [`split`]). Called by the table, with the inode's lock held as [`crate::FileMap`] requires.
//!
//! A range word has a back index and a count of followers. The *head* of a run has back index 0 and counts the pages
//! that follow it. A follower's back index leads to the head; only the head shows whether it is still a follower.
//!
//! So a change in the middle of a run sets one range besides its own: the head's, which now ends before the page. The
//! pages after it keep stale back indexes, and are looked up one by one until they are written again.
//!
//! Invariants, for an inode at rest: if a head at page *h* in block *b* has *n* followers, then for each *i* up to *n*
//! page *h + i* is mapped to block *b + i* without a log, and its back index is *i*.
//!
//! So no page is in two runs, and the back index of a page leads to the only head that a change of the page may have to
//! update. Ranges name pages, not slots: entries move freely. Every page of a run has its word in a record: a change
//! that makes a page a head also records its word.

use super::{Cuckoo, VECTOR};
use crate::{BlockNo, Inum, Lblk, MapEntry, MapTx, PageId, PageRange, PageWord, SlotNo};

/// Most pages of a run.
pub(super) const MAX_RUN: u32 = 512;

/// How many pages a walk by runs takes in a step, compared with one by pages, at best.
pub(super) const STEPS_SAVED: u64 = MAX_RUN as u64 / VECTOR as u64;

/// Range word of an entry: followers in the low half, back index in the high half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range(pub(super) u64);

impl Range {
    /// Of a page in no run.
    pub(super) const LONE: Range = Range(0);

    /// Of a page that leads a run.
    pub(super) fn head(followers: u32) -> Self {
        Range(u64::from(followers))
    }

    /// Of a page that follows.
    pub(super) fn follower(back: u32) -> Self {
        Range(u64::from(back) << 32)
    }

    /// Pages from the head to this one.
    #[inline]
    pub(super) fn back(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Number of pages after this one in the run that it leads.
    #[inline]
    pub(super) fn followers(self) -> u32 {
        if self.back() == 0 { self.0 as u32 } else { 0 }
    }
}

/// A run of more than one page, with its blocks inside the pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Slot of the head.
    slot: u64,
    first_lblk: Lblk,
    first_block: BlockNo,
    followers: u32,
}

impl Run {
    /// Slot of its head.
    pub(super) fn head(&self) -> u64 {
        self.slot
    }

    #[inline]
    pub(super) fn contains(&self, lblk: Lblk) -> bool {
        lblk >= self.first_lblk && lblk.get() - self.first_lblk.get() <= self.followers
    }

    /// Number of pages of the run after `lblk`, one of its pages.
    #[inline]
    pub(super) fn behind(&self, lblk: Lblk) -> u64 {
        u64::from(self.followers - (lblk.get() - self.first_lblk.get()))
    }

    /// Word of page `lblk`, one of its pages.
    #[inline]
    pub(super) fn word(&self, lblk: Lblk) -> PageWord {
        PageWord::of_block(self.first_block.plus(lblk.get() - self.first_lblk.get()))
    }
}

/// Visits the pages of a range as [`crate::FileMap::for_runs`] does. Pages are resolved a vector at a time, and the
/// walk skips the rest of the run of the last of them.
pub(super) fn walk(map: &Cuckoo, ino: Inum, range: PageRange, visit: &mut dyn FnMut(MapEntry, u64) -> bool) {
    let mut at = range.first;
    let mut was_lone = false;
    while at < range.end {
        let count = VECTOR.min((range.end - at) as usize);
        let first = Lblk::new(at as u32);
        let mut pages = [None; VECTOR];
        let (rest, is_lone) = map.move_lock.steady(|| {
            pages = [None; VECTOR];
            let (run, is_lone) = map.resolve(PageId::new(ino, first), count, true, was_lone, |index, slot, word| {
                pages[index] = slot.map(|slot| (slot, word));
            });
            let last = first.plus(count as u32 - 1);
            let rest = run.filter(|run| run.contains(last) && run.behind(last) > 0);
            (
                rest.map(|run| (run.head(), run.word(last.plus(1)), run.behind(last))),
                is_lone,
            )
        });
        was_lone = is_lone;
        let entry = |at: u64, slot, word| MapEntry {
            ino,
            lblk: Lblk::new(at as u32),
            word,
            slot: SlotNo::at(slot),
        };
        for (index, page) in pages[..count].iter().enumerate() {
            let seen = page.map(|(slot, word)| entry(at + index as u64, slot, word));
            if seen.is_some_and(|entry| !visit(entry, 1)) {
                return;
            }
        }
        at += count as u64;
        if let Some((slot, word, behind)) = rest {
            let pages = behind.min(range.end - at);
            if pages > 0 && !visit(entry(at, slot, word), pages) {
                return;
            }
            at += pages;
        }
    }
}

/// The table as it is stored, or as a transaction leaves it.
#[derive(Clone, Copy)]
pub(super) struct View<'v> {
    map: &'v Cuckoo,
    tx: Option<&'v dyn MapTx>,
}

impl<'v> View<'v> {
    pub(super) fn stored(map: &'v Cuckoo) -> Self {
        View { map, tx: None }
    }

    fn within(map: &'v Cuckoo, tx: &'v dyn MapTx) -> Self {
        View { map, tx: Some(tx) }
    }

    #[inline]
    fn load(&self, offset: u64) -> u64 {
        match self.tx {
            Some(tx) => tx.word(offset),
            None => self.map.region.load(offset),
        }
    }

    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<u64> {
        match self.tx {
            Some(tx) => self.map.find_in(tx, key),
            None => self.map.find(key),
        }
    }

    #[inline]
    pub(super) fn range(&self, slot: u64) -> Range {
        Range(self.load(self.map.range_offset(slot)))
    }

    #[inline]
    pub(super) fn word(&self, slot: u64) -> PageWord {
        PageWord(self.load(self.map.word_offset(slot)))
    }

    /// The run that the entry of page `lblk` in `slot` leads. Makes sure that its pages and blocks exist, not that the
    /// pages are mapped to those blocks.
    #[inline]
    pub(super) fn run_from(&self, slot: u64, lblk: Lblk) -> Option<Run> {
        let followers = self.range(slot).followers();
        if followers == 0 || followers >= MAX_RUN {
            return None;
        }
        lblk.get().checked_add(followers)?;
        let word = self.word(slot);
        let geometry = &self.map.geometry;
        let first_block = geometry.page(word);
        let last_block = first_block.get().checked_add(followers).map(BlockNo::new)?;
        let is_sound = word.is_plain() && geometry.is_data_block(first_block) && geometry.is_data_block(last_block);
        is_sound.then_some(Run {
            slot,
            first_lblk: lblk,
            first_block,
            followers,
        })
    }

    /// The run of a page that lies in `slot`: the one it leads or, if `looks_back`, the one it follows in.
    #[inline]
    pub(super) fn run_of(&self, PageId { ino, lblk }: PageId, slot: u64, looks_back: bool) -> Option<Run> {
        let back = self.range(slot).back();
        if back == 0 {
            return self.run_from(slot, lblk);
        }
        if !looks_back || back >= MAX_RUN {
            return None;
        }
        let first_lblk = lblk.get().checked_sub(back).map(Lblk::new)?;
        let run = self.run_from(self.find(PageId::new(ino, first_lblk).key())?, first_lblk)?;
        (run.contains(lblk) && run.word(lblk) == self.word(slot)).then_some(run)
    }
}

/// Sets the range of an entry if it differs.
pub(super) fn set_range(map: &Cuckoo, tx: &mut dyn MapTx, slot: u64, range: Range) {
    let offset = map.range_offset(slot);
    if tx.word(offset) != range.0 {
        tx.set_word(offset, range.0);
    }
}

/// Extends the run of the page before by page `lblk`, which is in no run, if its word allows it. Returns the page's
/// range.
pub(super) fn join(map: &Cuckoo, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Range {
    let Some(Follower { head, back }) = run_before(View::within(map, tx), PageId::new(ino, lblk), word) else {
        return Range::LONE;
    };
    if back == 1 {
        // It led no run, so its word may have been swung, which no record contains. A replay that restores the old word
        // must not end with a run at another block.
        let offset = map.word_offset(head);
        tx.set_word(offset, tx.word(offset));
    }
    set_range(map, tx, head, Range::head(back));
    Range::follower(back)
}

/// The place of a page as a follower of the run before it.
struct Follower {
    /// Slot of the head.
    head: u64,
    /// Distance from it, in pages.
    back: u32,
}

/// The run that page `lblk` may follow.
fn run_before(view: View<'_>, PageId { ino, lblk }: PageId, word: PageWord) -> Option<Follower> {
    let before = lblk.checked_previous()?;
    let block = view.map.geometry.page(word).checked_previous()?;
    if !word.is_plain() || !view.map.geometry.is_data_block(block) {
        return None;
    }
    let slot = view.find(PageId::new(ino, before).key())?;
    if view.word(slot) != PageWord::of_block(block) {
        return None;
    }
    let (head, back) = match view.run_of(PageId::new(ino, before), slot, true) {
        Some(run) => (run.slot, lblk.get() - run.first_lblk.get()),
        None => (slot, 1),
    };
    (back < MAX_RUN).then_some(Follower { head, back })
}

/// Takes page `lblk`, in `slot`, and all pages after it out of its run, because its word is about to change. The caller
/// sets the page's own range, which may make it a head.
pub(super) fn split(map: &Cuckoo, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, slot: u64) {
    let view = View::within(map, tx);
    let back = view.range(slot).back();
    let head = lblk
        .get()
        .checked_sub(back)
        .filter(|_| back > 0)
        .and_then(|first| view.find(PageId::new(ino, Lblk::new(first)).key()))
        .filter(|&head| view.range(head).followers() >= back);
    if let Some(head) = head {
        set_range(map, tx, head, Range::head(back - 1));
    }
}
