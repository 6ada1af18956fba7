//! The engine calls of a mount, as far as the kernel leaves them to the service.

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Cred, Layer, Limits, Start};

use super::*;
use crate::locks::Wire;

const OWNER: u32 = 1000;
const OTHER: u32 = 1001;
const TEXT: &[u8] = b"text";

/// A caller as on a mount: its kernel has checked permissions.
fn user(uid: u32) -> Ctx {
    Ctx::trusted(Cred::new(uid, uid)).pinning()
}

/// A service of an engine with a file of [`OWNER`] that has some content.
fn with_file(mode: u32) -> (Arc<MemFs>, Service) {
    let fs = Arc::new(MemFs::new());
    let service = Service::new(
        Arc::clone(&fs) as Arc<dyn FileSystem>,
        FreezeBarrier::default(),
        &FuseOptions::default(),
    );
    let (_, opened) = service
        .create(&user(OWNER), (ROOT_INO, b"f"), mode, libc::O_RDWR)
        .unwrap();
    let written = service.write(&user(OWNER), (opened.fh, 0), TEXT, WriteFlags::empty(), 0);
    assert_eq!(written, Ok(TEXT.len() as u32));
    service.release(opened.fh);
    (fs, service)
}

fn attr_of_file(fs: &MemFs) -> Attr {
    fs.resolve(SYSTEM, &Start::default(), b"f", true).unwrap()
}

/// Another client's file that came after the kernel's lookup: the kernel believes that the call created it, so it
/// requests no truncation.
#[test]
fn a_create_that_meets_a_file_truncates_it() {
    for (flags, size) in [
        (libc::O_WRONLY | libc::O_TRUNC, 0),
        (libc::O_RDWR | libc::O_TRUNC, 0),
        (libc::O_RDONLY | libc::O_TRUNC, 0),
        (libc::O_RDWR, TEXT.len() as u64),
    ] {
        let (fs, service) = with_file(0o6777);
        let (known, opened) = service
            .create(&user(OTHER), (ROOT_INO, b"f"), 0o644, flags | libc::O_CREAT)
            .unwrap();
        assert_eq!((known.attr.size, attr_of_file(&fs).size), (size, size), "{flags:o}");
        let mode = if size == 0 { 0o777 } else { 0o6777 };
        assert_eq!(
            attr_of_file(&fs).mode,
            mode,
            "another user's truncation clears setuid and setgid"
        );
        service.release(opened.fh);
    }
}

/// Nor does the kernel check a file that it believes to be new.
#[test]
fn a_create_that_meets_a_file_needs_the_permission_to_open_it() {
    let denied = [
        (0o600, libc::O_WRONLY | libc::O_TRUNC),
        (0o600, libc::O_RDONLY),
        (0o604, libc::O_RDWR),
        (0o604, libc::O_RDONLY | libc::O_TRUNC),
        (0o602, libc::O_RDWR),
    ];
    for (mode, flags) in denied {
        let (fs, service) = with_file(mode);
        let before = attr_of_file(&fs);
        let made = service.create(&user(OTHER), (ROOT_INO, b"f"), 0o644, flags | libc::O_CREAT);
        assert_eq!(made.err(), Some(Errno::EACCES.into()), "{mode:o} {flags:o}");
        assert_eq!(attr_of_file(&fs), before);
        // No process has it any more: the owner's pin, and no other.
        service.unlink(&user(OWNER), ROOT_INO, b"f").unwrap();
        service.forget(before.ino, 1);
        assert_eq!(
            fs.getattr(SYSTEM, before.ino),
            Err(FsError::Stale),
            "a refusal leaves nothing behind"
        );
    }
    for (mode, flags) in [(0o602, libc::O_WRONLY), (0o604, libc::O_RDONLY)] {
        let (_, service) = with_file(mode);
        let made = service.create(&user(OTHER), (ROOT_INO, b"f"), 0o644, flags | libc::O_CREAT);
        assert!(made.is_ok(), "{mode:o} {flags:o}");
    }
}

/// An engine that other mounts use, too, and that checks its callers. With a file of [`OWNER`], opened with `flags`.
fn checking(mode: u32, flags: i32) -> (Ctx, Service, Ino, u64) {
    struct OfOthers(MemFs);

    impl Layer for OfOthers {
        fn below(&self) -> &dyn FileSystem {
            &self.0
        }

        fn limits(&self) -> Limits {
            let mut limits = self.0.limits();
            limits.validity = Duration::ZERO;
            limits
        }
    }

    let fs = MemFs::new();
    let dir = fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o777).unwrap().ino;
    let service = Service::new(
        Arc::new(OfOthers(fs)),
        FreezeBarrier::default(),
        &FuseOptions::default(),
    );
    let ctx = Ctx::checked(Cred::new(OWNER, OWNER)).pinning();
    let (known, opened) = service.create(&ctx, (dir, b"f"), mode, flags | libc::O_CREAT).unwrap();
    (ctx, service, known.attr.ino, opened.fh)
}

