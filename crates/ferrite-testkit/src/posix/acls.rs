//! Access control lists: what they say, what a chmod and a new inode do to them, and that engines enforce them.

use ferrite_vfs::acl::{ACCESS, DEFAULT};
use ferrite_vfs::{
    Cred, Ctx, FileKind, FsError, Ino, NewFile, NewNode, OpenMode, RenameMode, SYSTEM, SetAttr, XattrMode,
};

use super::checks::{NONE, alice, alices_file, bob};
use super::{Case, Harness};
use crate::acl::acl;
use crate::refused;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "acls/set, get, list, remove",
        run: basics,
    },
    Case {
        name: "acls/what is no list",
        run: invalid,
    },
    Case {
        name: "acls/chmod changes the mask",
        run: chmod,
    },
    Case {
        name: "acls/new inodes inherit",
        run: inheritance,
    },
    Case {
        name: "acls/the mask of the caller counts without a default",
        run: masks,
    },
    Case {
        name: "acls/further users and groups",
        run: enforcement,
    },
    Case {
        name: "acls/directories",
        run: directories,
    },
    Case {
        name: "acls/owners set them, and everyone reads them",
        run: owners,
    },
];

/// The group of a file.
const GROUP: u32 = 700;

fn set(h: &Harness<'_>, ino: Ino, name: &[u8], text: &str) {
    let value = acl(text);
    h.fs()
        .setxattr(SYSTEM, ino, name, &value, XattrMode::Any)
        .unwrap_or_else(|error| panic!("{text}: {error}"));
}

fn get(h: &Harness<'_>, ino: Ino, name: &[u8]) -> Option<Vec<u8>> {
    h.fs().getxattr(SYSTEM, ino, name).ok()
}

fn mode_of(h: &Harness<'_>, ino: Ino) -> u32 {
    h.fs().getattr(SYSTEM, ino).expect("getattr").mode
}

fn basics(h: &Harness<'_>) {
    let (fs, file, dir) = (h.fs(), h.file("f"), h.mkdir("d"));
    h.chmod(file, 0o4640);
    refused!(fs.getxattr(SYSTEM, file, ACCESS), NoAttribute);
    refused!(fs.removexattr(SYSTEM, file, ACCESS), NoAttribute);
    let text = "u::rwx,u:1001:rw-,g::r--,g:200:r-x,m::rw-,o::--x";
    let before = h.stat("f");
    set(h, file, ACCESS, text);
    assert_eq!(get(h, file, ACCESS), Some(acl(text)));
    assert_eq!(mode_of(h, file), 0o4761, "the mask stands in the group's place");
    assert!(h.stat("f").ctime >= before.ctime && h.stat("f").change != before.change);
    assert_eq!(fs.listxattr(SYSTEM, file).expect("list"), [ACCESS]);
    refused!(fs.setxattr(SYSTEM, file, ACCESS, &acl(text), XattrMode::Create), Exists);
    // One that says no more than a mode is a chmod.
    set(h, file, ACCESS, "u::rw-,g::r--,o::r--");
    assert_eq!((get(h, file, ACCESS), mode_of(h, file)), (None, 0o4644));
    refused!(
        fs.setxattr(SYSTEM, file, ACCESS, &acl(text), XattrMode::Replace),
        NoAttribute
    );
    // A mask alone is more than a mode.
    set(h, file, ACCESS, "u::rw-,g::rw-,m::r--,o::---");
    assert_eq!(mode_of(h, file), 0o4640);
    fs.removexattr(SYSTEM, file, ACCESS).expect("remove");
    assert_eq!((get(h, file, ACCESS), mode_of(h, file)), (None, 0o4640));
    for text in ["u::rwx,g::r-x,o::---", "u::rwx,u:7:r--,g::r-x,m::r-x,o::---"] {
        set(h, dir, DEFAULT, text);
        assert_eq!(get(h, dir, DEFAULT), Some(acl(text)), "a default is kept as it is");
    }
    let mode = mode_of(h, dir);
    set(h, dir, ACCESS, "u::rwx,u:7:rwx,g::---,m::rwx,o::---");
    assert_eq!(mode_of(h, dir), (mode & !0o777) | 0o770);
    let mut names = fs.listxattr(SYSTEM, dir).expect("list");
    names.sort();
    assert_eq!(names, [ACCESS, DEFAULT]);
    fs.removexattr(SYSTEM, dir, DEFAULT).expect("remove");
    assert_eq!(get(h, dir, DEFAULT), None);
    // A list without entries removes one.
    set(h, dir, ACCESS, "");
    assert_eq!((get(h, dir, ACCESS), mode_of(h, dir) & 0o777), (None, 0o770));
}

