//! What errors report: the errno, as a program gets it from the kernel, the kind, and the path.

mod common;

use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use common::{create, on_both};
use ferrite::vfs::memfs::MemFs;
use ferrite::vfs::{DirEntry, OpenMode, SetAttr};
use ferrite::{
    Attr, Cause, Cred, EngineError, Error, FallocateMode, FileSystem, Fs, FsError, Ino, LockKind, MkfsOptions,
    MountOptions, NewNode, OpenFile, OpenOptions, RenameMode, SpaceOf, StatFs, Wait, XattrMode,
};

/// An error of an operation: its errno, its path in the text, and the same errno in what `?` makes of it.
#[track_caller]
fn is<T: std::fmt::Debug>(result: ferrite::Result<T>, errno: i32, path: &str) {
    let error = result.expect_err(path);
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
    assert!(matches!(error.cause(), Cause::Operation(cause) if cause.errno() == errno));
    assert_eq!(error.path(), Path::new(path));
    let text = error.to_string();
    assert!(text.starts_with("cannot ") && text.contains(path), "{text}");
    assert_eq!(error.kind(), io::Error::from_raw_os_error(errno).kind());
    assert_eq!(io::Error::from(error).raw_os_error(), Some(errno));
}

/// An error of the traits of `std::io`.
#[track_caller]
fn is_io<T: std::fmt::Debug>(result: io::Result<T>, errno: i32) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
}

#[test]
fn operations_keep_the_errno_and_name_the_path() {
    on_both(|fs| {
        fs.create_dir("/d").unwrap();
        fs.write("/d/f", "content").unwrap();
        fs.symlink("loop", "/loop").unwrap();
        fs.set_mode("/d/f", 0o600).unwrap();
        let long = format!("/{}", "n".repeat(256));
        let other = fs.as_user(Cred::new(1000, 1000));

        is(fs.read("/none"), libc::ENOENT, "/none");
        is(fs.open_file("/none/f"), libc::ENOENT, "/none/f");
        is(fs.create_dir("/d"), libc::EEXIST, "/d");
        is(
            OpenOptions::new().write(true).create_new(true).open(fs, "/d/f"),
            libc::EEXIST,
            "/d/f",
        );
        is(fs.remove_dir("/d"), libc::ENOTEMPTY, "/d");
        is(fs.remove_file("/d"), libc::EISDIR, "/d");
        is(fs.write("/d", "x"), libc::EISDIR, "/d");
        is(fs.truncate("/d", 1), libc::EISDIR, "/d");
        is(fs.read_dir("/d/f"), libc::ENOTDIR, "/d/f");
        is(fs.open_dir("/d/f"), libc::ENOTDIR, "/d/f");
        is(fs.metadata("/loop"), libc::ELOOP, "/loop");
        is(
            OpenOptions::new().read(true).no_follow(true).open(fs, "/loop"),
            libc::ELOOP,
            "/loop",
        );
        is(fs.write(&long, "x"), libc::ENAMETOOLONG, &long);
        is(other.read("/d/f"), libc::EACCES, "/d/f");
        is(other.access("/d/f", ferrite::Access::READ), libc::EACCES, "/d/f");
        is(other.set_mode("/d/f", 0o777), libc::EPERM, "/d/f");
        is(fs.truncate("/d/f", u64::MAX), libc::EFBIG, "/d/f");
        is(fs.read_link("/d/f"), libc::EINVAL, "/d/f");
        is(fs.get_xattr("/d/f", "user.none"), libc::ENODATA, "/d/f");
        is(fs.get_xattr("/d/f", "system.x"), libc::EOPNOTSUPP, "/d/f");
        is(
            fs.set_xattr("/d/f", "user.x", vec![1; 1 << 17], XattrMode::Any),
            libc::E2BIG,
            "/d/f",
        );
        is(fs.rename("/", "/x"), libc::EBUSY, "/");
        is(fs.copy("/d/f", "/d/f"), libc::EINVAL, "/d/f");
        assert_eq!(fs.read("/d/f").unwrap(), b"content");
    });
}

