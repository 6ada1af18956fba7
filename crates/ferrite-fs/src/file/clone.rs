//! Cloning ranges of files: pages of one file get the blocks of another's (docs/design.md, "Clones").
//!
//! Contents: [`clone_range`], and [`PagesToShare`] for clones of whole files. A page without a log is its block, so the
//! new page's word is the same. Logs hang on words: they are merged before. A page that is only reserved is a hole in
//! the clone.
//!
//! Crash argument: one record sets the words of all new pages, the marks and checksums of the blocks, and size and
//! times of the file, and frees what was there. Blocks that both files name are counted in DRAM
//! ([`crate::space::shares`]) before the record, and the source is locked until it has committed; so no block is free
//! while a page names it. Merging logs before that changes no content.

use std::iter::Peekable;
use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::{BlockNo, Inum, Lblk, MapTx, PageId, PageRange, PageWord, Resource};
use ferrite_vfs::{CloneRange, Ctx, FsError, Outcome, Result, SpaceOf, Unsupported, Written, posix};

use super::truncate::MappedRun;
use super::{bind, inline, rights, truncate};
use crate::cache::inodes::{Exclusive, InodeMem};
use crate::format::data_sum;
use crate::format::inode::{INLINE_BYTES, Inode};
use crate::format::layout::{BLOCK_BYTES, MAX_FILE_BYTES, lblks};
use crate::page::scan;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::{Purpose, Tx};
use crate::retry::{self, Need};
use crate::space::blocks::Class;
use crate::space::names::NameTx;

/// Most pages that one record maps: others wait for the source meanwhile.
const PAGES_PER_RECORD: usize = 1024;
/// Most pages of a block besides the first: racing clones must not overflow the count.
const SHARES_MAX: u32 = 1 << 31;
/// How many pages ahead the lines of the mapping are loaded.
const PAGES_AHEAD: u64 = 16;
/// Words of a record that a page may need: its word, those for splitting an extent, its mark and its checksum.
const PAGE_WORDS: usize = 40;

/// See [`ferrite_vfs::OpenFile::clone_range`]. Blocks on the locks of both files.
pub(crate) fn clone_range(core: &Core, ctx: &Ctx, mem: &Arc<InodeMem>, range: &CloneRange) -> Result<Written> {
    core.check_writable()?;
    if !core.superblock.has_shared_blocks() {
        return Err(FsError::NotSupported(Unsupported::Clone));
    }
    let source = core.inode(range.source.ino)?;
    let mut most = PAGES_PER_RECORD;
    loop {
        let cloned = retry::with_space(core, Need::FEW, || clone_some(core, ctx, mem, &source, range, most));
        match cloned {
            // Entries cannot be moved out of the way of many pages at once, but of each in its turn.
            Err(FsError::NoSpace(SpaceOf::MapEntries)) if most > 1 => most = (most / 8).max(1),
            cloned => return cloned,
        }
    }
}

/// Locks both files, in the order of their numbers; one if they are the same.
fn lock<'a>(mem: &'a Arc<InodeMem>, source: &'a Arc<InodeMem>) -> (Exclusive<'a>, Option<Exclusive<'a>>) {
    match mem.ino.cmp(&source.ino) {
        std::cmp::Ordering::Equal => (mem.write(), None),
        std::cmp::Ordering::Less => (mem.write(), Some(source.write())),
        std::cmp::Ordering::Greater => (source.write(), Some(mem.write())),
    }
}

/// One record's worth.
fn clone_some(
    core: &Core,
    ctx: &Ctx,
    mem: &Arc<InodeMem>,
    source: &Arc<InodeMem>,
    range: &CloneRange,
    most: usize,
) -> Result<Written> {
    let _locks = lock(mem, source);
    let (old, from) = (core.load_live(mem)?, core.load_live(source)?);
    if !from.is_file() {
        return Err(FsError::BadHandle);
    }
    let len = range.len_in(u64::from(mem.ino), from.size(), old.size(), MAX_FILE_BYTES)?;
    if len == 0 {
        return Ok(Written::new(range.offset, 0));
    }
    old.callers_flags().check_write(range.offset, old.size())?;
    if old.is_bound() || from.is_bound() {
        return Err(FsError::NotSupported(Unsupported::Clone));
    }
    // A hole that damage has made is no hole to copy.
    core.quarantine.check_holes(source.ino)?;
    core.quarantine.check_pages(source.ino)?;
    let first = range.source_offset / BLOCK_BYTES;
    let wanted = PageRange::new(first, first + lblks(len));
    let to = range.offset / BLOCK_BYTES;
    let stretch = Stretch::find((core, most), (source, &from), (mem, &old), wanted, to)?;
    if !core.has_entries_to_share(stretch.pages.pages().min(most as u64)) {
        return Err(FsError::NotSupported(Unsupported::Clone));
    }
    let mut clone = Clone {
        core,
        tx: Tx::new(core, Purpose::Change),
        file: (mem, core.load_live(mem)?),
        shared: Shared {
            core,
            blocks: Vec::new(),
        },
    };
    clone.tx.comes_after(source.last_seq());
    let pages_done = match from.is_inline() {
        true => clone.fill(stretch.page(0), &from.inline_bytes())?,
        false => clone.map(source.ino, &stretch, most)?,
    };
    let len = len.min(pages_done * BLOCK_BYTES);
    clone.commit(ctx, range.offset, len)?;
    Ok(Written::new(range.offset, len as usize))
}

