//! Moving the pages of a file so that they follow each other.
//!
//! Contents: [`defragment`], for a file that is about to be bound: adapters keep an entry per run. It goes through the
//! file in order and puts each page after the one before it, where that block is free.
//!
//! Crash argument: each record moves some pages, as an overwrite with the same content would, so a crash leaves each of
//! them in its old place or the new one.

use std::sync::Arc;

use ferrite_map::{BlockNo, Lblk, MapTx, PageId, PageWord, Resource};
use ferrite_vfs::{FsError, Result};

use crate::cache::inodes::InodeMem;
use crate::format::inode::Inode;
use crate::format::page_buffer::PageBuffer;
use crate::page::block;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::{Purpose, Tx, WhenFrozen};
use crate::space::blocks::Class;

/// Pages that one record moves.
const PAGES_PER_RECORD: usize = 128;
/// Words of a record that a page may need: its word, its checksum, and those for splitting an extent.
const MOVE_WORDS: usize = 32;
/// Pages a run that are enough.
const RUN_PAGES: usize = 64;

/// Moves those of `pages` that do not follow the page before them, as far as space allows. They have no logs; the
/// caller has the inode's exclusive lock, and no adapter has the file. `inode` is as stored, and stays so.
pub(super) fn defragment(core: &Core, mem: &Arc<InodeMem>, inode: &Inode, pages: &[Lblk]) -> Result<()> {
    let written: Vec<Lblk> = pages
        .iter()
        .copied()
        .filter(|&lblk| is_written(core.map.get(PageId::new(mem.ino, lblk))))
        .collect();
    if runs(core, mem, &written) <= written.len().div_ceil(RUN_PAGES) {
        return Ok(());
    }
    let mut last = None;
    let mut rest = &*written;
    while !rest.is_empty() {
        match move_some(core, mem, inode, rest, last) {
            Ok(moved) => {
                last = moved.last;
                rest = &rest[moved.pages..];
                // Blocks that the moves have freed are space for the next ones.
                core.reclaim()?;
            }
            Err(FsError::NoSpace(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_written(word: PageWord) -> bool {
    !word.is_hole() && !word.is_unwritten()
}

/// Number of runs that written pages lie in.
fn runs(core: &Core, mem: &InodeMem, pages: &[Lblk]) -> usize {
    let mut before = None;
    let breaks = pages.iter().filter(|&&lblk| {
        let place = Place {
            lblk,
            block: core.superblock.page(core.map.get(PageId::new(mem.ino, lblk))),
        };
        !before.replace(place).is_some_and(|before| before.is_before(place))
    });
    breaks.count()
}

/// Where a page lies.
#[derive(Clone, Copy)]
struct Place {
    lblk: Lblk,
    block: BlockNo,
}

impl Place {
    fn is_before(self, other: Place) -> bool {
        self.lblk.get() + 1 == other.lblk.get() && self.block.get() + 1 == other.block.get()
    }
}

/// The moves of one record.
struct Moved {
    /// Number of examined pages, at least one.
    pages: usize,
    last: Option<Place>,
}

/// Moves the first of `pages`, by one record; `last` is where the page before them lies.
fn move_some(
    core: &Core,
    mem: &Arc<InodeMem>,
    inode: &Inode,
    pages: &[Lblk],
    mut last: Option<Place>,
) -> Result<Moved> {
    let mut tx = Tx::on(core, Purpose::Upkeep(WhenFrozen::Wait), inode);
    tx.set_class(Class::Ordinary);
    let mut buffer = PageBuffer::take();
    let mut done = 0;
    for &lblk in pages.iter().take(PAGES_PER_RECORD) {
        if done > 0 && !tx.has_space(64 + MOVE_WORDS) {
            break;
        }
        let page = PageId::new(mem.ino, lblk);
        let word = core.map.get(page);
        let old = Place {
            lblk,
            block: core.superblock.page(word),
        };
        done += 1;
        if last.is_some_and(|last| last.is_before(old)) {
            last = Some(old);
            continue;
        }
        let behind = last.filter(|last| last.lblk.get() + 1 == lblk.get());
        let behind = behind.map(|last| BlockNo::new(last.block.get() + 1));
        let new = match behind {
            Some(block) if tx.claim_block(block) => block,
            _ => tx.alloc_run().map_err(map_error)?,
        };
        match inode.is_bound() {
            true => block::read_bound(core, page, word, 0, &mut buffer[..])?,
            false => block::read_block(core, page, word, 0, &mut buffer[..])?,
        }
        tx.stream_page(page, new, &buffer[..]);
        core.map
            .replace(&mut tx, page, PageWord::of_block(new))
            .map_err(map_error)?;
        tx.freed(Resource::Block(old.block));
        last = Some(Place { lblk, block: new });
    }
    tx.commit(&[mem])?;
    Ok(Moved { pages: done, last })
}