/// `ftruncate` needs the handle, and no other permission.
#[test]
fn who_has_a_file_open_for_writing_may_set_its_size() {
    let (ctx, service, ino, fh) = checking(0o444, libc::O_RDWR);
    let set = SetAttr {
        size: Some(5),
        ..SetAttr::default()
    };
    let refused = service.setattr(&ctx, ino, None, &set).map(|known| known.attr.size);
    assert_eq!(refused, Err(Errno::EACCES.into()));
    let known = service.setattr(&ctx, ino, Some(fh), &set).unwrap();
    assert_eq!((known.attr.ino, known.attr.size), (ino, 5));
    // The kernel's own, for `O_RDONLY | O_TRUNC`.
    let (ctx, service, ino, fh) = checking(0o644, libc::O_RDONLY);
    assert_eq!(service.setattr(&ctx, ino, Some(fh), &set).unwrap().attr.size, 5);
}

/// A second check of something the kernel did not request would refuse what it has allowed.
#[test]
fn an_engine_that_checks_is_asked_for_no_more_than_the_program_wants() {
    for (mode, flags) in [(0o200, libc::O_WRONLY), (0o400, libc::O_RDONLY), (0o600, libc::O_RDWR)] {
        let (ctx, service, ino, _) = checking(mode, libc::O_RDWR);
        for other in [libc::O_WRONLY, libc::O_RDONLY, libc::O_RDWR] {
            let is_allowed = mode == 0o600 || other == flags;
            assert_eq!(service.open(&ctx, ino, other).is_ok(), is_allowed, "{mode:o} {other}");
        }
    }
}

#[test]
fn releases_are_compared_by_number() {
    for (release, is) in [
        ("6.9.0", true),
        ("6.18.44-fc-v669\n", true),
        ("10.0", true),
        ("6.8.12-amd64", false),
        ("5.19", false),
        ("6", false),
        ("", false),
    ] {
        assert_eq!(is_at_least(release, (6, 9)), is, "{release:?}");
    }
}

/// After `ENOSYS` the kernel never sends the request again, and replies itself for a daemon that is gone.
#[test]
fn what_reports_lost_writes_is_always_answered() {
    let (_, service) = with_file(0o644);
    let ino = ino_of_file(&service);
    let opened = service.open(&user(OWNER), ino, libc::O_RDWR).unwrap();
    assert_eq!(service.fsync(&user(OWNER), opened.fh), Ok(()));
    assert_eq!(service.flush(&user(OWNER), ino, opened.fh, 7), Ok(()));
    assert_eq!(service.fsyncdir(&user(OWNER)), Ok(()));
    assert!(!opened.flags.contains(FopenFlags::FOPEN_NOFLUSH));
    for flags in [libc::O_RDONLY, libc::O_WRONLY] {
        let other = service.open(&user(OWNER), ino, flags).unwrap();
        let is_spared = other.flags.contains(FopenFlags::FOPEN_NOFLUSH);
        assert!(is_spared, "no mapping can have stored through it");
    }
    let (ctx, service, _, fh) = checking(0o644, libc::O_RDWR);
    assert_eq!(service.fsync(&ctx, fh), Ok(()));
}

