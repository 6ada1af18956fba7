//! The contents of errors: the errno, as a program gets it from the kernel, the kind, and the path.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use crate::common::{create, on_both};
use ferrite::volume::VolumeErrorKind;
use ferrite::{
    Cause, Cred, Error, FallocateMode, Fs, LockKind, MkfsOptions, MountOptions, OpenOptions, SpaceOf, Wait, XattrMode,
};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Attr, Ctx, FileLayer, FileSystem, FsError, Ino, Layer, OpenFile, OpenFlags, Opened, SetAttr, Start};

/// An error of an operation: its errno, its path in the text, and the same errno after conversion by `?`.
#[track_caller]
fn is<T: std::fmt::Debug>(result: ferrite::Result<T>, errno: i32, path: &str) {
    let error = result.expect_err(path);
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
    assert!(matches!(error.cause(), Cause::Operation(cause) if cause.raw_os_error() == errno));
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
        fs.metadata("/copy").unwrap().permissions().mode(),
        0o700,
        "half a copy is not for more users either"
    );
    fs.remove_file("/copy").unwrap();
    fs.remove_file("/secret").unwrap();

    let full = fs.write("/big", vec![1; 16 << 20]);
    assert!(matches!(
        full.as_ref().unwrap_err().cause(),
        Cause::Operation(error) if error.out_of() == Some(SpaceOf::Blocks) && !error.is_damage()
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
    assert!(matches!(refused.cause(), Cause::Volume(error) if error.kind() == &VolumeErrorKind::Invalid));
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
fn an_address_leads_to_its_engine_or_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a:b");
    create(&path, 16 << 20).close().unwrap();
    for address in [format!("pm:{}", path.display()), path.display().to_string()] {
        let fs = Fs::open_volume(&address).unwrap();
        assert!(fs.info().is_some(), "{address}");
        let in_use = Fs::open_volume(&address).unwrap_err();
        assert_eq!((in_use.kind(), in_use.path()), (ErrorKind::ResourceBusy, &*path));
        assert!(matches!(
            in_use.cause(),
            Cause::Volume(error) if matches!(error.kind(), VolumeErrorKind::InUse { process: Some(_), .. })
        ));
        fs.close().unwrap();
    }
    let inspecting = Fs::open_volume_with(&path, MountOptions::inspect()).unwrap();
    assert_eq!(
        inspecting.write("/f", "x").unwrap_err().raw_os_error(),
        Some(libc::EROFS)
    );
    inspecting.close().unwrap();

    for (address, kind) in [
        #[cfg(not(feature = "nvme"))]
        ("nvme:/etc/drives", ErrorKind::Unsupported),
        #[cfg(feature = "net")]
        ("tcp:host", ErrorKind::InvalidInput),
        #[cfg(not(feature = "net"))]
        ("tcp:host", ErrorKind::Unsupported),
        ("pm:", ErrorKind::InvalidInput),
        ("http://host", ErrorKind::InvalidInput),
    ] {
        let error = Fs::open_volume(address).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (kind, None), "{error}");
        assert!(matches!(error.cause(), Cause::Volume(_)), "{error}");
        assert_eq!(error.to_string().matches(address).count(), 1, "{error}");
    }
    // A path is a path, whatever it looks like.
    assert_eq!(Fs::open("tcp://host/export").unwrap_err().kind(), ErrorKind::NotFound);
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

/// A file that claims to be larger than any memory.
struct Huge(Arc<dyn OpenFile>);

impl FileLayer for Huge {
    fn below(&self) -> &dyn OpenFile {
        &*self.0
    }
    fn getattr(&self, ctx: &Ctx) -> Result<Attr, FsError> {
        let attr = self.0.getattr(ctx)?;
        Ok(Attr { size: 1 << 62, ..attr })
    }
    fn fsync(&self, _: &Ctx) -> Result<(), FsError> {
        Err(FsError::Io("the server is gone".into()))
    }
}

/// An engine whose files vanish before a change of their attributes, as those of a server can.
struct Gone(MemFs);

impl Layer for Gone {
    fn below(&self) -> &dyn FileSystem {
        &self.0
    }
    fn setattr(&self, _: &Ctx, _: Ino, _: &SetAttr) -> Result<Attr, FsError> {
        Err(FsError::Stale)
    }
    fn open_path(&self, ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<Opened, FsError> {
        let opened = self.0.open_path(ctx, start, path, flags)?;
        Ok(Opened {
            file: Arc::new(Huge(opened.file)),
            ..opened
        })
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

/// Flags of `open(2)`: those with an effect, those that hold anyway, and the rest.
#[test]
fn flags_of_open_have_their_effect_or_are_refused() {
    on_both(|fs| {
        fs.write("/f", "content").unwrap();
        fs.symlink("f", "/link").unwrap();
        let open = |flags, path: &str| OpenOptions::new().read(true).custom_flags(flags).open(fs, path);
        is(open(libc::O_NOFOLLOW, "/link"), libc::ELOOP, "/link");
        open(libc::O_NOATIME | libc::O_CLOEXEC | libc::O_SYNC, "/link").unwrap();
        let refused = open(libc::O_DIRECT, "/f").unwrap_err();
        assert!(matches!(refused.cause(), Cause::OpenFlags { flags: libc::O_DIRECT }));
        let text = refused.to_string();
        assert!(
            text.starts_with("cannot open /f: ") && text.ends_with("omit them"),
            "{text}"
        );
        assert_eq!(
            (refused.raw_os_error(), refused.kind()),
            (Some(libc::EINVAL), ErrorKind::InvalidInput)
        );
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o4640);
        options.open(fs, "/new").unwrap();
        assert_eq!(fs.metadata("/new").unwrap().permissions().mode(), 0o4640);
        is(options.open(fs, "/new"), libc::EEXIST, "/new");
    });
}
