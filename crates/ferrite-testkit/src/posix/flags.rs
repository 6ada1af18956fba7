//! Flags of inodes (chattr(1)): each call that changes something, on a file and in a directory with each flag. They
//! bind root as well, and every other caller; the manual page says what each forbids.

use ferrite_vfs::{
    CloneRange, Cred, Ctx, FLAGS_XATTR, FallocateMode, FileKind, FsError, Ino, NO_NAME, NewFile, NewNode, OpenMode,
    ROOT_INO, RenameMode, Result, SYSTEM, SetAttr, SetTime, Timestamp, XattrMode,
};

use super::{Case, Harness};
use crate::refused;
use crate::rng::pattern;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "flags/they are set and read",
        run: set_and_read,
    },
    Case {
        name: "flags/nothing of an immutable file changes",
        run: immutable_file,
    },
    Case {
        name: "flags/nothing in an immutable directory changes",
        run: immutable_directory,
    },
    Case {
        name: "flags/an append-only file only gets longer",
        run: append_only_file,
    },
    Case {
        name: "flags/an append-only directory only gets entries",
        run: append_only_directory,
    },
    Case {
        name: "flags/reads leave the time of access of a file with A",
        run: no_atime,
    },
    Case {
        name: "flags/clones and snapshots have none",
        run: clones,
    },
];

fn set(h: &Harness<'_>, ino: Ino, letters: &str) -> Result<()> {
    h.fs()
        .setxattr(SYSTEM, ino, FLAGS_XATTR, letters.as_bytes(), XattrMode::Any)
}

fn get(h: &Harness<'_>, ino: Ino) -> String {
    let letters = h.fs().getxattr(SYSTEM, ino, FLAGS_XATTR).expect("flags");
    String::from_utf8(letters).expect("letters")
}

/// The flags of all inodes, by path.
pub(super) fn all(h: &Harness<'_>) -> Vec<(Vec<u8>, String)> {
    let mut found = Vec::new();
    let mut inodes = vec![(Vec::new(), ROOT_INO, FileKind::Directory)];
    while let Some((path, ino, kind)) = inodes.pop() {
        found.push((path.clone(), get(h, ino)));
        if kind == FileKind::Directory {
            let mut push = |entry: &ferrite_vfs::DirEntry<'_>| {
                inodes.push(([&path, &b"/"[..], entry.name].concat(), entry.ino, entry.kind));
                true
            };
            h.fs().readdir(SYSTEM, ino, 0, &mut push).expect("readdir");
        }
    }
    found.sort();
    found
}

fn set_and_read(h: &Harness<'_>) {
    let (file, dir) = (h.file("file"), h.mkdir("dir"));
    let link = h.node("link", FileKind::Symlink);
    for ino in [file, dir, link] {
        assert_eq!(get(h, ino), "");
    }
    for (letters, wanted) in [("i", "i"), ("da", "ad"), ("A", "A"), ("aAdi", "iaAd"), ("", "")] {
        set(h, file, letters).expect("set");
        set(h, dir, letters).expect("set");
        assert_eq!((get(h, file).as_str(), get(h, dir).as_str()), (wanted, wanted));
    }
    refused!(set(h, file, "x"), Invalid);
    refused!(set(h, link, "i"), Invalid);
    let before = h.stat("file");
    set(h, file, "d").expect("set");
    let after = h.stat("file");
    assert!(after.change > before.change && after.ctime >= before.ctime);
    assert!(h.fs().listxattr(SYSTEM, file).expect("listxattr").is_empty());
    h.fs().removexattr(SYSTEM, file, FLAGS_XATTR).expect("removexattr");
    assert_eq!(get(h, file), "");
    // Owners set what binds nobody.
    let owner = SetAttr {
        uid: Some(7),
        ..SetAttr::default()
    };
    h.set(file, owner);
    let set_as = |uid, letters: &[u8]| {
        let ctx = Ctx::checked(Cred::new(uid, uid));
        h.fs().setxattr(&ctx, file, FLAGS_XATTR, letters, XattrMode::Any)
    };
    set_as(7, b"Ad").expect("its owner");
    refused!(set_as(8, b"A"), NotPermitted);
    refused!(set_as(7, b"i"), NotPermitted);
    refused!(set_as(7, b"a"), NotPermitted);
    set(h, file, "iA").expect("set");
    refused!(set_as(7, b"A"), NotPermitted);
    set_as(7, b"id").expect("what binds nobody, and i stays");
    assert_eq!(get(h, file), "id");
}

