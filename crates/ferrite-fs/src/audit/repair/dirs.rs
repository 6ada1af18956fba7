//! Directories: their blocks, and the entries in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrite_map::{BlockNo, Inum, MapEntry, PageId, PageWord};
use ferrite_vfs::FileKind;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{DirBlock, Named, Repair, State};
use crate::audit::rules::dirs::{self as rules, Header};
use crate::audit::wrong::{EntryWrong, Wrong};
use crate::format::dentry::{self, Entry, FIRST_ENTRY};
use crate::format::layout::BLOCK_BYTES;
use crate::space::names::NameTable;

impl Repair {
    /// Inodes that look free, and are named by an entry with the right checksum, were wiped: their pages are kept, and
    /// they are rebuilt as damaged ones.
    ///
    /// No crash leaves such a pair. A record that makes a file sets inode and entry; one that removes the last name
    /// clears the entry and frees the inode or leaves it in use, to be freed later. The journal has been replayed, so
    /// each record is applied completely or not at all.
    pub(super) fn wiped_inodes(&mut self) {
        let mut blocks = Vec::new();
        let map = Arc::clone(&self.map);
        map.check(
            &mut |MapEntry { ino, lblk, word, .. }| {
                if !self.is_ino(ino) || !self.superblock.is_data_block(self.superblock.page(word)) {
                    return;
                }
                // Any file may contain something that looks like a directory.
                if self.state[ino.index()] == State::Sound && !self.load(ino).is_dir() {
                    return;
                }
                let offset = self.superblock.block_offset(self.superblock.page(word));
                if rules::header(self.view(), offset, PageId::new(ino, lblk)) == Header::Right {
                    blocks.push((ino, self.superblock.page(word), offset));
                }
            },
            &mut |_| {},
            &mut |_| {},
        );
        self.pointed = self.pointed_by_block();
        for (dir, block, offset) in blocks {
            let entries = self.parse(dir, offset).unwrap_or_else(|| {
                let named = self.pointed.get(&block).map_or(&[][..], Vec::as_slice);
                let read = named.iter().filter_map(|&at| self.read_whatever_length(at, dir));
                read.map(|(entry, _)| entry).collect()
            });
            for entry in entries {
                if self.is_ino(entry.ino) && self.state[entry.ino.index()] == State::Free {
                    self.state[entry.ino.index()] = State::Damaged;
                }
            }
        }
    }

    /// Where names lead, by block: without it, remains of old entries would look real.
    fn pointed_by_block(&self) -> FxHashMap<BlockNo, Vec<u64>> {
        let mut by_block: FxHashMap<BlockNo, Vec<u64>> = FxHashMap::default();
        let names = NameTable::new(Arc::clone(&self.region), &self.superblock);
        names.for_each(&mut |_, target| {
            if let Some(offset) = target {
                by_block.entry(BlockNo::of_offset(offset)).or_default().push(offset);
            }
        });
        by_block
    }

    /// Restores blocks to directories that lost them to a damaged word or node of the mapping. A block belongs to a
    /// directory if its header names it, a name leads to a sound entry of that directory in it, and nothing else maps
    /// it. The block that the mapping has there instead is not this directory's, unless it has the same header. Done
    /// before blocks get owners, so that no foreign block is taken for one.
    pub(super) fn put_back_dir_blocks(&mut self) {
        let (mut mapped, mut odd) = (FxHashSet::default(), BTreeMap::new());
        self.map.for_each(&mut |MapEntry { ino, lblk, word, .. }| {
            let is_dir = self.is_ino(ino) && self.state[ino.index()] == State::Sound && self.load(ino).is_dir();
            if is_dir && self.header_of(self.superblock.page(word)) != Some(PageId::new(ino, lblk)) {
                odd.insert(PageId::new(ino, lblk), self.superblock.page(word));
            } else if self.pointed.contains_key(&self.superblock.page(word)) {
                mapped.insert(self.superblock.page(word));
            }
            true
        });
        let mut lost: Vec<_> = self
            .pointed
            .iter()
            .filter(|&(&block, _)| !mapped.contains(&block) && !self.is_owned(block))
            .filter_map(|(&block, places)| {
                let page = self.header_of(block)?;
                let dir = page.ino;
                let may_be_dir = self.is_ino(dir)
                    && match self.state[dir.index()] {
                        State::Sound => self.load(dir).is_dir(),
                        State::Damaged => true,
                        State::Free => false,
                    };
                let names = if may_be_dir { self.entries_at(places, dir) } else { 0 };
                (names > 0).then_some((std::cmp::Reverse(names), block, page))
            })
            .collect();
        lost.sort_unstable();
        let mut moved = FxHashSet::default();
        for (_, block, page) in lost {
            let PageId { ino: dir, lblk } = page;
            let there = self.map.get(page);
            if !there.is_hole() && self.header_of(self.superblock.page(there)) == Some(page) {
                continue;
            }
            if self.set_page(dir, lblk, Some(PageWord::of_block(block))).is_err() {
                continue;
            }
            if there.is_hole() {
                self.pages[dir.index()] += 1;
            }
            odd.remove(&page);
            moved.insert(block);
            let what = format!(
                "directory {dir}: block {lblk} is not mapped, and lies in block {block} as its header and names say"
            );
            self.mended("mapping", what, "put back", false);
        }
        for (PageId { ino: dir, lblk }, block) in odd {
            let is_moved = moved.contains(&block);
            let offset = self.superblock.block_offset(block);
            let has_entries = || {
                let places = self.pointed.get(&block).map_or(&[][..], Vec::as_slice);
                self.entries_at(places, dir) > 0 || self.parse(dir, offset).is_some_and(|parsed| !parsed.is_empty())
            };
            if !is_moved && has_entries() {
                continue;
            }
            if self.set_page(dir, lblk, None).is_ok() {
                self.pages[dir.index()] -= 1;
                let what =
                    format!("directory {dir}: block {lblk} is mapped to block {block}, where nothing is its own");
                self.mended("mapping", what, "dropped", !is_moved);
            }
        }
        self.reload_map();
    }

