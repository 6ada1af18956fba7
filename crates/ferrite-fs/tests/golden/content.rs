//! The content of an image: all structures of the format; and the changes that later tests make.

use std::sync::Arc;

use ferrite_testkit::rng::Rng;
use ferrite_vfs::{
    FallocateMode, FileKind, FileSystem, Ino, NewNode, OpenFile, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr,
    SetTime, Timestamp, XattrMode,
};

use crate::common::{make, write};

const PAGE: u64 = 4096;
/// Entries of a directory that has several blocks, and of a smaller one.
const MANY: u32 = 110;
const FEW: u32 = 20;
/// Paths that [`change`] leaves alone.
pub(crate) const UNTOUCHED: &str = "/kept";

/// Bytes that name their place and version, roughly, so that an image of them is small.
fn pattern(len: usize, version: u8) -> Vec<u8> {
    (0..len)
        .map(|index| ((index >> 9) as u8).wrapping_mul(7) ^ version | 1)
        .collect()
}

fn open(fs: &dyn FileSystem, ino: Ino) -> Arc<dyn OpenFile> {
    fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap()
}

fn resize(fs: &dyn FileSystem, ino: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(SYSTEM, ino, &set).unwrap();
}

fn node(fs: &dyn FileSystem, dir: Ino, name: &[u8], kind: FileKind, rdev: u32) -> Ino {
    let node = NewNode {
        kind,
        mode: 0o640,
        rdev,
    };
    fs.mknod(SYSTEM, dir, name, &node).unwrap().ino
}

fn mkdir(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    fs.mkdir(SYSTEM, dir, name.as_bytes(), 0o755).unwrap().ino
}

/// Everything, twice: under `kept`, which no test touches afterwards, and under `used`.
pub(crate) fn fill(fs: &dyn FileSystem, seed: u64) {
    for (name, links) in [("kept", MANY), ("used", FEW)] {
        let dir = mkdir(fs, ROOT_INO, name);
        files(fs, dir, &mut Rng::new(seed));
        nodes(fs, dir);
        names(fs, dir, links);
    }
}

fn files(fs: &dyn FileSystem, dir: Ino, rng: &mut Rng) {
    write(fs, make(fs, dir, "inline"), 0, b"128 bytes fit into the inode");
    make(fs, dir, "empty");
    write(fs, make(fs, dir, "pages"), 0, &pattern(5 * PAGE as usize + 77, 1));
    // Many pages, not in a row and not in order: tables with collisions, trees with several nodes.
    let scattered = make(fs, dir, "scattered");
    for _ in 0..40 {
        write(fs, scattered, rng.below(3000) * PAGE, &[rng.below(255) as u8 + 1; 64]);
    }
    // Logs: one entry, several, over a block and over none, one that was folded into its page.
    let logs = make(fs, dir, "logs");
    write(fs, logs, 0, &pattern(3 * PAGE as usize, 2));
    write(fs, logs, 1000, b"8 bytes.");
    for turn in 0..4 {
        write(fs, logs, PAGE + 500 * turn, &pattern(100, turn as u8));
    }
    for turn in 0..16 {
        write(fs, logs, 2 * PAGE + 90 * turn, &pattern(64, turn as u8));
    }
    write(fs, logs, 7 * PAGE + 5, b"only a log");
    // Reserved: read as zeros until they are written; some are.
    let reserved = make(fs, dir, "reserved");
    let keep_size = false;
    open(fs, reserved)
        .fallocate(SYSTEM, FallocateMode::Allocate { keep_size }, 0, 12 * PAGE)
        .unwrap();
    write(fs, reserved, 4 * PAGE, &pattern(2 * PAGE as usize, 3));
    write(fs, reserved, 9 * PAGE + 9, b"a part");
    let beyond = make(fs, dir, "reserved-beyond-the-end");
    write(fs, beyond, 0, b"short");
    let keep_size = true;
    open(fs, beyond)
        .fallocate(SYSTEM, FallocateMode::Allocate { keep_size }, 0, 4 * PAGE)
        .unwrap();
    let holes = make(fs, dir, "holes");
    write(fs, holes, 0, &pattern(10 * PAGE as usize, 4));
    open(fs, holes)
        .fallocate(SYSTEM, FallocateMode::PunchHole, 2 * PAGE + 100, 3 * PAGE)
        .unwrap();
    open(fs, holes)
        .fallocate(SYSTEM, FallocateMode::ZeroRange { keep_size }, 7 * PAGE, PAGE)
        .unwrap();
    let far = make(fs, dir, "far-away");
    write(fs, far, (1 << 43) + 3, b"eight TiB away");
    write(fs, far, 1 << 30, &pattern(PAGE as usize, 5));
    let cut = make(fs, dir, "cut-and-grown");
    write(fs, cut, 0, &pattern(6 * PAGE as usize, 6));
    for size in [2 * PAGE + 13, 4 * PAGE] {
        resize(fs, cut, size);
    }
}

