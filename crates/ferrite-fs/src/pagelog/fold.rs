//! Folding: the merged page is written to a new block, which takes the place of block and log (hdpm.txt §2.4).
//!
//! A fold changes no content, so it needs no record: a crash leaves the old word or the new one, and both lead to the same bytes.
//! Its order makes that true: the merged page is fenced before the word is set; the word is durable before the mark passes the fold;
//! and what the old word leads to is reused only after that. An older record that is replayed brings the old word back,
//! and everything it leads to is there still. The merged page's checksum, where data carries one, is stored in place and fenced with the page:
//! until the word is set it belongs to a block that nobody reads, and no record sets the checksum of a free block any more.
//!
//! The page is merged and written without a lock. Only to set the word is the inode's lock *tried*, for some hundred
//! instructions; if a writer has it, or was there meanwhile, the fold is dropped. Readers never wait: they see a
//! version change, and read again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use ferrite_map::{PageWord, Resource};
use ferrite_vfs::{FsError, Result};
use parking_lot::Mutex;

use super::buffer::PageBuffer;
use super::{has_log, scan};
use crate::alloc::Class;
use crate::core::Core;
use crate::icache::InodeMem;
use crate::journal::thread_number;
use crate::planted::{Flaw, planted};
use crate::sums;

/// What made a log go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A write that merged, because the log was long or the page complete.
    Write,
    /// A read that walked too far.
    Read,
    /// The cleaner, or an operation that found no space.
    LowSpace,
    /// The cleaner, while nothing else went on.
    Idle,
}

/// Folds so far, by cause.
#[derive(Default)]
pub(crate) struct Folds([CachePadded<AtomicU64>; 4]);

impl Folds {
    pub(crate) fn count(&self, cause: Cause) {
        self.0[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize].load(Ordering::Relaxed)
    }
}

/// Folds between two looks at whether they are enough.
const CHECK_EVERY: usize = 32;
const LISTS: usize = 16;
/// Pages of a chunk of a list: no list is ever copied to grow.
const CHUNK: usize = 1024;
/// A list of this many pages asks for a look at which of them still have logs.
const LIST_LONG: usize = 1 << 16;

/// A queue in chunks.
#[derive(Default)]
struct List {
    chunks: VecDeque<Vec<(u32, u32)>>,
    len: usize,
    /// What was left when it was last tidied.
    tidy_len: usize,
}

impl List {
    fn push(&mut self, page: (u32, u32)) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push_back(Vec::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.push(page);
            self.len += 1;
        }
    }

    /// The oldest chunk.
    fn take_chunk(&mut self) -> Option<Vec<(u32, u32)>> {
        let chunk = self.chunks.pop_front()?;
        self.len -= chunk.len();
        Some(chunk)
    }
}

/// Pages that got a log, in DRAM, a list a thread; 8 bytes each. A page may have lost its log since, or be there twice.
pub(crate) struct Candidates {
    lists: Box<[CachePadded<Mutex<List>>]>,
}

