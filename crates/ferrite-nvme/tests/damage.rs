//! Damage of every kind that the check knows: it is found, a repair mends it, and the pool is sound afterwards.

use crate::common::Memory;
use ferrite_testkit::TestEngine;
use ferrite_vfs::{
    Cred, FsError, OpenFlags, QUOTA_XATTR, Quota, QuotaAttribute, ROOT_INO, SYSTEM, UserQuotas, Vfs, XattrMode,
};

/// Directories, files in their nodes, beside them and in blobs, a hard link.
fn filled() -> Memory {
    let mut pool = Memory::new(2, 64, 62);
    let vfs = Vfs::new(pool.shared(), Cred::root());
    for dir in [&b"/d"[..], b"/d/sub", b"/e"] {
        vfs.mkdir(dir, 0o755).unwrap();
    }
    for (path, len) in [
        (&b"/small"[..], 100),
        (b"/d/large", 2 << 20),
        (b"/d/sub/other", 50_000),
        (b"/e/beside", 10_000),
    ] {
        let flags = OpenFlags {
            write: true,
            create: true,
            mode: 0o644,
            ..OpenFlags::default()
        };
        vfs.open(path, &flags)
            .unwrap()
            .write_at(SYSTEM, 0, &vec![7; len])
            .unwrap();
    }
    vfs.link(b"/small", b"/d/again").unwrap();
    drop(vfs);
    // Blobs made in advance are given back, and no node is behind.
    pool.remount();
    pool.check();
    pool
}