fn nodes(fs: &dyn FileSystem, dir: Ino) {
    fs.symlink(SYSTEM, dir, b"link", b"inline/target").unwrap();
    fs.symlink(SYSTEM, dir, b"long-link", &b"long/".repeat(300)).unwrap();
    node(fs, dir, b"fifo", FileKind::Fifo, 0);
    node(fs, dir, b"socket", FileKind::Socket, 0);
    node(fs, dir, b"null", FileKind::CharDevice, 0x103);
    node(fs, dir, b"disk", FileKind::BlockDevice, 0x801);
    let owned = make(fs, dir, "owned");
    let set = SetAttr {
        mode: Some(0o4751),
        uid: Some(1000),
        gid: Some(100_000),
        mtime: Some(SetTime::To(Timestamp::new(-86_400, 123_456_789))),
        ..SetAttr::default()
    };
    fs.setattr(SYSTEM, owned, &set).unwrap();
    let attributes = make(fs, dir, "attributes");
    write(fs, attributes, 0, b"has attributes");
    fs.setxattr(SYSTEM, attributes, b"user.small", b"value", XattrMode::Any)
        .unwrap();
    fs.setxattr(SYSTEM, attributes, b"user.large", &pattern(2500, 7), XattrMode::Any)
        .unwrap();
    fs.setxattr(SYSTEM, attributes, b"user.empty", b"", XattrMode::Any)
        .unwrap();
    fs.setxattr(
        SYSTEM,
        mkdir(fs, dir, "directory-with-attribute"),
        b"user.on",
        b"a directory",
        XattrMode::Any,
    )
    .unwrap();
}

/// Directories of several blocks, deep ones, and names of all lengths.
fn names(fs: &dyn FileSystem, dir: Ino, links: u32) {
    let target = make(fs, dir, "many-names");
    let many = mkdir(fs, dir, "many");
    for number in 0..200 {
        fs.link(SYSTEM, target, many, format!("hard link number {number}").as_bytes())
            .unwrap();
    }
    // Gaps between entries.
    for number in (0..links).step_by(7) {
        fs.unlink(SYSTEM, many, format!("hard link number {number}").as_bytes())
            .unwrap();
    }
    let odd = mkdir(fs, dir, "odd");
    for len in [1, 8, 100, 255] {
        node(fs, odd, &vec![b'n'; len], FileKind::File, 0);
    }
    node(fs, odd, "Eisenerz \u{2692} \u{1f4be}".as_bytes(), FileKind::File, 0);
    node(fs, odd, b"not \xff UTF-8\n", FileKind::File, 0);
    let mut deep = mkdir(fs, dir, "deep");
    for level in 0..6 {
        deep = mkdir(fs, deep, &format!("level {level}"));
    }
    write(fs, make(fs, deep, "bottom"), 0, b"far down");
    let moved = make(fs, dir, "before");
    write(fs, moved, 0, b"renamed");
    fs.rename(SYSTEM, dir, b"before", deep, b"after", RenameMode::NoReplace)
        .unwrap();
}

