//! Tests of operations on names when no block is left, or when something after the commit fails.

use ferrite_map::{BlockNo, Inum, MapTx, Mapping, NameSlotNo, PageId, Resource, SlotNo};
use ferrite_pm::Region;
use ferrite_vfs::{FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, RenameMode, SYSTEM};

use crate::format::layout::BLOCK_BYTES;
use crate::format::unit::Unit;
use crate::page::scan;
use crate::pool::core::map_error;
use crate::pool::tx::{Purpose, Tx};
use crate::space::blocks::Class;
use crate::{Engine, MkfsOptions, MountOptions, mkfs};

const PAGE: usize = BLOCK_BYTES as usize;
/// Names of 250 bytes that fit in a directory block.
const NAMES_PER_BLOCK: u64 = 15;

fn engine(mapping: Mapping) -> Engine {
    let region = Region::anonymous(24 << 20).unwrap();
    let options = MkfsOptions::default().mapping(mapping).rings(1).inodes(8000).seed(42);
    mkfs(&region, &options).unwrap();
    let options = MountOptions::default().cleaner(false);
    Engine::mount(region, &options).unwrap()
}

fn make(engine: &Engine, dir: Ino, name: &[u8]) -> Ino {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    engine.mknod(SYSTEM, dir, name, &node).unwrap().ino
}

fn write(engine: &Engine, ino: Ino, offset: u64, data: &[u8]) {
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    assert_eq!(file.write_at(SYSTEM, offset, data).unwrap(), data.len());
}

fn long_name(n: u64) -> Vec<u8> {
    format!("{n:0250}").into_bytes()
}

/// In which of its directory's blocks a name is.
fn block_of(engine: &Engine, dir: Ino, name: &[u8]) -> u64 {
    let core = engine.core();
    let key = core.names.key(Inum::new(dir as u32), name);
    core.names.find(&key).unwrap().unwrap().entry_offset / BLOCK_BYTES
}

/// Removes (or renames) all names of a directory block that is the middle one of an extent of three, in a directory
/// with `lone` other extents, when no block is left. True if the block stayed.
fn empty_a_block(lone: u64, removes: bool) -> Result<bool, FsError> {
    let engine = engine(Mapping::Extent);
    let dir = engine.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap().ino;
    let spacer = make(&engine, ROOT_INO, b"spacer");
    let mut count = 0;
    let mut fill_block = || {
        for _ in 0..NAMES_PER_BLOCK {
            make(&engine, dir, &long_name(count));
            count += 1;
        }
    };
    for n in 0..lone {
        fill_block();
        write(&engine, spacer, n * BLOCK_BYTES, &[1; PAGE]);
    }
    (0..3).for_each(|_| fill_block());
    let middle = (lone + 1) * NAMES_PER_BLOCK..(lone + 2) * NAMES_PER_BLOCK;
    let blocks: Vec<u64> = middle.clone().map(|n| block_of(&engine, dir, &long_name(n))).collect();
    assert!(
        blocks.iter().all(|&block| block == blocks[0]),
        "the names lie elsewhere"
    );
    let other = engine.mkdir(SYSTEM, ROOT_INO, b"other", 0o755).unwrap().ino;
    make(&engine, other, b"first");
    let core = engine.core();
    let blocks = engine.getattr(SYSTEM, dir).unwrap().blocks;
    core.reclaim().unwrap();
    while core.alloc.claim_any(Class::Replacing).is_some() {}
    for n in middle {
        if removes {
            engine.unlink(SYSTEM, dir, &long_name(n))?;
        } else {
            let to = format!("{n}");
            engine.rename(SYSTEM, dir, &long_name(n), other, to.as_bytes(), RenameMode::Replace)?;
        }
    }
    assert!(!engine.is_read_only());
    let stayed = engine.getattr(SYSTEM, dir).unwrap().blocks == blocks;
    if stayed {
        // For the next names.
        make(&engine, dir, b"new");
    }
    Ok(stayed)
}

#[test]
fn names_go_where_a_tree_has_no_node_for_that() {
    for removes in [true, false] {
        // A leaf of the extent tree has 240 entries.
        let stayed = (236..=241).filter(|&lone| {
            empty_a_block(lone, removes)
                .unwrap_or_else(|error| panic!("{lone} lone blocks, removes {removes}: {error}"))
        });
        assert!(stayed.count() > 0, "no block needed a node to go");
    }
}

/// A file with more pages than are removed with its name, one of which has a damaged log.
fn unfreeable(engine: &Engine, name: &[u8]) -> Ino {
    let ino = make(engine, ROOT_INO, name);
    write(engine, ino, 0, &vec![1; 100 * PAGE]);
    write(engine, ino, 50 * BLOCK_BYTES + 7, b"logged");
    let core = engine.core();
    let page = PageId::from_raw(ino as u32, 50);
    let word = core.map.get(page);
    assert!(word.has_log());
    let mut headers = Vec::new();
    scan::segments(core, page, word, &mut |segment| headers.push(segment.header)).unwrap();
    for at in (0..64).step_by(8) {
        let offset = headers[0].offset() + at;
        core.region.store(offset, core.region.load(offset) ^ 0x55);
    }
    ino
}

#[test]
fn what_follows_the_commit_makes_no_error_of_a_success() {
    for &mapping in Mapping::ALL {
        let engine = engine(mapping);
        unfreeable(&engine, b"removed");
        engine.unlink(SYSTEM, ROOT_INO, b"removed").unwrap();
        assert_eq!(engine.lookup(SYSTEM, ROOT_INO, b"removed"), Err(FsError::NotFound));
        unfreeable(&engine, b"target");
        let source = make(&engine, ROOT_INO, b"source");
        engine
            .rename(SYSTEM, ROOT_INO, b"source", ROOT_INO, b"target", RenameMode::Replace)
            .unwrap();
        assert_eq!(engine.lookup(SYSTEM, ROOT_INO, b"target").unwrap().ino, source);
        let (_, told) = engine.core().runtime_errors.findings();
        assert_eq!(told, 2, "{mapping:?}: the damage was reported, once each");
        assert!(!engine.is_read_only());
    }
}