/// Pages of a file that its clone is to share. Their blocks are counted as shared until this is dropped, and longer if
/// a record maps them.
pub(crate) struct PagesToShare<'c> {
    pages: Vec<(Lblk, BlockNo)>,
    shared: Shared<'c>,
    /// Where others follow.
    next: Option<Lblk>,
    /// The last record that changed the source, or a checksum of its blocks.
    source_seq: u64,
}

impl<'c> PagesToShare<'c> {
    /// The pages of `source` from `first` on, about as many as a record takes. Merges their logs. The caller has the
    /// exclusive lock of the source, which is not bound.
    pub(crate) fn find(core: &'c Core, source: &Arc<InodeMem>, from: &Inode, first: Lblk) -> Result<Self> {
        let mut found = PagesToShare {
            pages: Vec::new(),
            shared: Shared {
                core,
                blocks: Vec::new(),
            },
            next: None,
            source_seq: source.last_seq(),
        };
        let wanted = PageRange::new(u64::from(first), lblks(from.size()));
        if from.is_inline() || from.blocks() == 0 || wanted.is_empty() {
            return Ok(found);
        }
        core.quarantine.check_holes(source.ino)?;
        core.quarantine.check_pages(source.ino)?;
        let (range, runs) = Stretch::find_source(core, PAGES_PER_RECORD, (source, from), wanted, &|_| 0)?;
        found.source_seq = source.last_seq();
        let mut written = runs.iter().flat_map(|run| run.each());
        for (lblk, word) in written.by_ref().filter(|(_, word)| !word.is_unwritten()) {
            if found.pages.len() == PAGES_PER_RECORD {
                found.next = Some(lblk);
                return Ok(found);
            }
            let block = shareable(core, PageId::new(source.ino, lblk), word)?;
            found.shared.add(block);
            found.pages.push((lblk, block));
        }
        found.next = (range.end < wanted.end).then(|| Lblk::at(range.end));
        match core.has_entries_to_share(0) {
            true => Ok(found),
            false => Err(FsError::NoSpace(SpaceOf::MapEntries)),
        }
    }

    /// Maps the pages in a file that has none there: as many as the record has space for, and at most `most`. The
    /// blocks are added to `marked`, which the record has to mark. Returns how many pages that was.
    pub(crate) fn map(
        &self,
        (core, tx): (&Core, &mut Tx<'_>),
        source: Inum,
        (ino, inode): (Inum, &mut Inode),
        most: usize,
        marked: &mut Vec<BlockNo>,
    ) -> Result<usize> {
        // The record may set checksums that records of the source have set.
        tx.comes_after(self.source_seq);
        for (index, &(lblk, block)) in self.pages.iter().enumerate() {
            if index == most || !tx.has_space(64 + PAGE_WORDS + 2 * marked.len()) {
                return Ok(index);
            }
            core.map
                .prefetch(PageId::new(ino, Lblk::at(u64::from(lblk) + PAGES_AHEAD)), true);
            tx.share_sum(PageId::new(source, lblk), block)?;
            inode.set_blocks(inode.blocks().checked_add(1).ok_or(FsError::FileTooBig)?);
            tx.insert_page(PageId::new(ino, lblk), PageWord::of_block(block))?;
            marked.push(block);
        }
        Ok(self.pages.len())
    }

    /// After the commit of the record that maps so many of them; returns where the next ones begin.
    pub(crate) fn mapped(mut self, count: usize) -> Option<Lblk> {
        self.shared.blocks.drain(..count);
        self.pages.get(count).map(|&(lblk, _)| lblk).or(self.next)
    }
}

/// The block of a page, if another page may share it.
fn shareable(core: &Core, page: PageId, word: PageWord) -> Result<BlockNo> {
    let block = core.superblock.page(word);
    if !core.superblock.is_data_block(block) {
        return Err(data_sum::no_data(page, block));
    }
    match core.shares.further(block) < SHARES_MAX {
        true => Ok(block),
        false => Err(FsError::NotSupported(Unsupported::Clone)),
    }
}

/// The part of both ranges that one record may take, and the pages that are mapped there.
struct Stretch {
    /// Pages of the source.
    pages: PageRange,
    /// The file that is written, and the first page there.
    file: (Inum, u64),
    found: Vec<MappedRun>,
    there: Vec<MappedRun>,
}

impl Stretch {
    /// Finds about as many pages as a record takes. The caller has both files' locks.
    fn find(
        (core, most): (&Core, usize),
        source: (&Arc<InodeMem>, &Inode),
        (mem, inode): (&InodeMem, &Inode),
        wanted: PageRange,
        to: u64,
    ) -> Result<Self> {
        let there_in = |count| truncate::mapped_runs(core, mem, inode, PageRange::new(to, to + count));
        let there_count = |count| there_in(count).iter().map(|run| run.pages).sum();
        let (pages, found) = Self::find_source(core, most, source, wanted, &there_count)?;
        Ok(Stretch {
            pages,
            file: (mem.ino, to),
            found,
            there: there_in(pages.pages()),
        })
    }