fn at(time: i64) -> Option<SetTime> {
    Some(SetTime::To(Timestamp(time)))
}

/// Changes of attributes that both flags forbid.
fn attributes(h: &Harness<'_>, ino: Ino) {
    let sets = [
        SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        },
        SetAttr {
            uid: Some(5),
            ..SetAttr::default()
        },
        SetAttr {
            gid: Some(5),
            ..SetAttr::default()
        },
        SetAttr {
            mtime: at(5),
            ..SetAttr::default()
        },
        SetAttr {
            atime: at(5),
            ..SetAttr::default()
        },
    ];
    for set in sets {
        refused!(h.fs().setattr(SYSTEM, ino, &set), NotPermitted);
    }
    let xattr = h.fs().setxattr(SYSTEM, ino, b"user.new", b"x", XattrMode::Any);
    refused!(xattr, NotPermitted);
    refused!(h.fs().removexattr(SYSTEM, ino, b"user.old"), NotPermitted);
    let list = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
    ];
    let acl = h
        .fs()
        .setxattr(SYSTEM, ino, b"system.posix_acl_access", &list, XattrMode::Any);
    refused!(acl, NotPermitted);
}

fn touched() -> SetAttr {
    SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    }
}

/// Changes of names that lead to a file, which both flags forbid.
fn names_of(h: &Harness<'_>, path: &str, ino: Ino) {
    let (dir, name) = h.split(path);
    let fs = h.fs();
    refused!(fs.unlink(SYSTEM, dir, name), NotPermitted);
    refused!(fs.link(SYSTEM, ino, ROOT_INO, b"linked"), NotPermitted);
    refused!(
        fs.rename(SYSTEM, dir, name, ROOT_INO, b"moved", RenameMode::Replace),
        NotPermitted
    );
    let over = fs.rename(SYSTEM, ROOT_INO, b"other", dir, name, RenameMode::Replace);
    refused!(over, NotPermitted);
    let exchanged = fs.rename(SYSTEM, ROOT_INO, b"other", dir, name, RenameMode::Exchange);
    refused!(exchanged, NotPermitted);
}

/// A file with an extended attribute, and another one, which shares blocks of it if engines do that.
fn files(h: &Harness<'_>, content: &[u8]) -> Ino {
    let file = h.write("file", content);
    h.write("other", &pattern(9, content.len()));
    let old = h.fs().setxattr(SYSTEM, file, b"user.old", b"x", XattrMode::Any);
    old.expect("setxattr");
    file
}

fn truncate(h: &Harness<'_>, ino: Ino, size: u64) -> Result<()> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    h.fs().setattr(SYSTEM, ino, &set).map(drop)
}

const TRUNCATING: OpenMode = OpenMode {
    truncate: true,
    ..OpenMode::read_only()
};

/// Changes of content that both flags forbid.
fn content_of(h: &Harness<'_>, ino: Ino, len: u64) {
    let open = h.fs().open(SYSTEM, ino, OpenMode::read_only()).expect("open");
    drop(open);
    refused!(h.fs().open(SYSTEM, ino, TRUNCATING).map(drop), NotPermitted);
    let create = NewFile {
        mode: 0o644,
        open: TRUNCATING,
        exclusive: false,
    };
    refused!(
        h.fs().create(SYSTEM, ROOT_INO, b"file", &create).map(drop),
        NotPermitted
    );
    for size in [0, len - 1, len + 1] {
        refused!(truncate(h, ino, size), NotPermitted);
    }
}

