//! Unmapping pages: truncation, punched holes, and the pages of a freed inode.
//!
//! A change that unmaps more pages than one record holds is made atomic by an *intent* in the inode: the first record
//! carries the new size (or the zeroed edges of a hole) and the range `truncate_first..truncate_end` of logical blocks
//! to remove; each of the following records unmaps some of them; the last one clears the intent.
//!
//! An intent must not be recorded unless it can be carried out, even on a full pool. The only thing that may need
//! space is an extent that continues past the range: it becomes two when the range's first page is taken from its
//! middle, and that may split nodes up to the root. So the first record unmaps the first pages as well. If there is no
//! block for it, it fails, and nothing was changed.
//!
//! All later records take pages from the front of what is left of their extents, in ascending order, and need no space;
//! other mappings never need any. Since the first record frees more than a path's worth of nodes, it leaves no debt to
//! the reserve.
//!
//! Crash argument: as soon as the first record is durable, mount completes the operation before anything else can see
//! the file ([`resume`]). Each step only unmaps pages of the range that are still mapped, so repeating it is harmless.
//! The inode's lock is held throughout, so no other operation sees the file in between.
//!
//! A global table cannot list a file's pages, so they are searched for where the inode's
//! [`crate::cache::mapped_ranges::MappedRanges`] permits them.
//!
//! The table is walked only if the summary covers more than a walk of the table is worth, as in a sparse file of which
//! nothing is known yet. The walk is then done for the whole file at once, and the summary learns the pages found.
//! Either search ends once it has found the inode's count of pages. A damaged table may hold a page twice; each page
//! found is unmapped once.

use std::sync::Arc;

use ferrite_map::{BlockNo, Inum, Lblk, MapEntry, MapTx, PageId, PageRange, PageWord, Resource};
use ferrite_vfs::{FsError, Result};

use super::inline;
use crate::cache::inodes::InodeMem;
use crate::format::inode::{INLINE_BYTES, Inode};
use crate::format::layout::BLOCK_BYTES;
use crate::format::layout::LBLK_END;
use crate::format::layout::lblks;
use crate::page::append::{self, Part};
use crate::page::scan;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::{Purpose, Tx};
use crate::retry::SPACE_TRIES;
use crate::space::blocks::Class;

/// Most pages that one record unmaps: each takes two words with their heads, and the inode must fit too.
const PAGES_PER_RECORD: usize = 512;
/// This many lookups without a result are not worth remembering.
const WASTE: u64 = 32;
/// Pages unmapped by the record that carries an intent: more than the nodes that a tree could need for it.
const PAGES_WITH_INTENT: usize = 64;
/// Adds pages of a range, until there are `most`. The mapping chooses the cheaper way, see
/// [`ferrite_map::FileMap::walk_worth`].
fn collect(core: &Core, ino: Inum, range: PageRange, most: usize, into: &mut Vec<Lblk>) {
    if !range.is_empty() && into.len() < most {
        core.map.for_range(ino, Lblk::at(range.first), range.end, &mut |entry| {
            into.push(entry.lblk);
            into.len() < most
        });
    }
}

/// Logical blocks of an inode that are mapped from `first` on, in ascending order. The caller has the inode's lock, at
/// least shared.
pub(crate) fn mapped_pages(core: &Core, mem: &InodeMem, inode: &Inode, first: u64) -> Vec<Lblk> {
    mapped_within(core, mem, inode, PageRange::new(first, LBLK_END))
}

/// The same for a range.
pub(super) fn mapped_within(core: &Core, mem: &InodeMem, inode: &Inode, range: PageRange) -> Vec<Lblk> {
    let most = inode.blocks() as usize;
    let mut pages = Vec::new();
    if most == 0 || range.is_empty() {
        return pages;
    }
    let Some(worth) = core.map.walk_worth() else {
        collect(core, mem.ino, range, most, &mut pages);
        pages.sort_unstable();
        pages.dedup();
        return pages;
    };
    let covered = mem.mapped_ranges.covered(range.first, range.end, worth);
    if covered <= worth {
        let mut at = range.first;
        while let Some(run) = mem.mapped_ranges.next_run(at, range.end) {
            collect(core, mem.ino, run, most, &mut pages);
            at = run.end;
        }
        pages.sort_unstable();
        pages.dedup();
        let is_all = pages.len() == most;
        if is_all || range != PageRange::ALL {
            // Ranges searched without a result need not be searched again.
            if covered > pages.len() as u64 + WASTE {
                mem.mapped_ranges.learn(range, &pages, &core.mapped_ranges_budget);
            }
            return pages;
        }
        // A damaged pool: the state in DRAM must not cause a page to be missed.
    }
    let mut all = all_pages(core, mem, inode, worth);
    all.retain(|&lblk| range.contains(u64::from(lblk)));
    all
}

