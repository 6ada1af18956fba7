//! Clones of trees and snapshots: a clone is equal to its original and apart from it, nothing in a snapshot changes,
//! and only the owner and root take and remove one.

use ferrite_vfs::{
    Attr, Cred, Ctx, DirEntry, FallocateMode, FileKind, FsError, Ino, NewFile, NewNode, OpenMode, ROOT_INO, RenameMode,
    Result, SNAPSHOT_XATTR, SNAPSHOTS_NAME, SYSTEM, SetAttr, SetTime, SnapshotSpace, Timestamp, XattrMode,
};

use super::{Case, Harness};
use crate::refused;
use crate::rng::pattern;
use crate::snapshot::Snapshot;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "snapshots/a clone is equal to its original and apart from it",
        run: clones,
    },
    Case {
        name: "snapshots/files with one content change one after the other",
        run: generations,
    },
    Case {
        name: "snapshots/what cannot be cloned changes nothing",
        run: refusals,
    },
    Case {
        name: "snapshots/one stays as it was taken, and is in no listing",
        run: stays,
    },
    Case {
        name: "snapshots/nothing in one changes",
        run: nothing_changes,
    },
    Case {
        name: "snapshots/one that is removed is there for those who have it open",
        run: removal,
    },
    Case {
        name: "snapshots/owners and root take and remove them",
        run: owners,
    },
    Case {
        name: "snapshots/the space that they alone hold",
        run: space,
    },
];

/// Longer than files that engines keep beside their inodes.
const LONG: usize = 70_000;

/// A tree of all kinds at `top`.
fn tree(h: &Harness<'_>) -> Ino {
    let top = h.mkdir("top");
    let long = h.write("top/long", &pattern(1, LONG));
    h.write("top/short", &pattern(2, 100));
    h.write("top/middle", &pattern(3, 9000));
    h.file("top/empty");
    let sparse = h.file("top/sparse");
    h.write_at(sparse, 20 << 20, b"far away");
    for kind in [FileKind::Symlink, FileKind::Fifo, FileKind::CharDevice] {
        h.node(&format!("top/{kind:?}"), kind);
    }
    let below = h.mkdir("top/below");
    h.mkdir("top/below/deep");
    h.link("top/long", "top/below/other name");
    h.link("top/long", "top/below/deep/third name");
    for n in 0..70 {
        let ino = h.file(&format!("top/below/deep/many-{n}-{}", "n".repeat(n % 40)));
        let owner = SetAttr {
            uid: Some(n as u32 % 3),
            mode: Some(0o640 + n as u32 % 8),
            ..SetAttr::default()
        };
        h.set(ino, owner);
    }
    for (ino, len) in [(long, 40), (below, 3000), (top, 5000)] {
        let value = pattern(7, len);
        let set = h.fs().setxattr(SYSTEM, ino, b"user.note", &value, XattrMode::Any);
        set.expect("setxattr");
    }
    top
}

fn clone(h: &Harness<'_>, path: &str, to: &str) -> Attr {
    let (dir, name) = h.split(to);
    let cloned = h.fs().clone_tree(SYSTEM, h.ino(path), dir, name);
    cloned.unwrap_or_else(|error| panic!("cloning {path} to {to}: {error}"))
}

/// Demands that the tree at a path is `wanted`.
fn same(h: &Harness<'_>, path: &str, wanted: &Snapshot, when: &str) {
    let found = Snapshot::below(h.fs(), path).expect(path);
    let difference = wanted.difference(&found, ["wanted", path]);
    assert!(difference.is_none(), "{when}: {}", difference.unwrap_or_default());
}

fn remove(h: &Harness<'_>, path: &str) {
    if h.stat(path).kind != FileKind::Directory {
        return h.unlink(path);
    }
    for name in listed(h, h.ino(path)) {
        remove(h, &format!("{path}/{}", String::from_utf8_lossy(&name)));
    }
    h.rmdir(path);
}

