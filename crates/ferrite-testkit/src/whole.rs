//! Calls that take more than one step in some engine, each of which must fail whole.
//!
//! Contents: the list of calls, their tree, and the comparison of two trees with content, space, attributes and times.
//! An engine's tests make each call with the first, second, third ... request of its medium failing, and with no, one,
//! two ... units of space free, until it succeeds.
//!
//! *Invariant:* a call that is refused for lack of space leaves every byte of [`State`] as it was. An error of a device
//! may leave pages that a call overwrites in place old or new ([`Call::in_place`]), where the engine says so.

use std::collections::BTreeMap;

use ferrite_vfs::{
    Cred, Ctx, FallocateMode, FileKind, FileSystem, Ino, NewFile, NewNode, OpenMode, Position, ROOT_INO, RenameMode,
    Result, SYSTEM, SetAttr, WriteMode, XattrMode, copy_range,
};

use crate::rng::pattern;

/// The hole that [`scene`] leaves in the long file.
const HOLE: (u64, u64) = (212_992, 393_216);
/// Length of that file.
const LONG_BYTES: u64 = 500_000;
const PAGE: usize = 4096;

/// A call of the list.
pub struct Call {
    /// Description of the call.
    pub name: &'static str,
    /// It changes existing bytes, and an engine may do that page by page.
    pub in_place: bool,
    run: Run,
}

impl Call {
    /// Makes it. The context may carry a token.
    ///
    /// # Errors
    /// Of the engine.
    pub fn run(&self, fs: &dyn FileSystem, ctx: &Ctx) -> Result<()> {
        (self.run)(fs, ctx)
    }
}

type Run = fn(&dyn FileSystem, &Ctx) -> Result<()>;

/// See [`Call::in_place`].
const fn in_place(name: &'static str, run: Run) -> Call {
    Call {
        name,
        in_place: true,
        run,
    }
}

/// A call that changes no existing bytes.
const fn apart(name: &'static str, run: Run) -> Call {
    Call {
        name,
        in_place: false,
        run,
    }
}

fn ino(fs: &dyn FileSystem, name: &str) -> Result<Ino> {
    Ok(fs.lookup(SYSTEM, ROOT_INO, name.as_bytes())?.ino)
}

fn write(fs: &dyn FileSystem, ctx: &Ctx, name: &str, offset: u64, len: usize) -> Result<()> {
    let file = fs.open(SYSTEM, ino(fs, name)?, OpenMode::read_write())?;
    let data = pattern(offset as u32 ^ 0x77, len);
    file.write(ctx, WriteMode::from(Position::At(offset)), &data).map(drop)
}

fn fallocate(fs: &dyn FileSystem, ctx: &Ctx, mode: FallocateMode, from: u64, to: u64) -> Result<()> {
    let file = fs.open(SYSTEM, ino(fs, "long")?, OpenMode::read_write())?;
    file.fallocate(ctx, mode, from, to - from)
}

fn set(fs: &dyn FileSystem, ctx: &Ctx, name: &str, set: SetAttr) -> Result<()> {
    fs.setattr(ctx, ino(fs, name)?, &set).map(drop)
}

fn size(bytes: u64) -> SetAttr {
    SetAttr {
        size: Some(bytes),
        ..SetAttr::default()
    }
}

fn rename(fs: &dyn FileSystem, ctx: &Ctx, from: &str, to: &str, mode: RenameMode) -> Result<()> {
    let dir = ino(fs, "dir")?;
    fs.rename(ctx, ROOT_INO, from.as_bytes(), dir, to.as_bytes(), mode)
}

fn node(kind: FileKind) -> NewNode {
    NewNode {
        kind,
        mode: 0o644,
        rdev: 0,
    }
}

/// A caller without privileges: its writes clear setuid and setgid.
fn user(ctx: &Ctx) -> Ctx {
    Ctx {
        cred: Cred::new(1000, 1000),
        check: true,
        ..ctx.clone()
    }
}

const KEEP: bool = true;
const GROW: bool = false;

