//! Checksums of file data (`mkfs --data-checksum`): damage is an error that names inode and offset, never wrong data;
//! it is not copied into blocks that verify; data verifies whichever way it was written.

use std::sync::Arc;

use crate::common;
use crate::common::{fixed, image_of, make, mount, pattern};
use ferrite_fs::{Engine, EngineError, Mapping, MkfsOptions, MountOptions, PageDump, fsck, identify, mkfs, repair};
use ferrite_map::BlockNo;
use ferrite_pm::{Recorder, Region};
use ferrite_vfs::{FallocateMode, FileBytes, FileSystem, FsError, Ino, OpenFile, OpenMode, ROOT_INO, SYSTEM, SetAttr};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

const PAGE: usize = 4096;
const POOL_BYTES: u64 = 4 << 20;

fn options(data_checksum: bool) -> MkfsOptions {
    fixed().inodes(127).rings(2).data_checksum(data_checksum)
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).merge_read_entries(0)
}

/// A pool with some files, as bytes on the medium, and the places of its structures.
struct Pool {
    image: Vec<u8>,
    /// Two files of whole pages, and their content.
    files: Vec<(Ino, Vec<u8>, Vec<PageDump>)>,
    /// A file of one page with a log.
    logged: (Ino, Vec<u8>, Vec<PageDump>),
    /// A link whose target takes a block.
    link: Ino,
}

const TARGET: [u8; 3000] = [b'x'; 3000];

impl Pool {
    fn new(data_checksum: bool) -> Pool {
        Pool::made_with(&options(data_checksum))
    }

    /// Where each page has a word of its own, in a table, and no bit of the logged page's word leads to an older entry
    /// of its log, which could not be distinguished from the newest.
    fn with_words() -> Pool {
        Pool::made_with(&options(true).mapping(Mapping::Hashfs))
    }

    fn made_with(options: &MkfsOptions) -> Pool {
        let blank = Region::anonymous(POOL_BYTES).unwrap();
        mkfs(&blank, options).unwrap();
        let image = image_of(&blank);
        let recorder = Recorder::new(image.clone());
        let mut region = Region::from_image(&image).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        let engine = Engine::mount(region, &quiet()).unwrap();
        let file = |name: &str, content: &[u8]| {
            let ino = make(&engine, ROOT_INO, name);
            open(&engine, ino).write_at(SYSTEM, 0, content).unwrap();
            ino
        };
        let contents = [pattern(4 * PAGE, 1), pattern(2 * PAGE + 700, 77)];
        let inos = [file("a", &contents[0]), file("b", &contents[1])];
        let mut content = pattern(PAGE, 33);
        let ino = file("logged", &content);
        for n in 0..6 {
            let at = 100 * n + 30;
            open(&engine, ino).write_at(SYSTEM, at as u64, &[n as u8; 200]).unwrap();
            content[at..at + 200].fill(n as u8);
        }
        let link = engine.symlink(SYSTEM, ROOT_INO, b"link", &TARGET).unwrap().ino;
        let dump = |ino| engine.dump(ino).unwrap();
        let files = inos.into_iter().zip(contents);
        let files = files.map(|(ino, content)| (ino, content, dump(ino))).collect();
        let logged = (ino, content, dump(ino));
        engine.unmount().unwrap();
        Pool {
            image: recorder.log().final_image(),
            files,
            logged,
            link,
        }
    }

    fn damaged(&self, damage: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut image = self.image.clone();
        damage(&mut image);
        image
    }

    /// Offset of the word of a block's checksum.
    fn sum_offset(&self, block: u32) -> usize {
        let superblock = identify(&Region::from_image(&self.image).unwrap()).unwrap();
        superblock.sum_word_offset(BlockNo::new(block)).unwrap() as usize
    }

