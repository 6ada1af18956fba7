//! Clones of ranges: files that share blocks take no space, never see each other's changes, and leave nothing behind;
//! on every mapping, with and without checksums of data, and over remounts. Crashes: `whole.rs`, the explorer.

use std::sync::Arc;

use crate::common::bound::{again, fallocate, options, pool, quiet, read, truncate};
use crate::common::remote::{Checked, WRITABLE};
use crate::common::{check, make, pattern, write};
use ferrite_fs::{Engine, Mapping, identify};
use ferrite_pm::Region;
use ferrite_vfs::regions::{Adapter, Regions};
use ferrite_vfs::{
    BadArgument, CloneRange, FallocateMode, FileSystem, FsError, Ino, OpenFile, OpenMode, ROOT_INO, Result, SYSTEM,
    Unsupported, Written, copy_range,
};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

const PAGE: u64 = 4096;
const ALL: u64 = 1 << 40;

fn open(engine: &Engine, ino: Ino) -> Arc<dyn OpenFile> {
    engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap()
}

/// Clones `len` bytes of a file from `from` on to `to` of another.
fn try_clone(engine: &Engine, (source, from): (Ino, u64), (ino, to): (Ino, u64), len: u64) -> Result<Written> {
    let source = open(engine, source);
    let range = CloneRange {
        source: source.id(),
        source_offset: from,
        offset: to,
        len_bytes: len,
    };
    open(engine, ino).clone_range(SYSTEM, &range)
}

fn clone(engine: &Engine, source: Ino, ino: Ino) {
    let size = engine.getattr(SYSTEM, source).unwrap().size;
    let cloned = try_clone(engine, (source, 0), (ino, 0), ALL).unwrap();
    assert_eq!(cloned, Written::new(0, size as usize));
}

fn free(engine: &Engine) -> u64 {
    engine.statfs(SYSTEM).unwrap().blocks_free
}

fn kinds() -> impl Iterator<Item = (Mapping, bool)> {
    Mapping::ALL
        .iter()
        .flat_map(|&mapping| [(mapping, false), (mapping, true)])
}

#[test]
fn a_clone_takes_no_space_and_keeps_its_content() {
    for (mapping, sums) in kinds() {
        let (engine, recorder) = pool(&options(mapping, sums));
        let content = pattern(100 * PAGE as usize + 300, 1);
        let (source, copy) = (make(&engine, ROOT_INO, "source"), make(&engine, ROOT_INO, "copy"));
        write(&engine, source, 0, &content);
        let before = free(&engine);
        clone(&engine, source, copy);
        // Trees need nodes for the pages.
        assert!(before - free(&engine) <= 4, "{mapping}: a clone takes space");
        assert_eq!(engine.info().blocks_saved, 101);
        let (engine, recorder) = again(engine, &recorder);
        assert_eq!(engine.info().blocks_saved, 101, "{mapping}: counted anew");
        // Whole pages, parts of pages, the end, holes, zeros.
        let mut changed = content.clone();
        let mut change = |offset: usize, data: &[u8]| {
            write(&engine, source, offset as u64, data);
            changed[offset..offset + data.len()].copy_from_slice(data);
        };
        change(0, &pattern(8192, 2));
        change(5 * 4096 + 100, &pattern(50, 3));
        change(7 * 4096 - 10, &pattern(5000, 4));
        let mut zero = |mode, from: usize, to: usize| {
            fallocate(&engine, source, mode, from as u64, (to - from) as u64);
            changed[from..to].fill(0);
        };
        zero(FallocateMode::PunchHole, 20_000 * 4, 30_000 * 4 + 50);
        zero(FallocateMode::ZeroRange { keep_size: true }, 200_000, 300_001);
        write(&engine, source, 250_000, &pattern(40_000, 5));
        changed[250_000..290_000].copy_from_slice(&pattern(40_000, 5));
        truncate(&engine, source, 350_000);
        changed.truncate(350_000);
        assert_eq!(read(&engine, source), changed, "{mapping}");
        assert_eq!(read(&engine, copy), content, "{mapping}: the clone sees a change");
        let (engine, recorder) = again(engine, &recorder);
        assert_eq!(read(&engine, copy), content, "{mapping}");
        engine.unlink(SYSTEM, ROOT_INO, b"source").unwrap();
        assert_eq!(read(&engine, copy), content, "{mapping}");
        engine.unlink(SYSTEM, ROOT_INO, b"copy").unwrap();
        // With their names, the directory's block goes, and with their pages the nodes of trees.
        let freed = free(&engine) - before;
        assert!((102..=104).contains(&freed), "{mapping}: {freed} blocks are free again");
        assert_eq!(engine.info().blocks_saved, 0);
        again(engine, &recorder);
    }
}