/// The names that a plain listing has, and one with attributes.
fn listed(h: &Harness<'_>, dir: Ino) -> Vec<Vec<u8>> {
    let (mut plain, mut with_attributes) = (Vec::new(), Vec::new());
    let mut push = |entry: &DirEntry<'_>| {
        plain.push(entry.name.to_vec());
        true
    };
    h.fs().readdir(SYSTEM, dir, 0, &mut push).expect("readdir");
    let mut push = |entry: &DirEntry<'_>, _: Result<Attr>| {
        with_attributes.push(entry.name.to_vec());
        true
    };
    h.fs().readdir_plus(SYSTEM, dir, 0, &mut push).expect("readdir_plus");
    assert_eq!(plain, with_attributes, "two listings");
    plain
}

fn clones(h: &Harness<'_>) {
    tree(h);
    let before = Snapshot::below(h.fs(), "top").expect("top");
    let attr = clone(h, "top", "clone");
    assert_eq!(h.stat("clone"), attr);
    same(h, "clone", &before, "at once");
    same(h, "top", &before, "the original, at once");
    let inner = clone(h, "clone", "clone/inner").ino;
    assert_eq!(h.fs().parent(SYSTEM, inner).expect("parent"), attr.ino);
    remove(h, "clone/inner");
    let file = h.stat("top/long");
    let single = clone(h, "top/long", "single");
    assert_eq!((single.nlink, single.size, single.mtime), (1, file.size, file.mtime));
    assert_eq!(h.read_at(single.ino, 0, 2 * LONG), pattern(1, LONG));
    // Changes on either side stay there.
    h.write_at(file.ino, 5000, &pattern(99, 9000));
    h.write_at(h.ino("top/middle"), 100, b"in the middle");
    h.truncate(h.ino("top/short"), 0);
    let middle = h.open(h.ino("top/sparse"));
    let punched = middle.fallocate(SYSTEM, FallocateMode::PunchHole, 20 << 20, 4096);
    punched.expect("punch");
    drop(middle);
    remove(h, "top/below");
    let changed = Snapshot::below(h.fs(), "top").expect("top");
    same(h, "clone", &before, "with another original");
    h.write_at(h.ino("clone/long"), 0, &pattern(55, LONG + 3000));
    h.truncate(h.ino("clone/middle"), 5000);
    remove(h, "clone/below/deep");
    same(h, "top", &changed, "with another clone");
    assert_eq!(h.read_at(single.ino, 0, 2 * LONG), pattern(1, LONG), "the single clone");
}

/// Which of the files of one content is the last to have it does not matter.
fn generations(h: &Harness<'_>) {
    let content = pattern(1, LONG);
    h.write("f0", &content);
    for n in 0..4 {
        clone(h, &format!("f{n}"), &format!("f{}", n + 1));
    }
    let open = h.open(h.ino("f2"));
    h.unlink("f2");
    for (n, at) in [(0, 100), (3, 5000), (1, 0)] {
        let name = format!("f{n}");
        h.write_at(h.ino(&name), at, b"changed");
        let mut wanted = content.clone();
        wanted[at as usize..][..7].copy_from_slice(b"changed");
        assert_eq!(h.read_at(h.ino(&name), 0, LONG), wanted, "{name}");
        assert_eq!(h.read_at(h.ino("f4"), 0, LONG), content, "f4 after {name}");
    }
    let mut found = vec![0; LONG];
    assert_eq!(open.read_at(SYSTEM, 0, &mut found).expect("read"), LONG);
    assert!(found == content, "a file without a name");
    // It may change as well, and the last one.
    open.write_at(SYSTEM, 7, b"changed").expect("write");
    drop(open);
    assert_eq!(h.read_at(h.ino("f4"), 0, LONG), content);
    h.truncate(h.ino("f4"), 10);
    h.truncate(h.ino("f4"), 20);
    let end = [&content[..10], &[0; 10]].concat();
    assert_eq!(h.read_at(h.ino("f4"), 0, LONG), end);
}