    /// Where the mapping keeps the word of a page.
    fn word_offset(&self, page: &PageDump) -> usize {
        let superblock = identify(&Region::from_image(&self.image).unwrap()).unwrap();
        let area = superblock.map_offset as usize..superblock.sum_offset as usize;
        let found: Vec<_> = area
            .step_by(8)
            .filter(|&at| word_at(&self.image, at) == page.word)
            .collect();
        assert_eq!(found.len(), 1, "one word of the mapping is that page's");
        found[0]
    }

    /// Reads everything in every way: each result is right or an error that names its place. Returns the pages that
    /// cannot be read.
    fn survey(&self, engine: &Engine) -> Vec<(Ino, usize)> {
        let mut lost = Vec::new();
        for (ino, content, _) in self.files.iter().chain([&self.logged]) {
            let file = open(engine, *ino);
            for start in (0..content.len()).step_by(PAGE) {
                let len = PAGE.min(content.len() - start);
                let named = |error: FsError| {
                    assert!(matches!(error, FsError::Damaged(_)), "{error}");
                    let text = error.to_string();
                    let place = format!("inode {ino}, bytes {start} to ");
                    assert!(text.contains(&place), "{place:?} is not named: {text}");
                };
                let mut found = vec![0; len];
                match file.read_at(SYSTEM, start as u64, &mut found) {
                    Ok(count) => assert!(
                        count == len && found == content[start..start + len],
                        "wrong data in page {} of inode {ino}",
                        start / PAGE
                    ),
                    Err(error) => {
                        named(error);
                        lost.push((*ino, start / PAGE));
                    }
                }
                for (from, len) in [(0, 1), (17, 100), (len - 1, 1), (200, 400)] {
                    let mut part = vec![0; len];
                    match file.read_at(SYSTEM, (start + from) as u64, &mut part) {
                        Ok(_) => assert_eq!(
                            part,
                            content[start + from..start + from + len],
                            "inode {ino}, at {start}"
                        ),
                        Err(error) => named(error),
                    }
                }
            }
            let mut whole = vec![0; content.len()];
            match file.read_at(SYSTEM, 0, &mut whole) {
                Ok(_) => assert!(whole == *content, "inode {ino}"),
                Err(error) => assert!(matches!(error, FsError::Damaged(_)), "{error}"),
            }
        }
        match engine.readlink(SYSTEM, self.link) {
            Ok(target) => assert_eq!(target, TARGET),
            Err(error) => {
                assert!(
                    error.to_string().contains(&format!("inode {}, bytes 0", self.link)),
                    "{error}"
                );
                lost.push((self.link, 0));
            }
        }
        lost
    }
}

fn word_at(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
}

fn swap_words(image: &mut [u8], a: usize, b: usize) {
    for byte in 0..8 {
        image.swap(a + byte, b + byte);
    }
}

fn open(engine: &Engine, ino: Ino) -> Arc<dyn OpenFile> {
    engine.open(SYSTEM, ino, common::widest_mode(engine)).unwrap()
}

fn truncate(engine: &Engine, ino: Ino, size: u64) -> ferrite_vfs::Result<()> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, ino, &set).map(drop)
}

#[test]
fn a_sound_pool_reads_and_scrubs() {
    let pool = Pool::new(true);
    let engine = mount(&pool.image);
    assert_eq!(pool.survey(&engine), []);
    let report = engine.scrub(None).unwrap();
    assert_eq!((report.findings.len(), report.pages), (0, 4 + 3 + 1 + 1), "{report:?}");
    assert!(engine.info().data_checksum);
}

