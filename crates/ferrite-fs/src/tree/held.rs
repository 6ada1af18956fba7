//! The space that snapshots alone hold ([`ferrite_vfs::SNAPSHOT_XATTR`]): of one snapshot, or of all of a directory.
//!
//! A walk counts how many pages of what is in them name each shared block. If no others do, the block comes back with
//! them, as do blocks that are not shared, the inodes, and the pages of directories and attributes. Nothing is locked
//! for longer than a few entries or one file, so the sum is of no single moment. There is one walk at a time: it may be
//! long, and takes memory for each shared block.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ferrite_map::{BlockNo, Inum, PageRange};
use ferrite_vfs::{Ctx, FsError, Ino, Result, SnapshotSpace, SnapshotWalk};

use super::dir;
use super::lookup::gone;
use crate::cache::inodes::InodeMem;
use crate::file::truncate::mapped_runs;
use crate::format::inode::Inode;
use crate::format::layout::BLOCK_BYTES;
use crate::format::xattr;
use crate::pool::core::Core;

/// Blocks that are counted together.
const CHUNK_BLOCKS: u64 = 16 << 10;

/// The pages of each shared block that were found, by chunks of blocks that follow each other.
#[derive(Default)]
struct Found(HashMap<u64, Box<[u32]>>);

impl Found {
    fn add(&mut self, block: BlockNo) {
        let number = u64::from(block);
        let new = || vec![0; CHUNK_BLOCKS as usize].into_boxed_slice();
        let chunk = self.0.entry(number / CHUNK_BLOCKS).or_insert_with(new);
        let count = &mut chunk[(number % CHUNK_BLOCKS) as usize];
        *count = count.saturating_add(1);
    }

    /// How many of the blocks no other page names.
    fn unnamed_elsewhere(&self, core: &Core) -> u64 {
        let counts = self.0.iter().flat_map(|(chunk, counts)| {
            let numbers = chunk * CHUNK_BLOCKS..;
            numbers.zip(counts.iter()).filter(|(_, count)| **count > 0)
        });
        let alone = |(number, count): &(u64, &u32)| **count > core.shares.further(BlockNo::new(*number as u32));
        counts.filter(alone).count() as u64
    }
}

/// The walk of a tree.
struct Walk<'c> {
    core: &'c Core,
    found: Found,
    inodes: u64,
    /// Blocks that nothing shares.
    blocks: u64,
    /// Inodes with several names that were seen.
    seen: HashSet<Inum>,
    dirs: Vec<Arc<InodeMem>>,
}

/// The space that a snapshot holds alone, or a directory of snapshots, as the attribute gives it. Takes some time for
/// each file.
///
/// # Errors
/// `NoAttribute` of another inode; `NotPermitted` unless the caller may take snapshots there; `Busy` while another walk
/// is in progress.
pub(crate) fn get(core: &Core, ctx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
    let mem = core.inode(ino).map_err(gone)?;
    let inode = core.snapshot(&mem).map_err(gone)?;
    let is_snapshot = |inode: &Inode| inode.is_dir() && inode.is_read_only();
    let is_top = |inode: &Inode| {
        let above = core
            .inode(inode.parent().into())
            .and_then(|above| core.snapshot(&above));
        above.is_ok_and(|above| above.is_snapshots())
    };
    if !(inode.is_snapshots() || is_snapshot(&inode) && is_top(&inode)) {
        return Err(FsError::NoAttribute);
    }
    if ctx.check && !ctx.cred.is_root() && ctx.cred.uid != inode.uid() {
        return Err(FsError::NotPermitted);
    }
    let _walking = SnapshotWalk::begin(&core.walks_snapshots)?;
    // Pages that are gone count until their records are retired.
    if core.check_writable().is_ok() && !core.journal.is_frozen() {
        core.reclaim()?;
    }
    let mut walk = Walk {
        core,
        found: Found::default(),
        inodes: 0,
        blocks: 0,
        seen: HashSet::new(),
        dirs: Vec::new(),
    };
    match inode.is_snapshots() {
        true => walk.dirs.push(mem),
        false => walk.add(inode.parent(), &mem)?,
    }
    walk.below()?;
    let blocks = walk.blocks + walk.found.unnamed_elsewhere(core);
    let space = SnapshotSpace {
        bytes: blocks * BLOCK_BYTES,
        inodes: walk.inodes,
    };
    Ok(space.to_string().into_bytes())
}

impl Walk<'_> {
    fn below(&mut self) -> Result<()> {
        let mut walked = 0;
        while let Some(dir) = self.dirs.pop() {
            walked += 1;
            if walked > self.core.superblock.inodes {
                return Err(FsError::damaged(u64::from(dir.ino), "the directory contains itself"));
            }
            let mut cookie = 0;
            loop {
                if self.core.has_ended() {
                    return Err(FsError::Io("the pool is being closed".into()));
                }
                let entries = match dir::list_some(self.core, &dir, cookie) {
                    // It was removed meanwhile.
                    Err(FsError::NotFound | FsError::Stale) => break,
                    entries => entries?,
                };
                let Some(last) = entries.last() else { break };
                cookie = last.next_cookie;
                for entry in entries {
                    let found = self.core.inode(u64::from(entry.ino));
                    match found.and_then(|mem| self.add(dir.ino, &mem)) {
                        Err(FsError::NotFound | FsError::Stale) => {}
                        added => added?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds an inode that was found by a name in this directory.
    fn add(&mut self, above: Inum, mem: &Arc<InodeMem>) -> Result<()> {
        let _lock = mem.read();
        let inode = self.core.load_live(mem)?;
        // Its number has another inode by now.
        if !inode.is_read_only() || inode.is_dir() && inode.parent() != above {
            return Ok(());
        }
        if inode.nlink() > 1 && !inode.is_dir() && !self.seen.insert(mem.ino) {
            return Ok(());
        }
        self.inodes += 1;
        if inode.xattr_word() != 0 {
            let (region, superblock) = (&self.core.region, &self.core.superblock);
            let further = xattr::further_blocks(region, superblock, mem.ino, inode.xattr_block());
            self.blocks += 1 + further.len() as u64;
        }
        if inode.is_dir() {
            self.blocks += u64::from(inode.blocks());
            self.dirs.push(Arc::clone(mem));
            return Ok(());
        }
        for run in mapped_runs(self.core, mem, &inode, PageRange::ALL) {
            for (_, word) in run.each() {
                let block = self.core.superblock.page(word);
                match self.core.shares.is_shared(block) {
                    true => self.found.add(block),
                    false => self.blocks += 1,
                }
            }
        }
        Ok(())
    }
}
