//! Entries of a directory: where a new one goes, removal, listing.
//!
//! Contents: functions on one directory whose lock the caller holds (exclusively to change it). A directory's
//! blocks are mapped like a file's pages, at logical blocks 0, 1, 2…; unlike pages they are never moved, and they
//! change only word by word, through records.
//!
//! Invariants: an entry stays at its position (logical block and offset) as long as it exists, so a position is a
//! stable cookie. A block without entries is unmapped by the record that removes the last one. The directory's size is
//! the end of its last mapped block. [`DirHints`] are hints: every use checks the medium.

use ferrite_map::{BlockNo, Inum, Lblk, MapTx, PageId, PageWord, Resource};
use ferrite_vfs::{DirEntry, FileKind, FsError, Result, SNAPSHOTS_NAME, Shown};

use crate::cache::inodes::{DirHints, InodeMem};
use crate::file::truncate;
use crate::format::data_sum;
use crate::format::dentry::{self, FIRST_ENTRY};
use crate::format::inode::Inode;
use crate::format::layout::BLOCK_BYTES;
use crate::pool::core::Core;
use crate::pool::tx::Tx;
use crate::space::names::{Found, Key};

/// A free stretch is worth remembering if a name of ordinary length fits in it.
const FREE_BYTES_MIN: u64 = 64;
/// Most holes that one search remembers in a directory with many of them.
const HOLES_MAX: u64 = 64;
/// Up to this many logical blocks are tried one by one. In a larger directory of which few blocks are mapped, the
/// mapped ones are listed first.
const WALK_MAX: u64 = 4096;
/// Entries that a walk of a tree takes at a time.
const ENTRIES_AT_A_TIME: usize = 64;

/// Where an entry will go, until its record is committed.
pub(crate) struct Planned {
    /// The hint to set once the commit has succeeded.
    tail: Option<u64>,
}

/// A stretch of free space: its position in the directory and in the pool, and its length.
#[derive(Clone, Copy)]
struct Space {
    position: u64,
    offset: u64,
    len_bytes: u64,
}

/// Where a block of the directory is; `None` for a hole.
fn block_of(core: &Core, dir: Inum, lblk: u64) -> Result<Option<u64>> {
    match core.map.get(PageId::new(dir, Lblk::at(lblk))) {
        PageWord::HOLE => Ok(None),
        word if core.superblock.is_data_block(core.superblock.page(word)) => {
            Ok(Some(core.superblock.block_offset(core.superblock.page(word))))
        }
        word => Err(data_sum::no_data(
            PageId::new(dir, Lblk::at(lblk)),
            core.superblock.page(word),
        )),
    }
}

fn last_lblk_end(inode: &Inode) -> u64 {
    inode.size() / BLOCK_BYTES
}

/// Logical blocks from `first` on that may be mapped, in order. The last block of a damaged directory may come
/// billions of holes after the others, so the holes are not walked.
pub(crate) fn mapped_lblks(core: &Core, dir: Inum, inode: &Inode, first: u64) -> impl Iterator<Item = u64> {
    let end = last_lblk_end(inode);
    let span = end.saturating_sub(first);
    let is_sparse = span > WALK_MAX && span / 8 > u64::from(inode.blocks());
    let listed = if is_sparse {
        truncate::mapped_pages(core, &core.inodes.get(dir), inode, first)
    } else {
        Vec::new()
    };
    let all = if is_sparse { end..end } else { first..end };
    all.chain(listed.into_iter().map(u64::from).filter(move |&lblk| lblk < end))
}

/// End of the last mapped block before `lblk`.
fn end_before(core: &Core, dir: Inum, inode: &Inode, lblk: u64) -> u64 {
    let near = lblk.saturating_sub(WALK_MAX);
    let is_mapped = |&lblk: &u64| !core.map.get(PageId::new(dir, Lblk::at(lblk))).is_hole();
    let last = (near..lblk).rev().find(is_mapped).or_else(|| {
        let far = mapped_lblks(core, dir, inode, 0).take_while(|&other| other < near);
        far.filter(is_mapped).last()
    });
    last.map_or(0, |last| last + 1)
}