/// A page that the mapping has in the place of a hole of its file: its checksum identifies its old page, so mount, fsck
/// and scrub report it, its old place is no hole, and a repair restores it.
#[test]
fn a_page_in_the_place_of_a_hole_is_told() {
    let content = pattern(PAGE, 9);
    for mapping in [Mapping::Hashfs, Mapping::Radix] {
        let blank = Region::anonymous(POOL_BYTES).unwrap();
        let options = options(true).mapping(mapping);
        mkfs(&blank, &options).unwrap();
        let superblock = identify(&blank).unwrap();
        let image = image_of(&blank);
        let recorder = Recorder::new(image.clone());
        let mut region = Region::from_image(&image).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        let engine = Engine::mount(region, &quiet()).unwrap();
        let ino = make(&engine, ROOT_INO, "sparse");
        for page in [2, 400] {
            open(&engine, ino)
                .write_at(SYSTEM, page * PAGE as u64, &content)
                .unwrap();
        }
        let word = engine.dump(ino).unwrap()[0].word;
        engine.unmount().unwrap();
        let image = recorder.log().final_image();
        let find = |value: u64| {
            let places = (superblock.map_offset as usize..image.len()).step_by(8);
            let found: Vec<_> = places.filter(|&at| word_at(&image, at) == value).collect();
            assert_eq!(found.len(), 1, "{mapping}: {value:#x}");
            found[0]
        };
        for bit in 2..8 {
            let mut damaged = image.clone();
            let place = 2 ^ 1 << bit;
            if mapping == Mapping::Hashfs {
                let key = find(ino << 32 | 2);
                damaged[key..key + 8].copy_from_slice(&(ino << 32 | place).to_le_bytes());
            } else {
                let at = find(word);
                swap_words(&mut damaged, at, at + (place as usize - 2) * 8);
            }
            let open_image = |image: &[u8]| Region::from_image(image).unwrap();
            let report = fsck(open_image(&damaged), &mut |_, _, _| {}).unwrap();
            assert!(!report.findings.is_empty(), "{mapping}, page {place}: fsck");
            let engine = mount(&damaged);
            assert!(
                !engine.damage().is_empty() && engine.is_read_only(),
                "{mapping}, page {place}"
            );
            assert!(
                !engine.scrub(None).unwrap().findings.is_empty(),
                "{mapping}, page {place}: scrub"
            );
            for page in [2, place] {
                let read = open(&engine, ino).read_at(SYSTEM, page * PAGE as u64, &mut [0; PAGE]);
                assert!(
                    matches!(read, Err(FsError::Damaged(_))),
                    "{mapping}, page {page} of {place}: {read:?}"
                );
            }
            let (report, rewrite) = repair(open_image(&damaged), &mut |_, _, _| {}).unwrap();
            assert!(report.after.findings.is_empty(), "{:?}", report.after.findings);
            let region = open_image(&damaged);
            rewrite.apply(&region).unwrap();
            let engine = Engine::mount(region, &quiet()).unwrap();
            let ino = engine.lookup(SYSTEM, ROOT_INO, b"sparse").unwrap().ino;
            for (page, expected) in [(2, &content[..]), (place, &[0; PAGE]), (400, &content)] {
                let mut found = [1; PAGE];
                open(&engine, ino)
                    .read_at(SYSTEM, page * PAGE as u64, &mut found)
                    .unwrap();
                assert!(found == expected, "{mapping}: page {page} after the repair of {place}");
            }
        }
    }
}

/// One bit of a page, of a link's target, or of their checksums.
#[test]
fn a_flipped_bit_is_an_error_at_its_place() {
    let pool = Pool::new(true);
    let (ino, _, pages) = &pool.files[0];
    let block = pages[2].block as usize * PAGE;
    let sum = pool.sum_offset(pages[2].block);
    let bits = (0..PAGE * 8).step_by(509).map(|bit| (block, bit));
    for (at, bit) in bits.chain((0..64).map(|bit| (sum, bit))) {
        let image = pool.damaged(|image| image[at + bit / 8] ^= 1 << (bit % 8));
        let engine = mount(&image);
        assert_eq!(pool.survey(&engine), [(*ino, 2)], "bit {bit} at {at}");
        let report = engine.scrub(None).unwrap();
        let place = format!("inode {ino}, bytes 8192 to 12287");
        assert!(
            report.findings.len() == 1 && report.findings[0].contains(&place),
            "{report:?}"
        );
    }
    let engine = mount(&pool.image);
    let target = engine.dump(pool.link).unwrap()[0].block as usize * PAGE;
    let image = pool.damaged(|image| image[target + 1000] ^= 1);
    let engine = mount(&image);
    assert_eq!(pool.survey(&engine), [(pool.link, 0)]);
    assert_eq!(engine.scrub(None).unwrap().findings.len(), 1);
}

