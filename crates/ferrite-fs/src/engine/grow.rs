//! Growing a pool that is not mounted.
//!
//! Crash argument: nothing before the old end of the pool changes until the end. First the new end gets a copy of the
//! old superblock, because a damaged first one is replaced by the last block of the file or device. The larger tables
//! are built in the space that is added, to which the old superblock does not lead, and a fence makes them durable.
//! Then the new superblock is written to the new end of the pool, and after another fence over the first. Until the
//! last write, the first block holds the old superblock, which still describes a whole pool; if that write is torn, the
//! copy at the end is the new one, and describes a whole pool too.
//!
//! Data blocks, page logs, the journal and the outcomes stay where they are.

use std::path::Path;
use std::sync::Arc;

use ferrite_map::{BlockNo, FileMap, MapError, MapTx, Mapping, Resource, StoredWord};
use ferrite_pm::{Access, Region};
use ferrite_vfs::volume::human_bytes;

use super::handle::{Engine, is_clean};
use super::mkfs::zero;
use crate::audit::fsck::Progress;
use crate::error::EngineError;
use crate::format::layout::{BLOCK_BYTES, INODE_BYTES, SUM_BYTES, Superblock};
use crate::options::MountOptions;
use crate::space::names::NameTable;

/// Bytes copied between two progress reports.
const STEP_BYTES: u64 = 1 << 20;
/// Pages between two progress reports.
const STEP_PAGES: u64 = 1 << 16;

/// Makes the pool in a file or on a device larger, so that it has `size_bytes`: space for data, inodes, names and
/// mapping. The file gets the space first. Returns the superblock of the larger pool.
///
/// The pool must not be mounted; after a crash it is recovered first. Blocking; durable when it returns. On an error,
/// and after a crash at any moment, the pool is as it was or as it is to be; a file may be left longer than its pool.
/// `progress` gets phase, done, total.
pub fn grow(path: &Path, size_bytes: u64, progress: Progress<'_>) -> Result<Superblock, EngineError> {
    let (old, is_sparse) = recover(path)?;
    // Before the file gets longer, so that a refusal costs nothing.
    old.grown(size_bytes)?;
    if let Ok(file) = std::fs::metadata(path)
        && file.len() > size_bytes
    {
        return Err(ends_early(file.len(), size_bytes));
    }
    // If the pool was replaced meanwhile, the file keeps its length, and a new one does not stay.
    let longer = |region: &Region| find_unused(region).map(drop);
    progress("space", 0, 1);
    let region = Arc::new(match is_sparse {
        true => Region::create_sparse_with(path, size_bytes, longer)?,
        false => Region::create_with(path, size_bytes, longer)?,
    });
    grow_in(&region, size_bytes, progress)
}

/// Mounts and unmounts the pool, so that no record of its journal is left: those name places in the old tables. Returns
/// its superblock, and whether its file is sparse.
fn recover(path: &Path) -> Result<(Superblock, bool), EngineError> {
    let region = Region::open(path, Access::ReadWrite)?;
    let is_sparse = region.is_sparse();
    let engine = Engine::mount(region, &MountOptions::default().cleaner(false))?;
    if let Some(damage) = engine.damage().first() {
        return Err(EngineError::Damaged(format!(
            "{damage}; run `ferrite fsck --repair` before the pool grows"
        )));
    }
    engine.unmount()?;
    Ok((engine.core().superblock.clone(), is_sparse))
}

/// The superblock of a pool that was unmounted cleanly and may be changed.
fn find_unused(region: &Region) -> Result<Superblock, EngineError> {
    let superblock = Superblock::find(region)?;
    if !is_clean(region) {
        return Err(EngineError::Options("the pool was mounted meanwhile; try again".into()));
    }
    match superblock.unknown_ro_compat() {
        0 => Ok(superblock),
        unknown => Err(EngineError::ReadOnlyFeatures(unknown)),
    }
}

/// The second superblock is looked for at the end of the file or device, and there alone: the pool must end there.
fn ends_early(has_bytes: u64, size_bytes: u64) -> EngineError {
    EngineError::Options(format!(
        "the file or device has {}, and a pool uses all of it, not {}; omit --size",
        human_bytes(has_bytes),
        human_bytes(size_bytes)
    ))
}

/// The same in a region that is as long as the pool is to be.
pub(crate) fn grow_in(
    region: &Arc<Region>,
    size_bytes: u64,
    progress: Progress<'_>,
) -> Result<Superblock, EngineError> {
    let old = find_unused(region)?;
    let new = old.grown(size_bytes)?;
    if new.second_copy_offset() != region.len() / BLOCK_BYTES * BLOCK_BYTES - BLOCK_BYTES {
        return Err(ends_early(region.len(), size_bytes));
    }
    region.stream(new.second_copy_offset(), &old.encode());
    region.fence()?;
    let grower = Grower {
        region,
        old: &old,
        new: &new,
    };
    // A device may hold anything in the space that is added.
    zero(region, "tables", new.inode_offset, new.second_copy_offset(), progress);
    grower.copy(
        "inodes",
        (old.inode_offset, new.inode_offset),
        old.inodes * INODE_BYTES,
        progress,
    );
    grower.names(progress)?;
    grower.mapping(progress)?;
    if old.has_data_checksums() {
        // Blocks keep their numbers, and tables of sums begin with the first block.
        grower.copy(
            "checksums",
            (old.sum_offset, new.sum_offset),
            old.blocks * SUM_BYTES,
            progress,
        );
    }
    if let (Some(from), Some(to)) = (old.marks(), new.marks()) {
        grower.copy("shared blocks", (from.offset, to.offset), from.words * 8, progress);
    }
    progress("writing out", 0, 1);
    region.fence()?;
    let block = new.encode();
    region.stream(new.second_copy_offset(), &block);
    region.fence()?;
    region.stream(0, &block);
    region.fence()?;
    Ok(new)
}

