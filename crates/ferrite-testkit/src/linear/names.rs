//! Concurrent changes of names whose results can be checked directly: counts, winners, cycles, listings.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferrite_vfs::{FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, RenameMode, SYSTEM};

use super::data::make_file;
use super::{Check, together};
use crate::rng::Rng;

/// Time limits of checks that look for rare moments: for engines whose calls take nanoseconds, and for those that ask a
/// device or a server, where the moments are as long as the calls.
const LONGEST: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(4)];

pub(super) fn checks() -> [Check; 7] {
    [
        Check {
            name: "linear/one directory, many makers and removers",
            run: counts,
        },
        Check {
            name: "linear/one winner",
            run: winners,
        },
        Check {
            name: "linear/crossing renames of directories make no cycle",
            run: cycles,
        },
        Check {
            name: "linear/a replaced name is never missing",
            run: replace,
        },
        Check {
            name: "linear/a name leads to what has one",
            run: named,
        },
        Check {
            name: "linear/listings during changes",
            run: listings,
        },
        Check {
            name: "linear/unlink, open, pin of the same files",
            run: reuse,
        },
    ]
}

fn make_dir(fs: &dyn FileSystem, parent: Ino, name: &str) -> Ino {
    fs.mkdir(SYSTEM, parent, name.as_bytes(), 0o755)
        .unwrap_or_else(|e| panic!("mkdir {name}: {e}"))
        .ino
}

fn list(fs: &dyn FileSystem, dir: Ino) -> Vec<(Vec<u8>, FileKind)> {
    let mut entries = Vec::new();
    fs.readdir(SYSTEM, dir, 0, &mut |entry| {
        entries.push((entry.name.to_vec(), entry.kind));
        true
    })
    .expect("readdir");
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries
}

fn counts(fs: &dyn FileSystem, seed: u64) {
    const THREADS: usize = 4;
    let (one, two) = (make_dir(fs, ROOT_INO, "one"), make_dir(fs, ROOT_INO, "two"));
    let results = std::sync::Mutex::new(BTreeMap::new());
    together(THREADS, |thread| {
        let mut rng = Rng::new(seed + thread as u64);
        // Each thread knows what its own names must be, in shared directories.
        let mut own: BTreeMap<(Ino, String), FileKind> = BTreeMap::new();
        for step in 0..1200 {
            let dir = *rng.pick(&[one, two]);
            let name = format!("t{thread}.{}", rng.below(40));
            let taken = own.get(&(dir, name.clone())).copied();
            let bytes = name.as_bytes();
            match rng.below(4) {
                0 | 1 if rng.chance(70) => {
                    let node = NewNode {
                        kind: FileKind::File,
                        mode: 0o644,
                        rdev: 0,
                    };
                    let made = fs.mknod(SYSTEM, dir, bytes, &node).map(drop);
                    assert_eq!(
                        made,
                        taken.map_or(Ok(()), |_| Err(FsError::Exists)),
                        "step {step} of {thread}"
                    );
                    own.entry((dir, name)).or_insert(FileKind::File);
                }
                0 | 1 => {
                    let made = fs.mkdir(SYSTEM, dir, bytes, 0o755).map(drop);
                    assert_eq!(
                        made,
                        taken.map_or(Ok(()), |_| Err(FsError::Exists)),
                        "step {step} of {thread}"
                    );
                    own.entry((dir, name)).or_insert(FileKind::Directory);
                }
                2 => {
                    let (removed, expected) = match taken {
                        Some(FileKind::Directory) => (fs.rmdir(SYSTEM, dir, bytes), Ok(())),
                        Some(_) => (fs.unlink(SYSTEM, dir, bytes), Ok(())),
                        None => (fs.unlink(SYSTEM, dir, bytes), Err(FsError::NotFound)),
                    };
                    assert_eq!(removed, expected, "step {step} of {thread}");
                    own.remove(&(dir, name));
                }
                _ => {
                    let new_dir = *rng.pick(&[one, two]);
                    let new_name = format!("t{thread}.{}", rng.below(40));
                    let free = !own.contains_key(&(new_dir, new_name.clone()));
                    let mode = RenameMode::NoReplace;
                    let renamed = fs.rename(SYSTEM, dir, bytes, new_dir, new_name.as_bytes(), mode);
                    let expected = match taken {
                        None => Err(FsError::NotFound),
                        Some(_) if free => Ok(()),
                        Some(_) => Err(FsError::Exists),
                    };
                    assert_eq!(renamed, expected, "step {step} of {thread}");
                    if renamed.is_ok() {
                        let kind = own.remove(&(dir, name)).expect("the name was there");
                        own.insert((new_dir, new_name), kind);
                    }
                }
            }
        }
        results.lock().expect("no thread panicked").extend(own);
    });
    let results = results.into_inner().expect("no thread panicked");
    for dir in [one, two] {
        let mut expected: Vec<_> = results
            .iter()
            .filter(|((in_dir, _), _)| *in_dir == dir)
            .map(|((_, name), kind)| (name.clone().into_bytes(), *kind))
            .collect();
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(list(fs, dir), expected);
        let directories = expected.iter().filter(|(_, kind)| *kind == FileKind::Directory).count();
        assert_eq!(
            fs.getattr(SYSTEM, dir).expect("getattr").nlink as usize,
            2 + directories
        );
    }
}

