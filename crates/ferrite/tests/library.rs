//! The public API, as a program uses it: on a pool, and in memory.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{create, on_both};
use ferrite::{Cred, FallocateMode, Fs, OpenOptions, RenameMode};

#[test]
fn files_are_read_written_and_sought() {
    on_both(|fs| {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(fs, "/f")
            .unwrap();
        file.write_all(b"hello world").unwrap();
        file.seek(SeekFrom::Start(6)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "world");
        file.write_all_at(b"W", 6).unwrap();
        assert_eq!(fs.read_to_string("/f").unwrap(), "hello World");
        assert_eq!(file.seek(SeekFrom::End(-1)).unwrap(), 10);
        assert_eq!(file.append(b"!").unwrap(), 11);
        file.set_len(5).unwrap();
        assert_eq!(fs.read("/f").unwrap(), b"hello");
        let again = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(fs, "/f")
            .err()
            .unwrap();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert!(
            fs.open_file("/f").unwrap().write_at(b"x", 0).is_err(),
            "opened for reading"
        );
    });
}

#[test]
fn directories_and_names() {
    on_both(|fs| {
        fs.create_dir_all("/a/b/c").unwrap();
        for n in 0..600 {
            fs.write(format!("/a/b/{n}"), format!("{n}")).unwrap();
        }
        let mut names: Vec<_> = fs
            .read_dir("/a/b")
            .unwrap()
            .map(|e| e.unwrap().file_name().to_owned())
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 601);
        fs.hard_link("/a/b/1", "/one").unwrap();
        fs.symlink("/a/b", "/link").unwrap();
        assert_eq!(fs.read_to_string("/link/1").unwrap(), "1");
        fs.rename("/one", "/a/uno").unwrap();
        fs.rename_with("/a/uno", "/a/b/2", RenameMode::Exchange).unwrap();
        assert_eq!(fs.read_to_string("/a/uno").unwrap(), "2");
        assert_eq!(fs.copy("/a/uno", "/copy").unwrap(), 1);
        let error = fs.remove_dir("/a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
        assert!(error.to_string().contains("/a"), "the path is in the text: {error}");
        fs.remove_dir_all("/a").unwrap();
        assert!(!fs.exists("/a"));
        assert_eq!(fs.read_dir("/").unwrap().count(), 2);
    });
}

/// A directory below is swapped for a symbolic link that leads elsewhere, again and again, during the removal.
#[test]
fn nothing_outside_a_removed_directory_goes() {
    on_both(|fs| {
        fs.create_dir("/outside").unwrap();
        for round in 0..40 {
            fs.create_dir_all("/top/below/deep").unwrap();
            fs.write("/top/below/inside", "").unwrap();
            fs.write("/outside/keep", "").unwrap();
            fs.symlink("/outside", "/link").unwrap();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let _ = fs.rename_with("/top/below", "/link", RenameMode::Exchange);
                    }
                });
                // Whether it gets everything depends on who is faster.
                let _ = fs.remove_dir_all("/top");
                stop.store(true, Ordering::Relaxed);
            });
            assert!(fs.exists("/outside/keep"), "round {round}: a file outside was removed");
            for left in ["/top", "/link"] {
                let _ = fs.remove_dir_all(left);
            }
        }
    });
}

#[test]
fn a_symbolic_link_goes_and_not_what_it_leads_to() {
    on_both(|fs| {
        fs.create_dir_all("/kept/in/it").unwrap();
        fs.create_dir("/top").unwrap();
        fs.symlink("/kept", "/link").unwrap();
        fs.symlink("/kept", "/top/link").unwrap();
        fs.remove_dir_all("/link").unwrap();
        fs.remove_dir_all("/top").unwrap();
        assert!(!fs.exists("/link") && !fs.exists("/top"));
        assert!(fs.exists("/kept/in/it"));
        fs.write("/file", "").unwrap();
        let error = fs.remove_dir_all("/file").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
        fs.remove_dir_all("/kept").unwrap();
        // Deeper than a path can be long.
        fs.create_dir("/d").unwrap();
        for _ in 0..3000 {
            fs.create_dir("/e").unwrap();
            fs.rename("/d", "/e/d").unwrap();
            fs.rename("/e", "/d").unwrap();
        }
        fs.remove_dir_all("/d").unwrap();
        assert_eq!(fs.read_dir("/").unwrap().count(), 1);
    });
}

