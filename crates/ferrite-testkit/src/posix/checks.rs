//! Permissions when the context asks the engine to check: a table of operations, each tried by root, by the owner of
//! the file in question, and by another user. A refused operation changes nothing, and without checks all operations
//! are allowed.

use ferrite_vfs::{
    Cred, Ctx, FileKind, FileSystem, Ino, NewFile, NewNode, OpenMode, RenameMode, Result, SYSTEM, SetAttr, SetTime,
    Timestamp, XattrMode,
};

use super::{Case, Harness, errno_of};

pub(super) const CASES: &[Case] = &[Case {
    name: "checks/who may do what",
    run: table,
}];

/// The owner of `f` and `s`, with a supplementary group.
pub(super) fn alice() -> Cred {
    Cred::new(1000, 100).with_groups(&[200])
}

/// The owner of `b`.
pub(super) fn bob() -> Cred {
    Cred::new(1001, 101)
}

/// The place of a trial: a directory of its own with files `f` and `b`, a directory `s`, and a directory elsewhere to
/// which everybody may write.
struct Place<'h> {
    fs: &'h dyn FileSystem,
    dir: Ino,
    file: Ino,
    sub: Ino,
    elsewhere: Ino,
}

/// The results of an operation by root, Alice and Bob: the name of an error, or an empty string.
type Verdicts = [&'static str; 3];

/// Name, permission bits of the directory and of the file, the directory's owner, the operation.
type Row = (
    &'static str,
    u32,
    u32,
    u32,
    fn(&Place<'_>, &Ctx) -> Result<()>,
    Verdicts,
);

const ROOT: u32 = 0;
const ALL: Verdicts = ["", "", ""];
const ROOT_ONLY: Verdicts = ["", "AccessDenied", "AccessDenied"];
const ROOT_ONLY_EVER: Verdicts = ["", "NotPermitted", "NotPermitted"];
const NOT_BOB: Verdicts = ["", "", "AccessDenied"];
const NOT_BOB_EVER: Verdicts = ["", "", "NotPermitted"];
const TAKEN: Verdicts = ["Exists", "Exists", "Exists"];

const NODE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

const DEVICE: NewNode = NewNode {
    kind: FileKind::CharDevice,
    ..NODE
};

const WRITE_ONLY: OpenMode = OpenMode {
    read: false,
    ..OpenMode::read_write()
};

pub(super) const NONE: SetAttr = SetAttr {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: None,
    mtime: None,
    kill_priv: false,
};

impl Place<'_> {
    fn mknod(&self, ctx: &Ctx, name: &[u8], node: &NewNode) -> Result<()> {
        self.fs.mknod(ctx, self.dir, name, node).map(|_| ())
    }

    fn create(&self, ctx: &Ctx, name: &[u8], open: OpenMode, exclusive: bool) -> Result<()> {
        let new = NewFile {
            mode: 0o644,
            open,
            exclusive,
        };
        self.fs.create(ctx, self.dir, name, &new).map(drop)
    }

    fn open(&self, ctx: &Ctx, mode: OpenMode) -> Result<()> {
        self.fs.open(ctx, self.file, mode).map(drop)
    }

    fn set(&self, ctx: &Ctx, set: SetAttr) -> Result<()> {
        self.fs.setattr(ctx, self.file, &set).map(|_| ())
    }

    fn rename(&self, ctx: &Ctx, name: &[u8], new: &[u8], mode: RenameMode) -> Result<()> {
        self.fs.rename(ctx, self.dir, name, self.dir, new, mode)
    }

    fn move_away(&self, ctx: &Ctx, name: &[u8]) -> Result<()> {
        let mode = RenameMode::Replace;
        self.fs.rename(ctx, self.dir, name, self.elsewhere, b"moved", mode)
    }

    fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        self.fs.setxattr(ctx, ino, name, b"new", XattrMode::Any)
    }
}