/// A mapping whose words lead to each other's blocks: fsck finds nothing, for every block has one owner.
#[test]
fn pages_that_changed_places_are_errors() {
    let pool = Pool::with_words();
    let (a, b) = (&pool.files[0], &pool.files[1]);
    for ((one, first), (other, second)) in [((a, 0), (a, 3)), ((a, 1), (b, 1)), ((a, 2), (b, 0))] {
        let places = (pool.word_offset(&one.2[first]), pool.word_offset(&other.2[second]));
        let image = pool.damaged(|image| swap_words(image, places.0, places.1));
        common::check(&image);
        let engine = mount(&image);
        let mut lost = pool.survey(&engine);
        lost.sort_unstable();
        assert_eq!(lost, [(one.0, first), (other.0, second)]);
        let report = engine.scrub(None).unwrap();
        assert!(report.findings.len() >= 2, "{report:?}");
    }
    // Without the feature the damage is undetectable.
    let plain = Pool::new(false);
    assert!(!mount(&plain.image).info().data_checksum);
}

/// Each bit of a page word leads nowhere, to another's block, or to no log entry of the page.
#[test]
fn a_flipped_bit_of_a_page_word_gives_no_wrong_data() {
    let pool = Pool::with_words();
    let mut errors = 0;
    for page in [&pool.files[0].2[1], &pool.logged.2[0]] {
        assert!(
            !((page.word >> 32) as u32).is_power_of_two(),
            "no single bit hides the log"
        );
        let at = pool.word_offset(page);
        for bit in 0..64 {
            // An earlier entry of the log is an older state of the page, which nothing tells from the newest
            // (docs/crash-consistency.md, "Damage").
            let log = (page.word ^ 1 << bit) >> 32;
            if bit >= 32 && page.entries.iter().any(|entry| entry.unit == log) {
                continue;
            }
            let image = pool.damaged(|image| image[at + bit / 8] ^= 1 << (bit % 8));
            match Engine::mount(Region::from_image(&image).unwrap(), &quiet()) {
                Err(_) => errors += 1,
                Ok(engine) => errors += pool.survey(&engine).len(),
            }
        }
    }
    assert!(errors >= 100, "{errors}");
}

/// Each bit of a log: it is right or an error, although a damaged trailer may claim another range than is read.
#[test]
fn a_flipped_bit_of_a_log_gives_no_wrong_data() {
    let pool = Pool::new(true);
    let entries = &pool.logged.2[0].entries;
    assert!(entries.len() >= 6);
    let mut lost = 0;
    let segments: std::collections::BTreeSet<_> = entries.iter().map(|entry| entry.segment).collect();
    for segment in segments {
        let newest = entries
            .iter()
            .filter(|entry| entry.segment == segment)
            .map(|entry| entry.unit)
            .max();
        let bits = segment * 64 * 8..(newest.unwrap() + 1) * 64 * 8;
        for bit in bits.step_by(3) {
            let image = pool.damaged(|image| image[bit as usize / 8] ^= 1 << (bit % 8));
            if let Ok(engine) = Engine::mount(Region::from_image(&image).unwrap(), &quiet()) {
                lost += pool.survey(&engine).len();
            } else {
                lost += 1;
            }
        }
    }
    assert!(lost > 1000, "{lost}");
}