/// Where the group may not execute, setgid is a mark of the group's own; a user outside the group leaves none on a file
/// that it changes.
#[test]
fn a_user_outside_the_group_clears_setgid() {
    const GROUP: u32 = 50;
    type Change = fn(&Fs);
    let changes: [(&str, Change); 4] = [
        ("write", |fs| {
            OpenOptions::new()
                .write(true)
                .open(fs, "/f")
                .unwrap()
                .write_all_at(b"X", 0)
                .unwrap();
        }),
        ("append", |fs| {
            OpenOptions::new()
                .append(true)
                .open(fs, "/f")
                .unwrap()
                .append(b"x")
                .map(drop)
                .unwrap();
        }),
        ("fallocate", |fs| {
            let file = OpenOptions::new().write(true).open(fs, "/f").unwrap();
            file.allocate(FallocateMode::Allocate { keep_size: true }, 0, 9000)
                .unwrap();
        }),
        ("truncate", |fs| {
            OpenOptions::new()
                .write(true)
                .open(fs, "/f")
                .unwrap()
                .set_len(3)
                .unwrap();
        }),
    ];
    on_both(|fs| {
        fs.write("/f", "content").unwrap();
        fs.chown("/f", Some(7), Some(GROUP)).unwrap();
        for (what, change) in changes {
            for (gid, expected) in [(GROUP, 0o2666), (60, 0o666)] {
                fs.set_mode("/f", 0o2666).unwrap();
                change(&fs.as_user(Cred::new(1000, gid)));
                assert_eq!(
                    fs.metadata("/f").unwrap().permissions().mode(),
                    expected,
                    "{what} by a member of {gid}"
                );
            }
        }
        fs.set_mode("/f", 0o2666).unwrap();
        fs.as_user(Cred::new(1000, 60))
            .write("/f", "truncated to nothing")
            .unwrap();
        assert_eq!(fs.metadata("/f").unwrap().permissions().mode(), 0o666);
    });
}

/// The same files that `ferrite mkfs` accepts without `--force`.
#[test]
fn a_pool_may_be_made_in_a_file_that_holds_nothing() {
    const SIZE: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    for (name, reserve) in [("sparse", false), ("reserved", true)] {
        let pool = dir.path().join(name);
        let file = std::fs::File::create(&pool).unwrap();
        file.set_len(SIZE).unwrap();
        if reserve {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, SIZE).unwrap();
        }
        Fs::create(&pool, SIZE).unwrap().close().unwrap();
        let error = Fs::create(&pool, SIZE).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    }
    let text = dir.path().join("text");
    std::fs::write(&text, "mine").unwrap();
    assert_eq!(Fs::create(&text, SIZE).err().unwrap().kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&text).unwrap(), b"mine");
}

