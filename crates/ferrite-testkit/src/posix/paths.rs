//! Whole paths in one call: they lead to the same file as a walk from name to name.

use ferrite_vfs::{
    Attr, Cred, Ctx, FileKind, FileSystem, FsError, Ino, OpenFlags, ROOT_INO, Result, SYMLOOP_MAX, SYSTEM, Start,
    Written,
};

use super::{Case, Harness};
use crate::refused;
use crate::rng::Rng;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "paths/lead where a walk from name to name leads",
        run: random_paths,
    },
    Case {
        name: "paths/what open_path creates and refuses",
        run: opens,
    },
    Case {
        name: "paths/each directory on the way is checked",
        run: checked,
    },
];

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    create: false,
    exclusive: false,
    truncate: false,
    no_follow: false,
    no_atime: false,
    mode: 0o640,
};

/// The same with one call per name: without pins, because nothing else happens meanwhile.
fn walk(fs: &dyn FileSystem, start: &Start, base: Ino, path: &[u8], follow: bool, links: &mut usize) -> Result<Attr> {
    if path.is_empty() {
        return Err(FsError::NotFound);
    }
    let absolute = path.starts_with(b"/");
    let mut at = fs.getattr(SYSTEM, if absolute { start.root } else { base })?;
    let names: Vec<_> = path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
        .collect();
    let slash = path.ends_with(b"/");
    for (index, &name) in names.iter().enumerate() {
        let last = index + 1 == names.len();
        if at.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let next = match name {
            b"." => at,
            b".." if at.ino == start.root => at,
            b".." => fs.getattr(SYSTEM, fs.parent(SYSTEM, at.ino)?)?,
            name => fs.lookup(SYSTEM, at.ino, name)?,
        };
        at = match next.kind {
            FileKind::Symlink if !last || follow || slash => {
                *links += 1;
                if *links > SYMLOOP_MAX {
                    return Err(FsError::Loop);
                }
                walk(fs, start, at.ino, &fs.readlink(SYSTEM, next.ino)?, true, links)?
            }
            _ => next,
        };
    }
    match slash && at.kind != FileKind::Directory {
        true => Err(FsError::NotDirectory),
        false => Ok(at),
    }
}

const NAMES: [&str; 5] = ["a", "b", "c", "l", "m"];

fn random_path(rng: &mut Rng) -> String {
    let mut path = String::from(if rng.chance(30) { "/" } else { "" });
    for index in 0..1 + rng.below(5) {
        if index > 0 {
            path.push_str(if rng.chance(10) { "//" } else { "/" });
        }
        path.push_str(match rng.below(10) {
            0 => ".",
            1 | 2 => "..",
            _ => NAMES[rng.below(5) as usize],
        });
    }
    if rng.chance(10) {
        path.push('/');
    }
    path
}

fn random_paths(h: &Harness<'_>) {
    let seed = crate::seed_from_env().unwrap_or(3);
    let fs = h.fs();
    let (mut found, mut refused) = (0, 0);
    for round in 0..6 {
        let mut rng = Rng::new(seed + round);
        let top = h.mkdir(&format!("top{round}"));
        let mut dirs = vec![top];
        for _ in 0..40 {
            let dir = *rng.pick(&dirs);
            let name = rng.pick(&NAMES).as_bytes();
            match rng.below(4) {
                0 => {
                    let target = random_path(&mut rng);
                    let _ = fs.symlink(SYSTEM, dir, name, target.as_bytes());
                }
                1 => {
                    let node = ferrite_vfs::NewNode {
                        kind: FileKind::File,
                        mode: 0o644,
                        rdev: 0,
                    };
                    let _ = fs.mknod(SYSTEM, dir, name, &node);
                }
                _ => dirs.extend(fs.mkdir(SYSTEM, dir, name, 0o755).map(|attr| attr.ino)),
            }
        }
        for _ in 0..400 {
            // Confined to the round's tree, and in the whole file system.
            let root = if rng.chance(60) { top } else { ROOT_INO };
            let base = *rng.pick(&dirs);
            let start = Start { root, base };
            let path = random_path(&mut rng);
            let follow = rng.chance(60);
            let what = || format!("{path:?} from {start:?}, follow: {follow} (FERRITE_SEED={seed})");
            let wanted = walk(fs, &start, base, path.as_bytes(), follow, &mut 0);
            let got = fs.resolve(SYSTEM, &start, path.as_bytes(), follow);
            assert_eq!(got, wanted, "{}", what());
            match wanted {
                Ok(_) => found += 1,
                Err(_) => refused += 1,
            }
            let flags = OpenFlags {
                no_follow: !follow,
                ..READ
            };
            let opened = fs.open_path(SYSTEM, &start, path.as_bytes(), &flags);
            let opened = opened.map(|opened| (opened.attr, opened.file.ino(), opened.created));
            let wanted = wanted.and_then(|attr| match attr.kind {
                FileKind::File => Ok((attr, attr.ino, false)),
                FileKind::Symlink => Err(FsError::Loop),
                _ => Err(FsError::IsDirectory),
            });
            assert_eq!(opened, wanted, "opening {}", what());
        }
    }
    assert!(found > 300 && refused > 300, "{found} found, {refused} not");
}

