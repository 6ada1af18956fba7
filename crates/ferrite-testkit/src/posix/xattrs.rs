//! Extended attributes.

use ferrite_vfs::{
    Cred, Ctx, FallocateMode, FileKind, FsError, Ino, OpenFile, OpenMode, Position, SYSTEM, SetAttr, XATTR_LIST_MAX,
    XATTR_SIZE_MAX, XattrMode, posix,
};

use super::{Case, Harness};
use crate::refused;
use crate::rng::pattern;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "xattrs/set, get, list, remove",
        run: basics,
    },
    Case {
        name: "xattrs/create and replace",
        run: modes,
    },
    Case {
        name: "xattrs/values of all lengths",
        run: sizes,
    },
    Case {
        name: "xattrs/names up to 255 bytes",
        run: names,
    },
    Case {
        name: "xattrs/every kind of file",
        run: kinds,
    },
    Case {
        name: "xattrs/a capability goes with a change of content or owner",
        run: capability,
    },
    Case {
        name: "xattrs/their space comes back",
        run: space,
    },
];

fn list(h: &Harness<'_>, path: &str) -> Vec<Vec<u8>> {
    let mut names = h.fs().listxattr(SYSTEM, h.ino(path)).expect("listxattr");
    names.sort();
    names
}

fn basics(h: &Harness<'_>) {
    let (fs, ino) = (h.fs(), h.write("f", b"content"));
    refused!(fs.getxattr(SYSTEM, ino, b"user.a"), NoAttribute);
    refused!(fs.removexattr(SYSTEM, ino, b"user.a"), NoAttribute);
    assert!(list(h, "f").is_empty());
    for (name, value) in [
        (&b"user.a"[..], &b"1"[..]),
        (b"user.b", b""),
        (b"trusted.a", b"t"),
        (b"security.a", b"\0\xff"),
    ] {
        fs.setxattr(SYSTEM, ino, name, value, XattrMode::Any).expect("setxattr");
        assert_eq!(fs.getxattr(SYSTEM, ino, name).expect("getxattr"), value);
    }
    assert_eq!(list(h, "f"), [&b"security.a"[..], b"trusted.a", b"user.a", b"user.b"]);
    fs.setxattr(SYSTEM, ino, b"user.a", b"a longer value than before", XattrMode::Any)
        .expect("replace");
    assert_eq!(
        fs.getxattr(SYSTEM, ino, b"user.a").expect("getxattr"),
        b"a longer value than before"
    );
    fs.removexattr(SYSTEM, ino, b"user.a").expect("removexattr");
    refused!(fs.getxattr(SYSTEM, ino, b"user.a"), NoAttribute);
    refused!(fs.getxattr(SYSTEM, ino, b"user.A"), NoAttribute);
    assert_eq!(list(h, "f").len(), 3);
    assert_eq!(h.read_at(ino, 0, 100), b"content", "attributes are no content");
    assert_eq!(h.stat("f").size, 7);
}

fn modes(h: &Harness<'_>) {
    let (fs, ino) = (h.fs(), h.file("f"));
    refused!(
        fs.setxattr(SYSTEM, ino, b"user.x", b"v", XattrMode::Replace),
        NoAttribute
    );
    fs.setxattr(SYSTEM, ino, b"user.x", b"first", XattrMode::Create)
        .expect("create");
    refused!(
        fs.setxattr(SYSTEM, ino, b"user.x", b"second", XattrMode::Create),
        Exists
    );
    assert_eq!(fs.getxattr(SYSTEM, ino, b"user.x").expect("getxattr"), b"first");
    fs.setxattr(SYSTEM, ino, b"user.x", b"third", XattrMode::Replace)
        .expect("replace");
    assert_eq!(fs.getxattr(SYSTEM, ino, b"user.x").expect("getxattr"), b"third");
}

