//! Each error that the contract's documentation names, and the rule that a refused operation changes nothing.

use ferrite_vfs::{FallocateMode, FileKind, NewNode, OpenMode, PATH_MAX, ROOT_INO, RenameMode, SYSTEM, SetAttr};

use super::{Case, Harness};
use crate::refused;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "errors/missing names",
        run: missing_names,
    },
    Case {
        name: "errors/a file is no directory",
        run: file_is_no_directory,
    },
    Case {
        name: "errors/taken names",
        run: taken_names,
    },
    Case {
        name: "errors/unlink and rmdir of the wrong kind",
        run: wrong_kind_removed,
    },
    Case {
        name: "errors/rmdir of a directory with entries",
        run: not_empty,
    },
    Case {
        name: "errors/names that are no names",
        run: bad_names,
    },
    Case {
        name: "errors/kinds mknod does not make",
        run: mknod_kinds,
    },
    Case {
        name: "errors/sizes of what has none",
        run: sizes_of_nonfiles,
    },
    Case {
        name: "errors/readlink of what is no link",
        run: readlink_of_nonlinks,
    },
    Case {
        name: "errors/open of what is no file",
        run: open_nonfiles,
    },
    Case {
        name: "errors/handles not open for it",
        run: bad_handles,
    },
    Case {
        name: "errors/link of a directory",
        run: link_directory,
    },
    Case {
        name: "errors/inode numbers never used",
        run: unknown_inodes,
    },
    Case {
        name: "errors/stale generations",
        run: stale_generations,
    },
];

const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

fn missing_names(h: &Harness<'_>) {
    let (fs, dir) = (h.fs(), h.mkdir("d"));
    refused!(fs.lookup(SYSTEM, dir, b"no"), NotFound);
    refused!(fs.unlink(SYSTEM, dir, b"no"), NotFound);
    refused!(fs.rmdir(SYSTEM, dir, b"no"), NotFound);
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        refused!(fs.rename(SYSTEM, dir, b"no", dir, b"other", mode), NotFound);
    }
    h.file("d/f");
    refused!(fs.rename(SYSTEM, dir, b"f", dir, b"no", RenameMode::Exchange), NotFound);
    assert_eq!(h.names("d"), ["f"]);
}

fn file_is_no_directory(h: &Harness<'_>) {
    let fs = h.fs();
    for (name, kind) in [("f", FileKind::File), ("l", FileKind::Symlink), ("p", FileKind::Fifo)] {
        let ino = h.node(name, kind);
        let other = h.file(&format!("{name}.other"));
        refused!(fs.lookup(SYSTEM, ino, b"x"), NotDirectory);
        refused!(fs.mknod(SYSTEM, ino, b"x", &FILE), NotDirectory);
        refused!(fs.mkdir(SYSTEM, ino, b"x", 0o755), NotDirectory);
        refused!(fs.symlink(SYSTEM, ino, b"x", b"t"), NotDirectory);
        refused!(fs.link(SYSTEM, other, ino, b"x"), NotDirectory);
        refused!(fs.unlink(SYSTEM, ino, b"x"), NotDirectory);
        refused!(fs.rmdir(SYSTEM, ino, b"x"), NotDirectory);
        refused!(
            fs.rename(SYSTEM, ROOT_INO, name.as_bytes(), ino, b"x", RenameMode::Replace),
            NotDirectory
        );
        refused!(
            fs.rename(SYSTEM, ino, b"x", ROOT_INO, b"y", RenameMode::Replace),
            NotDirectory
        );
        refused!(fs.readdir(SYSTEM, ino, 0, &mut |_| true), NotDirectory);
        assert_eq!(h.nlink(&format!("{name}.other")), 1);
    }
}

fn taken_names(h: &Harness<'_>) {
    let fs = h.fs();
    let file = h.file("f");
    for kind in [FileKind::File, FileKind::Directory, FileKind::Symlink, FileKind::Socket] {
        let taken = h.node("taken", kind);
        let before = h.stat("taken");
        refused!(fs.mknod(SYSTEM, ROOT_INO, b"taken", &FILE), Exists);
        refused!(fs.mkdir(SYSTEM, ROOT_INO, b"taken", 0o755), Exists);
        refused!(fs.symlink(SYSTEM, ROOT_INO, b"taken", b"t"), Exists);
        refused!(fs.link(SYSTEM, file, ROOT_INO, b"taken"), Exists);
        refused!(
            fs.rename(SYSTEM, ROOT_INO, b"f", ROOT_INO, b"taken", RenameMode::NoReplace),
            Exists
        );
        assert_eq!((h.stat("taken"), taken), (before, before.ino));
        assert_eq!(h.nlink("f"), 1);
        if kind == FileKind::Directory {
            h.rmdir("taken")
        } else {
            h.unlink("taken")
        }
    }
}

