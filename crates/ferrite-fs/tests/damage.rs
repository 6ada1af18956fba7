//! Damage to structures of one file, on every mapping: the pool still mounts, the file is whole or its reads fail,
//! every other file is whole, no operation meanwhile adds damage, and a repair fixes it.
//!
//! Damage of data is in `data_checksum.rs`, random damage in `src/audit/repair/tests.rs` and the fuzz targets.

mod keys;
mod names;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common;
use crate::common::{fixed, image_of, make, pattern, write};
use ferrite_fs::{Engine, Mapping, MountOptions, PageDump, Superblock, fsck, identify, mkfs, repair};
use ferrite_map::Inum;
use ferrite_pm::{Recorder, Region};
use ferrite_vfs::{FileSystem, FsError, Ino, OpenMode, ROOT_INO, SYSTEM, XattrMode};

const PAGE: usize = 4096;
const POOL_BYTES: u64 = 8 << 20;
/// The files that damage is aimed at: with whole pages, with a log of several segments, with attributes.
const PLAIN: &str = "plain";
const LOGGED: &str = "logged";
const LABELLED: &str = "labelled";
const VALUE: &[u8] = b"a value";

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).merge_read_entries(0)
}

/// Words of a pool and what they become.
type Words = Vec<(usize, u64)>;

/// A file as it must be read.
struct Known {
    ino: Ino,
    content: Vec<u8>,
    pages: Vec<PageDump>,
}

struct Pool {
    image: Vec<u8>,
    superblock: Superblock,
    dir: Ino,
    files: BTreeMap<String, Known>,
}