#[test]
fn handles_keep_the_errno() {
    on_both(|fs| {
        fs.write("/f", "content").unwrap();
        let reader = fs.open_file("/f").unwrap();
        let writer = OpenOptions::new().write(true).open(fs, "/f").unwrap();
        is_io((&reader).write(b"x"), libc::EBADF);
        is_io(reader.write_at(b"x", 0), libc::EBADF);
        is_io((&writer).read(&mut [0; 4]), libc::EBADF);
        is_io(writer.read_at(&mut [0; 4], 0), libc::EBADF);
        is_io((&reader).seek(SeekFrom::Current(-1)), libc::EINVAL);
        is_io(writer.write_at(b"x", 1 << 62), libc::EFBIG);
        is(reader.append(b"x"), libc::EBADF, "/f");
        is(reader.allocate(FallocateMode::PunchHole, 0, 4096), libc::EBADF, "/f");
        is(reader.set_len(0), libc::EINVAL, "/f");
        is(reader.seek_data(7), libc::ENXIO, "/f");
        is(reader.seek_hole(7), libc::ENXIO, "/f");
        is(reader.lock_range(.., LockKind::Exclusive, Wait::No), libc::EBADF, "/f");
        is(writer.lock_range(.., LockKind::Shared, Wait::No), libc::EBADF, "/f");
        is(
            writer.lock_range(5..5, LockKind::Exclusive, Wait::No),
            libc::EINVAL,
            "/f",
        );
        reader.lock().unwrap();
        is(writer.try_lock(), libc::EWOULDBLOCK, "/f");
        assert_eq!(writer.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn paths_are_named_behind_those_of_their_directories() {
    on_both(|fs| {
        fs.create_dir_all("/a/b").unwrap();
        fs.write("/a/f", "").unwrap();
        let a = fs.open_dir("/a").unwrap();
        let b = a.open_dir("b").unwrap();
        is(b.read("none"), libc::ENOENT, "/a/b/none");
        is(b.read("/none"), libc::ENOENT, "/none");
        is(a.open_file("f").unwrap().append(b"x"), libc::EBADF, "/a/f");
        for (error, new_path) in [
            (a.rename("x", &b, "y").unwrap_err(), "/a/b/y"),
            (a.hard_link("x", &b, "z").unwrap_err(), "/a/b/z"),
            (fs.rename("/a/x", "/y").unwrap_err(), "/y"),
        ] {
            assert_eq!(error.path(), Path::new("/a/x"));
            assert_eq!(error.new_path(), Some(Path::new(new_path)));
            let ending = format!(" /a/x to {new_path}: no such file or directory");
            assert!(error.to_string().ends_with(&ending), "{error}");
        }
    });
}

#[test]
fn another_file_system_is_another_device() {
    let (one, two) = (Fs::memory(), Fs::memory());
    one.write("/f", "").unwrap();
    let (from, to) = (one.open_dir("/").unwrap(), two.open_dir("/").unwrap());
    is(from.rename("f", &to, "g"), libc::EXDEV, "/f");
    is(from.hard_link("f", &to, "g"), libc::EXDEV, "/f");
}

#[test]
fn a_full_pool_is_out_of_space_and_one_for_reading_read_only() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let fs = create(&path, 16 << 20);
    fs.write("/secret", vec![1; 8 << 20]).unwrap();
    fs.set_mode("/secret", 0o4700).unwrap();
    is(fs.copy("/secret", "/copy"), libc::ENOSPC, "/copy");
    assert_eq!(
        fs.metadata("/copy").unwrap().mode(),
        0o700,
        "half a copy is not for more users either"
    );
    fs.remove_file("/copy").unwrap();
    fs.remove_file("/secret").unwrap();

    let full = fs.write("/big", vec![1; 16 << 20]);
    assert!(matches!(
        full.as_ref().unwrap_err().cause(),
        Cause::Operation(FsError::NoSpace(SpaceOf::Blocks))
    ));
    is(full, libc::ENOSPC, "/big");
    let file = OpenOptions::new().append(true).open(&fs, "/big").unwrap();
    is_io((&file).write_all(&vec![1; 16 << 20]), libc::ENOSPC);
    is(file.append(&vec![1; 16 << 20]), libc::ENOSPC, "/big");
    drop(file);
    fs.close().unwrap();

    let options = MountOptions::default().read_only(true);
    let fs = Fs::open_with(&path, &options).unwrap();
    is(fs.create_dir("/d"), libc::EROFS, "/d");
    is(fs.write("/big", ""), libc::EROFS, "/big");
    is(fs.rename("/big", "/small"), libc::EROFS, "/big");
    is(fs.set_mode("/big", 0o600), libc::EROFS, "/big");
    is(fs.set_xattr("/big", "user.x", "", XattrMode::Any), libc::EROFS, "/big");
}

#[test]
fn a_pool_that_cannot_be_had_keeps_what_the_system_said_or_the_whole_story() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let name = path.to_str().unwrap();
    let about = |error: &Error, kind| {
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.path(), path);
        assert!(error.to_string().contains(name), "{error}");
    };
    let missing = Fs::open(&path).unwrap_err();
    about(&missing, ErrorKind::NotFound);
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    assert_eq!(io::Error::from(missing).raw_os_error(), Some(libc::ENOENT));

    let few = MkfsOptions::default().block_bytes(1000);
    let refused = Fs::create_with(&path, 64 << 20, &few).unwrap_err();
    about(&refused, ErrorKind::InvalidInput);
    assert!(matches!(refused.cause(), Cause::Pool(EngineError::Options(_))));
    assert!(!path.exists());

    let fs = create(&path, 16 << 20);
    about(&Fs::create(&path, 16 << 20).unwrap_err(), ErrorKind::AlreadyExists);
    let in_use = Fs::open(&path).unwrap_err();
    about(&in_use, ErrorKind::ResourceBusy);
    assert_eq!(in_use.raw_os_error(), None);
    let told = in_use.to_string();
    let whole = io::Error::from(in_use);
    assert_eq!((whole.kind(), whole.to_string()), (ErrorKind::ResourceBusy, told));
    assert!(whole.get_ref().unwrap().is::<Error>());
    fs.close().unwrap();

    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    about(&Fs::open(&path).unwrap_err(), ErrorKind::InvalidData);
}

#[test]
fn text_that_is_none_is_an_error_with_its_path() {
    let fs = Fs::memory();
    fs.write("/f", [0xff, 0xfe]).unwrap();
    let error = fs.read_to_string("/f").unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::InvalidData, None));
    assert!(matches!(error.cause(), Cause::NotUtf8(_)));
    assert!(error.to_string().starts_with("cannot read /f: "), "{error}");
}