fn invalid(h: &Harness<'_>) {
    let (fs, file) = (h.fs(), h.file("f"));
    let try_set = |ino, name: &[u8], value: &[u8]| fs.setxattr(SYSTEM, ino, name, value, XattrMode::Any);
    let right = acl("u::rw-,u:1:r--,g::r--,m::r--,o::---");
    for wrong in [
        "u::rw-,g::r--",
        "g::r--,o::r--",
        "u::rw-,o::r--",
        "u::rw-,u:1:r--,g::r--,o::---",
        "u::rw-,g::r--,g:1:r--,o::---",
        "u::rw-,u::r--,g::r--,o::---",
        "g::r--,u::rw-,o::---",
        "u::rw-,g::r--,o::---,m::r--",
        "u::rw-,g::r--,m::r--,m::r--,o::---",
        "u::rw-,u:4294967295:r--,g::r--,m::r--,o::---",
    ] {
        refused!(try_set(file, ACCESS, &acl(wrong)), Invalid);
    }
    for value in [&right[..3], &right[..right.len() - 1], &right[..0]] {
        refused!(try_set(file, ACCESS, value), Invalid);
    }
    let (mut version, mut perm, mut tag) = (right.clone(), right.clone(), right.clone());
    (version[0], perm[6], tag[4]) = (3, 8, 0x40);
    let unsupported = |result| matches!(result, Err(FsError::NotSupported(_)));
    assert!(unsupported(try_set(file, ACCESS, &version)), "another version");
    refused!(try_set(file, ACCESS, &perm), Invalid);
    refused!(try_set(file, ACCESS, &tag), Invalid);
    refused!(try_set(file, DEFAULT, &right), AccessDenied);
    assert!(fs.listxattr(SYSTEM, file).expect("list").is_empty());
}

fn chmod(h: &Harness<'_>) {
    let (file, dir) = (h.file("f"), h.mkdir("d"));
    set(h, file, ACCESS, "u::rwx,u:1:rwx,g::rwx,m::rwx,o::rwx");
    h.fs()
        .setxattr(SYSTEM, file, b"security.capability", b"c", XattrMode::Any)
        .expect("setxattr");
    h.chmod(file, 0o2640);
    let after = acl("u::rw-,u:1:rwx,g::rwx,m::r--,o::---");
    assert_eq!((get(h, file, ACCESS), mode_of(h, file)), (Some(after.clone()), 0o2640));
    // Owner and mode in one call, which also takes the capability.
    h.set(
        file,
        SetAttr {
            uid: Some(7),
            mode: Some(0o604),
            ..NONE
        },
    );
    let after = acl("u::rw-,u:1:rwx,g::rwx,m::---,o::r--");
    assert_eq!((get(h, file, ACCESS), mode_of(h, file)), (Some(after), 0o604));
    assert_eq!(get(h, file, b"security.capability"), None);
    set(h, dir, DEFAULT, "u::rwx,u:1:rwx,g::rwx,m::rwx,o::rwx");
    h.chmod(dir, 0o700);
    assert_eq!(
        get(h, dir, DEFAULT),
        Some(acl("u::rwx,u:1:rwx,g::rwx,m::rwx,o::rwx")),
        "chmod leaves the default"
    );
}