fn of_ranges() -> Vec<Call> {
    vec![
        in_place("zero a range with a hole in it", |fs, ctx| {
            fallocate(fs, ctx, FallocateMode::ZeroRange { keep_size: KEEP }, 50_000, 450_000)
        }),
        in_place("zero a range over the end", |fs, ctx| {
            fallocate(fs, ctx, FallocateMode::ZeroRange { keep_size: GROW }, 450_000, 600_000)
        }),
        in_place("zero a range, unprivileged", |fs, ctx| {
            let ctx = user(ctx);
            fallocate(fs, &ctx, FallocateMode::ZeroRange { keep_size: KEEP }, 50_000, 450_000)
        }),
        apart("allocate a hole", |fs, ctx| {
            fallocate(fs, ctx, FallocateMode::Allocate { keep_size: KEEP }, 150_000, 450_000)
        }),
        apart("allocate behind the end", |fs, ctx| {
            fallocate(fs, ctx, FallocateMode::Allocate { keep_size: GROW }, 480_000, 600_000)
        }),
        in_place("punch a hole", |fs, ctx| {
            fallocate(fs, ctx, FallocateMode::PunchHole, 10_000, 430_001)
        }),
        apart("zero a small file over its end", |fs, ctx| {
            let file = fs.open(SYSTEM, ino(fs, "small")?, OpenMode::read_write())?;
            file.fallocate(ctx, FallocateMode::ZeroRange { keep_size: GROW }, 50, 60_000)
        }),
        apart("allocate in a tiny file", |fs, ctx| {
            let file = fs.open(SYSTEM, ino(fs, "tiny")?, OpenMode::read_write())?;
            file.fallocate(ctx, FallocateMode::Allocate { keep_size: KEEP }, 50, 60_000)
        }),
        apart("clone a long file", |fs, ctx| {
            let source = fs.open(SYSTEM, ino(fs, "long")?, OpenMode::read_only())?;
            let file = fs.open(SYSTEM, ino(fs, "small")?, OpenMode::read_write())?;
            copy_range(ctx, (&*source, 0), (&*file, 0), LONG_BYTES).map(drop)
        }),
        apart("zero a tiny file over its end", |fs, ctx| {
            let file = fs.open(SYSTEM, ino(fs, "tiny")?, OpenMode::read_write())?;
            file.fallocate(ctx, FallocateMode::ZeroRange { keep_size: GROW }, 50, 60_000)
        }),
    ]
}

fn of_content() -> Vec<Call> {
    vec![
        in_place("write over data and a hole", |fs, ctx| {
            write(fs, ctx, "long", 150_000, 300_000)
        }),
        in_place("write over data and a hole, unprivileged", |fs, ctx| {
            write(fs, &user(ctx), "long", 150_000, 300_000)
        }),
        in_place("write a part of a page of a hole", |fs, ctx| {
            write(fs, ctx, "long", HOLE.1 - 1000, 2000)
        }),
        in_place("write over the end", |fs, ctx| {
            write(fs, ctx, "long", LONG_BYTES - 5000, 100_000)
        }),
        apart("write far behind the end", |fs, ctx| {
            write(fs, ctx, "long", LONG_BYTES + 70_000, 10)
        }),
        in_place("write pages in place", |fs, ctx| write(fs, ctx, "long", 8192, 100_000)),
        apart("make a small file long", |fs, ctx| {
            write(fs, ctx, "small", 1000, 40_000)
        }),
        apart("make a tiny file long", |fs, ctx| write(fs, ctx, "tiny", 50, 40_000)),
        apart("make an empty file long", |fs, ctx| write(fs, ctx, "empty", 10, 50_000)),
        apart("truncate a small file to more", |fs, ctx| {
            set(fs, ctx, "small", size(100_000))
        }),
        apart("truncate a long file to more", |fs, ctx| {
            set(fs, ctx, "long", size(700_000))
        }),
        apart("truncate a long file to less", |fs, ctx| {
            set(fs, ctx, "long", size(100_001))
        }),
        apart("truncate a long file to nothing, with a mode", |fs, ctx| {
            let change = SetAttr {
                mode: Some(0o600),
                ..size(0)
            };
            set(fs, ctx, "long", change)
        }),
        apart("open a long file to write it anew", |fs, ctx| {
            let new = NewFile {
                mode: 0o644,
                open: OpenMode {
                    truncate: true,
                    ..OpenMode::read_write()
                },
                exclusive: false,
            };
            fs.create(ctx, ROOT_INO, b"long", &new).map(drop)
        }),
    ]
}