const NAMES: &[Row] = &[
    (
        "search",
        0o711,
        0,
        ROOT,
        |p, ctx| p.fs.lookup(ctx, p.dir, b"f").map(|_| ()),
        ALL,
    ),
    (
        "search in secret",
        0o700,
        0,
        ROOT,
        |p, ctx| p.fs.lookup(ctx, p.dir, b"f").map(|_| ()),
        ROOT_ONLY,
    ),
    (
        "search for nothing",
        0o700,
        0,
        ROOT,
        |p, ctx| p.fs.lookup(ctx, p.dir, b"-").map(|_| ()),
        ["NotFound", "AccessDenied", "AccessDenied"],
    ),
    (
        "parent",
        0o700,
        0,
        ROOT,
        |p, ctx| p.fs.parent(ctx, p.dir).map(|_| ()),
        ROOT_ONLY,
    ),
    ("mknod", 0o777, 0, ROOT, |p, ctx| p.mknod(ctx, b"n", &NODE), ALL),
    (
        "mknod, not writable",
        0o755,
        0,
        ROOT,
        |p, ctx| p.mknod(ctx, b"n", &NODE),
        ROOT_ONLY,
    ),
    (
        "mknod, not searchable",
        0o766,
        0,
        ROOT,
        |p, ctx| p.mknod(ctx, b"n", &NODE),
        ROOT_ONLY,
    ),
    (
        "mknod, taken",
        0o755,
        0,
        ROOT,
        |p, ctx| p.mknod(ctx, b"f", &NODE),
        TAKEN,
    ),
    (
        "mknod of a device",
        0o777,
        0,
        ROOT,
        |p, ctx| p.mknod(ctx, b"n", &DEVICE),
        ROOT_ONLY_EVER,
    ),
    (
        "mkdir",
        0o755,
        0,
        ROOT,
        |p, ctx| p.fs.mkdir(ctx, p.dir, b"n", 0o755).map(|_| ()),
        ROOT_ONLY,
    ),
    (
        "mkdir, taken",
        0o755,
        0,
        ROOT,
        |p, ctx| p.fs.mkdir(ctx, p.dir, b"s", 0o755).map(|_| ()),
        TAKEN,
    ),
    (
        "symlink",
        0o755,
        0,
        ROOT,
        |p, ctx| p.fs.symlink(ctx, p.dir, b"n", b"t").map(|_| ()),
        ROOT_ONLY,
    ),
    (
        "link",
        0o755,
        0,
        ROOT,
        |p, ctx| p.fs.link(ctx, p.file, p.dir, b"n").map(|_| ()),
        ROOT_ONLY,
    ),
    (
        "link, writable",
        0o777,
        0,
        ROOT,
        |p, ctx| p.fs.link(ctx, p.file, p.dir, b"n").map(|_| ()),
        ALL,
    ),
    (
        "create",
        0o755,
        0,
        ROOT,
        |p, ctx| p.create(ctx, b"n", WRITE_ONLY, false),
        ROOT_ONLY,
    ),
    (
        "create, writable",
        0o777,
        0,
        ROOT,
        |p, ctx| p.create(ctx, b"n", WRITE_ONLY, true),
        ALL,
    ),
    (
        "create of what is there",
        0o755,
        0o644,
        ROOT,
        |p, ctx| p.create(ctx, b"f", WRITE_ONLY, false),
        NOT_BOB,
    ),
    (
        "the same for reading",
        0o755,
        0o644,
        ROOT,
        |p, ctx| p.create(ctx, b"f", OpenMode::read_only(), false),
        ALL,
    ),
    (
        "exclusive create, taken",
        0o755,
        0o600,
        ROOT,
        |p, ctx| p.create(ctx, b"f", WRITE_ONLY, true),
        TAKEN,
    ),
    (
        "create in secret",
        0o700,
        0o666,
        ROOT,
        |p, ctx| p.create(ctx, b"f", WRITE_ONLY, false),
        ROOT_ONLY,
    ),
    (
        "unlink",
        0o777,
        0o600,
        ROOT,
        |p, ctx| p.fs.unlink(ctx, p.dir, b"f"),
        ALL,
    ),
    (
        "unlink, not writable",
        0o755,
        0o666,
        ROOT,
        |p, ctx| p.fs.unlink(ctx, p.dir, b"f"),
        ROOT_ONLY,
    ),
    (
        "unlink, sticky",
        0o1777,
        0o666,
        ROOT,
        |p, ctx| p.fs.unlink(ctx, p.dir, b"f"),
        NOT_BOB_EVER,
    ),
    (
        "unlink, own sticky",
        0o1777,
        0o666,
        1001,
        |p, ctx| p.fs.unlink(ctx, p.dir, b"f"),
        ALL,
    ),
    (
        "rmdir",
        0o755,
        0,
        ROOT,
        |p, ctx| p.fs.rmdir(ctx, p.dir, b"s"),
        ROOT_ONLY,
    ),
    (
        "rmdir, sticky",
        0o1777,
        0,
        ROOT,
        |p, ctx| p.fs.rmdir(ctx, p.dir, b"s"),
        NOT_BOB_EVER,
    ),
    (
        "rename",
        0o755,
        0,
        ROOT,
        |p, ctx| p.rename(ctx, b"f", b"n", RenameMode::Replace),
        ROOT_ONLY,
    ),
    (
        "rename, sticky",
        0o1777,
        0,
        ROOT,
        |p, ctx| p.rename(ctx, b"f", b"n", RenameMode::Replace),
        NOT_BOB_EVER,
    ),
    (
        "rename over, sticky",
        0o1777,
        0,
        ROOT,
        |p, ctx| p.rename(ctx, b"b", b"f", RenameMode::Replace),
        ROOT_ONLY_EVER,
    ),
    (
        "exchange, sticky",
        0o1777,
        0,
        ROOT,
        |p, ctx| p.rename(ctx, b"f", b"b", RenameMode::Exchange),
        ROOT_ONLY_EVER,
    ),
    (
        "no replacing",
        0o777,
        0,
        ROOT,
        |p, ctx| p.rename(ctx, b"f", b"b", RenameMode::NoReplace),
        TAKEN,
    ),
    ("move away", 0o777, 0, ROOT, |p, ctx| p.move_away(ctx, b"f"), ALL),
    (
        "move away, not writable",
        0o755,
        0,
        ROOT,
        |p, ctx| p.move_away(ctx, b"f"),
        ROOT_ONLY,
    ),
    (
        "move away, sticky",
        0o1777,
        0,
        ROOT,
        |p, ctx| p.move_away(ctx, b"f"),
        NOT_BOB_EVER,
    ),
    (
        "move a directory away",
        0o777,
        0,
        ROOT,
        |p, ctx| p.move_away(ctx, b"s"),
        NOT_BOB,
    ),
];