    /// Which block of which directory a data block claims to be.
    fn header_of(&self, block: BlockNo) -> Option<PageId> {
        let is_data = self.superblock.is_data_block(block);
        let offset = is_data.then(|| self.superblock.block_offset(block))?;
        dentry::read_block_header(&self.region, offset).ok()
    }

    /// At how many of these places sound entries of a directory lie.
    fn entries_at(&self, places: &[u64], dir: Inum) -> usize {
        let sound = |&&at: &&u64| self.read_whatever_length(at, dir).is_some();
        places.iter().filter(sound).count()
    }

    /// Finds all blocks of directories, parses them, and saves what is left of those that do not parse.
    pub(super) fn directories(&mut self) {
        let mut found = Vec::new();
        self.map.for_each(&mut |entry| {
            let block = self.superblock.page(entry.word);
            let offset = self.superblock.block_offset(block);
            let is_dir = match self.state[entry.ino.index()] {
                State::Sound => self.load(entry.ino).is_dir(),
                State::Damaged => rules::header(self.view(), offset, entry.page()) == Header::Right,
                State::Free => false,
            };
            if is_dir {
                found.push(DirBlock {
                    dir: entry.ino,
                    lblk: entry.lblk,
                    block,
                });
            }
            true
        });
        found.sort_unstable();
        let pointed = std::mem::take(&mut self.pointed);
        for at in found {
            let offset = self.superblock.block_offset(at.block);
            let named = pointed.get(&at.block).map_or(&[][..], Vec::as_slice);
            let parsed = self.parse(at.dir, offset).filter(|parsed| {
                // A free range that swallowed an entry would parse as well.
                let known: FxHashSet<u64> = parsed.iter().map(|entry| entry.at).collect();
                let lost = |&&place: &&u64| !known.contains(&place);
                !named
                    .iter()
                    .filter(lost)
                    .any(|&place| self.read_whatever_length(place, at.dir).is_some())
            });
            let parsed = match parsed {
                Some(parsed) => parsed,
                None => self.salvage(at, offset, named),
            };
            if rules::header(self.view(), offset, PageId::new(at.dir, at.lblk)) != Header::Right {
                let (dir, lblk) = (at.dir, at.lblk);
                let what = Wrong::DirHeader { dir, lblk };
                if parsed.is_empty() {
                    // Nothing in it is this directory's: the block itself may belong to something else.
                    if !self.map.get(PageId::new(at.dir, at.lblk)).is_hole() {
                        let _ = self.set_page(at.dir, at.lblk, None);
                        self.owned.release(u64::from(at.block) - self.superblock.first_block);
                        self.pages[at.dir.index()] -= 1;
                    }
                    self.mended("directories", what, "dropped: no entry in it", true);
                    continue;
                }
                let [first, second] = dentry::block_header(at.dir, at.lblk);
                self.set(offset, first);
                self.set(offset + 8, second);
                self.mended("directories", what, "header written anew", false);
            }
            parsed.iter().for_each(|entry| self.clear_padding(entry));
            self.dir_blocks.push(at);
            self.entries.extend(parsed);
        }
        self.reload_map();
    }

    /// The bytes after a name up to the next word are zero, or lookups do not recognise it.
    fn clear_padding(&mut self, entry: &Named) {
        let Ok(read) = dentry::read(&self.region, entry.at, entry.dir) else {
            return;
        };
        let Err(wrong) = rules::padding(&read) else { return };
        let name = read.name();
        let Some(last) = name.chunks(8).next_back() else { return };
        let mut word = [0; 8];
        word[..last.len()].copy_from_slice(last);
        let at = entry.at + 16 + (name.len().div_ceil(8) as u64 - 1) * 8;
        self.set(at, u64::from_le_bytes(word));
        self.mended("directories", Wrong::entry(entry.dir, name, wrong), "cleared", false);
    }

