//! Nothing outside of its root can be reached through [`Vfs::rooted`], and everything inside of it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::walk::STEPS_MAX;
use ferrite_vfs::{
    Attr, Cred, Ctx, FileSystem, FsError, Ino, Layer, OpenFlags, ROOT_INO, RenameMode, Result, SYSTEM, Start, Vfs,
};

/// `/in` with a tree in it, `/out` with a secret.
fn world() -> Vfs {
    let vfs = Vfs::new(Arc::new(MemFs::new()), Cred::root());
    for dir in ["/in", "/in/a", "/in/a/b", "/in/out", "/out", "/out/deep"] {
        vfs.mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    for file in ["/in/inside", "/in/a/b/leaf", "/out/secret"] {
        make(&vfs, file.as_bytes()).unwrap();
    }
    vfs
}

fn make(vfs: &Vfs, path: &[u8]) -> Result<()> {
    let flags = OpenFlags {
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    vfs.open(path, &flags).map(drop)
}

fn ino(vfs: &Vfs, path: &str) -> Result<u64> {
    vfs.stat(path.as_bytes(), true).map(|attr| attr.ino)
}

#[test]
fn paths_and_links_stay_inside() {
    let whole = world();
    let vfs = whole.rooted(b"/in").unwrap();
    for (target, name) in [
        ("/out/secret", "absolute"),
        ("../out/secret", "relative"),
        ("a/b/../../../../out/secret", "long"),
        ("/", "top"),
        ("..", "up"),
        ("/a/b", "deep"),
        ("up/up/up", "chain"),
    ] {
        vfs.symlink(target.as_bytes(), name.as_bytes()).unwrap();
    }
    let root = ino(&whole, "/in").unwrap();
    for path in [
        "/",
        ".",
        "..",
        "/..",
        "../../..",
        "a/../..",
        "a/b/../../..",
        "top",
        "up",
        "chain",
        "deep/../../..",
    ] {
        assert_eq!(ino(&vfs, path), Ok(root), "{path}");
    }
    for path in [
        "/out/secret",
        "../out/secret",
        "absolute",
        "relative",
        "long",
        "top/out/secret",
        "up/out/secret",
        "deep/../../../out/secret",
    ] {
        assert_eq!(ino(&vfs, path), Err(FsError::NotFound), "{path}");
    }
    for path in [
        "inside",
        "/inside",
        "../inside",
        "top/inside",
        "up/a/../inside",
        "deep/../../inside",
    ] {
        assert_eq!(ino(&vfs, path), ino(&whole, "/in/inside"), "{path}");
    }
    assert_eq!(ino(&vfs, "deep/leaf"), ino(&whole, "/in/a/b/leaf"));
}

#[test]
fn changes_stay_inside() {
    let whole = world();
    let vfs = whole.rooted(b"in").unwrap();
    vfs.symlink(b"/out/new", b"new").unwrap();
    vfs.symlink(b"../../out/second", b"second").unwrap();
    // `/in/out` is what these links lead to.
    make(&vfs, b"new").unwrap();
    make(&vfs, b"second").unwrap();
    assert!(ino(&whole, "/in/out/new").is_ok() && ino(&whole, "/in/out/second").is_ok());
    assert_eq!(ino(&whole, "/out/new"), Err(FsError::NotFound));
    vfs.mkdir(b"/../made", 0o755).unwrap();
    assert!(ino(&whole, "/in/made").is_ok());
    vfs.rename(b"../inside", b"/a/../../moved", RenameMode::Replace)
        .unwrap();
    assert!(ino(&whole, "/in/moved").is_ok());
    assert_eq!(vfs.unlink(b"../../out/secret"), Err(FsError::NotFound));
    assert_eq!(vfs.link(b"/out/../../out/secret", b"mine"), Err(FsError::NotFound));
    // The root itself is neither removed nor moved.
    for path in [&b"/"[..], b".", b"..", b"a/.."] {
        assert!(vfs.rmdir(path).is_err());
        assert!(vfs.rename(path, b"elsewhere", RenameMode::Replace).is_err());
    }
    assert!(ino(&whole, "/out/secret").is_ok());
}

#[test]
fn as_a_user_and_from_a_directory_of_its_own() {
    let whole = world();
    let vfs = whole.rooted(b"/in").unwrap().as_user(Cred::new(7, 7));
    assert!(make(&vfs, b"refused").is_err());
    let below = vfs.open_dir(b"a/b").unwrap();
    let at = vfs.at(below.ino());
    assert_eq!(ino(&at, "leaf"), ino(&whole, "/in/a/b/leaf"));
    assert_eq!(ino(&at, "../../../.."), ino(&whole, "/in"));
    assert_eq!(ino(&at, "../../../out/secret"), Err(FsError::NotFound));
    // A root within a root.
    let inner = vfs.rooted(b"a").unwrap();
    assert_eq!(ino(&inner, "../../inside"), Err(FsError::NotFound));
    assert_eq!(ino(&inner, "/b/leaf"), ino(&whole, "/in/a/b/leaf"));
}

/// A directory that is moved out takes its users along, but no farther: its parent is invisible to them.
#[test]
fn moving_a_directory_out_lets_nobody_out() {
    let whole = world();
    let vfs = whole.rooted(b"/in").unwrap();
    let below = vfs.open_dir(b"a/b").unwrap();
    let at = vfs.at(below.ino());
    whole.rename(b"/in/a", b"/out/a", RenameMode::Replace).unwrap();
    assert!(ino(&at, "leaf").is_ok());
    assert_eq!(ino(&at, ".."), Err(FsError::NotFound));
    assert_eq!(ino(&at, "../../secret"), Err(FsError::NotFound));
    assert_eq!(ino(&at, "/inside"), ino(&whole, "/in/inside"));
}

/// The same while it is moved in and out all the time.
#[test]
fn a_walk_in_a_directory_that_moves_finds_no_secret() {
    let whole = world();
    let vfs = whole.rooted(b"/in").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                whole.rename(b"/in/a/b", b"/out/deep/b", RenameMode::Replace).unwrap();
                whole.rename(b"/out/deep/b", b"/in/a/b", RenameMode::Replace).unwrap();
            }
        });
        let mut found = 0;
        for _ in 0..20_000 {
            for path in ["a/b/../../secret", "a/b/../deep/../secret", "a/b/../../../out/secret"] {
                let secret = ino(&vfs, path);
                assert!(secret.is_err(), "{path} led out");
            }
            found += usize::from(ino(&vfs, "a/b/../../inside").is_ok());
        }
        stop.store(true, Ordering::Relaxed);
        assert!(found > 0, "nothing was ever inside");
    });
}