fn immutable_file(h: &Harness<'_>) {
    for len in [100, 70_000] {
        let content = pattern(1, len);
        let file = files(h, &content);
        let open = h.open(file);
        set(h, file, "i").expect("set");
        let before = h.stat("file");
        attributes(h, file);
        names_of(h, "file", file);
        content_of(h, file, len as u64);
        refused!(h.fs().setattr(SYSTEM, file, &touched()), NotPermitted);
        refused!(
            h.fs().open(SYSTEM, file, OpenMode::read_write()).map(drop),
            NotPermitted
        );
        // Also by those who have it open.
        for offset in [0, len as u64, 100 + len as u64] {
            refused!(open.write_at(SYSTEM, offset, b"changed"), NotPermitted);
        }
        refused!(open.append(SYSTEM, b"more"), NotPermitted);
        let other = h.open(h.ino("other"));
        let range = CloneRange {
            source: other.id(),
            source_offset: 0,
            offset: 0,
            len_bytes: len as u64,
        };
        match open.clone_range(SYSTEM, &range) {
            Err(FsError::NotPermitted | FsError::NotSupported(_)) => {}
            done => panic!("a range was cloned: {done:?}"),
        }
        for mode in [
            FallocateMode::PunchHole,
            FallocateMode::ZeroRange { keep_size: false },
            FallocateMode::Allocate { keep_size: false },
            FallocateMode::Allocate { keep_size: true },
        ] {
            refused!(open.fallocate(SYSTEM, mode, 0, 200_000), NotPermitted);
        }
        drop((open, other));
        assert_eq!(h.stat("file"), before);
        assert_eq!(h.read_at_only(file, 0, 2 * len), content);
        set(h, file, "").expect("set");
        h.write_at(file, 0, b"now");
        h.unlink("file");
        h.unlink("other");
    }
}

fn new_file() -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    }
}

/// Calls that add an entry to a directory.
fn additions(h: &Harness<'_>, dir: Ino) -> Vec<(&'static str, Result<()>)> {
    let fs = h.fs();
    let node = NewNode {
        kind: FileKind::Fifo,
        mode: 0o600,
        rdev: 0,
    };
    let outside = h.ino("outside");
    let moved = h.ino("moved");
    let mut done = vec![
        ("create", fs.create(SYSTEM, dir, b"1", &new_file()).map(drop)),
        ("mknod", fs.mknod(SYSTEM, dir, b"2", &node).map(drop)),
        ("mkdir", fs.mkdir(SYSTEM, dir, b"3", 0o755).map(drop)),
        ("symlink", fs.symlink(SYSTEM, dir, b"4", b"target").map(drop)),
        ("link", fs.link(SYSTEM, outside, dir, b"5").map(drop)),
        (
            "rename",
            fs.rename(SYSTEM, ROOT_INO, b"moved", dir, b"6", RenameMode::Replace),
        ),
        ("clone", fs.clone_tree(SYSTEM, outside, dir, b"7").map(drop)),
        ("nameless", fs.create(SYSTEM, dir, NO_NAME, &new_file()).map(drop)),
    ];
    done.retain(|(_, done)| !matches!(done, Err(FsError::NotSupported(_))));
    assert!(h.fs().getattr(SYSTEM, moved).is_ok());
    done
}

/// Calls that take an entry from a directory, or make one lead elsewhere.
fn removals(h: &Harness<'_>, dir: Ino) {
    let fs = h.fs();
    let rename = |from, name: &[u8], to, new: &[u8], mode| fs.rename(SYSTEM, from, name, to, new, mode);
    refused!(fs.unlink(SYSTEM, dir, b"file"), NotPermitted);
    refused!(fs.rmdir(SYSTEM, dir, b"sub"), NotPermitted);
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        refused!(rename(dir, b"file", ROOT_INO, b"new", mode), NotPermitted);
        refused!(rename(dir, b"file", dir, b"new", mode), NotPermitted);
    }
    let over = rename(ROOT_INO, b"outside", dir, b"file", RenameMode::Replace);
    refused!(over, NotPermitted);
    let exchanged = rename(ROOT_INO, b"outside", dir, b"file", RenameMode::Exchange);
    refused!(exchanged, NotPermitted);
}

fn directory(h: &Harness<'_>) -> Ino {
    let dir = h.mkdir("dir");
    h.write("dir/file", b"content");
    h.mkdir("dir/sub");
    h.file("outside");
    h.file("moved");
    let old = h.fs().setxattr(SYSTEM, dir, b"user.old", b"x", XattrMode::Any);
    old.expect("setxattr");
    dir
}