/// Page logs, holes, reserved pages, and content in inodes.
#[test]
fn pages_of_all_kinds_are_cloned() {
    for (mapping, sums) in kinds() {
        let (engine, recorder) = pool(&options(mapping, sums));
        let source = make(&engine, ROOT_INO, "source");
        write(&engine, source, 0, &pattern(20 * 4096, 1));
        for page in 0..20 {
            write(&engine, source, page * PAGE + 7, &[page as u8; 100]);
        }
        fallocate(&engine, source, FallocateMode::PunchHole, 3 * PAGE, 2 * PAGE);
        fallocate(
            &engine,
            source,
            FallocateMode::ZeroRange { keep_size: true },
            8 * PAGE,
            2 * PAGE,
        );
        fallocate(
            &engine,
            source,
            FallocateMode::Allocate { keep_size: true },
            30 * PAGE,
            5 * PAGE,
        );
        let content = read(&engine, source);
        let copy = make(&engine, ROOT_INO, "copy");
        // The old content goes.
        write(&engine, copy, 0, &pattern(20 * 4096, 9));
        write(&engine, copy, 4 * PAGE + 5, &[1; 10]);
        clone(&engine, source, copy);
        assert_eq!(read(&engine, copy), content, "{mapping}");
        assert_eq!(open(&engine, copy).seek_hole(SYSTEM, 0), Ok(3 * PAGE), "{mapping}");
        assert_eq!(engine.getattr(SYSTEM, copy).unwrap().blocks, 16 * 8, "{mapping}");
        let small = make(&engine, ROOT_INO, "small");
        write(&engine, small, 0, b"a few bytes");
        let other = make(&engine, ROOT_INO, "other");
        clone(&engine, small, other);
        assert_eq!(read(&engine, other), b"a few bytes", "{mapping}");
        // Of a file that is in its inode, to one that is, and to one behind its end.
        clone(&engine, small, other);
        assert_eq!(
            try_clone(&engine, (other, 0), (small, 8192), ALL),
            Ok(Written::new(8192, 11))
        );
        let mut content = b"a few bytes".to_vec();
        content.resize(8192, 0);
        content.extend_from_slice(b"a few bytes");
        assert_eq!(read(&engine, small), content, "{mapping}");
        let tree = [source, copy, small, other].map(|ino| read(&engine, ino));
        let (engine, _) = again(engine, &recorder);
        assert_eq!(
            [source, copy, small, other].map(|ino| read(&engine, ino)),
            tree,
            "{mapping}"
        );
    }
}