/// Mapped pages that follow each other in the file and lie in blocks that do, with the same log.
#[derive(Clone, Copy)]
pub(crate) struct MappedRun {
    pub(super) first: Lblk,
    /// Of the first page.
    pub(super) word: PageWord,
    /// How many, at least one.
    pub(super) pages: u64,
}

impl MappedRun {
    /// Whether a run continues this one.
    fn is_before(&self, next: &MappedRun) -> bool {
        u64::from(self.first) + self.pages == u64::from(next.first) && self.word.plus(self.pages) == next.word
    }

    /// Its pages with their words.
    pub(crate) fn each(self) -> impl Iterator<Item = (Lblk, PageWord)> {
        (0..self.pages).map(move |distance| {
            // A damaged word may lead anywhere, and must not cause a panic.
            (Lblk::at(u64::from(self.first) + distance), self.word.plus(distance))
        })
    }
}

/// Adds pages that were found after the others.
fn add_run(runs: &mut Vec<MappedRun>, entry: MapEntry, pages: u64) {
    let run = MappedRun {
        first: entry.lblk,
        word: entry.word,
        pages,
    };
    match runs.last_mut().filter(|last| last.is_before(&run)) {
        Some(last) => last.pages += pages,
        None => runs.push(run),
    }
}

/// The same as runs with their words: a structure that knows runs takes a step for each. Adjacent runs may stay
/// separate. Where half of a range is mapped, looking up its pages costs no more than looking up those that a walk of
/// the table finds.
pub(crate) fn mapped_runs(core: &Core, mem: &InodeMem, inode: &Inode, range: PageRange) -> Vec<MappedRun> {
    let most = u64::from(inode.blocks());
    let mut runs: Vec<MappedRun> = Vec::new();
    if most == 0 || range.is_empty() {
        return runs;
    }
    let mut found = 0;
    let mut collect = |range: PageRange| {
        if range.is_empty() || found >= most {
            return;
        }
        core.map
            .for_runs(mem.ino, Lblk::at(range.first), range.end, &mut |entry, pages| {
                add_run(&mut runs, entry, pages);
                found += pages;
                found < most
            });
    };
    match core.map.walk_worth().map(|worth| worth.max(2 * most)) {
        None => collect(range),
        Some(worth) if mem.mapped_ranges.covered(range.first, range.end, worth) <= worth => {
            let mut at = range.first;
            while let Some(run) = mem.mapped_ranges.next_run(at, range.end) {
                collect(run);
                at = run.end;
            }
        }
        Some(_) => {
            let pages = mapped_within(core, mem, inode, range).into_iter();
            return pages
                .map(|first| MappedRun {
                    first,
                    word: core.map.get(PageId::new(mem.ino, first)),
                    pages: 1,
                })
                .collect();
        }
    }
    if !runs.is_sorted_by_key(|run| run.first) {
        runs.sort_unstable_by_key(|run| run.first);
    }
    // A damaged table may hold a page twice.
    runs.dedup_by_key(|run| run.first);
    runs
}

/// The first runs of a file, of a mapping that lists them in order: up to `most`, and the page up to which these are
/// all. The caller has the inode's lock, at least shared.
pub(super) fn first_runs(core: &Core, ino: Inum, most: usize) -> (Vec<MappedRun>, u64) {
    let mut runs: Vec<MappedRun> = Vec::new();
    let (mut looked_at, mut end) = (0, 0);
    core.map.for_runs(ino, Lblk::FIRST, LBLK_END, &mut |entry, pages| {
        add_run(&mut runs, entry, pages);
        end = u64::from(entry.lblk) + pages;
        looked_at += 1;
        looked_at < most
    });
    (runs, if looked_at < most { LBLK_END } else { end })
}

