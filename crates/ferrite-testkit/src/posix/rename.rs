//! `rename`: every pair of kinds in every mode, link counts, cycles, and unchanged attributes.

use ferrite_vfs::{FileKind, ROOT_INO, RenameMode, SYSTEM};

use super::{Case, Harness};
use crate::refused;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "rename/to a free name, every kind",
        run: to_free_name,
    },
    Case {
        name: "rename/replace, every pair of kinds",
        run: replace_matrix,
    },
    Case {
        name: "rename/noreplace, every pair of kinds",
        run: noreplace_matrix,
    },
    Case {
        name: "rename/exchange, every pair of kinds",
        run: exchange_matrix,
    },
    Case {
        name: "rename/whiteout, every kind and pair of kinds",
        run: whiteouts,
    },
    Case {
        name: "rename/link counts of parents",
        run: parent_counts,
    },
    Case {
        name: "rename/exchange across parents",
        run: exchange_across,
    },
    Case {
        name: "rename/below itself",
        run: cycles,
    },
    Case {
        name: "rename/directories with entries",
        run: full_directories,
    },
    Case {
        name: "rename/to the same name or inode",
        run: same,
    },
    Case {
        name: "rename/a replaced file lives on",
        run: replaced_lives,
    },
    Case {
        name: "rename/a subtree moves whole",
        run: subtree,
    },
    Case {
        name: "rename/many in one directory",
        run: many,
    },
];

