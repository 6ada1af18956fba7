//! A file system that is opened read-only refuses the open, not the first write.
//!
//! Contents: [`prepare`], for the file system while it can be written, and [`check`], for the same one opened
//! read-only. Each engine's tests call both.

use ferrite_vfs::{
    Cred, Ctx, FileKind, FileSystem, FsError, NewFile, NewNode, OpenFlags, OpenMode, ROOT_INO, SYSTEM, SetAttr, Start,
};

const FILE: &[u8] = b"file";
const MISSING: &[u8] = b"missing";
const TEXT: &[u8] = b"text";

const TRUNCATING: OpenMode = OpenMode {
    truncate: true,
    ..OpenMode::read_only()
};
const WRITE_ONLY: OpenMode = OpenMode {
    read: false,
    ..OpenMode::read_write()
};

/// Makes the tree that [`check`] looks at.
///
/// # Panics
/// If the file system refuses.
pub fn prepare(fs: &dyn FileSystem) {
    let new = NewNode {
        mode: 0o644,
        kind: FileKind::File,
        rdev: 0,
    };
    let file = fs.mknod(SYSTEM, ROOT_INO, FILE, &new).expect("mknod");
    let open = fs.open(SYSTEM, file.ino, OpenMode::read_write()).expect("open");
    open.write_at(SYSTEM, 0, TEXT).expect("write");
    drop(open);
    fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).expect("mkdir");
    fs.sync(SYSTEM).expect("sync");
}

/// Checks that opens for writing, truncations and creations get `ReadOnly`, and that an existing file can be read
/// however it is opened for that.
///
/// # Panics
/// If one is not refused, or refused with another error.
pub fn check(fs: &dyn FileSystem) {
    let found = fs.lookup(SYSTEM, ROOT_INO, FILE).expect("lookup");
    let dir = fs.lookup(SYSTEM, ROOT_INO, b"dir").expect("lookup");
    // A read-only file system comes before the permissions, as in Linux.
    let user = Ctx::checked(Cred::new(1000, 1000));
    for ctx in [SYSTEM, &user] {
        for mode in [OpenMode::read_write(), WRITE_ONLY, TRUNCATING] {
            assert_eq!(fs.open(ctx, found.ino, mode).err(), Some(FsError::ReadOnly), "{mode:?}");
            let new = NewFile {
                mode: 0o644,
                open: mode,
                exclusive: false,
            };
            assert_eq!(created(fs, ctx, FILE, &new), Err(FsError::ReadOnly), "{mode:?}");
        }
    }
    // A client refuses before it asks what the inode is.
    let of_dir = fs.open(SYSTEM, dir.ino, OpenMode::read_write()).err();
    assert!(
        matches!(of_dir, Some(FsError::IsDirectory | FsError::ReadOnly)),
        "{of_dir:?}"
    );
    creations(fs);
    by_path(fs);
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    assert_eq!(fs.setattr(SYSTEM, found.ino, &set).err(), Some(FsError::ReadOnly));
    let open = fs.open(SYSTEM, found.ino, OpenMode::read_only()).expect("open to read");
    let mut text = [0; 8];
    assert_eq!(open.read_at(SYSTEM, 0, &mut text), Ok(TEXT.len()));
    assert_eq!(&text[..TEXT.len()], TEXT);
}

fn created(fs: &dyn FileSystem, ctx: &Ctx, name: &[u8], new: &NewFile) -> Result<bool, FsError> {
    fs.create(ctx, ROOT_INO, name, new).map(|opened| opened.created)
}

fn creations(fs: &dyn FileSystem) {
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_only(),
        exclusive: false,
    };
    let exclusive = NewFile { exclusive: true, ..new };
    assert_eq!(created(fs, SYSTEM, MISSING, &new), Err(FsError::ReadOnly));
    assert_eq!(created(fs, SYSTEM, MISSING, &exclusive), Err(FsError::ReadOnly));
    assert_eq!(created(fs, SYSTEM, FILE, &exclusive), Err(FsError::Exists));
    assert_eq!(
        created(fs, SYSTEM, FILE, &new),
        Ok(false),
        "it is there, and is only read"
    );
    assert_eq!(fs.lookup(SYSTEM, ROOT_INO, MISSING).err(), Some(FsError::NotFound));
}

fn by_path(fs: &dyn FileSystem) {
    let read = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    let open = |path: &[u8], flags: OpenFlags| fs.open_path(SYSTEM, &Start::default(), path, &flags).err();
    for (path, flags, refused) in [
        (FILE, read, None),
        (FILE, OpenFlags { create: true, ..read }, None),
        (FILE, OpenFlags { write: true, ..read }, Some(FsError::ReadOnly)),
        (FILE, OpenFlags { truncate: true, ..read }, Some(FsError::ReadOnly)),
        (MISSING, read, Some(FsError::NotFound)),
        (MISSING, OpenFlags { create: true, ..read }, Some(FsError::ReadOnly)),
    ] {
        assert_eq!(open(path, flags), refused, "{flags:?}");
    }
}