#[test]
fn ranges_are_refused_as_the_contract_says() {
    let (engine, _) = pool(&options(Mapping::Hashfs, false));
    let (a, b) = (make(&engine, ROOT_INO, "a"), make(&engine, ROOT_INO, "b"));
    write(&engine, a, 0, &pattern(4 * 4096 + 100, 1));
    write(&engine, b, 0, &pattern(8 * 4096, 2));
    let unit = Err(FsError::NotSupported(Unsupported::CloneUnit));
    assert_eq!(try_clone(&engine, (a, 1), (b, 1), 8192), unit);
    assert_eq!(try_clone(&engine, (a, 0), (b, 100), 8192), unit);
    assert_eq!(try_clone(&engine, (a, 0), (b, 0), 100), unit);
    // The end of the source is inside the other file: only whole pages.
    assert_eq!(try_clone(&engine, (a, 0), (b, 0), ALL), Ok(Written::new(0, 4 * 4096)));
    assert_eq!(try_clone(&engine, (a, 4 * PAGE), (b, 0), ALL), unit);
    assert_eq!(
        try_clone(&engine, (a, 0), (b, 4 * PAGE), ALL),
        Ok(Written::new(4 * PAGE, 4 * 4096 + 100))
    );
    assert_eq!(
        try_clone(&engine, (a, 0), (b, 6 * PAGE), ALL),
        Ok(Written::new(6 * PAGE, 4 * 4096 + 100))
    );
    assert_eq!(try_clone(&engine, (a, ALL), (b, 0), ALL), Ok(Written::new(0, 0)));
    let overlap = Err(FsError::Invalid(BadArgument::CloneOverlap));
    assert_eq!(try_clone(&engine, (a, 0), (a, PAGE), ALL), overlap);
    assert_eq!(
        try_clone(&engine, (a, 0), (a, 2 * PAGE), 2 * PAGE),
        Ok(Written::new(2 * PAGE, 8192))
    );
    assert_eq!(
        try_clone(&engine, (a, 0), (b, u64::MAX - 4095), ALL),
        Err(FsError::FileTooBig)
    );
    let closed = engine.open(SYSTEM, b, OpenMode::read_only()).unwrap();
    let range = CloneRange {
        source: open(&engine, a).id(),
        source_offset: 0,
        offset: 0,
        len_bytes: ALL,
    };
    assert_eq!(closed.clone_range(SYSTEM, &range), Err(FsError::BadHandle));
}

/// Others write to the blocks of a bound file in place.
#[test]
fn a_bound_file_shares_nothing() {
    for (mapping, sums) in kinds() {
        let (engine, recorder) = pool(&options(mapping, sums));
        let (a, b) = (make(&engine, ROOT_INO, "a"), make(&engine, ROOT_INO, "b"));
        let content = pattern(10 * 4096, 1);
        write(&engine, a, 0, &content);
        clone(&engine, a, b);
        let checked: Arc<dyn Adapter> = Arc::new(Checked::default());
        let region = engine.bind(SYSTEM, b, WRITABLE, checked).unwrap();
        assert_eq!(engine.info().blocks_saved, 0, "{mapping}");
        let refused = Err(FsError::NotSupported(Unsupported::Clone));
        assert_eq!(try_clone(&engine, (a, 0), (b, 0), ALL), refused);
        assert_eq!(try_clone(&engine, (b, 0), (a, 0), ALL), refused);
        write(&engine, b, 5000, b"in place");
        assert_eq!(read(&engine, a), content, "{mapping}");
        region.unbind().unwrap();
        drop(region);
        let (engine, _) = again(engine, &recorder);
        assert_eq!(read(&engine, a), content, "{mapping}");
    }
}