/// The operations in progress when a dirty pool's machine stopped. Returns the files that were open.
pub(crate) fn last_changes(fs: &dyn FileSystem) -> Vec<Arc<dyn OpenFile>> {
    let used = fs.lookup(SYSTEM, ROOT_INO, b"used").unwrap().ino;
    let orphan = make(fs, used, "orphan");
    write(fs, orphan, 0, &pattern(3 * PAGE as usize, 8));
    let held = open(fs, orphan);
    fs.unlink(SYSTEM, used, b"orphan").unwrap();
    let late = make(fs, used, "late");
    write(fs, late, 0, &pattern(2 * PAGE as usize + 1, 9));
    write(fs, late, 300, b"a log entry");
    let of = |name: &[u8]| fs.lookup(SYSTEM, used, name).unwrap().ino;
    write(fs, of(b"pages"), PAGE, &pattern(PAGE as usize, 10));
    write(fs, of(b"scattered"), 77 * PAGE, b"one more");
    write(fs, of(b"inline"), 3, b"inline");
    resize(fs, of(b"holes"), PAGE);
    fs.rename(
        SYSTEM,
        used,
        b"link",
        used,
        b"link with another name",
        RenameMode::Replace,
    )
    .unwrap();
    fs.rename(SYSTEM, used, b"fifo", used, b"socket", RenameMode::Exchange)
        .unwrap();
    fs.unlink(SYSTEM, used, b"null").unwrap();
    fs.symlink(SYSTEM, used, b"late-link", &b"late/".repeat(200)).unwrap();
    fs.setxattr(SYSTEM, late, b"user.late", &pattern(1000, 11), XattrMode::Create)
        .unwrap();
    vec![held]
}

/// A bit of everything, except to files that are [`UNTOUCHED`].
pub(crate) fn change(fs: &dyn FileSystem) {
    let used = fs.lookup(SYSTEM, ROOT_INO, b"used").unwrap().ino;
    let mut files = Vec::new();
    fs.readdir(SYSTEM, used, 0, &mut |entry| {
        files.push((entry.name.to_vec(), entry.ino));
        true
    })
    .unwrap();
    for (name, ino) in files {
        let attr = fs.getattr(SYSTEM, ino).unwrap();
        if attr.kind != FileKind::File {
            continue;
        }
        write(fs, ino, attr.size / 2, b"in the middle");
        open(fs, ino).append(SYSTEM, &pattern(3000, 12)).unwrap();
        resize(fs, ino, attr.size / 2 + 100);
        write(fs, ino, 0, &pattern(PAGE as usize + 50, 13));
        fs.setxattr(SYSTEM, ino, b"user.changed", b"yes", XattrMode::Create)
            .unwrap();
        fs.rename(
            SYSTEM,
            used,
            &name,
            used,
            &[&*name, b" changed"].concat(),
            RenameMode::NoReplace,
        )
        .unwrap();
    }
    let many = fs.lookup(SYSTEM, used, b"many").unwrap().ino;
    for number in 0..100 {
        make(fs, many, &format!("new {number}"));
    }
    for number in (0..100).step_by(2) {
        fs.unlink(SYSTEM, many, format!("new {number}").as_bytes()).unwrap();
    }
    let odd = fs.lookup(SYSTEM, used, b"odd").unwrap().ino;
    fs.unlink(SYSTEM, odd, &[b'n'; 255]).unwrap();
    fs.unlink(SYSTEM, used, b"scattered changed").unwrap();
    write(fs, make(fs, used, "new"), 3 * PAGE, &pattern(20 * PAGE as usize, 14));
    fs.rmdir(SYSTEM, used, b"directory-with-attribute").unwrap();
}