fn of_names() -> Vec<Call> {
    vec![
        apart("create and open", |fs, ctx| {
            let new = NewFile {
                mode: 0o644,
                open: OpenMode::read_write(),
                exclusive: true,
            };
            fs.create(ctx, ROOT_INO, &[b'n'; 200], &new).map(drop)
        }),
        apart("make a node", |fs, ctx| {
            fs.mknod(ctx, ROOT_INO, b"fifo", &node(FileKind::Fifo)).map(drop)
        }),
        apart("make a directory", |fs, ctx| {
            fs.mkdir(ctx, ino(fs, "dir")?, &[b'd'; 200], 0o755).map(drop)
        }),
        apart("make a symbolic link", |fs, ctx| {
            fs.symlink(ctx, ROOT_INO, b"sym", &[b't'; 3000]).map(drop)
        }),
        apart("link", |fs, ctx| {
            fs.link(ctx, ino(fs, "long")?, ino(fs, "dir")?, &[b'l'; 200]).map(drop)
        }),
        apart("remove a long file", |fs, ctx| fs.unlink(ctx, ROOT_INO, b"long")),
        apart("remove a directory", |fs, ctx| fs.rmdir(ctx, ROOT_INO, b"void")),
        apart("rename", |fs, ctx| {
            rename(fs, ctx, "long", "moved-to-a-name-that-is-longer", RenameMode::NoReplace)
        }),
        apart("rename over a file", |fs, ctx| {
            rename(fs, ctx, "small", "victim", RenameMode::Replace)
        }),
        apart("rename a directory over another", |fs, ctx| {
            rename(fs, ctx, "void", "void", RenameMode::Replace)
        }),
        apart("exchange a file and a directory", |fs, ctx| {
            rename(fs, ctx, "long", "void", RenameMode::Exchange)
        }),
        apart("set a new attribute", |fs, ctx| {
            fs.setxattr(ctx, ino(fs, "small")?, b"user.new", &[9; 2000], XattrMode::Create)
        }),
        apart("replace an attribute", |fs, ctx| {
            fs.setxattr(ctx, ino(fs, "long")?, b"user.old", &[9; 3000], XattrMode::Replace)
        }),
        apart("remove an attribute", |fs, ctx| {
            fs.removexattr(ctx, ino(fs, "long")?, b"user.old")
        }),
        apart("change mode and owner", |fs, ctx| {
            let change = SetAttr {
                mode: Some(0o700),
                uid: Some(7),
                gid: Some(8),
                ..SetAttr::default()
            };
            set(fs, ctx, "dir", change)
        }),
    ]
}

/// All of them.
pub fn calls() -> Vec<Call> {
    let mut calls = of_ranges();
    calls.extend(of_content());
    calls.extend(of_names());
    calls
}

/// Makes the tree for the calls, in an empty file system.
///
/// # Panics
/// If the engine refuses.
pub fn scene(fs: &dyn FileSystem) {
    let make = |dir: Ino, name: &str| {
        fs.mknod(SYSTEM, dir, name.as_bytes(), &node(FileKind::File))
            .unwrap()
            .ino
    };
    for name in ["long", "small", "tiny", "empty"] {
        make(ROOT_INO, name);
    }
    let dir = fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap().ino;
    for parent in [ROOT_INO, dir] {
        fs.mkdir(SYSTEM, parent, b"void", 0o755).unwrap();
    }
    make(dir, "victim");
    write(fs, SYSTEM, "long", 0, HOLE.0 as usize).unwrap();
    write(fs, SYSTEM, "long", HOLE.1, (LONG_BYTES - HOLE.1) as usize).unwrap();
    write(fs, SYSTEM, "small", 0, 1500).unwrap();
    write(fs, SYSTEM, "tiny", 0, 100).unwrap();
    let long = ino(fs, "long").unwrap();
    fs.setxattr(SYSTEM, long, b"user.old", &[5; 100], XattrMode::Any)
        .unwrap();
    let rights = SetAttr {
        mode: Some(0o6777),
        ..SetAttr::default()
    };
    for name in ["long", "small", "tiny"] {
        set(fs, SYSTEM, name, rights).unwrap();
    }
}

/// An inode of a tree.
#[derive(Clone, PartialEq, Eq)]
struct Seen {
    ino: Ino,
    /// All but number, mode, times, content and space.
    attributes: String,
    blocks: u64,
    mode: u32,
    times: [i64; 2],
    content: Vec<u8>,
}

/// A whole tree with everything that a call may change: content, space, attributes and times (except access times).
#[derive(Clone, PartialEq, Eq)]
pub struct State(BTreeMap<String, Seen>);

