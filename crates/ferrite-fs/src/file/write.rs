//! Writing data: small files in the inode, whole pages copy-on-write, parts of pages to the pages' logs.
//!
//! Crash argument: data goes to blocks that are free (or reserved and still reading as zeros), or after the end of
//! logs; one record then sets all page words, size and times. Old blocks are freed by that record, so they stay
//! unchanged until it is retired. A write of up to [`ATOMIC_BYTES`] is one record, which takes setuid, setgid and the
//! capability as well ([`rights`]).

use std::sync::Arc;

use ferrite_map::{BlockNo, Inum, Lblk, MapTx, PageId, PageRange, PageWord, Resource};
use ferrite_pm::profile::{self, ProfileSpan};
use ferrite_vfs::{
    BadArgument, Ctx, FsError, Outcome, Position, Result, SYSTEM, Unsupported, WriteMode, Written, posix,
};

use super::{bound, inline, rights};
use crate::cache::inodes::InodeMem;
use crate::format::inode::{INLINE_BYTES, Inode};
use crate::format::layout::{BLOCK_BYTES, MAX_FILE_BYTES, lblks};
use crate::page::append::{self, Part};
use crate::page::scan;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::{Purpose, Tx};
use crate::retry::{self, Need};
use crate::space::blocks::Class;

/// Longest write that is one atomic step; longer writes take several.
pub(crate) const ATOMIC_BYTES: usize = 2 << 20;
const PAGE: usize = BLOCK_BYTES as usize;
/// Pages looked up at a time.
const BATCH: usize = 64;