/// An operation that copies part of a damaged page fails, and leaves it as damaged as before; one that needs nothing of
/// it heals it.
#[test]
fn damage_is_not_copied_and_whole_pages_heal_it() {
    let pool = Pool::new(true);
    let (ino, content, pages) = &pool.files[0];
    let block = pages[2].block as usize * PAGE;
    let image = pool.damaged(|image| image[block + 3000] ^= 4);
    let start = 2 * PAGE as u64;
    let page = FileBytes {
        offset: start,
        len_bytes: PAGE as u64,
    };
    let try_all = |options: &MountOptions| {
        let engine = Engine::mount(Region::from_image(&image).unwrap(), options).unwrap();
        let file = open(&engine, *ino);
        engine.clean(10).unwrap();
        // Too long for a log.
        let long = file.write_at(SYSTEM, start + 10, &[1; 4000]);
        assert!(
            matches!(&long, Err(FsError::Damaged(at)) if at.ino == Some(*ino) && at.bytes == Some(page)),
            "{long:?}"
        );
        if options.cow_only {
            assert!(matches!(
                file.write_at(SYSTEM, start + 10, b"short"),
                Err(FsError::Damaged(_))
            ));
            assert!(matches!(truncate(&engine, *ino, start + 100), Err(FsError::Damaged(_))));
            let punched = file.fallocate(SYSTEM, FallocateMode::PunchHole, start + 100, 200);
            assert!(matches!(punched, Err(FsError::Damaged(_))), "{punched:?}");
        } else {
            for n in 0..40 {
                file.write_at(SYSTEM, start + 10 + n, b"short").unwrap();
            }
            assert_eq!(engine.clean(10).unwrap(), 0, "a merge of a damaged page");
            let other = open(&engine, pool.files[1].0);
            other.write_at(SYSTEM, 5, b"sound").unwrap();
            assert_eq!(engine.clean(10).unwrap(), 1, "and the others are merged");
        }
        let mut page = vec![0; PAGE];
        assert!(
            matches!(file.read_at(SYSTEM, start, &mut page), Err(FsError::Damaged(_))),
            "still damaged"
        );
        assert_eq!(engine.scrub(None).unwrap().findings.len(), 1);
        (engine, file)
    };
    for options in [quiet(), quiet().cow_only(true)] {
        let (engine, file) = try_all(&options);
        file.write_at(SYSTEM, start, &content[start as usize..][..PAGE])
            .unwrap();
        let mut found = vec![0; content.len()];
        file.read_at(SYSTEM, 0, &mut found).unwrap();
        assert!(found == *content, "a whole page heals");
        let (engine2, file) = try_all(&options);
        file.fallocate(SYSTEM, FallocateMode::PunchHole, start, PAGE as u64)
            .unwrap();
        let (engine3, _) = try_all(&options);
        truncate(&engine3, *ino, start).unwrap();
        let (engine4, file) = try_all(&options);
        drop(file);
        engine4.unlink(SYSTEM, ROOT_INO, b"a").unwrap();
        for engine in [engine, engine2, engine3, engine4] {
            assert_eq!(engine.scrub(None).unwrap().findings, [""; 0]);
        }
    }
}

/// A read of a range that the log covers needs nothing of the block.
#[test]
fn a_page_that_its_log_covers_is_read_without_its_block() {
    let pool = Pool::new(true);
    let (ino, _, pages) = &pool.files[0];
    let block = pages[1].block as usize * PAGE;
    let image = pool.damaged(|image| image[block] ^= 1);
    let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
    let file = open(&engine, *ino);
    engine.clean(10).unwrap();
    let new = pattern(PAGE, 99);
    let mut at = 0;
    // The longest log there is: a longer one would be copied, with the block.
    for len in [1500, 2560, 36] {
        file.write_at(SYSTEM, (PAGE + at) as u64, &new[at..at + len]).unwrap();
        at += len;
    }
    let mut found = vec![0; PAGE];
    file.read_at(SYSTEM, PAGE as u64, &mut found).unwrap();
    assert!(found == new);
    assert_eq!(engine.clean(10).unwrap(), 1);
    file.read_at(SYSTEM, PAGE as u64, &mut found).unwrap();
    assert!(found == new);
    assert_eq!(engine.scrub(None).unwrap().findings, [""; 0]);
}