/// The image of a pool after `work`.
fn image_after(image: &[u8], work: impl FnOnce(&Engine)) -> Vec<u8> {
    let recorder = Recorder::new(image.to_vec());
    let mut region = Region::from_image(image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    work(&engine);
    engine.unmount().unwrap();
    recorder.log().final_image()
}

fn open(engine: &Engine, ino: Ino) -> ferrite_vfs::Result<Arc<dyn ferrite_vfs::OpenFile>> {
    engine.open(SYSTEM, ino, common::widest_mode(engine))
}

impl Pool {
    fn new(mapping: Mapping) -> Pool {
        let blank = Region::anonymous(POOL_BYTES).unwrap();
        let options = fixed().mapping(mapping).inodes(255).rings(2);
        mkfs(&blank, &options).unwrap();
        let superblock = identify(&blank).unwrap();
        let (mut dir, mut files) = (0, BTreeMap::new());
        let image = image_after(&image_of(&blank), |engine| {
            dir = engine.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap().ino;
            let names = [
                ("small", 100),
                (PLAIN, 9 * PAGE + 100),
                (LOGGED, 2 * PAGE),
                (LABELLED, PAGE),
            ];
            let others = (0..20).map(|n| (format!("other-{n}"), n * 1500));
            for (name, len) in names
                .map(|(name, len)| (name.to_string(), len))
                .into_iter()
                .chain(others)
            {
                let ino = make(engine, dir, &name);
                let mut content = pattern(len, ino as u8);
                write(engine, ino, 0, &content);
                for part in 0..12 {
                    let is_logged = name == LOGGED || name == "other-7" || name == "other-8";
                    if is_logged {
                        let at = part * 301 + 7;
                        content[at..at + 200].fill(part as u8);
                        write(engine, ino, at as u64, &[part as u8; 200]);
                    }
                }
                let pages = Vec::new();
                files.insert(name, Known { ino, content, pages });
            }
            engine
                .setxattr(SYSTEM, files[LABELLED].ino, b"user.name", VALUE, XattrMode::Any)
                .unwrap();
            for known in files.values_mut() {
                known.pages = engine.dump(known.ino).unwrap();
            }
        });
        Pool {
            image,
            superblock,
            dir,
            files,
        }
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.image[at..at + 8].try_into().unwrap())
    }

    /// Where words of the pool, from `start` on, are `value`.
    fn places(&self, start: u64, end: u64, value: u64) -> Vec<usize> {
        (start as usize..end as usize)
            .step_by(8)
            .filter(|&at| self.word(at) == value)
            .collect()
    }

    fn inode(&self, name: &str) -> usize {
        self.superblock.inode_offset(Inum::new(self.files[name].ino as u32)) as usize
    }

    /// Where the word of a page is, whatever the mapping.
    fn page_word(&self, name: &str, page: usize) -> usize {
        let end = self.superblock.size_bytes - PAGE as u64;
        let places = self.places(self.superblock.map_offset, end, self.files[name].pages[page].word);
        assert_eq!(places.len(), 1, "{name}, page {page}");
        places[0]
    }

    /// The word that leads to all pages of a file, or to some: a key of a table, the root of a tree.
    fn key(&self, name: &str) -> usize {
        let ino = self.files[name].ino;
        let area = (self.superblock.map_offset, self.superblock.first_block * PAGE as u64);
        match self.superblock.mapping {
            Mapping::Hashfs | Mapping::Cuckoo => self.places(area.0, area.1, ino << 32 | 2)[0],
            Mapping::Leaf => self.places(area.0, area.1, ino << 32)[0],
            Mapping::Radix | Mapping::Extent => (area.0 + ino * 8) as usize,
        }
    }

    /// Where the directory has the entry of a file.
    fn entry(&self, name: &str) -> usize {
        let mut padded = [0; 8];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        let (ino, dir) = (self.files[name].ino as u32, self.dir as u32);
        let start = self.superblock.first_block * PAGE as u64;
        self.places(
            start,
            self.superblock.size_bytes - PAGE as u64,
            u64::from_le_bytes(padded),
        )
        .into_iter()
        .map(|at| at - 16)
        .find(|&at| self.word(at) as u32 == ino && self.word(at + 8) as u32 == dir)
        .unwrap()
    }

    /// The slot of the name table that leads there.
    fn name_slot(&self, name: &str) -> usize {
        let entry = self.entry(name) as u64;
        let target = (entry / PAGE as u64) | ((entry % PAGE as u64 / 8) << 32);
        let start = self.superblock.name_offset;
        (start as usize..self.superblock.map_offset as usize)
            .step_by(8)
            .find(|&at| self.word(at) << 23 >> 23 == target)
            .unwrap()
    }

    fn flipped(&self, at: usize, bits: u64) -> Words {
        vec![(at, self.word(at) ^ bits)]
    }

    fn damaged(&self, words: &Words) -> Vec<u8> {
        let mut image = self.image.clone();
        for &(at, value) in words {
            image[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        image
    }

    /// Reads every file in every way. Each result is right, or, for the victims, an error that names the inode. Returns
    /// the number of errors.
    fn survey(&self, engine: &Engine, victims: &[&str]) -> usize {
        let mut errors = 0;
        for (name, known) in &self.files {
            let is_victim = victims.contains(&name.as_str());
            let mut failed = |what: &str, error: FsError| {
                assert!(is_victim, "{name} was not hit: {what}: {error}");
                assert!(matches!(error, FsError::Damaged(_)), "{name}: {what}: {error}");
                errors += 1;
            };
            match engine.lookup(SYSTEM, self.dir, name.as_bytes()) {
                Ok(found) => assert_eq!(
                    (found.ino, found.size),
                    (known.ino, known.content.len() as u64),
                    "{name}"
                ),
                Err(error) => failed("lookup", error),
            }
            let file = match open(engine, known.ino) {
                Ok(file) => file,
                Err(error) => {
                    let place = format!("inode {}", known.ino);
                    assert!(error.to_string().contains(&place), "{place} is not named: {error}");
                    failed("open", error);
                    continue;
                }
            };
            for (start, page) in (0..).step_by(PAGE).zip(known.content.chunks(PAGE)) {
                for (from, len) in [(0, page.len()), (page.len() / 2, 1), (page.len() - 1, 1)] {
                    let mut found = vec![0; len];
                    match file.read_at(SYSTEM, (start + from) as u64, &mut found) {
                        Ok(count) => assert!(
                            count == len && found == page[from..from + len],
                            "{name}: wrong data at {}",
                            start + from
                        ),
                        Err(error) => {
                            let place = format!("inode {}, bytes {start} to ", known.ino);
                            assert!(error.to_string().contains(&place), "{place} is not named: {error}");
                            failed("read", error);
                        }
                    }
                }
            }
            if name == LABELLED {
                match engine.getxattr(SYSTEM, known.ino, b"user.name") {
                    Ok(value) => assert_eq!(value, VALUE),
                    Err(error) => failed("getxattr", error),
                }
            }
        }
        errors
    }
}

/// The findings of fsck with their counts; without numbers, since places and totals change as a pool is used.
fn findings(image: &[u8]) -> BTreeMap<String, usize> {
    let report = fsck(Region::from_image(image).unwrap(), &mut |_, _, _| {}).unwrap();
    let mut found = BTreeMap::new();
    for finding in report.findings {
        let what = finding.what.replace(|letter: char| letter.is_ascii_digit(), "");
        *found.entry(what).or_default() += 1;
    }
    found
}

/// The expected reaction to a kind of damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    /// The mount reports it, and changes nothing.
    ReadOnly,
    /// The mount reports it, and the pool can be used.
    Writable,
    /// Only an access to it notices.
    Later,
}

/// Work that touches none of the victims and takes most of the free blocks and inodes.
fn work_elsewhere(engine: &Engine, dir: Ino) {
    let mut made = Vec::new();
    for n in 0.. {
        let node = ferrite_vfs::NewNode {
            kind: ferrite_vfs::FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        let name = format!("new-{n}");
        let Ok(attr) = engine.mknod(SYSTEM, dir, name.as_bytes(), &node) else {
            break;
        };
        made.push(name);
        let file = open(engine, attr.ino).unwrap();
        if file.write_at(SYSTEM, 0, &[0xee; 10 * PAGE + 50]).is_err()
            || file.write_at(SYSTEM, 10, &[0xdd; 300]).is_err()
        {
            break;
        }
    }
    assert!(made.len() > 100, "only {} files", made.len());
    for name in made.iter().step_by(2) {
        engine.unlink(SYSTEM, dir, name.as_bytes()).unwrap();
    }
    engine.clean(1000).unwrap();
}

/// Repairs a pool, and mounts it: nothing is wrong with it any more.
fn repaired(image: &[u8]) -> Engine {
    let open = |image: &[u8]| Region::from_image(image).unwrap();
    let (report, rewrite) = repair(open(image), &mut |_, _, _| {}).unwrap();
    assert!(report.after.findings.is_empty(), "{:?}", report.after.findings);
    let recorder = Recorder::new(image.to_vec());
    let mut region = open(image);
    region.attach_recorder(Arc::clone(&recorder));
    rewrite.apply(&region).unwrap();
    let engine = Engine::mount(open(&recorder.log().final_image()), &quiet()).unwrap();
    assert!(
        engine.damage().is_empty() && !engine.is_read_only(),
        "{:?}",
        engine.damage()
    );
    engine
}

/// All checks of one damaged pool. Returns the number of errors that its victims gave.
fn live_with(pool: &Pool, image: &[u8], victims: &[&str], told: Told) -> usize {
    let before = findings(image);
    assert!(!before.is_empty(), "fsck finds it");
    let mut errors = 0;
    let after = image_after(image, |engine| {
        errors = pool.survey(engine, victims);
        let info = engine.info();
        assert_eq!(engine.damage().is_empty(), told == Told::Later, "{:?}", engine.damage());
        assert_eq!(info.damage, engine.damage());
        assert_eq!(engine.is_read_only(), told == Told::ReadOnly, "{:?}", engine.damage());
        assert!(!engine.scrub(None).unwrap().findings.is_empty(), "a scrub finds it");
        if told == Told::ReadOnly {
            let refused = engine.mkdir(SYSTEM, ROOT_INO, b"new", 0o755);
            assert!(matches!(refused, Err(FsError::ReadOnly)), "{refused:?}");
        } else {
            work_elsewhere(engine, ROOT_INO);
            pool.survey(engine, victims);
        }
    });
    let mut more = findings(&after);
    more.retain(|what, times| *times > before.get(what).copied().unwrap_or(0));
    assert!(more.is_empty(), "damage that was not there before: {more:?}");
    let engine = repaired(&after);
    for (name, known) in pool.files.iter().filter(|(name, _)| !victims.contains(&name.as_str())) {
        let ino = engine.lookup(SYSTEM, pool.dir, name.as_bytes()).unwrap().ino;
        let mut found = vec![0; known.content.len()];
        let count = engine
            .open(SYSTEM, ino, OpenMode::read_only())
            .unwrap()
            .read_at(SYSTEM, 0, &mut found)
            .unwrap();
        assert!(
            count == found.len() && found == known.content,
            "{name} after the repair"
        );
    }
    errors
}

/// Runs on all mappings; `damage` chooses the words.
fn on_every_mapping(victims: &[&str], told: Told, damage: impl Fn(&Pool) -> Words) {
    on_mappings(Mapping::ALL, victims, told, damage);
}

fn on_mappings(mappings: &[Mapping], victims: &[&str], told: Told, damage: impl Fn(&Pool) -> Words) {
    for &mapping in mappings {
        let pool = Pool::new(mapping);
        let errors = live_with(&pool, &pool.damaged(&damage(&pool)), victims, told);
        println!("{mapping}: {errors} errors");
        // The run of a page shows where it lies, even if its own entry is gone.
        assert!(errors > 0 || mapping == Mapping::Cuckoo, "{mapping}: the damage shows");
    }
}

#[test]
fn a_sound_pool_tells_of_no_damage() {
    for &mapping in Mapping::ALL {
        let pool = Pool::new(mapping);
        let after = image_after(&pool.image, |engine| {
            assert!(engine.damage().is_empty() && !engine.is_read_only());
            assert_eq!(pool.survey(engine, &[]), 0);
            work_elsewhere(engine, ROOT_INO);
        });
        common::check(&after);
    }
}

/// The trailer of an entry in the middle: its lengths, and its range alone.
#[test]
fn a_damaged_log_entry() {
    for bits in [0x0f00_0000, 0xff << 32, 0x10] {
        on_every_mapping(&[LOGGED], Told::ReadOnly, |pool| {
            let entries = &pool.files[LOGGED].pages[0].entries;
            pool.flipped((entries[entries.len() / 2].unit as usize + 1) * 64 - 16, bits)
        });
    }
}

#[test]
fn damaged_data_of_a_log_entry() {
    on_every_mapping(&[LOGGED], Told::ReadOnly, |pool| {
        pool.flipped((pool.files[LOGGED].pages[0].entries[1].unit as usize + 1) * 64 - 32, 1)
    });
}

/// The header of a segment: its signature, its page, the link to the segment before.
#[test]
fn a_damaged_log_segment() {
    for word in 1..4 {
        on_every_mapping(&[LOGGED], Told::ReadOnly, |pool| {
            pool.flipped(
                pool.files[LOGGED].pages[0].entries[0].segment as usize * 64 + word * 8,
                0x40,
            )
        });
    }
}

/// A page word that leads to a log that is not its own.
#[test]
fn a_page_word_with_a_wrong_log() {
    on_every_mapping(&[LOGGED], Told::ReadOnly, |pool| {
        pool.flipped(pool.page_word(LOGGED, 0), 0x0400 << 32)
    });
    on_every_mapping(&[LOGGED], Told::ReadOnly, |pool| {
        let log = pool.files["other-7"].pages[0].word >> 32 << 32;
        let word = pool.files[LOGGED].pages[0].word;
        vec![(pool.page_word(LOGGED, 0), word << 32 >> 32 | log)]
    });
}

/// A page word that leads past the end of the pool.
#[test]
fn a_page_word_with_an_impossible_block() {
    on_every_mapping(&[LOGGED], Told::ReadOnly, |pool| {
        pool.flipped(pool.page_word(LOGGED, 0), 0x7000_0000)
    });
}

/// A page word that leads to another file's page: both are errors, for one of them is wrong.
#[test]
fn a_page_word_with_anothers_block() {
    on_every_mapping(&[LOGGED, LABELLED], Told::ReadOnly, |pool| {
        let block = pool.files[LABELLED].pages[0].block;
        let word = pool.files[LOGGED].pages[0].word;
        vec![(pool.page_word(LOGGED, 0), word >> 32 << 32 | u64::from(block))]
    });
}

/// The first word of many consecutive pages, from which some mappings derive all of them: whatever else that hits, no
/// read is wrong.
#[test]
fn the_first_word_of_a_run() {
    for &mapping in Mapping::ALL {
        let pool = Pool::new(mapping);
        let all: Vec<&str> = pool.files.keys().map(String::as_str).collect();
        let at = pool.page_word(PLAIN, 0);
        for block in [pool.files[PLAIN].pages[1].block, pool.files["other-19"].pages[0].block] {
            let errors = live_with(
                &pool,
                &pool.damaged(&vec![(at, u64::from(block))]),
                &all,
                Told::ReadOnly,
            );
            assert!(errors > 0, "{mapping}: the damage shows");
        }
    }
}

/// A page that is gone from the mapping is no hole.
#[test]
fn a_page_word_that_was_cleared() {
    on_every_mapping(&[LOGGED], Told::ReadOnly, |pool| vec![(pool.page_word(LOGGED, 0), 0)]);
}

/// The owner in an inode: the file's blocks are known, so the pool can be used.
#[test]
fn a_damaged_inode() {
    for name in [PLAIN, LABELLED, "small"] {
        on_every_mapping(&[name], Told::Writable, |pool| {
            pool.flipped(pool.inode(name) + 48, 0x100)
        });
    }
}

/// An inode that looks free, or as if it never was used: no other inode gets its number or its pages.
#[test]
fn an_inode_that_looks_free() {
    on_every_mapping(&[LABELLED], Told::Writable, |pool| {
        let at = pool.inode(LABELLED) + 40;
        vec![(at, pool.word(at) >> 32 << 32)]
    });
    on_every_mapping(&[LABELLED], Told::Writable, |pool| {
        let at = pool.inode(LABELLED);
        (at..at + 64).step_by(8).map(|at| (at, 0)).collect()
    });
    on_every_mapping(&[LABELLED], Told::ReadOnly, |pool| {
        let at = pool.inode(LABELLED);
        (at..at + 256).step_by(8).map(|at| (at, 0)).collect()
    });
}

#[test]
fn damaged_attributes() {
    on_every_mapping(&[LABELLED], Told::Later, |pool| {
        let start = pool.superblock.first_block * PAGE as u64;
        let signature = u64::from(u32::from_le_bytes(*b"FxAt"));
        let at = (start..pool.superblock.size_bytes)
            .step_by(PAGE)
            .find(|&at| u64::from(pool.word(at as usize) as u32) == signature);
        pool.flipped(at.unwrap() as usize + 24, 2)
    });
}

/// A damaged inode's attributes seem to be where another file's log is: the log has its own checksums, so no other file
/// suffers.
#[test]
fn a_damaged_inode_that_names_a_log_as_its_attributes() {
    on_every_mapping(&[LABELLED], Told::Writable, |pool| {
        let at = pool.inode(LABELLED) + 80;
        let log = pool.files["other-8"].pages[0].entries[0].segment / 64;
        vec![(at, pool.word(at) >> 32 << 32 | log)]
    });
}

/// Several at once, in different files.
#[test]
fn damage_in_several_places() {
    on_every_mapping(&[LOGGED, PLAIN, "other-8"], Told::ReadOnly, |pool| {
        let mut words = pool.flipped(pool.files[LOGGED].pages[0].entries[0].segment as usize * 64 + 8, 1);
        words.extend(pool.flipped(pool.inode("other-8") + 48, 1));
        words.push((pool.key(PLAIN), 0));
        words
    });
}

/// One of two copies of a number that all of the table hangs on.
#[test]
fn one_copy_of_the_number_of_active_lines() {
    let pool = Pool::new(Mapping::Leaf);
    for copy in [0, 64] {
        for value in [0, u64::MAX] {
            let image = pool.damaged(&vec![(pool.superblock.map_offset as usize + copy, value)]);
            let engine = common::mount(&image);
            assert_eq!(pool.survey(&engine, &[]), 0, "copy {copy}, {value:#x}");
        }
    }
}

/// Without its root directory a pool cannot be used; the error names the remedy.
#[test]
fn a_damaged_root_directory_is_refused() {
    let pool = Pool::new(Mapping::default());
    let root = pool.superblock.inode_offset(Inum::new(ROOT_INO as u32)) as usize;
    let image = pool.damaged(&pool.flipped(root + 48, 1));
    let refused = Engine::mount(Region::from_image(&image).unwrap(), &quiet());
    let error = refused.err().expect("refused").to_string();
    assert!(error.contains("root directory") && error.contains("fsck"), "{error}");
}
