//! What a mount asks its engine for, as far as the kernel leaves it to the service.

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Cred, Layer, Limits, Start};

use super::*;

const OWNER: u32 = 1000;
const OTHER: u32 = 1001;
const TEXT: &[u8] = b"text";

/// A caller as a mount has them: its kernel has checked.
fn user(uid: u32) -> Ctx {
    Ctx::trusted(Cred::new(uid, uid)).pinning()
}

/// A service of an engine with a file of [`OWNER`] that has a text.
fn with_file(mode: u32) -> (Arc<MemFs>, Service) {
    let fs = Arc::new(MemFs::new());
    let service = Service::new(
        Arc::clone(&fs) as Arc<dyn FileSystem>,
        Freezer::default(),
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

/// Another client's file that came after the kernel's lookup: the kernel believes that it made it itself, so it asks
/// for no truncation.
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
            "a stranger's truncation clears setuid and setgid"
        );
        service.release(opened.fh);
    }
}

/// Nor does the kernel check a file that it believes to be its own.
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
        // Nobody has it any more: the owner's pin, and no other.
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

/// An engine that others use, too, and that checks what it is asked. With a file of [`OWNER`], which is open as `flags`
/// say.
fn checking(mode: u32, flags: i32) -> (Ctx, Service, Ino, u64) {
    struct OfOthers(MemFs);

    impl Layer for OfOthers {
        fn below(&self) -> &dyn FileSystem {
            &self.0
        }

        fn limits(&self) -> Limits {
            let mut limits = self.0.limits();
            limits.trust = Duration::ZERO;
            limits
        }
    }

    let fs = MemFs::new();
    let dir = fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o777).unwrap().ino;
    let service = Service::new(Arc::new(OfOthers(fs)), Freezer::default(), &FuseOptions::default());
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

/// A second check of what the kernel did not ask for would refuse what it has allowed.
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

/// After one such answer the kernel never asks again.
#[test]
fn only_an_engine_of_ones_own_is_durable_for_good() {
    let (_, service) = with_file(0o644);
    let opened = service
        .open(&user(OWNER), attr_of_root_file(&service), libc::O_RDWR)
        .unwrap();
    assert_eq!(service.fsync(&user(OWNER), opened.fh), Err(Errno::ENOSYS.into()));
    let (ctx, service, _, fh) = checking(0o644, libc::O_RDWR);
    assert_eq!(service.fsync(&ctx, fh), Ok(()));
}

fn attr_of_root_file(service: &Service) -> Ino {
    let found = service.lookup(&user(OWNER), ROOT_INO, b"f").unwrap();
    found.attr.unwrap().ino
}