const KINDS: [FileKind; 7] = [
    FileKind::File,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

fn is_dir(kind: FileKind) -> bool {
    kind == FileKind::Directory
}

fn remove(h: &Harness<'_>, path: &str) {
    if is_dir(h.stat(path).kind) {
        h.rmdir(path)
    } else {
        h.unlink(path)
    }
}

/// Runs `check` for every pair of kinds, with `a/old` and `b/new` freshly made.
fn pairs(h: &Harness<'_>, check: impl Fn(FileKind, FileKind)) {
    h.mkdir("a");
    h.mkdir("b");
    for from in KINDS {
        for to in KINDS {
            h.node("a/old", from);
            h.node("b/new", to);
            check(from, to);
            for path in ["a/old", "b/new"] {
                if h.exists(path) {
                    remove(h, path);
                }
            }
            assert_eq!(
                (h.nlink("a"), h.nlink("b")),
                (2, 2),
                "link counts after {from:?} onto {to:?}"
            );
        }
    }
}

fn to_free_name(h: &Harness<'_>) {
    h.mkdir("a");
    h.mkdir("b");
    for kind in KINDS {
        for mode in [RenameMode::Replace, RenameMode::NoReplace] {
            let ino = h.node("a/x", kind);
            let before = h.stat("a/x");
            h.try_rename("a/x", "a/y", mode).expect("rename in one directory");
            h.try_rename("a/y", "b/x", mode).expect("rename to another directory");
            let after = h.stat("b/x");
            assert_eq!(
                (after.ino, after.kind, after.mode, after.nlink),
                (ino, kind, before.mode, before.nlink)
            );
            assert_eq!((after.size, after.mtime), (before.size, before.mtime));
            assert!(h.names("a").is_empty(), "the old name is gone");
            assert_eq!((h.nlink("a"), h.nlink("b")), (2, 2 + u32::from(is_dir(kind))));
            remove(h, "b/x");
        }
    }
}

fn replace_matrix(h: &Harness<'_>) {
    pairs(h, |from, to| {
        let (old, new) = (h.ino("a/old"), h.ino("b/new"));
        let result = h.try_rename("a/old", "b/new", RenameMode::Replace);
        match (is_dir(from), is_dir(to)) {
            (true, false) => refused!(result, NotDirectory),
            (false, true) => refused!(result, IsDirectory),
            _ => {
                result.unwrap_or_else(|error| panic!("{from:?} onto {to:?}: {error}"));
                assert_eq!(h.ino("b/new"), old);
                assert!(!h.exists("a/old"));
                return;
            }
        }
        assert_eq!(
            (h.ino("a/old"), h.ino("b/new")),
            (old, new),
            "a refused rename changed something"
        );
    });
}

fn noreplace_matrix(h: &Harness<'_>) {
    pairs(h, |_, _| {
        let (old, new) = (h.ino("a/old"), h.ino("b/new"));
        refused!(h.try_rename("a/old", "b/new", RenameMode::NoReplace), Exists);
        assert_eq!((h.ino("a/old"), h.ino("b/new")), (old, new));
    });
}

fn exchange_matrix(h: &Harness<'_>) {
    pairs(h, |from, to| {
        let (old, new) = (h.ino("a/old"), h.ino("b/new"));
        h.try_rename("a/old", "b/new", RenameMode::Exchange)
            .unwrap_or_else(|e| panic!("{from:?} with {to:?}: {e}"));
        assert_eq!((h.ino("a/old"), h.ino("b/new")), (new, old));
        assert_eq!((h.stat("a/old").kind, h.stat("b/new").kind), (to, from));
        assert_eq!(
            (h.nlink("a"), h.nlink("b")),
            (2 + u32::from(is_dir(to)), 2 + u32::from(is_dir(from)))
        );
    });
}

/// The old name then leads to a new device 0:0, whatever was moved, and wherever to; or nothing has changed.
fn whiteouts(h: &Harness<'_>) {
    let is_whiteout = |path: &str| {
        let attr = h.stat(path);
        let kind = (attr.kind, attr.rdev, attr.mode, attr.nlink);
        assert_eq!(kind, (FileKind::CharDevice, 0, 0, 1), "{path}: {attr:?}");
    };
    pairs(h, |from, to| {
        let (old, new) = (h.ino("a/old"), h.ino("b/new"));
        refused!(h.try_rename("a/old", "b/new", RenameMode::NoReplaceWhiteout), Exists);
        assert_eq!((h.ino("a/old"), h.ino("b/new")), (old, new));
        let moved = h.try_rename("a/old", "b/new", RenameMode::Whiteout);
        if is_dir(from) != is_dir(to) {
            let error = moved.expect_err("a directory onto another kind, or the reverse");
            assert_eq!((h.ino("a/old"), h.ino("b/new")), (old, new), "{error}");
            return;
        }
        moved.unwrap_or_else(|error| panic!("{from:?} onto {to:?}: {error}"));
        assert_eq!((h.ino("b/new"), h.stat("b/new").kind), (old, from));
        is_whiteout("a/old");
        assert_eq!(h.names("a"), ["old"]);
    });
    for kind in KINDS {
        for (path, mode) in [("a/y", RenameMode::Whiteout), ("b/x", RenameMode::NoReplaceWhiteout)] {
            let ino = h.node("a/x", kind);
            h.try_rename("a/x", path, mode).expect("rename to a free name");
            assert_eq!((h.ino(path), h.stat(path).kind), (ino, kind));
            is_whiteout("a/x");
            assert_ne!(h.ino("a/x"), ino);
            h.unlink("a/x");
            remove(h, path);
        }
    }
    // Two names of one file: nothing happens.
    h.file("a/one");
    h.link("a/one", "a/two");
    h.try_rename("a/one", "a/two", RenameMode::Whiteout)
        .expect("nothing to do");
    assert_eq!((h.ino("a/one"), h.nlink("a/two")), (h.ino("a/two"), 2));
}

fn parent_counts(h: &Harness<'_>) {
    let (a, b) = (h.mkdir("a"), h.mkdir("b"));
    let moved = h.mkdir("a/d");
    assert_eq!(h.fs().parent(SYSTEM, moved).expect("parent"), a);
    h.rename("a/d", "b/d");
    assert_eq!((h.nlink("a"), h.nlink("b"), h.nlink("b/d")), (2, 3, 2));
    assert_eq!(h.fs().parent(SYSTEM, moved).expect("parent"), b);
    h.rename("b/d", "b/e");
    assert_eq!((h.nlink("b"), h.fs().parent(SYSTEM, moved).expect("parent")), (3, b));
    // Onto an empty directory elsewhere: one is added, one removed.
    h.mkdir("a/d");
    h.rename("b/e", "a/d");
    assert_eq!((h.nlink("a"), h.nlink("b"), h.ino("a/d")), (3, 2, moved));
    h.mkdir("a/c");
    h.rename("a/c", "a/d");
    assert_eq!((h.nlink("a"), h.names("a").len()), (3, 1));
    assert_eq!(h.nlink(""), 4);
}

fn exchange_across(h: &Harness<'_>) {
    let (a, b) = (h.mkdir("a"), h.mkdir("b"));
    let (dir, file) = (h.mkdir("a/x"), h.write("b/x", b"file"));
    h.file("a/x/inner");
    h.try_rename("a/x", "b/x", RenameMode::Exchange)
        .expect("exchange of a directory and a file");
    assert_eq!((h.ino("b/x"), h.ino("a/x")), (dir, file));
    assert_eq!(
        (h.nlink("a"), h.nlink("b"), h.fs().parent(SYSTEM, dir).expect("parent")),
        (2, 3, b)
    );
    h.mkdir("a/y");
    h.try_rename("a/y", "b/x", RenameMode::Exchange)
        .expect("exchange of directories, one with entries");
    assert_eq!(
        (h.nlink("a"), h.nlink("b"), h.fs().parent(SYSTEM, dir).expect("parent")),
        (3, 3, a)
    );
    assert_eq!(h.names("a/y"), ["inner"]);
}

fn cycles(h: &Harness<'_>) {
    h.mkdir("a");
    h.mkdir("a/b");
    h.mkdir("a/b/c");
    h.mkdir("x");
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        for target in ["a/new", "a/b/new", "a/b/c/new"] {
            refused!(h.try_rename("a", target, mode), Invalid);
        }
    }
    refused!(h.try_rename("a", "a/b", RenameMode::Replace), Invalid);
    refused!(h.try_rename("a", "a/b/c", RenameMode::Replace), Invalid);
    refused!(h.try_rename("a", "a/b/c", RenameMode::Exchange), Invalid);
    refused!(h.try_rename("a/b/c", "a", RenameMode::Exchange), Invalid);
    // Onto the directory that contains it: that is not empty.
    refused!(h.try_rename("a/b/c", "a", RenameMode::Replace), NotEmpty);
    refused!(h.try_rename("a/b", "a", RenameMode::Replace), NotEmpty);
    // Upwards and to a sibling is not a cycle; and a/b is not below a/bc.
    h.rename("a/b/c", "a/bc");
    h.rename("a/b", "a/bc/b");
    h.rename("a", "x/a");
    assert_eq!(h.names("x/a/bc"), ["b"]);
    assert_eq!(
        (h.nlink(""), h.nlink("x"), h.nlink("x/a"), h.nlink("x/a/bc")),
        (3, 3, 3, 3)
    );
}