impl Candidates {
    pub(crate) fn new() -> Self {
        Candidates {
            lists: (0..LISTS).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Notes a page that gets its first segment.
    pub(crate) fn add(&self, page: (u32, u32)) {
        self.lists[thread_number() as usize % LISTS].lock().push(page);
    }

    /// Takes about `most` pages, the oldest of each list.
    pub(crate) fn take(&self, most: usize) -> Vec<(u32, u32)> {
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

    /// Drops pages that are listed twice or have no log any more, once lists have grown long.
    pub(crate) fn tidy(&self, core: &Core) {
        for list in &self.lists {
            let old = {
                let mut list = list.lock();
                if list.len < LIST_LONG.max(2 * list.tidy_len) {
                    continue;
                }
                std::mem::take(&mut *list)
            };
            let mut pages = old.chunks.into_iter().flatten().collect::<Vec<_>>();
            pages.sort_unstable();
            pages.dedup();
            pages.retain(|&(ino, lblk)| has_log(core.map.get(ino, lblk)));
            let mut list = list.lock();
            list.tidy_len = pages.len();
            pages.into_iter().for_each(|page| list.push(page));
        }
    }

    /// DRAM used, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let chunks: usize = self.lists.iter().map(|list| list.lock().chunks.len()).sum();
        (chunks * CHUNK * size_of::<(u32, u32)>()) as u64
    }
}

/// Folds one page. True if it did; false if the page has no log (any more), or a writer was faster.
pub(crate) fn fold(core: &Core, mem: &Arc<InodeMem>, lblk: u32, cause: Cause) -> Result<bool> {
    core.check_writable()?;
    let page = (mem.ino, lblk);
    let Some(version) = mem.begin_read() else {
        return Ok(false);
    };
    let word = core.map.get(mem.ino, lblk);
    if mem.is_dead() || !has_log(word) {
        return Ok(false);
    }
    let mut merged = PageBuffer::take();
    let mut segments = Vec::new();
    let read = scan::read(core, page, word, 0, &mut merged[..])
        .and_then(|_| scan::segments(core, page, word, &mut |unit| segments.push(unit)));
    if !mem.end_read(version) {
        return Ok(false);
    }
    core.told(read)?;
    // Gives back a block for it, so it never owes the reserve.
    let (block, _) = core
        .alloc
        .claim_any(Class::Replacing)
        .ok_or(FsError::NoSpace("blocks"))?;
    core.region.stream(core.superblock.block_offset(block), &merged[..]);
    let set_sum = || {
        if let Some((offset, sum)) = sums::for_block(core, page, block, &merged[..]) {
            core.region.store(offset, sum);
            core.region.write_back(offset, 8);
        }
    };
    if !planted(Flaw::FoldSumLate) {
        set_sum();
    }
    if !planted(Flaw::FoldWithoutFence)
        && let Err(error) = core.region.fence()
    {
        return Err(core.fail(&error));
    }
    let installed = install(core, mem, version, (lblk, word), block, &segments);
    if installed {
        if planted(Flaw::FoldSumLate) {
            set_sum();
        }
        core.folds.count(cause);
    } else {
        core.alloc.release(block);
    }
    Ok(installed)
}

fn install(
    core: &Core,
    mem: &Arc<InodeMem>,
    version: u64,
    (lblk, word): (u32, PageWord),
    block: u32,
    segments: &[u32],
) -> bool {
    let Some(_lock) = mem.try_write() else { return false };
    // The version moves with every change of the inode, so the word is what was merged.
    if !mem.end_read(version) || mem.is_dead() {
        return false;
    }
    let at_once = planted(Flaw::FoldSpaceAtOnce);
    let freed = segments
        .iter()
        .map(|&unit| Resource::LogSegment(unit))
        .chain([Resource::Block(word.page())])
        .filter(|_| !at_once);
    // From finding the word to noting its line as dirty nothing may move it.
    let _passage = core.map.gate().map(|gate| gate.pass());
    mem.begin_change();
    let seq = core.journal.install(mem.last_seq(), freed, || {
        core.map.swing(mem.ino, lblk, word, PageWord::new(block, 0))
    });
    if let Some(seq) = seq {
        mem.set_last_seq(seq);
        if at_once {
            segments
                .iter()
                .for_each(|&unit| core.release(Resource::LogSegment(unit)));
            core.release(Resource::Block(word.page()));
        }
    }
    seq.is_some()
}

/// Folds candidates, those with the longest logs first, until `enough` says so after some of them. Returns how many it folded.
pub(crate) fn fold_some(core: &Core, most: usize, cause: Cause, enough: &mut dyn FnMut() -> bool) -> Result<usize> {
    core.candidates.tidy(core);
    let length = |&(ino, lblk): &(u32, u32)| {
        let word = core.map.get(ino, lblk);
        // Unreadable may mean that a writer is at it: the page must not drop out of the lists for that.
        let units = || scan::newest(core, (ino, lblk), word).map_or(0, |entry| entry.trailer.log_units);
        has_log(word).then(units)
    };
    let mut pages: Vec<_> = core
        .candidates
        .take(most)
        .into_iter()
        .filter_map(|page| length(&page).map(|units| (units, page)))
        .collect();
    pages.sort_unstable();
    pages.dedup();
    let mut folded = 0;
    while let Some((_, page)) = pages.pop() {
        let mem = core.inodes.get(page.0);
        let result = match fold(core, &mem, page.1, cause) {
            // What earlier folds gave back may be all there is.
            Err(FsError::NoSpace(_)) => core.reclaim().and_then(|()| fold(core, &mem, page.1, cause)),
            other => other,
        };
        match result {
            Ok(true) => folded += 1,
            // Somebody is at it: it stays a candidate if it still has a log.
            Ok(false) if has_log(core.map.get(page.0, page.1)) => core.candidates.add(page),
            Ok(false) => {}
            // Damage, which has been told: the others can be folded all the same, and trying again would come to nothing.
            Err(FsError::Io(_)) if core.check_writable().is_ok() => {}
            Err(error) => {
                core.candidates.add(page);
                pages.into_iter().for_each(|(_, page)| core.candidates.add(page));
                return if folded > 0 { Ok(folded) } else { Err(error) };
            }
        }
        if folded % CHECK_EVERY == CHECK_EVERY - 1 && enough() {
            pages.into_iter().for_each(|(_, page)| core.candidates.add(page));
            return Ok(folded);
        }
    }
    Ok(folded)
}