fn opens(h: &Harness<'_>) {
    let start = Start::default();
    let open = |path: &str, flags: OpenFlags| h.fs().open_path(SYSTEM, &start, path.as_bytes(), &flags);
    let create = OpenFlags {
        write: true,
        create: true,
        ..READ
    };
    let exclusive = OpenFlags {
        exclusive: true,
        ..create
    };
    h.mkdir("d");
    let file = h.write("d/f", b"content");
    let link = |name: &str, target: &str| {
        h.fs()
            .symlink(SYSTEM, ROOT_INO, name.as_bytes(), target.as_bytes())
            .expect("symlink")
    };
    link("to file", "d/f");
    link("to new", "d/./new");
    link("to link", "/to new too");
    link("to new too", "/d/new too");
    link("around", "around");
    link("to nowhere", "none/new");

    let made = open("/d/made", exclusive).expect("create");
    assert!(made.created);
    assert_eq!((made.attr.mode, made.attr.ino), (0o640, h.ino("d/made")));
    assert_eq!(made.file.append(SYSTEM, b"x"), Ok(Written::new(0, 1)));
    let again = open("d/made", create).expect("open");
    assert_eq!(
        (again.created, again.attr.ino, again.attr.size),
        (false, made.attr.ino, 1)
    );
    let linked = open("to file", create).expect("open");
    assert_eq!((linked.created, linked.attr.ino), (false, file));
    for (path, to) in [("to new", "d/new"), ("to link", "d/new too")] {
        let made = open(path, create).expect("create through a link");
        assert_eq!((made.created, made.attr.ino), (true, h.ino(to)), "{path}");
    }
    refused!(open("to file", exclusive), Exists);
    refused!(open("around", exclusive), Exists);
    refused!(open("around", create), Loop);
    refused!(open("to nowhere", create), NotFound);
    refused!(open("none/f", create), NotFound);
    refused!(open("d/f/x", create), NotDirectory);
    refused!(open("d", create), IsDirectory);
    refused!(open("/", create), IsDirectory);
    refused!(open("d/fresh/", create), IsDirectory);
    refused!(open("d/..", exclusive), Exists);
    refused!(open("", create), NotFound);
    refused!(open(&"d/".repeat(3000), READ), NameTooLong);
    refused!(open("d/a\0b", READ), Invalid);
    let no_follow = OpenFlags {
        no_follow: true,
        ..create
    };
    refused!(open("to file", no_follow), Loop);
    assert!(!h.exists("d/fresh"));

    let truncate = OpenFlags {
        write: true,
        truncate: true,
        ..READ
    };
    assert_eq!(h.read_at(file, 0, 10), b"content");
    let cut = open("to file", truncate).expect("open");
    assert_eq!((cut.attr.ino, h.stat("d/f").size), (file, 0));
}

fn checked(h: &Harness<'_>) {
    let start = Start::default();
    h.mkdir("open");
    let shut = h.mkdir("open/shut");
    h.mkdir("open/shut/in");
    let file = h.write("open/shut/in/f", b"content");
    h.fs()
        .symlink(SYSTEM, ROOT_INO, b"way in", b"open/shut/in")
        .expect("symlink");
    h.chmod(shut, 0o700);
    let other_user = Ctx::checked(Cred::new(1000, 100));
    let root = Ctx::checked(Cred::root());
    let create = OpenFlags {
        create: true,
        write: true,
        ..READ
    };
    for path in ["open/shut/in/f", "way in/f", "open/shut/../shut/in/./f"] {
        let path = path.as_bytes();
        refused!(h.fs().resolve(&other_user, &start, path, true), AccessDenied);
        refused!(h.fs().open_path(&other_user, &start, path, &READ), AccessDenied);
        refused!(h.fs().open_path(&other_user, &start, path, &create), AccessDenied);
        for ctx in [&root, SYSTEM, &Ctx::trusted(Cred::new(1000, 100))] {
            assert_eq!(h.fs().resolve(ctx, &start, path, true).expect("resolve").ino, file);
        }
    }
    refused!(
        h.fs().resolve(&other_user, &start, b"open/shut/none", true),
        AccessDenied
    );
    refused!(h.fs().resolve(&other_user, &start, b"open/shut/.", true), AccessDenied);
    let found = h
        .fs()
        .resolve(&other_user, &start, b"open/shut", true)
        .expect("resolve");
    assert_eq!(found.ino, shut, "its name is no secret");
}