fn inheritance(h: &Harness<'_>) {
    let (fs, dir) = (h.fs(), h.mkdir("d"));
    let default = "u::rwx,u:1001:rwx,g::r-x,m::rwx,o::r-x";
    set(h, dir, DEFAULT, default);
    let ctx = &Ctx {
        umask: 0o077,
        ..Ctx::trusted(Cred::new(1000, 100))
    };
    let node = |kind, mode| NewNode { kind, mode, rdev: 0 };
    let file = fs.mknod(ctx, dir, b"f", &node(FileKind::File, 0o664)).expect("mknod");
    assert_eq!(file.mode, 0o664, "without the mask of the caller");
    let expected = acl("u::rw-,u:1001:rwx,g::r-x,m::rw-,o::r--");
    assert_eq!(get(h, file.ino, ACCESS), Some(expected));
    assert_eq!(get(h, file.ino, DEFAULT), None);
    let pipe = fs.mknod(ctx, dir, b"p", &node(FileKind::Fifo, 0o600)).expect("mknod");
    assert_eq!(pipe.mode, 0o600);
    let new = NewFile {
        mode: 0o640,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let made = fs.create(ctx, dir, b"c", &new).expect("create");
    assert_eq!(made.attr.mode, 0o640);
    assert_eq!(
        get(h, made.attr.ino, ACCESS),
        Some(acl("u::rw-,u:1001:rwx,g::r-x,m::r--,o::---"))
    );
    let sub = fs.mkdir(ctx, dir, b"s", 0o777).expect("mkdir");
    assert_eq!(sub.mode, 0o775);
    assert_eq!(get(h, sub.ino, DEFAULT), Some(acl(default)));
    assert_eq!(
        get(h, sub.ino, ACCESS),
        Some(acl("u::rwx,u:1001:rwx,g::r-x,m::rwx,o::r-x"))
    );
    let deep = fs.mkdir(ctx, sub.ino, b"deep", 0o700).expect("mkdir");
    assert_eq!(get(h, deep.ino, DEFAULT), Some(acl(default)));
    let link = fs.symlink(ctx, dir, b"l", b"target").expect("symlink");
    assert!(fs.listxattr(SYSTEM, link.ino).expect("list").is_empty());
    // A default that a mode can say leaves no list.
    set(h, dir, DEFAULT, "u::rw-,g::r--,o::---");
    let plain = fs
        .mknod(ctx, dir, b"plain", &node(FileKind::File, 0o666))
        .expect("mknod");
    assert_eq!((plain.mode, get(h, plain.ino, ACCESS)), (0o640, None));
    // As does a setgid directory, whose group comes with it.
    set(h, dir, DEFAULT, default);
    h.set(
        dir,
        SetAttr {
            gid: Some(500),
            mode: Some(0o2777),
            ..NONE
        },
    );
    let both = fs.mkdir(ctx, dir, b"both", 0o750).expect("mkdir");
    assert_eq!((both.gid, both.mode), (500, 0o2750));
    fs.removexattr(SYSTEM, dir, DEFAULT).expect("remove");
    let masked = fs.mkdir(ctx, dir, b"masked", 0o777).expect("mkdir");
    assert_eq!(masked.mode, 0o2700);
}

fn masks(h: &Harness<'_>) {
    let (fs, dir) = (h.fs(), h.mkdir("d"));
    set(h, dir, ACCESS, "u::rwx,u:1:rwx,g::rwx,m::rwx,o::rwx");
    let ctx = &Ctx {
        umask: 0o027,
        ..SYSTEM.clone()
    };
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o4666,
        rdev: 0,
    };
    assert_eq!(fs.mknod(ctx, dir, b"f", &node).expect("mknod").mode, 0o4640);
    assert_eq!(fs.mkdir(ctx, dir, b"s", 0o1777).expect("mkdir").mode, 0o1750);
    let new = NewFile {
        mode: 0o777,
        open: OpenMode::read_write(),
        exclusive: false,
    };
    assert_eq!(fs.create(ctx, dir, b"c", &new).expect("create").attr.mode, 0o750);
}

