//! Calls that do several things in one step: a creation that opens, a listing with attributes, an open that truncates,
//! changes of the attributes of an open file; and the effect of a pin that comes with a reply.

use std::time::{Duration, Instant};

use ferrite_vfs::{
    Attr, Cred, Ctx, FileKind, FsError, Ino, NewFile, OpenMode, ROOT_INO, SYSTEM, SetAttr, SetTime, Timestamp,
};

use super::{Case, Harness};
use crate::refused;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "compound/create makes a file and opens it",
        run: create_new,
    },
    Case {
        name: "compound/create opens what is there",
        run: create_existing,
    },
    Case {
        name: "compound/create refuses what is no file",
        run: create_refused,
    },
    Case {
        name: "compound/answers come pinned",
        run: pins,
    },
    Case {
        name: "compound/a listing with attributes",
        run: listing,
    },
    Case {
        name: "compound/a listing pins what was accepted",
        run: listing_pins,
    },
    Case {
        name: "compound/an open that truncates",
        run: truncating_open,
    },
    Case {
        name: "compound/attributes of an open file",
        run: attributes_of_open,
    },
];

const ALICE: Cred = Cred::new(1000, 100);
const BOB: Cred = Cred::new(1001, 101);

const NEW: NewFile = NewFile {
    mode: 0o640,
    open: OpenMode::read_write(),
    exclusive: false,
};

const EXCLUSIVE: NewFile = NewFile { exclusive: true, ..NEW };

const TRUNCATING: OpenMode = OpenMode {
    truncate: true,
    ..OpenMode::read_write()
};

fn size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

fn is_gone(h: &Harness<'_>, ino: Ino) -> bool {
    match h.fs().getattr(SYSTEM, ino) {
        Ok(_) => false,
        Err(FsError::Stale) => true,
        Err(error) => panic!("getattr of inode {ino}: {error}"),
    }
}

