//! Bound files: the steps of a local change around its records, and the notifications to adapters.
//!
//! *Bound* is a state of a file, durable as a flag of its inode: others may change the content in place, without a
//! record. Contents: [`Change`], with which every change of a bound file begins; publishing where pages lie; and the
//! times of stores. Binding and finalizing are in [`super::bind`], the calls of adapters in [`super::region`].
//!
//! Invariants of a bound file:
//! * A page moves, or is unmapped, only after the adapter has returned it ([`Change`]). That happens before the
//!   transaction begins: it may wait for guards, and a transaction holds the mapping's move lock and a ring.
//! * No page has a log, and no record carries a check of a page's content ([`Tx::on`]): a replay would drop the record
//!   if an adapter had changed the page since.
//! * While no thread has the inode's exclusive lock, the bytes beyond the end in the last page are zeros.
//! * The adapter knows pages before the end only, and none while the pool is frozen.

use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::{BlockNo, Lblk, PageId, PageRange, PageWord, TransCache};
use ferrite_vfs::regions::PageRun;
use ferrite_vfs::{Result, Timestamp};

use super::truncate::{self, MappedRun};
use crate::cache::bindings::Attached;
use crate::cache::inodes::InodeMem;
use crate::format::inode::Inode;
use crate::format::layout::{BLOCK_BYTES, lblks};
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx};

/// Pages looked up at a time.
const BATCH: usize = 64;
/// In a longer range, pages are listed instead of looked up one by one.
const LOOKUPS_MAX: u64 = 4096;
/// The part that a binding publishes itself: this many pages if each is looked up, this many runs if they are listed.
/// The adapter asks for the rest: the search for them must not delay the first access.
const FIRST_PAGES: u64 = 8192;
const FIRST_RUNS: usize = 1024;
/// One past the last page that adapters can name.
const NAMED_END: u64 = u32::MAX as u64;

/// A change of a bound file that has an adapter, from before its transaction to after its commit. Dropping it publishes
/// the pages there at that time, whatever the outcome of the change.
pub(crate) struct Change<'a> {
    core: &'a Core,
    mem: &'a InodeMem,
    file: Arc<Attached>,
    before: Inode,
    pages: PageRange,
}

/// Begins a change after which the file ends at `size`: revokes `pages` from the adapter, and those beyond a new end.
/// `None` if the file has no adapter; costs one branch if it is not bound.
///
/// The caller has the inode's exclusive lock for longer than the returned value lives, and no transaction. `inode` is
/// as stored.
#[inline]
pub(crate) fn change<'a>(
    core: &'a Core,
    mem: &'a InodeMem,
    inode: &Inode,
    pages: PageRange,
    size: u64,
) -> Option<Change<'a>> {
    match inode.is_bound() {
        true => change_bound(core, mem, inode, pages, size),
        false => None,
    }
}

#[cold]
fn change_bound<'a>(
    core: &'a Core,
    mem: &'a InodeMem,
    inode: &Inode,
    pages: PageRange,
    size: u64,
) -> Option<Change<'a>> {
    let file = core.bindings.of(mem.ino)?;
    let mut telling = file.tell();
    if size < telling.size {
        telling.size = size;
        telling.adapter()?.resize(size);
    }
    let is_shorter = size < inode.size();
    let pages = match is_shorter {
        // The part of the last page that is cut off is zeroed in a copy.
        true => PageRange::new(size / BLOCK_BYTES, NAMED_END),
        false => pages,
    };
    if let Some((first, end)) = named(pages)
        && !is_seeded(Bug::FreedBeforeDrain)
    {
        telling.adapter()?.revoke(first, end);
    }
    drop(telling);
    Some(Change {
        core,
        mem,
        file,
        before: *inode,
        pages,
    })
}