/// A file that says it is larger than any memory.
struct Huge(Arc<dyn OpenFile>);

impl OpenFile for Huge {
    fn ino(&self) -> Ino {
        self.0.ino()
    }
    fn getattr(&self) -> Result<Attr, FsError> {
        let attr = self.0.getattr()?;
        Ok(Attr { size: 1 << 62, ..attr })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, FsError> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        self.0.write_at(offset, data)
    }
    fn append(&self, data: &[u8]) -> Result<(u64, usize), FsError> {
        self.0.append(data)
    }
    fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Result<(), FsError> {
        self.0.fallocate(mode, offset, len)
    }
    fn seek_data(&self, offset: u64) -> Result<u64, FsError> {
        self.0.seek_data(offset)
    }
    fn seek_hole(&self, offset: u64) -> Result<u64, FsError> {
        self.0.seek_hole(offset)
    }
    fn fsync(&self) -> Result<(), FsError> {
        Err(FsError::Io("the server is gone".into()))
    }
}

/// An engine whose files are gone when their attributes are to change, as those of a server can be.
struct Gone(MemFs);

impl FileSystem for Gone {
    fn statfs(&self) -> Result<StatFs, FsError> {
        self.0.statfs()
    }
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        self.0.lookup(parent, name)
    }
    fn parent(&self, dir: Ino) -> Result<Ino, FsError> {
        self.0.parent(dir)
    }
    fn getattr(&self, ino: Ino) -> Result<Attr, FsError> {
        self.0.getattr(ino)
    }
    fn setattr(&self, _: Ino, _: &SetAttr) -> Result<Attr, FsError> {
        Err(FsError::Stale)
    }
    fn pin(&self, ino: Ino, generation: u32) -> Result<(), FsError> {
        self.0.pin(ino, generation)
    }
    fn unpin(&self, ino: Ino, count: u64) {
        self.0.unpin(ino, count);
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.0.readlink(ino)
    }
    fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr, FsError> {
        self.0.mknod(cred, parent, name, node)
    }
    fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32) -> Result<Attr, FsError> {
        self.0.mkdir(cred, parent, name, mode)
    }
    fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr, FsError> {
        self.0.symlink(cred, parent, name, target)
    }
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        self.0.link(ino, parent, name)
    }
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.0.unlink(parent, name)
    }
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.0.rmdir(parent, name)
    }
    fn rename(&self, parent: Ino, name: &[u8], to: Ino, new_name: &[u8], mode: RenameMode) -> Result<(), FsError> {
        self.0.rename(parent, name, to, new_name, mode)
    }
    fn readdir(&self, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<(), FsError> {
        self.0.readdir(dir, cookie, sink)
    }
    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>, FsError> {
        Ok(Arc::new(Huge(self.0.open(ino, mode)?)))
    }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        self.0.getxattr(ino, name)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), FsError> {
        self.0.setxattr(ino, name, value, mode)
    }
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        self.0.listxattr(ino)
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        self.0.removexattr(ino, name)
    }
    fn sync(&self) -> Result<(), FsError> {
        self.0.sync()
    }
}

#[test]
fn errors_of_an_engine_of_ones_own_come_through() {
    let fs = Fs::over(Arc::new(Gone(MemFs::new())));
    fs.write("/f", "content").unwrap();
    is(fs.set_mode("/f", 0o600), libc::ESTALE, "/f");
    let file = fs.open_file("/f").unwrap();
    is(file.set_mode(0o600), libc::ESTALE, "/f");
    is(file.sync_all(), libc::EIO, "/f");
    // A file that no memory can hold is an error, not the end of the program.
    let error = fs.read("/f").unwrap_err();
    assert!(matches!(error.cause(), Cause::NoMemory { .. }), "{error}");
    assert_eq!(
        (error.raw_os_error(), error.kind()),
        (Some(libc::ENOMEM), ErrorKind::OutOfMemory)
    );
}