/// First run of adjacent free entries in a block that has at least `need` bytes, in its full length.
fn find_run(core: &Core, block_offset: u64, lblk: u64, need: u64) -> Result<Option<Space>> {
    #[derive(Clone, Copy)]
    struct Run {
        start: u64,
        len_bytes: u64,
    }
    let mut run: Option<Run> = None;
    let mut within = FIRST_ENTRY;
    while within < BLOCK_BYTES {
        let head = dentry::head(&core.region, block_offset + within)?;
        run = match (head.ino, run) {
            (Inum::NONE, None) => Some(Run {
                start: within,
                len_bytes: head.len_bytes,
            }),
            (Inum::NONE, Some(run)) => Some(Run {
                len_bytes: run.len_bytes + head.len_bytes,
                ..run
            }),
            _ => None,
        };
        if let Some(Run { start, len_bytes }) = run.filter(|run| run.len_bytes >= need) {
            // Include the free entries that follow, so that the rest of the run stays whole.
            let mut len_bytes = len_bytes;
            let mut next = start + len_bytes;
            while next < BLOCK_BYTES {
                let head = dentry::head(&core.region, block_offset + next)?;
                if head.ino != Inum::NONE {
                    break;
                }
                len_bytes += head.len_bytes;
                next += head.len_bytes;
            }
            return Ok(Some(Space {
                position: lblk * BLOCK_BYTES + start,
                offset: block_offset + start,
                len_bytes,
            }));
        }
        within += head.len_bytes;
    }
    Ok(None)
}

/// Continues the search of the directory for blocks with space, until enough are known. In a directory that is mostly
/// holes it notes mapped blocks, and only a few holes: many would displace the blocks that should be filled.
fn learn(core: &Core, dir: Inum, inode: &Inode, hints: &mut DirHints) -> Result<()> {
    let (mut next, mut holes) = (hints.searched, 0);
    for lblk in mapped_lblks(core, dir, inode, hints.searched) {
        let few = (lblk - next).min(HOLES_MAX - holes);
        (next..next + few).for_each(|hole| hints.note_free(Lblk::at(hole)));
        holes += few;
        next = lblk + 1;
        if hints.free_list.is_full() {
            return Ok(());
        }
        let has_space = match block_of(core, dir, lblk)? {
            Some(offset) => find_run(core, offset, lblk, FREE_BYTES_MIN)?.is_some(),
            None => true,
        };
        if has_space {
            hints.note_free(Lblk::at(lblk));
        }
        hints.searched = next;
    }
    hints.searched = last_lblk_end(inode);
    Ok(())
}

/// Finds space for `need` bytes in existing blocks; a hole is reported in `hole`.
fn find_space(
    core: &Core,
    dir: Inum,
    inode: &Inode,
    hints: &mut DirHints,
    need: u64,
    hole: &mut Option<u64>,
) -> Result<Option<Space>> {
    if let Some(position) = hints.tail
        && let Some(block_offset) = block_of(core, dir, position / BLOCK_BYTES)?
    {
        let offset = block_offset + position % BLOCK_BYTES;
        let head = dentry::head(&core.region, offset)?;
        if head.ino == Inum::NONE && head.len_bytes >= need {
            return Ok(Some(Space {
                position,
                offset,
                len_bytes: head.len_bytes,
            }));
        }
    }
    loop {
        while let Some(lblk) = hints.free_list.last() {
            match block_of(core, dir, u64::from(lblk))? {
                Some(offset) => {
                    if let Some(space) = find_run(core, offset, u64::from(lblk), need)? {
                        return Ok(Some(space));
                    }
                }
                None if u64::from(lblk) < last_lblk_end(inode) => {
                    *hole = Some(u64::from(lblk));
                    return Ok(None);
                }
                None => {}
            }
            hints.free_list.pop();
        }
        if hints.searched >= last_lblk_end(inode) {
            return Ok(None);
        }
        learn(core, dir, inode, hints)?;
    }
}