fn immutable_directory(h: &Harness<'_>) {
    let dir = directory(h);
    set(h, dir, "i").expect("set");
    let before = h.stat("dir");
    for (call, done) in additions(h, dir) {
        assert_eq!(done, Err(FsError::NotPermitted), "{call}");
    }
    removals(h, dir);
    attributes(h, dir);
    refused!(h.fs().setattr(SYSTEM, dir, &touched()), NotPermitted);
    let moved = h.try_rename("dir", "elsewhere", RenameMode::Replace);
    refused!(moved, NotPermitted);
    let found = h.fs().create(SYSTEM, dir, b"file", &new_file()).map(drop);
    refused!(found, Exists);
    assert_eq!(h.stat("dir"), before);
    // Its files may change.
    h.write_at(h.ino("dir/file"), 0, b"changed");
    h.chmod(h.ino("dir/sub"), 0o700);
    h.file("dir/sub/new");
    set(h, dir, "").expect("set");
    h.unlink("dir/file");
}

fn append_only_file(h: &Harness<'_>) {
    for len in [100u64, 70_000] {
        let file = files(h, &pattern(1, len as usize));
        let open = h.open(file);
        set(h, file, "a").expect("set");
        attributes(h, file);
        names_of(h, "file", file);
        content_of(h, file, len);
        h.set(file, touched());
        for offset in [0, len - 1] {
            refused!(open.write_at(SYSTEM, offset, b"changed"), NotPermitted);
        }
        for mode in [FallocateMode::PunchHole, FallocateMode::ZeroRange { keep_size: false }] {
            refused!(open.fallocate(SYSTEM, mode, 0, 10), NotPermitted);
        }
        open.append(SYSTEM, &pattern(2, 50_000)).expect("append");
        open.write_at(SYSTEM, len + 50_000, &pattern(3, 10))
            .expect("at the end");
        let keeps = FallocateMode::Allocate { keep_size: true };
        open.fallocate(SYSTEM, keeps, 0, 200_000).expect("fallocate");
        drop(open);
        let again = h.open(file);
        again.append(SYSTEM, b"end").expect("append");
        drop(again);
        let content = [
            pattern(1, len as usize),
            pattern(2, 50_000),
            pattern(3, 10),
            b"end".to_vec(),
        ];
        assert_eq!(h.read_at(file, 0, 200_000), content.concat());
        set(h, file, "").expect("set");
        h.unlink("file");
        h.unlink("other");
    }
}

fn append_only_directory(h: &Harness<'_>) {
    let dir = directory(h);
    set(h, dir, "a").expect("set");
    removals(h, dir);
    attributes(h, dir);
    for (call, done) in additions(h, dir) {
        assert_eq!(done, Ok(()), "{call}");
    }
    removals(h, dir);
    assert!(h.names("dir").len() >= 8);
    set(h, dir, "").expect("set");
    h.unlink("dir/file");
}

fn no_atime(h: &Harness<'_>) {
    let (plain, kept) = (h.write("plain", &pattern(1, 100)), h.write("kept", &pattern(1, 70_000)));
    set(h, kept, "A").expect("set");
    for ino in [plain, kept] {
        h.age(ino);
        h.read_at_only(ino, 0, 10);
    }
    assert_eq!(h.stat("kept").atime, super::PAST);
    assert_ne!(h.stat("plain").atime, super::PAST);
    h.write_at(kept, 0, b"changed");
    set(h, kept, "").expect("set");
    h.read_at_only(kept, 0, 10);
    assert_ne!(h.stat("kept").atime, super::PAST);
}

fn clones(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    let file = h.write("dir/file", &pattern(1, 70_000));
    h.mkdir("dir/.snapshots");
    set(h, file, "iA").expect("set");
    set(h, dir, "ad").expect("set");
    h.fs()
        .clone_tree(SYSTEM, dir, ROOT_INO, b"clone")
        .expect("a clone of what is immutable");
    assert_eq!(
        (get(h, h.ino("clone")), get(h, h.ino("clone/file"))),
        Default::default()
    );
    h.write_at(h.ino("clone/file"), 5, b"changed");
    h.unlink("clone/file");
    let snapshots = h.ino("dir/.snapshots");
    h.fs().mkdir(SYSTEM, snapshots, b"s", 0o755).expect("a snapshot");
    let kept = h.ino("dir/.snapshots/s/file");
    assert_eq!(get(h, kept), "");
    refused!(set(h, kept, "i"), ReadOnly);
    h.fs().rmdir(SYSTEM, snapshots, b"s").expect("rmdir");
    assert_eq!(h.read_at_only(file, 0, 70_000), pattern(1, 70_000));
}
