//! Names and paths: lengths, bytes, depth, number; symbolic links and special files.

use ferrite_vfs::{Cred, Ctx, FileKind, NewNode, PATH_MAX, ROOT_INO, SYSTEM};

use super::{Case, Harness, TOO_FEW_INODES};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "names/lengths from 1 to 255",
        run: lengths,
    },
    Case {
        name: "names/every byte",
        run: every_byte,
    },
    Case {
        name: "names/names that differ little",
        run: near_names,
    },
    Case {
        name: "names/200 levels",
        run: deep,
    },
    Case {
        name: "names/20,000 files in a directory",
        run: many,
    },
    Case {
        name: "names/a removed name comes back as another kind",
        run: reuse,
    },
    Case {
        name: "names/symbolic links from 1 to 4095 bytes",
        run: symlinks,
    },
    Case {
        name: "names/special files",
        run: special,
    },
    Case {
        name: "names/owner, mode and size of new files",
        run: fresh_attributes,
    },
];

const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

fn lengths(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    for len in 1..=255 {
        h.fs()
            .mknod(SYSTEM, dir, &vec![b'n'; len], &FILE)
            .unwrap_or_else(|e| panic!("name of {len} bytes: {e}"));
    }
    for len in 1..=255 {
        h.fs()
            .lookup(SYSTEM, dir, &vec![b'n'; len])
            .unwrap_or_else(|e| panic!("name of {len} bytes: {e}"));
    }
    assert_eq!(h.names("d").len(), 255);
    for len in (1..=255).step_by(2) {
        h.fs().unlink(SYSTEM, dir, &vec![b'n'; len]).expect("unlink");
    }
    assert_eq!(h.names("d").len(), 127);
}

fn every_byte(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    let bytes = || (1..=255u8).filter(|&byte| byte != b'/' && byte != b'.');
    for byte in bytes() {
        h.fs()
            .mknod(SYSTEM, dir, &[byte], &FILE)
            .unwrap_or_else(|e| panic!("name {byte:#x}: {e}"));
        h.fs()
            .mkdir(SYSTEM, dir, &[b'.', byte], 0o755)
            .unwrap_or_else(|e| panic!("name .{byte:#x}: {e}"));
    }
    let mut listed = Vec::new();
    h.fs()
        .readdir(SYSTEM, dir, 0, &mut |entry| {
            listed.push(entry.name.to_vec());
            true
        })
        .expect("readdir");
    listed.sort();
    let mut expected: Vec<_> = bytes().flat_map(|byte| [vec![byte], vec![b'.', byte]]).collect();
    expected.sort();
    assert_eq!(listed, expected);
    for name in [&b"..."[..], b"..a", b" ", b"-"] {
        let _ = h.fs().mknod(SYSTEM, dir, name, &FILE);
        h.fs().lookup(SYSTEM, dir, name).expect("an odd name is a name");
    }
}

/// Names are bytes: neither case, nor trailing bytes, nor prefixes may be confused.
fn near_names(h: &Harness<'_>) {
    let names = ["a", "A", "a ", "a.", "aa", "a\u{301}", "\u{e1}"];
    for (index, name) in names.iter().enumerate() {
        h.write(name, &[index as u8; 3]);
    }
    for (index, name) in names.iter().enumerate() {
        assert_eq!(h.read_at(h.ino(name), 0, 10), [index as u8; 3], "{name:?}");
    }
}

fn deep(h: &Harness<'_>) {
    let mut inos = vec![ROOT_INO];
    for level in 0..200 {
        let parent = *inos.last().expect("the root at least");
        inos.push(
            h.fs()
                .mkdir(SYSTEM, parent, b"sub", 0o755)
                .unwrap_or_else(|e| panic!("level {level}: {e}"))
                .ino,
        );
    }
    for pair in inos.windows(2) {
        assert_eq!(h.fs().parent(SYSTEM, pair[1]).expect("parent"), pair[0]);
        assert_eq!(h.fs().lookup(SYSTEM, pair[0], b"sub").expect("lookup").ino, pair[1]);
    }
    assert_eq!(h.fs().parent(SYSTEM, ROOT_INO).expect("parent of the root"), ROOT_INO);
    let path = ["sub"; 200].join("/");
    h.write(&format!("{path}/leaf"), b"deep");
    h.rename("sub", "moved");
    let path = format!("moved/{}/leaf", ["sub"; 199].join("/"));
    assert_eq!(h.read_at(h.ino(&path), 0, 10), b"deep");
}

fn many(h: &Harness<'_>) {
    // A service adds listings that take many replies, and this number takes many, too.
    let count = if h.is_served() { 3_000 } else { 20_000 };
    let dir = h.mkdir("d");
    if h.fs().statfs(SYSTEM).expect("statfs").inodes_free < count as u64 + 10 {
        return h.skip(TOO_FEW_INODES);
    }
    let name = |index: usize| format!("file number {index}").into_bytes();
    let mut inos = Vec::new();
    for index in 0..count {
        let made = h.fs().mknod(SYSTEM, dir, &name(index), &FILE);
        inos.push(made.unwrap_or_else(|error| panic!("file {index}: {error}")).ino);
    }
    for index in (0..count).rev() {
        assert_eq!(
            h.fs().lookup(SYSTEM, dir, &name(index)).map(|attr| attr.ino),
            Ok(inos[index]),
            "file {index}"
        );
    }
    assert_eq!(h.names("d").len(), count);
    for index in (0..count).filter(|index| index % 3 != 0) {
        h.fs()
            .unlink(SYSTEM, dir, &name(index))
            .unwrap_or_else(|error| panic!("unlink {index}: {error}"));
    }
    for index in 0..count {
        assert_eq!(
            h.fs().lookup(SYSTEM, dir, &name(index)).is_ok(),
            index % 3 == 0,
            "file {index}"
        );
    }
    assert_eq!(h.names("d").len(), count.div_ceil(3));
}