/// Adds the entry of `key` to its directory. The caller has checked that the name is new, and updates the directory's
/// other fields.
pub(crate) fn insert(
    core: &Core,
    tx: &mut Tx<'_>,
    key: &Key<'_>,
    (inode, hints): (&mut Inode, &mut DirHints),
    child: (Inum, FileKind),
) -> Result<Planned> {
    let &Key { parent: dir, name, .. } = key;
    let need = dentry::entry_bytes(name);
    let mut hole = None;
    let space = match find_space(core, dir, inode, hints, need, &mut hole)? {
        Some(space) => space,
        None => add_block(core, tx, dir, inode, hole)?,
    };
    // The rest becomes a free entry. It is never less than a word, because lengths are multiples of 8.
    let rest = space.len_bytes - need;
    dentry::encode(dir, child.0, child.1, name, need, |at, word| {
        tx.set_word(space.offset + at, word)
    });
    if rest > 0 {
        tx.set_word(space.offset + need, dentry::free_word(rest));
    }
    core.names.insert(tx, key, space.offset)?;
    inode.set_entries(inode.entries() + 1);
    // Until the commit, the boundary after the new entry does not exist.
    leave_tail(hints);
    Ok(Planned {
        tail: (rest >= dentry::entry_bytes(b"a")).then_some(space.position + need),
    })
}

/// Fills a directory that nothing leads to yet: several entries by one record, one after the other.
#[derive(Clone, Copy, Default)]
pub(super) struct Filler {
    /// The rest of the last block.
    space: Option<Space>,
}

impl Filler {
    /// Adds the entry of `key`. Before the commit, [`Self::end`] must be called.
    pub(super) fn add(
        &mut self,
        core: &Core,
        tx: &mut Tx<'_>,
        key: &Key<'_>,
        inode: &mut Inode,
        child: (Inum, FileKind),
    ) -> Result<()> {
        let need = dentry::entry_bytes(key.name);
        let space = match self.space.filter(|space| space.len_bytes >= need) {
            Some(space) => space,
            None => {
                self.end(tx);
                add_block(core, tx, key.parent, inode, None)?
            }
        };
        dentry::encode(key.parent, child.0, child.1, key.name, need, |at, word| {
            tx.set_word(space.offset + at, word)
        });
        core.names.insert(tx, key, space.offset)?;
        inode.set_entries(inode.entries() + 1);
        let len_bytes = space.len_bytes - need;
        self.space = (len_bytes > 0).then_some(Space {
            position: space.position + need,
            offset: space.offset + need,
            len_bytes,
        });
        Ok(())
    }

    /// Makes what is left of the last block a free entry.
    pub(super) fn end(&self, tx: &mut Tx<'_>) {
        if let Some(space) = self.space {
            tx.set_word(space.offset, dentry::free_word(space.len_bytes));
        }
    }
}

/// Forgets the free entry after the last insert, but not that its block has space.
fn leave_tail(hints: &mut DirHints) {
    if let Some(position) = hints.tail.take() {
        hints.note_free(Lblk::at(position / BLOCK_BYTES));
    }
}

/// Updates the hints after the insert was committed.
pub(crate) fn inserted(planned: &Planned, hints: &mut DirHints) {
    hints.tail = planned.tail;
}

/// Maps a block for entries, in the hole if given, else after the last block.
fn add_block(core: &Core, tx: &mut Tx<'_>, dir: Inum, inode: &mut Inode, hole: Option<u64>) -> Result<Space> {
    let lblk = hole.unwrap_or_else(|| last_lblk_end(inode));
    let page = PageId::new(
        dir,
        u32::try_from(lblk).map(Lblk::new).map_err(|_| FsError::FileTooBig)?,
    );
    if !core.map.get(page).is_hole() {
        let what = format!("block {lblk} of the directory is past its end");
        return Err(FsError::damaged(u64::from(dir), what));
    }
    let block = tx.alloc_block().map_err(crate::pool::core::map_error)?;
    tx.insert_page(page, PageWord::of_block(block))?;
    let offset = core.superblock.block_offset(block);
    let [first, second] = dentry::block_header(dir, page.lblk);
    tx.set_word(offset, first);
    tx.set_word(offset + 8, second);
    inode.set_blocks(inode.blocks() + 1);
    inode.set_size(inode.size().max((lblk + 1) * BLOCK_BYTES));
    Ok(Space {
        position: lblk * BLOCK_BYTES + FIRST_ENTRY,
        offset: offset + FIRST_ENTRY,
        len_bytes: BLOCK_BYTES - FIRST_ENTRY,
    })
}

