//! Corner cases of paths in [`Vfs`]: bases, dots, slashes, links to nowhere, and walks under which the tree changes.

use std::sync::Arc;
use std::thread;

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    BadArgument, Cred, FileKind, FileSystem, FsError, NewNode, OpenFlags, RenameMode, SYSTEM, SetAttr, Vfs, XattrMode,
};

fn world() -> (Vfs, Vfs) {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let (root, user) = (Vfs::new(fs.clone(), Cred::root()), Vfs::new(fs, Cred::new(1000, 1000)));
    root.mkdir(b"/d", 0o755).unwrap();
    root.mkdir(b"/d/sub", 0o755).unwrap();
    root.mkdir(b"/tmp", 0o1777).unwrap();
    root.open(b"/d/f", &create(0o666)).unwrap();
    (root, user)
}

fn create(mode: u32) -> OpenFlags {
    OpenFlags {
        write: true,
        create: true,
        mode,
        ..OpenFlags::default()
    }
}

/// Every pin a walk takes must be dropped, or unlinked files would keep their space for ever.
fn assert_nothing_leaks(root: &Vfs, inodes: u64) {
    let stat = root.statfs().unwrap();
    assert_eq!(stat.inodes - stat.inodes_free, inodes, "inodes in use");
}

#[test]
fn relative_paths_start_at_the_base() {
    let (root, _) = world();
    let at = root.at(root.stat(b"/d", true).unwrap().ino);
    let ino = |vfs: &Vfs, path: &[u8]| vfs.stat(path, true).map(|attr| attr.ino);
    assert_eq!(ino(&at, b"f"), ino(&root, b"/d/f"));
    assert_eq!(ino(&at, b"/d/f"), ino(&root, b"d/f"));
    assert_eq!(ino(&at, b"sub/../../d/./f"), ino(&root, b"/d/f"));
    assert_eq!(ino(&at, b"d"), Err(FsError::NotFound));
    at.mkdir(b"new", 0o755).unwrap();
    at.rename(b"new", b"../new", RenameMode::Replace).unwrap();
    at.symlink(b"f", b"link").unwrap();
    assert_eq!(
        ino(&root, b"/d/link"),
        ino(&root, b"/d/f"),
        "a link's target starts at the link"
    );
    at.open(b"made", &create(0o644)).unwrap();
    assert!(root.stat(b"/d/made", true).is_ok());
    assert!(root.rmdir(b"/new").is_ok());
    let file = root.at(root.stat(b"/d/f", true).unwrap().ino);
    assert_eq!(ino(&file, b"x"), Err(FsError::NotDirectory));
}

#[test]
fn a_removed_base_holds_nothing() {
    let (root, _) = world();
    let dir = root.stat(b"/d/sub", true).unwrap();
    root.fs().pin(SYSTEM, dir.ino, dir.generation).unwrap();
    let at = root.at(dir.ino);
    root.rmdir(b"/d/sub").unwrap();
    assert_eq!(at.stat(b"x", true).map(drop), Err(FsError::NotFound));
    assert_eq!(at.mkdir(b"x", 0o755).map(drop), Err(FsError::NotFound));
    assert_eq!(at.open(b"x", &create(0o644)).map(drop), Err(FsError::NotFound));
    root.fs().unpin(SYSTEM, dir.ino, 1);
    assert_eq!(
        at.stat(b"x", true).map(drop),
        Err(FsError::NotFound),
        "and when it is gone"
    );
    assert_nothing_leaks(&root, 4);
}

#[test]
fn dots_and_the_root_cannot_be_removed() {
    let (root, _) = world();
    let rename = |from: &[u8], to: &[u8]| root.rename(from, to, RenameMode::Replace);
    let invalid = FsError::Invalid(BadArgument::DotOrDotDot);
    for (result, expected) in [
        (root.unlink(b"/"), FsError::IsDirectory),
        (root.unlink(b"/d/."), FsError::IsDirectory),
        (root.unlink(b"/d/sub/.."), FsError::IsDirectory),
        (root.unlink(b"/d/"), FsError::IsDirectory),
        (root.rmdir(b"/"), FsError::Busy),
        (root.rmdir(b"/d/sub/."), invalid),
        (root.rmdir(b"/d/sub/.."), FsError::NotEmpty),
        (root.rmdir(b"/d/f/"), FsError::NotDirectory),
        (rename(b"/d/sub/.", b"/x"), FsError::Busy),
        (rename(b"/d/f", b"/d/.."), FsError::Busy),
        (rename(b"/d", b"/"), FsError::Busy),
        (rename(b"/d/f", b"/d/g/"), FsError::NotDirectory),
    ] {
        assert_eq!(result, Err(expected));
    }
    assert_eq!(rename(b"/d/sub/", b"/d/moved/"), Ok(()));
}

