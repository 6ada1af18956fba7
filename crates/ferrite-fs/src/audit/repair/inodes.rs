//! Inodes: which of them can be trusted, and the fate of the others.

use ferrite_map::Inum;
use ferrite_vfs::FileKind;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Repair, State};
use crate::audit::rules::inodes as rules;
use crate::format::inode::{INLINE_BYTES, ROOT};
use crate::format::layout::BLOCK_BYTES;

impl Repair {
    /// Which inodes exist, and which of them can be trusted.
    pub(super) fn inodes(&mut self) {
        for ino in self.superblock.all_inums() {
            let inode = self.load(ino);
            self.state[ino.index()] = match rules::of_itself(ino, &inode) {
                Some(_) => State::Damaged,
                None if inode.in_use() => State::Sound,
                None => State::Free,
            };
        }
    }

    /// Restores the derivable fields of damaged inodes: their kind from their names and pages, their length from their
    /// pages. Directories stay where they are, since their entries have checksums; files are quarantined.
    pub(super) fn rebuild(&mut self) {
        let dirs: FxHashSet<Inum> = self.dir_blocks.iter().map(|found| found.dir).collect();
        let kinds: FxHashMap<Inum, FileKind> = self.entries.iter().map(|entry| (entry.ino, entry.kind)).collect();
        for ino in self.superblock.all_inums() {
            if self.state[ino.index()] != State::Damaged {
                continue;
            }
            let stored = self.load(ino);
            let is_dir = ino == ROOT || dirs.contains(&ino);
            let named = kinds.get(&ino).copied();
            let pages = self.pages[ino.index()];
            let kind = match (is_dir, named) {
                (true, _) => Some(FileKind::Directory),
                (false, Some(kind)) => Some(kind),
                (false, None) => (pages > 0).then_some(FileKind::File),
            };
            let what = format!("inode {ino}: damaged");
            let mut inode = stored.reborn();
            inode.set_btime(stored.ctime());
            inode.set_ctime(stored.ctime());
            inode.set_mtime(stored.mtime());
            match kind {
                Some(kind @ FileKind::Directory) => {
                    inode.set_mode_bits(kind.mode_bits() | 0o700);
                    inode.set_nlink(2);
                    // The rest is counted later.
                    self.put(ino, &mut inode);
                    self.mended("inodes", what, "made again as a directory of user 0, mode 700", true);
                }
                Some(kind @ FileKind::File) => {
                    inode.set_mode_bits(kind.mode_bits() | 0o400);
                    inode.set_nlink(1);
                    inode.set_blocks(pages);
                    let end = self.end[ino.index()] * BLOCK_BYTES;
                    inode.set_inline(pages == 0);
                    // Its checksums may identify no more than the page of a block.
                    inode.set_bound(stored.is_bound() && pages > 0);
                    if pages == 0 {
                        inode.set_size(stored.size().min(INLINE_BYTES as u64));
                        inode.write_inline(0, &stored.inline_bytes()[..inode.size() as usize]);
                    } else if stored.size() > end - BLOCK_BYTES && stored.size() <= end {
                        inode.set_size(stored.size());
                    } else {
                        inode.set_size(end);
                    }
                    self.put(ino, &mut inode);
                    self.spoiled.insert(ino);
                    self.mended("inodes", what, "made again as a file of user 0, mode 400", true);
                }
                _ => {
                    if pages > 0 {
                        self.unmap_all(ino);
                    }
                    self.clear_inode(ino);
                    if stored.in_use() || kind.is_some() {
                        self.mended("inodes", what, "freed: nothing of it can be known", true);
                    } else {
                        self.mended("inodes", what, "freed: nothing names it", false);
                    }
                    continue;
                }
            }
            self.state[ino.index()] = State::Sound;
        }
    }
}
