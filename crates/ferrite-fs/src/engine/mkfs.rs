//! Making a pool.
//!
//! Crash argument: the superblocks are written last, after a fence that made everything else durable, and an old first
//! superblock is wiped before anything else is changed. So a pool either has no signature or is complete.

use std::path::Path;

use ferrite_pm::Region;
use ferrite_vfs::FileKind;

use crate::audit::fsck::Progress;
use crate::error::EngineError;
use crate::format::inode::{INODE_WORDS, Inode, ROOT};
use crate::format::layout::{
    BLOCK_BYTES, CONTROL_CHECKPOINT, CONTROL_OFFSET, CONTROL_STATE, STATE_CLEAN, Superblock, encode_checkpoint,
};
use crate::options::MkfsOptions;
use crate::pool::core::Core;

/// Zeros written between two progress reports.
const STEP_BYTES: u64 = 16 << 20;

/// Makes a pool of `size_bytes` in a new file, or on a device. If this fails, a file that did not exist before is
/// removed; if the options cannot be met, an existing one is unchanged. Blocking; durable when it returns.
pub fn create(path: &Path, size_bytes: u64, options: &MkfsOptions) -> Result<Region, EngineError> {
    create_telling(path, size_bytes, options, &mut |_, _, _| {})
}

/// Like [`create`]; `progress` gets phase, done, total.
pub fn create_telling(
    path: &Path,
    size_bytes: u64,
    options: &MkfsOptions,
    progress: Progress<'_>,
) -> Result<Region, EngineError> {
    Superblock::plan(size_bytes, options, 0, 0)?;
    progress("space", 0, 1);
    let fill = |region: &Region| mkfs_telling(region, options, progress);
    match options.sparse {
        true => Region::create_sparse_with(path, size_bytes, fill),
        false => Region::create_with(path, size_bytes, fill),
    }
}

/// Makes an empty file system in `region`, whatever it held before. Blocking; durable when it returns.
pub fn mkfs(region: &Region, options: &MkfsOptions) -> Result<(), EngineError> {
    mkfs_telling(region, options, &mut |_, _, _| {})
}

fn mkfs_telling(region: &Region, options: &MkfsOptions, progress: Progress<'_>) -> Result<(), EngineError> {
    let uuid = match options.seed {
        Some(seed) => u128::from(seed) << 64 | u128::from(!seed),
        None => u128::from_ne_bytes(ferrite_vfs::random().map_err(|error| EngineError::Options(error.to_string()))?),
    };
    let now = Core::now();
    let superblock = Superblock::plan(region.len(), options, uuid, now.0)?;

    region.stream_zero(0, BLOCK_BYTES);
    region.stream_zero(superblock.second_copy_offset(), BLOCK_BYTES);
    region.fence()?;
    // Control block, journal, inodes, names and mapping: everything before the first data block.
    let tables_end = superblock.first_block * BLOCK_BYTES;
    zero(region, "tables", CONTROL_OFFSET, tables_end, progress);
    if options.write_zeros {
        zero(region, "zeros", tables_end, superblock.second_copy_offset(), progress);
    }
    // On a disk file, the fences below take most of the time.
    progress("writing out", 0, 1);
    for (offset, value) in [(CONTROL_CHECKPOINT, encode_checkpoint(0)), (CONTROL_STATE, STATE_CLEAN)] {
        region.store(offset, value);
        region.write_back(offset, 8);
    }

    let mut root = Inode::empty();
    root.set_mode_bits(FileKind::Directory.mode_bits() | 0o755);
    root.set_nlink(2);
    root.set_uid(options.root_owner.uid);
    root.set_gid(options.root_owner.gid);
    root.set_generation(1);
    root.set_parent(ROOT);
    root.set_atime(now);
    root.set_mtime(now);
    root.set_ctime(now);
    root.set_btime(now);
    root.set_crc(root.checksum(ROOT));
    let offset = superblock.inode_offset(ROOT);
    for (index, &word) in root.words.iter().enumerate() {
        region.store(offset + index as u64 * 8, word);
    }
    region.write_back(offset, (INODE_WORDS * 8) as u64);
    region.fence()?;

    let block = superblock.encode();
    region.stream(superblock.second_copy_offset(), &block);
    region.fence()?;
    region.stream(0, &block);
    region.fence()?;
    Ok(())
}

/// Makes a range zeros, except where it is blank.
pub(super) fn zero(region: &Region, phase: &'static str, first: u64, end: u64, progress: Progress<'_>) {
    let mut at = first;
    while at < end {
        // To a multiple in the pool: a huge page that two steps shared would not be blank for the second.
        let len = ((at / STEP_BYTES + 1) * STEP_BYTES).min(end) - at;
        // Zeros already, in a sparse pool.
        if !region.is_blank(at, len) {
            region.fill_zero(at, len);
        }
        at += len;
        progress(phase, at, end);
    }
}

#[cfg(test)]
mod tests {
    use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM, SetAttr};

    use super::*;
    use crate::{Engine, MountOptions};

    #[test]
    fn the_root_is_not_changed_before_it_was_made() {
        let options = MkfsOptions::default().inodes(255);
        // Most of these take less than a tick of the clock.
        for _ in 0..20 {
            let region = Region::anonymous(8 << 20).unwrap();
            mkfs(&region, &options).unwrap();
            let engine = Engine::mount(region, &MountOptions::default()).unwrap();
            let mode = SetAttr {
                mode: Some(0o700),
                ..SetAttr::default()
            };
            let root = engine.setattr(SYSTEM, ROOT_INO, &mode).unwrap();
            assert!(root.btime <= root.ctime, "{root:?}");
        }
    }

    /// Remains of an older use of the file stay in data blocks, unless zeroing is requested.
    #[test]
    fn zeros_are_written_to_all_space_if_that_is_asked_for() {
        // On a disk and in DRAM.
        for place in [std::env::temp_dir(), "/dev/shm".into()] {
            let dir = tempfile::tempdir_in(place).unwrap();
            let path = dir.path().join("pool");
            for write_zeros in [false, true] {
                std::fs::write(&path, vec![0xff; 8 << 20]).unwrap();
                let options = MkfsOptions::default().inodes(255).write_zeros(write_zeros);
                let region = create(&path, 8 << 20, &options).unwrap();
                let superblock = crate::identify(&region).unwrap();
                let mut space =
                    vec![0; (superblock.second_copy_offset() - superblock.first_block * BLOCK_BYTES) as usize];
                region.read(superblock.first_block * BLOCK_BYTES, &mut space);
                let expected = if write_zeros { 0 } else { 0xff };
                assert!(space.iter().all(|&byte| byte == expected), "{write_zeros}");
                let engine = Engine::mount(region, &MountOptions::default()).unwrap();
                assert!(engine.damage().is_empty());
                engine.unmount().unwrap();
            }
        }
    }
}
