//! Binding a file, and making it an ordinary one again.
//!
//! Contents: [`bind`], [`unbind`], [`abandon`], [`finalize`]. The definition and the invariants of a bound file are in
//! [`super::bound`].
//!
//! Crash argument. Binding moves content in steps that change no content, then sets the flag by a record, then lets the
//! journal's checkpoint pass all records that carry checks of the content, and only then notifies the adapter: a crash
//! before that finds a file that no adapter has changed.
//!
//! Finalizing makes the content durable, sets checksums by records, and clears the flag by the last one: a crash in
//! between leaves the file bound, and whatever its checksums are, readers take only the identity of the page from them.

use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::{Lblk, PageId, PageRange, PageWord};
use ferrite_vfs::regions::{Adapter, Binding};
use ferrite_vfs::{BadArgument, Ctx, FsError, OpenMode, Result, Unsupported, posix};

use super::truncate;
use super::{bound, defragment, inline, rights};
use crate::cache::bindings::Attached;
use crate::cache::inodes::InodeMem;
use crate::cache::logged::Cause;
use crate::format::checksum::crc32c;
use crate::format::inode::Inode;
use crate::format::layout::{BLOCK_BYTES, lblks};
use crate::format::page_buffer::PageBuffer;
use crate::page::{append, block};
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx, WhenFrozen};
use crate::retry::{self, Need};

/// Pages that one record rids of their logs.
const MERGES_PER_RECORD: usize = 32;
/// Pages whose checksums one record sets.
const SUMS_PER_RECORD: usize = 256;

/// See [`ferrite_vfs::regions::Regions::bind`].
pub(crate) fn bind(
    core: &Core,
    ctx: &Ctx,
    mem: &Arc<InodeMem>,
    how: Binding,
    adapter: &Arc<dyn Adapter>,
) -> Result<Arc<Attached>> {
    core.check_writable()?;
    if how.writable && !core.may_change_in_place() {
        return Err(FsError::NotSupported(Unsupported::WritableRegion));
    }
    retry::with_space(core, Need::FEW, || {
        let _lock = mem.write();
        let inode = core.load_live(mem)?;
        match () {
            () if inode.is_dir() => return Err(FsError::IsDirectory),
            () if !inode.is_file() => return Err(FsError::Invalid(BadArgument::RegionKind)),
            () if how.writable && inode.is_read_only() => return Err(FsError::ReadOnly),
            () => {}
        }
        if how.writable {
            inode.callers_flags().check_change()?;
        }
        if ctx.check {
            may_use(core, ctx, mem, &inode, how.writable)?;
        }
        if core.bindings.of(mem.ino).is_some() {
            return Err(FsError::Busy);
        }
        // A hole that damage has made must not be filled, and no adapter checks whether a page is damaged.
        core.quarantine.check_holes(mem.ino)?;
        core.quarantine.check_pages(mem.ino)?;
        let inode = match how.writable {
            true => rights::take_for_region(core, ctx, mem, inode)?,
            false => inode,
        };
        let inode = match inode.is_bound() {
            true => inode,
            false => make_bound(core, mem, inode)?,
        };
        if how.defragment {
            defragment::defragment(core, mem, &inode, &truncate::mapped_pages(core, mem, &inode, 0))
                .inspect_err(|_| core.bindings.note_left(mem.ino))?;
        }
        let file = Arc::new(Attached::new(mem.ino, how, Arc::clone(adapter)));
        if !core.bindings.attach(&file) {
            core.bindings.note_left(mem.ino);
            return Err(FsError::Busy);
        }
        mem.pin(1);
        let runs = match how.whole {
            true => bound::publish(core, mem, &inode, &file, PageRange::ALL),
            false => bound::publish_first(core, mem, &inode, &file),
        };
        bound::tell_size(core, &file, inode.size());
        file.tell().runs = runs;
        Ok(file)
    })
}

fn may_use(core: &Core, ctx: &Ctx, mem: &InodeMem, inode: &Inode, writable: bool) -> Result<()> {
    let mode = match writable {
        true => OpenMode::read_write(),
        false => OpenMode::read_only(),
    };
    let guarded = rights::guarded_attr(core, ctx, core.locked_attr(mem, inode)?, (mem.ino, inode))?;
    posix::may_open(&guarded, &ctx.cred, mode)
}

