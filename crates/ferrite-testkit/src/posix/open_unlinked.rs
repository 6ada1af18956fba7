//! Files and directories without a name that are still open or pinned.

use ferrite_vfs::{FileKind, NewNode, ROOT_INO, SYSTEM, SetAttr, Written};

use super::{Case, Harness};
use crate::refused;
use crate::rng::pattern;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "unlinked/an open file goes on",
        run: open_file,
    },
    Case {
        name: "unlinked/its space comes back at the last close",
        run: space_returns,
    },
    Case {
        name: "unlinked/no way back into the tree",
        run: no_link,
    },
    Case {
        name: "unlinked/pins keep it, and are counted",
        run: pins,
    },
    Case {
        name: "unlinked/a removed directory that is pinned",
        run: removed_directory,
    },
    Case {
        name: "unlinked/its name can be taken at once",
        run: name_reused,
    },
];

fn open_file(h: &Harness<'_>) {
    let data = pattern(1, 30_000);
    let ino = h.write("f", &data);
    let file = h.open(ino);
    h.unlink("f");
    let attr = h
        .fs()
        .getattr(SYSTEM, ino)
        .expect("getattr of an open file without a name");
    assert_eq!((attr.nlink, attr.size), (0, 30_000));
    let mut buffer = vec![0; 40_000];
    assert_eq!(file.read_at(SYSTEM, 0, &mut buffer), Ok(30_000));
    assert_eq!(&buffer[..30_000], data);
    let more = pattern(2, 100_000);
    assert_eq!(file.append(SYSTEM, &more), Ok(Written::new(30_000, 100_000)));
    assert_eq!(file.write_at(SYSTEM, 5, b"five"), Ok(4));
    h.set(
        ino,
        SetAttr {
            size: Some(50_000),
            mode: Some(0o600),
            ..SetAttr::default()
        },
    );
    h.fs()
        .setxattr(SYSTEM, ino, b"user.x", b"y", Default::default())
        .expect("setxattr");
    let second = h.open(ino);
    drop(file);
    let mut buffer = vec![0; 60_000];
    assert_eq!(second.read_at(SYSTEM, 0, &mut buffer), Ok(50_000));
    assert_eq!(&buffer[5..9], b"five");
    assert_eq!(&buffer[30_000..50_000], &more[..20_000]);
    assert_eq!(h.fs().getxattr(SYSTEM, ino, b"user.x").expect("getxattr"), b"y");
    second.fsync(SYSTEM).expect("fsync");
}

fn space_returns(h: &Harness<'_>) {
    h.file("warm");
    h.unlink("warm");
    let before = h.fs().statfs(SYSTEM).expect("statfs");
    let ino = h.write("f", &pattern(1, 1 << 20));
    let file = h.open(ino);
    h.unlink("f");
    let during = h.fs().statfs(SYSTEM).expect("statfs");
    let blocks = (1 << 20) / u64::from(before.block_bytes);
    assert!(
        during.blocks_free + blocks <= before.blocks_free,
        "an open file's blocks are not free"
    );
    assert!(
        during.inodes_free < before.inodes_free,
        "an open file's inode is not free"
    );
    drop(file);
    h.fs().sync(SYSTEM).expect("sync");
    let after = h.fs().statfs(SYSTEM).expect("statfs");
    assert_eq!(
        (after.blocks_free, after.inodes_free),
        (before.blocks_free, before.inodes_free)
    );
    refused!(h.fs().getattr(SYSTEM, ino), Stale | NotFound);
}

fn no_link(h: &Harness<'_>) {
    let ino = h.write("f", b"x");
    let file = h.open(ino);
    h.unlink("f");
    refused!(h.fs().link(SYSTEM, ino, ROOT_INO, b"back"), NotFound);
    assert!(!h.exists("back"));
    drop(file);
}

fn pins(h: &Harness<'_>) {
    let ino = h.write("f", b"pinned");
    let generation = h.stat("f").generation;
    for _ in 0..5 {
        h.fs().pin(SYSTEM, ino, generation).expect("pin");
    }
    h.unlink("f");
    h.fs()
        .pin(SYSTEM, ino, generation)
        .expect("pin of a pinned inode without a name");
    h.fs().unpin(SYSTEM, ino, 3);
    assert_eq!(h.fs().getattr(SYSTEM, ino).map(|attr| attr.nlink), Ok(0));
    assert_eq!(h.read_at(ino, 0, 10), b"pinned");
    // An open file and pins each keep it alive.
    let file = h.open(ino);
    h.fs().unpin(SYSTEM, ino, 3);
    let mut buffer = [0; 6];
    assert_eq!(file.read_at(SYSTEM, 0, &mut buffer), Ok(6));
    assert_eq!(file.getattr(SYSTEM).map(|attr| attr.nlink), Ok(0));
    drop(file);
    refused!(h.fs().getattr(SYSTEM, ino), Stale | NotFound);
    refused!(h.fs().pin(SYSTEM, ino, generation), Stale);
    for (name, kind) in [("l", FileKind::Symlink), ("p", FileKind::Fifo)] {
        let ino = h.node(name, kind);
        h.fs().pin(SYSTEM, ino, h.stat(name).generation).expect("pin");
        h.unlink(name);
        assert_eq!(
            h.fs().getattr(SYSTEM, ino).map(|attr| (attr.kind, attr.nlink)),
            Ok((kind, 0))
        );
        h.fs().unpin(SYSTEM, ino, 1);
        refused!(h.fs().getattr(SYSTEM, ino), Stale | NotFound);
    }
}

fn removed_directory(h: &Harness<'_>) {
    let fs = h.fs();
    let dir = h.mkdir("d");
    let file = h.file("f");
    fs.pin(SYSTEM, dir, h.stat("d").generation).expect("pin");
    h.rmdir("d");
    assert_eq!(
        fs.getattr(SYSTEM, dir).map(|attr| (attr.kind, attr.nlink)),
        Ok((FileKind::Directory, 0))
    );
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    refused!(fs.mknod(SYSTEM, dir, b"x", &node), NotFound);
    refused!(fs.mkdir(SYSTEM, dir, b"x", 0o755), NotFound);
    refused!(fs.symlink(SYSTEM, dir, b"x", b"t"), NotFound);
    refused!(fs.link(SYSTEM, file, dir, b"x"), NotFound);
    refused!(
        fs.rename(SYSTEM, ROOT_INO, b"f", dir, b"x", Default::default()),
        NotFound
    );
    refused!(fs.lookup(SYSTEM, dir, b"x"), NotFound);
    let mut count = 0;
    let listed = fs.readdir(SYSTEM, dir, 0, &mut |_| {
        count += 1;
        true
    });
    assert!(
        count == 0 && matches!(listed, Ok(()) | Err(ferrite_vfs::FsError::NotFound)),
        "{listed:?}"
    );
    fs.unpin(SYSTEM, dir, 1);
    refused!(fs.getattr(SYSTEM, dir), Stale | NotFound);
    assert_eq!(h.nlink(""), 2);
}

fn name_reused(h: &Harness<'_>) {
    let old = h.write("f", b"old");
    let file = h.open(old);
    for round in 0..20 {
        h.unlink("f");
        let new = h.write("f", format!("new {round}").as_bytes());
        assert_ne!(new, old, "the number of an open file was given away");
        assert_eq!(h.read_at(new, 0, 100), format!("new {round}").as_bytes());
    }
    let mut buffer = [0; 10];
    assert_eq!(file.read_at(SYSTEM, 0, &mut buffer), Ok(3));
    assert_eq!(&buffer[..3], b"old");
}
