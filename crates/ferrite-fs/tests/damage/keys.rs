//! Damage to words that lead to pages: these are gone, another file's, or mapped where their file has none or others.

use ferrite_fs::{Engine, Mapping, identify, mkfs};
use ferrite_pm::Region;
use ferrite_vfs::{FallocateMode, FileSystem, FsError, OpenMode, ROOT_INO, SYSTEM};

use super::common::{self, fixed, image_of, make, write};
use super::{LABELLED, PAGE, PLAIN, Pool, Told};
use super::{findings, image_after, on_every_mapping, on_mappings, open, repaired};

/// The words of a file's pages lead nowhere, or the pages become those of a free inode.
#[test]
fn a_damaged_key_or_root() {
    on_every_mapping(&[PLAIN], Told::ReadOnly, |pool| vec![(pool.key(PLAIN), 0)]);
    on_every_mapping(&[PLAIN], Told::ReadOnly, |pool| pool.flipped(pool.key(PLAIN), 1 << 38));
}

/// A key becomes that of a page beyond the end of its file, which counts as many as before: its old page is no hole.
#[test]
fn a_key_of_a_page_behind_the_end() {
    on_mappings(
        &[Mapping::Hashfs, Mapping::Cuckoo, Mapping::Leaf],
        &[PLAIN],
        Told::ReadOnly,
        |pool| pool.flipped(pool.key(PLAIN), 1 << 10),
    );
}

/// A page beyond the end returns to its place if the table shows which that is. Else the file is quarantined with all
/// its content.
#[test]
fn a_page_behind_the_end_is_not_lost() {
    let read = |engine: &Engine, ino, page: usize| {
        let mut found = vec![0; PAGE];
        let file = engine.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
        let len = file.read_at(SYSTEM, (page * PAGE) as u64, &mut found).unwrap();
        found.truncate(len);
        found
    };
    let pool = Pool::new(Mapping::Hashfs);
    let engine = repaired(&pool.damaged(&pool.flipped(pool.key(PLAIN), 1 << 10)));
    assert_eq!(pool.survey(&engine, &[]), 0, "put back");

    let pool = Pool::new(Mapping::Radix);
    let moved = |pool: &Pool| {
        let at = pool.page_word(PLAIN, 2);
        vec![(at, 0), (at + 20 * 8, pool.word(at))]
    };
    on_mappings(&[Mapping::Radix], &[PLAIN], Told::ReadOnly, moved);
    let engine = repaired(&pool.damaged(&moved(&pool)));
    let known = &pool.files[PLAIN];
    let aside = engine.lookup(SYSTEM, ROOT_INO, b"lost+found").unwrap().ino;
    let ino = engine
        .lookup(SYSTEM, aside, format!("damaged-{}", known.ino).as_bytes())
        .unwrap()
        .ino;
    let pages: Vec<_> = known.content.chunks(PAGE).collect();
    assert_eq!(read(&engine, ino, 1), pages[1]);
    assert_eq!(
        read(&engine, ino, 22),
        pages[2],
        "it is there, where the mapping had it"
    );
}

/// A key becomes that of another page of its file, which is there twice then.
#[test]
fn a_key_of_a_page_that_is_there() {
    for bits in [1, 2, 4] {
        on_mappings(&[Mapping::Hashfs], &[PLAIN], Told::ReadOnly, |pool| {
            pool.flipped(pool.key(PLAIN), bits)
        });
    }
}

/// A key that becomes one of a hole of its file is detected if it lies too far from that key's home, as most do in a
/// large pool.
#[test]
fn a_key_of_a_hole() {
    let blank = Region::anonymous(64 << 20).unwrap();
    let options = fixed().mapping(Mapping::Hashfs);
    mkfs(&blank, &options).unwrap();
    let superblock = identify(&blank).unwrap();
    let mut ino = 0;
    let image = image_after(&image_of(&blank), |engine| {
        ino = make(engine, ROOT_INO, "sparse");
        write(engine, ino, 2 * PAGE as u64, &[1; PAGE]);
        write(engine, ino, 1000 * PAGE as u64, &[1; PAGE]);
    });
    let area = superblock.map_offset as usize..(superblock.first_block * PAGE as u64) as usize;
    let key = (ino << 32 | 2).to_le_bytes();
    let at = area.step_by(8).find(|&at| image[at..at + 8] == key).unwrap();
    let mut told = 0;
    for bit in [2, 3, 4, 5, 6, 7, 8] {
        let mut damaged = image.clone();
        damaged[at..at + 8].copy_from_slice(&((ino << 32 | 2) ^ 1 << bit).to_le_bytes());
        let engine = common::mount(&damaged);
        let found = findings(&damaged);
        assert_eq!(
            engine.damage().is_empty(),
            found.is_empty(),
            "{:?}, {found:?}",
            engine.damage()
        );
        if !found.is_empty() {
            let read = open(&engine, ino)
                .unwrap()
                .read_at(SYSTEM, 2 * PAGE as u64, &mut [0; PAGE]);
            assert!(matches!(read, Err(FsError::Damaged(_))), "{read:?}");
            told += 1;
        }
    }
    assert!(told >= 6, "{told} of 7 told");
}

/// Space reserved past the end is not damage.
#[test]
fn reserved_space_behind_the_end_is_legal() {
    for &mapping in Mapping::ALL {
        let pool = Pool::new(mapping);
        let image = image_after(&pool.image, |engine| {
            for name in [PLAIN, "small", "other-0"] {
                let file = open(engine, pool.files[name].ino).unwrap();
                let keep = FallocateMode::Allocate { keep_size: true };
                file.fallocate(SYSTEM, keep, 0, 30 * PAGE as u64).unwrap();
            }
        });
        common::check(&image);
        let engine = common::mount(&image);
        assert!(engine.damage().is_empty(), "{:?}", engine.damage());
        assert_eq!(pool.survey(&engine, &[]), 0);
    }
}

/// A key becomes another file's: that has a page too many, and it is unknown which.
#[test]
fn a_key_of_another_file() {
    on_every_mapping(&[PLAIN, LABELLED], Told::ReadOnly, |pool| {
        let bits = pool.files[PLAIN].ino ^ pool.files[LABELLED].ino;
        pool.flipped(pool.key(PLAIN), bits << 32)
    });
}