    /// The entries of a block, if it parses.
    fn parse(&self, dir: Inum, offset: u64) -> Option<Vec<Named>> {
        let (mut entries, mut is_sound) = (Vec::new(), true);
        let walked = rules::entries(self.view(), dir, offset, &mut |at, entry| match entry {
            Ok(Entry { ino, kind, .. }) => entries.push(Named { dir, ino, at, kind }),
            Err(_) => is_sound = false,
        });
        (walked.is_ok() && is_sound).then_some(entries)
    }

    /// Looks for entries at every place of a block that does not parse. One is real if its checksum is right and a name
    /// leads to it; the space between them becomes free.
    fn salvage(&mut self, block: DirBlock, offset: u64, named: &[u64]) -> Vec<Named> {
        let mut entries = Vec::new();
        let mut within = FIRST_ENTRY;
        let mut gap = FIRST_ENTRY;
        let close = |repair: &mut Repair, gap: u64, end: u64| {
            if end > gap {
                repair.set(offset + gap, dentry::free_word(end - gap));
            }
        };
        while within < BLOCK_BYTES {
            let at = offset + within;
            let found = named
                .contains(&at)
                .then(|| self.read_whatever_length(at, block.dir))
                .flatten();
            let Some((named, len)) = found else {
                within += 8;
                continue;
            };
            close(self, gap, within);
            let head = self.region.load(at);
            self.set(at, head & !(0xffff << 32) | len << 32);
            entries.push(named);
            within += len;
            gap = within;
        }
        close(self, gap, BLOCK_BYTES);
        let what = format!("directory {}: block {} does not parse", block.dir, block.lblk);
        self.mended("directories", what, "what its names lead to was kept", true);
        entries
    }

    /// The entry at `at`, whose length is not trusted and is taken from its name.
    fn read_whatever_length(&self, at: u64, dir: Inum) -> Option<(Named, u64)> {
        let head = self.region.load(at);
        let name_len = head >> 48 & 0xff;
        let len = 16 + name_len.next_multiple_of(8);
        if head as u32 == 0 || name_len == 0 || at % BLOCK_BYTES + len > BLOCK_BYTES {
            return None;
        }
        let name: Vec<u8> = (0..name_len.div_ceil(8))
            .flat_map(|word| self.region.load(at + 16 + word * 8).to_le_bytes())
            .take(name_len as usize)
            .collect();
        let (ino, kind) = dentry::read_if(&self.region, at, dir, &name).ok()??;
        Some((Named { dir, ino, at, kind }, len))
    }

    /// Removes an entry: its space becomes free.
    pub(super) fn erase(&mut self, entry: &Named) {
        let len = self.region.load(entry.at) >> 32 & 0xffff;
        self.set(entry.at, dentry::free_word(len));
    }

    pub(super) fn name_of(&self, entry: &Named) -> Vec<u8> {
        dentry::read(&self.region, entry.at, entry.dir).map_or_else(|_| Vec::new(), |read| read.name().to_vec())
    }

    /// Drops entries that name nothing, or a second name of an inode that may have only one.
    pub(super) fn entries(&mut self) {
        let mut kept: Vec<Named> = Vec::new();
        let mut names: FxHashSet<(Inum, Vec<u8>)> = FxHashSet::default();
        let mut parents: FxHashMap<Inum, Inum> = FxHashMap::default();
        let mut entries = std::mem::take(&mut self.entries);
        // Of two names of a directory, the one in its recorded parent is the right one.
        entries.sort_by_key(|entry| {
            let knows = self.is_ino(entry.ino)
                && self.state[entry.ino.index()] == State::Sound
                && self.load(entry.ino).parent() == entry.dir;
            (!knows, entry.at)
        });
        for entry in entries {
            let name = self.name_of(&entry);
            let is_sound = |ino: Inum| self.is_ino(ino) && self.state[ino.index()] == State::Sound;
            let wrong = if !is_sound(entry.ino) {
                Some(EntryWrong::Free { ino: entry.ino })
            } else if !is_sound(entry.dir) {
                Some(EntryWrong::Nowhere)
            } else if let Err(what) = rules::kind(entry.dir, (entry.ino, entry.kind), &self.load(entry.ino)) {
                Some(what)
            } else if names.contains(&(entry.dir, name.clone())) {
                Some(EntryWrong::Twice)
            } else if entry.kind == FileKind::Directory && parents.contains_key(&entry.ino) {
                Some(EntryWrong::SecondName)
            } else {
                None
            };
            if let Some(wrong) = wrong {
                self.erase(&entry);
                self.mended("entries", Wrong::entry(entry.dir, &name, wrong), "removed", true);
                continue;
            }
            if entry.kind == FileKind::Directory {
                parents.insert(entry.ino, entry.dir);
            }
            names.insert((entry.dir, name));
            kept.push(entry);
        }
        self.entries = kept;
    }
}