/// No request to a mount gets `ENOSYS`, however wrong it is: see the table "What the kernel remembers of a daemon" in
/// docs/semantics.md.
#[test]
fn nothing_makes_the_kernel_stop_asking() {
    const BAD: u64 = 1 << 40;
    let (_, service) = with_file(0o644);
    let (ctx, set, name) = (&user(OWNER), SetAttr::default(), &b"f"[..]);
    let wire = Wire {
        start: 0,
        last: 1,
        kind: libc::F_RDLCK,
        pid: 1,
    };
    let responses: [Option<Refused>; 25] = [
        service.lookup(ctx, BAD, name).err(),
        service.lookup(ctx, BAD, b".").err(),
        service.lookup(ctx, BAD, b"..").err(),
        service.getattr(ctx, BAD).err(),
        service.setattr(ctx, BAD, Some(BAD), &set).err(),
        service.readlink(ctx, BAD).err(),
        service.mknod(ctx, (BAD, name), libc::S_IFBLK, 0).err(),
        service.mkdir(ctx, BAD, name, 0).err(),
        service.unlink(ctx, BAD, name).err(),
        service.rmdir(ctx, BAD, name).err(),
        service.symlink(ctx, BAD, name, name).err(),
        service.rename(ctx, (BAD, name), (BAD, name), u32::MAX).err(),
        service.link(ctx, BAD, BAD, name).err(),
        service.open(ctx, BAD, libc::O_RDWR).err(),
        service.create(ctx, (BAD, name), 0, libc::O_RDWR).err(),
        service.read(ctx, BAD, 0, &mut [0]).err(),
        service.write(ctx, (BAD, 0), TEXT, WriteFlags::empty(), 0).err(),
        service.fsync(ctx, BAD).err(),
        service.readdir(ctx, BAD, FIRST_COOKIE, |_, _, _, _| true).err(),
        service.readdirplus(ctx, BAD, FIRST_COOKIE, |_| true).err(),
        service.setxattr(ctx, BAD, b"user.x", TEXT, 0).err(),
        service.getxattr(ctx, BAD, b"user.x").err(),
        service.fallocate(ctx, (BAD, 0), 1, i32::MAX).err(),
        service.lseek(ctx, BAD, 0, libc::SEEK_DATA).err(),
        service.getlk(ctx, BAD, 1, wire).err(),
    ];
    for (number, response) in responses.into_iter().enumerate() {
        assert_ne!(response.map(|refused| refused.errno), Some(Errno::ENOSYS), "{number}");
    }
    assert!(responses.iter().flatten().count() > 20, "they are wrong");
    assert_eq!(service.flush(ctx, BAD, BAD, 1), Ok(()));
    assert_eq!((service.fsyncdir(ctx), service.statfs(ctx).is_ok()), (Ok(()), true));
}

/// A mapping may have stored into pages that the engine does not know yet.
#[test]
fn a_file_that_may_be_mapped_has_no_holes() {
    const LEN: u64 = 1 << 20;
    let (_, service) = with_file(0o644);
    let (ino, owner) = (ino_of_file(&service), user(OWNER));
    let reader = service.open(&owner, ino, libc::O_RDONLY).unwrap().fh;
    let resize = |size| {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        service.setattr(&owner, ino, None, &set).unwrap()
    };
    resize(0);
    let known = resize(LEN);
    assert_eq!((known.attr.blocks, known.attr_validity), (0, AttrValidity::NOT));
    let seek = |whence, offset| service.lseek(&owner, reader, offset, whence);
    let ends = |error: FsError| Err(Refused::from(&error));
    assert_eq!(seek(libc::SEEK_DATA, 5), ends(FsError::NoSuchAddress));
    service.open(&owner, ino, libc::O_WRONLY).unwrap();
    let sought = seek(libc::SEEK_DATA, 5);
    assert_eq!(sought, ends(FsError::NoSuchAddress), "no mapping stores through it");
    let writers = [0; 2].map(|_| service.open(&owner, ino, libc::O_RDWR).unwrap().fh);
    for writer in writers {
        assert_eq!((seek(libc::SEEK_DATA, 5), seek(libc::SEEK_HOLE, 5)), (Ok(5), Ok(LEN)));
        for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
            assert_eq!(seek(whence, LEN as i64), ends(FsError::NoSuchAddress));
            assert_eq!(seek(whence, -1), ends(FsError::NoSuchAddress));
        }
        let known = service.getattr(&owner, ino).unwrap();
        assert_eq!((known.attr.blocks, known.attr_validity), (1, AttrValidity::NOT));
        let entry = service.lookup(&owner, ROOT_INO, b"f").unwrap();
        assert_eq!(
            (entry.attr.unwrap().blocks, entry.attr_validity),
            (1, AttrValidity::NOT)
        );
        let mut listed = 0;
        service
            .readdirplus(&owner, ROOT_INO, FIRST_COOKIE, |it| {
                listed += 1;
                assert_eq!((it.attr.unwrap().blocks, it.attr_validity), (1, AttrValidity::NOT));
                true
            })
            .unwrap();
        assert_eq!(listed, 1);
        service.release(writer);
    }
    assert_eq!(seek(libc::SEEK_DATA, 5), ends(FsError::NoSuchAddress));
    assert_eq!(service.getattr(&owner, ino).unwrap().attr.blocks, 0);
}

fn ino_of_file(service: &Service) -> Ino {
    let found = service.lookup(&user(OWNER), ROOT_INO, b"f").unwrap();
    found.attr.unwrap().ino
}