    /// The same in the source, in a part of the range that doubles until it has them, with those that are `there` in as
    /// many pages of the other file: a structure that cannot list pages looks up all in the part. Merges logs.
    fn find_source(
        core: &Core,
        most: usize,
        (source, from): (&Arc<InodeMem>, &Inode),
        wanted: PageRange,
        there: &dyn Fn(u64) -> u64,
    ) -> Result<(PageRange, Vec<MappedRun>)> {
        let mut count = wanted.pages().min(most as u64);
        loop {
            let pages = PageRange::new(wanted.first, wanted.first + count);
            let mut found = truncate::mapped_runs(core, source, from, pages);
            let mapped = found.iter().map(|run| run.pages).sum::<u64>() + there(count);
            if mapped < most as u64 / 2 && count < wanted.pages() {
                count = wanted.pages().min(count * 2);
                continue;
            }
            let logged = found.iter().filter(|run| run.word.has_log());
            let logged: Vec<Lblk> = logged.flat_map(|run| run.each()).map(|(lblk, _)| lblk).collect();
            if !logged.is_empty() {
                bind::rewrite(core, source, &logged)?;
                found = truncate::mapped_runs(core, source, from, pages);
            }
            return Ok((pages, found));
        }
    }

    /// The page of the file at this distance from the first.
    fn page(&self, distance: u64) -> PageId {
        PageId::new(self.file.0, Lblk::at(self.file.1 + distance))
    }
}

/// Blocks that were counted as shared; counted back unless the record commits.
struct Shared<'c> {
    core: &'c Core,
    blocks: Vec<BlockNo>,
}

impl Shared<'_> {
    fn add(&mut self, block: BlockNo) {
        if is_seeded(Bug::ShareUncounted) {
            return;
        }
        self.core.shares.add(block);
        self.blocks.push(block);
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        for &block in &self.blocks {
            // The source still names it: it is locked, or nothing that changes files is in progress.
            self.core.release(Resource::Block(block));
        }
    }
}

/// The record that maps the pages.
struct Clone<'c> {
    core: &'c Core,
    tx: Tx<'c>,
    /// The file that is written.
    file: (&'c Arc<InodeMem>, Inode),
    shared: Shared<'c>,
}

/// A page of one of the ranges: how far it is from the first, and its word.
type Found = (u64, PageWord);

/// Takes what an iterator has at this distance.
fn take(pages: &mut Peekable<impl Iterator<Item = Found>>, distance: u64) -> PageWord {
    pages
        .next_if(|&(found, _)| found == distance)
        .map_or(PageWord::HOLE, |(_, word)| word)
}

