//! Who may do what, and the group and mode of new inodes. The rules that engines apply themselves (setgid inheritance)
//! are tested on the trait.

use ferrite_vfs::{Cred, Ctx, FileKind, NewNode};

use super::{Case, Harness};

pub(super) const CASES: &[Case] = &[Case {
    name: "permissions/setgid directories",
    run: setgid_directories,
}];

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