/// The same after a pin was dropped, which an engine that may block can process when it has time.
fn is_gone_soon(h: &Harness<'_>, ino: Ino) -> bool {
    let ends = Instant::now() + Duration::from_secs(10);
    while !is_gone(h, ino) {
        if !h.fs().limits().may_block || Instant::now() > ends {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn create_new(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    h.chmod(dir, 0o777);
    let ctx = Ctx::checked(ALICE);
    let new = NewFile { mode: 0o400, ..NEW };
    for (name, new) in [
        (b"f", new),
        (b"x", NewFile { exclusive: true, ..new }),
        (
            b"t",
            NewFile {
                open: TRUNCATING,
                ..new
            },
        ),
    ] {
        let before = h.stat("d");
        let opened = h.fs().create(&ctx, dir, name, &new).expect("create");
        assert!(opened.created);
        let attr = opened.attr;
        assert_eq!(
            (attr.kind, attr.mode, attr.nlink, attr.size),
            (FileKind::File, 0o400, 1, 0)
        );
        assert_eq!((attr.uid, attr.gid), (1000, 100));
        assert_eq!(opened.file.ino(), attr.ino);
        assert_eq!(h.fs().lookup(SYSTEM, dir, name), Ok(attr));
        assert_eq!(opened.file.getattr(&ctx), Ok(attr));
        assert_ne!(h.stat("d").change, before.change, "the directory has changed");
        assert_eq!(
            opened.file.write_at(&ctx, 0, b"new"),
            Ok(3),
            "its own maker may write, whatever the mode says"
        );
        refused!(h.fs().open(&ctx, attr.ino, OpenMode::read_write()), AccessDenied);
    }
    let read_only = NewFile {
        open: OpenMode::read_only(),
        ..NEW
    };
    let opened = h.fs().create(&ctx, dir, b"r", &read_only).expect("create");
    refused!(opened.file.write_at(&ctx, 0, b"x"), BadHandle);
}

fn create_existing(h: &Harness<'_>) {
    let ino = h.write("f", b"content");
    h.age(ino);
    let before = h.stat("f");
    let opened = h.fs().create(SYSTEM, ROOT_INO, b"f", &NEW).expect("create");
    assert!(!opened.created);
    assert_eq!(opened.attr, before, "nothing has changed");
    let mut content = [0; 7];
    assert_eq!(opened.file.read_at(SYSTEM, 0, &mut content), Ok(7));
    assert_eq!(&content, b"content");
    drop(opened);
    refused!(h.fs().create(SYSTEM, ROOT_INO, b"f", &EXCLUSIVE), Exists);
    assert_eq!(h.read_at(ino, 0, 10), b"content");

    let truncating = NewFile {
        open: TRUNCATING,
        ..NEW
    };
    let opened = h.fs().create(SYSTEM, ROOT_INO, b"f", &truncating).expect("create");
    assert!(!opened.created);
    assert_eq!((opened.attr.ino, opened.attr.size), (ino, 0));
    assert_eq!(h.stat("f").size, 0);
    assert!(h.stat("f").mtime > before.mtime);
    assert_eq!(h.stat("f").mode, before.mode);
}

fn create_refused(h: &Harness<'_>) {
    let create = |parent, name: &[u8], new| h.fs().create(SYSTEM, parent, name, new);
    h.mkdir("d");
    let fifo = h.node("p", FileKind::Fifo);
    h.fs().symlink(SYSTEM, ROOT_INO, b"to file", b"f").expect("symlink");
    h.fs().symlink(SYSTEM, ROOT_INO, b"dangling", b"none").expect("symlink");
    let file = h.write("f", b"content");
    refused!(create(ROOT_INO, b"d", &NEW), IsDirectory);
    refused!(create(ROOT_INO, b"p", &NEW), NoSuchAddress);
    refused!(create(ROOT_INO, b"to file", &NEW), Loop);
    refused!(create(ROOT_INO, b"dangling", &NEW), Loop);
    for name in ["d", "p", "to file", "dangling", "f"] {
        refused!(create(ROOT_INO, name.as_bytes(), &EXCLUSIVE), Exists);
    }
    assert!(!h.exists("none"), "a link is not followed");
    let truncating = NewFile {
        open: TRUNCATING,
        ..NEW
    };
    refused!(create(ROOT_INO, b"to file", &truncating), Loop);
    assert_eq!(h.read_at(file, 0, 10), b"content");
    refused!(create(file, b"x", &NEW), NotDirectory);
    refused!(create(fifo, b"x", &NEW), NotDirectory);
    refused!(create(ROOT_INO, b"..", &NEW), Invalid);
    refused!(create(ROOT_INO, &[b'n'; 256], &NEW), NameTooLong);
    // A directory that is gone but pinned takes no new names.
    let dir = h.stat("d");
    h.fs().pin(SYSTEM, dir.ino, dir.generation).expect("pin");
    h.rmdir("d");
    refused!(create(dir.ino, b"x", &NEW), NotFound);
    h.fs().unpin(SYSTEM, dir.ino, 1);
}

/// Each call that takes a name pins the inode that it returns, if asked to, until the pin is dropped.
fn pins(h: &Harness<'_>) {
    let fs = h.fs();
    let pinning = SYSTEM.clone().pinning();
    let node = ferrite_vfs::NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let start = ferrite_vfs::Start::default();
    type Call<'c> = &'c dyn Fn(&Ctx) -> Attr;
    let flags = ferrite_vfs::OpenFlags {
        read: true,
        create: true,
        mode: 0o644,
        ..Default::default()
    };
    let make = || h.file("n");
    let calls: [(&str, Call<'_>); 10] = [
        ("mknod", &|ctx| fs.mknod(ctx, ROOT_INO, b"n", &node).expect("mknod")),
        ("mkdir", &|ctx| fs.mkdir(ctx, ROOT_INO, b"n", 0o755).expect("mkdir")),
        ("symlink", &|ctx| {
            fs.symlink(ctx, ROOT_INO, b"n", b"t").expect("symlink")
        }),
        ("create", &|ctx| {
            fs.create(ctx, ROOT_INO, b"n", &NEW).expect("create").attr
        }),
        ("create, existing", &|ctx| {
            make();
            fs.create(ctx, ROOT_INO, b"n", &NEW).expect("create").attr
        }),
        ("lookup", &|ctx| {
            make();
            fs.lookup(ctx, ROOT_INO, b"n").expect("lookup")
        }),
        ("link", &|ctx| {
            let ino = h.file("other");
            let attr = fs.link(ctx, ino, ROOT_INO, b"n").expect("link");
            h.unlink("other");
            attr
        }),
        ("resolve", &|ctx| {
            make();
            fs.resolve(ctx, &start, b"/n", true).expect("resolve")
        }),
        ("open_path", &|ctx| {
            make();
            fs.open_path(ctx, &start, b"n", &flags).expect("open").attr
        }),
        ("open_path, new", &|ctx| {
            fs.open_path(ctx, &start, b"n", &flags).expect("open").attr
        }),
    ];
    for (what, call) in calls {
        for (ctx, count) in [(SYSTEM, 0), (&pinning, 1), (&pinning, 2)] {
            let attr = call(ctx);
            if count == 2 {
                fs.lookup(ctx, ROOT_INO, b"n").expect("lookup");
            }
            match attr.kind {
                FileKind::Directory => h.rmdir("n"),
                _ => h.unlink("n"),
            }
            for left in (1..=count).rev() {
                assert!(!is_gone(h, attr.ino), "{what}: gone with {left} of {count} pins left");
                fs.unpin(SYSTEM, attr.ino, 1);
            }
            assert!(is_gone_soon(h, attr.ino), "{what}: still there after {count} pins");
        }
    }
}

type Listed = Vec<(Vec<u8>, Ino, FileKind, u64)>;

/// Lists with attributes until `most` entries are accepted.
fn list_plus(h: &Harness<'_>, ctx: &Ctx, dir: Ino, cookie: u64, most: usize) -> Listed {
    let mut listed = Vec::new();
    let mut refusals = 0;
    h.fs()
        .readdir_plus(ctx, dir, cookie, &mut |entry, attr| {
            assert_eq!(refusals, 0, "an entry came after a refusal");
            let attr = attr.unwrap_or_else(|error| panic!("attributes of {:?}: {error}", entry.name));
            assert_eq!((attr.ino, attr.kind), (entry.ino, entry.kind));
            if listed.len() == most {
                refusals += 1;
                return false;
            }
            listed.push((entry.name.to_vec(), entry.ino, entry.kind, entry.next_cookie));
            true
        })
        .expect("readdir_plus");
    listed
}

fn listing(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    assert!(list_plus(h, SYSTEM, dir, 0, 10).is_empty());
    for index in 0..150 {
        let path = format!("d/file {index}");
        h.write(&path, &vec![b'x'; index * 50]);
        h.chmod(h.ino(&path), 0o600 + index as u32 % 8);
    }
    for (name, kind) in [
        ("d/dir", FileKind::Directory),
        ("d/link", FileKind::Symlink),
        ("d/pipe", FileKind::Fifo),
        ("d/device", FileKind::CharDevice),
    ] {
        h.node(name, kind);
    }
    h.link("d/pipe", "d/pipe too");
    let mut plain = Vec::new();
    h.fs()
        .readdir(SYSTEM, dir, 0, &mut |entry| {
            plain.push((entry.name.to_vec(), entry.ino, entry.kind, entry.next_cookie));
            true
        })
        .expect("readdir");
    assert_eq!(plain.len(), 155);
    assert_eq!(
        list_plus(h, SYSTEM, dir, 0, 1000),
        plain,
        "the entries of readdir, in its order"
    );
    let mut attrs = Vec::new();
    h.fs()
        .readdir_plus(SYSTEM, dir, 0, &mut |_, attr| {
            attrs.push(attr.expect("attributes"));
            true
        })
        .expect("readdir_plus");
    for attr in attrs {
        assert_eq!(h.fs().getattr(SYSTEM, attr.ino), Ok(attr));
    }
    // In parts: a refused entry comes first in the next part.
    for count in [1, 7, 64, 65] {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let part = list_plus(h, SYSTEM, dir, cookie, count);
            let Some(last) = part.last() else { break };
            cookie = last.3;
            all.extend(part);
        }
        assert_eq!(all, plain, "parts of {count}");
    }
    let file = h.ino("d/file 0");
    refused!(h.fs().readdir_plus(SYSTEM, file, 0, &mut |_, _| true), NotDirectory);
}

fn listing_pins(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    let pinning = SYSTEM.clone().pinning();
    for (ctx, accepted) in [
        (SYSTEM, 0),
        (&pinning, 100),
        (&pinning, 70),
        (&pinning, 1),
        (&pinning, 0),
    ] {
        for index in 0..100 {
            h.file(&format!("d/{index}"));
        }
        let all = list_plus(h, SYSTEM, dir, 0, 100);
        assert_eq!(all.len(), 100);
        let most = if ctx.pins { accepted } else { 100 };
        list_plus(h, ctx, dir, 0, most);
        (0..100).for_each(|index| h.unlink(&format!("d/{index}")));
        for (at, (_, ino, ..)) in all.iter().enumerate() {
            assert_eq!(is_gone(h, *ino), at >= accepted, "entry {at} of {accepted} pinned ones");
            if at < accepted {
                h.fs().unpin(SYSTEM, *ino, 1);
                assert!(is_gone_soon(h, *ino), "entry {at} was pinned more than once");
            }
        }
    }
}

fn truncating_open(h: &Harness<'_>) {
    let ino = h.write("f", &[b'x'; 9000]);
    h.age(ino);
    let before = h.stat("f");
    let file = h.fs().open(SYSTEM, ino, TRUNCATING).expect("open");
    let after = h.stat("f");
    assert_eq!((after.size, after.blocks), (0, 0));
    assert!(after.mtime > before.mtime && after.change != before.change);
    assert_eq!(file.write_at(SYSTEM, 5000, b"y"), Ok(1));
    assert_eq!(
        h.read_at(ino, 4998, 10),
        b"\0\0y",
        "what was truncated does not come back"
    );
    drop(file);

    // A caller that may not write may not truncate, whatever else it asks for.
    let read = OpenMode {
        truncate: true,
        ..OpenMode::read_only()
    };
    let ctx = Ctx::checked(BOB);
    refused!(h.fs().open(&ctx, ino, read), AccessDenied);
    assert_eq!(h.stat("f").size, 5001);
    h.chmod(ino, 0o6777);
    let file = h.fs().open(&ctx, ino, read).expect("open");
    refused!(file.write_at(&ctx, 0, b"x"), BadHandle);
    let after = h.stat("f");
    assert_eq!((after.size, after.mode), (0, 0o777), "and setuid is cleared");
    drop(file);
    let dir = h.mkdir("d");
    refused!(h.fs().open(SYSTEM, dir, TRUNCATING), IsDirectory);
}

fn attributes_of_open(h: &Harness<'_>) {
    let ino = h.write("f", b"content");
    let alices = SetAttr {
        uid: Some(1000),
        gid: Some(100),
        ..SetAttr::default()
    };
    h.set(ino, alices);
    h.chmod(ino, 0o666);
    let (alice, bob) = (Ctx::checked(ALICE), Ctx::checked(BOB));
    let reader = h.fs().open(&bob, ino, OpenMode::read_only()).expect("open");
    let writer = h.fs().open(&bob, ino, OpenMode::read_write()).expect("open");
    refused!(reader.setattr(&bob, &size(3)), Invalid);
    refused!(reader.setattr(SYSTEM, &size(3)), Invalid);
    assert_eq!(h.stat("f").size, 7);
    // The access of the handle counts, not the current mode.
    h.chmod(ino, 0o400);
    let set = writer.setattr(&bob, &size(3)).expect("setattr");
    assert_eq!((set.ino, set.size), (ino, 3));
    assert_eq!(h.stat("f"), set);
    refused!(h.fs().setattr(&bob, ino, &size(1)), AccessDenied);
    refused!(writer.setattr(&bob, &mode(0o777)), NotPermitted);
    refused!(reader.setattr(&bob, &mode(0o777)), NotPermitted);
    refused!(writer.setattr(&bob, &alices), NotPermitted);
    assert_eq!(h.stat("f"), set, "what was refused changed nothing");
    // The owner may, through any handle.
    let alices_reader = h.fs().open(&alice, ino, OpenMode::read_only()).expect("open");
    assert_eq!(
        alices_reader.setattr(&alice, &mode(0o6777)).expect("setattr").mode,
        0o6777
    );
    assert_eq!(
        writer.setattr(&bob, &size(2)).expect("setattr").mode,
        0o777,
        "a truncate by somebody else clears setuid and setgid"
    );
    let times = SetAttr {
        atime: Some(SetTime::To(Timestamp(1))),
        mtime: Some(SetTime::To(Timestamp(2))),
        ..SetAttr::default()
    };
    refused!(writer.setattr(&bob, &times), NotPermitted);
    let set = reader.setattr(&alice, &times).expect("setattr");
    assert_eq!((set.atime, set.mtime), (Timestamp(1), Timestamp(2)));
    h.unlink("f");
    assert_eq!(writer.setattr(&bob, &size(10)).expect("setattr").size, 10);
    assert_eq!(writer.getattr(&bob).expect("getattr").nlink, 0);
}
