//! Hard links and link counts.

use ferrite_vfs::{FileKind, FsError, LINK_MAX, ROOT_INO, SYSTEM};

use super::{Case, Harness};
use crate::refused;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "links/names share one inode",
        run: shared,
    },
    Case {
        name: "links/every kind but directories",
        run: kinds,
    },
    Case {
        name: "links/counts of directories",
        run: directory_counts,
    },
    Case {
        name: "links/content lives until the last name goes",
        run: last_name,
    },
    Case {
        name: "links/LINK_MAX",
        run: link_max,
    },
];

fn shared(h: &Harness<'_>) {
    h.mkdir("d");
    let ino = h.write("a", b"one");
    h.link("a", "d/b");
    assert_eq!((h.ino("d/b"), h.nlink("a"), h.nlink("d/b")), (ino, 2, 2));
    h.write_at(h.ino("d/b"), 3, b" two");
    assert_eq!(h.read_at(h.ino("a"), 0, 100), b"one two");
    h.chmod(ino, 0o600);
    assert_eq!(h.stat("d/b").mode, 0o600);
    h.fs()
        .setxattr(SYSTEM, ino, b"user.k", b"v", Default::default())
        .expect("setxattr");
    assert_eq!(
        h.fs().getxattr(SYSTEM, h.ino("d/b"), b"user.k").expect("getxattr"),
        b"v"
    );
    assert_eq!(h.nlink("d"), 2, "a file is no link of its directory");
}

fn kinds(h: &Harness<'_>) {
    for (name, kind) in [
        ("f", FileKind::File),
        ("l", FileKind::Symlink),
        ("p", FileKind::Fifo),
        ("s", FileKind::Socket),
        ("c", FileKind::CharDevice),
        ("b", FileKind::BlockDevice),
    ] {
        let ino = h.node(name, kind);
        let other = format!("{name}2");
        h.link(name, &other);
        assert_eq!((h.ino(&other), h.nlink(name), h.stat(&other).kind), (ino, 2, kind));
        h.unlink(name);
        assert_eq!((h.ino(&other), h.nlink(&other)), (ino, 1));
    }
}

fn directory_counts(h: &Harness<'_>) {
    assert_eq!(h.nlink(""), 2);
    for index in 0..50 {
        h.mkdir(&format!("d{index}"));
        assert_eq!(h.nlink(""), 3 + index);
    }
    h.mkdir("d0/sub");
    assert_eq!((h.nlink("d0"), h.nlink("d0/sub"), h.nlink("")), (3, 2, 52));
    for index in 1..50 {
        h.rmdir(&format!("d{index}"));
    }
    h.rmdir("d0/sub");
    assert_eq!((h.nlink("d0"), h.nlink("")), (2, 3));
}

fn last_name(h: &Harness<'_>) {
    let data = vec![3; 20_000];
    let ino = h.write("a", &data);
    for name in ["b", "c", "d"] {
        h.link("a", name);
    }
    for (left, name) in ["a", "c", "b"].into_iter().enumerate() {
        h.unlink(name);
        assert_eq!((h.nlink("d"), h.ino("d")), (3 - left as u32, ino));
    }
    assert_eq!(h.read_at(ino, 0, 30_000), data);
}

fn link_max(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    let ino = h.write("f", b"much linked");
    let name = |index: u32| format!("l{index}").into_bytes();
    let most = if h.is_served() { 2_000 } else { LINK_MAX };
    for index in 1..most {
        match h.fs().link(SYSTEM, ino, dir, &name(index)) {
            Ok(attr) => assert_eq!(attr.nlink, index + 1),
            Err(FsError::NoSpace(what)) => {
                h.skip(format!("out of {what} after {index} links"));
                break;
            }
            Err(error) => panic!("link {index}: {error}"),
        }
    }
    let count = h.nlink("f");
    if count == LINK_MAX {
        refused!(h.fs().link(SYSTEM, ino, ROOT_INO, b"one too many"), TooManyLinks);
        assert!(!h.exists("one too many"));
        // A rename creates no new link, so the limit does not apply.
        h.rename("f", "g");
        h.rename("g", "f");
    }
    assert_eq!(h.nlink("f"), count);
    for index in 1..count {
        h.fs()
            .unlink(SYSTEM, dir, &name(index))
            .unwrap_or_else(|error| panic!("unlink {index}: {error}"));
    }
    assert_eq!(h.nlink("f"), 1);
    h.link("f", "again");
    assert_eq!(h.read_at(ino, 0, 100), b"much linked");
}