/// As `docs/mounting.md` states for pools without the feature: reads return damaged data.
#[test]
fn without_checksums_damaged_data_is_not_noticed() {
    let pool = Pool::new(false);
    let (ino, content, pages) = &pool.files[0];
    let image = pool.damaged(|image| image[pages[2].block as usize * PAGE] ^= 1);
    let engine = mount(&image);
    let mut page = vec![0; PAGE];
    open(&engine, *ino).read_at(SYSTEM, 2 * PAGE as u64, &mut page).unwrap();
    assert_eq!(page[0], content[2 * PAGE] ^ 1);
    let report = engine.scrub(None).unwrap();
    assert_eq!((report.findings.len(), report.pages), (0, 0));
}

/// A pool with a feature that this program may read but not write.
#[test]
fn unknown_read_only_features_refuse_writing() {
    let pool = Pool::new(true);
    let region = Region::from_image(&pool.image).unwrap();
    let mut superblock = identify(&region).unwrap();
    superblock.features_ro_compat |= 1 << 5;
    let image = pool.damaged(|image| {
        for at in [0, superblock.second_copy_offset() as usize] {
            image[at..at + PAGE].copy_from_slice(&superblock.encode());
        }
    });
    let refused = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).map(drop);
    assert!(
        matches!(refused, Err(EngineError::ReadOnlyFeatures(0x20))),
        "{refused:?}"
    );
    let options = quiet().read_only(true);
    let engine = Engine::mount(Region::from_image(&image).unwrap(), &options).unwrap();
    let mut found = vec![0; 4 * PAGE];
    let file = engine.open(SYSTEM, pool.files[0].0, OpenMode::read_only()).unwrap();
    file.read_at(SYSTEM, 0, &mut found).unwrap();
    assert!(found == pool.files[0].1);
}

/// One file and its expected content, changed in all ways.
struct Model {
    ino: Ino,
    content: Vec<u8>,
}

impl Model {
    fn step(&mut self, engine: &Engine, rng: &mut StdRng) {
        let file = open(engine, self.ino);
        let most = 300_000;
        let at = rng.random_range(0..most);
        let len = match rng.random_range(0..8) {
            0..=2 => rng.random_range(1..200),
            3 => rng.random_range(200..3000),
            4 => rng.random_range(3000..9000),
            5 => rng.random_range(9000..200_000),
            _ => PAGE * rng.random_range(1..20),
        };
        let at = if rng.random_bool(0.4) { at / PAGE * PAGE } else { at };
        let end = at + len;
        match rng.random_range(0..20) {
            0 => {
                truncate(engine, self.ino, at as u64).unwrap();
                self.content.resize(at, 0);
            }
            1 | 2 => {
                file.fallocate(SYSTEM, FallocateMode::PunchHole, at as u64, len as u64)
                    .unwrap();
                let len = self.content.len();
                self.content[at.min(len)..end.min(len)].fill(0);
            }
            3 | 4 => {
                file.fallocate(
                    SYSTEM,
                    FallocateMode::ZeroRange { keep_size: false },
                    at as u64,
                    len as u64,
                )
                .unwrap();
                self.content.resize(self.content.len().max(end), 0);
                self.content[at..end].fill(0);
            }
            5 => {
                file.fallocate(
                    SYSTEM,
                    FallocateMode::Allocate { keep_size: true },
                    at as u64,
                    len as u64,
                )
                .unwrap();
            }
            6 => {
                engine.clean(rng.random_range(1..20)).unwrap();
            }
            7 | 8 => {
                let data = pattern(len % 500 + 1, rng.next_u32() as u8);
                file.append(SYSTEM, &data).unwrap();
                self.content.extend(&data);
            }
            _ => {
                let data = pattern(len, rng.next_u32() as u8);
                assert_eq!(file.write_at(SYSTEM, at as u64, &data).unwrap(), len);
                self.content.resize(self.content.len().max(end), 0);
                self.content[at..end].copy_from_slice(&data);
            }
        }
    }