fn sizes(h: &Harness<'_>) {
    let (fs, ino) = (h.fs(), h.file("f"));
    let sizes = [
        0,
        1,
        100,
        255,
        256,
        1000,
        4000,
        4054,
        4055,
        3,
        10_000,
        XATTR_SIZE_MAX,
        XATTR_SIZE_MAX - 1,
        3000,
        0,
    ];
    for len in sizes {
        fs.setxattr(SYSTEM, ino, b"user.x", &pattern(len as u32 + 1, len), XattrMode::Any)
            .unwrap_or_else(|error| panic!("value of {len} bytes: {error}"));
        assert!(
            fs.getxattr(SYSTEM, ino, b"user.x").expect("getxattr") == pattern(len as u32 + 1, len),
            "{len} bytes"
        );
    }
    fs.setxattr(SYSTEM, ino, b"user.x", b"kept", XattrMode::Any)
        .expect("setxattr");
    refused!(
        fs.setxattr(SYSTEM, ino, b"user.x", &vec![1; XATTR_SIZE_MAX + 1], XattrMode::Any),
        ValueTooLong
    );
    assert_eq!(fs.getxattr(SYSTEM, ino, b"user.x").expect("getxattr"), b"kept");
    for index in 0..50 {
        match fs.setxattr(
            SYSTEM,
            ino,
            format!("user.number {index}").as_bytes(),
            &pattern(index + 1, 200),
            XattrMode::Create,
        ) {
            Ok(()) => {}
            Err(FsError::NoSpace(what)) => return h.skip(format!("no space for 50 attributes: out of {what}")),
            Err(error) => panic!("attribute {index}: {error}"),
        }
    }
    for index in (0..50).step_by(2) {
        fs.removexattr(SYSTEM, ino, format!("user.number {index}").as_bytes())
            .expect("removexattr");
    }
    for index in (1..50).step_by(2) {
        let value = fs
            .getxattr(SYSTEM, ino, format!("user.number {index}").as_bytes())
            .expect("getxattr");
        assert!(value == pattern(index + 1, 200), "attribute {index}");
    }
    assert_eq!(list(h, "f").len(), 26);
    // The largest values beside each other, until all the space is used; they come back whole, and give it back.
    let name = |index: u32| format!("user.large {index}");
    let set = |index, len| {
        let value = pattern(index + 1, len);
        fs.setxattr(SYSTEM, ino, name(index).as_bytes(), &value, XattrMode::Create)
    };
    let mut large = 0;
    while set(large, XATTR_SIZE_MAX)
        .map_err(|error| refused_for_space(&error))
        .is_ok()
    {
        large += 1;
    }
    assert!((4..=16).contains(&large), "{large} values of the greatest length");
    for index in 0..large {
        let value = fs.getxattr(SYSTEM, ino, name(index).as_bytes()).expect("getxattr");
        assert!(value == pattern(index + 1, XATTR_SIZE_MAX), "attribute {index}");
        fs.removexattr(SYSTEM, ino, name(index).as_bytes())
            .expect("removexattr");
    }
    assert_eq!(list(h, "f").len(), 26);
    set(0, XATTR_SIZE_MAX).expect("the space is free again");
    // As many names as one call can list.
    let ino = h.file("many");
    let name = |index: usize| format!("user.{index:0250}");
    let mut names = 0;
    while fs
        .setxattr(SYSTEM, ino, name(names).as_bytes(), b"", XattrMode::Create)
        .map_err(|error| refused_for_space(&error))
        .is_ok()
    {
        names += 1;
    }
    assert_eq!(names, XATTR_LIST_MAX / 256);
    assert_eq!(list(h, "many").len(), names);
}

fn refused_for_space(error: &FsError) {
    assert!(matches!(error, FsError::NoSpace(_)), "{error}");
}