/// Keys of a kind that the store has, and values.
fn all(pool: &Memory, kind: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    pool.meta()
        .scan(&[kind], &[kind + 1], &mut |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    found
}

fn put(pool: &Memory, key: &[u8], value: Option<&[u8]>) {
    let mut txn = pool.meta().begin();
    match value {
        Some(value) => txn.put(key, value).unwrap(),
        None => txn.delete(key).unwrap(),
    }
    txn.commit().unwrap();
}

/// Numbers of links of the directories that can be found.
fn links(pool: &Memory) -> Vec<(&'static str, u32)> {
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let of = |path: &'static str| Some((path, vfs.stat(path.as_bytes(), false).ok()?.nlink));
    ["/", "/d", "/d/sub", "/e", "/lost+found"]
        .into_iter()
        .filter_map(of)
        .collect()
}

/// Damages a pool that is closed; the check finds something, a repair mends it, and the next opening finds it sound.
fn mended(what: &str, damage: impl FnOnce(&mut Memory)) -> Memory {
    mended_in(filled(), what, damage)
}

fn mended_in(mut pool: Memory, what: &str, damage: impl FnOnce(&mut Memory)) -> Memory {
    pool.close();
    damage(&mut pool);
    pool.open();
    let report = pool.engine().check().unwrap();
    assert!(!report.findings.is_empty(), "{what}: not found");
    let repaired = pool.engine().repair().unwrap();
    assert!(!repaired.mended.is_empty(), "{what}: not mended: {report:#?}");
    assert!(
        repaired.after.findings.is_empty(),
        "{what}: left: {:#?}",
        repaired.after
    );
    // Directories that the repair used rest in memory, and must not stay there in their old state.
    let before = links(&pool);
    pool.remount();
    assert_eq!(links(&pool), before, "{what}");
    pool.check();
    pool
}

fn exists(pool: &Memory, path: &str) -> bool {
    let vfs = Vfs::new(pool.shared(), Cred::root());
    match vfs.stat(path.as_bytes(), false) {
        Ok(_) => true,
        Err(FsError::NotFound) => false,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// The inode of a path.
fn ino(pool: &Memory, path: &str) -> u64 {
    let vfs = Vfs::new(pool.shared(), Cred::root());
    vfs.stat(path.as_bytes(), false).unwrap().ino
}

#[test]
fn every_edge_that_goes_leaves_its_inode_in_lost_and_found() {
    let count = all(&filled(), b'E').len();
    for at in 0..count {
        let pool = mended(&format!("edge {at}"), |pool| {
            let (key, _) = all(pool, b'E').swap_remove(at);
            put(pool, &key, None);
        });
        // Seven inodes and the root; one of them has two names.
        let vfs = Vfs::new(pool.shared(), Cred::root());
        let report = pool.engine().check().unwrap();
        let gained = u64::from(exists(&pool, "/lost+found"));
        assert_eq!(report.inodes, 8 + gained, "edge {at}");
        assert!(vfs.stat(b"/", true).is_ok());
    }
}

#[test]
fn every_node_that_goes_takes_only_its_names() {
    let nodes = all(&filled(), b'N');
    for (key, _) in nodes.iter().skip(1) {
        mended(&format!("node {key:?}"), |pool| put(pool, key, None));
    }
}

#[test]
fn numbers_of_links_are_counted() {
    let nodes = all(&filled(), b'N');
    for (key, value) in &nodes {
        let mut value = value.clone();
        // The field after version, flags and mode.
        value[6] ^= 4;
        mended(&format!("links of {key:?}"), |pool| put(pool, key, Some(&value)));
    }
}

/// Attributes that cannot be read at all are named and removed: those of a file, and of the root directory.
#[test]
fn attributes_that_cannot_be_read_are_mended() {
    for path in ["/", "/d"] {
        let pool = filled();
        let ino = ino(&pool, path);
        let set = |name: &[u8], value: &[u8]| pool.fs().setxattr(SYSTEM, ino, name, value, XattrMode::Any);
        set(b"user.note", b"lost").unwrap();
        let pool = mended_in(pool, &format!("the attributes of {path}"), |pool| {
            let key = [&b"A"[..], &ino.to_be_bytes()].concat();
            let mut value = pool.meta().get(&key).unwrap().unwrap();
            value.pop();
            put(pool, &key, Some(&value));
        });
        let fs = pool.fs();
        assert_eq!(fs.getxattr(SYSTEM, ino, b"user.note"), Err(FsError::NoAttribute));
        fs.setxattr(SYSTEM, ino, b"user.note", b"again", XattrMode::Any)
            .unwrap();
        pool.check();
    }
}

/// Quotas of users that cannot be read are removed, and nothing else of the root directory.
#[test]
fn quotas_of_users_are_mended() {
    let quota = QuotaAttribute::User(5).name();
    for damage in [0, 1] {
        let pool = filled();
        let set = |name: &[u8], value: &[u8]| pool.fs().setxattr(SYSTEM, ROOT_INO, name, value, XattrMode::Any);
        set(b"user.note", b"kept").unwrap();
        set(&quota, b"limit_inodes=9").unwrap();
        let pool = mended_in(pool, &format!("byte {damage} of the quotas of users"), |pool| {
            let key = [&b"A"[..], &ROOT_INO.to_be_bytes()].concat();
            let mut value = pool.meta().get(&key).unwrap().unwrap();
            let name = value
                .windows(UserQuotas::NAME.len())
                .position(|part| part == UserQuotas::NAME);
            let content = name.unwrap() + UserQuotas::NAME.len() + 1;
            match damage {
                // The version; the number of the user.
                0 => value[content] ^= 1,
                _ => value[content + 1..content + 5].fill(0),
            }
            put(pool, &key, Some(&value));
        });
        let found = pool.fs().getxattr(SYSTEM, ROOT_INO, &quota);
        assert_eq!(found, Err(FsError::NoAttribute));
        let kept = pool.fs().getxattr(SYSTEM, ROOT_INO, b"user.note");
        assert_eq!(kept.as_deref(), Ok(&b"kept"[..]));
    }
}

/// Each part of a quota: its record, what names it, and its count.
#[test]
fn quotas_are_mended() {
    let with_quota = || {
        let pool = filled();
        let set = pool
            .fs()
            .setxattr(SYSTEM, ino(&pool, "/d"), QUOTA_XATTR, b"limit_inodes=9", XattrMode::Any);
        set.unwrap();
        pool
    };
    let quota = |pool: &Memory, path: &str| {
        let text = pool.fs().getxattr(SYSTEM, ino(pool, path), QUOTA_XATTR);
        text.map(|text| Quota::parse(&text).unwrap())
    };
    let whole = quota(&with_quota(), "/d").unwrap();
    assert_eq!(whole.used_inodes, 5);
    let dir = whole.root;
    let record = |pool: &Memory| all(pool, b'Q').swap_remove(0);
    let node = |ino: u64| [&b"N"[..], &ino.to_be_bytes()].concat();
    // Its number is behind the times.
    let naming = |pool: &Memory, ino: u64, quota: u64| {
        let key = node(ino);
        let mut value = pool.meta().get(&key).unwrap().unwrap();
        value[86..94].copy_from_slice(&quota.to_le_bytes());
        put(pool, &key, Some(&value));
    };
    let pool = mended_in(with_quota(), "no record", |pool| {
        let (key, _) = record(pool);
        put(pool, &key, None);
    });
    let found = quota(&pool, "/d/sub/other").unwrap();
    assert_eq!((found.limits.inodes, found.used_inodes), (0, 5), "without limits");
    mended_in(with_quota(), "a record cut short", |pool| {
        let (key, value) = record(pool);
        put(pool, &key, Some(&value[..20]));
    });
    mended_in(with_quota(), "a record of no quota", |pool| {
        let (key, value) = record(pool);
        let other = [&key[..8], &[77]].concat();
        put(pool, &other, Some(&value));
    });
    let pool = mended_in(with_quota(), "a count that is wrong", |pool| {
        let (key, mut value) = record(pool);
        value[17] ^= 1;
        put(pool, &key, Some(&value));
    });
    assert_eq!(quota(&pool, "/d").unwrap(), whole);
    for other in [1 << 40, 1] {
        let mut sub = 0;
        let pool = mended_in(with_quota(), "a directory that counts for another", |pool| {
            pool.open();
            sub = ino(pool, "/d/sub");
            pool.close();
            naming(pool, sub, other);
        });
        assert_eq!(quota(&pool, "/d").unwrap(), whole);
        assert_eq!(quota(&pool, "/d/sub").unwrap().root, dir);
    }
    // In lost+found it counts for none.
    let pool = mended_in(with_quota(), "a directory without a name", |pool| {
        let edges = all(pool, b'E');
        let (key, _) = edges.into_iter().find(|(key, _)| key.ends_with(b"sub")).unwrap();
        put(pool, &key, None);
    });
    assert_eq!(
        quota(&pool, "/d").unwrap().used_inodes,
        4,
        "a file keeps the quota it names"
    );
    assert_eq!(quota(&pool, "/lost+found"), Err(FsError::NoAttribute));
}

#[test]
fn edges_of_directories_repeat_their_nodes() {
    let pool = filled();
    let dirs: Vec<_> = all(&pool, b'E')
        .into_iter()
        .filter(|(_, value)| value.len() > 13)
        .collect();
    assert_eq!(dirs.len(), 3);
    for (key, value) in dirs {
        let mut value = value.clone();
        value[9] ^= 1;
        mended("mode in an edge", |pool| put(pool, &key, Some(&value)));
    }
}

#[test]
fn a_file_whose_blob_is_gone_is_named_so() {
    let pool = mended("blob", |pool| {
        let stores = pool.stores();
        let used = stores.iter().find(|store| !store.ids().unwrap().is_empty()).unwrap();
        used.delete(used.ids().unwrap()[0]).unwrap();
    });
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let root = vfs.stat(b"/lost+found", true).unwrap().ino;
    let mut names = Vec::new();
    pool.fs()
        .readdir(SYSTEM, root, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
    assert!(names.iter().any(|name| name.starts_with("damaged-")), "{names:?}");
}

#[test]
fn blobs_that_nothing_names_are_deleted() {
    let pool = mended("leak", |pool| {
        let stores = pool.stores();
        let ids = stores[0].reserve(1).unwrap();
        stores[0].create(ids[0], b"").unwrap();
    });
    assert!(exists(&pool, "/d/large") && exists(&pool, "/small"));
}

/// The content of a blob may be all that is left of a file.
#[test]
fn blobs_that_nothing_names_and_that_hold_something_become_files() {
    let pool = mended("the node of a file", |pool| {
        pool.open();
        let mut key = vec![b'N'];
        key.extend_from_slice(&ino(pool, "/d/large").to_be_bytes());
        pool.close();
        put(pool, &key, None);
    });
    assert!(!exists(&pool, "/d/large"));
    let names = lost(&pool);
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].starts_with("/lost+found/#"), "{names:?}");
    assert_eq!(content(&pool, &names[0]), Ok(vec![7; 2 << 20]));
    // A blob that never got a file's metadata has at least a length.
    let pool = mended("a blob", |pool| {
        let stores = pool.stores();
        let id = stores[1].reserve(1).unwrap()[0];
        stores[1]
            .create(id, b"")
            .unwrap()
            .write_at(&[5; 9000], 0, None)
            .unwrap();
        stores.into_iter().for_each(|store| store.close().unwrap());
    });
    let names = lost(&pool);
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(content(&pool, &names[0]), Ok(vec![5; 9000]));
    assert!(exists(&pool, "/d/large"));
}

/// The newer page of the slot of a file's blob is damaged after a close: the file must not read as zeros where it was
/// written last.
#[test]
fn a_file_of_which_an_older_state_is_left_is_named_and_kept() {
    use ferrite_blob::PAGE_BYTES;
    let mut pool = Memory::new(1, 64, 62);
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let flags = OpenFlags {
        read: true,
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    let file = vfs.open(b"/f", &flags).unwrap();
    file.write_at(SYSTEM, 0, &[1; 100_000]).unwrap();
    file.write_at(SYSTEM, 100_000, &[2; 1 << 20]).unwrap();
    drop((file, vfs));
    pool.close();
    let image = pool.device(0).image();
    let field = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    let heads = image.chunks(PAGE_BYTES).enumerate();
    let newest = heads
        .filter(|(_, page)| page[..4] == *b"BlHd" && page[12] == 1 && field(page, 32) > 0)
        .max_by_key(|(_, page)| field(page, 24));
    let at = newest.unwrap().0 * PAGE_BYTES;
    let mut damaged = image.clone();
    damaged[at + 3000] ^= 1;
    pool.replace_device(0, damaged);
    pool.open();
    assert!(
        matches!(content(&pool, "/f"), Err(FsError::Damaged { .. })),
        "no zeros for what was written"
    );
    let report = pool.engine().check().unwrap();
    assert!(
        report.findings.iter().any(|finding| finding.what.contains("inode")),
        "{report:#?}"
    );
    let repaired = pool.engine().repair().unwrap();
    assert!(repaired.after.findings.is_empty(), "{:#?}", repaired.after);
    pool.remount();
    pool.check();
    assert!(!exists(&pool, "/f"));
    let names = lost(&pool);
    assert!(
        names.len() == 1 && names[0].starts_with("/lost+found/damaged-"),
        "{names:?}"
    );
    let found = content(&pool, &names[0]).unwrap();
    assert!(found.len() == 100_000 + (1 << 20) && found[..100_000].iter().all(|&byte| byte == 1));
}

#[test]
fn records_about_nothing_go() {
    for kind in [b'O', b'D', b'A', b'S'] {
        let mut key = vec![kind];
        key.extend_from_slice(&4000_u64.to_be_bytes());
        let mut pool = filled();
        pool.close();
        put(&pool, &key, Some(b""));
        pool.open();
        // Opening mends some, a repair the others.
        pool.engine().repair().unwrap();
        assert!(pool.engine().check().unwrap().findings.is_empty());
        assert!(
            all(&pool, kind).iter().all(|(found, _)| *found != key),
            "{}",
            kind as char
        );
    }
}

/// The contents of lost+found.
fn lost(pool: &Memory) -> Vec<String> {
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let dir = vfs.stat(b"/lost+found", true).unwrap().ino;
    let mut names = Vec::new();
    let mut sink = |entry: &ferrite_vfs::DirEntry<'_>| {
        names.push(format!("/lost+found/{}", entry.name.escape_ascii()));
        true
    };
    pool.fs().readdir(SYSTEM, dir, 0, &mut sink).unwrap();
    names
}

fn content(pool: &Memory, path: &str) -> Result<Vec<u8>, FsError> {
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let flags = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    let file = vfs.open(path.as_bytes(), &flags)?;
    let mut bytes = vec![0; file.getattr(SYSTEM)?.size as usize];
    file.read_at(SYSTEM, 0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn content_beside_a_node_is_what_the_node_tells_of() {
    let changed = |change: fn(&mut Vec<u8>)| {
        mended("content beside a node", |pool| {
            let (key, mut value) = all(pool, b'S').swap_remove(0);
            change(&mut value);
            put(pool, &key, Some(&value));
            pool.open();
            let read = content(pool, "/e/beside");
            assert!(matches!(read, Err(FsError::Damaged { .. })), "{read:?}");
            pool.close();
        })
    };
    for (change, len) in [
        ((|bytes| bytes[5000] ^= 1) as fn(&mut Vec<u8>), 10_000),
        (|bytes| bytes.truncate(3000), 3000),
        (|bytes| bytes.truncate(30), 30),
        (|bytes| bytes.extend([1; 3000]), 10_000),
    ] {
        let pool = changed(change);
        let names = lost(&pool);
        assert_eq!(names.len(), 1, "{names:?}");
        let found = content(&pool, &names[0]).unwrap();
        assert_eq!(found.len(), 10_000);
        let zeros = found.iter().filter(|&&byte| byte == 0).count();
        assert_eq!(zeros, 10_000 - len, "the file goes on with zeros");
    }
}

#[test]
fn a_file_without_its_content_is_named_so() {
    let pool = mended("no content", |pool| {
        let (key, _) = all(pool, b'S').swap_remove(0);
        put(pool, &key, None);
    });
    assert_eq!(content(&pool, &lost(&pool)[0]).unwrap(), b"");
    assert!(!exists(&pool, "/e/beside"));
}

#[test]
fn content_of_files_that_have_theirs_elsewhere_goes() {
    for path in ["/small", "/d/large", "/d"] {
        let pool = mended(path, |pool| {
            pool.open();
            let mut key = vec![b'S'];
            key.extend_from_slice(&ino(pool, path).to_be_bytes());
            pool.close();
            put(pool, &key, Some(&[1; 3000]));
        });
        assert!(exists(&pool, path) && !exists(&pool, "/lost+found"));
        assert_eq!(all(&pool, b'S').len(), 1);
    }
}

/// A node that cannot be read may be mended by hand; its content may be whole.
#[test]
fn content_of_a_node_that_cannot_be_read_stays() {
    let mut pool = filled();
    pool.close();
    let (key, _) = all(&pool, b'S').swap_remove(0);
    let mut node = key.clone();
    node[0] = b'N';
    put(&pool, &node, Some(b"?"));
    pool.open();
    pool.engine().repair().unwrap();
    assert_eq!(all(&pool, b'S').len(), 1);
}

/// The metadata of one file's blob names the clusters of another's.
#[test]
fn files_that_claim_one_place_come_apart() {
    use ferrite_blob::PAGE_BYTES;
    const NAMES: [&str; 8] = ["s", "t", "u", "v", "w", "x", "y", "z"];
    let mut pool = filled();
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let flags = OpenFlags {
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    for (byte, name) in (1..).zip(NAMES) {
        let opened = vfs.open(format!("/{name}").as_bytes(), &flags).unwrap();
        opened.write_at(SYSTEM, 0, &vec![byte; 50_000]).unwrap();
    }
    drop(vfs);
    pool.close();
    // Of a store, the heads of blobs with one piece of four units: the second gets the piece of the first.
    let image = pool.device(0).image();
    let of_slot = |page: &[u8]| u32::from_le_bytes(page[16..20].try_into().unwrap());
    let generation = |page: &[u8]| u64::from_le_bytes(page[24..32].try_into().unwrap());
    let mut heads: Vec<(usize, &[u8])> = image.chunks(PAGE_BYTES).enumerate().collect();
    heads.retain(|(_, page)| page[..4] == *b"BlHd");
    heads.sort_by_key(|(_, page)| (of_slot(page), std::cmp::Reverse(generation(page))));
    heads.dedup_by_key(|(_, page)| of_slot(page));
    heads.retain(|(_, page)| page[12] == 1 && page[40] == 1 && page[824..828] == [4, 0, 0, 0]);
    let ((_, first), (at, second)) = (heads[0], heads[1]);
    let mut page = second.to_vec();
    page[816..828].copy_from_slice(&first[816..828]);
    page[8..12].fill(0);
    let crc = crc32c::crc32c(&page);
    page[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut damaged = image.clone();
    damaged[at * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&page);
    pool.replace_device(0, damaged);
    pool.open();
    let report = pool.engine().check().unwrap();
    let said: Vec<&str> = report.findings.iter().filter_map(|finding| finding.mend).collect();
    let apart = "it gets copies of them, and is moved to lost+found as it is";
    assert!(said.contains(&apart), "{report:#?}");
    // Until then they are readable, but not writable.
    let mut refused = 0;
    let files = (1..).zip(NAMES.map(|name| format!("/{name}")));
    for (byte, path) in files.chain([(7, "/d/sub/other".to_owned())]) {
        let vfs = Vfs::new(pool.shared(), Cred::root());
        let opened = vfs
            .open(path.as_bytes(), &OpenFlags { create: false, ..flags })
            .unwrap();
        match opened.write_at(SYSTEM, 100, &[byte; 10]) {
            Err(FsError::Damaged(_)) => refused += 1,
            result => assert_eq!(result, Ok(10), "{path}"),
        }
        drop((opened, vfs));
        assert_eq!(content(&pool, &path).map(|found| found.len()), Ok(50_000), "{path}");
    }
    assert_eq!(refused, 2, "of both that claim it");
    let repaired = pool.engine().repair().unwrap();
    assert!(repaired.after.findings.is_empty(), "{:#?}", repaired.after);
    pool.remount();
    pool.check();
    let names = lost(&pool);
    assert_eq!(names.len(), 1, "{names:?}");
    let copy = content(&pool, &names[0]).unwrap();
    // The original owner has it still; no other file is touched.
    let mut equal = usize::from(content(&pool, "/d/sub/other").is_ok_and(|found| found == copy));
    for (byte, name) in (1_u8..).zip(NAMES) {
        if let Ok(found) = content(&pool, &format!("/{name}")) {
            assert!(found == vec![byte; 50_000], "{name}");
            equal += usize::from(found == copy);
        }
    }
    assert_eq!(equal, 1);
}

#[test]
fn a_directory_below_itself_comes_out() {
    let pool = mended("circle", |pool| {
        // The name of `d` in the root goes; `d` is in its own subdirectory instead.
        pool.open();
        let (d, sub) = (ino(pool, "/d"), ino(pool, "/d/sub"));
        pool.close();
        let edges = all(pool, b'E');
        let (key, value) = edges
            .iter()
            .find(|(_, value)| value[1..9] == d.to_le_bytes())
            .cloned()
            .unwrap();
        put(pool, &key, None);
        let mut moved = key.clone();
        moved[1..9].copy_from_slice(&sub.to_be_bytes());
        put(pool, &moved, Some(&value));
    });
    assert!(exists(&pool, "/lost+found"));
}