/// Counts the calls that walks make.
struct Counting {
    below: MemFs,
    calls: AtomicUsize,
}

impl Layer for Counting {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn lookup(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.below.lookup(ctx, parent, name)
    }

    fn parent(&self, ctx: &Ctx, dir: Ino) -> Result<Ino> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.below.parent(ctx, dir)
    }

    fn resolve(&self, ctx: &Ctx, start: &Start, path: &[u8], follow: bool) -> Result<Attr> {
        ferrite_vfs::walk::resolve(self, ctx, start, path, follow)
    }

    fn open_path(&self, ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<ferrite_vfs::Opened> {
        ferrite_vfs::walk::open(self, ctx, start, path, flags)
    }
}

const DEPTH: usize = 2000;
/// As many fit the target of a link.
const UP: usize = 1300;

/// A chain of directories below `/in`, with a link at its end that climbs, and one where that leads back down.
fn deep(fs: &dyn FileSystem) -> (Ino, Ino) {
    let root = fs.mkdir(SYSTEM, ROOT_INO, b"in", 0o755).unwrap().ino;
    let mut chain = vec![root];
    for _ in 0..DEPTH {
        let below = fs.mkdir(SYSTEM, *chain.last().unwrap(), b"a", 0o755).unwrap().ino;
        chain.push(below);
    }
    let end = *chain.last().unwrap();
    fs.symlink(SYSTEM, end, b"up", "../".repeat(UP).as_bytes()).unwrap();
    let down = "a/".repeat(UP);
    fs.symlink(SYSTEM, chain[DEPTH - UP], b"down", down.as_bytes()).unwrap();
    (root, end)
}

/// Links that climb and descend cost their components once, and share one bound: in the whole file system as within a
/// root, and for every kind of walk.
#[test]
fn links_up_and_down_have_a_budget() {
    let counting = Counting {
        below: MemFs::new(),
        calls: AtomicUsize::new(0),
    };
    let fs: &dyn FileSystem = &counting;
    let (root, end) = deep(fs);
    let calls = |walk: &dyn Fn() -> Result<Attr>| {
        let before = counting.calls.load(Ordering::Relaxed);
        let result = walk().map(|attr| attr.ino);
        (result, counting.calls.load(Ordering::Relaxed) - before)
    };
    for top in [root, ROOT_INO] {
        let start = Start { root: top, base: end };
        let resolve = |path: &str| fs.resolve(SYSTEM, &start, path.as_bytes(), true);
        let (up, count) = calls(&|| resolve("up"));
        assert!(up.is_ok());
        assert!(count <= DEPTH + UP + 10, "a climb costs {count} calls");
        let (again, count) = calls(&|| resolve(&format!("up{}", "/down/up".repeat(19))));
        assert!(count <= STEPS_MAX + 100, "one path costs {count} calls");
        assert_eq!(again, Err(FsError::Loop));
        let flags = OpenFlags {
            write: true,
            create: true,
            mode: 0o644,
            ..OpenFlags::default()
        };
        let path = format!("up{}/new", "/down/up".repeat(19));
        for flags in [flags, OpenFlags { create: false, ..flags }] {
            let open = || {
                fs.open_path(SYSTEM, &start, path.as_bytes(), &flags)
                    .map(|opened| opened.attr)
            };
            let (opened, count) = calls(&open);
            assert!(count <= STEPS_MAX + 100, "an open costs {count} calls");
            assert_eq!(opened, Err(FsError::Loop));
        }
    }
}