/// An `open` that may create makes the file at the end of a dangling link, but no file can have a slash after its name.
#[test]
fn links_to_nowhere_are_made_real() {
    let (root, _) = world();
    for (target, link) in [
        (&b"b"[..], &b"/d/a"[..]),
        (b"../tmp/c", b"/d/b"),
        (b"dir/", b"/d/slash"),
        (b"slashed/", b"/d/twice"),
        (b"nowhere", b"/d/slashed"),
        (b"gone/x", b"/d/deep"),
    ] {
        root.symlink(target, link).unwrap();
    }
    root.open(b"/d/a", &create(0o644)).unwrap();
    assert_eq!(root.stat(b"/tmp/c", false).map(|attr| attr.kind), Ok(FileKind::File));
    let open = |path: &[u8]| root.open(path, &create(0o644)).map(drop);
    assert_eq!(open(b"/d/slash"), Err(FsError::IsDirectory));
    assert_eq!(open(b"/d/twice"), Err(FsError::IsDirectory));
    assert_eq!(open(b"/d/deep"), Err(FsError::NotFound));
    let mut names = Vec::new();
    root.readdir(b"/d", 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    assert_eq!(names.len(), 8, "nothing else was made: {names:?}");
}

#[test]
fn opening_asks_for_more_than_bits() {
    let (root, user) = world();
    let fifo = NewNode {
        kind: FileKind::Fifo,
        mode: 0o666,
        rdev: 0,
    };
    root.mknod(b"/d/fifo", &fifo).unwrap();
    let no_atime = OpenFlags {
        read: true,
        no_atime: true,
        ..OpenFlags::default()
    };
    let truncate = OpenFlags {
        read: true,
        truncate: true,
        ..OpenFlags::default()
    };
    assert_eq!(
        user.open(b"/d/f", &no_atime).map(drop),
        Err(FsError::NotPermitted),
        "only owners read unseen"
    );
    assert_eq!(root.open(b"/d/f", &no_atime).map(drop), Ok(()));
    assert_eq!(user.open(b"/d/fifo", &truncate).map(drop), Err(FsError::NoSuchAddress));
    let mode = |mode| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    root.setattr(b"/d/f", &mode(0o444), true).unwrap();
    assert_eq!(
        user.open(b"/d/f", &truncate).map(drop),
        Err(FsError::AccessDenied),
        "cutting is writing"
    );
    root.symlink(b"f", b"/d/link").unwrap();
    assert!(matches!(
        root.setattr(b"/d/link", &mode(0o600), false),
        Err(FsError::NotSupported(_))
    ));
    assert_eq!(
        root.setattr(b"/d/link", &mode(0o600), true).map(|attr| attr.mode),
        Ok(0o600)
    );
}

/// An exchange moves two directories, so it needs permission to change the `..` of both.
#[test]
fn an_exchange_checks_both_directories() {
    let (root, user) = world();
    for (path, mode, uid) in [
        (&b"/one"[..], 0o777, 0),
        (b"/two", 0o777, 0),
        (b"/one/his", 0o755, 1000),
        (b"/two/roots", 0o755, 0),
    ] {
        root.mkdir(path, mode).unwrap();
        let owner = SetAttr {
            uid: Some(uid),
            ..SetAttr::default()
        };
        root.setattr(path, &owner, true).unwrap();
    }
    let exchange = |from: &[u8], to: &[u8]| user.rename(from, to, RenameMode::Exchange);
    assert_eq!(exchange(b"/one/his", b"/two/roots"), Err(FsError::AccessDenied));
    assert_eq!(exchange(b"/two/roots", b"/one/his"), Err(FsError::AccessDenied));
    assert_eq!(exchange(b"/one/his", b"/two/none"), Err(FsError::NotFound));
    root.mkdir(b"/one/also", 0o777).unwrap();
    root.mkdir(b"/two/open", 0o777).unwrap();
    assert_eq!(exchange(b"/one/also", b"/two/open"), Ok(()));
}

#[test]
fn attribute_names_are_whole() {
    let (root, user) = world();
    let set = |vfs: &Vfs, path: &[u8], name: &[u8]| vfs.setxattr(path, name, b"v", XattrMode::Any);
    for name in [&b"user"[..], b"trusted", b"", b".x", b"system.posix_acl"] {
        assert!(
            matches!(set(&root, b"/d/f", name), Err(FsError::NotSupported(_))),
            "{}",
            name.escape_ascii()
        );
    }
    for name in [&b"user."[..], b"trusted."] {
        assert!(
            matches!(set(&root, b"/d/f", name), Err(FsError::Invalid(_))),
            "{}",
            name.escape_ascii()
        );
    }
    assert_eq!(set(&user, b"/d/f", b"user.x"), Ok(()));
    assert_eq!(
        set(&user, b"/tmp", b"user.x"),
        Err(FsError::NotPermitted),
        "a sticky directory's are its owner's"
    );
    assert_eq!(set(&root, b"/tmp", b"user.x"), Ok(()));
}

/// Threads that make and remove the same names must see nothing a kernel would not show: no stale inode, no file that
/// an open that may create finds in its way.
#[test]
fn a_tree_that_changes_under_a_walk_shows_no_seams() {
    const ROUNDS: usize = 3000;
    let (root, _) = world();
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let vfs = root.clone();
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let missing = |result: Result<(), FsError>, what: &str| {
                        let fine = matches!(result, Ok(()) | Err(FsError::NotFound));
                        assert!(fine, "{what}, thread {number}, round {round}: {result:?}");
                    };
                    missing(vfs.open(b"/d/dir/f", &create(0o644)).map(drop), "create");
                    missing(vfs.stat(b"/d/dir/f", true).map(drop), "stat");
                    missing(vfs.unlink(b"/d/dir/f"), "unlink");
                    let made = vfs.mkdir(b"/d/dir", 0o755).map(drop);
                    assert!(matches!(made, Ok(()) | Err(FsError::Exists)), "{made:?}");
                    missing(vfs.listxattr(b"/d/dir/f").map(drop), "listxattr");
                    missing(vfs.readdir(b"/d/dir", 0, &mut |_| true), "readdir");
                    let removed = vfs.rmdir(b"/d/dir");
                    let fine = matches!(removed, Ok(()) | Err(FsError::NotFound | FsError::NotEmpty));
                    assert!(fine, "rmdir: {removed:?}");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    root.unlink(b"/d/dir/f").ok();
    root.rmdir(b"/d/dir").ok();
    assert_nothing_leaks(&root, 5);
}
