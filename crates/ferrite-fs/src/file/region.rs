//! The calls of adapters: places of pages, appends, atomic writes.
//!
//! Contents: [`fault`], [`append`], [`reserve`], [`extend`]. Each checks under the inode's lock that the binding has
//! not ended. Stores, loads and fences bypass all of this and go straight to the medium.
//!
//! Crash argument of an append: bytes go where no reader sees them, beyond the end in the last page and in reserved
//! pages, which read as zeros. They are fenced. One record then moves the end and makes the pages written ones. It
//! carries no check of the bytes, because adapters may change them as soon as it is durable. The mount zeroes bytes
//! that a crash leaves beyond the end.

use std::borrow::Cow;
use std::sync::Arc;

use ferrite_map::{BlockNo, Lblk, PageId, PageRange, PageWord, TransCache};
use ferrite_vfs::regions::Access;
use ferrite_vfs::{BadArgument, FsError, Result, Unsupported};

use super::write::ATOMIC_BYTES;
use super::{bound, reserve};
use crate::cache::bindings::Attached;
use crate::cache::inodes::InodeMem;
use crate::format::inode::Inode;
use crate::format::layout::{BLOCK_BYTES, MAX_FILE_BYTES, lblks};
use crate::pool::core::{Core, map_error};
use crate::pool::tx::{Purpose, Tx, WhenFrozen};
use crate::retry::{self, Need};

const PAGE: usize = BLOCK_BYTES as usize;
/// Pages that get blocks in one record.
const PAGES_PER_RECORD: u64 = 128;
/// Words of a record that a page may need.
const INSERT_WORDS: usize = 8;
/// Pages reserved ahead of appends: at first, and at most.
const WINDOW_MIN: u64 = 16;
const WINDOW_MAX: u64 = 64;

/// The inode of a file whose binding has not ended; the caller has its lock.
fn load(core: &Core, mem: &InodeMem, file: &Attached) -> Result<Inode> {
    match file.has_ended() {
        true => Err(FsError::Stale),
        false => core.load_live(mem),
    }
}

/// The same for a change.
fn load_writable(core: &Core, mem: &InodeMem, file: &Attached) -> Result<Inode> {
    match file.how.writable {
        true => load(core, mem, file),
        false => Err(FsError::BadHandle),
    }
}

/// See [`ferrite_vfs::regions::Region::fault`].
pub(crate) fn fault(core: &Core, mem: &Arc<InodeMem>, file: &Attached, pages: PageRange, access: Access) -> Result<()> {
    core.check_readable()?;
    if core.journal.is_frozen() {
        return Err(FsError::Busy);
    }
    match access {
        Access::Read => {
            let _lock = mem.read();
            let inode = load(core, mem, file)?;
            bound::publish(core, mem, &inode, file, pages);
        }
        Access::Write => {
            core.check_writable()?;
            let need = Need::pages((pages.pages() * BLOCK_BYTES) as usize);
            retry::with_space(core, Need { least: 0, ..need }, || {
                let _lock = mem.write();
                let mut inode = load_writable(core, mem, file)?;
                let clipped = PageRange::new(pages.first, pages.end.min(lblks(inode.size())));
                // Published whatever happens: the first pages may have got blocks before there were no more.
                let _change = bound::addition(core, mem, &inode, clipped);
                let mut next = clipped.first;
                while next < clipped.end {
                    next = fill_holes(core, mem, &mut inode, PageRange::new(next, clipped.end))?;
                }
                Ok(())
            })?;
        }
    }
    match core.journal.is_frozen() {
        true => Err(FsError::Busy),
        false => Ok(()),
    }
}

