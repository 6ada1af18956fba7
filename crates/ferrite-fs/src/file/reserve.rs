//! `fallocate`: reserving space, punching holes, zeroing ranges.
//!
//! A reserved page is mapped to a block but marked unwritten, so it reads as zeros without being zeroed. Reserving
//! takes as many records as it needs: a page being reserved is invisible, and the last record changes the size.

use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::{BlockNo, Lblk, MapTx, PageId, PageRange, PageWord, Resource};
use ferrite_vfs::{BadArgument, Ctx, FallocateMode, FsError, Outcome, Result, SpaceOf, posix};

use super::bound;
use super::inline;
use super::rights;
use super::truncate::{self, Edge, Stretch};
use crate::cache::inodes::InodeMem;
use crate::format::inode::{INLINE_BYTES, Inode};
use crate::format::layout::lblks;
use crate::format::layout::{BLOCK_BYTES, MAX_FILE_BYTES};
use crate::page::scan;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::{Purpose, Tx};
use crate::retry::{self, Need};
use crate::space::blocks::Class;

/// Pages reserved by one record.
const PAGES_PER_RECORD: u64 = 512;
/// Words of a record that an insert may need.
const INSERT_WORDS: usize = 8;

/// The fields that the record that updates the times also sets.
#[derive(Clone, Copy)]
struct Stamp<'a> {
    size: u64,
    /// Decides whether setuid and setgid are cleared. The capability goes in any case ([`rights`]).
    ctx: &'a Ctx,
}

/// See [`ferrite_vfs::OpenFile::fallocate`].
pub(crate) fn fallocate(
    core: &Core,
    ctx: &Ctx,
    mem: &Arc<InodeMem>,
    mode: FallocateMode,
    offset: u64,
    len_bytes: u64,
) -> Result<()> {
    core.check_writable()?;
    if len_bytes == 0 {
        return Err(FsError::Invalid(BadArgument::NoLength));
    }
    let end = offset
        .checked_add(len_bytes)
        .filter(|&end| end <= MAX_FILE_BYTES)
        .ok_or(FsError::FileTooBig)?;
    let need = match mode {
        FallocateMode::PunchHole => Need::FEW,
        // Mapped pages need no block, and the file has no more of them than it counts.
        _ => {
            let pages = lblks(end) - offset / BLOCK_BYTES;
            let mapped = u64::from(core.snapshot(mem)?.blocks());
            Need {
                least: pages.saturating_sub(mapped),
                most: pages + Need::FEW.most,
            }
        }
    };
    retry::with_space(core, need, || {
        let _lock = mem.write();
        let mut inode = core.load_live(mem)?;
        inode.callers_flags().check_fallocate(mode)?;
        let grows = match mode {
            FallocateMode::PunchHole => false,
            FallocateMode::ZeroRange { keep_size } | FallocateMode::Allocate { keep_size } => !keep_size,
        };
        let size = if grows { inode.size().max(end) } else { inode.size() };
        let becomes = Stamp { size, ctx };
        // Reserving leaves existing pages in their places.
        let changed = match mode {
            FallocateMode::Allocate { .. } => PageRange::new(0, 0),
            _ => PageRange::new(offset / BLOCK_BYTES, lblks(end)),
        };
        let _change = bound::change(core, mem, &inode, changed, size);
        match mode {
            FallocateMode::PunchHole => return clear(core, mem, &mut inode, offset, end, becomes),
            FallocateMode::ZeroRange { .. } => zero(core, mem, &mut inode, offset, end, becomes)?,
            FallocateMode::Allocate { .. } => reserve(core, mem, &mut inode, offset, end, becomes)?,
        }
        if let Some(file) = core.bindings.of(mem.ino) {
            file.tell()
                .window
                .keep(PageRange::new(offset / BLOCK_BYTES, lblks(end)));
        }
        Ok(())
    })
}

/// Zeroes `offset..end` and keeps it allocated. Holes are reserved first, which is invisible; then one record makes
/// all of the range unwritten and sets the size. A range of more pages than a record takes is instead punched out by
/// an intent, with the size in its first record, and reserved again.
fn zero(core: &Core, mem: &Arc<InodeMem>, inode: &mut Inode, offset: u64, end: u64, becomes: Stamp<'_>) -> Result<()> {
    let before = *inode;
    let mut reserved = Vec::new();
    let zeroed = reserve_pages(core, mem, inode, offset, end, &mut reserved)
        .and_then(|()| zero_reserved(core, mem, inode, offset, end, becomes));
    if zeroed.is_err() {
        give_back(core, mem, &before, &reserved)?;
    }
    zeroed
}