fn reuse(h: &Harness<'_>) {
    h.write("x", &[7; 10_000]);
    h.unlink("x");
    h.mkdir("x");
    assert_eq!(
        (h.stat("x").kind, h.nlink("x"), h.names("x").len()),
        (FileKind::Directory, 2, 0)
    );
    h.file("x/inner");
    h.unlink("x/inner");
    h.rmdir("x");
    let link = h.node("x", FileKind::Symlink);
    assert_eq!(h.fs().readlink(SYSTEM, link).expect("readlink"), b"target");
    h.unlink("x");
    let file = h.file("x");
    h.truncate(file, 10_000);
    assert_eq!(
        h.read_at(file, 0, 20_000),
        [0; 10_000],
        "a new file shows bytes of a removed one"
    );
    assert!(h.fs().listxattr(SYSTEM, file).expect("listxattr").is_empty());
}

fn symlinks(h: &Harness<'_>) {
    for len in [
        1,
        2,
        31,
        59,
        60,
        61,
        127,
        128,
        200,
        255,
        256,
        1000,
        2048,
        4000,
        4090,
        PATH_MAX - 1,
    ] {
        let target: Vec<u8> = (0..len).map(|index| b'a' + (index % 23) as u8).collect();
        let name = format!("l{len}");
        let made = h
            .fs()
            .symlink(&Ctx::trusted(Cred::new(5, 6)), ROOT_INO, name.as_bytes(), &target);
        let attr = made.unwrap_or_else(|error| panic!("link of {len} bytes: {error}"));
        assert_eq!(
            (attr.kind, attr.size, attr.uid, attr.gid),
            (FileKind::Symlink, len as u64, 5, 6)
        );
        assert_eq!(attr.mode, 0o777, "the mode of a symbolic link");
        assert_eq!(
            h.fs().readlink(SYSTEM, attr.ino).expect("readlink"),
            target,
            "target of {len} bytes"
        );
    }
    h.link("l1", "again");
    assert_eq!((h.ino("again"), h.nlink("l1")), (h.ino("l1"), 2));
    for odd in [&b"../.././x"[..], b"/", b"a\xff\xfe", b"dangling"] {
        let ino = h.fs().symlink(SYSTEM, ROOT_INO, b"odd", odd).expect("symlink").ino;
        assert_eq!(h.fs().readlink(SYSTEM, ino).expect("readlink"), odd);
        h.unlink("odd");
    }
}

fn special(h: &Harness<'_>) {
    let devices = [FileKind::CharDevice, FileKind::BlockDevice];
    for kind in [
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ] {
        for rdev in [0x0103, 0, u32::MAX] {
            let rdev = if devices.contains(&kind) { rdev } else { 0 };
            let node = NewNode {
                kind,
                mode: 0o4640,
                rdev,
            };
            let attr = h
                .fs()
                .mknod(&Ctx::trusted(Cred::new(10, 20)), ROOT_INO, b"n", &node)
                .expect("mknod");
            let found = h.stat("n");
            assert_eq!(attr, found);
            assert_eq!(
                (found.kind, found.mode, found.rdev, found.nlink, found.size),
                (kind, 0o4640, rdev, 1, 0)
            );
            assert_eq!((found.uid, found.gid), (10, 20));
            h.rename("n", "m");
            h.link("m", "n");
            assert_eq!(h.nlink("n"), 2);
            h.unlink("m");
            h.unlink("n");
        }
    }
    for (index, kind) in devices.into_iter().enumerate() {
        h.node(&format!("dev{index}"), kind);
    }
}

fn fresh_attributes(h: &Harness<'_>) {
    for mode in [0o000, 0o644, 0o7777, 0o4711] {
        let node = NewNode {
            kind: FileKind::File,
            mode,
            rdev: 0,
        };
        let attr = h
            .fs()
            .mknod(&Ctx::trusted(Cred::new(1000, 100)), ROOT_INO, b"f", &node)
            .expect("mknod");
        assert_eq!(
            (attr.mode, attr.uid, attr.gid, attr.nlink, attr.size, attr.blocks),
            (mode, 1000, 100, 1, 0, 0)
        );
        assert_eq!(
            (attr.atime, attr.mtime, attr.ctime),
            (attr.btime, attr.btime, attr.btime)
        );
        h.unlink("f");
        let attr = h
            .fs()
            .mkdir(&Ctx::trusted(Cred::new(1000, 100)), ROOT_INO, b"d", mode & 0o1777)
            .expect("mkdir");
        assert_eq!(
            (attr.kind, attr.mode, attr.uid, attr.gid, attr.nlink),
            (FileKind::Directory, mode & 0o1777, 1000, 100, 2)
        );
        h.rmdir("d");
    }
}
