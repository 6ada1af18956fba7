//! A real LevelDB on the engine: it returns the pairs that it stored, over reopening, compaction and remounting;
//! refusals of the file system are errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_leveldb::{Db, DbError, Options};
use ferrite_pm::{Access, Region};
use ferrite_vfs::{Cred, OpenFlags, Vfs};

fn seen(engine: &Engine) -> Vfs {
    Vfs::new(Arc::new(engine.clone()), Cred::root())
}

/// These tests concern a killed process, not a power loss: on a disk, each write would wait for it. And no other
/// process changes the pool: a test copies it while it is mounted.
fn mount() -> MountOptions {
    MountOptions::default().cleaner(false).process_durability(true)
}

fn pool(region: Region, mapping: Mapping) -> Engine {
    let options = MkfsOptions::default().mapping(mapping).seed(42);
    mkfs(&region, &options).unwrap();
    Engine::mount(region, &mount()).unwrap()
}

fn in_memory(len_bytes: u64) -> Engine {
    pool(Region::anonymous(len_bytes).unwrap(), Mapping::default())
}

fn at(path: &Path) -> Engine {
    let region = Region::open(path, Access::ReadWrite).unwrap();
    Engine::mount(region, &mount()).unwrap()
}

fn key(number: u32) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

fn value(number: u32, version: u32) -> Vec<u8> {
    format!("{number}.{version}|").into_bytes().repeat(60)
}

/// All pairs in a database.
fn content(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut before = Vec::new();
    db.scan(b"", usize::MAX, &mut |key, value| {
        assert!(before.as_slice() < key, "out of order");
        before = key.to_vec();
        all.insert(key.to_vec(), value.to_vec());
    })
    .unwrap();
    all
}

/// Small tables and buffers, so that little data makes many files.
fn small() -> Options {
    Options {
        max_file_size_bytes: 1 << 20,
        write_buffer_bytes: 64 << 10,
        block_cache_bytes: 64 << 10,
        ..Options::default()
    }
}

#[test]
fn what_goes_in_comes_out_also_after_opening_again() {
    let engine = in_memory(64 << 20);
    let vfs = seen(&engine);
    let db = Db::open(&vfs, "/db", &Options::default()).unwrap();
    for number in 0..100 {
        db.put(&key(number), &value(number, 0)).unwrap();
    }
    db.put(&key(7), b"").unwrap();
    db.put(b"\0odd\xff", b"bytes\0inside").unwrap();
    db.delete(&key(8)).unwrap();
    db.delete(b"was never there").unwrap();
    let look = |db: &Db| {
        assert_eq!(db.get(&key(3)).unwrap(), Some(value(3, 0)));
        assert_eq!(db.get(&key(7)).unwrap(), Some(Vec::new()));
        assert_eq!(db.get(&key(8)).unwrap(), None);
        assert_eq!(db.get(b"\0odd\xff").unwrap().as_deref(), Some(&b"bytes\0inside"[..]));
        assert_eq!(db.get(b"").unwrap(), None);
        let mut keys = Vec::new();
        assert_eq!(db.scan(&key(6), 3, &mut |key, _| keys.push(key.to_vec())).unwrap(), 3);
        assert_eq!(keys, [key(6), key(7), key(9)]);
        assert_eq!(
            db.scan(&key(6), 0, &mut |_, _| panic!("none was asked for")).unwrap(),
            0
        );
        assert_eq!(db.scan(&key(98), 10, &mut |_, _| {}).unwrap(), 2);
        assert_eq!(content(db).len(), 100);
    };
    look(&db);
    drop(db);
    let db = Db::open(&vfs, "/db", &Options::default()).unwrap();
    look(&db);
}

/// On every mapping: many files are made, merged and removed, old versions go, and the pool is sound afterwards.
#[test]
fn compaction_keeps_the_newest_of_everything() {
    for &mapping in Mapping::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let engine = pool(Region::create(&path, 96 << 20).unwrap(), mapping);
        let vfs = seen(&engine);
        let db = Db::open(&vfs, "/db", &small()).unwrap();
        let mut model = BTreeMap::new();
        for version in 0..4 {
            for number in 0..2000 {
                // A different order each time.
                let number = (number * 7919 + version * 31) % 2000;
                if (number + version) % 5 == 0 {
                    db.delete(&key(number)).unwrap();
                    model.remove(&key(number));
                } else {
                    db.put(&key(number), &value(number, version)).unwrap();
                    model.insert(key(number), value(number, version));
                }
            }
        }
        assert!(content(&db) == model, "{mapping}: before compaction");
        db.compact().unwrap();
        db.settle();
        assert!(content(&db) == model, "{mapping}: after compaction");
        let tables = tables(&vfs);
        let (len, most) = (
            tables.iter().sum::<u64>(),
            model.values().map(Vec::len).sum::<usize>() as u64,
        );
        assert!(
            (most..most * 5 / 4).contains(&len),
            "{mapping}: {len} bytes of tables for {most} of values"
        );
        drop(db);
        engine.unmount().unwrap();
        drop(vfs);
        drop(engine);
        let report = fsck(Region::open(&path, Access::ReadOnlyPrivate).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "{mapping}: {:?}", report.findings);
        let engine = at(&path);
        let db = Db::open(&seen(&engine), "/db", &small()).unwrap();
        assert!(content(&db) == model, "{mapping}: after mounting again");
    }
}

