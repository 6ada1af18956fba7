//! Names: every slot of the table leads to the entry of its name, and every entry has a slot that lookups find.

use super::View;
use super::dirs::{padding, text};
use crate::audit::wrong::{EntryWrong, SlotWrong, Wrong};
use crate::format::dentry::{self, Entry, FIRST_ENTRY};
use crate::format::layout::BLOCK_BYTES;
use crate::space::names::{NameTable, Slot};
use ferrite_map::{BlockNo, Inum, NameSlotNo};

/// The target of a slot.
pub(crate) struct Led {
    /// The directory that owns the block, or that owns the entry if the block does not name one.
    pub(crate) dir: Inum,
    /// The block's header names its directory.
    pub(crate) has_header: bool,
    /// The entry, or its defect: then the slot is right, and the damaged entry's name is known.
    pub(crate) entry: Result<Entry, Wrong>,
}

/// Follows a slot. `owner` is [`owner`], or a cache of its results.
pub(crate) fn follow(
    view: View<'_>,
    names: &NameTable,
    slot: &Slot,
    owner: impl FnOnce(BlockNo) -> Result<Option<Inum>, SlotWrong>,
) -> Result<Led, SlotWrong> {
    let offset = slot.target.ok_or(SlotWrong::Outside)?;
    let block = BlockNo::of_offset(offset);
    if offset % BLOCK_BYTES < FIRST_ENTRY {
        return Err(SlotWrong::Header { block });
    }
    let owner = owner(block)?;
    // Without a header, the entry names the directory it belongs to.
    let dir = owner.unwrap_or_else(|| Inum::new(view.region.load(offset + 8) as u32));
    let has_header = owner.is_some();
    let entry = match dentry::read(view.region, offset, dir) {
        Ok(entry) if !names.fits(slot, dir, entry.name()) => return Err(SlotWrong::Other { offset }),
        Ok(entry) => padding(&entry)
            .map_err(|what| Wrong::entry(dir, entry.name(), what))
            .map(|()| entry),
        Err(error) if has_header && may_start_at(view, offset) => Err(Wrong::DirEntry { dir, what: text(error) }),
        Err(error) => return Err(SlotWrong::NoEntry { what: text(error) }),
    };
    Ok(Led { dir, has_header, entry })
}

/// Whether an entry that is in use begins at `offset` of a directory's block, as far as the block can be parsed.
fn may_start_at(view: View<'_>, offset: u64) -> bool {
    let mut at = offset / BLOCK_BYTES * BLOCK_BYTES + FIRST_ENTRY;
    while at < offset {
        match dentry::head(view.region, at) {
            Ok(head) => at += head.len_bytes,
            Err(_) => return true,
        }
    }
    at == offset && dentry::head(view.region, at).map_or(true, |head| head.ino != Inum::NONE)
}

/// The directory that `block`, a data block, belongs to; `None` if its header is damaged, an error if it belongs to
/// something else.
pub(crate) fn owner(view: View<'_>, block: BlockNo) -> Result<Option<Inum>, SlotWrong> {
    let Ok(page) = dentry::read_block_header(view.region, view.superblock.block_offset(block)) else {
        return Ok(None);
    };
    // A freed block keeps its old content.
    match view.superblock.page(view.map.get(page)) == block {
        true => Ok(Some(page.ino)),
        false => Err(SlotWrong::NoDirectory { block }),
    }
}

/// A lookup of a sound entry's name, which lies at pool offset `at` in `dir`, finds it; returns its slot. Mount, which
/// follows slots, does not check this: a name without a slot shows in the count of its directory.
pub(crate) fn is_found(names: &NameTable, dir: Inum, entry: &Entry, at: u64) -> Result<NameSlotNo, EntryWrong> {
    padding(entry)?;
    match names.find(&names.key(dir, entry.name())) {
        Ok(Some(found)) if found.entry_offset == at => Ok(found.slot),
        Ok(Some(_)) => Err(EntryWrong::Twice),
        _ => Err(EntryWrong::Missing),
    }
}

/// A directory counts as many entries as names lead to. If the numbers differ, lookups miss some, whichever slots are
/// to blame.
pub(crate) fn count(dir: Inum, counted: u32, led: u32) -> Option<Wrong> {
    (counted != led).then_some(Wrong::NameCount { dir, counted, led })
}
