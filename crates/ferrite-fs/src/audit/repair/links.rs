//! Names and link counts: every inode in use can be reached from the root, by as many names as it counts.

use std::borrow::Cow;

use ferrite_map::{Inum, Lblk, PageWord, StoredWord};
use ferrite_vfs::{FileKind, SNAPSHOTS_NAME, Shown};
use rustc_hash::FxHashMap;

use super::{DirBlock, Named, Repair, State};
use crate::audit::rules::{dirs, links as rules, quotas};
use crate::audit::wrong::Wrong;
use crate::format::dentry::{self, FIRST_ENTRY};
use crate::format::inode::ROOT;
use crate::format::layout::BLOCK_BYTES;
use crate::pool::core::Core;
use crate::space::names::NameTable;

/// The directory for inodes without a name.
const LOST_FOUND: &[u8] = b"lost+found";
/// How many of a directory's last blocks are searched for space.
const BLOCKS_TRIED: usize = 4;

/// Space for entries.
#[derive(Clone, Copy)]
struct FreeSpace {
    /// Pool offset.
    at: u64,
    len_bytes: u64,
}

impl Repair {
    /// Moves damaged files out of their directories, and gives names to inodes without one.
    pub(super) fn connect(&mut self) {
        let mut spoiled: Vec<Inum> = self
            .spoiled
            .iter()
            .copied()
            .filter(|&ino| {
                let inode = self.load(ino);
                let has_content = matches!(inode.kind(), Some(FileKind::File | FileKind::Symlink));
                self.state[ino.index()] == State::Sound && has_content && inode.nlink() > 0
            })
            .collect();
        spoiled.sort_unstable();
        for ino in spoiled {
            let name = format!("damaged-{ino}");
            let (own, others): (Vec<_>, Vec<_>) = self.entries.iter().partition(|entry| entry.ino == ino);
            // A second repair leaves it where the first put it.
            if own.len() == 1 && self.name_of(&own[0]) == name.as_bytes() {
                continue;
            }
            let was = own.first().map_or_else(String::new, |entry| {
                format!(" ({} in directory {})", Shown(&self.name_of(entry)), entry.dir)
            });
            self.entries = others;
            own.iter().for_each(|entry| self.erase(entry));
            let what = format!("inode {ino}{was}: its content may be wrong");
            match self.adopt(ino, name.as_bytes()) {
                true => self.mended("connecting", what, "moved to lost+found", true),
                false => self.mended(
                    "connecting",
                    what,
                    "left without a name: there is no space for one",
                    true,
                ),
            }
            self.report.quarantined.push(name);
        }
        self.adopt_nameless();
        self.cut_circles();
        self.release_parts_of_snapshots();
        self.count_where_named();
    }