/// The tables of a pool that grows.
struct Grower<'g> {
    region: &'g Arc<Region>,
    old: &'g Superblock,
    new: &'g Superblock,
}

impl Grower<'_> {
    fn copy(&self, phase: &'static str, (from, to): (u64, u64), len: u64, progress: Progress<'_>) {
        let mut buffer = vec![0; STEP_BYTES as usize];
        let mut done = 0;
        while done < len {
            let part = &mut buffer[..(len - done).min(STEP_BYTES) as usize];
            if !self.region.is_blank(from + done, part.len() as u64) {
                self.region.read(from + done, part);
                self.region.stream(to + done, part);
            }
            done += part.len() as u64;
            progress(phase, done, len);
        }
    }

    /// Stores words of the new tables, to be written back by the next fence.
    fn put(&self, word: StoredWord) {
        self.region.store(word.offset, word.value);
        self.region.write_back(word.offset, 8);
    }

    fn names(&self, progress: Progress<'_>) -> Result<(), EngineError> {
        let table = |superblock| NameTable::new(Arc::clone(self.region), superblock);
        progress("names", 0, 1);
        match table(self.old).rehash_into(&table(self.new), &mut |word| self.put(word)) {
            true => Ok(()),
            false => Err(EngineError::Options(
                "the larger name table has no space for all names".into(),
            )),
        }
    }

    /// Trees hang on a word for each inode, which moves; their nodes are data blocks, which stay. Tables place a page
    /// by its hash and their own size, so all pages are inserted again.
    fn mapping(&self, progress: Progress<'_>) -> Result<(), EngineError> {
        let mapping = self.old.mapping;
        if matches!(mapping, Mapping::Radix | Mapping::Extent) {
            let offsets = (self.old.map_offset, self.new.map_offset);
            self.copy("mapping", offsets, mapping.area_bytes(self.old.map_slots), progress);
            return Ok(());
        }
        let load = |superblock: &Superblock| {
            let map = mapping.open(Arc::clone(self.region), superblock.map_geometry());
            map.load(1, &|_| {}).map(|()| map)
        };
        let damaged = |error: MapError| EngineError::Damaged(format!("{error}; run `ferrite fsck --repair` first"));
        let (old, new) = (load(self.old).map_err(damaged)?, load(self.new).map_err(damaged)?);
        let (mut pages, mut failed) = (0, None);
        old.for_each(&mut |entry| {
            pages += 1;
            if pages % STEP_PAGES == 0 {
                progress("mapping", pages, self.old.blocks);
            }
            let insert = |tx: &mut Direct<'_>| new.insert(tx, entry.page(), entry.word);
            failed = self.insert(new.as_ref(), &insert).err();
            failed.is_none()
        });
        match failed {
            Some(error) => Err(EngineError::Damaged(format!("the mapping cannot grow: {error}"))),
            None => Ok(()),
        }
    }

    /// Inserts one page, and moves others while the structure wants that, or cannot take the page.
    fn insert(
        &self,
        map: &dyn FileMap,
        insert: &dyn Fn(&mut Direct<'_>) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let make_space = || {
            let _moving = map.move_lock().map(|move_lock| move_lock.lock_exclusive());
            self.change(map, &mut |tx| map.make_space(tx))
        };
        loop {
            let inserted = {
                let _shared = map.move_lock().map(|move_lock| move_lock.lock_shared());
                self.change(map, &mut |tx| insert(tx))
            };
            match inserted {
                Err(MapError::TableFull) if make_space()? => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        while map.wants_space() && make_space()? {}
        Ok(())
    }

    /// Carries out one change of the new mapping.
    fn change<T>(
        &self,
        map: &dyn FileMap,
        change: &mut dyn FnMut(&mut Direct<'_>) -> Result<T, MapError>,
    ) -> Result<T, MapError> {
        let mut tx = Direct {
            grower: self,
            claimed: Vec::new(),
            freed: Vec::new(),
        };
        let changed = change(&mut tx);
        // Nothing is replayed here, so what is freed is free at once.
        let unused = if changed.is_ok() { tx.freed } else { tx.claimed };
        for resource in unused {
            if let Resource::MapSlot(slot) = resource {
                map.release(slot);
            }
        }
        changed
    }
}

/// A change of a table that no record has to make atomic: nothing leads to the table yet.
struct Direct<'g> {
    grower: &'g Grower<'g>,
    claimed: Vec<Resource>,
    freed: Vec<Resource>,
}

impl MapTx for Direct<'_> {
    fn set_word(&mut self, offset: u64, value: u64) {
        self.grower.put(StoredWord::new(offset, value));
    }

    fn word(&self, offset: u64) -> u64 {
        self.grower.region.load(offset)
    }

    fn fresh_block(&mut self) -> Result<BlockNo, MapError> {
        Err(MapError::NoBlock)
    }

    fn claim_block(&mut self, _block: BlockNo) -> bool {
        false
    }

    fn alloc_block(&mut self) -> Result<BlockNo, MapError> {
        Err(MapError::NoBlock)
    }

    fn claimed(&mut self, resource: Resource) {
        self.claimed.push(resource);
    }

    fn freed(&mut self, resource: Resource) {
        self.freed.push(resource);
    }
}

#[cfg(test)]
mod tests;