/// Of several threads that want to create, remove, move or link the same name, exactly one succeeds.
fn winners(fs: &dyn FileSystem, _seed: u64) {
    let dir = make_dir(fs, ROOT_INO, "d");
    let source = make_file(fs, ROOT_INO, "source");
    let race = |what: &str, op: &(dyn Fn(usize) -> Result<(), FsError> + Sync), loser: FsError| {
        let won = AtomicUsize::new(0);
        together(3, |thread| match op(thread) {
            Ok(()) => drop(won.fetch_add(1, Ordering::Relaxed)),
            Err(error) => assert_eq!(error, loser, "{what}"),
        });
        assert_eq!(won.into_inner(), 1, "{what}: one wins");
    };
    for _ in 0..120 {
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        race(
            "mknod",
            &|_| fs.mknod(SYSTEM, dir, b"x", &node).map(drop),
            FsError::Exists,
        );
        let rename = |thread: usize| {
            fs.rename(
                SYSTEM,
                dir,
                b"x",
                dir,
                format!("y{thread}").as_bytes(),
                RenameMode::Replace,
            )
        };
        race("rename", &rename, FsError::NotFound);
        let name = list(fs, dir).pop().expect("the renamed file").0;
        race("unlink", &|_| fs.unlink(SYSTEM, dir, &name), FsError::NotFound);
        race(
            "mkdir",
            &|_| fs.mkdir(SYSTEM, dir, b"x", 0o755).map(drop),
            FsError::Exists,
        );
        race("rmdir", &|_| fs.rmdir(SYSTEM, dir, b"x"), FsError::NotFound);
        race(
            "link",
            &|_| fs.link(SYSTEM, source, dir, b"x").map(drop),
            FsError::Exists,
        );
        race("unlink of a link", &|_| fs.unlink(SYSTEM, dir, b"x"), FsError::NotFound);
        assert_eq!(fs.getattr(SYSTEM, source).expect("getattr").nlink, 1);
        assert_eq!(
            (list(fs, dir).len(), fs.getattr(SYSTEM, dir).expect("getattr").nlink),
            (0, 2)
        );
    }
}