/// Without a mark, two pages that name a block are what they always were: damage.
#[test]
fn two_pages_with_one_block_are_damage_unless_it_is_marked() {
    for (mapping, sums) in kinds() {
        let (engine, recorder) = pool(&options(mapping, sums));
        let (a, b) = (make(&engine, ROOT_INO, "a"), make(&engine, ROOT_INO, "b"));
        write(&engine, a, 0, &pattern(4096, 1));
        clone(&engine, a, b);
        engine.unmount().unwrap();
        let mut image = recorder.log().final_image();
        let superblock = identify(&Region::from_image(&image).unwrap()).unwrap();
        image[superblock.mark_offset as usize..][..4096].fill(0);
        let report = ferrite_fs::fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(!report.findings.is_empty(), "{mapping}");
        let (report, _) = ferrite_fs::repair(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(
            report.after.findings.is_empty(),
            "{mapping}: {:?}",
            report.after.findings
        );
        assert!(!report.mended.is_empty());
    }
}

/// The structures with a fixed number of entries take as many clones as they were made for, and keep entries for pages
/// with blocks of their own: then data is copied.
#[test]
fn a_table_for_more_pages_takes_more_clones() {
    for mapping in [Mapping::Hashfs, Mapping::Cuckoo] {
        let content = pattern(100 * 4096, 1);
        let clones = |pages_per_block: u32| {
            let (engine, recorder) = pool(&options(mapping, false).pages_per_block(pages_per_block));
            let source = make(&engine, ROOT_INO, "source");
            write(&engine, source, 0, &content);
            let made = (0..100).take_while(|n| {
                let copy = make(&engine, ROOT_INO, &format!("copy{n}"));
                match try_clone(&engine, (source, 0), (copy, 0), ALL) {
                    Ok(cloned) => cloned.len_bytes == content.len() && read(&engine, copy) == content,
                    Err(FsError::NotSupported(Unsupported::Clone)) => false,
                    Err(error) => panic!("{mapping}: {error}"),
                }
            });
            let made = made.count();
            let copy = make(&engine, ROOT_INO, "copy");
            let (from, to) = (open(&engine, source), open(&engine, copy));
            let before = free(&engine);
            assert_eq!(
                copy_range(SYSTEM, (&*from, 0), (&*to, 0), ALL),
                Ok(content.len() as u64)
            );
            assert_eq!(free(&engine), before - 100, "{mapping}: data is copied");
            assert_eq!(read(&engine, copy), content);
            // All free blocks can be used.
            let mut at = 0;
            while to.write_at(SYSTEM, at, &[1; 4096]).is_ok() {
                at += PAGE;
            }
            let left = engine.statfs(SYSTEM).unwrap().blocks_available;
            assert!(left < 4, "{mapping}: {left} blocks are left");
            drop((from, to));
            again(engine, &recorder);
            made
        };
        let (few, many) = (clones(1), clones(4));
        assert!(few >= 2 && many >= 10 * few, "{mapping}: {few} and {many} clones");
    }
}

/// A file may have more pages than the pool has blocks.
#[test]
fn a_file_of_many_clones_is_read_changed_and_removed() {
    for mapping in [Mapping::Radix, Mapping::Extent, Mapping::Hashfs] {
        let (engine, recorder) = pool(&options(mapping, false).pages_per_block(8));
        let (source, copy) = (make(&engine, ROOT_INO, "source"), make(&engine, ROOT_INO, "copy"));
        let content = pattern(500 * 4096, 1);
        write(&engine, source, 0, &content);
        for n in 0..6u64 {
            let to = n * 500 * PAGE;
            let cloned = try_clone(&engine, (source, 0), (copy, to), ALL);
            assert_eq!(cloned, Ok(Written::new(to, content.len())), "{mapping}");
        }
        let (engine, recorder) = again(engine, &recorder);
        assert!(read(&engine, copy).chunks(content.len()).all(|part| part == content));
        write(&engine, copy, 1000 * PAGE + 5, b"changed");
        truncate(&engine, copy, 2000 * PAGE);
        assert_eq!(read(&engine, source), content);
        engine.unlink(SYSTEM, ROOT_INO, b"copy").unwrap();
        let (engine, _) = again(engine, &recorder);
        assert_eq!(
            (read(&engine, source) == content, engine.info().blocks_saved),
            (true, 0)
        );
    }
}

/// On a full pool, pages whose clones are gone can be overwritten.
#[test]
fn blocks_come_back_to_the_last_page() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&options(mapping, false));
        let (a, b) = (make(&engine, ROOT_INO, "a"), make(&engine, ROOT_INO, "b"));
        write(&engine, a, 0, &pattern(200 * 4096, 1));
        clone(&engine, a, b);
        let filler = make(&engine, ROOT_INO, "filler");
        let mut at = 0;
        while open(&engine, filler).write_at(SYSTEM, at, &pattern(4096, 3)).is_ok() {
            at += PAGE;
        }
        engine.unlink(SYSTEM, ROOT_INO, b"a").unwrap();
        for page in 0..200 {
            write(&engine, b, page * PAGE, &pattern(4096, 4));
        }
        again(engine, &recorder);
    }
}