/// All pages of an inode in ascending order, which its mapped ranges learn. Looks inside the file's size first: a walk
/// of the table is necessary only if space is reserved after it, or if the size is out of all proportion.
fn all_pages(core: &Core, mem: &InodeMem, inode: &Inode, worth: u64) -> Vec<Lblk> {
    let pages = found_pages(core, mem.ino, inode, worth);
    mem.mapped_ranges
        .learn(PageRange::ALL, &pages, &core.mapped_ranges_budget);
    pages
}

/// The same without the inode's lock: the caller must validate the inode's version.
pub(super) fn found_pages(core: &Core, ino: Inum, inode: &Inode, worth: u64) -> Vec<Lblk> {
    let most = inode.blocks() as usize;
    let size_end = lblks(inode.size());
    let mut pages = Vec::new();
    if size_end <= worth {
        collect(core, ino, PageRange::new(0, size_end), most, &mut pages);
    }
    if pages.len() < most {
        pages.clear();
        collect(core, ino, PageRange::ALL, most, &mut pages);
    }
    pages.sort_unstable();
    pages.dedup();
    pages
}

/// Unmaps one page in `tx` and updates the count in `inode`. A tree may need a node for that, which comes from the
/// reserve: an operation that frees space must not fail for lack of it.
pub(crate) fn unmap(core: &Core, tx: &mut Tx<'_>, ino: Inum, lblk: Lblk, inode: &mut Inode) -> Result<()> {
    tx.set_class(Class::Replacing);
    let word = core.map.remove(tx, PageId::new(ino, lblk)).map_err(map_error)?;
    if word.is_hole() {
        return Ok(());
    }
    if core.superblock.page(word) != BlockNo::NONE {
        tx.freed(Resource::Block(core.superblock.page(word)));
    }
    scan::free(core, tx, PageId::new(ino, lblk), word)?;
    inode.set_blocks(inode.blocks().saturating_sub(1));
    Ok(())
}

/// Unmaps all pages from `first` on, in as many records as needed; `inode` is the stored inode and is kept up to date.
pub(crate) fn unmap_from(core: &Core, mem: &Arc<InodeMem>, inode: &mut Inode, first: u64) -> Result<()> {
    let pages = mapped_pages(core, mem, inode, first);
    unmap_pages(core, mem, inode, &pages)
}

/// Unmaps these pages, in as many records as needed.
pub(crate) fn unmap_pages(core: &Core, mem: &Arc<InodeMem>, inode: &mut Inode, pages: &[Lblk]) -> Result<()> {
    for chunk in pages.chunks(PAGES_PER_RECORD) {
        let mut tx = Tx::new(core, Purpose::Change);
        for &lblk in chunk {
            unmap(core, &mut tx, mem.ino, lblk, inode)?;
        }
        tx.put_inode(mem.ino, inode);
        tx.commit(&[mem])?;
    }
    Ok(())
}

/// Sets the size in `tx`. Growing makes a hole. Shrinking zeroes the rest of the last page, and unmaps the pages after
/// it. Returns `Some` if that is more than this record takes: then the caller commits and calls [`finish`].
pub(crate) fn resize(core: &Core, tx: &mut Tx<'_>, mem: &InodeMem, inode: &mut Inode, size: u64) -> Result<Option<()>> {
    let ino = mem.ino;
    let old_size = inode.size();
    if inode.is_inline() {
        if size <= INLINE_BYTES as u64 {
            if size < old_size {
                inode.clear_inline(size as usize);
            }
            inode.set_size(size);
            return Ok(None);
        }
        let size = inode.size();
        inline::move_out(core, tx, ino, inode, size)?;
    }
    // Reserved pages may follow the old size, so growing has nothing to free, but shrinking frees both kinds.
    inode.set_size(size);
    if size >= old_size {
        return Ok(None);
    }
    if !size.is_multiple_of(BLOCK_BYTES) {
        zero_within(
            core,
            tx,
            ino,
            Lblk::at(size / BLOCK_BYTES),
            (size % BLOCK_BYTES) as usize,
            BLOCK_BYTES as usize,
        )?;
    }
    let mut probe = *inode;
    probe.set_size(old_size);
    let pages = mapped_pages(core, mem, &probe, lblks(size));
    unmap_or_intend(core, tx, ino, inode, &pages, PageRange::new(lblks(size), LBLK_END))
}