fn refusals(h: &Harness<'_>) {
    let top = tree(h);
    let file = h.ino("top/long");
    let before = Snapshot::capture(h.fs()).expect("capture");
    let fs = h.fs();
    refused!(fs.clone_tree(SYSTEM, top, ROOT_INO, b"top"), Exists);
    refused!(fs.clone_tree(SYSTEM, top, file, b"new"), NotDirectory);
    refused!(fs.clone_tree(SYSTEM, 1 << 40, ROOT_INO, b"new"), NotFound | Stale);
    refused!(fs.clone_tree(SYSTEM, top, ROOT_INO, &[b'n'; 256]), NameTooLong);
    let user = Ctx::checked(Cred::new(1, 1));
    refused!(fs.clone_tree(&user, file, ROOT_INO, b"new"), NotPermitted);
    let after = Snapshot::capture(fs).expect("capture");
    assert_eq!(before.difference(&after, ["before", "after"]), None);
    // Not if a part belongs to another; and only root clones devices.
    let own = SetAttr {
        uid: Some(1),
        ..SetAttr::default()
    };
    h.chmod(ROOT_INO, 0o777);
    h.set(top, own);
    refused!(fs.clone_tree(&user, top, ROOT_INO, b"new"), NotPermitted);
    // A directory of snapshots, which is left out, may be another's.
    let dir = h.mkdir("dir");
    h.mkdir("dir/.snapshots");
    h.set(dir, own);
    fs.clone_tree(&user, dir, ROOT_INO, b"of its owner")
        .expect("an own directory");
    h.set(file, own);
    let cloned = fs.clone_tree(&user, file, ROOT_INO, b"new").expect("an own file");
    assert_eq!((cloned.uid, cloned.nlink), (1, 1));
    h.set(h.ino("top/CharDevice"), own);
    let device = fs.clone_tree(&user, h.ino("top/CharDevice"), ROOT_INO, b"device");
    refused!(device, NotPermitted);
}

fn take(h: &Harness<'_>, dir: &str, name: &str) -> Attr {
    let snapshots = h.ino(&format!("{dir}/.snapshots"));
    let taken = h.fs().mkdir(SYSTEM, snapshots, name.as_bytes(), 0o700);
    taken.unwrap_or_else(|error| panic!("a snapshot of {dir}: {error}"))
}

fn stays(h: &Harness<'_>) {
    let top = tree(h);
    let before = Snapshot::below(h.fs(), "top").expect("top");
    let names = listed(h, top);
    h.mkdir("top/.snapshots");
    let taken = take(h, "top", "first");
    assert_eq!((taken.kind, taken.mode), (FileKind::Directory, 0o755));
    same(h, "top/.snapshots/first", &before, "at once");
    assert_eq!(listed(h, top), names, "the directory of snapshots is listed");
    h.write_at(h.ino("top/long"), 0, &pattern(99, LONG));
    h.unlink("top/short");
    h.chmod(top, 0o700);
    h.file("top/later");
    same(h, "top/.snapshots/first", &before, "with another original");
    // Of the second, and of one of everything, the first is no part.
    take(h, "top", "second");
    h.mkdir(".snapshots");
    take(h, "", "all");
    let all = Snapshot::capture(h.fs()).expect("capture");
    let is_nested = |path: &Vec<u8>| path.windows(10).filter(|part| part == b".snapshots").count() > 1;
    assert!(!all.0.keys().any(is_nested), "a snapshot has snapshots");
    assert!(all.0.contains_key(&b"/.snapshots/all/top/later"[..]));
    // A tree restored from it is an ordinary one.
    clone(h, "top/.snapshots/first", "restored");
    same(h, "restored", &before, "restored");
    h.write_at(h.ino("restored/long"), 0, &pattern(1, 4096));
    h.unlink("restored/empty");
    same(
        h,
        "top/.snapshots/first",
        &before,
        "after a change of what was restored",
    );
}

/// An entry of a snapshot, or of its directory.
struct Entry {
    dir: Ino,
    name: Vec<u8>,
    ino: Ino,
    kind: FileKind,
}