/// Removes the entry `found`, and its block if that has no other entry, unless `keep_block` is set because the same
/// transaction may add to that block.
pub(crate) fn remove(
    core: &Core,
    tx: &mut Tx<'_>,
    dir: (Inum, &mut Inode, &mut DirHints),
    found: &Found,
    keep_block: bool,
) -> Result<()> {
    let (dir, inode, hints) = dir;
    core.names.clear(tx, found.slot);
    inode.set_entries(inode.entries().saturating_sub(1));
    let block_offset = found.entry_offset / BLOCK_BYTES * BLOCK_BYTES;
    let PageId { ino: owner, lblk } = dentry::read_block_header(&core.region, block_offset)?;
    if owner != dir {
        let what = format!("directory block at offset {block_offset}: belongs to inode {owner}");
        return Err(FsError::damaged(None, what));
    }
    hints.note_free(lblk);
    let within = found.entry_offset % BLOCK_BYTES;
    let position = u64::from(lblk) * BLOCK_BYTES + within;
    let mut len_bytes = dentry::head(&core.region, found.entry_offset)?.len_bytes;
    if keep_block {
        tx.set_word(found.entry_offset, dentry::free_word(len_bytes));
        return Ok(());
    }
    if !is_alone(core, block_offset, found.entry_offset)? {
        // Merge with the free space that follows, so that free entries do not pile up where names come and go.
        if within + len_bytes < BLOCK_BYTES {
            let next = dentry::head(&core.region, found.entry_offset + len_bytes)?;
            if next.ino == Inum::NONE {
                len_bytes += next.len_bytes;
            }
        }
        tx.set_word(found.entry_offset, dentry::free_word(len_bytes));
        // This is a boundary before and after the commit; the old tail may no longer be one.
        leave_tail(hints);
        hints.tail = Some(position);
        return Ok(());
    }
    // The entry's words stay unchanged: the block is free, and nothing points to it.
    let block = BlockNo::of_offset(block_offset);
    let removed = core.map.remove(tx, PageId::new(dir, lblk));
    if core.superblock.page(removed.map_err(crate::pool::core::map_error)?) != block {
        let what = format!("a name in the directory leads to block {block}, which is not its block {lblk}");
        return Err(FsError::damaged(u64::from(dir), what));
    }
    tx.freed(Resource::Block(block));
    hints.tail = hints.tail.filter(|position| position / BLOCK_BYTES != u64::from(lblk));
    if u64::from(lblk) + 1 == last_lblk_end(inode) {
        // With the old count of blocks: until the commit, the table still contains this block.
        inode.set_size(end_before(core, dir, inode, u64::from(lblk)) * BLOCK_BYTES);
    }
    inode.set_blocks(inode.blocks().saturating_sub(1));
    Ok(())
}

/// Whether the entry at `entry_offset` is the only one in its block.
fn is_alone(core: &Core, block_offset: u64, entry_offset: u64) -> Result<bool> {
    let mut within = FIRST_ENTRY;
    while within < BLOCK_BYTES {
        let head = dentry::head(&core.region, block_offset + within)?;
        if head.ino != Inum::NONE && block_offset + within != entry_offset {
            return Ok(false);
        }
        within += head.len_bytes;
    }
    Ok(true)
}

/// Makes the entry `found` name another inode.
pub(crate) fn replace(
    core: &Core,
    tx: &mut Tx<'_>,
    dir: Inum,
    name: &[u8],
    found: &Found,
    child: (Inum, FileKind),
) -> Result<()> {
    let head = dentry::head(&core.region, found.entry_offset)?;
    dentry::encode(dir, child.0, child.1, name, head.len_bytes, |at, word| {
        if at < 16 {
            tx.set_word(found.entry_offset + at, word);
        }
    });
    Ok(())
}

/// Finds the name of `key` in its directory, whose lock the caller holds. If the table may lack names of the
/// directory, a name that is missing there but present in the directory is an error.
pub(crate) fn find(core: &Core, inode: &Inode, key: &Key<'_>) -> Result<Option<Found>> {
    let found = core.names.find(key)?;
    if found.is_none() && core.quarantine.loses_names(key.parent) {
        check_absent(core, key.parent, inode, key.name)?;
    }
    Ok(found)
}

fn check_absent(core: &Core, dir: Inum, inode: &Inode, name: &[u8]) -> Result<()> {
    let mut is_there = false;
    let mut left = u64::from(inode.entries());
    list(core, dir, inode, 0, &mut |entry| {
        is_there |= entry.name == name;
        left = left.saturating_sub(1);
        !is_there
    })?;
    if !is_there && left > 0 {
        return Err(lost_names(dir, left));
    }
    if is_there {
        let name = Shown(name);
        let what = format!("entry {name} is missing in the name table; run `ferrite fsck --repair`");
        return Err(FsError::damaged(u64::from(dir), what));
    }
    Ok(())
}