fn names(h: &Harness<'_>) {
    let (fs, ino) = (h.fs(), h.file("f"));
    for len in [6, 7, 100, 254, 255] {
        let name = [b"user.".to_vec(), vec![b'n'; len - 5]].concat();
        fs.setxattr(SYSTEM, ino, &name, &[len as u8], XattrMode::Create)
            .unwrap_or_else(|e| panic!("name of {len} bytes: {e}"));
        assert_eq!(fs.getxattr(SYSTEM, ino, &name).expect("getxattr"), [len as u8]);
    }
    let long = [b"user.".to_vec(), vec![b'n'; 251]].concat();
    assert!(
        fs.setxattr(SYSTEM, ino, &long, b"v", XattrMode::Any).is_err(),
        "a name of 256 bytes was taken"
    );
    assert!(fs.getxattr(SYSTEM, ino, &long).is_err());
    assert_eq!(list(h, "f").len(), 5);
}

fn kinds(h: &Harness<'_>) {
    for (name, kind) in [
        ("d", FileKind::Directory),
        ("l", FileKind::Symlink),
        ("p", FileKind::Fifo),
    ] {
        let ino = h.node(name, kind);
        h.fs()
            .setxattr(SYSTEM, ino, b"trusted.k", name.as_bytes(), XattrMode::Any)
            .expect("setxattr");
        assert_eq!(
            h.fs().getxattr(SYSTEM, ino, b"trusted.k").expect("getxattr"),
            name.as_bytes(),
            "{kind:?}"
        );
        assert_eq!(list(h, name), [b"trusted.k"]);
    }
    h.file("d/f");
    h.rename("d", "e");
    assert_eq!(list(h, "e"), [b"trusted.k"]);
    assert!(list(h, "e/f").is_empty(), "attributes are not inherited");
    h.unlink("l");
    h.node("l", FileKind::Symlink);
    assert!(list(h, "l").is_empty(), "a new inode has its predecessor's attributes");
}

