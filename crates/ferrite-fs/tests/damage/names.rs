//! Damage between a name and its file: slots of the name table, entries of directories, inodes that only a name knows
//! of.

use ferrite_fs::{Engine, Mapping};
use ferrite_map::Inum;
use ferrite_vfs::{FileKind, FileSystem, FsError, Ino, NewNode, ROOT_INO, RenameMode, SYSTEM};

use super::{PAGE, PLAIN, Pool, Told, common, image_after, on_every_mapping, repaired};

/// All of an inode: no other inode gets its number, which a name has, though nothing else shows that it ever was in
/// use.
#[test]
fn a_wiped_inode_without_pages() {
    for name in ["small", "other-0"] {
        on_every_mapping(&[name], Told::ReadOnly, |pool| {
            let at = pool.inode(name);
            (at..at + 256).step_by(8).map(|at| (at, 0)).collect()
        });
    }
}

/// The same for an inode that is no regular file.
#[test]
fn a_wiped_link_and_a_wiped_pipe() {
    let pool = Pool::new(common::mapping());
    let mut inos = Vec::new();
    let image = image_after(&pool.image, |engine| {
        let node = NewNode {
            kind: FileKind::Fifo,
            mode: 0o644,
            rdev: 0,
        };
        inos.push(engine.symlink(SYSTEM, pool.dir, b"link", b"target").unwrap().ino);
        inos.push(engine.mknod(SYSTEM, pool.dir, b"pipe", &node).unwrap().ino);
    });
    for (name, ino) in [b"link", b"pipe"].into_iter().zip(inos) {
        let mut wiped = image.clone();
        let at = pool.superblock.inode_offset(Inum::new(ino as u32)) as usize;
        wiped[at..at + 256].fill(0);
        let engine = common::mount(&wiped);
        assert!(engine.is_read_only());
        let place = format!("inode {ino}");
        assert!(engine.damage()[0].contains(&place), "{:?}", engine.damage());
        let error = engine.lookup(SYSTEM, pool.dir, name).unwrap_err().to_string();
        assert!(error.contains(&place), "{error}");
        assert_eq!(pool.survey(&engine, &[]), 0);
    }
}

/// Inode, checksum, a letter of a name: lookups no longer find it, and the directory cannot be listed; the other names
/// are found. The mount reports it, and no caller can create a second file under the missing name.
#[test]
fn a_damaged_entry() {
    for (at, bits) in [(0, 0x400), (8, 1 << 40), (16, 1)] {
        on_every_mapping(&[PLAIN], Told::Writable, |pool| {
            let entry = pool.flipped(pool.entry(PLAIN) + at, bits);
            let engine = common::mount(&pool.damaged(&entry));
            for name in [PLAIN.as_bytes(), b"another"] {
                refuses_the_name(&engine, pool.dir, name);
            }
            entry
        });
    }
}

/// No checksum covers the bytes after a name up to the next word, and lookups compare them: the name is an error, not
/// absent. The directory can be listed, and a repair loses nothing.
#[test]
fn bytes_behind_a_name() {
    on_every_mapping(&[PLAIN], Told::Writable, |pool| {
        let entry = pool.flipped(pool.entry(PLAIN) + 16, 1 << 56);
        let image = pool.damaged(&entry);
        let engine = common::mount(&image);
        let found = engine.lookup(SYSTEM, pool.dir, PLAIN.as_bytes());
        assert!(matches!(found, Err(FsError::Damaged(_))), "{found:?}");
        assert!(matches!(
            engine.lookup(SYSTEM, pool.dir, b"never"),
            Err(FsError::NotFound)
        ));
        assert_eq!(listed(&engine, pool.dir).unwrap(), pool.files.len());
        assert_eq!(
            repaired(&image).lookup(SYSTEM, pool.dir, PLAIN.as_bytes()).unwrap().ino,
            pool.files[PLAIN].ino
        );
        entry
    });
}

/// An entry that is longer than its name covers the one after it: that is found by its name, but a listing would not
/// show it, and removing the first would free both.
#[test]
fn an_entry_that_covers_the_next() {
    for &mapping in Mapping::ALL {
        let pool = Pool::new(mapping);
        let at = pool.entry(PLAIN);
        let (len, next) = (
            pool.word(at) >> 32 & 0xffff,
            pool.word(at + (pool.word(at) >> 32 & 0xffff) as usize),
        );
        assert!(next as u32 != 0, "a name follows");
        let longer = pool.word(at) & !(0xffff << 32) | (len + (next >> 32 & 0xffff)) << 32;
        let image = pool.damaged(&vec![(at, longer)]);
        let engine = common::mount(&image);
        let told = engine.damage().join("; ");
        assert!(told.contains("impossible length"), "{told}");
        assert!(listed(&engine, pool.dir).is_err(), "not all are shown");
        assert!(matches!(
            engine.unlink(SYSTEM, pool.dir, PLAIN.as_bytes()),
            Err(FsError::Damaged(_))
        ));
        assert!(!engine.scrub(None).unwrap().findings.is_empty());
        let engine = repaired(&image);
        for (name, known) in &pool.files {
            assert_eq!(
                engine.lookup(SYSTEM, pool.dir, name.as_bytes()).unwrap().ino,
                known.ino,
                "{mapping}, {name}"
            );
        }
        assert_eq!(listed(&engine, pool.dir).unwrap(), pool.files.len());
    }
}