/// Tree nodes may make an overwrite take more than it frees. Blocks that it takes from the reserve permanently must
/// leave enough for operations that free as much as they take.
#[test]
fn what_owes_the_reserve_leaves_half_of_it() {
    let engine = engine(Mapping::Hashfs);
    let core = engine.core();
    let ino = make(&engine, ROOT_INO, b"file");
    write(&engine, ino, 0, &[1; 3 * PAGE]);
    while core.alloc.claim_any(Class::Ordinary).is_some() {}
    let free = core.alloc.free();
    let take = |count: u64| {
        let mem = core.inode(ino).unwrap();
        let _lock = mem.write();
        let mut inode = core.load_live(&mem).unwrap();
        inode.set_ctime(ferrite_vfs::Timestamp::new(count as i64 + 1, 0));
        let mut tx = Tx::new(core, Purpose::Change);
        tx.set_class(Class::Replacing);
        tx.alloc_block().map_err(map_error)?;
        tx.put_inode(mem.ino, &mut inode);
        tx.commit(&[&mem])
    };
    let taken = (0..).take_while(|&count| take(count).is_ok()).count() as u64;
    assert!(taken > 0 && taken <= free / 2 + 1, "{taken} of {free}");
    assert_eq!(core.alloc.free(), free - taken, "what was refused was given back");
    for round in 0..2 * free {
        write(&engine, ino, round % 3 * BLOCK_BYTES, &[2; PAGE]);
    }
    assert!(take(0).is_err());
}

/// Space is counted, not reclaimed: the call changes nothing, and the space reported is really available.
#[test]
fn a_look_at_the_free_space_moves_nothing() {
    for &mapping in Mapping::ALL {
        let engine = engine(mapping);
        let core = engine.core();
        let ino = make(&engine, ROOT_INO, b"file");
        write(&engine, ino, 0, &[1; 200 * PAGE]);
        for n in 0..200 {
            write(
                &engine,
                ino,
                n * BLOCK_BYTES + n % 3,
                &vec![2; 8 + n as usize % 7 * 300],
            );
        }
        core.reclaim().unwrap();
        let full = engine.statfs(SYSTEM).unwrap().blocks_free;
        // Some pages lose their logs, and the others keep theirs.
        for n in (0..200).filter(|n| n % 5 > 0) {
            write(&engine, ino, n * BLOCK_BYTES, &[3; PAGE]);
        }
        let (fences, free) = (engine.counters().fences, core.alloc.free());
        let told = engine.statfs(SYSTEM).unwrap().blocks_free;
        assert_eq!(
            (engine.counters().fences, core.alloc.free()),
            (fences, free),
            "{mapping:?}: a look"
        );
        assert!(told > full, "{mapping:?}: the logs that were removed count");
        core.reclaim().unwrap();
        core.log_space.empty_purses(&core.alloc);
        assert_eq!(core.alloc.free(), told, "{mapping:?}: reported and available");
        assert_eq!(engine.statfs(SYSTEM).unwrap().blocks_free, told, "{mapping:?}");
    }
}

/// Releasing something twice stops the engine, leaves nothing locked, and has no effect on other resources.
#[test]
fn what_is_freed_twice_stops_changes_and_no_thread() {
    for &mapping in Mapping::ALL {
        let twice = |resource_of: &dyn Fn(&Engine) -> Resource| {
            let engine = engine(mapping);
            let ino = make(&engine, ROOT_INO, b"file");
            write(&engine, ino, 0, &[1; PAGE]);
            let before = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            let core = engine.core();
            let resource = resource_of(&engine);
            let (other, _) = core.alloc.claim_any(Class::Ordinary).unwrap();
            let free = core.alloc.free();
            core.release_all(vec![resource, Resource::Block(other)]);
            assert_eq!(
                core.alloc.free(),
                free + 1,
                "{mapping:?}: {resource:?}: what came with it"
            );
            assert!(
                engine.failed().is_some_and(|why| why.contains("twice")),
                "{mapping:?}: {resource:?}"
            );
            let refused = engine.open(SYSTEM, ino, OpenMode::read_write()).err();
            assert_eq!(refused, Some(FsError::ReadOnly));
            assert_eq!(before.write_at(SYSTEM, 0, b"x"), Err(FsError::ReadOnly));
            let file = engine.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
            assert_eq!(file.read_at(SYSTEM, 0, &mut [0]), Ok(1));
        };
        twice(&|engine| {
            let (block, _) = engine.core().alloc.claim_any(Class::Ordinary).unwrap();
            engine.core().release(Resource::Block(block));
            Resource::Block(block)
        });
        twice(&|_| Resource::Block(BlockNo::new(1)));
        twice(&|engine| {
            let block = BlockNo::new(engine.core().superblock.first_block as u32 + 2000);
            Unit::first_of(block, engine.core().superblock.unit_size).segment()
        });
        twice(&|_| Resource::NameSlot(NameSlotNo::new(7)));
        twice(&|_| Resource::Inode(Inum::new(77)));
        // Trees have no entries of their own.
        if !matches!(mapping, Mapping::Radix | Mapping::Extent) {
            twice(&|engine| {
                let is_free = |slot: &u32| !engine.core().map.release(SlotNo::new(*slot));
                Resource::MapSlot(SlotNo::new((0..).find(is_free).unwrap()))
            });
        }
    }
}