/// Every call that changes something, on every inode of a snapshot, through its number or through a name.
fn nothing_changes(h: &Harness<'_>) {
    let top = tree(h);
    let outside = h.file("outside");
    h.mkdir("empty");
    let snapshots = h.mkdir("top/.snapshots");
    take(h, "top", "s");
    let before = Snapshot::capture(h.fs()).expect("capture");
    let mut tree = vec![Entry {
        dir: top,
        name: SNAPSHOTS_NAME.to_vec(),
        ino: snapshots,
        kind: FileKind::Directory,
    }];
    let mut at = 0;
    while let Some(&Entry { ino: dir, kind, .. }) = tree.get(at) {
        at += 1;
        if kind == FileKind::Directory {
            let mut push = |entry: &DirEntry<'_>| {
                let (name, ino, kind) = (entry.name.to_vec(), entry.ino, entry.kind);
                tree.push(Entry { dir, name, ino, kind });
                true
            };
            h.fs().readdir(SYSTEM, dir, 0, &mut push).expect("readdir");
        }
    }
    assert!(tree.len() > 80, "{} entries", tree.len());
    for entry in tree {
        let is_top = entry.ino == snapshots;
        if !is_top {
            of_inode(h, &entry);
        }
        of_entry(h, &entry);
        match entry.kind {
            FileKind::Directory => of_directory(h, &entry, is_top, outside),
            _ => entry.refused("link out", h.fs().link(SYSTEM, entry.ino, ROOT_INO, b"linked")),
        }
    }
    let after = Snapshot::capture(h.fs()).expect("capture");
    assert_eq!(before.difference(&after, ["before", "after"]), None);
}

impl Entry {
    fn refused<T>(&self, call: &str, result: Result<T>) {
        let what = format!("{} ({:?}): {call}", self.name.escape_ascii(), self.kind);
        assert_eq!(result.map(drop), Err(FsError::ReadOnly), "{what}");
    }
}

fn of_inode(h: &Harness<'_>, entry: &Entry) {
    let (fs, ino) = (h.fs(), entry.ino);
    let mode = SetAttr {
        mode: Some(0o123),
        ..SetAttr::default()
    };
    let time = SetAttr {
        mtime: Some(SetTime::To(Timestamp(5))),
        ..SetAttr::default()
    };
    let owner = SetAttr {
        uid: Some(77),
        ..SetAttr::default()
    };
    for (call, set) in [("chmod", mode), ("utimes", time), ("chown", owner)] {
        entry.refused(call, fs.setattr(SYSTEM, ino, &set));
    }
    let set = fs.setxattr(SYSTEM, ino, b"trusted.note", b"x", XattrMode::Any);
    entry.refused("setxattr", set);
    if fs.getxattr(SYSTEM, ino, b"user.note").is_ok() {
        entry.refused("removexattr", fs.removexattr(SYSTEM, ino, b"user.note"));
    }
    if entry.kind != FileKind::File {
        return;
    }
    let size = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    entry.refused("truncate", fs.setattr(SYSTEM, ino, &size));
    let open = fs.open(SYSTEM, ino, OpenMode::read_write());
    entry.refused("open", open.map(drop));
    let truncating = OpenMode {
        truncate: true,
        ..OpenMode::read_only()
    };
    entry.refused("open to truncate", fs.open(SYSTEM, ino, truncating).map(drop));
    // A read leaves no access time.
    let file = fs.open(SYSTEM, ino, OpenMode::read_only()).expect("open");
    file.read_at(SYSTEM, 0, &mut [0; 100]).expect("read");
}

