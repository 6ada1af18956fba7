//! `Attr::change`: moves with every change of content or attributes, and with nothing else.
//!
//! Each step differs from the state before it. A write of the same bytes within a tick of the clock changes nothing, so
//! an engine may count it as a change or not.

use std::time::Duration;

use ferrite_vfs::{
    FallocateMode, FileKind, FileSystem, Ino, NewFile, OpenFile, OpenMode, ROOT_INO, SYSTEM, SetAttr, SetTime,
    XattrMode,
};

use super::{Case, Harness, PAST};
use crate::refused;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "change/moves with every change of a file",
        run: of_files,
    },
    Case {
        name: "change/moves with every change of names",
        run: of_names,
    },
    Case {
        name: "change/moves with each of many quick writes",
        run: quick_writes,
    },
    Case {
        name: "change/stays over what changes nothing",
        run: stays,
    },
];

fn change(h: &Harness<'_>, ino: Ino) -> u64 {
    h.fs().getattr(SYSTEM, ino).expect("getattr").change
}

/// A step on an open file.
type Step = fn(&dyn FileSystem, &dyn OpenFile) -> ferrite_vfs::Result<()>;

const PAGE: u64 = 4096;

fn of_files(h: &Harness<'_>) {
    fn set(fs: &dyn FileSystem, ino: Ino, set: SetAttr) -> ferrite_vfs::Result<()> {
        fs.setattr(SYSTEM, ino, &set).map(drop_attr)
    }
    fn drop_attr(_: ferrite_vfs::Attr) {}
    const NONE: SetAttr = SetAttr {
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        kill_priv: false,
    };
    let steps: [(&str, Step); 17] = [
        ("first write", |_, file| file.write_at(SYSTEM, 0, &[1; 64]).map(|_| ())),
        ("write in place", |_, file| {
            file.write_at(SYSTEM, 0, &[9; 64]).map(|_| ())
        }),
        ("append", |_, file| file.append(SYSTEM, &[2; 20_000]).map(|_| ())),
        ("page in place", |_, file| {
            file.write_at(SYSTEM, PAGE, &[3; PAGE as usize]).map(|_| ())
        }),
        ("part of a page", |_, file| {
            file.write_at(SYSTEM, PAGE + 7, &[5; 9]).map(|_| ())
        }),
        ("part of a page again", |_, file| {
            file.write_at(SYSTEM, PAGE + 7, &[4; 9]).map(|_| ())
        }),
        ("punch", |_, file| {
            file.fallocate(SYSTEM, FallocateMode::PunchHole, 0, PAGE)
        }),
        ("zero", |_, file| {
            file.fallocate(SYSTEM, FallocateMode::ZeroRange { keep_size: true }, PAGE, PAGE)
        }),
        ("reserve", |_, file| {
            file.fallocate(SYSTEM, FallocateMode::Allocate { keep_size: true }, 0, 10 * PAGE)
        }),
        ("truncate", |fs, file| {
            set(fs, file.ino(), SetAttr { size: Some(9), ..NONE })
        }),
        ("truncate by handle", |_, file| {
            file.setattr(SYSTEM, &SetAttr { size: Some(8), ..NONE }).map(drop_attr)
        }),
        ("truncating open", |fs, file| {
            let mode = OpenMode {
                truncate: true,
                ..OpenMode::read_write()
            };
            fs.open(SYSTEM, file.ino(), mode).map(drop)
        }),
        ("chmod", |fs, file| {
            set(
                fs,
                file.ino(),
                SetAttr {
                    mode: Some(0o600),
                    ..NONE
                },
            )
        }),
        ("chown", |fs, file| {
            set(fs, file.ino(), SetAttr { uid: Some(7), ..NONE })
        }),
        ("mtime", |fs, file| {
            let mtime = Some(SetTime::To(PAST));
            set(fs, file.ino(), SetAttr { mtime, ..NONE })
        }),
        ("setxattr", |fs, file| {
            fs.setxattr(SYSTEM, file.ino(), b"user.a", b"value", XattrMode::Any)
        }),
        ("removexattr", |fs, file| fs.removexattr(SYSTEM, file.ino(), b"user.a")),
    ];
    let ino = h.file("f");
    let file = h.open(ino);
    let mut seen = vec![change(h, ino)];
    for (what, step) in steps {
        step(h.fs(), &*file).unwrap_or_else(|error| panic!("{what}: {error}"));
        let now = change(h, ino);
        assert!(!seen.contains(&now), "{what} did not move it: {now} after {seen:?}");
        assert_eq!(file.getattr(SYSTEM).expect("getattr").change, now, "{what}");
        seen.push(now);
    }
}