fn enforcement(h: &Harness<'_>) {
    let file = alices_file(h, "f", 0o600);
    let member = Cred::new(2000, 2000).with_groups(&[300]);
    let (bob, carol) = (bob(), Cred::new(3000, 300));
    // The file is Alice's, and of a group in which she is not.
    h.set(
        file,
        SetAttr {
            gid: Some(GROUP),
            ..NONE
        },
    );
    let group = Cred::new(4000, GROUP);
    let may = |cred: &Cred, read: bool, write: bool| {
        let mode = OpenMode {
            read,
            write,
            ..OpenMode::default()
        };
        h.fs().open(&Ctx::checked(cred.clone()), file, mode).is_ok()
    };
    for (text, cred, read, write) in [
        ("u::rw-,u:1001:r--,g::---,m::rwx,o::---", &bob, true, false),
        ("u::rw-,u:1001:rw-,g::---,m::r--,o::---", &bob, true, false),
        ("u::rw-,u:1001:rw-,g::---,m::rw-,o::---", &bob, true, true),
        ("u::rw-,u:1001:---,g::rw-,m::rw-,o::rw-", &bob, false, false),
        ("u::---,u:1000:rw-,g::rw-,m::rw-,o::rw-", &alice(), false, false),
        ("u::rw-,g::---,g:300:rw-,m::rw-,o::---", &member, true, true),
        ("u::rw-,g::---,g:300:rw-,m::-w-,o::---", &carol, false, true),
        ("u::rw-,g::rw-,g:300:---,m::rw-,o::rw-", &carol, false, false),
        ("u::rw-,g::rw-,g:300:---,m::r--,o::---", &group, true, false),
        ("u::rw-,g::---,g:300:rw-,m::rw-,o::r--", &bob, true, false),
        ("u::rw-,g::r--,g:700:-w-,m::rw-,o::---", &group, true, true),
        // As in Linux, a mask that gives nothing leaves it to the mode.
        ("u::rw-,u:1001:rw-,g::---,m::---,o::r--", &bob, true, false),
        ("u::---,u:1001:---,g::---,m::---,o::---", &Cred::root(), true, true),
    ] {
        set(h, file, ACCESS, text);
        let found = (may(cred, true, false), may(cred, false, true));
        assert_eq!(found, (read, write), "{text}, user {}, group {}", cred.uid, cred.gid);
    }
    // No single entry gives both.
    set(h, file, ACCESS, "u::rw-,g::r--,g:300:-w-,m::rw-,o::---");
    let both = Cred::new(5000, GROUP).with_groups(&[300]);
    assert!(may(&both, true, false) && may(&both, false, true) && !may(&both, true, true));
}

fn directories(h: &Harness<'_>) {
    let (fs, dir) = (h.fs(), h.mkdir("d"));
    let ino = h.write("d/f", b"content");
    h.chmod(dir, 0o700);
    let ctx = &Ctx::checked(bob());
    let make = |name: &[u8]| fs.mkdir(ctx, dir, name, 0o755);
    refused!(fs.lookup(ctx, dir, b"f"), AccessDenied);
    set(h, dir, ACCESS, "u::rwx,u:1001:--x,g::---,m::rwx,o::---");
    assert_eq!(fs.lookup(ctx, dir, b"f").expect("lookup").ino, ino);
    refused!(make(b"s"), AccessDenied);
    refused!(fs.unlink(ctx, dir, b"f"), AccessDenied);
    set(h, dir, ACCESS, "u::rwx,u:1001:-wx,g::---,m::rwx,o::---");
    make(b"s").expect("mkdir");
    fs.link(ctx, ino, dir, b"g").expect("link");
    fs.rename(ctx, dir, b"f", dir, b"h", RenameMode::Replace)
        .expect("rename");
    fs.unlink(ctx, dir, b"h").expect("unlink");
    fs.rmdir(ctx, dir, b"s").expect("rmdir");
    h.chmod(dir, 0o710);
    refused!(make(b"s"), AccessDenied);
    assert!(fs.lookup(ctx, dir, b"g").is_ok(), "the mask leaves searching");
}

fn owners(h: &Harness<'_>) {
    let (fs, file) = (h.fs(), alices_file(h, "f", 0o666));
    let value = acl("u::rw-,u:1001:r--,g::r--,m::r--,o::---");
    let (alice, bob) = (&Ctx::checked(alice()), &Ctx::checked(bob()));
    refused!(fs.setxattr(bob, file, ACCESS, &value, XattrMode::Any), NotPermitted);
    h.set(
        file,
        SetAttr {
            gid: Some(GROUP),
            ..NONE
        },
    );
    h.chmod(file, 0o2676);
    fs.setxattr(alice, file, ACCESS, &value, XattrMode::Any)
        .expect("setxattr");
    assert_eq!(mode_of(h, file), 0o640, "setgid goes, as the owner is not in the group");
    assert_eq!(fs.getxattr(bob, file, ACCESS).expect("getxattr"), value);
    refused!(fs.removexattr(bob, file, ACCESS), NotPermitted);
    fs.removexattr(alice, file, ACCESS).expect("removexattr");
}