/// `a -> b/a` against `b -> a/b`: both at once would cut the two off the tree; and neither may deadlock.
fn cycles(fs: &dyn FileSystem, _seed: u64) {
    for _ in 0..200 {
        let (a, b) = (make_dir(fs, ROOT_INO, "a"), make_dir(fs, ROOT_INO, "b"));
        let moved = AtomicUsize::new(0);
        together(2, |thread| {
            let (name, into) = if thread == 0 { ("a", b) } else { ("b", a) };
            match fs.rename(
                SYSTEM,
                ROOT_INO,
                name.as_bytes(),
                into,
                name.as_bytes(),
                RenameMode::Replace,
            ) {
                Ok(()) => drop(moved.fetch_add(1, Ordering::Relaxed)),
                Err(error) => assert!(
                    matches!(error, FsError::Invalid(_)),
                    "the loser would make a cycle: {error}"
                ),
            }
        });
        assert_eq!(moved.into_inner(), 1, "exactly one of two crossing renames can be");
        let outer = list(fs, ROOT_INO)
            .into_iter()
            .map(|(name, _)| name)
            .find(|name| name == b"a" || name == b"b");
        let outer = outer.expect("one of the two is still in the root");
        let (outer_ino, inner) = if outer == b"a" { (a, &b"b"[..]) } else { (b, &b"a"[..]) };
        fs.rmdir(SYSTEM, outer_ino, inner).expect("rmdir");
        fs.rmdir(SYSTEM, ROOT_INO, &outer).expect("rmdir");
    }
    assert_eq!(fs.getattr(SYSTEM, ROOT_INO).expect("getattr").nlink, 2);
}

/// Editors save like this: a new file replaces the old by rename. No reader may ever miss the name or see a part.
fn replace(fs: &dyn FileSystem, _seed: u64) {
    let save = |name: &str, byte: u8| {
        let ino = make_file(fs, ROOT_INO, name);
        let file = fs.open(SYSTEM, ino, OpenMode::read_write()).expect("open");
        assert_eq!(file.write_at(SYSTEM, 0, &[byte; 6000]), Ok(6000));
    };
    save("document", 1);
    let stop = AtomicBool::new(false);
    together(3, |thread| {
        if thread == 0 {
            for round in 0..500u32 {
                save("document.new", round as u8 | 1);
                fs.rename(
                    SYSTEM,
                    ROOT_INO,
                    b"document.new",
                    ROOT_INO,
                    b"document",
                    RenameMode::Replace,
                )
                .expect("rename");
            }
            stop.store(true, Ordering::Release);
            return;
        }
        let mut buffer = [0; 7000];
        while !stop.load(Ordering::Acquire) {
            let attr = fs
                .lookup(SYSTEM, ROOT_INO, b"document")
                .expect("the name is never missing");
            assert_eq!(attr.nlink, 1);
            // Between lookup and open the file may be replaced and freed: the pin detects that.
            if fs.pin(SYSTEM, attr.ino, attr.generation).is_err() {
                continue;
            }
            let file = fs
                .open(SYSTEM, attr.ino, OpenMode::read_only())
                .expect("open of a pinned file");
            assert_eq!(file.read_at(SYSTEM, 0, &mut buffer), Ok(6000), "the whole document");
            assert!(buffer[..6000].iter().all(|&byte| byte == buffer[0] && byte != 0));
            fs.unpin(SYSTEM, attr.ino, 1);
        }
    });
}

/// A lookup returns attributes that were true of an inode while the name led there. For an inode that was replaced
/// meanwhile, and that another thread keeps open, it does not return a link count of 0.
fn named(fs: &dyn FileSystem, _seed: u64) {
    make_file(fs, ROOT_INO, "name");
    let stop = AtomicBool::new(false);
    together(4, |thread| {
        if thread == 0 {
            let (began, longest) = (Instant::now(), LONGEST[usize::from(fs.limits().may_block)]);
            for _ in 0..100_000 {
                // Over an emulated adapter each takes a millisecond, and a check that takes minutes counts as
                // deadlocked.
                if began.elapsed() > longest {
                    break;
                }
                make_file(fs, ROOT_INO, "new");
                fs.rename(SYSTEM, ROOT_INO, b"new", ROOT_INO, b"name", RenameMode::Replace)
                    .expect("rename");
            }
            stop.store(true, Ordering::Release);
            return;
        }
        while !stop.load(Ordering::Acquire) {
            let attr = fs.lookup(SYSTEM, ROOT_INO, b"name").expect("the name is never missing");
            if attr.nlink != 1 {
                stop.store(true, Ordering::Release);
                panic!("inode {} with {} names", attr.ino, attr.nlink);
            }
            if fs.pin(SYSTEM, attr.ino, attr.generation).is_ok() {
                // Kept open for a moment, so that others find it without a name.
                std::thread::yield_now();
                fs.unpin(SYSTEM, attr.ino, 1);
            }
        }
    });
}