type Change = fn(&Harness<'_>, &Ctx, Ino, &dyn OpenFile);

fn set(h: &Harness<'_>, ctx: &Ctx, ino: Ino, set: SetAttr) {
    h.fs().setattr(ctx, ino, &set).expect("setattr");
}

/// All changes of the content or the owner of a file.
const TAKING: [(&str, Change); 13] = [
    ("a write", |_, ctx, _, file| {
        file.write(ctx, Position::At(0).into(), b"p").expect("write");
    }),
    ("a write of a page", |_, ctx, _, file| {
        file.write(ctx, Position::At(0).into(), &pattern(1, 4096))
            .expect("write");
    }),
    ("a long write", |_, ctx, _, file| {
        file.write(ctx, Position::At(100).into(), &pattern(1, 70_000))
            .expect("write");
    }),
    ("an append", |_, ctx, _, file| {
        file.write(ctx, Position::End.into(), b"more").expect("append");
    }),
    ("allocate", |_, ctx, _, file| {
        let how = FallocateMode::Allocate { keep_size: true };
        file.fallocate(ctx, how, 0, 9000).expect("fallocate");
    }),
    ("allocate more", |_, ctx, _, file| {
        let how = FallocateMode::Allocate { keep_size: false };
        file.fallocate(ctx, how, 0, 200_000).expect("fallocate");
    }),
    ("punch", |_, ctx, _, file| {
        file.fallocate(ctx, FallocateMode::PunchHole, 0, 5000)
            .expect("fallocate");
    }),
    ("zero", |_, ctx, _, file| {
        let how = FallocateMode::ZeroRange { keep_size: false };
        file.fallocate(ctx, how, 0, 9000).expect("fallocate");
    }),
    ("truncate", |h, ctx, ino, _| {
        set(
            h,
            ctx,
            ino,
            SetAttr {
                size: Some(2),
                ..SetAttr::default()
            },
        );
    }),
    ("a truncate that changes nothing", |h, ctx, ino, _| {
        let size = Some(h.fs().getattr(SYSTEM, ino).expect("getattr").size);
        set(
            h,
            ctx,
            ino,
            SetAttr {
                size,
                ..SetAttr::default()
            },
        );
    }),
    ("ftruncate to a longer file", |_, ctx, _, file| {
        let size = SetAttr {
            size: Some(500_000),
            ..SetAttr::default()
        };
        file.setattr(ctx, &size).expect("ftruncate");
    }),
    ("open with O_TRUNC", |h, ctx, ino, _| {
        let mode = OpenMode {
            truncate: true,
            ..OpenMode::read_write()
        };
        h.fs().open(ctx, ino, mode).expect("open");
    }),
    ("chown to the same owner", |h, _, ino, _| {
        let attr = h.fs().getattr(SYSTEM, ino).expect("getattr");
        set(
            h,
            SYSTEM,
            ino,
            SetAttr {
                uid: Some(attr.uid),
                ..SetAttr::default()
            },
        );
    }),
];

/// For any caller, root as well: the capability was given to the former content of the file. Other attributes stay, and
/// a change of something else removes nothing.
fn capability(h: &Harness<'_>) {
    const VALUE: &[u8] = b"\x01\0\0\x02\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let other_user = Ctx::checked(Cred::new(1000, 1000));
    let contents = [
        &b"program"[..],
        &pattern(2, 3000),
        &pattern(3, 20_000),
        &pattern(4, 150_000),
    ];
    for (index, content) in contents.into_iter().enumerate() {
        for (what, change) in TAKING {
            for (ctx, others) in [(SYSTEM, true), (SYSTEM, false), (&other_user, true)] {
                let ino = h.write("f", content);
                h.chmod(ino, 0o666);
                let file = h.open(ino);
                let give = || {
                    let given = h.fs().setxattr(SYSTEM, ino, posix::CAPABILITY, VALUE, XattrMode::Any);
                    given.expect("setxattr");
                };
                if others {
                    let other = h.fs().setxattr(SYSTEM, ino, b"user.other", b"stays", XattrMode::Any);
                    other.expect("setxattr");
                }
                // After a failed search for it, too.
                file.write(ctx, Position::End.into(), b"!").expect("write");
                for _ in 0..2 {
                    give();
                    h.chmod(ino, 0o666);
                    file.read_at(ctx, 0, &mut [0; 3]).expect("read");
                    file.write(ctx, Position::At(0).into(), b"")
                        .expect("a write of nothing");
                    let kept = h.fs().getxattr(SYSTEM, ino, posix::CAPABILITY);
                    assert_eq!(kept.as_deref(), Ok(VALUE), "{what}, content {index}");
                    change(h, ctx, ino, &*file);
                    refused!(h.fs().getxattr(SYSTEM, ino, posix::CAPABILITY), NoAttribute);
                    let left = list(h, "f");
                    assert_eq!(left.len(), usize::from(others), "{what}, content {index}: {left:?}");
                    if left.is_empty() {
                        continue;
                    }
                    let other = h.fs().getxattr(SYSTEM, ino, b"user.other");
                    assert_eq!(other.as_deref(), Ok(&b"stays"[..]), "{what}, content {index}");
                }
                drop(file);
                h.unlink("f");
            }
        }
    }
    let dir = h.mkdir("d");
    h.fs()
        .setxattr(SYSTEM, dir, posix::CAPABILITY, VALUE, XattrMode::Any)
        .expect("setxattr");
    set(
        h,
        SYSTEM,
        dir,
        SetAttr {
            uid: Some(7),
            ..SetAttr::default()
        },
    );
    assert_eq!(list(h, "d"), [posix::CAPABILITY], "a directory keeps it");
}

fn space(h: &Harness<'_>) {
    let free = || {
        h.fs().sync(SYSTEM).expect("sync");
        h.fs().statfs(SYSTEM).expect("statfs").blocks_free
    };
    h.file("warm");
    let before = free();
    for (round, len) in [4000, 60_000, 4000, XATTR_SIZE_MAX].into_iter().enumerate() {
        let ino = h.file("f");
        h.fs()
            .setxattr(SYSTEM, ino, b"user.big", &pattern(1, len), XattrMode::Any)
            .expect("setxattr");
        if round < 2 {
            h.fs().removexattr(SYSTEM, ino, b"user.big").expect("removexattr");
            assert_eq!(free(), before);
        }
        h.unlink("f");
        assert_eq!(free(), before, "round {round}");
    }
}