impl Clone<'_> {
    /// Maps pages of the source, as many as a record takes; returns for how many pages that is.
    fn map(&mut self, source: Inum, stretch: &Stretch, most: usize) -> Result<u64> {
        self.leave_inline(stretch.page(0).lblk)?;
        let found = stretch.found.iter().flat_map(|run| run.each());
        let written = found.filter(|(_, word)| !word.is_unwritten());
        let mut found = written
            .map(|(lblk, word)| (u64::from(lblk) - stretch.pages.first, word))
            .peekable();
        let there = stretch.there.iter().flat_map(|run| run.each());
        let mut there = there
            .map(|(lblk, word)| (u64::from(lblk) - stretch.file.1, word))
            .peekable();
        let mut done = 0;
        while let Some(distance) = next_of(&mut found, &mut there) {
            let is_full = !self.tx.has_space(64 + PAGE_WORDS + 2 * self.shared.blocks.len());
            if done == most || (done > 0 && is_full) {
                return Ok(distance);
            }
            self.core.map.prefetch(stretch.page(distance + PAGES_AHEAD), true);
            let source_page = PageId::new(source, Lblk::at(stretch.pages.first + distance));
            let (word, old) = (take(&mut found, distance), take(&mut there, distance));
            self.page((source_page, word), (stretch.page(distance), old))?;
            done += 1;
        }
        Ok(stretch.pages.pages())
    }

    /// Makes the file keep its content in blocks. Inline content is shorter than a page: a range that begins with page
    /// 0 replaces all of it.
    fn leave_inline(&mut self, to: Lblk) -> Result<()> {
        let (mem, inode) = &mut self.file;
        match (inode.is_inline(), to) {
            (false, _) => Ok(()),
            (true, Lblk::FIRST) => {
                inode.clear_inline(0);
                inode.set_inline(false);
                Ok(())
            }
            (true, _) => {
                let size = inode.size();
                inline::move_out(self.core, &mut self.tx, mem.ino, inode, size)
            }
        }
    }

    /// Writes a page whose content is in the source's inode; returns that it is one.
    fn fill(&mut self, page: PageId, content: &[u8; INLINE_BYTES]) -> Result<u64> {
        self.leave_inline(page.lblk)?;
        let old = self.core.map.get(page);
        let mut data = [0; BLOCK_BYTES as usize];
        data[..INLINE_BYTES].copy_from_slice(content);
        let block = self.core.map.alloc_page(&mut self.tx, page).map_err(map_error)?;
        self.tx.stream_page(page, block, &data);
        self.name(page, old, block).map(|()| 1)
    }

    /// Makes one page, whose word is `old`, that of the source, whose word is `word`.
    fn page(&mut self, (source, word): (PageId, PageWord), (page, old): (PageId, PageWord)) -> Result<()> {
        if word.is_hole() {
            return truncate::unmap(self.core, &mut self.tx, page.ino, page.lblk, &mut self.file.1);
        }
        let block = shareable(self.core, source, word)?;
        if word == old {
            return Ok(());
        }
        self.tx.share_sum(source, block)?;
        self.shared.add(block);
        self.name(page, old, block)
    }

    /// Makes a page, whose word is `old`, name `block`.
    fn name(&mut self, page: PageId, old: PageWord, block: BlockNo) -> Result<()> {
        let (core, new) = (self.core, PageWord::of_block(block));
        self.tx.set_class(Class::Ordinary);
        if old.is_hole() {
            let inode = &mut self.file.1;
            inode.set_blocks(inode.blocks().checked_add(1).ok_or(FsError::FileTooBig)?);
            return self.tx.insert_page(page, new);
        }
        core.map.replace(&mut self.tx, page, new).map_err(map_error)?;
        if core.superblock.page(old) != BlockNo::NONE {
            self.tx.freed(Resource::Block(core.superblock.page(old)));
        }
        scan::free(core, &mut self.tx, page, old)
    }

    fn commit(self, ctx: &Ctx, offset: u64, len_bytes: u64) -> Result<()> {
        let Clone {
            core,
            mut tx,
            file: (mem, mut inode),
            mut shared,
        } = self;
        let now = Core::now();
        inode.set_size(inode.size().max(offset + len_bytes));
        inode.set_mtime(now);
        inode.set_ctime(now);
        if ctx.kills_priv()
            && let Some(kind) = inode.kind()
        {
            inode.set_permissions(posix::kill_priv_by(&ctx.cred, kind, inode.permissions(), inode.gid()));
        }
        rights::take(core, &mut tx, mem, &mut inode)?;
        tx.put_inode(mem.ino, &mut inode);
        tx.note_outcome(ctx, || Ok(Outcome::Wrote { offset, len_bytes }))?;
        let marks = core.shares.marks();
        tx.mark_shared(&marks, &shared.blocks);
        tx.commit(&[mem])?;
        marks.committed(mem.last_seq());
        shared.blocks.clear();
        Ok(())
    }
}

/// The smaller of the next distances.
fn next_of(
    some: &mut Peekable<impl Iterator<Item = Found>>,
    others: &mut Peekable<impl Iterator<Item = Found>>,
) -> Option<u64> {
    let distances = [some.peek(), others.peek()];
    distances.into_iter().flatten().map(|&(distance, _)| distance).min()
}
