//! Quotas of directory trees: they count what is there, what would exceed a limit changes nothing, and nothing but a
//! copy crosses a border. Engines count space in different units; the cases use whole pages that are written.

use std::time::{Duration, Instant};

use ferrite_vfs::{
    BadArgument, Cred, Ctx, FallocateMode, FsError, Ino, NO_NAME, NewFile, OpenMode, Opened, QUOTA_XATTR, Quota,
    QuotaLimits, ROOT_INO, RenameMode, Result, SYSTEM, XattrMode,
};

use super::{Case, Harness};
use crate::refused;
use crate::rng::pattern;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "quotas/limits hold and a refusal changes nothing",
        run: limits,
    },
    Case {
        name: "quotas/what goes makes space",
        run: space,
    },
    Case {
        name: "quotas/names do not cross the border",
        run: border,
    },
    Case {
        name: "quotas/they come and go, also within each other",
        run: nested,
    },
    Case {
        name: "quotas/clones count and snapshots do not",
        run: clones,
    },
    Case {
        name: "quotas/root sets them, of directories",
        run: root_sets,
    },
    Case {
        name: "quotas/what a service keeps is not limited",
        run: services,
    },
    Case {
        name: "quotas/files without a name count",
        run: nameless,
    },
    Case {
        name: "quotas/one ends under open files",
        run: ends,
    },
];

const PAGE: u64 = 4096;

fn set(h: &Harness<'_>, dir: Ino, bytes: u64, inodes: u64) -> Result<()> {
    let limits = QuotaLimits { bytes, inodes }.to_string();
    h.fs()
        .setxattr(SYSTEM, dir, QUOTA_XATTR, limits.as_bytes(), XattrMode::Any)
}

/// Gives a directory a quota; false if the engine has none, and refuses it or keeps a text that is not one.
fn begin(h: &Harness<'_>, dir: Ino, bytes: u64, inodes: u64) -> bool {
    match set(h, dir, bytes, inodes) {
        Err(FsError::NotSupported(_)) => {}
        refused @ Err(_) => panic!("setting a quota: {refused:?}"),
        Ok(()) => {
            let text = h
                .fs()
                .getxattr(SYSTEM, dir, QUOTA_XATTR)
                .expect("the quota that was set");
            if Quota::parse(&text).is_some() {
                return true;
            }
            h.fs().removexattr(SYSTEM, dir, QUOTA_XATTR).expect("removexattr");
        }
    }
    h.skip("no quotas");
    false
}

fn get(h: &Harness<'_>, ino: Ino) -> Option<Quota> {
    match h.fs().getxattr(SYSTEM, ino, QUOTA_XATTR) {
        Ok(text) => Some(Quota::parse(&text).expect("a quota")),
        Err(FsError::NoAttribute) => None,
        Err(error) => panic!("the quota of inode {ino}: {error}"),
    }
}