fn of_entry(h: &Harness<'_>, entry: &Entry) {
    let (fs, dir, name) = (h.fs(), entry.dir, &entry.name[..]);
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Whiteout] {
        entry.refused("rename out", fs.rename(SYSTEM, dir, name, ROOT_INO, b"moved", mode));
        entry.refused("rename", fs.rename(SYSTEM, dir, name, dir, b"moved", mode));
    }
    let exchanged = fs.rename(SYSTEM, dir, name, ROOT_INO, b"outside", RenameMode::Exchange);
    entry.refused("exchange", exchanged);
    let onto = |from: &[u8]| fs.rename(SYSTEM, ROOT_INO, from, dir, name, RenameMode::Replace);
    if entry.kind == FileKind::Directory {
        let result = onto(b"empty");
        assert!(
            matches!(result, Err(FsError::ReadOnly | FsError::NotEmpty)),
            "{result:?}"
        );
    } else {
        entry.refused("unlink", fs.unlink(SYSTEM, dir, name));
        entry.refused("rename onto", onto(b"outside"));
    }
}

fn of_directory(h: &Harness<'_>, entry: &Entry, takes: bool, outside: Ino) {
    let (fs, dir) = (h.fs(), entry.ino);
    let node = NewNode {
        kind: FileKind::Fifo,
        mode: 0o600,
        rdev: 0,
    };
    let new = NewFile {
        mode: 0o600,
        exclusive: false,
        open: OpenMode::read_write(),
    };
    entry.refused("mknod", fs.mknod(SYSTEM, dir, b"new", &node));
    entry.refused("create", fs.create(SYSTEM, dir, b"new", &new).map(drop));
    entry.refused("create without a name", fs.create(SYSTEM, dir, b"", &new).map(drop));
    entry.refused("symlink", fs.symlink(SYSTEM, dir, b"new", b"target"));
    entry.refused("link in", fs.link(SYSTEM, outside, dir, b"new"));
    entry.refused("clone in", fs.clone_tree(SYSTEM, outside, dir, b"new"));
    let moved = fs.rename(SYSTEM, ROOT_INO, b"outside", dir, b"new", RenameMode::Replace);
    entry.refused("rename in", moved);
    if !takes {
        entry.refused("mkdir", fs.mkdir(SYSTEM, dir, b"new", 0o700));
        entry.refused("mkdir", fs.mkdir(SYSTEM, dir, SNAPSHOTS_NAME, 0o700));
    }
}

fn removal(h: &Harness<'_>) {
    let top = tree(h);
    let snapshots = h.mkdir("top/.snapshots");
    let fs = h.fs();
    take(h, "top", "s");
    let file = h.ino("top/.snapshots/s/long");
    let open = fs.open(SYSTEM, file, OpenMode::read_only()).expect("open");
    refused!(fs.rmdir(SYSTEM, top, SNAPSHOTS_NAME), NotEmpty);
    refused!(fs.unlink(SYSTEM, snapshots, b"s"), IsDirectory);
    fs.rmdir(SYSTEM, snapshots, b"s").expect("rmdir");
    refused!(fs.rmdir(SYSTEM, snapshots, b"s"), NotFound);
    let mut found = vec![0; LONG];
    assert_eq!(open.read_at(SYSTEM, 0, &mut found).expect("read"), LONG);
    assert!(found == pattern(1, LONG), "an open file of a removed snapshot");
    drop(open);
    assert_eq!(h.read_at(h.ino("top/long"), 0, LONG), found, "the original");
    fs.rmdir(SYSTEM, top, SNAPSHOTS_NAME).expect("rmdir");
}

fn owners(h: &Harness<'_>) {
    let [owner, other] = [1, 2].map(|id| Ctx::checked(Cred::new(id, id)));
    let (fs, dir) = (h.fs(), h.mkdir("dir"));
    let own = SetAttr {
        uid: Some(1),
        gid: Some(1),
        mode: Some(0o777),
        ..SetAttr::default()
    };
    h.set(dir, own);
    refused!(fs.mkdir(&other, dir, SNAPSHOTS_NAME, 0o777), NotPermitted);
    // Made by root, it belongs to the owner all the same.
    let snapshots = fs.mkdir(SYSTEM, dir, SNAPSHOTS_NAME, 0o755).expect("mkdir");
    assert_eq!((snapshots.uid, snapshots.gid), (1, 1));
    refused!(fs.mkdir(&other, snapshots.ino, b"s", 0o755), NotPermitted);
    fs.mkdir(&owner, snapshots.ino, b"s", 0o755).expect("mkdir");
    refused!(fs.rmdir(&other, snapshots.ino, b"s"), AccessDenied);
    // The right to write it is not enough. It takes another mode, and follows to another owner.
    h.chmod(snapshots.ino, 0o777);
    refused!(fs.rmdir(&other, snapshots.ino, b"s"), NotPermitted);
    fs.rmdir(&owner, snapshots.ino, b"s").expect("rmdir");
    // Not of what belongs to others.
    h.file("dir/file of root");
    refused!(fs.mkdir(&owner, snapshots.ino, b"s", 0o755), NotPermitted);
    fs.rmdir(&owner, dir, SNAPSHOTS_NAME).expect("rmdir");
}