fn wrong_kind_removed(h: &Harness<'_>) {
    h.mkdir("d");
    refused!(h.fs().unlink(SYSTEM, ROOT_INO, b"d"), IsDirectory);
    for kind in [FileKind::File, FileKind::Symlink, FileKind::Fifo, FileKind::CharDevice] {
        h.node("n", kind);
        refused!(h.fs().rmdir(SYSTEM, ROOT_INO, b"n"), NotDirectory);
        h.unlink("n");
    }
    assert_eq!(h.names(""), ["d"]);
}

fn not_empty(h: &Harness<'_>) {
    h.mkdir("d");
    for kind in [FileKind::File, FileKind::Directory, FileKind::Symlink] {
        h.node("d/x", kind);
        refused!(h.fs().rmdir(SYSTEM, ROOT_INO, b"d"), NotEmpty);
        if kind == FileKind::Directory {
            h.rmdir("d/x")
        } else {
            h.unlink("d/x")
        }
    }
    h.rmdir("d");
    assert!(!h.exists("d"));
    assert_eq!(h.nlink(""), 2);
}

fn bad_names(h: &Harness<'_>) {
    let fs = h.fs();
    let file = h.file("f");
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
        refused!(fs.mknod(SYSTEM, ROOT_INO, name, &FILE), Invalid);
        refused!(fs.mkdir(SYSTEM, ROOT_INO, name, 0o755), Invalid);
        refused!(fs.symlink(SYSTEM, ROOT_INO, name, b"t"), Invalid);
        refused!(fs.link(SYSTEM, file, ROOT_INO, name), Invalid);
        refused!(
            fs.rename(SYSTEM, ROOT_INO, b"f", ROOT_INO, name, RenameMode::Replace),
            Invalid
        );
    }
    let long = vec![b'n'; 256];
    refused!(fs.mknod(SYSTEM, ROOT_INO, &long, &FILE), NameTooLong);
    refused!(fs.mkdir(SYSTEM, ROOT_INO, &long, 0o755), NameTooLong);
    refused!(fs.symlink(SYSTEM, ROOT_INO, &long, b"t"), NameTooLong);
    refused!(fs.link(SYSTEM, file, ROOT_INO, &long), NameTooLong);
    refused!(
        fs.rename(SYSTEM, ROOT_INO, b"f", ROOT_INO, &long, RenameMode::Replace),
        NameTooLong
    );
    refused!(fs.lookup(SYSTEM, ROOT_INO, &long), NameTooLong);
    refused!(fs.unlink(SYSTEM, ROOT_INO, &long), NameTooLong);
    refused!(fs.rmdir(SYSTEM, ROOT_INO, &long), NameTooLong);
    refused!(fs.symlink(SYSTEM, ROOT_INO, b"s", &vec![b't'; PATH_MAX]), NameTooLong);
    refused!(fs.symlink(SYSTEM, ROOT_INO, b"s", b""), Invalid | NotFound);
    assert_eq!(h.names(""), ["f"]);
}

fn mknod_kinds(h: &Harness<'_>) {
    for kind in [FileKind::Directory, FileKind::Symlink] {
        let node = NewNode {
            kind,
            mode: 0o755,
            rdev: 0,
        };
        refused!(h.fs().mknod(SYSTEM, ROOT_INO, b"x", &node), Invalid);
    }
    assert!(!h.exists("x"));
}

fn sizes_of_nonfiles(h: &Harness<'_>) {
    for kind in [
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::BlockDevice,
    ] {
        let ino = h.node("n", kind);
        let before = h.stat("n");
        // All in one step: the mode must not change when the size is refused.
        let set = SetAttr {
            size: Some(10),
            mode: Some(0o700),
            ..SetAttr::default()
        };
        if kind == FileKind::Directory {
            refused!(h.fs().setattr(SYSTEM, ino, &set), IsDirectory);
            assert_eq!(h.stat("n"), before);
            h.rmdir("n");
        } else {
            refused!(h.fs().setattr(SYSTEM, ino, &set), Invalid);
            assert_eq!(h.stat("n"), before);
            h.unlink("n");
        }
    }
}