/// [`zero`] of a range without holes. If it fails, nothing has changed, or the pool takes no more changes.
fn zero_reserved(
    core: &Core,
    mem: &Arc<InodeMem>,
    inode: &mut Inode,
    offset: u64,
    end: u64,
    becomes: Stamp<'_>,
) -> Result<()> {
    let stretch = Stretch::new(offset, end)?;
    if inode.is_inline() || stretch.pages.pages() > PAGES_PER_RECORD {
        clear(core, mem, inode, offset, end, becomes)?;
        // The zeros are there; if another operation took the space just freed, that is no reason to report failure.
        let _ = reserve_pages(core, mem, inode, offset, end, &mut Vec::new());
        return Ok(());
    }
    let is_written = |lblk| !core.map.get(PageId::new(mem.ino, Lblk::at(lblk))).is_unwritten();
    if (stretch.pages.first..stretch.pages.end).any(is_written) {
        // These blocks stay with their pages and will be filled again in place. A record that carries the checksum of
        // their current content would then be void after a crash, with all its other changes; so the checkpoint passes
        // it first.
        core.reclaim()?;
    }
    let mut tx = Tx::on(core, Purpose::Change, inode);
    for &Edge { lblk, from, to } in &stretch.edges {
        truncate::zero_within(core, &mut tx, mem.ino, lblk, from, to)?;
    }
    // This frees nothing, so the blocks that a tree may need for it must not come from the reserve.
    tx.set_class(Class::Ordinary);
    for lblk in stretch.pages.first..stretch.pages.end {
        let word = core.map.get(PageId::new(mem.ino, Lblk::at(lblk)));
        if !word.is_unwritten() {
            let page = PageId::new(mem.ino, Lblk::at(lblk));
            let unwritten = core.superblock.unwritten(unshared(core, &mut tx, page, word)?);
            core.map.replace(&mut tx, page, unwritten).map_err(map_error)?;
            scan::free(core, &mut tx, page, word)?;
        }
    }
    rights::take(core, &mut tx, mem, inode)?;
    stamp(inode, becomes);
    tx.put_inode(mem.ino, inode);
    tx.note_outcome(becomes.ctx, || Ok(Outcome::Done))?;
    tx.commit(&[mem])
}

/// The block of a page that will be filled in place: its own, or a new one if other pages name that, too.
fn unshared(core: &Core, tx: &mut Tx<'_>, page: PageId, word: PageWord) -> Result<BlockNo> {
    let block = core.superblock.page(word);
    if !core.shares.is_shared(block) || is_seeded(Bug::SharedInPlace) {
        return Ok(block);
    }
    let fresh = core.map.alloc_page(tx, page).map_err(map_error)?;
    tx.freed(Resource::Block(block));
    Ok(fresh)
}

fn stamp(inode: &mut Inode, becomes: Stamp<'_>) {
    let now = Core::now();
    inode.set_size(becomes.size);
    if becomes.ctx.kills_priv()
        && let Some(kind) = inode.kind()
    {
        let mode = posix::kill_priv_by(&becomes.ctx.cred, kind, inode.permissions(), inode.gid());
        inode.set_permissions(mode);
    }
    inode.set_mtime(now);
    inode.set_ctime(now);
}

/// Makes `offset..end` read as zeros, freeing whole pages, and updates the times: one record, or an intent and the
/// records that follow from it.
fn clear(core: &Core, mem: &Arc<InodeMem>, inode: &mut Inode, offset: u64, end: u64, becomes: Stamp<'_>) -> Result<()> {
    let mut tx = Tx::on(core, Purpose::Change, inode);
    let mut later = None;
    if inode.is_inline() {
        let from = offset.min(INLINE_BYTES as u64) as usize;
        let to = end.min(INLINE_BYTES as u64) as usize;
        inode.write_inline(from, &[0; INLINE_BYTES][from..to]);
    } else {
        let stretch = Stretch::new(offset, end)?;
        for &Edge { lblk, from, to } in &stretch.edges {
            truncate::zero_within(core, &mut tx, mem.ino, lblk, from, to)?;
        }
        later = truncate::punch(core, &mut tx, mem, inode, stretch.pages)?;
    }
    rights::take(core, &mut tx, mem, inode)?;
    stamp(inode, becomes);
    tx.put_inode(mem.ino, inode);
    tx.note_outcome(becomes.ctx, || Ok(Outcome::Done))?;
    tx.commit(&[mem])?;
    match later {
        Some(()) => truncate::finish(core, mem, inode),
        None => Ok(()),
    }
}