/// Gives zeroed blocks to the first holes of `pages`, by one record; returns the first page left over. `inode` is as
/// stored, and stays so.
fn fill_holes(core: &Core, mem: &Arc<InodeMem>, inode: &mut Inode, pages: PageRange) -> Result<u64> {
    let mut new = *inode;
    let mut tx = Tx::on(core, Purpose::Upkeep(WhenFrozen::Fail), inode);
    let mut lblk = pages.first;
    while lblk < pages.end && lblk - pages.first < PAGES_PER_RECORD && tx.has_space(64 + INSERT_WORDS) {
        let page = PageId::new(mem.ino, Lblk::at(lblk));
        let word = core.map.get(page);
        if word.is_hole() {
            let block = core.map.alloc_page(&mut tx, page).map_err(map_error)?;
            tx.stream_page(page, block, &[0; PAGE]);
            tx.insert_page(page, PageWord::of_block(block))?;
            new.set_blocks(new.blocks() + 1);
        } else if word.is_unwritten() {
            let block = write_reserved(core, &mut tx, page, word)?;
            tx.stream_page(page, block, &[0; PAGE]);
        }
        lblk += 1;
    }
    tx.put_changed_inode(mem.ino, inode, &mut new);
    match tx.commit(&[mem]) {
        Err(FsError::ReadOnly) if core.journal.is_frozen() => Err(FsError::Busy),
        done => done,
    }?;
    *inode = new;
    Ok(lblk)
}

/// Makes a reserved page a written one in `tx`; returns its block, which is to be filled.
fn write_reserved(core: &Core, tx: &mut Tx<'_>, page: PageId, word: PageWord) -> Result<BlockNo> {
    let block = match core.superblock.page(word) {
        BlockNo::NONE => core.map.alloc_page(tx, page).map_err(map_error)?,
        block => block,
    };
    core.map
        .replace(tx, page, PageWord::of_block(block))
        .map_err(map_error)?;
    Ok(block)
}

/// See [`ferrite_vfs::regions::Region::append`].
pub(crate) fn append(core: &Core, mem: &Arc<InodeMem>, file: &Attached, parts: &[&[u8]]) -> Result<u64> {
    core.check_writable()?;
    let data: Cow<'_, [u8]> = match parts {
        [part] => Cow::Borrowed(part),
        parts => Cow::Owned(parts.concat()),
    };
    if data.len() > ATOMIC_BYTES {
        return Err(FsError::NotSupported(Unsupported::StepSize));
    }
    retry::with_space(core, Need::pages(data.len()), || {
        let _lock = mem.write();
        let stored = load_writable(core, mem, file)?;
        if data.is_empty() {
            return Ok(stored.size());
        }
        append_locked(core, mem, file, stored, &data)
    })
}

fn append_locked(core: &Core, mem: &Arc<InodeMem>, file: &Attached, stored: Inode, data: &[u8]) -> Result<u64> {
    let at = stored.size();
    let end = at
        .checked_add(data.len() as u64)
        .filter(|&end| end <= MAX_FILE_BYTES)
        .ok_or(FsError::FileTooBig)?;
    let old = reserve_window(core, mem, file, stored, end)?;
    let pages = PageRange::new(at / BLOCK_BYTES, lblks(end));
    let last = core.map.get(PageId::new(mem.ino, Lblk::at(pages.first)));
    // The page that the file ended in stays in its place. Publishing it again would cost the adapter the translations
    // that its threads cache, for each small append.
    let is_known = !at.is_multiple_of(BLOCK_BYTES) && !last.is_unwritten();
    let added = PageRange::new(pages.first + u64::from(is_known), pages.end);
    let _change = bound::addition(core, mem, &old, added);
    let mut tx = Tx::on(core, Purpose::Change, &old);
    let mut new = old;
    new.set_size(end);
    let now = Core::now();
    new.set_mtime(now);
    new.set_ctime(now);
    tx.put_changed_inode(mem.ino, &old, &mut new);
    let mut fills = Vec::new();
    for lblk in pages.first..pages.end {
        let page = PageId::new(mem.ino, Lblk::at(lblk));
        let word = core.map.get(page);
        fills.push(match word.is_unwritten() {
            true => (page, write_reserved(core, &mut tx, page, word)?, true),
            false => (page, core.superblock.page(word), false),
        });
    }
    // From here on only the medium can fail, or the pool be closed.
    let mut rest = data;
    let mut from = (at % BLOCK_BYTES) as usize;
    for (page, block, is_new) in fills {
        let (part, behind) = rest.split_at(rest.len().min(PAGE - from));
        if is_new {
            let mut whole = [0; PAGE];
            whole[from..from + part.len()].copy_from_slice(part);
            tx.stream_page(page, block, &whole);
        } else {
            tx.stream_behind_end(core.superblock.block_offset(block) + from as u64, part);
        }
        rest = behind;
        from = 0;
    }
    tx.commit(&[mem]).inspect_err(|_| {
        // A failure here is one of the medium, which the caller learns of already.
        let _ = bound::zero_tail(core, mem, &old);
    })?;
    Ok(at)
}