/// The quotas of all directories, by path, as far as the engine has them.
pub(super) fn all(h: &Harness<'_>) -> Vec<(Vec<u8>, Quota)> {
    let mut found = Vec::new();
    let mut dirs = vec![(Vec::new(), ROOT_INO)];
    while let Some((path, dir)) = dirs.pop() {
        let text = h.fs().getxattr(SYSTEM, dir, QUOTA_XATTR);
        found.extend(
            text.ok()
                .and_then(|text| Quota::parse(&text))
                .map(|quota| (path.clone(), quota)),
        );
        let mut push = |entry: &ferrite_vfs::DirEntry<'_>| {
            if entry.kind == ferrite_vfs::FileKind::Directory {
                dirs.push(([&path, &b"/"[..], entry.name].concat(), entry.ino));
            }
            true
        };
        h.fs().readdir(SYSTEM, dir, 0, &mut push).expect("readdir");
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

fn used(h: &Harness<'_>, dir: Ino) -> (u64, u64) {
    let quota = get(h, dir).expect("a quota");
    (quota.used_bytes, quota.used_inodes)
}

/// Something has a value in the end: an engine that is busy with an inode frees it a moment after it was removed.
macro_rules! settles {
    ($found:expr, $want:expr) => {
        let until = Instant::now() + Duration::from_secs(10);
        while $found != $want && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!($found, $want);
    };
}

fn try_write(h: &Harness<'_>, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
    h.open(ino).write_at(SYSTEM, offset, data)
}

/// Clients that fill a quota do not keep their server from what it has to store.
fn services(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    if !begin(h, dir, 1, 1) {
        return;
    }
    let set = |name: &[u8]| h.fs().setxattr(SYSTEM, dir, name, &[7; 9000], XattrMode::Any);
    refused!(set(b"user.note"), OverQuota);
    // A server keeps its clients from these.
    let kept = set(b"trusted.ferrite.note");
    assert!(matches!(kept, Ok(()) | Err(FsError::NotPermitted)), "{kept:?}");
}

fn limits(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    assert_eq!(get(h, dir), None);
    if !begin(h, dir, 20 * PAGE, 5) {
        return;
    }
    let file = h.file("dir/file");
    let base = used(h, dir).0;
    let full = 20 * PAGE - base;
    h.write_at(file, 0, &pattern(1, full as usize));
    assert_eq!(used(h, dir), (20 * PAGE, 2));
    let before = (h.stat("dir/file"), get(h, dir));
    let refused = try_write(h, file, full, &pattern(2, PAGE as usize));
    assert_eq!(refused, Err(FsError::OverQuota));
    let refused = h.open(file).append(SYSTEM, &pattern(2, PAGE as usize));
    assert_eq!(refused.map(drop), Err(FsError::OverQuota));
    let reserve = FallocateMode::Allocate { keep_size: false };
    refused!(h.open(file).fallocate(SYSTEM, reserve, full, 9 * PAGE), OverQuota);
    assert_eq!((h.stat("dir/file"), get(h, dir)), before);
    assert_eq!(h.read_at(file, 0, 1 << 20), pattern(1, full as usize));
    // Overwrites need nothing more.
    assert_eq!(try_write(h, file, 0, &pattern(3, 8192)), Ok(8192));
    for name in ["a", "b", "c"] {
        h.file(&format!("dir/{name}"));
    }
    let fs = h.fs();
    refused!(fs.mkdir(SYSTEM, dir, b"d", 0o755), OverQuota);
    refused!(fs.symlink(SYSTEM, dir, b"d", b"target"), OverQuota);
    refused!(fs.lookup(SYSTEM, dir, b"d"), NotFound);
    assert_eq!(used(h, dir).1, 5);
    // One that goes makes place for one that comes, in one step.
    h.rename("dir/a", "dir/b");
    h.mkdir("dir/d");
    h.file("elsewhere");
    assert_eq!(get(h, ROOT_INO), None);
    set(h, dir, 0, 0).expect("no limits");
    h.file("dir/more");
    h.write_at(file, full, &pattern(4, 9 * PAGE as usize));
}

fn space(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    if !begin(h, dir, 40 * PAGE, 0) {
        return;
    }
    let file = h.file("dir/file");
    let base = used(h, dir).0;
    // From content beside inodes to content of its own, and back.
    for pages in [1, 9, 30, 12, 2, 25] {
        h.truncate(file, 0);
        assert_eq!(used(h, dir).0, base, "emptied");
        h.write_at(file, 0, &pattern(1, pages * PAGE as usize));
        assert_eq!(used(h, dir).0, base + pages as u64 * PAGE, "{pages} pages");
    }
    h.truncate(file, 5 * PAGE);
    assert_eq!(used(h, dir).0, base + 5 * PAGE);
    let value = pattern(2, 3000);
    let set_value = |value: &[u8]| h.fs().setxattr(SYSTEM, file, b"user.x", value, XattrMode::Any);
    set_value(&value).expect("setxattr");
    assert_eq!(used(h, dir).0, base + 6 * PAGE, "an extended attribute");
    set_value(b"short").expect("setxattr");
    h.fs().removexattr(SYSTEM, file, b"user.x").expect("removexattr");
    assert_eq!(used(h, dir).0, base + 5 * PAGE);
    set_value(&value).expect("setxattr");
    h.write("dir/other", &pattern(3, 10 * PAGE as usize));
    h.rename("dir/other", "dir/file");
    let after = used(h, dir);
    assert_eq!(after.1, 2);
    h.unlink("dir/file");
    settles!(used(h, dir).1, 1);
    assert!(after.0 >= used(h, dir).0 + 10 * PAGE, "{after:?}");
    h.write("dir/file", &pattern(1, 30 * PAGE as usize));
}

fn border(h: &Harness<'_>) {
    let (dir, other) = (h.mkdir("dir"), h.mkdir("other"));
    if !begin(h, dir, 0, 0) {
        return;
    }
    let file = h.file("dir/file");
    let sub = h.mkdir("dir/sub");
    let outside = h.file("other/outside");
    for (from, to) in [
        ("dir/file", "other/new"),
        ("dir/sub", "other/new"),
        ("other/outside", "dir/new"),
        ("other/outside", "dir/sub/new"),
    ] {
        refused!(h.try_rename(from, to, RenameMode::Replace), CrossDevice);
    }
    refused!(
        h.try_rename("dir/file", "other/outside", RenameMode::Exchange),
        CrossDevice
    );
    refused!(h.fs().link(SYSTEM, file, other, b"linked"), CrossDevice);
    refused!(h.fs().link(SYSTEM, outside, sub, b"linked"), CrossDevice);
    h.rename("dir/file", "dir/sub/new");
    h.link("dir/sub/new", "dir/linked");
    assert_eq!(used(h, dir).1, 3, "two names are one file");
    h.unlink("dir/linked");
    // The directory itself may be moved, with its quota, and what replaces it counts for none.
    h.rename("dir", "other/moved");
    assert_eq!(get(h, file).expect("a quota").root, dir);
    assert_eq!(get(h, h.mkdir("dir")), None);
    if h.try_rename("other/moved/sub/new", "other/moved/plain", RenameMode::Whiteout)
        .is_ok()
    {
        assert_eq!(used(h, dir).1, 4, "a whiteout counts");
        h.unlink("other/moved/sub/new");
    }
}

fn nested(h: &Harness<'_>) {
    let top = h.mkdir("top");
    h.write("top/before", &pattern(1, 9 * PAGE as usize));
    let inner = h.mkdir("top/inner");
    let deep = h.mkdir("top/inner/deep");
    for n in 0..70 {
        h.file(&format!("top/inner/deep/{n}"));
    }
    h.link("top/inner/deep/1", "top/inner/again");
    h.write("top/inner/deep/file", &pattern(4, 9 * PAGE as usize));
    if !begin(h, inner, 0, 90) {
        return;
    }
    assert_eq!(used(h, inner).1, 73, "what was there before");
    set(h, top, 0, 0).expect("set");
    assert_eq!(used(h, top).1, 75);
    let bytes = used(h, top).0 - used(h, inner).0;
    assert!((9 * PAGE..12 * PAGE).contains(&bytes), "{bytes}");
    assert_eq!(get(h, deep), get(h, inner));
    h.file("top/inner/deep/more");
    assert_eq!((used(h, inner).1, used(h, top).1), (74, 76));
    // Both limits hold.
    set(h, top, 0, 76).expect("set");
    refused!(h.fs().mkdir(SYSTEM, deep, b"x", 0o755), OverQuota);
    set(h, top, 0, 0).expect("set");
    let before = used(h, top);
    let remove = |dir| h.fs().removexattr(SYSTEM, dir, QUOTA_XATTR);
    remove(inner).expect("remove");
    assert_eq!(get(h, deep).expect("a quota").root, top);
    assert_eq!(used(h, top), before);
    refused!(remove(inner), NoAttribute);
    set(h, inner, 0, 0).expect("set");
    assert_eq!((used(h, inner).1, used(h, top)), (74, before));
    remove(top).expect("remove");
    assert_eq!(get(h, top), None);
    assert_eq!(used(h, inner).1, 74);
    // A directory takes its quota with it.
    for n in 0..70 {
        h.unlink(&format!("top/inner/deep/{n}"));
    }
    for name in ["deep/file", "deep/more", "again"] {
        h.unlink(&format!("top/inner/{name}"));
    }
    h.rmdir("top/inner/deep");
    settles!(used(h, inner).1, 1);
    h.rmdir("top/inner");
    assert_eq!(get(h, h.mkdir("top/inner")), None);
}

fn clones(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    if !begin(h, dir, 0, 0) {
        return;
    }
    h.mkdir("dir/tree");
    h.write("dir/tree/file", &pattern(1, 20 * PAGE as usize));
    h.file("dir/tree/empty");
    let before = used(h, dir);
    h.mkdir("dir/.snapshots");
    let with_directory = used(h, dir);
    let snapshots = h.ino("dir/.snapshots");
    h.fs().mkdir(SYSTEM, snapshots, b"s", 0o755).expect("a snapshot");
    let with_snapshot = used(h, dir);
    assert_eq!(with_snapshot.1, with_directory.1, "a snapshot counts");
    // The directory of snapshots may take a page for its first entry.
    assert!(with_snapshot.0 <= with_directory.0 + PAGE, "a snapshot counts");
    h.fs().rmdir(SYSTEM, snapshots, b"s").expect("rmdir");
    h.rmdir("dir/.snapshots");
    settles!(used(h, dir), before);
    let clone = |to: &[u8]| h.fs().clone_tree(SYSTEM, h.ino("dir/tree"), dir, to);
    clone(b"clone").expect("a clone");
    let with_clone = used(h, dir);
    assert_eq!(with_clone.1, before.1 + 3);
    assert!(with_clone.0 >= before.0 + 20 * PAGE, "shared content counts for each");
    for (bytes, inodes) in [(0, with_clone.1 + 2), (with_clone.0 + 5 * PAGE, 0)] {
        set(h, dir, bytes, inodes).expect("set");
        refused!(clone(b"another"), OverQuota);
        settles!(used(h, dir), with_clone);
        assert!(!h.exists("dir/another"));
    }
    let outside = h.fs().clone_tree(SYSTEM, dir, ROOT_INO, b"copy").expect("outside");
    assert_eq!(get(h, outside.ino), None);
    settles!(used(h, dir), with_clone);
}

fn root_sets(h: &Harness<'_>) {
    let (dir, file) = (h.mkdir("dir"), h.file("file"));
    if !begin(h, dir, 1 << 20, 0) {
        return;
    }
    let user = Ctx::checked(Cred::new(7, 7));
    let set_as = |ino: Ino, text: &[u8]| h.fs().setxattr(&user, ino, QUOTA_XATTR, text, XattrMode::Any);
    refused!(set_as(dir, b"limit_bytes=1"), NotPermitted);
    refused!(h.fs().removexattr(&user, dir, QUOTA_XATTR), NotPermitted);
    let place = Err(FsError::Invalid(BadArgument::QuotaPlace));
    assert_eq!(set(h, file, 1, 1), place);
    let text = h.fs().setxattr(SYSTEM, dir, QUOTA_XATTR, b"10G", XattrMode::Any);
    assert_eq!(text, Err(FsError::Invalid(BadArgument::QuotaText)));
    assert_eq!(get(h, dir).expect("a quota").limits.bytes, 1 << 20);
    assert!(h.fs().getxattr(&user, dir, QUOTA_XATTR).is_ok());
    assert!(
        h.fs().listxattr(SYSTEM, dir).expect("listxattr").is_empty(),
        "it is listed"
    );
    // As many within each other as there may be.
    let mut at = dir;
    for level in 1.. {
        at = h.fs().mkdir(SYSTEM, at, b"d", 0o755).expect("mkdir").ino;
        match set(h, at, 0, 0) {
            Ok(()) => {}
            refused => {
                assert_eq!((refused, level), (place, 64));
                break;
            }
        }
    }
}

fn nameless(h: &Harness<'_>) {
    let (dir, other) = (h.mkdir("dir"), h.mkdir("other"));
    if !begin(h, dir, 4 * PAGE, 3) {
        return;
    }
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: false,
    };
    let create = || h.fs().create(SYSTEM, dir, NO_NAME, &new);
    let (first, second) = (create().expect("one"), create().expect("another"));
    refused!(create(), OverQuota);
    first.file.append(SYSTEM, &pattern(1, 2 * 4096)).expect("append");
    assert!(first.file.append(SYSTEM, &pattern(1, 9 * 4096)).is_err());
    // It counts where it was made, and then where its first name is.
    let before = used(h, dir);
    let link = |of: &Opened, to| h.fs().link(SYSTEM, of.attr.ino, to, b"f").map(|attr| attr.nlink);
    assert_eq!(link(&first, other), Ok(1));
    assert_eq!(used(h, dir).1, before.1 - 1);
    assert!(used(h, dir).0 + 2 * PAGE <= before.0);
    refused!(link(&first, dir), CrossDevice);
    assert_eq!(link(&second, dir), Ok(1));
    let full = create().expect("a third");
    let outside = h.fs().create(SYSTEM, other, NO_NAME, &new).expect("outside");
    outside.file.append(SYSTEM, &pattern(1, 9 * 4096)).expect("append");
    let into = h.fs().link(SYSTEM, outside.attr.ino, dir, b"g");
    refused!(into, OverQuota);
    drop((first.file, second.file, full.file, outside.file));
    settles!(used(h, dir).1, 2);
}