/// Begins a change that leaves all pages in their places, and adds `pages`.
pub(super) fn addition<'a>(core: &'a Core, mem: &'a InodeMem, inode: &Inode, pages: PageRange) -> Option<Change<'a>> {
    let file = core.bindings.of(mem.ino)?;
    Some(Change {
        core,
        mem,
        file,
        before: *inode,
        pages,
    })
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let Change { core, mem, file, .. } = self;
        let inode = core.load(mem.ino);
        if is_seeded(Bug::FreedBeforeDrain)
            && let Some((first, end)) = named(self.pages)
            && let Some(adapter) = file.tell().adapter()
        {
            adapter.revoke(first, end);
        }
        publish(core, mem, &inode, file, self.pages);
        tell_size(core, file, inode.size());
        let owned = |inode: &Inode| (inode.mode_bits(), inode.uid(), inode.gid());
        if owned(&inode) != owned(&self.before)
            && let Ok(attr) = core.locked_attr(mem, &inode)
            && let Some(adapter) = file.tell().adapter()
        {
            adapter.attributes_changed(&attr);
        }
    }
}

/// The pages of a range that adapters can name.
fn named(pages: PageRange) -> Option<(u32, u32)> {
    let clip = |page: u64| page.min(NAMED_END) as u32;
    let (first, end) = (clip(pages.first), clip(pages.end));
    (first < end).then_some((first, end))
}

/// Publishes where those of `pages` lie that are before the end, unless the pool is frozen or has failed. The caller
/// has the inode's lock, at least shared; `inode` is as stored. Returns the number of runs.
pub(super) fn publish(core: &Core, mem: &InodeMem, inode: &Inode, file: &Attached, pages: PageRange) -> u64 {
    tell_runs(core, file, &runs(core, mem, inode, pages))
}

/// The same for the first pages that are found quickly: all of a file that is small, or that lies in a few runs of a
/// mapping that knows runs.
pub(super) fn publish_first(core: &Core, mem: &InodeMem, inode: &Inode, file: &Attached) -> u64 {
    if core.map.walk_worth().is_some() {
        return publish(core, mem, inode, file, PageRange::new(0, FIRST_PAGES));
    }
    let (mapped, end) = truncate::first_runs(core, mem.ino, FIRST_RUNS);
    let runs = match named(PageRange::new(0, end.min(lblks(inode.size())))) {
        Some((first, end)) => with_holes(core, &mapped, first, end),
        None => Vec::new(),
    };
    tell_runs(core, file, &runs)
}

fn tell_runs(core: &Core, file: &Attached, runs: &[PageRun]) -> u64 {
    let telling = file.tell();
    // A freeze is visible here before it revokes everything from adapters.
    if let Some(adapter) = telling.adapter()
        && !runs.is_empty()
        && !core.journal.is_frozen()
        && !core.has_ended()
    {
        adapter.publish(runs);
    }
    runs.len() as u64
}

/// Reports the file's size to the adapter, if that knows another one.
pub(super) fn tell_size(core: &Core, file: &Attached, size: u64) {
    let mut telling = file.tell();
    if telling.size != size && !core.has_ended() {
        telling.size = size;
        if let Some(adapter) = telling.adapter() {
            adapter.resize(size);
        }
    }
}

/// Runs under construction.
#[derive(Default)]
struct Runs(Vec<PageRun>);

impl Runs {
    fn push(&mut self, at: u32, page: Option<u32>, pages: u32) {
        if let Some(last) = self.0.last_mut() {
            let follows = match (last.page, page) {
                (None, None) => true,
                (Some(first), Some(page)) => first + last.pages == page,
                _ => false,
            };
            if follows && last.at + last.pages == at {
                last.pages += pages;
                return;
            }
        }
        self.0.push(PageRun { at, page, pages });
    }

    /// Pages whose words follow each other.
    fn push_run(&mut self, core: &Core, run: MappedRun) {
        let (first, pages) = (run.first.get(), run.pages as u32);
        let last = BlockNo::new(core.superblock.page(run.word).get().saturating_add(pages - 1));
        let is_data = |block| core.superblock.is_data_block(block);
        if run.word.is_unwritten() {
            self.push(first, None, pages);
        } else if !run.word.has_log() && is_data(core.superblock.page(run.word)) && is_data(last) {
            self.push(first, Some(core.superblock.page(run.word).get()), pages);
        } else {
            run.each()
                .for_each(|(lblk, word)| self.push_word(core, lblk.get(), word));
        }
    }