fn full_directories(h: &Harness<'_>) {
    for path in ["from", "from/in", "to", "to/in"] {
        h.mkdir(path);
    }
    let before = [h.stat("from"), h.stat("to")];
    refused!(h.try_rename("from", "to", RenameMode::Replace), NotEmpty | Exists);
    assert_eq!([h.stat("from"), h.stat("to")], before);
    h.rmdir("to/in");
    h.rename("from", "to");
    assert_eq!(
        (h.names(""), h.names("to")),
        (vec!["to".to_owned()], vec!["in".to_owned()])
    );
    assert_eq!((h.nlink(""), h.nlink("to")), (3, 3));
}

fn same(h: &Harness<'_>) {
    let ino = h.write("a", b"same");
    h.link("a", "b");
    h.mkdir("d");
    h.age(ino);
    h.age(ROOT_INO);
    let before = [h.stat(""), h.stat("a")];
    h.rename("a", "a");
    h.rename("a", "b");
    h.rename("d", "d");
    h.try_rename("a", "b", RenameMode::Exchange)
        .expect("exchange of two names of one inode");
    h.try_rename("a", "a", RenameMode::Exchange)
        .expect("exchange of a name with itself");
    refused!(h.try_rename("a", "b", RenameMode::NoReplace), Exists);
    refused!(h.try_rename("a", "a", RenameMode::NoReplace), Exists);
    assert_eq!(h.names(""), ["a", "b", "d"]);
    assert_eq!(h.nlink("a"), 2);
    // "Replacing a name by another link of the same inode changes nothing": no time either. (An exchange may.)
    assert_eq!(h.stat("a").mtime, before[1].mtime);
    assert_eq!(h.stat("").nlink, before[0].nlink);
}

fn replaced_lives(h: &Harness<'_>) {
    let old = h.write("target", b"old content");
    h.link("target", "other name");
    let open = h.open(old);
    h.write("new", b"new");
    h.rename("new", "target");
    assert_eq!(h.read_at(h.ino("target"), 0, 100), b"new");
    assert_eq!((h.ino("other name"), h.nlink("other name")), (old, 1));
    h.write("newer", b"newer");
    h.rename("newer", "other name");
    let mut buffer = [0; 100];
    let count = open.read_at(SYSTEM, 0, &mut buffer).expect("read of a replaced file");
    assert_eq!(&buffer[..count], b"old content");
    assert_eq!(open.getattr(SYSTEM).expect("getattr").nlink, 0);
}

fn subtree(h: &Harness<'_>) {
    for path in ["s", "s/one", "s/two", "s/one/deep", "t"] {
        h.mkdir(path);
    }
    for path in ["s/f", "s/one/f", "s/one/deep/f", "s/two/f"] {
        h.write(path, path.as_bytes());
    }
    h.rename("s", "t/moved");
    for path in ["f", "one/f", "one/deep/f", "two/f"] {
        assert_eq!(
            h.read_at(h.ino(&format!("t/moved/{path}")), 0, 100),
            format!("s/{path}").as_bytes()
        );
    }
    assert_eq!((h.nlink(""), h.nlink("t"), h.nlink("t/moved")), (3, 3, 4));
}

fn many(h: &Harness<'_>) {
    h.mkdir("d");
    for index in 0..300 {
        h.write(&format!("d/f{index}"), index.to_string().as_bytes());
    }
    for round in 0..5 {
        for index in 0..300 {
            let (from, to) = if round % 2 == 0 {
                ("f", "a much longer name ")
            } else {
                ("a much longer name ", "f")
            };
            h.rename(&format!("d/{from}{index}"), &format!("d/{to}{index}"));
        }
    }
    assert_eq!(h.names("d").len(), 300);
    for index in 0..300 {
        let ino = h.ino(&format!("d/a much longer name {index}"));
        assert_eq!(h.read_at(ino, 0, 10), index.to_string().as_bytes());
    }
}