fn lost_names(dir: Inum, count: u64) -> FsError {
    let what = format!("lost {count} of the names in this directory; run `ferrite fsck --repair`");
    FsError::damaged(u64::from(dir), what)
}

/// An entry as [`list_some`] finds it.
pub(super) struct Listed {
    pub(super) name: Vec<u8>,
    pub(super) ino: Inum,
    pub(super) next_cookie: u64,
}

/// The next entries from position `cookie` on, for a walk of a tree: none at the end. Takes the directory's lock, and
/// starts loading the inodes.
pub(super) fn list_some(core: &Core, dir: &InodeMem, cookie: u64) -> Result<Vec<Listed>> {
    let _lock = dir.read();
    let inode = core.load_live(dir)?;
    let mut entries = Vec::new();
    list(core, dir.ino, &inode, cookie, &mut |entry| {
        let ino = Inum::new(entry.ino as u32);
        core.prefetch_inode(ino);
        entries.push(Listed {
            name: entry.name.to_vec(),
            ino,
            next_cookie: entry.next_cookie,
        });
        entries.len() < ENTRIES_AT_A_TIME
    })?;
    Ok(entries)
}

/// Whether listings leave an entry out: a directory of snapshots. Walks of all that is there have it.
#[inline]
pub(crate) fn is_hidden(core: &Core, entry: &DirEntry<'_>) -> bool {
    // Without its lock: the flag is as old as the inode, which lives as long as it has this name.
    let holds_snapshots = || core.inode(entry.ino).is_ok_and(|mem| core.load(mem.ino).is_snapshots());
    entry.kind == FileKind::Directory && entry.name == SNAPSHOTS_NAME && holds_snapshots()
}

/// Lists a directory as callers see it; see [`list`].
pub(crate) fn list_shown(
    core: &Core,
    dir: Inum,
    inode: &Inode,
    cookie: u64,
    sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
) -> Result<()> {
    list_each(core, dir, inode, cookie, |entry| is_hidden(core, entry) || sink(entry))
}

/// Lists from position `cookie` on, as [`ferrite_vfs::FileSystem::readdir`] requires. If the directory has lost names,
/// an error follows after the last remaining one: a copy of it must not look complete.
pub(crate) fn list(
    core: &Core,
    dir: Inum,
    inode: &Inode,
    cookie: u64,
    sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
) -> Result<()> {
    list_each(core, dir, inode, cookie, sink)
}

#[inline]
fn list_each(
    core: &Core,
    dir: Inum,
    inode: &Inode,
    cookie: u64,
    mut sink: impl FnMut(&DirEntry<'_>) -> bool,
) -> Result<()> {
    let mut left = u64::from(inode.entries());
    let mut given = 0;
    for lblk in mapped_lblks(core, dir, inode, cookie / BLOCK_BYTES) {
        if left == 0 {
            break;
        }
        if let Some(block_offset) = block_of(core, dir, lblk)? {
            let mut within = FIRST_ENTRY;
            while within < BLOCK_BYTES {
                let position = lblk * BLOCK_BYTES + within;
                let head = dentry::head(&core.region, block_offset + within)?;
                if head.ino != Inum::NONE && position >= cookie {
                    let entry = dentry::read(&core.region, block_offset + within, dir)?;
                    let next_cookie = position + head.len_bytes;
                    let ino = u64::from(entry.ino);
                    if !sink(&DirEntry {
                        ino,
                        kind: entry.kind,
                        name: entry.name(),
                        next_cookie,
                    }) {
                        return Ok(());
                    }
                    // Once all entries have been listed, the holes of a sparse directory need not be walked.
                    left -= u64::from(left > 0);
                    given += 1;
                }
                within += head.len_bytes;
            }
        }
    }
    if given == 0 && cookie > 0 && core.quarantine.loses_names(dir) {
        left = u64::from(inode.entries());
        list(core, dir, inode, 0, &mut |_| {
            left = left.saturating_sub(1);
            true
        })?;
    }
    match given == 0 && left > 0 && core.quarantine.loses_names(dir) {
        true => Err(lost_names(dir, left)),
        false => Ok(()),
    }
}
