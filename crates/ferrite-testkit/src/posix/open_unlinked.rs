//! Files and directories without a name that are still open or pinned.

use ferrite_vfs::{
    Cred, Ctx, FileKind, Ino, NO_NAME, NewFile, NewNode, OpenMode, Opened, ROOT_INO, Result, SYSTEM, SetAttr, StatFs,
    Written,
};

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
    Case {
        name: "unlinked/a file that never had a name gets one",
        run: nameless,
    },
    Case {
        name: "unlinked/a file that must not get a name goes",
        run: final_nameless,
    },
    Case {
        name: "unlinked/where files without a name can be made",
        run: places_of_nameless,
    },
];

/// Creates a file without a name, and opens it.
fn create_nameless(h: &Harness<'_>, ctx: &Ctx, dir: Ino, mode: u32, is_final: bool) -> Result<Opened> {
    let new = NewFile {
        mode,
        open: OpenMode {
            read: true,
            write: true,
            ..OpenMode::default()
        },
        exclusive: is_final,
    };
    h.fs().create(ctx, dir, NO_NAME, &new)
}

fn nameless(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    h.age(dir);
    let before = h.stat("d");
    let unnamed = h.fs().unnamed_files();
    let opened = create_nameless(h, SYSTEM, dir, 0o640, false).expect("create without a name");
    let (ino, file) = (opened.attr.ino, opened.file);
    assert!(opened.created);
    assert_eq!((opened.attr.nlink, opened.attr.mode, opened.attr.size), (0, 0o640, 0));
    assert_eq!(
        (h.stat("d"), h.names("d")),
        (before, vec![]),
        "the directory stays as it is"
    );
    assert_eq!(h.fs().unnamed_files(), unnamed.map(|unnamed| unnamed + 1));
    let data = pattern(3, 70_000);
    assert_eq!(file.write_at(SYSTEM, 0, &data), Ok(data.len()));
    assert_eq!(h.read_at(ino, 0, 100_000), data);
    refused!(h.fs().link(SYSTEM, ino, dir, NO_NAME), Invalid);
    h.file("taken");
    refused!(h.fs().link(SYSTEM, ino, ROOT_INO, b"taken"), Exists);
    let attr = h.fs().link(SYSTEM, ino, dir, b"f").expect("its first name");
    assert_eq!((attr.ino, attr.nlink, attr.size), (ino, 1, data.len() as u64));
    assert_eq!(h.fs().unnamed_files(), unnamed);
    assert_eq!((h.stat("d/f").ino, h.names("d")), (ino, vec!["f".into()]));
    h.link("d/f", "second");
    drop(file);
    assert_eq!(h.read_at(ino, 0, 100_000), data);
    // From here on it is a file like any other.
    let file = h.open(ino);
    h.unlink("d/f");
    h.unlink("second");
    refused!(h.fs().link(SYSTEM, ino, dir, b"f"), NotFound);
    drop(file);
    refused!(h.fs().getattr(SYSTEM, ino), Stale | NotFound);
}

fn final_nameless(h: &Harness<'_>) {
    h.file("warm");
    h.unlink("warm");
    let before = h.fs().statfs(SYSTEM).expect("statfs");
    let opened = create_nameless(h, SYSTEM, ROOT_INO, 0o600, true).expect("create without a name");
    assert_eq!(opened.file.write_at(SYSTEM, 0, &pattern(4, 50_000)), Ok(50_000));
    refused!(h.fs().link(SYSTEM, opened.attr.ino, ROOT_INO, b"f"), NotFound);
    let other = create_nameless(h, SYSTEM, ROOT_INO, 0o600, false).expect("create without a name");
    let (first, second) = (opened.attr.ino, other.attr.ino);
    assert_ne!(first, second);
    drop((opened, other));
    for ino in [first, second] {
        refused!(h.fs().getattr(SYSTEM, ino), Stale | NotFound);
    }
    h.fs().sync(SYSTEM).expect("sync");
    let after = h.fs().statfs(SYSTEM).expect("statfs");
    let free = |stat: &StatFs| (stat.blocks_free, stat.inodes_free);
    assert_eq!(free(&after), free(&before), "nothing of them stays");
}

fn places_of_nameless(h: &Harness<'_>) {
    let (dir, file) = (h.mkdir("d"), h.file("f"));
    let refused = |ctx: &Ctx, dir| create_nameless(h, ctx, dir, 0o644, false).err();
    refused!(refused(SYSTEM, file).map_or(Ok(()), Err), NotDirectory);
    h.fs().pin(SYSTEM, dir, h.stat("d").generation).expect("pin");
    let user = Ctx {
        umask: 0o27,
        ..Ctx::checked(Cred::new(7, 8))
    };
    refused!(refused(&user, dir).map_or(Ok(()), Err), AccessDenied);
    h.chmod(dir, 0o2777);
    let gid = h.stat("d").gid;
    let opened = create_nameless(h, &user, dir, 0o666, false).expect("create without a name");
    let attr = opened.attr;
    assert_eq!(
        (attr.uid, attr.gid, attr.mode),
        (7, gid, 0o640),
        "as any file of this directory"
    );
    let named = h.fs().link(&user, attr.ino, dir, b"mine").expect("its first name");
    assert_eq!((named.uid, named.gid, named.mode), (7, gid, 0o640));
    h.unlink("d/mine");
    h.rmdir("d");
    refused!(refused(SYSTEM, dir).map_or(Ok(()), Err), NotFound);
    h.fs().unpin(SYSTEM, dir, 1);
}

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
