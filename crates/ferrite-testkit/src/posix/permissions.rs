//! The group and mode of new inodes, setuid and setgid, and the visibility of extended attributes. Permissions are in
//! `checks`.

use ferrite_vfs::{Cred, Ctx, FileKind, NewNode, OpenMode, SYSTEM, SetAttr};

use super::checks::{NONE, alice, alices_file, bob};
use super::{Case, Harness};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "permissions/setgid directories",
        run: setgid_directories,
    },
    Case {
        name: "permissions/who sees which extended attributes",
        run: visible_attributes,
    },
    Case {
        name: "permissions/setuid and setgid",
        run: privileges,
    },
];

fn setgid_directories(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    h.set(
        dir,
        ferrite_vfs::SetAttr {
            gid: Some(500),
            ..Default::default()
        },
    );
    h.chmod(dir, 0o2777);
    let ctx = Ctx::trusted(Cred::new(1000, 100));
    for kind in [FileKind::File, FileKind::Fifo] {
        let attr = h
            .fs()
            .mknod(
                &ctx,
                dir,
                b"n",
                &NewNode {
                    kind,
                    mode: 0o664,
                    rdev: 0,
                },
            )
            .expect("mknod");
        assert_eq!((attr.uid, attr.gid, attr.mode), (1000, 500, 0o664), "{kind:?}");
        h.unlink("d/n");
    }
    let sub = h.fs().mkdir(&ctx, dir, b"sub", 0o755).expect("mkdir");
    assert_eq!(
        (sub.uid, sub.gid, sub.mode),
        (1000, 500, 0o2755),
        "a directory hands setgid on"
    );
    let link = h.fs().symlink(&ctx, dir, b"l", b"t").expect("symlink");
    assert_eq!((link.uid, link.gid), (1000, 500));
    let deep = h.fs().mkdir(&ctx, sub.ino, b"deep", 0o700).expect("mkdir");
    assert_eq!((deep.gid, deep.mode), (500, 0o2700));
    let plain = h.mkdir("plain");
    let attr = h.fs().mkdir(&ctx, plain, b"sub", 0o755).expect("mkdir");
    assert_eq!(
        (attr.gid, attr.mode),
        (100, 0o755),
        "without setgid it is the maker's group"
    );
}

fn visible_attributes(h: &Harness<'_>) {
    let file = alices_file(h, "f", 0o600);
    let names = |ctx: &Ctx| {
        let mut names = h.fs().listxattr(ctx, file).expect("listxattr");
        names.sort();
        names
    };
    let both: [&[u8]; 2] = [b"trusted.t", b"user.u"];
    assert_eq!(names(&Ctx::checked(Cred::root())), both);
    assert_eq!(names(&Ctx::checked(alice())), both[1..]);
    assert_eq!(names(&Ctx::checked(bob())), both[1..]);
    assert_eq!(names(&Ctx::trusted(bob())), both);
}

/// Changes of content by any user but root clear both; a chmod by a user outside the group cannot set setgid.
fn privileges(h: &Harness<'_>) {
    let fs = h.fs();
    let file = alices_file(h, "f", 0o6777);
    let mode = || fs.getattr(SYSTEM, file).expect("getattr").mode;
    let read_write = OpenMode::read_write();
    for (ctx, kept) in [
        (Ctx::checked(Cred::root()), true),
        (Ctx::trusted(bob()), true),
        (Ctx::checked(alice()), false),
        (Ctx::checked(bob()), false),
    ] {
        let left = if kept { 0o6777 } else { 0o777 };
        let handle = fs.open(&ctx, file, read_write).expect("open");
        handle.write_at(&ctx, 0, b"x").expect("write");
        assert_eq!(mode(), left, "write by {ctx:?}");
        h.chmod(file, 0o6777);
        handle.append(&ctx, b"x").expect("append");
        assert_eq!(mode(), left, "append by {ctx:?}");
        h.chmod(file, 0o6777);
        handle
            .fallocate(&ctx, ferrite_vfs::FallocateMode::PunchHole, 0, 1)
            .expect("punch");
        assert_eq!(mode(), left, "punch by {ctx:?}");
        h.chmod(file, 0o6777);
        let size = SetAttr { size: Some(3), ..NONE };
        fs.setattr(&ctx, file, &size).expect("truncate");
        assert_eq!(mode(), left, "truncate by {ctx:?}");
        h.chmod(file, 0o6777);
    }
    let chmod = SetAttr {
        mode: Some(0o2755),
        ..NONE
    };
    h.set(file, SetAttr { gid: Some(300), ..NONE });
    let ctx = Ctx::checked(alice());
    assert_eq!(fs.setattr(&ctx, file, &chmod).expect("chmod").mode, 0o755);
    h.set(file, SetAttr { gid: Some(200), ..NONE });
    assert_eq!(fs.setattr(&ctx, file, &chmod).expect("chmod").mode, 0o2755);
    let chgrp = SetAttr { gid: Some(100), ..NONE };
    assert_eq!(fs.setattr(&ctx, file, &chgrp).expect("chgrp").mode, 0o755);
}