    /// Makes each directory count for the quota of the one that it is in, also in `lost+found`.
    fn count_where_named(&mut self) {
        let mut inside: FxHashMap<Inum, Vec<Named>> = FxHashMap::default();
        for entry in &self.entries {
            inside.entry(entry.dir).or_default().push(*entry);
        }
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            let directory = self.load(dir);
            for entry in inside.remove(&dir).unwrap_or_default() {
                let mut inode = self.load(entry.ino);
                if let Err(wrong) = quotas::counts(self.view(), &directory, (entry.ino, &inode)) {
                    inode.set_quota(quotas::inherited(&directory));
                    self.put(entry.ino, &mut inode);
                    let wrong = Wrong::entry(dir, &self.name_of(&entry), wrong);
                    self.mended("connecting", wrong, "counts where it stands", false);
                }
                if entry.kind == FileKind::Directory {
                    dirs.push(entry.ino);
                }
            }
        }
    }

    /// A part of a snapshot that has lost its place there, and a directory of snapshots that has lost its name, take
    /// changes again: else nobody could remove them.
    fn release_parts_of_snapshots(&mut self) {
        // Mount removes what is below these.
        let mut tops = self.orphan_trees();
        let is_of_snapshots = |entry: &&Named| self.load(entry.ino).is_snapshots();
        let named = |entry: &&Named| self.name_of(entry) == SNAPSHOTS_NAME;
        let in_place = self.entries.iter().filter(is_of_snapshots).filter(named);
        tops.extend(in_place.map(|entry| entry.ino));
        let in_place = self.below(tops);
        for ino in self.superblock.all_inums() {
            let is_there = self.state.get(ino.index()) == Some(&State::Sound) && !in_place[ino.index()];
            let mut inode = self.load(ino);
            if is_there && inode.is_read_only() && inode.nlink() > 0 {
                inode.clear_snapshot_flags();
                self.put(ino, &mut inode);
                let what = format!("inode {ino}: it was a part of a snapshot");
                self.mended("connecting", what, "it takes changes now", false);
            }
        }
    }

    /// Names in `lost+found` for all inodes that have none. An inode without names, links or content is the remains of
    /// a file that was open or being removed at a crash: mount frees it.
    fn adopt_nameless(&mut self) {
        let (mut named, mut has_entries) = (vec![false; self.state.len()], vec![false; self.state.len()]);
        for entry in &self.entries {
            named[entry.ino.index()] = true;
            has_entries[entry.dir.index()] = true;
        }
        for ino in self.superblock.all_inums().skip(1) {
            if self.state[ino.index()] != State::Sound || named[ino.index()] || self.lost_found == Some(ino) {
                continue;
            }
            let inode = self.load(ino);
            let has_inside = inode.is_dir() && (inode.entries() > 0 || has_entries[ino.index()]);
            if inode.nlink() > 0 || has_inside && !inode.is_orphan_tree() {
                self.adopt_as_lost(ino, &Wrong::NoName { ino });
            }
        }
    }

    /// A cycle of directories is broken at one of them.
    fn cut_circles(&mut self) {
        loop {
            let reached = self.reached();
            let circle = self
                .entries
                .iter()
                .find(|entry| entry.kind == FileKind::Directory && !reached[entry.ino.index()])
                .copied();
            let Some(entry) = circle else { return };
            self.entries.retain(|other| other.at != entry.at);
            self.erase(&entry);
            let wrong = Wrong::Unreachable { dir: entry.ino };
            if !self.adopt_as_lost(entry.ino, &wrong) {
                return;
            }
        }
    }

    /// Its name and its place are lost.
    fn adopt_as_lost(&mut self, ino: Inum, wrong: &Wrong) -> bool {
        let adopted = self.adopt(ino, format!("#{ino}").as_bytes());
        match adopted {
            true => self.mended("connecting", wrong, "named in lost+found", true),
            false => self.mended("connecting", wrong, "left: there is no space for a name", true),
        }
        adopted
    }

    /// The directories that mount removes with everything below.
    fn orphan_trees(&self) -> Vec<Inum> {
        let is_orphan = |&ino: &Inum| self.state[ino.index()] == State::Sound && self.load(ino).is_orphan_tree();
        self.superblock.all_inums().filter(is_orphan).collect()
    }

    /// Which inodes can be reached from the root, or from a tree that mount removes.
    fn reached(&self) -> Vec<bool> {
        let mut tops = self.orphan_trees();
        tops.push(ROOT);
        self.below(tops)
    }

    /// Which inodes are these, or can be reached from them.
    fn below(&self, tops: Vec<Inum>) -> Vec<bool> {
        let mut children: FxHashMap<Inum, Vec<Inum>> = FxHashMap::default();
        for entry in &self.entries {
            children.entry(entry.dir).or_default().push(entry.ino);
        }
        let mut reached = vec![false; self.state.len()];
        let mut pending = tops;
        while let Some(ino) = pending.pop() {
            if !std::mem::replace(&mut reached[ino.index()], true) {
                pending.extend(children.get(&ino).into_iter().flatten());
            }
        }
        reached
    }

    /// Gives `ino` a name in `lost+found`.
    fn adopt(&mut self, ino: Inum, name: &[u8]) -> bool {
        let dir = match self.lost_found {
            Some(dir) => dir,
            None => match self.find_lost_found() {
                Some(dir) => dir,
                None => return false,
            },
        };
        self.lost_found = Some(dir);
        let kind = self.load(ino).kind().unwrap_or(FileKind::File);
        self.add_entry(dir, name, (ino, kind))
    }

    /// The directory `lost+found`, which is made if it is missing.
    fn find_lost_found(&mut self) -> Option<Inum> {
        let there = self
            .entries
            .iter()
            .find(|entry| entry.dir == ROOT && self.name_of(entry) == LOST_FOUND)
            .copied();
        let Some(entry) = there else {
            return self.make_lost_found();
        };
        if entry.kind == FileKind::Directory {
            return Some(entry.ino);
        }
        // A user's file has the name: it is moved out of the way.
        self.entries.retain(|other| other.at != entry.at);
        self.erase(&entry);
        let dir = self.make_lost_found()?;
        self.add_entry(dir, LOST_FOUND, (entry.ino, entry.kind));
        Some(dir)
    }

    fn make_lost_found(&mut self) -> Option<Inum> {
        // Never the root, whatever state it is in.
        let first = ROOT.index() + 1;
        let free = self.state[first..].iter().position(|&state| state == State::Free)?;
        let ino = Inum::new((first + free) as u32);
        let mut inode = self.load(ino).reborn();
        inode.set_mode_bits(FileKind::Directory.mode_bits() | 0o700);
        inode.set_nlink(2);
        inode.set_parent(ROOT);
        let now = Core::now();
        inode.set_atime(now);
        inode.set_mtime(now);
        inode.set_ctime(now);
        inode.set_btime(now);
        self.put(ino, &mut inode);
        self.state[ino.index()] = State::Sound;
        self.add_entry(ROOT, LOST_FOUND, (ino, FileKind::Directory))
            .then_some(ino)
    }

    /// Puts an entry into a directory; false if there is no block or slot for it.
    fn add_entry(&mut self, dir: Inum, name: &[u8], (ino, kind): (Inum, FileKind)) -> bool {
        let need = dentry::entry_bytes(name);
        let blocks: Vec<DirBlock> = self
            .dir_blocks
            .iter()
            .copied()
            .filter(|found| found.dir == dir)
            .collect();
        let free = blocks
            .iter()
            .rev()
            .take(BLOCKS_TRIED)
            .find_map(|found| self.free_run(self.superblock.block_offset(found.block), need));
        let Some(FreeSpace { at, len_bytes: space }) = free.or_else(|| self.add_block(dir, &blocks)) else {
            return false;
        };
        let mut words = Vec::new();
        dentry::encode(dir, ino, kind, name, need, |within, word| {
            words.push(StoredWord::new(at + within, word))
        });
        if space > need {
            words.push(StoredWord::new(at + need, dentry::free_word(space - need)));
        }
        words.into_iter().for_each(|word| self.set(word.offset, word.value));
        self.entries.push(Named { dir, ino, at, kind });
        true
    }

    /// Free space in a sound block.
    fn free_run(&self, block_offset: u64, need: u64) -> Option<FreeSpace> {
        let (mut within, mut run) = (FIRST_ENTRY, None::<FreeSpace>);
        while within < BLOCK_BYTES {
            let head = dentry::head(&self.region, block_offset + within).ok()?;
            run = match (head.ino, run) {
                (Inum::NONE, None) => Some(FreeSpace {
                    at: block_offset + within,
                    len_bytes: head.len_bytes,
                }),
                (Inum::NONE, Some(run)) => Some(FreeSpace {
                    len_bytes: run.len_bytes + head.len_bytes,
                    ..run
                }),
                _ => None,
            };
            if let Some(mut found) = run.filter(|run| run.len_bytes >= need) {
                let mut next = within + head.len_bytes;
                while next < BLOCK_BYTES {
                    let head = dentry::head(&self.region, block_offset + next).ok()?;
                    if head.ino != Inum::NONE {
                        break;
                    }
                    found.len_bytes += head.len_bytes;
                    next += head.len_bytes;
                }
                return Some(found);
            }
            within += head.len_bytes;
        }
        None
    }

    fn add_block(&mut self, dir: Inum, blocks: &[DirBlock]) -> Option<FreeSpace> {
        let lblk = match blocks.iter().map(|found| found.lblk).max() {
            // A damaged key may have put a block where no other can follow.
            Some(last) => last.checked_next()?,
            None => Lblk::FIRST,
        };
        let block = self.take_block()?;
        self.set_page(dir, lblk, Some(PageWord::of_block(block))).ok()?;
        let offset = self.superblock.block_offset(block);
        let [first, second] = dentry::block_header(dir, lblk);
        self.set(offset, first);
        self.set(offset + 8, second);
        self.set(offset + FIRST_ENTRY, dentry::free_word(BLOCK_BYTES - FIRST_ENTRY));
        self.pages[dir.index()] += 1;
        self.dir_blocks.push(DirBlock { dir, lblk, block });
        Some(FreeSpace {
            at: offset + FIRST_ENTRY,
            len_bytes: BLOCK_BYTES - FIRST_ENTRY,
        })
    }

    /// Link counts, and the entry counts and parents of directories. A count that is higher than what was found cannot
    /// be distinguished from a lost name.
    pub(super) fn counts(&mut self) {
        let inodes = self.superblock.inodes as usize;
        let (mut names, mut subdirs, mut inside, mut parent) = (
            vec![0u32; inodes],
            vec![0u32; inodes],
            vec![0u32; inodes],
            vec![Inum::NONE; inodes],
        );
        for entry in &self.entries {
            names[entry.ino.index()] += 1;
            inside[entry.dir.index()] += 1;
            if entry.kind == FileKind::Directory {
                subdirs[entry.dir.index()] += 1;
                parent[entry.ino.index()] = entry.dir;
            }
        }
        let mut ends = vec![0u64; inodes];
        for found in &self.dir_blocks {
            let end = &mut ends[found.dir.index()];
            *end = (*end).max(u64::from(found.lblk) + 1);
        }
        for ino in self.superblock.all_inums() {
            if self.state[ino.index()] != State::Sound {
                continue;
            }
            let at = ino.index();
            let stored = self.load(ino);
            let mut inode = stored;
            inode.set_blocks(self.pages[at]);
            let is_root = ino == ROOT;
            inode.set_nlink(rules::expected(ino, &stored, names[at], subdirs[at]));
            if stored.is_dir() {
                inode.set_entries(inside[at]);
                inode.set_size(ends[at] * BLOCK_BYTES);
                // An inode without a name keeps its parent; it is freed later.
                inode.set_parent(match names[at] {
                    _ if is_root => ino,
                    0 => stored.parent(),
                    _ => parent[at],
                });
            }
            if stored.is_file() && inode.is_inline() && self.pages[at] > 0 {
                inode.set_inline(false);
            }
            if inode == stored {
                continue;
            }
            self.put(ino, &mut inode);
            if let Some(wrong) = rules::count(ino, &stored, inode.nlink()) {
                self.mended("counts", wrong, "set right", inode.nlink() < stored.nlink());
            }
            if stored.is_dir()
                && let Some(wrong) = dirs::count(ino, stored.entries(), inode.entries())
            {
                self.mended("counts", wrong, "set right", inode.entries() < stored.entries());
            } else if stored.is_dir() && inode.nlink() == stored.nlink() {
                self.mended("counts", format!("directory {ino}: counts wrong"), "set right", false);
            }
        }
    }

    /// The name table, made to match the directories.
    pub(super) fn names(&mut self) {
        let table = NameTable::new(std::sync::Arc::clone(&self.region), &self.superblock);
        table.load();
        let wanted = self
            .entries
            .iter()
            .map(|entry| (entry.dir, Cow::from(self.name_of(entry)), entry.at));
        let Some(changes) = table.rebuilt(wanted) else {
            let what = "the name table is too small for the names there are".to_string();
            return self.mended("names", what, "left", true);
        };
        if !changes.is_empty() {
            let what = format!("{} words of the name table", changes.len());
            changes.into_iter().for_each(|word| self.set(word.offset, word.value));
            self.mended("names", what, "set right", false);
        }
    }
}