/// Moves inline content and logs to blocks, gets blocks of its own for those shared, and sets the flag. The caller has
/// the inode's exclusive lock; returns the inode as stored.
fn make_bound(core: &Core, mem: &Arc<InodeMem>, mut inode: Inode) -> Result<Inode> {
    if inode.is_inline() {
        let size = inode.size();
        let mut tx = Tx::new(core, Purpose::Upkeep(WhenFrozen::Wait));
        inline::move_out(core, &mut tx, mem.ino, &mut inode, size)?;
        tx.put_inode(mem.ino, &mut inode);
        tx.commit(&[mem])?;
    }
    rewrite(core, mem, &logged_pages(core, mem, &inode))?;
    rid_of_shares(core, mem, &inode)?;
    if core.superblock.has_data_checksums() {
        // No later check would notice.
        verify(core, mem, &truncate::mapped_pages(core, mem, &inode, 0))?;
    }
    inode.set_bound(true);
    let mut tx = Tx::new(core, Purpose::Upkeep(WhenFrozen::Wait));
    tx.put_inode(mem.ino, &mut inode);
    tx.commit(&[mem])?;
    if !is_seeded(Bug::BoundBeforeCheckpoint) {
        core.reclaim().inspect_err(|_| core.bindings.note_left(mem.ino))?;
    }
    Ok(inode)
}

/// Gives the file blocks of its own: adapters will write to them.
fn rid_of_shares(core: &Core, mem: &Arc<InodeMem>, inode: &Inode) -> Result<()> {
    if !core.shares.any() {
        return Ok(());
    }
    let runs = truncate::mapped_runs(core, mem, inode, PageRange::ALL);
    let pages = runs.iter().flat_map(|run| run.each());
    let is_shared =
        |&(_, word): &(Lblk, PageWord)| !word.is_unwritten() && core.shares.is_shared(core.superblock.page(word));
    let shared: Vec<Lblk> = pages.filter(is_shared).map(|(lblk, _)| lblk).collect();
    rewrite(core, mem, &shared)
}

/// Writes pages to new blocks, without their logs. The caller has the inode's exclusive lock.
pub(super) fn rewrite(core: &Core, mem: &Arc<InodeMem>, pages: &[Lblk]) -> Result<()> {
    for chunk in pages.chunks(MERGES_PER_RECORD) {
        let mut tx = Tx::new(core, Purpose::Upkeep(WhenFrozen::Wait));
        for &lblk in chunk {
            let page = PageId::new(mem.ino, lblk);
            append::rewrite(core, &mut tx, page, core.map.get(page), Cause::Idle)?;
        }
        tx.commit(&[mem])?;
    }
    Ok(())
}

/// The pages that have logs now. Examining all pages takes long, so this consults the cleaner's lists first.
fn logged_pages(core: &Core, mem: &InodeMem, inode: &Inode) -> Vec<Lblk> {
    if let Some(mut listed) = core.candidates.of(mem.ino) {
        listed.retain(|&lblk| core.map.get(PageId::new(mem.ino, lblk)).has_log());
        return listed;
    }
    let runs = truncate::mapped_runs(core, mem, inode, PageRange::ALL);
    let logged = runs.iter().filter(|run| run.word.has_log()).flat_map(|run| run.each());
    logged.map(|(lblk, _)| lblk).collect()
}

fn verify(core: &Core, mem: &InodeMem, pages: &[Lblk]) -> Result<()> {
    let mut buffer = PageBuffer::take();
    for &lblk in pages {
        let page = PageId::new(mem.ino, lblk);
        let word = core.map.get(page);
        if !word.is_hole() && !word.is_unwritten() {
            block::read_block(core, page, word, 0, &mut buffer[..])?;
        }
    }
    Ok(())
}

/// Ends a binding and finalizes the file. The caller drops the pin if this returns that the binding has ended just now.
/// An error means that the file stays bound, without an adapter. On a frozen pool it does: a service may serve many
/// clients besides the one that has ended, and they must not wait for the thaw.
pub(crate) fn unbind(core: &Core, mem: &Arc<InodeMem>, file: &Attached) -> (bool, Result<()>) {
    if core.journal.is_frozen() {
        // Without the lock, which a change may hold that waits for the thaw itself.
        let has_ended = abandon(core, file);
        if has_ended && file.take_dirty() {
            core.bindings.stamp_later(mem.ino);
        }
        return (has_ended, if has_ended { Err(FsError::Busy) } else { Ok(()) });
    }
    let _lock = mem.write();
    if !abandon(core, file) {
        return (false, Ok(()));
    }
    let finalized = core.check_writable().and_then(|()| {
        if file.take_dirty() {
            bound::stamp(core, mem)?;
        }
        give_window_back(core, mem, file)?;
        finalize_locked(core, mem, WhenFrozen::Fail)
    });
    (true, finalized)
}