/// Reserves the holes of `offset..end` and updates the times. If a later record finds no space, the pages already
/// reserved would be harmless, but they are unmapped again.
fn reserve(
    core: &Core,
    mem: &Arc<InodeMem>,
    inode: &mut Inode,
    offset: u64,
    end: u64,
    becomes: Stamp<'_>,
) -> Result<()> {
    let before = *inode;
    let mut reserved = Vec::new();
    let result = reserve_pages(core, mem, inode, offset, end, &mut reserved).and_then(|()| {
        stamp(inode, becomes);
        let mut tx = Tx::new(core, Purpose::Change);
        rights::take(core, &mut tx, mem, inode)?;
        tx.put_inode(mem.ino, inode);
        tx.note_outcome(becomes.ctx, || Ok(Outcome::Done))?;
        tx.commit(&[mem])
    });
    if result.is_err() {
        give_back(core, mem, &before, &reserved)?;
    }
    result
}

/// Unmaps pages that were reserved in vain, and returns content to the inode that was there `before`.
///
/// Crash argument: reserved pages are invisible, and the content is the same in the page and in the inode; the last
/// record moves it back and frees its page.
fn give_back(core: &Core, mem: &Arc<InodeMem>, before: &Inode, reserved: &[Lblk]) -> Result<()> {
    if core.check_writable().is_err() {
        // The caller reports the error that stopped the pool; the next mount finds reserved pages, which are harmless.
        return Ok(());
    }
    let mut stored = core.load_live(mem)?;
    truncate::unmap_pages(core, mem, &mut stored, reserved)?;
    if stored.is_inline() || !before.is_inline() {
        return Ok(());
    }
    let mut tx = Tx::new(core, Purpose::Change);
    truncate::unmap(core, &mut tx, mem.ino, Lblk::FIRST, &mut stored)?;
    tx.put_inode(mem.ino, &mut before.clone());
    tx.commit(&[mem])
}

pub(super) fn reserve_pages(
    core: &Core,
    mem: &Arc<InodeMem>,
    inode: &mut Inode,
    offset: u64,
    end: u64,
    reserved: &mut Vec<Lblk>,
) -> Result<()> {
    if inode.is_inline() {
        if end <= INLINE_BYTES as u64 {
            return Ok(());
        }
        let mut tx = Tx::new(core, Purpose::Change);
        let size = inode.size();
        inline::move_out(core, &mut tx, mem.ino, inode, size)?;
        tx.put_inode(mem.ino, inode);
        tx.commit(&[mem])?;
    }
    let (mut lblk, last) = (offset / BLOCK_BYTES, lblks(end));
    if last - lblk > core.alloc.free() + u64::from(inode.blocks()) {
        // Not worth starting: even all free blocks would not be enough.
        return Err(FsError::NoSpace(SpaceOf::Blocks));
    }
    let mut most = PAGES_PER_RECORD;
    while lblk < last {
        let before = *inode;
        let done = retry::with_map_space(core, || {
            *inode = before;
            reserve_some(core, mem, inode, PageRange::new(lblk, last), most, reserved)
        });
        match done {
            // Entries cannot be moved out of the way of many pages at once, but of each in its turn.
            Err(FsError::NoSpace(SpaceOf::MapEntries)) if most > 1 => {
                *inode = before;
                most = (most / 8).max(1);
            }
            done => lblk = done?,
        }
    }
    Ok(())
}

/// Reserves as many of `pages` as fit in a record, `most` at most; returns the first page left over.
fn reserve_some(
    core: &Core,
    mem: &Arc<InodeMem>,
    inode: &mut Inode,
    pages: PageRange,
    most: u64,
    reserved: &mut Vec<Lblk>,
) -> Result<u64> {
    let mut tx = Tx::new(core, Purpose::Change);
    let mut added = Vec::new();
    let mut lblk = pages.first;
    while lblk < pages.end && (added.len() as u64) < most && tx.has_space(64 + INSERT_WORDS) {
        if core.map.get(PageId::new(mem.ino, Lblk::at(lblk))).is_hole() {
            let block = core
                .map
                .alloc_page(&mut tx, PageId::new(mem.ino, Lblk::at(lblk)))
                .map_err(map_error)?;
            let word = core.superblock.unwritten(block);
            tx.insert_page(PageId::new(mem.ino, Lblk::at(lblk)), word)?;
            inode.set_blocks(inode.blocks() + 1);
            added.push(Lblk::at(lblk));
        }
        lblk += 1;
    }
    tx.put_inode(mem.ino, inode);
    tx.commit(&[mem])?;
    reserved.extend(added);
    Ok(lblk)
}