/// How many names a listing shows.
fn listed(engine: &Engine, dir: Ino) -> Result<usize, FsError> {
    let mut names = 0;
    engine.readdir(SYSTEM, dir, 0, &mut |_| {
        names += 1;
        true
    })?;
    Ok(names)
}

/// An entry that looks free: its name is an error, not absent, and a listing reports an error after the last remaining
/// name.
#[test]
fn an_entry_that_looks_free() {
    on_every_mapping(&[PLAIN], Told::ReadOnly, |pool| {
        let at = pool.entry(PLAIN);
        let entry = vec![(at, pool.word(at) & !0xffff_ffff)];
        let engine = common::mount(&pool.damaged(&entry));
        for name in [PLAIN.as_bytes(), b"another"] {
            let error = engine.lookup(SYSTEM, pool.dir, name).unwrap_err();
            assert!(matches!(error, FsError::Damaged(_)), "{error}");
        }
        let mut names = 0usize;
        let mut cookie = 0;
        let end = loop {
            let before = names;
            let listed = engine.readdir(SYSTEM, pool.dir, cookie, &mut |entry| {
                names += 1;
                cookie = entry.next_cookie;
                !names.is_multiple_of(3)
            });
            if listed.is_err() || names == before {
                break listed;
            }
        };
        let FsError::Damaged(damage) = end.unwrap_err() else {
            panic!("a name is lost");
        };
        assert_eq!(damage.ino, Some(pool.dir));
        assert!(damage.what.contains("lost 1 of the names"), "{damage}");
        assert_eq!(names, pool.files.len() - 1);
        // With attributes, in one call: the listed entries stand, and the error follows with the next call.
        let (mut given, mut last) = (0, 0);
        let listed = engine.readdir_plus(SYSTEM, pool.dir, 0, &mut |entry, attr| {
            given += usize::from(attr.is_ok());
            last = entry.next_cookie;
            true
        });
        assert_eq!((listed, given), (Ok(()), names));
        let behind = engine.readdir_plus(SYSTEM, pool.dir, last, &mut |_, _| true);
        assert!(matches!(behind, Err(FsError::Damaged(_))), "{behind:?}");
        entry
    });
}

/// Nothing can be made, linked, moved or removed under a name whose existence is unknown.
fn refuses_the_name(engine: &Engine, dir: Ino, name: &[u8]) {
    let other = engine.mkdir(SYSTEM, ROOT_INO, name, 0o755).unwrap().ino;
    let file = common::make(engine, other, "file");
    let refused = [
        engine.mkdir(SYSTEM, dir, name, 0o755).err(),
        engine.symlink(SYSTEM, dir, name, b"target").err(),
        engine.link(SYSTEM, file, dir, name).err(),
        engine
            .rename(SYSTEM, other, b"file", dir, name, RenameMode::Replace)
            .err(),
        engine.unlink(SYSTEM, dir, name).err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(FsError::Damaged(_))), "{error:?}");
    }
    engine.unlink(SYSTEM, other, b"file").unwrap();
    engine.rmdir(SYSTEM, ROOT_INO, name).unwrap();
}

/// A slot of the name table with another hash, another place in the block, another block: its name is an error, not
/// absent, also where there is a damaged inode besides.
#[test]
fn a_damaged_name_slot() {
    for bits in [1 << 41, 1 << 60, 1 << 33, 1, 1 << 30] {
        on_every_mapping(&[PLAIN], Told::ReadOnly, |pool| {
            pool.flipped(pool.name_slot(PLAIN), bits)
        });
    }
    for is_lost in [true, false] {
        on_every_mapping(&[PLAIN, "other-8"], Told::ReadOnly, |pool| {
            let mut words = pool.flipped(pool.inode("other-8") + 48, 1);
            let slot = pool.name_slot(PLAIN);
            words.push((slot, if is_lost { 0 } else { pool.word(slot) ^ 1 << 41 }));
            words
        });
    }
}

/// The old content of a freed directory block still looks real; a slot that leads there is detected nevertheless.
#[test]
fn a_name_slot_that_leads_to_a_freed_block() {
    let pool = Pool::new(common::mapping());
    let entry_block = |pool: &Pool| pool.entry(PLAIN) / PAGE;
    let (stale, slot) = (entry_block(&pool), pool.word(pool.name_slot(PLAIN)));
    // The emptied directory frees its block unchanged; the names go to another one, because that block is taken
    // meanwhile.
    let emptied = image_after(&pool.image, |engine| {
        for name in pool.files.keys() {
            engine.unlink(SYSTEM, pool.dir, name.as_bytes()).unwrap();
        }
    });
    let mut with_slot = emptied.clone();
    let at = pool.name_slot(PLAIN);
    with_slot[at..at + 8].copy_from_slice(&slot.to_le_bytes());
    let engine = common::mount(&with_slot);
    let told = engine.damage().join("; ");
    assert!(
        told.contains(&format!("block {stale}, which is no directory's")),
        "{told}"
    );
    assert!(engine.is_read_only());
}

/// A name that lookups miss is an error, not absent; one that was never there is.
#[test]
fn a_lost_name() {
    on_every_mapping(&[PLAIN], Told::ReadOnly, |pool| vec![(pool.name_slot(PLAIN), 0)]);
    let pool = Pool::new(Mapping::default());
    let engine = common::mount(&pool.damaged(&vec![(pool.name_slot(PLAIN), 0)]));
    assert!(matches!(
        engine.lookup(SYSTEM, pool.dir, b"never"),
        Err(FsError::NotFound)
    ));
}
