//! Content in the inode, and the way out of it.
//!
//! Contents: [`move_out`], for all operations after which content is in blocks. Invariant: the content is the
//! same before and after; the caller's record makes the change.

use ferrite_map::{Inum, Lblk, PageId, PageWord};
use ferrite_vfs::Result;

use crate::format::inode::{INLINE_BYTES, Inode};
use crate::format::layout::BLOCK_BYTES;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::Tx;

/// Moves inline content, which is `size` long, to page 0; an empty file gets no page.
pub(crate) fn move_out(core: &Core, tx: &mut Tx<'_>, ino: Inum, inode: &mut Inode, size: u64) -> Result<()> {
    let content = inode.inline_bytes();
    if size > 0 {
        let mut page = [0; BLOCK_BYTES as usize];
        page[..INLINE_BYTES].copy_from_slice(&content);
        let block = core
            .map
            .alloc_page(tx, PageId::new(ino, Lblk::FIRST))
            .map_err(map_error)?;
        tx.stream_page(PageId::new(ino, Lblk::FIRST), block, &page);
        tx.insert_page(PageId::new(ino, Lblk::FIRST), PageWord::of_block(block))?;
        inode.set_blocks(inode.blocks() + 1);
    }
    inode.clear_inline(0);
    inode.set_inline(false);
    Ok(())
}