/// Entries that stay throughout a listing come exactly once while other threads create and remove others.
fn listings(fs: &dyn FileSystem, seed: u64) {
    let dir = make_dir(fs, ROOT_INO, "d");
    for index in 0..300 {
        make_file(fs, dir, &format!("stays {index}"));
    }
    let stop = AtomicBool::new(false);
    together(3, |thread| {
        if thread == 0 {
            for round in 0..60 {
                let (mut seen, mut cookie, mut last) = (BTreeMap::<Vec<u8>, usize>::new(), 0, usize::MAX);
                while last > 0 {
                    last = 0;
                    fs.readdir(SYSTEM, dir, cookie, &mut |entry| {
                        if last == 17 {
                            return false;
                        }
                        last += 1;
                        cookie = entry.next_cookie;
                        *seen.entry(entry.name.to_vec()).or_default() += 1;
                        true
                    })
                    .expect("readdir");
                }
                for index in 0..300 {
                    let times = seen.get(format!("stays {index}").as_bytes()).copied().unwrap_or(0);
                    assert_eq!(times, 1, "entry {index} in listing {round}");
                }
            }
            stop.store(true, Ordering::Release);
            return;
        }
        let mut rng = Rng::new(seed + thread as u64);
        while !stop.load(Ordering::Acquire) {
            let name = format!(
                "comes and goes {thread} {}{}",
                rng.below(100),
                "x".repeat(rng.below(60) as usize)
            );
            make_file(fs, dir, &name);
            if rng.chance(30) {
                fs.rename(
                    SYSTEM,
                    dir,
                    name.as_bytes(),
                    dir,
                    format!("{name}'").as_bytes(),
                    RenameMode::Replace,
                )
                .expect("rename");
                fs.unlink(SYSTEM, dir, format!("{name}'").as_bytes()).expect("unlink");
            } else {
                fs.unlink(SYSTEM, dir, name.as_bytes()).expect("unlink");
            }
        }
    });
    assert_eq!(list(fs, dir).len(), 300);
}

/// An inode that a reader pinned or opened stays the same file, although its name is removed and numbers are reused.
fn reuse(fs: &dyn FileSystem, _seed: u64) {
    let stop = AtomicBool::new(false);
    together(3, |thread| {
        if thread == 0 {
            for round in 0..1500u32 {
                let ino = make_file(fs, ROOT_INO, "f");
                let file = fs.open(SYSTEM, ino, OpenMode::read_write()).expect("open");
                assert_eq!(file.write_at(SYSTEM, 0, &round.to_le_bytes().repeat(300)), Ok(1200));
                drop(file);
                fs.unlink(SYSTEM, ROOT_INO, b"f").expect("unlink");
            }
            stop.store(true, Ordering::Release);
            return;
        }
        let mut buffer = [0; 2000];
        while !stop.load(Ordering::Acquire) {
            let Ok(attr) = fs.lookup(SYSTEM, ROOT_INO, b"f") else {
                continue;
            };
            if fs.pin(SYSTEM, attr.ino, attr.generation).is_err() {
                continue;
            }
            let now = fs.getattr(SYSTEM, attr.ino).expect("getattr of a pinned inode");
            assert_eq!(
                (now.generation, now.btime),
                (attr.generation, attr.btime),
                "another file took the pinned inode"
            );
            let file = fs
                .open(SYSTEM, attr.ino, OpenMode::read_only())
                .expect("open of a pinned file");
            fs.unpin(SYSTEM, attr.ino, 1);
            let count = file.read_at(SYSTEM, 0, &mut buffer).expect("read of an open file");
            assert!(count == 0 || count == 1200, "{count} bytes: a state that never was");
            assert!(
                buffer[..count].chunks(4).all(|word| word == &buffer[..4]),
                "bytes of two files"
            );
        }
    });
    assert!(list(fs, ROOT_INO).is_empty());
}