/// Writes `data`. Blocks on the inode's lock.
pub(crate) fn write(core: &Core, ctx: &Ctx, mem: &Arc<InodeMem>, mode: WriteMode, data: &[u8]) -> Result<Written> {
    let position = mode.position;
    let mode = WriteMode {
        kill_priv: mode.kill_priv || ctx.kills_priv(),
        ..mode
    };
    if let Position::At(offset) = position {
        let lblk = Lblk::at((offset / BLOCK_BYTES).min(u64::from(Lblk::LAST)));
        core.map.prefetch(PageId::new(mem.ino, lblk), true);
    }
    core.check_writable()?;
    // A change with a token is one record, so that its outcome is certain.
    let data = match ctx.token {
        Some(_) => &data[..data.len().min(ATOMIC_BYTES)],
        None => data,
    };
    let mut done = 0;
    let mut start = None;
    for chunk in data.chunks(ATOMIC_BYTES) {
        let position = match start {
            None => position,
            // Later chunks follow the first, even if others append in between.
            Some(start) => Position::At(start + done as u64),
        };
        match retry::with_space(core, Need::pages(chunk.len()), || {
            write_atomic(core, ctx, mem, WriteMode { position, ..mode }, chunk, Growth::Allowed)
        }) {
            Ok(offset) => {
                start.get_or_insert(offset);
                done += chunk.len();
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(Written::new(start.unwrap_or(0), done))
}

/// Writes within a bound file, in one atomic step. Blocks on the inode's lock.
pub(crate) fn overwrite(core: &Core, mem: &Arc<InodeMem>, offset: u64, data: &[u8]) -> Result<()> {
    core.check_writable()?;
    if data.len() > ATOMIC_BYTES {
        return Err(FsError::NotSupported(Unsupported::StepSize));
    }
    let mode = WriteMode::from(Position::At(offset));
    retry::with_space(core, Need::pages(data.len()), || {
        write_atomic(core, SYSTEM, mem, mode, data, Growth::Refused).map(drop)
    })
}

/// Whether a write may end beyond the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Allowed,
    /// It must not, and the file must have an adapter.
    Refused,
}

fn write_atomic(
    core: &Core,
    ctx: &Ctx,
    mem: &Arc<InodeMem>,
    mode: WriteMode,
    data: &[u8],
    growth: Growth,
) -> Result<u64> {
    let _lock = mem.write();
    let old = core.load_live(mem)?;
    let mut new = old;
    let offset = match mode.position {
        Position::At(offset) => offset,
        Position::End => old.size(),
    };
    let end = offset
        .checked_add(data.len() as u64)
        .filter(|&end| end <= MAX_FILE_BYTES)
        .ok_or(FsError::FileTooBig)?;
    if growth == Growth::Allowed {
        old.callers_flags().check_write(offset, old.size())?;
    } else {
        if core.bindings.of(mem.ino).is_none() {
            return Err(FsError::Stale);
        }
        if end > old.size() {
            return Err(FsError::Invalid(BadArgument::RegionGrows));
        }
    }
    new.set_size(old.size().max(end));
    let now = Core::now();
    new.set_mtime(now);
    new.set_ctime(now);
    if mode.kill_priv
        && let Some(kind) = new.kind()
    {
        new.set_permissions(posix::kill_priv_by(&ctx.cred, kind, new.permissions(), new.gid()));
    }
    let pages = PageRange::new(offset / BLOCK_BYTES, lblks(end));
    let _change = bound::change(core, mem, &old, pages, new.size());
    let mut tx = Tx::on(core, Purpose::Change, &old);
    tx.note_outcome(ctx, || {
        Ok(Outcome::Wrote {
            offset,
            len_bytes: data.len() as u64,
        })
    })?;
    rights::take(core, &mut tx, mem, &mut new)?;
    if old.is_inline() && end <= INLINE_BYTES as u64 {
        new.write_inline(offset as usize, data);
    } else if !old.is_inline()
        && !tx.awaits_fence()
        && write_lone_part(core, &mut tx, mem.ino, (&old, &mut new), offset, data)?
    {
        tx.commit(&[mem])?;
        return Ok(offset);
    } else {
        let head = if old.is_inline() {
            take_inline(core, &mut tx, mem.ino, &mut new, old.size(), offset)?
        } else {
            None
        };
        write_pages(core, &mut tx, mem.ino, (&old, &mut new), offset, data, head.as_ref())?;
    }
    tx.put_changed_inode(mem.ino, &old, &mut new);
    tx.commit(&[mem])?;
    Ok(offset)
}

/// Changes part of one written page, and records the inode `new`, which maps as many pages as before; false if the
/// write is not of this kind.
fn write_lone_part(
    core: &Core,
    tx: &mut Tx<'_>,
    ino: Inum,
    (old, new): (&Inode, &mut Inode),
    offset: u64,
    data: &[u8],
) -> Result<bool> {
    let within = (offset % BLOCK_BYTES) as usize;
    let page = PageId::new(ino, Lblk::at(offset / BLOCK_BYTES));
    if data.len() == PAGE || within + data.len() > PAGE {
        return Ok(false);
    }
    let word = profile::within(ProfileSpan::Lookup, || core.map.get(page));
    if word.is_hole() || word.is_unwritten() {
        return Ok(false);
    }
    if word.has_log() {
        // The line of the newest entry is loaded while the inode's words are gathered.
        scan::prefetch_newest(core, word);
    }
    tx.set_single_page();
    tx.put_changed_inode(ino, old, new);
    let appends = offset + data.len() as u64 > old.size();
    append::write_part(core, tx, page, word, (within, Part::Data(data)), appends)?;
    if appends {
        tx.expect_another();
    }
    Ok(true)
}

/// Ends inline storage for a file that is being written at `offset`: returns its content if the write itself builds
/// page 0 from it, otherwise moves the content to a page.
fn take_inline(
    core: &Core,
    tx: &mut Tx<'_>,
    ino: Inum,
    inode: &mut Inode,
    size: u64,
    offset: u64,
) -> Result<Option<[u8; INLINE_BYTES]>> {
    if offset < BLOCK_BYTES {
        let content = inode.inline_bytes();
        inode.clear_inline(0);
        inode.set_inline(false);
        return Ok(Some(content));
    }
    inline::move_out(core, tx, ino, inode, size)?;
    Ok(None)
}

fn write_pages(
    core: &Core,
    tx: &mut Tx<'_>,
    ino: Inum,
    (old, inode): (&Inode, &mut Inode),
    offset: u64,
    data: &[u8],
    head: Option<&[u8; INLINE_BYTES]>,
) -> Result<()> {
    let cache = ferrite_map::TransCache::default();
    let mut words = [PageWord::HOLE; BATCH];
    let mut rest = data;
    let mut at = offset;
    // A single whole page inside the file is most likely mapped: it is streamed to a block before the table is read,
    // so that the wait for the table's lines and the stream overlap.
    if data.len() == PAGE
        && offset.is_multiple_of(BLOCK_BYTES)
        && offset + BLOCK_BYTES <= old.size()
        && !tx.awaits_fence()
        && let Ok(block) = tx.alloc_block()
    {
        tx.expect_few_blocks();
        let page = PageId::new(ino, Lblk::at(offset / BLOCK_BYTES));
        tx.stream_page(page, block, data);
        let word = profile::within(ProfileSpan::Lookup, || core.map.get(page));
        return map_page(core, tx, page, inode, word, block);
    }
    while !rest.is_empty() {
        let first = Lblk::at(at / BLOCK_BYTES);
        let span = (at % BLOCK_BYTES) as usize + rest.len();
        let pages = span.div_ceil(PAGE).min(BATCH);
        profile::within(ProfileSpan::Lookup, || {
            core.map.get_many(PageId::new(ino, first), &mut words[..pages], &cache);
        });
        for (index, &word) in words[..pages].iter().enumerate() {
            let within = (at % BLOCK_BYTES) as usize;
            let (part, behind) = rest.split_at(rest.len().min(PAGE - within));
            let page = PageId::new(ino, first.plus(index as u32));
            if part.len() < PAGE && !word.is_hole() && !word.is_unwritten() {
                let appends = at + part.len() as u64 > old.size();
                append::write_part(core, tx, page, word, (within, Part::Data(part)), appends)?;
            } else {
                fill_page(core, tx, page, inode, word, (within, part), head)?;
            }
            at += part.len() as u64;
            rest = behind;
        }
    }
    Ok(())
}

/// Writes a whole page, or part of one that reads as zeros, to a block and makes the page's word name it.
fn fill_page(
    core: &Core,
    tx: &mut Tx<'_>,
    PageId { ino, lblk }: PageId,
    inode: &mut Inode,
    word: PageWord,
    (within, part): (usize, &[u8]),
    head: Option<&[u8; INLINE_BYTES]>,
) -> Result<()> {
    tx.set_class(class_for(core, word));
    // A reserved block reads as zeros whatever it contains, so it can be filled before the word changes.
    let reserved = word.is_unwritten() && core.superblock.page(word) != BlockNo::NONE;
    let block = if reserved {
        core.superblock.page(word)
    } else {
        profile::within(ProfileSpan::Claim, || core.map.alloc_page(tx, PageId::new(ino, lblk))).map_err(map_error)?
    };
    if part.len() == PAGE {
        tx.stream_page(PageId::new(ino, lblk), block, part);
    } else {
        let mut page = [0; PAGE];
        if let (Lblk::FIRST, Some(content)) = (lblk, head) {
            page[..INLINE_BYTES].copy_from_slice(content);
        }
        page[within..within + part.len()].copy_from_slice(part);
        tx.stream_page(PageId::new(ino, lblk), block, &page);
    }
    map_page(core, tx, PageId::new(ino, lblk), inode, word, block)
}

/// The class of a write to a page: only a page that was mapped before, to a block of its own, frees a block.
fn class_for(core: &Core, word: PageWord) -> Class {
    if word.is_hole() || core.shares.is_shared(core.superblock.page(word)) {
        Class::Ordinary
    } else {
        Class::Replacing
    }
}

/// Makes the word of a page, which is `word` now, name `block`.
fn map_page(
    core: &Core,
    tx: &mut Tx<'_>,
    PageId { ino, lblk }: PageId,
    inode: &mut Inode,
    word: PageWord,
    block: BlockNo,
) -> Result<()> {
    let new = PageWord::of_block(block);
    tx.set_class(class_for(core, word));
    if word.is_hole() {
        tx.insert_page(PageId::new(ino, lblk), new)?;
        inode.set_blocks(inode.blocks() + 1);
        return Ok(());
    }
    profile::within(ProfileSpan::Lookup, || {
        core.map.replace(tx, PageId::new(ino, lblk), new)
    })
    .map_err(map_error)?;
    if core.superblock.page(word) != BlockNo::NONE && core.superblock.page(word) != block {
        tx.freed(Resource::Block(core.superblock.page(word)));
    }
    scan::free(core, tx, PageId::new(ino, lblk), word)
}