/// A pool that is full of shared blocks refuses what needs space, and nothing else changes.
#[test]
fn a_full_pool_of_clones_keeps_all_content() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&options(mapping, false));
        let (a, b) = (make(&engine, ROOT_INO, "a"), make(&engine, ROOT_INO, "b"));
        let content = pattern(200 * 4096, 1);
        write(&engine, a, 0, &content);
        clone(&engine, a, b);
        let filler = make(&engine, ROOT_INO, "filler");
        let mut at = 0;
        while open(&engine, filler).write_at(SYSTEM, at, &pattern(4096, 3)).is_ok() {
            at += PAGE;
        }
        let mut expected = content.clone();
        let mut refused = false;
        for page in 0..200usize {
            let data = pattern(4096, 4);
            match open(&engine, a).write_at(SYSTEM, page as u64 * PAGE, &data) {
                Ok(_) => expected[page * 4096..][..4096].copy_from_slice(&data),
                Err(FsError::NoSpace(_)) => refused = true,
                Err(error) => panic!("{mapping}: {error}"),
            }
        }
        assert!(
            refused,
            "{mapping}: an overwrite of a shared page found space in a full pool"
        );
        assert_eq!((read(&engine, a), read(&engine, b)), (expected, content), "{mapping}");
        // Files can be removed, and give their space back.
        engine.unlink(SYSTEM, ROOT_INO, b"a").unwrap();
        engine.unlink(SYSTEM, ROOT_INO, b"filler").unwrap();
        let (engine, _) = again(engine, &recorder);
        assert_eq!(read(&engine, b), pattern(200 * 4096, 1));
    }
}

/// Generations of clones that come, change and go: the pool ends as it began.
#[test]
fn clones_that_come_and_go_leave_nothing() {
    let seed = crate::common::bound::seed();
    for &mapping in Mapping::ALL {
        let mut rng = StdRng::seed_from_u64(seed);
        let (engine, recorder) = pool(&options(mapping, false).pages_per_block(4));
        engine.unlink(SYSTEM, ROOT_INO, b"none").unwrap_err();
        let before = free(&engine);
        let mut files: Vec<(String, Ino, Vec<u8>)> = Vec::new();
        for round in 0..300 {
            let name = format!("file{round}");
            let ino = make(&engine, ROOT_INO, &name);
            let content = match files.is_empty() || rng.random_ratio(1, 5) {
                true => {
                    let content = pattern(rng.random_range(1..40) * 4096, round as u8);
                    write(&engine, ino, 0, &content);
                    content
                }
                false => {
                    let (_, source, content) = &files[rng.random_range(0..files.len())];
                    clone(&engine, *source, ino);
                    content.clone()
                }
            };
            files.push((name, ino, content));
            let at = rng.random_range(0..files.len());
            let (_, ino, content) = &mut files[at];
            let offset = rng.random_range(0..content.len() / 512) * 512;
            let data = pattern(
                rng.random_range(1..9000).min(content.len() - offset),
                rng.next_u32() as u8,
            );
            write(&engine, *ino, offset as u64, &data);
            content[offset..offset + data.len()].copy_from_slice(&data);
            if files.len() > 12 {
                let (name, ..) = files.remove(rng.random_range(0..12));
                engine.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
            }
            if round % 50 == 0 {
                for (name, ino, content) in &files {
                    assert!(
                        read(&engine, *ino) == *content,
                        "{mapping}, round {round}: {name} has changed"
                    );
                }
            }
        }
        for (name, ino, content) in &files {
            assert!(read(&engine, *ino) == *content, "{mapping}: {name} has changed");
            engine.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
        }
        engine.unmount().unwrap();
        let image = recorder.log().final_image();
        check(&image);
        let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
        // The directory keeps a block.
        assert!(
            before - free(&engine) <= 1,
            "{mapping}: {} blocks are left",
            before - free(&engine)
        );
        assert_eq!(engine.info().blocks_saved, 0, "{mapping}");
    }
}