/// The engine forgets inodes that no program has open any more, even if nothing else happens.
#[test]
fn a_program_that_closes_its_files_gets_their_memory_back() {
    const FILES: u64 = 60_000;
    /// The promise of docs/mounting.md.
    const KEPT: u64 = 16_384;
    // On a disk each of these operations would wait for it.
    let in_memory = std::path::Path::new("/dev/shm");
    let dir = match in_memory.is_dir() {
        true => tempfile::tempdir_in(in_memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let fs = create(&dir.path().join("pool"), 1 << 30);
    let known = || fs.info().unwrap().dram.cached_inodes;
    let path = |n: u64| format!("/{}/{n}", n % 100);
    (0..100).for_each(|n| fs.create_dir(format!("/{n}")).unwrap());
    let open: Vec<_> = (0..FILES).map(|n| fs.create_file(path(n)).unwrap()).collect();
    assert!(known() >= FILES);
    drop(open);
    assert!(known() <= KEPT + 200, "{} known after all were closed", known());
    (0..FILES).for_each(|n| assert!(fs.exists(path(n))));
    (0..FILES).for_each(|n| fs.remove_file(path(n)).unwrap());
    assert!(known() <= KEPT + 200, "{} known after they came by one by one", known());
    fs.close().unwrap();
}

#[test]
fn other_users_are_held_to_permissions() {
    on_both(|fs| {
        fs.write("/secret", "x").unwrap();
        fs.set_mode("/secret", 0o600).unwrap();
        let other = fs.as_user(Cred::new(1000, 1000));
        assert_eq!(other.read("/secret").unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(
            other.write("/new", "x").unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
    });
}

#[test]
fn a_pool_keeps_its_content_and_belongs_to_one_opener() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let fs = create(&path, 64 << 20);
    fs.write("/kept", "content").unwrap();
    let second = Fs::open(&path).err().unwrap();
    assert_eq!(second.kind(), ErrorKind::ResourceBusy);
    assert!(second.to_string().contains("in use"), "{second}");
    // Dropped without a close: as after a crash.
    drop(fs);
    let fs = Fs::open(&path).unwrap();
    assert_eq!(fs.read_to_string("/kept").unwrap(), "content");
    fs.close().unwrap();
    assert_eq!(
        Fs::create(&path, 64 << 20).err().unwrap().kind(),
        ErrorKind::AlreadyExists
    );
    std::fs::write(dir.path().join("other"), vec![7; 1 << 20]).unwrap();
    let foreign = Fs::open(dir.path().join("other")).err().unwrap();
    assert!(foreign.to_string().contains("not a Ferrite pool"), "{foreign}");
}

#[test]
fn only_a_handle_that_may_write_changes_a_file() {
    on_both(|fs| {
        fs.write("/f", "hello").unwrap();
        fs.chown("/f", Some(1000), Some(1000)).unwrap();
        let other = fs.as_user(Cred::new(1001, 1001));
        for (fs, options) in [(fs, OpenOptions::new().read(true)), (&other, &mut OpenOptions::new())] {
            let file = options.open(fs, "/f").unwrap();
            for size in [0, 5, 100] {
                assert_eq!(file.set_len(size).unwrap_err().kind(), ErrorKind::InvalidInput);
            }
            for mode in [
                FallocateMode::Allocate { keep_size: false },
                FallocateMode::PunchHole,
                FallocateMode::ZeroRange { keep_size: true },
            ] {
                assert!(file.allocate(mode, 0, 4096).is_err(), "{mode:?}");
            }
            assert!(file.append(b"x").is_err());
        }
        assert_eq!(fs.read("/f").unwrap(), b"hello");
    });
}

#[test]
fn a_truncation_by_the_unprivileged_takes_setuid_away() {
    on_both(|fs| {
        fs.write("/f", "hello").unwrap();
        fs.chown("/f", Some(1000), Some(1000)).unwrap();
        let set_len = |fs: &Fs| {
            fs.set_mode("/f", 0o6755).unwrap();
            let file = OpenOptions::new().write(true).open(fs, "/f").unwrap();
            file.set_len(3).unwrap();
            fs.metadata("/f").unwrap().permissions().mode()
        };
        assert_eq!(set_len(fs), 0o6755, "root may");
        assert_eq!(set_len(&fs.as_user(Cred::new(1000, 1000))), 0o755);
    });
}

#[test]
fn a_listing_goes_on_in_the_directory_where_it_began() {
    on_both(|fs| {
        // More than one batch.
        let fill = |dir: &str, from: usize| {
            fs.create_dir(dir).unwrap();
            for n in from..from + 600 {
                fs.write(format!("{dir}/{n}"), "").unwrap();
            }
        };
        fill("/d", 0);
        let mut listing = fs.read_dir("/d").unwrap();
        let mut names: Vec<_> = listing.by_ref().take(10).collect();
        fs.rename("/d", "/moved").unwrap();
        fill("/d", 1000);
        names.extend(listing);
        let mut numbers: Vec<usize> = names
            .into_iter()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..600).collect::<Vec<_>>());

        let mut listing = fs.read_dir("/moved").unwrap();
        let first = listing.next().unwrap().unwrap();
        fs.rename("/moved", "/again").unwrap();
        assert_eq!(
            listing.map(Result::unwrap).count(),
            599,
            "no error, and all but {first:?}"
        );
        // The handle keeps the directory, even without a name.
        let mut listing = fs.read_dir("/again").unwrap();
        fs.remove_dir_all("/again").unwrap();
        fill("/again", 2000);
        let rest = listing.by_ref().flatten().skip(256).count();
        assert_eq!(rest, 0, "nothing of the new one");
        drop(listing);
        fs.remove_dir_all("/again").unwrap();
    });
}