/// Ends a binding and leaves the file bound: revokes everything, and notifies the adapter. False if it has ended
/// already.
pub(crate) fn abandon(core: &Core, file: &Attached) -> bool {
    let mut telling = file.tell();
    let Some(adapter) = telling.end() else {
        return false;
    };
    adapter.revoke(0, u32::MAX);
    adapter.unbound();
    drop(telling);
    core.bindings.detach(file.ino);
    true
}

/// Unmaps pages that appends have reserved in vain. Pages that cannot be unmapped for lack of space stay reserved.
fn give_window_back(core: &Core, mem: &Arc<InodeMem>, file: &Attached) -> Result<()> {
    let mut inode = core.load_live(mem)?;
    let mut reserved = file.tell().window.from(lblks(inode.size()));
    reserved.retain(|&lblk| core.map.get(PageId::new(mem.ino, lblk)).is_unwritten());
    match truncate::unmap_pages(core, mem, &mut inode, &reserved) {
        Err(FsError::NoSpace(_)) => Ok(()),
        other => other,
    }
}

/// See [`ferrite_vfs::regions::Regions::finalize`].
pub(crate) fn finalize(core: &Core, ctx: &Ctx, mem: &Arc<InodeMem>) -> Result<()> {
    core.check_writable()?;
    let _lock = mem.write();
    let inode = core.load_live(mem).inspect_err(|error| {
        // It has lost its last name since.
        if *error == FsError::Stale {
            core.bindings.forget(mem.ino);
        }
    })?;
    if core.bindings.of(mem.ino).is_some() {
        return Err(FsError::Busy);
    }
    if !inode.is_bound() {
        core.bindings.forget(mem.ino);
        return Ok(());
    }
    if ctx.check {
        may_use(core, ctx, mem, &inode, true)?;
    }
    if core.bindings.awaits_stamp(mem.ino) {
        bound::stamp(core, mem)?;
    }
    finalize_locked(core, mem, WhenFrozen::Wait)
}

/// Makes the content durable, computes all checksums, and clears the flag. The caller has the inode's exclusive lock,
/// and no adapter has the file.
fn finalize_locked(core: &Core, mem: &Arc<InodeMem>, when_frozen: WhenFrozen) -> Result<()> {
    let mut inode = core.load_live(mem)?;
    bound::zero_tail(core, mem, &inode)?;
    if core.superblock.has_data_checksums() {
        let pages = truncate::mapped_pages(core, mem, &inode, 0);
        for chunk in pages.chunks(SUMS_PER_RECORD) {
            set_sums(core, mem, chunk, when_frozen)?;
        }
    }
    inode.set_bound(false);
    let mut tx = Tx::new(core, Purpose::Upkeep(when_frozen));
    tx.put_inode(mem.ino, &mut inode);
    tx.commit(&[mem])?;
    core.bindings.forget(mem.ino);
    Ok(())
}

fn set_sums(core: &Core, mem: &Arc<InodeMem>, pages: &[Lblk], when_frozen: WhenFrozen) -> Result<()> {
    let mut tx = Tx::new(core, Purpose::Upkeep(when_frozen));
    let mut buffer = PageBuffer::take();
    for &lblk in pages {
        let page = PageId::new(mem.ino, lblk);
        let word = core.map.get(page);
        if word.is_hole() || word.is_unwritten() {
            continue;
        }
        block::read_bound(core, page, word, 0, &mut buffer[..])?;
        // Some stores may never have been fenced: the checksum must cover the bytes that a crash leaves.
        let offset = core.superblock.block_offset(core.superblock.page(word));
        core.region.write_back(offset, BLOCK_BYTES);
        tx.set_sum(page, core.superblock.page(word), crc32c(&buffer[..]));
    }
    core.region.fence().map_err(|error| core.fail(&error))?;
    tx.commit(&[mem])
}