/// Ensures that the pages up to `end` have blocks: those that have none are reserved, and more ahead for the next
/// appends. `inode` is as stored; returns the inode as stored afterwards.
fn reserve_window(core: &Core, mem: &Arc<InodeMem>, file: &Attached, mut inode: Inode, end: u64) -> Result<Inode> {
    let first = inode.size() / BLOCK_BYTES;
    let mut words = vec![PageWord::HOLE; (lblks(end) - first) as usize];
    let start = PageId::new(mem.ino, Lblk::at(first));
    core.map.get_many(start, &mut words, &TransCache::default());
    let Some(hole) = words.iter().position(|word| word.is_hole()) else {
        return Ok(inode);
    };
    let from = (first + hole as u64) * BLOCK_BYTES;
    let ahead = file.tell().window_pages.max(WINDOW_MIN);
    let wish = (end + ahead * BLOCK_BYTES).min(MAX_FILE_BYTES);
    let stored = inode;
    let reserve_to = |inode: &mut Inode, to: u64| {
        let mut reserved = Vec::new();
        let done = reserve::reserve_pages(core, mem, inode, from, to, &mut reserved);
        file.tell().window.add(first, &reserved);
        done
    };
    let done = reserve_to(&mut inode, wish);
    if let Err(FsError::NoSpace(_)) = done {
        // A part may have been reserved.
        inode = core.load_live(mem)?;
        reserve_to(&mut inode, end)?;
    } else {
        done?;
        file.tell().window_pages = (ahead * 2).min(WINDOW_MAX);
    }
    debug_assert_eq!(stored.size(), inode.size());
    Ok(inode)
}

/// See [`ferrite_vfs::regions::Region::reserve`].
pub(crate) fn reserve(core: &Core, mem: &Arc<InodeMem>, file: &Attached, len_bytes: u64) -> Result<u64> {
    move_end(core, mem, file, |at| at.checked_add(len_bytes))
}

/// See [`ferrite_vfs::regions::Region::extend`].
pub(crate) fn extend(core: &Core, mem: &Arc<InodeMem>, file: &Attached, from: u64, to: u64) -> Result<u64> {
    match to < from {
        true => Err(FsError::Invalid(BadArgument::BeforeStart)),
        false => move_end(core, mem, file, |at| Some(if at == from { to } else { at })),
    }
}

/// Moves the end from its place to `target` of that, by one record, and returns the old end.
fn move_end(core: &Core, mem: &Arc<InodeMem>, file: &Attached, target: impl Fn(u64) -> Option<u64>) -> Result<u64> {
    core.check_writable()?;
    retry::with_map_space(core, || {
        let _lock = mem.write();
        let old = load_writable(core, mem, file)?;
        let at = old.size();
        let end = target(at)
            .filter(|&end| end <= MAX_FILE_BYTES)
            .ok_or(FsError::FileTooBig)?;
        if end == at {
            return Ok(at);
        }
        let _change = bound::addition(core, mem, &old, PageRange::new(0, 0));
        let mut new = old;
        new.set_size(end);
        let now = Core::now();
        new.set_mtime(now);
        new.set_ctime(now);
        let mut tx = Tx::on(core, Purpose::Change, &old);
        tx.put_changed_inode(mem.ino, &old, &mut new);
        tx.commit(&[mem])?;
        Ok(at)
    })
}