    /// A page with this word. An invalid one is left out: an adapter that asks for it gets an error of damage.
    fn push_word(&mut self, core: &Core, at: u32, word: PageWord) {
        if word.is_hole() || word.is_unwritten() {
            self.push(at, None, 1);
        } else if core.superblock.is_data_block(core.superblock.page(word)) && !word.has_log() {
            self.push(at, Some(core.superblock.page(word).get()), 1);
        }
    }
}

fn runs(core: &Core, mem: &InodeMem, inode: &Inode, pages: PageRange) -> Vec<PageRun> {
    let clipped = PageRange::new(pages.first, pages.end.min(lblks(inode.size())));
    let Some((first, end)) = named(clipped) else {
        return Vec::new();
    };
    if clipped.pages() <= LOOKUPS_MAX {
        let mut runs = Runs::default();
        let cache = TransCache::default();
        let mut words = [PageWord::HOLE; BATCH];
        for at in (first..end).step_by(BATCH) {
            let words = &mut words[..((end - at) as usize).min(BATCH)];
            core.map.get_many(PageId::new(mem.ino, Lblk::new(at)), words, &cache);
            (at..)
                .zip(words.iter())
                .for_each(|(at, &word)| runs.push_word(core, at, word));
        }
        return runs.0;
    }
    with_holes(core, &truncate::mapped_runs(core, mem, inode, clipped), first, end)
}

/// The runs of pages `first` up to `end`, of which those in `mapped` are mapped.
fn with_holes(core: &Core, mapped: &[MappedRun], first: u32, end: u32) -> Vec<PageRun> {
    let mut runs = Runs::default();
    let mut next = first;
    for run in mapped.iter().filter(|run| (first..end).contains(&run.first.get())) {
        let at = run.first.get();
        if next < at {
            runs.push(next, None, at - next);
        }
        let pages = run.pages.min(u64::from(end - at));
        runs.push_run(core, MappedRun { pages, ..*run });
        // A damaged table may hold a page twice.
        next = next.max(at + pages as u32);
    }
    if next < end {
        runs.push(next, None, end - next);
    }
    runs.0
}

/// Moves the times of a bound file if something was stored since they were set. Not on a frozen pool, which keeps its
/// times. A failure leaves it for the next time.
pub(crate) fn settle_times(core: &Core, mem: &Arc<InodeMem>) {
    let Some(file) = core.bindings.of(mem.ino) else {
        return;
    };
    if core.journal.is_frozen() || core.check_writable().is_err() || !file.take_dirty() {
        return;
    }
    let _lock = mem.write();
    if stamp(core, mem).is_err() {
        file.note_store();
    }
}

/// Sets the times to now, and later than they were. The caller has the inode's exclusive lock.
pub(super) fn stamp(core: &Core, mem: &Arc<InodeMem>) -> Result<()> {
    let mut inode = core.load_live(mem)?;
    // Two stores within a tick of the clock are two changes.
    let now = Core::now().max(Timestamp(inode.mtime().0.saturating_add(1)));
    inode.set_mtime(now);
    inode.set_ctime(now.max(inode.ctime()));
    let mut tx = Tx::new(core, Purpose::ObservedChange);
    tx.put_inode(mem.ino, &mut inode);
    tx.commit(&[mem])
}

/// Zeroes the bytes beyond the end in the last page, in place: an append that a crash interrupted may have left some.
/// No reader sees them there. The caller has the inode's exclusive lock; `inode` is as stored. Durable when it returns.
pub(crate) fn zero_tail(core: &Core, mem: &InodeMem, inode: &Inode) -> Result<()> {
    let (within, lblk) = (inode.size() % BLOCK_BYTES, inode.size() / BLOCK_BYTES);
    if within == 0 || inode.is_inline() {
        return Ok(());
    }
    let word = core.map.get(PageId::new(mem.ino, Lblk::at(lblk)));
    if word.is_hole() || word.is_unwritten() || !core.superblock.is_data_block(core.superblock.page(word)) {
        return Ok(());
    }
    let offset = core.superblock.block_offset(core.superblock.page(word)) + within;
    let mut tail = vec![0; (BLOCK_BYTES - within) as usize];
    core.region.read(offset, &mut tail);
    if tail.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    core.region.stream_zero(offset, BLOCK_BYTES - within);
    core.region.fence().map_err(|error| core.fail(&error))
}