/// The bytes that a snapshot holds alone, or all of a directory.
fn held(h: &Harness<'_>, path: &str) -> u64 {
    let text = h.fs().getxattr(SYSTEM, h.ino(path), SNAPSHOT_XATTR).expect(path);
    SnapshotSpace::parse(&text).expect("a report").bytes
}

fn space(h: &Harness<'_>) {
    const FILE: usize = 300_000;
    // Less than a file, and more than names and inodes take.
    const LITTLE: u64 = 100_000;
    let (fs, top) = (h.fs(), h.mkdir("top"));
    let own = SetAttr {
        uid: Some(1),
        ..SetAttr::default()
    };
    h.set(top, own);
    for name in ["a", "b"] {
        h.write(&format!("top/{name}"), &pattern(1, FILE));
    }
    h.link("top/a", "top/other name");
    let snapshots = h.mkdir("top/.snapshots");
    take(h, "top", "1");
    let first = fs.getxattr(SYSTEM, h.ino("top/.snapshots/1"), SNAPSHOT_XATTR);
    if matches!(first, Err(FsError::NotSupported(_))) {
        return;
    }
    let first = SnapshotSpace::parse(&first.expect("space")).expect("a report");
    assert!(first.inodes == 3 && first.bytes < LITTLE, "all is shared: {first}");
    assert!(held(h, "top/.snapshots") < LITTLE, "also of all together");

    // After this nothing else has the file of `1`, and after the second time that of `2`. It may take more than its
    // bytes.
    let one = FILE as u64;
    let rewrite = |seed| h.write_at(h.ino("top/a"), 0, &pattern(seed, FILE));
    rewrite(2);
    assert!(held(h, "top/.snapshots/1") >= one);
    take(h, "top", "2");
    assert!(held(h, "top/.snapshots/2") < LITTLE);
    rewrite(3);
    // Both have this file, so neither holds it alone, and both together do.
    h.unlink("top/b");
    let [first, second] = ["top/.snapshots/1", "top/.snapshots/2"].map(|path| held(h, path));
    let all = held(h, "top/.snapshots");
    assert!(
        first >= one && second >= one && all >= first + second + one,
        "{first} and {second} of {all}"
    );
    fs.rmdir(SYSTEM, snapshots, b"1").expect("rmdir");
    assert!(held(h, "top/.snapshots/2") >= second + one);
    // A clone has it as well.
    clone(h, "top/.snapshots/2", "clone");
    assert!(held(h, "top/.snapshots/2") < LITTLE);

    for path in ["top", "top/a", "top/.snapshots/2/a", "clone"] {
        refused!(fs.getxattr(SYSTEM, h.ino(path), SNAPSHOT_XATTR), NoAttribute);
    }
    let [owner, other] = [1, 2].map(|id| Ctx::checked(Cred::new(id, id)));
    fs.getxattr(&owner, snapshots, SNAPSHOT_XATTR).expect("the owner");
    refused!(fs.getxattr(&other, snapshots, SNAPSHOT_XATTR), NotPermitted);
    let set = fs.setxattr(SYSTEM, snapshots, SNAPSHOT_XATTR, b"held_bytes=0", XattrMode::Any);
    assert!(set.is_err(), "it is what it is");
}