/// Sizes of the tables of a database.
fn tables(vfs: &Vfs) -> Vec<u64> {
    let mut names = Vec::new();
    vfs.readdir(b"/db", 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    let tables = names.into_iter().filter(|name| name.ends_with(b".ldb"));
    tables
        .map(|name| vfs.stat(&[b"/db/", name.as_slice()].concat(), true).unwrap().size)
        .collect()
}

/// The engine is dropped as a crash would drop it: written data is there, and LevelDB recovers from its log.
#[test]
fn synchronous_writes_survive_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let engine = pool(Region::create(&path, 64 << 20).unwrap(), Mapping::default());
    let options = Options { sync: true, ..small() };
    let db = Db::open(&seen(&engine), "/db", &options).unwrap();
    for number in 0..500 {
        db.put(&key(number), &value(number, 1)).unwrap();
    }
    db.settle();
    // In its present state on the medium, nothing closed and nothing unmounted.
    let copy = dir.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    let after = at(&copy);
    let recovered = Db::open(&seen(&after), "/db", &options).unwrap();
    let found = content(&recovered);
    assert_eq!(found.len(), 500);
    assert!((0..500).all(|number| found[&key(number)] == value(number, 1)));
}

#[test]
fn a_full_pool_is_an_error_and_what_was_written_stays() {
    let engine = in_memory(24 << 20);
    let vfs = seen(&engine);
    let db = Db::open(&vfs, "/db", &small()).unwrap();
    let mut written = 0;
    let error = loop {
        match db.put(&key(written), &value(written, 0).repeat(16)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "24 MiB hold no more than that");
    };
    assert!(
        matches!(&error, DbError::Io(text) if text.contains("no space left")),
        "{error}"
    );
    assert!(written > 100);
    // The pair that did not fit is not there. Compaction may make space for more, or fail too; LevelDB has every pair
    // that it accepts.
    let mut pairs: Vec<u32> = (0..written).collect();
    assert_eq!(db.get(&key(written)).unwrap(), None);
    for number in written + 1..written + 200 {
        match db.put(&key(number), &value(number, 0).repeat(16)) {
            Ok(()) => pairs.push(number),
            Err(DbError::Io(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    db.settle();
    if let Err(error) = db.compact() {
        assert!(matches!(error, DbError::Io(_)), "{error:?}");
    }
    for number in pairs {
        let found = db.get(&key(number)).unwrap();
        assert!(
            found == Some(value(number, 0).repeat(16)),
            "pair {number}, the first {written} went in at once"
        );
    }
}

#[test]
fn a_database_is_open_once() {
    let engine = in_memory(64 << 20);
    let vfs = seen(&engine);
    let db = Db::open(&vfs, "/db", &Options::default()).unwrap();
    let Err(error) = Db::open(&vfs.clone(), "/db", &Options::default()) else {
        panic!("it is open");
    };
    assert!(
        matches!(&error, DbError::Io(text) if text.contains("/db/LOCK") && text.contains("close that one first")),
        "{error}"
    );
    // Another directory is another database, and so is the same one on another pool.
    let other = Db::open(&vfs, "/other", &Options::default()).unwrap();
    let far = in_memory(64 << 20);
    let same_name = Db::open(&seen(&far), "/db", &Options::default()).unwrap();
    db.put(b"still", b"mine").unwrap();
    assert_eq!(other.get(b"still").unwrap(), None);
    assert_eq!(same_name.get(b"still").unwrap(), None);
    drop(db);
    Db::open(&vfs, "/db", &Options::default()).unwrap();
}

#[test]
fn what_cannot_be_opened_says_what_and_why() {
    let engine = in_memory(64 << 20);
    let vfs = seen(&engine);
    let Err(error) = Db::open(&vfs, "/missing/db", &Options::default()) else {
        panic!("there is no directory to make it in");
    };
    assert!(error.to_string().contains("/missing/db"), "{error}");
    // A damaged database is distinguished from a missing one.
    drop(Db::open(&vfs, "/db", &Options::default()).unwrap());
    let flags = OpenFlags {
        write: true,
        truncate: true,
        ..OpenFlags::default()
    };
    vfs.open(b"/db/CURRENT", &flags).unwrap();
    let Err(error) = Db::open(&vfs, "/db", &Options::default()) else {
        panic!("it names no manifest");
    };
    assert!(matches!(error, DbError::Corruption(_)), "{error:?}");
}

/// C++ is between the two, and must not be unwound.
#[test]
fn a_panic_in_a_scan_comes_out_behind_it() {
    let engine = in_memory(64 << 20);
    let db = Db::open(&seen(&engine), "/db", &Options::default()).unwrap();
    db.put(b"a", b"1").unwrap();
    db.put(b"b", b"2").unwrap();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        db.scan(b"", 10, &mut |key, _| assert_ne!(key, b"a", "wanted by this test"))
    }));
    assert!(result.is_err());
    assert_eq!(db.scan(b"", 10, &mut |_, _| {}).unwrap(), 2);
}

#[test]
fn threads_share_a_database() {
    let engine = in_memory(128 << 20);
    let db = &Db::open(&seen(&engine), "/db", &small()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in (thread * 1000)..(thread * 1000 + 500) {
                    db.put(&key(number), &value(number, 0)).unwrap();
                    assert_eq!(db.get(&key(number)).unwrap(), Some(value(number, 0)));
                }
            });
        }
    });
    assert_eq!(content(db).len(), 2000);
}