/// Files that are open without a name when their quota ends count for none from then on, not for the one around it.
fn ends(h: &Harness<'_>) {
    let outer = h.mkdir("outer");
    if !begin(h, outer, 0, 0) {
        return;
    }
    for by_rmdir in [false, true] {
        let inner = h.mkdir("outer/inner");
        set(h, inner, 0, 0).expect("set");
        let empty = used(h, outer);
        let ino = h.write("outer/inner/file", &pattern(1, 5 * 4096));
        let file = h.open(ino);
        h.unlink("outer/inner/file");
        assert_eq!(used(h, outer).1, 3, "it still counts");
        match by_rmdir {
            true => h.rmdir("outer/inner"),
            false => h.fs().removexattr(SYSTEM, inner, QUOTA_XATTR).expect("remove"),
        }
        assert_eq!(used(h, outer).1, 2 - u64::from(by_rmdir), "ended");
        let ended = used(h, outer);
        file.append(SYSTEM, &pattern(2, 7 * 4096)).expect("append");
        assert_eq!(used(h, outer), ended, "it grew");
        if !by_rmdir {
            // The same directory again: what it has left counts until it is closed.
            set(h, inner, 0, 0).expect("set");
            assert_eq!((used(h, inner).1, used(h, outer).1), (2, 3));
            drop(file);
            settles!((used(h, inner).1, used(h, outer).1), (1, empty.1));
            h.rmdir("outer/inner");
            continue;
        }
        drop(file);
        settles!(used(h, outer), ended);
    }
}