fn readlink_of_nonlinks(h: &Harness<'_>) {
    for (name, kind) in [("f", FileKind::File), ("d", FileKind::Directory), ("p", FileKind::Fifo)] {
        let ino = h.node(name, kind);
        refused!(h.fs().readlink(SYSTEM, ino), Invalid);
    }
}

fn open_nonfiles(h: &Harness<'_>) {
    for (name, kind) in [
        ("d", FileKind::Directory),
        ("l", FileKind::Symlink),
        ("p", FileKind::Fifo),
    ] {
        let ino = h.node(name, kind);
        // The contract names no error here.
        assert!(
            h.fs().open(SYSTEM, ino, OpenMode::read_write()).is_err(),
            "a {kind:?} was opened as a regular file"
        );
    }
}

fn bad_handles(h: &Harness<'_>) {
    let ino = h.write("f", b"content");
    let before = h.stat("f");
    let reader = h
        .fs()
        .open(SYSTEM, ino, OpenMode::read_only())
        .expect("open for reading");
    refused!(reader.write_at(SYSTEM, 0, b"x"), BadHandle);
    refused!(reader.append(SYSTEM, b"x"), BadHandle);
    for mode in [
        FallocateMode::Allocate { keep_size: false },
        FallocateMode::PunchHole,
        FallocateMode::ZeroRange { keep_size: true },
    ] {
        refused!(reader.fallocate(SYSTEM, mode, 0, 4), BadHandle);
    }
    let writer = h
        .fs()
        .open(
            SYSTEM,
            ino,
            OpenMode {
                write: true,
                ..OpenMode::default()
            },
        )
        .expect("open for writing");
    refused!(writer.read_at(SYSTEM, 0, &mut [0; 4]), BadHandle);
    assert_eq!(h.read_at(ino, 0, 100), b"content");
    assert_eq!((h.stat("f").mtime, h.stat("f").size), (before.mtime, before.size));
}

fn link_directory(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    refused!(h.fs().link(SYSTEM, dir, ROOT_INO, b"e"), NotPermitted);
    refused!(h.fs().link(SYSTEM, dir, dir, b"self"), NotPermitted);
    refused!(h.fs().link(SYSTEM, ROOT_INO, dir, b"root"), NotPermitted);
    assert_eq!((h.nlink("d"), h.nlink("")), (2, 3));
}

fn unknown_inodes(h: &Harness<'_>) {
    let fs = h.fs();
    let file = h.file("f");
    for ino in [0, file + 1_000_000, u64::from(u32::MAX), 1 << 40, u64::MAX] {
        refused!(fs.getattr(SYSTEM, ino), Stale | NotFound);
        refused!(fs.setattr(SYSTEM, ino, &SetAttr::default()), Stale | NotFound);
        refused!(fs.lookup(SYSTEM, ino, b"x"), Stale | NotFound);
        refused!(fs.readdir(SYSTEM, ino, 0, &mut |_| true), Stale | NotFound);
        refused!(fs.readlink(SYSTEM, ino), Stale | NotFound);
        refused!(fs.open(SYSTEM, ino, OpenMode::read_only()).map(drop), Stale | NotFound);
        refused!(fs.link(SYSTEM, ino, ROOT_INO, b"x"), Stale | NotFound);
        refused!(fs.mknod(SYSTEM, ino, b"x", &FILE), Stale | NotFound);
        refused!(fs.getxattr(SYSTEM, ino, b"user.x"), Stale | NotFound);
        refused!(fs.pin(SYSTEM, ino, 0), Stale | NotFound);
    }
}

fn stale_generations(h: &Harness<'_>) {
    let ino = h.file("f");
    let attr = h.stat("f");
    h.fs()
        .pin(SYSTEM, ino, attr.generation)
        .expect("pin with the right generation");
    h.fs().unpin(SYSTEM, ino, 1);
    refused!(h.fs().pin(SYSTEM, ino, attr.generation.wrapping_add(1)), Stale);
    h.unlink("f");
    refused!(h.fs().pin(SYSTEM, ino, attr.generation), Stale);
    // New files may reuse the number, but never with its old generation.
    for index in 0..2000 {
        let name = format!("n{index}");
        h.file(&name);
        let new = h.stat(&name);
        assert_ne!(
            (new.ino, new.generation),
            (attr.ino, attr.generation),
            "{name} is taken for a removed file"
        );
        h.unlink(&name);
    }
    refused!(h.fs().pin(SYSTEM, ino, attr.generation), Stale);
}
