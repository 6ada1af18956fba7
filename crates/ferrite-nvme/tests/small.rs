//! Files without a blob: in their nodes, beside them, and how they come and go.

use crate::common::Memory;
use ferrite_testkit::TestEngine;
use ferrite_testkit::rng::pattern;
use ferrite_vfs::{
    Cred, Ctx, DedupToken, FallocateMode, FsError, NewFile, OpenFile, OpenFlags, OpenMode, Position, ROOT_INO,
    RenameMode, SYSTEM, SetAttr, Vfs, WriteMode,
};
use std::sync::Arc;

const SMALL: usize = 32 << 10;

fn pool() -> Memory {
    Memory::new(2, 64, 62)
}

fn create(pool: &Memory, name: &str) -> Arc<dyn OpenFile> {
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    pool.fs().create(SYSTEM, ROOT_INO, name.as_bytes(), &new).unwrap().file
}

fn read(file: &dyn OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; file.getattr(SYSTEM).unwrap().size as usize];
    assert_eq!(file.read_at(SYSTEM, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// How many contents are beside nodes, and how many bytes they have.
fn beside(pool: &Memory) -> (usize, usize) {
    let mut found = (0, 0);
    pool.meta()
        .scan(b"S", b"T", &mut |_, value| {
            found = (found.0 + 1, found.1 + value.len());
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    found
}

fn set_len(file: &dyn OpenFile, size: usize) {
    let set = SetAttr {
        size: Some(size as u64),
        ..SetAttr::default()
    };
    file.setattr(SYSTEM, &set).unwrap();
}

fn blocks(file: &dyn OpenFile) -> u64 {
    file.getattr(SYSTEM).unwrap().blocks
}

#[test]
fn a_file_moves_from_its_node_beside_it_and_to_a_blob() {
    let mut pool = pool();
    let file = create(&pool, "f");
    let data = pattern(1, SMALL + 1);
    for (len, is) in [(1, 0), (2048, 0), (2049, 1), (SMALL, 1), (SMALL + 1, 0)] {
        file.write_at(SYSTEM, 0, &data[..len]).unwrap();
        assert_eq!(beside(&pool), (is, is * len), "{len}");
        assert!(read(&*file) == data[..len], "{len}");
        // In a blob, parts of a cluster of 16 KiB each.
        let want = if len > SMALL { 3 * 32 } else { len.div_ceil(512) as u64 };
        assert_eq!(blocks(&*file), want, "{len}");
        pool.check();
    }
    // Emptied, it begins anew.
    set_len(&*file, 0);
    file.write_at(SYSTEM, 0, &data[..5000]).unwrap();
    assert_eq!(beside(&pool), (1, 5000));
    drop(file);
    pool.remount();
    pool.check();
    let vfs = Vfs::new(pool.shared(), Cred::root());
    vfs.rename(b"/f", b"/g", RenameMode::Replace).unwrap();
    vfs.link(b"/g", b"/h").unwrap();
    vfs.unlink(b"/g").unwrap();
    assert_eq!(beside(&pool), (1, 5000));
    vfs.unlink(b"/h").unwrap();
    assert_eq!(beside(&pool), (0, 0));
    pool.check();
}

#[test]
fn shorter_longer_and_holes() {
    let pool = pool();
    let file = create(&pool, "f");
    let data = pattern(2, 20_000);
    file.write_at(SYSTEM, 0, &data).unwrap();
    set_len(&*file, 12_000);
    set_len(&*file, 30_000);
    assert_eq!(beside(&pool), (1, 12_000));
    let mut want = data[..12_000].to_vec();
    want.resize(30_000, 0);
    assert!(read(&*file) == want);
    assert_eq!(
        blocks(&*file),
        12_000_u64.div_ceil(512),
        "what is beside it, not its size"
    );
    assert_eq!(file.seek_data(SYSTEM, 100), Ok(100));
    assert_eq!(file.seek_hole(SYSTEM, 100), Ok(12_000));
    assert_eq!(file.seek_data(SYSTEM, 12_000), Err(FsError::NoSuchAddress));
    file.fallocate(SYSTEM, FallocateMode::PunchHole, 100, 200).unwrap();
    want[100..300].fill(0);
    assert!(read(&*file) == want);
    // A hole that reaches the end of the content makes it shorter.
    file.fallocate(SYSTEM, FallocateMode::PunchHole, 5000, 1 << 30).unwrap();
    want[5000..].fill(0);
    assert!(read(&*file) == want);
    assert_eq!(beside(&pool), (1, 5000));
    assert_eq!(file.getattr(SYSTEM).unwrap().size, 30_000);
    set_len(&*file, 1000);
    assert_eq!(beside(&pool), (0, 0), "it fits its node again");
    set_len(&*file, 10_000);
    want.truncate(1000);
    want.resize(10_000, 0);
    assert!(read(&*file) == want);
    // Space that a program reserves is on a device.
    file.write_at(SYSTEM, 9000, b"x").unwrap();
    want[9000] = b'x';
    let allocate = FallocateMode::Allocate { keep_size: false };
    file.fallocate(SYSTEM, allocate, 0, 10_000).unwrap();
    assert_eq!((beside(&pool), blocks(&*file)), ((0, 0), 32));
    assert!(read(&*file) == want);
    pool.check();
}

/// A file without a name keeps its content until it is closed.
#[test]
fn content_goes_with_the_last_who_has_it_open() {
    let mut pool = pool();
    let (file, replaced) = (create(&pool, "f"), create(&pool, "g"));
    let data = pattern(3, 9000);
    file.write_at(SYSTEM, 0, &data).unwrap();
    replaced.write_at(SYSTEM, 0, &data).unwrap();
    let vfs = Vfs::new(pool.shared(), Cred::root());
    vfs.rename(b"/f", b"/g", RenameMode::Replace).unwrap();
    vfs.unlink(b"/g").unwrap();
    drop(vfs);
    for file in [&file, &replaced] {
        file.append(SYSTEM, &data[..1000]).unwrap();
        assert!(read(&**file) == [&data, &data[..1000]].concat());
    }
    assert_eq!(beside(&pool), (2, 20_000));
    drop(file);
    assert_eq!(beside(&pool), (1, 10_000));
    // Closed with a file still open: the next opening frees it.
    pool.close();
    drop(replaced);
    pool.open();
    assert_eq!(beside(&pool), (0, 0));
    pool.check();
}

#[test]
fn a_write_with_a_token_happens_once() {
    let pool = pool();
    let file = create(&pool, "f");
    let data = pattern(4, 3000);
    let ctx = Ctx {
        token: Some(DedupToken { slot: 5, seq: 1 }),
        ..SYSTEM.clone()
    };
    let append = WriteMode::from(Position::End);
    let first = file.write(&ctx, append, &data).unwrap();
    let again = file.write(&ctx, append, &data).unwrap();
    assert_eq!((first.offset, again.offset), (0, 0));
    assert!(read(&*file) == data);
}

/// Names and attributes come first: content that can lie elsewhere goes elsewhere.
#[test]
fn content_goes_to_blobs_where_the_metadata_has_little_space() {
    let pool = pool();
    let data = pattern(6, 20_000);
    let before = create(&pool, "before");
    before.write_at(SYSTEM, 0, &data[..10_000]).unwrap();
    pool.set_scarce(true);
    let meanwhile = create(&pool, "meanwhile");
    meanwhile.write_at(SYSTEM, 0, &data[..10_000]).unwrap();
    assert_eq!(beside(&pool), (1, 10_000));
    before.write_at(SYSTEM, 10_000, &data[10_000..]).unwrap();
    assert_eq!(beside(&pool), (0, 0));
    let tiny = create(&pool, "tiny");
    tiny.write_at(SYSTEM, 0, &data[..2048]).unwrap();
    assert_eq!(blocks(&*tiny), 4, "it is in its node");
    pool.set_scarce(false);
    let after = create(&pool, "after");
    after.write_at(SYSTEM, 0, &data[..10_000]).unwrap();
    assert_eq!(beside(&pool), (1, 10_000));
    assert!(read(&*before) == data && read(&*meanwhile) == data[..10_000] && read(&*after) == data[..10_000]);
    pool.check();
}

/// Pools that were made before content could lie beside nodes.
#[test]
fn a_pool_of_version_1_is_opened_and_becomes_a_current_one() {
    let mut pool = pool().with_small_files(2048);
    let data = pattern(5, 5000);
    create(&pool, "in its node").write_at(SYSTEM, 0, &data[..2000]).unwrap();
    create(&pool, "in a blob").write_at(SYSTEM, 0, &data).unwrap();
    close_as_version_1(&mut pool);
    pool.open();
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let flags = OpenFlags {
        read: true,
        write: true,
        ..OpenFlags::default()
    };
    for (path, len) in [(&b"/in its node"[..], 2000), (b"/in a blob", 5000)] {
        let file = vfs.open(path, &flags).unwrap();
        assert!(read(&*file) == data[..len]);
        file.append(SYSTEM, &data[..500]).unwrap();
        assert!(read(&*file) == [&data[..len], &data[..500]].concat());
    }
    drop(vfs);
    pool.remount();
    pool.check();
    assert_eq!(pool.meta().get(b"P").unwrap().unwrap()[..4], 6_u32.to_le_bytes());
    assert_eq!(beside(&pool).0, 0, "lengths were given for a pool of 2,048");
}

fn close_as_version_1(pool: &mut Memory) {
    pool.close();
    let mut record = pool.meta().get(b"P").unwrap().unwrap();
    record[..4].copy_from_slice(&1_u32.to_le_bytes());
    record.truncate(record.len() - 16);
    let mut txn = pool.meta().begin();
    txn.put(b"P", &record).unwrap();
    txn.commit().unwrap();
}