    fn check(&self, engine: &Engine) {
        let mut found = vec![0; self.content.len() + 1];
        assert_eq!(
            open(engine, self.ino).read_at(SYSTEM, 0, &mut found).unwrap(),
            self.content.len()
        );
        assert!(found[..self.content.len()] == self.content);
        let report = engine.scrub(None).unwrap();
        assert_eq!(report.findings, [""; 0]);
    }
}

/// Writes of all sizes, appends, logs, merges, truncates, punches, zeroed and reserved ranges, and remounts.
#[test]
fn everything_that_was_written_verifies() {
    let seed = std::env::var("FERRITE_SEED").map_or_else(|_| rand::rng().next_u64(), |seed| seed.parse().unwrap());
    eprintln!("FERRITE_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let rounds = if std::env::var_os("FERRITE_SOAK").is_some() {
        60
    } else {
        2 * Mapping::ALL.len()
    };
    for (round, &mapping) in (0..rounds as u64).zip(Mapping::ALL.iter().cycle()) {
        let mut rng = StdRng::seed_from_u64(seed ^ round);
        let path = dir.path().join(format!("pool{round}"));
        let region = Region::create(&path, 16 << 20).unwrap();
        let pool = options(true).mapping(mapping);
        mkfs(&region, &pool).unwrap();
        drop(region);
        let options = MountOptions::default()
            .cleaner(round % 2 == 0)
            .cow_only(round % 4 == 3)
            .forward_scan(round % 3 == 2)
            .merge_read_entries(5)
            // On an ordinary file, where records carry checksums of data.
            .process_durability(true);
        let mount = || {
            let region = Region::open(&path, ferrite_pm::Access::ReadWrite).unwrap();
            Engine::mount(region, &options).unwrap()
        };
        let engine = mount();
        let mut model = Model {
            ino: make(&engine, ROOT_INO, "file"),
            content: Vec::new(),
        };
        engine.unmount().unwrap();
        drop(engine);
        for _ in 0..3 {
            let engine = mount();
            model.check(&engine);
            for _ in 0..150 {
                model.step(&engine, &mut rng);
            }
            model.check(&engine);
            if rng.random_bool(0.5) {
                engine.unmount().unwrap();
            }
        }
        common::check(&std::fs::read(&path).unwrap());
    }
}

/// The longest writes there are, in the smallest rings: their records must fit, wherever the last one ended.
#[test]
fn the_longest_records_fit_the_smallest_rings() {
    for &mapping in Mapping::ALL {
        println!("{mapping}");
        longest_records(mapping);
    }
}

fn longest_records(mapping: Mapping) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let region = Region::create(&path, 24 << 20).unwrap();
    let pool = options(true).mapping(mapping);
    mkfs(&region, &pool).unwrap();
    drop(region);
    let region = Region::open(&path, ferrite_pm::Access::ReadWrite).unwrap();
    let options = quiet().process_durability(true);
    let engine = Engine::mount(region, &options).unwrap();
    let file = open(&engine, make(&engine, ROOT_INO, "file"));
    let data = pattern(2 << 20, 5);
    let shift = open(&engine, make(&engine, ROOT_INO, "shift"));
    shift.write_at(SYSTEM, 0, &data[..PAGE]).unwrap();
    for n in 0..100u64 {
        // A few lines more than last time, so that in the end records have started everywhere.
        for m in 0..n {
            shift.write_at(SYSTEM, m % 64 * 60, &m.to_le_bytes()).unwrap();
        }
        let at = n % 2 * 1001;
        truncate(&engine, file.ino(), 0).unwrap();
        file.write_at(SYSTEM, at, &data).unwrap();
        if n % 50 == 0 {
            let mut found = vec![0; data.len()];
            file.read_at(SYSTEM, at, &mut found).unwrap();
            assert!(found == data, "write {n}");
        }
    }
    assert_eq!(engine.scrub(None).unwrap().findings, [""; 0]);
}