fn unmap_or_intend(
    core: &Core,
    tx: &mut Tx<'_>,
    ino: Inum,
    inode: &mut Inode,
    pages: &[Lblk],
    range: PageRange,
) -> Result<Option<()>> {
    if pages.len() > PAGES_PER_RECORD {
        inode.set_truncate_first(range.first);
        inode.set_truncate_end(range.end);
    }
    let is_whole = pages.len() <= PAGES_PER_RECORD;
    let now = if is_whole { pages } else { &pages[..PAGES_WITH_INTENT] };
    for &lblk in now {
        unmap(core, tx, ino, lblk, inode)?;
    }
    if is_whole {
        tx.clears(ino, range);
    }
    Ok((!is_whole).then_some(()))
}

/// Punches the logical blocks of `range` out in `tx`; otherwise like [`resize`].
pub(crate) fn punch(
    core: &Core,
    tx: &mut Tx<'_>,
    mem: &InodeMem,
    inode: &mut Inode,
    range: PageRange,
) -> Result<Option<()>> {
    let pages = mapped_within(core, mem, inode, range);
    unmap_or_intend(core, tx, mem.ino, inode, &pages, range)
}

/// Carries out the intent of `inode` (the stored inode, lock held) and clears it. If that fails, the pool takes no more
/// changes: data written into the range would be lost when the next mount carries out the intent.
pub(crate) fn finish(core: &Core, mem: &Arc<InodeMem>, inode: &mut Inode) -> Result<()> {
    resume(core, mem, inode)
        .map_err(|error| core.stop_changes(format!("inode {}: truncated in part: {error}", mem.ino)))
}

/// The same at mount, where nothing can have happened in between.
pub(crate) fn resume(core: &Core, mem: &Arc<InodeMem>, inode: &mut Inode) -> Result<()> {
    let mut tries = 0;
    loop {
        match carry_out(core, mem, inode) {
            Err(FsError::NoSpace(_)) if tries < SPACE_TRIES => {
                // Frees the blocks that the steps so far have released.
                core.reclaim()?;
                // A failed step has changed the count for pages that are still mapped.
                *inode = core.load(mem.ino);
                tries += 1;
            }
            other => return other,
        }
    }
}

fn carry_out(core: &Core, mem: &Arc<InodeMem>, inode: &mut Inode) -> Result<()> {
    let range = PageRange::new(inode.truncate_first(), inode.truncate_end().min(LBLK_END));
    let pages = mapped_within(core, mem, inode, range);
    unmap_pages(core, mem, inode, &pages)?;
    inode.set_truncate_first(0);
    inode.set_truncate_end(0);
    let mut tx = Tx::new(core, Purpose::Change);
    tx.put_inode(mem.ino, inode);
    tx.clears(mem.ino, range);
    tx.commit(&[mem])
}

/// Zeroes bytes `from..to` of a page; does nothing in a hole.
pub(crate) fn zero_within(core: &Core, tx: &mut Tx<'_>, ino: Inum, lblk: Lblk, from: usize, to: usize) -> Result<()> {
    let word = core.map.get(PageId::new(ino, lblk));
    if word.is_hole() || word.is_unwritten() {
        return Ok(());
    }
    append::write_part(
        core,
        tx,
        PageId::new(ino, lblk),
        word,
        (from, Part::Zero(to - from)),
        false,
    )
}

/// The range of a punched hole or zeroed stretch: its whole pages, and the parts of pages at its ends.
pub(crate) struct Stretch {
    /// Whole pages.
    pub(crate) pages: PageRange,
    /// Parts of pages.
    pub(crate) edges: Vec<Edge>,
}