const FILES: &[Row] = &[
    (
        "read",
        0o755,
        0o640,
        ROOT,
        |p, ctx| p.open(ctx, OpenMode::read_only()),
        NOT_BOB,
    ),
    ("write", 0o755, 0o644, ROOT, |p, ctx| p.open(ctx, WRITE_ONLY), NOT_BOB),
    (
        "write, by nobody",
        0o755,
        0o444,
        ROOT,
        |p, ctx| p.open(ctx, WRITE_ONLY),
        ROOT_ONLY,
    ),
    (
        "truncate",
        0o755,
        0o644,
        ROOT,
        |p, ctx| {
            p.open(
                ctx,
                OpenMode {
                    truncate: true,
                    ..OpenMode::read_only()
                },
            )
        },
        NOT_BOB,
    ),
    (
        "no atime",
        0o755,
        0o644,
        ROOT,
        |p, ctx| {
            p.open(
                ctx,
                OpenMode {
                    no_atime: true,
                    ..OpenMode::read_only()
                },
            )
        },
        NOT_BOB_EVER,
    ),
    (
        "chmod",
        0o777,
        0o666,
        ROOT,
        |p, ctx| {
            p.set(
                ctx,
                SetAttr {
                    mode: Some(0o600),
                    ..NONE
                },
            )
        },
        NOT_BOB_EVER,
    ),
    (
        "chown",
        0o777,
        0o666,
        ROOT,
        |p, ctx| {
            p.set(
                ctx,
                SetAttr {
                    uid: Some(1001),
                    ..NONE
                },
            )
        },
        ROOT_ONLY_EVER,
    ),
    (
        "chgrp to a group of one's own",
        0o777,
        0o666,
        ROOT,
        |p, ctx| p.set(ctx, SetAttr { gid: Some(200), ..NONE }),
        NOT_BOB_EVER,
    ),
    (
        "chgrp to another",
        0o777,
        0o666,
        ROOT,
        |p, ctx| p.set(ctx, SetAttr { gid: Some(300), ..NONE }),
        ROOT_ONLY_EVER,
    ),
    (
        "size",
        0o755,
        0o644,
        ROOT,
        |p, ctx| p.set(ctx, SetAttr { size: Some(1), ..NONE }),
        NOT_BOB,
    ),
    (
        "size, by all",
        0o755,
        0o666,
        ROOT,
        |p, ctx| p.set(ctx, SetAttr { size: Some(1), ..NONE }),
        ALL,
    ),
    (
        "size, by nobody",
        0o755,
        0o444,
        ROOT,
        |p, ctx| p.set(ctx, SetAttr { size: Some(1), ..NONE }),
        ROOT_ONLY,
    ),
    ("touch", 0o755, 0o644, ROOT, |p, ctx| p.set(ctx, touch()), NOT_BOB),
    ("touch, by all", 0o755, 0o666, ROOT, |p, ctx| p.set(ctx, touch()), ALL),
    (
        "times",
        0o755,
        0o666,
        ROOT,
        |p, ctx| {
            p.set(
                ctx,
                SetAttr {
                    mtime: Some(SetTime::To(Timestamp(1))),
                    ..NONE
                },
            )
        },
        NOT_BOB_EVER,
    ),
    (
        "setxattr",
        0o755,
        0o644,
        ROOT,
        |p, ctx| p.setxattr(ctx, p.file, b"user.n"),
        NOT_BOB,
    ),
    (
        "setxattr, by all",
        0o755,
        0o666,
        ROOT,
        |p, ctx| p.setxattr(ctx, p.file, b"user.n"),
        ALL,
    ),
    (
        "setxattr, trusted",
        0o755,
        0o666,
        ROOT,
        |p, ctx| p.setxattr(ctx, p.file, b"trusted.n"),
        ROOT_ONLY_EVER,
    ),
    (
        "setxattr, security",
        0o755,
        0o666,
        ROOT,
        |p, ctx| p.setxattr(ctx, p.file, b"security.n"),
        ROOT_ONLY_EVER,
    ),
    (
        "setxattr of a directory",
        0o777,
        0,
        ROOT,
        |p, ctx| p.setxattr(ctx, p.dir, b"user.n"),
        ALL,
    ),
    (
        "setxattr of a sticky one",
        0o1777,
        0,
        ROOT,
        |p, ctx| p.setxattr(ctx, p.dir, b"user.n"),
        ROOT_ONLY_EVER,
    ),
    (
        "setxattr of a subdirectory",
        0o777,
        0,
        ROOT,
        |p, ctx| p.setxattr(ctx, p.sub, b"user.n"),
        NOT_BOB,
    ),
    (
        "getxattr",
        0o755,
        0o640,
        ROOT,
        |p, ctx| p.fs.getxattr(ctx, p.file, b"user.u").map(drop),
        NOT_BOB,
    ),
    (
        "getxattr, trusted",
        0o755,
        0o666,
        ROOT,
        |p, ctx| p.fs.getxattr(ctx, p.file, b"trusted.t").map(drop),
        ["", "NoAttribute", "NoAttribute"],
    ),
    (
        "removexattr",
        0o755,
        0o644,
        ROOT,
        |p, ctx| p.fs.removexattr(ctx, p.file, b"user.u"),
        NOT_BOB,
    ),
    (
        "removexattr, trusted",
        0o755,
        0o666,
        ROOT,
        |p, ctx| p.fs.removexattr(ctx, p.file, b"trusted.t"),
        ROOT_ONLY_EVER,
    ),
];

