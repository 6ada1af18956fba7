//! Every call of the library that changes something, for tests of volumes that are read-only.

use std::fs::Permissions;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::SystemTime;

use ferrite::{FallocateMode, FileKind, FileTimes, Fs, NewNode, OpenOptions, RenameMode, XattrMode};

type Try = fn(&Fs) -> ferrite::Result<()>;

/// The files that [`CHANGES`] try to change.
pub(crate) fn prepare(fs: &Fs) {
    fs.create_dir("/dir").unwrap();
    fs.write("/file", "text").unwrap();
    fs.symlink("file", "/link").unwrap();
    fs.set_xattr("/file", "user.a", "value", XattrMode::Any).unwrap();
}

fn fifo() -> NewNode {
    NewNode {
        kind: FileKind::Fifo,
        mode: 0o600,
        rdev: 0,
    }
}

/// Changes by a path.
const BY_PATH: &[(&str, Try)] = &[
    ("remove_file", |fs| fs.remove_file("/file")),
    ("remove_dir", |fs| fs.remove_dir("/dir")),
    ("remove_dir_all", |fs| fs.remove_dir_all("/dir")),
    ("create_dir", |fs| fs.create_dir("/new")),
    ("create_dir_with", |fs| fs.create_dir_with("/new", 0o700)),
    ("create_dir_all", |fs| fs.create_dir_all("/new/below")),
    ("create_file", |fs| fs.create_file("/new").map(drop)),
    ("truncating open", |fs| fs.create_file("/file").map(drop)),
    ("write", |fs| fs.write("/file", "other")),
    ("copy", |fs| fs.copy("/file", "/new").map(drop)),
    ("open for writing", |fs| {
        OpenOptions::new().write(true).open(fs, "/file").map(drop)
    }),
    ("open to append", |fs| {
        OpenOptions::new().append(true).open(fs, "/file").map(drop)
    }),
    ("open that creates", |fs| {
        OpenOptions::new().read(true).create(true).open(fs, "/new").map(drop)
    }),
    ("open that creates a new file", |fs| {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(fs, "/new")
            .map(drop)
    }),
    ("mknod", |fs| fs.mknod("/new", &fifo())),
    ("symlink", |fs| fs.symlink("file", "/new")),
    ("hard_link", |fs| fs.hard_link("/file", "/new")),
    ("rename", |fs| fs.rename("/file", "/new")),
    ("rename without replacing", |fs| {
        fs.rename_with("/file", "/new", RenameMode::NoReplace)
    }),
    ("exchange", |fs| fs.rename_with("/file", "/link", RenameMode::Exchange)),
    ("set_mode", |fs| fs.set_mode("/file", 0o600)),
    ("set_mode_nofollow", |fs| fs.set_mode_nofollow("/file", 0o600)),
    ("set_permissions", |fs| {
        fs.set_permissions("/file", Permissions::from_mode(0o600))
    }),
    ("chown", |fs| fs.chown("/file", Some(1), None)),
    ("lchown", |fs| fs.lchown("/link", Some(1), Some(1))),
    ("set_times", |fs| fs.set_times("/file", FileTimes::now())),
    ("set_times_nofollow", |fs| {
        fs.set_times_nofollow("/link", FileTimes::now())
    }),
    ("truncate", |fs| fs.truncate("/file", 1)),
    ("set_xattr", |fs| {
        fs.set_xattr("/file", "user.b", "value", XattrMode::Any)
    }),
    ("set_xattr_nofollow", |fs| {
        fs.set_xattr_nofollow("/file", "user.b", "value", XattrMode::Any)
    }),
    ("remove_xattr", |fs| fs.remove_xattr("/file", "user.a")),
    ("remove_xattr_nofollow", |fs| {
        fs.remove_xattr_nofollow("/file", "user.a")
    }),
];

/// Changes through an open directory or file.
const BY_HANDLE: &[(&str, Try)] = &[
    ("Dir::create_file", |fs| {
        fs.open_dir("/dir")?.create_file("new").map(drop)
    }),
    ("Dir::rename", |fs| {
        let root = fs.open_dir("/")?;
        root.rename("file", &root.open_dir("dir")?, "new")
    }),
    ("Dir::hard_link", |fs| {
        let root = fs.open_dir("/")?;
        root.hard_link("file", &root.open_dir("dir")?, "new")
    }),
    ("File::set_mode", |fs| fs.open_file("/file")?.set_mode(0o600)),
    ("File::set_permissions", |fs| {
        fs.open_file("/file")?.set_permissions(Permissions::from_mode(0o600))
    }),
    ("File::chown", |fs| fs.open_file("/file")?.chown(Some(1), None)),
    ("File::set_times", |fs| {
        fs.open_file("/file")?.set_times(FileTimes::now())
    }),
    ("File::set_modified", |fs| {
        fs.open_file("/file")?.set_modified(SystemTime::now())
    }),
    ("File::set_xattr", |fs| {
        fs.open_file("/file")?.set_xattr("user.b", "value", XattrMode::Any)
    }),
    ("File::remove_xattr", |fs| fs.open_file("/file")?.remove_xattr("user.a")),
];

/// Changes of content through a file that is open for reading: as on any file system, the handle is checked first.
const BY_READER: &[(&str, Try)] = &[
    ("File::set_len", |fs| fs.open_file("/file")?.set_len(1)),
    ("File::append", |fs| fs.open_file("/file")?.append(b"x").map(drop)),
    ("File::allocate", |fs| {
        let mode = FallocateMode::Allocate { keep_size: false };
        fs.open_file("/file")?.allocate(mode, 0, 10)
    }),
];

/// Tries every change on the files of [`prepare`]: each fails with `EROFS`, and has changed nothing.
pub(crate) fn are_refused(fs: &Fs, volume: &str) {
    for (what, change) in BY_PATH.iter().chain(BY_HANDLE) {
        let error = change(fs).expect_err(what);
        assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{volume}: {what}: {error}");
    }
    for (what, change) in BY_READER {
        let error = change(fs).expect_err(what);
        let errnos = [libc::EROFS, libc::EBADF, libc::EINVAL].map(Some);
        assert!(errnos.contains(&error.raw_os_error()), "{volume}: {what}: {error}");
    }
    assert!(fs.open_file("/file").unwrap().write_at(b"x", 0).is_err(), "{volume}");
    assert_eq!(fs.read_to_string("/link").unwrap(), "text");
    assert_eq!(fs.read_dir("/").unwrap().count(), 3);
    assert_eq!(fs.read_dir("/dir").unwrap().count(), 0);
    assert_eq!(fs.list_xattrs("/file").unwrap(), ["user.a"]);
    let found = fs.metadata("/file").unwrap();
    assert_eq!((found.permissions().mode(), found.len()), (0o644, 4), "{volume}");
}