fn see(fs: &dyn FileSystem, at: Ino, path: &str, tree: &mut BTreeMap<String, Seen>) {
    let attr = fs.getattr(SYSTEM, at).unwrap_or_else(|error| panic!("{path}: {error}"));
    let content = match attr.kind {
        FileKind::File => {
            let mode = OpenMode {
                no_atime: true,
                ..OpenMode::read_only()
            };
            let mut content = vec![0; attr.size as usize];
            let read = fs
                .open(SYSTEM, at, mode)
                .and_then(|file| file.read_at(SYSTEM, 0, &mut content));
            assert_eq!(read.ok(), Some(content.len()), "{path}: it cannot be read");
            content
        }
        FileKind::Symlink => fs.readlink(SYSTEM, at).unwrap(),
        _ => Vec::new(),
    };
    let mut xattrs = String::new();
    for name in fs.listxattr(SYSTEM, at).unwrap() {
        let value = fs.getxattr(SYSTEM, at, &name).unwrap();
        xattrs += &format!(" {} {value:x?}", String::from_utf8_lossy(&name));
    }
    let seen = Seen {
        ino: at,
        attributes: format!(
            "{:?} nlink {} owner {}:{} size {}{xattrs}",
            attr.kind, attr.nlink, attr.uid, attr.gid, attr.size
        ),
        blocks: attr.blocks,
        mode: attr.mode,
        times: [attr.mtime.0, attr.ctime.0],
        content,
    };
    tree.insert(path.to_owned(), seen);
    if attr.kind != FileKind::Directory {
        return;
    }
    let mut names = Vec::new();
    fs.readdir(SYSTEM, at, 0, &mut |entry| {
        names.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
        true
    })
    .unwrap();
    for (name, child) in names.into_iter().filter(|(name, _)| name != "." && name != "..") {
        // Files that a test fills space with do not belong to the tree.
        if !name.starts_with(FILLER) {
            see(fs, child, &format!("{path}/{name}"), tree);
        }
    }
}

/// The comparison skips files with this prefix.
pub const FILLER: &str = "filler";

impl State {
    /// Reads everything.
    ///
    /// # Panics
    /// If something cannot be read.
    pub fn of(fs: &dyn FileSystem) -> State {
        let mut tree = BTreeMap::new();
        see(fs, ROOT_INO, "", &mut tree);
        State(tree)
    }

    /// How `self` differs from the state before the call, if it does. With `after`, the state after a successful call,
    /// pages of a file may be those of either, and so may its mode and its space; its times may have moved.
    pub fn differs(&self, before: &State, after: Option<&State>) -> Option<String> {
        let paths = |state: &State| state.0.keys().cloned().collect::<Vec<_>>();
        if paths(self) != paths(before) {
            return Some(format!("names: {:?}, before {:?}", paths(self), paths(before)));
        }
        before.0.iter().find_map(|(path, old)| {
            let now = &self.0[path];
            let new = after.and_then(|after| after.0.get(path)).filter(|new| *new != old);
            now.differs(old, new).map(|how| format!("{path}: {how}"))
        })
    }

    /// The same, with each file taking the space that it takes in `other`: for comparisons that leave space out.
    pub fn with_space_of(&self, other: &State) -> State {
        let mut same = self.clone();
        for (path, seen) in &mut same.0 {
            seen.blocks = other.0.get(path).map_or(seen.blocks, |other| other.blocks);
        }
        same
    }

    /// Whether content, names and attributes equal those of another state, whatever the times and the space.
    pub fn is_alike(&self, other: &State) -> bool {
        let of = |state: &State| {
            let without = |(path, seen): (&String, &Seen)| {
                let (attributes, content) = (seen.attributes.clone(), seen.content.clone());
                (path.clone(), attributes, seen.mode, content)
            };
            state.0.iter().map(without).collect::<Vec<_>>()
        };
        of(self) == of(other)
    }
}

impl Seen {
    fn differs(&self, old: &Seen, new: Option<&Seen>) -> Option<String> {
        if self.attributes != old.attributes || self.ino != old.ino {
            return Some(format!("{}, before {}", self.attributes, old.attributes));
        }
        if self.blocks != old.blocks && new.is_none_or(|new| self.blocks != new.blocks) {
            return Some(format!("{} blocks, before {}", self.blocks, old.blocks));
        }
        if self.mode != old.mode && new.is_none_or(|new| self.mode != new.mode) {
            return Some(format!("mode {:o}, before {:o}", self.mode, old.mode));
        }
        if self.times != old.times && new.is_none() {
            return Some(format!("times {:?}, before {:?}", self.times, old.times));
        }
        let page = |content: &[u8], at: usize, len: usize| -> Vec<u8> {
            let mut page = content.get(at..).unwrap_or_default().to_vec();
            page.resize(len, 0);
            page
        };
        (0..self.content.len()).step_by(PAGE).find_map(|at| {
            let len = PAGE.min(self.content.len() - at);
            let now = page(&self.content, at, len);
            let is_right =
                now == page(&old.content, at, len) || new.is_some_and(|new| now == page(&new.content, at, len));
            (!is_right).then(|| format!("the page at byte {at} has changed"))
        })
    }
}