fn touch() -> SetAttr {
    SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..NONE
    }
}

fn owned(h: &Harness<'_>, ino: Ino, uid: u32, mode: u32) -> Ino {
    let set = SetAttr {
        uid: Some(uid),
        gid: Some(uid - 900),
        mode: Some(mode),
        ..NONE
    };
    h.set(ino, set);
    ino
}

/// A file of Alice's with an attribute of each kind.
pub(super) fn alices_file(h: &Harness<'_>, path: &str, mode: u32) -> Ino {
    let file = owned(h, h.write(path, b"content"), 1000, mode);
    for name in [&b"user.u"[..], b"trusted.t"] {
        h.fs()
            .setxattr(SYSTEM, file, name, b"value", XattrMode::Create)
            .expect("setxattr");
    }
    file
}

fn table(h: &Harness<'_>) {
    let mut wrong = Vec::new();
    for (at, &(what, dir_mode, file_mode, dir_uid, operation, verdicts)) in NAMES.iter().chain(FILES).enumerate() {
        let callers = [
            ("root", Ctx::checked(Cred::root()), verdicts[0]),
            ("Alice", Ctx::checked(alice()), verdicts[1]),
            ("Bob", Ctx::checked(bob()), verdicts[2]),
            // As root, because the engine does not check the user.
            ("Bob, unchecked", Ctx::trusted(bob()), verdicts[0]),
        ];
        for (nth, (who, ctx, wanted)) in callers.into_iter().enumerate() {
            let path = format!("{at}.{nth}");
            let dir = h.mkdir(&path);
            let place = Place {
                fs: h.fs(),
                dir,
                file: alices_file(h, &format!("{path}/f"), file_mode),
                sub: owned(h, h.mkdir(&format!("{path}/s")), 1000, 0o755),
                elsewhere: h.mkdir(&format!("{path} elsewhere")),
            };
            owned(h, h.file(&format!("{path}/b")), 1001, 0o644);
            h.chmod(place.elsewhere, 0o777);
            h.set(
                dir,
                SetAttr {
                    uid: Some(dir_uid),
                    mode: Some(dir_mode),
                    ..NONE
                },
            );
            let changes = || {
                [place.dir, place.file, place.sub, place.elsewhere]
                    .map(|ino| h.fs().getattr(SYSTEM, ino).map(|attr| attr.change))
            };
            let before = changes();
            let result = operation(&place, &ctx);
            let agrees = match (&result, wanted) {
                (Ok(()), wanted) => wanted.is_empty(),
                (Err(error), wanted) => !wanted.is_empty() && error.errno() == errno_of(wanted),
            };
            if !agrees {
                wrong.push(format!("{what} by {who}: {result:?}, wanted {wanted:?}"));
            }
            if result.is_err() && changes() != before {
                wrong.push(format!("{what} by {who} was refused and still changed something"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n    "));
}