/// Part of a page: its bytes `from..to`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) lblk: Lblk,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Stretch {
    /// Splits `offset..end`, which is within the largest file size.
    pub(crate) fn new(offset: u64, end: u64) -> Result<Stretch> {
        let lblk = |bytes: u64| {
            u32::try_from(bytes / BLOCK_BYTES)
                .map(Lblk::new)
                .map_err(|_| FsError::FileTooBig)
        };
        let within = |bytes: u64| (bytes % BLOCK_BYTES) as usize;
        let (first, last) = (lblks(offset), end / BLOCK_BYTES);
        let mut edges = Vec::new();
        let mut edge = |at: u64, from: usize, to: usize| {
            edges.push(Edge {
                lblk: lblk(at)?,
                from,
                to,
            });
            Ok::<(), FsError>(())
        };
        if first > last {
            edge(offset, within(offset), within(end))?;
        } else {
            if within(offset) != 0 {
                edge(offset, within(offset), BLOCK_BYTES as usize)?;
            }
            if within(end) != 0 {
                edge(end, 0, within(end))?;
            }
        }
        Ok(Stretch {
            pages: PageRange::new(first, last.max(first)),
            edges,
        })
    }
}

#[cfg(test)]
mod tests {
    use ferrite_pm::Region;
    use ferrite_vfs::{FallocateMode, FileKind, FileSystem, NewNode, OpenMode, ROOT_INO, SYSTEM};

    use super::*;
    use crate::{Engine, Mapping, MkfsOptions, MountOptions, mkfs};

    /// Where the long stretch of the victim begins, in pages.
    const STRETCH: u64 = 100_000;

    /// Punches more than one record's worth of pages out of the middle of an extent while all blocks are in use,
    /// except, if `one_waits`, those of a file that was just removed: the checkpoint has not passed it. `lone` pages of
    /// the victim fill the leaf that holds the extent.
    fn truncate_on_a_full_pool(lone: u64, one_waits: bool) -> Result<()> {
        let region = Region::anonymous(14 << 20).unwrap();
        let options = MkfsOptions::default().mapping(Mapping::Extent).inodes(255).rings(1);
        mkfs(&region, &options).unwrap();
        let options = MountOptions::default().cleaner(false);
        let engine = Engine::mount(region, &options).unwrap();
        let make = |name: &str| {
            let node = NewNode {
                kind: FileKind::File,
                mode: 0o644,
                rdev: 0,
            };
            let ino = engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node).unwrap().ino;
            engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap()
        };
        let file = make("victim");
        for n in 0..lone {
            file.write_at(SYSTEM, n * 2 * BLOCK_BYTES, &[7; BLOCK_BYTES as usize])
                .unwrap();
        }
        file.write_at(SYSTEM, STRETCH * BLOCK_BYTES, &vec![1; 800 * BLOCK_BYTES as usize])
            .unwrap();
        make("other")
            .write_at(SYSTEM, 0, &[9; 8 * BLOCK_BYTES as usize])
            .unwrap();
        let core = engine.core();
        core.reclaim()?;
        if one_waits {
            engine.unlink(SYSTEM, ROOT_INO, b"other").unwrap();
        }
        while core.alloc.claim_any(Class::Replacing).is_some() {}
        let truncated = file.fallocate(
            SYSTEM,
            FallocateMode::PunchHole,
            (STRETCH + 50) * BLOCK_BYTES,
            700 * BLOCK_BYTES,
        );
        let left = lone + if truncated.is_ok() { 100 } else { 800 };
        assert_eq!(engine.getattr(SYSTEM, file.ino()).unwrap().blocks / 8, left);
        assert!(!engine.is_read_only(), "{lone} lone pages: {:?}", engine.failed());
        truncated
    }

    #[test]
    fn a_truncation_gets_what_waits_for_the_checkpoint() {
        // A leaf of the extent tree has 240 entries. For some of these counts the truncation needs a node, as the
        // control shows.
        let tried = 234..=242;
        let needy: Vec<u64> = tried
            .filter(|&lone| truncate_on_a_full_pool(lone, false).is_err())
            .collect();
        assert!(!needy.is_empty(), "no truncation needs a block");
        for lone in needy {
            truncate_on_a_full_pool(lone, true).unwrap_or_else(|error| panic!("{lone} lone pages: {error}"));
        }
    }
}