/// Its name, the change, and the inodes that it changes.
type Named<'c> = (&'c str, &'c dyn Fn(), &'c [Ino]);

fn of_names(h: &Harness<'_>) {
    let (dir, other) = (h.mkdir("d"), h.mkdir("e"));
    let file = h.file("d/f");
    let steps: [Named<'_>; 9] = [
        ("mknod", &|| _ = h.file("d/n"), &[dir]),
        ("mkdir", &|| _ = h.mkdir("d/s"), &[dir]),
        ("symlink", &|| _ = h.node("d/l", FileKind::Symlink), &[dir]),
        (
            "create",
            &|| {
                let new = NewFile {
                    mode: 0o644,
                    open: OpenMode::read_only(),
                    exclusive: true,
                };
                h.fs().create(SYSTEM, dir, b"c", &new).map(drop).expect("create");
            },
            &[dir],
        ),
        ("link", &|| h.link("d/f", "e/f"), &[file, other]),
        ("unlink", &|| h.unlink("e/f"), &[file, other]),
        ("rmdir", &|| h.rmdir("d/s"), &[dir]),
        ("rename", &|| h.rename("d/f", "d/g"), &[dir, file]),
        (
            "rename to another directory",
            &|| h.rename("d/g", "e/f"),
            &[dir, other, file],
        ),
    ];
    for (what, step, moved) in steps {
        let before: Vec<_> = moved.iter().map(|&ino| change(h, ino)).collect();
        step();
        for (&ino, before) in moved.iter().zip(before) {
            assert_ne!(change(h, ino), before, "{what}: inode {ino}");
        }
    }
}

/// Several within a tick of any clock, in the inode itself, in a log and as whole pages.
fn quick_writes(h: &Harness<'_>) {
    for (name, len, at) in [("small", 8, 0), ("log", 8, 10_000), ("pages", 8192, 4096)] {
        let ino = h.write(name, &vec![1; if name == "small" { 64 } else { 30_000 }]);
        let file = h.open(ino);
        let mut last = change(h, ino);
        for round in 0..300 {
            file.write_at(SYSTEM, at, &vec![round as u8; len]).expect("write");
            let now = file.getattr(SYSTEM).expect("getattr").change;
            assert_ne!(now, last, "{name}: write {round}");
            last = now;
        }
    }
}

fn stays(h: &Harness<'_>) {
    let fs = h.fs();
    let dir = h.mkdir("d");
    let ino = h.write("d/f", &[b'x'; 20_000]);
    // Logs, which are merged in the background.
    (0..100).for_each(|round| h.write_at(ino, 4096 + 40 * round, b"something"));
    h.fs()
        .setxattr(SYSTEM, ino, b"user.a", b"value", XattrMode::Any)
        .expect("setxattr");
    h.age(ino);
    let before = (change(h, ino), change(h, dir), change(h, ROOT_INO));
    let check = |what: &str| assert_eq!((change(h, ino), change(h, dir), change(h, ROOT_INO)), before, "{what}");
    let file = h.open(ino);
    check("open");
    for _ in 0..20 {
        file.read_at(SYSTEM, 100, &mut [0; 9000]).expect("read");
    }
    check("read");
    file.seek_data(SYSTEM, 0).expect("seek");
    file.write_at(SYSTEM, 0, b"").expect("write");
    check("a write of nothing");
    file.fsync(SYSTEM).expect("fsync");
    fs.sync(SYSTEM).expect("sync");
    check("sync");
    drop(file);
    h.names("d");
    fs.readdir_plus(SYSTEM, dir, 0, &mut |_, _| true).expect("readdir_plus");
    fs.listxattr(SYSTEM, ino).expect("listxattr");
    fs.getxattr(SYSTEM, ino, b"user.a").expect("getxattr");
    check("listings");
    let exclusive = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    refused!(fs.create(SYSTEM, dir, b"f", &exclusive), Exists);
    refused!(fs.mkdir(SYSTEM, dir, b"f", 0o755), Exists);
    refused!(fs.rmdir(SYSTEM, ROOT_INO, b"d"), NotEmpty);
    refused!(fs.setxattr(SYSTEM, ino, b"user.a", b"", XattrMode::Create), Exists);
    refused!(fs.unlink(SYSTEM, dir, b"none"), NotFound);
    check("what was refused");
    std::thread::sleep(Duration::from_millis(300));
    check("time");
}
